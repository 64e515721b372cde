# SPDX-License-Identifier: GPL-2.0
"""The lines of kernels: patches/lines, and how the scripts choose one, on small trees that look like a kernel."""

import importlib.machinery
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from collector import heed_signals
from conftest import kernel_lines, line_files, named
from test_tree import LINES, MAKEFILE, NAMES, TEST, Repo, make_tree, replace, template  # noqa: F401  # a fixture

TOP = Path(__file__).resolve().parents[2]
OTHER = (7, 2, 9)


@pytest.fixture
def repo(template, tmp_path):  # noqa: F811
    """As test_tree's; and the line 7.2 has the same patches on other sources, made by regen. $other is a user's tree of it."""
    subprocess.run(["cp", "-a", f"{template}/.", tmp_path], check=True)
    repo = Repo(tmp_path)
    patches = repo.git(repo.tree, "format-patch", "--stdout", "v7.3.4")
    repo.git(repo.tree, "reset", "-q", "--hard", "HEAD~1")
    other = Path(repo.run("get-kernel", "--tarball", repo.tarball("other.tar.gz", OTHER)).stdout.strip())
    assert other == repo.cache / "linux-7.2.9"
    (repo.tmp / "mail").write_text(patches + "\n")
    repo.git(other, "am", "-q", repo.tmp / "mail")
    said = repo.run("regen", "--kernel", "7.2", "--extra", 1).stderr
    assert f"3 patches and 1 extra ones on Linux 7.2.9 written to {repo.top}/patches/7.2\n" in said
    repo.other = repo.own_tree("other", OTHER)
    return repo


def test_regen_writes_a_line(repo):
    """All files are below patches/7.2: the same patches, without a cover letter. Those of the default line stay."""
    folder = repo.top / "patches/7.2"
    assert sorted(os.listdir(folder)) == [*NAMES, "base", "extra", "series"]
    assert sorted(os.listdir(folder / "extra")) == [TEST, "series"]
    for name in [*NAMES, f"extra/{TEST}"]:
        assert (folder / name).read_bytes() == (repo.top / "patches" / name).read_bytes()
    series = (folder / "series").read_text().split("\n")
    assert series[1:] == ["# Task stealing for the fair scheduler, on Linux 7.2.9", *NAMES, ""]
    assert "on top of ../series;" in (folder / "extra/series").read_text()
    base = (folder / "base").read_text().split("\n")
    assert "version=7.2.9" in base and not any(line.startswith("series_version") for line in base)
    # again, from what apply makes
    before = {f: f.read_bytes() for f in repo.top.rglob("*") if f.is_file()}
    repo.run("apply", "--kernel", "7.2", "--upto", 0)
    repo.run("apply", "--extra", STEAL_LINE="7.2")
    repo.run("regen", "--kernel", "7.2", "--tree", repo.cache / "linux-7.2.9")
    assert {f: f.read_bytes() for f in repo.top.rglob("*") if f.is_file()} == before


def test_line_without_a_follow_up(repo):
    """Its number is left out; the other patches keep theirs, and the subjects have the default line's total."""
    tree = repo.cache / "linux-7.2.9"
    repo.git(tree, "rebase", "-q", "--onto", "HEAD~3", "HEAD~2")
    repo.run("regen", "--kernel", "7.2", "--extra", 1)
    folder = repo.top / "patches/7.2"
    assert sorted(os.listdir(folder)) == [NAMES[0], NAMES[2], "base", "extra", "series"]
    assert "\nSubject: [PATCH 3/3] sched/fair: Use the mask\n" in (folder / NAMES[2]).read_text()
    assert os.listdir(folder / "extra") in ([TEST, "series"], ["series", TEST])
    assert "now has 2 of 2 patches" in repo.run("apply", "--tree", repo.other).stderr
    assert "has 2 of 2 patches already" in repo.run("apply", "--tree", repo.other).stderr
    # another subject than those of the default line
    repo.git(tree, "commit", "-q", "--amend", "-m", "sched: Test the face")
    before = {f: f.read_bytes() for f in repo.top.rglob("*") if f.is_file()}
    said = repo.run("regen", "--kernel", "7.2", "--extra", 1, rc=1).stderr
    assert f"{repo.top}/patches/extra has no patch with the subject of sched-Test-the-face.patch" in said
    assert {f: f.read_bytes() for f in repo.top.rglob("*") if f.is_file()} == before


def test_apply_chooses_the_line_of_the_tree(repo):
    """And says which."""
    (repo.top / "patches/7.2" / NAMES[2]).write_text((repo.top / "patches" / NAMES[2]).read_text().replace("used", "used in 7.2"))
    for tree, line, text in [(repo.other, "7.2", "/* used in 7.2 */"), (repo.own_tree(), "7.3", "/* used */")]:
        said = repo.run("apply", "--tree", tree).stderr
        assert f": using the patches for {line}\n" in said and "now has 3 of 3 patches" in said
        assert text in (tree / "kernel/sched/mask.h").read_text()
        assert "has 3 of 3 patches already" in repo.run("apply", "--tree", tree).stderr
    # without --tree it is the selected line's tree
    assert f"{repo.cache}/linux-7.2.9 now has 3 of 3" in repo.run("apply", "--kernel", "7.2").stderr
    assert f"{repo.cache}/linux-7.2.9 has 3 of 3" in repo.run("apply", STEAL_LINE="7.2").stderr
    assert f"{repo.tree} has 3 of 3" in repo.run("apply").stderr
    assert f"{repo.tree} has 3 of 3" in repo.run("apply", "--kernel", "7.3", STEAL_LINE="7.2").stderr


