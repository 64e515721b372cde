# SPDX-License-Identifier: GPL-2.0
"""bench/ablib: raw files made here are folded, compared and shown."""

import csv
import hashlib
import html
import itertools
import math
import random
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy
import pytest
import scipy.stats
from conftest import kernel_lines, line_files, named

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "bench"))
import ablib  # noqa: E402
from ablib import features, fold, machines, stats  # noqa: E402
from ablib.job import Stop  # noqa: E402
from ablib.plan import AbError, Case, Gate, Metric, Plan, read_plan  # noqa: E402

SIDES = "off=NO_STEAL,on=STEAL"
# A user would see a warning of numpy or pandas.
pytestmark = pytest.mark.filterwarnings("error")


class Raw:
    """A comparison's directory, with a plan and raw files made up by the test."""

    def __init__(self, path, runs=10, machine="here", sides=SIDES, metrics=("time",), more="", cases=("command",)):
        self.path = path
        self.cases = cases
        self.sides = [word.partition("=")[0] for word in sides.split(",")]
        path.mkdir()
        loads = dict.fromkeys(Case.parse(case).load for case in cases)
        command = "command ./work 'a b'\n" if "command" in loads else ""
        (path / "plan").write_text("format 2\n" + "".join(f"case {case}\n" for case in cases) + f"{command}sides {sides}\n"
                                   + "".join(f"metric:{load} {m}\n" for load in loads for m in metrics)
                                   + f"runs {runs}\nseeds development\norder_seed 7\nmachine {machine}\nproject v1\n{more}")

    def run(self, pair, side, ns=1000000, unit="here", position=None, boot="b00t", topology="", host="", case="", **files):
        """A run of NS nanoseconds; a file of its directory by name, with _ for . and -; None leaves it out."""
        position = position or self.sides.index(side) + 1
        case = case or self.cases[0]
        content = {"command": "./work\na b\n", "schedule": f"{case} {pair} {position} {side} STEAL\n", "boot_id": boot + "\n",
                   "features": "STEAL\n", "online": "0-1\n", "began_ns": "5000\n", "ended_ns": f"{5000 + ns}\n", "exit": "0\n",
                   "stdout": "", "stderr": "", "valid": "yes\n"}
        content |= {name.replace("schedstat_", "schedstat.").replace("idle_search_", "idle_search.").replace("perf_", "perf-"): text
                    for name, text in files.items()}
        top = self.path / "raw" / unit
        (top / "machine").mkdir(parents=True, exist_ok=True)
        (top / "machine/topology").write_text(topology)
        if host:
            (top / "machine/host").write_text(host + "\n")
        here = top / f"runs/{case}/{pair}-{side}"
        here.mkdir(parents=True)
        for name, text in content.items():
            if text is not None:
                (here / name).write_text(text)
        names = sorted(path.name for path in here.iterdir())
        (here / "sum").write_text(subprocess.run(["cksum", *names], cwd=here, capture_output=True, text=True, check=True).stdout)
        return here

    def archive(self, unit):
        """Makes UNIT.tar of the directory UNIT."""
        path = self.path / f"raw/{unit}.tar"
        subprocess.run(["tar", "-cf", path, "-C", self.path / "raw" / unit, "."], check=True)
        shutil.rmtree(self.path / "raw" / unit)
        return path

    def pairs(self, times, **options):
        """A pair for each tuple of times (ns), a time a side."""
        for pair, values in enumerate(times, 1):
            for side, ns in zip(self.sides, values):
                self.run(pair, side, ns, **options)
        return self

    def frame(self):
        """runs.csv as the table reads it."""
        fold.fold(self.path)
        return ablib.table.read_runs(self.path, read_plan(self.path))

    def rows(self):
        with fold.fold(self.path).open(newline="") as file:
            return list(csv.DictReader(file))


@pytest.fixture
def raw(tmp_path):
    """raw(OPTIONS): a directory as of Raw."""
    return lambda name="cmp", **options: Raw(tmp_path / name, **options)


# features

BITS = features.read_bits(TOP / "tests/data/features")


def bits_of(texts):
    """The features that patches add, in order: name -> number of the patch, from 1. A patch may change a feature of the kernel."""
    found = {}
    for number, text in enumerate(texts, 1):
        added, removed = (re.findall(rf"^[{sign}]SCHED_FEAT\((\w+),", text, re.M) for sign in "+-")
        found |= {name: number for name in added if name not in removed and name not in found}
        for name in set(removed) - set(added):
            found.pop(name, None)
    return found


def wrong_bits(bits, texts):
    """What is wrong with a list of bits: a bit without a patch, a patch without a bit, another order, or nine or not."""
    found = bits_of(texts)
    return [f"{name} is in no patch" for name in bits if name not in found] + \
        [f"patch {number} adds {name}, which is not in the list" for name, number in found.items() if name not in bits] + \
        ["the order differs"] * (list(found) != list(bits) and set(found) == set(bits)) + \
        [f"{name} is of patch {found[name]}" for name, bit in bits.items() if name in found and bit.nine != (found[name] <= 9)]


def test_features_are_those_of_the_patches():
    patches = sorted(path for path in (TOP / "patches").glob("0*.patch") if not path.name.startswith("0000"))
    assert wrong_bits(features.read_bits(), [path.read_text() for path in patches]) == []


@pytest.mark.parametrize("line", [line for line, row in kernel_lines().items() if row["state"] == "maintained"])
def test_features_are_those_of_a_line(line):
    """All bits but those that the series for this line leaves out."""
    bits = {name: bit for name, bit in features.read_bits().items() if bit.is_in(line)}
    assert wrong_bits(bits, [path.read_text() for path in named(line_files(line)[1])]) == []
    assert bits == {name: bit for name, bit in features.read_bits().items() if bit.is_in(f"{line}.7-arch1")}


def test_lines_without_a_bit():
    bit = features.Bit("X", False, frozenset(), "x", frozenset({"6.12", "6.6"}))
    assert [bit.is_in(release) for release in ("6.12", "6.12.3-generic", "6.6", "6.1.12", "6.120", "7.3.4", "")] == [False] * 3 + [True] * 4


def test_wrong_features_are_found():
    texts = ["+SCHED_FEAT(STEAL, true)\n", *[" SCHED_FEAT(OLD, true)\n-SCHED_FEAT(BASE, true)\n+SCHED_FEAT(BASE, false)\n"] * 8,
             "+SCHED_FEAT(STEAL_FIRST, false)\n+SCHED_FEAT(GONE, false)\n",
             "-SCHED_FEAT(STEAL_FIRST, false)\n+SCHED_FEAT(STEAL_FIRST, true)\n-SCHED_FEAT(GONE, false)\n"]
    two = {name: BITS[name] for name in ("STEAL", "STEAL_FIRST")}
    assert wrong_bits(two, texts) == []
    assert wrong_bits({"STEAL": BITS["STEAL"]}, texts) == ["patch 10 adds STEAL_FIRST, which is not in the list"]
    assert wrong_bits(two | {"SYNC_WAIT": BITS["SYNC_WAIT"]}, texts) == ["SYNC_WAIT is in no patch"]
    assert wrong_bits(dict(reversed(two.items())), texts) == ["the order differs"]
    assert wrong_bits(two, texts[-2:] + texts[:1]) == ["the order differs", "STEAL_FIRST is of patch 1"]


def test_read_bits():
    assert {name: (bit.nine, set(bit.needs)) for name, bit in BITS.items()} == {
        "STEAL": (True, set()), "STEAL_FIRST": (False, {"STEAL"}), "STEAL_BUSIEST": (False, {"STEAL"}), "STEAL_SLICE": (False, {"STEAL"}),
        "SYNC_WAIT": (False, set())}
    assert BITS["SYNC_WAIT"].what.startswith("lets a lone waker")


@pytest.mark.parametrize("text", ["STEAL ten text", "STEAL nine", "steal nine text", "A nine text\nA nine text", "A nine needs B text",
                                  "A nine needs B text\nB nine text", "A nine not 6.12", "# none\n", None])
def test_bad_features(tmp_path, text):
    path = tmp_path / "features"
    if text is not None:
        path.write_text(text + "\n")
    with pytest.raises(AbError) as refused:
        features.read_bits(path)
    assert str(refused.value).startswith(str(path)) and "\n" not in str(refused.value)


OFF = "NO_STEAL+NO_STEAL_FIRST+NO_STEAL_BUSIEST+NO_STEAL_SLICE+NO_SYNC_WAIT"


@pytest.mark.parametrize("text, made", [
    ("off", OFF), ("nine", "STEAL+NO_STEAL_FIRST+NO_STEAL_BUSIEST+NO_STEAL_SLICE+NO_SYNC_WAIT"),
    ("all", "STEAL+STEAL_FIRST+STEAL_BUSIEST+STEAL_SLICE+SYNC_WAIT"), ("NO_STEAL", OFF), ("NO_SYNC_WAIT", OFF),
    ("SYNC_WAIT+STEAL", "STEAL+NO_STEAL_FIRST+NO_STEAL_BUSIEST+NO_STEAL_SLICE+SYNC_WAIT"), ("NEXT_BUDDY", "NEXT_BUDDY"),
    ("NO_NEXT_BUDDY+NEXT_BUDDY+A", "NEXT_BUDDY+A"), ("A+off", f"{OFF}+A"),
    ("all+NO_STEAL_SLICE", "STEAL+STEAL_FIRST+STEAL_BUSIEST+NO_STEAL_SLICE+SYNC_WAIT"), ("all+off", OFF), ("STEAL+NO_STEAL", OFF)])
def test_resolve(text, made):
    assert features.is_side(text) and features.resolve(text, BITS) == made
    assert features.resolve(made, BITS) == made


@pytest.mark.parametrize("text", ["", "nin", "off+", "+A", "Off", "a=b"])
def test_not_a_side(text):
    assert not features.is_side(text)


def test_factorial():
    chosen, sides = features.factorial("SYNC_WAIT,STEAL,STEAL_FIRST", BITS)
    assert chosen == ["STEAL", "STEAL_FIRST", "SYNC_WAIT"]
    assert list(sides) == ["off", "STEAL", "SYNC_WAIT", "STEAL+STEAL_FIRST", "STEAL+SYNC_WAIT", "STEAL+STEAL_FIRST+SYNC_WAIT"]
    assert sides["off"] == OFF and sides["STEAL+SYNC_WAIT"] == features.resolve("STEAL+SYNC_WAIT", BITS)
    assert features.left_out_text(chosen, sides).startswith("2 of 8 combinations left out")
    assert len(features.factorial(",".join(BITS), BITS)[1]) == 2 * (1 + 8)


@pytest.mark.parametrize("text, reason", [
    ("STEAL,WHAT", "'WHAT' is no bit of the series: STEAL, STEAL_FIRST, STEAL_BUSIEST, STEAL_SLICE, SYNC_WAIT"), ("", "'' is no bit"),
    ("STEAL,STEAL", "STEAL stands twice"), ("NO_STEAL", "'NO_STEAL' is no bit"),
    ("SYNC_WAIT,STEAL_SLICE", "STEAL_SLICE does nothing without STEAL; add STEAL, or leave STEAL_SLICE out")])
