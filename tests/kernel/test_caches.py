# SPDX-License-Identifier: GPL-2.0
"""Simulated machines with caches, on a small machine: sim/fidelity's checks of them, and what the default preset leaves as it is.
Errors in options and presets: tests/harness/test_machine.py."""

import platform
import re
import subprocess

import pytest
from commands import TOP, call

MACHINE = TOP / "sim/machine"
CLOCKS = "hackbench -g 1 -l 20; sed -n 's/^now at //p' /proc/timer_list"


@pytest.fixture(scope="module")
def fidelity(sim_kernel, tmp_path_factory):
    """All of its lines; it is run once."""
    out = tmp_path_factory.mktemp("fidelity") / "lines"
    done = subprocess.run([TOP / "sim/fidelity", "--quick", "--only", "caches", "--out", out], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=900, check=False)
    assert done.stdout == out.read_text()
    lines = done.stdout.splitlines()
    assert done.returncode == (1 if any(line.split()[1] == "FAIL" for line in lines) else 0), done.stderr
    return lines


@pytest.mark.parametrize("kind,number", [("chase", 4), ("hand", 4), ("upgrade", 2), ("share", 3), ("smt", 1),
                                         ("move", 5), ("jump", 2), ("repeats", 1), ("converges", 1)])
def test_fidelity(fidelity, kind, number):
    lines = [line for line in fidelity if line.split()[0] == kind]
    assert len(lines) == number, fidelity
    assert [line for line in lines if line.split()[1] != "PASS"] == []


def run(sim_kernel, status, *args):
    stdout, _ = call(MACHINE, "--kernel", sim_kernel, "--topology", "1x2x2", "--seed", "5", "--status", status, *args, "--",
                     "sh", "-c", CLOCKS, timeout=260)
    text = status.read_text()
    return stdout, {key: float(value) for key, value in re.findall(r"^(\w+) ([\d.]+)$", text, re.M)}


def test_none_costs_nothing(sim_kernel, tmp_path):
    """By default, nothing but instructions takes time."""
    default, status = run(sim_kernel, tmp_path / "default")
    assert not [key for key in status if key.startswith("from_")]
    # every instruction takes 1 ns, and nothing else takes time
    assert round(status["busy_seconds"] * 1e9) == status["instructions"]

    costly, status = run(sim_kernel, tmp_path / "intel", "--caches", "intel")
    assert costly != default and status["stalled_ns"] > 1e7
    found = sum(value for key, value in status.items() if key.startswith("from_"))
    assert 0 < found - status["from_l1"] < status["accesses"] / 10
    assert found < status["accesses"] / 4
    assert 0 < sum(value for key, value in status.items() if key.startswith("fetches_from_")) < status["fetches"] / 10


@pytest.mark.parametrize("topology", [["1x2x2x1"], ["2x2x1x2", "--nodes", "2"], ["2x2x1x1", "--nodes", "4"], ["4x1x1", "--nodes", "2"]],
                         ids=" ".join)
def test_topology(sim_kernel, topology):
    """The machine has looked itself; and it notices when it is asked for another one."""
    name, nodes = topology[0], topology[2] if len(topology) > 2 else "1"
    numbers = name.split("x")
    other = {"1": "2", "2": "1", "4": "2"}[nodes]
    flat = "x".join([str(int(numbers[0]) * int(numbers[1])), *numbers[2:]]) if len(numbers) == 4 else "2x2x1"
    llcs = 2 if name == "1x2x2x1" else 4
    stdout, _ = call(MACHINE, "--kernel", sim_kernel, "--topology", *topology, "--", "sh", "-c",
                     'for t; do sh /opt/check-topology "$t" 2>/dev/null; echo $?; done; cat /sys/devices/system/node/online; '
                     "cat /sys/kernel/debug/sched/domains/cpu*/domain*/flags | grep -c SD_SHARE_LLC; "
                     "cat /sys/devices/system/cpu/cpu*/cache/index3/shared_cpu_list | sort -u | wc -l",
                     "sh", "%s,nodes=%s" % (name, nodes), "%s,nodes=%s" % (flat, nodes), "%s,nodes=%s" % (name, other), "%s,nodes=7" % name, timeout=260)
    lines = stdout.split()
    assert lines[:4] == ["0", "3", "3", "3"], stdout
    assert lines[4] == ("0" if nodes == "1" else "0-%d" % (int(nodes) - 1))
    assert lines[-1] == (str(llcs) if len(numbers) == 4 else "0")


