# SPDX-License-Identifier: GPL-2.0
"""scripts/check --continue: what has passed on a commit is not run again there."""

import os
import re
import shutil
import subprocess
import sys

import pytest

TESTS = """import os

def test_passes(): pass

def test_fails_at_first(): assert os.path.exists(os.environ["MENDED"])
"""


@pytest.fixture
def session(top, tmp_path):
    """session(ARGUMENT...): the status and the output of pytest in a repository with two tests."""
    repository = tmp_path / "repository"
    (repository / "tests").mkdir(parents=True)
    shutil.copy(top / "tests/conftest.py", repository / "tests")
    (repository / "tests/test_two.py").write_text(TESTS)
    git = ["git", "-C", repository, "-c", "user.name=a", "-c", "user.email=a@example.org"]

    def commit():
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-qm", "a"], check=True)

    def session(*arguments):
        environment = {**os.environ, "STEAL_CACHE": str(tmp_path / "cache"), "MENDED": str(tmp_path / "mended"), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", *arguments, "tests"], cwd=repository,
                              env=environment, capture_output=True, text=True, check=False)
        return done.returncode, re.findall(r"::(\w+) (PASSED|FAILED)", done.stdout), done.stdout + done.stderr

    subprocess.run(["git", "init", "-q", repository], check=True)
    commit()
    session.repository, session.commit, session.mended = repository, commit, tmp_path / "mended"
    return session


BOTH = ["test_passes", "test_fails_at_first"]


def test_only_what_has_not_passed_runs_again(session):
    assert session()[:2] == (1, [(BOTH[0], "PASSED"), (BOTH[1], "FAILED")])
    status, ran, said = session("--continue")
    assert (status, ran) == (1, [(BOTH[1], "FAILED")]) and "1 tests left out" in said
    session.mended.write_text("")
    assert session("--continue")[:2] == (0, [(BOTH[1], "PASSED")])
    # without the option all run
    assert session()[:2] == (0, [(name, "PASSED") for name in BOTH])
    status, ran, said = session("--continue")
    assert (status, ran) == (0, []) and "2 tests left out" in said


def test_another_commit_begins_anew(session):
    session.mended.write_text("")
    assert session()[0] == 0
    (session.repository / "file").write_text("")
    session.commit()
    assert session("--continue")[:2] == (0, [(name, "PASSED") for name in BOTH])


def test_changes_have_no_record(session):
    session.mended.write_text("")
    (session.repository / "file").write_text("")
    assert session()[0] == 0
    status, ran, said = session("--continue")
    assert status == 4 and ran == [] and "the checkout has changes" in said
    (session.repository / "file").unlink()
    assert len(session("--continue")[1]) == 2


def test_a_name_that_is_none_is_no_success(session):
    session.mended.write_text("")
    assert session()[0] == 0
    assert session("--continue", "-k", "nosuch")[:2] == (5, [])
