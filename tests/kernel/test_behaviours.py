# SPDX-License-Identifier: GPL-2.0
"""What the scheduler does in situations that a reviewer asks about: two LLCs under unequal load, CPUs that differ in capacity, wakers that
do not sleep, SCHED_IDLE tasks, and pairs of tasks that take turns. tests/guest/behaviours.c makes the situations, on simulated machines. Their time is virtual, so a run
with the same kernel repeats to the nanosecond. With "pytest -s", the tests print what they measure."""

import os
import re
import shlex
import statistics
import subprocess
import sys

import pytest
from commands import TOP, call

BITS = {"STEAL", "STEAL_FIRST", "STEAL_BUSIEST", "STEAL_SLICE", "STEAL_WAITED", "SYNC_WAIT"}
OFF = set()
US, MS = 1000, 1000000
# CONFIG_HZ=250
TICK = 4 * MS
# A wakee that does not wait runs within this time.
AT_ONCE = 100 * US
# A newly idle CPU skips its last domain, as balancing there is said to take longer than any CPU is idle.
NOT_BALANCED = """
for c in /sys/kernel/debug/sched/domains/cpu*; do
    for d in $c/domain*; do :; done
    echo 900000000 >$d/max_newidle_lb_cost || exit 9
done
"""
# The same for all domains; and for the last one, while the others are said to take no time.
NONE_BALANCED = """
for d in /sys/kernel/debug/sched/domains/cpu*/domain*; do
    echo 900000000 >$d/max_newidle_lb_cost || exit 9
done
"""
LAST_NOT_BALANCED = NONE_BALANCED.replace("900000000", "0") + NOT_BALANCED


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    program = tmp_path_factory.mktemp("behaviours") / "behaviours"
    compiler = "gcc" if os.uname().machine == "aarch64" else "aarch64-linux-gnu-gcc"
    subprocess.run([compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-o", program, TOP / "tests/guest/behaviours.c"],
                   check=True)
    return program


@pytest.fixture(scope="module")
def observe(sim_kernel, program):
    """observe(TOPOLOGY, [(NAME, BITS, ARGUMENTS, SHELL)...]): one machine for all; {NAME: {KEY: [VALUE...]}}. SHELL runs first."""

    def observe(topology, *situations, **options):
        script = ["echo 1 >/proc/sys/kernel/sched_schedstats; cd /sys/kernel/debug/sched; echo slice $(cat base_slice_ns)",
                  "stolen() { awk '/^cpu/ { n += $2 } END { print n + 0 }' idle_search; }",
                  # How long newly-idle balancing took, and how often a CPU went idle.
                  "newidle() { awk 'FNR == NR && /^cpu/ { ns += $4 } FNR < NR && /^cpu/ { n += $4 } END { print ns, n }' "
                  "idle_search /proc/schedstat; }"]
        for name, on, arguments, shell in situations:
            script.append(f"echo 'situation {name}'")
            script += [f"echo {bit if bit in on else 'NO_' + bit} >features || exit 9" for bit in sorted(BITS)]
            script += [shell, "before=$(stolen) newidle=$(newidle)", f"/opt/behaviours {arguments} || exit", "echo stolen $(($(stolen) - before))",
                       "echo newidle $newidle $(newidle)"]
        stdout, _ = call(TOP / "sim/machine", "--kernel", sim_kernel, "--topology", *topology, "--timeout", 900, "--add", program, "--",
                         "sh", "-c", "\n".join(script), timeout=960, **options)
        found = {}
        for name, text in re.findall(r"^situation (.*)\n((?:(?!situation ).*\n)*)", stdout, re.M):
            for key, value in re.findall(r"^(\w+) (.*)$", text, re.M):
                found.setdefault(name, {}).setdefault(key, []).append(value)
        found["slice"] = int(re.search(r"^slice (\d+)$", stdout, re.M)[1])
        return found

    return observe


def median(values):
    return statistics.median(map(float, values))


# Two LLCs at a load of 3 to 1

# One run tells little: without balancing, some end as early as with it and others a fifth later.
RUNS = 40


@pytest.fixture(scope="module")
def llcs(observe):
    """For each side, the means of "time" (until the last task ends), of "mean" (until a task ends) and of "second" (work in the second LLC)."""
    sides = {"off": (OFF, ""), "all": (BITS, ""), "without STEAL_FIRST": (BITS - {"STEAL_FIRST"}, ""), "not balanced": (OFF, NOT_BALANCED)}
    found = observe(["2x4x1", "--numa"], *((name, on, "llcs 4 12 4 60000 1000 200", shell) for name, (on, shell) in sides.items()
                                           for _ in range(RUNS)))
    result = {name: {key: statistics.mean(map(float, found[name][key])) for key in ("time", "mean", "second")} for name in sides}
    print("\n" + "\n".join(f"llcs, {name}: {values}" for name, values in result.items()))
    return result


# How much longer than with all bits off it may take until the last task ends, and until a task ends on average. With STEAL_FIRST, the tasks
# end at less equal times: after a steal, a CPU does not balance between the LLCs.
@pytest.mark.parametrize("side,time,mean", [("all", 1.07, 1.01), ("without STEAL_FIRST", 1.02, 1.01)])
def test_two_llcs(llcs, side, time, mean):
    assert llcs[side]["time"] <= time * llcs["off"]["time"]
    assert llcs[side]["mean"] <= mean * llcs["off"]["mean"]


def test_two_llcs_need_balancing(llcs):
    """Without STEAL_FIRST, the test above would notice that newly idle CPUs do not balance between the LLCs. With all bits, they do so less often."""
    assert llcs["not balanced"]["time"] > 1.04 * llcs["off"]["time"]


@pytest.fixture(scope="module")
def entries(observe):
    """Mean time of newly-idle balancing in ns, for each time that a CPU goes idle."""
    shells = {"none": NONE_BALANCED, "not the last": LAST_NOT_BALANCED, "all": NONE_BALANCED.replace("900000000", "0")}
    found = observe(["2x4x1", "--numa"], *((name, BITS, "llcs 4 12 4 60000 1000 200", shell) for name, shell in shells.items()
                                           for _ in range(16)))
    result = {}
    for name in shells:
        ns, idle, ns_after, idle_after = map(sum, zip(*(map(int, value.split()) for value in found[name]["newidle"])))
        result[name] = (ns_after - ns) / (idle_after - idle)
    print("\n" + "\n".join(f"domains that balancing has time for, {name}: {value:.0f} ns" for name, value in result.items()))
    return result


def test_nothing_begins_that_takes_too_long(entries):
    """If balancing above the LLC takes too long, an idle entry does not begin it: the blocked averages of all groups would be for nothing."""
    assert entries["not the last"] < 3 * entries["none"]


def test_entry_that_balances_takes_longer(entries):
    """The test above would notice that balancing begins."""
    assert entries["all"] > 4 * entries["none"]


# CPUs that differ in capacity

SMALL, LARGE = 446, 1024


@pytest.fixture(scope="module")
def unequal(tmp_path_factory):
    """A QEMU whose device tree says that CPUs 0 to 2 are small. They are as fast as the other one; only the scheduler believes it."""
    directory = tmp_path_factory.mktemp("unequal")
    (directory / "capacities").write_text(f"""\
import sys
from importlib import machinery, util
sys.dont_write_bytecode = True
loader = machinery.SourceFileLoader("tree", {str(TOP / 'sim/device-tree')!r})
tree = util.module_from_spec(util.spec_from_loader("tree", loader))
loader.exec_module(tree)
with open(sys.argv[1], "rb") as file:
    root, reserved = tree.read(file.read())
for node in next(n for n in root.children if n.name == "cpus").children:
    if node.name.startswith("cpu@"):
        node.set("capacity-dmips-mhz", {SMALL} if int(node.name[4:], 16) < 3 else {LARGE})
with open(sys.argv[1], "wb") as file:
    file.write(tree.write(root, reserved))
""")
    qemu = directory / "qemu"
    # sim/machine preloads a library, which takes itself out of the environment.
    qemu.write_text(f"""\
#!/bin/sh
case "$*" in
*dumpdtb=*)
    qemu-system-aarch64 "$@" || exit
    tree=${{*##*dumpdtb=}}
    exec {shlex.quote(sys.executable)} {directory}/capacities "${{tree%%[ ,]*}}"
    ;;
*/sim.so,*)
    plugin=${{*#*-plugin }}
    export SIM_ENABLE=1 LD_PRELOAD="${{plugin%%,*}}"
    ;;
esac
exec qemu-system-aarch64 "$@"
""")
    qemu.chmod(0o755)
    return qemu


@pytest.fixture(scope="module")
def misfit(observe, unequal):
    """How long the task waits on average for each side, and how many tasks the others steal."""
    sides = {"off": (OFF, ""), "all": (BITS, ""), "without STEAL_FIRST": (BITS - {"STEAL_FIRST"}, ""), "not balanced": (BITS, NOT_BALANCED)}
    # The tasks that are stolen may run on the small CPUs 1 and 2 only, or on the large one, too.
    found = observe(["1x1x4x1"], ("capacities", OFF, "misfit 1 3 4 0 0", "echo capacity $(cat /sys/devices/system/cpu/cpu*/cpu_capacity)"),
                    *((side, on, f"misfit 10 3 4 3 {mask}", shell) for side, (on, shell) in sides.items() for mask in ("6", "e")),
                    env={**os.environ, "STEAL_QEMU": str(unequal)})
    assert found["capacities"]["capacity"] == [f"{SMALL} {SMALL} {SMALL} {LARGE}"]
    result = {side: (statistics.mean(map(int, found[side]["moved"])), min(map(int, found[side]["stolen"]))) for side in sides}
    print("\n" + "\n".join(f"misfit, {side}: moved after {moved / MS:.1f} ms, {stolen} stolen" for side, (moved, stolen) in result.items()))
    return result


# The large CPU computes 3 ms at a time: on average, the task may miss one more chance than with all bits off.
@pytest.mark.parametrize("side", ["all", "without STEAL_FIRST"])
def test_misfit(misfit, side):
    moved, stolen = misfit[side]
    assert stolen > 100
    assert moved <= misfit["off"][0] + 4 * MS


def test_misfit_needs_balancing(misfit):
    """The test above would notice a large CPU that steals and does not balance."""
    assert misfit["not balanced"][0] > misfit["off"][0] + 4 * MS


# Wakers that do not sleep, and SCHED_IDLE tasks, on CPUs 0 to 3 of an LLC; 4 is in another one

ROUNDS = 8


@pytest.fixture(scope="module")
def situations(observe):
    waits = {"busy": "0 0 f e", "one idles and is found": "0 0 f c", "one idles and is not found": "0 0 f 6", "affinity": "0 0 11 fe"}
    sides = {"off": OFF, "all": BITS, "without SYNC_WAIT": BITS - {"SYNC_WAIT"}}
    idle = {"one waits elsewhere": "1 3 1 2 2", "one waits elsewhere, asked first": "2 3 1 1 2", "one waits beside": "1 3 2 2 1",
            "none waits": "1 3 1 2 1"}
    found = observe(["2x4x1", "--numa"],
                    *((f"{side}, {name}", on, f"sync {ROUNDS} {where}", "") for side, on in sides.items() for name, where in waits.items()),
                    *((f"{side}, {name}", on, f"idle {ROUNDS} 0 {where}", "")
                      for side, on in (("all", BITS), ("without STEAL_BUSIEST", BITS - {"STEAL_BUSIEST"})) for name, where in idle.items()))
    for name in found:
        if ", " in name:
            print(f"{name}:", ", ".join(found[name].get("waited") or found[name]["took"]))
    return found


def waited(situations, name):
    """The times in ns in ascending order."""
    return sorted(int(value.split()[0]) for value in situations[name]["waited"])


def test_waker_that_does_not_sleep(situations):
    """All CPUs of the LLC are busy: the wakee waits, for the rest of the waker's slice and until a tick notices its end."""
    times = waited(situations, "all, busy")
    assert times[ROUNDS // 2] > AT_ONCE and times[-1] <= situations["slice"] + 2 * TICK


# Not in every round: a wakee can be ineligible, also with all bits off.
@pytest.mark.parametrize("side,name", [("without SYNC_WAIT", "busy"), ("all", "one idles and is found"),
                                       ("all", "one idles and is not found"), ("all", "affinity"), ("off", "affinity")])
def test_wakee_does_not_wait(situations, side, name):
    times = waited(situations, f"{side}, {name}")
    assert times[-2] <= AT_ONCE and times[-1] <= situations["slice"] + 2 * TICK


def test_idle_cpu_is_found_or_not(situations):
    """The wake-up finds the idle CPU in one case. In the other, the wakee stays on its waker's CPU; SYNC_WAIT has a rule for that."""
    for found, cpu in (("is found", "1"), ("is not found", "0")):
        cpus = [value.split()[1] for value in situations[f"all, one idles and {found}"]["waited"]]
        assert cpus.count(cpu) >= ROUNDS - 1


@pytest.mark.parametrize("name,took", [("one waits elsewhere", "b-normal"), ("one waits elsewhere, asked first", "b-normal"),
                                       ("one waits beside", "a-normal"), ("none waits", "a-idle")])
def test_sched_idle_last(situations, name, took):
    assert situations[f"all, {name}"]["took"] == [took] * ROUNDS


@pytest.mark.parametrize("name", ["one waits elsewhere", "one waits beside"])
def test_sched_idle_as_others(situations, name):
    """STEAL_BUSIEST makes the difference."""
    assert situations[f"without STEAL_BUSIEST, {name}"]["took"] == ["a-idle"] * ROUNDS


# Pairs of tasks that take turns, a pair for each CPU


@pytest.fixture(scope="module")
def pairs(observe):
    sides = {"off": OFF, "all": BITS, "without STEAL_WAITED": BITS - {"STEAL_WAITED"}}
    found = observe(["1x8x1"], *((side, on, "pairs 8 8 8", "") for side, on in sides.items() for _ in range(3)))
    result = {side: (median(found[side]["turns"]), median(found[side]["stolen"])) for side in sides}
    print("\n" + "\n".join(f"pairs, {side}: {turns:.0f} turns, {stolen:.0f} stolen" for side, (turns, stolen) in result.items()))
    return result


def test_pairs(pairs):
    """A task is not taken in the moment in which both of a pair are runnable."""
    turns, stolen = pairs["all"]
    assert stolen < turns / 400
    assert turns >= 0.99 * pairs["off"][0]


def test_pairs_need_a_rule(pairs):
    """The test above would notice that such tasks are stolen."""
    turns, stolen = pairs["without STEAL_WAITED"]
    assert stolen > turns / 100
