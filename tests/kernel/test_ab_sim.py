# SPDX-License-Identifier: GPL-2.0
"""bench/ab on a real simulated machine; tests/harness/test_ab.py has the rest."""

import csv
import os


def test_simulated_machine(run, top, sim_kernel, tmp_path):
    """Two nodes: the guest's busybox has all that the collector needs, and bench/ab understands what the kernel prints."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    said = run(top / "bench/ab", "--machine", "2x2x1", "--runs", 2, "--jobs", 1, "--kernel", sim_kernel, "--metric", "time",
               "--metric", r"hackbench=^Time: (\S+)$,s", "--out", tmp_path / "out", "--", "hackbench", "-g", 1, "-l", 20,
               env=os.environ | {"TMPDIR": str(temporary)}).stdout
    assert "2 of 2 pairs" in said and "2 measured, 2 used" in said
    with (tmp_path / "out/runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    for row in rows:
        assert row["cpus"] == "4" and 0 < float(row["metric:hackbench"]) <= float(row["time_ns"]) / 1e9 < 10
        assert all(float(row[name]) > 0 for name in ("busy_percent", "slice_ms", "sched", "wake", "find_percent", "across"))
        assert (float(row["steal"]) > 0) == (row["side"] == "on")
    assert not list(temporary.iterdir())
