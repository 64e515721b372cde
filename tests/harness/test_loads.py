# SPDX-License-Identifier: GPL-2.0
"""The collector bench/run-loads.sh of the loads other than hackbench, on made-up machines with programs that print what the
real ones do; and bench/load.c. Each shell runs the first test; dash runs the rest."""

import json
import os
import re
import shutil
import signal
import subprocess

import pytest
from collector import FEATURES, ONE_PER_SHELL, Machine
from commands import FAKES, TOP, processes, wait_for

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

METRICS = {
    "pipe": ["time us/op lower 4.684000"], "hogs": ["time us/op lower 4.684000"], "messaging": ["time s lower 0.123"],
    "latency": ["wake_p99 us lower 7", "rate requests/s higher 99.5"], "threads": ["time s lower 0.0223"],
    "mutex": ["time s lower 0.0223"], "switch": ["rate switches/s higher 380140.47"], "fork": ["time s lower 0.25"],
    "barrier": ["time s lower 0.25"], "nice": ["share_nice0 % same 70.5", "time s lower 2"],
}


class LoadsMachine(Machine):
    """A machine with the programs of the loads, but tbench."""

    raw_name = "loads.raw"

    def __init__(self, root, pair="dash-mawk", programs=("perf", "sysbench", "stress-ng", "load")):
        super().__init__(root, pair)
        self.put("texts.json", json.dumps(TEXTS))
        self.put(FEATURES, "STEAL\n")
        self.do()
        top = root / "bench"
        top.mkdir()
        for name in ("run-loads.sh", "switch.sh"):
            shutil.copy(TOP / "bench" / name, top / name)
        for name in programs:
            ((top if name == "load" else self.bin) / name).symlink_to(FAKES / "load")
        self.collector = top / "run-loads.sh"

    def do(self, **what):
        """The faults of the programs."""
        self.put("do.json", json.dumps(what))

    def collect(self, *args, rc=0):
        return self.run("--runs", "1", "--out", self.out, *args, rc=rc)

    def calls(self):
        """The programs' calls since the last time, as (name, side, arguments)."""
        path = self.root / "calls"
        found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        path.unlink(missing_ok=True)
        return found

    def runs(self):
        """(load, side, valid, metrics) of each record."""
        records = re.findall(r"^begin run .*?^end run$", self.raw.read_text(), re.M | re.S)
        return [(*(re.search(f"^{key} (.*)", r, re.M)[1] for key in ("load", "side", "valid")), re.findall("^metric (.*)", r, re.M))
                for r in records]


@pytest.fixture
def machine(tmp_path):
    return LoadsMachine(tmp_path)


@pytest.mark.parametrize("pair", ONE_PER_SHELL)
def test_every_load(tmp_path, pair):
    machine = LoadsMachine(tmp_path, pair)
    stdout, stderr = machine.collect("--scale", "2")
    assert stdout == "" and "not run: tbench-1: tbench is not installed: apt-get install dbench" in stderr
    runs = machine.runs()
    names = [load for load, side, _, _ in runs if side == "off"]
    listed = machine.run("--list")[0].splitlines()
    assert names == [line.split()[0] for line in listed if line.endswith(" here")]
    assert {name.partition("-")[0] for name in names} == set(METRICS)
    for load, _, valid, metrics in runs:
        assert (valid, metrics) == ("yes", METRICS[load.partition("-")[0]]), load
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
    done = subprocess.run([TOP / "bench/loads-table", machine.out], capture_output=True, text=True, check=True)
    assert re.search(r"^ *switch-1x +rate +switches/s +380140 +380140 +0\.0 ", done.stdout, re.M), done.stdout


def test_pairs_are_interleaved_and_take_turns(machine):
    machine.collect("--loads", "pipe fork-3", "--runs", "3")
    order = [("pipe", "off"), ("pipe", "on"), ("fork-3", "off"), ("fork-3", "on")]
    swapped = [("pipe", "on"), ("pipe", "off"), ("fork-3", "on"), ("fork-3", "off")]
    assert [run[:2] for run in machine.runs()] == order + swapped + order
    # the sides of a pair have the same work, and each pair another
    assert [args[args.index("--seed") + 1] for name, _, args in machine.calls() if name == "load"] == ["1", "1", "2", "2", "3", "3"]


def test_other_sides_and_families(machine):
    machine.put(FEATURES, "STEAL NEXT_BUDDY \n")
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
    machine.do(perf={"hang": True})
    process = machine.hang("--loads", "fork-1x pipe")
    assert machine.get(FEATURES) == "NO_STEAL\n"
    assert "interrupted after 2 of 20 runs; " in machine.interrupt(process, getattr(signal, "SIG" + name))
    machine.do()
    machine.calls()
    machine.collect("--loads", "fork-1x pipe")
    assert [(name, side) for name, side, _ in machine.calls()] == [("perf", "off"), ("perf", "on")]


