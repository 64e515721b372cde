# SPDX-License-Identifier: GPL-2.0
"""scripts/build, scripts/guest-image and scripts/boot, with an x86_64 kernel."""

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from conftest import tried

TOP = Path(__file__).resolve().parents[2]
PARAMETER = "sched_features=NO_STEAL,NO_SYNC_WAIT,NOT_A_FEATURE"


def run(script, *args, top=TOP, **kwargs):
    return tried([top / "scripts" / script, *map(str, args)], text=True,
                 stdin=subprocess.DEVNULL, capture_output=True, **kwargs)


@pytest.fixture(scope="module")
def kernel():
    """The image that scripts/build makes of the patched default tree; the guest's image, too, is made."""
    for script, args in (("apply", ()), ("guest-image", ("--arch", "x86_64")),
                         ("build", ("--arch", "x86_64", "--config", "guest,steal"))):
        result = run(script, *args)
        assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.fixture(scope="module")
def boot(kernel):
    def start(*command, options=(), **kwargs):
        return run("boot", "--arch", "x86_64", "--kernel", kernel, "--timeout", "120",
                   *options, "--", *command, **kwargs)
    return start


def test_output_and_arguments_pass_unchanged(boot):
    words = ["two  spaces", "it's", '"quoted"', "$HOME `id` \\n *", "", "-n", "two\nlines"]
    result = boot("printf", "[%s]\n", *words)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "".join(f"[{w}]\n" for w in words)
    assert result.stderr == ""


def test_exit_status_and_standard_error_are_the_commands(boot):
    result = boot("sh", "-c", "echo out; echo err >&2; exit 7")
    assert result.returncode == 7, result.stderr
    assert result.stdout == "out\nerr\n"


def test_much_output_arrives_whole(boot):
    result = boot("seq", "200000")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [str(i) for i in range(1, 200001)]


