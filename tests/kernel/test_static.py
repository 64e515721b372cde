# SPDX-License-Identifier: GPL-2.0
"""Static checks of the patched scheduler. What the base says of itself is no fault of the series: it must add nothing."""

import collections
import concurrent.futures
import os
import pathlib
import re
import shutil

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]

# The lines of the matrix that break most often: other code for a missing second CPU, for missing
# counters, for other locks, for other scheduling classes. The rest is for the full tier.
USUAL = ["up", "no-schedstats", "preempt-rt", "sched-ext"]
# In older lines of kernels, much of the scheduler is not compiled without a second CPU.
MARKS = {"up": pytest.mark.line}
# Not lines of their own: test_patches has i386, and the other one is for clang.
OTHER = ["i386", "context-analysis"]
MATRIX = sorted({p.stem for p in (TOP / "configs/matrix").glob("*.config")} - set(OTHER))
# x86 cannot do without code for hardware threads.
ARCH = collections.defaultdict(lambda: "x86_64", {"guest,steal,matrix/no-smt": "arm64"})
LINES = [
    *[pytest.param(f"guest,steal,matrix/{line}", marks=MARKS.get(line, [] if line in USUAL else pytest.mark.full), id=line)
      for line in MATRIX],
    *[pytest.param(config, marks=pytest.mark.full, id=config) for config in ("allnoconfig", "allmodconfig")],
]


@pytest.fixture
def warnings(run, top, tmp_path):
    """warnings(TREE, ARGUMENT...): what scripts/build prints for TREE's scheduler, as a multiset of lines."""

    def warnings(tree, *arguments):
        file = tmp_path / "warnings"
        run(top / "scripts/build", "--tree", tree, "--objects", "kernel/sched", "--warnings", file, *arguments)
        return collections.Counter(file.read_text().splitlines())

    return warnings


@pytest.fixture(scope="session")
def touched(series):
    """The C files that the series changes, as paths in the tree."""
    files = re.findall(r"^diff --git a/(\S+\.[ch]) b/", "\n".join(p.read_text() for p in series), re.M)
    assert "kernel/sched/fair.c" in files
    return sorted(set(files))


def assert_nothing_new(base, patched):
    new = patched - base
    assert not new, "not said of the base:\n" + "\n".join(sorted(new.elements()))


def test_matrix_is_whole():
    assert MATRIX == sorted(["up", "no-smt", "no-mc", "no-numa", "no-schedstats", "no-cgroup-sched", "no-sched-core", "no-sched-cache",
                             "no-jump-label", "sched-ext", "proxy-exec", "cpumask-offstack", "nohz-full",
                             "preempt-full", "preempt-lazy", "preempt-rt"])


@pytest.mark.parametrize("config", LINES)
def test_matrix(warnings, tree, request, config):
    """One configuration, with W=1. The base is built only if there is something to compare."""
    arguments = ["--arch", ARCH[config], "--config", config]
    patched = warnings(tree, *arguments)
    if patched:
        assert_nothing_new(warnings(request.getfixturevalue("base_tree"), *arguments), patched)


@pytest.mark.full
def test_sparse(warnings, base_tree, tree):
    """Address spaces (__rcu, __percpu, __user), missing declarations, and the like."""
    arguments = ["--arch", "x86_64", "--config", "guest,steal", "--tools", "sparse"]
    base = warnings(base_tree, *arguments)
    # The base has its share: without it, nothing was checked.
    assert sum("different address spaces" in line for line in base.elements()) > 10, base
    assert_nothing_new(base, warnings(tree, *arguments))


@pytest.mark.full
def test_context_analysis(warnings, base_tree, tree):
    """clang's check that locks are held and released where they must be, and its other warnings with W=1."""
    # The base has itself checked in core.o and fair.o only; build_utility.o has topology.c and debug.c.
    arguments = ["--arch", "x86_64", "--config", "guest,steal,matrix/context-analysis", "--tools", "clang",
                 "--make", "CONTEXT_ANALYSIS_build_utility.o=y"]
    base = warnings(base_tree, *arguments)
    assert any("thread-safety-analysis" in line for line in base), base
    assert_nothing_new(base, warnings(tree, *arguments))


@pytest.mark.full
def test_coccinelle(run, top, base_tree, tree, touched, tmp_path):
    """The kernel's semantic patches on the files that the series changes, as make coccicheck MODE=report has them."""
    rules = []
    for rule in sorted((tree / "scripts/coccinelle").rglob("*.cocci")):
        text = rule.read_text()
        # One has a part in OCaml, and is about one driver.
        if re.search(r"^virtual\s+report\b", text, re.M) and not re.search(r"^@\S*:ocaml", text, re.M):
            rules.append((rule, " ".join(re.findall(r"^// *Options:(.*)$", text, re.M)).split()))
    copies = {base_tree: tmp_path / "base", tree: tmp_path / "patched"}
    for where in copies:
        for name in touched:
            if (where / name).exists():
                file = copies[where] / name
                file.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(where / name, file)
    # What must be found in any case: in each of the files that are compiled by themselves.
    sources = [name for name in touched if name.endswith(".c")]
    for name in sources:
        with (copies[tree] / name).open("a") as file:
            file.write("\nvoid planted(int *p)\n{\n\tif (p)\n\t\tkfree(p);\n}\n")

    def report(rule, options, where):
        # In a directory of their own: given one, spatch passes over files that lack a rule's words.
        copy = copies[where]
        out = run(top / "scripts/tools-root", "--mount", tree, "--mount", where, "--mount", tmp_path, "--",
                  "env", f"--chdir={where}", "spatch", "-D", "report", "--no-show-diff", "--very-quiet",
                  "--cocci-file", rule, *options, "--include-headers", "-I", "include", "-I", "arch/x86/include",
                  "--dir", copy).stdout
        return collections.Counter(re.sub(r"(:[0-9]+)(:[-0-9]+)?|\bline [0-9]+", "", line.replace(f"{copy}/", ""))
                                   for line in out.splitlines() if line.startswith(f"{copy}/"))

    def new(rule, options):
        # The base is asked only if there is something to compare.
        found = report(rule, options, tree)
        return found - report(rule, options, base_tree) if found else found

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = sum(pool.map(lambda rule: new(*rule), rules), collections.Counter())
    planted = {line for line in found if "NULL check before some freeing functions is not needed" in line}
    assert {line.split(":")[0] for line in planted} == set(sources), found
    assert_nothing_new(collections.Counter(), collections.Counter(set(found) - planted))


def test_kernel_doc(run, base_tree, tree, touched, tmp_path):
    """kernel-doc -Wall on every file that the series changes; it does report what is wrong."""
    wrong = tmp_path / "wrong.c"
    wrong.write_text("/**\n * f() - nothing\n * @a: not there\n */\nint f(int b)\n{\n\treturn b;\n}\n")
    assert "wrong.c" in run("scripts/kernel-doc", "-none", "-Wall", wrong, cwd=tree, check=False).stdout
    reports = {}
    for where in (base_tree, tree):
        files = [name for name in touched if (where / name).exists()]
        out = run("scripts/kernel-doc", "-none", "-Wall", *files, cwd=where, check=False).stdout
        reports[where] = collections.Counter(re.sub(r":[0-9]+", "", line) for line in out.splitlines())
    assert_nothing_new(reports[base_tree], reports[tree])
