# SPDX-License-Identifier: GPL-2.0
"""scripts/package, on a source package of a few files that looks like Debian's of the kernel. The last test uses the real series."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from commands import processes, wait_for
from conftest import line_files, named
from test_kernel_lines import OTHER, archive, repo  # noqa: F401  # fixtures
from test_tree import NAMES, make_tree, replace, snapshot, template  # noqa: F401  # a fixture

TOP = Path(__file__).resolve().parents[2]

# The targets that the real one ends with an error, and clean.
RULES = """\
#!/usr/bin/make -f
clean:
	rm -rf debian/build
debian/control-real:
	mkdir debian/build
	sed -n '1s/.*(\\(.*\\)).*/ABI of \\1/p' debian/changelog >debian/names
	printf '%s:\\n' binary-arch_amd64_none_cloud-amd64 binary-arch_amd64_rt_amd64 binary-arch_amd64_none_amd64 \\
		binary-arch_arm64_none_cloud-arm64 >debian/rules.gen
	md5sum debian/changelog debian/config/defines.toml >debian/control.md5sum
	exit 1
"""
CONTROL = """\
Source: {0}
Maintainer: Test <test@example.com>

Package: {0}-image
Architecture: any
Description: test
"""
# A patch of Debian's own, and one of another queue that needs the first one: rt kernels have both.
DEBIAN = """\
Index: linux/kernel/sched/core.c
--- linux.orig/kernel/sched/core.c
+++ linux/kernel/sched/core.c
@@ -1,4 +1,4 @@
-line 1
+first
 line 2
 line 3
 line 4
"""
RT = """\
--- a/kernel/sched/core.c
+++ b/kernel/sched/core.c
@@ -1,5 +1,6 @@
 first
 line 2
+real time
 line 3
 line 4
 line 5
"""


def source_package(directory, name="linux", version="7.2.9-1", distribution="trixie-security", change=lambda tree: None):
    """Make one of a tree of test_tree's; return its .dsc."""
    upstream = version.split("-")[0]
    tree = make_tree(directory / "linux", upstream.split("."))
    change(tree)
    subprocess.run(["tar", "-caf", directory / f"{name}_{upstream}.orig.tar.xz", "-C", directory, "linux"], check=True)
    for file, text in {"source/format": "3.0 (quilt)\n", "rules": RULES, "control": CONTROL.format(name),
                       "config/defines.toml": "[[featureset]]\nname = 'rt'\n\n[[debianrelease]]\nname_regex = 'trixie'\n",
                       "changelog": f"{name} ({version}) {distribution}; urgency=high\n\n  * Older.\n\n"
                                    " -- Test <test@example.com>  Mon, 05 Oct 2026 10:00:00 +0000\n",
                       "patches/series": "# Debian's\ndebian/first.patch", "patches/debian/first.patch": DEBIAN,
                       "patches-rt/series": "rt.patch\n", "patches-rt/rt.patch": RT}.items():
        (tree / "debian" / file).parent.mkdir(parents=True, exist_ok=True)
        (tree / "debian" / file).write_text(text)
    (tree / "debian/rules").chmod(0o755)
    return pack(tree)


def pack(tree):
    """Make the source package of the tree, and remove that."""
    subprocess.run(["dpkg-source", "-b", tree.name], cwd=tree.parent, check=True, capture_output=True)
    shutil.rmtree(tree)
    return max(tree.parent.glob("*.dsc"), key=lambda path: path.stat().st_mtime_ns)


@pytest.fixture
def dsc(repo):  # noqa: F811
    return source_package(repo.tmp / "debian")


def unpacked(directory):
    subprocess.run(["dpkg-source", "-x", *directory.glob("*.dsc"), "unpacked"], cwd=directory, check=True, capture_output=True)
    return directory / "unpacked"


@pytest.fixture(autouse=True)
def base_with_a_version(request):
    """The version of the series is in the file base; and each run is in an empty directory, in which nothing else may appear."""
    repo = request.getfixturevalue("repo")  # noqa: F811
    assert "series_version=1.0\n" in (repo.top / "base").read_text()
    (repo.tmp / "cwd").mkdir()
    yield
    assert not list(repo.cache.glob("package.tmp*"))