def test_bad_factorial(text, reason):
    with pytest.raises(AbError) as refused:
        features.factorial(text, BITS)
    assert str(refused.value).startswith("--factorial: " + reason)


def test_too_many_for_a_factorial():
    bits = BITS | {name: features.Bit(name, False, frozenset(), "x") for name in ("SIXTH", "SEVENTH")}
    with pytest.raises(AbError, match="7 bits; at most 6, which are up to 64 sides"):
        features.factorial(",".join(bits), bits)


# plan

@pytest.mark.parametrize("spec, metric", [
    ("time", Metric("time", unit="ns")),
    ("score=score: ([0-9.]+)", Metric("score", "score: ([0-9.]+)")),
    ("score=score: ([0-9.]+),ops/s,more", Metric("score", "score: ([0-9.]+)", "ops/s", "more")),
    ("score=([0-9]+),more", Metric("score", "([0-9]+)", "", "more")),
    ("share=([0-9]+),%,same", Metric("share", "([0-9]+)", "%", "same")),
    ("p99=^p99,(.*),us,less", Metric("p99", "^p99,(.*)", "us")),
    ("n=x{1,2}([0-9])", Metric("n", "x{1,2}([0-9])")),
])
def test_metric(spec, metric):
    assert Metric.parse(spec) == metric


@pytest.mark.parametrize("spec", ["score", "=([0-9])", "time=([0-9])", "a b=([0-9])", "score=[0-9]+", "score=([0-9]",
                                  "score=([0-9]),,more"])
def test_metric_refused(spec):
    with pytest.raises(ablib.AbError, match="metric"):
        Metric.parse(spec)


def test_metric_value():
    metric = Metric.parse("score=^score: (.*)$")
    assert metric.value("first\nscore: 1e3\nscore: 5") == 1000
    assert metric.value("score: many") is metric.value("") is metric.value("score: nan") is None


def test_gate():
    assert Gate.parse("1%") == Gate(1) and Gate.parse("0.5%,2ms") == Gate(0.5, 2, "ms") and Gate.parse("") == Gate()
    assert Gate.parse("1%,2ms").bound(Metric.parse("time")) == 2e6
    assert Gate.parse("1%,2ms").bound(Metric.parse("score=([0-9]+),ops")) is None
    for text in ("1", "2ms", "-1%", "1%,2", "1%,ms", "x%"):
        with pytest.raises(ablib.AbError, match="gate"):
            Gate.parse(text)


@pytest.mark.parametrize("change, text", [
    (("format 2", "format 1"), "format '1'"), (("case command", "case a b"), "case 'a b'"), (("case command\n", ""), "no case"),
    (("case command", "case command\ncase a"), "cases beside"), (("case command", "case a\ncase a"), "a case twice"),
    (("sides " + SIDES, "sides off=NO_STEAL"), "fewer than two sides"), (("metric:command time", "metric:command x"), "metric 'x'"),
    (("seeds development", "seeds mine"), "seeds 'mine'"), (("runs 10", "runs ten"), "ten")])
def test_plan_refused(raw, change, text):
    path = raw().path / "plan"
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(ablib.AbError, match=text) as refused:
        read_plan(path.parent)
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("name, load, level", [
    ("hackbench-4", "hackbench", "4"), ("hackbench-pipe-2", "hackbench-pipe", "2"), ("latency-0.5x", "latency", "0.5x"),
    ("pipe", "pipe", ""),
    ("hackbench-pipe", "hackbench-pipe", ""), ("nice-10x", "nice", "10x"), ("a-2-3", "a-2", "3")])
def test_case(name, load, level):
    assert Case.parse(name) == Case(load, level) and str(Case(load, level)) == name


@pytest.mark.parametrize("name", ["", "-1", "a b", "a-", "a-1-", "../a"])
def test_case_refused(name):
    with pytest.raises(ablib.AbError, match="not LOAD or LOAD-LEVEL"):
        Case.parse(name)


def test_plan_missing(tmp_path):
    with pytest.raises(ablib.AbError, match="plan: cannot read it"):
        fold.fold(tmp_path)


# fold

def test_cksum():
    random.seed(1)
    for size in (0, 1, 2, 3, 255, 256, 257, 70000):
        data = random.randbytes(size)
        out = subprocess.run(["cksum"], input=data, capture_output=True, check=True).stdout.split()
        assert [fold.cksum(data), size] == [int(word) for word in out]


BEFORE = "version 15\ntimestamp 1\ncpu0 0 0 10 20 30 0 1000 0 40\ncpu1 0 0 4294967290 20 30 0 1000 0 40\n"
AFTER = "version 15\ntimestamp 2\ncpu0 0 0 110 70 60 0 501000 0 80\ncpu1 0 0 4 20 30 0 1000 0 40\n"


def test_row(raw):
    made = raw(machine="1x2x1", metrics=("score=score: ([0-9.]+),ops,more", "time"))
    made.run(3, "on", 1000000, unit="p3", position=1, stdout="score: 12.5\n", stderr="warning",
             schedstat_before=BEFORE, schedstat_after=AFTER, idle_search_before="version 1\ncpu0 4294967294 0 0 0\ncpu1 0 0 0 0\n",
             idle_search_after="version 1\ncpu0 4 1 3000 1000\ncpu1 0 0 0 0\n",
             perf_stat="1234,,context-switches,1,100.00,,\n<not supported>,,cycles,0,0,,\n")
    made.archive("p3")
    (row,) = made.rows()
    assert list(row) == [*fold.HEAD, "metric:score", *fold.SCHEDSTAT, *fold.TRACED, "perf:context-switches"]
    assert row == {
        "format": "2", "host": "here", "machine": "1x2x1", "boot": "p3/b00t", "unit": "p3", "load": "command", "level": "", "tasks": "",
        "wasted_percent": "", "full_busy_percent": "", "idle_mean_us": "", "pair": "3", "position": "1", "side": "on",
        "command": "./work 'a b'", "seed": "1003", "exit": "0", "valid": "yes", "time_ns": "1000000", "cpus": "2", "metric:score": "12.5",
        "busy_percent": "25.0", "slice_ms": "0.0125", "sched": "55.0", "idle": "25.0", "wake": "15.0", "find_percent": "0.2",
        "steal": "3.0", "across": "", "pulled": "", "perf:context-switches": "1234"}


def test_here_has_no_seed_and_needs_no_schedstat(raw):
    (row,) = (made := raw(), made.run(1, "on"))[0].rows()
    assert row["seed"] == row["busy_percent"] == row["find_percent"] == "" and row["cpus"] == "2" and row["valid"] == "yes"


@pytest.mark.parametrize("seeds,seed", [("validation", "500002"), ("published", "1000002")])
def test_seeds(raw, seeds, seed):
    made = raw(machine="1x2x1")
    (made.path / "plan").write_text((made.path / "plan").read_text().replace("development", seeds))
    made.run(2, "on")
    assert made.rows()[0]["seed"] == seed


@pytest.mark.parametrize("version", ["15", "16", "17"])
def test_recorded_schedstat(raw, version):
    """As real kernels print it: the figures against sums made by hand from the same lines."""
    after = (TOP / f"tests/data/schedstat-v{version}").read_text()
    before = "\n".join(" ".join([*words[:1], *("0" for _ in words[1:])]) if words[0].startswith("cpu") else " ".join(words)
                       for words in map(str.split, after.splitlines()))
    made = raw()
    nodes = "".join(f"cpu {cpu} package 0 core 0 threads 0 llc 0-1 node {cpu // 2}\n" for cpu in range(4))
    made.run(1, "on", 10**11, schedstat_before=before, schedstat_after=after, topology=nodes)
    (row,) = made.rows()
    fields = [[int(word) for word in line.split()[1:]] for line in after.splitlines() if line.startswith("cpu")]
    assert row["cpus"] == "4"
    assert float(row["busy_percent"]) == pytest.approx(100 * sum(f[6] for f in fields) / 4e11)
    assert float(row["slice_ms"]) == pytest.approx(sum(f[6] for f in fields) / sum(f[8] for f in fields) / 1e6)
    assert float(row["sched"]) == sum(f[2] for f in fields) / 4
    # The domain lines are the same before and after.
    assert row["across"] == row["pulled"] == "0.0"


@pytest.mark.parametrize("version, names", [("15", ("", "")), ("17", ("MC ", "PKG "))])
def test_across(raw, version, names):
    """A domain of two nodes counts, a domain of one does not; version 17 has the domain's name before the mask."""
    def schedstat(remote, affine):
        return (f"version {version}\ncpu0 0 0 0 0 0 0 0 0 0\n" f"domain0 {names[0]}3 {' 0' * 33} {9 * remote} {affine // 2} 0\n"
                f"domain1 {names[1]}f {' 0' * 33} {remote} {affine} 0\n")
    made = raw()
    nodes = "".join(f"cpu {cpu} package 0 core 0 threads 0 llc 0 node {cpu // 2}\n" for cpu in range(4))
    made.run(1, "on", schedstat_before=schedstat(5, 4294967295), schedstat_after=schedstat(12, 2), topology=nodes)
    (row,) = made.rows()
    assert (row["across"], row["pulled"]) == ("7.0", "3.0")


@pytest.mark.parametrize("text", ["version 99\ncpu0 0 0 1 1 1 1 1 1 1\n", "version 15\ncpu0 1 2\n", "version 15\ncpu0 a b c d e f g h i\n"])
def test_other_schedstat_leaves_cells_empty(raw, text):
    made = raw()
    made.run(1, "on", schedstat_before=text, schedstat_after=text)
    (row,) = made.rows()
    assert row["busy_percent"] == "" and row["valid"] == "yes"


def test_perf_without_separator():
    text = ("\n Performance counter stats:\n\n  1,234  context-switches  #  1 K/sec\n  56.78 msec task-clock\n  <not counted> cycles\n"
            "  1.5 seconds time elapsed\n")
    assert fold.perf_counters(text) == {"context-switches": 1234, "task-clock": 56.78}


def test_failed_runs_have_rows(raw):
    made = raw(metrics=("time", "score=score: (.*)"))
    made.run(1, "off", exit="7\n")
    made.run(1, "on", valid="the online CPUs\nchanged\n")
    made.run(2, "off", 0)
    made.run(2, "on", ended_ns=None, stdout="score: many")
    rows = made.rows()
    assert [(row["exit"], row["valid"]) for row in rows] == [
        ("7", "yes"), ("0", "the online CPUs changed"), ("0", "the clock did not advance"), ("0", "the clock did not advance")]
    assert rows[3]["time_ns"] == rows[3]["metric:score"] == ""


