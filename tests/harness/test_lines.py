# SPDX-License-Identifier: GPL-2.0
"""Lines of memory that move: their names, bench/lines, sim/names on files made by hand, and what bench/ab makes of sections."""

import csv
import importlib.machinery
import importlib.util
import re
import shutil
import sys

import pytest

from collector import FEATURES, Machine
from commands import TOP, call
from test_ablib import Raw

sys.path.insert(0, str(TOP / "bench"))
import ablib  # noqa: E402
from ablib import fold, lines  # noqa: E402

NAMES, SECTIONS = TOP / "tests/data/names", TOP / "tests/data/sections"
LOADER = importlib.machinery.SourceFileLoader("sim_names", str(TOP / "sim/names"))
SIM_NAMES = importlib.util.module_from_spec(importlib.util.spec_from_loader("sim_names", LOADER))
LOADER.exec_module(SIM_NAMES)

EACH = {
    "runqueues[1].cfs.h_nr_runnable, .cfs.h_nr_idle": 300000, "runqueues[0].nr_running": 90000, "runqueues[2].cfs.h_nr_runnable": 80000,
    "cfs_overload_cpus[LLC 0] header": 50000, "cfs_overload_cpus[LLC 0] line 0": 40000, "cfs_overload_cpus[LLC 1] line 0": 30000,
    "memory 0xffff000020001080 (by copy)": 29000, "sd_llc_shared[LLC 1].has_idle_cores": 28000, "jiffies": 20000, "table line 2": 19000,
    "user 0xaaaa00000000": 10000, "user 0xaaaa00000040": 9000, "memory (by copy)": 250000, "user (by programs)": 45000,
}
GROUPED = {
    "runqueues[*].cfs.h_nr_runnable, .cfs.h_nr_idle": 380000, "memory (by copy)": 279000, "runqueues[*].nr_running": 90000,
    "user (by programs)": 55000, "cfs_overload_cpus[LLC 0] header": 50000, "cfs_overload_cpus[LLC 0] line 0": 40000,
    "cfs_overload_cpus[LLC 1] line 0": 30000, "sd_llc_shared[LLC 1].has_idle_cores": 28000, "jiffies": 20000, "table line 2": 19000,
    "user (by copy)": 9000,
}


def section(text=None):
    return list(lines.read_sections(text or SECTIONS.read_text(), "sections"))[0]


def costs(found):
    return {line.title: line.cost_ns for line in found}


def test_names():
    found = lines.moving_lines(section(), lines.Names(NAMES))
    assert costs(found) == EACH
    assert [line.cost_ns for line in found] == sorted(EACH.values(), reverse=True)
    first = found[0]
    assert (first.count, first.moves, first.queued_ns, first.upgrades) == (1, 40, 100, 10)
    assert first.top_places == ["enqueue_task_fair+0x10", "try_steal+0x10"]
    rest = next(line for line in found if line.title == "memory (by copy)")
    assert (rest.count, rest.moves, rest.queued_ns, rest.upgrades) == (40, 76, 50, 7) and rest.top_places == ["copy+0x10", "copy+0x14"]


def test_grouped():
    found = lines.grouped(lines.moving_lines(section(), lines.Names(NAMES)))
    assert costs(found) == GROUPED and [line.title for line in found] == list(GROUPED)
    assert (found[0].count, found[0].moves) == (2, 60)


def test_without_names():
    """All are addresses; nothing is lost."""
    found = lines.moving_lines(section(), lines.Names())
    assert sum(line.cost_ns for line in found) == sum(EACH.values())
    assert "memory 0xffff0000100150c0 (by 0xffff800000001010)" in costs(found)


@pytest.mark.parametrize("old, new", [
    ("moves 40 ", "moves many "), ("section 1\n", ""), ("busy_ns 8000000", "busy_ns"), ("cpu 0 ffff800010000000", "cpu 0 here"),
    ("rest user lines 8 moves 10", "rest user lines 8 moves"), (" at ", " at x")])
def test_bad_sections(old, new):
    text = SECTIONS.read_text()
    assert old in text
    with pytest.raises(ablib.AbError, match=r"sections:\d+: not a line of a section: .*; delete the file and run again what made it"):
        section(text.replace(old, new))


def test_section_without_end():
    assert not list(lines.read_sections(SECTIONS.read_text().replace("end\n", ""), "sections"))


@pytest.mark.parametrize("text, reason", [("", "not a file of sim/names"), ("names 1\nsymbol text x 1 a\n", "names:2: not a line"),
                                          ("names 1\n\n", "names:2: not a line")])
def test_bad_names(tmp_path, text, reason):
    (tmp_path / "names").write_text(text)
    with pytest.raises(ablib.AbError, match=reason):
        lines.Names(tmp_path / "names")


# bench/lines

def rows_of(text):
    return {row[2].partition("  (")[0]: float(row[1]) for row in (
        [words[1], words[2], words[4]] for words in (re.split(r"\s{2,}", line, maxsplit=4) for line in text.splitlines()[4:]))}


