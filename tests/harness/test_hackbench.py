# SPDX-License-Identifier: GPL-2.0
"""bench/run-hackbench.sh on a made-up machine: what it calls bench/ab with, and what it collects without Python. Each shell runs the
smoke test; dash and mawk run the rest."""

import os
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from collector import FEATURES, ONE_BIT, ONE_PER_SHELL, SHELLS, Machine
from commands import TOP, wait_for

sys.path.insert(0, str(TOP / "bench"))

from ablib import features  # noqa: E402
from ablib.plan import read_plan  # noqa: E402

OPTIONS = {"--loops": "50", "--runs": "7", "--out": "a b", "--jobs": "2", "--quantum": "100", "--ips": "9", "--idle-exit": "0",
           "--caches": "intel", "--append": "x=1 y", "--timeout": "60"}


class Hackbench(Machine):
    """A machine with a copy of the script and of the collector, and nothing else of the checkout."""

    def __init__(self, root, kind="dash-mawk"):
        super().__init__(root, kind)
        (root / "bench").mkdir()
        self.script_path = root / "bench/run-hackbench.sh"
        shutil.copy(TOP / "bench/run-hackbench.sh", self.script_path)
        shutil.copytree(TOP / "bench/collect", root / "bench/collect")
        (root / "bench/features").write_text(ONE_BIT)
        for tool in ("ls", "rmdir"):
            self.link(shutil.which(tool))
        self.script("sh", " ".join(["exec", shutil.which(SHELLS[kind.split("-")[0]][0]), *SHELLS[kind.split("-")[0]][1:], '"$@"']))
        self.install("hackbench")

    def add_ab(self, name="ab", modules=True):
        """A bench/ab, or another program, that only says how it is called; its Python has the modules or not."""
        self.script("python", f'[ "$1" != -c ] || exit {int(not modules)}\nshift\nfor a; do echo "<$a>"; done\nexit 9')
        (self.root / "bench" / name).write_text(f"#!{self.bin}/python\n")
        (self.root / "bench" / name).chmod(0o755)

    def call(self, *words, rc=0, **more):
        """(stdout, stderr)"""
        stdout, stderr = self.finish(self.popen([*self.shell, self.script_path, *words], **more), rc)
        assert "not found" not in stderr
        return stdout, stderr

    def translated(self, *words):
        """The arguments of bench/ab without the default of --out, and what the script says."""
        stdout, stderr = self.call(*words, rc=9)
        return re.findall("<(.*)>", re.sub(r"<--out>\n<hackbench-\d{8}-\d{6}>\n", "", stdout)), stderr

    def order(self):
        """(CASE, PAIR, SIDE) of all runs in the order in which they ran."""
        runs = sorted(self.out.glob("raw/here/runs/*/*"), key=lambda run: int((run / "began_ns").read_text()))
        return [(run.parent.name, *run.name.split("-")) for run in runs]


@pytest.fixture
def machine(tmp_path):
    return Hackbench(tmp_path)


@pytest.mark.parametrize("kind", ONE_PER_SHELL)
def test_without_python(tmp_path, kind):
    m = Hackbench(tmp_path, kind)
    m.add_tracefs()
    stdout, stderr = m.call("--groups", "1,4", "--loops", "50", "--runs", "6", "--trace", "--trace-loops", "20", "--pipe", "--out", m.out)
    assert stdout == "" and f"28 runs; their files go to {m.out}" in stderr and "hackbench-pipe-4, pair 1, all: 0.250 s" in stderr
    assert f"to make the table, copy {m.out} to a machine with a checkout" in stderr
    plan = m.get("out/plan").splitlines()
    assert plan[:3] == ["format 2", "case hackbench-pipe-1", "case hackbench-pipe-4"]
    for line in ("sides off=NO_STEAL,all=STEAL", "bits STEAL", "metric:hackbench-pipe time", "level_name:hackbench-pipe groups", "loops 50",
                 "trace_loops 20", "runs 6", "machine here", f"kernel {os.uname().release} {os.uname().version}"):
        assert line in plan
    assert any(line.startswith("about:hackbench-pipe groups of ") for line in plan)
    assert re.search("^order_seed [0-9]+$", m.get("out/plan"), re.M)
    # All cases of a pair before the next pair, the long one first; each side is first as often; the traced pair is last.
    order = m.order()
    assert [(case, pair) for case, pair, _ in order[::2]] == [
        (f"hackbench-pipe-{g}", pair) for pair in "1234560" for g in (4, 1)]
    assert all({order[n][2], order[n + 1][2]} == {"off", "all"} for n in range(0, 28, 2))
    for case in ("hackbench-pipe-1", "hackbench-pipe-4"):
        first = [side for number, (name, _, side) in enumerate(order[:24]) if name == case and number % 2 == 0]
        assert first.count("all") == 3
    assert {tuple(args[2:]) for _, _, args in m.calls()} == {("-l", "50", "-p"), ("-l", "20", "-p")}
    assert sorted(path.name for path in m.out.iterdir()) == ["plan", "raw"]
    m.untouched()


