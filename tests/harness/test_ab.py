# SPDX-License-Identifier: GPL-2.0
"""bench/ab and its unit of work, on made-up machines (tests/fakes/ab): no root, no special kernel, no QEMU."""

import contextlib
import csv
import hashlib
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
FAKES = TOP / "tests/fakes/ab"
sys.path[:0] = [str(FAKES), str(TOP / "bench")]

from ablib import features, fold, table  # noqa: E402
from ablib.plan import read_plan  # noqa: E402
from collector import FEATURES, Machine, make_checkout  # noqa: E402
from commands import gone, processes, wait_for  # noqa: E402


class Here(Machine):
    """A made-up machine, on which bench/ab of a checkout runs."""

    def __init__(self, root):
        super().__init__(root)
        self.top = root / "checkout"
        make_checkout(self.top)

    def ab(self, *words, rc=0, **more):
        return self.finish(self.start(*words, **more), rc)

    def start(self, *words, **more):
        path = f"{self.bin}:{os.environ['PATH']}"
        return self.popen([self.top / "bench/ab", *words], **({"env": os.environ | self.environment | {"PATH": path}} | more))

    def compare(self, *words, rc=0, load=("1000", "900"), **more):
        return self.ab("--out", self.out, *words, "--", "load", *load, rc=rc, **more)

    @property
    def rows(self):
        with (self.out / "runs.csv").open() as file:
            return list(csv.DictReader(file))


@pytest.fixture
def here(tmp_path):
    return Here(tmp_path)


# bench/ab on this machine

def test_full_disk(here):
    """On a file system of 400 KiB it stops; a run is there as a whole or not at all. With more space, the same command goes on."""
    command = [here.top / "bench/ab", "--runs", 8, "--out", here.root / "full/out", "--", "load", "1000", "900"]
    stderr = here.on_full_disk(command, 3, {"PATH": f"{here.bin}:{os.environ['PATH']}"})
    assert "cannot be written" in stderr or "cannot be made" in stderr, stderr
    assert fold.check_unit(here.out / "raw/here") is None and len(here.rows) == 16
    here.untouched()


def test_gain(here):
    stdout, stderr = here.compare("--runs", 6)
    assert "GAIN" in stdout and stdout == here.get("out/table.txt")
    assert (here.out / "page.html").exists() and (here.out / "speedup.svg").exists()
    # a line for each pair, and the whole table once
    lines = re.findall(r"^ab: pair (\d): all \+1[01]\.\d %; (\d) of 6 pairs", stderr, re.M)
    assert lines == [(str(n), str(n)) for n in range(1, 7)] and stderr.count("1 of 6 planned pairs") == 1
    assert stderr.index("pair 1: ") < stderr.index("1 of 6 planned pairs") < stderr.index("pair 2: ")
    rows = here.rows
    assert len(rows) == 12 and {(row["exit"], row["valid"]) for row in rows} == {("0", "yes")}
    assert all(abs(float(row["time_ns"]) / {"off": 1e9, "all": 0.9e9}[row["side"]] - 1) < 0.01 for row in rows)
    # a random order, in which both sides are first as often
    first = [row["side"] for row in rows if row["position"] == "1"]
    assert sorted(first) == ["all"] * 3 + ["off"] * 3
    assert re.search("^order_seed [0-9]+$", here.get("out/plan"), re.M)
    here.untouched()


def test_loss(here):
    stdout, _ = here.compare("--runs", 6, load=("900", "1000"), rc=1)
    assert "LOSS" in stdout


def test_gate(here):
    """A loss of 2 % does not count with a gate of 5 %."""
    here.compare("--runs", 6, "--gate", "5%", load=("1000", "1020"))


def test_more_is_better(here):
    """A rate that falls is a loss, though the time is not compared."""
    stdout, _ = here.compare("--runs", 6, "--metric", r"rate=rate=(\S+) req/s,req/s,more", load=("900", "1000"), rc=1)
    assert "LOSS" in stdout and all(float(row["metric:rate"]) > 0.9 for row in here.rows)


def test_terminal(here):
    """The table stands there after each pair, in place of the one before."""
    ours, theirs = pty.openpty()
    process = here.start("--out", here.out, "--runs", 2, "--", "load", "1000", "900", stderr=theirs)
    os.close(theirs)
    seen = ""
    with contextlib.suppress(OSError):  # that is the end of a terminal
        while chunk := os.read(ours, 10000).decode(errors="replace"):
            seen += chunk
    os.close(ours)
    stdout, _ = here.finish(process)
    assert seen.count("1 of 2 planned pairs") == 1 and seen.count("planned, 2 measured") == 1
    # Each has been deleted: the table that stays is the one on standard output.
    assert re.sub(r".*\033\[[0-9]+F\033\[J", "", seen, flags=re.S).startswith("ab: page: ")
    assert stdout == here.get("out/table.txt")


def test_same_sides(here):
    stdout, _ = here.compare("--runs", 2, "--sides", "a=STEAL,b=STEAL", load=("1000", "1000"))
    assert stdout.splitlines()[0] == "both sides are the same: this measures noise"


def test_flaky_run_is_dropped_with_its_pair(here):
    stdout, stderr = here.compare("--runs", 4, load=("1000", "900", "fail-on-2"))
    assert "failed with status 7: fork" in stderr
    assert len(here.rows) == 8 and [row["exit"] for row in here.rows].count("7") == 1
    assert "dropped: 1 pair with a failed or invalid run (all: 1 x exit 7)" in stdout and "4 measured, 3 used" in stdout


@pytest.mark.parametrize("words,load,message", [
    (["--metric", "x=score (.*)"], ["1000", "900"], "metric x: no number in the output of 3 runs of side"),
    (["--metric", "rate=rate=(.*) req"], ["1000", "900", "silent"], "metric rate: no number"),
    ([], ["1000", "900", "fail-on"], "the command failed in 3 of 3 runs of side all (status 7)"),
    ([], ["1000", "900", "meddle-off"], "none of 3 runs of side off is valid: somebody changed the scheduler features"),
])
def test_cannot_measure(here, words, load, message):
    """It says so after three pairs, not after all."""
    stdout, stderr = here.compare("--runs", 20, *words, load=load, rc=3)
    errors = [line for line in stderr.splitlines() if "error" in line]
    assert stdout == "" and len(errors) == 1 and message in errors[0], stderr
    assert len(here.rows) == 6
    here.untouched()


