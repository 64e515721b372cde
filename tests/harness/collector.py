# SPDX-License-Identifier: GPL-2.0
"""A made-up machine of files (tests/fakes/ab/tree.py) with fake programs, and the collector on it: no root, no special kernel."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import FAKES, TOP, gone, wait_for

sys.path.insert(0, str(FAKES / "ab"))

import tree  # noqa: E402

COLLECTOR = TOP / "bench/collect/collect.sh"
SHELLS = {"dash": ["dash"], "busybox": ["busybox", "sh"], "bash": ["bash", "--posix"]}
AWKS = {"mawk": ["mawk"], "gawk": ["gawk", "--posix"], "busybox": ["busybox", "awk"]}
# busybox's shell takes its own awk whatever PATH says.
ONE_PER_SHELL = ["dash-mawk", "bash-gawk", "busybox-busybox"]
# What the collector may call apart from the shell's own commands and the programs that it measures.
TOOLS = "cat cksum cmp date dirname grep id mkdir mount mv rm sed sleep sort tr umount uname".split()
# A features file of the bench for the made-up machine: its own file of features can have one at a time.
ONE_BIT = "STEAL nine steals\n"
FEATURES = "sys/kernel/debug/sched/features"
TRACING = "sys/kernel/tracing/"
EVENTS = "sched_switch sched_wakeup sched_wakeup_new sched_migrate_task sched_process_exit".split()
SWITCHES = ["tracing_on", "buffer_size_kb"] + [f"events/sched/{event}/enable" for event in EVENTS]


def heed_signals():
    """A shell cannot trap what was ignored when it started: SIGINT in the background, SIGHUP under nohup."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def make_checkout(top, features="PLACE_LAG STEAL"):
    """What bench/ab needs of this repository, with a series of one bit; the scripts are fakes, and build an image with these features."""
    for name in ("bench/ab", "bench/ab-unit", "bench/ab-on-host", "scripts/lib.sh"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(TOP / name, top / name)
    for name in ("bench/ablib", "bench/collect", "sim/presets"):
        shutil.copytree(TOP / name, top / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("sim/qemu", "sim/guest"):
        (top / name).mkdir()
    shutil.copy(TOP / "sim/guest/section.c", top / "sim/guest")
    for name in ("scripts/setup", "scripts/apply", "scripts/build", "scripts/guest-image", "scripts/worktree", "scripts/qemu", "sim/names"):
        (top / name).symlink_to(FAKES / "ab/script")
    (top / "scripts/image").write_text(features + "\n")
    shutil.copy(TOP / "tests/data/names", top / "scripts/names")
    (top / "bench/features").write_text(ONE_BIT)


class Machine:
    """The machine's files are below root, and the collector writes to root/out."""

    def __init__(self, root, kind="dash-mawk"):
        self.root, self.out = root, root / "out"
        shell, awk = kind.split("-")
        for name in (SHELLS[shell][0], AWKS[awk][0]):
            if not shutil.which(name):
                pytest.skip(name + " is not installed")
        self.shell = [shutil.which(SHELLS[shell][0])] + SHELLS[shell][1:]
        tree.make(root)
        self.bin = root / "bin"
        self.bin.mkdir()
        (root / "tmp").mkdir()
        for tool in TOOLS:
            self.link(shutil.which(tool))
        self.script("awk", " ".join(["exec", shutil.which(AWKS[awk][0]), *AWKS[awk][1:], '"$@"']))
        self.link(FAKES / "ab/load")
        self.environment = {"PATH": str(self.bin), "STEAL_PROC": str(root / "proc"), "STEAL_SYS": str(root / "sys"),
                            "TMPDIR": str(root / "tmp")}
        self.script_path = COLLECTOR

    def link(self, program, name=None):
        (self.bin / (name or Path(program).name)).symlink_to(program)

    def script(self, name, text):
        """A program of the machine."""
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def put(self, name, text):
        tree.put(self.root, name, text)

    def get(self, name):
        return (self.root / name).read_text()

    def untouched(self):
        """All settings are as they were found, and no temporary files are left."""
        assert "STEAL" in self.get(FEATURES).split()
        assert self.get("proc/sys/kernel/sched_schedstats").strip() == "0"
        assert not list((self.root / "tmp").iterdir())
        assert [path for path in self.out.rglob(".*") if path.name != ".lock"] == []

    def popen(self, words, **more):
        return subprocess.Popen([str(word) for word in words], cwd=self.root, text=True, stdout=subprocess.PIPE,
                                **({"env": self.environment, "stderr": subprocess.PIPE, "preexec_fn": heed_signals} | more))

    @staticmethod
    def finish(process, rc=0):
        stdout, stderr = process.communicate(timeout=300)
        assert process.returncode == rc, stdout + stderr
        return stdout, stderr

    def collector(self, lines, *command, options=()):
        """The words of a call."""
        self.put("schedule", "".join(line + "\n" for line in lines))
        return [*self.shell, self.script_path, "--out", self.out, "--schedule", self.root / "schedule", *options,
                *(["--", *command] if command else [])]

    def collect(self, lines, *command, rc=0, options=()):
        """What the collector says."""
        stdout, stderr = self.finish(self.popen(self.collector(lines, *command, options=options)), rc)
        assert "not found" not in stderr and stdout == ""
        return stderr

    def run_file(self, run, name):
        """A file of the run PAIR-SIDE of the command, or of CASE/PAIR-SIDE."""
        return self.get(f"out/runs/{run if '/' in run else 'command/' + run}/{name}").rstrip("\n")

    def start_hanging(self, lines, *command, **more):
        """Starts the collector and waits until its program hangs."""
        process = self.popen(self.collector(lines, *command, **more))
        wait_for((self.root / "proc/pids").exists)
        wait_for(lambda: self.get("proc/pids"))
        return process

    def all_gone(self):
        return all(gone(pid) for pid in map(int, self.get("proc/pids").split()))

    def on_full_disk(self, command, status, environment=()):
        """What a command says that writes to root/full/out, a file system of 400 KiB. With more space it must succeed; out has a copy."""
        inner = 'mount -t tmpfs -o size=400k tmpfs "$FULL"; "$@"; status=$?; mount -o remount,size=8m "$FULL"; "$@" || exit 9; ' \
                'cp -r "$FULL/out" "$KEEP"; exit $status'
        full = self.root / "full"
        full.mkdir()
        if subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", full], capture_output=True, check=False).returncode:
            pytest.skip("no mount namespaces")
        process = self.popen(["unshare", "-rm", "sh", "-c", inner, "sh", *command],
                             env=os.environ | self.environment | dict(environment) | {"FULL": str(full), "KEEP": str(self.out)})
        return self.finish(process, status)[1]

    # the programs of the loads, tests/fakes/load

    def install(self, *programs):
        for program in programs:
            self.link(FAKES / "load", program)

    def do(self, **what):
        """The faults of the programs, by name."""
        self.put("proc/do.json", json.dumps(what))

    def calls(self):
        """The programs' calls since the last time, as (name, side, arguments)."""
        path = self.root / "proc/calls"
        found = [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
        path.unlink(missing_ok=True)
        return found

    # tracefs, of plain files: what is written to one replaces what was there

    def add_tracefs(self):
        for name, text in [("tracing_on", "1\n"), ("buffer_size_kb", "7 (expanded: 1408)\n"), ("trace", ""), ("trace_marker", ""),
                           ("trace_clock", "[local] global counter mono\n")] + [(f"events/sched/{event}/enable", "0\n") for event in EVENTS]:
            self.put(TRACING + name, text)
        for c in range(4):
            self.put(f"{TRACING}per_cpu/cpu{c}/stats",
                     f"entries: 9\noverrun: {c}\ncommit overrun: 0\nbytes: 999\ndropped events: 1\nread events: 7\n")

    def tracing(self):
        return [self.get(TRACING + name).strip() for name in SWITCHES]
