# SPDX-License-Identifier: GPL-2.0
"""Simulated machines: what a guest sees of sim/machine, and sim/fidelity. Without a guest: tests/harness/test_machine.py. bench/ab on
simulated machines: test_ab_sim.py and test_loads_sim.py."""

import os
import re
import signal
import subprocess
import time

import pytest
from commands import TOP, call, processes, wait_for

MACHINE = TOP / "sim/machine"


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
    texts = [re.sub(r"^host_\w+ .*\n", "", s.read_text(), flags=re.M) for s in status]
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
    assert time.monotonic() - begin < 1000


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
    """Each side has its features, those of other sides are as they were found, and all are put back. A traced run has a trace."""
    loads = tmp_path / "loads.tar"
    subprocess.run(["tar", "-cf", loads, "-C", TOP / "bench/collect", "loads"], check=True)
    stdout, _ = machine("--topology", "1x2x1", "--add", TOP / "bench/collect/collect.sh", "--add", loads, "--", "sh", "-c", """
        tar -xf /opt/loads.tar -C /opt
        cd /sys/kernel/debug/sched; tr ' ' '\\n' <features >/tmp/before
        two='two STEAL+NEXT_BUDDY' none='none NO_STEAL'
        for s in "1 1 $none" "1 2 $two" '1 3 STEAL STEAL' "2 1 $two" "2 2 $none" "0 1 $two"
        do echo "hackbench-1 $s"; done >/tmp/schedule
        sh /opt/collect.sh --out /tmp/out --schedule /tmp/schedule --loops 5 --trace-loops 5 || exit
        tr ' ' '\\n' <features | diff - /tmp/before && echo restored
        cd /sys/kernel/tracing; ls; mount -t tracefs none .; cd .; cat events/sched/sched_switch/enable tracing_on
        cd /tmp/out/runs/hackbench-1; for run in *; do echo "run $run $(cat $run/valid $run/features | tr '\\n' ' ')"; done; head -n 5 0-two/trace
        grep -c sched_switch: 0-two/trace""")
    found = re.findall(r"^run \d-(\S+) yes (.*)$", stdout, re.M)
    assert [side for side, _ in found] == ["two", "STEAL", "none", "two", "none", "two"], stdout
    for side, features in found:
        assert ("STEAL" in features.split()) == (side != "none"), (side, features)
        assert ("NEXT_BUDDY" in features.split()) == (side == "two"), (side, features)
    assert re.search(r"^restored\n0\n1\n", stdout, re.M), stdout
    head = re.search(r"^#: cpus 2\n#: clock local\n#: begin [0-9.]+\n#: end [0-9.]+\n#: overruns 0\n([0-9]+)$", stdout, re.M)
    assert head and int(head[1]) > 100, stdout


# sim/fidelity: whether time is right there

@pytest.fixture(scope="module")
def fidelity(sim_kernel, tmp_path_factory):
    """All of its lines; it is run once."""
    out = tmp_path_factory.mktemp("fidelity") / "lines"
    done = subprocess.run([TOP / "sim/fidelity", "--quick", "--only", "time", "--out", out], stdin=subprocess.DEVNULL,
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