def test_order_and_repetition(raw):
    """Rows are in the order of pair and position; a second fold writes the same bytes, also after another run came."""
    made = raw()
    made.run(10, "off", position=2)
    made.run(10, "on", position=1)
    made.run(2, "off")
    assert [(row["pair"], row["side"]) for row in made.rows()] == [("2", "off"), ("10", "on"), ("10", "off")]
    first = (made.path / "runs.csv").read_bytes()
    assert fold.fold(made.path).read_bytes() == first
    made.run(2, "on", 5)
    assert len(made.rows()) == 4
    fold.known_rows.clear()
    again = (made.path / "runs.csv").read_bytes()
    assert fold.fold(made.path).read_bytes() == again


def test_units_not_finished_are_left_out(raw):
    made = raw()
    made.run(1, "off")
    shutil.copytree(made.path / "raw/here/runs/command/1-off", made.path / "raw/here/runs/command/.1-on.new")
    (made.path / "raw/.2.tar.new").write_bytes(b"half")
    (made.path / "raw/.3.tar").write_bytes(b"half")
    (made.path / "raw/failed-3.log").write_text("log")
    (made.path / "raw/begun/machine").mkdir(parents=True)
    assert [row["side"] for row in made.rows()] == ["off"]
    assert fold.check_unit(made.path / "raw/here") is None


def test_nothing_yet(raw):
    made = raw()
    assert made.rows() == [] and (made.path / "runs.csv").read_text().startswith("format,host,")


def test_double_run_is_refused(raw):
    made = raw()
    made.run(1, "off", unit="a")
    made.run(1, "off", unit="b")
    with pytest.raises(ablib.AbError, match="command, pair 1, side off is also in unit a"):
        made.rows()
    assert not (made.path / "runs.csv").exists()


@pytest.mark.parametrize("case, side, reason", [("command", "other", "side 'other'"), ("pipe", "off", "case 'pipe'")])
def test_unknown_side_or_case_is_refused(raw, case, side, reason):
    made = raw()
    made.run(1, side, position=1, case=case)
    with pytest.raises(ablib.AbError, match=reason):
        made.rows()


@pytest.mark.parametrize("schedule", ["command 1 1 on -", "pipe 1 1 off -", "1 1 off -", "command x 1 off -", ""])
def test_schedule_that_does_not_fit_is_refused(raw, schedule):
    made = raw()
    made.run(1, "off", schedule=schedule + "\n")
    with pytest.raises(ablib.AbError, match="runs/command/1-off/schedule: not CASE PAIR POSITION SIDE FEATURES"):
        made.rows()


def test_cases(raw):
    """Loads with and without levels, whose metrics share columns; rows are in the order of the cases."""
    made = raw(cases=("latency-2x", "latency-0.5x", "pipe"), more="metric:pipe time\nmetric:pipe p=p ([0-9]+),us\n",
               metrics=("p=p: ([0-9]+),us",))
    for case, tasks, text in (("pipe", None, "p 5"), ("latency-0.5x", "1\n", "p: 6"), ("latency-2x", "4\n", "p: 7")):
        made.run(1, "off", case=case, tasks=tasks, stdout=text, command="\n".join([*case.split("-"), "scale=1", ""]))
    plan = made.path / "plan"
    plan.write_text(plan.read_text().replace("metric:pipe p=p: ([0-9]+),us\n", ""))
    frame = made.frame()
    assert frame[["load", "level", "command"]].values.tolist() == [
        ["latency", "2x", "latency 2x scale=1"], ["latency", "0.5x", "latency 0.5x scale=1"], ["pipe", "", "pipe scale=1"]]
    assert frame["tasks"].tolist()[:2] == [4, 1] and math.isnan(frame["tasks"][2]) and frame["metric:p"].tolist() == [7, 6, 5]


