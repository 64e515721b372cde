# SPDX-License-Identifier: GPL-2.0
"""scripts/get-kernel, apply, regen and worktree, on small trees that look like a kernel. The last test uses the real series.

Each test has its own copy of the scripts, with its own patches/, series and base.
"""

import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]

MAKEFILE = """\
VERSION = {}
PATCHLEVEL = {}
SUBLEVEL = {}
EXTRAVERSION =

mrproper:
	rm -rf .config include/config built.o
"""

# A column of rows: the line, state, package, suites, the newest release that passed, date, version of the series, commit, the one that was tested, and what
# passed on two architectures.
LINES = """\
7.3\tmaintained\tlinux-source-7.3\tsid\t-\t-\t-\t-\t-\t-\t-
7.2\tmaintained\tlinux-source-7.2\tsid\t-\t-\t-\t-\t-\t-\t-
6.12\tended\tsource:linux\tsid\t-\t-\t-\t-\t-\t-\t-
"""

NAMES = ["0001-sched-Provide-a-mask.patch", "0002-sched-fair-Fill-the-mask-when-a-thing-happens-that-t.patch",
         "0003-sched-fair-Use-the-mask.patch"]
TEST = "0001-sched-Test-the-mask-with-a-subject-so-long-that-it-d.patch"


def numbers(first, last):
    return "".join(f"line {i}\n" for i in range(first, last + 1))


def make_tree(path, version=(7, 3, 4)):
    """A kernel tree of a few files. As in Debian's, .gitignore hides everything, sources included."""
    files = {
        "Makefile": MAKEFILE.format(*version),
        ".gitignore": ".*\n*.o\n!.gitignore\n/*\n",
        "kernel/sched/fair.c": numbers(1, 60),
        "kernel/sched/core.c": numbers(1, 40),
        "scripts/ignored.o": "part of the sources all the same\n",
    }
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    (path / "scripts/ignored.o").chmod(0o755)
    return path


def replace(path, old, new):
    text = path.read_text()
    path.write_text(text.replace(old, new, 1))
    assert path.read_text() != text


def snapshot(path):
    """Every file's mode, time and content, .git left out."""
    return {
        str(f.relative_to(path)): (f.stat().st_mode, f.stat().st_mtime_ns, f.read_bytes())
        for f in sorted(path.rglob("*"))
        if f.is_file() and ".git" not in f.relative_to(path).parts
    }


class Repo:
    """A directory with a copy of this repository's scripts, a cache directory and a home."""

    def __init__(self, tmp):
        self.tmp, self.top, self.cache, self.home = tmp, tmp / "repo", tmp / "cache", tmp / "home"
        self.tree = self.cache / "linux-7.3.4"
        if not self.top.exists():
            self.home.mkdir()
            shutil.copytree(TOP / "scripts", self.top / "scripts")
            (self.top / "patches").mkdir()
            (self.top / "patches/lines").write_text(LINES)
            (self.top / "Documentation").mkdir()
            (self.top / "Documentation/cover-letter.txt").write_text(
                "sched/fair: Count further\n\nWhy and how.\n\nAnd what it costs.\n")
        self.env = {"PATH": os.environ["PATH"], "HOME": str(self.home), "STEAL_CACHE": str(self.cache), "GIT_CONFIG_NOSYSTEM": "1",
                    "GIT_AUTHOR_NAME": "A U Thor", "GIT_AUTHOR_EMAIL": "author@example.com",
                    "GIT_AUTHOR_DATE": "2026-02-03T04:05:06+0100"}
        self.committer = {"GIT_COMMITTER_NAME": "C O Mitter", "GIT_COMMITTER_EMAIL": "committer@example.com"}

    def command(self, script, *args):
        return [self.top / "scripts" / script, *map(str, args)]

    def run(self, script, *args, rc=0, **env):
        done = subprocess.run(self.command(script, *args), env={**self.env, **env}, capture_output=True, text=True, timeout=600,
                              check=False)
        assert done.returncode == rc, done.stderr
        if rc:
            assert "error: " in done.stderr and done.stdout == ""
        return done

    def git(self, tree, *args, ok=True):
        done = subprocess.run(["git", "-C", tree, *args], capture_output=True, text=True, check=False,
                              env={**self.env, **self.committer})
        assert not ok or done.returncode == 0, done.stderr
        return done.stdout.strip()

    def shell(self, tree, commands):
        subprocess.run(["sh", "-euc", commands], cwd=tree, check=True, env={**self.env, **self.committer, "TOP": str(self.top)})

    def state(self, tree):
        """What a failed run must not change."""
        return [self.git(tree, *words.split(), ok=False) for words in ("rev-parse HEAD", "symbolic-ref HEAD", "status --porcelain --ignored")
                ] + [snapshot(tree)]

    def tarball(self, name="linux-7.3.4.tar.xz", version=(7, 3, 4)):
        source = make_tree(self.tmp / f"source-{name}" / "linux", version)
        subprocess.run(["tar", "-caf", self.tmp / name, "-C", source.parent, "linux"], check=True)
        shutil.rmtree(source.parent)
        return self.tmp / name

    def base_tree(self, **env):
        """Make the tree in the cache from a tarball, without patches."""
        tarball = self.tmp / "linux-7.3.4.tar.xz"
        if not tarball.exists():
            self.tarball()
        assert self.run("get-kernel", "--tarball", tarball, **env).stdout == f"{self.tree}\n"
        return self.tree

    def without_patches(self):
        self.git(self.tree, "reset", "-q", "--hard", "v7.3.4")

    def commit(self, tree, subject, body="Because.\n", **changes):
        for name, change in changes.items():
            path = tree / "kernel/sched" / {"fair": "fair.c", "core": "core.c", "mask": "mask.h"}[name]
            path.write_text(change(path.read_text() if path.exists() else ""))
        self.git(tree, "add", "-A", "-f")
        self.git(tree, "commit", "-q", "-m", f"{subject}\n\n{body}")

    def own_tree(self, name="mine", version=(7, 3, 4)):
        """A user's clone, with a commit before the base."""
        tree = make_tree(self.tmp / name, version)
        self.git(tree, "init", "-q", "-b", "main")
        (tree / "Makefile").write_text("VERSION = 7\n")
        self.git(tree, "add", "-A", "-f")
        self.git(tree, "commit", "-q", "-m", "Earlier")
        (tree / "Makefile").write_text(MAKEFILE.format(*version))
        self.git(tree, "commit", "-q", "-a", "-m", "Linux")
        return tree

    def outputs(self):
        """The files that regen writes."""
        return {str(f.relative_to(self.top)): f.read_bytes()
                for f in [*(self.top / "patches").rglob("*"), self.top / "series", self.top / "base"] if f.is_file()}

    def start_to(self, subcommand, commands, *argv, **env):
        """Start a script for which `git SUBCOMMAND` runs these shell commands; return it when they have run THERE."""
        shim = self.tmp / "shim"
        shim.mkdir()
        (shim / "git").write_text(
            f"#!/bin/sh\nPATH={self.env['PATH']}\nTHERE() {{ touch {shim}/there; }}\n"
            f"case \" $* \" in *' {subcommand} '*) {commands} ;; esac\nexec git \"$@\"\n")
        (shim / "git").chmod(0o755)
        script = subprocess.Popen(self.command(*argv), start_new_session=True, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                  text=True, env={**self.env, "PATH": f"{shim}:{self.env['PATH']}", **env})
        deadline = time.monotonic() + 30
        while not (shim / "there").exists():
            assert time.monotonic() < deadline, f"never came to git {subcommand}"
            time.sleep(0.02)
        return script

    def stop_in(self, subcommand, *argv, **env):
        """Start a script and send its process group SIGTERM at the end of its `git SUBCOMMAND`."""
        script = self.start_to(subcommand, 'git "$@"; THERE; exec sleep 60', *argv, **env)
        os.killpg(script.pid, signal.SIGTERM)
        script.communicate(timeout=20)
        assert script.returncode != 0


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """The directory of a Repo with three patches and an extra one, made by regen. The tree in the cache has all four."""
    repo = Repo(tmp_path_factory.mktemp("template"))
    tree = repo.base_tree()
    repo.commit(tree, "sched: Provide a mask", mask=lambda s: "/* mask */\n", core=lambda s: s + "mask\n")
    repo.commit(tree, "sched/fair: Fill the mask when a thing happens that takes long to say in a subject",
                body="Übung.\n", fair=lambda s: s.replace("line 30\n", "line 30\nfilled\n"))
    repo.commit(tree, "sched/fair: Use the mask",
                fair=lambda s: s.replace("line 50\n", "fifty\n"), mask=lambda s: s + "/* used */\n")
    repo.commit(tree, "sched: Test the mask, with a subject so long that it does not fit into the name of a file",
                core=lambda s: s + "test\n")
    repo.run("regen", "--extra", 1)
    # Of the same patches, apply's own commits.
    repo.without_patches()
    repo.run("apply", "--extra")
    return repo.tmp


