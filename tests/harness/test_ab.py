# SPDX-License-Identifier: GPL-2.0
"""bench/ab and its unit of work, on made-up machines (tests/fakes/ab): no root, no special kernel, no QEMU."""

import contextlib
import csv
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

from ablib import fold  # noqa: E402
from collector import FEATURES, Machine  # noqa: E402
from commands import gone, wait_for  # noqa: E402


class Here(Machine):
    """A made-up machine, on which bench/ab runs."""

    def ab(self, *words, rc=0, **more):
        return self.finish(self.start(*words, **more), rc)

    def start(self, *words, **more):
        path = f"{self.bin}:{os.environ['PATH']}"
        return self.popen([TOP / "bench/ab", *words], **({"env": os.environ | self.environment | {"PATH": path}} | more))

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
    command = [TOP / "bench/ab", "--runs", 8, "--out", here.root / "full/out", "--", "load", "1000", "900"]
    stderr = here.on_full_disk(command, 3, {"PATH": f"{here.bin}:{os.environ['PATH']}"})
    assert "cannot be written" in stderr or "cannot be made" in stderr, stderr
    assert fold.check_unit(here.out / "raw/here") is None and len(here.rows) == 16
    here.untouched()


def test_gain(here):
    stdout, stderr = here.compare("--runs", 6)
    assert "GAIN" in stdout and stdout == here.get("out/table.txt")
    assert (here.out / "page.html").exists() and (here.out / "speedup.svg").exists()
    assert [f"{n} of 6 pairs" for n in range(1, 7)] == re.findall(r"\d of 6 pairs", stderr)
    rows = here.rows
    assert len(rows) == 12 and {(row["exit"], row["valid"]) for row in rows} == {("0", "yes")}
    assert all(abs(float(row["time_ns"]) / {"off": 1e9, "on": 0.9e9}[row["side"]] - 1) < 0.01 for row in rows)
    # a random order, in which both sides are first as often
    first = [row["side"] for row in rows if row["position"] == "1"]
    assert sorted(first) == ["off"] * 3 + ["on"] * 3
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
    assert "dropped: 1 pair with a failed or invalid run (on: 1 x exit 7)" in stdout and "4 measured, 3 used" in stdout


@pytest.mark.parametrize("words,load,message", [
    (["--metric", "x=score (.*)"], ["1000", "900"], "metric x: no number in the output of 3 runs of side"),
    (["--metric", "rate=rate=(.*) req"], ["1000", "900", "silent"], "metric rate: no number"),
    ([], ["1000", "900", "fail-on"], "the command failed in 3 of 3 runs of side on (status 7)"),
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
    stdout, stderr = here.compare(rc=3)
    assert stdout == "" and len(stderr.splitlines()) == 1 and "has no STEAL" in stderr
    assert not here.out.exists()


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
    (["--machine", "3x171x1", "--", "load"], "512 CPUs"),
    (["--machine", "1x2x1", "--kernel", "base,patched", "--sides", "a=X,b=Y", "--", "load"], "exclude each other"),
    (["--machine", "1x2x1", "--kernel", "/no/such/Image", "--", "load"], "'/no/such/Image' is not an image"),
    (["--machine", "1x2x1", "--add", "/no/such/file", "--", "load"], "--add /no/such/file: no such file"),
    (["--machine", "1x2x1", "--seeds", "any", "--", "load"], "invalid choice"),
    (["--machine", "1x2x1", "--out", "a,b", "--", "load"], "contains a comma"),
    (["--", "sh", "-c", "a\nb"], "newline"),
])
def test_usage_errors(here, words, message):
    stdout, stderr = here.ab(*words, rc=2)
    assert stdout == "" and len(stderr.splitlines()) == 1 and message in stderr, stderr
    assert not list(here.root.glob("ab-*"))


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
    stats = {path: path.stat().st_mtime_ns for path in here.out.glob("raw/here/runs/*/sum")}
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


# bench/ab on machines that stand in for simulated ones