def test_command(tmp_path):
    stdout, _ = call(TOP / "bench/lines", "--names", NAMES, SECTIONS)
    assert stdout.splitlines()[:2] == ["section 1: 5.000 ms", "  25.0 % of the CPUs' busy time is waits for memory; of these, 50.0 % are for 60 "
                                       "lines that other CPUs have or want"]
    assert rows_of(stdout)["runqueues[0].nr_running"] == 90
    shutil.copy(NAMES, tmp_path / "Image.names")
    stdout, _ = call(TOP / "bench/lines", "--kernel", tmp_path / "Image", "--group", "--top", "2", SECTIONS)
    assert rows_of(stdout) == {"runqueues[*].cfs.h_nr_runnable, .cfs.h_nr_idle [2 lines]": 380, "memory (by copy) [41 lines]": 279}


@pytest.mark.parametrize("words, status, reason", [
    ([], 2, "required: FILE"), (["--top", "0", SECTIONS], 2, "--top 0 is not a positive number"),
    (["--kernel", "a", "--names", "b", SECTIONS], 2, "--kernel and --names exclude each other"),
    (["--kernel", "/nowhere/Image", SECTIONS], 1, "/nowhere/Image.names: cannot read it: No such file or directory; make it with sim/names IMAGE"),
    (["/dev/null"], 1, "/dev/null: no section in it; name a file of sim/machine --sections"),
    ([NAMES], 1, "names:1: not a line of a section: 'names 1'")])
def test_command_refuses(words, status, reason):
    stdout, stderr = call(TOP / "bench/lines", *words, rc=status)
    assert stdout == "" and len(stderr.splitlines()) == 1 and stderr.startswith("lines: error: ") and reason in stderr


# sim/names

PAHOLE = """\
struct rq {
	unsigned int               nr_running;           /*     0     4 */
	/* typedef u64 -> __u64 */ long long unsigned int nr_switches __attribute__((__aligned__(64))); /*    64     8 */
	/* typedef raw_spinlock_t */ struct raw_spinlock {
		/* typedef arch_spinlock_t */ struct qspinlock {
			union {
				/* typedef atomic_t */ struct {
					int    counter __attribute__((__aligned__(4))); /*    72     4 */
				} val __attribute__((__aligned__(4)));   /*    72     4 */
				/* typedef u8 -> __u8 */ unsigned char locked; /*    72     1 */
			};                                       /*    72     4 */
		} raw_lock __attribute__((__aligned__(4)));  /*    72     4 */
	} __lock __attribute__((__aligned__(4)));         /*    72     4 */

	/* XXX 4 bytes hole, try to pack */

	/* typedef smp_call_func_t */ void               (*func)(void *); /*    80     8 */
	struct bucket {
		long unsigned int  value:11;             /*    88: 0  8 */
		long unsigned int  tasks:53;             /*    88:11  8 */
	} bucket[2]; /*    88    16 */
	struct list_head {
		struct list_head * next;                 /*   104     8 */
	}tasks; /*   104     8 */
	/* typedef atomic_t */ struct {
		int                counter;              /*   112     4 */
	} nr_iowait;                                     /*   112     4 */

	/* size: 192, cachelines: 3, members: 7 */
} __attribute__((__aligned__(64)));
"""


def test_members_of():
    found = [(at, size, SIM_NAMES.shorter(path)) for at, size, path in SIM_NAMES.members_of(PAHOLE)]
    assert found == [(0, 4, "nr_running"), (64, 8, "nr_switches"), (72, 4, "__lock"), (72, 1, "__lock"), (80, 8, "func"),
                     (88, 8, "bucket[0].value"), (88, 8, "bucket[0].tasks"), (96, 8, "bucket[1].value"), (96, 8, "bucket[1].tasks"),
                     (104, 8, "tasks.next"), (112, 4, "nr_iowait")]


@pytest.mark.parametrize("words, status, reason", [
    ([], 2, "name one IMAGE; see --help"), (["/nowhere/Image"], 1, "/nowhere/Image: No such file or directory"),
    ([NAMES], 1, "not in the directory of its build: there is no ")])
def test_names_refuses(words, status, reason):
    stdout, stderr = call(TOP / "sim/names", *words, rc=status)
    assert stdout == "" and len(stderr.splitlines()) == 1 and stderr.startswith("names: error: ") and reason in stderr


# the collector and bench/ab

def test_collector_marks_sections(tmp_path):
    m = Machine(tmp_path)
    m.put("section", "#!/bin/sh\necho $1 \"$(sed -n 's/^now at //p' \"$STEAL_PROC/timer_list\")\" >>\"$STEAL_PROC/marks\"\n")
    (tmp_path / "section").chmod(0o755)
    pair = ["command 1 1 on STEAL", "command 1 2 off NO_STEAL"]
    m.environment |= {"STEAL_SECTION": str(tmp_path / "section")}
    m.collect(pair, "load", "1000", "900")
    assert not (tmp_path / "proc/marks").exists() and not (m.out / "runs/command/1-on/section").exists()
    m.environment |= {"STEAL_SIM": "machine"}
    m.collect([line.replace("command 1", "command 2") for line in pair], "load", "1000", "900")
    assert [m.run_file(run, "section") for run in ("2-on", "2-off")] == ["1", "2"]
    # around the command
    marks = [line.split() for line in m.get("proc/marks").splitlines()]
    assert [mark[0] for mark in marks] == ["begin", "end"] * 2
    assert [[mark[1] for mark in marks[n:n + 2]] for n in (0, 2)] == \
        [[m.run_file(run, "began_ns"), m.run_file(run, "ended_ns")] for run in ("2-on", "2-off")]
    assert "STEAL" in m.get(FEATURES).split()


