# SPDX-License-Identifier: GPL-2.0
"""The loads other than hackbench on simulated machines, with bench/ab from end to end."""

import csv

import pytest
from commands import TOP, call


def compare(sim_kernel, out, *args, rc=0):
    """The messages, and the rows of runs.csv."""
    _, stderr = call(TOP / "bench/ab", "--machine", "2x2x1", "--kernel", sim_kernel, "--out", out, *args, rc=rc, timeout=3600)
    with open(out / "runs.csv", encoding="utf-8") as file:
        return stderr, list(csv.DictReader(file))


def test_loads(sim_kernel, tmp_path):
    out, words = tmp_path / "out", ["--load", "latency-1x fork-1.5x", "--runs", "2"]
    _, rows = compare(sim_kernel, out, *words)
    assert {path.name for path in out.glob("raw/[!.]*")} == {f"{case}-{pair}.tar" for pair in (1, 2)
                                                           for case in ("latency-1x", "fork-1.5x")}
    assert len(rows) == 8 and all((row["exit"], row["valid"], row["cpus"]) == ("0", "yes", "4") for row in rows)
    fork, latency = ([row for row in rows if row["load"] == load] for load in ("fork", "latency"))
    # 20 rounds of 6 tasks of 1000000 loops, of some instructions each, on 4 CPUs of 10^9 instructions a second
    assert {row["tasks"] for row in fork} == {"6"} and all(0.1 < float(row["metric:run_time"]) < 0.4 for row in fork)
    assert all(float(row["metric:wake_p50"]) > 0 and float(row["metric:rate"]) > 0 for row in latency)
    # Pairs are different samples.
    assert len({row["time_ns"] for row in rows}) == 8
    stderr, again = compare(sim_kernel, out, *words)
    assert again == rows and "units to run" not in stderr
    stderr, _ = compare(sim_kernel, out, "--load", "latency-1x", "--scale", "2", "--runs", "2", rc=2)
    assert "has runs of another comparison" in stderr and "now: scale 2" in stderr


@pytest.mark.full
def test_every_program(sim_kernel, tmp_path):
    names = ["pipe", "messaging-2x", "tbench-1x", "threads-2x", "mutex-1x", "switch-1x", "barrier-1.5x", "nice-1x"]
    # One pair is too few for a result.
    _, rows = compare(sim_kernel, tmp_path / "out", "--load", ",".join(names), "--runs", "1", rc=3)
    assert len(rows) == 2 * len(names) and all((row["exit"], row["valid"]) == ("0", "yes") for row in rows)
    for row in rows:
        assert any(float(value or 0) > 0 for name, value in row.items() if name.startswith("metric:")), row