@pytest.mark.parametrize("script", ["apply", "get-kernel", "regen"])
def test_tree_of_no_line(repo, script):
    """One line that names the lines there are; the tree does not change."""
    for number, version in enumerate([(6, 15, 3), (6, 1, 2), (7, 30, 1)]):
        tree = repo.own_tree(f"none-{number}", version)
        before = repo.state(tree)
        said = repo.run(script, "--tree", tree, rc=2).stderr
        text = ".".join(map(str, version))
        assert said == f"{script}: error: {tree}: wrong base: Linux {text}; there are patches for: 7.3 7.2 6.12\n"
        assert repo.state(tree) == before
    plain = repo.tmp / "plain"
    plain.mkdir()
    assert "not a kernel source tree" in repo.run(script, "--tree", plain, rc=2).stderr


@pytest.mark.parametrize("arguments", [
    ("apply",), ("get-kernel",), ("get-kernel", "--newest"), ("regen",), ("worktree", "base", "--upto", 0),
    ("build", "--arch", "x86_64", "--config", "guest"), ("check",)])
def test_unknown_line(repo, arguments):
    before = {f.name for f in repo.cache.iterdir()}
    for line in ["6.15", "7", "7.30", "patches", "7.2.9", "7.2\n6.12", "-x"]:
        for extra, environment in [(["--kernel", line], {}), ([], {"STEAL_LINE": line})]:
            said = repo.run(*arguments, *extra, rc=2, **environment).stderr
            assert said == f"{arguments[0]}: error: no patches for a line of kernels '{line}'; there are: 7.3 7.2 6.12\n"
    assert {f.name for f in repo.cache.iterdir()} == before


def test_tree_of_another_line_than_the_selected_one(repo):
    before = repo.state(repo.other)
    for script in "apply", "get-kernel", "regen":
        for extra, environment in [(["--kernel", "7.3"], {}), ([], {"STEAL_LINE": "7.3"})]:
            said = repo.run(script, "--tree", repo.other, *extra, rc=2, **environment).stderr
            assert said == f"{script}: error: {repo.other}: wrong base: Linux 7.2.9; the line 7.3 of kernels is selected\n"
    assert repo.state(repo.other) == before


@pytest.mark.parametrize("form", ["older", "other commits", "above"])
def test_tree_that_has_the_series_in_another_form(repo, form):
    """One line that names the file and the commit. With exactly these patches, apply says that they are there."""
    repo.run("apply", "--tree", repo.other)
    repo.git(repo.other, "commit", "-q", "--allow-empty", "-m", "Mine")
    if form == "older":
        for name in NAMES[:2]:
            replace(repo.top / "patches/7.2" / name, "\n---\n", "\nA word more.\n---\n")
        repo.git(repo.other, "reset", "-q", "--hard", "HEAD~1")
    elif form == "above":
        repo.git(repo.other, "rm", "-q", "kernel/sched/core.c")
        repo.git(repo.other, "commit", "-q", "-m", "Remove")
    before = repo.state(repo.other)
    said = repo.run("apply", "--tree", repo.other, rc=2).stderr.split("\n")
    said = [line for line in said if "using the patches" not in line]
    assert len(said) == 2 and "has the series already, in another form or below other commits: kernel/sched/mask.h is there (" in said[0]
    assert said[0].endswith(" sched: Provide a mask)")
    assert repo.state(repo.other) == before


def test_get_kernel_of_a_line(repo):
    """Each line has its trees: the pinned one, or else the newest. A tarball says by its version of which line it is."""
    assert repo.run("get-kernel", "--kernel", "7.2").stdout == f"{repo.cache}/linux-7.2.9\n"
    assert repo.run("get-kernel", STEAL_LINE="7.2").stdout == f"{repo.cache}/linux-7.2.9\n"
    assert repo.run("get-kernel").stdout == f"{repo.tree}\n"
    newer = repo.tarball("newer.tar.gz", (7, 2, 11))
    done = repo.run("get-kernel", "--tarball", newer)
    assert done.stdout == f"{repo.cache}/linux-7.2.11\n" and "notice: Linux 7.2.11 is not the pinned 7.2.9" in done.stderr
    assert repo.run("get-kernel", "--kernel", "7.2").stdout == f"{repo.cache}/linux-7.2.9\n"
    shutil.rmtree(repo.cache / "linux-7.2.9")
    done = repo.run("get-kernel", "--kernel", "7.2")
    assert done.stdout == f"{repo.cache}/linux-7.2.11\n" and "notice: Linux 7.2.11 is not the pinned 7.2.9" in done.stderr
    assert "no line 7.3" in (repo.run("get-kernel", "--kernel", "7.3", "--tarball", newer, rc=2).stderr
                             .replace("the line 7.3 of kernels is selected", "no line 7.3"))