def test_no_feature(here):
    """One line, and nothing is left."""
    (here.root / FEATURES).write_text("PLACE_LAG \n")
    stdout, stderr = here.compare(rc=2)
    assert stdout == "" and len(stderr.splitlines()) == 1 and "has no STEAL; boot a kernel with the patches" in stderr
    assert not here.out.exists() and here.get(FEATURES) == "PLACE_LAG \n"


def test_one_pair_is_too_few(here):
    _, stderr = here.compare("--runs", 1, rc=3)
    assert "pair" in stderr.splitlines()[-1]


@pytest.mark.parametrize("words,message", [
    (["--runs", "0", "--", "load"], "'0' is not a positive number"),
    (["--runs", "ten", "--", "load"], "'ten' is not a positive number"),
    (["--what", "--", "load"], "--what"),
    (["load"], "unrecognized arguments: load (write -- before the command)"),
    (["--"], "no command"),
    (["--sides", "STEAL", "--", "load"], "--sides: fewer than two"),
    (["--sides", "a=STEAL,a=NO_STEAL", "--", "load"], "two sides have the name a"),
    (["--sides", "a=STEAL,../b=NO_STEAL", "--", "load"], "'../b=NO_STEAL' is not [LABEL=]FEATURE"),
    (["--sides", "off,nin", "--", "load"], "'nin' is not [LABEL=]FEATURE[+FEATURE...], off, nine or all"),
    (["--sides", "", "--", "load"], "'' is not [LABEL=]FEATURE"),
    (["--sides", "off,off", "--", "load"], "two sides have the name off"),
    (["--factorial", "", "--", "load"], "--factorial: '' is no bit of the series"),
    (["--machine", "1x2x1", "--kernel", "a+b=patched", "--", "load"], "'a+b=patched' is not an image"),
    (["--machine", "1x2x1", "--kernel", "base+rt", "--", "load"], "'base+rt' is not an image, base, patched or a line of kernels"),
    (["--machine", "1x2x1", "--kernel", "a=base+what", "--", "load"], "'a=base+what' is not an image"),
    (["--machine", "1x2x1", "--kernel", "a=base+../configs/rt", "--", "load"], "'a=base+../configs/rt' is not an image"),
    (["--machine", "1x2x1", "--kernel", "a=/no/such+rt", "--", "load"], "'a=/no/such+rt' is not an image"),
    (["--metric", "x", "--", "load"], "NAME=REGEX"),
    (["--metric", "x=[0-9]+", "--", "load"], "group"),
    (["--metric", "x=([0-9", "--", "load"], "not a regular expression"),
    (["--metric", "x=([0-9]+),req/s,bigger", "--", "load"], "bigger"),
    (["--metric", "x=([0-9]+),r q", "--", "load"], "r q"),
    (["--metric", "x=(1)", "--metric", "x=(2)", "--", "load"], "two metrics have the name x"),
    (["--gate", "1", "--", "load"], "gate '1'"),
    (["--jobs", "1", "--", "load"], "--jobs needs --machine"),
    (["--kernel", "base", "--", "load"], "--kernel needs --machine"),
    (["--machine", "1x2", "--", "load"], "'1x2' is not SOCKETSxCORESxTHREADS"),
    (["--machine", "1x2x2x2x1", "--", "load"], "is not SOCKETSxCORESxTHREADS or SOCKETSxLLCSxCORESxTHREADS"),
    (["--machine", "2x8x8x5", "--", "load"], "512 CPUs at most"),
    (["--machine", "1x2x1", "--caches", "nowhere", "--", "load"], "--caches nowhere: there is no file"),
    (["--caches", "intel", "--", "load"], "--caches needs --machine"),
    (["--machine", "3x171x1", "--", "load"], "512 CPUs"),
    (["--machine", "1x2x1", "--kernel", "base,patched", "--sides", "a=X,b=Y", "--", "load"], "exclude each other"),
    (["--machine", "1x2x1", "--kernel", "/no/such/Image", "--", "load"], "'/no/such/Image' is not an image"),
    (["--machine", "1x2x1", "--add", "/no/such/file", "--", "load"], "--add /no/such/file: no such file"),
    (["--machine", "1x2x1", "--seeds", "any", "--", "load"], "invalid choice"),
    (["--machine", "1x2x1", "--out", "a,b", "--", "load"], "contains a comma"),
    (["--", "sh", "-c", "a\nb"], "newline"),
    (["--load", "hackbench-0"], "--load hackbench-0: '0' is not a number above 0, or a multiple of the number of CPUs"),
    (["--load", "hackbench-1,what"], "--load what: no such load; --list shows all"),
    (["--load", "pipe-2"], "--load pipe-2: pipe has no levels"),
    (["--load", ","], "no such load"),
    (["--load", "fork", "--", "load"], "--load and a command exclude each other"),
    (["--load", "fork", "--metric", "time"], "--metric is for a command"),
    (["--load", "fork", "--loops", "3"], "--loops needs the load hackbench"),
    (["--load", "hackbench", "--scale", "3"], "--scale needs a load other than hackbench"),
    (["--loops", "3", "--", "load"], "--loops needs the load hackbench"),
    (["--load", "hackbench", "--trace-loops", "3"], "--trace-loops needs --trace"),
    (["--load", "hackbench", "--loops", "0"], "'0' is not a positive number"),
    (["--load", "hackbench", "--repeats", "sides"], "--repeats needs --machine"),
    (["--machine", "1x2x1", "--repeats", "sides", "--", "load"], "sides: not published: there is no file"),
    (["--load", "hackbench", "--idle-exit", "5"], "--idle-exit needs --machine"),
    (["--machine", "1x2x1", "--ips", "0", "--", "load"], "'0' is not a positive number"),
    (["--list", "--runs", "3"], "--list takes no other arguments"),
    (["--render", "out", "--runs", "3"], "--render takes no other arguments"),
    (["--render", "/no/such"], "/no/such: no directory that bench/ab has written"),
])
def test_usage_errors(here, words, message):
    stdout, stderr = here.ab(*words, rc=2)
    assert stdout == "" and len(stderr.splitlines()) == 1 and message in stderr, stderr
    assert not list(here.root.glob("ab-*"))


