# SPDX-License-Identifier: GPL-2.0
"""The kernel's own test of stealing (an extra patch), tools/testing/selftests/sched/steal_test.c, on 8 CPUs in
2 LLCs and 2 nodes, or in one.
"""

import re
import subprocess

import pytest

CASES = [
    "off: waiting tasks are not stolen",
    "on: a waiting task is stolen",
    "tasks that wait when it is switched on are stolen",
    "affinity is respected",
    "pinned tasks are not stolen",
    "the busiest CPU is asked first",
    "a CPU left with one task is not asked",
    "CPUs left with one task hide no others",
    "SCHED_IDLE tasks are stolen",
    "bandwidth limits are respected",
    "core scheduling is respected",
    "partitions are respected",
    "tasks that wait when domains are rebuilt are stolen",
    "isolated CPUs take no part",
    "other LLCs take no part",
]
PREFIX = {"x86_64": "x86_64-linux-gnu-", "arm64": "aarch64-linux-gnu-"}
WITH_SMT = "8,sockets=2,cores=2,threads=2"
ONE_LLC = "8,sockets=1,cores=4,threads=2"
BEHIND = {
    "CPUs left with one task hide no others": "the LLC has no five CPUs of other cores, and one for this program",
}


@pytest.fixture(scope="session")
def steal_test(run, extra_tree, tmp_path_factory):
    """steal_test(ARCH): the program, as the tree's own Makefile makes it, linked statically and without a warning."""

    def make(arch):
        out = tmp_path_factory.mktemp("selftest-" + arch)
        said = run("make", "-s", "-C", extra_tree / "tools/testing/selftests/sched", f"OUTPUT={out}", f"ARCH={arch}",
                   f"CROSS_COMPILE={PREFIX[arch]}", "USERLDFLAGS=-static", "USERCFLAGS=-Wextra").stdout
        assert "steal_test.c:" not in said, said
        return out / "steal_test"

    return make


@pytest.fixture
def kernel(top, tree):
    """kernel(ARCH[, OPTION...]): a kernel made by scripts/build, usually with the series alone."""

    def make(arch, *options):
        return subprocess.run([top / "scripts/build", "--arch", arch, "--config", "guest,steal", *options],
                              stdout=subprocess.PIPE, text=True, check=True).stdout.strip()

    return make


@pytest.fixture(scope="session")
def result(run, top, steal_test):
    """result(ARCH, KERNEL, SMP, NODES): exit status and output of the program on this kernel."""

    def start(arch, image, smp, nodes=2):
        done = run(top / "scripts/boot", "--arch", arch, "--kernel", image, "--smp", smp, "--numa", nodes,
                   "--timeout", 900, "--add", steal_test(arch), "--", "/opt/steal_test", check=False)
        return done.returncode, done.stdout

    return start


def assert_good(result, skipped=()):
    """Each case has passed, but for those that have been skipped for exactly this reason."""
    status, said = result
    lines = re.findall(r"^((?:not )?ok) (\d+) (.*)$", said, re.M)
    skipped = dict(skipped)
    expected = [f"{case} # SKIP {skipped[case]}" if case in skipped else case for case in CASES]
    assert lines == [("ok", str(n), line) for n, line in enumerate(expected, 1)], said
    assert re.findall(r"^1\.\.(\d+)$", said, re.M) == [str(len(CASES))], said
    assert status == 0, said


@pytest.mark.line
def test_x86_64(result, kernel):
    assert_good(result("x86_64", kernel("x86_64"), WITH_SMT), BEHIND)


@pytest.mark.full
def test_arm64(result, kernel):
    assert_good(result("arm64", kernel("arm64"), WITH_SMT), BEHIND)


@pytest.mark.full
def test_eight_cpus_in_one_llc(result, kernel):
    """More CPUs than a search asks."""
    skipped = {"other LLCs take no part": "there is only one LLC with CPUs that may be used"}
    assert_good(result("x86_64", kernel("x86_64"), ONE_LLC, nodes=1), skipped)


@pytest.mark.full
def test_without_smt_and_with_one_llc(result, kernel):
    """On 2 CPUs; what takes more is skipped, and says so."""
    skipped = {
        **BEHIND,
        "the busiest CPU is asked first": "the LLC has no two CPUs of other cores than CPU 0's",
        "core scheduling is respected": "CPU 1 has no SMT sibling that may be used",
        "partitions are respected": "the LLC has only two CPUs that may be used",
        "tasks that wait when domains are rebuilt are stolen": "the LLC has only two CPUs that may be used",
        "isolated CPUs take no part": "the LLC has only two CPUs that may be used",
        "other LLCs take no part": "there is only one LLC with CPUs that may be used",
    }
    assert_good(result("x86_64", kernel("x86_64"), "2,sockets=1,cores=2", nodes=1), skipped)


@pytest.mark.full
def test_kernel_without_stealing(result, kernel, base_tree):
    """All is skipped, with status 4."""
    status, said = result("x86_64", kernel("x86_64", "--tree", base_tree), WITH_SMT)
    assert re.search(r"^1\.\.0 # SKIP .*: the kernel has no STEAL$", said, re.M), said
    assert not re.search(r"^(not )?ok", said, re.M), said
    assert status == 4, said
