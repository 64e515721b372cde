# SPDX-License-Identifier: GPL-2.0
"""bench/in-sim and hackbench-unit, with a machine that only notes how it is called and sends what the collector would send;
and the options of bench/in-sim-loads. With guests: tests/kernel/test_sim.py and test_loads_sim.py."""

import json
import os
import re
import shutil
import signal
import subprocess

import pytest
from commands import FAKES, TOP, call, processes, wait_for


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class Bench:
    """A checkout in which the steps before the runs, the machine and the report are fakes."""

    def __init__(self, root):
        self.root = root
        self.top = top = root / "top"
        for name in ("bench/in-sim", "bench/hackbench-unit", "bench/unit.sh", "bench/pool.sh", "bench/run-hackbench.sh",
                     "bench/switch.sh", "bench/hackbench-table.awk", "bench/llc.awk", "scripts/lib.sh", "base"):
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(TOP / name, top / name)
        (top / "sim/qemu").mkdir(parents=True)
        (top / "sim/qemu/sim.c").write_text("the simulator\n")
        (top / "sim/machine").symlink_to(FAKES / "machine")
        for name in ("setup", "apply"):
            script(top / "scripts" / name, '#!/bin/sh\necho %s >>"$FAKE_ROOT/steps"\necho noise\n' % name)
        script(top / "scripts/build", '#!/bin/sh\necho "build $*" >>"$FAKE_ROOT/steps"\necho "$FAKE_ROOT/image"\n')
        script(top / "bench/report", '#!/bin/sh\necho "the table of $1"\n')
        for name in ("image", "one", "two"):
            (root / name).write_text(name)
        (root / "do").mkdir()
        self.out = root / "out"
        self.command = [str(top / "bench/in-sim"), "--out", str(self.out), "--jobs", "1"]
        self.env = {**os.environ, "FAKE_ROOT": str(root), "HOME": str(root)}

    def do(self, unit, what=None):
        """A fault of a unit's machine, or no more."""
        path = self.root / "do" / unit
        path.write_text(what) if what else path.unlink()

    def run(self, *args, rc=0):
        return call(*self.command, *args, rc=rc, env=self.env, cwd=self.root)

    def start(self, *args):
        # A shell cannot trap what was ignored when it started.
        return subprocess.Popen([*self.command, *args], env=self.env, cwd=self.root, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))

    def calls(self):
        """What the machine was called with since the last time."""
        path = self.root / "calls"
        found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        path.unlink(missing_ok=True)
        return found

    def files(self):
        """All files with their contents."""
        return {p.name: p.read_text() for p in self.out.iterdir() if p.is_file() and p.name not in (".todo", ".lock")}


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def value(words, name):
    return words[words.index(name) + 1]


SMALL = ("--machine", "1x4x1", "--groups", "1 2", "--loops", "50", "--runs", "2")
UNITS = ["2-trace", "1-trace", "2-1", "2-2", "1-1", "1-2"]


def test_in_sim(bench):
    stdout, stderr = bench.run(*SMALL)
    # All of the steps' own output is on stderr.
    assert stdout == "the table of %s\n" % bench.out and "6 of 6 units after" in stderr
    assert (bench.root / "steps").read_text() == "setup\napply\nbuild --arch arm64 --config guest,steal,sim\n"
    calls = bench.calls()
    # The longest go first; a trace counts ten times.
    assert [c["unit"] for c in calls] == UNITS
    for c in calls:
        assert [value(c["own"], "--" + name) for name in ("quantum", "ips", "idle-exit", "machine", "kernel")] == [
            "200", "1000000000", "2000", "1x4x1", str(bench.root / "image")]
        assert c["rest"][:5] == ["--here", "--groups", c["unit"][0], "--features", "off=NO_STEAL,on=STEAL"]
    rest = {c["unit"]: c["rest"][7:] for c in calls}
    assert rest["2-2"] == ["--first", "2", "--runs", "1", "--loops", "50"]
    assert rest["1-trace"] == ["--runs", "0", "--trace", "--trace-loops", "100"]
    seeds = {c["unit"]: value(c["own"], "--seed") for c in calls}
    assert len(set(seeds.values())) == len(UNITS), seeds
    before = bench.files()
    assert sorted(before) == [".traced-1", ".traced-2", "plan", "run-1-1.raw", "run-1-2.raw", "run-2-1.raw", "run-2-2.raw",
                              "trace-1-off.txt", "trace-1-on.txt", "trace-2-off.txt", "trace-2-on.txt"]
    assert before["run-2-1.raw"] == (
        "begin session 2-1-patched\n2-1\nend session\nbegin host 2-1-patched\nvirtual_seconds 1.000000000\n"
        "host_seconds 2.500\nbusy_seconds 1.0\nhost_per_virtual 2.5\nend host\n")

    # Units that are there are not run again.
    stdout, stderr = bench.run(*SMALL)
    assert bench.calls() == [] and bench.files() == before
    assert "all runs are in" in stderr and stdout.startswith("the table")
    # What is missing is run, with the same seed, and so is a third pair.
    (bench.out / "run-1-2.raw").unlink()
    bench.run(*SMALL[:-1], "3")
    calls = bench.calls()
    assert [c["unit"] for c in calls] == ["2-3", "1-2", "1-3"] and value(calls[1]["own"], "--seed") == seeds["1-2"]

    # What all runs must have in common, also the files that go to the machine
    files = [bench.top / "bench" / os.path.basename(path)
             for option, path in zip(calls[0]["own"], calls[0]["own"][1:]) if option == "--add"]
    assert {path.name for path in files} == {"run-hackbench.sh", "switch.sh", "hackbench-table.awk", "llc.awk"}
    files.append(bench.top / "sim/qemu/sim.c")
    before, names = bench.files(), sorted(bench.out.iterdir())
    for change in [("--loops", "60"), ("--machine", "1x2x2"), ("--quantum", "100"), ("--idle-exit", "0"), ("--ips", "2000000000"),
                   ("--trace-loops", "0"), ("--features", "a=STEAL,b=NO_STEAL"), ("--kernel", "patched=one"),
                   ("--append", "preempt=full"), ("--pipe",), ("--threads",), *files]:
        if change in files:
            text = change.read_text()
            change.write_text(text + "# changed\n")
        stdout, stderr = bench.run(*SMALL, *(change if isinstance(change, tuple) else ()), rc=1)
        assert "has runs of another comparison" in stderr and "choose another --out" in stderr, change
        assert stdout == "" and bench.files() == before and sorted(bench.out.iterdir()) == names, change
        if change in files:
            change.write_text(text)
    assert bench.calls() == []


