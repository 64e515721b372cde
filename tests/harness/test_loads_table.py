# SPDX-License-Identifier: GPL-2.0
"""bench/loads-table: the table of the loads other than hackbench, on records made by hand."""

import csv
import re
import subprocess

import pytest
from commands import TOP

TABLE = TOP / "bench/loads-table"

SESSION = """begin session {name}
format 1
release 7.3.4
version #1
machine aarch64
cpus {cpus}
scale {scale}
sides {sides}
side_features off NO_STEAL
side_features on STEAL
online 0-3
model Fake
program fake 1.0
end session
"""


def session(name="s", cpus=4, scale=1, sides="off on"):
    return SESSION.format(name=name, cpus=cpus, scale=scale, sides=sides)


def record(load, side, *metrics, name="s", status=0, valid="yes"):
    lines = [f"begin run {name}", f"load {load}", f"side {side}", f"exit {status}", f"valid {valid}"]
    return "\n".join(lines + [f"metric {metric}" for metric in metrics] + ["end run", ""])


def pairs(load, metric, off, on):
    """Runs of both sides; METRIC is "NAME UNIT BETTER"."""
    return "".join(record(load, side, f"{metric} {value}") for side, values in (("off", off), ("on", on)) for value in values)


def make(tmp_path, text, *args, rc=0):
    """loads-table's (table, messages, CSV's rows) for this raw file."""
    (tmp_path / "raw").mkdir(exist_ok=True)
    (tmp_path / "raw/loads.raw").write_text(text)
    done = subprocess.run([TABLE, *args, tmp_path / "raw"], capture_output=True, text=True, check=False)
    assert done.returncode == rc, done.stdout + done.stderr
    rows = {}
    if rc == 0:
        assert (tmp_path / "raw/table.txt").read_text() == done.stdout
        with open(tmp_path / "raw/loads.csv", encoding="utf-8") as file:
            rows = {(row["load"], row["metric"], row["side"]): row for row in csv.DictReader(file)}
    return done.stdout, done.stderr, rows


FAST, SLOW, MIXED = [9, 9.5, 10, 10.5, 10.9], [11, 11.5, 12, 12.5, 13], ([10, 12, 11, 13, 9], [11, 9.5, 12.5, 10.5, 13.5])
MORE, LESS = 20.0, 100 * (10 / 12 - 1)


def test_better_and_verdict(tmp_path):
    """Samples that do not overlap: what takes less time is better, and what is more a second. A share is neither."""
    cases = [("time s lower", SLOW, FAST, MORE, "GAIN"), ("time s lower", FAST, SLOW, LESS, "LOSS"),
             ("rate MB/s higher", SLOW, FAST, LESS, "LOSS"), ("rate MB/s higher", FAST, SLOW, MORE, "GAIN"),
             ("share % same", FAST, SLOW, MORE, "DIFF"), ("share % same", SLOW, FAST, LESS, "DIFF"),
             # less than 1 % apart
             ("share % same", [50.0, 50.01, 50.02, 50.03, 50.04], [50.3, 50.31, 50.32, 50.33, 50.34], 100 * (50.32 / 50.02 - 1), "same")]
    said, _, rows = make(tmp_path, session() + "".join(pairs(f"x-{i}", *case[:3]) for i, case in enumerate(cases, 1)))
    assert len(rows) == len(cases)
    for row, (metric, off, on, better, verdict) in zip(rows.values(), cases):
        assert float(row["percent_better"]) == pytest.approx(better)
        assert float(row["percent_low"]) <= float(row["percent_better"]) <= float(row["percent_high"])
        # five against five: 2 / (10 over 5)
        assert float(row["p"]) == pytest.approx(2 / 252) and row["verdict"] == verdict
        assert (row["runs"], row["baseline_runs"]) == ("5", "5")
        assert [float(row[name]) for name in ("baseline_median", "median")] == [off[2], on[2]]
        line = next(line for line in said.splitlines() if line.split()[0] == row["load"]).split()
        assert line[1:3] == metric.split()[:2] and line[5] == f"{better:.1f}" and verdict in line