def test_add_share_and_log(boot, tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\nmkdir /share/made && cat /share/in >/share/made/out\n")
    script.chmod(0o755)
    data = tmp_path / "data"
    data.write_text("data\n")
    shared = tmp_path / "with, comma"
    shared.mkdir()
    (shared / "in").write_text("from the host\n")
    log = tmp_path / "log"
    result = boot("sh", "-c", "cat /opt/data && /opt/script", options=(
        "--add", script, "--add", data, "--share", shared, "--log", log, "--append", "planted=1"))
    assert result.returncode == 0, result.stderr
    assert result.stdout == "data\n"
    assert (shared / "made" / "out").read_text() == "from the host\n"
    assert re.search(r"Kernel command line: .* planted=1", log.read_text())


def test_every_cpu_has_high_resolution_timers(boot):
    result = boot("grep", "-c", "hres_active.*1", "/proc/timer_list", options=("--smp", "4"))
    assert result.returncode == 0, result.stderr
    assert result.stdout == "4\n"


def test_hackbench_runs(boot):
    result = boot("hackbench", "-g", "1", "-l", "10")
    assert result.returncode == 0, result.stderr
    assert re.search(r"^Time: [0-9.]+$", result.stdout, re.M)


def test_boot_parameter_switches_features(boot, tmp_path):
    """What the parameter names is off and all else as it is without it; the log names what is no feature."""
    features = "/sys/kernel/debug/sched/features"
    usual = boot("cat", features).stdout.split()
    assert len(usual) > 32 and {"STEAL", "STEAL_FIRST", "STEAL_BUSIEST", "STEAL_SLICE", "STEAL_WAITED", "SYNC_WAIT"} <= set(usual), usual
    log = tmp_path / "log"
    result = boot("cat", features, options=("--append", PARAMETER, "--log", log))
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["NO_" + name if name in ("STEAL", "SYNC_WAIT") else name for name in usual]
    assert re.findall(r"sched_features=: (.*)", log.read_text()) == ["no feature NOT_A_FEATURE"]


@pytest.mark.parametrize("smp,numa,caches,nodes", [
    ("4,sockets=2,cores=2,threads=1", 2, ["0-1", "0-1", "2-3", "2-3"], ["0-1", "2-3"]),
    ("2", 1, ["0-1", "0-1"], ["0-1"]),
    ("2,sockets=1,cores=1,threads=2", 1, ["0-1", "0-1"], ["0-1"]),
])
def test_topology(boot, smp, numa, caches, nodes):
    result = boot("sh", "-c", "cd /sys/devices/system; cat cpu/cpu?/cache/index3/shared_cpu_list; "
                  "echo; cat node/node?/cpulist", options=("--smp", smp, "--numa", numa))
    assert result.returncode == 0, result.stderr
    got_caches, got_nodes = result.stdout.split("\n\n")
    assert got_caches.split() == caches
    assert got_nodes.split() == nodes


@pytest.mark.parametrize("line", [
    "WARNING: CPU: 0 PID: 1 at kernel/planted.c:1 planted+0x0/0x1",
    "WARNING: possible circular locking dependency detected",
    "BUG: KASAN: slab-use-after-free in planted",
    "rcu: INFO: rcu_preempt self-detected stall on CPU",
    "INFO: task planted:1 blocked for more than 60 seconds.",
])
def test_splat_fails_the_boot(boot, line):
    result = boot("sh", "-c", f"echo '<4>{line}' >/dev/kmsg")
    assert result.returncode == 125, result.stderr
    assert line in result.stderr


@pytest.mark.parametrize("code,status", [
    ("e9 41 fc ff ff 0f <1f> 44 00 00", 75),
    ("e9 41 fc ff ff cc <1f> 44 00 00", 125),
    ("Unable to access opcode bytes at 0x0.", 125),
])
def test_stale_breakpoint_of_qemu_is_told_from_one_in_memory(kernel, tmp_path, code, status):
    """Once; and a second try is made of the first kind only, whose result counts."""
    qemu = tmp_path / "qemu"
    qemu.write_text(f"""#!/bin/sh
echo >>{tmp_path}/tries
for word; do case $word in file:*) log=${{word#file:}} ;; esac; done
echo '[    0.9] Oops: int3: 0000 [#1] SMP
[    0.9] RIP: 0010:set_next_task_fair+0x61e/0x6c0
[    0.9] Code: {code}' >"$log"
exit 1
""")
    qemu.chmod(0o755)
    result = run("boot", "--arch", "x86_64", "--kernel", kernel, "--through", qemu, "--", "true")
    assert result.returncode == status, result.stderr
    assert ("try again" in result.stderr) == (status == 75)
    assert "set_next_task_fair" in result.stderr
    assert len((tmp_path / "tries").read_text()) == (2 if status == 75 else 1)


@pytest.mark.parametrize("before", ["WARNING: CPU: 1 PID: 1 at kernel/sched/fair.c:1", "BUG: earlier"])
def test_earlier_splat_is_not_blamed_on_qemu(kernel, tmp_path, before):
    qemu = tmp_path / "qemu"
    qemu.write_text(f"""#!/bin/sh
for word; do case $word in file:*) log=${{word#file:}} ;; esac; done
echo '[    0.9] {before}
[    0.9] Oops: int3: 0000 [#1] SMP
[    0.9] Code: e9 41 fc ff ff 0f <1f> 44 00 00' >"$log"
exit 1
""")
    qemu.chmod(0o755)
    result = run("boot", "--arch", "x86_64", "--kernel", kernel, "--through", qemu, "--", "true")
    assert result.returncode == 125, result.stderr


@pytest.mark.parametrize("said,splat,status", [
    ("qemu-system-x86_64: hw/pci/msix.c:228: msix_table_mmio_write: Assertion `addr + size <= 16' failed.", "", 75),
    ("ERROR:hw/pci/msix.c:228:msix_table_mmio_write: assertion failed: (addr + size <= 16)", "", 75),
    ("qemu-system-x86_64: cannot set up guest memory", "", 125),
    ("qemu-system-x86_64: hw/pci/msix.c:228: msix_table_mmio_write: Assertion `addr + size <= 16' failed.", "BUG: before", 125),
])
def test_failed_assertion_of_qemu_is_tried_again(kernel, tmp_path, said, splat, status):
    """Once; not if QEMU gives up for another reason, or if the kernel had a splat before."""
    qemu = tmp_path / "qemu"
    qemu.write_text(f"""#!/bin/sh
echo >>{tmp_path}/tries
for word; do case $word in file:*) log=${{word#file:}} ;; esac; done
echo '[    1.5] {splat or "pci 0000:00:01.0: [1af4:1003]"}' >"$log"
echo "{said.replace("`", "'")}" >&2
kill -ABRT $$
""")
    qemu.chmod(0o755)
    result = run("boot", "--arch", "x86_64", "--kernel", kernel, "--through", qemu, "--", "true")
    assert result.returncode == status, result.stderr
    assert len((tmp_path / "tries").read_text()) == (2 if status == 75 else 1)
    assert "[    1.5]" in result.stderr and said.split(" ")[1] in result.stderr


def test_panic_fails_the_boot(boot):
    result = boot("sh", "-c", "echo before; echo c >/proc/sysrq-trigger; sleep 100")
    assert result.returncode == 125, result.stderr
    assert "Kernel panic" in result.stderr
    assert result.stdout == "before\n"


def test_guest_that_ends_early_is_not_success(boot):
    result = boot("sh", "-c", "poweroff -f; sleep 100")
    assert result.returncode == 125
    assert "the guest ended before the command did" in result.stderr


def test_time_limit(boot):
    result = boot("sleep", "1000", options=("--timeout", "15"))
    assert result.returncode == 124
    assert "not finished after 15 seconds" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupt_leaves_no_process(kernel, tmp_path, number):
    log = tmp_path / "log"

    def processes():
        lines = subprocess.run(["ps", "-ewwo", "args"], text=True, stdout=subprocess.PIPE, check=True)
        return [p for p in lines.stdout.split("\n") if str(log) in p]

    command = [TOP / "scripts" / "boot", "--arch", "x86_64", "--kernel", kernel, "--log", log,
               "--", "sleep", "1000"]
    # A shell's background job ignores SIGINT, and so would all that it starts.
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                          preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
                          env={**os.environ, "TMPDIR": str(tmp_path)}) as child:
        try:
            deadline = time.monotonic() + 60
            while not any(p.startswith("qemu-system") for p in processes()):
                assert time.monotonic() < deadline
                time.sleep(0.1)
            child.send_signal(number)
            child.wait(timeout=30)
        finally:
            child.kill()
    deadline = time.monotonic() + 20
    while processes() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes() == []
    if number != signal.SIGKILL:
        assert list(tmp_path.glob("steal-boot-*")) == []


