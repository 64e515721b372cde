# SPDX-License-Identifier: GPL-2.0
"""The collector bench/run-hackbench.sh, on made-up /proc and /sys trees with a hackbench that changes the counters by known
amounts. Each shell and each awk run the smoke tests; dash and mawk run the rest."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from collector import (AWKS, DATA, EVENTS, FEATURES, IDLE_SEARCH, ONE_PER_SHELL, PAIRS, RUNS, SWITCHES, TOP, TRACE, Machine,
                       rows)

EXPECTED = {
    "1 off": "8.084 75.00 0.100 105476 46291 59183 0.31 0 - 3 8.000-8.200 -",
    "1 on": "5.938 96.80 0.242 31255 7190 24061 0.63 7433 36.1 3 5.900-6.000 no",
    "2 off": "2.182 20.00 0.200 35876 17905 17958 0.01 0 - 3 2.100-2.300 -",
    "2 on": "2.229 18.00 0.180 45450 22691 22751 0.02 52 -2.1 3 2.150-2.290 yes",
}


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def table(text):
    return {k: " ".join(v.values()) for k, v in rows(text).items()}


def order_of_runs(machine):
    return [" ".join(r) for r in re.findall(r"^pair (\d+)\ngroups (\d+)\nside (\S+)$", machine.raw.read_text(), re.M)]


# Smoke tests

@pytest.mark.parametrize("pair", PAIRS)
def test_table(tmp_path, pair):
    """The counters are large: those of 32 bits wrap, ns and slices are beyond what 32 bits or a double hold. The scheduler's
    LLCs go before the caches."""
    m = Machine(tmp_path, pair)
    large = r"cpu\1 0 0 4294967290 4294967291 4294967292 9 9007199254750001 9007199254750001 9007199254740993"
    m.put("proc/schedstat", re.sub(r"^cpu([013]) .*", large, m.get("proc/schedstat"), flags=re.M))
    for c in range(4):
        for d in range(2):
            m.put("sys/kernel/debug/sched/domains/cpu%d/domain%d/flags" % (c, d), "SD_BALANCE_NEWIDLE SD_SHARE_LLC \n")
    stdout, _ = m.collect(runs=3)
    assert table(stdout) == EXPECTED
    assert "schedstat: version 17;" in stdout
    assert not re.search("failed|invalid|above 100", stdout)
    assert re.findall("^topology cpu . .* llc (.*) node", m.raw.read_text(), re.M) == ["0-3"] * 4
    assert "\nllcs 1\n" in m.raw.read_text()
    m.untouched()
    again, _ = m.run("--table", m.out)
    assert again == stdout


@pytest.mark.parametrize("pair", ONE_PER_SHELL)
def test_interrupted_session_and_its_rest_are_one_table(tmp_path, pair):
    m = Machine(tmp_path, pair)
    m.configure(hang="2 off")
    process = m.hang("--here", "--groups", "1 2", "--loops", "50", "--runs", "3")
    assert m.get("proc/sys/kernel/sched_schedstats").strip() == "1" and "NO_STEAL" in m.get(FEATURES)
    assert "interrupted after 2 of 12 runs" in m.interrupt(process)
    stdout, _ = m.run("--table", m.out)
    assert set(rows(stdout)) == {"1 off", "1 on"} and rows(stdout)["1 on"]["time"] == "6.000"
    m.configure()
    m.put("count.json", '{"1 off": 1, "1 on": 1}')
    stdout, stderr = m.collect(runs=3)
    assert "10 runs; raw records go to" in stderr and m.raw.read_text().count("begin session") == 2
    assert table(stdout) == EXPECTED and stdout.count("grps") == 1


# The table

@pytest.mark.parametrize("version", [15, 16])
def test_other_versions_of_schedstat(machine, version):
    machine.put("proc/schedstat", (DATA / ("schedstat-v%d" % version)).read_text())
    stdout, _ = machine.collect(runs=3)
    assert table(stdout) == EXPECTED and "schedstat: version %d;" % version in stdout


def test_more_than_busy(machine):
    machine.configure(runs={**RUNS, "1 on": {**RUNS["1 on"], "busy": 11_000_000_000}})
    stdout, _ = machine.collect(groups="1")
    assert rows(stdout)["1 on"]["%busy"] == "110.00" and "\n%busy above 100: " in stdout


def test_no_timer_list_and_no_caches(machine):
    (machine.root / "proc/timer_list").unlink()
    for c in range(4):
        shutil.rmtree(machine.root / ("sys/devices/system/cpu/cpu%d/cache" % c))
    found = rows(machine.collect(groups="1")[0])
    assert found["1 off"]["%busy"] == "75.00"
    assert "\nclock uptime\n" in machine.raw.read_text() and "\nllcs unknown\n" in machine.raw.read_text()
    # One run of each side shows no difference.
    assert found["1 on"]["overlap"] == "yes"


def test_clock_is_read_between_the_counters(machine):
    """Reading the counters takes an hour here, and is no part of the run's 10 s."""
    machine.script("cat", '#!/bin/sh\nt=$FAKE_ROOT/proc/timer_list\n'
                   '[ ! -e "$t" ] || { { read -r _; read -r _ _ at _; } <"$t"\n'
                   'echo "Timer List Version: v0.11\nnow at $((at + 3600000000000)) nsecs" >"$t"; }\n'
                   'exec %s "$@"\n' % shutil.which("cat"))
    found = rows(machine.collect(groups="1")[0])
    assert found["1 off"]["%busy"] == "75.00" and found["1 on"]["%busy"] == "96.80"