def test_archive_cut_anywhere(raw):
    """Each cut of an archive is found, at a file's end, too."""
    made = raw(machine="1x2x1")
    for side in made.sides:
        made.run(1, side, unit="p1", stdout="x" * 1500)
    path = made.archive("p1")
    assert fold.check_unit(path) is None
    assert len(made.rows()) == 2
    with tarfile.open(path) as archive:
        end = max(member.offset_data + (member.size + 511) // 512 * 512 for member in archive)
    whole = path.read_bytes()
    for size in {*range(0, end + 1024, 256), end, end - 1, end + 512, 1}:
        path.write_bytes(whole[:size])
        assert fold.check_unit(path), size
    path.write_bytes(whole[:end - 700])
    with pytest.raises(ablib.AbError, match="p1.tar: incomplete or damaged: .*truncated") as refused:
        fold.fold(path.parent.parent)
    assert "\n" not in str(refused.value)
    # The table of the time before is still there.
    assert (made.path / "runs.csv").read_text().count("\n") == 3


def test_archive_gets_longer_while_it_is_read(raw, monkeypatch):
    """A measured host's archive is replaced by one with more pairs; a reader sees one or the other."""
    made = raw(machine="1x2x1")
    for side in made.sides:
        made.run(1, side, unit="short")
        made.run(1, side, unit="long")
        made.run(2, side, unit="long", stdout="x" * 1500)
    short, long = made.archive("short"), made.archive("long")
    extract = tarfile.TarFile.extractfile

    def replaced(*arguments):
        if long.exists():
            long.rename(short)
        return extract(*arguments)
    monkeypatch.setattr(tarfile.TarFile, "extractfile", replaced)
    assert len(fold.read_unit(short).runs) == 2 and not long.exists()
    assert len(fold.read_unit(short).runs) == 4


def test_archive_with_a_directory_above(raw):
    made = raw(machine="1x2x1")
    made.run(1, "on", unit="p1")
    path = made.path / "raw/p1.tar"
    subprocess.run(["tar", "-cf", path, "-C", path.parent, "p1"], check=True)
    shutil.rmtree(path.parent / "p1")
    assert fold.check_unit(path) is None and [row["unit"] for row in made.rows()] == ["p1"]


@pytest.mark.parametrize("damage, reason", [
    (lambda run: (run / "stdout").write_text("changed"), "stdout does not fit its sum"),
    (lambda run: (run / "exit").unlink(), "exit is missing"),
    (lambda run: (run / "more").write_text(""), "more does not fit its sum"),
    (lambda run: (run / "sum").write_text("words"), "not a line of cksum"),
    (lambda run: (run / "sum").unlink(), "no file sum"),
])
def test_damaged_run(raw, damage, reason):
    made = raw()
    run = made.run(1, "off")
    damage(run)
    assert fold.check_unit(made.path / "raw/here").startswith("runs/command/1-off: ") and reason in fold.check_unit(made.path / "raw/here")
    with pytest.raises(ablib.AbError, match=reason):
        fold.fold(made.path)


def test_sums_of_sha256sum(raw):
    """A machine without cksum."""
    made = raw()
    run = made.run(1, "off")
    names = sorted(path.name for path in run.iterdir() if path.name != "sum")
    (run / "sum").write_text(subprocess.run(["sha256sum", *names], cwd=run, capture_output=True, text=True, check=True).stdout)
    assert fold.check_unit(made.path / "raw/here") is None
    (run / "stdout").write_text("changed")
    assert fold.check_unit(made.path / "raw/here") == "runs/command/1-off: stdout does not fit its sum"


def test_no_unit(raw, tmp_path):
    made = raw()
    made.run(1, "off")
    shutil.rmtree(made.path / "raw/here/runs")
    assert fold.check_unit(made.path / "raw/here") == "it has no run"
    assert "cannot read it" in fold.check_unit(tmp_path / "nothing.tar")


def test_full_disk(raw, monkeypatch):
    """What cannot be written leaves the file of the time before, and nothing else."""
    made = raw()
    made.run(1, "off")
    fold.fold(made.path)
    before = (made.path / "runs.csv").read_bytes()
    made.run(1, "on")
    monkeypatch.setattr("ablib.plan.os.fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(ablib.AbError, match="runs.csv: cannot write it: No space left on device"):
        fold.fold(made.path)
    assert (made.path / "runs.csv").read_bytes() == before
    assert sorted(path.name for path in made.path.iterdir()) == ["plan", "raw", "runs.csv"]


# statistics

def by_signs(differences):
    """p of the signed-rank test by all signs of the differences."""
    magnitudes = sorted(abs(d) for d in differences)
    rank = {m: (magnitudes.index(m) + 1 + len(magnitudes) - magnitudes[::-1].index(m)) / 2 for m in magnitudes}
    ranks = [rank[abs(d)] for d in differences if d]
    at = sum(rank[abs(d)] for d in differences if d > 0)
    sums = [sum(itertools.compress(ranks, signs)) for signs in itertools.product((0, 1), repeat=len(ranks))]
    return min(1, 2 * min(sum(s <= at for s in sums), sum(s >= at for s in sums)) / len(sums))


@pytest.mark.parametrize("differences", [
    [1], [-1, 2], [1, 2, 3], [3, -1, 2, 4, 5, 6], [-1, -2, -3, -4, -5, -6, -7], [1, 1, -1, 2, 2], [0, 1, 2, -3], [0, 0, 0],
    [0, 0, 1, -1, 2, 2, 5], [5, -5, 5, -5], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [-9, 2, 2, 2, 0, 4, 7, 7, -1, 8]])
def test_p_by_enumeration(differences):
    assert stats.p_value(differences) == pytest.approx(by_signs(differences), abs=1e-12)


def test_p_and_interval_of_random_samples():
    """scipy's exact p; an interval that excludes 0 just where p is below 5 %; scipy's distribution gives its coverage."""
    draw = random.Random(3)
    for n in [1, 2, 3, 5, 6, 7, 8, 10, 12, 20, 33, 50]:
        for _ in range(20):
            differences = [draw.gauss(0.3, 1) for _ in range(n)]
            p = stats.p_value(differences)
            assert p == pytest.approx(scipy.stats.wilcoxon(differences, mode="exact").pvalue, abs=1e-12)
            found = stats.interval(differences)
            assert (found is None) == (n < 6)
            if found:
                assert (found.low > 0 or found.high < 0) == (p < 0.05)
                assert found.coverage >= 0.95
                assert found.low <= numpy.median(stats.walsh_averages(differences)) <= found.high


def test_interval_by_hand():
    """Published critical values: 6 pairs leave out 0 averages, 8 leave out 3, 10 leave out 8, 15 leave out 25."""
    for n, left_out in ((6, 0), (7, 2), (8, 3), (9, 5), (10, 8), (15, 25), (25, 89)):
        differences = [2.0 ** i for i in range(n)]
        averages = sorted((a + b) / 2 for i, a in enumerate(differences) for b in differences[i:])
        found = stats.interval(differences)
        assert (found.low, found.high) == (averages[left_out], averages[-1 - left_out])
    assert stats.interval([1.0] * 6).coverage == 1 - 2 / 64


def test_coverage_by_simulation():
    draw = random.Random(4)
    inside = sum(found.low <= 1 <= found.high for found in (stats.interval([draw.gauss(1, 1) for _ in range(8)]) for _ in range(2000)))
    assert inside / 2000 == pytest.approx(stats.interval(list(range(8))).coverage, abs=0.012)


def test_estimate():
    """Medians of Walsh averages by hand: of 1 2 6 they are 1 1.5 2 3.5 4 6."""
    assert stats.compare([math.e, math.e ** 2, math.e ** 6], [1, 1, 1]).estimate == pytest.approx(2.75)
    assert stats.compare([1, 1, 1], [math.e, math.e ** 2, math.e ** 6], more=True).estimate == pytest.approx(2.75)
    assert stats.percent(stats.compare([100], [80]).estimate) == pytest.approx(25)
    assert stats.percent(stats.compare([80], [100]).estimate) == pytest.approx(-20)


def test_many_pairs():
    differences = [-i - 0.5 if i % 7 in (0, 2, 5) else i + 0.5 for i in range(400)]
    approximate = scipy.stats.wilcoxon(differences, mode="approx").pvalue
    assert stats.p_value(differences) == pytest.approx(approximate, rel=0.03) and 0.001 < approximate < 0.05


def test_smallest_p():
    for n in range(1, 9):
        assert stats.smallest_p(n) == pytest.approx(stats.p_value(range(1, n + 1)))


def test_benjamini_hochberg():
    """By hand: sorted p times 4/1, 4/2, 4/3, 4/4, each then at most the next."""
    assert stats.benjamini_hochberg([0.04, 0.01, 0.03, 0.5]) == pytest.approx([0.16 / 3, 0.04, 0.16 / 3, 0.5])
    assert stats.benjamini_hochberg([0.05, 0.05]) == [0.05, 0.05]
    assert stats.benjamini_hochberg([0.9, 0.8]) == [0.9, 0.9]
    assert stats.benjamini_hochberg([0.03]) == [0.03] and stats.benjamini_hochberg([]) == []


# table and verdict

def lines_of(text, first):
    """The cells of the table whose header begins with FIRST, by header; cells are two spaces apart at least."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(first))
    names = [name.strip() for name in lines[start].split("  ") if name.strip()]
    body = itertools.takewhile(str.strip, lines[start + 1:])
    return [dict(zip(names, [cell.strip() for cell in line.split("  ") if cell.strip()])) for line in body]


def shown(made):
    fold.fold(made.path)
    return ablib.table.table(made.path), ablib.render(made.path)


def says(text, words):
    """Whether a text has these words, however its lines are broken."""
    return " ".join(words.split()) in " ".join(text.split())


def times(n, factor, noise=0.002, seed=1, scale=10**9):
    """N pairs, the second time FACTOR times the first."""
    draw = random.Random(seed)
    drifts = (draw.uniform(0.8, 1.2) for _ in range(n))
    return [(int(scale * drift), int(scale * drift * factor * draw.gauss(1, noise))) for drift in drifts]


def test_gain(raw):
    made = raw(machine="1x2x2", runs=8)
    values = times(8, 0.9)
    for pair, (off, on) in enumerate(values, 1):
        made.run(pair, "off", off, unit=f"p{pair}")
        made.run(pair, "on", on, unit=f"p{pair}")
    text, verdict = shown(made)
    assert verdict.loss is False and verdict.cannot == "" and verdict.sentence.startswith("GAIN: on is 11.")
    assert text.startswith(verdict.sentence + "\n")
    (row,) = lines_of(text, "metric")
    averages = sorted((math.log(a / b) + math.log(c / d)) / 2 for i, (a, b) in enumerate(values) for c, d in values[i:])
    bounds = [f"{100 * (math.exp(average) - 1):+.2f}" for average in (averages[3], averages[-4])]
    assert row == {"metric": "time (less is better)", "unit": "s" if numpy.median([off for off, _ in values]) >= 1e9 else "ms",
                   "off median": row["off median"], "on median": row["on median"],
                   "better %": f"{100 * (math.exp(numpy.median(averages)) - 1):+.2f}", "95% interval %": " to ".join(bounds),
                   "p": "0.0078", "q": "0.0078", "verdict": "GAIN", "pairs": "8"}
    assert says(text, "Not modelled: caches and memory latency") and "seeds    development, 1001 to 1008" in text
    assert "boot" not in text and "dropped" not in text and "planned pairs" not in text
    assert (made.path / "table.txt").read_text() == text


def test_loss_and_direction(raw):
    """Slower is a loss; more of a metric is a gain where more is better."""
    assert shown(raw("slow").pairs(times(8, 1.1)))[1].loss
    for direction, loss in (("more", False), ("less", True)):
        made = raw(direction, metrics=(f"rate=rate ([0-9]+),{direction}", "time"))
        for pair, (off, on) in enumerate(times(8, 1.1), 1):
            made.run(pair, "off", 1000, stdout=f"rate {off}")
            made.run(pair, "on", 1000, stdout=f"rate {on}")
        text, verdict = shown(made)
        assert verdict.loss is loss
        rate, time = lines_of(text, "metric")
        assert rate["verdict"] == ("LOSS" if loss else "GAIN") and time["verdict"] == "no significant difference" and time["p"] == "1"
        # q is p times 2, as there are two rows; the equal times have p 1.
        assert (rate["p"], rate["q"]) == ("0.0078", "0.016")


def test_each_metric_decides(raw):
    made = raw(metrics=("time", "rate=rate ([0-9]+),more"))
    for pair, (off, on) in enumerate(times(8, 0.5), 1):
        made.run(pair, "off", 10**9 + pair % 2, stdout=f"rate {off}")
        made.run(pair, "on", 10**9 + (pair // 2) % 2, stdout=f"rate {on}")
    text, verdict = shown(made)
    assert [row["verdict"] for row in lines_of(text, "metric")] == ["no significant difference", "LOSS"]
    first, second = text.splitlines()[:2]
    assert first.startswith("No significant difference between off and on in time: ") and second.startswith("LOSS: on is 50")
    assert verdict.loss and verdict.sentence == f"{first} {second}"


def summarised(made):
    fold.fold(made.path)
    return ablib.table.summarise(made.path)


def levels(raw, ratios, name="levels", runs=8, load="hackbench", more="level_name:hackbench groups\nloops 100\n", **options):
    """A comparison of the levels of a load: for each, what the time of `on` is of that of `off`."""
    made = raw(name, runs=runs, cases=[f"{load}-{level}" for level in ratios], more=f"about:{load} what it is\n{more}", **options)
    for seed, (level, ratio) in enumerate(ratios.items()):
        for pair, values in enumerate(times(runs, ratio, seed=seed), 1):
            for side, ns in zip(made.sides, values):
                made.run(pair, side, ns, case=f"{load}-{level}", unit=f"{level}-{pair}", tasks=f"{str(level).rstrip('x')}\n")
    return made


def test_levels(raw):
    made = levels(raw, {1: 0.9, 2: 1.0, 4: 1.1})
    summary = summarised(made)
    assert [(str(row.case), row.verdict, row.pairs) for row in summary.rows] == [
        ("hackbench-1", "GAIN", 8), ("hackbench-2", "no significant difference", 8), ("hackbench-4", "LOSS", 8)]
    assert [row.q for row in summary.rows] == pytest.approx(stats.benjamini_hochberg([row.comparison.p for row in summary.rows]))
    alone = [summarised(levels(raw, {level: ratio}, name=f"of {level}")).rows[0] for level, ratio in ((1, 0.9),)]
    assert alone[0].comparison == summary.rows[0].comparison
    said, loss = summary.sentences
    low, middle, high = (f"{row.better:+.1f} %" for row in reversed(summary.rows))
    assert said == f"on against off: GAIN in 1 of 3 rows, LOSS in 1; from {low} (4 groups) to {high} (1 group)."
    assert loss.startswith(f"LOSS: on is {low[1:]} worse than off in time of hackbench-4 (95 % interval ")
    assert summary.verdict.loss and not summary.verdict.cannot and not summary.early
    text, _ = shown(made)
    assert [(row["groups"], row["unit"], row["pairs"]) for row in lines_of(text, "groups")] == [
        (level, unit["unit"], "8") for level, unit in zip("124", lines_of(text, "groups"))]
    assert "metric" not in text.split("\n\n")[2] and "metric     time (less is better)" in text
    assert "8 planned for each case, 24 measured" in text


def test_no_loss(raw):
    summary = summarised(levels(raw, {1: 0.9, 2: 0.8}))
    assert summary.sentences[0].startswith("on against off: GAIN in 2 of 2 rows, no LOSS; from +") and len(summary.sentences) == 1
    assert not summary.verdict.loss
    assert summarised(levels(raw, {1: 1, 2: 1}, "none")).sentences[0].startswith("on against off: no GAIN in 2 rows, no LOSS; from ")


def test_a_case_without_result(raw):
    """The others are shown; the verdict names it. Its other cases count."""
    made = levels(raw, {1: 0.9, 2: 0.8, 4: 0.9, 8: 0.9})
    for pair in range(2, 9):
        for level in (2, 4):
            shutil.rmtree(made.path / f"raw/{level}-{pair}")
    for pair in range(1, 9):
        shutil.rmtree(made.path / f"raw/8-{pair}")
        made.run(pair, "off", 10, case="hackbench-8")
        made.run(pair, "on", 10, case="hackbench-8", exit="3\n")
    summary = summarised(made)
    assert [row.pairs for row in summary.rows] == [8, 1, 1, 0]
    assert summary.sentences[0].startswith("on against off: GAIN in 1 of 1 row, no LOSS; ")
    few = "hackbench-2, hackbench-4: 1 complete pair, and a comparison needs 2"
    failed = f"hackbench-8: every run of side on failed (exit 3); see its stderr in {made.path}/raw"
    assert summary.sentences[1:] == [f"No result for {few}.", f"No result for {failed}."]
    assert summary.verdict.cannot == f"{few}; {failed}" and summary.early.startswith("18 of 32 planned pairs")
    assert "dropped: 8 pairs with a failed or invalid run (hackbench-8, on: 8 x exit 3)" in summary.notes
    text, _ = shown(made)
    assert [row["pairs"] for row in lines_of(text, "groups")] == ["8", "1", "1", "0"]


@pytest.mark.parametrize("on, gate, verdict", [
    ([1.05] * 8, "", "DIFF"), ([0.95] * 8, "", "DIFF"), ([1.005] * 8, "", "same"), ([1.005, 0.995] * 4, "", "same"),
    ([1.05, 0.95] * 4, "", "no significant difference"), ([1.05] * 8, "6%", "same"), ([1.05] * 8, "0.1%", "DIFF"),
    ([1.005] * 6 + [1.03] * 2, "", "no significant difference")])
def test_what_must_not_change(raw, on, gate, verdict):
    """The last one has a small p, and its interval ends above 1 %, but its estimate is 0.5 %."""
    made = raw(cases=("nice-1x",), metrics=("share=share ([0-9.]+),%,same",), more=f"gate {gate}\n" if gate else "")
    for pair, value in enumerate(on, 1):
        made.run(pair, "off", stdout="share 50", tasks="2")
        made.run(pair, "on", stdout=f"share {50 * (value + pair * 1e-6)}", tasks="2")
    summary = summarised(made)
    (row,) = summary.rows
    assert (row.q < 0.05) == (on != [1.005, 0.995] * 4 and on != [1.05, 0.95] * 4)
    assert row.verdict == verdict and summary.verdict.loss == (verdict == "DIFF")
    assert row.better == pytest.approx(100 * (math.exp(numpy.median(stats.walsh_averages(numpy.log(on)))) - 1), abs=1e-3)
    if verdict == "DIFF":
        assert summary.sentences[0].startswith(f"DIFF: share changes by {row.better:+.1f} % from off to on (95 % interval ")
    text, _ = shown(made)
    assert f"DIFF: q below 0.05, and the change is more than {6 if gate == '6%' else 1} %" in text


def test_several_loads(raw):
    """Loads with metrics of their own: the table has a column for the load and one for the metric; q is over all rows."""
    made = raw(cases=("latency-0.5x", "latency-2x", "pipe"), metrics=("p50=p50 ([0-9]+),us", "p99=p99 ([0-9]+),us"), machine="1x2x1")
    plan = made.path / "plan"
    plan.write_text(re.sub("metric:pipe .*\n", "", plan.read_text()) + "metric:pipe time\n")
    for pair, (off, on) in enumerate(times(8, 0.9, scale=10**4), 1):
        for side, value in (("off", off), ("on", on)):
            for case in made.cases:
                made.run(pair, side, 100 * value, case=case, stdout=f"p50 {value}\np99 {10 * value}\n", unit=f"{case}-{pair}",
                         schedstat_before=BEFORE, schedstat_after=AFTER, perf_stat="9,,faults,1,100.00,,\n")
    summary = summarised(made)
    assert [(str(row.case), row.metric.name) for row in summary.rows] == [
        ("latency-0.5x", "p50"), ("latency-0.5x", "p99"), ("latency-2x", "p50"), ("latency-2x", "p99"), ("pipe", "time")]
    assert all(row.verdict == "GAIN" and row.q == row.comparison.p for row in summary.rows)
    assert summary.sentences[0].startswith("on against off: GAIN in 5 of 5 rows, no LOSS; from ")
    assert all(name in ("p50 of latency-0.5x", "p99 of latency-0.5x", "p50 of latency-2x", "p99 of latency-2x", "pipe")
               for name in re.findall(r"% \((.*?)\)", summary.sentences[0]))
    main, counts, perf = summary.grids
    assert [head.name for head in main.heads][:4] == ["load", "level", "metric", "unit"]
    assert main.lines[3][:4] == ["latency", "2x", "p99 (less is better)", "us"]
    assert main.lines[4][:3] == ["pipe", "-", "time (less is better)"]
    assert [line[:3] for line in counts.lines] == [[*case, side] for case in (("latency", "0.5x"), ("latency", "2x"), ("pipe", "-"))
                                                   for side in made.sides]
    busy = [100 * 500000 / (2 * run) for run in summary.whole[summary.whole["side"] == "on"]["time_ns"][:8]]
    assert float(counts.lines[1][3]) == pytest.approx(numpy.median(busy), abs=0.01)
    assert [line[:3] for line in perf.lines] == [["latency", "0.5x", "faults"], ["latency", "2x", "faults"], ["pipe", "-", "faults"]]
    assert "a level such as 2x: tasks for each CPU" in summary.notes


@pytest.mark.parametrize("gate, verdict", [
    ("", "LOSS"), ("1%", "LOSS"), ("2.1%", "within the gate"), ("1%,15ms", "LOSS"), ("1%,25ms", "within the gate"),
    ("0%,25000us", "within the gate"), ("1%,3parsecs", "LOSS")])
def test_gate_of_a_loss(raw, gate, verdict):
    """20 ms more of 1 s: 1.96 % worse."""
    made = raw(more=f"gate {gate}\n" if gate else "").pairs([(10**9, 102 * 10**7 + pair) for pair in range(8)])
    text, found = shown(made)
    assert lines_of(text, "metric")[0]["verdict"] == verdict and found.loss == (verdict == "LOSS")
    assert ("does not apply to time (ns)" in text) == ("parsecs" in gate)
    gated = f"No significant difference beyond the gate of {gate}: on is 2.0 % worse than off"
    assert found.sentence.startswith("LOSS" if found.loss else gated)


def test_no_difference(raw):
    text, verdict = shown(raw(runs=9).pairs(times(9, 1, noise=0.05)))
    assert lines_of(text, "metric")[0]["verdict"] == "no significant difference"
    assert not verdict.loss and verdict.sentence.startswith("No significant difference between off and on in time")
    assert "9 pairs ran in 1 boot. Runs of one boot are not independent samples of machines" in text


def test_few_pairs(raw):
    """5 pairs cannot be significant, whatever they are; the table says which p they can have at least."""
    text, verdict = shown(raw(runs=5).pairs(times(5, 2)))
    (row,) = lines_of(text, "metric")
    assert (row["p"], row["95% interval %"], row["verdict"]) == ("0.062", "-", "no significant difference")
    assert "5 pairs cannot have a p below 0.0625: no difference can be significant; use --runs 6 or more" in text
    assert not verdict.loss and "5 pairs cannot show a significant difference" in verdict.sentence


def test_few_pairs_for_several_rows(raw):
    made = raw(runs=6, metrics=("time", "a=a ([0-9]+)"))
    for pair, (off, on) in enumerate(times(6, 2), 1):
        made.run(pair, "off", off, stdout=f"a {pair}")
        made.run(pair, "on", on, stdout=f"a {7 - pair}")
    text, _ = shown(made)
    assert says(text, "6 pairs cannot have a p below 0.0312: with 2 rows, a difference in one row alone cannot be "
                "significant; use --runs 7 or more")
    assert [row["verdict"] for row in lines_of(text, "metric")] == ["no significant difference"] * 2


def test_same_sides(raw):
    for name, sides, more in (("features", "a=STEAL+X,b=X+STEAL", ""),
                              ("kernels", "a=-,b=-", "kernels a=/one,b=/two\nhash_kernel_a 12\nhash_kernel_b 12\n")):
        made = raw(name, sides=sides, more=more).pairs(times(8, 1))
        assert shown(made)[0].startswith("both sides are the same: this measures noise\n")
        assert "both sides are the same" in (made.path / "page.html").read_text()
    assert "the same" not in shown(raw("other", sides="a=-,b=-", more="kernels a=/one,b=/two\n").pairs(times(8, 1)))[0]
    text, _ = shown(raw("three", sides="a=X,b=Y,c=X").pairs([(5, 6, 7)] * 3))
    assert text.startswith("sides a and c are the same: this measures noise\n")


def test_dropped(raw):
    """A failed or invalid run takes its pair with it; each is counted by side and reason."""
    made = raw(runs=13).pairs(times(8, 0.5))
    made.run(9, "off", 10**12, exit="1\n")
    made.run(9, "on", 10**12)
    made.run(10, "off", 10**12)
    made.run(10, "on", 10**12, exit="124\n")
    made.run(11, "off", 10**12, exit="1\n")
    made.run(11, "on", 10**12, valid="the online CPUs changed\n")
    made.run(12, "off", 10**12)
    made.run(13, "on", 10**12, exit="2\n")
    text, verdict = shown(made)
    assert says(text, "dropped: 4 pairs with a failed or invalid run (off: 2 x exit 1; on: 1 x exit 124 (timeout); on: 1 x exit 2; "
                "on: 1 x the online CPUs changed)")
    assert "not complete: 1 pair without the run of a side" in text and "11 of 13 planned pairs" in text
    assert "13 planned, 11 measured, 8 used" in text
    assert lines_of(text, "metric")[0]["pairs"] == "8" and verdict.sentence.startswith("GAIN")
    page = (made.path / "page.html").read_text()
    assert "11 of 13 planned pairs" in page and "exit 124 (timeout)" in page


def test_metric_missing_in_some_runs(raw):
    made = raw(runs=8, metrics=("time", "n=n ([0-9]+)"))
    for pair, (off, on) in enumerate(times(8, 1.5), 1):
        made.run(pair, "off", off, stdout="n 5")
        made.run(pair, "on", on, stdout="n 6" if pair > 2 else "n 0" if pair > 1 else "")
    text, verdict = shown(made)
    assert [row["pairs"] for row in lines_of(text, "metric")] == ["8", "6"]
    assert "dropped for n: on: 1 x n is not above 0; on: 1 x no n in the output" in text and verdict.loss


@pytest.mark.parametrize("runs, reason", [
    ({}, "0 complete pairs, and a comparison needs 2"),
    ({(1, "off"): {}, (1, "on"): {}}, "1 complete pair, and a comparison needs 2"),
    ({(p, s): {"exit": "1\n" if s == "on" else "0\n"} for p in (1, 2) for s in ("off", "on")}, "every run of side on failed (exit 1)"),
    ({(p, s): {"stdout": "" if s == "on" else "n 1"} for p in (1, 2) for s in ("off", "on")}, "the output of on never has the metric n"),
    ({(p, s): {} for p in (1, 2) for s in ("off", "on")}, "the output of off and on never has the metric n"),
])
def test_cannot(raw, runs, reason):
    made = raw(runs=2, metrics=("n=n ([0-9]+)",) if "metric n" in reason else ("time",))
    for (pair, side), files in runs.items():
        made.run(pair, side, **files)
    text, verdict = shown(made)
    assert verdict.cannot.startswith(reason) and not verdict.loss
    assert verdict.sentence == f"No result: {verdict.cannot}." and verdict.sentence in text
    page = (made.path / "page.html").read_text()
    assert "\n" not in verdict.cannot and html.escape(verdict.cannot, quote=False).split("'")[0] in page and "<svg" not in page


def test_three_sides(raw):
    made = raw(sides="off=NO_STEAL,on=STEAL,x=STEAL+X").pairs([(10**6 + p, 2 * 10**6 + p, 5 * 10**5 - p) for p in range(8)])
    text, verdict = shown(made)
    assert [(row["side"], row["verdict"], row["unit"]) for row in lines_of(text, "metric")] == [("on", "LOSS", "ms"), ("x", "GAIN", "ms")]
    assert verdict.loss and text.startswith("LOSS: on is 50.0 % worse than off") and "\nGAIN: x is 100.0 % better than off" in text


def factorial(raw, names, speed, runs=8, cases=("hackbench-1", "hackbench-4"), hosts=(), **options):
    """A comparison of the combinations of bits. SPEED: of a case's level and the bits that are on, how much faster (a factor)."""
    chosen, sides = features.factorial(names, BITS)
    more = f"bits {','.join(BITS)}\nfactorial {','.join(chosen)}\n" + (f"hosts {','.join(hosts)}\n" if hosts else "")
    made = raw(sides=",".join(f"{label}={what}" for label, what in sides.items()), more=more, runs=runs, cases=cases, **options)
    draw = random.Random(7)
    for host in hosts or [""]:
        for case in cases:
            for pair in range(1, runs + 1):
                drift = draw.uniform(0.9, 1.1)
                for label, what in sides.items():
                    ns = 1e9 * drift * draw.gauss(1, 0.004) / speed(case[-1], set(what.split("+")))
                    made.run(pair, label, int(ns), case=case, stdout=f"rate {1e9 / ns}", **({"host": host, "unit": host} if host else {}))
    return made


def known_speed(level, on):
    """STEAL is worth 10 %; with it, STEAL_FIRST 4 %, on 4 groups it costs 4 %; SYNC_WAIT 2 %, and 6 % beside STEAL."""
    first = ("STEAL_FIRST" in on and "STEAL" in on) * (0.04 if level == "1" else -0.04)
    return (1 + 0.1 * ("STEAL" in on)) * (1 + first) * (1 + ("SYNC_WAIT" in on) * (0.06 if "STEAL" in on else 0.02))


@pytest.mark.parametrize("metric", ["time", "rate=rate (.*),req/s,more"])
def test_shares(raw, metric):
    """The main effect, alone and last, from the values of the runs; p by scipy."""
    made = factorial(raw, "STEAL,STEAL_FIRST,SYNC_WAIT", known_speed, metrics=(metric,))
    text, verdict = shown(made)
    frame = made.frame()
    column = "time_ns" if metric == "time" else "metric:rate"
    shares = {(share.main.case.level, share.main.side): share for share in ablib.table.summarise(made.path).shares}
    assert list(shares) == [(level, bit) for level in "14" for bit in ("STEAL", "STEAL_FIRST", "SYNC_WAIT")]
    sides = {"STEAL": [("off", "STEAL"), ("SYNC_WAIT", "STEAL+SYNC_WAIT")],
             "STEAL_FIRST": [("STEAL", "STEAL+STEAL_FIRST"), ("STEAL+SYNC_WAIT", "STEAL+STEAL_FIRST+SYNC_WAIT")],
             "SYNC_WAIT": [("off", "SYNC_WAIT"), ("STEAL", "STEAL+SYNC_WAIT"), ("STEAL+STEAL_FIRST", "STEAL+STEAL_FIRST+SYNC_WAIT")]}
    every = "STEAL+STEAL_FIRST+SYNC_WAIT"
    last = {"STEAL": ("SYNC_WAIT", every), "STEAL_FIRST": ("STEAL+SYNC_WAIT", every), "SYNC_WAIT": ("STEAL+STEAL_FIRST", every)}
    for (level, bit), share in shares.items():
        of_level = frame[frame["level"] == level].sort_values("pair")
        values = {label: of_level[of_level["side"] == label][column].to_numpy() for label in made.sides}

        def ratio(pair, of=numpy.median):
            base, side = (of(values[label]) for label in pair)
            return base / side if metric == "time" else side / base

        def percents(some):
            return float(numpy.mean([100 * (ratio(pair) - 1) for pair in some]))

        assert share.sides == len(sides[bit])
        assert share.percent["main"] == pytest.approx(percents(sides[bit]))
        assert share.percent["last"] == pytest.approx(percents([last[bit]]))
        logs = numpy.mean([numpy.log(ratio(pair, lambda some: some)) for pair in sides[bit]], axis=0)
        assert share.main.found.p == pytest.approx(scipy.stats.wilcoxon(logs, method="exact").pvalue)
        assert share.main.bounds[0] < stats.percent(numpy.median(logs)) < share.main.bounds[1]
        if bit == "STEAL_FIRST":
            assert share.alone is None and "alone" not in share.percent
        else:
            assert share.percent["alone"] == pytest.approx(percents([("off", bit)]))
    assert shares["1", "STEAL"].percent["main"] == pytest.approx(12, abs=1)
    assert shares["4", "STEAL_FIRST"].percent["main"] == pytest.approx(-4, abs=1)
    assert re.match("STEAL: main effect from .*q below 0.05 in 2 of 2 rows", text)
    assert says(text, "2 of 8 combinations left out: each is equal to another one") and "\nshare of each bit:\n" in text
    assert says(text, "sides off (baseline), STEAL, SYNC_WAIT, STEAL+STEAL_FIRST, ") and not verdict.loss
    page = (made.path / "page.html").read_text()
    assert "Share of each bit" in page and "Combinations of STEAL, STEAL_FIRST, SYNC_WAIT: hackbench" in page
    assert " --factorial STEAL,STEAL_FIRST,SYNC_WAIT" in page and "--sides" not in page
    assert "How much better it is with each bit than without it" in page


def test_shares_of_one_bit_and_few_pairs(raw):
    made = factorial(raw, "STEAL", known_speed, runs=2, cases=("hackbench-1",))
    text, _ = shown(made)
    (share,) = ablib.table.summarise(made.path).shares
    assert share.percent["main"] == share.percent["alone"] == share.percent["last"] and share.main.bounds is None
    assert re.match(r"STEAL: main effect \+\d+\.\d %; q below 0.05 in 0 of 1 row\.\n", text) and "left out" not in text


def test_pictures_of_many_sides(raw):
    """18 sides in a case: pictures with a colour for each side show the first and the last."""
    made = factorial(raw, ",".join(BITS), known_speed, runs=3, cases=("hackbench-1",))
    shown(made)
    summary = ablib.table.summarise(made.path)
    pictures = {picture.name: picture for picture in ablib.plots.draw(summary)}
    assert len(summary.plan.labels) == 18 and pictures["distribution"].caption.endswith(" Of 18 sides, the first and the last.")
    assert [row.side for row in summary.main_shares] == list(BITS) and "sides" not in pictures["speedup"].caption.partition("alone")[2]
    assert ablib.plots.drawn(list("abcdefg")) == list("abcdefg") and ablib.plots.which(list("abcdefg")) == ""


def test_loss_in_a_factorial(raw):
    """The table has verdicts for the sides, and they decide."""
    made = factorial(raw, "STEAL,SYNC_WAIT", lambda level, on: 0.9 if "SYNC_WAIT" in on else 1.0, cases=("hackbench-1",))
    text, verdict = shown(made)
    assert verdict.loss and "LOSS: SYNC_WAIT is " in text and text.startswith("STEAL: ")


def test_shares_without_runs(raw):
    """A side that always fails: no share, and the reason."""
    made = factorial(raw, "STEAL", known_speed, runs=2, cases=("hackbench-1", "hackbench-4"))
    for path in made.path.glob("raw/here/runs/hackbench-4/*-STEAL"):
        shutil.rmtree(path)
        made.run(path.name.partition("-")[0], "STEAL", exit="1\n", case="hackbench-4")
    text, verdict = shown(made)
    assert "every run of side STEAL failed" in verdict.cannot
    assert re.search(r"^ +4 +STEAL +-( +-)* +1 +0$", text, re.M), text


def test_shares_on_hosts(raw):
    made = factorial(raw, "STEAL,SYNC_WAIT", known_speed, hosts=("a", "b", "c"), cases=("hackbench-1",))
    text, _ = shown(made)
    shares = {share.main.side: share for share in ablib.table.summarise(made.path).shares}
    frame = made.frame()
    effects = []
    for host in "abc":
        logs = {label: numpy.log(frame[(frame["host"] == host) & (frame["side"] == label)].sort_values("pair")["time_ns"].to_numpy())
                for label in made.sides}
        effects.append(stats.effect((logs["off"] - logs["STEAL"] + logs["SYNC_WAIT"] - logs["STEAL+SYNC_WAIT"]) / 2))
    want = stats.combine(effects)
    assert shares["STEAL"].percent["main"] == pytest.approx(stats.percent(want.estimate))
    assert shares["STEAL"].main.found.p == pytest.approx(want.p)
    assert says(text, "Hartung and Knapp's over the hosts, and so is the effect")


@pytest.mark.parametrize("sides", ["off=NO_STEAL,x=STEAL", "off=NO_STEAL+NO_SYNC_WAIT,all=STEAL+SYNC_WAIT,again=STEAL+SYNC_WAIT"])
def test_plan_of_a_factorial_with_other_sides(raw, sides):
    made = raw(sides=sides, more="factorial STEAL,SYNC_WAIT\n")
    with pytest.raises(AbError, match="the sides are not combinations of the bits in the line 'factorial'"):
        read_plan(made.path)


def test_sides_in_the_header(raw):
    """Of a plan with the bits, only what is on."""
    sides = f"off={OFF},all={features.resolve('all', BITS)},x={features.resolve('STEAL+NEXT_BUDDY', BITS)},NEXT_BUDDY=NEXT_BUDDY"
    text, _ = shown(raw(sides=sides, more=f"bits {','.join(BITS)}\n").pairs([(5, 6, 7, 8)] * 3))
    every = "STEAL+STEAL_FIRST+STEAL_BUSIEST+STEAL_SLICE+SYNC_WAIT"
    assert f"\nsides    off (baseline), all ({every}), x (STEAL+NEXT_BUDDY), NEXT_BUDDY\n" in text
    assert "a side that names one of them has the others off" in text


def test_counts_and_perf(raw):
    made = raw(runs=2)
    for pair in (1, 2):
        for side in made.sides:
            made.run(pair, side, schedstat_before=BEFORE, schedstat_after=AFTER, perf_stat=f"{pair * 100},,faults,1,100.00,,\n")
    made.run(3, "off", 5, exit="1\n", schedstat_before=BEFORE, schedstat_after=AFTER.replace(" 110 ", " 9110 "))
    made.run(3, "on", 5)
    text, _ = shown(made)
    assert lines_of(text, "side  busy")[0] == {"side": "off", "busy %": "25.00", "slice ms": "0.013", "sched": "55", "idle": "25",
                                              "wake": "15", "find %": "-", "steal": "-"}
    assert lines_of(text, "perf stat event") == [{"perf stat event": "faults", "off median": "150.0", "on median": "150.0"}]


@pytest.mark.parametrize("change, reason", [
    (lambda text: text.replace("\n2,", "\n1,"), "format '1'"), (lambda text: "", "not a runs.csv of format 2"),
    (lambda text: text.replace("format,", "version,", 1), "not a runs.csv of format 2"), (lambda text: text[:-20], "a line is incomplete"),
    (lambda text: text.replace(",time_ns", ",time_us"), "no column time_ns"), (lambda text: text.replace(",1000000,", ",many,"), "time_ns"),
    (lambda text: text.replace(",off,", ",of,"), "side 'of'"), (None, "cannot read it")])
def test_runs_csv_refused(raw, change, reason):
    made = raw(runs=2).pairs([(1000000, 1000000)] * 2)
    path = fold.fold(made.path)
    if change:
        path.write_text(change(path.read_text()))
    else:
        path.unlink()
    with pytest.raises(ablib.AbError, match=reason) as refused:
        ablib.render(made.path)
    assert str(refused.value).startswith(str(path)) and "\n" not in str(refused.value) and ";" in str(refused.value)
    assert not list(made.path.glob("*.html")) + list(made.path.glob("*.svg")) + list(made.path.glob("table*"))


def test_render_needs_runs_csv_and_plan_only(raw):
    made = raw(runs=8).pairs(times(8, 0.9))
    shown(made)
    first = {name: (made.path / name).read_bytes() for name in ("table.txt", "page.html", "speedup.svg")}
    shutil.rmtree(made.path / "raw")
    ablib.render(made.path)
    assert first == {name: (made.path / name).read_bytes() for name in first}


def test_repeat_command(raw):
    more = "gate 1%,2ms\nquantum_ns 100\nips 5\nidle_exit_ns 6\nappend a=b c\nadd prog 12ab\nalso fio\nperf_stat yes\ntimeout 9\n"
    plan = read_plan(raw(machine="1x2x1", runs=7, metrics=("n=n ([0-9]+),us", "time", "r=r (.*),more"), more=more).path)
    assert ablib.table.repeat_command(plan) == (
        "bench/ab --machine 1x2x1 --seeds development --runs 7 --metric 'n=n ([0-9]+),us' --metric time --metric 'r=r (.*),more' "
        "--sides off=NO_STEAL,on=STEAL --gate 1%,2ms --quantum 100 --ips 5 --idle-exit 6 --append 'a=b c' --add prog --also fio "
        "--timeout 9 --perf-stat -- ./work 'a b'")
    plan = read_plan(raw("two", sides="a=-,b=-", more="kernels a=/k/1,b=/k/2\n").path)
    assert ablib.table.repeat_command(plan) == "bench/ab --runs 10 --kernel a=/k/1,b=/k/2 -- ./work 'a b'"
    plan = read_plan(raw("loads", cases=("hackbench-1", "hackbench-pipe-2", "pipe"), more="loops 3\nscale 4\ntrace_loops 5\n").path)
    assert ablib.table.repeat_command(plan) == (
        "bench/ab --load hackbench-1,hackbench-pipe-2,pipe --runs 10 --sides off=NO_STEAL,on=STEAL --trace --loops 3 --scale 4 "
        "--trace-loops 5")


# several hosts

@pytest.mark.parametrize("spread, pairs", [(0.05, 10), (0.02, 6), (0.3, 10)])
def test_power(spread, pairs):
    """Against scipy's t test of many samples."""
    shown = stats.shown_by(pairs, spread)
    assert stats.power(shown, spread, pairs) == pytest.approx(stats.POWER, abs=1e-6) and stats.power(0, spread, pairs) == pytest.approx(stats.ALPHA)
    draw = numpy.random.default_rng(1)
    samples = draw.normal(shown, spread, (4000, pairs))
    assert (scipy.stats.ttest_1samp(samples, 0, axis=1).pvalue < stats.ALPHA).mean() == pytest.approx(stats.POWER, abs=0.02)
    needed = stats.pairs_for(shown, spread)
    assert needed == pairs and stats.power(shown * 0.99, spread, pairs) < stats.POWER
    assert stats.pairs_for(shown * 50, spread) == 6 and stats.shown_by(pairs, 0) == 0


def test_effect():
    """By hand: mean 0.2; squares of the deviations 0.02, by 2, by 3."""
    assert stats.effect([0.1, 0.2, 0.3]) == (pytest.approx(0.2), pytest.approx(0.02 / 2 / 3))


def test_combine_two():
    """By hand. Weights 100: mean 0.2, Q = 100 (0.01 + 0.01) = 2, scale = 200 - 20000 / 200 = 100, tau^2 = (2 - 1) / 100.
    Weights 50: squares 50 * 0.02 / 1 = 1, error = 1 / sqrt(100) = 0.1; t of 1 degree is Cauchy: 0.975 at tan(0.475 pi)."""
    made = stats.combine([(0.1, 0.01), (0.3, 0.01)])
    assert (made.hosts, made.df) == (2, 1)
    assert (made.estimate, made.q, made.tau2, made.i2) == pytest.approx((0.2, 2, 0.01, 0.5))
    half = 0.1 * math.tan(0.475 * math.pi)
    assert (made.interval.low, made.interval.high) == pytest.approx((0.2 - half, 0.2 + half))
    assert made.p == pytest.approx(1 - 2 * math.atan(2) / math.pi)
    assert made.q_p == pytest.approx(math.erfc(1))  # chi-squared of 1 degree: erfc(sqrt(Q / 2))


def test_combine_three():
    """By hand. Weights 4, 2, 2: mean (0 + 2 + 4) / 8 = 3/4; Q = 4 * 9/16 + 2 * 1/16 + 2 * 25/16 = 5.5; scale = 8 - 24 / 8 = 5;
    tau^2 = (5.5 - 2) / 5 = 0.7. Weights 1 / 0.95, 1 / 1.2, 1 / 1.2."""
    made = stats.combine([(0, 0.25), (1, 0.5), (2, 0.5)])
    assert (made.q, made.df, made.tau2, made.i2) == pytest.approx((5.5, 2, 0.7, 3.5 / 5.5))
    a, b = 1 / 0.95, 1 / 1.2
    mean = 3 * b / (a + 2 * b)
    assert made.estimate == pytest.approx(mean)
    squares = (a * mean**2 + b * (1 - mean)**2 + b * (2 - mean)**2) / 2
    assert made.q_p == pytest.approx(math.exp(-5.5 / 2))  # chi-squared of 2 degrees
    error = math.sqrt(squares / (a + 2 * b))
    # t of 2 degrees: the distribution is 1/2 + t / (2 sqrt(2 + t^2)), which is 0.975 at 0.95 sqrt(2 / (1 - 0.95^2))
    assert made.interval.high - mean == pytest.approx(error * 0.95 * math.sqrt(2 / (1 - 0.95**2)))
    ratio = mean / error
    assert made.p == pytest.approx(1 - ratio / math.sqrt(2 + ratio**2))


def test_combine_hosts_that_agree():
    """Exactly: the interval is that of the common effect, and not without width."""
    made = stats.combine([(0.2, 0.01), (0.2, 0.01)])
    assert (made.q, made.tau2, made.i2, made.q_p) == pytest.approx((0, 0, 0, 1), abs=1e-9)
    assert made.interval.high - made.estimate == pytest.approx(math.sqrt(1 / 200) * math.tan(0.475 * math.pi))


def test_combine_without_variance():
    """Hosts whose runs are all the same: the variance is that between hosts."""
    made = stats.combine([(0.1, 0.0), (0.3, 0.0)])
    assert (made.estimate, made.tau2, made.i2) == pytest.approx((0.2, 0.02, 1))
    assert math.isfinite(made.interval.low)
    # The mean is 0.1, Q = 100 * 0.04, scale = 200, tau^2 = 3 / 200; weights 1 / 0.015 and 1 / 0.025.
    assert stats.combine([(0.1, 0.0), (0.3, 0.01)]).estimate == pytest.approx((0.1 / 0.015 + 0.3 / 0.025) / (1 / 0.015 + 1 / 0.025))
    assert stats.combine([(0.0, 0.0), (0.0, 0.0)]).p == 1


@pytest.mark.parametrize("spread", [0, 1])
def test_combine_keeps_its_promise(spread):
    """Without an effect p is below 0.05 in 5 % of all cases, whether hosts differ or not."""
    draw = numpy.random.default_rng(3)
    found = [stats.combine([stats.effect(draw.normal(draw.normal(0, spread), 1, 20)) for _ in range(3)]).p for _ in range(2000)]
    assert 0.035 < sum(p < 0.05 for p in found) / 2000 < 0.065


def test_combine_finds_heterogeneity():
    draw = numpy.random.default_rng(5)
    found = [stats.combine([stats.effect(draw.normal(0, 1, 20)) for _ in range(4)]) for _ in range(2000)]
    assert 0.03 < sum(made.q_p < 0.05 for made in found) / 2000 < 0.10
    far = [stats.combine([stats.effect(draw.normal(mean, 1, 20)) for mean in (-2, 2, 5)]) for _ in range(100)]
    assert all(made.i2 > 0.9 and made.q_p < 0.001 for made in far)


def on_hosts(raw, ratios, name="hosts", runs=8, **options):
    """A comparison on hosts: for each its ratio."""
    made = raw(name, runs=runs, more=f"hosts {','.join(ratios)}\n", **options)
    for number, (host, ratio) in enumerate(ratios.items()):
        for pair, (off, on) in enumerate(times(runs, ratio, noise=0.002), 1):
            made.run(pair, "off", off * (number + 1), unit=host, host=host, boot=host, stdout=f"n {10 * off}")
            made.run(pair, "on", on * (number + 1), unit=host, host=host, boot=host, stdout=f"n {10 * on}")
        made.archive(host)
    return made


def test_table_of_hosts(raw):
    made = on_hosts(raw, {"a": 1.10, "root@b.example:22": 1.11, "c": 1.12})
    text, verdict = shown(made)
    assert {row["host"] for row in made.rows()} == {"a", "root@b.example:22", "c"}
    rows = lines_of(text, "metric")[:4]
    assert [(row["host"], row["pairs"], row["verdict"]) for row in rows] == [
        ("a", "8", "-"), ("root@b.example:22", "8", "-"), ("c", "8", "-"), ("all", "24", "LOSS")]
    assert [round(float(row["better %"])) for row in rows[:3]] == [-9, -10, -11] and rows[3]["off median"] == "-"
    effects = []
    runs = made.rows()
    for host in ("a", "root@b.example:22", "c"):
        by = {side: [float(row["time_ns"]) for row in runs if row["host"] == host and row["side"] == side] for side in made.sides}
        effects.append(stats.effect([math.log(off / on) for off, on in zip(by["off"], by["on"])]))
    want = stats.combine(effects)
    assert rows[3]["better %"] == f"{stats.percent(want.estimate):+.2f}" and verdict.loss
    (differ,) = lines_of(text, "metric  hosts")
    assert (differ["hosts"], differ["Q"], differ["I^2 %"]) == ("3", f"{want.q:.2f}", f"{100 * want.i2:.0f}")
    assert "LOSS: on is 10 % worse than off in time" in text.splitlines()[0].replace("9.9", "10").replace("10.0", "10")
    assert "24 pairs on 3 hosts" in text and "8 planned on each host, 24 measured, 24 used" in text
    page = (made.path / "page.html").read_text()
    assert "root@b.example:22" in page and "Heterogeneity" in page and "I^2" in page
    assert "bench/ab --hosts FILE --runs 8" in page


def test_hosts_that_contradict_each_other(raw):
    """A gain on one and a loss on the other: no significant difference, and the heterogeneity is said."""
    text, verdict = shown(on_hosts(raw, {"a": 0.8, "b": 1.25}))
    assert lines_of(text, "metric")[2]["verdict"] == "no significant difference" and not verdict.loss
    (differ,) = lines_of(text, "metric  hosts")
    assert float(differ["I^2 %"]) >= 99 and differ["p of Q"] == "<0.0001"


def test_host_without_pairs(raw):
    """It is left out of the estimate for all; with one host alone there is none."""
    made = on_hosts(raw, {"a": 1.1, "b": 1.1, "c": 1.1})
    shutil.move(made.path / "raw/c.tar", made.path / "c.tar")
    text, _ = shown(made)
    assert [row["pairs"] for row in lines_of(text, "metric")[:4]] == ["8", "8", "0", "16"]
    assert "not in the estimate for all hosts: c (fewer than two complete pairs)" in text and "16 of 24 planned pairs" in text
    (made.path / "raw/b.tar").unlink()
    text, verdict = shown(made)
    assert verdict.cannot.startswith("fewer than two hosts have two complete pairs") and verdict.cannot in text


def test_one_host_is_as_here(raw):
    one, here = on_hosts(raw, {"a": 1.1}), raw("here", runs=8).pairs(times(8, 1.1, noise=0.002))
    assert lines_of(shown(one)[0], "metric") == lines_of(shown(here)[0], "metric")


def test_gate_of_hosts(raw):
    """The absolute bound is for the median host."""
    for gate, verdict in (("1%", "LOSS"), ("50%", "within the gate"), ("1%,1s", "within the gate")):
        made = on_hosts(raw, {"a": 1.10, "b": 1.10, "c": 1.101}, name=gate.replace("%", ""))
        (made.path / "plan").write_text((made.path / "plan").read_text() + f"gate {gate}\n")
        assert lines_of(shown(made)[0], "metric")[3]["verdict"] == verdict


# the page in a browser

CHROMIUM = shutil.which("chromium")
MEASURE = """<script>
const wide = [...document.querySelectorAll("body *")].filter(e => !e.closest(".scroll *") && !e.closest("svg *") && !e.closest("script"))
  .filter(e => e.getBoundingClientRect().right > innerWidth + 0.5 ||
    (!e.matches(".scroll") && e.scrollWidth > e.clientWidth + 1 && e.clientWidth));
const cut = [...document.querySelectorAll("figure svg")].filter(svg => [...svg.querySelectorAll("[id*=text_]")].some(e => {
  const t = e.getBoundingClientRect(), s = svg.getBoundingClientRect();
  return t.left < s.left - 1 || t.right > s.right + 1 || t.top < s.top - 1 || t.bottom > s.bottom + 1; }));
parent.document.title = ["measured", innerWidth, document.documentElement.scrollWidth, wide.map(e => e.outerHTML.slice(0, 60)).join(),
  cut.length, document.querySelectorAll("figure svg").length].join("|");
</script>"""


def long_words(raw, long):
    """A comparison; with LONG, of names, a command and values that are as long as may be."""
    name = "a_metric_with_a_name_that_is_longer_than_anybody_would_like" if long else "p99"
    sides = "the_baseline_with_a_very_long_label=NO_STEAL,the_other_side_with_a_very_long_label=STEAL,third=X" if long else SIDES
    made = raw(runs=8, machine="8x18x2", sides=sides, metrics=(f"{name}=([0-9]+),microseconds/request", "time"),
               more=f"gate 1%,2ms\nhash_collector {'0123456789abcdef' * (12 if long else 1)}\n")
    if long:
        plan = made.path / "plan"
        plan.write_text(plan.read_text().replace("./work", "/a/very" + "/long" * 60 + "/path"))
    draw = random.Random(2)
    for pair in range(1, 9):
        for number, side in enumerate(made.sides):
            made.run(pair, side, int(draw.uniform(9e8, 1e9) / (1 + 0.2 * number)),
                     stdout=str(int(10**12 * draw.uniform(1, 1.3 - 0.2 * (number == 1)))), schedstat_before=BEFORE, schedstat_after=AFTER,
                     perf_stat="100,,an-event-of-a-processor-that-has-a-long-name,1,100.00,,\n")
    made.run(9, made.sides[0], exit="1\n")
    shown(made)
    return made.path / "page.html"


def hackbench_page(raw):
    """Five levels, each with traced runs."""
    made = levels(raw, {1: 0.7, 2: 0.85, 3: 1, 4: 1.05, 8: 1.1}, machine="2x8x2")
    topology = "".join(f"cpu {cpu} llc {cpu // 16}\n" for cpu in range(32))
    trace = "#: begin 1.0\n#: end 1.1\n" + "".join(
        f" x-1 [{cpu:03}] d..2. 1.0{turn}: sched_switch: prev_comm=x prev_pid={(cpu + 1) * (turn % 2)} prev_prio=120 prev_state=S ==> "
        f"next_comm=y next_pid={(cpu + 1) * (1 - turn % 2)} next_prio=120\n" for turn in range(10) for cpu in range(31))
    for case in made.cases:
        for side in made.sides:
            made.run(0, side, case=case, unit=f"{case}-0", topology=topology, trace=trace)
    text, _ = shown(made)
    assert "traced run not used" not in text
    return made.path / "page.html"


def latency_page(raw):
    names = [f"{what}_{name}" for what in ("wakeup", "request") for name in ("p50", "p99", "p99.9", "max")]
    made = levels(raw, {"0.5x": 0.9, "1x": 1, "2x": 1.1}, load="latency", more="level_name:latency workers\n", machine="1x2x2",
                  metrics=[f"{name}={name.replace('.', '[.]')} ([0-9.]+),us" for name in names])
    for number, path in enumerate(sorted(made.path.glob("raw/*/runs/*/*"))):
        (path / "stdout").write_text("".join(f"{name} {(place + 1) ** 4 * (1 + number % 7 / 50)}\n" for place, name in enumerate(names)))
        files = sorted(file.name for file in path.iterdir() if file.name != "sum")
        (path / "sum").write_text(subprocess.run(["cksum", *files], cwd=path, capture_output=True, text=True, check=True).stdout)
    shown(made)
    return made.path / "page.html"


PAGES = {"hackbench": hackbench_page, "latency": latency_page}


@pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed: apt-get install chromium")
@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("kind", ["usual", "long", "hosts", "hackbench", "latency"])
def test_page_in_a_browser(raw, tmp_path, width, kind):
    """Nothing is wider than the window or cut off; tables scroll in their own boxes."""
    if kind == "hosts":
        made = on_hosts(raw, {"a": 1.1, "root@a-host-with-a-long-name.example.net:2222": 1.2}, metrics=("time", "n=n ([0-9]+),ops,more"))
        shown(made)
        page = made.path / "page.html"
    elif kind in PAGES:
        page = PAGES[kind](raw)
    else:
        page = long_words(raw, kind == "long")
    # In a frame, as a window has at least 500 pixels.
    measured = tmp_path / "measured.html"
    measured.write_text(f'<!DOCTYPE html><title></title><iframe style="border: 0" width="{width}" height="2000" srcdoc="'
                        + html.escape(page.read_text().replace("</body>", MEASURE + "</body>")) + '"></iframe>')
    done = subprocess.run([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
                           "--window-size=1500,2000", "--dump-dom", measured.as_uri()], capture_output=True, text=True, timeout=120,
                          check=True)
    found = re.search(r"<title>measured\|(.*)</title>", done.stdout, re.S)
    assert found, done.stdout[:2000] + done.stderr
    inner, scroll, wide, cut, pictures = found[1].split("|")
    assert (int(inner), wide, cut, pictures) == (width, "", "0", {"hackbench": "4", "latency": "3"}.get(kind, "2")) and int(scroll) <= width


@pytest.mark.parametrize("kind", ["usual", "hackbench", "latency"])
def test_page_needs_nothing_else(raw, kind):
    page = PAGES[kind](raw) if kind in PAGES else long_words(raw, False)
    text = page.read_text()
    assert "<script" not in text and not re.search(r"""(src|href)=["'](?!#|data:image/png;base64,)|@import|url\((?!#)""", text)
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert text.index("class=\"verdict") < text.index("<svg") < text.index("<table")
    for picture in page.parent.glob("*.svg"):
        ElementTree.parse(picture)
    assert len(list(page.parent.glob("*.svg"))) == text.count("<figure>")


def test_page_escapes(raw):
    made = raw(runs=2)
    plan = made.path / "plan"
    plan.write_text(plan.read_text().replace("./work 'a b'", "sh -c 'a <b> && c'"))
    made.pairs([(5, 6)] * 2)
    made.run(3, "on", valid="<i>x</i>\n")
    shown(made)
    text = (made.path / "page.html").read_text()
    assert "&lt;b&gt; &amp;&amp; c" in text and "<b>" not in text and "<i>" not in text


# machines

class Watched:
    """A GNU parallel that says, and whose units end, as the polls say: (messages, statuses) of each."""

    def __init__(self, *polls):
        self.polls, self.shown, self.ended = list(polls), [], False
        self.process = self
        self.now = [], []

    def poll(self):
        if self.polls:
            self.now = self.polls.pop(0)
        else:
            self.ended = True
        return 0 if self.ended else None

    def wait(self):
        return 0

    def end(self):
        self.ended = True

    def take(self):
        taken, self.now = self.now[0], ([], self.now[1])
        return list(taken)

    def statuses(self):
        return self.now[1]

    def message(self, line):
        self.shown.append(line)

    def show(self, _):
        pass

    def watch(self):
        machines.watch_units(self, self.statuses, self, set)
        return self.shown


WHY = "ab-unit: error: command-1.tar: status 2: the kernel has no STEAL; the whole output: raw/command-1.tar.log"


def test_reason_is_said_before_the_status_is_known(monkeypatch):
    monkeypatch.setattr(machines.time, "sleep", lambda _: None)
    watched = Watched((["a notice"], []), ([WHY], []), ([], [2]))
    with pytest.raises(Stop, match="^command-1.tar: status 2: the kernel has no STEAL$") as stop:
        watched.watch()
    assert stop.value.status == 2 and watched.shown == ["a notice"]
    # What is no reason to end is shown: when the status is known, or at the end.
    other = WHY.replace("status 2", "status 1")
    assert Watched(([other], []), (["a notice"], [1, 0]), ([], [1, 0])).watch() == [other, "a notice"]
    assert Watched(([other], [])).watch() == [other]


@pytest.mark.parametrize("changed", ["image", "mine", "preset"])
def test_an_input_is_changed_meanwhile(tmp_path, changed):
    for name in ("image", "mine", "preset"):
        (tmp_path / name).write_text(name)
    hashed = {name: hashlib.sha256(name.encode()).hexdigest()[:16] for name in ("image", "mine", "preset")}
    plan = Plan(tmp_path / "plan", {"add": [f"mine {hashed['mine']}"], "caches": [f"small {hashed['preset']}"],
                                    "hash_kernel_patched": [hashed["image"]]})
    options = SimpleNamespace(images={"patched": str(tmp_path / "image")}, add=[str(tmp_path / "mine")], caches="small",
                              preset=tmp_path / "preset", names={"patched": b"names"})
    job = SimpleNamespace(options=options, plan=plan)
    assert {name: data for name, (data, _) in machines.inputs_of(job).files.items()} == {
        "kernels/patched/image": b"image", "kernels/patched/image.names": b"names", "add/0/mine": b"mine", "preset": b"preset"}
    (tmp_path / changed).write_text("another")
    with pytest.raises(Stop, match=f"/{changed}: somebody has changed it meanwhile"):
        machines.inputs_of(job)