@pytest.mark.parametrize("args,message", [
    (("--arch", "x86_64", "--kernel", "/nonexistent/bzImage", "--", "true"), "/nonexistent/bzImage"),
    (("--arch", "x86_64", "--add", "/nonexistent/file", "--", "true"), "/nonexistent/file"),
    (("--arch", "x86_64", "--share", "/nonexistent/dir", "--", "true"), "/nonexistent/dir"),
    (("--arch", "mips", "--", "true"), "mips"),
    (("--arch", "x86_64", "--smp", "4", "--numa", "3", "--", "true"), "split evenly"),
    (("--arch", "x86_64", "--smp", "two", "--", "true"), "two"),
    (("--arch", "x86_64", "--timeout", "1m", "--", "true"), "1m"),
    (("--arch", "x86_64", "--frobnicate", "--", "true"), "--frobnicate"),
    (("--arch", "x86_64"), "no command"),
])
def test_wrong_calls_of_boot(args, message):
    result = run("boot", *args)
    assert result.returncode in (1, 2)
    assert result.stdout == ""
    assert message in result.stderr


@pytest.fixture
def copy(tmp_path):
    """A copy of the repository's files that the build reads, to be changed."""
    top = tmp_path / "repository"
    for part in ("scripts", "configs"):
        shutil.copytree(TOP / part, top / part)
    shutil.copytree(TOP / "patches", top / "patches")
    shutil.copy(TOP / "base", top / "base")
    return top


@pytest.mark.parametrize("line,asked,got", [
    ("CONFIG_PLANTED=y", "CONFIG_PLANTED=y", "CONFIG_PLANTED=n"),
    ("CONFIG_SCHED_MC=n", "CONFIG_SCHED_MC=n", None),
    ("# CONFIG_X86_TSC is not set", "CONFIG_X86_TSC=n", "CONFIG_X86_TSC=y"),
    ("CONFIG_NR_CPUS=100000", "CONFIG_NR_CPUS=100000", "CONFIG_NR_CPUS="),
])
def test_symbol_that_does_not_survive_is_named(kernel, copy, line, asked, got):
    (copy / "configs" / "planted.config").write_text(line + "\n")
    # The build itself would take minutes: end it where it begins.
    build = copy / "scripts" / "build"
    build.write_text(build.read_text().replace('say "building', 'exit 0\nsay "building'))
    result = run("build", "--arch", "x86_64", "--config", "guest,steal,planted", top=copy)
    if got is None:
        assert result.returncode == 0, result.stderr
    else:
        assert result.returncode == 1
        assert f"planted.config: {asked} asked for, {got}" in result.stderr
        assert result.stderr.count(" asked for, ") == 1


def test_second_build_compiles_nothing(kernel):
    result = run("build", "--arch", "x86_64", "--config", "guest,steal")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == kernel
    log = Path(kernel.split("/arch/")[0]) / "build.log"
    assert not re.search(r"^ +(CC|LD) .*(vmlinux|\.o)$", log.read_text(), re.M)


