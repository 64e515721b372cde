# SPDX-License-Identifier: GPL-2.0
"""A machine under test that is made of files, and the collectors of bench/ on it, with fake programs: no root, no special
kernel."""

import json
import shutil
import signal
import subprocess

import pytest
from commands import FAKES, TOP, gone, wait_for

DATA = TOP / "tests/data"

# All programs that the collectors may call: those of POSIX, and mktemp, mount and umount, which every Linux has.
TOOLS = "cat date diff dirname grep mkdir mktemp mount mv rm sed sleep sort tail tr umount uname wc".split()

SHELLS = {"dash": ["dash"], "busybox": ["busybox", "sh"], "bash": ["bash", "--posix"]}
AWKS = {"mawk": ["mawk"], "gawk": ["gawk", "--posix"], "busybox": ["busybox", "awk"]}

# Each shell and each awk at least once; busybox's shell takes its own awk whatever PATH says.
PAIRS = ["dash-mawk", "dash-gawk", "dash-busybox", "bash-gawk", "busybox-busybox"]
ONE_PER_SHELL = ["dash-mawk", "bash-gawk", "busybox-busybox"]

FEATURES = "sys/kernel/debug/sched/features"
IDLE_SEARCH = "sys/kernel/debug/sched/idle_search"

# hackbench's time and what each CPU counts meanwhile, by groups and side. The times of 1 and 2 groups are published ones;
# 2 groups lose.
RUNS = {
    "1 off": {"time": ["8.000", "8.200", "8.084"], "sched": 105476, "idle": 46291, "wake": 59183,
              "busy": 7_500_000_000, "slices": 75_000, "newidle": 31_000_000, "steals": 0, "steal_ns": 0},
    "1 on": {"time": ["6.000", "5.938", "5.900"], "sched": 31255, "idle": 7190, "wake": 24061,
             "busy": 9_680_000_000, "slices": 40_000, "newidle": 40_000_000, "steals": 7433, "steal_ns": 23_000_000},
    "2 off": {"time": ["2.182", "2.100", "2.300"], "sched": 35876, "idle": 17905, "wake": 17958,
              "busy": 2_000_000_000, "slices": 10_000, "newidle": 1_000_000, "steals": 0, "steal_ns": 0},
    "2 on": {"time": ["2.229", "2.150", "2.290"], "sched": 45450, "idle": 22691, "wake": 22751,
             "busy": 1_800_000_000, "slices": 10_000, "newidle": 1_000_000, "steals": 52, "steal_ns": 1_000_000},
}

# The side that runs if this feature is set; the features file holds only what was written last.
SIDES = [("NO_STEAL", "off"), ("STEAL", "on")]

EVENTS = "sched_switch sched_wakeup sched_wakeup_new sched_migrate_task sched_process_exit".split()
SWITCHES = ["tracing_on", "buffer_size_kb"] + ["events/sched/%s/enable" % event for event in EVENTS]

TRACE = """              sh-9     [001] .....     2.000100: tracing_mark_write: hackbench begins
          <idle>-0     [000] d..2.     2.000200: sched_switch: prev_comm=swapper/0 prev_pid=0 next_pid=9
              sh-9     [000] .....     2.345600: tracing_mark_write: hackbench ends
"""


