# SPDX-License-Identifier: GPL-2.0
"""The tests are tested: planted defects, each a patch in tests/mutants/, and the check that has to catch it.

Each patch begins with its license, a sentence and "Check: WHAT [ROUND]":

    storm ROUND        tests/guest/storm.sh with these storms, on the usual kernel
    debug-storm ROUND  the same under lockdep and KASAN
    selftest           the kernel's own selftest, tools/testing/selftests/sched/steal_test
    selftest-8         the same with 8 CPUs in one LLC
    choice             the KUnit suite of the choice of tasks to steal, when the kernel boots
    no-memory          tests/guest/no-memory.sh
    kunit              the KUnit suite of sparsemask
"""

import functools
import pathlib
import re

import pytest

import test_kunit
from test_choice import choice  # noqa: F401 (fixture)
from test_selftest import ONE_LLC, WITH_SMT, result, steal_test  # noqa: F401 (fixtures)
from test_storms import LONG_SEARCHES, kernel, no_memory, storm  # noqa: F401 (fixtures)

MUTANTS = sorted((pathlib.Path(__file__).parent / "mutants").glob("*.patch"))
pytestmark = pytest.mark.mutants


def what_catches(patch):
    return re.search(r"^Check: (\S+)(?: (\S+))?$", patch.read_text(), re.M).groups()


@pytest.fixture
def mutant_tree(run, extra_tree, request):
    """The tree with the series and the extra patches, and with the defect for as long as the test runs."""
    run("git", "apply", request.param, cwd=extra_tree)
    yield extra_tree
    run("git", "apply", "--reverse", request.param, cwd=extra_tree)


@pytest.mark.parametrize("mutant_tree,patch", [(p, p) for p in MUTANTS], ids=[p.stem for p in MUTANTS],
                         indirect=["mutant_tree"])
def test_mutant_is_caught(run, top, cache, kernel, storm, choice, result, mutant_tree, patch):  # noqa: F811
    check, rounds = what_catches(patch)
    if check in ("storm", "debug-storm"):
        kind = "debug" if check == "debug-storm" else "plain"
        # The checker sees a bit that is wrong only if it looks while it is.
        said = storm(f"mutant-{patch.stem}", "x86_64", kernel("x86_64", kind, mutant_tree), rounds,
                     environment=["STORM_READINGS=20", *(LONG_SEARCHES if kind == "debug" else [])], check=False)
        # not just a storm that came to nothing
        caught = re.search(r"^(violation |stamp cpu|waits [1-9]|lost task)|does not end|splats in the kernel log|"
                           r"error: (not finished after|the guest ended before)", said, re.M)
    elif check == "selftest":
        _, said = result("x86_64", kernel("x86_64", "plain", mutant_tree), WITH_SMT)
        caught = re.search(r"^not ok \d+", said, re.M)
    elif check == "selftest-8":
        _, said = result("x86_64", kernel("x86_64", "plain", mutant_tree), ONE_LLC, nodes=1)
        caught = re.search(r"^not ok \d+", said, re.M)
    elif check == "choice":
        said = choice("x86_64", kernel("x86_64", "plain", mutant_tree))
        caught = re.search(r"^ *not ok \d+", said, re.M)
    elif check == "no-memory":
        said = run(*no_memory(top, kernel("x86_64", "debug", mutant_tree)), check=False).stdout
        caught = "splats in the kernel log" in said or "FAIL" in said or "the guest ended before" in said
    else:
        assert check == "kunit"
        said = test_kunit.run_kunit(functools.partial(run, check=False), mutant_tree, cache)
        caught = re.search(r"^ *not ok \d+", said, re.M)
    (cache / "log/storms").mkdir(parents=True, exist_ok=True)
    (cache / f"log/storms/mutant-{patch.stem}.txt").write_text(said)
    assert caught, said


def test_table_has_them_all(top):
    """Documentation/verification.rst says of each defect what catches it."""
    text = (top / "Documentation/verification.rst").read_text()
    table = dict(re.findall(r"^   \* - ``([a-z-]+)``\n(?:     - .*\n(?:       .*\n)*)     - ``([a-z0-9-]+)", text, re.M))
    assert table == {p.stem: what_catches(p)[0] for p in MUTANTS}
