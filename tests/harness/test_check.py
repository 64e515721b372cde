# SPDX-License-Identifier: GPL-2.0
"""scripts/check, on a checkout with four small tests."""

import os
import re
import shutil
import signal
import subprocess
import time

import pytest
from commands import gone, wait_for

HARNESS = """import os, pytest

def test_passes(): assert os.environ["PYTEST_XDIST_WORKER"]

def test_fails_at_first(): assert os.path.exists(os.environ["MENDED"])
"""
KERNEL = """import os, pytest

def test_boots(): assert "PYTEST_XDIST_WORKER" not in os.environ

@pytest.mark.full
def test_takes_long(): pass

@pytest.mark.line
def test_fits_each_line(): pass
"""


SLEEPS = """
import pytest

@pytest.fixture
def defect():
    yield
    open("DIR/taken-back", "w").close()

def test_sleeps(run, defect):
    run("sh", "-c", "echo $$ >DIR/new && mv DIR/new DIR/pid && exec sleep 300")
"""


@pytest.fixture
def check(top, tmp_path):
    """check(ARGUMENT...): the exit status, the names of the tests that ran, and the output."""
    for part, text in [("harness", HARNESS), ("kernel", KERNEL)]:
        (tmp_path / "tests" / part).mkdir(parents=True)
        (tmp_path / "tests" / part / "test_it.py").write_text(text)
    shutil.copy(top / "tests/pytest.ini", tmp_path / "tests")
    (tmp_path / "scripts").mkdir()
    for name in ["check", "lib.sh"]:
        shutil.copy(top / "scripts" / name, tmp_path / "scripts")
    (tmp_path / "patches").mkdir()
    shutil.copy(top / "patches/lines", tmp_path / "patches")
    (tmp_path / "scripts/setup").write_text("#!/bin/sh\n")
    (tmp_path / "scripts/setup").chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment.update(STEAL_CACHE=str(tmp_path / "cache"), MENDED=str(tmp_path / "mended"))

    def check(*arguments):
        done = subprocess.run([tmp_path / "scripts/check", *arguments], env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=600, check=False)
        ran = re.findall(r"(?:PASSED|FAILED) .*::(\w+)|::(\w+) (?:PASSED|FAILED) ", done.stdout)
        return done.returncode, sorted(set(filter(None, sum(ran, ())))), done.stdout

    check.mended = tmp_path / "mended"
    check.environment = environment
    return check


def test_the_second_part_runs_if_the_first_fails(check):
    status, ran, said = check()
    assert (status, ran) == (1, ["test_boots", "test_fails_at_first", "test_fits_each_line", "test_passes"]), said
    lines = said.splitlines()
    assert re.search("= 1 failed, 1 passed in ", lines[-2]) and re.search("= 2 passed, 1 deselected in ", lines[-1])
    # the parts' own output is there as well
    assert lines.count(lines[-1]) == lines.count(lines[-2]) == 2
    assert check("--lf")[:2] == (1, ["test_fails_at_first"])
    check.mended.write_text("")
    assert check("--lf")[:2] == (0, ["test_fails_at_first"])
    assert check("--full")[:2] == (0, ["test_boots", "test_fails_at_first", "test_fits_each_line", "test_passes", "test_takes_long"])


def test_a_part_that_is_killed_is_no_success(check, tmp_path):
    check.mended.write_text("")
    (tmp_path / "tests/kernel/test_it.py").write_text("import os\n\ndef test_kills(): os.kill(os.getpid(), 9)\n")
    status, ran, said = check()
    assert (status, ran) == (1, ["test_fails_at_first", "test_passes"]), said


def test_a_selection_of_one_part(check):
    assert check("-k", "passes")[:2] == (0, ["test_passes"])
    status, ran, said = check("tests/kernel/test_it.py")
    assert (status, ran) == (0, ["test_boots", "test_fits_each_line"]) and said.count("test session starts") == 1
    assert check("tests/harness/test_it.py::test_passes")[:2] == (0, ["test_passes"])


def test_another_line(check):
    """Only the tests of the kernel that fit each line."""
    assert check("--kernel", "6.12")[:2] == (0, ["test_fits_each_line"])
    assert check("--kernel", "6.12", "--mutants")[:2] == (5, [])