def test_worktree_of_a_line(repo):
    for extra, environment in [(["--kernel", "7.2"], {}), ([], {"STEAL_LINE": "7.2"})]:
        path = repo.run("worktree", *extra, "most", "--upto", 2, **environment).stdout.strip()
        assert path == f"{repo.cache}/linux-7.2.9-most"
        assert repo.git(path, "rev-list", "--count", "v7.2.9..") == "2"
    assert repo.run("worktree", "most", "--upto", 2).stdout == f"{repo.tree}-most\n"


def test_ended_line(repo):
    """Its files are below patches/ended; it can be applied all the same."""
    (repo.top / "patches/ended").mkdir()
    (repo.top / "patches/7.2").rename(repo.top / "patches/ended/7.2")
    replace(repo.top / "patches/lines", "7.2\tmaintained", "7.2\tended")
    assert "now has 3 of 3 patches" in repo.run("apply", "--tree", repo.other).stderr


@pytest.mark.parametrize("old, new, message", [
    ("\t-\n7.2", "\n7.2", "lines:1: error: 10 columns instead of 11"),
    ("7.2\tm", "7.x\tm", "lines:2: error: '7.x' is not a line of kernels, such as 6.12"),
    ("7.2\tm", "7.3\tm", "lines:2: error: 7.3 is there twice"),
    ("6.12\tended", "6.12\told", "lines:3: error: 'old' is neither maintained nor ended"),
    ("7.3\tmaintained", "7.3\tended", "lines:1: error: the first line, the default one, has ended"),
    ("linux-source-7.2", "Linux!", "lines:2: error: 'Linux!' is not a package"),
    ("linux-source-7.2\tsid", "linux-source-7.2\tsid;rm", "lines:2: error: 'sid;rm' is not a list of suites"),
    ("linux-source-7.2\tsid\t-", "linux-source-7.2\tsid\t7.3.1", "lines:2: error: 7.3.1 is not a release of 7.2"),
    ("linux-source-7.2\tsid\t-\t-", "linux-source-7.2\tsid\t-\ttoday", "lines:2: error: 'today' is not a date"),
    ("linux-source-7.2\tsid\t-\t-\t-", "linux-source-7.2\tsid\t-\t-\tnew", "lines:2: error: 'new' is not a version of the series"),
    ("linux-source-7.2\tsid\t-\t-\t-\t-", "linux-source-7.2\tsid\t-\t-\t-\tHEAD", "lines:2: error: 'HEAD' is not a commit"),
    ("linux-source-7.2\tsid\t-\t-\t-\t-\t-", "linux-source-7.2\tsid\t-\t-\t-\t-\tHEAD", "lines:2: error: 'HEAD' is not a commit"),
    ("-\t-\n6.12", "-\tapplies,flies\n6.12", "lines:2: error: unknown state 'flies' in applies,flies"),
    ("-\t-\n6.12", "-\tapplies,storms\n6.12", "lines:2: error: unknown state 'storms' in applies,storms"),
    (LINES, "# nothing\n", "lines:1: error: names no line")])
def test_wrong_rows(tmp_path, old, new, message):
    repo = Repo(tmp_path)
    replace(repo.top / "patches/lines", old, new)
    for arguments in [("apply",), ("apply", "--tree", make_tree(tmp_path / "tree")), ("get-kernel", "--kernel", "7.2")]:
        said = repo.run(*arguments, rc=1).stderr
        assert said == f"{repo.top}/patches/{message}\n"


def test_symbols_that_a_line_lacks(repo):
    """scripts/build leaves them out, by the version of the tree."""
    build = repo.top / "scripts/build"
    # only the list of symbols
    build.write_text(re.sub(r"\nlog=\$out/build.log\nconfigure\n.*", "\nwant | sort\n", build.read_text(), flags=re.S))
    (repo.top / "configs").mkdir()
    (repo.top / "configs/x86_64.config").write_text(
        "# a comment that is not in 7.2 sources\nCONFIG_A=y\n# not in 7.2 6.12\nCONFIG_B=y\nCONFIG_C=y\n# only in 7.2\n\n# why\n"
        "# CONFIG_D is not set\n# only in 6.12\nCONFIG_E=y\n# not in 7.20\nCONFIG_F=y\n# only in 7.3\n")
    (repo.top / "configs/more.config").write_text("CONFIG_G=y\n# not in 7.2\n# CONFIG_C is not set\n")

    def symbols(tree):
        said = repo.run("build", "--arch", "x86_64", "--config", "more", "--tree", tree, PATH=f"{tools}:{os.environ['PATH']}").stdout
        return " ".join(line.split("_")[1].replace("\t", "=").split("=/")[0] for line in said.splitlines())

    tools = repo.tmp / "tools"
    tools.mkdir()
    for name in ["flex", "bison", "bc", "ccache", "x86_64-linux-gnu-gcc"]:
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(0o755)
    for tree in repo.other, repo.tree:
        (tree / "Kbuild").write_text("")
    assert symbols(repo.other) == "A=y C=y D=n F=y G=y"
    assert symbols(repo.tree) == "A=y B=y C=n F=y G=y"
    said = repo.run("build", "--kernel", "7.3", "--arch", "x86_64", "--config", "more", "--tree", repo.other, rc=2,
                    PATH=f"{tools}:{os.environ['PATH']}").stderr
    assert said == f"build: error: {repo.other.resolve()}: wrong base: Linux 7.2.9; the line 7.3 of kernels is selected\n"
    # a tree of no line has what most lines have
    (repo.other / "Makefile").write_text(MAKEFILE.format(6, 15, 1))
    assert symbols(repo.other) == "A=y B=y C=n F=y G=y"