def files(repo):  # noqa: F811
    """All files but those of the fakes."""
    return {name: file for name, file in snapshot(repo.tmp).items() if not name.startswith("fakes/")}


def package(repo, *arguments, rc=0, **env):  # noqa: F811
    """Run it in an empty directory; what it printed, or what it said last if it failed: then it changed nothing."""
    before = files(repo)
    done = subprocess.run(repo.command("package", *arguments), env={**repo.env, **env}, cwd=repo.tmp / "cwd", capture_output=True, text=True,
                          timeout=600, check=False)
    assert done.returncode == rc, done.stderr
    if rc:
        said = done.stderr.splitlines()
        assert done.stdout == "" and said[-1].startswith("package: error: ")
        assert rc == 1 or len([line for line in said if "error: " in line]) == 1
        assert files(repo) == before
        return said[-1][len("package: error: "):]
    return Path(done.stdout.rstrip("\n"))


@pytest.mark.parametrize("version, newer", [
    ("7.2.9-1", "7.2.9-2 7.2.9-1.1 7.2.9-1+deb13u1 7.2.9-1+b1 7.2.10-1"), ("7.2.9-1~bpo13+1", "7.2.9-1~bpo13+2 7.2.9-1")])
def test_deb(repo, version, newer):  # noqa: F811
    """The series is at the end of the queue; Debian's next version is newer than ours."""
    dsc = source_package(repo.tmp / "debian", version=version)
    before = snapshot(dsc.parent)
    out = package(repo, "--kernel", "7.2", "--deb", "--dsc", dsc, DEBFULLNAME="Jo", DEBEMAIL="jo@example.com", SOURCE_DATE_EPOCH="1800000000")
    ours = f"{version}+0steal1.0"
    assert out == repo.tmp / "cwd/7.2-deb"
    assert sorted(os.listdir(out)) == [f"linux_{ours}.debian.tar.xz", f"linux_{ours}.dsc", "linux_7.2.9.orig.tar.xz"]
    assert snapshot(dsc.parent) == before
    for relation, other in [("gt", version), *(("lt", text) for text in newer.split())]:
        subprocess.run(["dpkg", "--compare-versions", ours, relation, other], check=True)
    tree = unpacked(out)
    assert (tree / "debian/patches/series").read_text() == "".join(
        f"{line}\n" for line in ["# Debian's", "debian/first.patch", *(f"features/all/steal/{name}" for name in NAMES)])
    for name in NAMES:
        assert (tree / "debian/patches/features/all/steal" / name).read_bytes() == (repo.top / "patches/7.2" / name).read_bytes()
    # all patches are applied, those of rt are not
    assert (tree / "kernel/sched/mask.h").read_text() == "/* mask */\n/* used */\n"
    assert "first\n" in (tree / "kernel/sched/core.c").read_text() and "real time" not in (tree / "kernel/sched/core.c").read_text()
    assert (tree / "debian/changelog").read_text().startswith(
        f"linux ({ours}) steal; urgency=medium\n\n  * Task stealing for the fair scheduler, version 1.0.\n\n"
        f" -- Jo <jo@example.com>  Fri, 15 Jan 2027 08:00:00 +0000\n\nlinux ({version}) trixie-security;")
    assert (tree / "debian/config/defines.toml").read_text() == (
        "[[featureset]]\nname = 'rt'\n\n[[debianrelease]]\nname_regex = 'steal'\nabi_suffix = '+steal1.0'\n\n"
        "[[debianrelease]]\nname_regex = 'trixie'\n")
    assert (tree / "debian/names").read_text() == f"ABI of {ours}\n" and not (tree / "debian/build").exists()


