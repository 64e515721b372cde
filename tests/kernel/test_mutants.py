# SPDX-License-Identifier: GPL-2.0
"""The tests are tested: planted defects, each a patch in tests/mutants/, and the check that has to catch it.

Each patch begins with its license, a sentence and the check, with what is to be seen there. Anything else that goes wrong, such as
a machine that does not end in its time, does not count:

    Check: storm ROUND SIGN        tests/guest/storm.sh with these storms, on the usual kernel; SIGN is one of SIGNS
    Check: debug-storm ROUND SIGN  the same under lockdep and KASAN, with long searches
    Check: selftest CASE           the kernel's own selftest, tools/testing/selftests/sched/steal_test: this case fails
    Check: choice CASE             the KUnit suite of the choice of tasks to steal, when the kernel boots
    Check: choice-KIND CASE        the same; KIND is without-nohz, proxy-exec or arm64
    Check: relaxed SIGN            the checker of the masks, after a boot with test_storms.RELAXED
    Check: no-memory SIGN          tests/guest/no-memory.sh
    Check: behaves SIGN            tests/guest/behaves.sh
    Check: parameter SIGN          the features file, after a boot with test_boot.PARAMETER
    Check: kunit CASE              the KUnit suite of sparsemask

Another line of kernels than the first one has those of these defects that fit its code, and its own in tests/mutants/LINE/: where it
differs. What does not fit is skipped; test_patches counts what fits.

Without a defect the same checks, on the same kernels, find nothing: test_no_defect_is_found_where_there_is_none; that of sparsemask is
test_kunit itself.
"""

import fcntl
import functools
import os
import pathlib
import re

import pytest

import test_kunit
from conftest import first_line
from test_boot import PARAMETER
from test_choice import choice  # noqa: F401 (fixture)
from test_prefixes import boot_behaves
from test_selftest import WITH_SMT, result, steal_test  # noqa: F401 (fixtures)
from test_storms import LONG_SEARCHES, kernel, no_memory, relaxed, storm  # noqa: F401 (fixtures)

pytestmark = [pytest.mark.mutants, pytest.mark.line]


# What is printed: by the checker in a storm, or by the kernel.
SIGNS = {"violation": r"^violation ", "stamp": r"^stamp cpu", "waits": r"^waits [1-9]", "missing": r"^missing [1-9]",
         "use-after-free": r"BUG: KASAN: slab-use-after-free in ", "lock": r"WARNING: possible recursive locking detected",
         "clock": r"WARNING: .* at update_rq_clock", "null": r"KASAN: null-ptr-deref in range",
         "balancing": r"^FAIL: no newly-idle balancing with STEAL$", "twice": r"^FAIL: the LLC is searched a second time$",
         "above": r"^FAIL: levels above the LLC are not searched$", "pinned": r"^FAIL: the LLC is not searched beside .* pinned tasks$",
         "counted": r"^FAIL: counted without schedstats$", "masks": r"^llc ",
         "ignored": r"(?:^| )(?:STEAL|SYNC_WAIT) ", "shown": r" NO_STEAL_BUSIEST "}


def what_catches(patch):
    """The check and its argument, and the pattern of what it says of the defect."""
    check, rest = re.search(r"^Check: (\S+) (.*)$", patch.read_text(), re.M).groups()
    if check in ("storm", "debug-storm", "no-memory", "behaves", "parameter", "relaxed"):
        *rounds, sign = rest.split()
        return check, " ".join(rounds), SIGNS[sign]
    return check, "", rf"^ *not ok \d+ {re.escape(rest)}( #|\s*$)"


# One of the line stands in for the one of the same name.
ALL = pathlib.Path(__file__).parents[1] / "mutants"
OWN = {} if first_line() else {patch.name: patch for patch in (ALL / os.environ["STEAL_LINE"]).glob("*.patch")}
MUTANTS = sorted({**{patch.name: patch for patch in ALL.glob("*.patch")}, **OWN}.values(), key=lambda patch: patch.name)
CHECKS = sorted({what_catches(patch)[:2] for patch in MUTANTS} - {("kunit", "")})