def test_boot_takes_a_line(tmp_path):
    """It builds the line's kernel, if no file has this name."""
    repo = Repo(tmp_path)
    (repo.top / "scripts/build").write_text('#!/bin/sh\necho "$STEAL_LINE" >>"$STEAL_CACHE.built"; echo /nowhere\n')
    for arguments, message in [(["--kernel", "7.2"], "/nowhere"), ([], "/nowhere"), (["--kernel", "6.15"], "6.15")]:
        said = repo.run("boot", "--arch", "x86_64", *arguments, "--", "true", rc=2).stderr
        assert f"error: {message}: no such kernel image, nor one of the lines of kernels (7.3 7.2 6.12)" in said
    assert (tmp_path / "cache.built").read_text() == "7.2\n\n"


# scripts/get-kernel and scripts/watch, with an archive that is a directory


@pytest.fixture
def archive(repo):
    """archive(VERSION...): Debian has these versions of linux-source-7.2. Fakes of apt and of scripts/build."""
    fakes = repo.tmp / "fakes"
    fakes.mkdir()
    for name, text in {
            "apt-get": "case \" $* \" in *' indextargets '*) cat \"$FAKES/targets\" ;; *' update '*) "
                       "cat \"${3%/apt.conf}/sources.list\" >\"$FAKES/sources\"; [ ! -f \"$FAKES/down\" ] ;;\n"
                       "*' download '*) cp \"$FAKES\"/debs/$5.deb . || exit ;;\n"
                       "*' --tar-only '*) for f; do :; done; v=${f#*=}; cp \"$FAKES\"/debs/$f.tar.xz \"linux_${v%-*}.orig.tar.xz\" ;;\n"
                       "*' source '*) for f; do :; done; cp \"$FAKES\"/debs/$f/* . || exit ;; esac",
            "apt-cache": "for p; do :; done; sed \"s/.*/ $p | & | here/\" \"$FAKES/offered\""}.items():
        (fakes / name).write_text(f"#!/bin/sh\n{text}\n")
        (fakes / name).chmod(0o755)
    # it "compiles" a tree in which fair.c does not say so
    (repo.top / "scripts/build").write_text(
        "#!/bin/sh\necho \"$STEAL_LINE $*\" >>\"$FAKES/built\"\nwhile [ \"$1\" != --tree ]; do shift; done\n"
        "! grep -q 'does not compile' \"$2/kernel/sched/fair.c\"\n")
    (fakes / "targets").write_text("http://main/debian bookworm\nhttp://security/updates bookworm-security\n")
    (fakes / "debs").mkdir()
    (fakes / "offered").write_text("")
    repo.env.update(FAKES=str(fakes), PATH=f"{fakes}:{os.environ['PATH']}")
    replace(repo.top / "patches/lines", "linux-source-7.2\tsid", "linux-source-7.2\tsid,trixie-security")

    def archive(*versions, change=lambda tree: None):
        for version in versions:
            source = make_tree(repo.tmp / f"of-{version}" / "linux", version.split("-")[0].split("."))
            change(source)
            root = repo.tmp / f"of-{version}" / "deb"
            (root / "usr/src").mkdir(parents=True)
            (root / "DEBIAN").mkdir()
            (root / "DEBIAN/control").write_text(f"Package: linux-source-7.2\nVersion: {version}\nArchitecture: all\n"
                                                 "Maintainer: Test <test@example.com>\nDescription: test\n")
            subprocess.run(["tar", "-caf", root / "usr/src/linux-source-7.2.tar.xz", "-C", source.parent, "linux"], check=True)
            subprocess.run(["dpkg-deb", "--root-owner-group", "-b", root, fakes / f"debs/linux-source-7.2={version}.deb"], check=True,
                           capture_output=True)
            shutil.copy(root / "usr/src/linux-source-7.2.tar.xz", fakes / f"debs/linux={version}.tar.xz")
        (fakes / "offered").write_text("\n".join([*versions, "7.1.99-1", "7.20.1-1"]) + "\n")

    archive.fakes = fakes
    return archive


def test_newest_release_of_the_archive(repo, archive):
    """--newest asks the archive, and downloads a release once. Without it, the pinned one is used as long as the archive has it."""
    archive("7.2.10-1", "7.2.11-1", "7.2.9-1")
    done = repo.run("get-kernel", "--kernel", "7.2", "--newest")
    assert done.stdout == f"{repo.cache}/linux-7.2.11\n" and "notice: Linux 7.2.11 is not the pinned 7.2.9" in done.stderr
    assert "package_version=7.2.11-1" in repo.git(repo.cache / "linux-7.2.11", "cat-file", "tag", "v7.2.11")
    shutil.rmtree(archive.fakes / "debs")
    assert repo.run("get-kernel", "--kernel", "7.2", "--newest").stdout == done.stdout
    assert repo.run("get-kernel", "--kernel", "7.2").stdout == f"{repo.cache}/linux-7.2.9\n"
    # a suite of security updates has an archive of its own
    sources = (archive.fakes / "sources").read_text()
    assert re.sub(r" \[.*?\]", "", sources) == "deb http://main/debian sid main\ndeb http://security/updates trixie-security main\n"
    # without that
    replace(archive.fakes / "targets", "http://security/updates bookworm-security\n", "")
    said = repo.run("get-kernel", "--kernel", "7.2", "--newest").stderr
    assert "notice: no archive of security updates in this machine's apt sources: without trixie-security" in said
    assert "security" not in (archive.fakes / "sources").read_text()
    # another distribution's is not Debian's
    (archive.fakes / "targets").write_text("http://main/debian bookworm\nhttp://security/other noble-security\n")
    repo.run("get-kernel", "--kernel", "7.2", "--newest")
    assert "security" not in (archive.fakes / "sources").read_text()
    repo.run("get-kernel", "--kernel", "7.2", "--newest", STEAL_SECURITY_MIRROR="http://mine/updates")
    assert "http://mine/updates trixie-security main" in (archive.fakes / "sources").read_text()