def test_check_measures_nothing(here):
    assert here.ab("--check", "--out", here.out, "--", "load", "1", "1") == ("", "") and not here.out.exists()
    _, stderr = here.ab("--check", "--runs", 0, "--", "load", rc=2)
    assert "'0' is not a positive number" in stderr


def test_help(here):
    stdout, _ = here.ab("--help")
    assert "bench/ablib/fold.py" in stdout and "Exit status" in stdout


def test_another_plan_is_refused(here):
    here.compare("--runs", 2)
    before = {path: path.read_bytes() for path in here.out.rglob("*") if path.is_file() and path.name != ".lock"}
    _, stderr = here.compare("--runs", 3, "--gate", "1%", rc=2)
    assert "in the plan: runs 2" in stderr and "now: runs 3" in stderr and "now: gate 1%" in stderr
    assert before == {path: path.read_bytes() for path in here.out.rglob("*") if path.is_file() and path.name != ".lock"}
    mine = here.root / "mine"
    mine.mkdir()
    (mine / "letter").write_text("x")
    _, stderr = here.ab("--out", mine, "--", "load", "1", "1", rc=2)
    assert "not empty" in stderr and os.listdir(mine) in (["letter", ".lock"], [".lock", "letter"])


def test_second_call_is_refused(here):
    process = here.start("--out", here.out, "--", "load", "1000", "900", "hang-on")
    wait_for((here.root / "proc/pids").exists)
    _, stderr = here.compare(load=("1000", "900", "hang-on"), rc=2)
    assert "another bench/ab uses this directory" in stderr
    process.send_signal(signal.SIGINT)
    here.finish(process, 130)


def test_other_comparison_of_this_machine_is_refused(here):
    """Whatever its directory: each would put back what the other has set."""
    process = here.start("--out", here.out, "--", "load", "1000", "900", "hang-on")
    wait_for((here.root / "proc/pids").exists)
    _, stderr = here.ab("--out", here.root / "other", "--", "load", "1000", "900", rc=3)
    assert "another bench/ab measures this machine" in stderr and not (here.root / "other").exists()
    process.send_signal(signal.SIGINT)
    here.finish(process, 130)
    here.untouched()


def test_killed_collector(here):
    """What it had changed is put back, also in its first run, and what it had started is killed."""
    process = here.start("--out", here.out, "--", "load", "1000", "900", "hang-off")
    wait_for(lambda: (here.root / "proc/pids").exists() and here.get("proc/pids") and here.get(FEATURES).split() == ["NO_STEAL"])
    pid = int((here.out / "raw/here/.was").read_text().splitlines()[3])
    os.kill(pid, signal.SIGKILL)
    _, stderr = here.finish(process, 3)
    assert here.all_gone() and not processes(str(here.out))
    assert "the collector ended with status -9" in stderr and "as it was" not in stderr and "as they were" not in stderr
    here.untouched()


def test_note_of_a_killed_collector_stays(here):
    """If nothing can put the settings back, the note says what they were."""
    process = here.start("--out", here.out, "--", "load", "1000", "900", "hang-off")
    wait_for(lambda: (here.root / "proc/pids").exists() and here.get("proc/pids") and (here.out / "raw/here/.was").exists())
    collect = here.top / "bench/collect/collect.sh"
    collect.rename(f"{collect}.away")
    pid = int((here.out / "raw/here/.was").read_text().splitlines()[3])
    os.kill(pid, signal.SIGKILL)
    _, stderr = here.finish(process, 3)
    assert f"line 3 of {here.out}/raw/here/.was has what it was" in stderr and here.get(FEATURES).split() == ["STEAL"]
    assert (here.out / "raw/here/.was").read_text().splitlines()[1:3] == ["STEAL ", "0"]


def test_nohup(here):
    process = here.start("--out", here.out, "--runs", 2, "--", "load", "1000", "900",
                         preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    wait_for((here.out / "raw/here/runs").exists)
    process.send_signal(signal.SIGHUP)
    here.finish(process)
    here.untouched()


def test_features_that_nobody_can_read(here):
    """As in kernel lockdown: root may write the file, and reading fails."""
    here.put(FEATURES, "")
    _, stderr = here.compare(rc=3)
    assert f"{FEATURES}: cannot be read (kernel lockdown?)" in stderr and not here.out.exists()


def test_some_of_the_cpus(here):
    _, stderr = here.compare("--runs", 2, preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}))
    assert (f"may use 1 of {os.cpu_count()} CPUs" in stderr) == (os.cpu_count() > 1)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_interrupted_call_goes_on(here, number):
    load = ("1000", "900", "hang-on-4")
    process = here.start("--out", here.out, "--runs", 6, "--", "load", *load)
    wait_for((here.root / "proc/pids").exists)
    wait_for(lambda: here.get("proc/pids"))
    process.send_signal(number)
    _, stderr = here.finish(process, -9 if number == signal.SIGKILL else 130)
    assert number == signal.SIGKILL or f"to continue: the same command with --out {here.out}" in stderr
    wait_for(here.all_gone)
    plan = here.get("out/plan")
    stats = {path: path.stat().st_mtime_ns for path in here.out.glob("raw/here/runs/*/*/sum")}
    assert len(stats) in (6, 7)
    stdout, stderr = here.compare("--runs", 6, load=load)
    assert "has 3 of 6 pairs already; continuing" in stderr
    assert "GAIN" in stdout and here.get("out/plan") == plan
    assert len({(row["pair"], row["side"]) for row in here.rows}) == len(here.rows) == 12
    assert all(path.stat().st_mtime_ns == then for path, then in stats.items())
    here.untouched()
    # once more: nothing is left to do
    again, _ = here.compare("--runs", 6, load=load)
    assert again == stdout


# Loads

