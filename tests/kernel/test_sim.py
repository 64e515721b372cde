# SPDX-License-Identifier: GPL-2.0
"""Simulated machines: sim/machine and what a guest sees of it, and bench/in-sim. The first half needs no guest."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
MACHINE = TOP / "sim/machine"


def call(*command, rc=0, timeout=300, **options):
    """The command's (stdout, stderr)."""
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          errors="replace", timeout=timeout, **options)
    assert done.returncode == rc, "%s: status %d\n%s%s" % (command, done.returncode, done.stdout, done.stderr)
    return done.stdout, done.stderr


def wait_for(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.1)


def processes(text):
    """The command lines of all processes that have this text in it."""
    lines = subprocess.run(["ps", "-ewwo", "args"], text=True, stdout=subprocess.PIPE, check=True)
    return [line for line in lines.stdout.split("\n") if text in line]


# sim/machine without a machine

@pytest.mark.parametrize("args,message", [
    (["--topology", "1x2x1"], "no command"),
    (["--topology", "1x2x1", "true"], "unknown argument 'true'"),
    (["--topology"], "--topology needs a value"),
    (["--", "true"], "is not SOCKETSxCORESxTHREADS"),
    (["--topology", "1x2", "--", "true"], "'1x2' is not SOCKETSxCORESxTHREADS"),
    (["--topology", "0x2x1", "--", "true"], "'0x2x1' is not"),
    (["--topology", "1x2x1x1", "--", "true"], "'1x2x1x1' is not"),
    (["--topology", "3x171x1", "--", "true"], "has 513 CPUs; QEMU's machine has 512 at most"),
    (["--machine", "1x2", "--", "true"], "'1x2' is not SOCKETSxCORESxTHREADS"),
    (["--machine", "1x4x1", "--topology", "1x4x1", "--", "true"], "either --machine or --topology"),
    (["--topology", "1x2x1", "--quantum", "0", "--", "true"], "--quantum '0'"),
    (["--topology", "1x2x1", "--ips", "1e9", "--", "true"], "--ips '1e9'"),
    (["--topology", "1x2x1", "--ips", "980000000", "--", "true"], "a whole number of picoseconds"),
    (["--topology", "1x2x1", "--idle-exit", "-1", "--", "true"], "--idle-exit '-1'"),
    (["--topology", "1x2x1", "--spin", "x", "--", "true"], "--spin 'x'"),
    (["--topology", "1x2x1", "--seed", "", "--", "true"], "--seed ''"),
    (["--topology", "1x2x1", "--pin", "99999", "--", "true"], "--pin '99999' is not a CPU of this host"),
])
def test_wrong_calls_of_machine(args, message):
    stdout, stderr = call(MACHINE, *args, rc=2)
    assert stdout == "" and message in stderr and "see --help" in stderr


