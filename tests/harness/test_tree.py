# SPDX-License-Identifier: GPL-2.0
"""scripts/get-kernel, apply and regen, on small trees that look like a kernel.

Each test has a copy of the scripts in a repository of its own, so that patches/, series and base
are the test's. The last test does the same with the real kernel and the real series.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]

MAKEFILE = """\
# SPDX-License-Identifier: GPL-2.0
VERSION = {}
PATCHLEVEL = {}
SUBLEVEL = {}
EXTRAVERSION =
NAME = Test

mrproper:
	rm -rf .config include/config built.o
"""


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
    script = path / "scripts/run.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    return path


def snapshot(path):
    """Every file's mode, time and content, .git left out."""
    return {
        str(f.relative_to(path)): (f.stat().st_mode, f.stat().st_mtime_ns, f.read_bytes())
        for f in sorted(path.rglob("*"))
        if f.is_file() and ".git" not in f.relative_to(path).parts
    }


class Repo:
    """A copy of this repository's scripts, with a cache directory and a home of its own."""

    def __init__(self, tmp):
        self.tmp = tmp
        self.top = tmp / "repo"
        self.cache = tmp / "cache"
        home = tmp / "home"
        home.mkdir()
        shutil.copytree(TOP / "scripts", self.top / "scripts")
        (self.top / "Documentation").mkdir()
        (self.top / "Documentation/cover-letter.txt").write_text(
            "sched/fair: Count further\n\nWhy and how.\n\nAnd what it costs.\n"
        )
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "STEAL_CACHE": str(self.cache),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "A U Thor",
            "GIT_AUTHOR_EMAIL": "author@example.com",
            "GIT_AUTHOR_DATE": "2026-02-03T04:05:06+0100",
        }

    def run(self, script, *args, ok=True, **env):
        done = subprocess.run(
            [self.top / "scripts" / script, *map(str, args)],
            env={**self.env, **env}, capture_output=True, text=True, timeout=120,
        )
        if ok:
            assert done.returncode == 0, done.stderr
        else:
            assert done.returncode == 1, done.stderr
            assert "error: " in done.stderr
            assert done.stdout == ""
        return done

    def git(self, tree, *args, ok=True):
        done = subprocess.run(
            ["git", "-C", str(tree), *args], capture_output=True, text=True,
            env={**self.env, "GIT_COMMITTER_NAME": "C O Mitter",
                 "GIT_COMMITTER_EMAIL": "committer@example.com"},
        )
        assert not ok or done.returncode == 0, done.stderr
        return done.stdout.strip()

    def state(self, tree):
        """All that a failed run must leave as it was."""
        return (
            self.git(tree, "rev-parse", "HEAD"),
            self.git(tree, "symbolic-ref", "HEAD", ok=False),
            self.git(tree, "status", "--porcelain", "--ignored"),
            snapshot(tree),
        )

    def tarball(self, name="linux-7.3.4.tar.xz", version=(7, 3, 4)):
        source = make_tree(self.tmp / f"source-{name}" / "linux", version)
        tarball = self.tmp / name
        subprocess.run(["tar", "-cJf", tarball, "-C", source.parent, "linux"], check=True)
        shutil.rmtree(source.parent)
        return tarball

    def base_tree(self):
        """The tree in the cache, made from a tarball: without patches."""
        tarball = self.tmp / "linux-7.3.4.tar.xz"
        if not tarball.exists():
            self.tarball()
        return Path(self.run("get-kernel", "--url", f"file://{tarball}").stdout.strip())

    def commit(self, tree, subject, body="Because.\n", **changes):
        for name, change in changes.items():
            path = tree / {"fair": "kernel/sched/fair.c", "core": "kernel/sched/core.c",
                           "mask": "kernel/sched/mask.h"}[name]
            path.write_text(change(path.read_text() if path.exists() else ""))
        self.git(tree, "add", "-A", "-f")
        self.git(tree, "commit", "-q", "-m", f"{subject}\n\n{body}")

    def own_tree(self, name="mine", version=(7, 3, 4)):
        """Somebody's clone, with a history before the base."""
        tree = make_tree(self.tmp / name, version)
        self.git(tree, "init", "-q", "-b", "main")
        (tree / "Makefile").write_text("VERSION = 7\n")
        self.git(tree, "add", "-A", "-f")
        self.git(tree, "commit", "-q", "-m", "Earlier")
        (tree / "Makefile").write_text(MAKEFILE.format(*version))
        self.git(tree, "commit", "-q", "-a", "-m", "Linux")
        return tree

    def plain_tree(self, name="plain"):
        return make_tree(self.tmp / name)