class Loads(Here):
    """With tests/fakes/ab/hackbench, which takes a second for each group, a tenth less with stealing."""

    def __init__(self, root):
        super().__init__(root)
        self.link(FAKES / "hackbench")

    def compare(self, *words, rc=0, load="hackbench-1,hackbench-2", **more):
        return self.ab("--out", self.out, "--load", load, "--loops", 1000, *words, rc=rc, **more)

    def whole(self, pairs, cases=("hackbench-1", "hackbench-2")):
        runs = [(f"{row['load']}-{row['level']}", int(row["pair"]), row["side"]) for row in self.rows]
        assert sorted(runs) == sorted((case, pair, side) for case in cases for pair in range(1, pairs + 1) for side in ("all", "off"))


@pytest.fixture
def bench(tmp_path):
    return Loads(tmp_path)


def said_pairs(stderr):
    return re.findall(r"^ab: (\S+), pair (\d): all [+-][0-9.]+ %; \d+ of \d+ pairs", stderr, re.M)


def test_loads(bench):
    """The pairs of the cases take turns, the longest first. There is a table when each case has a pair."""
    stdout, stderr = bench.compare("--runs", 6)
    assert said_pairs(stderr) == [(f"hackbench-{groups}", str(pair)) for pair in range(1, 7) for groups in (2, 1)]
    assert stderr.index("hackbench-1, pair 1") < stderr.index("2 of 12 planned pairs") < stderr.index("hackbench-2, pair 2")
    assert stdout == bench.get("out/table.txt") and stdout.count(" GAIN ") >= 2
    bench.whole(6)
    assert bench.get("out/raw/here/runs/hackbench-2/1-all/command") == "hackbench\n2\nloops=1000\n"
    plan = bench.get("out/plan").splitlines()
    assert plan[:3] == ["format 2", "case hackbench-1", "case hackbench-2"]
    assert {"metric:hackbench time", "level_name:hackbench groups", "loops 1000", "runs 6"} < set(plan)
    # The order of the sides is random in each case, and both are first as often.
    for level in "12":
        first = [row["side"] for row in bench.rows if (row["level"], row["position"]) == (level, "1")]
        assert sorted(first) == ["all"] * 3 + ["off"] * 3
    bench.untouched()
    # Rendered again from the raw files.
    for name in ("table.txt", "runs.csv", "page.html"):
        (bench.out / name).unlink()
    assert bench.ab("--render", bench.out)[0] == stdout and (bench.out / "page.html").exists()
    _, stderr = bench.compare("--runs", 6, "--loops", 200, rc=2)
    assert "in the plan: loops 1000" in stderr and "now: loops 200" in stderr


def test_loads_are_killed_and_go_on(bench):
    hang = {"FAKE_WORDS": "hang-on-3", "PATH": f"{bench.bin}:{os.environ['PATH']}"}
    process = bench.start("--out", bench.out, "--load", "hackbench-1 hackbench-2", "--loops", 1000, "--runs", 3,
                          env=os.environ | bench.environment | hang)
    wait_for((bench.root / "proc/pids").exists)
    wait_for(lambda: bench.get("proc/pids"))
    process.kill()
    bench.finish(process, -9)
    wait_for(bench.all_gone)
    _, stderr = bench.compare("--runs", 3)
    assert "has 2 of 6 pairs already; continuing" in stderr
    bench.whole(3)
    bench.untouched()


def test_one_case_fails(bench):
    """The others go on. If all fail, nothing does."""
    more = {"env": os.environ | bench.environment | {"PATH": f"{bench.bin}:{os.environ['PATH']}", "FAKE_FAIL": "2"}}
    stdout, stderr = bench.compare("--runs", 6, rc=3, **more)
    assert stderr.count("hackbench-2 failed in 3 of 3 runs of side off (status 7); its output: ") == 1
    assert said_pairs(stderr) == [("hackbench-1", str(pair)) for pair in range(1, 7)]
    assert "hackbench-2, pair 1: all without a figure; 1 of 12 pairs" in stderr and "GAIN" in stdout
    shutil.rmtree(bench.out)
    stdout, stderr = bench.compare("--runs", 6, load="hackbench-2", rc=3, **more)
    assert stdout == "" and "error: hackbench-2 failed in 3 of 3 runs" in stderr.splitlines()[-1]


def test_traced(bench):
    """The traced pairs are the last, and count in no comparison."""
    bench.add_tracefs()
    _, stderr = bench.compare("--runs", 2, "--trace", "--trace-loops", 7)
    assert re.findall(r"^ab: (\S+), traced; (\d) of 6 pairs", stderr, re.M) == [("hackbench-2", "5"), ("hackbench-1", "6")]
    assert bench.get("out/raw/here/runs/hackbench-1/0-all/command") == "hackbench\n1\nloops=7\n"
    assert (bench.out / "raw/here/runs/hackbench-2/0-off/trace").exists() and "\ntrace_loops 7\n" in bench.get("out/plan")
    assert sum(row["pair"] == "0" for row in bench.rows) == 4 and "2 planned for each case, 4 measured" in bench.get("out/table.txt")


def test_missing_programs(bench):
    """A load that is named must be there. `all` leaves out those that are not, and hackbench."""
    for tool in ("setpriv", "sh", "git"):
        bench.link(shutil.which(tool))
    only = {"env": os.environ | bench.environment}
    stdout, stderr = bench.ab("--out", bench.out, "--load", "tbench-1,hackbench", rc=3, **only)
    assert (stdout, stderr) == ("", "ab: error: tbench: not installed: tbench (package dbench)\n") and not bench.out.exists()
    stderr = bench.ab("--out", bench.out, "--load", "all", rc=3, **only)[1]
    assert "left out: latency: not installed: cc, to compile load.c\n" in stderr and "no load is left" in stderr.splitlines()[-1]
    bench.install("stress-ng")
    stderr = bench.ab("--out", bench.out, "--load", "all", "--runs", 2, **only)[1]
    assert "left out: tbench: not installed: tbench (package dbench)\n" in stderr
    assert {(row["load"], row["level"]) for row in bench.rows} == {("switch", level) for level in ("0.5x", "1x", "2x")}
    listed = bench.ab("--list", **only)[0]
    assert "hackbench: groups of 20 senders" in listed and "    groups: 1 2 3 4 8\n" in listed
    assert listed.count("missing on this machine: tbench (package dbench)") == 1 and "missing on this machine: hackbench" not in listed


# bench/ab on machines that stand in for simulated ones