def test_not_told_apart(tmp_path):
    cases = [("time s lower", *MIXED, "same?"), ("rate MB/s higher", *MIXED, "same?"), ("share % same", *MIXED, "same?"),
             # known within 1 %, or not
             ("share % same", [50, 50.01, 50.02, 50.03, 50.04], [50.005, 50.015, 50.025, 50.035, 49.99], "same"),
             ("share % same", [50, 50.1, 50.2, 50.3, 50.4], [48, 48.5, 50.15, 50.25, 50.35], "same?"),
             ("share % same", [48, 48.5, 50.15, 50.25, 50.35], [50, 50.1, 50.2, 50.3, 50.4], "same?")]
    _, _, rows = make(tmp_path, session() + "".join(pairs(f"x-{i}", *case[:3]) for i, case in enumerate(cases, 1)))
    assert [row["verdict"] for row in rows.values()] == [case[3] for case in cases]
    assert all(float(row["p"]) >= 0.05 for row in rows.values())


def test_failed_and_invalid_runs_do_not_count(tmp_path):
    text = session() + pairs("x-1x", "time s lower", [3, 3], [2, 2])
    text += record("x-1x", "on", "time s lower 100", status=1) + record("x-1x", "on", "time s lower 100", valid="no")
    said, _, rows = make(tmp_path, text)
    assert float(rows["x-1x", "time", "on"]["percent_better"]) == pytest.approx(50)
    assert "not in the table: 2" in said and "2 runs against 2 cannot have p below 0.33" in said


def test_several_metrics_loads_files_and_sides(tmp_path):
    sides = "off on other"
    text = session(sides=sides)
    for load in ("b-1x", "a"):
        for side, value in (("off", 4), ("on", 2), ("other", 8)):
            text += record(load, side, f"time s lower {value}", f"rate 1/s higher {value}")
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/more.raw").write_text(session("t", sides=sides) + record("a", "on", "time s lower 3", name="t"))
    _, _, rows = make(tmp_path, text)
    assert list(rows) == [(load, metric, side) for load in ("b-1x", "a") for metric in ("time", "rate") for side in ("on", "other")]
    better = {key: float(row["percent_better"]) for key, row in rows.items()}
    assert better["b-1x", "time", "on"] == 100 and better["b-1x", "rate", "on"] == -50
    assert better["a", "time", "other"] == -50 and better["a", "rate", "other"] == 100
    assert rows["a", "time", "on"]["runs"] == "2" and better["a", "time", "on"] == pytest.approx(60)


def test_a_side_without_runs_and_an_incomplete_record(tmp_path):
    said, stderr, rows = make(tmp_path, session() + record("a", "off", "time s lower 4") + "begin run s\nload a\n")
    assert rows["a", "time", "on"]["verdict"] == "-" and rows["a", "time", "on"]["percent_better"] == ""
    assert re.search(r"^ *a +time +s +4 +- +- .* 1,0$", said, re.M), said
    assert "incomplete run record" in stderr and len(rows) == 1


@pytest.mark.parametrize("text,message", [
    (session() + record("a", "off", "time s lower 4", status=1), "no run with a result"),
    (session() + record("a", "up", "time s lower 4"), "side 'up' is not among the session's sides, off on"),
    (session() + record("a", "off", "time s lower"), "not understood: metric time s lower"),
    (session() + record("a", "off", "time s lower x"), "not understood: metric time s lower x"),
    (session() + record("a", "off", "time s smaller 4"), "not understood: metric time s smaller 4"),
    (session() + record("a", "off", "time s lower 4") + record("a", "on", "time us lower 4"), "is in us (lower is better), but in s"),
    (record("a", "off", "time s lower 4"), "no session record before it"),
    (session() + record("a", "off", "time s lower 4") + session("t", scale=2), "has scale '2', but session s"),
])
def test_raw_files_that_make_no_table(tmp_path, text, message):
    _, stderr, _ = make(tmp_path, text, rc=1)
    assert message in stderr and "Traceback" not in stderr


@pytest.mark.parametrize("args,rc,message", [
    ([], 2, "PATH is missing"), (["--what"], 2, "unknown option: --what"), (["--out"], 2, "--out needs a value"),
    (["/nonexistent.raw"], 1, "cannot read /nonexistent.raw"), (["EMPTY"], 1, "has no *.raw file"),
])
def test_usage_errors(tmp_path, args, rc, message):
    args = [str(tmp_path) if word == "EMPTY" else word for word in args]
    done = subprocess.run([TABLE, *args], capture_output=True, text=True, check=False)
    assert done.returncode == rc and message in done.stderr and "Traceback" not in done.stderr
