# SPDX-License-Identifier: GPL-2.0
"""What a steal and an empty mask cost: sim/cost, and its plugin. How long interrupts are off: sim/irqsoff."""

import re
import subprocess

import pytest

# Instructions: what a steal from the first CPU asked takes, and how much more than without the series a CPU that goes idle
# pays for an empty mask (Documentation/results/cost/table.txt has what was measured).
STEAL = 2600
EMPTY = 40


def test_plugin_counts_what_is_executed(run, top, tmp_path, sim_kernel):
    """From one of a kernel's first functions to another: the same count twice, and an instruction takes a ns. With caches, the same
    instructions also wait for memory."""
    vmlinux = sim_kernel.replace("/arch/arm64/boot/Image", "/vmlinux")
    names = run("aarch64-linux-gnu-nm", vmlinux).stdout
    address = {name: int(at, 16) for at, name in re.findall(r"^(\w{16}) . (sched_init|rcu_init|init_idle)$", names, re.M)}
    assert len(address) == 3
    counts = []
    for n, caches in enumerate(("none", "none", "intel")):
        points = tmp_path / "points"
        points.write_text("enter %(sched_init)x\nleave %(rcu_init)x\nidle %(init_idle)x\n" % address)
        out = tmp_path / f"counts{n}"
        run(top / "sim/machine", "--topology", "1x2x1", "--caches", caches, "--kernel", sim_kernel, "--points", points,
            "--counts", out, "--", "true")
        counts.append(out.read_text())
    lines = counts[0].splitlines()
    assert lines[0] == "instructions ns idle" and len(lines) == 2
    instructions, ns, idle = map(int, lines[1].split())
    # sched_init() calls init_idle() once, for the boot CPU, and does more than a little.
    assert idle == 1 and 1000 < instructions < 10_000_000
    assert ns == instructions and counts[0] == counts[1]
    with_caches = [int(word) for word in counts[2].splitlines()[1].split()]
    assert with_caches[0] == instructions and ns < with_caches[1] < 100 * ns


@pytest.mark.parametrize("text,message", [("enter\n", "not of lines"), ("", "not of lines"), ("enter zzz\n", "not of lines")])
def test_wrong_points(run, top, tmp_path, sim_kernel, text, message):
    (tmp_path / "points").write_text(text)
    said = run(top / "sim/machine", "--topology", "1x2x1", "--kernel", sim_kernel, "--points", tmp_path / "points",
               "--counts", tmp_path / "counts", "--", "true", check=False, stdin=subprocess.DEVNULL, timeout=60)
    assert said.returncode != 0 and message in said.stdout


@pytest.mark.full
def test_cost(run, top, tmp_path):
    table = run(top / "sim/cost", "--out", tmp_path).stdout
    rows = [line.split() for line in table.splitlines() if line.startswith("1x")]
    median, longest = ({tuple(row[:6]): int(row[column]) for row in rows} for column in (8, 10))
    for machine in ("1x2x2", "1x10x2", "1x64x2"):
        assert 1000 < median[machine, "busy", "try_steal", "all", "stolen", "1"] <= STEAL, table
        on, off = (median[machine, "timer", "pull_newidle", side, "idle", "-"] for side in ("all", "off"))
        assert 0 < on - off <= EMPTY, table
        # A search is shorter than the longest balancing of an idle CPU, and both together are hardly longer than that.
        search, on, off = (max(n for row, n in longest.items() if row[:4] == (machine, "busy", *what))
                           for what in (("try_steal", "all"), ("pull_newidle", "all"), ("pull_newidle", "off")))
        assert 0 < search < off and 0 < on <= 1.1 * off, table


@pytest.mark.full
def test_irqsoff(run, top, tmp_path):
    table = run(top / "sim/irqsoff", "--machine", "1x2x2", "--loads", "hackbench-1", "--sides", "off all", "--out", tmp_path).stdout
    of_all, of_schedule = ([line.split() for line in part.splitlines() if line.startswith("hackbench-1 ")]
                           for part in table.split("schedule", 1))
    assert [row[1] for row in of_all] == ["off", "all"] and all(0 < int(row[2]) < 10_000 and len(row) == 5 for row in of_all), table
    longest = {(row[1], row[2]): int(row[6]) for row in of_schedule}
    assert all(100 < ns < 1_000_000 for ns in longest.values()), table
    # With the features off, nobody asks a CPU; and with them on, the longest section is hardly longer than the longest balancing.
    assert not [what for side, what in longest if side == "off" and "steal" in what], table
    assert longest["all", "-"] < longest["all", "steal"] and longest["off", "-"] < longest["off", "balance"], table
    assert max(ns for (side, _), ns in longest.items() if side == "all") < 1.2 * longest["off", "balance"], table
