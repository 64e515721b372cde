# SPDX-License-Identifier: GPL-2.0
"""scripts/boot with a program instead of QEMU: what it says of each end. With guests: tests/kernel/test_boot.py."""

import os
import shutil

import pytest
from collector import make_checkout
from commands import TOP, call

# Stands in for QEMU: finds the files of the guest's output and status, and the log, in its arguments, and does what END says.
QEMU = """\
#!/bin/sh
for word; do
	case $word in
	*,path=*/output) work=${word#*path=} work=${work%/output} ;;
	file:*) log=${word#file:} ;;
	esac
done
eval "$END"
"""


@pytest.fixture
def boot(tmp_path):
    """Runs scripts/boot of a checkout; END: what QEMU and the guest do."""
    top = tmp_path / "checkout"
    make_checkout(top)
    for name in ("scripts/boot", "scripts/splats", "patches/lines"):
        (top / name).parent.mkdir(exist_ok=True)
        shutil.copy(TOP / name, top / name)
    (top / "scripts/image").write_text("image\n")
    through = tmp_path / "qemu"
    through.write_text(QEMU)
    through.chmod(0o755)
    (tmp_path / "cache").mkdir()

    def run(end, *words, rc):
        return call(top / "scripts/boot", "--arch", "arm64", "--kernel", top / "scripts/image", "--log", tmp_path / "log", "--through", through,
                    *words, "--", "true", rc=rc, env=os.environ | {"END": end, "STEAL_CACHE": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)})
    yield run
    assert not list(tmp_path.glob("steal-boot-*"))


def test_status(boot):
    stdout, stderr = boot('echo hello >"$work/output"; echo 7 >"$work/status"; echo a warning', rc=7)
    assert (stdout, stderr) == ("hello\n", "")


def test_killed(boot):
    """For example, as the host has no memory left. That is no timeout."""
    stderr = boot('echo booting >"$log"; kill -KILL $$', rc=125)[1].splitlines()
    assert stderr[-3:-1] == ["booting", "boot: QEMU was killed; if the host has run out of memory, its kernel log says so"]
    assert "error: the guest ended before the command did (QEMU's exit status 137; no status from the guest); the log: " in stderr[-1]


@pytest.mark.parametrize("end", ["exec sleep 100", "trap '' TERM; while :; do sleep 1; done"])
def test_timeout(boot, end):
    stderr = boot(end, "--timeout", "1", rc=124)[1]
    assert "error: not finished after 1 seconds (--timeout); the log: " in stderr and "killed" not in stderr


def test_failure(boot):
    stderr = boot('echo "qemu: no such CPU" >&2; exit 1', rc=125)[1]
    assert "qemu: no such CPU\n" in stderr and "(QEMU's exit status 1; no status from the guest)" in stderr


def test_splat(boot):
    """What the kernel says counts, whatever the command's status is."""
    stderr = boot('printf "[ 1.0] WARNING: CPU: 0 PID: 1 at kernel/sched/fair.c:1\\r\\n" >"$log"; echo 0 >"$work/status"', rc=125)[1]
    assert "error: 1 line(s) of splats in the kernel log:\n" in stderr and "WARNING: CPU: 0" in stderr
    boot('printf "[ 1.0] WARNING: CPU: 0 PID: 1 at kernel/sched/fair.c:1\\n" >"$log"; echo 0 >"$work/status"', "--allow", "WARNING: CPU: 0", rc=0)


def test_fault_of_qemu(boot):
    """One of its own assertions: a caller may try again."""
    stderr = boot('echo "qemu: Assertion x failed." >&2; kill -ABRT $$', rc=75)[1]
    assert "a fault of QEMU, not of the kernel: one of its own assertions failed; try again" in stderr