def test_line_of_the_source_package(repo, dsc):  # noqa: F811
    """Its version says of which line it is."""
    assert package(repo, "--deb", "--dsc", dsc).name == "7.2-deb"
    assert "Linux 7.2.9; the line 7.3 of kernels is selected" in package(repo, "--deb", "--dsc", dsc, "--kernel", "7.3", rc=2)
    other = source_package(repo.tmp / "other", version="6.15.2-1")
    assert package(repo, "--deb", "--dsc", other, rc=2).endswith("wrong base: Linux 6.15.2; there are patches for: 7.3 7.2 6.12")


def test_does_not_apply(repo):  # noqa: F811
    """With fuzz it would."""
    dsc = source_package(repo.tmp / "debian", change=lambda tree: replace(tree / "kernel/sched/fair.c", "line 28\n", "line XX\n"))
    said = package(repo, "--deb", "--dsc", dsc, "--out", "new", rc=1)
    assert said == f"{dsc}: the patches for 7.2 do not apply without fuzz (see above)"


def test_rt_queue_does_not_apply(repo, dsc):  # noqa: F811
    """The series changes a line that a patch of rt needs."""
    tree = unpacked(dsc.parent)
    (tree / "debian/patches-rt/rt.patch").write_text(
        "--- a/kernel/sched/fair.c\n+++ b/kernel/sched/fair.c\n@@ -48,6 +48,7 @@\n line 48\n line 49\n line 50\n+real time\n"
        " line 51\n line 52\n line 53\n")
    dsc = pack(tree)
    assert package(repo, "--deb", "--dsc", dsc, rc=1) == f"{dsc}: debian/patches-rt does not apply without fuzz on top of the patches for 7.2 (see above)"


def test_has_the_series(repo, dsc):  # noqa: F811
    made, = package(repo, "--deb", "--dsc", dsc).glob("*.dsc")
    assert package(repo, "--deb", "--dsc", made, "--out", "again", rc=2) == f"{made}: has the series already: kernel/sched/mask.h is there"


@pytest.mark.parametrize("file, text, status, message", [
    ("source/format", "3.0 (native)\n", 2, "has no patch queue: its format is not 3.0 (quilt)"),
    ("config/defines.toml", "[build]\n", 2, "no [[debianrelease]] in debian/config/defines.toml, so it is not like Debian's; add the patches by hand"),
    ("rules", RULES.replace("md5sum", "false"), 1, "debian/rules debian/control-real failed (see above)")])
def test_other_source_package(repo, dsc, file, text, status, message):  # noqa: F811
    tree = unpacked(dsc.parent)
    (tree / "debian" / file).write_text(text)
    if "native" in text:
        replace(tree / "debian/changelog", "7.2.9-1", "7.2.9")
    dsc = pack(tree)
    assert package(repo, "--deb", "--dsc", dsc, rc=status) == f"{dsc}: {message}"


@pytest.mark.parametrize("arguments, message", [
    ("", "one of --deb and --rpm is needed; see --help"), ("--deb --rpm", "--deb and --rpm exclude each other; see --help"),
    ("--rpm --kernel 6.15", "no patches for a line of kernels '6.15'; there are: 7.3 7.2 6.12"),
    ("--deb --kernel 6.15", "no patches for a line of kernels '6.15'; there are: 7.3 7.2 6.12"),
    ("--rpm --kernel 6.12", "no patches for 6.12 yet: REPO/patches/ended/6.12/series is not there"),
    ("--rpm --build cloud-amd64", "--package-version, --dsc and --build need --deb; see --help"),
    ("--rpm --dsc x", "--package-version, --dsc and --build need --deb; see --help"),
    ("--deb --first 3", "--first needs --rpm; see --help"), ("--rpm --first 09", "--first '09' is not a number; see --help"),
    ("--deb --dsc x --package-version 1", "--package-version and --dsc exclude each other; see --help"),
    ("--deb --dsc x", "x: no such file (--dsc)"), ("--deb --build a/b", "--build 'a/b' is not the name of a flavour; see --help"),
    ("--rpm --out REPO", "REPO: exists already; remove it, or name another directory (--out)"),
    ("--deb --out REPO/series", "REPO/series: exists already; remove it, or name another directory (--out)"),
    ("--deb --out REPO/none/out", "REPO/none: no such directory (--out)")])
