# SPDX-License-Identifier: GPL-2.0
"""The KUnit suite of which tasks may be stolen (an extra patch); it runs when a kernel that has it boots."""

import re

import pytest

from conftest import first_line
from test_storms import kernel  # noqa: F401 (fixture)

# What cannot be tried on a machine, and the reason that the suite gives.
SKIPPED = {
    "x86_64": {"steal_test_blocked": "needs CONFIG_SCHED_PROXY_EXEC",
               "steal_test_capacity": "needs CONFIG_GENERIC_ARCH_TOPOLOGY"},
    "arm64": {"steal_test_blocked": "needs CONFIG_SCHED_PROXY_EXEC"},
}


@pytest.fixture(scope="session")
def choice(run, top):
    """choice(ARCH, KERNEL, PARAMETERS): exit status of the boot, and the suite's results, as KTAP."""
    def boot(arch, image, parameters=""):
        done = run(top / "scripts/boot", "--arch", arch, "--kernel", image, "--smp", "4,sockets=2,cores=2", "--append",
                   f"kunit.enable=1 kunit.autorun=1 {parameters}", "--", "cat", "/sys/kernel/debug/kunit/sched_steal/results", check=False)
        return done.returncode, done.stdout
    return boot


def assert_good(result, tree, skipped):
    """Each case has passed, but for those that have been skipped for exactly this reason, and the kernel had nothing to say."""
    status, said = result
    cases = re.findall(r"KUNIT_CASE\((\w+)\)", (tree / "kernel/sched/steal_test.c").read_text())
    assert len(cases) >= 10
    expected = [f"{case} # SKIP {skipped[case]}" if case in skipped else case for case in cases]
    lines = re.findall(r"^    ((?:not )?ok) \d+ (.*?)\s*$", said, re.M)
    assert lines == [("ok", line) for line in expected], said
    assert status == 0, said


@pytest.mark.line
def test_x86_64(choice, kernel, extra_tree):  # noqa: F811
    """With lockdep and KASAN; for another line of kernels than the first one, on the kernel that has its storms."""
    kind = "debug" if first_line() else "plain"
    assert_good(choice("x86_64", kernel("x86_64", kind, extra_tree)), extra_tree, SKIPPED["x86_64"])


@pytest.mark.line
def test_without_nohz(choice, kernel, extra_tree):  # noqa: F811
    """Then nothing says which CPUs idle, and no wakee waits for its waker."""
    skipped = SKIPPED["x86_64"] | {"steal_test_other_llc": "needs SYNC_WAIT, WAKEUP_PREEMPTION and nohz, and no EAS"}
    assert_good(choice("x86_64", kernel("x86_64", "plain", extra_tree), "nohz=off"), extra_tree, skipped)


@pytest.mark.full
def test_proxy_exec(choice, kernel, extra_tree):  # noqa: F811
    """A task that waits for a mutex stays on the queue there, and is not to be stolen."""
    assert_good(choice("x86_64", kernel("x86_64", "matrix/proxy-exec", extra_tree)), extra_tree,
                {"steal_test_capacity": SKIPPED["x86_64"]["steal_test_capacity"]})


@pytest.mark.line
@pytest.mark.full
def test_arm64(choice, kernel, extra_tree):  # noqa: F811
    assert_good(choice("arm64", kernel("arm64", "plain", extra_tree)), extra_tree, SKIPPED["arm64"])
