# SPDX-License-Identifier: GPL-2.0
"""The collector bench/run-hackbench.sh, on made-up /proc and /sys trees with a hackbench that
changes the counters by known amounts: no root, no special kernel."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
COLLECTOR = TOP / "bench/run-hackbench.sh"
DATA = TOP / "tests/data"

# What the collector may call apart from the shell's own commands: all of POSIX but mktemp, mount
# and umount, which come with every Linux.
TOOLS = "cat date diff dirname grep mkdir mktemp mount mv rm sed sleep sort tail tr umount uname wc".split()

SHELLS = {"dash": ["dash"], "busybox": ["busybox", "sh"], "bash": ["bash", "--posix"]}
AWKS = {"mawk": ["mawk"], "gawk": ["gawk", "--posix"], "busybox": ["busybox", "awk"]}

# Every shell and every awk at least once; busybox's shell prefers its own awk whatever PATH says.
PAIRS = ["dash-mawk", "dash-gawk", "dash-busybox", "bash-gawk", "busybox-busybox"]
ONE_PER_SHELL = ["dash-mawk", "bash-gawk", "busybox-busybox"]

# What hackbench takes and what happens on each CPU meanwhile, by groups and side. The times of
# 1 and 2 groups are published ones; 2 groups lose.
RUNS = {
    "1 off": {"time": ["8.000", "8.200", "8.084"], "sched": 105476, "idle": 46291, "wake": 59183,
              "busy": 7_500_000_000, "slices": 75_000, "newidle": 31_000_000, "steals": 0, "steal_ns": 0},
    "1 on": {"time": ["6.000", "5.938", "5.900"], "sched": 31255, "idle": 7190, "wake": 24061,
             "busy": 9_680_000_000, "slices": 40_000, "newidle": 40_000_000, "steals": 7433,
             "steal_ns": 23_000_000},
    "2 off": {"time": ["2.182", "2.100", "2.300"], "sched": 35876, "idle": 17905, "wake": 17958,
              "busy": 2_000_000_000, "slices": 10_000, "newidle": 1_000_000, "steals": 0, "steal_ns": 0},
    "2 on": {"time": ["2.229", "2.150", "2.290"], "sched": 45450, "idle": 22691, "wake": 22751,
             "busy": 1_800_000_000, "slices": 10_000, "newidle": 1_000_000, "steals": 52,
             "steal_ns": 1_000_000},
}

# Which side it is if this feature is set; a file holds only what was written last.
SIDES = [("NO_STEAL", "off"), ("STEAL", "on")]

EVENTS = "sched_switch sched_wakeup sched_wakeup_new sched_migrate_task sched_process_exit".split()
SWITCHES = ["tracing_on", "buffer_size_kb"] + ["events/sched/%s/enable" % event for event in EVENTS]

TRACE = """              sh-9     [001] .....     2.000100: tracing_mark_write: hackbench begins
          <idle>-0     [000] d..2.     2.000200: sched_switch: prev_comm=swapper/0 prev_pid=0 next_pid=9
              sh-9     [000] .....     2.345600: tracing_mark_write: hackbench ends
