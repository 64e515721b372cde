# SPDX-License-Identifier: GPL-2.0
"""The loads other than hackbench: the table, the collector bench/run-loads.sh on made-up machines with programs that
print what they are told, bench/load.c, and all of it on simulated machines."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from test_hackbench import ONE_PER_SHELL, Machine, gone, wait_for

TOP = Path(__file__).resolve().parents[2]
TABLE = TOP / "bench/loads-table"
COLLECTOR = TOP / "bench/run-loads.sh"


# bench/loads-table

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


# Five against five that do not overlap: 2 / (10 over 5).
CLEAR = 2 / 252


@pytest.mark.parametrize("metric,off,on,better,verdict", [
    # 12 / 10 and 10 / 12: what takes less time is better
    ("time s lower", [11, 11.5, 12, 12.5, 13], [9, 9.5, 10, 10.5, 10.9], 20.0, "GAIN"),
    ("time s lower", [9, 9.5, 10, 10.5, 10.9], [11, 11.5, 12, 12.5, 13], 100 * (10 / 12 - 1), "LOSS"),
    # and what is more a second
    ("rate MB/s higher", [11, 11.5, 12, 12.5, 13], [9, 9.5, 10, 10.5, 10.9], 100 * (10 / 12 - 1), "LOSS"),
    ("rate MB/s higher", [9, 9.5, 10, 10.5, 10.9], [11, 11.5, 12, 12.5, 13], 20.0, "GAIN"),
    # a share that moves is neither
    ("share_nice0 % same", [9, 9.5, 10, 10.5, 10.9], [11, 11.5, 12, 12.5, 13], 20.0, "DIFF"),
    ("share_nice0 % same", [11, 11.5, 12, 12.5, 13], [9, 9.5, 10, 10.5, 10.9], 100 * (10 / 12 - 1), "DIFF"),
    # told apart, but less than 1 % apart
    ("share_nice0 % same", [50.0, 50.01, 50.02, 50.03, 50.04], [50.3, 50.31, 50.32, 50.33, 50.34],
     100 * (50.32 / 50.02 - 1), "same"),
])
def test_better_and_verdict(tmp_path, metric, off, on, better, verdict):
    said, _, rows = make(tmp_path, session() + pairs("x-1x", metric, off, on))
    row = rows["x-1x", metric.split()[0], "on"]
    assert float(row["percent_better"]) == pytest.approx(better)
    assert float(row["percent_low"]) <= float(row["percent_better"]) <= float(row["percent_high"])
    assert float(row["p"]) == pytest.approx(CLEAR) and row["verdict"] == verdict
    assert (row["runs"], row["baseline_runs"]) == ("5", "5")
    line = next(line for line in said.splitlines() if line.split()[0] == "x-1x").split()
    medians = [sorted(values)[2] for values in (off, on)]
    assert line[1:3] == metric.split()[:2] and [float(word) for word in line[3:5]] == medians
    assert line[5] == f"{better:.1f}" and line[-3:] == ["0.0079", verdict, "5"]


@pytest.mark.parametrize("metric,off,on,verdict", [
    ("time s lower", [10, 12, 11, 13, 9], [11, 9.5, 12.5, 10.5, 13.5], "same?"),
    ("rate MB/s higher", [10, 12, 11, 13, 9], [11, 9.5, 12.5, 10.5, 13.5], "same?"),
    # known within 1 %, or not
    ("share_nice0 % same", [50, 50.01, 50.02, 50.03, 50.04], [50.005, 50.015, 50.025, 50.035, 49.99], "same"),
    ("share_nice0 % same", [10, 12, 11, 13, 9], [11, 9.5, 12.5, 10.5, 13.5], "same?"),
    ("share_nice0 % same", [50, 50.1, 50.2, 50.3, 50.4], [48, 48.5, 50.15, 50.25, 50.35], "same?"),
    ("share_nice0 % same", [48, 48.5, 50.15, 50.25, 50.35], [50, 50.1, 50.2, 50.3, 50.4], "same?"),
])
def test_not_told_apart(tmp_path, metric, off, on, verdict):
    _, _, rows = make(tmp_path, session() + pairs("x-1x", metric, off, on))
    (row,) = rows.values()
    assert float(row["p"]) >= 0.05 and row["verdict"] == verdict


def test_failed_and_invalid_runs_do_not_count(tmp_path):
    text = session() + pairs("x-1x", "time s lower", [3, 3], [2, 2])
    text += record("x-1x", "on", "time s lower 100", status=1) + record("x-1x", "on", "time s lower 100", valid="no")
    said, _, rows = make(tmp_path, text)
    assert float(rows["x-1x", "time", "on"]["percent_better"]) == pytest.approx(50)
    assert "not in the table: 2" in said
    assert "2 runs against 2 cannot have p below 0.33" in said


def test_several_metrics_loads_files_and_sides(tmp_path):
    sides = "off on other"
    text = session(sides=sides)
    for load in ("b-1x", "a"):
        for side, value in (("off", 4), ("on", 2), ("other", 8)):
            text += record(load, side, f"time s lower {value}", f"rate 1/s higher {value}")
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/more.raw").write_text(session("t", sides=sides) + record("a", "on", "time s lower 3", name="t"))
    said, _, rows = make(tmp_path, text)
    assert list(rows) == [(load, metric, side) for load in ("b-1x", "a") for metric in ("time", "rate") for side in ("on", "other")]
    better = {key: float(row["percent_better"]) for key, row in rows.items()}
    assert better["b-1x", "time", "on"] == 100 and better["b-1x", "rate", "on"] == -50
    assert better["a", "time", "other"] == -50 and better["a", "rate", "other"] == 100
    assert rows["a", "time", "on"]["runs"] == "2" and better["a", "time", "on"] == pytest.approx(60)
    assert re.search(r"^ *a +time +s +4 +other +8 +-50\.0 ", said, re.M), said


def test_a_side_without_runs(tmp_path):
    said, _, rows = make(tmp_path, session() + record("a", "off", "time s lower 4"))
    assert rows["a", "time", "on"]["verdict"] == "-" and rows["a", "time", "on"]["percent_better"] == ""
    assert re.search(r"^ *a +time +s +4 +- +- .* 1,0$", said, re.M), said


@pytest.mark.parametrize("text,message", [
    (session(), "no run with a result"),
    (session() + record("a", "off", "time s lower 4", status=1), "no run with a result in"),
    (session() + record("a", "up", "time s lower 4"), "side 'up' is not among the session's sides, off on"),
    (session() + record("a", "off", "time s lower"), "not understood: metric time s lower"),
    (session() + record("a", "off", "time s lower x"), "not understood: metric time s lower x"),
    (session() + record("a", "off", "time s smaller 4"), "not understood: metric time s smaller 4"),
    (session() + record("a", "off", "time s lower 4") + record("a", "on", "time us lower 4"), "is in us (lower is better), but in s"),
    (record("a", "off", "time s lower 4"), "which is not described before"),
    (session() + record("a", "off", "time s lower 4") + session("t", scale=2), "has scale '2', but session s"),
    (session() + record("a", "off", "time s lower 4") + session("t", cpus=5), "has cpus '5', but session s"),
])
def test_raw_files_that_make_no_table(tmp_path, text, message):
    _, stderr, _ = make(tmp_path, text, rc=1)
    assert message in stderr and "Traceback" not in stderr


def test_incomplete_record_is_named(tmp_path):
    _, stderr, rows = make(tmp_path, session() + record("a", "off", "time s lower 4") + "begin run s\nload a\n")
    assert "incomplete run record" in stderr and len(rows) == 1


@pytest.mark.parametrize("args,rc,message", [
    ([], 2, "no PATH"), (["--what"], 2, "unknown option: --what"), (["--out"], 2, "--out needs a value"),
    (["/nonexistent.raw"], 1, "cannot read /nonexistent.raw"), (["EMPTY"], 1, "no *.raw in there"),
])
def test_wrong_calls_of_the_table(tmp_path, args, rc, message):
    args = [str(tmp_path) if word == "EMPTY" else word for word in args]
    done = subprocess.run([TABLE, *args], capture_output=True, text=True, check=False)
    assert done.returncode == rc and message in done.stderr and "Traceback" not in done.stderr


# bench/run-loads.sh, with programs that print what the real ones do.

FAKE_PROGRAM = '''#!%s
import json, os, pathlib, subprocess, sys, time
root = pathlib.Path(os.environ["FAKE_ROOT"])
name, args = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
if args[:1] in (["--version"], ["--help"]):
    print({"perf": "perf version 6.1", "tbench": "dbench version 4.00"}.get(name, name + " 1.0"))
    sys.exit(0)
side = "on" if (root / "sys/kernel/debug/sched/features").read_text().split() == ["STEAL"] else "off"
with open(root / "calls", "a") as calls:
    calls.write(json.dumps([name, side, args]) + "\\n")
do = json.loads((root / "do.json").read_text()).get(name, {})
if do.get("hang"):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    (root / "pids").write_text("%%d %%d" %% (os.getpid(), child.pid))
    time.sleep(300)
if do.get("meddle"):
    (root / "sys/kernel/debug/sched/features").write_text("WHAT\\n")
if do.get("fail"):
    print("cannot do it")
    sys.exit(do["fail"])
texts = json.loads((root / "texts.json").read_text())
said = next(text for key, text in texts.items() if " ".join([name, *args]).startswith(key))
print(said)
sys.exit(do.get("late", 0))
''' % sys.executable

TEXTS = {
    "perf": "# Running 'sched/pipe' benchmark:\n\n     Total time: 0.123 [sec]\n\n"
                        "       4.684000 usecs/op\n         213492 ops/sec",
    "sysbench": "sysbench 1.0.20\n\nGeneral statistics:\n    total time:                          0.0223s\n"
                "    total number of events:              1000\n\nLatency (ms):\n         sum:   1.00",
    "stress-ng": "stress-ng: info:  [9] dispatching hogs: 4 switch\n"
                 "stress-ng: metrc: [186] stressor       bogo ops real time  usr time  sys time   bogo ops/s     bogo ops/s\n"
                 "stress-ng: metrc: [186] switch             2000      0.01      0.02      0.03    380140.47       90571.51\n"
                 "stress-ng: metrc: [186] switch              9111.49 nanosecs per context switch (pipe method)",
    "load wake": "metric wake_p99 us lower 7\nmetric rate requests/s higher 99.5",
    "load fork": "metric time s lower 0.25",
    "load nice": "metric share_nice0 % same 70.5\nmetric time s lower 2",
}


class LoadsMachine(Machine):
    """A machine with the programs of the loads, but tbench."""

    def __init__(self, root, pair, programs=("perf", "sysbench", "stress-ng", "load")):
        super().__init__(root, pair)
        self.put("texts.json", json.dumps(TEXTS))
        self.put(self.features, "STEAL\n")
        self.do()
        top = root / "bench"
        top.mkdir()
        for name in ("run-loads.sh", "switch.sh"):
            shutil.copy(TOP / "bench" / name, top / name)
        for name in programs:
            self.script(name, FAKE_PROGRAM)
        if "load" in programs:
            (self.bin / "load").rename(top / "load")
        self.collector = top / "run-loads.sh"
        self.raw = self.out / "loads.raw"

    def do(self, **what):
        self.put("do.json", json.dumps(what))

    def collect(self, *args, rc=0, **more):
        return self.run("--runs", "1", "--out", str(self.out), *args, rc=rc, collector=self.collector, **more)

    def calls(self):
        path = self.root / "calls"
        found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        path.unlink(missing_ok=True)
        return found

    def runs(self):
        """(load, side, valid, metrics) of each record."""
        records = re.findall(r"^begin run .*?^end run$", self.raw.read_text(), re.M | re.S)
        return [(re.search("^load (.*)", r, re.M)[1], re.search("^side (.*)", r, re.M)[1], re.search("^valid (.*)", r, re.M)[1],
                 re.findall("^metric (.*)", r, re.M)) for r in records]


@pytest.fixture(params=ONE_PER_SHELL)
def machine(tmp_path, request):
    return LoadsMachine(tmp_path, request.param)


@pytest.fixture
def dash_machine(tmp_path):
    return LoadsMachine(tmp_path, "dash-mawk")


METRICS = {
    "pipe": ["time us/op lower 4.684000"], "hogs": ["time us/op lower 4.684000"], "messaging-2x": ["time s lower 0.123"], "messaging-4x": ["time s lower 0.123"],
    "latency": ["wake_p99 us lower 7", "rate requests/s higher 99.5"], "threads": ["time s lower 0.0223"],
    "mutex": ["time s lower 0.0223"], "switch": ["rate switches/s higher 380140.47"], "fork": ["time s lower 0.25"],
    "barrier": ["time s lower 0.25"], "nice": ["share_nice0 % same 70.5", "time s lower 2"],
}


def test_every_load(machine):
    stdout, stderr = machine.collect("--scale", "2")
    assert stdout == "" and "not run: tbench-1: tbench is not installed: apt-get install dbench" in stderr
    runs = machine.runs()
    names = [load for load, side, _, _ in runs if side == "off"]
    listed = machine.run("--list", collector=machine.collector)[0].splitlines()
    assert names == [line.split()[0] for line in listed if line.endswith(" here")] and len(names) >= 15
    for load, side, valid, metrics in runs:
        assert (valid, metrics) == ("yes", METRICS.get(load) or METRICS[load.partition("-")[0]]), load
    assert [side for _, side, _, _ in runs] == ["off", "on"] * len(names)
    calls = machine.calls()
    assert [side for _, side, _ in calls] == ["off", "on"] * len(names)
    assert [args[3:] for name, _, args in calls if args[:3] == ["bench", "sched", "pipe"]] == 2 * [["-l", "20000"]] + 2 * [["-l", "200"]]
    # 4 CPUs
    text = machine.raw.read_text()
    assert re.search(r"^load threads-2x\nside off\ncommand sysbench threads --threads=8 .*--events=2000 run$", text, re.M)
    assert re.search(r"^load switch-0.5x\nside on\ncommand stress-ng --switch 1 ", text, re.M)
    assert re.search(r"^load fork-1.5x\nside on\ncommand \S+/load fork --tasks 6 --rounds 40 ", text, re.M)
    assert "\ncpus 4\nscale 2\nprogram perf version 6.1\n" in text and "\nside_features on STEAL\n" in text
    machine.untouched()
    # and the table takes it
    done = subprocess.run([TABLE, machine.out], capture_output=True, text=True, check=True)
    assert re.search(r"^ *switch-1x +rate +switches/s +380140 +380140 +0\.0 ", done.stdout, re.M), done.stdout


def test_pairs_are_interleaved_and_take_turns(machine):
    machine.collect("--loads", "pipe fork-3", "--runs", "3")
    order = [("pipe", "off"), ("pipe", "on"), ("fork-3", "off"), ("fork-3", "on")]
    swapped = [("pipe", "on"), ("pipe", "off"), ("fork-3", "on"), ("fork-3", "off")]
    assert [run[:2] for run in machine.runs()] == order + swapped + order
    # the sides of a pair have the same work, and each pair another
    assert [args[args.index("--seed") + 1] for name, _, args in machine.calls() if name == "load"] == ["1", "1", "2", "2", "3", "3"]


def test_other_sides_and_families(machine):
    machine.put(machine.features, "STEAL NEXT_BUDDY \n")
    machine.collect("--loads", "latency,nice-2", "--features", "a=NO_STEAL,b=STEAL", "--only", "b", "--first", "7")
    assert [run[:2] for run in machine.runs()] == [("latency-0.5x", "b"), ("latency-1x", "b"), ("latency-2x", "b"), ("nice-2", "b")]
    assert "\npair 7\n" in machine.raw.read_text()
    workers = [args[args.index("--workers") + 1] for _, _, args in machine.calls() if args[0] == "wake"]
    assert workers == ["2", "4", "8"]


def test_done_runs_are_not_done_again(machine):
    machine.do(perf={"fail": 3})
    _, stderr = machine.collect("--loads", "pipe fork-1x", rc=1)
    assert "run 1/4: pipe, off: failed: status 3: cannot do it" in stderr and "2 of 4 runs failed" in stderr
    # what it printed before it failed is no result
    machine.do(perf={"late": 3})
    _, stderr = machine.collect("--loads", "pipe fork-1x", rc=1)
    assert "run 1/2: pipe, off: failed: status 3" in stderr
    machine.calls()
    machine.do()
    machine.collect("--loads", "pipe fork-1x", "--runs", "2")
    assert [(name, side) for name, side, _ in machine.calls()] == [
        ("perf", "off"), ("perf", "on"), ("perf", "on"), ("perf", "off"), ("load", "on"), ("load", "off")]
    _, stderr = machine.collect("--loads", "pipe fork-1x", "--runs", "2")
    assert "all runs are in" in stderr and machine.calls() == []
    _, stderr = machine.collect("--loads", "pipe", "--scale", "7", rc=1)
    assert "has runs of another machine, kernel or comparison" in stderr and "> scale 7" in stderr
    machine.untouched()


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP"])
def test_interrupt(machine, name):
    number = getattr(signal, "SIG" + name)
    machine.do(perf={"hang": True})
    process = machine.start("--loads", "fork-1x pipe", "--out", str(machine.out), collector=machine.collector)
    wait_for(lambda: (machine.root / "pids").exists() and machine.get("pids"))
    assert machine.get(machine.features) == "NO_STEAL\n"
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 128 + number, stdout + stderr
    assert "interrupted after 2 of 20 runs; to go on: --out" in stderr
    machine.untouched()
    for pid in map(int, machine.get("pids").split()):
        wait_for(lambda: gone(pid))
    machine.do()
    machine.calls()
    machine.collect("--loads", "fork-1x pipe")
    assert [(name, side) for name, side, _ in machine.calls()] == [("perf", "off"), ("perf", "on")]


def test_hogs_do_not_stay(dash_machine):
    """Neither after the load nor when it is interrupted."""
    def hogs():
        found = subprocess.run(["pgrep", "-f", str(dash_machine.collector)], stdout=subprocess.PIPE, text=True, check=False)
        return found.stdout.split()
    dash_machine.collect("--loads", "hogs-3")
    assert not hogs()
    dash_machine.do(perf={"hang": True})
    process = dash_machine.start("--loads", "hogs-3", "--runs", "2", "--out", str(dash_machine.out), collector=dash_machine.collector)
    wait_for(lambda: (dash_machine.root / "pids").exists() and dash_machine.get("pids"))
    assert len(hogs()) >= 4
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    wait_for(lambda: not hogs())


@pytest.mark.parametrize("text,load", [("nothing", "pipe"), ("usecs/op", "pipe"), ("total time: -", "threads-1x"), ("", "nice-1x")])
def test_output_that_is_not_understood(dash_machine, text, load):
    dash_machine.put("texts.json", json.dumps({key: text for key in TEXTS}))
    _, stderr = dash_machine.collect("--loads", load, rc=1)
    assert "it printed no result" in stderr
    assert {run[2] for run in dash_machine.runs()} == {"it printed no result"}


def test_features_that_somebody_changes(dash_machine):
    dash_machine.do(perf={"meddle": True})
    _, stderr = dash_machine.collect("--loads", "pipe", rc=1)
    assert "somebody changed the online CPUs or the scheduler features" in stderr


@pytest.mark.parametrize("args,rc,message", [
    (["--loads", "tbench"], 1, "tbench-1: tbench is not installed: apt-get install dbench"),
    (["--loads", "hackbench"], 2, "not a load: hackbench"), (["--loads", "pipe-2"], 2, "not a load: pipe-2"),
    (["--loads", "fork-0"], 2, "not a load: fork-0"), (["--loads", "fork-1.5"], 2, "not a load: fork-1.5"),
    (["--loads", "fork-x"], 2, "not a load: fork-x"), (["--loads", "fork-"], 2, "not a load: fork-"),
    (["--runs", "0"], 2, "not a positive number: 0"), (["--scale", "0.1"], 2, "not a positive number: 0.1"),
    (["--loads"], 2, "--loads needs a value"), (["--what"], 2, "unknown option: --what"), (["--features", "=A"], 2, "not a side"),
    (["--only", "x"], 2, "no side is called x"), (["--features", "NO_STEAL,OTHER"], 3, "has no OTHER"),
])
def test_wrong_calls(dash_machine, args, rc, message):
    _, stderr = dash_machine.run(*args, rc=rc, collector=dash_machine.collector)
    assert message in stderr
    dash_machine.untouched()
    assert not dash_machine.out.exists() and dash_machine.calls() == []


def test_no_program_at_all(tmp_path):
    machine = LoadsMachine(tmp_path, "dash-mawk", programs=())
    _, stderr = machine.collect(rc=1)
    assert "not run: latency-1x: no " in stderr and "none of the loads has its program here" in stderr


def test_kernel_that_cannot_be_switched(machine):
    machine.put(machine.features, "PLACE_LAG\n")
    _, stderr = machine.collect(rc=3)
    assert "has no STEAL; run this on a kernel with the patches, or bench/in-sim-loads" in stderr
    shutil.rmtree(machine.root / "sys/kernel/debug")
    _, stderr = machine.collect(rc=3)
    assert "this kernel has no debugfs" in stderr


def test_copied_without_what_it_sources(dash_machine):
    (dash_machine.root / "bench/switch.sh").unlink()
    _, stderr = dash_machine.collect(rc=1)
    assert "switch.sh is missing; copy it beside" in stderr


# bench/load.c

@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """load(ARG...): the metrics that it prints as {NAME: (UNIT, BETTER, VALUE)}."""
    program = tmp_path_factory.mktemp("load") / "load"
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-static", "-o", program, TOP / "bench/load.c"], check=True)

    def run(*args, rc=0, before=()):
        done = subprocess.run([*before, program, *map(str, args)], capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == rc, done.stdout + done.stderr
        if rc:
            return done.stderr
        lines = [line.split() for line in done.stdout.splitlines()]
        assert all(len(words) == 5 and words[0] == "metric" for words in lines), done.stdout
        return {words[1]: (words[2], words[3], float(words[4])) for words in lines}
    return run


def test_wake(load):
    metrics = load("wake", "--workers", 5, "--requests", 1000, "--work", 20000, "--pause", 20)
    assert list(metrics) == ["wake_p50", "wake_p99", "wake_p99.9", "request_p50", "request_p99", "request_p99.9", "rate"]
    us = {name: value for name, (unit, better, value) in metrics.items() if (unit, better) == ("us", "lower")}
    assert us["wake_p50"] <= us["wake_p99"] <= us["wake_p99.9"] and us["request_p50"] <= us["request_p99"] <= us["request_p99.9"]
    # work takes time, of any CPU
    assert us["request_p50"] > us["wake_p50"] and us["request_p50"] > 5
    assert metrics["rate"][:2] == ("requests/s", "higher")
    # no more than the workers can do: each has one request at a time
    assert metrics["rate"][2] < 5 * 1e6 / (us["request_p50"] / 2)


def test_wake_up_is_without_the_work(load):
    metrics = load("wake", "--workers", 1, "--requests", 100, "--work", 2000000)
    assert metrics["wake_p50"][2] < metrics["request_p50"][2] / 2


@pytest.mark.parametrize("how", [[], ["--threads"], ["--barrier"]])
def test_fork(load, how):
    times = [load("fork", "--tasks", 3, "--rounds", rounds, "--work", 2000000, *how)["time"][2] for rounds in (1, 10)]
    # 3 tasks of 2 to 8 ms on as many CPUs or fewer
    assert times[1] > 2 * times[0] > 0.001


def test_barrier_counts_from_the_first(load):
    """On one CPU the time is that of all tasks, although each of them begins when another one has ended."""
    alone = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))]
    one, three = (min(load("fork", "--barrier", "--tasks", tasks, "--rounds", 1, "--work", 500000, before=alone)["time"][2] for _ in range(10))
                  for tasks in (1, 3))
    assert three > 2.7 * one, (one, three)


def test_nice_weights(load):
    """On one CPU they are those of the kernel's table: 1024, 335 and 110."""
    cpu = str(min(os.sched_getaffinity(0)))
    metrics = load("nice", "--tasks", 1, "--sleepers", 0, "--total", 500000000, before=["taskset", "-c", cpu])
    assert list(metrics) == ["share_nice0", "share_nice5", "share_nice10", "time"]
    shares = [value for unit, better, value in metrics.values() if (unit, better) == ("%", "same")]
    assert sum(shares) == pytest.approx(100)
    assert shares == pytest.approx([100 * weight / 1469 for weight in (1024, 335, 110)], rel=0.2)


