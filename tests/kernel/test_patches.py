# SPDX-License-Identifier: GPL-2.0
"""The patches: each builds without a warning and is in the kernel's style; the series is whole."""

import os
import re
import shutil
import subprocess

import pytest

from conftest import TOP, first_line, line_files, named, worktree

# What checkpatch says of the series although nothing is wrong, each with the reason.
CHECKPATCH_ALLOWED = [
    # kernel/sched/ has its maintainers, who are those of a new file there, too.
    r"^WARNING: added, moved or deleted file\(s\), does MAINTAINERS need updating\?",
    # An iterator names its arguments more than once, as for_each_cpu_wrap() does.
    r"^CHECK: Macro argument reuse '(elem|mask|start)' - possible side-effects\?",
]


CONFIGS = {"x86_64": "guest,steal", "arm64": "guest,steal", "i386": "guest,steal,matrix/i386"}
SERIES = named(line_files()[1])
WHOLE = len(SERIES)
# The follow-ups with a feature bit, and the boot parameter. The patch before them makes room for their bits.
OPTIONAL = [patch for patch in SERIES if int(patch.name[:4]) > 10]
# The follow-ups that do not apply without another one (design.rst, The switches). On the first line, each can be left out alone.
NEEDING = {"7.2": {"0011": ["0013", "0014"], "0013": ["0014"]},
           "6.18": {"0011": ["0012", "0013", "0014"], "0013": ["0014"]},
           "6.12": {"0011": ["0012", "0013"]}}.get(os.environ.get("STEAL_LINE"), {})
# How many of the defects planted in 7.3 fit the code of another line, and how many it has of its own.
PLANTED = {"7.2": (72, 5), "6.18": (57, 8), "6.12": (42, 8)}
# The default tier builds each prefix for one architecture; on the first line of kernels also the base, the nine patches and the whole
# series for the others.
PREFIXES = [pytest.param(arch, count, id=f"{arch}-{count}",
                         marks=[] if arch == "x86_64" or first_line() and count in (0, 9, WHOLE) else pytest.mark.full)
            for count in range(WHOLE + 1) for arch in CONFIGS]


@pytest.mark.line
@pytest.mark.parametrize("arch, count", PREFIXES)
def test_prefix_builds_without_warning(run, top, arch, count):
    """kernel/sched of the base and of each prefix of the series, with W=1."""
    run(top / "scripts/apply", "--upto", count)
    run(top / "scripts/build", "--arch", arch, "--config", CONFIGS[arch], "--objects", "kernel/sched")


@pytest.mark.line
def test_git_am_and_quilt_give_the_same(run, top, tree, series, extras, tmp_path):
    """git am and quilt, as the README has them, on two pristine copies: the same files. Then the extra patches, likewise."""
    folder, its_series, base = line_files()
    version = re.search(r"^version=(.*)$", base.read_text(), re.M).group(1)
    files = {name for patch in series + extras for name in re.findall(r"^diff --git a/\S+ b/(\S+)$", patch.read_text(), re.M)}
    for name in ("am", "quilt"):
        # only the files concerned: a whole tree has 90,000
        git = ["git", "-C", tmp_path / name]
        run("git", "clone", "-q", "--shared", "--no-checkout", tree, tmp_path / name)
        run(*git, "sparse-checkout", "set", "--no-cone", *(f"/{file}" for file in sorted(files)))
        run(*git, "checkout", "-q", f"v{version}")
    ident = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    for patches, directory in ((series, folder), (extras, folder / "extra")):
        run("git", *ident, "am", "-q", *sorted(directory.glob("00*.patch")), cwd=tmp_path / "am")
        file = its_series if patches is series else directory / "series"
        # quilt keeps the records of one series in one directory
        run("quilt", "--quiltrc", "-", "push", "-a", "--fuzz=0", cwd=tmp_path / "quilt",
            env={**os.environ, "QUILT_PATCHES": str(directory), "QUILT_SERIES": str(file), "QUILT_PC": f".pc/{directory.name}"})
        run("diff", "-r", "--exclude=.git", "--exclude=.pc", tmp_path / "am", tmp_path / "quilt")
        if patches is series:
            made, applied = (run("git", "-C", path, "rev-parse", "HEAD^{tree}").stdout for path in (tmp_path / "am", tree))
            assert made == applied