@pytest.mark.parametrize("idle_search", [None, "version 2\ncpu0 1 2\n"])
def test_no_steal_counters(machine, idle_search):
    (machine.root / IDLE_SEARCH).unlink()
    if idle_search:
        machine.put(IDLE_SEARCH, idle_search)
    found = rows(machine.collect(groups="1")[0])
    assert [found[s][c] for s in ("1 off", "1 on") for c in ("%find", "steal")] == ["-"] * 4
    assert found["1 on"]["%speedup"] == "33.3"


def test_more_than_nine_fields(machine):
    machine.put("proc/schedstat", re.sub(r"^(cpu1 .*)$", r"\1 99", machine.get("proc/schedstat"), flags=re.M))
    stdout, stderr = machine.collect(groups="1", rc=1)
    assert "the line of cpu1 has 10 fields, not 9" in stderr and "no run to show" in stdout


@pytest.mark.parametrize("keep", ["begin run", "after schedstat cpu1", "after idle_search cpu3"])
def test_truncated(machine, keep):
    machine.collect(groups="1", runs=2)
    text = machine.raw.read_text()
    machine.raw.write_text(text[:text.rindex("\n" + keep) + 1 + len(keep) + 3])
    stdout, stderr = machine.run("--table", machine.out)
    assert "the last record (run) is incomplete: ignored" in stderr
    assert rows(stdout)["1 off"]["runs"] == "1" and rows(stdout)["1 on"]["runs"] == "2"
    # Another session in the same file makes up for it, and only for that.
    machine.put("count.json", '{"1 off": 1, "1 on": 2}')
    stdout, stderr = machine.collect(groups="1", runs=2)
    assert "run 1/1: 1 groups, off" in stderr and "incomplete run record before line" in stderr
    assert stdout.count("grps") == 1 and "description is missing" not in stdout
    assert {k: (v["time"], v["runs"]) for k, v in rows(stdout).items()} == {"1 off": ("8.100", "2"), "1 on": ("5.969", "2")}


def test_table_of_nothing(machine):
    machine.put("empty", "")
    machine.run("--table", machine.root / "empty", rc=1)
    _, stderr = machine.run("--table", machine.root / "absent", rc=1)
    assert "cannot read" in stderr


# Records