def test_pinned_release_of_the_archive(repo, archive):
    archive("7.2.10-1", "7.2.11-1")
    replace(repo.top / "patches/7.2/base", "version=7.2.9\n", "version=7.2.10\npackage_version=7.2.10-1\n")
    base = (repo.top / "patches/7.2/base").read_text()
    shutil.rmtree(repo.cache / "linux-7.2.9")
    shutil.rmtree(repo.cache / "download")
    # another tarball than the one in base
    assert "has sha256" in repo.run("get-kernel", "--kernel", "7.2", rc=1).stderr
    sum_ = subprocess.run(["sha256sum", archive.fakes / "debs/linux=7.2.10-1.tar.xz"], check=True, stdout=subprocess.PIPE,
                          text=True).stdout.split()[0]
    (repo.top / "patches/7.2/base").write_text(re.sub("tarball_sha256=.*", f"tarball_sha256={sum_}", base))
    assert repo.run("get-kernel", "--kernel", "7.2").stdout == f"{repo.cache}/linux-7.2.10\n"
    # it is gone
    shutil.rmtree(repo.cache / "linux-7.2.10")
    shutil.rmtree(repo.cache / "download")
    archive("7.2.12-1")
    done = repo.run("get-kernel", "--kernel", "7.2")
    assert done.stdout == f"{repo.cache}/linux-7.2.12\n" and "notice: Linux 7.2.12 is not the pinned 7.2.10" in done.stderr


def test_source_package(repo, archive):
    replace(repo.top / "patches/lines", "linux-source-7.2", "source:linux")
    archive("7.2.11-1~bpo13+1")
    tree = repo.run("get-kernel", "--kernel", "7.2", "--newest").stdout.strip()
    assert tree == f"{repo.cache}/linux-7.2.11"
    tag = repo.git(tree, "cat-file", "tag", "v7.2.11").split("\n")
    assert {"package=source:linux", "package_version=7.2.11-1~bpo13+1", "tarball=linux_7.2.11.orig.tar.xz"} <= set(tag)
    assert (archive.fakes / "sources").read_text().startswith("deb-src ")


def watch(repo, *arguments, rc=0):
    """The rows of the table, and what it says."""
    done = subprocess.run(repo.command("watch", *arguments), env=repo.env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == rc, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0] == "line release architecture applies builds boots and steals".split()
    return rows[1:], done.stderr


def test_watch(repo, archive):
    """On the newest release of each maintained line that has patches."""
    archive("7.2.10-1", "7.2.11-1")
    replace(repo.top / "patches/lines", "7.3\tmaintained\tlinux-source-7.3", "7.3\tmaintained\tlinux-source-7.2")
    rows, said = watch(repo, "--kernel", "7.2")
    assert rows == [["7.2", "7.2.11", "x86_64", "yes", "yes", "-"], ["7.2", "7.2.11", "arm64", "yes", "yes", "-"]]
    tree = repo.cache / "linux-7.2.11-watch"
    assert (archive.fakes / "built").read_text() == "".join(
        f"7.2 --arch {arch} --config guest,steal --tree {tree} --objects kernel/sched\n" for arch in ("x86_64", "arm64"))
    assert repo.git(tree, "rev-list", "--count", "v7.2.11..") == "3"
    # 7.3 has no release in this archive; the ended line is left out, and so is one without patches
    with (repo.top / "patches/lines").open("a") as lines:
        lines.write("7.1\tmaintained\tlinux-source-7.1\tsid\t-\t-\t-\t-\t-\t-\t-\n")
    rows, said = watch(repo, "--arch", "arm64", rc=3)
    assert rows == [["7.3", *"-----"], ["7.2", "7.2.11", "arm64", "yes", "yes", "-"]]
    assert "watch: 7.3: not looked at: " in said and "watch: 7.1: not looked at: it has no patches yet\n" in said and "6.12" not in said
    for arguments in ["--arch", "i386"], ["--kernel", "6.15"]:
        assert repo.run("watch", *arguments, rc=2).stderr.count("\n") == 1


def test_watch_without_an_archive(repo, archive):
    """One line for each line of kernels, and a status of its own. --write changes nothing."""
    (archive.fakes / "down").write_text("")
    (repo.top / "README.md").write_text("<!-- scripts/support: x -->\n<!-- end of scripts/support -->\n")
    before = (repo.top / "patches/lines").read_text()
    rows, said = watch(repo, "--write", rc=3)
    assert rows == [["7.3", *"-----"], ["7.2", *"-----"]]
    for line in "7.3", "7.2":
        assert said.count(f"watch: {line}: not looked at: the archive cannot be read, or has no release of this line (see above)\n") == 1
    assert (repo.top / "patches/lines").read_text() == before