@pytest.fixture
def raw(tmp_path):
    """A comparison whose runs take 5 ms and are sections; those of the second side have twice the cost."""
    made = Raw(tmp_path / "cmp", runs=2, machine="1x4x1", more="caches intel 0\n")
    text = SECTIONS.read_text()
    twice = re.sub(r"cost_ns (\d+)", lambda match: f"cost_ns {2 * int(match[1])}", text)
    for pair in (1, 2):
        for number, side in enumerate(made.sides, 1):
            made.run(pair, side, 5000000 - pair, unit=f"command-{pair}", section=f"{number}\n")
        unit = made.path / f"raw/command-{pair}"
        (unit / "machine/sections").write_text(text + twice.replace("section 1\n", "section 2\n"))
    shutil.copy(NAMES, made.path / "names")
    return made


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_fold(raw):
    rows = raw.rows()
    assert [row["memory:stalled_percent"] for row in rows] == ["25.0"] * 4
    assert [row["memory:from_core"] for row in rows] == ["150"] * 4 and [row["memory:lines_moves"] for row in rows] == ["180"] * 4
    assert "memory:section" not in rows[0] and "memory:begin_ns" not in rows[0]
    found = read(raw.path / "lines.csv")
    assert list(found[0]) == list(fold.LINES)
    for side, factor in (("off", 2), ("on", 4)):
        mine = [row for row in found if row["side"] == side]
        assert {lines_title(row): int(row["cost_ns"]) for row in mine} == {name: factor * cost for name, cost in GROUPED.items()}
        assert mine[0]["runs"] == "2" and mine[0]["moves"] == "120" and mine[0]["places"].startswith("enqueue_task_fair+0x10")
        assert float(mine[0]["share_percent"]) == 100 * factor * 380000 / 4000000


def lines_title(row):
    return ablib.table.titled(row["name"], row["members"])


def test_section_of_the_program_itself(raw):
    """A section that is shorter than the run is not the collector's."""
    path = raw.path / "raw/command-1/machine/sections"
    path.write_text(path.read_text().replace("end_ns 5001000", "end_ns 4001000", 1))
    rows = raw.rows()
    assert [row["memory:accesses"] for row in rows] == ["", "10000", "10000", "10000"]
    assert {row["runs"] for row in read(raw.path / "lines.csv") if row["side"] == "off"} == {"1"}


def test_runs_that_do_not_count(raw):
    """Failed and traced runs have no say in lines.csv."""
    raw.run(0, "on", unit="command-0", section="1\n", trace="")
    raw.run(3, "on", unit="command-3", section="1\n", exit="1\n")
    for unit in ("command-0", "command-3"):
        shutil.copy(SECTIONS, raw.path / f"raw/{unit}/machine/sections")
    raw.rows()
    assert {row["runs"] for row in read(raw.path / "lines.csv")} == {"2"}


def test_page(raw):
    fold.fold(raw.path)
    ablib.render(raw.path)
    page, text = (raw.path / "page.html").read_text(), (raw.path / "table.txt").read_text()
    assert "Not modelled: misses that overlap" in " ".join(text.split()) and "instruction fetches" not in text
    assert "stalled %" in text and "memory (by" not in text and "runqueues" not in text

    def cells(name):
        line = next(line for line in page.splitlines() if f">{name}</td>" in line)
        return re.findall(r"<td[^>]*>(.*?)</td>", line)

    # both sides beside each other, in microseconds of a run
    assert cells("runqueues[*].cfs.h_nr_runnable, .cfs.h_nr_idle")[1:7] == ["380.0", "19.00", "60", "760.0", "38.00", "60"]
    assert cells("cfs_overload_cpus[LLC 0] header")[-1] == "try_steal+0x20"
    # stalled, for others, moves, upgrades; then L1, L2, LLC, core, other LLC, memory
    row = next(line for line in page.splitlines() if ">95.000</td>" in line)
    assert re.findall(r"<td[^>]*>(.*?)</td>", row) == ["off", "25.0", "50.0", "180", "40", "95.000", "2.000", "1.000", "1.500", "0.300", "0.200"]
    assert "lines.csv" in page


def test_page_without_caches(tmp_path):
    made = Raw(tmp_path / "cmp", runs=2).pairs([(1000, 900), (1000, 900)])
    fold.fold(made.path)
    ablib.render(made.path)
    assert not (made.path / "lines.csv").exists() and "found their lines" not in (made.path / "page.html").read_text()
    assert "stalled" not in (made.path / "table.txt").read_text()