@pytest.fixture
def mutant_tree(run, extra_tree, request):
    """The tree with the series and the extra patches, and with the defect for as long as the test runs."""
    # scripts/worktree waits for this lock, too
    with open(f"{extra_tree}.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            done = run("git", "apply", request.param, cwd=extra_tree, check=False)
            if done.returncode and not first_line() and request.param.name not in OWN:
                pytest.skip("made for the code of the first line")
            assert not done.returncode, done.stdout
            yield extra_tree
        finally:
            run("git", "checkout", "-q", "--", ".", cwd=extra_tree)


@pytest.fixture
def what_is_said(run, top, cache, kernel, storm, choice, result):  # noqa: F811
    """what_is_said(CHECK, ROUNDS, TREE, NAME): what the check prints of this tree."""

    def start(check, rounds, tree, name):
        if check in ("storm", "debug-storm"):
            kind = "debug" if check == "debug-storm" else "plain"
            # The checker sees a bit that is wrong only if it looks while it is.
            return storm(name, "x86_64", kernel("x86_64", kind, tree), rounds,
                         environment=["STORM_READINGS=20", *(LONG_SEARCHES if kind == "debug" else [])], check=False)
        if check == "selftest":
            return result("x86_64", kernel("x86_64", "plain", tree), WITH_SMT)[1]
        if check == "choice":
            return choice("x86_64", kernel("x86_64", "plain", tree))[1]
        if check == "choice-without-nohz":
            return choice("x86_64", kernel("x86_64", "plain", tree), "nohz=off")[1]
        if check == "choice-proxy-exec":
            return choice("x86_64", kernel("x86_64", "matrix/proxy-exec", tree))[1]
        if check == "choice-arm64":
            return choice("arm64", kernel("arm64", "plain", tree))[1]
        if check == "relaxed":
            return run(*relaxed(top, kernel("x86_64", "plain", tree)), check=False).stdout
        if check == "no-memory":
            return run(*no_memory(top, kernel("x86_64", "debug", tree)), check=False).stdout
        if check == "behaves":
            return run(*boot_behaves(top, "x86_64", kernel("x86_64", "plain", tree)), check=False).stdout
        if check == "parameter":
            return run(top / "scripts/boot", "--arch", "x86_64", "--kernel", kernel("x86_64", "plain", tree), "--append", PARAMETER, "--",
                       "cat", "/sys/kernel/debug/sched/features", check=False).stdout
        assert check == "kunit"
        return test_kunit.run_kunit(functools.partial(run, check=False), tree, cache)

    return start


@pytest.mark.parametrize("mutant_tree,patch", [(p, p) for p in MUTANTS], ids=[p.stem for p in MUTANTS],
                         indirect=["mutant_tree"])
def test_mutant_is_caught(cache, what_is_said, mutant_tree, patch):
    check, rounds, pattern = what_catches(patch)
    (cache / "log/storms").mkdir(parents=True, exist_ok=True)
    # UML runs in real time: a race between two CPUs needs two free ones of the host.
    for _ in range(5 if check == "kunit" else 1):
        said = what_is_said(check, rounds, mutant_tree, f"mutant-{patch.stem}")
        (cache / f"log/storms/mutant-{patch.stem}.txt").write_text(said)
        if re.search(pattern, said, re.M):
            break
    assert re.search(pattern, said, re.M), said


@pytest.mark.parametrize("check,rounds", CHECKS, ids=map(" ".join, CHECKS))
def test_no_defect_is_found_where_there_is_none(what_is_said, extra_tree, check, rounds):
    said = what_is_said(check, rounds, extra_tree, f"no-mutant-{check}-{rounds}")
    good = {"no-memory": r"^allocations [1-9]", "behaves": r"^steal yes stolen [1-9]", "storm": rf"^round {re.escape(rounds)} seconds \d+ good$",
            "parameter": r" NO_STEAL STEAL_BUSIEST ", "relaxed": r"^violations 0$"}
    assert re.search(good.get(check.removeprefix("debug-"), r"^ *ok 1 "), said, re.M), said
    assert not re.search("|".join([*SIGNS.values(), r"^ *not ok ", "splats in the kernel log"]), said, re.M), said
