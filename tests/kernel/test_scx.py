# SPDX-License-Identifier: GPL-2.0
"""bench/scx builds its three kernels and scx_simple, and measures them; tests/harness/test_scx.py has the rest."""

import csv
import re
import tarfile

import pytest


@pytest.mark.full
def test_three_kernels(run, top, tmp_path):
    run(top / "bench/scx", "--groups", 1, "--loops", 10, "--runs", 2, "--out", tmp_path / "out")
    with (tmp_path / "out/runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert sorted((row["side"], row["exit"], row["valid"]) for row in rows) == [(side, "0", "yes") for side in ("all", "off", "scx") for _ in range(2)]
    assert all(float(row[f"metric:{name}"]) > 0 for row in rows for name in ("groups-1", "wake_p50", "request_p99"))
    # Only there the scheduler says what it did: it gave tasks to an idle CPU at once, and from its queue.
    for side in ("off", "all", "scx"):
        for archive in (tmp_path / "out/raw").glob(f"*-{side}.tar"):
            with tarfile.open(archive) as tar:
                name, = [name for name in tar.getnames() if name.endswith(f"-{side}/stdout")]
                said = tar.extractfile(name).read().decode()
            assert bool(re.search(r"^local=[1-9]\d* global=[1-9]", said, re.M)) == (side == "scx"), (archive, said)