def fake(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def fake_qemu(tmp_path, version, plugins):
    answer = {True: "", False: "qemu: -plugin: plugin interface not enabled in this build"}[plugins]
    return fake(tmp_path / "qemu", '#!/bin/sh\ncase $1 in\n--version) echo "QEMU emulator version %s (Debian)" ;;\n'
                '*) echo "%s" >&2; exit 1 ;;\nesac\n' % (version, answer))


@pytest.mark.parametrize("version", ["7.2.0", "9.0.4", "2.11.1"])
def test_old_qemu(tmp_path, version):
    env = {**os.environ, "STEAL_QEMU": str(fake_qemu(tmp_path, version, False))}
    _, stderr = call(MACHINE, "--topology", "1x2x1", "--", "true", rc=1, env=env)
    assert "/qemu is version %s; simulated machines need QEMU 9.1 or later" % version.rpartition(".")[0] in stderr
    assert "scripts/setup" in stderr and "STEAL_QEMU" in stderr


@pytest.mark.parametrize("version", ["9.1.0", "10.0.2"])
def test_qemu_without_plugins(tmp_path, version):
    env = {**os.environ, "STEAL_QEMU": str(fake_qemu(tmp_path, version, False))}
    _, stderr = call(MACHINE, "--topology", "1x2x1", "--", "true", rc=1, env=env)
    assert "/qemu is built without plugins" in stderr and "STEAL_QEMU" in stderr


def test_no_qemu():
    env = {**os.environ, "STEAL_QEMU": "/nonexistent/qemu"}
    _, stderr = call(MACHINE, "--topology", "1x2x1", "--", "true", rc=1, env=env)
    assert "not installed: /nonexistent/qemu" in stderr


@pytest.mark.parametrize("compiler", ["gcc", "aarch64-linux-gnu-gcc", "clang"])
def test_compiles_without_a_warning(tmp_path, compiler):
    if not shutil.which(compiler):
        pytest.skip(compiler + " is not installed")
    probe = subprocess.run([compiler, "-E", "-"], input="#include <stdio.h>\n", capture_output=True, text=True,
                           check=False)
    if probe.returncode:
        assert "stdio.h" in probe.stderr
        pytest.skip(compiler + " has no headers of a C library here")
    stdout, stderr = call("make", "-C", TOP / "sim/qemu", "CC=" + compiler, "O=%s" % tmp_path)
    assert stderr == "" and (tmp_path / "sim.so").stat().st_size > 10000


@pytest.mark.parametrize("compiler,runner", [("gcc", ()), ("aarch64-linux-gnu-gcc", ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"))])
def test_fibers_keep_what_is_theirs(tmp_path, compiler, runner):
    """Registers, stack and thread-local storage, over thousands of switches, for both kinds of hosts."""
    if os.uname().machine != "x86_64" and runner:
        pytest.skip("this host is an arm64 one already")
    parts = [TOP / "sim/qemu" / (name + ".c") for name in ("vcpu", "clock", "fiber", "wait", "mainloop")]
    call(compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-I", TOP / "sim/qemu", "-o", tmp_path / "fibers",
         TOP / "tests/harness/fibers.c", *parts, "-ldl", "-pthread")
    stdout, _ = call(*runner, tmp_path / "fibers", env={**os.environ, "SIM_ENABLE": "1"}, timeout=60)
    assert stdout == "1000 rounds of 5 threads\n"


# bench/in-sim, with a machine that only says what it was called with and sends what the collector would send.

FAKE_MACHINE = '''#!%s
import io, json, os, pathlib, sys, tarfile, time
root = pathlib.Path(os.environ["FAKE_ROOT"])
split = sys.argv.index("--")
own, rest = sys.argv[1:split], sys.argv[split + 1:]
value = lambda words, name: words[words.index(name) + 1] if name in words else None
rest_of_sh = rest[rest.index("--here"):]
groups = value(rest_of_sh, "--groups")
trace = "--trace" in rest_of_sh
unit = groups + "-" + ("trace" if trace else value(rest_of_sh, "--first"))
session = next(word for word in rest if word.startswith("STEAL_SESSION=")).partition("=")[2]
with open(root / "calls", "a") as calls:
    calls.write(json.dumps({"unit": unit, "own": own, "rest": rest_of_sh, "session": session}) + "\\n")
pathlib.Path(value(own, "--log")).write_text("kernel log of " + unit + "\\n")
pathlib.Path(value(own, "--status")).write_text("virtual_seconds 1.000000000\\nhost_seconds 2.500\\nbusy_seconds 1.0\\n")
what = root / "do" / unit
if what.exists():
    what = what.read_text()
    if what == "hang":
        (root / "pid").write_text(str(os.getpid()))
        time.sleep(300)
    print("run-hackbench: error: planted")
    sys.exit(int(what))
files = {}
labels = [value(rest_of_sh, "--only")] if "--only" in rest_of_sh else [
    side.partition("=")[0] for side in value(rest_of_sh, "--features").split(",")]
if trace:
    for label in labels:
        files["trace-%%s-%%s.txt" %% (groups, label)] = "trace\\n"
else:
    files["runs.raw"] = "begin session %%s\\n%%s\\nend session\\n" %% (session, unit)
files["messages"] = "said\\n"
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as tar:
    for name, text in files.items():
        info = tarfile.TarInfo("./" + name)
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text.encode()))
''' % sys.executable


class Bench:
    """A checkout of which only in-sim and hackbench-unit are real."""

    def __init__(self, root):
        self.root = root
        top = root / "top"
        for name in ("bench/in-sim", "bench/hackbench-unit", "scripts/lib.sh", "bench/unit.sh", "bench/pool.sh", "bench/run-hackbench.sh", "bench/switch.sh",
                     "bench/hackbench-table.awk", "bench/llc.awk", "base"):
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(TOP / name, top / name)
        fake(top / "sim/machine", FAKE_MACHINE)
        for name in ("setup", "apply"):
            fake(top / "scripts" / name, '#!/bin/sh\necho %s >>"$FAKE_ROOT/steps"\necho noise\n' % name)
        fake(top / "scripts/build", '#!/bin/sh\necho "build $*" >>"$FAKE_ROOT/steps"\necho "$FAKE_ROOT/image"\n')
        fake(top / "bench/report", '#!/bin/sh\necho "the table of $1"\n')
        (root / "image").write_text("patched")
        (root / "do").mkdir()
        self.out = root / "out"
        self.command = [str(top / "bench/in-sim"), "--out", str(self.out), "--jobs", "1"]
        self.env = {**os.environ, "FAKE_ROOT": str(root), "HOME": str(root)}

    def do(self, unit, what):
        (self.root / "do" / unit).write_text(what)

    def done(self):
        shutil.rmtree(self.root / "do")
        (self.root / "do").mkdir()

    def run(self, *args, rc=0):
        return call(*self.command, *args, rc=rc, timeout=60, env=self.env, cwd=self.root)

    def start(self, *args):
        # A shell cannot trap what was ignored when it started.
        return subprocess.Popen([*self.command, *args], env=self.env, cwd=self.root, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))

    def calls(self):
        """What the machine was called with since the last time."""
        path = self.root / "calls"
        if not path.exists():
            return []
        found = [json.loads(line) for line in path.read_text().splitlines()]
        path.unlink()
        return found

    def files(self):
        """All files, of which only in-sim's own have a dot, with their contents."""
        return {p.name: p.read_text() for p in self.out.iterdir()
                if p.is_file() and p.name not in (".todo", ".lock")}


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


SMALL = ("--machine", "1x4x1", "--groups", "1 2", "--loops", "50", "--runs", "2")
UNITS = ["2-trace", "1-trace", "2-1", "2-2", "1-1", "1-2"]


def test_in_sim(bench):
    stdout, stderr = bench.run(*SMALL)
    # All of the steps' own output is on stderr.
    assert stdout == "the table of %s\n" % bench.out
    assert (bench.root / "steps").read_text() == "setup\napply\nbuild --arch arm64 --config guest,steal,sim\n"
    calls = bench.calls()
    # The longest go first; a trace counts ten times.
    assert [c["unit"] for c in calls] == UNITS
    for c in calls:
        assert c["own"][:8] == ["--quantum", "200", "--ips", "1000000000", "--idle-exit", "2000", "--machine", "1x4x1"]
        assert c["own"][c["own"].index("--kernel") + 1] == str(bench.root / "image")
        assert c["rest"][:5] == ["--here", "--groups", c["unit"][0], "--features", "off=NO_STEAL,on=STEAL"]
    first = dict(zip([c["unit"] for c in calls], [c["rest"][7:] for c in calls]))
    assert first["2-2"] == ["--first", "2", "--runs", "1", "--loops", "50"]
    assert first["1-trace"] == ["--runs", "0", "--trace", "--trace-loops", "100"]
    files = bench.files()
    assert sorted(files) == [".traced-1", ".traced-2", "plan", "run-1-1.raw", "run-1-2.raw", "run-2-1.raw", "run-2-2.raw",
                             "trace-1-off.txt", "trace-1-on.txt", "trace-2-off.txt", "trace-2-on.txt"]
    assert files["run-2-1.raw"] == (
        "begin session 2-1-patched\n2-1\nend session\nbegin host 2-1-patched\nvirtual_seconds 1.000000000\n"
        "host_seconds 2.500\nbusy_seconds 1.0\nhost_per_virtual 2.5\nend host\n")
    assert "6 of 6 units after" in stderr


def test_in_sim_passes_machine_and_time_on(bench):
    bench.run("--machine", "2x2x1", "--groups", "3", "--runs", "1", "--quantum", "7", "--ips", "5000000", "--idle-exit",
              "0", "--append", "preempt=full x=1", "--features", "STEAL,x=NO_STEAL", "--trace-loops", "0")
    (c,) = bench.calls()
    assert c["unit"] == "3-1"
    assert c["own"][:10] == ["--quantum", "7", "--ips", "5000000", "--idle-exit", "0", "--machine", "2x2x1",
                             "--append", "preempt=full x=1"]
    assert "\nappend preempt=full x=1\n" in bench.files()["plan"]
    assert c["rest"][4] == "STEAL,x=NO_STEAL" and c["rest"][-1] == "1000"


@pytest.mark.parametrize("modes", [["--pipe"], ["--threads"], ["--pipe", "--threads"]])
def test_in_sim_passes_modes_of_hackbench_on(bench, modes):
    bench.run(*SMALL, *modes)
    assert all(c["rest"][:1 + len(modes)] == ["--here", *modes] for c in bench.calls())
    # Another comparison: not to be continued without them.
    _, stderr = bench.run(*SMALL, rc=1)
    assert "has runs of another comparison" in stderr


def test_each_unit_has_a_seed_of_its_own(bench):
    bench.run(*SMALL)
    seeds = {c["unit"]: c["own"][c["own"].index("--seed") + 1] for c in bench.calls()}
    assert len(set(seeds.values())) == len(UNITS), seeds
    # and the same one every time
    shutil.rmtree(bench.out)
    bench.run(*SMALL)
    assert {c["unit"]: c["own"][c["own"].index("--seed") + 1] for c in bench.calls()} == seeds


def test_units_that_are_there_are_not_run_again(bench):
    bench.run(*SMALL)
    before = bench.files()
    bench.calls()
    stdout, stderr = bench.run(*SMALL)
    assert bench.calls() == [] and bench.files() == before
    assert "all runs are in" in stderr and stdout.startswith("the table")
    # What is missing is run, and so is a third pair.
    (bench.out / "run-1-2.raw").unlink()
    bench.run(*SMALL[:-1], "3")
    assert [c["unit"] for c in bench.calls()] == ["2-3", "1-2", "1-3"]


@pytest.mark.parametrize("change", [("--loops", "60"), ("--machine", "1x2x2"), ("--quantum", "100"), ("--idle-exit", "0"),
                                    ("--ips", "2000000000"), ("--trace-loops", "0"), ("--features", "a=STEAL,b=NO_STEAL"),
                                    ("--kernel", "patched=image2"), ("--append", "preempt=full")])
def test_directory_of_another_comparison_is_refused(bench, change):
    (bench.root / "image2").write_text("another")
    bench.run(*SMALL)
    before, names = bench.files(), sorted(bench.out.iterdir())
    bench.calls()
    stdout, stderr = bench.run(*SMALL, *change, rc=1)
    assert "has runs of another comparison" in stderr and "choose another --out" in stderr
    assert bench.files() == before and sorted(bench.out.iterdir()) == names
    assert stdout == "" and bench.calls() == []


def test_failed_units_do_not_harm_the_others(bench):
    bench.do("2-1", "124")
    bench.do("1-trace", "125")
    stdout, stderr = bench.run(*SMALL, rc=1)
    # All have had their turn, and the table is made of those that went well.
    assert [c["unit"] for c in bench.calls()] == UNITS
    assert stdout.startswith("the table")
    assert "2 of 6 units failed" in stderr and "the same command with --out %s" % bench.out in stderr
    assert "2 groups, pair 1, patched: status 124" in stderr and "error: planted" in stderr
    files = bench.files()
    assert {"run-1-1.raw", "run-1-2.raw", "run-2-2.raw", "trace-2-on.txt"} < set(files)
    assert not {"run-2-1.raw", "trace-1-on.txt", ".traced-1"} & set(files)
    assert not list(bench.out.glob(".unit-*")) and not list(bench.out.glob(".status-*"))
    for unit in ("2-1", "1-trace"):
        assert "error: planted" in files["failed-%s.log" % unit]
        assert "kernel log of " + unit in files["failed-%s.log" % unit]
    bench.done()
    bench.run(*SMALL)
    assert [c["unit"] for c in bench.calls()] == ["1-trace", "2-1"]
    assert not list(bench.out.glob("failed-*")) and len(bench.files()) == 11


def test_output_that_is_no_archive(bench):
    fake(bench.root / "top/sim/machine", '#!/bin/sh\necho nonsense\n')
    _, stderr = bench.run(*SMALL, "--runs", "1", "--groups", "1", "--trace-loops", "0", rc=1)
    assert "not what the collector sends" in stderr
    assert not list(bench.out.glob("run-*")) and not list(bench.out.glob(".unit-*"))


@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_in_sim_interrupted(bench, name):
    number = getattr(signal, "SIG" + name)
    bench.do("1-1", "hang")
    process = bench.start(*SMALL)
    wait_for(lambda: (bench.root / "pid").exists() and (bench.root / "pid").read_text())
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + number, stdout + stderr
    assert "interrupted; to go on: the same command with --out %s" % bench.out in stderr
    wait_for(lambda: not processes(str(bench.root)))
    assert [c["unit"] for c in bench.calls()] == UNITS[:5]
    assert {"run-2-1.raw", "run-2-2.raw", "trace-1-on.txt"} < set(bench.files())
    assert not list(bench.out.glob(".unit-*")) and not list(bench.out.glob("run-1-*"))
    bench.done()
    bench.run(*SMALL)
    assert [c["unit"] for c in bench.calls()] == ["1-1", "1-2"]


def test_two_calls_at_once(bench):
    bench.do("1-1", "hang")
    process = bench.start(*SMALL)
    try:
        wait_for(lambda: (bench.root / "pid").exists() and (bench.root / "pid").read_text())
        before = bench.files()
        bench.calls()
        _, stderr = bench.run(*SMALL, rc=1)
        assert "another call is at work there" in stderr
        assert bench.calls() == [] and bench.files() == before
    finally:
        process.terminate()
        process.communicate(timeout=60)
    wait_for(lambda: not processes(str(bench.root)))
    # It is free again.
    bench.done()
    bench.run(*SMALL)


def test_two_kernels_are_two_sides(bench):
    for name in ("one", "two"):
        (bench.root / name).write_text(name)
    bench.run(*SMALL, "--kernel", "old=one,two", "--groups", "1")
    calls = bench.calls()
    assert not (bench.root / "steps").read_text().count("build")
    for c in calls:
        label = c["session"].rpartition("-")[2]
        assert c["rest"][3:7] == ["--features", "old=,two=", "--only", label]
        assert c["own"][c["own"].index("--kernel") + 1] == str(bench.root / {"old": "one", "two": "two"}[label])
    # In turns first; both of a pair have the same seed.
    assert [c["session"] for c in calls if "trace" not in c["unit"]] == ["1-1-old", "1-1-two", "1-2-two", "1-2-old"]
    seeds = [c["own"][c["own"].index("--seed") + 1] for c in calls if "trace" not in c["unit"]]
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]
    assert {"run-1-1.raw", "trace-1-old.txt", "trace-1-two.txt"} < set(bench.files())
    text = bench.files()["run-1-2.raw"]
    assert re.findall("^begin (.*)$", text, re.M) == ["session 1-2-two", "host 1-2-two", "session 1-2-old", "host 1-2-old"]
    assert re.findall("^kernel (.*) [0-9a-f]{16}$", bench.files()["plan"], re.M) == ["old", "two"]


def test_one_of_two_kernels_fails(bench):
    """Half a pair is not kept."""
    for name in ("one", "two"):
        (bench.root / name).write_text(name)
    text = FAKE_MACHINE.replace("what = root", 'if session == "1-1-two":\n    sys.exit(125)\nwhat = root', 1)
    fake(bench.root / "top/sim/machine", text)
    bench.run(*SMALL, "--kernel", "old=one,two", "--groups", "1", "--trace-loops", "0", rc=1)
    assert [p.name for p in bench.out.glob("run-*")] == ["run-1-2.raw"]


@pytest.mark.parametrize("args,message", [
    (["--what"], "unknown argument '--what'"),
    (["--runs"], "--runs needs a value"),
    (["--groups", ""], "--groups needs a value"),
    (["--groups", "1 -2"], "not a positive number: -2"),
    (["--runs", "0"], "not a positive number: 0"),
    (["--loops", "1x"], "not a positive number: 1x"),
    (["--jobs", "0"], "not a positive number: 0"),
    (["--jobs", "9999"], "--jobs 9999: this host has"),
    (["--quantum", "0"], "not a positive number: 0"),
    (["--trace-loops", "-1"], "--trace-loops '-1'"),
    (["--idle-exit", "x"], "--idle-exit 'x'"),
    (["--machine", "1x2"], "--machine '1x2' is not"),
    (["--kernel", "a/b=x"], "'a/b' cannot be a label"),
    (["--features", "STEAL,a b"], "not a side: a b (--features)"),
    (["--kernel", "base,patched", "--features", "STEAL"], "either several kernels or --features"),
    (["--kernel", "x=patched,x=base"], "two kernels are called x"),
])
def test_wrong_calls_of_in_sim(bench, args, message):
    stdout, stderr = bench.run(*args, rc=2)
    assert stdout == "" and message in stderr and "see --help" in stderr
    # before anything is fetched or built
    assert not (bench.root / "steps").exists() and not bench.out.exists()


def test_in_sim_without_that_kernel(bench):
    _, stderr = bench.run("--kernel", "/nonexistent/Image", rc=1)
    assert "/nonexistent/Image: no such file (--kernel)" in stderr and not (bench.root / "steps").exists()


def test_in_sim_stops_when_a_step_fails(bench):
    fake(bench.root / "top/scripts/apply", "#!/bin/sh\nexit 1\n")
    bench.run(*SMALL, rc=1)
    assert bench.calls() == [] and not bench.out.exists()


# Machines with a guest

@pytest.fixture(scope="module")
def cpus(tmp_path_factory):
    """The program of tests/guest/cpus.c."""
    compiler = "gcc" if os.uname().machine == "aarch64" else "aarch64-linux-gnu-gcc"
    program = tmp_path_factory.mktemp("cpus") / "cpus"
    call(compiler, "-Wall", "-Wextra", "-Werror", "-O2", "-march=armv8.1-a", "-static", "-nostdlib", "-ffreestanding",
         "-fno-stack-protector", "-o", program, TOP / "tests/guest/cpus.c")
    return program


@pytest.fixture(scope="module")
def machine(sim_kernel):
    def start(*args, rc=0, timeout=200, **options):
        split = args.index("--")
        return call(MACHINE, "--kernel", sim_kernel, "--timeout", timeout, *args[:split], "--", *args[split + 1:], rc=rc,
                    timeout=timeout + 60, **options)
    return start


@pytest.mark.parametrize("topology", [["1x1x2"], ["1x4x1"], ["2x4x2", "--numa"], ["2x4x2"]], ids=" ".join)
def test_topology(machine, topology):
    """The machine has looked itself (check-topology); and it notices when it is asked for another one."""
    sockets, cores, threads = map(int, topology[0].split("x"))
    each = cores * threads
    own = topology[0] + (",numa" if "--numa" in topology else "")
    others = ["%dx%dx%d" % (sockets, threads, cores), "%dx%dx%d" % (2 * sockets, cores, threads)]
    if sockets > 1:
        others += ["1x%dx%d" % (sockets * cores, threads), topology[0] + (",numa" if own == topology[0] else "")]
    elif threads == 1:
        others += ["2x%dx1" % (cores // 2)]
    stdout, stderr = machine("--topology", *topology, "--", "sh", "-c", 'for t; do sh /opt/check-topology $t 2>/dev/null; echo $?; done; '
                             "cat /sys/devices/system/node/online; cd /sys/kernel/debug/sched/domains; "
                             "grep -H SD_SHARE_LLC cpu*/domain*/flags | cat - /proc/schedstat | awk -f /opt/llc.awk",
                             "sh", own, *others)
    lines = stdout.splitlines()
    statuses, node, llcs = lines[:1 + len(others)], lines[1 + len(others)], lines[2 + len(others):]
    assert statuses == ["0"] + ["3"] * len(others), stdout
    assert node == ("0-%d" % (sockets - 1) if "--numa" in topology else "0")
    # each socket is a cache, also where both are in one node
    assert dict(line.split() for line in llcs) == {
        "cpu%d" % c: "%d-%d" % (c // each * each, c // each * each + each - 1) for c in range(sockets * each)}


@pytest.mark.parametrize("append,message", [("maxcpus=2", "the list of CPUs is '0-1', not '0-3'"),
                                            ("numa=off", "the list of nodes is '0', not '0-1'")])
def test_machine_of_another_topology_runs_nothing(machine, append, message):
    stdout, _ = machine("--topology", "2x2x1", "--numa", "--append", append, "--", "echo", "ran", rc=3)
    assert message in stdout and "ran\n" not in stdout


def test_hotplug(machine):
    """All CPUs but the first go and come back; then they work as before."""
    stdout, _ = machine("--topology", "1x4x1", "--", "sh", "-c", """
        cd /sys/devices/system/cpu
        for c in 1 2 3; do echo 0 >cpu$c/online || exit 9; done; cat online; hackbench -g 1 -l 5
        for c in 3 1 2; do echo 1 >cpu$c/online || exit 9; done; cat online; hackbench -g 1 -l 20""")
    assert re.findall(r"^(0\S*|Time: )", stdout, re.M) == ["0", "Time: ", "0-3", "Time: "], stdout


CLOCKS = "hackbench -g 1 -l 50; sed -n 's/^now at //p' /proc/timer_list"


def test_same_seed_same_machine(machine, tmp_path):
    """To the nanosecond. An odd speed, so that nothing that differs is rounded away."""
    args = ("--topology", "1x4x1", "--ips", "800000000")
    status = [tmp_path / "status1", tmp_path / "status2"]
    first, _ = machine(*args, "--seed", "5", "--status", status[0], "--", "sh", "-c", CLOCKS)
    # The guest's files have other times.
    time.sleep(1.1)
    again, _ = machine(*args, "--seed", "5", "--status", status[1], "--", "sh", "-c", CLOCKS)
    assert again == first and re.search(r"^\d{9,} nsecs$", first, re.M)
    # nor do the counts of what the simulator did differ
    texts = [re.sub("^host_seconds .*\n", "", s.read_text(), flags=re.M) for s in status]
    assert texts[0] == texts[1] and "\nwakes " in texts[0]
    other, _ = machine(*args, "--seed", "6", "--", "sh", "-c", CLOCKS)
    assert other != first


def test_vcpus_are_within_the_quantum(machine, cpus):
    for quantum in (200, 1000, 20000):
        # enough readings for many of the longest quanta: those of one or two can miss its end, where the CPUs are furthest apart
        stdout, _ = machine("--topology", "1x2x1", "--quantum", quantum, "--add", cpus, "--", "cpus", "apart", "30000")
        # and a block of a few instructions; but they are not in lockstep either
        assert 0.8 * quantum <= int(stdout) <= quantum + 30


def test_clock_of_a_sleeping_cpu_does_not_go_back(machine, cpus):
    """It may have gone to sleep a quantum later than the time at which it is woken."""
    stdout, _ = machine("--topology", "1x2x1", "--quantum", "20000", "--idle-exit", "0", "--add", cpus, "--", "sh", "-c",
                        "for i in 1 2 3; do cpus back 600; done")
    assert stdout.split() == ["0"] * 3


@pytest.mark.parametrize("instruction", ["yield", "wfe"])
def test_spinning_takes_as_long_as_asked(machine, cpus, instruction):
    took = {}
    for spin in (40, 400):
        stdout, _ = machine("--topology", "1x2x1", "--spin", spin, "--add", cpus, "--", "cpus", instruction, "1000")
        took[spin] = int(stdout)
    # the loop is of a few instructions
    assert 1000 * 40 <= took[40] <= 1000 * (40 + 10)
    assert abs(took[400] - took[40] - 1000 * 360) <= 2000


def test_sleep_takes_no_host_time(machine):
    begin = time.monotonic()
    stdout, _ = machine("--topology", "1x2x1", "--", "sh", "-c", "sleep 1000; cat /proc/uptime")
    assert 1000 <= float(stdout.split()[0]) < 1010
    assert time.monotonic() - begin < 100


def test_cpus_that_change_mappings_at_once(machine, tmp_path):
    """TLB maintenance for which QEMU has all CPUs leave the guest, on many CPUs at the same time."""
    status = tmp_path / "status"
    stdout, _ = machine("--topology", "2x4x2", "--numa", "--status", status, "--", "hackbench", "-g", "2", "-l", "50")
    assert re.search(r"^Time: [0-9.]+$", stdout, re.M)
    assert int(re.search(r"^exclusive (\d+)$", status.read_text(), re.M)[1]) > 100


def test_panic_and_exit_status(machine):
    stdout, stderr = machine("--topology", "1x2x1", "--", "sh", "-c", "echo before; echo c >/proc/sysrq-trigger; sleep 100",
                             rc=125)
    assert stdout == "before\n" and "Kernel panic" in stderr
    stdout, _ = machine("--topology", "1x2x1", "--", "sh", "-c", "echo out; exit 7", rc=7)
    assert stdout == "out\n"


@pytest.mark.parametrize("command", ["sleep 2000000000", "while :; do :; done"])
def test_time_limit(machine, command):
    _, stderr = machine("--topology", "1x2x1", "--progress", "--", "sh", "-c", command, rc=124, timeout=20)
    assert "not finished after 20 seconds" in stderr
    assert re.search(r"^machine: [0-9.]+ s of virtual time in \d+ s: ", stderr, re.M), stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_killed_machine_leaves_no_process(sim_kernel, tmp_path, number):
    log = tmp_path / "log"
    command = [MACHINE, "--topology", "1x2x1", "--kernel", sim_kernel, "--log", log, "--progress", "--", "sleep", "2000000000"]
    # A shell's background job ignores SIGINT, and so would all that it starts.
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                          preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
                          env={**os.environ, "TMPDIR": str(tmp_path)}) as child:
        try:
            wait_for(lambda: any(p.startswith("qemu-system") for p in processes(str(log))), 60)
            child.send_signal(number)
            child.wait(timeout=30)
        finally:
            child.kill()
    wait_for(lambda: processes(str(tmp_path)) == [], 20)
    if number != signal.SIGKILL:
        assert child.returncode == 128 + number
        assert list(tmp_path.glob("steal-*")) == []


def test_collector_with_three_sides(machine, tmp_path):
    """Each side has its features, those of other sides are as they were found, and all are put back."""
    args = [word for name in ("run-hackbench.sh", "switch.sh", "hackbench-table.awk", "llc.awk")
            for word in ("--add", TOP / "bench" / name)]
    stdout, _ = machine("--topology", "1x2x1", *args, "--", "sh", "-c", """
        cd /sys/kernel/debug/sched; tr ' ' '\\n' <features >/tmp/before
        sh /opt/run-hackbench.sh --here --groups 1 --loops 5 --runs 2 --out /tmp/out \
                --features none=NO_STEAL,two=STEAL+NEXT_BUDDY,STEAL || exit
        tr ' ' '\\n' <features | diff - /tmp/before && echo restored; cat /tmp/out/runs.raw""")
    found = re.findall(r"^side (\S+)\n(?:.*\n)*?before features (.*)$", stdout, re.M)
    assert [side for side, _ in found] == ["none", "two", "STEAL", "STEAL", "two", "none"]
    for side, features in found:
        assert ("STEAL" in features.split()) == (side != "none"), (side, features)
        assert ("NEXT_BUDDY" in features.split()) == (side == "two"), (side, features)
    assert "restored\n" in stdout
    assert len(re.findall("^ +1 +(none|two|STEAL) ", stdout, re.M)) == 3


# sim/fidelity: whether time is right there

@pytest.fixture(scope="module")
def fidelity(sim_kernel, tmp_path_factory):
    """All of its lines; it is run once."""
    out = tmp_path_factory.mktemp("fidelity") / "lines"
    done = subprocess.run([TOP / "sim/fidelity", "--quick", "--out", out], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=900, check=False)
    assert done.stdout == out.read_text()
    lines = done.stdout.splitlines()
    # Its status says what its lines say.
    assert done.returncode == (1 if any(line.split()[1] == "FAIL" for line in lines) else 0), done.stderr
    return lines


@pytest.mark.parametrize("kind,number,result", [("spin", 6, "PASS"), ("quantum", 1, "PASS"), ("sleep", 5, "PASS"),
                                                ("repeat", 1, "PASS"), ("order", 1, "PASS"), ("seeds", 1, "-"), ("converge", 1, "PASS"),
                                                ("lock", 2, "-")])
def test_fidelity(fidelity, kind, number, result):
    lines = [line for line in fidelity if line.split()[0] == kind]
    assert len(lines) == number, fidelity
    assert [line for line in lines if line.split()[1] != result] == []


# bench/in-sim with its machines

def test_in_sim_end_to_end(comparison):
    said, out = comparison
    names = {p.name for p in out.iterdir()}
    assert {"plan", "table.txt", "report.html", "summary.csv"} < names
    assert {"run-%d-%d.raw" % (g, n) for g in (1, 2) for n in (1, 2)} < names
    assert {"trace-%d-%s.txt" % (g, s) for g in (1, 2) for s in ("off", "on")} < names
    assert not [n for n in names if n.startswith((".unit", ".status", "failed"))]
    assert (out / "report.html").stat().st_size > 100000
    assert (out / "table.txt").read_text() in said
    for path in sorted(out.glob("run-*.raw")):
        text = path.read_text()
        assert re.search(r"^begin host \S+\nvirtual_seconds [\d.]+\nhost_seconds [\d.]+\n(?:\w+ [\d.]+\n)*"
                         r"host_per_virtual [\d.]+\nend host$", text, re.M), text[-600:]
        assert "\nsim topology 2x2x1\nsim quantum_ns 200\n" in text
        assert len(re.findall("^begin run", text, re.M)) == 2
        # The side that goes first takes turns.
        assert re.findall(r"^side (\w+)$", text, re.M) == (["off", "on"] if "-1.raw" in path.name else ["on", "off"])
    header = next(line for line in said.splitlines() if line.split()[:2] == ["grps", "side"])
    at = header.index("wasted") + len("wasted")
    wasted = [line[:at].split()[-1] for line in said.splitlines() if re.match(r" +[12] +(off|on) ", line)][:4]
    assert len(wasted) == 4 and all(re.fullmatch(r"\d+\.\d\d", w) for w in wasted), said
    assert any(float(w) > 0 for w in wasted)
    for path in out.glob("trace-*.txt"):
        head = path.read_text()[:600]
        assert "#: overruns 0\n" in head and "#: loops 20\n" in head