def test_nice_levels_and_sleepers(load):
    metrics = load("nice", "--levels", "0,19", "--tasks", 2, "--sleepers", 2, "--total", 100000000)
    assert list(metrics) == ["share_nice0", "share_nice19", "share_sleepers", "time"]
    assert metrics["share_nice0"][2] + metrics["share_nice19"][2] == pytest.approx(100)
    assert metrics["share_nice0"][2] > 60 and 0 < metrics["share_sleepers"][2] < 60


@pytest.mark.parametrize("args,message", [
    ([], "the first argument is wake, fork or nice"), (["sleep"], "not 'sleep'"), (["wake", "--tasks", 1], "unknown argument of wake"),
    (["fork", "--tasks", 0], "--tasks needs a number from 1"), (["fork", "--tasks"], "--tasks needs a number"),
    (["fork", "--tasks", "1x"], "--tasks needs a number"), (["fork", "--vary", 101], "--vary is at most 100"),
    (["fork", "--threads", "--barrier"], "either --threads or --barrier"), (["nice", "--levels", "0,20"], "'20' is no nice value"),
    (["nice", "--levels"], "--levels needs nice values"), (["wake", "--requests", 9], "from 10"),
])
def test_wrong_calls_of_load(load, args, message):
    assert message in load(*args, rc=2)