@pytest.fixture
def empty(tmp_path):
    """No series, no tree."""
    return Repo(tmp_path)


@pytest.fixture
def repo(template, tmp_path):
    """A copy of the template, with a tree that has the series without the extra patch."""
    subprocess.run(["cp", "-a", f"{template}/.", tmp_path], check=True)
    repo = Repo(tmp_path)
    repo.git(repo.tree, "reset", "-q", "--hard", "HEAD~1")
    return repo


# get-kernel


def test_import_is_reproducible(empty):
    """The commit does not depend on the user's configuration, the time or the umask."""
    ids = []
    for umask, date in [(0o022, "2026-02-03T04:05:06"), (0o077, "2026-02-03T04:05:07")]:
        old = os.umask(umask)
        try:
            tree = empty.base_tree(GIT_AUTHOR_DATE=date, GIT_COMMITTER_DATE=date)
        finally:
            os.umask(old)
        ids.append((empty.git(tree, "rev-parse", "HEAD"), empty.git(tree, "rev-parse", "v7.3.4")))
        shutil.rmtree(tree)
        (empty.home / "crlf").write_text("* text eol=crlf\n")
        (empty.home / "ignore").write_text("*.c\n")
        (empty.home / ".gitconfig").write_text(
            f"[core]\n\tautocrlf = input\n\tattributesFile = {empty.home}/crlf\n\texcludesFile = {empty.home}/ignore\n"
            "[user]\n\tname = Somebody\n\temail = some@example.com\n"
            "[commit]\n\tgpgsign = true\n[tag]\n\tgpgsign = true\n[init]\n\tdefaultBranch = x\n")
    assert ids[0] == ids[1]


def test_tarball_makes_a_tree_once(empty):
    tree = empty.base_tree()
    before = empty.state(tree)
    assert before[2] == ""
    assert empty.git(tree, "rev-list", "--count", "HEAD") == "1"
    assert empty.git(tree, "rev-parse", "v7.3.4^{commit}") == before[0]
    assert "scripts/ignored.o" in empty.git(tree, "ls-files").split()
    # the content of the tarball counts, not its name
    other = empty.tmp / "another-name"
    shutil.copy(empty.tmp / "linux-7.3.4.tar.xz", other)
    assert f"tarball_sha256={hashlib.sha256(other.read_bytes()).hexdigest()}" in empty.git(tree, "cat-file", "tag", "v7.3.4").split("\n")
    assert empty.run("get-kernel", "--tarball", other).stdout == f"{tree}\n"
    # without a tree, the default source would fail with this mirror
    assert empty.run("get-kernel", STEAL_MIRROR="file:///nonexistent").stdout == f"{tree}\n"
    assert "another source" in empty.run("get-kernel", "--tarball", empty.tarball("other.tar.gz"), rc=1).stderr
    assert empty.state(tree) == before