def test_options_reach_the_machine_and_the_collector(bench):
    bench.run("--machine", "2x2x1", "--groups", "3", "--runs", "1", "--quantum", "7", "--ips", "5000000", "--idle-exit", "0",
              "--append", "preempt=full x=1", "--features", "STEAL,x=NO_STEAL", "--trace-loops", "0", "--timeout", "99",
              "--pipe", "--threads")
    (c,) = bench.calls()
    assert c["unit"] == "3-1"
    for name, given in (("--quantum", "7"), ("--ips", "5000000"), ("--idle-exit", "0"), ("--machine", "2x2x1"),
                        ("--append", "preempt=full x=1"), ("--timeout", "99")):
        assert value(c["own"], name) == given
    assert "\nappend preempt=full x=1\n" in bench.files()["plan"]
    assert c["rest"][:3] == ["--here", "--pipe", "--threads"] and value(c["rest"], "--features") == "STEAL,x=NO_STEAL"
    assert value(c["rest"], "--loops") == "1000"


def test_traces_only(bench):
    stdout, stderr = bench.run(*SMALL, "--runs", "0")
    assert stdout == "" and "traces: %s" % bench.out in stderr
    assert [c["unit"] for c in bench.calls()] == UNITS[:2]


def test_a_number_of_groups_given_twice_runs_once(bench):
    bench.run("--groups", "2,1 2", "--runs", "1", "--loops", "50", "--trace-loops", "0", "--machine", "1x4x1")
    assert sorted(c["unit"] for c in bench.calls()) == ["1-1", "2-1"]


def test_failed_units_do_not_harm_the_others(bench):
    bench.do("2-1", "124")
    bench.do("1-trace", "125")
    bench.do("1-2", "nonsense")
    stdout, stderr = bench.run(*SMALL, rc=1)
    # All have had their turn, and the table is made of those that went well.
    assert [c["unit"] for c in bench.calls()] == UNITS and stdout.startswith("the table")
    assert "3 of 6 units failed" in stderr and "the same command with --out %s" % bench.out in stderr
    assert "2 groups, pair 1, patched: status 124" in stderr and "error: planted" in stderr
    assert "not an archive" in stderr
    files = bench.files()
    assert {"run-1-1.raw", "run-2-2.raw", "trace-2-on.txt"} < set(files)
    assert not {"run-2-1.raw", "run-1-2.raw", "trace-1-on.txt", ".traced-1"} & set(files)
    assert not list(bench.out.glob(".unit-*")) and not list(bench.out.glob(".status-*"))
    for unit in ("2-1", "1-trace"):
        assert "error: planted" in files["failed-%s.log" % unit] and "kernel log of " + unit in files["failed-%s.log" % unit]
    for unit in ("2-1", "1-trace", "1-2"):
        bench.do(unit)
    bench.run(*SMALL)
    assert [c["unit"] for c in bench.calls()] == ["1-trace", "2-1", "1-2"]
    assert not list(bench.out.glob("failed-*")) and len(bench.files()) == 11