def test_watch_names_the_hunk(repo, archive):
    # a line near the change of the second patch differs
    archive("7.2.11-1", change=lambda tree: replace(tree / "kernel/sched/fair.c", "line 29\n", "line XX\n"))
    before = (repo.top / "patches/lines").read_text()
    rows, said = watch(repo, "--kernel", "7.2", "--write", rc=1)
    assert rows == [["7.2", "7.2.11", arch, "no", "-", "-"] for arch in ("x86_64", "arm64")]
    assert f"watch: broken: 7.2: Linux 7.2.11: {NAMES[1]} does not apply: kernel/sched/fair.c: @@ -28,6 +28,7 @@ line 27\n" in said, said
    assert (repo.top / "patches/lines").read_text() == before


def test_watch_finds_what_does_not_compile(repo, archive):
    archive("7.2.11-1", change=lambda tree: replace(tree / "kernel/sched/fair.c", "line 9\n", "does not compile\n"))
    rows, said = watch(repo, "--kernel", "7.2", "--boot", rc=1)
    assert rows == [["7.2", "7.2.11", arch, "yes", "no", "-"] for arch in ("x86_64", "arm64")]
    assert "watch: broken: 7.2: Linux 7.2.11: kernel/sched does not compile for arm64 without a warning (see above)\n" in said


@pytest.mark.parametrize("said, boots", [("steal yes stolen 12", "yes"), ("steal yes stolen 0", "no"), ("steal no", "no"), ("", "no")])
def test_watch_boots_and_writes(repo, archive, said, boots):
    archive("7.2.11-1")
    (repo.top / "scripts/boot").write_text(f"#!/bin/sh\necho '{said}'\n")
    replace(repo.top / "patches/lines", "trixie-security\t-\t-\t-\t-\t-\t-\t-",
            "trixie-security\t7.2.9\t2026-01-01\t0.8\tabc\tdef\tapplies,boots\tapplies,storms:0.9")
    (repo.top / "README.md").write_text("Read\n<!-- scripts/support: x -->\nold\n<!-- end of scripts/support -->\nme\n")
    before = (repo.top / "patches/lines").read_text()
    rows, _ = watch(repo, "--kernel", "7.2", "--boot", "--write", "--arch", "arm64", rc=0 if boots == "yes" else 1)
    assert rows == [["7.2", "7.2.11", "arm64", "yes", "yes", boots]]
    after = (repo.top / "patches/lines").read_text()
    readme = (repo.top / "README.md").read_text()
    assert re.fullmatch("Read\n<!-- scripts/support: x -->\n(\\|.*\n)+<!-- end of scripts/support -->\nme\n", readme)
    if boots == "no":
        assert after == before
        return
    row = re.search("^7.2.*", after, re.M)[0].split("\t")
    # what was not looked at is not true of the new release; storms have a version of their own
    assert row[4] == "7.2.11" and re.fullmatch(r"20\d\d-\d\d-\d\d", row[5])
    assert row[6:] == ["1.0", "-", "def", "-", "applies,builds,boots,storms:0.9"]
    assert after.replace("\t".join(row), "") == before.replace(re.search("^7.2.*", before, re.M)[0], "")
    assert f"| 7.2 | 7.2.11, {row[5]} | 1.0 | arm64 | arm64 | arm64 | arm64: 0.9 | - |\n" in readme
    # of the same release and version, it stays
    watch(repo, "--kernel", "7.2", "--write", "--arch", "x86_64")
    assert re.search("^7.2.*", (repo.top / "patches/lines").read_text(), re.M)[0].split("\t")[9:] == ["applies,builds", row[10]]


def test_watch_writes_no_older_release(repo, archive):
    archive("7.2.11-1")
    replace(repo.top / "patches/lines", "trixie-security\t-\t", "trixie-security\t7.2.12\t")
    (repo.top / "README.md").write_text("<!-- scripts/support: x -->\n<!-- end of scripts/support -->\n")
    before = (repo.top / "patches/lines").read_text()
    said = watch(repo, "--kernel", "7.2", "--write")[1]
    assert "watch: notice: 7.2: the archive's newest release is 7.2.11, older than 7.2.12, which passed; --write leaves" in said
    assert (repo.top / "patches/lines").read_text() == before