def test_lines(sim_kernel, tmp_path):
    """What the code places say fits the names: of a variable of the kernel, of variables of CPUs, and of memory to which they point."""
    sections = tmp_path / "sections"
    call(MACHINE, "--kernel", sim_kernel, "--topology", "1x2x4x1", "--caches", "intel", "--sections", sections, "--", "sh", "-c",
         "echo STEAL >/sys/kernel/debug/sched/features; section begin; hackbench -g 2 -l 100; section end", timeout=260)
    stdout, _ = call(TOP / "bench/lines", "--kernel", sim_kernel, "--top", "1000", sections)
    rows = re.findall(r"^ *\d+ +[\d.]+ +[\d.]+  (\S.*?)(?: \[\d+ lines\])?  \((.*)\)$", stdout, re.M)
    assert len(rows) > 100, stdout[:2000]

    def places(name):
        found = [code for title, code in rows if re.match(name, title)]
        assert found, (name, stdout[:5000])
        return [re.sub(r"\+0x\w+$", "", place) for code in found for place in code.split(", ")]

    # a lock that only these take
    assert not [place for place in places(r"tasklist_lock$") if not re.match(r"_raw_(read|write)_(un)?lock|queued_(read|write)_lock", place)]
    # those of the CPUs that ran most: only the lines with the highest cost are there
    locks = [code for title, code in rows if re.match(r"runqueues\[\d\]\.__lock", title)]
    assert len(locks) >= 4 and all(code.startswith("_raw_spin_") for code in locks), locks
    assert "sched_idle_cpu" in places(r"runqueues\[\d\]\.cfs\.h_nr_idle") or "choose_idle_cpu" in places(r"runqueues\[\d\]\.cfs\.h_nr_idle")
    assert set(places(r"cfs_overload_cpus\[LLC [01]\] line 0$")) & {"set_cfs_overload_bit", "sync_cfs_overload_bits"}
    # the sums leave nothing out
    text = sections.read_text()
    total = int(re.search(r"^lines_cost_ns (\d+)$", text, re.M)[1])
    assert 0.97 * total < sum(map(int, re.findall(r"^(?:line|rest) .* cost_ns (\d+) ", text, re.M))) <= total


def test_more_than_64_cores(sim_kernel, tmp_path):
    """The directory tells all cores apart: the first and the last ones of 80."""
    clocks = tmp_path / "clocks"
    compiler = "gcc" if platform.machine() == "aarch64" else "aarch64-linux-gnu-gcc"
    subprocess.run([compiler, "-O2", "-march=armv8.1-a", "-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector", "-o", clocks,
                    TOP / "sim/guest/clocks.c"], check=True)
    stdout, _ = call(MACHINE, "--kernel", sim_kernel, "--machine", "2x40x1", "--caches", "intel", "--add", clocks, "--", "sh", "-c",
                     "sleep 1; clocks hand 0 39 5000; clocks hand 0 70 5000; clocks upgrade 16384 0 70; clocks upgrade 16384 66 70", timeout=400)
    measured = [int(ps) for ps in re.findall(r"_ps (\d+)", stdout)]
    # core_ns, other_node_ns, and four instructions with other_node_ns and with upgrade_ns
    assert measured == [pytest.approx(ps, rel=0.05) for ps in (50000, 117000, 121000, 26000)]
