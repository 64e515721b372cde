# SPDX-License-Identifier: GPL-2.0
"""The repository: shellcheck, licenses, usage texts, documentation."""

import pathlib
import re
import subprocess

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]


def tracked():
    out = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=TOP,
                         stdout=subprocess.PIPE, check=True).stdout
    return [TOP / name for name in out.decode().split("\0") if name and (TOP / name).is_file()]


def shell_scripts():
    def first(path):
        with path.open("rb") as file:
            return file.readline(200)
    return [p for p in tracked() if re.match(rb"#!.*\b(ba)?sh\b", first(p)) or p.suffix == ".sh"]


def test_shellcheck(run):
    scripts = shell_scripts()
    assert len(scripts) >= 10
    run("shellcheck", *scripts)


@pytest.mark.parametrize("script", [p for p in shell_scripts() if p.name not in ("lib.sh", "switch.sh", "unit.sh", "pool.sh", "tree.sh", "init", "run") and "guest" not in p.parts],
                         ids=lambda p: str(p.relative_to(TOP)))
def test_help(run, script):
    out = run(script, "--help").stdout
    assert out.startswith("Usage: "), out
    assert "shellcheck" not in out, out


def test_init_of_the_guest_refuses_a_host(run):
    """As nobody, who could not do harm with it."""
    assert not (TOP / "sim/guest/init").stat().st_mode & 0o111
    done = run("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", "exec sh /dev/stdin --help", check=False,
               cwd="/", stdin=(TOP / "sim/guest/init").open())
    assert done.returncode == 2 and "PID 1 only" in done.stdout and len(done.stdout.splitlines()) == 1, done.stdout


def test_every_file_names_its_license():
    without = []
    for path in tracked():
        relative = path.relative_to(TOP)
        if relative.parts[0] == "patches" or relative.name in (
                "LICENSE", "MAINTAINERS.snippet", "cover-letter.txt"):
            continue  # their format has no place for it
        if relative.parts[:2] == ("Documentation", "results"):
            continue  # raw records, as they came
        if relative.parts[:2] == ("tests", "data") and path.suffix != ".md" and relative.name != "README":
            continue  # recorded as they came
        if b"SPDX-License-Identifier: GPL-2.0" not in path.read_bytes()[:600]:
            without.append(str(relative))
    assert not without, without


def test_documentation_builds(run, top, tmp_path):
    run("/usr/bin/python3", "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", tmp_path / "doctrees",
        top / "Documentation", tmp_path / "html")


def test_readme_names_what_is_there():
    """Every path in the README's layout table exists."""
    text = (TOP / "README.md").read_text()
    paths = re.findall(r"^\| `([^`]+)` \|", text, re.M)
    assert len(paths) >= 8
    missing = [p for p in paths if not (TOP / p).exists()]
    assert not missing, missing


def test_series_and_patches_agree(series, extras):
    there = sorted(p for p in (TOP / "patches").rglob("*.patch") if not p.name.startswith("0000"))
    assert series + extras == there
