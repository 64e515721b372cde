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
        assert (float(row["steal"]) > 0) == (row["side"] == "all")
    assert not list(temporary.iterdir())


def test_loads_with_traces(comparison):
    """Two cases, two pairs and a traced one: what bench/ab writes."""
    said, out = comparison
    assert {"plan", "table.txt", "page.html", "runs.csv", "busy.csv", "speedup.svg"} < {path.name for path in out.iterdir()}
    assert {path.name for path in out.glob("raw/[!.]*")} == {f"hackbench-{groups}-{pair}.tar" for groups in (1, 2) for pair in (0, 1, 2)}
    assert (out / "table.txt").read_text() in said and "6 of 6 pairs" in said
    with (out / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12 and all((row["exit"], row["valid"]) == ("0", "yes") for row in rows)
    assert {(row["pair"], row["seed"]) for row in rows} == {("0", "1000"), ("1", "1001"), ("2", "1002")}
    wasted = [row["wasted_percent"] for row in rows if row["pair"] == "0"]
    assert len(wasted) == 4 and any(float(share) > 0 for share in wasted)
    # Pairs are different samples, and the cases have different amounts of work.
    assert len({row["time_ns"] for row in rows}) == 12
    assert all(float(row["busy_percent"]) > 0 and float(row["sched"]) > 0 for row in rows)