def test_interrupted_and_continued(machine):
    machine.do(hackbench={"hang": True})
    words = ["--groups", "2", "--runs", "2", "--out", machine.out]
    process = machine.popen([*machine.shell, machine.script_path, *words])
    wait_for((machine.root / "proc/pids").exists)
    process.send_signal(signal.SIGTERM)
    assert f"interrupted; to continue: the same command with --out {machine.out}" in machine.finish(process, 143)[1]
    machine.untouched()
    plan = machine.get("out/plan")
    machine.do()
    machine.call(*words)
    assert machine.get("out/plan") == plan and len(machine.order()) == 4
    machine.calls()
    machine.call(*words)
    assert machine.calls() == []
    _, stderr = machine.call(*words, "--loops", "7", rc=2)
    assert "has runs of another comparison" in stderr and machine.get("out/plan") == plan
    (machine.root / "mine").mkdir()
    machine.put("mine/letter", "x")
    assert "not empty" in machine.call("--out", machine.root / "mine", rc=2)[1] and os.listdir(machine.root / "mine") == ["letter"]


def test_failed_run_and_three_sides(machine):
    machine.do(hackbench={"fail": 7})
    sides = "a=NO_STEAL,two-b=STEAL+NEXT_BUDDY,STEAL"
    _, stderr = machine.call("--groups", "1", "--runs", "1", "--out", machine.out, "--features", sides, rc=1)
    assert "hackbench-1, pair 1, a: failed with status 7: cannot do it" in stderr
    assert "\nsides a=NO_STEAL,two-b=STEAL+NEXT_BUDDY,STEAL=STEAL\n" in machine.get("out/plan")
    assert machine.get("out/raw/here/runs/hackbench-1/1-two-b/schedule").split()[3:] == ["two-b", "STEAL+NEXT_BUDDY"]


def lock_down(machine):
    """Root may read the file, but cannot: it is a directory."""
    file = machine.root / FEATURES
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("change,message,rc", [
    (lambda m: (m.bin / "hackbench").unlink(), "hackbench is not installed (package rt-tests)", 3),
    (lambda m: m.put(FEATURES, "PLACE_LAG STEALTH NO_STEALTHY\n"), "has no STEAL; run this on a kernel with all patches", 2),
    (lambda m: shutil.rmtree(m.root / "sys/kernel/debug"), "this kernel has no scheduler features", 3),
    (lock_down, "sched/features: cannot be read (kernel lockdown?)", 3),
])
def test_what_the_machine_must_have(machine, change, message, rc):
    change(machine)
    _, stderr = machine.call("--groups", "1", "--out", machine.out, rc=rc)
    assert message in stderr and not machine.out.exists()


def test_a_file_beside_it_is_missing(machine):
    shutil.rmtree(machine.root / "bench/collect")
    assert "copy the directory collect beside" in machine.call(rc=1)[1]
    (machine.root / "bench/features").unlink()
    assert "bench/features: no such file; copy it beside" in machine.call(rc=1)[1]


SIDE_LISTS = ["off,all", "off,nine,all", "x=NO_STEAL,STEAL", "STEAL+SYNC_WAIT,y=NEXT_BUDDY,a.b=all+NO_STEAL_SLICE+NEXT_BUDDY",
              "off=off+NO_NEXT_BUDDY,all=all+NO_NEXT_BUDDY", "o=all+off+NEXT_BUDDY+NO_NEXT_BUDDY,p=STEAL+NO_STEAL,nine"]


