# SPDX-License-Identifier: GPL-2.0
"""The collector bench/collect/collect.sh, its loads, load.c and llc.awk, on made-up machines (tests/harness/collector.py)."""

import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from collector import AWKS, COLLECTOR, EVENTS, FEATURES, ONE_PER_SHELL, TRACING, Machine
from commands import FAKES, TOP, processes, wait_for

sys.path.insert(0, str(TOP / "bench"))

from ablib.plan import Metric  # noqa: E402

FILES = """began_ns boot_id command ended_ns exit features idle_search.after idle_search.before online schedstat.after schedstat.before
    schedule stderr stdout sum valid""".split()
TIMER = "Timer List Version: v0.11\nnow at 3204867600 nsecs\n"
PAIR = ["command 1 1 on STEAL", "command 1 2 off NO_STEAL"]
LOADS = TOP / "bench/collect/loads"


def both(case, pair=1):
    return [f"{case} {pair} 1 off NO_STEAL", f"{case} {pair} 2 on STEAL"]


def whole(run):
    """Does the file `sum` of a run fit its files?"""
    tool = "sha256sum" if len((run / "sum").read_text().split()[0]) == 64 else "cksum"
    names = sorted(path.name for path in run.iterdir() if path.name != "sum")
    done = subprocess.run([tool, *names], cwd=run, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout == (run / "sum").read_text()


@pytest.fixture
def here(tmp_path):
    return Machine(tmp_path)


@pytest.fixture(params=ONE_PER_SHELL)
def each_shell(tmp_path, request):
    return Machine(tmp_path, request.param)


def test_collector(each_shell):
    m = each_shell
    assert m.collect(PAIR, "load", "1000", "900", "a b", "*") == ""
    for run, features in (("1-on", "STEAL"), ("1-off", "NO_STEAL")):
        assert sorted(os.listdir(m.out / "runs/command" / run)) == FILES
        assert m.run_file(run, "exit") == "0" and m.run_file(run, "valid") == "yes"
        assert m.run_file(run, "command") == "load\n1000\n900\na b\n*"
        assert m.run_file(run, "stdout").endswith("words: a b *")
        assert features in m.run_file(run, "features").split()
        assert whole(m.out / "runs/command" / run)
    assert m.run_file("1-on", "schedule") == PAIR[0]
    assert round((int(m.run_file("1-on", "ended_ns")) - int(m.run_file("1-on", "began_ns"))) / 1000) == 902_700
    machine = {path.name: path.read_text().strip() for path in (m.out / "machine").iterdir()}
    assert machine["cpuinfo-model"] == "Fake CPU" and machine["clock"] == "timer_list" and machine["schedstat-version"] == "17"
    assert machine["topology"].splitlines()[3] == "cpu 3 package 1 core 1 threads 3 llc 2-3 node 1"
    m.untouched()


def test_llc_of_the_scheduler_goes_before_the_caches(each_shell):
    m = each_shell
    for c in range(4):
        for d in range(2):
            m.put(f"sys/kernel/debug/sched/domains/cpu{c}/domain{d}/flags", "SD_BALANCE_NEWIDLE SD_SHARE_LLC \n")
    m.collect(PAIR, "load", "1000", "900")
    assert re.findall(" llc (.*) node", m.get("out/machine/topology")) == ["0-3"] * 4


def test_what_is_done_is_not_made_again(each_shell):
    m = each_shell
    m.collect(PAIR, "load", "1000", "900")
    inode = (m.out / "runs/command/1-on").stat().st_ino
    (m.out / "runs/command/1-off/stdout").write_text("x")
    said = m.collect([*PAIR, "command 2 1 off NO_STEAL"], "load", "1000", "900")
    assert said.count("is incomplete or damaged") == 1 and "1-off" in said
    assert (m.out / "runs/command/1-on").stat().st_ino == inode
    assert "rate=" in m.run_file("1-off", "stdout") and m.run_file("2-off", "valid") == "yes"
    (m.out / "runs/command/2-off/sum").unlink()
    assert "2-off is incomplete or damaged" in m.collect(["command 2 1 off NO_STEAL"], "load", "1000", "900")
    m.untouched()


def test_without_cksum(each_shell):
    """As in a guest: busybox has none."""
    m = each_shell
    (m.bin / "cksum").unlink()
    m.link(shutil.which("sha256sum"))
    m.collect(PAIR, "load", "1000", "900")
    assert whole(m.out / "runs/command/1-on")
    (m.out / "runs/command/1-on/exit").write_text("1\n")
    assert "1-on is incomplete or damaged" in m.collect(PAIR, "load", "1000", "900")


def test_failed_and_invalid_runs_stand(each_shell):
    m = each_shell
    said = m.collect(PAIR, "load", "1000", "900", "fail-on", "meddle-off", rc=1)
    assert "pair 1, on: failed with status 7: fork: Resource temporarily unavailable" in said
    assert m.run_file("1-on", "exit") == "7" and m.run_file("1-on", "stderr").startswith("fork")
    assert m.run_file("1-off", "valid") == "somebody changed the scheduler features"
    assert m.collect(PAIR, "load", "1000", "900") == ""
    m.collect(["command 2 1 off NO_STEAL"], "load", "1000", "900", "offline-off", rc=1)
    assert m.run_file("2-off", "valid") == "the online CPUs changed"
    m.untouched()


@pytest.mark.parametrize("lines,command,options,status,message", [
    (["command 1 1 on"], ["true"], [], 2, "schedule:1: not CASE PAIR POSITION SIDE"),
    (["1 1 on STEAL"], ["true"], [], 2, "schedule:1: not CASE PAIR POSITION SIDE"),
    ([PAIR[0], "command 1 2 on STEAL"], ["true"], [], 2, "schedule:2: a second run of command, pair 1, side on"),
    (["command 1 1 on STEAL;x"], ["true"], [], 2, "schedule:1: not CASE"),
    (["command 01 1 on STEAL"], ["true"], [], 2, "schedule:1: not CASE"),
    (PAIR, [], [], 2, "no command"),
    ([*PAIR, *both("hackbench-1")], ["true"], [], 2, "schedule: has loads and the case command"),
    (both("hackbench-1"), ["true"], [], 2, "a command after --, but"),
    (both("hackbench"), [], [], 2, "hackbench needs a level, such as hackbench-1"),
    (both("pipe-2"), [], [], 2, "not a load: pipe-2; see --list"),
    (both("fork-0"), [], [], 2, "not a load: fork-0"), (both("fork-1.5"), [], [], 2, "not a load: fork-1.5"),
    (both("fork-01x"), [], [], 2, "not a load: fork-01x"), (both("fork-"), [], [], 2, "not a load: fork-"),
    (both("../loads/fork-1"), [], [], 2, "not a load: ../loads/fork-1"), (both("what-1"), [], [], 2, "not a load: what-1"),
    (PAIR, ["true"], ["--timeout", "0"], 2, "--timeout '0'"), (PAIR, ["true"], ["--scale", "0.1"], 2, "--scale '0.1'"),
    (PAIR, ["true"], ["--loops", "1x"], 2, "--loops '1x'"), (PAIR, ["true"], ["--trace-loops", "0"], 2, "--trace-loops '0'"),
    (PAIR, ["true"], ["--what"], 2, "unknown option: --what"),
    (PAIR, ["true"], ["--perf-stat"], 3, "perf is not installed"),
    (both("hackbench-1"), [], [], 3, "hackbench-1: hackbench is not installed (package rt-tests)"),
    (both("tbench-1"), [], [], 3, "tbench-1: tbench is not installed (package dbench)"),
    (["command 0 1 on STEAL"], ["true"], [], 3, "no tracefs, which traced runs need"),
    (["command 1 1 on NO_SUCH"], ["true"], [], 2, "has no SUCH"),
])
def test_collector_refuses(here, lines, command, options, status, message):
    here.script("mount", "exit 1")
    said = here.collect(lines, *command, options=options, rc=status)
    assert message in said and len(said.splitlines()) == 1
    assert not here.out.exists()
    here.untouched()


def test_collector_needs_features_to_switch(here):
    (here.root / FEATURES).unlink()
    (here.bin / "mount").unlink()
    assert "scheduler features" in here.collect(PAIR, "load", rc=3)
    assert not here.out.exists()
    # two kernels: nothing is switched
    here.put(FEATURES, "PLACE_LAG \n")
    assert here.collect(["command 1 1 base -"], "load", "5", "5") == ""
    assert here.run_file("1-base", "valid") == "yes"


@pytest.mark.parametrize("line,rc", [("STEAL", 0), ("OTHER", 2)])
def test_debugfs_is_mounted_and_unmounted(here, line, rc):
    shutil.rmtree(here.root / "sys/kernel/debug/sched")
    here.script("mount", '[ "$1 $2 $3" = "-t debugfs debugfs" ] || exit 1\nPATH=/usr/bin:/bin\n'
                f'mkdir "$4/sched" && echo "PLACE_LAG {line}" >"$4/sched/features"')
    here.script("umount", f'PATH=/usr/bin:/bin\ncp "$1/sched/features" {here.root}/last\nrm -r "$1/sched"')
    here.collect(PAIR, "load", "1000", "900", rc=rc)
    assert not (here.root / "sys/kernel/debug/sched").exists() and here.get("last").split()[-1] == line


@pytest.mark.parametrize("has,sides,message", [
    ("STEAL", ["STEAL+NO_SYNC_WAIT", "NO_STEAL+NO_SYNC_WAIT"], ""),
    ("STEAL", ["STEAL+NO_SYNC_WAIT", "STEAL+SYNC_WAIT"],
     "has no SYNC_WAIT; it has the nine patches, but not all follow-ups: apply them (scripts/apply), or compare off,nine"),
    ("STEAL", ["STEAL+SYNC_WAIT+NO_OTHER", "STEAL_FIRST"], "has no OTHER, STEAL_FIRST, SYNC_WAIT; it has the nine patches"),
    ("STEAL", ["STEAL+NO_OTHER", "NO_STEAL"], "has no OTHER\n"),
    ("NEXT_BUDDY", ["NO_STEAL", "NO_STEAL+NEXT_BUDDY"], ""),
    ("NEXT_BUDDY", ["NO_STEAL", "STEAL+SYNC_WAIT"], "has no STEAL, SYNC_WAIT; boot a kernel with the patches (scripts/apply)")])
def test_bits_that_the_kernel_lacks(here, tmp_path, has, sides, message):
    """A bit of the series that no line turns on may be missing: it is off. The list is beside the collector, or one directory up."""
    place = tmp_path / "copy/collect"
    shutil.copytree(COLLECTOR.parent, place)
    shutil.copy(TOP / "tests/data/features", place if "OTHER" in sides[0] else place.parent)
    here.script_path = place / "collect.sh"
    here.put(FEATURES, f"PLACE_LAG {has}\n")
    said = here.collect([f"command 1 {number} side{number} {what}" for number, what in enumerate(sides, 1)], "load", "9", "8",
                        rc=2 if message else 0)
    assert message in said and len(said.splitlines()) == bool(message)
    assert here.out.exists() == (not message) and here.get(FEATURES).split()[-1] == has
    if not message:
        assert here.run_file("1-side2", "valid") == "yes"
        assert here.run_file("1-side2", "features").split()[-1] == {"STEAL": "NO_STEAL", "NEXT_BUDDY": "NEXT_BUDDY"}[has]


@pytest.mark.parametrize("release,without", [("6.12.118-00015-g791a50df", True), ("6.12", True), ("6.120.1", False), ("6.1.12", False),
                                             ("7.3.4", False)])
def test_bits_that_the_series_leaves_out_of_a_line(here, tmp_path, release, without):
    """They are off on all sides, on a kernel of this line, and missing on others."""
    place = tmp_path / "copy/collect"
    shutil.copytree(COLLECTOR.parent, place)
    text = (TOP / "tests/data/features").read_text()
    (place / "features").write_text(text.replace("SYNC_WAIT     follow-up  ", "SYNC_WAIT     follow-up  not 6.6,6.12  ")
                                    .replace("needs STEAL  lets", "needs STEAL  not 6.12  lets"))
    here.script_path = place / "collect.sh"
    here.script("uname", f'[ "$1" = -r ] && echo {release} || exec {shutil.which("uname")} "$@"')
    here.put(FEATURES, "PLACE_LAG STEAL\n")
    said = here.collect(["command 1 1 off NO_STEAL+NO_SYNC_WAIT", "command 1 2 all STEAL+STEAL_SLICE+SYNC_WAIT"], "load", "9", "8",
                        rc=0 if without else 2)
    if without:
        assert [f"{name}: the series for this kernel, {release}, leaves it out, so it is off on all sides" in said
                for name in ("STEAL_SLICE", "SYNC_WAIT")] == [True, True] and len(said.splitlines()) == 2
        assert here.run_file("1-all", "valid") == "yes" and here.run_file("1-all", "features").split()[-1] == "STEAL"
    else:
        assert "has no STEAL_SLICE, SYNC_WAIT; it has the nine patches" in said


def test_a_label_with_a_plus(here):
    here.collect(["command 1 1 STEAL+X STEAL"], "load", "9", "8")
    assert here.run_file("1-STEAL+X", "valid") == "yes"


def test_three_sides(here):
    """Features that only other sides name are as they were found."""
    # The file holds only what was written last, and the collector reads it after each write.
    seen = here.root / "seen"
    here.script("cat", f'case $1 in */features) read -r all <"$1"; echo "$all" >>{seen};; esac\nexec {shutil.which("cat")} "$@"')
    here.collect(["command 1 1 off NO_STEAL", "command 1 2 two STEAL+NEXT_BUDDY", "command 1 3 on STEAL"], "load", "1000", "900")
    words = [line.strip() for line in seen.read_text().splitlines()]
    words = [word for number, word in enumerate(words) if not number or words[number - 1] != word]
    assert words[words.index("NEXT_BUDDY"):][:3] == ["NEXT_BUDDY", "NO_NEXT_BUDDY", "STEAL"], words
    here.untouched()


def test_collector_without_schedstats(each_shell):
    m = each_shell
    shutil.rmtree(m.root / "proc")
    m.put("proc/timer_list", TIMER)
    m.link(shutil.which("sh"))
    m.collect(["command 2 1 on STEAL"], "sh", "-c", f"echo now at 3204868600 nsecs >{m.root}/proc/timer_list")
    assert m.run_file("2-on", "valid") == "yes" and not (m.out / "runs/command/2-on/schedstat.before").exists()


@pytest.mark.parametrize("clock", ["date", "uptime"])
def test_other_clocks(here, clock):
    (here.root / "proc/timer_list").unlink()
    if clock == "uptime":
        here.script("date", "echo 1700000000N")
    here.link(shutil.which("sh"))
    here.collect(["command 1 1 on STEAL"], "sh", "-c", f"sleep 0.2; echo 100.50 0.00 >{here.root}/proc/uptime")
    assert here.get("out/machine/clock").strip() == clock and here.run_file("1-on", "valid") == "yes"
    taken = int(here.run_file("1-on", "ended_ns")) - int(here.run_file("1-on", "began_ns"))
    assert taken == 250_000_000 if clock == "uptime" else 200_000_000 <= taken < 5_000_000_000


def test_clock_is_read_between_the_counters(here):
    """Reading the counters takes an hour here, and is no part of the run's time."""
    timer = here.root / "proc/timer_list"
    here.script("cat", f"at=$(sed -n 's/^now at \\([0-9]*\\).*/\\1/p' {timer})\n"
                f'echo "now at $((at + 3600000000000)) nsecs" >{timer}\nexec {shutil.which("cat")} "$@"')
    here.collect(PAIR, "load", "1000", "900")
    assert 0.99e9 < int(here.run_file("1-off", "ended_ns")) - int(here.run_file("1-off", "began_ns")) < 1.01e9


@pytest.mark.parametrize("case", ["command", "hackbench-1"])
def test_perf_stat(each_shell, case):
    m = each_shell
    m.link(FAKES / "ab/perf")
    m.link(shutil.which("sh"))
    m.install("hackbench")
    command = ["load", "1000", "900"] * (case == "command")
    m.collect(both(case), *command, options=["--perf-stat"])
    assert "context-switches" in m.run_file(f"{case}/1-on", "perf-stat")
    assert ("rate=" if command else "Time: ") in m.run_file(f"{case}/1-on", "stdout")
    assert m.run_file(f"{case}/1-on", "command").splitlines()[0] == ("load" if command else "hackbench")


def test_say_runs(each_shell):
    m = each_shell
    m.install("hackbench")
    assert m.collect(both("hackbench-2"), options=["--say-runs"]).splitlines() == [
        "collect: hackbench-2, pair 1, off: 0.250 s", "collect: hackbench-2, pair 1, on: 0.250 s"]
    assert m.collect(both("hackbench-2"), options=["--say-runs"]) == ""


def test_run_that_takes_too_long(each_shell):
    m = each_shell
    m.collect(PAIR, "load", "1000", "900", "hang-on", rc=1, options=["--timeout", "1"])
    assert m.run_file("1-on", "exit") == "124" and m.run_file("1-off", "exit") == "0"
    wait_for(m.all_gone)
    m.untouched()


@pytest.mark.parametrize("number,status", [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_collector_interrupted(each_shell, number, status):
    m = each_shell
    process = m.start_hanging(["command 1 1 off NO_STEAL", "command 1 2 on STEAL"], "load", "1000", "900", "hang-off")
    process.send_signal(number)
    m.finish(process, status)
    assert m.all_gone() and os.listdir(m.out / "runs/command") == []
    m.untouched()


def test_collector_killed(each_shell):
    """The next call knows what the features were before."""
    m = each_shell
    process = m.start_hanging(["command 1 1 off NO_STEAL"], "load", "1000", "900", "hang-off")
    process.kill()
    m.finish(process, -9)
    for pid in m.get("proc/pids").split():
        os.kill(int(pid), signal.SIGKILL)
    assert m.get(FEATURES).split() == ["NO_STEAL"] and m.get("proc/sys/kernel/sched_schedstats").strip() == "1"
    m.collect(["command 1 1 off NO_STEAL"], "load", "1000", "900")
    m.untouched()


def test_collector_waits_for_one_that_ends(each_shell):
    """One that was told to end gives its command a second, and puts everything back after that."""
    m = each_shell
    first = m.start_hanging(["command 1 1 off NO_STEAL"], "load", "1000", "900", "hang-off-1")
    first.send_signal(signal.SIGTERM)
    wait_for(m.all_gone)
    m.link(shutil.which("sh"))
    m.collect(["command 1 1 off NO_STEAL"], "sh", "-c", "sleep 2; load 1000 900")
    m.finish(first, 143)
    assert m.run_file("1-off", "exit") == "0" and m.run_file("1-off", "valid") == "yes"
    m.untouched()


def test_machine_of_another_kind_is_refused(here):
    here.collect(PAIR, "load", "1000", "900")
    here.put("proc/cmdline", "nosmt\n")
    said = here.collect(PAIR, "load", "1000", "900", rc=2)
    assert "another machine or kernel" in said and here.get("out/machine/cmdline") == "console=ttyS0\n"
    here.untouched()


def test_full_disk(here):
    """On a full file system it stops; a run is there as a whole or not at all. With more space, the same command goes on."""
    lines = [f"command {pair} {position} {side}" for pair in range(1, 9) for position, side in ((1, "on STEAL"), (2, "off NO_STEAL"))]
    command = here.collector(lines, "load", "1000", "900")
    command[command.index(here.out)] = here.root / "full/out"
    stderr = here.on_full_disk(command, 1, {"PATH": f"{here.bin}:{os.environ['PATH']}"})
    assert "cannot be written" in stderr or "cannot be made" in stderr, stderr
    runs = list((here.out / "runs/command").iterdir())
    assert len(runs) == 16 and all(map(whole, runs))
    here.untouched()


# Loads

def listed(machine, *names, rc=0):
    """What --list says, as {LOAD: {KEY: [VALUE...]}}."""
    done = machine.finish(machine.popen([*machine.shell, machine.script_path, "--list", *names]), rc)
    blocks = {}
    for block in re.findall(r"^load (\S+)\n((?:.+\n)*?)end$", done[0], re.M):
        blocks[block[0]] = found = {}
        for line in block[1].splitlines():
            key, _, value = line.partition(" ")
            found.setdefault(key, []).append(value)
    return blocks if not rc else done[1]


def test_list(each_shell):
    m = each_shell
    m.install("hackbench", "perf")
    blocks = listed(m)
    assert set(blocks) == {path.name for path in LOADS.iterdir()} and len(blocks) == 16
    for name, block in blocks.items():
        assert block["about"][0] and block["needs"][0].count(" ") == 1 and block["amount"][0] in ("loops", "scale")
        assert ("levels" in block) == ("level_name" in block) == (name != "pipe")
        for spec in block["parse"]:
            Metric.parse(spec.replace(",same", ""))
    assert [name for name, block in blocks.items() if block["here"] == ["yes"]] == [
        "hackbench", "hackbench-pipe", "hackbench-pipe-threads", "hackbench-threads", "hogs", "messaging", "pipe"]
    assert blocks["hackbench-pipe"] == {
        "about": ["groups of 20 senders and 20 receivers that send messages through pipes."], "needs": ["hackbench rt-tests"],
        "here": ["yes"], "levels": ["1 2 3 4 8"], "level_name": ["groups"], "amount": ["loops"], "parse": ["time"]}
    # cc would make the program of the other loads
    m.link(shutil.which("true"), "cc")
    assert listed(m, "latency-1.5x", "pipe")["latency"]["levels"] == ["1.5x"]
    assert listed(m, "fork")["fork"]["here"] == ["yes"]
    assert "not a load: pipe-2 (--list)" in listed(m, "pipe-2", rc=2)


METRICS = {
    "hackbench": {"time": None}, "pipe": {"op_time": 4.684}, "hogs": {"op_time": 4.684}, "messaging": {"run_time": 0.123},
    "latency": {"wake_p50": 1, "wake_p90": 2, "wake_p99": 3, "wake_p99.9": 4, "wake_max": 5e-06, "request_p50": 101, "request_p90": 102,
                "request_p99": 103, "request_p99.9": 104, "request_max": 100.000005, "rate": 99.5},
    "threads": {"run_time": 0.0223}, "mutex": {"run_time": 0.0223}, "switch": {"rate": 380140.47}, "fork": {"run_time": 0.25},
    "barrier": {"run_time": 0.25},
    "nice": {"share_nice0": 70.5, "share_nice5": 20, "share_nice10": 9.5, "share_sleepers": 8, "run_time": 2},
}
METRICS["paced"] = METRICS["latency"]
# On 4 CPUs, with --loops 50 and --scale 2.
CALLS = """
hackbench-2              hackbench -g 2 -l 50
hackbench-pipe-1         hackbench -g 1 -l 50 -p
hackbench-threads-8      hackbench -g 8 -l 50 -T
hackbench-pipe-threads-1 hackbench -g 1 -l 50 -p -T
pipe                     perf bench sched pipe -l 20000
hogs-1x                  perf bench sched pipe -l 200
messaging-2x             perf bench sched messaging -g 1 -l 4000
messaging-81             perf bench sched messaging -g 3 -l 4000
latency-0.5x             load wake --workers 2 --requests 3200 --seed 7
paced-80                 load wake --busy 80 --workers 16 --requests 3200 --seed 7
threads-2x               sysbench threads --threads=8 --thread-locks=8 --thread-yields=100 --time=0 --events=2000 run
mutex-1x                 sysbench mutex --threads=4 --mutex-num=64 --mutex-loops=1000 --mutex-locks=50000 run
switch-0.5x              stress-ng --switch 1 --switch-ops 40000 --metrics-brief
switch-3                 stress-ng --switch 2 --switch-ops 40000 --metrics-brief
fork-1.5x                load fork --tasks 6 --rounds 40 --work 1000000 --seed 7
fork-0.01x               load fork --tasks 1 --rounds 40 --work 1000000 --seed 7
barrier-1x               load fork --barrier --tasks 4 --rounds 100 --work 500000 --seed 7
nice-1x                  load nice --tasks 4 --total 400000000 --seed 7
"""


def with_load(machine):
    """The collector beside a program load, so that none is compiled."""
    top = machine.root / "collect"
    shutil.copytree(TOP / "bench/collect", top)
    (top / "load").symlink_to(FAKES / "load")
    machine.script_path = top / "collect.sh"


def test_loads(each_shell):
    """Each load's command, and what --list says how to read its figures."""
    m = each_shell
    with_load(m)
    m.install("hackbench", "perf", "sysbench", "stress-ng")
    calls = dict(line.split(None, 1) for line in CALLS.split("\n") if line)
    assert m.collect([line for case in calls for line in both(case, 7)], options=["--loops", "50", "--scale", "2"]) == ""
    assert m.calls() == [(call.split()[0], side, call.split()[1:]) for call in calls.values() for side in ("off", "on")]
    for case in calls:
        run, base = f"{case}/7-on", re.sub("-(pipe|threads|[0-9].*)", "", case)
        load, block = next(iter(listed(m, case).items()))
        level = case.removeprefix(load).removeprefix("-")
        assert m.run_file(run, "valid") == "yes"
        amount = "loops=50" if base == "hackbench" else "scale=2"
        assert m.run_file(run, "command").splitlines() == [load, *[level] * bool(level), amount]
        tasks = {"1x": "4", "2x": "8", "0.5x": "2", "1.5x": "6", "0.01x": "1"}.get(level, level)
        assert (m.out / "runs" / run / "tasks").exists() == bool(level) and (not level or m.run_file(run, "tasks") == tasks)
        metrics = {metric.name: metric for metric in (Metric.parse(spec.replace(",same", "")) for spec in block["parse"])}
        output = m.run_file(run, "stdout")
        assert {name: metric.regex and metric.value(output) or None for name, metric in metrics.items()} == METRICS[base], case
    m.untouched()


def test_tbench(each_shell):
    """100 MB a second go over the loopback device; both sides are ended."""
    m = each_shell
    m.install("tbench", "tbench_srv")
    m.collect(both("tbench-0.5x"), options=["--scale", "4"])
    assert [args[-2] for name, _, args in m.calls() if name == "tbench"] == ["2", "2"]
    for side in ("off", "on"):
        rate = Metric.parse(listed(m, "tbench")["tbench"]["parse"][0]).value(m.run_file(f"tbench-0.5x/1-{side}", "stdout"))
        assert rate == pytest.approx(100, rel=0.2)
    assert "releasing clients" in m.run_file("tbench-0.5x/1-on", "stdout")
    assert not processes(str(m.bin / "tbench"))
    # The port is in use.
    (m.root / "proc/net/tcp").write_text("   0: 00000000:1B5B 00000000:0000 0A 0 0\n")
    assert "pair 2, off: failed with status 1: port 7003 is in use" in m.collect(both("tbench-1", 2)[:1], rc=1)
    m.untouched()


def test_hogs_do_not_stay(each_shell):
    """Neither after the load nor when it is interrupted."""
    m = each_shell
    with_load(m)
    m.install("perf")

    def hogs():
        return processes(str(m.script_path))
    m.collect(both("hogs-3"))
    assert not hogs()
    m.do(perf={"hang": True})
    process = m.start_hanging(both("hogs-3", 2))
    assert len(hogs()) >= 4
    process.send_signal(signal.SIGTERM)
    m.finish(process, 143)
    assert m.all_gone()
    wait_for(lambda: not hogs())
    m.untouched()


def test_failed_load(here):
    here.install("perf", "hackbench")
    here.do(perf={"fail": 3}, hackbench={"text": "Running with 1*40 (== 40) tasks.\nTime: 1"})
    said = here.collect([*both("pipe"), *both("hackbench-1")], rc=1)
    assert "pipe, pair 1, off: failed with status 3: cannot do it" in said
    assert "hackbench-1, pair 1, on: not valid: the output is not that of hackbench of package rt-tests" in said
    # hackbench of another number of groups
    here.do(hackbench={"text": "Running in process mode with 10 groups using 40 file descriptors each\nTime: 1"})
    assert "not valid" in here.collect(both("hackbench-1", 2), rc=1)
    here.untouched()


def test_load_is_compiled(here):
    """load.c, if there is no program load beside the collector."""
    here.script("cc", f'[ "$1 $2 $3" = "-O2 -pthread -o" ] && {shutil.which("cp")} {FAKES}/load "$4"')
    here.collect(both("fork-2"))
    assert here.run_file("fork-2/1-on", "stdout") == "metric time s lower 0.25" and here.run_file("fork-2/1-on", "tasks") == "2"
    here.script("cc", "echo 'load.c:1: error: no headers'; exit 1")
    assert "load.c: cannot be compiled: load.c:1: error: no headers" in here.collect(both("fork-2", 2), rc=1)
    here.untouched()


# Traced runs

TRACED = [f"hackbench-2 0 {position} {side}" for position, side in ((1, "off NO_STEAL"), (2, "on STEAL"))]
RESTORED = ["1", "1408"] + ["0"] * len(EVENTS)


def test_traces(each_shell):
    m = each_shell
    m.install("hackbench", "perf")
    m.add_tracefs()
    said = m.collect([*TRACED, *both("hackbench-2"), "pipe 0 1 on STEAL"], options=["--loops", "50", "--trace-loops", "20", "--say-runs"])
    assert "collect: hackbench-2, pair 0, off: 0.250 s" in said
    assert [args for name, _, args in m.calls()] == [
        ["-g", "2", "-l", loops] for loops in ("20", "20", "50", "50")] + [["bench", "sched", "pipe", "-l", "10000"]]
    for run in ("hackbench-2/0-off", "hackbench-2/0-on", "pipe/0-on"):
        head, _, rest = m.run_file(run, "trace").partition("# tracer: nop\n")
        assert head.splitlines() == ["#: cpus 4", "#: clock local", "#: begin 2.000100", "#: end 2.345600",
                                     f"#: overruns {0 + 1 + 2 + 3 + 4}"]
        assert "sched_switch: prev_comm=swapper/0" in rest and m.run_file(run, "valid") == "yes" and whole(m.out / "runs" / run)
    assert m.run_file("hackbench-2/0-on", "command") == "hackbench\n2\nloops=20"
    assert not (m.out / "runs/hackbench-2/1-off/trace").exists()
    # Nothing was on in the last of the other runs; everything was on in the traced ones.
    assert sorted(m.get("proc/traced-with").split()) == ["1"] * 6 + ["4096"]
    assert m.tracing() == RESTORED and m.get(TRACING + "trace_marker") == "run ends\n"
    m.untouched()
    # what is there is not traced again
    m.collect(TRACED, options=["--trace-loops", "20"])
    assert m.calls() == []


def test_tracing_is_off_in_other_runs(here):
    here.install("hackbench")
    here.add_tracefs()
    here.collect([*TRACED, *both("hackbench-2")])
    assert sorted(here.get("proc/traced-with").split()) == ["0"] * 5 + ["1", "1408"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_trace_interrupted(each_shell, number):
    m = each_shell
    m.install("hackbench")
    m.add_tracefs()
    m.do(hackbench={"hang": True})
    process = m.start_hanging(TRACED)
    assert m.tracing() == ["1", "4096"] + ["1"] * len(EVENTS)
    process.send_signal(number)
    m.finish(process, 130 if number == signal.SIGINT else -9)
    if number == signal.SIGKILL:
        for pid in m.get("proc/pids").split():
            os.kill(int(pid), signal.SIGKILL)
        m.do()
        # one without traced runs puts everything back, too
        m.collect(both("hackbench-1"))
        assert sorted(m.get("proc/traced-with").split()) == ["0"] * 5 + ["1", "1408"]
    assert m.tracing() == RESTORED
    m.untouched()
    m.do()
    m.collect(TRACED)
    assert m.run_file("hackbench-2/0-on", "valid") == "yes" and m.tracing() == RESTORED


def test_trace_of_a_failing_run(here):
    here.install("hackbench")
    here.add_tracefs()
    here.do(hackbench={"fail": 7})
    assert "hackbench-2, pair 0, off: failed with status 7: cannot do it" in here.collect(TRACED, rc=1)
    assert here.run_file("hackbench-2/0-off", "exit") == "7" and here.tracing() == RESTORED
    here.untouched()


def test_trace_events_in_use_or_absent(here):
    here.install("hackbench")
    here.add_tracefs()
    here.put(TRACING + "events/sched/sched_migrate_task/enable", "1\n")
    before = here.tracing()
    assert "sched_migrate_task is in use; traced runs need the trace for themselves" in here.collect(TRACED, rc=3)
    assert here.tracing() == before and not here.out.exists()
    shutil.rmtree(here.root / TRACING / "events")
    assert "no trace event sched_switch, which traced runs need" in here.collect(TRACED, rc=3)
    here.untouched()


def test_tracefs_is_mounted_and_unmounted(here):
    here.install("hackbench")
    here.add_tracefs()
    (here.root / TRACING).rename(here.root / "tracefs")
    here.script("mount", f'[ "$1 $2 $3" = "-t tracefs tracefs" ] && PATH=/usr/bin:/bin exec mv {here.root}/tracefs "$4"')
    here.script("umount", f'PATH=/usr/bin:/bin exec mv "$1" {here.root}/tracefs')
    here.collect(TRACED)
    assert here.get("tracefs/tracing_on") == "1\n" and here.run_file("hackbench-2/0-on", "trace")
    here.untouched()


# load.c

@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """load(ARG...): the metrics that it prints as {NAME: (UNIT, BETTER, VALUE)}."""
    program = tmp_path_factory.mktemp("load") / "load"
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-static", "-o", program, TOP / "bench/collect/load.c"],
                   check=True)

    def run(*args, rc=0, before=()):
        done = subprocess.run([*before, program, *map(str, args)], capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == rc, done.stdout + done.stderr
        if rc:
            return done.stderr
        lines = [line.split() for line in done.stdout.splitlines()]
        assert all(len(words) == 5 and words[0] == "metric" for words in lines), done.stdout
        return {words[1]: (words[2], words[3], float(words[4])) for words in lines}
    return run


ONE_CPU = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))]


def test_wake(load):
    metrics = load("wake", "--workers", 5, "--requests", 1000, "--work", 20000, "--pause", 20)
    parts = ["p50", "p90", "p99", "p99.9", "max"]
    assert list(metrics) == [f"{what}_{part}" for what in ("wake", "request") for part in parts] + ["rate"]
    us = {name: value for name, (unit, better, value) in metrics.items() if (unit, better) == ("us", "lower")}
    for what in ("wake", "request"):
        values = [us[f"{what}_{part}"] for part in parts]
        assert values == sorted(values) and values[0] < values[-1]
    # work takes time, of any CPU
    assert us["request_p50"] > us["wake_p50"] and us["request_p50"] > 5
    assert metrics["rate"][:2] == ("requests/s", "higher")
    # no more than the workers can do: each has one request at a time
    assert metrics["rate"][2] < 5 * 1e6 / (us["request_p50"] / 2)


def test_wake_up_is_without_the_work(load):
    # Work that takes longer than a task waits on a busy machine.
    metrics = load("wake", "--workers", 1, "--requests", 20, "--work", 20000000)
    assert metrics["wake_p50"][2] < metrics["request_p50"][2] / 2


def test_busy_sets_the_rate(load):
    """The rate does not depend on the answers but for a machine that can't give them in time."""
    slow, fast = (load("wake", "--workers", 8, "--requests", 400, "--work", 200000, "--busy", percent)["rate"][2] for percent in (2, 6))
    assert 2 < fast / slow < 4, (slow, fast)


@pytest.mark.parametrize("how", [[], ["--threads"], ["--barrier"]])
def test_fork(load, how):
    one, ten = (min(load("fork", "--tasks", 3, "--rounds", rounds, "--work", 2000000, *how)["time"][2] for _ in range(tries))
                for rounds, tries in ((1, 5), (10, 1)))
    # 3 tasks of 2 to 8 ms on as many CPUs or fewer
    assert ten > 2 * one > 0.001


def test_barrier_counts_from_the_first(load):
    """On one CPU the time is that of all tasks, although each of them begins when another one has ended."""
    one, three = (min(load("fork", "--barrier", "--tasks", tasks, "--rounds", 1, "--work", 500000, before=ONE_CPU)["time"][2]
                      for _ in range(15)) for tasks in (1, 3))
    assert three > 2.7 * one, (one, three)


def test_nice_weights(load):
    """On one CPU they are those of the kernel's table: 1024, 335 and 110."""
    metrics = load("nice", "--tasks", 1, "--sleepers", 0, "--total", 500000000, before=ONE_CPU)
    assert list(metrics) == ["share_nice0", "share_nice5", "share_nice10", "time"]
    shares = [value for unit, better, value in metrics.values() if (unit, better) == ("%", "same")]
    assert sum(shares) == pytest.approx(100)
    assert shares == pytest.approx([100 * weight / 1469 for weight in (1024, 335, 110)], rel=0.2)


def test_nice_levels_and_sleepers(load):
    metrics = load("nice", "--levels", "0,19", "--tasks", 2, "--sleepers", 2, "--total", 100000000)
    assert list(metrics) == ["share_nice0", "share_nice19", "share_sleepers", "time"]
    assert metrics["share_nice0"][2] + metrics["share_nice19"][2] == pytest.approx(100)
    assert metrics["share_nice0"][2] > 60 and 0 < metrics["share_sleepers"][2] < 60


@pytest.mark.parametrize("args,message", [
    ([], "the first argument is wake, fork or nice"), (["sleep"], "not 'sleep'"), (["wake", "--tasks", 1], "unknown argument of wake"),
    (["fork", "--tasks", 0], "--tasks needs a number from 1"), (["fork", "--tasks"], "--tasks needs a number"),
    (["fork", "--tasks", "1x"], "--tasks needs a number"), (["fork", "--vary", 101], "--vary is at most 100"),
    (["fork", "--threads", "--barrier"], "either --threads or --barrier"), (["nice", "--levels", "0,20"], "'20' is no nice value"),
    (["nice", "--levels"], "--levels needs nice values"), (["wake", "--requests", 9], "from 10"),
])
def test_usage_errors_of_load(load, args, message):
    assert message in load(*args, rc=2)


# llc.awk: the scheduler's last-level caches

def llc(flags, domains, version=17):
    """{cpu: list} for the LLC flags {cpu: [domain numbers]} and /proc/schedstat with the domains {cpu: [masks]}."""
    name = "/sys/kernel/debug/sched/domains/cpu%d/domain%d/flags:SD_BALANCE_NEWIDLE SD_SHARE_LLC SD_PREFER_SIBLING \n"
    text = "".join(name % (cpu, domain) for cpu in flags for domain in flags[cpu]) + "version %d\ntimestamp 1\n" % version
    for cpu, masks in domains.items():
        text += "cpu%d 0 0 1 2 3 4 5 6 7\n" % cpu
        text += "".join("domain%d %s%s 1 2 3\n" % (i, "MC " if version >= 17 else "", mask) for i, mask in enumerate(masks))
    found = []
    for awk in AWKS.values():
        if shutil.which(awk[0]):
            done = subprocess.run([*awk, "-f", TOP / "bench/collect/llc.awk"], input=text, text=True, capture_output=True, check=True)
            assert done.stderr == ""
            found.append(dict(line.removeprefix("cpu").split(" ") for line in done.stdout.splitlines()))
    assert found.count(found[0]) == len(found)
    return found[0]


@pytest.mark.parametrize("version", [15, 17])
def test_several_llcs(version):
    domains = {c: ["03" if c < 2 else "0c" if c < 4 else "f0", "ff"] for c in range(8)}
    assert llc({c: [0] for c in range(8)}, domains, version) == {
        str(c): "0-1" if c < 2 else "2-3" if c < 4 else "4-7" for c in range(8)}


WIDE = {0: ["00000000,00000000,000fffff"], 45: ["00000000,000fffff,fff00000"], 95: ["ffff0000,00000000,00000000"],
        64: ["00000001,80000000,00000000"]}


@pytest.mark.parametrize("flags,domains,expected", [
    # SMT below and a node above, the flag in the lower two, the higher one read first
    ({0: [1, 0], 1: [0, 1]}, {0: ["3", "f", "ff"], 1: ["3", "f", "ff"]}, {"0": "0-3", "1": "0-3"}),
    ({c: [0] for c in WIDE}, WIDE, {"0": "0-19", "45": "20-51", "95": "80-95", "64": "63-64"}),
    ({0: [0]}, {0: ["00000000,80010115"]}, {"0": "0,2,4,8,16,31"}),
    # cpu1 is not cpu11, domain1 is not domain10
    ({1: [10], 11: [1]}, {1: ["2"] * 10 + ["f0002"], 11: ["800", "c00"] + ["fff"] * 9}, {"1": "1,16-19", "11": "10-11"}),
    ({0: [0], 1: [0]}, {0: ["3"], 1: ["3"], 2: ["7"]}, {"0": "0-1", "1": "0-1", "2": "2"}),
    ({}, {0: ["3"], 1: ["3"]}, {}), ({}, {0: []}, {}),
], ids=["the widest", "many CPUs", "holes", "like names", "alone", "no flags", "no domains"])
def test_llc(flags, domains, expected):
    assert llc(flags, domains) == expected