# On simulated machines

def in_sim(sim_kernel, out, *args, rc=0):
    done = subprocess.run([TOP / "bench/in-sim-loads", "--machine", "2x2x1", "--kernel", sim_kernel, "--out", out, *args],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == rc, done.stdout + done.stderr
    return done.stdout, done.stderr


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


@pytest.mark.parametrize("args,message", [
    (["--loads", "what"], "not a load: what"), (["--scale", "x"], "not a positive number: x"), (["--what", "1"], "unknown argument '--what'"),
    (["--machine", "4"], "is not SOCKETSxCORESxTHREADS"), (["--features", "a=b=c"], "not a side"),
])
def test_wrong_calls_of_in_sim(tmp_path, args, message):
    done = subprocess.run([TOP / "bench/in-sim-loads", "--out", tmp_path / "out", *args], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and message in done.stderr and not (tmp_path / "out").exists()


@pytest.mark.parametrize("also", ["Perf", "linux-perf=", "=perf", "dbench=tbench+", "a b", "-x"])
def test_packages_of_a_guest_that_are_none(also):
    done = subprocess.run([TOP / "scripts/guest-image", "--arch", "arm64", "--also", also], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "is no package; see --help" in done.stderr


@pytest.mark.full
def test_in_sim_with_every_program(sim_kernel, tmp_path):
    names = ["pipe", "messaging-2x", "tbench-1x", "threads-2x", "mutex-1x", "switch-1x", "barrier-1.5x", "nice-1x"]
    in_sim(sim_kernel, tmp_path / "out", "--loads", " ".join(names), "--runs", "1")
    with open(tmp_path / "out/loads.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(dict.fromkeys(sorted(row["load"] for row in rows))) == sorted(names)
    assert all(row["runs"] == row["baseline_runs"] == "1" and float(row["median"]) > 0 for row in rows)