@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_in_sim_interrupted(bench, name):
    number = getattr(signal, "SIG" + name)
    bench.do("1-1", "hang")
    process = bench.start(*SMALL)
    wait_for((bench.root / "pid").exists)
    # A second call leaves all alone.
    before = bench.files()
    assert [c["unit"] for c in bench.calls()] == UNITS[:5]
    _, stderr = bench.run(*SMALL, rc=1)
    assert "in use by another call" in stderr and bench.calls() == [] and bench.files() == before
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == 128 + number, stdout + stderr
    assert "interrupted; to continue: the same command with --out %s" % bench.out in stderr
    wait_for(lambda: not processes(str(bench.root)))
    assert {"run-2-1.raw", "run-2-2.raw", "trace-1-on.txt"} < set(bench.files())
    assert not list(bench.out.glob(".unit-*")) and not list(bench.out.glob("run-1-*"))
    bench.do("1-1")
    bench.run(*SMALL)
    assert [c["unit"] for c in bench.calls()] == ["1-1", "1-2"]


def test_two_kernels_are_two_sides(bench):
    bench.run(*SMALL, "--kernel", "old=one,two", "--groups", "1")
    calls = bench.calls()
    assert not (bench.root / "steps").read_text().count("build")
    for c in calls:
        label = c["session"].rpartition("-")[2]
        assert c["rest"][3:7] == ["--features", "old=,two=", "--only", label]
        assert value(c["own"], "--kernel") == str(bench.root / {"old": "one", "two": "two"}[label])
    # In turns first; both of a pair have the same seed.
    runs = [c for c in calls if "trace" not in c["unit"]]
    assert [c["session"] for c in runs] == ["1-1-old", "1-1-two", "1-2-two", "1-2-old"]
    seeds = [value(c["own"], "--seed") for c in runs]
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]
    assert {"run-1-1.raw", "trace-1-old.txt", "trace-1-two.txt"} < set(bench.files())
    text = bench.files()["run-1-2.raw"]
    assert re.findall("^begin (.*)$", text, re.M) == ["session 1-2-two", "host 1-2-two", "session 1-2-old", "host 1-2-old"]
    assert re.findall("^kernel (.*) [0-9a-f]{16}$", bench.files()["plan"], re.M) == ["old", "two"]
    # Half a pair is not kept.
    bench.do("1-3", "125 two")
    bench.run(*SMALL[:-1], "4", "--kernel", "old=one,two", "--groups", "1", rc=1)
    assert sorted(p.name for p in bench.out.glob("run-*")) == ["run-1-1.raw", "run-1-2.raw", "run-1-4.raw"]


@pytest.mark.parametrize("args,message", [
    (["--what"], "unknown argument '--what'"),
    (["--runs"], "--runs needs a value"),
    (["--groups", ""], "--groups needs a value"),
    (["--groups", "1 -2"], "not a positive number: -2"),
    (["--runs", "x"], "--runs 'x' is not a number"),
    (["--runs", "0", "--trace-loops", "0"], "nothing to run"),
    (["--jobs", "0"], "not a positive number: 0"),
    (["--jobs", "9999"], "--jobs 9999: this host has"),
    (["--trace-loops", "-1"], "--trace-loops '-1'"),
    (["--idle-exit", "x"], "--idle-exit 'x'"),
    (["--machine", "1x2"], "--machine '1x2' is not"),
    (["--kernel", "a/b=x"], "'a/b' cannot be a label"),
    (["--features", "STEAL,a b"], "not a side: a b (--features)"),
    (["--kernel", "base,patched", "--features", "STEAL"], "--features and several kernels exclude each other"),
    (["--kernel", "x=patched,x=base"], "two kernels are called x"),
])
def test_usage_errors(bench, args, message):
    stdout, stderr = bench.run(*args, rc=2)
    assert stdout == "" and message in stderr and "see --help" in stderr
    # before anything is fetched or built
    assert not (bench.root / "steps").exists() and not bench.out.exists()


def test_no_kernel(bench):
    _, stderr = bench.run("--kernel", "/nonexistent/Image", rc=1)
    assert "/nonexistent/Image: no such file (--kernel)" in stderr and not (bench.root / "steps").exists()
    script(bench.top / "scripts/apply", "#!/bin/sh\nexit 1\n")
    bench.run(*SMALL, rc=1)
    assert bench.calls() == [] and not bench.out.exists()


@pytest.mark.parametrize("args,message", [
    (["--loads", "what"], "not a load: what"), (["--scale", "x"], "not a positive number: x"),
    (["--what", "1"], "unknown argument '--what'"),
    (["--machine", "4"], "is not SOCKETSxCORESxTHREADS"), (["--features", "a=b=c"], "not a side"),
])
def test_usage_errors_of_in_sim_loads(tmp_path, args, message):
    _, stderr = call(TOP / "bench/in-sim-loads", "--out", tmp_path / "out", *args, rc=2)
    assert message in stderr and not (tmp_path / "out").exists()