class Simulated(Here):
    """A checkout whose sim/machine runs the command on a made-up machine."""

    def __init__(self, root):
        super().__init__(root)
        (self.top / "sim/presets/small").write_text("smt 0.5\n")
        (self.top / "sim/machine").symlink_to(FAKES / "machine")
        self.log = root / "machines"
        self.environment = {"FAKE_LOG": str(self.log), "STEAL_QEMU": str(self.top / "scripts/qemu"), "TMPDIR": str(root / "tmp")}

    def kernel(self, name, features):
        (self.top / "scripts" / name).write_text(features + "\n")
        return self.top / "scripts" / name

    def start(self, *words, environment=(), **more):
        return self.popen([self.top / "bench/ab", *words], env=os.environ | self.environment | dict(environment), **more)

    def compare(self, *words, rc=0, load=("1000", "900"), **more):
        return self.ab("--machine", "1x4x1", "--out", self.out, *words, "--", "load", *load, rc=rc, **more)

    @property
    def machines(self):
        return sorted(self.log.read_text().splitlines())

    def whole(self, pairs):
        rows = self.rows
        assert len(rows) == 2 * pairs == len({(row["pair"], row["side"]) for row in rows})
        assert not list(self.out.glob("raw/.command*")) and not list(self.out.glob("raw/*.log"))


@pytest.fixture
def sim(tmp_path):
    return Simulated(tmp_path)


@pytest.fixture
def bits(sim):
    """With a series of five bits."""
    shutil.copy(TOP / "tests/data/features", sim.top / "bench/features")
    sim.kernel("image", f"PLACE_LAG NO_NEXT_BUDDY {' '.join(features.read_bits(sim.top / 'bench/features'))}")
    return sim


def test_simulated(sim):
    stdout, stderr = sim.compare("--runs", 6, "--append", "preempt=full x", load=("1000", "900", "{1}", "{%}", "a  b", "$(echo no)", "'"))
    assert "GAIN" in stdout and "6 of 6 pairs" in stderr
    assert sim.machines == [f"100{pair} 1x4x1 image" for pair in range(1, 7)]
    sim.whole(6)
    assert {row["seed"] for row in sim.rows} == {f"100{pair}" for pair in range(1, 7)}
    assert len({row["boot"] for row in sim.rows}) == 6
    with tarfile.open(sim.out / "raw/command-1.tar") as archive:
        text = archive.extractfile("runs/command/1-all/stdout").read().decode()
    assert text.splitlines()[-1] == "words: {1} {%} a  b $(echo no) '"
    plan = sim.get("out/plan")
    assert "\nmachine 1x4x1\n" in plan and "\nappend preempt=full x\n" in plan and "\nqemu 9.9.9\n" in plan
    assert f"\nhash_qemu {hashlib.sha256((sim.top / 'scripts/qemu').read_bytes()).hexdigest()[:16]}\n" in plan
    again = sim.compare("--runs", 6, "--append", "preempt=full x", load=("1000", "900", "{1}", "{%}", "a  b", "$(echo no)", "'"))[0]
    assert again == stdout and len(sim.machines) == 6


def test_simulated_loads(sim):
    """A unit for each case and pair. load.c is compiled for the guest, and programs of packages are there where a load needs them."""
    sim.install("sysbench")
    for compiler in ("gcc", "aarch64-linux-gnu-gcc"):
        sim.script(compiler, 'shift 4; printf "#!/bin/sh\\nload 9 8\\necho metric time s lower 0.25\\n" >"$1"; chmod +x "$1"')
    words = ["--machine", "1x4x1", "--out", sim.out, "--load", "hackbench-2,fork-1x,mutex-1x", "--loops", 1000, "--runs", 2]
    path = {"PATH": f"{sim.bin}:{os.environ['PATH']}"}
    stdout, stderr = sim.ab(*words, environment=path)
    assert sorted(said_pairs(stderr)) == sorted((case, pair) for case in ("hackbench-2", "fork-1x", "mutex-1x") for pair in "12")
    also = "linux-perf=perf,dbench=tbench+tbench_srv,sysbench,stress-ng"
    assert sim.machines == sorted([*["1001 1x4x1 image", "1002 1x4x1 image"] * 2, f"1001 1x4x1 image {also}", f"1002 1x4x1 image {also}"])
    assert {path.name for path in sim.out.glob("raw/[!.]*")} == {f"{case}-{pair}.tar" for case in ("hackbench-2", "fork-1x", "mutex-1x")
                                                               for pair in (1, 2)}
    assert {row["metric:run_time"] for row in sim.rows} == {"", "0.25", "0.0223"} and not list(sim.out.glob("raw/.coll*"))
    # What is damaged is measured again, with the same result.
    archive = sim.out / "raw/fork-1x-2.tar"
    archive.write_bytes(archive.read_bytes()[:3000])
    again, stderr = sim.ab(*words, environment=path)
    assert again == stdout and stderr.count("incomplete or damaged") == 1 and len(sim.machines) == 7


def test_simulated_loads_of_two_kernels(sim):
    kernels = [f"old={sim.kernel('one', 'NO_STEAL')}", f"new={sim.kernel('two', 'STEAL')}"]
    sim.ab("--machine", "1x4x1", "--out", sim.out, "--load", "hackbench-1", "--runs", 2, "--kernel", ",".join(kernels))
    assert {path.stem for path in sim.out.glob("raw/*.tar")} == {f"hackbench-1-{pair}-{side}" for pair in (1, 2) for side in ("old", "new")}
    assert [row["side"] for row in sim.rows].count("new") == 2 and "\nloops 200\n" in sim.get("out/plan")


def test_killed_loads_of_simulated_machines(sim):
    """kill -9 of the orchestrator in a unit of one case: the same command makes what is missing, and nothing twice."""
    pid_file = sim.root / "pid"
    words = ["--machine", "1x4x1", "--out", sim.out, "--load", "hackbench-1,hackbench-2", "--runs", 2, "--jobs", 1]
    process = sim.start(*words, environment={"FAKE_HANG": f"1002:{pid_file}"})
    wait_for(pid_file.exists)
    wait_for(lambda: pid_file.read_text())
    process.kill()
    sim.finish(process, -9)
    wait_for(lambda: gone(int(pid_file.read_text())))
    assert {path.stem for path in sim.out.glob("raw/*.tar")} == {"hackbench-1-1", "hackbench-2-1"}
    sim.ab(*words)
    assert len(sim.rows) == 8 and [line.split()[0] for line in sim.machines] == ["1001"] * 2 + ["1002"] * 3
    assert not [path for path in sim.out.glob("raw/.*") if path.name not in (".jobs", ".joblog")]