def test_records(machine):
    before = machine.get("proc/schedstat")
    # The fake hackbench checks its options.
    machine.collect("--threads", "--pipe", runs=2)
    assert order_of_runs(machine) == ["1 1 off", "1 1 on", "1 2 off", "1 2 on", "2 1 on", "2 1 off", "2 2 on", "2 2 off"]
    session, first = machine.raw.read_text().split("end session\n")
    first = first.split("end run\n")[0]
    assert all("\nbefore schedstat " + line + "\n" in first for line in before.splitlines())
    assert len(re.findall("^after schedstat (?:cpu|domain)", first, re.M)) == 12
    for line in ("before idle_search cpu3 5 6 7000 8000", "after features NO_STEAL", "command hackbench -g 1 -l 50 -p -T",
                 "exit 0\ntime 8.000\nvalid yes"):
        assert "\n" + line + "\n" in first
    for line in ("release " + os.uname().release, "features PLACE_LAG STEAL NO_NEXT_BUDDY ", "llcs 2", "model Fake CPU",
                 "topology cpu 3 package 1 core 1 threads 3 llc 2-3 node 1", "clock timer_list",
                 "hackbench hackbench -g GROUPS -l 50 -p -T"):
        assert "\n" + line + "\n" in session


def test_settings_as_found_are_put_back(machine):
    machine.put(FEATURES, "PLACE_LAG NO_STEAL \n")
    machine.put("proc/sys/kernel/sched_schedstats", "1\n")
    machine.collect(groups="1")
    machine.untouched("NO_STEAL", "1")


# What goes wrong

@pytest.mark.parametrize("name", ["INT", "HUP"])
def test_interrupt(machine, name):
    """SIGTERM: see the smoke test."""
    machine.configure(hang="1 off")
    process = machine.hang("--here", "--groups", "1", "--loops", "50", "--runs", "3")
    assert "interrupted after 0 of 6 runs" in machine.interrupt(process, getattr(signal, "SIG" + name))


def test_reader_of_the_messages_goes_away(machine):
    process = machine.start("--here", "--groups", "1", "--loops", "50", "--runs", "3", "--out", machine.out)
    process.stderr.readline()
    process.stderr.close()
    assert process.wait(timeout=120) != 0
    process.stdout.close()
    machine.untouched()


def test_failing_hackbench(machine):
    machine.configure(fail="2 on", silent="1 off")
    stdout, stderr = machine.collect(rc=1)
    assert "2 groups, on: hackbench failed with status 7: fork: Resource" in stderr
    assert "1 groups, off: not valid: hackbench printed no time" in stderr
    assert "failed runs, not in the table: 1" in stdout and "invalid runs, not in the table: 1" in stdout
    assert set(rows(stdout)) == {"1 on", "2 off"} and machine.raw.read_text().count("\nexit 7\n") == 1
    machine.untouched()
    # These two are run again.
    machine.configure()
    stdout, stderr = machine.collect()
    assert "2 runs; raw records" in stderr and "failed runs, not in the table: 1" in stdout
    assert set(rows(stdout)) == {"1 off", "1 on", "2 off", "2 on"}


@pytest.mark.parametrize("conf,why", [("offline", "the online CPUs changed"), ("meddle", "somebody changed the scheduler features")])
def test_invalid_run(machine, conf, why):
    machine.configure(**{conf: "1 on"})
    stdout, stderr = machine.collect(groups="1", rc=1)
    assert "1 groups, on: not valid: " + why in stderr and "\nvalid %s\n" % why in machine.raw.read_text()
    assert "invalid runs, not in the table: 1" in stdout and set(rows(stdout)) == {"1 off"}
    machine.untouched()


def test_feature_does_not_take(machine):
    machine.configure(jam="1 off")
    _, stderr = machine.collect(groups="1", rc=1)
    assert "features does not show STEAL after writing it" in stderr and "cannot restore: echo STEAL >" in stderr
    assert machine.get("proc/sys/kernel/sched_schedstats").strip() == "0"