@pytest.mark.parametrize("sides", SIDE_LISTS)
@pytest.mark.parametrize("kind", ONE_PER_SHELL)
def test_sides_are_those_of_bench_ab(tmp_path, kind, sides):
    m = Hackbench(tmp_path, kind)
    shutil.copy(TOP / "tests/data/features", m.root / "bench/features")
    bits = features.read_bits(m.root / "bench/features")
    m.put(FEATURES, " ".join(["PLACE_LAG", "NO_NEXT_BUDDY", *bits]) + "\n")
    m.call("--groups", "1", "--runs", "1", "--out", m.out, "--features", sides)
    expected = {word.partition("=")[0]: features.resolve(word.rpartition("=")[2], bits) for word in sides.split(",")}
    assert read_plan(m.out).sides == expected and read_plan(m.out).words("bits") == list(bits)
    for label, what in expected.items():
        assert m.get(f"out/raw/here/runs/hackbench-1/1-{label}/schedule").split()[3:] == [label, what]


@pytest.mark.parametrize("sides,rc,message", [
    ("off,all", 2, "has no STEAL_FIRST, STEAL_SLICE (it has the nine patches, but not all follow-ups: --features off,nine compares those); "
                   "run this on a kernel with all patches"),
    ("off,nine", 0, ""), ("off=NO_STEAL,nine=STEAL", 0, ""), ("off,OTHER", 2, "has no OTHER; run this"),
    ("off,NO_OTHER", 2, "has no OTHER; run this")])
def test_kernel_without_follow_ups(machine, sides, rc, message):
    shutil.copy(TOP / "tests/data/features", machine.root / "bench/features")
    line = "PLACE_LAG STEAL STEAL_BUSIEST SYNC_WAIT\n"
    machine.put(FEATURES, line)
    _, stderr = machine.call("--groups", "1", "--runs", "1", "--here", "--out", machine.out, "--features", sides, rc=rc)
    assert message in stderr.replace(", or in a checkout, which simulates a machine", "")
    assert machine.out.exists() == (rc == 0) and (rc == 0 or len(stderr.splitlines()) == 1)


@pytest.mark.parametrize("lines,rc", [(".".join(os.uname().release.split(".")[:2]), 0), ("6.12", 2)])
def test_kernel_of_a_line_without_a_follow_up(machine, lines, rc):
    """What the series leaves out of this line of kernels need not be there."""
    text = (TOP / "tests/data/features").read_text()
    (machine.root / "bench/features").write_text(text.replace("SYNC_WAIT     follow-up  ", f"SYNC_WAIT     follow-up  not 6.6,{lines}  "))
    machine.put(FEATURES, "PLACE_LAG STEAL STEAL_FIRST STEAL_BUSIEST STEAL_SLICE\n")
    _, stderr = machine.call("--groups", "1", "--runs", "1", "--here", "--out", machine.out, "--features", "off,all", rc=rc)
    assert ("SYNC_WAIT: the series for this kernel" if rc == 0 else "has no SYNC_WAIT (it has the nine patches") in stderr


def test_not_root():
    # Not in TMPDIR, which may be in a directory that only root can enter.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        machine = Hackbench(Path(name))
        for directory, _, _ in os.walk(name):
            os.chmod(directory, 0o555)
        user = {"user": "nobody"} if os.geteuid() == 0 else {}
        assert "not root?" in machine.call("--here", rc=3, **user)[1]
        for directory, _, _ in os.walk(name):
            os.chmod(directory, 0o755)


@pytest.mark.parametrize("line", ["STEAL", "OTHER"])
def test_debugfs_is_mounted_and_unmounted(machine, line):
    """To see whether there is STEAL."""
    machine.add_ab()
    shutil.rmtree(machine.root / "sys/kernel/debug/sched")
    machine.script("mount", '[ "$1 $2 $3" = "-t debugfs debugfs" ] || exit 1\nPATH=/usr/bin:/bin\n'
                   f'mkdir "$4/sched" && echo "PLACE_LAG {line}" >"$4/sched/features"')
    machine.script("umount", 'PATH=/usr/bin:/bin\nrm -r "$1/sched"')
    words, _ = machine.translated()
    assert ("--machine" in words) == (line == "OTHER") and not (machine.root / "sys/kernel/debug/sched").exists()


# With bench/ab

def test_options_here(machine):
    machine.add_ab()
    assert machine.translated() == (["--load", "hackbench"], "")
    assert machine.translated("--groups", "1 2,1", "--threads", "--loops", "9", "--features", "x=NO_STEAL,STEAL", "--here") == (
        ["--load", "hackbench-threads-1,hackbench-threads-2", "--loops", "9", "--sides", "x=NO_STEAL,STEAL"], "")
    assert machine.translated("--pipe", "--threads", "--trace", "--trace-loops", "5", "--timeout", "60") == (
        ["--load", "hackbench-pipe-threads", "--timeout", "60", "--trace", "--trace-loops", "5"], "")
    assert machine.translated("--table", "a b") == (["--render", "a b"], "")