def test_bad_arguments(repo, arguments, message):  # noqa: F811
    words = arguments.replace("REPO", str(repo.top)).split()
    assert package(repo, *words, rc=2) == message.replace("REPO", str(repo.top))


def test_output_exists(repo, dsc):  # noqa: F811
    for arguments in ["--deb", "--dsc", dsc], ["--rpm", "--kernel", "7.2"]:
        (repo.tmp / "cwd" / f"7.2-{arguments[0][2:]}").symlink_to("nowhere")
        assert "exists already" in package(repo, *arguments, rc=2)


# Debian's archive


def test_source_package_of_the_archive(repo, archive):  # noqa: F811
    """The version in base, or the newest, or the one that is asked for. It is downloaded once."""
    archive("7.2.9-1", "7.2.10-1", "7.2.11-1")
    for version in "7.2.9-1", "7.2.11-1":
        source_package(archive.fakes / "debs" / f"linux-7.2={version}", name="linux-7.2", version=version)
    replace(repo.top / "patches/7.2/base", "version=7.2.9\n", "version=7.2.9\npackage_version=7.2.9-1\n")
    out = package(repo, "--kernel", "7.2", "--deb", "--out", "pinned")
    assert (out / "linux-7.2_7.2.9-1+0steal1.0.dsc").is_file()
    sources = re.sub(r" \[.*?\]", "", (archive.fakes / "sources").read_text())
    assert sources == "deb-src http://main/debian sid main\ndeb-src http://security/updates trixie-security main\n"
    shutil.rmtree(archive.fakes / "debs/linux-7.2=7.2.9-1")
    (archive.fakes / "sources").unlink()
    package(repo, "--kernel", "7.2", "--deb", "--out", "again")
    assert not (archive.fakes / "sources").exists()
    # another version
    out = package(repo, "--kernel", "7.2", "--deb", "--out", "other", "--package-version", "7.2.11-1")
    assert (out / "linux-7.2_7.2.11-1+0steal1.0.dsc").is_file()
    # the archive no longer has the one in base
    replace(repo.top / "patches/7.2/base", "=7.2.9-1\n", "=7.2.8-1\n")
    out = package(repo, "--kernel", "7.2", "--deb", "--out", "newest")
    assert (out / "linux-7.2_7.2.11-1+0steal1.0.dsc").is_file()


def test_archive_without_it(repo, archive):  # noqa: F811
    archive("7.2.10-1", "7.2.11-1")
    suites = "Debian (sid trixie-security)"
    assert package(repo, "--kernel", "7.2", "--deb", "--package-version", "7.2.1-1", rc=2) == (
        f"{suites} has no source package of Linux 7.2 of the version 7.2.1-1; the newest are: 7.2.10-1 7.2.11-1")
    # listed, but gone
    shutil.rmtree(archive.fakes / "debs")
    assert package(repo, "--kernel", "7.2", "--deb", rc=3).startswith(
        "apt could not download the source package linux-7.2 7.2.11-1 (see above); for another version: --package-version; ")
    (archive.fakes / "offered").write_text("7.1.9-1\n")
    assert package(repo, "--kernel", "7.2", "--deb", rc=2) == f"{suites} has no source package of Linux 7.2; use one of your own (--dsc FILE)"
    (archive.fakes / "down").write_text("")
    assert "apt could not read the archive's indices" in package(repo, "--kernel", "7.2", "--deb", rc=3)


# the build


