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

TOP = Path(__file__).resolve().parent.parent
COLLECTOR = TOP / "bench/run-hackbench.sh"
DATA = TOP / "tests/data"

# What the collector may call apart from the shell's own commands: all of POSIX but mktemp, mount
# and umount, which come with every Linux.
TOOLS = "cat date dirname grep mktemp mount rm sed sleep sort tail tr umount uname wc".split()

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
assert sys.argv[1] == "-g" and sys.argv[3] == "-l" and len(sys.argv) == 5, sys.argv
groups, loops = sys.argv[2], sys.argv[4]
if conf.get("old"):
    print("Running with 10*40 (== 400) tasks.\\nTime: 1.000")
    sys.exit(0)
print("Running in process mode with %%s groups using 40 file descriptors each" %% groups)
if loops == "1":
    print("Time: 0.003")
    sys.exit(0)
assert read("proc/sys/kernel/sched_schedstats").strip() == "1", "schedstats are off"
side = "off" if "NO_STEAL" in read("sys/kernel/debug/sched/features") else "on"
what = groups + " " + side
run = conf["runs"][what]
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


class Machine:
    """A machine under test: files below root, and what the collector is run with."""

    def __init__(self, root, pair):
        self.root = root
        shell, awk = pair.split("-")
        for name in (SHELLS[shell][0], AWKS[awk][0]):
            if not shutil.which(name):
                pytest.skip(name + " is not installed")
        self.shell = [shutil.which(SHELLS[shell][0])] + SHELLS[shell][1:]
        self.out = root / "out.raw"
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
        self.put("conf.json", json.dumps({"runs": RUNS} | conf))

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
                                # A shell cannot trap what was ignored when it started.
                                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **more)

    def run(self, *args, rc=0, **more):
        process = self.start(*args, **more)
        stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == rc, stdout + stderr
        # TOOLS and the shell are all it has.
        assert "not found" not in stderr
        return stdout, stderr

    def collect(self, groups="1 2", runs=1, rc=0, **more):
        return self.run("--here", "--groups", groups, "--loops", "50", "--runs", str(runs),
                        "--out", str(self.out), rc=rc, **more)


@pytest.fixture(params=ONE_PER_SHELL)
def machine(tmp_path, request):
    return Machine(tmp_path, request.param)


@pytest.fixture(params=PAIRS)
def every_machine(tmp_path, request):
    return Machine(tmp_path, request.param)


@pytest.fixture
def dash_machine(tmp_path):
    return Machine(tmp_path, "dash-mawk")


def rows(text):
    """The table as {"1 off": {"time": "8.084", ...}, ...}; for the last session if there are several."""
    found, names = {}, None
    for line in text.splitlines():
        fields = line.split()
        if fields[:2] == ["grps", "side"]:
            found, names = {}, fields
        elif names and len(fields) == len(names) and fields[1] in ("off", "on"):
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
    assert "above 100" not in dash_machine.collect(groups="1")[0]


def test_one_run_of_each_side_shows_no_difference(dash_machine):
    assert rows(dash_machine.collect(groups="1")[0])["1 on"]["overlap"] == "yes"


def test_uptime_where_there_is_no_timer_list(machine):
    (machine.root / "proc/timer_list").unlink()
    table = rows(machine.collect(groups="1")[0])
    assert table["1 off"]["%busy"] == "75.00"
    assert "clock uptime" in machine.out.read_text()


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
    text = machine.out.read_text()
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
    assert machine.out.read_text().count("\nside on\n") == 4
    assert machine.out.read_text().count("\nexit 7\n") == 2
    machine.untouched()


@pytest.mark.parametrize("conf,why", [("offline", "the online CPUs changed"),
                                      ("meddle", "somebody changed the scheduler features"),
                                      ("silent", "hackbench printed no time")])