def test_hogs_do_not_stay(machine):
    """Neither after the load nor when it is interrupted."""
    def hogs():
        return processes(str(machine.collector))
    machine.collect("--loads", "hogs-3")
    assert not hogs()
    machine.do(perf={"hang": True})
    process = machine.hang("--loads", "hogs-3", "--runs", "2")
    assert len(hogs()) >= 4
    machine.interrupt(process)
    wait_for(lambda: not hogs())


@pytest.mark.parametrize("text,load", [("usecs/op", "pipe"), ("total time: -", "threads-1x"), ("", "nice-1x")])
def test_output_that_is_not_understood(machine, text, load):
    machine.put("texts.json", json.dumps({key: text for key in TEXTS}))
    _, stderr = machine.collect("--loads", load, rc=1)
    assert "it printed no result" in stderr
    assert {run[2] for run in machine.runs()} == {"it printed no result"}


def test_features_that_somebody_changes(machine):
    machine.do(perf={"meddle": True})
    _, stderr = machine.collect("--loads", "pipe", rc=1)
    assert "somebody changed the online CPUs or the scheduler features" in stderr


@pytest.mark.parametrize("args,rc,message", [
    (["--loads", "tbench"], 1, "tbench-1: tbench is not installed: apt-get install dbench"),
    (["--loads", "hackbench"], 2, "not a load: hackbench"), (["--loads", "pipe-2"], 2, "not a load: pipe-2"),
    (["--loads", "fork-0"], 2, "not a load: fork-0"), (["--loads", "fork-1.5"], 2, "not a load: fork-1.5"),
    (["--loads", "fork-"], 2, "not a load: fork-"),
    (["--runs", "0"], 2, "not a positive number: 0"), (["--scale", "0.1"], 2, "not a positive number: 0.1"),
    (["--loads"], 2, "--loads needs a value"), (["--what"], 2, "unknown option: --what"), (["--features", "=A"], 2, "not a side"),
    (["--only", "x"], 2, "no side is called x"), (["--features", "NO_STEAL,OTHER"], 3, "has no OTHER"),
])
def test_usage_errors(machine, args, rc, message):
    _, stderr = machine.run(*args, rc=rc)
    assert message in stderr
    machine.untouched()
    assert not machine.out.exists() and machine.calls() == []


def test_no_program_at_all(tmp_path):
    machine = LoadsMachine(tmp_path, programs=())
    _, stderr = machine.collect(rc=1)
    assert "not run: latency-1x: no " in stderr and "the programs of all loads are missing" in stderr


def test_what_the_machine_must_have(machine):
    machine.put(FEATURES, "PLACE_LAG\n")
    _, stderr = machine.collect(rc=3)
    assert "has no STEAL; run this on a kernel with the patches, or bench/in-sim-loads" in stderr
    shutil.rmtree(machine.root / "sys/kernel/debug")
    _, stderr = machine.collect(rc=3)
    assert "this kernel has no debugfs" in stderr
    (machine.root / "bench/switch.sh").unlink()
    _, stderr = machine.collect(rc=1)
    assert "switch.sh is missing; copy it beside" in stderr


# bench/load.c

@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """load(ARG...): the metrics that it prints as {NAME: (UNIT, BETTER, VALUE)}."""
    program = tmp_path_factory.mktemp("load") / "load"
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-static", "-o", program, TOP / "bench/load.c"], check=True)

    def run(*args, rc=0, before=()):
        done = subprocess.run([*before, program, *map(str, args)], capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == rc, done.stdout + done.stderr
        if rc:
            return done.stderr
        lines = [line.split() for line in done.stdout.splitlines()]
        assert all(len(words) == 5 and words[0] == "metric" for words in lines), done.stdout
        return {words[1]: (words[2], words[3], float(words[4])) for words in lines}
    return run


ONE_CPU = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))]


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
    # Work that takes longer than a task waits on a busy machine.
    metrics = load("wake", "--workers", 1, "--requests", 20, "--work", 20000000)
    assert metrics["wake_p50"][2] < metrics["request_p50"][2] / 2


@pytest.mark.parametrize("how", [[], ["--threads"], ["--barrier"]])
def test_fork(load, how):
    one, ten = (min(load("fork", "--tasks", 3, "--rounds", rounds, "--work", 2000000, *how)["time"][2] for _ in range(tries))
                for rounds, tries in ((1, 5), (10, 1)))
    # 3 tasks of 2 to 8 ms on as many CPUs or fewer
    assert ten > 2 * one > 0.001


def test_barrier_counts_from_the_first(load):
    """On one CPU the time is that of all tasks, although each of them begins when another one has ended."""
    one, three = (min(load("fork", "--barrier", "--tasks", tasks, "--rounds", 1, "--work", 500000, before=ONE_CPU)["time"][2]
                      for _ in range(15)) for tasks in (1, 3))
    assert three > 2.7 * one, (one, three)


def test_nice_weights(load):
    """On one CPU they are those of the kernel's table: 1024, 335 and 110."""
    metrics = load("nice", "--tasks", 1, "--sleepers", 0, "--total", 500000000, before=ONE_CPU)
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
def test_usage_errors_of_load(load, args, message):
    assert message in load(*args, rc=2)