def heed_signals():
    """A shell cannot trap what was ignored when it started: SIGINT in the background, SIGHUP under nohup."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Machine:
    """The machine's files are below root. Other loads than hackbench: a subclass has another collector and other programs."""

    collector = TOP / "bench/run-hackbench.sh"
    raw_name = "runs.raw"

    def __init__(self, root, pair="dash-mawk"):
        self.root = root
        shell, awk = pair.split("-")
        for name in (SHELLS[shell][0], AWKS[awk][0]):
            if not shutil.which(name):
                pytest.skip(name + " is not installed")
        self.shell = [shutil.which(SHELLS[shell][0])] + SHELLS[shell][1:]
        self.out = root / "out"
        self.raw = self.out / self.raw_name
        self.bin = root / "bin"
        self.bin.mkdir()
        (root / "tmp").mkdir()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))
        command = [shutil.which(AWKS[awk][0])] + AWKS[awk][1:]
        self.script("awk", "#!/bin/sh\nexec %s \"$@\"\n" % " ".join(command))
        (self.bin / "hackbench").symlink_to(FAKES / "hackbench")
        self.put("count.json", "{}")
        self.configure()
        self.put("proc/schedstat", (DATA / "schedstat-v17").read_text())
        self.put("proc/sys/kernel/sched_schedstats", "0\n")
        self.put("proc/timer_list", "Timer List Version: v0.11\nnow at 3204867600 nsecs\n")
        self.put("proc/uptime", "100.25 0.00\n")
        self.put("proc/cpuinfo", "processor : 0\nmodel name : Fake CPU\nmodel name : Fake CPU\n")
        self.put("proc/cmdline", "console=ttyS0\n")
        self.put(FEATURES, "PLACE_LAG STEAL NO_NEXT_BUDDY \n")
        self.put(IDLE_SEARCH, "version 1\n" + "".join("cpu%d 5 6 7000 8000\n" % c for c in range(4)))
        self.put("sys/devices/system/cpu/online", "0-3\n")
        for c in range(4):
            cpu = "sys/devices/system/cpu/cpu%d/" % c
            pair = "%d-%d\n" % (c // 2 * 2, c // 2 * 2 + 1)
            for name, text in (("topology/physical_package_id", "%d\n" % (c // 2)), ("topology/core_id", "%d\n" % (c % 2)),
                               ("topology/core_cpus_list", "%d\n" % c), ("cache/index0/level", "1\n"),
                               ("cache/index0/shared_cpu_list", "%d\n" % c), ("cache/index3/level", "3\n"),
                               ("cache/index3/shared_cpu_list", pair)):
                self.put(cpu + name, text)
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
        """What the fake hackbench does, and its faults."""
        self.put("conf.json", json.dumps({"runs": RUNS, "sides": SIDES, "traced_loops": "20", "trace": TRACE,
                                          "switches": SWITCHES} | conf))

    def untouched(self, steal="STEAL", schedstats="0"):
        """All settings are as they were found, and no temporary files are left."""
        assert steal in self.get(FEATURES).split()
        assert self.get("proc/sys/kernel/sched_schedstats").strip() == schedstats
        assert not list((self.root / "tmp").iterdir())

    def start(self, *args, **more):
        env = {"PATH": str(self.bin), "FAKE_ROOT": str(self.root), "STEAL_PROC": str(self.root / "proc"),
               "STEAL_SYS": str(self.root / "sys"), "TMPDIR": str(self.root / "tmp")}
        return subprocess.Popen([*self.shell, str(self.collector), *map(str, args)], env=env, cwd=self.root, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heed_signals, **more)

    def run(self, *args, rc=0, **more):
        """The collector's (stdout, stderr)."""
        process = self.start(*args, **more)
        stdout, stderr = process.communicate(timeout=300)
        assert process.returncode == rc, stdout + stderr
        # TOOLS and the shell are all it has.
        assert "not found" not in stderr
        return stdout, stderr

    def collect(self, *args, groups="1 2", runs=1, rc=0):
        return self.run("--here", "--groups", groups, "--loops", "50", "--runs", runs, "--out", self.out, *args, rc=rc)

    def hang(self, *args):
        """Starts the collector and waits until its program hangs."""
        process = self.start(*args, "--out", self.out)
        wait_for((self.root / "pids").exists)
        return process

    def interrupt(self, process, number=signal.SIGTERM):
        """Ends a collector whose program hangs: its stderr."""
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == 128 + number, stdout + stderr
        for pid in map(int, self.get("pids").split()):
            wait_for(lambda: gone(pid))
        self.untouched()
        return stderr


def rows(text, sides=("off", "on")):
    """The last table in the text as {"1 off": {"time": "8.084", ...}, ...}."""
    found, names = {}, None
    for line in text.splitlines():
        fields = line.split()
        if fields[:2] == ["grps", "side"]:
            found, names = {}, fields
        elif names and len(fields) == len(names) and fields[1] in sides:
            found[fields[0] + " " + fields[1]] = dict(zip(names[2:], fields[2:]))
    assert names, text
    return found