def test_published_seeds(sim):
    sim.compare("--runs", 2, "--seeds", "published")
    assert sim.machines == ["1000001 1x4x1 image", "1000002 1x4x1 image"]


def test_two_kernels(sim):
    kernels = [f"old={sim.kernel('one', 'NO_STEAL')}", f"new={sim.kernel('two', 'STEAL')}"]
    stdout, _ = sim.compare("--runs", 6, "--kernel", ",".join(kernels))
    assert "GAIN" in stdout
    assert sim.machines == sorted(f"100{pair} 1x4x1 {name}" for pair in range(1, 7) for name in ("one", "two"))
    sim.whole(6)
    assert {path.stem for path in sim.out.glob("raw/*.tar")} == {f"command-{pair}-{side}" for pair in range(1, 7)
                                                                 for side in ("old", "new")}


def test_kernels_with_more_configurations(sim):
    """They are built with these; the plan has the words, which mean the same on each host, and so has the command that repeats it."""
    (sim.top / "configs/matrix").mkdir(parents=True)
    for name in ("rt", "matrix/no-smt"):
        (sim.top / f"configs/{name}.config").touch()
    for name, feature in (("one", "NO_STEAL"), ("two", "STEAL")):
        sim.kernel(name, feature)
    (sim.top / "scripts/build").unlink()
    (sim.top / "scripts/build").write_text('#!/bin/sh\necho "$*" >>"$FAKE_LOG.built"\n'
                                           'case $* in *--tree*) i=one ;; *) i=two ;; esac\necho "$(dirname "$0")/$i"\n')
    (sim.top / "scripts/build").chmod(0o755)
    kernels = "old=base+rt,new=patched+rt+matrix/no-smt"
    stdout, _ = sim.compare("--runs", 6, "--kernel", kernels)
    assert Path(f"{sim.log}.built").read_text().splitlines() == ["--arch arm64 --config guest,steal,sim,rt --tree /nowhere",
                                                                 "--arch arm64 --config guest,steal,sim,rt,matrix/no-smt"]
    plan = sim.get("out/plan")
    assert "GAIN" in stdout and "old (base+rt, baseline), new (patched+rt+matrix/no-smt)" in stdout
    assert f"\nkernels {kernels}\n" in plan and f" --kernel {kernels} " in table.repeat_command(read_plan(sim.out))
    sim.whole(6)


def test_kernels_of_another_line_in_the_plan(sim):
    """What STEAL_LINE says is not lost."""
    shutil.copytree(TOP / "patches", sim.top / "patches", ignore=lambda path, names: [name for name in names if name != "lines"])
    sim.compare("--runs", 2, "--kernel", "old=base,new=patched", environment={"STEAL_LINE": "6.12"})
    image = os.path.realpath(sim.top / "scripts/image")
    assert f"\nkernels old={image},new=6.12\n" in sim.get("out/plan")


@pytest.mark.parametrize("words, kernel", [([], "6.12"), (["--kernel", "patched"], "6.12"), (["--kernel", "x=patched"], "x=6.12"), (["--kernel", "7.3"], "7.3")])
def test_kernel_of_another_line_in_the_plan(sim, words, kernel):
    shutil.copytree(TOP / "patches", sim.top / "patches", ignore=lambda path, names: [name for name in names if name != "lines"])
    sim.compare("--runs", 2, *words, environment={"STEAL_LINE": "6.12"})
    assert f"\nkernel {kernel}\n" in sim.get("out/plan")


def test_added_file(sim):
    program = sim.root / "mine"
    program.write_text("#!/bin/sh\nexec load \"$@\"\n")
    program.chmod(0o755)
    sim.ab("--machine", "1x4x1", "--out", sim.out, "--runs", 2, "--add", "mine", "--", "mine", "5", "4")
    program.write_text("#!/bin/sh\nload \"$@\"\n")
    _, stderr = sim.ab("--machine", "1x4x1", "--out", sim.out, "--runs", 2, "--add", "mine", "--", "mine", "5", "4", rc=2)
    assert "in the plan: add mine " in stderr


def test_command_fails_on_one_side(sim):
    _, stderr = sim.compare("--runs", 12, "--jobs", 1, load=("1000", "900", "fail-on"), rc=3)
    # Machines that ended while it looked are counted, too.
    assert re.search(r"the command failed in ([3-5]) of \1 runs of side all \(status 7\)", stderr), stderr
    assert 3 <= len(sim.machines) <= 5


def test_kernel_without_the_feature(sim):
    sim.kernel("image", "PLACE_LAG")
    stdout, stderr = sim.compare("--runs", 12, "--jobs", 1, rc=2)
    errors = [line for line in stderr.splitlines() if "error" in line]
    assert stdout == "" and len(errors) == 1 and errors[0].endswith("has no STEAL; boot a kernel with the patches (scripts/apply)"), stderr
    # It was seen in the first units (a loaded host starts a few more meanwhile), and nothing is left.
    assert not sim.out.exists() and len(sim.machines) <= 5


def test_sides_by_name(bits):
    """off, nine and all, beside a side of features."""
    bits.compare("--runs", 2, "--sides", "off,nine,all,STEAL+SYNC_WAIT,x=all+NO_STEAL_SLICE+NEXT_BUDDY")
    plan = read_plan(bits.out)
    assert plan.sides == {"off": "NO_STEAL+NO_STEAL_FIRST+NO_STEAL_BUSIEST+NO_STEAL_SLICE+NO_SYNC_WAIT",
                          "nine": "STEAL+NO_STEAL_FIRST+NO_STEAL_BUSIEST+NO_STEAL_SLICE+NO_SYNC_WAIT",
                          "all": "STEAL+STEAL_FIRST+STEAL_BUSIEST+STEAL_SLICE+SYNC_WAIT",
                          "STEAL+SYNC_WAIT": "STEAL+NO_STEAL_FIRST+NO_STEAL_BUSIEST+NO_STEAL_SLICE+SYNC_WAIT",
                          "x": "STEAL+STEAL_FIRST+STEAL_BUSIEST+NO_STEAL_SLICE+SYNC_WAIT+NEXT_BUDDY"}
    assert sorted({row["side"] for row in bits.rows}) == sorted(plan.sides) and {row["valid"] for row in bits.rows} == {"yes"}