@pytest.mark.parametrize("modules", [True, False])
@pytest.mark.parametrize("why", [["--machine", "2x4x1"], ["--kernel", "base,x=a b"], []], ids=" ".join)
def test_simulated_machine(machine, why, modules):
    machine.add_ab(modules=modules)
    if not why:
        machine.put(FEATURES, "PLACE_LAG \n")
    default = [] if why[:1] == ["--machine"] else ["--machine", "1x10x2"]
    words, stderr = machine.translated(*why)
    assert words == ["--load", "hackbench", *default, *why, "--trace"]
    assert (" ".join(why) + " given" if why else "has no STEAL") + "; running on a simulated machine" in stderr
    more = [word for option in OPTIONS.items() for word in option]
    assert machine.translated(*more, *why, "--trace-loops", "0")[0] == ["--load", "hackbench", *default, *more, *why]
    _, stderr = machine.call(*why, "--here", rc=2)
    assert "has no STEAL" in stderr or "--here and --" in stderr


def test_published(machine):
    """bench/campaign measures the comparisons of hackbench again that are published."""
    machine.add_ab()
    assert "campaign: no such program" in machine.call("--published", rc=3)[1]
    machine.add_ab("campaign")
    assert "no comparison of hackbench is published yet" in machine.call("--published", rc=3)[1]
    names = re.findall(r"\[(hackbench(?:-large)?-(?:intel|none))\]", (TOP / "bench/campaign.conf").read_text())
    assert len(names) == 4
    machine.put(f"Documentation/results/{names[2]}/plan", "format 2\n")
    assert machine.call("--published", rc=9)[0] == f"<--repeat>\n<{names[2]}>\n"
    for name in names:
        machine.put(f"Documentation/results/{name}/plan", "format 2\n")
    stdout, _ = machine.call("--runs", "2", "--out", "a b", "--published", "--jobs", "3", rc=9)
    words = re.findall("<(.*)>", stdout)
    assert sorted(words[1].split(",")) == sorted(names) and words[2:] == ["--pairs", "2", "--jobs", "3", "--out", "a b"]


def test_python_without_modules(machine):
    """It collects, and has no table."""
    machine.add_ab(modules=False)
    machine.call("--groups", "1", "--runs", "1", "--out", machine.out)
    assert len(machine.order()) == 2


@pytest.mark.parametrize("args,message", [
    (["--what"], "unknown option: --what"), (["--runs"], "--runs needs a value"), (["--groups", ""], "--groups needs a value"),
    (["--runs", "0"], "not a positive number: 0"), (["--runs", "05"], "not a positive number: 05"),
    (["--loops", "1x"], "not a positive number: 1x"), (["--groups", "1 -2"], "not a positive number: -2"), (["--groups", "0"], "number: 0"),
    (["--trace-loops", "0", "--trace"], "not a positive number: 0"),
    (["--features", "=STEAL"], "not a side"), (["--features", "a=b=c"], "not a side"), (["--features", "a/b=STEAL"], "not a side"),
    (["--features", "off,nin"], "not a side: nin"), (["--features", "off,off+all+"], "not a side"),
    (["--features", "off,,all"], "not a side"),
    (["--features", "a=STEAL"], "fewer than two sides"), (["--features", "a=STEAL,a=NO_STEAL"], "two sides are called a"),
    (["--trace-loops", "9"], "--trace-loops needs --trace"), (["--machine", "1x2x1", "--here"], "--here and --machine exclude each other"),
    (["--table", ".", "--here"], "--table takes no other option"),
    *((words, words[0] + " is for simulated machines only") for words in (
        ["--jobs", "1"], ["--quantum", "1"], ["--ips", "1"], ["--idle-exit", "1"], ["--append", "1"])),
    *((["--published", *words], f"--published and {words[0]} exclude each other") for words in (
        ["--here"], ["--loops", "9"], ["--machine", "1x2x1"], ["--features", "off,all"], ["--trace"])),
])
def test_usage_errors(machine, args, message):
    machine.add_ab()
    _, stderr = machine.call(*args, rc=2)
    assert message in stderr and "see --help" in stderr and len(stderr.splitlines()) == 1
    machine.untouched()
    assert machine.calls() == [] and not list(machine.root.glob("hackbench-*"))