@pytest.mark.line
def test_regen_changes_nothing(run, top, tree, tmp_path):
    """scripts/regen writes the files of the line as they are, from the commits of scripts/apply."""
    folder = line_files()[0].relative_to(top)
    for name in ("scripts", "patches", "Documentation"):
        shutil.copytree(top / name, tmp_path / name, ignore=shutil.ignore_patterns("results"))
    for name in ("series", "base"):
        shutil.copy(top / name, tmp_path / name)
    # a clone of the base, sparse: a whole tree has 90,000 files, and this one has patches
    clone = tmp_path / "linux"
    version = re.search(r"^version=(.*)$", line_files()[2].read_text(), re.M)[1]
    run("git", "clone", "-q", "--shared", "--sparse", "--branch", f"v{version}", tree, clone)
    run("git", "-C", clone, "switch", "-q", "-c", "series")
    run(tmp_path / "scripts/apply", "--tree", clone, "--extra")
    # it must not depend on the patches in the directory
    for patch in [*(tmp_path / folder).glob("*.patch"), *(tmp_path / folder / "extra").glob("*.patch")]:
        patch.unlink()
    run(tmp_path / "scripts/regen", "--tree", clone)
    for name in ("patches", "series", "base"):
        run("diff", "-r", top / name, tmp_path / name)


@pytest.mark.line
def test_which_follow_ups_need_others(run, tree, tmp_path):
    """Without one of them, git am refuses those of NEEDING, each in its turn, and no others."""
    version = re.search(r"^version=(.*)$", line_files()[2].read_text(), re.M)[1]
    clone = tmp_path / "linux"
    run("git", "clone", "-q", "--shared", "--sparse", "--branch", f"v{version}", tree, clone)
    run("git", "sparse-checkout", "set", "kernel/sched", "kernel/time", "include/linux", "Documentation/scheduler", cwd=clone)
    refused = {}
    for left_out in OPTIONAL:
        run("git", "checkout", "-q", "--force", "--detach", f"v{version}", cwd=clone)
        for patch in SERIES:
            if patch != left_out and run("git", "am", "-q", patch, cwd=clone, check=False).returncode:
                run("git", "am", "-q", "--abort", cwd=clone)
                refused.setdefault(left_out.name[:4], []).append(patch.name[:4])
    assert refused == NEEDING


@pytest.fixture(params=OPTIONAL, ids=[patch.name[:4] for patch in OPTIONAL])
def checkout_without(request, top, tmp_path):
    """A copy of the checkout whose series file does not name one of the follow-ups, nor those that need it."""
    left_out = [request.param.name[:4], *NEEDING.get(request.param.name[:4], [])]
    copy = tmp_path / "checkout"
    for name in ("scripts", "patches"):
        shutil.copytree(top / name, copy / name)
    shutil.copy(top / "base", copy)
    series = line_files()[1]
    lines = series.read_text().splitlines(keepends=True)
    series = copy / series.relative_to(top)
    series.write_text("".join(line for line in lines if line[:4] not in left_out))
    assert len(named(series)) == WHOLE - len(left_out)
    return copy


@pytest.mark.line
@(pytest.mark.line if first_line() else pytest.mark.full)
def test_follow_up_can_be_left_out(run, top, tree, checkout_without, tmp_path):
    """The series applies without it, by git am and by quilt, which give the same; kernel/sched builds without a warning."""
    made = worktree(checkout_without, "without")
    folder, series, base = line_files()
    folder, series = (checkout_without / path.relative_to(top) for path in (folder, series))
    patches = named(series)
    files = sorted({name for patch in patches for name in re.findall(r"^diff --git a/\S+ b/(\S+)$", patch.read_text(), re.M)})
    version = re.search(r"^version=(.*)$", base.read_text(), re.M).group(1)
    quilt = tmp_path / "quilt"
    run("git", "clone", "-q", "--shared", "--no-checkout", tree, quilt)
    run("git", "sparse-checkout", "set", "--no-cone", *(f"/{file}" for file in files), cwd=quilt)
    run("git", "checkout", "-q", f"v{version}", cwd=quilt)
    run("quilt", "--quiltrc", "-", "push", "-a", "--fuzz=0", cwd=quilt,
        env={**os.environ, "QUILT_PATCHES": str(folder), "QUILT_SERIES": str(series)})
    assert [file for file in files if (made / file).read_bytes() != (quilt / file).read_bytes()] == []
    run(top / "scripts/build", "--arch", "x86_64", "--config", CONFIGS["x86_64"], "--tree", made, "--objects", "kernel/sched")