def test_source_that_has_the_series(repo):
    """It is no base. One line names a file of the series; the cache stays as it is."""
    patched = repo.own_tree("patched")
    repo.run("apply", "--tree", patched)
    repo.git(patched, "archive", "--prefix=linux/", "-o", repo.tmp / "patched.tar.gz", "HEAD")
    before = sorted(repo.cache.iterdir())
    for option, source in ("--tree", patched), ("--tarball", repo.tmp / "patched.tar.gz"):
        said = repo.run("get-kernel", option, source, rc=2).stderr
        assert said.splitlines()[-1] == (f"get-kernel: error: {source}: has the series already: kernel/sched/mask.h is there; "
                                         "give a source without it")
    assert sorted(repo.cache.iterdir()) == before


def test_tarball_is_checked(empty):
    tarball = empty.tarball()
    whole = tarball.read_bytes()
    sha256 = hashlib.sha256(whole).hexdigest()
    assert f"has sha256 {sha256}" in empty.run("get-kernel", "--tarball", tarball, "--sha256", "0" * 64, rc=1).stderr
    tarball.write_bytes(whole[: len(whole) // 2])
    empty.run("get-kernel", "--tarball", tarball, rc=1)
    assert str(tarball) in empty.run("get-kernel", "--tarball", tarball, "--sha256", sha256, rc=1).stderr
    for number, version in enumerate([(6, 12, 1), (7, 30, 1), (7, 4, 0), (7, 2, 9)]):
        other = empty.tarball(f"linux-7.3.4-{number}.tar.xz", version)
        assert "wrong base" in empty.run("get-kernel", "--kernel", "7.3", "--tarball", other, rc=2).stderr
    # the failed runs leave nothing
    assert {p.name for p in empty.cache.rglob("*")} == {"download", "get-kernel.lock"}
    tarball.write_bytes(whole)
    empty.run("get-kernel", "--tarball", tarball, "--sha256", sha256.upper())


def test_interrupted_import_leaves_nothing(empty):
    """Interrupted while git adds the files. The next run deletes what a killed run leaves."""
    empty.stop_in("add", "get-kernel", "--tarball", empty.tarball())
    assert not empty.tree.exists()
    rest = empty.cache / "get-kernel.tmp.killed"
    rest.mkdir()
    tree = empty.base_tree()
    assert empty.git(tree, "rev-parse", "v7.3.4")
    assert not list(empty.cache.glob("get-kernel.tmp.*"))


def test_other_point_release_gets_a_notice(repo):
    done = repo.run("get-kernel", "--tarball", repo.tarball("any.tar.xz", (7, 3, 9)))
    assert done.stdout == f"{repo.cache}/linux-7.3.9\n"
    assert "notice: Linux 7.3.9 is not the pinned 7.3.4" in done.stderr
    # the default is the pinned one; without that, the newest, but not a tree of scripts/worktree
    assert repo.run("get-kernel").stdout == f"{repo.tree}\n"
    repo.git(repo.cache / "linux-7.3.9", "worktree", "add", "-q", repo.cache / "linux-7.3.9-base")
    shutil.rmtree(repo.tree)
    assert f"(to get 7.3.4, remove {repo.cache}/linux-7.3.9)" not in done.stderr
    found = repo.run("get-kernel")
    assert found.stdout == done.stdout and f"(to get 7.3.4, remove {repo.cache}/linux-7.3.9)" in found.stderr


def test_tree_from_clone(empty):
    mine = empty.own_tree()
    (mine / "built.o").write_text("ignored by git\n")
    before = empty.state(mine)
    tree = Path(empty.run("get-kernel", "--tree", mine).stdout.strip())
    assert empty.state(mine) == before
    assert tree.parent == empty.cache and tree.name.startswith("linux-7.3.4-tree-")
    assert not (tree / "built.o").exists()
    assert empty.git(tree, "rev-parse", "v7.3.4^{tree}") == empty.git(mine, "rev-parse", "HEAD^{tree}")
    # the same commit gives the same tree, another commit gives another tree
    assert empty.run("get-kernel", "--tree", mine).stdout == f"{tree}\n"
    empty.commit(mine, "Change", fair=lambda s: s + "more\n")
    assert empty.run("get-kernel", "--tree", mine).stdout != f"{tree}\n"
    (mine / "Makefile").write_text(MAKEFILE.format(7, 3, 5))
    assert "not clean" in empty.run("get-kernel", "--tree", mine, rc=1).stderr


def test_tree_from_plain_directory(empty):
    plain = make_tree(empty.tmp / "plain")
    (plain / ".config").write_text("CONFIG_X=y\n")
    before = snapshot(plain)
    tree = Path(empty.run("get-kernel", "--tree", plain).stdout.strip())
    assert snapshot(plain) == before
    assert not (tree / ".config").exists()
    assert (tree / "scripts/ignored.o").exists()
    assert empty.run("get-kernel", "--tree", plain).stdout == f"{tree}\n"
    # it is not the default tree
    empty.run("get-kernel", rc=3, STEAL_MIRROR="file:///nonexistent")


def test_pinned_tarball_is_checked(empty):
    """A package of the pinned version with another tarball is refused. The package is in the directory of downloads."""
    root = empty.tmp / "deb"
    (root / "usr/src").mkdir(parents=True)
    (root / "DEBIAN").mkdir()
    tarball = empty.tarball("linux-source-7.3.tar.xz")
    shutil.copy(tarball, root / "usr/src")
    (root / "DEBIAN/control").write_text("Package: linux-source-7.3\nVersion: 7.3.4-1\nArchitecture: all\n"
                                         "Maintainer: Test <test@example.com>\nDescription: test\n")
    (empty.cache / "download").mkdir(parents=True)
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", root, empty.cache / "download/linux-source-7.3_7.3.4-1_all.deb"],
                   check=True, capture_output=True)
    base = "version=7.3.4\npackage=linux-source-7.3\npackage_version=7.3.4-1\ntarball_sha256={}\n"
    (empty.top / "base").write_text(base.format("0" * 64))
    assert "sha256" in empty.run("get-kernel", rc=1).stderr
    assert not list(empty.cache.glob("linux-*"))
    (empty.top / "base").write_text(base.format(hashlib.sha256(tarball.read_bytes()).hexdigest()))
    tree = empty.run("get-kernel").stdout.strip()
    assert "package_version=7.3.4-1" in empty.git(tree, "cat-file", "tag", "v7.3.4").split("\n")
    # the package's tarball is the same source
    assert empty.run("get-kernel", "--tarball", tarball).stdout == f"{tree}\n"


# regen


def test_regen_writes_the_series(repo):
    patches = repo.top / "patches"
    assert sorted(os.listdir(patches)) == [*NAMES, "cover-letter.txt", "extra", "lines"]
    series = (repo.top / "series").read_text().split("\n")
    assert series[1:] == ["# Task stealing for the fair scheduler, on Linux 7.3.4", *NAMES, ""]
    assert (patches / "extra/series").read_text().split("\n")[2:] == [TEST, ""]
    cover = (patches / "cover-letter.txt").read_text()
    assert "Subject: [PATCH 0/3] sched/fair: Count further\n" in cover
    assert "\nWhy and how.\n\nAnd what it costs.\n" in cover
    assert "From: A U Thor <author@example.com>\nDate: Tue, 3 Feb 2026 04:05:06 +0100\n" in cover
    commit = repo.git(repo.tree, "rev-parse", "v7.3.4^{commit}")
    assert f"base-commit: {commit}\n" in cover
    patch = (patches / NAMES[2]).read_text()
    assert patch.startswith("From " + "0" * 40) and "\n-- \n" not in patch
    base = (repo.top / "base").read_text().split("\n")
    fair = hashlib.sha256(numbers(1, 60).encode()).hexdigest()
    assert {f"sha256:kernel/sched/fair.c={fair}", f"commit={commit}", "version=7.3.4", "series_version=1.0"} <= set(base)
    # the base does not have files that the series adds
    assert not any("mask.h" in line for line in base)


def test_apply_then_regen_gives_no_difference(repo):
    replace(repo.top / "base", "series_version=1.0", "series_version=3.1-rc2")
    before = repo.outputs()
    shutil.rmtree(repo.tree)
    repo.base_tree()
    # settings that would change the patches if git used them
    (repo.home / ".gitconfig").write_text(
        "[user]\n\tname = Some One\n\temail = some@example.com\n"
        "[diff]\n\tnoprefix = true\n\tcontext = 1\n\talgorithm = patience\n\trenames = copies\n"
        "[format]\n\tsignature = me\n\tnumbered = false\n\tthread = true\n\tto = list@example.com\n"
        "\tsubjectPrefix = RFC\n\tfrom = true\n\tnotes = true\n"
        "[am]\n\tthreeWay = true\n\tmessageId = true\n[commit]\n\tgpgsign = true\n")
    repo.run("apply", "--extra")
    repo.run("regen")
    assert repo.outputs() == before
    for setting in ["diff.noprefix", "format.thread", "format.from", "format.notes", "format.signOff"]:
        repo.git(repo.tree, "config", setting, "true")
    repo.git(repo.tree, "config", "diff.context", "1")
    repo.git(repo.tree, "config", "format.signature", "me")
    repo.run("regen")
    assert repo.outputs() == before


def test_regen_keeps_the_headings(repo):
    series = repo.top / "series"
    text = (f"# SPDX\n# Title, on Linux 7.3.{{}}\n\n# Structure\n{NAMES[0]}\n\n{NAMES[1]}\n# Use\n# more\n{NAMES[2]}\n# end\n")
    series.write_text(text.format(0))
    repo.run("regen", "--extra", 0)
    assert series.read_text() == text.format(4) and not (repo.top / "patches/extra").exists()
    # a patch with a new subject keeps its heading
    repo.git(repo.tree, "commit", "-q", "--amend", "-m", "sched/fair: Another name")
    repo.run("regen")
    text = text.replace("Use-the-mask", "Another-name")
    assert series.read_text() == text.format(4)
    # a new patch between: the headings stay with their patches
    repo.git(repo.tree, "reset", "-q", "--hard", "HEAD~2")
    repo.commit(repo.tree, "sched: A new one", core=lambda s: s + "new\n")
    repo.git(repo.tree, "cherry-pick", "ORIG_HEAD~1", "ORIG_HEAD")
    repo.run("regen")
    text = text.replace("0003", "0004").replace("0002", "0003").replace("a-mask.patch\n", "a-mask.patch\n0002-sched-A-new-one.patch\n")
    assert series.read_text() == text.format(4)
    # one patch is left; a cover letter with the name of a patch is deleted
    (repo.top / "patches/0000-cover-letter.patch").touch()
    repo.git(repo.tree, "reset", "-q", "--hard", "HEAD~3")
    repo.run("regen")
    assert sorted(os.listdir(repo.top / "patches")) == [NAMES[0], "cover-letter.txt", "lines"]


def regen_with(repo, *subjects):
    """What regen writes to series for commits with these subjects. A heading is its line, a patch its subject."""
    repo.without_patches()
    for i, subject in enumerate(subjects):
        repo.commit(repo.tree, subject, fair=lambda s, i=i: s.replace(f"line {4 * i + 1}\n", f"{subject}\n"))
    repo.run("regen", "--extra", 0)
    lines = (repo.top / "series").read_text().split("\n")
    assert lines.pop() == "" and lines[0].startswith("# SPDX") and lines[1].startswith("# Task stealing")
    names = [line for line in lines if line[:1] not in ("", "#")]
    assert names == sorted(p.name for p in (repo.top / "patches").glob("*.patch"))
    assert [name[:4] for name in names] == [f"{i + 1:04}" for i in range(len(subjects))]
    return [line if line[:1] in ("", "#") else line[5:-len(".patch")] for line in lines[2:]]


def test_regen_writes_the_heading_of_the_follow_ups(repo):
    """Above the tenth patch, if there is one, and not in patches/extra/series."""
    nine = list("abcdefghi")
    heading = ["", "# Follow-ups: each that changes a policy has its own feature bit"]
    assert regen_with(repo, *nine) == nine
    assert regen_with(repo, *nine, "x", "y", "z") == [*nine, *heading, "x", "y", "z"]
    (repo.top / "series").unlink()
    assert regen_with(repo, *nine, "x", "y") == [*nine, *heading, "x", "y"]
    repo.run("regen", "--extra", 1)
    text = (repo.top / "series").read_text()
    # a tree whose extra patches are more than nine
    repo.run("regen", "--extra", 10)
    assert "Follow-ups" not in (repo.top / "patches/extra/series").read_text()
    assert text.endswith("\n".join([*heading, "0010-x.patch", ""])), text


def test_regen_keeps_the_heading_of_the_follow_ups(repo):
    nine, heading = list("abcdefghi"), ["", "# Follow-ups, mine", "#", "# Follow-ups of theirs"]
    regen_with(repo, *nine, "x", "y")
    replace(repo.top / "series", "# Follow-ups: each that changes a policy has its own feature bit", "\n".join(heading[1:]))
    for first, second in [(nine, "xy"), (nine, "xyz"),
                          # renamed: the first follow-up, all of them, the last one above the heading
                          (nine, "Xyz"), (nine, "uvw"), ([*nine[:8], "I"], "uvw"),
                          # a new one beside the heading, a removed one, all of them renamed and one more
                          ([*nine[:8], "I"], "tuvw"), ([*nine[:8], "I"], "vw"), (nine, "xyz"),
                          # one less, and one more, above the heading
                          (nine[1:], "xyz"), ([*nine[:4], "e1", *nine[4:]], "xyz"), (nine, "xyz"),
                          # in another order; a new one beside the heading
                          ([*reversed(nine)], "zyx"), ([*reversed(nine)], "wzyx"), (nine, "wxyz"),
                          # none, and one again
                          (nine, ""), (nine, "x")]:
        assert regen_with(repo, *first, *second) == [*first, *heading, *second]
    # with a heading of its own, which follows its patch
    regen_with(repo, *nine, *"xyz")
    replace(repo.top / "series", "0010-x", "\n# X\n0010-x")
    assert regen_with(repo, *nine, *"wxyz") == [*nine, *heading, "w", "", "# X", "x", "y", "z"]


def test_more_than_nine_patches(repo):
    """git am with the glob of the README, quilt and apply give the same. The cover letter is a mail, and not in their way."""
    regen_with(repo, *"abcdefghijkl")
    want = repo.git(repo.tree, "rev-parse", "HEAD^{tree}")
    shutil.rmtree(repo.tree)
    repo.base_tree()
    repo.run("apply")
    assert repo.git(repo.tree, "rev-parse", "HEAD^{tree}") == want
    repo.run("apply", "--upto", 11)
    assert repo.git(repo.tree, "log", "-1", "--format=%s") == "k"
    repo.run("apply", "--upto", 0)
    repo.shell(repo.tree, 'git am -q "$TOP"/patches/00*.patch')
    assert repo.git(repo.tree, "rev-parse", "HEAD^{tree}") == want
    # The same changes of another committer: of them, apply makes its own commits.
    assert "now has 12 of 12 patches" in repo.run("apply").stderr and repo.git(repo.tree, "rev-parse", "HEAD^{tree}") == want
    repo.run("apply", "--upto", 0)
    repo.shell(repo.tree, 'QUILT_PATCHES="$TOP/patches" QUILT_SERIES="$TOP/series" quilt --quiltrc - push -q -a --fuzz=0; '
                          'rm -r .pc; git add -A')
    assert repo.git(repo.tree, "write-tree") == want
    with (repo.top / "patches/cover-letter.txt").open() as cover:
        said = subprocess.run(["git", "mailinfo", repo.tmp / "message", repo.tmp / "change"], stdin=cover, check=True, text=True,
                              stdout=subprocess.PIPE, cwd=repo.tmp, env=repo.env).stdout
    assert "Author: A U Thor\n" in said and "Subject: sched/fair: Count further\n" in said
    assert (repo.tmp / "message").read_text().startswith("Why and how.\n")


@pytest.mark.parametrize("message, commands", [
    ("not clean", "echo changed >kernel/sched/core.c"),
    ("forgotten.h", "touch kernel/sched/forgotten.h"),
    ("no commits", "git reset -q --hard v7.3.4"),
    ("must be linear", "git switch -q -c side v7.3.4; echo >>kernel/sched/core.c; git commit -q -a -m Side; git switch -q base; "
                       "git reset -q --hard HEAD~1; git merge -q --no-edit -s ours side"),
    ("cover-letter.txt", "rm $TOP/Documentation/cover-letter.txt"),
    ("without an author", "git commit -q --amend --no-edit --author='X <noreply@localhost>'")])
def test_regen_refuses(repo, message, commands):
    before = repo.outputs()
    repo.shell(repo.tree, commands)
    assert message in repo.run("regen", "--extra", 0, rc=1).stderr
    assert repo.outputs() == before
    assert not list(repo.top.glob(".regen.*"))


def test_regen_refuses_other_trees(repo):
    before = repo.outputs()
    # a tree without the extra patch: the last patch would become one
    way_out = re.search(r"without the extra patches on top: (git -C \S+ am \S+) adds them", repo.run("regen", rc=1).stderr)[1]
    assert repo.outputs() == before
    # It keeps a change of the series, which apply would replace.
    repo.shell(repo.tree, f'git commit -q --amend -m "sched/fair: Use the mask" -m "Why."; cd /; {way_out} >/dev/null')
    repo.run("regen")
    changed = {name for name, text in repo.outputs().items() if text != before[name]}
    assert "patches/" + NAMES[2] in changed and not {f for f in changed if "extra" in f or f in ("series", "base")}
    before = repo.outputs()
    # a tree of unknown source: nobody could download what base names
    tree = repo.run("get-kernel", "--tree", repo.own_tree()).stdout.strip()
    repo.run("apply", "--tree", tree, "--extra")
    assert "format-patch" in repo.run("regen", "--tree", tree, rc=1).stderr
    assert repo.outputs() == before


# apply


def test_apply_makes_the_commits(repo):
    tip = repo.git(repo.tree, "rev-parse", "HEAD^{tree}")
    repo.without_patches()
    done = repo.run("apply")
    assert done.stdout == ""
    assert "exact base" in done.stderr
    assert repo.git(repo.tree, "rev-parse", "HEAD^{tree}") == tip
    assert repo.git(repo.tree, "log", "--format=%an %ad %s", "v7.3.4..").count("A U Thor") == 3
    assert repo.git(repo.tree, "status", "--porcelain", "--ignored") == ""
    # applied again, the commits are the same
    head = repo.git(repo.tree, "rev-parse", "HEAD")
    repo.run("apply", "--extra")
    assert repo.git(repo.tree, "rev-parse", "HEAD~1") == head
    assert (repo.tree / "kernel/sched/core.c").read_text().endswith("test\n")
    repo.run("apply", "--upto", "0")
    repo.run("apply")
    assert repo.git(repo.tree, "rev-parse", "HEAD") == head
    assert repo.git(repo.tree, "tag") == "v7.3.4"
    before = repo.state(repo.tree)
    assert "already" in repo.run("apply").stderr
    assert repo.state(repo.tree) == before


def test_commits_do_not_depend_on_the_user(repo):
    """The kernel's version has their id. In a user's own tree, the user is the committer."""
    ids, user = set(), {"GIT_COMMITTER_NAME": "Some Body", "GIT_COMMITTER_EMAIL": "some@example.com", "GIT_COMMITTER_DATE": "2027-01-01T00:00:00Z"}
    for environment in ({}, user):
        repo.without_patches()
        repo.run("apply", **environment)
        ids.add(repo.git(repo.tree, "rev-parse", "HEAD"))
    assert len(ids) == 1 and repo.git(repo.tree, "log", "-3", "--format=%cn %ce") == "\n".join(["A U Thor author@example.com"] * 3)
    for environment in (repo.committer, user):
        subprocess.run(["git", "-C", repo.tree, "commit", "-q", "--amend", "--no-edit"], check=True, env=repo.env | environment)
        assert repo.git(repo.tree, "rev-parse", "HEAD") not in ids
        repo.run("apply")
        assert repo.git(repo.tree, "rev-parse", "HEAD") in ids
    mine = repo.own_tree()
    repo.run("apply", "--tree", mine, **user)
    assert repo.git(mine, "log", "-1", "--format=%an %cn") == "A U Thor Some Body"


def test_two_at_once(repo):
    """The second run waits while the first one changes the tree."""
    repo.without_patches()
    half = repo.tree / "kernel/sched/fair.c"
    first = repo.start_to("reset -q --keep", f"echo half >>{half}; THERE; sleep 5; git -C {repo.tree} checkout -q {half}", "apply")
    second = repo.run("apply")
    said = first.communicate(timeout=30)[1]
    assert first.returncode == 0 and "now has 3 of 3" in said, said
    assert "waiting for another run" in second.stderr and "has 3 of 3 patches already" in second.stderr


# A make that "configures" as asked, and builds for as long as there is a file `going`
MAKE = """\
#!/bin/sh
cd "${0%/*}"
for word; do case $word in KCONFIG_*=*) eval "${word%%=*}=\\${word#*=}" ;; esac; done
case " $* " in
*' allnoconfig '*) cp "$KCONFIG_ALLCONFIG" "$KCONFIG_CONFIG" ;;
*) echo "$*" >>built; while [ -e going ]; do sleep 0.05; done ;;
esac
"""


def until(condition, what):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"never {what}"
        time.sleep(0.02)


def test_no_change_under_a_build(repo):
    """scripts/apply waits while scripts/build builds the tree; another build of it does not."""
    tools = repo.tmp / "tools"
    tools.mkdir()
    for name in ["flex", "bison", "bc", "ccache", "x86_64-linux-gnu-gcc", "make"]:
        (tools / name).write_text(MAKE if name == "make" else "#!/bin/sh\n")
        (tools / name).chmod(0o755)
    (tools / "going").touch()
    (repo.top / "configs").mkdir()
    for name in ["x86_64", "one", "two"]:
        (repo.top / f"configs/{name}.config").write_text("CONFIG_A=y\n")
    tree = repo.own_tree()
    (tree / "Kbuild").write_text("")
    repo.git(tree, "add", "-f", "Kbuild")
    repo.git(tree, "commit", "-q", "-m", "Kbuild")

    def start(*argv):
        return subprocess.Popen(repo.command(*argv), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                env={**repo.env, "PATH": f"{tools}:{repo.env['PATH']}"})

    try:
        builds = [start("build", "--arch", "x86_64", "--config", name, "--tree", tree) for name in ("one", "two")]
        until(lambda: (tools / "built").exists() and len((tools / "built").read_text().splitlines()) == 2, "built twice at once")
        apply = start("apply", "--tree", tree)
        assert apply.stderr.readline() == f"apply: {tree}: Linux 7.3.4: using the patches for 7.3\n"
        assert apply.stderr.readline() == f"apply: waiting for another run in {tree}\n"
    finally:
        (tools / "going").unlink()
    for script, text in [(builds[0], "built in"), (builds[1], "built in"), (apply, "now has 3 of 3 patches")]:
        said = script.communicate(timeout=30)[1]
        assert script.returncode == 0 and text in said, said


def test_upto(repo):
    """From any number of patches to any other; files that stay the same are not written."""
    tip = repo.git(repo.tree, "rev-parse", "HEAD")
    times = {n: v[1] for n, v in snapshot(repo.tree).items()}
    repo.run("apply", "--upto", "2")
    assert repo.git(repo.tree, "rev-parse", "HEAD") == repo.git(repo.tree, "rev-parse", tip + "~1")
    now = {n: v[1] for n, v in snapshot(repo.tree).items()}
    assert {n for n in times if times[n] != now[n]} == {"kernel/sched/fair.c", "kernel/sched/mask.h"}
    repo.run("apply", "--upto", "0")
    assert repo.git(repo.tree, "rev-list", "--count", "v7.3.4..") == "0"
    assert not (repo.tree / "kernel/sched/mask.h").exists()
    repo.run("apply", "--upto", "1")
    assert repo.git(repo.tree, "rev-list", "--count", "v7.3.4..") == "1"
    for number in ["4", "-1", "x"]:
        assert f"--upto {number}" in repo.run("apply", "--upto", number, rc=2).stderr


def test_upto_in_a_tree_of_the_users(repo):
    """apply never removes commits there."""
    mine = repo.own_tree()
    repo.run("apply", "--tree", mine, "--upto", "1")
    repo.run("apply", "--tree", mine)
    assert repo.git(mine, "rev-list", "--count", "HEAD") == "5"
    before = repo.state(mine)
    assert "already" in repo.run("apply", "--tree", mine).stderr
    assert "reset --keep HEAD~2" in repo.run("apply", "--tree", mine, "--upto", "1", rc=2).stderr
    assert repo.state(mine) == before


def test_nine(repo):
    """Without the follow-ups: in the cache, in a user's tree and in one of scripts/worktree."""
    replace(repo.top / "series", NAMES[2], f"\n# Follow-ups, to be left out\n{NAMES[2]}\n# Follow-ups\n")
    repo.run("apply", "--upto", 0)
    repo.run("apply")
    whole = repo.git(repo.tree, "rev-parse", "HEAD")
    assert "now has 2 of 3 patches" in repo.run("apply", "--nine").stderr
    assert repo.git(repo.tree, "rev-parse", "HEAD") == repo.git(repo.tree, "rev-parse", f"{whole}~1")
    assert "has 2 of 3 patches already" in repo.run("apply", "--nine").stderr
    repo.run("apply")
    assert repo.git(repo.tree, "rev-parse", "HEAD") == whole

    mine = repo.own_tree()
    repo.run("apply", "--tree", mine, "--nine")
    assert repo.git(mine, "log", "-1", "--format=%s").startswith("sched/fair: Fill the mask")
    repo.run("apply", "--tree", mine)
    assert repo.git(mine, "rev-list", "--count", "HEAD") == "5"
    before = repo.state(mine)
    assert "has the first 3 patches already; to go back to 2: " in (said := repo.run("apply", "--tree", mine, "--nine", rc=2).stderr)
    assert f"git -C {mine} reset --keep HEAD~1\n" in said
    for option in ["--extra"], ["--upto", 2]:
        said = repo.run("apply", "--tree", mine, "--nine", *option, rc=2).stderr
        assert f"--nine and {option[0]} exclude each other: " in said and said.count("\n") == 1
    assert repo.state(mine) == before

    path = repo.run("worktree", "nine", "--nine").stdout.strip()
    assert repo.git(path, "rev-list", "--count", "v7.3.4..") == "2"
    repo.run("apply", "--tree", path, "--ours")
    assert repo.git(path, "rev-parse", "HEAD") == whole
    repo.run("apply", "--tree", path, "--ours", "--nine")
    assert repo.git(path, "rev-list", "--count", "v7.3.4..") == "2"


@pytest.mark.parametrize("heading", ["\n", "# The follow-ups\n", "#\n## Follow-ups\n"])
def test_nine_needs_the_heading(repo, heading):
    replace(repo.top / "series", NAMES[2], heading + NAMES[2])
    before = repo.state(repo.tree)
    said = repo.run("apply", "--nine", rc=1).stderr
    assert f"{repo.top}/series: " in said and "'# Follow-ups'" in said and said.count("\n") == 1
    # nothing above it
    replace(repo.top / "series", NAMES[0], f"# Follow-ups\n{NAMES[0]}")
    assert said == repo.run("apply", "--nine", rc=1).stderr
    assert repo.state(repo.tree) == before


def test_other_commits_in_the_cache_are_kept(repo):
    repo.git(repo.tree, "reset", "-q", "--hard", "HEAD~1")
    repo.commit(repo.tree, "Work in progress", core=lambda s: s + "precious\n")
    work = repo.git(repo.tree, "rev-parse", "HEAD")
    repo.run("apply")
    assert repo.git(repo.tree, "rev-list", "--count", "v7.3.4..") == "3"
    assert repo.git(repo.tree, "rev-parse", f"before-apply/{work[:12]}") == work


def test_changed_patch_is_applied_anew(repo):
    """Also if only white space or the message differs."""
    for name, old, new in [(NAMES[1], "\n+filled\n", "\n+\tfilled\n"), (NAMES[2], "\nBecause.\n", "\nBecause of it.\n")]:
        replace(repo.top / "patches" / name, old, new)
        head = repo.git(repo.tree, "rev-parse", "HEAD")
        repo.run("apply")
        assert repo.git(repo.tree, "rev-parse", "HEAD") != head
    assert "\tfilled\n" in (repo.tree / "kernel/sched/fair.c").read_text()
    assert "Because of it." in repo.git(repo.tree, "log", "-1")


def test_failing_patch_leaves_the_tree_as_it_was(repo):
    # a context line differs
    replace(repo.top / "patches" / NAMES[1], "\n line 29\n", "\n line XX\n")
    repo.without_patches()
    mine = repo.own_tree()
    for tree, args in [(repo.tree, []), (mine, ["--tree", mine])]:
        before = repo.state(tree)
        assert NAMES[1] in repo.run("apply", *args, rc=1).stderr
        assert repo.state(tree) == before
        repo.git(tree, "fsck", "--connectivity-only")
    # the first patch applies
    repo.run("apply", "--upto", "1")


def test_other_bases(repo):
    """A base to which the patches apply gives a notice. A base for which patch(1) would need fuzz is refused."""
    other = repo.own_tree("other", version=(7, 3, 9))
    repo.commit(other, "Longer", fair=lambda s: "line 0\n" + s)
    said = repo.run("apply", "--tree", other).stderr
    assert "notice: " in said and "not the pinned base" in said and "exact base" not in said
    mine = repo.own_tree()
    repo.commit(mine, "Move", fair=lambda s: s.replace("line 28\n", "line 28, another\n"))
    before = repo.state(mine)
    said = repo.run("apply", "--tree", mine, rc=1).stderr
    assert "not the pinned base" in said and "kernel/sched/fair.c" in said
    assert repo.state(mine) == before


def test_interrupted_apply_leaves_the_tree_as_it_was(repo):
    repo.without_patches()
    before = repo.state(repo.tree)
    temporary = repo.tmp / "temporary"
    temporary.mkdir()
    repo.stop_in("am", "apply", TMPDIR=str(temporary))
    assert repo.state(repo.tree) == before
    assert not list(temporary.iterdir())
    repo.run("apply")


@pytest.mark.parametrize("message, commands", [
    ("not clean", "echo changed >kernel/sched/core.c"),
    ("not clean", "echo changed >kernel/sched/core.c; git add -A"),
    ("not clean", "git rm -q .gitignore; git commit -q -m 'Hide nothing'; touch new.c"),
    ("not clean", "echo precious >kernel/sched/mask.h"),
    ("under way", "mkdir .git/rebase-apply"),
    ("quilt pop", "mkdir .pc; echo theirs.patch >.pc/applied-patches"),
    ("use quilt", "rm -r .git")])
def test_apply_refuses(repo, message, commands):
    mine = repo.own_tree()
    repo.shell(mine, commands)
    before = repo.state(mine)
    assert message in repo.run("apply", "--tree", mine, rc=2 if "mask.h" in commands else 1).stderr
    assert repo.state(mine) == before


def test_worktree(repo):
    """The tree has the patches asked for; files that stay the same are not written."""
    path = repo.run("worktree", "extra", "--extra").stdout.strip()
    assert path == f"{repo.tree}-extra"
    tree = Path(path)
    assert repo.git(tree, "rev-list", "--count", "v7.3.4..") == "4"
    before = snapshot(tree)
    (tree / "kernel/sched/core.c").write_text("changed\n")
    repo.run("worktree", "extra", "--extra")
    assert {n: v[2] for n, v in snapshot(tree).items()} == {n: v[2] for n, v in before.items()}
    # a changed extra patch is applied
    replace(repo.top / "patches/extra" / TEST, "\n+test\n", "\n+tests\n")
    repo.run("worktree", "extra", "--extra")
    assert (tree / "kernel/sched/core.c").read_text().endswith("tests\n")
    assert {n for n, v in snapshot(tree).items() if v[1] != before[n][1]} == {"kernel/sched/core.c"}
    assert "is not a name" in repo.run("worktree", "x/y", rc=2).stderr


def test_worktree_waits_for_builds(repo):
    """They hold a shared lock on the tree: its files do not change meanwhile."""
    tree = Path(repo.run("worktree", "extra", "--extra").stdout.strip())
    changed = tree / "kernel/sched/core.c"
    changed.write_text("a defect\n")
    lock = os.open(tree, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    with subprocess.Popen(repo.command("worktree", "extra", "--extra"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          env=repo.env) as child:
        try:
            said, held = child.stderr.readline(), changed.read_text()
        finally:
            os.close(lock)
        assert child.wait(timeout=60) == 0
    assert (said, held) == (f"worktree: waiting for another run in {tree}\n", "a defect\n")
    assert changed.read_text() != "a defect\n"


def test_worktree_leaves_trees_of_the_users_alone(repo):
    mine = repo.own_tree()
    repo.git(mine, "tag", "v7.3.4", "HEAD~1")
    before = repo.state(mine)
    assert "--tree is not for this script" in repo.run("worktree", "base", "--tree", mine, "--upto", 0, rc=2).stderr
    assert "--ours is not for this script" in repo.run("worktree", "base", "--ours", rc=2).stderr
    assert "--ours needs --tree" in repo.run("apply", "--ours", rc=2).stderr
    assert repo.state(mine) == before and not Path(f"{repo.tree}-base").exists()


def test_relative_cache(repo):
    """STEAL_CACHE may be relative to the directory where the first script starts; scripts that it runs elsewhere have the same one."""
    said = subprocess.run(["bash", "-c", f'. "{repo.top}/scripts/lib.sh"; cd /; bash -c \'. "{repo.top}/scripts/lib.sh"; echo "$cache"\''],
                          check=True, text=True, stdout=subprocess.PIPE, cwd=repo.tmp, env={**repo.env, "STEAL_CACHE": repo.cache.name}).stdout
    assert said == f"{repo.cache}\n"