def test_failed_build_shows_the_log(kernel, copy, tmp_path):
    # A compiler that fails on one file, found before the real one; an empty fragment, for a
    # build directory of its own.
    (copy / "configs" / "planted.config").write_text("")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "ccache").write_text('#!/bin/sh\ncase "$*" in *kernel/bounds.c*) echo planted error >&2; exit 1;; '
                                  'esac\nexec "$@"\n')
    (tools / "ccache").chmod(0o755)
    result = run("build", "--arch", "x86_64", "--config", "guest,steal,planted", top=copy, env={
        **os.environ, "PATH": f"{tools}:{os.environ['PATH']}"})
    assert result.returncode == 1
    assert "planted error" in result.stderr
    log = re.search(r"the whole log: (\S+)", result.stderr)
    assert log and Path(log[1]).is_file()
    shutil.rmtree(Path(log[1]).parent)


def test_only_c_files_are_compiled_in_depend_mode(tree, tmp_path):
    """In this mode, ccache does not see what an assembler file includes by .incbin."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "ccache").write_text('#!/bin/sh\nfor f; do :; done; echo "$f ${CCACHE_DEPEND-no}${CCACHE_NODEPEND-}"'
                                  f' >>{tmp_path}/modes\nexec {shutil.which("ccache")} "$@"\n')
    (tools / "ccache").chmod(0o755)
    result = run("build", "--arch", "x86_64", "--config", "guest,steal", "--objects", "arch/x86/lib", "--warnings", tmp_path / "warnings",
                 env={**os.environ, "CCACHE_DEPEND": "1", "PATH": f"{tools}:{os.environ['PATH']}"})
    assert result.returncode == 0, result.stderr
    modes = dict(line.rsplit(" ", 1) for line in (tmp_path / "modes").read_text().splitlines())
    found = {(Path(name).suffix, mode) for name, mode in modes.items() if "/arch/x86/lib/" in name}
    assert found == {(".c", "1"), (".S", "no1")}


def test_ended_build_leaves_no_process(kernel, copy):
    (copy / "configs" / "planted2.config").write_text("")
    out = Path(kernel.split("/arch/")[0] + "+planted2")

    def processes():
        lines = subprocess.run(["ps", "-ewwo", "args"], text=True, stdout=subprocess.PIPE, check=True)
        return [p for p in lines.stdout.split("\n") if p.startswith("make ") and str(out) in p]

    command = [copy / "scripts" / "build", "--arch", "x86_64", "--config", "guest,steal,planted2"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as child:
        try:
            for line in child.stderr:
                if "building" in line:
                    break
            deadline = time.monotonic() + 60
            while not processes():
                assert time.monotonic() < deadline
                time.sleep(0.1)
            child.terminate()
            assert child.wait(timeout=30) == 143
        finally:
            child.kill()
    assert processes() == []
    shutil.rmtree(out)


def test_tree_with_a_build_inside_is_refused(tmp_path):
    (tmp_path / "Kbuild").write_text("")
    (tmp_path / ".config").write_text("")
    result = run("build", "--arch", "x86_64", "--config", "guest", "--tree", tmp_path)
    assert result.returncode == 1
    assert "mrproper" in result.stderr and str(tmp_path) in result.stderr


@pytest.mark.parametrize("args,message", [
    (("--arch", "x86_64", "--config", "nonexistent"), "configs/nonexistent.config"),
    (("--arch", "x86_64",), "--config is missing"),
    (("--arch", "mips", "--config", "guest"), "mips"),
    (("--arch", "x86_64", "--config", "guest", "--tree", "/nonexistent"), "/nonexistent"),
    (("--frobnicate",), "--frobnicate"),
])
def test_wrong_calls_of_build(args, message):
    result = run("build", *args)
    assert result.returncode in (1, 2)
    assert result.stdout == ""
    assert message in result.stderr


@pytest.mark.parametrize("script", ["build", "boot", "guest-image"])
def test_help(script):
    result = run(script, "--help")
    assert result.returncode == 0
    assert result.stdout.startswith(f"Usage: scripts/{script} ")


def test_guest_image_is_made_once(kernel):
    made = []
    for _ in range(2):
        result = run("guest-image", "--arch", "x86_64")
        assert result.returncode == 0, result.stderr
        file = Path(result.stdout.strip()).stat()
        made.append((result.stdout, file.st_ino, file.st_mtime_ns))
    assert made[0] == made[1]