@pytest.fixture
def empty(tmp_path):
    return Repo(tmp_path)


@pytest.fixture
def repo(empty):
    """With a series of three, made by regen; the tree in the cache has them applied."""
    tree = empty.base_tree()
    empty.commit(tree, "sched: Provide a mask", mask=lambda s: "/* mask */\n", core=lambda s: s + "mask\n")
    empty.commit(
        tree,
        "sched/fair: Fill the mask when a thing happens that takes long to say in a subject",
        body="Übung.\n", fair=lambda s: s.replace("line 30\n", "line 30\nfilled\n"),
    )
    empty.commit(
        tree, "sched/fair: Use the mask",
        fair=lambda s: s.replace("line 50\n", "fifty\n"), mask=lambda s: s + "/* used */\n",
    )
    empty.run("regen")
    empty.tree = tree
    return empty


def outputs(repo):
    return {
        str(f.relative_to(repo.top)): f.read_bytes()
        for f in [*sorted((repo.top / "patches").rglob("*.patch")), repo.top / "series", repo.top / "base"]
    }


def break_patch(repo, number):
    """The patch no longer fits: a context line differs."""
    path = repo.top / "patches" / sorted(os.listdir(repo.top / "patches"))[number]
    text = path.read_text()
    path.write_text(text.replace("\n line 29\n", "\n line XX\n", 1))
    assert path.read_text() != text
    return path.name


# get-kernel


def test_url_makes_a_tagged_tree(empty):
    tree = empty.base_tree()
    assert tree == empty.cache / "linux-7.3.4"
    assert empty.git(tree, "status", "--porcelain", "--ignored") == ""
    assert empty.git(tree, "rev-list", "--count", "HEAD") == "1"
    assert empty.git(tree, "rev-parse", "v7.3.4^{commit}") == empty.git(tree, "rev-parse", "HEAD")
    assert "scripts/ignored.o" in empty.git(tree, "ls-files").split()
    sha256 = hashlib.sha256((empty.tmp / "linux-7.3.4.tar.xz").read_bytes()).hexdigest()
    assert f"tarball_sha256={sha256}" in empty.git(tree, "cat-file", "tag", "v7.3.4").split("\n")


def test_import_is_reproducible(empty):
    """Neither the user's configuration nor the time or the umask reaches the commit."""
    tree = empty.base_tree()
    first = empty.git(tree, "rev-parse", "HEAD"), empty.git(tree, "rev-parse", "v7.3.4")
    shutil.rmtree(tree)
    home = Path(empty.env["HOME"])
    (home / "crlf").write_text("* text eol=crlf\n")
    (home / "ignore").write_text("*.c\n")
    (home / ".gitconfig").write_text(
        f"[core]\n\tautocrlf = input\n\tattributesFile = {home}/crlf\n\texcludesFile = {home}/ignore\n"
        "[user]\n\tname = Somebody\n\temail = some@example.com\n"
        "[commit]\n\tgpgsign = true\n[tag]\n\tgpgsign = true\n[init]\n\tdefaultBranch = x\n"
    )
    time.sleep(1.1)
    old = os.umask(0o077)
    try:
        tree = empty.base_tree()
    finally:
        os.umask(old)
    assert first == (empty.git(tree, "rev-parse", "HEAD"), empty.git(tree, "rev-parse", "v7.3.4"))


def test_second_run_needs_no_source(empty):
    tree = empty.base_tree()
    tarball = empty.tmp / "linux-7.3.4.tar.xz"
    url = f"file://{tarball}"
    tarball.unlink()
    assert empty.run("get-kernel", "--url", url).stdout.strip() == str(tree)
    # the default source would have to ask apt, for which this is no mirror
    env = {"STEAL_MIRROR": "file:///nonexistent"}
    assert empty.run("get-kernel", **env).stdout.strip() == str(tree)
    # the tree is gone, the download is not
    shutil.rmtree(tree)
    assert empty.run("get-kernel", "--url", url).stdout.strip() == str(tree)