@pytest.fixture
def builder(repo, archive):  # noqa: F811
    """A fake of mmdebstrap, which writes down what it should do, and of an architecture. It "builds" an image."""
    for name, text in {
            "dpkg": "[ \"$1\" = --print-architecture ] && echo amd64",
            "mmdebstrap": "printf '%s\\n' \"$@\" >\"$FAKES/hooks\"; cat \"$TMPDIR/build/build\" >\"$FAKES/script\"; ls \"$TMPDIR/build\" >\"$FAKES/in\"\n"
                          "echo done; [ ! -f \"$FAKES/broken\" ] || exit 1; mkdir \"$TMPDIR/packages\" \"$FAKES/image\" \"$FAKES/image/DEBIAN\" \"$FAKES/image/boot\"\n"
                          "printf '%s\\n' 'Package: test' 'Version: 1' 'Architecture: all' 'Maintainer: a <b@c.d>' 'Description: x' >\"$FAKES/image/DEBIAN/control\"\n"
                          "printf '%s\\n' CONFIG_SMP=y '# CONFIG_SCHED_MC is not set' CONFIG_SCHEDSTATS=y >\"$FAKES/image/boot/config-7.2.9\"\n"
                          "dpkg-deb -b \"$FAKES/image\" \"$TMPDIR/packages/linux-image-7.2.9+steal1.0-cloud-amd64.deb\""}.items():
        (archive.fakes / name).write_text(f"#!/bin/sh\n{text}\n")
        (archive.fakes / name).chmod(0o755)
    return archive.fakes


@pytest.mark.parametrize("flavour, target, distribution, suites", [
    ("cloud-amd64", "amd64_none_cloud-amd64", "trixie-security", "trixie trixie-security"),
    ("rt-amd64", "amd64_rt_amd64", "bookworm-backports", "bookworm bookworm-security bookworm-backports"),
    ("amd64", "amd64_none_amd64", "unstable", "sid")])