def test_invalid_run(machine, conf, why):
    machine.configure(**{conf: "1 on"})
    stdout, stderr = machine.collect(groups="1", rc=1)
    assert "1 groups, on: not valid: " + why in stderr
    assert "\nvalid %s\n" % why in machine.out.read_text()
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
    text = m.out.read_text()
    at = text.rindex("\n" + keep)
    m.out.write_text(text[:at + 1 + len(keep) + 3])
    stdout, stderr = m.run("--table", str(m.out))
    assert "the last record (run) is incomplete: ignored" in stderr
    assert rows(stdout)["1 off"]["runs"] == "1" and rows(stdout)["1 on"]["runs"] == "2"
    # A second session in the same file is not harmed by it.
    m.put("count.json", "{}")
    stdout, stderr = m.collect(groups="1", runs=2)
    assert stdout.count("grps") == 1
    assert rows(stdout)["1 off"]["runs"] == "2" and rows(stdout)["1 on"]["time"] == "5.969"
    assert "incomplete run record before line" in stderr
    stdout, _ = m.run("--table", str(m.out))
    assert stdout.count("grps") == 2 and "description is missing" not in stdout


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
    for name in ("run-hackbench.sh", "hackbench-table.awk"):
        shutil.copy(TOP / "bench" / name, where / name)
    return where / "run-hackbench.sh"


def test_no_steal_goes_to_qemu(machine):
    machine.put(machine.features, "PLACE_LAG \n")
    collector = copy_collector(machine.root)
    _, stderr = machine.run(collector=collector, rc=3)
    assert "has no STEAL; run this on a kernel with the patches" in stderr
    (machine.root / "in-qemu").write_text('#!/bin/sh\nfor a; do echo "<$a>"; done\nexit 9\n')
    (machine.root / "in-qemu").chmod(0o755)
    stdout, stderr = machine.run(collector=collector, rc=9)
    assert stdout == "" and "built and booted in QEMU" in stderr
    stdout, _ = machine.run("--groups", "1 2", "--runs", "4", "--out", "a b", collector=collector, rc=9)
    assert stdout.split("\n") == ["<--groups>", "<1 2>", "<--runs>", "<4>", "<--out>", "<a b>", ""]


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


@pytest.mark.parametrize("args", [["--what"], ["--runs"], ["--runs", "0"], ["--loops", "1x"],
                                  ["--groups", "1 -2"], ["--groups", ""]])
def test_wrong_arguments(machine, args):
    _, stderr = machine.run("--here", *args, rc=2)
    assert "see --help" in stderr


def test_help(machine):
    stdout, _ = machine.run("--help")
    assert stdout.startswith("Usage: run-hackbench.sh [--groups") and "Exit status" in stdout
    assert "#" not in stdout and "LC_ALL" not in stdout


# bench/in-qemu, among scripts that only say what they were called with. The guest's part is played
# by the collector on the fake machine.
FAKE_BOOT = """#!/bin/bash
echo "boot $*" >>"$FAKE_ROOT/calls"
while [ "$1" != -- ]; do
	[ "$1" != --share ] || share=$2
	shift
done
shift
for a; do shift; a=${a//"/opt/"/"$FAKE_TOP/bench/"}; set -- "$@" "${a//"/share"/"$share"}"; done
"$@" 2>&1
status=$?
[ ! -e "$FAKE_ROOT/crash" ] || { truncate -s -9 "$share/raw"; exit 125; }
exit $status
"""


@pytest.fixture
def qemu(dash_machine):
    m = dash_machine
    for name in TOOLS + "sh env bash truncate mv".split():
        if not (m.bin / name).exists():
            (m.bin / name).symlink_to(shutil.which(name))
    shutil.copytree(TOP / "bench", m.root / "top/bench")
    (m.root / "top/scripts").mkdir()
    shutil.copy(TOP / "scripts/lib.sh", m.root / "top/scripts")
    for name, text in (("setup", "#!/bin/sh\necho setup\n"), ("apply", "#!/bin/sh\necho apply\n"),
                       ("build", '#!/bin/sh\necho "build $*" >>"$FAKE_ROOT/calls"; echo "$FAKE_ROOT/image"\n'),
                       ("boot", FAKE_BOOT)):
        (m.root / "top/scripts" / name).write_text(text)
        (m.root / "top/scripts" / name).chmod(0o755)

    def start(*args):
        (m.root / "tmp").mkdir(exist_ok=True)
        env = {"PATH": str(m.bin), "FAKE_ROOT": str(m.root), "STEAL_PROC": str(m.root / "proc"), "HOME": "/",
               "STEAL_SYS": str(m.root / "sys"), "TMPDIR": str(m.root / "tmp"),
               "FAKE_TOP": str(m.root / "top")}
        return subprocess.Popen([str(m.root / "top/bench/in-qemu"), *args], env=env, cwd=m.root, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))

    def run(*args, rc=0):
        process = start(*args)
        stdout, stderr = process.communicate(timeout=60)
        assert process.returncode == rc, stdout + stderr
        assert not list(m.root.glob("**/.hackbench-*"))
        return stdout, stderr

    m.put("image", "")
    m.in_qemu, m.start_in_qemu = run, start
    return m


