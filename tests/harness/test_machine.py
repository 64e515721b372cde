# SPDX-License-Identifier: GPL-2.0
"""sim/machine, its simulator, sim/cost and sim/irqsoff without a guest: options, compilers, fibers. With guests:
tests/kernel/test_sim.py and test_cost.py."""

import os
import shutil
import subprocess

import pytest
from commands import TOP, call

MACHINE = TOP / "sim/machine"


@pytest.mark.parametrize("args,message", [
    (["--topology", "1x2x1"], "no command"),
    (["--topology", "1x2x1", "true"], "unknown argument 'true'"),
    (["--topology"], "--topology needs a value"),
    (["--", "true"], "--machine is missing"),
    (["--topology", "0x2x1", "--", "true"], "'0x2x1' is not"),
    (["--topology", "1x2x1x1x1", "--", "true"], "'1x2x1x1x1' is not"),
    (["--topology", "1x0x2x1", "--", "true"], "'1x0x2x1' is not SOCKETSxCORESxTHREADS or SOCKETSxLLCSxCORESxTHREADS"),
    (["--machine", "1x2x2x1", "--", "true"], "--machine '1x2x2x1' is not SOCKETSxCORESxTHREADS"),
    (["--topology", "2x5x26x2", "--", "true"], "has 520 CPUs"),
    (["--topology", "1x2x2x1", "--nodes", "4", "--", "true"], "has 2 last-level cache(s), and each is in one node"),
    (["--topology", "3x1x1", "--nodes", "2", "--", "true"], "the 3 last-level caches of 3x1x1 cannot be split evenly"),
    (["--topology", "2x2x1", "--nodes", "0", "--", "true"], "--nodes '0'"),
    (["--topology", "2x2x1", "--nodes", "2", "--numa", "--", "true"], "--nodes excludes --machine and --numa"),
    (["--machine", "2x2x1", "--nodes", "2", "--", "true"], "--nodes excludes --machine and --numa"),
    (["--topology", "1x2x2", "--smt", "0.4", "--", "true"], "--smt '0.4' is not a number from 0.5 to 1"),
    (["--topology", "1x2x2", "--smt", "1.1", "--", "true"], "--smt '1.1'"),
    (["--topology", "1x2x2", "--smt", "0.62", "--ips", "100000000000", "--", "true"], "need at most 10000000000"),
    (["--topology", "1x2x2", "--caches", "nope", "--", "true"], "--caches 'nope': there is no file"),
    (["--topology", "1x2x2", "--caches", "./nope", "--", "true"], "--caches './nope': there is no file ./nope; the presets are"),
    (["--topology", "3x171x1", "--", "true"], "has 513 CPUs; QEMU's machine has 512 at most"),
    (["--topology", "5x13x1x1", "--caches", "epyc", "--", "true"], "5x13x1x1 has 65 last-level caches; a machine with caches has 64 at most"),
    (["--machine", "1x2", "--", "true"], "'1x2' is not SOCKETSxCORESxTHREADS or"),
    (["--machine", "1x4x1", "--topology", "1x4x1", "--", "true"], "--machine and --topology exclude each other"),
    (["--topology", "1x2x1", "--quantum", "0", "--", "true"], "--quantum '0'"),
    (["--topology", "1x2x1", "--ips", "1e9", "--", "true"], "--ips '1e9'"),
    (["--topology", "1x2x1", "--ips", "980000000", "--", "true"], "a whole number of picoseconds"),
    (["--topology", "1x2x1", "--idle-exit", "-1", "--", "true"], "--idle-exit '-1'"),
    (["--topology", "1x2x1", "--seed", "", "--", "true"], "--seed needs a value"),
    (["--topology", "1x2x1", "--pin", "99999", "--", "true"], "--pin '99999' is not a CPU of this host"),
    (["--topology", "1x2x1", "--counts", "/nowhere/counts", "--", "true"], "--points and --counts need each other"),
    (["--topology", "1x2x1", "--points", "/nowhere/points", "--", "true"], "--points and --counts need each other"),
])
def test_usage_errors(args, message):
    stdout, stderr = call(MACHINE, *args, rc=2)
    assert stdout == "" and message in stderr and "see --help" in stderr