def schedstat_version(version):
    return lambda m: m.put("proc/schedstat", m.get("proc/schedstat").replace("version 17", "version " + version))


@pytest.mark.parametrize("change,rc,message", [
    (schedstat_version("14"), 1, "schedstat: version 14; only 15, 16 and 17 are supported"),
    (schedstat_version("18"), 1, "schedstat: version 18; only 15, 16 and 17 are supported"),
    (lambda m: (m.root / "proc/schedstat").unlink(), 1, "CONFIG_SCHEDSTATS"),
    (lambda m: (m.bin / "hackbench").unlink(), 1, "hackbench is not installed: apt-get install rt-tests"),
    (lambda m: m.configure(old=True), 1, "does not work as in rt-tests"),
    (lambda m: m.put(FEATURES, "PLACE_LAG STEALTH NO_STEALTHY STEAL"), 0, ""),
    (lambda m: m.put(FEATURES, "PLACE_LAG STEALTH NO_STEALTHY \n"), 3, "has no STEAL"),
], ids=["v14", "v18", "no schedstat", "no hackbench", "another hackbench", "STEAL", "no STEAL"])
def test_what_the_machine_must_have(machine, change, rc, message):
    change(machine)
    _, stderr = machine.collect(groups="1", rc=rc)
    assert message in stderr and machine.out.exists() == (rc == 0)
    machine.untouched("PLACE_LAG" if rc == 3 else "STEAL")


FILES = ("run-hackbench.sh", "switch.sh", "hackbench-table.awk", "llc.awk")


def copy_collector(machine):
    for name in FILES:
        shutil.copy(TOP / "bench" / name, machine.root / name)
    machine.collector = machine.root / "run-hackbench.sh"


def test_a_file_beside_it_is_missing(machine):
    copy_collector(machine)
    for name in FILES[1:]:
        (machine.root / name).rename(machine.root / "away")
        _, stderr = machine.run("--here", rc=1)
        assert "/%s is missing; copy it beside" % name in stderr
        (machine.root / "away").rename(machine.root / name)


def test_not_root():
    # Not in TMPDIR, which may be in a directory that only root can enter.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        root = Path(name)
        machine = Machine(root)
        copy_collector(machine)
        for directory, _, _ in os.walk(root):
            os.chmod(directory, 0o555)
        user = {"user": "nobody"} if os.geteuid() == 0 else {}
        _, stderr = machine.run("--here", rc=3, **user)
        assert "not root?" in stderr
        for directory, _, _ in os.walk(root):
            os.chmod(directory, 0o755)


@pytest.mark.parametrize("line,rc", [("STEAL", 0), ("OTHER", 3)])
def test_debugfs_is_mounted_and_unmounted(machine, line, rc):
    shutil.rmtree(machine.root / "sys/kernel/debug/sched")
    machine.script("mount", '#!/bin/sh\n[ "$1 $2 $3" = "-t debugfs debugfs" ] || exit 1\nPATH=/usr/bin:/bin\n'
                   'mkdir "$4/sched" && echo "PLACE_LAG %s" >"$4/sched/features"\n' % line)
    machine.script("umount", '#!/bin/sh\nPATH=/usr/bin:/bin\ncp "$1/sched/features" "$FAKE_ROOT/last"\nrm -r "$1/sched"\n')
    machine.collect(groups="1", rc=rc)
    assert not (machine.root / "sys/kernel/debug/sched").exists()
    assert machine.get("last").split()[-1] == line


# Options