def test_build(repo, builder, flavour, target, distribution, suites):  # noqa: F811
    """One flavour, in a root directory of the release that the source package is for."""
    dsc = source_package(repo.tmp / "debian", distribution=distribution)
    done = subprocess.run(repo.command("package", "--deb", "--dsc", dsc, "--build", flavour), env=repo.env, cwd=repo.tmp / "cwd",
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "notice: linux-image-7.2.9+steal1.0-cloud-amd64.deb: CONFIG_SCHED_MC is off\n" in done.stderr and "SMP is" not in done.stderr
    out = Path(done.stdout.strip())
    assert sorted(os.listdir(out))[:2] == ["build.log", "linux-image-7.2.9+steal1.0-cloud-amd64.deb"] and len(os.listdir(out)) == 5
    hooks = (builder / "hooks").read_text()
    assert [line.split()[3] for line in hooks.splitlines() if line.startswith("deb ")] == suites.split()
    assert "--include=build-essential,rsync\n" in hooks
    assert hooks.split("/dev/null\n")[0].endswith(f"\n{suites.split()[0]}\n")
    script = (builder / "script").read_text()
    features = target.split("_")[1]
    assert f" indep_{features}_headers-common arch_amd64_kbuild arch_{target}_headers arch_{target}_image;" in script
    assert (builder / "in").read_text().split() == ["build", *sorted(path for path in os.listdir(out) if path.startswith("linux_"))]
    subprocess.run(["sh", "-n", builder / "script"], check=True)


def test_build_fails(repo, builder, dsc):  # noqa: F811
    """An unknown flavour changes nothing. A build that fails leaves the source package."""
    assert package(repo, "--deb", "--dsc", dsc, "--build", "cloud-arm64", rc=2) == (
        f"{dsc}: no flavour 'cloud-arm64' for amd64; there are: cloud-amd64 rt-amd64 amd64")
    (builder / "broken").write_text("")
    done = repo.run("package", "--deb", "--dsc", dsc, "--build", "amd64", "--out", repo.tmp / "new", rc=1)
    assert done.stderr.endswith(f"done\npackage: error: {repo.tmp}/new/build.log: the build failed (see above); the source package is in {repo.tmp}/new\n")
    assert len(list((repo.tmp / "new").glob("linux_*"))) == 3


# RPM


def prepared(out, tarball, how="%include %{_sourcedir}/steal-prep.inc", rc=0):
    """The sources after the %prep of a small spec file with the parts in $out, for which fuzz is allowed; or if it fails, what it
    says. rpmbuild has a directory of its own for all that it reads and writes, also for its database."""
    root = tarball.parent / "rpmbuild"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    sources = root / "sources"
    shutil.copytree(out, sources)
    shutil.copy(tarball, sources)
    setup = "%setup -q -n linux" if "include" in how else ""
    (root / "kernel.spec").write_text(
        f"Name: kernel\nVersion: 1\nRelease: 1\nSummary: test\nLicense: GPL-2.0\nSource0: {tarball.name}\n"
        f"%include %{{_sourcedir}}/steal-patches.inc\n%description\ntest\n%prep\n{setup}\n{how}\n")
    for what in "-bp", "-bs":
        macros = {"_topdir": root, "_sourcedir": sources, "_tmppath": root, "_default_patch_fuzz": 2}
        done = subprocess.run(["rpmbuild", what, "--nodeps", "--dbpath", root / "db",
                               *(word for name, value in macros.items() for word in ("--define", f"{name} {value}")), root / "kernel.spec"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env={"PATH": os.environ["PATH"], "HOME": str(root)}, check=False)
        assert done.returncode == rc, done.stdout
        if rc:
            return done.stdout
    inside = subprocess.run(["rpm", "-qpl", "--dbpath", root / "db", *root.glob("SRPMS/*.rpm")], check=True, capture_output=True, text=True).stdout
    assert set(os.listdir(out)) <= set(inside.split())
    # some versions of rpm have one more directory there
    return min(root.glob("BUILD/**/linux"), key=lambda path: len(path.parts))


def test_rpm(repo):  # noqa: F811
    """Both forms of %prep apply all patches; a source package has all files."""
    out = package(repo, "--kernel", "7.2", "--rpm", "--first", "42")
    assert out == repo.tmp / "cwd/7.2-rpm" and sorted(os.listdir(out)) == [*NAMES, "steal-patches.inc", "steal-prep.inc"]
    lines = (out / "steal-patches.inc").read_text().splitlines()
    assert lines[-5:] == ["Source42: steal-patches.inc", "Source43: steal-prep.inc", *(f"Patch{42 + n}: {name}" for n, name in enumerate(NAMES))]
    assert "version 1.0, for Linux 7.2. It needs CONFIG_SCHED_MC; its counters need CONFIG_SCHEDSTATS." in lines[1]
    for how in "%include %{_sourcedir}/steal-prep.inc", "%autosetup -n linux -p1":
        tree = prepared(out, repo.tarball("of-7.2.tar.gz", OTHER), how)
        assert (tree / "kernel/sched/mask.h").read_text() == "/* mask */\n/* used */\n"
        assert "fifty\n" in (tree / "kernel/sched/fair.c").read_text()


def test_rpm_does_not_apply_with_fuzz(repo):  # noqa: F811
    out = package(repo, "--kernel", "7.2", "--rpm")
    replace(out / NAMES[1], " line 28\n", " line XX\n")
    assert "1 out of 1 hunk FAILED" in prepared(out, repo.tarball("of-7.2.tar.gz", OTHER), rc=1)


# the real kernel


def test_rpm_of_the_series(run, top, series, tmp_path):
    """On the files of the base that the patches touch: the same as scripts/apply makes of them, which test_tree.py compares."""
    text = line_files()[2].read_text()
    version = re.search(r"^version=(.*)$", text, re.M)[1]
    files = re.findall(r"^sha256:(.*)=", text, re.M)
    tree = subprocess.run([top / "scripts/get-kernel"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    run("git", "-C", tree, "archive", "--prefix=linux/", "-o", tmp_path / "linux.tar.gz", f"v{version}", *files)
    run(top / "scripts/package", "--rpm", "--out", tmp_path / "out")
    made = prepared(tmp_path / "out", tmp_path / "linux.tar.gz")
    plain = tmp_path / "plain"
    plain.mkdir()
    run("tar", "-xf", tmp_path / "linux.tar.gz", "-C", plain)
    for patch in named(line_files()[1]):
        run("patch", "-p1", "-s", "-F0", "--no-backup-if-mismatch", "-i", patch, cwd=plain / "linux")
    run("diff", "-r", plain / "linux", made)
    assert len(series) == len(list((tmp_path / "out").glob("*.patch")))


def test_usage_names_the_present_version():
    version = re.search(r"^series_version=(.*)$", (TOP / "base").read_text(), re.M)[1]
    named = re.findall(r"\+0?steal([0-9.]+)", (TOP / "Documentation/usage.rst").read_text())
    assert len(named) >= 2 and set(named) == {version}


# booting a package


@pytest.fixture
def guest(repo, builder):  # noqa: F811
    """guest(LOG LINE...): what scripts/boot-package said, and its status. mmdebstrap and QEMU are fakes; the guest's console has these lines."""
    for name, text in {
            "id": "echo 0",
            "mmdebstrap": "printf '%s\\n' \"$@\" >\"$FAKES/hooks\"; cp \"$TMPDIR/init\" \"$FAKES/init\"\n"
                          "[ ! -f \"$FAKES/waits\" ] || { trap : INT TERM HUP; sleep \"$(cat \"$FAKES/waits\")\" & while kill -0 $!; do wait $!; done; }\n"
                          "[ ! -f \"$FAKES/failed\" ] || : >\"$TMPDIR/failed\"; [ ! -f \"$FAKES/broken\" ] || { echo refused; exit 1; }",
            "qemu-system-x86_64": "printf '%s\\n' \"$@\" >\"$FAKES/qemu\"; while [ \"$1\" != -serial ]; do shift; done\n"
                                  "cat \"$FAKES/console\" >\"${2#file:}\"; [ ! -f \"$FAKES/hangs\" ] || exec sleep 60"}.items():
        (builder / name).write_text(f"#!/bin/sh\n{text}\n")
        (builder / name).chmod(0o755)

    def guest(*console, packages=None, arguments=()):
        (builder / "console").write_text("".join(line + "\r\n" for line in console))
        done = subprocess.run(repo.command("boot-package", *arguments, *(packages or [image(repo.tmp / "any")])), env=repo.env, cwd=repo.tmp / "cwd",
                              capture_output=True, text=True, check=False)
        assert not list(repo.cache.glob("boot-package.*"))
        return done

    return guest


def image(directory, architecture="amd64", kernel="7.2.9+steal1.0-cloud-amd64"):
    """A package of a kernel, which has nothing in it."""
    (directory / "DEBIAN").mkdir(parents=True, exist_ok=True)
    (directory / "boot").mkdir(exist_ok=True)
    (directory / f"boot/vmlinuz-{kernel}").write_text("")
    (directory / "DEBIAN/control").write_text(f"Package: test\nVersion: 1\nArchitecture: {architecture}\nMaintainer: a <b@c.d>\nDescription: x\n")
    subprocess.run(["dpkg-deb", "-b", directory, f"{directory}.deb"], check=True, capture_output=True)
    return Path(f"{directory}.deb")


STOLE = ["[    0.5] Linux version 7.2.9", "guest: kernel 7.2.9", "guest: NO_STEAL stole 0", "guest: STEAL stole 21", "guest: done"]


def test_boot_package(repo, guest):  # noqa: F811
    """All packages are installed; the release and its other suites are apt's sources. The guest's first program is a shell script."""
    done = guest(*STOLE, packages=[image(repo.tmp / "any"), image(repo.tmp / "modules", architecture="all", kernel="")], arguments=["--release", "trixie-backports"])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "kernel 7.2.9\nNO_STEAL stole 0\nSTEAL stole 21\nbooted and stole\n"
    hooks = (repo.tmp / "fakes/hooks").read_text().splitlines()
    assert [line.split()[3] for line in hooks if line.startswith("deb ")] == ["trixie", "trixie-security", "trixie-backports"]
    assert hooks[hooks.index("/dev/null") - 1] == "trixie"
    assert any("/boot/initrd.img-7.2.9+steal1.0-cloud-amd64" in hook for hook in hooks)
    assert {"tcg,thread=single", "-initrd"} <= set((repo.tmp / "fakes/qemu").read_text().splitlines())
    subprocess.run(["sh", "-n", repo.tmp / "fakes/init"], check=True)
    # this log, and no other
    assert [path.read_text().splitlines() for path in (repo.cache / "log").iterdir()] == [STOLE]


@pytest.mark.parametrize("at, line, message", [
    (2, "guest: NO_STEAL stole 3", "tasks are stolen although STEAL is off"),
    (3, "guest: STEAL stole 0", "no task is stolen"),
    (4, "guest: hackbench failed", "the guest did not come to its end"),
    (0, "[    0.5] WARNING: CPU: 0 PID: 1 at kernel/sched/fair.c:1", "the log has a warning")])
def test_boot_package_fails(guest, at, line, message):
    done = guest(*STOLE[:at], line, *STOLE[at + 1:])
    assert done.returncode == 1 and f"7.2.9+steal1.0-cloud-amd64: {message}" in done.stderr and "booted and stole" not in done.stdout


def test_boot_package_takes_too_long(guest, builder):
    (builder / "hangs").write_text("")
    done = guest(*STOLE[:3], arguments=["--timeout", "1"])
    assert done.returncode == 1 and "not finished after 1 seconds (--timeout; see above)" in done.stderr
    # a warning says more
    done = guest("watchdog: BUG: soft lockup - CPU#1 stuck for 22s!", arguments=["--timeout", "1"])
    assert done.returncode == 1 and "the log has a warning" in done.stderr


def test_boot_package_is_interrupted(repo, guest, builder):  # noqa: F811
    """At once, and QEMU ends, too."""
    guest(*STOLE)
    (builder / "hangs").write_text("")
    with subprocess.Popen(repo.command("boot-package", repo.tmp / "any.deb"), env=repo.env, cwd=repo.tmp / "cwd", stderr=subprocess.PIPE, text=True) as running:
        while "booting" not in running.stderr.readline():
            assert running.poll() is None
        running.terminate()
        assert running.wait(20) == 143
    assert not list(repo.cache.glob("boot-package.*"))


def test_boot_package_is_interrupted_early(repo, guest, builder):  # noqa: F811
    """mmdebstrap waits for what it has started."""
    guest(*STOLE)
    number = str(10 ** 6 + os.getpid())
    (builder / "waits").write_text(number)
    with subprocess.Popen(repo.command("boot-package", repo.tmp / "any.deb"), env=repo.env, cwd=repo.tmp / "cwd", stderr=subprocess.PIPE, text=True) as running:
        while "installing" not in running.stderr.readline():
            assert running.poll() is None
        wait_for(lambda: processes(f"sleep {number}"))
        running.terminate()
        assert running.wait(20) == 143
    assert not processes(f"sleep {number}") and not list(repo.cache.glob("boot-package.*"))


def test_boot_package_bad_input(repo, guest, builder):  # noqa: F811
    """A file that is no package, none of a kernel, or for another machine; two kernels; packages or a root directory that cannot be installed."""
    (repo.tmp / "text").write_text("")
    for file, message in {
            repo.tmp / "absent": "no such file", repo.tmp / "text": "not a Debian package",
            image(repo.tmp / "empty", kernel=""): "has no kernel image /boot/vmlinuz-RELEASE",
            image(repo.tmp / "other", architecture="arm64"): "is for arm64, but this machine is amd64"}.items():
        done = guest(packages=[file])
        assert done.returncode == 2 and done.stderr == f"boot-package: error: {file}: {message}\n"
    any_one = image(repo.tmp / "any")
    for arguments, message in {("--timeout", "soon", any_one): "--timeout 'soon' is not a number of seconds", (any_one, any_one): "a second kernel, beside 7.2.9+steal1.0",
                               ("--release", "Debian 13", any_one): "--release 'Debian 13' is not a release of Debian"}.items():
        done = guest(packages=arguments)
        assert done.returncode == 2 and message in done.stderr
    (builder / "broken").write_text("")
    done = guest(*STOLE)
    assert done.returncode == 3 and "refused\nboot-package: error: a root directory of " in done.stderr
    (builder / "failed").write_text("")
    done = guest(*STOLE)
    assert done.returncode == 1 and "7.2.9+steal1.0-cloud-amd64 cannot be installed (see above)" in done.stderr