@pytest.mark.parametrize("script,args,message", [
    ("cost", ["--machines", "1x2x2 2x2x2"], "--machines: '2x2x2' is not 1xCORESxTHREADS"),
    ("cost", ["--caches", "nope"], "--caches 'nope': there is no file"),
    ("cost", ["1x2x2"], "unknown argument '1x2x2'"),
    ("boots", ["1x2x2", "1x2"], "'1x2' is not SOCKETSxCORESxTHREADS"),
    ("irqsoff", ["--machine", "2x2x2"], "--machine '2x2x2' is not 1xCORESxTHREADS"),
    ("irqsoff", ["--machine", "1x1x2"], "--machine '1x1x2' has less than 4 CPUs"),
    ("irqsoff", ["--caches", "./nope"], "--caches './nope': there is no file ./nope"),
    ("irqsoff", ["--loads", "pinned nope"], "--loads: 'nope' is not one of: hackbench-1 hackbench-4 pinned"),
    ("irqsoff", ["--sides", "on"], "--sides: 'on' is not one of: off nine all"),
    ("irqsoff", ["--seed", "-1"], "--seed '-1' is not a number"),
])
def test_usage_errors_of_measurements(script, args, message):
    stdout, stderr = call(TOP / "sim" / script, *args, rc=2)
    assert stdout == "" and message in stderr and "see --help" in stderr


PRESETS = TOP / "sim/presets"


@pytest.mark.parametrize("old,new,message", [
    ("l2_ways 20", "", "preset: 'l2_ways' is missing"),
    ("smt 0.62", "", "preset: 'smt' is missing"),
    ("smt 0.62", "smt 62%", "smt '62%' is not a number"),
    ("smt 0.62", "smt 0.3", "smt 0.3 is not between 0.5 and 1"),
    ("l2_ns 3", "l2_ns 3\nl4_ns 4", "unknown key 'l4_ns'"),
    ("l2_ns 3", "l2_ns 3\nl2_ns 3", "'l2_ns' is there twice"),
    ("l2_ns 3", "l2_ns 3 ns", "not a key and a value"),
    ("l2_ns 3", "l2_ns -4", "l2_ns '-4' is not a number"),
    ("l2_ns 3", "l2_ns", "not a key and a value"),
    ("l2_ns 3", "l2_ns 30", "l2_ns 30 is more than llc_ns 22"),
    ("memory_ns 88", "memory_ns 880000", "memory_ns 880000 is not between 0 and 10000"),
    ("l2_kib 1280", "l2_kib 1000", "1000 KiB with 20 ways make 800 sets of lines of 64 bytes; this must be a power of two"),
    ("l1_kib 48", "l1_kib 32", "32 KiB with 12 ways make 42.6667 sets"),
    ("l1_kib 48", "l1_kib 48.5", "l1_kib '48.5' is not a whole number"),
    ("l1_kib 48", "l1_kib 0", "l1_kib 0 is not between 1 and 1024"),
    ("l2_kib 1280", "l2_kib 20", "l1_kib 48 is more than l2_kib 20"),
    ("l1i_kib 32", "l1i_kib 48", "48 KiB with 8 ways make 96 sets"),
    ("l1i_ways 8", "", "preset: 'l1i_ways' is missing"),
    ("llc_ways 12", "llc_ways 96", "llc_ways 96 is not between 1 and 64"),
])
def test_presets_that_are_no_good(tmp_path, old, new, message):
    preset = tmp_path / "preset"
    text = (PRESETS / "intel").read_text()
    assert text.count("\n%s\n" % old) == 1
    preset.write_text(text.replace("\n%s\n" % old, "\n%s\n" % new))
    # a QEMU that is none: nothing of it is started
    stdout, stderr = call(MACHINE, "--topology", "1x2x2", "--caches", preset, "--", "true", rc=2,
                          env={**os.environ, "STEAL_QEMU": "/nonexistent"})
    assert stdout == "" and stderr.startswith("machine: error: %s" % preset) and message in stderr and stderr.count("\n") == 1