@pytest.mark.parametrize("args,message", [
    (["--what"], "unknown option: --what"), (["--runs"], "--runs needs a value"), (["--groups", ""], "--groups needs a value"),
    (["--runs", "0"], "not a positive number: 0"), (["--runs", "05"], "not a positive number: 05"),
    (["--loops", "1x"], "not a positive number: 1x"), (["--groups", "1 -2"], "not a positive number: -2"),
    (["--trace-loops", "0", "--trace"], "not a positive number: 0"),
    (["--loops", "0", "--runs", "0", "--trace"], "not a positive number: 0"),
    (["--features", "=STEAL"], "not a side"), (["--features", "a=b=c"], "not a side"), (["--features", "a/b=STEAL"], "not a side"),
    (["--features", "a=STEAL,a=NO_STEAL"], "two sides are called a"), (["--only", "nobody"], "no side is called nobody"),
    # what this machine would ignore
    (["--trace-loops", "9"], "--trace-loops needs --trace"), (["--machine", "1x2x1"], "--here and --machine exclude each other"),
    (["--jobs", "1"], "--here and --jobs exclude each other"), (["--table", "."], "--table takes no other option"),
])
def test_usage_errors(machine, args, message):
    _, stderr = machine.run("--here", *args, rc=2)
    assert message in stderr and "see --help" in stderr and len(stderr.splitlines()) == 1
    machine.untouched()


@pytest.mark.parametrize("option", ["--jobs", "--quantum", "--ips", "--idle-exit", "--append", "--timeout"])
def test_options_of_simulated_machines_are_refused_here(machine, option):
    _, stderr = machine.run(option, "1", rc=2)
    assert option + " is for simulated machines only" in stderr
    machine.untouched()
    assert not list(machine.root.glob("hackbench-*"))


@pytest.fixture
def with_in_sim(machine):
    """A collector beside an in-sim that only says how it is called."""
    copy_collector(machine)
    (machine.root / "in-sim").write_text('#!/bin/sh\nfor a; do echo "<$a>"; done\nexit 9\n')
    (machine.root / "in-sim").chmod(0o755)
    return machine