def test_factorial(bits):
    stdout, stderr = bits.compare("--runs", 2, "--factorial", "SYNC_WAIT,STEAL,STEAL_SLICE")
    sides = ["off", "STEAL", "SYNC_WAIT", "STEAL+STEAL_SLICE", "STEAL+SYNC_WAIT", "STEAL+STEAL_SLICE+SYNC_WAIT"]
    assert list(read_plan(bits.out).sides) == sides and "\nfactorial STEAL,STEAL_SLICE,SYNC_WAIT\n" in bits.get("out/plan")
    assert {(row["pair"], row["side"]) for row in bits.rows} == {(pair, side) for pair in "12" for side in sides}
    assert stderr.count("--factorial: 2 of 8 combinations left out: ") == 1 and "\nshare of each bit:\n" in stdout
    again, _ = bits.compare("--runs", 2, "--factorial", "STEAL,STEAL_SLICE,SYNC_WAIT")
    assert again == stdout and len(bits.machines) == 2


@pytest.mark.parametrize("words", [["--sides", "off,all"], ["--factorial", "STEAL,STEAL_SLICE"]])
def test_kernel_without_follow_ups(bits, words):
    bits.kernel("image", "PLACE_LAG STEAL STEAL_FIRST SYNC_WAIT STEAL_BUSIEST")
    stdout, stderr = bits.compare("--runs", 9, "--jobs", 1, *words, rc=2)
    errors = [line for line in stderr.splitlines() if "error" in line]
    assert stdout == "" and len(errors) == 1 and errors[0].endswith(
        "has no STEAL_SLICE; it has the nine patches, but not all follow-ups: apply them (scripts/apply), or compare off,nine"), stderr
    assert not bits.out.exists() and len(bits.machines) <= 5


def test_an_empty_directory_stays_empty(bits):
    """The names of the kernel go, too; the same command then works with another kernel."""
    bits.out.mkdir()
    bits.kernel("image", "PLACE_LAG STEAL")
    bits.compare("--caches", "small", "--jobs", 1, rc=2)
    assert [path.name for path in bits.out.iterdir() if path.name != ".lock"] == []
    bits.compare("--caches", "small", "--runs", 2, "--sides", "off,nine")


@pytest.mark.parametrize("sides", ["off,nine", "off=NO_STEAL,nine=STEAL"])
def test_nine_without_follow_ups(bits, sides):
    bits.kernel("image", "PLACE_LAG STEAL")
    bits.compare("--runs", 2, "--sides", sides)
    assert [row["side"] for row in bits.rows].count("nine") == 2 and {row["valid"] for row in bits.rows} == {"yes"}


@pytest.mark.parametrize("words,message", [
    (["--factorial", "STEAL,WHAT"], "--factorial: 'WHAT' is no bit of the series: STEAL, STEAL_FIRST"),
    (["--factorial", "STEAL_FIRST"], "STEAL_FIRST does nothing without STEAL"),
    (["--factorial", "STEAL", "--sides", "off,all"], "--sides and --factorial exclude each other"),
    (["--factorial", "STEAL", "--kernel", "base,patched"], "several kernels (--kernel) and --factorial exclude each other"),
    (["--factorial", "SYNC_WAIT,STEAL,STEAL_FIRST,STEAL_SLICE,STEAL_BUSIEST,SIXTH,SEVENTH"], "7 bits; at most 6"),
])
def test_usage_errors_of_factorial(bits, words, message):
    (bits.top / "bench/features").open("a").write("SIXTH follow-up something\nSEVENTH follow-up something\n")
    _, stderr = bits.compare(*words, rc=2)
    assert len(stderr.splitlines()) == 1 and message in stderr and not bits.out.exists() and not bits.log.exists()


def test_no_list_of_bits(bits):
    (bits.top / "bench/features").unlink()
    _, stderr = bits.compare(rc=2)
    assert len(stderr.splitlines()) == 1 and "bench/features: cannot read it" in stderr and not bits.out.exists()


def test_machine_dies(sim):
    stdout, stderr = sim.compare("--runs", 4, environment={"FAKE_DIE": "1002"})
    assert "command-2.tar: status 125: boot: error: the guest ended" in stderr
    assert "1 of 4 units failed; to try them again: the same command" in stderr and "3 of 4 planned pairs" in stdout
    assert "the kernel's log" in sim.get("out/raw/command-2.tar.log")
    stdout, _ = sim.compare("--runs", 4)
    assert len(sim.machines) == 5 and "planned" not in stdout.splitlines()[0]
    sim.whole(4)


@pytest.mark.parametrize("name", ["small", "./mine"])
def test_caches(sim, name):
    """The machine gets the preset, by name or as a file; the plan has its hash, the table its name. A changed file is another comparison."""
    (sim.root / "mine").write_text("smt 0.5\n")
    stdout, _ = sim.ab("--machine", "2x2x4x1", "--caches", name, "--runs", 2, "--out", sim.out, "--", "load", "1000", "900")
    assert sim.machines == ["1001 2x2x4x1,2 image smt 0.5", "1002 2x2x4x1,2 image smt 0.5"]
    assert f"caches: the {'preset small' if name == 'small' else 'file ./mine'}" in stdout and "two threads that share a core" in stdout
    assert f"--caches {name} " in sim.get("out/page.html")
    (sim.top / "sim/presets/small" if name == "small" else sim.root / "mine").write_text("smt 0.6\n")
    _, stderr = sim.ab("--machine", "2x2x4x1", "--caches", name, "--runs", 2, "--out", sim.out, "--", "load", "1000", "900", rc=2)
    assert stderr.count(f"caches {name} ") == 2