@pytest.mark.parametrize("preset", sorted(p.name for p in PRESETS.iterdir()))
def test_presets(preset):
    """Each is accepted: the next thing that is looked for is QEMU."""
    _, stderr = call(MACHINE, "--topology", "1x2x2", "--caches", preset, "--", "true", rc=1,
                     env={**os.environ, "STEAL_QEMU": "/nonexistent"})
    assert stderr == "machine: error: not installed: /nonexistent; run scripts/setup\n"
    # each group of figures is under a comment that says where they are from
    groups = (PRESETS / preset).read_text().split("\n\n")
    assert groups[0].startswith("# SPDX-License-Identifier: GPL-2.0\n")
    assert preset == "none" or (len(groups) > 2 and all(group.startswith("# ") for group in groups))


@pytest.mark.parametrize("version,message", [
    ("2.11.1", "/qemu is version 2.11; simulated machines need QEMU 9.1 or later: scripts/setup"),
    ("9.0.4", "/qemu is version 9.0; simulated machines need QEMU 9.1 or later"),
    ("9.1.0", "/qemu is built without plugins"), ("10.0.2", "/qemu is built without plugins"),
    (None, "not installed: "),
])
def test_unfit_qemu(tmp_path, version, message):
    qemu = tmp_path / "qemu"
    if version:
        qemu.write_text('#!/bin/sh\ncase $1 in\n--version) echo "QEMU emulator version %s (Debian)" ;;\n'
                        '*) echo "qemu: -plugin: plugin interface not enabled in this build" >&2; exit 1 ;;\nesac\n' % version)
        qemu.chmod(0o755)
    _, stderr = call(MACHINE, "--topology", "1x2x1", "--", "true", rc=1, env={**os.environ, "STEAL_QEMU": str(qemu)})
    assert message in stderr and (version is None or "STEAL_QEMU" in stderr)


@pytest.mark.parametrize("compiler", ["gcc", "aarch64-linux-gnu-gcc", "clang"])
def test_compiles_without_a_warning(tmp_path, compiler):
    if not shutil.which(compiler):
        pytest.skip(compiler + " is not installed")
    probe = subprocess.run([compiler, "-E", "-"], input="#include <stdio.h>\n", capture_output=True, text=True, check=False)
    if probe.returncode:
        assert "stdio.h" in probe.stderr
        pytest.skip(compiler + " has no headers of a C library here")
    _, stderr = call("make", "-C", TOP / "sim/qemu", "CC=" + compiler, "O=%s" % tmp_path)
    assert stderr == "" and (tmp_path / "sim.so").stat().st_size > 10000


@pytest.mark.parametrize("compiler,runner", [("gcc", ()), ("aarch64-linux-gnu-gcc", ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"))])
def test_fibers_keep_what_is_theirs(tmp_path, compiler, runner):
    """Registers, stack and thread-local storage, over thousands of switches, for both kinds of hosts."""
    if os.uname().machine != "x86_64" and runner:
        pytest.skip("this host is an arm64 one already")
    parts = [TOP / "sim/qemu" / (name + ".c") for name in ("cache", "lines", "vcpu", "clock", "fiber", "wait", "mainloop")]
    call(compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-I", TOP / "sim/qemu", "-o", tmp_path / "fibers",
         TOP / "tests/harness/fibers.c", *parts, "-ldl", "-pthread")
    stdout, _ = call(*runner, tmp_path / "fibers", env={**os.environ, "SIM_ENABLE": "1"}, timeout=300)
    assert stdout == "1000 rounds of 5 threads\n"


@pytest.mark.parametrize("also", ["Perf", "linux-perf=", "=perf", "dbench=tbench+", "a b", "-x"])
def test_packages_of_a_guest_that_are_none(also):
    _, stderr = call(TOP / "scripts/guest-image", "--arch", "arm64", "--also", also, rc=2)
    assert "is not PACKAGE or PACKAGE=PROGRAM[+PROGRAM...]; see --help" in stderr