@pytest.mark.parametrize("why", [["--machine", "2x4x1"], ["--kernel", "base,x=a b"], []], ids=" ".join)
def test_simulated_machine(with_in_sim, why):
    """It gets all options that in-sim has, and is refused the others."""
    m = with_in_sim
    if not why:
        m.put(FEATURES, "PLACE_LAG \n")
    stdout, stderr = m.run(*why, rc=9)
    assert stdout.split("\n") == ["<%s>" % word for word in why] + [""]
    assert (" ".join(why) + " given" if why else "has no STEAL") + "; running on a simulated machine" in stderr
    usage = subprocess.run([TOP / "bench/in-sim", "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout
    given = dict.fromkeys(re.findall("--[a-z-]+", usage.partition("\n\n")[0]), "7")
    given.update({"--groups": "1 2", "--out": "a b", "--append": "x=1 y", "--features": "x=NO_STEAL,STEAL", "--machine": "1x2x1",
                  "--kernel": "x=a b", "--trace-loops": "0", "--pipe": None, "--threads": None})
    words = [word for option, value in given.items() for word in (option, value) if word]
    assert len(given) == 16
    stdout, _ = m.run(*words, rc=9)
    said = re.findall("<(.*)>", stdout)
    assert {word: None if word in ("--pipe", "--threads") else said[i + 1] for i, word in enumerate(said) if word[:2] == "--"} == given
    # in-sim always traces, and has messages of its own for the runs that --trace makes superfluous.
    assert m.run(*why, "--trace", "--runs", "0", rc=9)[0].split("\n") == [
        "<--runs>", "<0>", *("<%s>" % word for word in why), ""]
    for option in ("--only", "--first"):
        stdout, stderr = m.run(*why, option, {"--only": "on", "--first": "2"}[option], rc=2)
        assert stdout == "" and option + " does not work on simulated machines" in stderr and len(stderr.splitlines()) == 1
    m.untouched("PLACE_LAG" if not why else "STEAL")
    assert not (m.root / "a b").exists()


def test_no_steal_and_no_checkout(machine):
    machine.put(FEATURES, "PLACE_LAG \n")
    copy_collector(machine)
    _, stderr = machine.run(rc=3)
    assert "has no STEAL; run this on a kernel with the patches" in stderr


# Several sessions and sides

def test_what_is_there_is_not_run_again(machine):
    stdout, _ = machine.collect(groups="1", runs=2)
    again, stderr = machine.collect(groups="1", runs=2)
    assert again == stdout and "all runs are in" in stderr and machine.raw.read_text().count("begin session") == 1
    # More groups and more pairs: only these are run.
    machine.collect(groups="1 2", runs=3)
    assert order_of_runs(machine) == [
        "1 1 off", "1 1 on", "2 1 on", "2 1 off",
        "1 2 off", "1 2 on", "2 2 on", "2 2 off", "3 1 off", "3 1 on", "3 2 off", "3 2 on"]


@pytest.mark.parametrize("what", ["features", "loops", "boot"])
def test_directory_of_another_comparison(machine, what):
    machine.collect(groups="1")
    before = machine.raw.read_text()
    if what == "boot":
        machine.put("proc/cmdline", "console=ttyS0 nosmt\n")
    changed = {"loops": ["--loops", "60"], "features": ["--features", "on=STEAL,off=NO_STEAL"], "boot": []}[what]
    _, stderr = machine.collect(*changed, groups="1", runs=2, rc=1)
    assert "has runs of another machine, kernel or comparison" in stderr
    assert machine.raw.read_text() == before
    machine.untouched()


LABELS = ("base", "st-1", "STEAL+NEXT_BUDDY")


def three_sides(machine):
    """Runs of three sides; the fake's file holds the last feature written, by which the fake knows the side."""
    runs = {"1 base": RUNS["1 off"], "1 st-1": RUNS["1 on"], "1 STEAL+NEXT_BUDDY": RUNS["2 on"]}
    machine.configure(runs=runs, sides=[("NO_STEAL", "base"), ("NEXT_BUDDY", "STEAL+NEXT_BUDDY"), ("STEAL", "st-1")])
    return machine.collect("--features", "base=NO_STEAL,st-1=STEAL,STEAL+NEXT_BUDDY", groups="1", runs=2)[0]


def test_three_sides(machine):
    stdout = three_sides(machine)
    assert order_of_runs(machine) == ["1 1 base", "1 1 st-1", "1 1 STEAL+NEXT_BUDDY",
                                      "2 1 STEAL+NEXT_BUDDY", "2 1 st-1", "2 1 base"]
    found = rows(stdout, LABELS)
    assert [found["1 " + s]["time"] for s in LABELS] == ["8.100", "5.969", "2.189"]
    # All are compared with the first.
    assert [found["1 " + s]["%speedup"] for s in LABELS] == ["-", "35.7", "269.9"]
    assert [found["1 " + s]["overlap"] for s in LABELS] == ["-", "no", "no"]
    assert "\nsides base st-1 STEAL+NEXT_BUDDY \n" in machine.raw.read_text()
    assert "\nside_features STEAL+NEXT_BUDDY STEAL+NEXT_BUDDY\n" in machine.raw.read_text()


def test_features_of_the_other_sides_are_as_they_were_found(machine):
    """A side that does not name NEXT_BUDDY runs without it although another one has switched it on."""
    # set_side reads the file after each write
    machine.script("cat", '#!/bin/sh\ncase $1 in */features) read -r all <"$1"; echo "$all" >>"$FAKE_ROOT/seen";; esac\n'
                   'exec %s "$@"\n' % shutil.which("cat"))
    three_sides(machine)
    # Each written feature is read at once, and the last one again by the run's snapshots.
    seen = [line.strip() for line in machine.get("seen").splitlines()]
    seen = [feature for i, feature in enumerate(seen) if not i or seen[i - 1] != feature]
    at = [i for i, feature in enumerate(seen) if feature == "NEXT_BUDDY"]
    # The two runs of that side are neighbours.
    assert len(at) == 2 and seen[at[0] + 1:at[1]] == ["STEAL"] and seen[at[1] + 1] == "NO_NEXT_BUDDY", seen


def test_only_one_side_and_another_first_number(machine):
    machine.collect("--first", "4", "--only", "on", groups="1", runs=2)
    assert order_of_runs(machine) == ["4 1 on", "5 1 on"]
    # The other side, into the same directory, as if on another kernel.
    stdout, _ = machine.collect("--first", "4", "--only", "off", groups="1", runs=2)
    assert order_of_runs(machine)[2:] == ["4 1 off", "5 1 off"]
    assert set(rows(stdout)) == {"1 off", "1 on"}
    # The number decides which side goes first.
    machine.collect("--first", "6", groups="1")
    assert order_of_runs(machine)[4:] == ["6 1 on", "6 1 off"]


# Traces, with a tracefs of plain files: what is written to one replaces what was there.

class Traced(Machine):
    def __init__(self, root):
        super().__init__(root)
        tracing = "sys/kernel/tracing/"
        for name, text in [("tracing_on", "1\n"), ("buffer_size_kb", "7 (expanded: 1408)\n"), ("trace", ""), ("trace_marker", ""),
                           ("trace_clock", "[local] global counter mono\n")] + [
                               ("events/sched/%s/enable" % event, "0\n") for event in EVENTS]:
            self.put(tracing + name, text)
        for c in range(4):
            self.put(tracing + "per_cpu/cpu%d/stats" % c,
                     "entries: 9\noverrun: %d\ncommit overrun: 0\nbytes: 999\ndropped events: 1\nread events: 7\n" % c)
        self.tracing = root / tracing

    def trace(self, *args, **more):
        return self.run("--here", "--groups", "1", "--trace", "--trace-loops", "20", "--out", self.out, *args, **more)

    def tracing_is_off(self):
        assert [(self.tracing / s).read_text().strip() for s in SWITCHES] == ["0", "1408"] + ["0"] * len(EVENTS)
        self.untouched()


@pytest.fixture
def traced(tmp_path):
    return Traced(tmp_path)


def test_traces(traced):
    stdout, stderr = traced.trace("--loops", "50", "--runs", "1")
    assert set(rows(stdout)) == {"1 off", "1 on"} and "traced run, 1 groups, on: done" in stderr
    assert sorted(p.name for p in traced.out.iterdir()) == ["runs.raw", "trace-1-off.txt", "trace-1-on.txt"]
    session = re.search("^begin session (.*)$", traced.raw.read_text(), re.M)[1]
    for side in ("off", "on"):
        head, _, rest = (traced.out / ("trace-1-%s.txt" % side)).read_text().partition("# tracer: nop\n")
        assert head.splitlines() == [
            "#: session " + session, "#: groups 1", "#: side " + side, "#: loops 20", "#: cpus 4", "#: clock local",
            "#: begin 2.000100", "#: end 2.345600", "#: overruns %d" % (0 + 1 + 2 + 3 + 4)]
        assert rest == TRACE
    # Everything was on while hackbench ran.
    assert traced.get("traced-with").split() == ["1", "4096"] + ["1"] * len(EVENTS)
    assert (traced.tracing / "trace_marker").read_text() == "hackbench ends\n"
    traced.tracing_is_off()


def test_traces_only(traced):
    """--runs 0: no table, and what is there is not traced again."""
    on, off = traced.out / "trace-1-on.txt", traced.out / "trace-1-off.txt"
    stdout, _ = traced.trace("--runs", "0", "--only", "on")
    assert stdout == "" and on.exists() and not off.exists() and "begin run" not in traced.raw.read_text()
    on.write_text("mine")
    traced.trace("--runs", "0")
    assert on.read_text() == "mine" and off.exists()


def test_trace_interrupted(traced):
    traced.configure(hang="trace")
    traced.interrupt(traced.hang("--here", "--groups", "1", "--runs", "0", "--trace", "--trace-loops", "20"))
    assert not list(traced.out.glob("trace-*"))
    traced.tracing_is_off()


def test_trace_of_a_failing_hackbench(traced):
    traced.configure(fail="trace")
    _, stderr = traced.trace("--runs", "0", rc=1)
    assert "traced run, 1 groups, off: hackbench failed with status 7: fork: Resource" in stderr
    assert not list(traced.out.glob("trace-*"))
    traced.tracing_is_off()


def test_trace_events_in_use_or_absent(traced):
    enable = traced.tracing / "events/sched/sched_migrate_task/enable"
    enable.write_text("1\n")
    _, stderr = traced.trace("--runs", "0", rc=1)
    assert "sched_migrate_task is in use; --trace needs the trace for itself" in stderr
    assert enable.read_text() == "1\n" and (traced.tracing / "tracing_on").read_text() == "1\n"
    traced.untouched()
    shutil.rmtree(traced.tracing / "events")
    _, stderr = traced.trace("--runs", "0", rc=1)
    assert "no scheduler trace events, for --trace" in stderr
    traced.untouched()


# The scheduler's last-level caches: bench/llc.awk

def llc(flags, domains, version=17):
    """{cpu: list} for the LLC flags {cpu: [domain numbers]} and /proc/schedstat with the domains {cpu: [masks]}."""
    name = "/sys/kernel/debug/sched/domains/cpu%d/domain%d/flags:SD_BALANCE_NEWIDLE SD_SHARE_LLC SD_PREFER_SIBLING \n"
    text = "".join(name % (cpu, domain) for cpu in flags for domain in flags[cpu]) + "version %d\ntimestamp 1\n" % version
    for cpu, masks in domains.items():
        text += "cpu%d 0 0 1 2 3 4 5 6 7\n" % cpu
        text += "".join("domain%d %s%s 1 2 3\n" % (i, "MC " if version >= 17 else "", mask) for i, mask in enumerate(masks))
    done = subprocess.run([*AWKS["mawk"], "-f", TOP / "bench/llc.awk"], input=text, text=True, capture_output=True, check=True)
    assert done.stderr == ""
    return dict(line.removeprefix("cpu").split(" ") for line in done.stdout.splitlines())


@pytest.mark.parametrize("version", [15, 17])
def test_several_llcs(version):
    domains = {c: ["03" if c < 2 else "0c" if c < 4 else "f0", "ff"] for c in range(8)}
    assert llc({c: [0] for c in range(8)}, domains, version) == {
        str(c): "0-1" if c < 2 else "2-3" if c < 4 else "4-7" for c in range(8)}


WIDE = {0: ["00000000,00000000,000fffff"], 45: ["00000000,000fffff,fff00000"], 95: ["ffff0000,00000000,00000000"],
        64: ["00000001,80000000,00000000"]}


@pytest.mark.parametrize("flags,domains,expected", [
    # SMT below and a node above, the flag in the lower two, the higher one read first
    ({0: [1, 0], 1: [0, 1]}, {0: ["3", "f", "ff"], 1: ["3", "f", "ff"]}, {"0": "0-3", "1": "0-3"}),
    ({c: [0] for c in WIDE}, WIDE, {"0": "0-19", "45": "20-51", "95": "80-95", "64": "63-64"}),
    ({0: [0]}, {0: ["00000000,80010115"]}, {"0": "0,2,4,8,16,31"}),
    # cpu1 is not cpu11, domain1 is not domain10
    ({1: [10], 11: [1]}, {1: ["2"] * 10 + ["f0002"], 11: ["800", "c00"] + ["fff"] * 9}, {"1": "1,16-19", "11": "10-11"}),
    ({0: [0], 1: [0]}, {0: ["3"], 1: ["3"], 2: ["7"]}, {"0": "0-1", "1": "0-1", "2": "2"}),
    ({}, {0: ["3"], 1: ["3"]}, {}), ({}, {0: []}, {}),
], ids=["the widest", "many CPUs", "holes", "like names", "alone", "no flags", "no domains"])
def test_llc(flags, domains, expected):
    assert llc(flags, domains) == expected
