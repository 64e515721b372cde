# SPDX-License-Identifier: GPL-2.0
"""The loads other than hackbench on simulated machines: bench/in-sim-loads from end to end."""

import csv
import re

import pytest
from commands import TOP, call


def in_sim(sim_kernel, out, *args, rc=0):
    return call(TOP / "bench/in-sim-loads", "--machine", "2x2x1", "--kernel", sim_kernel, "--out", out, *args, rc=rc, timeout=3600)


def test_in_sim(sim_kernel, tmp_path):
    out = tmp_path / "out"
    stdout, _ = in_sim(sim_kernel, out, "--loads", "latency-1x fork-1.5x", "--runs", "2")
    assert {p.name for p in out.iterdir() if p.name[0] != "."} == {
        "plan", "table.txt", "loads.csv", "runs.csv", *(f"run-{load}-{n}.raw" for load in ("latency-1x", "fork-1.5x") for n in (1, 2))}
    assert stdout == (out / "table.txt").read_text() and "failed" not in stdout
    with open(out / "loads.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8 and all(row["runs"] == row["baseline_runs"] == "2" for row in rows)
    # 20 rounds of 6 tasks of 1000000 loops, of some instructions each, on 4 CPUs of 10^9 instructions a second
    time = float(next(row for row in rows if row["load"] == "fork-1.5x")["baseline_median"])
    assert 0.1 < time < 0.4
    for path in out.glob("run-*.raw"):
        text = path.read_text()
        assert "\nsim topology 2x2x1\n" in text and "\ncpus 4\n" in text and re.search("^begin host .*-machine$", text, re.M)
        sides = re.findall(r"^side (\w+)$", text, re.M)
        assert sides == (["off", "on"] if "-1.raw" in path.name else ["on", "off"])
    # Pairs are different samples, sides of a pair the same work.
    assert len({row["baseline_median"] for row in rows}) == len(rows)
    again, stderr = in_sim(sim_kernel, out, "--loads", "latency-1x fork-1.5x", "--runs", "2")
    assert again == stdout and "all runs are in" in stderr
    _, stderr = in_sim(sim_kernel, out, "--loads", "latency-1x", "--scale", "2", rc=1)
    assert "has runs of another comparison" in stderr and "> scale 2" in stderr


@pytest.mark.full
def test_in_sim_with_every_program(sim_kernel, tmp_path):
    names = ["pipe", "messaging-2x", "tbench-1x", "threads-2x", "mutex-1x", "switch-1x", "barrier-1.5x", "nice-1x"]
    in_sim(sim_kernel, tmp_path / "out", "--loads", " ".join(names), "--runs", "1")
    with open(tmp_path / "out/loads.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(dict.fromkeys(sorted(row["load"] for row in rows))) == sorted(names)
    assert all(row["runs"] == row["baseline_runs"] == "1" and float(row["median"]) > 0 for row in rows)