@pytest.mark.parametrize("kernels", [1, 2])
def test_sections(sim, kernels):
    """With caches, each run is a section, and its lines of memory have the names of its kernel."""
    words = ["--machine", "1x4x1", "--runs", 2, "--out", sim.out]
    if kernels == 2:
        (sim.root / "other").write_text("STEAL OTHER\n")
        words += ["--kernel", f"patched,other={sim.root / 'other'}"]
    sim.ab(*words, "--caches", "small", "--", "load", "1000", "900")
    assert sorted(path.name for path in sim.out.glob("names*")) == (["names"] if kernels == 1 else ["names-other", "names-patched"])
    rows = sim.rows
    assert [row["memory:accesses"] for row in rows] == ["10000"] * 4 and {row["valid"] for row in rows} == {"yes"}
    assert sim.get("out/lines.csv").count("runqueues[*] line 2,") == 2
    shutil.rmtree(sim.out)
    sim.ab(*words, "--", "load", "1000", "900")
    assert "memory:accesses" not in sim.rows[0] and not (sim.out / "lines.csv").exists() and not list(sim.out.glob("names*"))


@pytest.mark.parametrize("setup_works", [True, False])
def test_fresh_host(sim, setup_works):
    """Without a module, --machine runs setup first, here one that makes the module appear."""
    hidden = sim.root / "hidden"
    hidden.mkdir()
    (hidden / "pandas.py").write_text("raise ModuleNotFoundError('No module named pandas')\n")
    setup = sim.top / "scripts/setup"
    setup.unlink()
    setup.write_text(f"#!/bin/sh\necho setup runs\n{'rm -f ' + str(hidden / 'pandas.py') if setup_works else 'exit 1'}\n")
    setup.chmod(0o755)
    stdout, stderr = sim.compare("--runs", 2, rc=0 if setup_works else 3, environment={"PYTHONPATH": str(hidden)})
    assert "setup runs" in stderr and "setup runs" not in stdout
    assert ("No module named pandas; run scripts/setup" in stderr) == (not setup_works) == (not sim.out.exists())
    if not setup_works:
        assert "setup runs" in sim.ab("--machine=1x4x1", "--", "load", "1", "1", rc=3, environment={"PYTHONPATH": str(hidden)})[1]


def test_image_is_replaced_meanwhile(sim):
    """Somebody builds another kernel where this one is: all machines have the one of the plan."""
    pid_file = sim.root / "pid"
    process = sim.start("--machine", "1x4x1", "--out", sim.out, "--runs", 4, "--jobs", 1, "--", "load", "1000", "900",
                        environment={"FAKE_HANG": f"1002:{pid_file}"})
    wait_for(lambda: pid_file.exists() and pid_file.read_text())
    sim.kernel("image", "ANOTHER")
    os.kill(int(pid_file.read_text()), signal.SIGKILL)
    _, stderr = process.communicate(timeout=120)
    assert "1 of 4 units failed" in stderr and sorted({row["pair"] for row in sim.rows}) == ["1", "3", "4"]
    assert "hash_kernel_patched" in sim.compare("--runs", 4, rc=2)[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_interrupted_while_it_builds(sim, number):
    """The script that builds can clean up. Nothing is left."""
    build, began, cleaned = sim.top / "scripts/build", sim.root / "began", sim.root / "cleaned"
    build.unlink()
    build.write_text(f"#!/bin/bash\ntrap 'sleep 0.5; kill $!; echo >{cleaned}' EXIT\ntrap 'exit 143' TERM\n"
                     f"sleep 100 >/dev/null 2>&1 &\necho >{began}\nwait $!\n")
    build.chmod(0o755)
    process = sim.start("--machine", "1x4x1", "--out", sim.out, "--", "load", "1000", "900")
    wait_for(began.exists)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 130 and cleaned.exists() and not sim.out.exists() and "interrupted" in stderr.splitlines()[-1]


@pytest.mark.parametrize("damage", ["truncated", "changed", "empty"])
def test_damaged_archive_is_measured_again(sim, damage):
    stdout, _ = sim.compare("--runs", 4)
    archive = sim.out / "raw/command-3.tar"
    data = archive.read_bytes()
    archive.write_bytes({"truncated": data[:len(data) // 2], "changed": data.replace(b"rate=", b"rite="), "empty": b""}[damage])
    again, stderr = sim.compare("--runs", 4)
    assert stderr.count("incomplete or damaged") == 1 and "command-3.tar" in stderr
    assert sim.machines.count("1003 1x4x1 image") == 2 and len(sim.machines) == 5
    assert again == stdout
    sim.whole(4)


@pytest.mark.parametrize("victim", ["ab", "unit", "parallel"])
def test_killed_and_continued(sim, victim):
    """kill -9 of the orchestrator, of a unit, of GNU parallel: no machine is left, and the same command goes on."""
    pid_file = sim.root / "pid"
    process = sim.start("--machine", "1x4x1", "--out", sim.out, "--runs", 4, "--jobs", 1, "--", "load", "1000", "900",
                        environment={"FAKE_HANG": f"1003:{pid_file}"})
    wait_for(pid_file.exists)
    wait_for(lambda: pid_file.read_text())
    machine = int(pid_file.read_text())
    if victim == "ab":
        process.kill()
        sim.finish(process, -9)
    else:
        commands = subprocess.run(["ps", "-ewwo", "pid,args"], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
        pattern = r"bash \S*/bench/ab-unit .*" if victim == "unit" else r"perl \S*parallel .*"
        pids = [int(line.split()[0]) for line in commands if re.search(pattern + re.escape(str(sim.out)), line)]
        assert pids, commands
        os.kill(pids[0], signal.SIGKILL)
        # Killed: GNU parallel tries none again; the others go on.
        _, stderr = sim.finish(process, 0)
        assert "failed; to try them again: the same command" in stderr
    wait_for(lambda: gone(machine))
    before = {path.name for path in sim.out.glob("raw/*.tar")}
    assert "command-3.tar" not in before and "command-1.tar" in before
    stdout, _ = sim.compare("--runs", 4, "--jobs", 1)
    assert "GAIN" in stdout or "significant" in stdout
    sim.whole(4)
    assert sim.machines.count("1001 1x4x1 image") == 1 and sim.machines.count("1003 1x4x1 image") == 2