def test_what_passed_is_written(check, tmp_path):
    """The commit at which the tests of a line passed, if all did, and if the commit is what was tested."""
    lines = tmp_path / "patches/lines"
    before = lines.read_text()
    for words in ["init", "-q"], ["add", "-A"], ["-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "-qm", "all"]:
        subprocess.run(["git", "-C", tmp_path, *words], check=True)
    for arguments in ["--write"], ["--kernel", "6.12", "--write", "-k", "fits"]:
        assert check(*arguments)[:2] == (2, [])
    test = tmp_path / "tests/kernel/test_it.py"
    text = test.read_text()
    test.write_text(text + "\n")
    status, ran, said = check("--kernel", "6.12", "--write")
    assert (status, ran) == (2, []) and "has changes that are not in git" in said
    git = ["git", "-C", tmp_path, "-c", "user.name=test", "-c", "user.email=test@localhost"]
    test.write_text(text.replace("def test_fits_each_line(): pass", "def test_fits_each_line(): assert False"))
    subprocess.run([*git, "commit", "-qam", "worse"], check=True)
    assert check("--kernel", "6.12", "--write")[:2] == (1, ["test_fits_each_line"])
    test.write_text(text)
    subprocess.run([*git, "commit", "-qam", "better"], check=True)
    test.write_text(text.replace("def test_fits_each_line(): pass", "def test_fits_each_line():\n    import subprocess\n    subprocess.run("
                                 f"{[*map(str, git), 'commit', '-q', '--allow-empty', '-m', 'meanwhile']}, check=True)"))
    subprocess.run([*git, "commit", "-qam", "one that commits"], check=True)
    status, ran, said = check("--kernel", "6.12", "--write")
    assert (status, ran) == (2, ["test_fits_each_line"]) and "check: error: --write: the tests began on commit" in said
    test.write_text(text)
    subprocess.run([*git, "commit", "-qam", "as before"], check=True)
    assert lines.read_text() == before
    (tmp_path / "new").write_text("")
    assert check("--kernel", "6.12", "--write")[0] == 2
    (tmp_path / "new").unlink()
    assert check("--kernel", "6.12", "--write")[0] == 0
    commit = subprocess.run(["git", "-C", tmp_path, "rev-parse", "--short=12", "HEAD"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    rows = [line.split("\t") for line in lines.read_text().splitlines()]
    assert [row[8] for row in rows if row[0] == "6.12"] == [commit]
    assert [row[:8] + row[9:] for row in rows if row[0] == "6.12"] == [row[:8] + row[9:] for row in
                                                                    (line.split("\t") for line in before.splitlines()) if row[0] == "6.12"]
    assert [row for row in rows if row[0] != "6.12"] == [line.split("\t") for line in before.splitlines() if not line.startswith("6.12")]


def test_what_is_killed_ends_in_order(check, top, tmp_path):
    """The commands of the tests end, and what a fixture did is taken back."""
    shutil.copy(top / "tests/conftest.py", tmp_path / "tests")
    (tmp_path / "tests/kernel/test_it.py").write_text(SLEEPS.replace("DIR", str(tmp_path)))
    with subprocess.Popen([tmp_path / "scripts/check", "tests/kernel"], env=check.environment, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL) as child:
        try:
            wait_for((tmp_path / "pid").exists)
        finally:
            child.terminate()
    wait_for((tmp_path / "taken-back").exists)
    wait_for(lambda: gone(int((tmp_path / "pid").read_text())))


@pytest.mark.parametrize("first, hangup", [
    (signal.SIGINT, signal.SIG_DFL), (signal.SIGTERM, signal.SIG_DFL), (signal.SIGHUP, signal.SIG_DFL), (signal.SIGTERM, signal.SIG_IGN)])
def test_pytest_ends_in_order(top, tmp_path, first, hangup):
    """Also if more signals follow, and, if it ignores SIGHUP as under nohup, not at that."""
    def dispositions():
        # a shell ignores SIGINT for its background jobs
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, hangup)

    shutil.copy(top / "tests/conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(SLEEPS.replace("DIR", str(tmp_path)).replace(
        "    yield\n", f"    yield\n    open('{tmp_path}/begun', 'w').close()\n    import time; time.sleep(2)\n"))
    with subprocess.Popen(["/usr/bin/python3", "-m", "pytest", "-p", "no:cacheprovider", "test_it.py"], cwd=tmp_path, start_new_session=True,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          preexec_fn=dispositions) as child:
        try:
            wait_for((tmp_path / "pid").exists)
            if hangup == signal.SIG_IGN:
                child.send_signal(signal.SIGHUP)
                time.sleep(1)
                assert not gone(int((tmp_path / "pid").read_text()))
            child.send_signal(first)
            wait_for((tmp_path / "begun").exists)
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                child.send_signal(number)
            assert child.wait(60) == 2
        finally:
            child.kill()
    assert (tmp_path / "taken-back").exists()
    wait_for(lambda: gone(int((tmp_path / "pid").read_text())))


@pytest.mark.parametrize("arguments, status, message", [
    (["-k", "nosuch"], 5, "deselected"), (["tests/kernel/test_none.py"], 1, "no such test file"),
    (["--full", "--mutants"], 2, "exclude each other"), (["--nosuch"], 2, "unrecognized arguments: --nosuch")])
def test_what_selects_nothing_is_no_success(check, arguments, status, message):
    result, ran, said = check(*arguments)
    assert (result, ran) == (status, []) and message in said, said
