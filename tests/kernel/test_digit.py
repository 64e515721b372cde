# SPDX-License-Identifier: GPL-2.0
"""The published figures, to the digit: images and simulated runs do not depend on directory, user, umask or earlier builds."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "bench"))

from ablib import again  # noqa: E402

USERS = [("one", 0o022, {}),
         ("another/of/a/longer/name", 0o077, {"GIT_COMMITTER_NAME": "Some Body", "GIT_COMMITTER_EMAIL": "some@example.com", "TZ": "Asia/Tokyo",
                                              "LC_ALL": "C.UTF-8", "USER": "body", "LOGNAME": "body", "LOCALVERSION": "-mine"})]


@pytest.fixture
def places(cache):
    """Directories of the two users, on the disk of the cache: two kernels are too large for memory."""
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="digit-", dir=cache) as place:
        yield [Path(place) / name for name, _, _ in USERS]


@pytest.mark.full
def test_two_directories(run, top, cache, places):
    """Each user clones, builds and measures one pair. A second build, of a patch with another message, gives the same image, too."""
    plans, runs = [], []
    for place, (_, umask, environment) in zip(places, USERS):
        download = place / "cache/download"
        download.mkdir(parents=True)
        # Not downloaded again.
        for file in (cache / "download").glob("*"):
            shutil.copy(file, download)
        more = {"umask": umask, "env": os.environ | environment | {"STEAL_CACHE": str(place / "cache")}}
        run("git", "clone", "-q", top, place / "project", **more)
        # One pair is too few for a result, so the status is 3.
        said = run(place / "project/bench/ab", "--machine", "1x2x1", "--caches", "intel", "--load", "hackbench-1", "--loops", 20, "--runs", 1,
                   "--jobs", 1, "--out", place / "out", check=False, cwd=place, **more)
        assert said.returncode == 3 and "1 complete pair, and a comparison needs 2" in said.stdout, said.stdout
        plans.append((place / "out/plan").read_text())
        runs.append(again.measured(place / "out/runs.csv"))
        build = [place / "project/scripts/build", "--arch", "arm64", "--config", "guest,steal,sim"]
        image = Path(subprocess.run(build, stdout=subprocess.PIPE, text=True, check=True, **more).stdout.strip())
        before = image.read_bytes()
        for file in image.parents[3].glob("vmlinux*"):
            file.unlink()
        tree, = (place / "cache").glob("linux-*/.git")
        run("git", "-c", "user.name=test", "-c", "user.email=test", "commit", "-q", "--amend", "-m", "another message", cwd=tree.parent)
        run(*build, **more)
        assert image.read_bytes() == before, "the second build in a directory gives another image"
        # The kernel of one user is enough for the disk.
        shutil.rmtree(place / "cache")
    assert "\nhash_kernel_patched " in plans[0] and "\nguest " in plans[0] and plans[0] == plans[1]
    assert len(runs[0]) == 2 and runs[0] == runs[1]