def test_checkpatch(run, tree, series, extras):
    # Debian's python3 has the modules that checkpatch's helpers and codespell need.
    environment = {**os.environ, "PATH": "/usr/bin:" + os.environ["PATH"]}
    words = run("/usr/bin/python3", "-c", "import codespell_lib, os; "
                "print(os.path.join(os.path.dirname(codespell_lib.__file__), 'data/dictionary.txt'))").stdout.strip()
    found = []
    for patch in series + extras:
        out = run("scripts/checkpatch.pl", "--strict", "--codespell", "--codespellfile", words, "--terse",
                  "--show-types", "--no-summary", patch, cwd=tree, check=False, env=environment).stdout
        for line in out.splitlines():
            said = re.sub(r"^\S+?:\d+: ", "", line)
            said = re.sub(r"^(ERROR|WARNING|CHECK):[A-Z_]+: ", r"\1: ", said)
            if said.strip() and not any(re.search(a, said) for a in CHECKPATCH_ALLOWED):
                found.append(line)
    assert not found, "\n".join(found)


def test_kernel_doc(run, tree):
    out = run("scripts/kernel-doc", "-none", "-Wall", "kernel/sched/sparsemask.h", cwd=tree).stdout
    assert not out.strip(), out


def test_maintainers_snippet(run, top, tree, tmp_path):
    """get_maintainer.pl takes the snippet when it is pasted into MAINTAINERS, and finds it."""
    copy = tmp_path / "tree"
    # the files at the top, and what the script looks for to know a kernel tree
    run("git", "clone", "-q", "--shared", "--no-checkout", tree, copy)
    run("git", "sparse-checkout", "set", "--no-cone", "/*", "!/*/", "/scripts/", "/kernel/sched/", cwd=copy)
    run("git", "checkout", "-q", cwd=copy)
    for name in "Documentation arch include drivers fs init ipc lib".split():
        (copy / name).mkdir()
    maintainers = copy / "MAINTAINERS"
    text = maintainers.read_text()
    at = text.index("\nSCHEDULER\n") + 1
    end = text.index("\n\n", at) + 2
    maintainers.write_text(text[:end] + (top / "MAINTAINERS.snippet").read_text() + "\n" + text[end:])
    out = run("scripts/get_maintainer.pl", "--no-git-fallback", "--no-rolestats", "--sections", "-f",
              "kernel/sched/sparsemask.h", cwd=copy).stdout
    assert "SCHEDULER TASK STEALING" in out, out
    complaints = subprocess.run(["scripts/get_maintainer.pl", "--self-test=sections"], cwd=copy, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False).stdout
    assert "STEALING" not in complaints, complaints


def test_cover_letter_and_authorship(series, extras, top):
    """Credits and message ids are in the cover letter; nobody is signed for who did not sign."""
    cover = (top / "patches/cover-letter.txt").read_text()
    for need in ("1541767840-93588-1-git-send-email-steven.sistare@oracle.com",
                 "20260320055920.2518389-1-chenjinghuang2@huawei.com", "base-commit:"):
        assert need in cover
    for patch in series + extras:
        # Long header lines are folded.
        header, message = patch.read_text().split("\n\n", 1)
        author = re.search(r"^From: (.*(?:\n .*)*)", header, re.M).group(1).replace("\n", "")
        tags = re.findall(r"^([A-Z][a-z]+(?:-[a-z]+)+): (.*)$", message.split("\n---\n")[0], re.M)
        assert tags == [("Signed-off-by", author)], f"{patch.name}: {tags}"


@pytest.mark.line
def test_planted_defects_apply(run, top, extra_tree):
    """Those of scripts/check --mutants, each by itself: a change of the series has not left them behind."""
    common = sorted((top / "tests/mutants").glob("*.patch"))
    fitting = [mutant for mutant in common if run("git", "apply", "--check", mutant, cwd=extra_tree, check=False).returncode == 0]
    if first_line():
        assert fitting == common
        return
    line = os.environ["STEAL_LINE"]
    own = sorted((top / "tests/mutants" / line).glob("*.patch"))
    assert (len(fitting), len(own)) == PLANTED[line]
    for mutant in own:
        run("git", "apply", "--check", mutant, cwd=extra_tree)