"""

# The counters of CPU c go up by STEP * (c - 1.5) more than RUNS says: the average is what it says.
FAKE_HACKBENCH = '''#!%s
import json, os, re, signal, subprocess, sys, time
root = os.environ["FAKE_ROOT"]
conf = json.load(open(root + "/conf.json"))
path = lambda name: os.path.join(root, name)
read = lambda name: open(path(name)).read()
def write(name, text):
    with open(path(name), "w") as f:
        f.write(text)
if sys.argv[1:] == ["--help"]:
    print("hackbench V 9.99\\nUsage:\\nhackbench <options>")
    sys.exit(0)
assert sys.argv[1] == "-g" and sys.argv[3] == "-l" and sys.argv[5:] in ([], ["-p"], ["-T"], ["-p", "-T"]), sys.argv
groups, loops = sys.argv[2], sys.argv[4]
if conf.get("old"):
    print("Running with 10*40 (== 400) tasks.\\nTime: 1.000")
    sys.exit(0)
print("Running in process mode with %%s groups using 40 file descriptors each" %% groups)
if loops == "1":
    print("Time: 0.003")
    sys.exit(0)
assert read("proc/sys/kernel/sched_schedstats").strip() == "1", "schedstats are off"
set_to = read("sys/kernel/debug/sched/features").split()
side = next(side for feature, side in conf["sides"] if feature in set_to)
what = groups + " " + side
run = conf["runs"][what]
if loops == conf["traced_loops"]:
    tracing = "sys/kernel/tracing/"
    write("traced-with", " ".join(read(tracing + name).strip() for name in conf["switches"]))
    text = "# tracer: nop\\n" + conf["trace"]
    write(tracing + "trace", text)
    if conf.get("hang") == "trace":
        write("pids", str(os.getpid()))
        time.sleep(300)
    if conf.get("fail") == "trace":
        print("Time: 0.001\\nfork: Resource temporarily unavailable")
        sys.exit(7)
    print("Time: 0.123")
    sys.exit(0)
count = json.loads(read("count.json"))
count[what] = count.get(what, 0) + 1
write("count.json", json.dumps(count))

def step(cpu, amount):
    return amount + (2 * cpu - 3) * (amount // 10 // 2)
lines = []
for line in read("proc/schedstat").splitlines():
    f = line.split(" ")
    m = re.match(r"cpu(\\d+)$", f[0])
    if m:
        c = int(m[1])
        for i, name in ((3, "sched"), (4, "idle"), (5, "wake"), (7, "busy"), (9, "slices")):
            f[i] = str(int(f[i]) + step(c, run[name]))
            if i in (3, 4, 5):
                f[i] = str(int(f[i]) %% 2**32)
    elif f[0].startswith("domain"):
        f[-1] = str(int(f[-1]) + 5)
    lines.append(" ".join(f))
write("proc/schedstat", "\\n".join(lines) + "\\n")
name = "sys/kernel/debug/sched/idle_search"
if os.path.exists(path(name)):
    lines = []
    for line in read(name).splitlines():
        f = line.split(" ")
        if f[0] != "version":
            c = int(f[0][3:])
            f[1] = str(int(f[1]) + step(c, run["steals"]))
            f[2] = str(int(f[2]) + 3)
            f[3] = str(int(f[3]) + step(c, run["newidle"]))
            f[4] = str(int(f[4]) + step(c, run["steal_ns"]))
        lines.append(" ".join(f))
    write(name, "\\n".join(lines) + "\\n")
if os.path.exists(path("proc/timer_list")):
    m = re.search(r"now at (\\d+)", read("proc/timer_list"))
    write("proc/timer_list", "Timer List Version: v0.11\\nnow at %%d nsecs\\n" %% (int(m[1]) + 10**10))
up = float(read("proc/uptime").split()[0])
write("proc/uptime", "%%.2f 0.00\\n" %% (up + 10))

if conf.get("hang") == what:
    child = subprocess.Popen(["sleep", "300"])
    write("pids", "%%d %%d" %% (os.getpid(), child.pid))
    time.sleep(300)
if conf.get("offline") == what:
    write("proc/schedstat", read("proc/schedstat").split("cpu3 ")[0])
    write("sys/devices/system/cpu/online", "0-2\\n")
if conf.get("meddle") == what:
    write("sys/kernel/debug/sched/features", "PLACE_LAG %%s \\n" %% {"on": "NO_STEAL", "off": "STEAL"}[side])
if conf.get("jam") == what:
    os.unlink(path("sys/kernel/debug/sched/features"))
    os.mkdir(path("sys/kernel/debug/sched/features"))
if conf.get("silent") == what:
    sys.exit(0)
if conf.get("fail") == what:
    print("Time: 0.001\\nfork: Resource temporarily unavailable")
    sys.exit(7)
print("Time: " + run["time"][(count[what] - 1) %% len(run["time"])])
''' % sys.executable


def heed_signals():
    """A shell cannot trap what was ignored when it started: SIGINT in the background, SIGHUP under nohup."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Machine:
    """A machine under test: files below root, and what the collector is run with."""

    def __init__(self, root, pair):
        self.root = root
        shell, awk = pair.split("-")
        for name in (SHELLS[shell][0], AWKS[awk][0]):
            if not shutil.which(name):
                pytest.skip(name + " is not installed")
        self.shell = [shutil.which(SHELLS[shell][0])] + SHELLS[shell][1:]
        self.out = root / "out"
        self.raw = self.out / "runs.raw"
        self.bin = root / "bin"
        self.bin.mkdir()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))
        command = [shutil.which(AWKS[awk][0])] + AWKS[awk][1:]
        self.script("awk", "#!/bin/sh\nexec %s \"$@\"\n" % " ".join(command))
        self.script("hackbench", FAKE_HACKBENCH)
        self.put("count.json", "{}")
        self.configure()
        schedstat = (DATA / "schedstat-v17").read_text()
        self.put("proc/schedstat", schedstat)
        self.put("proc/sys/kernel/sched_schedstats", "0\n")
        self.put("proc/timer_list", "Timer List Version: v0.11\nnow at 3204867600 nsecs\n")
        self.put("proc/uptime", "100.25 0.00\n")
        self.put("proc/cpuinfo", "processor : 0\nmodel name : Fake CPU\nmodel name : Fake CPU\n")
        self.put("proc/cmdline", "console=ttyS0\n")
        self.put("sys/kernel/debug/sched/features", "PLACE_LAG STEAL NO_NEXT_BUDDY \n")
        self.put("sys/kernel/debug/sched/idle_search",
                 "version 1\n" + "".join("cpu%d 5 6 7000 8000\n" % c for c in range(4)))
        self.put("sys/devices/system/cpu/online", "0-3\n")
        for c in range(4):
            cpu = "sys/devices/system/cpu/cpu%d/" % c
            self.put(cpu + "topology/physical_package_id", "%d\n" % (c // 2))
            self.put(cpu + "topology/core_id", "%d\n" % (c % 2))
            self.put(cpu + "topology/core_cpus_list", "%d\n" % c)
            self.put(cpu + "cache/index0/level", "1\n")
            self.put(cpu + "cache/index0/shared_cpu_list", "%d\n" % c)
            self.put(cpu + "cache/index3/level", "3\n")
            self.put(cpu + "cache/index3/shared_cpu_list", "%d-%d\n" % (c // 2 * 2, c // 2 * 2 + 1))
            (root / cpu / ("node%d" % (c // 2))).mkdir()

    def put(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def get(self, name):
        return (self.root / name).read_text()

    def script(self, name, text):
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def configure(self, **conf):
        self.put("conf.json", json.dumps({"runs": RUNS, "sides": SIDES, "traced_loops": "20", "trace": TRACE,
                                          "switches": SWITCHES} | conf))

    @property
    def features(self):
        return "sys/kernel/debug/sched/features"

    def untouched(self, steal="STEAL", schedstats="0"):
        assert steal in self.get(self.features).split()
        assert self.get("proc/sys/kernel/sched_schedstats").strip() == schedstats
        assert not list((self.root / "tmp").iterdir())

    def start(self, *args, collector=COLLECTOR, **more):
        (self.root / "tmp").mkdir(exist_ok=True)
        env = {"PATH": str(self.bin), "FAKE_ROOT": str(self.root), "STEAL_PROC": str(self.root / "proc"),
               "STEAL_SYS": str(self.root / "sys"), "TMPDIR": str(self.root / "tmp")}
        return subprocess.Popen([*self.shell, str(collector), *args], env=env, cwd=self.root, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                preexec_fn=heed_signals, **more)

    def run(self, *args, rc=0, **more):
        process = self.start(*args, **more)
        stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == rc, stdout + stderr
        # TOOLS and the shell are all it has.
        assert "not found" not in stderr
        return stdout, stderr

    def collect(self, *args, groups="1 2", runs=1, rc=0, **more):
        return self.run("--here", "--groups", groups, "--loops", "50", "--runs", str(runs),
                        "--out", str(self.out), *args, rc=rc, **more)


@pytest.fixture(params=ONE_PER_SHELL)
def machine(tmp_path, request):
    return Machine(tmp_path, request.param)


@pytest.fixture(params=PAIRS)
def every_machine(tmp_path, request):
    return Machine(tmp_path, request.param)


@pytest.fixture
def dash_machine(tmp_path):
    return Machine(tmp_path, "dash-mawk")


def rows(text, sides=("off", "on")):
    """The table as {"1 off": {"time": "8.084", ...}, ...}; for the last session if there are several."""
    found, names = {}, None
    for line in text.splitlines():
        fields = line.split()
        if fields[:2] == ["grps", "side"]:
            found, names = {}, fields
        elif names and len(fields) == len(names) and fields[1] in sides:
            found[fields[0] + " " + fields[1]] = dict(zip(names[2:], fields[2:]))
    assert names, text
    return found


EXPECTED = {
    "1 off": "8.084 75.00 0.100 105476 46291 59183 0.31 0 - 3 8.000-8.200 -",
    "1 on": "5.938 96.80 0.242 31255 7190 24061 0.63 7433 36.1 3 5.900-6.000 no",
    "2 off": "2.182 20.00 0.200 35876 17905 17958 0.01 0 - 3 2.100-2.300 -",
    "2 on": "2.229 18.00 0.180 45450 22691 22751 0.02 52 -2.1 3 2.150-2.290 yes",
}


@pytest.mark.parametrize("version", [15, 16, 17])
def test_table(every_machine, version):
    m = every_machine
    schedstat = (DATA / ("schedstat-v%d" % version)).read_text()
    assert schedstat.startswith("version %d\n" % version)
    m.put("proc/schedstat", schedstat)
    stdout, _ = m.collect(runs=3)
    assert {k: " ".join(v.values()) for k, v in rows(stdout).items()} == EXPECTED
    assert "schedstat: version %d;" % version in stdout
    assert "failed" not in stdout and "invalid" not in stdout
    m.untouched()
    again, _ = m.run("--table", str(m.out))
    assert again == stdout


def test_large_counters(every_machine):
    """32-bit counters pass 2^32; ns and time slices are beyond what 32 bits, or a double, hold."""
    m = every_machine
    large = r"cpu\1 0 0 4294967290 4294967291 4294967292 9 9007199254750001 9007199254750001 9007199254740993"
    m.put("proc/schedstat", re.sub(r"^cpu([013]) .*", large, m.get("proc/schedstat"), flags=re.M))
    table = rows(m.collect(groups="1")[0])
    columns = "%busy slice sched idle wake".split()
    assert [table["1 off"][c] for c in columns] == ["75.00", "0.100", "105476", "46291", "59183"]
    assert [table["1 on"][c] for c in columns] == ["96.80", "0.242", "31255", "7190", "24061"]


def test_median_of_an_even_number(every_machine):
    stdout, _ = every_machine.collect(groups="1", runs=2)
    assert rows(stdout)["1 off"]["time"] == "8.100"
    assert rows(stdout)["1 on"]["time"] == "5.969"


def test_more_than_busy(dash_machine):
    runs = {**RUNS, "1 on": {**RUNS["1 on"], "busy": 11_000_000_000}}
    dash_machine.configure(runs=runs)
    stdout, _ = dash_machine.collect(groups="1")
    assert rows(stdout)["1 on"]["%busy"] == "110.00" and "\n%busy above 100: " in stdout
    dash_machine.configure()
    shutil.rmtree(dash_machine.out)
    assert "above 100" not in dash_machine.collect(groups="1")[0]


def test_one_run_of_each_side_shows_no_difference(dash_machine):
    assert rows(dash_machine.collect(groups="1")[0])["1 on"]["overlap"] == "yes"


def test_uptime_where_there_is_no_timer_list(machine):
    (machine.root / "proc/timer_list").unlink()
    table = rows(machine.collect(groups="1")[0])
    assert table["1 off"]["%busy"] == "75.00"
    assert "clock uptime" in machine.raw.read_text()


@pytest.mark.parametrize("idle_search", [None, "version 2\ncpu0 1 2\n"])
def test_no_steal_counters(machine, idle_search):
    name = "sys/kernel/debug/sched/idle_search"
    (machine.root / name).unlink()
    machine.configure()
    if idle_search:
        machine.put(name, idle_search)
        # The fake hackbench knows version 1 only; leave the file as it is.
        fake = FAKE_HACKBENCH.replace("if os.path.exists(path(name)):", "if False:")
        machine.script("hackbench", fake)
    table = rows(machine.collect(groups="1")[0])
    assert [table[s][c] for s in ("1 off", "1 on") for c in ("%find", "steal")] == ["-"] * 4
    assert table["1 on"]["%speedup"] == "33.3"


def test_records(machine):
    before = machine.get("proc/schedstat")
    machine.collect(runs=2)
    text = machine.raw.read_text()
    sides = re.findall(r"^groups (\d)\nside (\w+)$", text, re.M)
    assert [g + s for g, s in sides] == ["1off", "1on", "2off", "2on", "1on", "1off", "2on", "2off"]
    session, first = text.split("end session\n")
    first = first.split("end run\n")[0]
    for line in before.splitlines():
        assert "\nbefore schedstat " + line + "\n" in first
    assert len(re.findall("^after schedstat (?:cpu|domain)", first, re.M)) == 12
    assert "\nbefore idle_search cpu3 5 6 7000 8000\n" in first
    assert "\nafter features NO_STEAL\n" in first
    assert "\ncommand hackbench -g 1 -l 50\n" in first
    assert "\nexit 0\ntime 8.000\nvalid yes\n" in first
    assert "\noutput Running in process mode with 1 groups" in first
    assert "\nrelease %s\n" % os.uname().release in session
    assert "\nfeatures PLACE_LAG STEAL NO_NEXT_BUDDY \n" in session
    assert re.search("^command .*run-hackbench.sh --here --groups 1 2 --loops 50", session, re.M)
    assert "\ntopology cpu 3 package 1 core 1 threads 3 llc 2-3 node 1\n" in session
    assert "\nllcs 2\n" in session and "\nmodel Fake CPU\n" in session and "\nclock timer_list\n" in session


def test_settings_as_found_are_put_back(machine):
    machine.put(machine.features, "PLACE_LAG NO_STEAL \n")
    machine.put("proc/sys/kernel/sched_schedstats", "1\n")
    machine.collect()
    machine.untouched("NO_STEAL", "1")


def wait_for(condition):
    for _ in range(300):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("timed out")


def gone(pid):
    try:
        return "\nState:\tZ" in Path("/proc/%d/status" % pid).read_text()
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP"])
def test_interrupt(machine, name):
    number = getattr(signal, "SIG" + name)
    machine.configure(hang="2 off")
    process = machine.start("--here", "--groups", "1 2", "--loops", "50", "--runs", "3", "--out",
                            str(machine.out))
    wait_for((machine.root / "pids").exists)
    wait_for(lambda: machine.get("pids"))
    assert machine.get("proc/sys/kernel/sched_schedstats").strip() == "1"
    assert "NO_STEAL" in machine.get(machine.features)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 128 + number, stdout + stderr
    machine.untouched()
    for pid in map(int, machine.get("pids").split()):
        wait_for(lambda: gone(pid))
    assert "interrupted after 2 of 12 runs" in stderr
    stdout, _ = machine.run("--table", str(machine.out))
    assert rows(stdout)["1 on"]["time"] == "6.000"
    assert set(rows(stdout)) == {"1 off", "1 on"}


def test_reader_of_the_messages_goes_away(machine):
    process = machine.start("--here", "--groups", "1", "--loops", "50", "--runs", "3", "--out",
                            str(machine.out))
    process.stderr.readline()
    process.stderr.close()
    assert process.wait(timeout=30) != 0
    process.stdout.close()
    machine.untouched()


def test_failing_hackbench(machine):
    machine.configure(fail="2 on")
    stdout, stderr = machine.collect(runs=2, rc=1)
    assert "2 groups, on: hackbench failed with status 7: fork: Resource" in stderr
    assert "failed runs, not in the table: 2" in stdout
    assert set(rows(stdout)) == {"1 off", "1 on", "2 off"}
    assert machine.raw.read_text().count("\nside on\n") == 4
    assert machine.raw.read_text().count("\nexit 7\n") == 2
    machine.untouched()


@pytest.mark.parametrize("conf,why", [("offline", "the online CPUs changed"),
                                      ("meddle", "somebody changed the scheduler features"),
                                      ("silent", "hackbench printed no time")])
def test_invalid_run(machine, conf, why):
    machine.configure(**{conf: "1 on"})
    stdout, stderr = machine.collect(groups="1", rc=1)
    assert "1 groups, on: not valid: " + why in stderr
    assert "\nvalid %s\n" % why in machine.raw.read_text()
    assert "invalid runs, not in the table: 1" in stdout
    assert set(rows(stdout)) == {"1 off"}
    machine.untouched()


def test_feature_does_not_take(machine):
    machine.configure(jam="1 off")
    _, stderr = machine.collect(groups="1", rc=1)
    assert "features does not show STEAL after writing it" in stderr
    assert "cannot restore: echo STEAL >" in stderr
    assert machine.get("proc/sys/kernel/sched_schedstats").strip() == "0"


def test_more_than_nine_fields(machine):
    text = re.sub(r"^(cpu1 .*)$", r"\1 99", machine.get("proc/schedstat"), flags=re.M)
    machine.put("proc/schedstat", text)
    stdout, stderr = machine.collect(groups="1", rc=1)
    assert "the line of cpu1 has 10 fields, not 9" in stderr
    assert "no run to show" in stdout


@pytest.mark.parametrize("keep", ["begin run", "after schedstat cpu1", "after idle_search cpu3"])
def test_truncated(every_machine, keep):
    m = every_machine
    m.collect(groups="1", runs=2)
    text = m.raw.read_text()
    at = text.rindex("\n" + keep)
    m.raw.write_text(text[:at + 1 + len(keep) + 3])
    stdout, stderr = m.run("--table", str(m.out))
    assert "the last record (run) is incomplete: ignored" in stderr
    assert rows(stdout)["1 off"]["runs"] == "1" and rows(stdout)["1 on"]["runs"] == "2"
    # Another session in the same file makes up for it, and only for that.
    m.put("count.json", '{"1 off": 1, "1 on": 2}')
    stdout, stderr = m.collect(groups="1", runs=2)
    assert "1 runs; raw records go to" in stderr and "run 1/1: 1 groups, off" in stderr
    assert "incomplete run record before line" in stderr
    assert stdout.count("grps") == 1
    assert {k: (v["time"], v["runs"]) for k, v in rows(stdout).items()} == {"1 off": ("8.100", "2"),
                                                                             "1 on": ("5.969", "2")}
    again, _ = m.run("--table", str(m.out))
    assert again == stdout and "description is missing" not in stdout


def test_table_of_nothing(machine):
    machine.put("empty", "")
    machine.run("--table", str(machine.root / "empty"), rc=1)
    _, stderr = machine.run("--table", str(machine.root / "absent"), rc=1)
    assert "cannot read" in stderr


@pytest.mark.parametrize("version", ["14", "18", "x"])
def test_unknown_schedstat_version(machine, version):
    machine.put("proc/schedstat", machine.get("proc/schedstat").replace("version 17", "version " + version))
    _, stderr = machine.collect(rc=1)
    assert "schedstat: version %s; only 15, 16 and 17 are supported" % version in stderr
    assert not machine.out.exists()


def test_no_schedstat(machine):
    (machine.root / "proc/schedstat").unlink()
    _, stderr = machine.collect(rc=1)
    assert "CONFIG_SCHEDSTATS" in stderr


def test_no_hackbench(machine):
    (machine.bin / "hackbench").unlink()
    _, stderr = machine.collect(rc=1)
    assert "hackbench is not installed: apt-get install rt-tests" in stderr


def test_another_hackbench(machine):
    machine.configure(old=True)
    _, stderr = machine.collect(rc=1)
    assert "did not run as that of rt-tests does" in stderr
    machine.untouched()


def test_no_steal_here(machine):
    machine.put(machine.features, "PLACE_LAG STEALTH NO_STEALTHY \n")
    _, stderr = machine.collect(rc=3)
    assert "has no STEAL" in stderr
    assert not machine.out.exists()


def copy_collector(where):
    for name in ("run-hackbench.sh", "switch.sh", "hackbench-table.awk", "llc.awk"):
        shutil.copy(TOP / "bench" / name, where / name)
    return where / "run-hackbench.sh"


@pytest.fixture
def with_in_sim(machine):
    """A collector beside an in-sim that only says what it was called with."""
    collector = copy_collector(machine.root)
    (machine.root / "in-sim").write_text('#!/bin/sh\nfor a; do echo "<$a>"; done\nexit 9\n')
    (machine.root / "in-sim").chmod(0o755)
    return collector


def test_no_steal_goes_to_a_simulated_machine(machine, with_in_sim):
    machine.put(machine.features, "PLACE_LAG \n")
    stdout, stderr = machine.run(collector=with_in_sim, rc=9)
    assert stdout == "" and "has no STEAL; going to a simulated machine" in stderr
    stdout, _ = machine.run("--groups", "1 2", "--runs", "4", "--out", "a b", "--features", "x=NO_STEAL,STEAL",
                            "--loops", "70", "--trace", "--trace-loops", "9", "--threads", "--pipe", collector=with_in_sim,
                            rc=9)
    assert stdout.split("\n") == ["<--pipe>", "<--threads>", "<--groups>", "<1 2>", "<--loops>", "<70>", "<--runs>", "<4>", "<--out>", "<a b>",
                                  "<--features>", "<x=NO_STEAL,STEAL>", "<--trace-loops>", "<9>", ""]
    assert not (machine.root / "a b").exists()


@pytest.mark.parametrize("args", [("--machine", "2x4x1"), ("--kernel", "base,x=a b")])
def test_machine_and_kernel_go_to_a_simulated_machine(machine, with_in_sim, args):
    stdout, stderr = machine.run(*args, collector=with_in_sim, rc=9)
    assert stdout.split("\n") == ["<%s>" % a for a in args] + [""]
    assert "%s given; going to a simulated machine" % " ".join(args) in stderr
    stdout, stderr = machine.run("--here", *args, collector=with_in_sim, rc=3)
    assert stdout == "" and "%s given" % " ".join(args) in stderr
    machine.untouched()


def test_no_steal_and_no_checkout(machine):
    machine.put(machine.features, "PLACE_LAG \n")
    _, stderr = machine.run(collector=copy_collector(machine.root), rc=3)
    assert "has no STEAL; run this on a kernel with the patches" in stderr


@pytest.mark.parametrize("name", ["switch.sh", "hackbench-table.awk", "llc.awk"])
def test_a_file_beside_it_is_missing(machine, name):
    collector = copy_collector(machine.root)
    (machine.root / name).unlink()
    _, stderr = machine.run("--here", collector=collector, rc=1)
    assert "/%s is missing; copy it beside" % name in stderr


def test_not_root(pytestconfig):
    root = Path(tempfile.mkdtemp())
    try:
        machine = Machine(root, "dash-mawk")
        collector = copy_collector(root)
        (root / "tmp").mkdir()
        for directory, _, _ in os.walk(root):
            os.chmod(directory, 0o555)
        user = {"user": "nobody"} if os.geteuid() == 0 else {}
        _, stderr = machine.run("--here", collector=collector, rc=3, **user)
        assert "not root?" in stderr
    finally:
        for directory, _, _ in os.walk(root):
            os.chmod(directory, 0o755)
        shutil.rmtree(root)


# busybox's shell would call its own mount, so only with dash.
@pytest.mark.parametrize("line,rc", [("STEAL", 0), ("OTHER", 3)])
def test_debugfs_is_mounted_and_unmounted(dash_machine, line, rc):
    m = dash_machine
    shutil.rmtree(m.root / "sys/kernel/debug/sched")
    m.script("mount", '#!/bin/sh\n[ "$1 $2 $3" = "-t debugfs debugfs" ] || exit 1\nPATH=/usr/bin:/bin\n'
             'mkdir "$4/sched" && echo "PLACE_LAG %s" >"$4/sched/features"\n' % line)
    m.script("umount", '#!/bin/sh\nPATH=/usr/bin:/bin\ncp "$1/sched/features" "$FAKE_ROOT/last"\n'
             'rm -r "$1/sched"\n')
    m.collect(groups="1", rc=rc)
    assert not (m.root / "sys/kernel/debug/sched").exists()
    assert m.get("last").split()[-1] == line


@pytest.mark.parametrize("args,mode", [([], ""), (["--pipe"], " -p"), (["--threads"], " -T"),
                                       (["--threads", "--pipe"], " -p -T")])
def test_modes_of_hackbench(machine, args, mode):
    """They reach hackbench (the fake one checks them), and the record says so, so that nothing is pooled with others."""
    machine.collect(*args, groups="1", runs=1)
    raw = machine.raw.read_text()
    assert re.findall(r"^hackbench (.*)$", raw, re.M) == ["hackbench -g GROUPS -l 50" + mode]
    assert set(re.findall(r"^command (hackbench .*)$", raw, re.M)) == {"hackbench -g 1 -l 50" + mode}


@pytest.mark.parametrize("args", [["--what"], ["--runs"], ["--runs", "0"], ["--loops", "1x"], ["--groups", "1 -2"],
                                  ["--groups", ""], ["--trace-loops", "0", "--trace"], ["--first", "0", "--trace"],
                                  ["--features", "=STEAL"], ["--features", "a=STEAL,a=NO_STEAL"],
                                  ["--features", "a=b=c"], ["--features", "a/b=STEAL"], ["--only", "nobody"],
                                  ["--runs", "05"]])
def test_wrong_arguments(machine, args):
    _, stderr = machine.run("--here", *args, rc=2)
    assert "see --help" in stderr


def test_help(machine):
    stdout, _ = machine.run("--help")
    assert stdout.startswith("Usage: run-hackbench.sh [--groups") and "Exit status" in stdout
    assert "#" not in stdout and "LC_ALL" not in stdout


def order_of_runs(machine):
    return [" ".join(r) for r in re.findall(r"^pair (\d+)\ngroups (\d+)\nside (\S+)$", machine.raw.read_text(), re.M)]


def test_what_is_there_is_not_run_again(machine):
    stdout, _ = machine.collect(groups="1", runs=2)
    again, stderr = machine.collect(groups="1", runs=2)
    assert again == stdout and "all runs are in" in stderr
    assert machine.raw.read_text().count("begin session") == 1
    # More groups and more pairs: only these are run.
    _, stderr = machine.collect(groups="1 2", runs=3)
    assert "8 runs; raw records go to" in stderr
    assert order_of_runs(machine) == [
        "1 1 off", "1 1 on", "2 1 on", "2 1 off",
        "1 2 off", "1 2 on", "2 2 on", "2 2 off", "3 1 off", "3 1 on", "3 2 off", "3 2 on"]


def test_interrupted_session_and_its_rest_are_one_table(machine):
    machine.configure(hang="2 off")
    process = machine.start("--here", "--groups", "1 2", "--loops", "50", "--runs", "3", "--out", str(machine.out))
    wait_for((machine.root / "pids").exists)
    wait_for(lambda: machine.get("pids"))
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=30)
    assert "to go on: --out %s" % machine.out in stderr
    machine.configure()
    machine.put("count.json", '{"1 off": 1, "1 on": 1}')
    stdout, stderr = machine.collect(runs=3)
    assert "10 runs; raw records go to" in stderr
    assert machine.raw.read_text().count("begin session") == 2
    assert {k: " ".join(v.values()) for k, v in rows(stdout).items()} == EXPECTED
    assert stdout.count("grps") == 1


def test_failed_and_invalid_runs_are_run_again(machine):
    machine.configure(fail="1 on", silent="1 off")
    machine.collect(groups="1", rc=1)
    machine.configure()
    stdout, stderr = machine.collect(groups="1")
    assert "2 runs; raw records" in stderr
    assert "failed runs, not in the table: 1" in stdout and "invalid runs, not in the table: 1" in stdout
    assert set(rows(stdout)) == {"1 off", "1 on"}


@pytest.mark.parametrize("what", ["features", "loops", "boot"])
def test_directory_of_another_comparison(machine, what):
    machine.collect(groups="1")
    before = machine.raw.read_text()
    args = {"loops": "50", "features": "off=NO_STEAL,on=STEAL"}
    if what == "boot":
        machine.put("proc/cmdline", "console=ttyS0 nosmt\n")
    else:
        args[what] = {"loops": "60", "features": "on=STEAL,off=NO_STEAL"}[what]
    _, stderr = machine.run("--here", "--groups", "1", "--runs", "2", "--out", str(machine.out), rc=1,
                            *(word for key, value in args.items() for word in ("--" + key, value)))
    assert "has runs of another machine, kernel or comparison" in stderr
    assert machine.raw.read_text() == before
    machine.untouched()


THREE = "base=NO_STEAL,st-1=STEAL,STEAL+NEXT_BUDDY"
LABELS = ("base", "st-1", "STEAL+NEXT_BUDDY")


def three_sides(machine):
    """Runs of three sides; the fake's file holds the last feature written, by which the fake knows the side."""
    runs = {"1 base": RUNS["1 off"], "1 st-1": RUNS["1 on"], "1 STEAL+NEXT_BUDDY": RUNS["2 on"]}
    machine.configure(runs=runs, sides=[("NO_STEAL", "base"), ("NEXT_BUDDY", "STEAL+NEXT_BUDDY"), ("STEAL", "st-1")])
    return machine.run("--here", "--groups", "1", "--loops", "50", "--runs", "2", "--features", THREE,
                       "--out", str(machine.out))


def test_three_sides(every_machine):
    m = every_machine
    stdout, _ = three_sides(m)
    assert order_of_runs(m) == ["1 1 base", "1 1 st-1", "1 1 STEAL+NEXT_BUDDY",
                                "2 1 STEAL+NEXT_BUDDY", "2 1 st-1", "2 1 base"]
    table = rows(stdout, LABELS)
    assert [table["1 " + s]["time"] for s in LABELS] == ["8.100", "5.969", "2.189"]
    # All are compared with the first.
    assert [table["1 " + s]["%speedup"] for s in LABELS] == ["-", "35.7", "269.9"]
    assert [table["1 " + s]["overlap"] for s in LABELS] == ["-", "no", "no"]
    lines = stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if "grps" in line)
    assert len({len(line) for line in lines[start:start + 4]}) == 1, stdout
    assert "\nsides base st-1 STEAL+NEXT_BUDDY \n" in m.raw.read_text()
    assert "\nside_features STEAL+NEXT_BUDDY STEAL+NEXT_BUDDY\n" in m.raw.read_text()


def test_features_of_the_other_sides_are_as_they_were_found(dash_machine):
    """A side that does not name NEXT_BUDDY runs without it although another one has switched it on."""
    three_sides(dash_machine)
    tool = dash_machine.bin / "cat"
    tool.unlink()
    # set_side reads the file after each write
    dash_machine.script("cat", '#!/bin/sh\ncase $1 in */features) read -r all <"$1"; echo "$all" >>"$FAKE_ROOT/seen";; esac\n'
                        'exec %s "$@"\n' % shutil.which("cat"))
    shutil.rmtree(dash_machine.out)
    dash_machine.put("sys/kernel/debug/sched/features", "PLACE_LAG STEAL NO_NEXT_BUDDY \n")
    three_sides(dash_machine)
    # each written feature is read at once, and the last one again by the run's snapshots
    seen = [line.strip() for line in dash_machine.get("seen").splitlines()]
    seen = [feature for i, feature in enumerate(seen) if seen[i - 1] != feature]
    assert "NEXT_BUDDY" in seen
    for i, feature in enumerate(seen):
        if feature == "NEXT_BUDDY":
            assert seen[i + 1] == "NO_NEXT_BUDDY" or seen[i + 1:i + 3] == ["STEAL", "NEXT_BUDDY"], seen


def test_only_one_side_and_another_first_number(machine):
    _, stderr = machine.run("--here", "--groups", "1", "--loops", "50", "--runs", "2", "--first", "4", "--only", "on",
                            "--out", str(machine.out))
    assert "2 runs; raw records" in stderr
    assert order_of_runs(machine) == ["4 1 on", "5 1 on"]
    # The other side, into the same directory, as if on another kernel.
    stdout, _ = machine.run("--here", "--groups", "1", "--loops", "50", "--runs", "2", "--first", "4", "--only", "off",
                            "--out", str(machine.out))
    assert order_of_runs(machine)[2:] == ["4 1 off", "5 1 off"]
    assert set(rows(stdout)) == {"1 off", "1 on"}


def test_first_decides_which_side_goes_first(machine):
    machine.run("--here", "--groups", "1", "--loops", "50", "--runs", "1", "--first", "4", "--out", str(machine.out))
    assert order_of_runs(machine) == ["4 1 on", "4 1 off"]


# busybox's shell would call its own cat.
def test_clock_is_read_between_the_counters(dash_machine):
    """Reading the counters takes an hour here, and is no part of the run's 10 s."""
    m = dash_machine
    (m.bin / "cat").unlink()
    m.script("cat", '#!/bin/sh\nt=$FAKE_ROOT/proc/timer_list\n'
             '[ ! -e "$t" ] || { { read -r _; read -r _ _ at _; } <"$t"\n'
             'echo "Timer List Version: v0.11\nnow at $((at + 3600000000000)) nsecs" >"$t"; }\n'
             'exec %s "$@"\n' % shutil.which("cat"))
    table = rows(m.collect(groups="1")[0])
    assert table["1 off"]["%busy"] == "75.00" and table["1 on"]["%busy"] == "96.80"


# Traces, with a tracefs of plain files: what is written to one replaces what was there.
@pytest.fixture
def traced(machine):
    tracing = "sys/kernel/tracing/"
    machine.put(tracing + "tracing_on", "1\n")
    machine.put(tracing + "buffer_size_kb", "7 (expanded: 1408)\n")
    machine.put(tracing + "trace", "")
    machine.put(tracing + "trace_marker", "")
    machine.put(tracing + "trace_clock", "[local] global counter mono\n")
    for event in EVENTS:
        machine.put(tracing + "events/sched/%s/enable" % event, "0\n")
    for c in range(4):
        machine.put(tracing + "per_cpu/cpu%d/stats" % c,
                    "entries: 9\noverrun: %d\ncommit overrun: 0\nbytes: 999\ndropped events: 1\nread events: 7\n" % c)
    machine.tracing = machine.root / tracing

    def trace(*args, **more):
        return machine.run("--here", "--groups", "1", "--trace", "--trace-loops", "20", "--out", str(machine.out),
                           *args, **more)

    def off():
        assert [(machine.tracing / s).read_text().strip() for s in SWITCHES] == ["0", "1408"] + ["0"] * len(EVENTS)
        machine.untouched()

    machine.trace, machine.tracing_is_off = trace, off
    return machine


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
    # With everything on while hackbench ran.
    assert traced.get("traced-with").split() == ["1", "4096"] + ["1"] * len(EVENTS)
    assert (traced.tracing / "trace_marker").read_text() == "hackbench ends\n"
    traced.tracing_is_off()


def test_traces_only(traced):
    """--runs 0: no table, and what is there is not traced again."""
    stdout, _ = traced.trace("--runs", "0")
    assert stdout == "" and (traced.out / "trace-1-on.txt").exists()
    assert "begin run" not in traced.raw.read_text()
    (traced.out / "trace-1-on.txt").write_text("mine")
    (traced.out / "trace-1-off.txt").unlink()
    _, stderr = traced.trace("--runs", "0")
    assert (traced.out / "trace-1-on.txt").read_text() == "mine"
    assert "1 groups, off: done" in stderr and "1 groups, on: done" not in stderr
    (traced.out / "trace-1-on.txt").unlink()
    (traced.out / "trace-1-off.txt").unlink()
    traced.trace("--runs", "0", "--only", "on")
    assert [p.name for p in traced.out.glob("trace-*")] == ["trace-1-on.txt"]


def test_trace_interrupted(traced):
    traced.configure(hang="trace")
    process = traced.start("--here", "--groups", "1", "--runs", "0", "--trace", "--trace-loops", "20", "--out",
                           str(traced.out))
    wait_for((traced.root / "pids").exists)
    wait_for(lambda: traced.get("pids"))
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 143, stdout + stderr
    wait_for(lambda: gone(int(traced.get("pids"))))
    assert not list(traced.out.glob("trace-*"))
    traced.tracing_is_off()


def test_trace_of_a_failing_hackbench(traced):
    traced.configure(fail="trace")
    _, stderr = traced.trace("--runs", "0", rc=1)
    assert "traced run, 1 groups, off: hackbench failed with status 7: fork: Resource" in stderr
    assert not list(traced.out.glob("trace-*"))
    traced.tracing_is_off()


def test_trace_events_in_use(traced):
    enable = traced.tracing / "events/sched/sched_migrate_task/enable"
    enable.write_text("1\n")
    _, stderr = traced.trace("--runs", "0", rc=1)
    assert "sched_migrate_task is in use; --trace needs the trace for itself" in stderr
    assert enable.read_text() == "1\n" and (traced.tracing / "tracing_on").read_text() == "1\n"
    traced.untouched()


def test_no_trace_events(traced):
    shutil.rmtree(traced.tracing / "events")
    _, stderr = traced.trace("--runs", "0", rc=1)
    assert "no scheduler trace events, for --trace" in stderr
    traced.untouched()


# The scheduler's last-level caches: bench/llc.awk, and the topology that is made with it.
def llc(awk, flags, schedstat):
    """{cpu: list} for LLC flags in {cpu: [domain numbers]} and lines of /proc/schedstat."""
    name = "/sys/kernel/debug/sched/domains/cpu%d/domain%d/flags:SD_BALANCE_NEWIDLE SD_SHARE_LLC SD_PREFER_SIBLING \n"
    text = "".join(name % (cpu, domain) for cpu in flags for domain in flags[cpu]) + schedstat
    if not shutil.which(AWKS[awk][0]):
        pytest.skip(AWKS[awk][0] + " is not installed")
    done = subprocess.run([*AWKS[awk], "-f", str(TOP / "bench/llc.awk")], input=text, text=True, capture_output=True,
                          check=True)
    assert done.stderr == ""
    return dict(line.split(" ") for line in done.stdout.splitlines())


def schedstat(domains, version=17):
    """Lines as of /proc/schedstat for {cpu: [masks of its domains]}."""
    text = "version %d\ntimestamp 1\n" % version
    for cpu, masks in domains.items():
        text += "cpu%d 0 0 1 2 3 4 5 6 7\n" % cpu
        for i, mask in enumerate(masks):
            text += "domain%d %s%s 1 2 3\n" % (i, "MC " if version >= 17 else "", mask)
    return text


@pytest.mark.parametrize("awk", AWKS)
class TestLlc:
    @pytest.mark.parametrize("version", [15, 16, 17])
    def test_several(self, awk, version):
        domains = {c: ["03" if c < 2 else "0c" if c < 4 else "f0", "ff"] for c in range(8)}
        assert llc(awk, {c: [0] for c in range(8)}, schedstat(domains, version)) == {
            "cpu%d" % c: "0-1" if c < 2 else "2-3" if c < 4 else "4-7" for c in range(8)}

    def test_widest_domain_with_the_flag(self, awk):
        """SMT below and a node above, the flag in the lower two, the higher one read first."""
        domains = {0: ["3", "f", "ff"], 1: ["3", "f", "ff"]}
        assert llc(awk, {0: [1, 0], 1: [0, 1]}, schedstat(domains)) == {"cpu0": "0-3", "cpu1": "0-3"}

    def test_more_than_64_cpus(self, awk):
        domains = {0: ["00000000,00000000,000fffff"], 45: ["00000000,000fffff,fff00000"],
                   95: ["ffff0000,00000000,00000000"], 64: ["00000001,80000000,00000000"]}
        assert llc(awk, {c: [0] for c in domains}, schedstat(domains)) == {
            "cpu0": "0-19", "cpu45": "20-51", "cpu95": "80-95", "cpu64": "63-64"}

    def test_holes(self, awk):
        assert llc(awk, {0: [0]}, schedstat({0: ["00000000,80010115"]})) == {"cpu0": "0,2,4,8,16,31"}

    def test_more_than_ten_domains_and_cpus_of_like_names(self, awk):
        """cpu1 is not cpu11, domain1 is not domain10."""
        domains = {1: ["2"] * 10 + ["f0002"], 11: ["800", "c00"] + ["fff"] * 9}
        assert llc(awk, {1: [10], 11: [1]}, schedstat(domains)) == {"cpu1": "1,16-19", "cpu11": "10-11"}

    def test_cpu_alone_in_its_cache(self, awk):
        domains = {0: ["3"], 1: ["3"], 2: ["7"]}
        assert llc(awk, {0: [0], 1: [0]}, schedstat(domains)) == {"cpu0": "0-1", "cpu1": "0-1", "cpu2": "2"}

    def test_nothing_known(self, awk):
        assert llc(awk, {}, schedstat({0: ["3"], 1: ["3"]})) == {}
        assert llc(awk, {}, schedstat({0: []})) == {}


def test_llc_of_the_scheduler_goes_before_that_of_the_caches(machine):
    flags = "SD_BALANCE_NEWIDLE SD_SHARE_LLC \n"
    for c in range(4):
        for d in range(2):
            machine.put("sys/kernel/debug/sched/domains/cpu%d/domain%d/flags" % (c, d), flags)
    machine.collect(groups="1")
    # domain1 spans all four, whatever cache/index3 says
    assert re.findall("^topology cpu . .* llc (.*) node", machine.raw.read_text(), re.M) == ["0-3"] * 4
    assert "\nllcs 1\n" in machine.raw.read_text()


def test_no_caches_and_no_domains(machine):
    for c in range(4):
        shutil.rmtree(machine.root / ("sys/devices/system/cpu/cpu%d/cache" % c))
    machine.collect(groups="1")
    assert "\nllcs unknown\n" in machine.raw.read_text()