class Simulated(Here):
    """A checkout whose sim/machine runs the command on a made-up machine."""

    def __init__(self, root):
        super().__init__(root)
        self.top = root / "checkout"
        for name in ("bench/ab", "bench/ab-unit", "bench/collect/collect.sh", "bench/collect/llc.awk", "scripts/lib.sh"):
            (self.top / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(TOP / name, self.top / name)
        shutil.copytree(TOP / "bench/ablib", self.top / "bench/ablib", ignore=shutil.ignore_patterns("__pycache__"))
        (self.top / "sim/qemu").mkdir(parents=True)
        (self.top / "sim/machine").symlink_to(FAKES / "machine")
        for name in ("setup", "apply", "build", "guest-image", "worktree", "qemu"):
            (self.top / "scripts" / name).symlink_to(FAKES / "script")
        self.kernel("image", "PLACE_LAG STEAL")
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
        assert not list(self.out.glob("raw/.pair*")) and not list(self.out.glob("raw/*.log"))


@pytest.fixture
def sim(tmp_path):
    return Simulated(tmp_path)


def test_simulated(sim):
    stdout, stderr = sim.compare("--runs", 6, "--append", "preempt=full x", load=("1000", "900", "{1}", "{%}", "a  b", "$(echo no)", "'"))
    assert "GAIN" in stdout and "6 of 6 pairs" in stderr
    assert sim.machines == [f"100{pair} 1x4x1 image" for pair in range(1, 7)]
    sim.whole(6)
    assert {row["seed"] for row in sim.rows} == {f"100{pair}" for pair in range(1, 7)}
    assert len({row["boot"] for row in sim.rows}) == 6
    with tarfile.open(sim.out / "raw/pair-1.tar") as archive:
        text = archive.extractfile("runs/1-on/stdout").read().decode()
    assert text.splitlines()[-1] == "words: {1} {%} a  b $(echo no) '"
    plan = sim.get("out/plan")
    assert "\nmachine 1x4x1\n" in plan and "\nappend preempt=full x\n" in plan and "\nqemu 9.9.9\n" in plan
    again = sim.compare("--runs", 6, "--append", "preempt=full x", load=("1000", "900", "{1}", "{%}", "a  b", "$(echo no)", "'"))[0]
    assert again == stdout and len(sim.machines) == 6


def test_published_seeds(sim):
    sim.compare("--runs", 2, "--seeds", "published")
    assert sim.machines == ["1000001 1x4x1 image", "1000002 1x4x1 image"]


def test_two_kernels(sim):
    kernels = [f"old={sim.kernel('one', 'NO_STEAL')}", f"new={sim.kernel('two', 'STEAL')}"]
    stdout, _ = sim.compare("--runs", 6, "--kernel", ",".join(kernels))
    assert "GAIN" in stdout
    assert sim.machines == sorted(f"100{pair} 1x4x1 {name}" for pair in range(1, 7) for name in ("one", "two"))
    sim.whole(6)
    assert {path.stem for path in sim.out.glob("raw/*.tar")} == {f"pair-{pair}-{side}" for pair in range(1, 7) for side in ("old", "new")}


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
    assert "the command failed in 3 of 3 runs of side on (status 7)" in stderr
    assert 3 <= len(sim.machines) <= 5


def test_kernel_without_the_feature(sim):
    sim.kernel("image", "PLACE_LAG")
    stdout, stderr = sim.compare("--runs", 12, rc=3)
    errors = [line for line in stderr.splitlines() if "error" in line]
    assert stdout == "" and len(errors) == 1 and "has no STEAL" in errors[0], stderr
    assert not (sim.out / "runs.csv").exists() and len(sim.machines) <= 6


def test_machine_dies(sim):
    stdout, stderr = sim.compare("--runs", 4, environment={"FAKE_DIE": "1002"})
    assert "pair-2.tar: status 125: boot: error: the guest ended" in stderr
    assert "1 of 4 units failed; to try them again: the same command" in stderr and "3 of 4 planned pairs" in stdout
    assert "the kernel's log" in sim.get("out/raw/pair-2.tar.log")
    stdout, _ = sim.compare("--runs", 4)
    assert len(sim.machines) == 5 and "planned" not in stdout.splitlines()[0]
    sim.whole(4)


@pytest.mark.parametrize("damage", ["truncated", "changed", "empty"])
def test_damaged_archive_is_measured_again(sim, damage):
    stdout, _ = sim.compare("--runs", 4)
    archive = sim.out / "raw/pair-3.tar"
    data = archive.read_bytes()
    archive.write_bytes({"truncated": data[:len(data) // 2], "changed": data.replace(b"rate=", b"rite="), "empty": b""}[damage])
    again, stderr = sim.compare("--runs", 4)
    assert stderr.count("incomplete or damaged") == 1 and "pair-3.tar" in stderr
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
    assert "pair-3.tar" not in before and "pair-1.tar" in before
    stdout, _ = sim.compare("--runs", 4, "--jobs", 1)
    assert "GAIN" in stdout or "significant" in stdout
    sim.whole(4)
    assert sim.machines.count("1001 1x4x1 image") == 1 and sim.machines.count("1003 1x4x1 image") == 2