def test_watch_writes_only_what_is_in_git(repo, archive):
    """The commit in patches/lines has to be the one that passed."""
    archive("7.2.11-1")
    (repo.top / "README.md").write_text("<!-- scripts/support: x -->\n<!-- end of scripts/support -->\n")
    for words in ["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]:
        repo.git(repo.top, *words)
    series = repo.top / "patches/7.2/series"
    series.write_text(series.read_text() + "# more\n")
    said = repo.run("watch", "--kernel", "7.2", "--write", rc=2).stderr
    assert said == f"watch: error: --write: {repo.top} has changes that are not in git; commit or move away: patches/7.2/series\n"
    repo.git(repo.top, "commit", "-qam", "more")
    watch(repo, "--kernel", "7.2", "--write")
    assert re.search("^7.2.*", (repo.top / "patches/lines").read_text(), re.M)[0].split("\t")[7] == repo.git(repo.top, "rev-parse", "--short=12", "HEAD")
    # patches/lines itself has changed now
    watch(repo, "--kernel", "7.2", "--write")


@pytest.mark.parametrize("faults, boots", [(1, "yes"), (2, "no")])
def test_watch_tries_again_after_a_fault_of_qemu(repo, archive, faults, boots):
    archive("7.2.11-1")
    (repo.top / "scripts/boot").write_text(f"#!/bin/sh\necho x >>{repo.tmp}/boots\n[ $(wc -l <{repo.tmp}/boots) -gt {faults} ] || exit 75\n"
                                           "echo steal yes stolen 12\n")
    rows, _ = watch(repo, "--kernel", "7.2", "--boot", "--arch", "arm64", rc=0 if boots == "yes" else 1)
    assert rows == [["7.2", "7.2.11", "arm64", "yes", "yes", boots]]


# this repository


def test_readme_has_the_table(run):
    text = (TOP / "README.md").read_text()
    table = re.search(r"^<!-- scripts/support: .*\n((?:.*\n)*?)<!-- end of scripts/support -->$", text, re.M)[1]
    assert table == run(TOP / "scripts/support").stdout, "run scripts/support --write"


def with_patches():
    """The lines of kernels that have patches. A line in preparation has none, and no release that passed."""
    found = []
    for line, row in kernel_lines().items():
        folder, series, base = line_files(line)
        if row["release"] != "-" or series.exists():
            assert series.is_file() and base.is_file() and (folder / "extra/series").is_file(), line
            found.append(line)
    return found


def test_folders_are_those_of_lines():
    rows = kernel_lines()
    for folder, state in ((TOP / "patches", "maintained"), (TOP / "patches/ended", "ended")):
        for path in folder.glob("[0-9]*/"):
            assert path.name in rows and rows[path.name]["state"] == state, path


@pytest.mark.parametrize("line", with_patches())
def test_series_of_a_line(line):
    """The patches of the default line with their numbers and subjects, in the same order. A line may lack a follow-up."""
    folder, series, base = line_files(line)
    default = line_files(next(iter(kernel_lines())))
    for file, directory in ((series, default[1]), (folder / "extra/series", default[0] / "extra/series")):
        ours, theirs = named(file), named(directory)
        names = [path.name for path in ours]
        assert [path.name for path in theirs if path.name in names] == names
        assert sorted(ours[0].parent.glob("[0-9]*.patch")) == ours
        for patch in ours:
            assert subject(patch) == subject(theirs[0].parent / patch.name), patch
    # all of the mechanism, and of the extra patches, which are the last ones above
    assert names == [path.name for path in theirs]
    above = [re.findall(r"^\d{4}-.*", text.read_text().split("\n# Follow-ups")[0], re.M) for text in (series, default[1])]
    assert above[0] == above[1] and len(above[0]) == 9
    version = re.search("^version=(.*)$", base.read_text(), re.M)[1]
    assert version.startswith(f"{line}.") and f"on Linux {version}\n" in series.read_text()


@pytest.mark.parametrize("line", with_patches())
def test_messages_say_which_kernel_was_measured(line):
    """All figures are from the default line. A message of another line that has some says so."""
    default = next(iter(kernel_lines()))
    if line == default:
        return
    for patch in named(line_files(line)[1]):
        message = patch.read_text().split("\n\n", 1)[1].split("\n---\n")[0]
        if re.search(r"\d %|\bpairs of runs\b|\d\s+us\b.*\d\s+us\b", message):
            assert re.search(rf"\bLinux\s+{re.escape(default)}\b", message), f"{patch}: figures of which kernel?"


def subject(patch):
    return re.search(r"^Subject: (\[PATCH[^]]*\] (?:.+\n(?= ))*.+)$", patch.read_text(), re.M)[1]


@pytest.mark.parametrize("line", with_patches())
def test_sparsemask_is_the_same_in_all_lines(line):
    def header(of):
        text = named(line_files(of)[1])[0].read_text()
        found = re.search(r"^diff --git a/(\S*/sparsemask\.h) b/.*\n(?:.*\n)*?@@ -0,0 .*\n((?:\+.*\n?)+)", text, re.M)
        return found[1], found[2].rstrip("\n")

    assert header(line) == header(next(iter(kernel_lines())))


def test_configurations_name_lines():
    for path in (TOP / "configs").rglob("*.config"):
        for comment in re.findall(r"^#\s*(?:not|only) in\b.*", path.read_text(), re.M | re.I):
            names = re.fullmatch(r"# (?:not|only) in((?: [0-9]+\.[0-9]+)+)", comment)
            assert names and set(names[1].split()) <= set(kernel_lines()), (path, comment)


def test_ab_builds_the_kernel_of_a_line(monkeypatch, tmp_path):
    loader = importlib.machinery.SourceFileLoader("ab", str(TOP / "bench/ab"))
    ab = importlib.util.module_from_spec(importlib.util.spec_from_loader("ab", loader))
    loader.exec_module(ab)
    called = []

    def output_of(*words, env=None):
        called.append((words[0].name, (env or {}).get("STEAL_LINE")))
        return "/image"

    monkeypatch.setattr(ab, "output_of", output_of)
    monkeypatch.delenv("STEAL_LINE", raising=False)
    assert ab.kernel_lines() == list(kernel_lines())
    for image, line in [("6.12", "6.12"), ("patched", None)]:
        assert ab.build(image) == "/image"
        assert called == [("apply", line), ("build", line)]
        called.clear()
    monkeypatch.setenv("STEAL_LINE", "6.18")
    assert ab.build("base") == "/image" and called == [("worktree", None), ("build", "6.18")]
    monkeypatch.setattr(ab, "TOP", tmp_path)
    assert ab.kernel_lines() == []


@pytest.fixture
def ci(tmp_path):
    """ci({COMMAND: EXIT STATUS}, [CHANGED FILE...]): the exit status of .ci/run, and the commands that it runs."""
    git = ["git", "-C", tmp_path, "-c", "user.name=test", "-c", "user.email=test@localhost"]

    def ci(codes, changed=(), tested=None, **environment):
        for name in (".ci/run", "scripts/check", "scripts/watch"):
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text((TOP / name).read_text() if name == ".ci/run" else f'#!/bin/sh\necho {Path(name).name} "$@"\n'
                            f"exit {codes.get(Path(name).name, 0)}\n")
            path.chmod(0o755)
        for line in ("8.1", "7.9"):
            (tmp_path / "patches" / line).mkdir(parents=True)
            (tmp_path / "patches" / line / "series").write_text("")
        subprocess.run([*git[:3], "init", "-q"], check=True)
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-qm", "passed"], check=True)
        commit = subprocess.run([*git, "rev-parse", "HEAD"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        for file in changed:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            with (tmp_path / file).open("a") as changing:
                changing.write("pytest.mark.line\n" if file == "tests/kernel/test_it.py" else "changed\n")
        (tmp_path / "patches/lines").write_text("# comment\n" + "".join(
            f"{line}\t{state}\tpackage\tsuite\t{line}.1\t2026-01-01\t1.0\tabc\t{at}\t-\t-\n" for line, state, at in
            [("8.2", "maintained", "-"), ("8.1", "maintained", tested or commit), ("7.9", "maintained", tested or commit), ("7.8", "ended", "-")]))
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-qm", "now"], check=True)
        done = subprocess.run([tmp_path / ".ci/run"], stdout=subprocess.PIPE, text=True, check=False, env={**os.environ, **environment})
        return done.returncode, done.stdout.splitlines()

    return ci


def test_ci_ends_when_it_is_interrupted(ci, tmp_path):
    """At Ctrl-C, which goes to all processes, scripts/check ends in order; nothing else begins."""
    ci({})
    (tmp_path / "scripts/check").write_text("#!/bin/sh\ntrap 'exit 130' INT\necho check\nkill -INT 0\n")
    done = subprocess.run([tmp_path / ".ci/run"], stdout=subprocess.PIPE, text=True, check=False, start_new_session=True,
                          preexec_fn=heed_signals)
    assert (done.returncode, done.stdout) == (130, "check\n")


@pytest.mark.parametrize("checked, watched, status", [(0, 0, 0), (0, 1, 1), (0, 3, 0), (1, 0, 1), (1, 3, 1), (5, 1, 5), (0, 2, 2)])
def test_ci(ci, checked, watched, status):
    """A break fails it, an archive that cannot be read does not. The watch runs also if a test fails."""
    assert ci({"check": checked, "watch": watched}) == (status, ["check", "watch"])


def test_ci_tests_a_line_that_changed(ci):
    assert ci({}, ["patches/7.9/series"]) == (0, ["check", "watch", "check --kernel 7.9"])


@pytest.mark.parametrize("file", ["configs/debug.config", "scripts/build", "tests/kernel/test_it.py", "tests/guest/it.sh", "tests/conftest.py",
                                  "tests/mutants/it.patch", "tests/mutants/7.9/it.patch", "sim/guest/init"])
def test_ci_tests_all_lines_if_what_they_share_changed(ci, file):
    assert ci({}, [file]) == (0, ["check", "watch", "check --kernel 8.1", "check --kernel 7.9"])


@pytest.mark.parametrize("file", ["scripts/watch", "configs/scx.config", "configs/matrix/i386.config", "tests/races.py", "tests/kernel/test_other.py",
                                  "tests/harness/test_it.py", "README.md"])
def test_ci_tests_no_line_if_nothing_changed_that_its_tests_use(ci, file):
    assert ci({}, [file]) == (0, ["check", "watch"])


@pytest.mark.parametrize("tested", ["-", "0123456789ab"])
def test_ci_tests_a_line_that_never_passed(ci, tested):
    assert ci({}, tested=tested) == (0, ["check", "watch", "check --kernel 8.1", "check --kernel 7.9"])


def test_ci_fails_if_a_line_that_changed_is_not_tested(ci):
    """As there is no time left."""
    assert ci({}, ["patches/7.9/series"], CI_SECONDS="-1") == (1, ["check", "watch"])


def test_ci_fails_if_a_line_that_changed_fails(ci):
    assert ci({"check": 1}, ["patches/8.1/series", "patches/7.9/series"]) == (1, ["check", "watch", "check --kernel 8.1", "check --kernel 7.9"])