def test_other_source_does_not_pass_for_this_one(empty):
    empty.base_tree()
    done = empty.run("get-kernel", "--url", "file:///elsewhere/linux-7.3.4.tar.xz", ok=False)
    assert "another source" in done.stderr


def test_truncated_tarball_leaves_nothing(empty):
    tarball = empty.tarball()
    whole = tarball.read_bytes()
    tarball.write_bytes(whole[: len(whole) // 2])
    empty.run("get-kernel", "--url", f"file://{tarball}", ok=False)
    left = {p.name for p in empty.cache.rglob("*")}
    assert left == {"download", "get-kernel.lock"}
    tarball.write_bytes(whole)
    empty.base_tree()


def test_interrupted_import_leaves_nothing(empty):
    """Stopped while git adds the files; what an even harder stop leaves is cleared away."""
    tarball = empty.tarball()
    stop_in(empty, "add", ["get-kernel", "--url", f"file://{tarball}"])
    assert not (empty.cache / "linux-7.3.4").exists()
    rest = empty.cache / "get-kernel.tmp.killed"
    rest.mkdir()
    tree = empty.base_tree()
    assert empty.git(tree, "rev-parse", "v7.3.4")
    assert not rest.exists()
    assert not list(empty.cache.glob("get-kernel.tmp.*"))


@pytest.mark.parametrize("name, version", [
    ("linux-6.12.1.tar.xz", (6, 12, 1)),
    ("linux-7.30.1.tar.xz", (7, 30, 1)),
    ("linux-7.3.9.tar.xz", (7, 4, 0)),
])
def test_url_of_another_line(empty, name, version):
    tarball = empty.tarball(name, version)
    done = empty.run("get-kernel", "--url", f"file://{tarball}", ok=False)
    assert "wrong base" in done.stderr
    assert not list(empty.cache.glob("linux-*"))


def test_other_point_release_gets_a_notice(repo):
    tarball = repo.tarball("linux-7.3.9.tar.xz", (7, 3, 9))
    done = repo.run("get-kernel", "--url", f"file://{tarball}")
    assert done.stdout.strip() == str(repo.cache / "linux-7.3.9")
    assert "notice: Linux 7.3.9 is not the pinned 7.3.4" in done.stderr
    # the pinned one is there and stays the default
    assert repo.run("get-kernel").stdout.strip() == str(repo.tree)


def test_tree_from_clone(empty):
    mine = empty.own_tree()
    (mine / "built.o").write_text("ignored by git\n")
    before = empty.state(mine)
    tree = Path(empty.run("get-kernel", "--tree", mine).stdout.strip())
    assert empty.state(mine) == before
    assert tree.parent == empty.cache and tree.name.startswith("linux-7.3.4-tree-")
    assert not (tree / "built.o").exists()
    assert empty.git(tree, "rev-parse", "v7.3.4^{tree}") == empty.git(mine, "rev-parse", "HEAD^{tree}")
    # the same again is the same tree, another commit is another
    assert empty.run("get-kernel", "--tree", mine).stdout.strip() == str(tree)
    empty.commit(mine, "Change", fair=lambda s: s + "more\n")
    assert empty.run("get-kernel", "--tree", mine).stdout.strip() != str(tree)


def test_tree_from_dirty_clone(empty):
    mine = empty.own_tree()
    (mine / "Makefile").write_text(MAKEFILE.format(7, 3, 5))
    assert "not clean" in empty.run("get-kernel", "--tree", mine, ok=False).stderr


def test_tree_from_plain_directory(empty):
    plain = empty.plain_tree()
    (plain / ".config").write_text("CONFIG_X=y\n")
    before = snapshot(plain)
    tree = Path(empty.run("get-kernel", "--tree", plain).stdout.strip())
    assert snapshot(plain) == before
    assert not (tree / ".config").exists()
    assert (tree / "scripts/ignored.o").exists()
    assert empty.run("get-kernel", "--tree", plain).stdout.strip() == str(tree)
    # not taken for the tree that get-kernel makes by default
    env = {"STEAL_MIRROR": "file:///nonexistent"}
    empty.run("get-kernel", ok=False, **env)


def test_pinned_tarball_is_checked(empty):
    """A package of the pinned version whose tarball is another one is refused."""
    deb = make_deb(empty, "7.3.4-1")
    base = "version=7.3.4\npackage=linux-source-7.3\npackage_version=7.3.4-1\ntarball_sha256={}\n"
    (empty.top / "base").write_text(base.format("0" * 64))
    assert "sha256" in empty.run("get-kernel", ok=False).stderr
    assert not list(empty.cache.glob("linux-*"))
    (empty.top / "base").write_text(base.format(deb))
    tree = empty.run("get-kernel").stdout.strip()
    assert "package_version=7.3.4-1" in empty.git(tree, "cat-file", "tag", "v7.3.4").split("\n")


def make_deb(repo, version):
    """A package as Debian's, put where an earlier download would be; its tarball's sha256."""
    root = repo.tmp / "deb"
    (root / "usr/src").mkdir(parents=True)
    (root / "DEBIAN").mkdir()
    tarball = repo.tarball("linux-source-7.3.tar.xz")
    shutil.copy(tarball, root / "usr/src")
    (root / "DEBIAN/control").write_text(
        f"Package: linux-source-7.3\nVersion: {version}\nArchitecture: all\n"
        "Maintainer: Test <test@example.com>\nDescription: test\n"
    )
    download = repo.cache / "download"
    download.mkdir(parents=True)
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-b", root, download / f"linux-source-7.3_{version}_all.deb"],
        check=True, capture_output=True,
    )
    return hashlib.sha256(tarball.read_bytes()).hexdigest()


# regen


def test_regen_writes_the_series(repo):
    names = [
        "0000-cover-letter.patch",
        "0001-sched-Provide-a-mask.patch",
        "0002-sched-fair-Fill-the-mask-when-a-thing-happens-that-t.patch",
        "0003-sched-fair-Use-the-mask.patch",
    ]
    assert sorted(os.listdir(repo.top / "patches")) == names
    series = (repo.top / "series").read_text().split("\n")
    assert series == ["# Task stealing for the fair scheduler, on Linux 7.3.4", *names[1:], ""]
    cover = (repo.top / "patches" / names[0]).read_text()
    assert "Subject: [PATCH 0/3] sched/fair: Count further\n" in cover
    assert "\nWhy and how.\n\nAnd what it costs.\n" in cover
    assert "From: A U Thor <author@example.com>\nDate: Tue, 3 Feb 2026 04:05:06 +0100\n" in cover
    commit = repo.git(repo.tree, "rev-parse", "v7.3.4^{commit}")
    assert f"base-commit: {commit}\n" in cover
    patch = (repo.top / "patches" / names[3]).read_text()
    assert patch.startswith("From " + "0" * 40) and "\n-- \n" not in patch
    base = (repo.top / "base").read_text().split("\n")
    fair = hashlib.sha256(numbers(1, 60).encode()).hexdigest()
    assert f"sha256:kernel/sched/fair.c={fair}" in base
    assert f"commit={commit}" in base and "version=7.3.4" in base
    assert [line for line in base if "mask.h" in line] == []


def test_apply_then_regen_gives_no_difference(repo):
    before = outputs(repo)
    shutil.rmtree(repo.tree)
    repo.base_tree()
    # settings that would show in the patches, if they were heeded
    (Path(repo.env["HOME"]) / ".gitconfig").write_text(
        "[user]\n\tname = Some One\n\temail = some@example.com\n"
        "[diff]\n\tnoprefix = true\n\tcontext = 1\n\talgorithm = patience\n\trenames = copies\n"
        "[format]\n\tsignature = me\n\tnumbered = false\n\tthread = true\n\tto = list@example.com\n"
        "\tsubjectPrefix = RFC\n\tfrom = true\n\tnotes = true\n"
        "[am]\n\tthreeWay = true\n\tmessageId = true\n[commit]\n\tgpgsign = true\n"
    )
    repo.run("apply")
    repo.run("regen")
    assert outputs(repo) == before
    for setting in ["diff.noprefix", "format.thread", "format.from", "format.notes", "format.signOff"]:
        repo.git(repo.tree, "config", setting, "true")
    repo.git(repo.tree, "config", "diff.context", "1")
    repo.git(repo.tree, "config", "format.signature", "me")
    repo.run("regen")
    assert outputs(repo) == before


def test_regen_keeps_the_headings(repo):
    names = (repo.top / "series").read_text().split("\n")[1:4]
    text = (f"# Title, on Linux 7.3.0\n\n# Structure\n{names[0]}\n\n{names[1]}\n"
            f"# Use\n# more\n{names[2]}\n# end\n")
    (repo.top / "series").write_text(text)
    repo.run("regen")
    assert (repo.top / "series").read_text() == text.replace("7.3.0", "7.3.4")
    # a patch with a new subject keeps its heading
    repo.git(repo.tree, "commit", "-q", "--amend", "-m", "sched/fair: Another name")
    repo.run("regen")
    names[2] = "0003-sched-fair-Another-name.patch"
    assert (repo.top / "series").read_text() == text.replace("7.3.0", "7.3.4").replace(
        "0003-sched-fair-Use-the-mask.patch", names[2])
    # a new patch between: the headings stay with their patches
    repo.git(repo.tree, "reset", "-q", "--hard", "HEAD~2")
    repo.commit(repo.tree, "sched: A new one", core=lambda s: s + "new\n")
    repo.git(repo.tree, "cherry-pick", "ORIG_HEAD~1", "ORIG_HEAD")
    repo.run("regen")
    assert (repo.top / "series").read_text() == (
        f"# Title, on Linux 7.3.4\n\n# Structure\n{names[0]}\n0002-sched-A-new-one.patch\n\n"
        f"{names[1].replace('0002', '0003')}\n# Use\n# more\n{names[2].replace('0003', '0004')}\n# end\n"
    )
    assert len(os.listdir(repo.top / "patches")) == 5


def test_regen_removes_stale_patches(repo):
    repo.git(repo.tree, "reset", "-q", "--hard", "HEAD~1")
    repo.run("regen")
    assert [n[:4] for n in sorted(os.listdir(repo.top / "patches"))] == ["0000", "0001", "0002"]


@pytest.mark.parametrize("what", ["dirty", "hidden file", "no commits", "merge", "no cover", "no author"])
def test_regen_refuses(repo, what):
    before = outputs(repo)
    if what == "dirty":
        (repo.tree / "kernel/sched/core.c").write_text("changed\n")
    elif what == "hidden file":
        (repo.tree / "kernel/sched/forgotten.h").write_text("\n")
    elif what == "no commits":
        repo.git(repo.tree, "reset", "-q", "--hard", "v7.3.4")
    elif what == "merge":
        repo.git(repo.tree, "switch", "-q", "-c", "side", "v7.3.4")
        repo.commit(repo.tree, "Side", core=lambda s: "side\n" + s)
        repo.git(repo.tree, "switch", "-q", "base")
        repo.git(repo.tree, "merge", "-q", "--no-edit", "side")
    elif what == "no cover":
        (repo.top / "Documentation/cover-letter.txt").unlink()
    else:
        repo.git(repo.tree, "commit", "-q", "--amend", "--no-edit", "--author=X <noreply@localhost>")
    repo.run("regen", ok=False)
    assert outputs(repo) == before
    assert not list(repo.top.glob(".regen.*"))


def test_regen_refuses_a_tree_without_the_extra_patches(repo):
    """Its last patches would become extra ones."""
    repo.commit(repo.tree, "sched: Test the mask, with a subject so long that it does not fit into the name of a file",
                core=lambda s: s + "test\n")
    repo.run("regen", "--extra", "1")
    before = outputs(repo)
    assert [n[:4] for n in sorted(os.listdir(repo.top / "patches/extra"))] == ["0001"]
    repo.run("regen")
    assert outputs(repo) == before
    repo.git(repo.tree, "reset", "-q", "--hard", "HEAD~1")
    assert "apply --extra" in repo.run("regen", ok=False).stderr
    assert outputs(repo) == before


def test_regen_refuses_a_tree_of_unknown_source(repo):
    """Else base would pin something that nobody can fetch."""
    tree = Path(repo.run("get-kernel", "--tree", repo.own_tree()).stdout.strip())
    repo.run("apply", "--tree", tree)
    assert "format-patch" in repo.run("regen", "--tree", tree, ok=False).stderr


# apply


def test_apply_makes_the_commits(repo):
    tip = repo.git(repo.tree, "rev-parse", "HEAD^{tree}")
    shutil.rmtree(repo.tree)
    repo.base_tree()
    done = repo.run("apply")
    assert done.stdout == ""
    assert "exact base" in done.stderr
    assert repo.git(repo.tree, "rev-parse", "HEAD^{tree}") == tip
    assert repo.git(repo.tree, "log", "--format=%an %ad %s", "v7.3.4..").count("A U Thor") == 3
    assert repo.git(repo.tree, "status", "--porcelain", "--ignored") == ""
    # made anew, the commits are the same
    head = repo.git(repo.tree, "rev-parse", "HEAD")
    repo.run("apply", "--upto", "0")
    repo.run("apply")
    assert repo.git(repo.tree, "rev-parse", "HEAD") == head


def test_apply_again_changes_nothing(repo):
    before = repo.state(repo.tree)
    assert "already" in repo.run("apply").stderr
    assert repo.state(repo.tree) == before
    mine = repo.own_tree()
    repo.run("apply", "--tree", mine)
    before = repo.state(mine)
    assert "already" in repo.run("apply", "--tree", mine).stderr
    assert repo.state(mine) == before


def test_upto(repo):
    """Any prefix, from any other; files that do not differ are not written to."""
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
    repo.run("apply")
    assert repo.git(repo.tree, "rev-parse", "HEAD^{tree}") == repo.git(repo.tree, "rev-parse", tip + "^{tree}")
    assert repo.git(repo.tree, "tag") == "v7.3.4"


def test_upto_in_a_tree_of_the_users(repo):
    mine = repo.own_tree()
    repo.run("apply", "--tree", mine, "--upto", "1")
    repo.run("apply", "--tree", mine)
    assert repo.git(mine, "rev-list", "--count", "HEAD") == "5"
    before = repo.state(mine)
    assert "reset --keep HEAD~2" in repo.run("apply", "--tree", mine, "--upto", "1", ok=False).stderr
    assert repo.state(mine) == before


@pytest.mark.parametrize("number", ["4", "-1", "x"])
def test_upto_is_checked(repo, number):
    done = subprocess.run([repo.top / "scripts/apply", "--upto", number], env=repo.env,
                          capture_output=True, text=True)
    assert done.returncode == 2 and "--upto" in done.stderr


def test_other_commits_in_the_cache_are_kept(repo):
    repo.git(repo.tree, "reset", "-q", "--hard", "HEAD~1")
    repo.commit(repo.tree, "Work in progress", core=lambda s: s + "precious\n")
    work = repo.git(repo.tree, "rev-parse", "HEAD")
    repo.run("apply")
    assert repo.git(repo.tree, "rev-list", "--count", "v7.3.4..") == "3"
    assert repo.git(repo.tree, "rev-parse", f"before-apply/{work[:12]}") == work


def test_changed_patch_is_applied_anew(repo):
    """One that differs from the commit in white space or message only, too."""
    for old, new in [("\n+filled\n", "\n+\tfilled\n"), ("\nBecause.\n", "\nBecause of it.\n")]:
        path = sorted((repo.top / "patches").iterdir())[2 if "filled" in old else 3]
        path.write_text(path.read_text().replace(old, new))
        head = repo.git(repo.tree, "rev-parse", "HEAD")
        repo.run("apply")
        assert repo.git(repo.tree, "rev-parse", "HEAD") != head
    assert "\tfilled\n" in (repo.tree / "kernel/sched/fair.c").read_text()
    assert "Because of it." in repo.git(repo.tree, "log", "-1")


def test_failing_patch_leaves_the_tree_as_it_was(repo):
    name = break_patch(repo, 2)
    repo.git(repo.tree, "reset", "-q", "--hard", "v7.3.4")
    mine = repo.own_tree()
    for tree, args in [(repo.tree, []), (mine, ["--tree", mine])]:
        before = repo.state(tree)
        done = repo.run("apply", *args, ok=False)
        assert name in done.stderr
        assert repo.state(tree) == before
        assert repo.git(tree, "fsck", "--connectivity-only") is not None
    # the first one is fine by itself
    repo.run("apply", "--upto", "1")


def test_fuzz_is_refused(repo):
    """A base whose context differs: patch(1) would take it, with fuzz."""
    mine = repo.own_tree()
    repo.commit(mine, "Move", fair=lambda s: s.replace("line 28\n", "line 28, another\n"))
    plain = repo.plain_tree()
    text = (plain / "kernel/sched/fair.c").read_text()
    (plain / "kernel/sched/fair.c").write_text(text.replace("line 28\n", "line 28, another\n"))
    for tree, args in [(mine, []), (plain, ["--quilt"])]:
        before = snapshot(tree)
        done = repo.run("apply", "--tree", tree, *args, ok=False)
        assert "not the pinned base" in done.stderr and "kernel/sched/fair.c" in done.stderr
        assert snapshot(tree) == before


def test_other_base_is_taken_with_a_notice(repo):
    mine = repo.own_tree(version=(7, 3, 9))
    repo.commit(mine, "Longer", fair=lambda s: "line 0\n" + s)
    done = repo.run("apply", "--tree", mine)
    assert "notice: " in done.stderr and "not the pinned base" in done.stderr
    assert "exact base" not in done.stderr


def stop_in(repo, command, argv, **env):
    """Run a script, and send its process group SIGTERM once it has come to `git COMMAND`."""
    shim = repo.tmp / f"shim-{command}"
    shim.mkdir()
    real = shutil.which("git")
    (shim / "git").write_text(
        f'#!/bin/sh\nfor a; do if [ "$a" = {command} ]; then {real} "$@" && touch {shim}/there && exec sleep 60; fi; done\n'
        f'exec {real} "$@"\n'
    )
    (shim / "git").chmod(0o755)
    script = subprocess.Popen(
        [repo.top / "scripts" / argv[0], *map(str, argv[1:])], start_new_session=True,
        env={**repo.env, "PATH": f"{shim}:{repo.env['PATH']}", **env},
        stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )
    for _ in range(300):
        if (shim / "there").exists():
            break
        time.sleep(0.1)
    else:
        script.kill()
        pytest.fail(f"never came to git {command}")
    os.killpg(script.pid, signal.SIGTERM)
    assert script.wait(timeout=20) != 0


def test_interrupted_apply_leaves_the_tree_as_it_was(repo):
    repo.git(repo.tree, "reset", "-q", "--hard", "v7.3.4")
    before = repo.state(repo.tree)
    temporary = repo.tmp / "temporary"
    temporary.mkdir()
    stop_in(repo, "am", ["apply"], TMPDIR=str(temporary))
    assert repo.state(repo.tree) == before
    assert not list(temporary.iterdir())
    repo.run("apply")


@pytest.mark.parametrize("how", ["modified", "staged", "untracked", "in the way", "am under way", "quilt"])
@pytest.mark.parametrize("option", [[], ["--quilt"]])
def test_dirty_tree(repo, how, option):
    mine = repo.own_tree()
    if how == "modified":
        (mine / "kernel/sched/core.c").write_text("changed\n")
    elif how == "staged":
        (mine / "kernel/sched/core.c").write_text("changed\n")
        repo.git(mine, "add", "-A")
    elif how == "untracked":
        repo.git(mine, "rm", "-q", ".gitignore")
        repo.git(mine, "commit", "-q", "-m", "Hide nothing")
        (mine / "new.c").write_text("\n")
    elif how == "in the way":
        (mine / "kernel/sched/mask.h").write_text("precious\n")
    elif how == "quilt":
        (mine / ".pc").mkdir()
        (mine / ".pc/applied-patches").write_text("theirs.patch\n")
    else:
        (mine / ".git/rebase-apply").mkdir()
    before = repo.state(mine)
    done = repo.run("apply", "--tree", mine, *option, ok=False)
    assert {"am under way": "under way", "quilt": "quilt pop"}.get(how, "not clean") in done.stderr
    assert repo.state(mine) == before


@pytest.mark.parametrize("option", [[], ["--quilt"]])
def test_wrong_base(repo, option):
    mine = repo.own_tree(version=(7, 2, 4))
    before = repo.state(mine)
    assert "wrong base: Linux 7.2.4" in repo.run("apply", "--tree", mine, *option, ok=False).stderr
    assert repo.state(mine) == before
    assert "wrong base" in repo.run("apply", "--tree", repo.tmp, *option, ok=False).stderr


def test_plain_tree_needs_quilt(repo):
    plain = repo.plain_tree()
    assert "--quilt" in repo.run("apply", "--tree", plain, ok=False).stderr


# quilt


def test_quilt_gives_the_same_files(repo):
    plain = repo.plain_tree()
    linked = repo.tmp / "linked"
    subprocess.run(["cp", "-al", plain, linked], check=True)
    before = snapshot(linked)
    done = repo.run("apply", "--tree", plain, "--quilt")
    assert "exact base" in done.stderr
    for name in ["fair.c", "core.c", "mask.h"]:
        assert (plain / "kernel/sched" / name).read_bytes() == (repo.tree / "kernel/sched" / name).read_bytes()
    # a tree that shares files by hard links keeps its own
    assert snapshot(linked) == before
    # quilt goes on from there by itself
    subprocess.run(["quilt", "pop", "-a", "-q"], cwd=plain, check=True, capture_output=True)
    after = snapshot(plain)
    assert {n: v[2] for n, v in after.items() if not n.startswith(".pc/")} == {n: v[2] for n, v in before.items()}
    # and files that no patch changes are not replaced
    inode = (plain / "kernel/sched/fair.c").stat().st_ino
    repo.run("apply", "--tree", plain, "--quilt", "--upto", "1")
    assert (plain / "kernel/sched/fair.c").stat().st_ino == inode
    assert len((plain / ".pc/applied-patches").read_text().split()) == 1
    assert "filled" not in (plain / "kernel/sched/fair.c").read_text()


def test_quilt_failure_leaves_the_tree_as_it_was(repo):
    name = break_patch(repo, 2)
    plain = repo.plain_tree()
    before = snapshot(plain)
    done = repo.run("apply", "--tree", plain, "--quilt", ok=False)
    assert name in done.stderr
    assert snapshot(plain) == before
    assert not (plain / ".pc").exists()


# the real kernel


def test_the_series_applies_and_regenerates(tmp_path):
    """scripts/regen on the tree of scripts/apply changes nothing, with git am and with quilt."""
    def run(script, *args):
        return subprocess.run([tmp_path / "scripts" / script, *args], check=True,
                              stdout=subprocess.PIPE, text=True).stdout.strip()

    for name in ["scripts", "patches", "Documentation"]:
        shutil.copytree(TOP / name, tmp_path / name)
    for name in ["series", "base"]:
        shutil.copy(TOP / name, tmp_path / name)
    # a clone of the base, of the files at the top alone: whatever is applied to the tree in the
    # cache, and whoever builds it
    tree = tmp_path / "linux"
    tag = "v" + dict(line.split("=", 1) for line in (TOP / "base").read_text().split("\n")
                     if "=" in line and line[0] != "#")["version"]
    subprocess.run(["git", "clone", "-q", "--shared", "--sparse", "--branch", tag, run("get-kernel"), tree],
                   check=True, stderr=subprocess.PIPE)
    subprocess.run(["git", "-C", tree, "switch", "-q", "-c", "series"], check=True)
    run("apply", "--tree", tree, "--extra")
    # from patches that are not there to start with
    shutil.rmtree(tmp_path / "patches")
    run("regen", "--tree", tree)
    for name in ["patches", "series", "base"]:
        subprocess.run(["diff", "-r", TOP / name, tmp_path / name], check=True)

    # quilt, on the files of the base alone, and so without the extra patches
    extra = (TOP / "series").read_text().count("\nextra/")
    subprocess.run(["git", "-C", tree, "reset", "-q", "--hard", f"HEAD~{extra}"], check=True)
    plain = tmp_path / "plain"
    plain.mkdir()
    names = [line[len("sha256:"):].rsplit("=", 1)[0] for line in (TOP / "base").read_text().split("\n")
             if line.startswith("sha256:")]
    archive = subprocess.run(["git", "-C", tree, "archive", tag, "Makefile", *names],
                             check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "-x", "-C", plain], input=archive, check=True)
    run("apply", "--tree", plain, "--quilt")
    names = subprocess.run(["git", "-C", tree, "diff", "--name-only", tag, "HEAD"],
                           check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    assert len(names) > 1
    for name in names:
        after = subprocess.run(["git", "-C", tree, "cat-file", "blob", f"HEAD:{name}"],
                               check=True, stdout=subprocess.PIPE).stdout
        assert (plain / name).read_bytes() == after