def test_in_qemu(qemu):
    stdout, stderr = qemu.in_qemu("--arch", "arm64", "--smp", "2,threads=2", "--groups", "1 2", "--loops", "50")
    calls = qemu.get("calls")
    assert "build --arch arm64 --config guest,steal\n" in calls
    assert "boot --arch arm64 --kernel %s/image --smp 2,threads=2 --timeout 345 " % qemu.root in calls
    assert {k: " ".join(v.values()) for k, v in rows(stdout).items()} == EXPECTED
    assert stdout.startswith("kernel:") and "apply" not in stdout and stdout.count("grps") == 1
    assert stdout.splitlines()[-1].startswith("QEMU (TCG) guest: ")
    assert "run 12/12: 2 groups" in stderr
    raw, = qemu.root.glob("hackbench-*.raw")
    assert "raw records: %s\n" % raw in stderr
    assert raw.read_text().count("end run") == 12


def test_in_qemu_appends(qemu):
    for _ in range(2):
        qemu.in_qemu("--groups", "1", "--loops", "50", "--runs", "1", "--out", "x.raw")
    qemu.put("x.raw", qemu.get("x.raw")[:-3])
    stdout, _ = qemu.in_qemu("--groups", "1", "--loops", "50", "--runs", "1", "--out", "x.raw")
    assert stdout.count("grps") == 1
    table, stderr = qemu.run("--table", "x.raw")
    assert table.count("grps") == 3 and "description is missing" not in table
    assert "incomplete run record" in stderr


def test_in_qemu_keeps_what_a_dying_guest_has_written(qemu):
    qemu.put("crash", "")
    stdout, stderr = qemu.in_qemu("--groups", "1", "--loops", "50", "--runs", "1", "--out", "x.raw", rc=125)
    assert set(rows(stdout)) == {"1 off"}
    assert "in the guest ended with status 125" in stderr and "incomplete" in stderr
    assert "begin run" in qemu.get("x.raw")


def test_in_qemu_interrupted(qemu):
    qemu.configure(hang="2 off")
    process = qemu.start_in_qemu("--groups", "1 2", "--loops", "50", "--out", "x.raw")
    wait_for((qemu.root / "pids").exists)
    process.send_signal(signal.SIGINT)
    # The fake boot does not pass signals on as the real one does.
    wait_for(lambda: qemu.get("pids"))
    for pid in map(int, qemu.get("pids").split()):
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not list(qemu.root.glob(".hackbench-*"))
    assert "\nside on\n" in qemu.get("x.raw")


@pytest.mark.parametrize("args", [["--arch", "sparc"], ["--runs", "0"], ["--loops"], ["--what"]])
def test_in_qemu_wrong_arguments(qemu, args):
    _, stderr = qemu.in_qemu(*args, rc=2)
    assert "see --help" in stderr
    assert not (qemu.root / "calls").exists()


def test_in_qemu_without_an_image(qemu):
    (qemu.root / "image").unlink()
    _, stderr = qemu.in_qemu(rc=1)
    assert "printed no image" in stderr and "boot" not in qemu.get("calls")


def test_in_qemu_stops_when_a_step_fails(qemu):
    (qemu.root / "top/scripts/apply").write_text("#!/bin/sh\nexit 1\n")
    qemu.in_qemu(rc=1)
    assert not (qemu.root / "calls").exists()
    assert not list(qemu.root.glob("*.raw"))
