# SPDX-License-Identifier: GPL-2.0
"""bench/report: its figures against hackbench-table.awk's, its statistics against enumeration, its reading of
traces against cases worked out by hand. And which sessions it, loads-table and the collectors pool."""

import csv
import gzip
import importlib.machinery
import importlib.util
import itertools
import math
import random
import re
import statistics
import subprocess
import sys
from pathlib import Path

import matplotlib.colors
import matplotlib.image
import numpy
import pytest
import scipy.stats

TOP = Path(__file__).resolve().parents[2]
QEMU = TOP / "tests/data/hackbench-qemu-2cpu.raw"
SIM = TOP / "tests/data/report-sim.raw"

sys.path.insert(0, str(TOP / "bench"))
from reportlib import command, plots, records, stats, summary, texts, tidy, traces  # noqa: E402


def program(name):
    """A program of bench/ as a module."""
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), str(TOP / "bench" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    # Its dataclasses look here for their module.
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


REPORT, LOADS_TABLE = program("report"), program("loads-table")


def raw(times, cpus=2, sides="off on", more=""):
    """A raw file with these times: {(groups, side): [s, ...]}; the CPUs are busy half of the time."""
    text = ("begin session s1\nhackbench hackbench -g GROUPS -l 200\nrelease 7.3.4\nmodel Fake CPU\n"
            f"cpus {cpus}\nllcs 1\nsides {sides}\n{more}")
    text += "".join(f"topology cpu {c} package 0 core {c} threads {c} llc 0-{cpus - 1} node 0\n" for c in range(cpus)) + "end session\n"
    runs = [(groups, side, value) for (groups, side), values in times.items() for value in values]
    for number, (groups, side, value) in enumerate(runs, 1):
        text += (f"begin run s1\nnumber {number}\ngroups {groups}\nside {side}\nexit 0\ntime {value}\n"
                 "valid yes\nbefore clock 1000\nafter clock 2001000\n")
        for c in range(cpus):
            text += (f"before schedstat cpu{c} 0 0 10 20 30 0 1000 0 40\n"
                     f"after schedstat cpu{c} 0 0 110 70 60 0 1001000 0 80\n")
        text += "end run\n"
    return text


def summarised(tmp_path, text, trace_paths=()):
    path = tmp_path / "made.raw"
    path.write_text(text)
    return summary.summarise(records.load([path]), list(trace_paths))


def figures(whole):
    """What summary.csv says of each row, as {"1 off": {"time": 8.084, ...}, ...}."""
    return {f"{row.groups} {row.side}": summary.row_figures(row) for row in whole.rows}


def rows(text):
    """The rows of a printed table, likewise."""
    found, names = {}, None
    for line in text.replace("median interval", "median").splitlines():
        fields = line.split()
        if fields[:2] == ["grps", "side"]:
            names = fields
        elif names and len(fields) == len(names):
            found[fields[0] + " " + fields[1]] = dict(zip(names[2:], fields[2:]))
    return found


def awk_table(path):
    return subprocess.run(["sh", TOP / "bench/run-hackbench.sh", "--table", path], capture_output=True, text=True, check=True).stdout


BASE = [1.00, 1.01, 1.02, 1.03, 0.99]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """The report of the recorded simulation, with a trace: its directory and what was printed."""
    where = tmp_path_factory.mktemp("sim")
    (where / "a.raw").write_text(SIM.read_text())
    (where / "trace-1-off.txt").write_text(trace_text(WASTE, cpus=4))
    done = subprocess.run([TOP / "bench/report", where], capture_output=True, text=True, check=True)
    assert "Warning" not in done.stderr
    return where, done.stdout


# The figures

@pytest.mark.parametrize("path", [QEMU, SIM], ids=lambda p: p.name)
def test_columns_are_those_of_the_awk_table(path):
    expected = rows(awk_table(path))
    shown = rows(texts.table(summary.summarise(records.load([path]), [])))
    assert list(shown) == list(expected) and len(shown) == 4
    for key, row in expected.items():
        for column in "time %busy slice sched idle wake %find steal %speedup runs".split():
            assert shown[key][column] == row[column], (key, column)


def test_counters_wrap_at_32_bits(tmp_path):
    text = raw({(1, "off"): [1.0]}).replace(" 0 0 10 20 30 0", " 0 0 4294967290 20 4294967295 0")
    row = figures(summarised(tmp_path, text))["1 off"]
    assert (row["sched"], row["idle"], row["wake"]) == (116, 50, 61)
    assert (row["busy"], row["slice"], row["steal"], row["find"]) == (50, 0.025, None, None)


def two_nodes(domains):
    """A run of four CPUs in two nodes; domains: what stands behind `before` or `after` for CPU 0, and for CPU 3."""
    text = raw({(1, "off"): [1.0]}, cpus=4)
    for cpu in (2, 3):
        text = text.replace(f"core {cpu} threads {cpu} llc 0-3 node 0", f"core {cpu} threads {cpu} llc 2-3 node 1")
    for when, cpu, lines in domains:
        text = re.sub(f"^({when} schedstat cpu{cpu} .*\n)", lambda m: m[1] + "".join(f"{when} schedstat {x}\n" for x in lines),
                      text, flags=re.M)
    return text


@pytest.mark.parametrize("name", ["", "NUMA "], ids=["version 16", "version 17"])
def test_wakeups_across_nodes(tmp_path, name):
    """Only domains with more than one node count, and the fields are the last but two and the last but one."""
    near, far = f"domain0 {name and 'MC '}00000000,00000003", f"domain1 {name}00000000,0000000f"
    last = "domain0 " + name + "00000000,0000000f"
    text = two_nodes([("before", 0, [near + " 9 9 100 100 9", far + " 9 9 4294967295 7 9"]),
                      ("after", 0, [near + " 9 9 900 900 9", far + " 9 9 9 9 9"]),
                      ("before", 3, [last + " 1 2 3"]), ("after", 3, [last + " 33 8 99"])])
    row = figures(summarised(tmp_path, text))["1 off"]
    assert (row["across"], row["pulled"]) == ((10 + 32) / 4, (2 + 6) / 4)
    one_node = figures(summarised(tmp_path, text.replace(" node 1", " node 0")))["1 off"]
    assert one_node["across"] is one_node["pulled"] is None


@pytest.mark.parametrize("factor,verdict,p", [(1.2, "LOSS", 2 / 252), (1 / 1.2, "GAIN", 2 / 252), (1, "same?", 1)])
def test_planted_difference(tmp_path, factor, verdict, p):
    whole = summarised(tmp_path, raw({(1, "off"): BASE, (1, "on"): [f"{x * factor:.4f}" for x in BASE]}))
    row = figures(whole)["1 on"]
    assert (row["verdict"], figures(whole)["1 off"]["verdict"], row["runs"], row["sched"]) == (verdict, "-", 5, 100)
    assert row["speedup"] == pytest.approx(100 * (1 / factor - 1), abs=0.06)
    assert row["p"] == pytest.approx(p) and row["speedup_confidence"] == pytest.approx(1 - 8 / 252)
    assert (row["speedup_low"] > 0, row["speedup_high"] < 0) == (verdict == "GAIN", verdict == "LOSS")
    assert row["time_low"] == pytest.approx(0.99 * factor, abs=1e-3)


def test_too_few_runs(tmp_path):
    whole = summarised(tmp_path, raw({(1, "off"): [2], (1, "on"): [1], (2, "off"): [1, 2, 3], (2, "on"): [4, 5, 6.5], (3, "on"): [2]}))
    found = figures(whole)
    assert found["1 on"]["speedup"] == 100 and found["3 on"]["speedup"] is None
    assert {found[key][name] for key in ("1 on", "3 on") for name in ("time_low", "speedup_low", "p")} == {None}
    row = found["2 on"]
    assert (row["p"], row["verdict"], row["speedup_confidence"]) == (pytest.approx(0.1), "same?", pytest.approx(0.9))
    table = texts.table(whole)
    assert "3 runs against 3 cannot have p below 0.1" in table and "75.0 % confidence with 3 runs" in table
    assert "cannot have p" not in texts.table(summarised(tmp_path, raw({(1, "off"): BASE, (1, "on"): BASE})))


def test_equal_times(tmp_path):
    whole = summarised(tmp_path, raw({(1, "off"): [1] * 5, (1, "on"): [1] * 5, (2, "off"): [2] * 3, (2, "on"): [1] * 3,
                                      (3, "off"): [0] * 3, (3, "on"): [0] * 3}))
    equal, differ, nothing = (figures(whole)[key] for key in ("1 on", "2 on", "3 on"))
    assert [equal[key] for key in ("speedup", "speedup_low", "speedup_high", "p", "verdict")] == [0, 0, 0, 1, "same?"]
    assert (differ["speedup"], differ["p"], differ["verdict"]) == (100, pytest.approx(0.1), "same?")
    assert (nothing["speedup"], nothing["p"], nothing["verdict"]) == (None, None, "-")
    assert "all runs took the same time (1 off, 1 on, 2 off, 2 on" in texts.table(whole)


def test_several_sides(tmp_path):
    long = "STEAL+NO_DELAY_DEQUEUE"
    whole = summarised(tmp_path, raw({(1, "off"): BASE, (1, "STEAL"): [x / 2 for x in BASE], (1, long): [x * 2 for x in BASE]},
                                     sides=f"off STEAL {long}", more="side_features off NO_STEAL\nside_features STEAL STEAL\n"))
    assert [row["verdict"] for row in figures(whole).values()] == ["-", "GAIN", "LOSS"]
    assert dict(texts.header(whole))["sides"] == f"off (NO_STEAL, baseline), STEAL (STEAL), {long}"
    assert plots.speedup_plot(whole).startswith(b"\x89PNG")


# Which sessions are of the same comparison: of each line of a session what stands there, and what another session has.

LINES = {
    "date": ("2026-11-24T10:00:00Z", "2026-11-25T10:00:00Z"), "project": ("abc", "def"), "command": ("x --out a", "x --out b"),
    "clock": ("timer_list", "uptime"), "schedstats_before": ("0", "1"),
    "release": ("7.3.4", "7.3.5"), "version": ("#1 SMP", "#2 SMP"), "machine": ("x86_64", "aarch64"),
    "boot": ("quiet preempt=none", "quiet preempt=full"), "online": ("0-1", "0,2"), "cpus": ("2", "4"), "llcs": ("1", "2"),
    "topology": ("cpu 0 package 0 core 0 threads 0 llc 0-1 node 0\ncpu 1 package 0 core 1 threads 1 llc 0-1 node 0",
                 "cpu 0 package 0 core 0 threads 0 llc 0-1 node 0\ncpu 1 package 0 core 1 threads 1 llc 0-1 node 1"),
    "model": ("Fake CPU", "Other CPU"), "sim": ("ips 1000\ntopology 1x2x1", "ips 2000\ntopology 1x2x1"),
    "hackbench": ("hackbench -g GROUPS -l 100", "hackbench -g GROUPS -l 100 -p"), "hackbench_version": ("2.4", "2.5"),
    "scale": ("1", "2"), "sides": ("off on", "off on both"),
    "side_features": ("off NO_STEAL\non STEAL", "off NO_STEAL\non STEAL+NO_DELAY_DEQUEUE"),
}
MAY_DIFFER = ("date", "project", "command", "clock", "schedstats_before")


def two_sessions(tmp_path, *keys, only=("off on", "off on")):
    """A file of two sessions, each with a run of these sides. The second has other lines KEYS."""
    text = ""
    for number, sides in enumerate(only):
        lines = "".join(f"{key} {line}\n" for key, values in LINES.items() for line in values[number and key in keys].split("\n"))
        text += f"begin session s{number}\n{lines}end session\n"
        for side in sides.split():
            text += (f"begin run s{number}\nload x\ngroups 1\nside {side}\nexit 0\ntime 1.0\nvalid yes\nmetric time s lower 1.0\n"
                     "before clock 1\nbefore schedstat cpu0 0 0 1 2 3 0 10 0 4\n"
                     "after clock 99\nafter schedstat cpu0 0 0 11 12 13 0 50 0 14\nend run\n")
    path = tmp_path / "a.raw"
    path.write_text(text)
    return path


READERS = {"report": lambda path: records.load([path]), "loads-table": lambda path: LOADS_TABLE.load_files([path])}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("key", [key for key in LINES if key not in MAY_DIFFER])
def test_another_comparison_is_refused(tmp_path, reader, key):
    path = two_sessions(tmp_path, key)
    first, other = next((a, b) for a, b in zip(*(value.split("\n") for value in LINES[key])) if a != b)
    with pytest.raises(records.ReportError) as error:
        READERS[reader](path)
    assert f": session s1 has {key} '{other}', but session s0 ({path}:1) has '{first}'; " in str(error.value)


@pytest.mark.parametrize("key", [key for key in LINES if key not in MAY_DIFFER])
def test_another_comparison_on_the_machine(tmp_path, key):
    """It has a table of its own, and the collector does not add to it."""
    path = two_sessions(tmp_path, key)
    kernels = re.findall("(?m)^kernel: +(\\S+)", awk_table(path))
    assert kernels == [LINES["release"][0], LINES["release"][key == "release"]]
    done = collected_into(path)
    assert done.returncode == 1 and "has runs of another machine, kernel or comparison" in done.stderr
    assert f"> {key} " in done.stderr


def collected_into(path):
    """What compare_sessions says of the last session of a file if the others are there already."""
    *there, mine = re.split("(?m)^(?=begin session)", path.read_text())
    (path.parent / "there").write_text("".join(there))
    (path.parent / "mine").write_text(mine.split("begin run")[0])
    return subprocess.run(["sh", "-c", f"prog=collector; . {TOP}/bench/switch.sh; tmp={path.parent}; "
                           "compare_sessions $tmp/there $tmp/mine"], capture_output=True, text=True, check=False)


def test_the_same_comparison(tmp_path):
    path = two_sessions(tmp_path, *MAY_DIFFER)
    for reader in READERS.values():
        assert len(reader(path).sessions) == 2
    assert [row["runs"] for row in rows(awk_table(path)).values()] == ["2", "2"]
    done = collected_into(path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("key", ["release", "version"])
def test_sides_with_a_kernel_each(tmp_path, key):
    """As bench/in-sim has them with --kernel A,B. But a side has one kernel."""
    for reader in READERS.values():
        assert len(reader(two_sessions(tmp_path, key, only=("off", "on"))).sessions) == 2
        with pytest.raises(records.ReportError, match=f"session s1 has {key} "):
            reader(two_sessions(tmp_path, key, only=("off", "on off")))


def test_sessions_of_the_same_name(tmp_path):
    """Boots of a simulated machine may use a name again."""
    for number, times in enumerate(({(1, "off"): BASE}, {(1, "on"): BASE[:3]}, {(1, "on"): BASE[3:]})):
        (tmp_path / f"{number}.raw").write_text(raw(times))
    loaded = records.load(sorted(tmp_path.iterdir()))
    assert [row["runs"] for row in figures(summary.summarise(loaded, [])).values()] == [5, 5]
    assert any("session s1 is also in" in note for note in loaded.notes)


@pytest.mark.parametrize("path,caveat", [(SIM, "simulated machine, virtual time"), (QEMU, summary.QEMU_WARNING)],
                         ids=["simulated", "emulated"])
def test_machines_that_are_not_real(path, caveat):
    whole = summary.summarise(records.load([path]), [])
    assert whole.timing_caveat == caveat and caveat in texts.table(whole) and caveat in texts.report_html(whole, {})
    assert (whole.sim.get("quantum_ns"), whole.records.virtual_seconds, whole.records.host_seconds) == (
        ("50000", pytest.approx(12.52), pytest.approx(626)) if path == SIM else (None, 0, 0))


# What goes wrong

@pytest.mark.parametrize("keep", ["end ru", "after schedstat cpu1", "side on", "begin run s1"])
def test_truncated_file(tmp_path, keep):
    text = raw({(1, "off"): BASE, (1, "on"): BASE})
    cut = text.rindex("\n" + keep) + 1 + len(keep)
    line = text[:cut].count("\n", 0, text.rindex("begin run")) + 1
    (tmp_path / "a.raw").write_text(text[:cut])
    (tmp_path / "b.raw").write_text(raw({(1, "off"): BASE}))
    loaded = records.load([tmp_path / "a.raw", tmp_path / "b.raw"])
    assert [len([r for r in loaded.runs if r.side == side]) for side in ("off", "on")] == [10, 4]
    assert f"{tmp_path}/a.raw:{line}: incomplete run record at the end of the file: ignored" in loaded.notes
    # Another session after it, in the same file.
    (tmp_path / "a.raw").write_text(text[:cut] + "\n" + raw({(1, "on"): BASE}))
    loaded = records.load([tmp_path / "a.raw"])
    assert [len([r for r in loaded.runs if r.side == side]) for side in ("off", "on")] == [5, 9]
    assert f"{tmp_path}/a.raw:{line}: incomplete run record: ignored" in loaded.notes


def test_failed_runs_are_counted(tmp_path):
    text = raw({(1, "off"): BASE, (1, "on"): BASE})
    text = text.replace("exit 0", "exit 7", 1).replace("valid yes", "valid the online CPUs changed", 3)
    text = text.replace("after schedstat cpu1 0", "after schedstat cpu1 0 0", 4)
    whole = summarised(tmp_path, text)
    assert [row["runs"] for row in figures(whole).values()] == [1, 5]
    assert (whole.records.failed, whole.records.invalid) == (1, 3)
    assert "\nfailed runs, not in the table: 4 (exit not 0: 1, not valid: 3)\n" in texts.table(whole)
    for why in ("run 2 of session s1 is not used: the online CPUs changed", "the line of cpu1 has 10 fields, not 9"):
        assert any(why in note for note in whole.records.notes)


@pytest.mark.parametrize("text,message", [
    (None, "has no *.raw file"),
    (raw({(1, "off"): BASE}).replace("exit 0", "exit 1"), "no complete valid run (failed: 5, not valid: 0)"),
    (raw({(1, "other"): BASE}), "a.raw:11: side 'other' is not among the session's sides, off on"),
    (raw({(1, "off"): BASE}).replace("topology cpu 1", "topology cpu x"), "a.raw:1: invalid line: topology cpu x "),
], ids=["no file", "no run", "side", "topology"])
def test_errors(tmp_path, monkeypatch, capsys, text, message):
    if text:
        (tmp_path / "a.raw").write_text(text)
    monkeypatch.setattr(sys, "argv", ["report", str(tmp_path)])
    assert REPORT.main() == 1 and message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["a.raw"][:bool(text)]


def test_unreadable_file():
    with pytest.raises(records.ReportError, match="cannot read /nonexistent: "):
        records.load([Path("/nonexistent")])


def test_nothing_is_half_written(tmp_path):
    """Neither where a file cannot be written nor where it cannot be renamed."""
    (tmp_path / "file").touch()
    (tmp_path / "out/b").mkdir(parents=True)
    for out, name in (("file", "file"), ("out", "out/b")):
        with pytest.raises(records.ReportError, match=f"cannot write {tmp_path}/{name}: "):
            command.write(tmp_path / out, {"b": b"2"})
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b"]


@pytest.mark.parametrize("words", [[], ["--what", "x"], ["--out"], ["a.raw", "b.raw"]])
def test_usage_errors(capsys, words):
    with pytest.raises(SystemExit) as error:
        command.arguments(words, "")
    assert error.value.code == 2 and "see --help" in capsys.readouterr().err


def test_output_directory(tmp_path):
    assert command.arguments([str(tmp_path)], "") == ([tmp_path], tmp_path)
    assert command.arguments(["a.raw"], "") == ([Path("a.raw")], Path("a.raw.report"))
    assert command.arguments(["a", "--out", "o", "b"], "") == ([Path("a"), Path("b")], Path("o"))


@pytest.mark.parametrize("name,columns", [("report", tidy.HACKBENCH), ("loads-table", tidy.LOADS)],
                         ids=["report", "loads-table"])
def test_help(run, name, columns):
    said = run(TOP / "bench" / name, "--help").stdout
    assert said.startswith(f"Usage: bench/{name} [--out DIR] PATH...") and columns in said and "import" not in said


# Statistics

def enumerated_p(base, new):
    """Two-sided p of the rank sum, by going through all ways to label the runs."""
    pooled = base + new
    ranks = [sum(x < y for x in pooled) + (sum(x == y for x in pooled) + 1) / 2 for y in pooled]
    observed = sum(ranks[:len(base)])
    sums = [sum(chosen) for chosen in itertools.combinations(ranks, len(base))]
    return min(1, 2 * min(sum(s <= observed for s in sums), sum(s >= observed for s in sums)) / len(sums))


SAMPLES = [
    ([1.0, 2.0, 3.0], [1.5, 2.5, 3.5]),
    ([8.1, 8.2, 8.05, 8.4, 8.15], [5.9, 6.0, 6.1, 5.95, 6.3]),
    ([8.1, 8.2, 8.05, 8.4, 8.15], [8.12, 8.3, 8.5, 8.6, 8.7, 8.45]),
    ([1.0, 1.0, 1.1, 1.1, 1.2], [1.1, 1.2, 1.2, 1.3, 1.3]),
    ([2.0, 2.0, 2.0, 2.0], [1.0, 1.0, 1.0, 1.0]),
    ([2.0, 2.0], [2.0, 2.0, 2.0]),
    ([1.0, 2.0, 4.0, 8.0], [1.0, 2.0, 4.0, 8.0]),
]


@pytest.mark.parametrize("base,new", SAMPLES)
def test_p_against_enumeration(base, new):
    assert stats.p_value(base, new) == pytest.approx(enumerated_p(base, new))
    assert stats.p_value(new, base) == pytest.approx(enumerated_p(base, new))
    ranks = stats.doubled_ranks(base + new)
    assert stats.p_of_ranks(ranks[:len(base)], ranks[len(base):]) == pytest.approx(enumerated_p(base, new))


def test_equal_values_share_their_rank():
    assert stats.doubled_ranks([2.0, 1.0, 2.0, 3.0, 3.0, 3.0, 3.0 + 1e-12]) == [5, 2, 5, 11, 11, 11, 11]


def test_many_runs():
    chance = random.Random(1)
    base, new = ([chance.gauss(m, 1) for _ in range(51)] for m in (10, 10.4))
    expected = scipy.stats.mannwhitneyu(base, new, method="exact").pvalue
    assert stats.p_value(base, new) == pytest.approx(expected, rel=0.05)
    assert stats.p_value([1.0] * 51, [1.0] * 51) == 1


@pytest.mark.parametrize("base,new", SAMPLES)
def test_interval_against_enumeration(base, new):
    """Every factor by which the new times may be multiplied is in the interval just where the test, by
    enumeration, does not tell it apart; at the ends themselves either may be."""
    interval = stats.compare(base, new).interval
    least = 2 / math.comb(len(base) + len(new), len(base))
    ratios = sorted({x / y for x in base for y in new})
    between = [math.sqrt(a * b) for a, b in zip(ratios, ratios[1:])]
    for ratio in [ratios[0] / 2, *between, ratios[-1] * 2]:
        p = enumerated_p(base, [y * ratio for y in new])
        inside = p >= 0.05 and p > least * 1.000001
        assert (interval.low < 100 * (ratio - 1) < interval.high) == inside, ratio


def test_interval_agrees_with_p():
    chance = random.Random(2)
    verdicts = set()
    for _ in range(200):
        base = [chance.randrange(20, 30) / 10 for _ in range(chance.randrange(4, 7))]
        shift = chance.choice([-5, 0, 5])
        new = [chance.randrange(20 + shift, 30 + shift) / 10 for _ in range(chance.randrange(4, 7))]
        comparison = stats.compare(base, new)
        low, high = comparison.interval.low, comparison.interval.high
        if comparison.p >= 0.05:
            assert low <= 1e-9 and high >= -1e-9, (base, new)
        else:
            assert low >= -1e-9 or high <= 1e-9, (base, new)
            assert comparison.verdict == ("GAIN" if high > -low else "LOSS")
        verdicts.add(comparison.verdict)
    assert verdicts == {"GAIN", "LOSS", "same?"}


@pytest.mark.parametrize("n,k,confidence", [(2, 1, 0.5), (5, 1, 0.9375), (6, 1, 0.96875), (9, 2, 0.9609375), (20, 6, 0.9586105)])
def test_median_interval(n, k, confidence):
    interval = stats.median_interval([float(i) for i in range(n, 0, -1)])
    assert (interval.low, interval.high) == (k, n + 1 - k)
    assert interval.confidence == pytest.approx(confidence)


# Traces

def switch(at, cpu, prev, state, following, prio=120, comm="hackbench", style="       {0}-{1}   [{2:03}] d..2. {3}: "):
    names = {0: f"swapper/{cpu}"}
    return style.format(names.get(prev, comm), prev, cpu, at) + (
        f"sched_switch: prev_comm={names.get(prev, comm)} prev_pid={prev} prev_prio={prio} prev_state={state} ==> "
        f"next_comm={names.get(following, 'hackbench')} next_pid={following} next_prio=120")


def wake(at, target, pid, prio=120, comm="hackbench", kind="sched_wakeup"):
    return f"          <idle>-0       [000] dNs3.   {at}: {kind}: comm={comm} pid={pid} prio={prio} target_cpu={target:03}"


def migrate(at, pid, orig, dest):
    return f"     hackbench-9 [000] d..2.   {at}: sched_migrate_task: comm=hackbench pid={pid} prio=120 orig_cpu={orig} dest_cpu={dest}"


def died(at, pid):
    return f"       hackbench-{pid}       [000] .....   {at}: sched_process_exit: comm=hackbench pid={pid} prio=120"


def trace_text(lines, begin="100.000000", end="100.001000", **header):
    """A trace of 1 ms."""
    header = {"session": "s1", "groups": "1", "side": "off", "begin": begin, "end": end, "loops": "100", "overruns": "0"} | header
    marks = [f"#: {key} {value}" for key, value in header.items() if value is not None]
    return "\n".join([*marks, "# tracer: nop", "#", *lines, ""])


def us(number):
    return f"100.{number:06}"


ALL = [[0, 1, 2, 3]]
PAIRS = [[0, 1], [2, 3]]
# From before the run: CPU 0 runs 10, the others are idle.
START = ["", switch(us(0), 0, 0, "R", 10), *(switch(us(0), cpu, 5 + cpu, "S", 0) for cpu in (1, 2, 3))]
# A task waits on CPU 0 from 200 to 600 us, while CPU 1 (and those of another LLC) are idle: 400 of 4000 us.
WASTE = START + [wake(us(200), 0, 11), switch(us(600), 0, 10, "S", 11)]

CASES = {
    "nobody waits": (START, PAIRS, 0, 0),
    "one waits": (WASTE, PAIRS, 10, 0),
    "one waits and three are idle": (WASTE, ALL, 10, 0),
    "two wait and one is idle": (WASTE[:-1] + [wake(us(200), 0, 12), switch(us(600), 0, 10, "S", 11)], PAIRS, 20, 0),
    "two wait and three are idle": (WASTE[:-1] + [wake(us(200), 0, 12)], ALL, 40, 0),
    "waits in another LLC": (START + [switch(us(0), 1, 0, "R", 20), wake(us(200), 0, 11)], PAIRS, 0, 0),
    "a new task": (START + [wake(us(200), 0, 11, kind="sched_wakeup_new"), switch(us(600), 0, 10, "S", 11)], PAIRS, 10, 0),
    "preempted": (START + [switch(us(200), 0, 10, "R", 11), switch(us(600), 0, 11, "S", 10)], PAIRS, 10, 0),
    "preempted in the kernel": (START + [switch(us(200), 0, 10, "R+", 11), switch(us(600), 0, 11, "S", 10)], PAIRS, 10, 0),
    "goes to sleep": (START + [switch(us(200), 0, 10, "D", 11)], PAIRS, 0, 0),
    "runs while it is woken": (START + [wake(us(200), 0, 10)], PAIRS, 0, 0),
    "runs elsewhere while it is woken": (START + [switch(us(100), 2, 0, "R", 20), wake(us(200), 0, 20)], PAIRS, 0, 0),
    "woken twice": (WASTE[:-1] + [wake(us(300), 0, 11), switch(us(600), 0, 10, "S", 11)], PAIRS, 10, 0),
    "real-time": (START + [wake(us(200), 0, 11, prio=99)], PAIRS, 0, 0),
    "the lowest fair": (START + [wake(us(200), 0, 11, prio=100), switch(us(600), 0, 10, "S", 11)], PAIRS, 10, 0),
    "real-time preempted": (START + [switch(us(200), 0, 10, "R", 11, prio=98)], PAIRS, 0, 0),
    "moved within the LLC to the idle CPU": (WASTE[:-1] + [migrate(us(300), 11, 0, 1), switch(us(320), 1, 0, "R", 11)], PAIRS, 2.5, 0.5),
    "moved to a busy CPU of another LLC": (START + [switch(us(0), 2, 0, "R", 20), wake(us(200), 0, 11), migrate(us(300), 11, 0, 2),
                                                    switch(us(500), 2, 20, "S", 11)], PAIRS, 7.5, 0),
    "moved in its sleep": (START + [migrate(us(100), 11, 2, 0), wake(us(200), 0, 11), switch(us(600), 0, 10, "S", 11)], PAIRS, 10, 0),
    "gone": (WASTE[:-1] + [died(us(600), 11)], PAIRS, 10, 0),
    "woken on an idle CPU": (START + [wake(us(200), 1, 11), switch(us(240), 1, 0, "R", 11)], PAIRS, 0, 1),
    # CPU 1 is wasted from 200 on, from 300 to 340 although somebody is being woken there.
    "waits elsewhere, and another is woken": (WASTE[:-1] + [wake(us(300), 1, 12), switch(us(340), 1, 0, "R", 12)], PAIRS, 3.5, 1),
    # The task on CPU 1 is not to be taken until CPU 1 runs something.
    "the waker's CPU gets busy": (START + [wake(us(200), 1, 11), wake(us(200), 1, 12), switch(us(300), 1, 0, "R", 11),
                                           switch(us(500), 1, 11, "S", 12)], ALL, 5, 2.5),
    "idle before its first switch": ([switch(us(0), 0, 0, "R", 10), wake(us(200), 0, 11), switch(us(700), 1, 0, "R", 12),
                                      switch(us(800), 1, 12, "S", 0)], PAIRS, 17.5, 0),
    "busy before its first switch": ([switch(us(0), 1, 8, "S", 0), wake(us(200), 0, 11), switch(us(600), 0, 9, "R", 10),
                                      switch(us(700), 0, 10, "S", 9), switch(us(800), 0, 9, "S", 11)], PAIRS, 15, 0),
    "a CPU that never switches counts for nothing": ([switch(us(0), 0, 0, "R", 10), wake(us(200), 0, 11)], PAIRS, 0, 0),
    "before begin and after end": ([line.replace(" 100.000000", " 99.900000") for line in START]
                                   + [wake("99.950000", 0, 11), switch("100.002000", 0, 10, "S", 11)], PAIRS, 25, 0),
    "across the file out of order": (START + [switch(us(600), 0, 10, "S", 11), wake(us(200), 0, 11)], PAIRS, 10, 0),
    "kworker": (START + [wake(us(200), 0, 11, comm="kworker/0:1-events")], PAIRS, 0, 0),
    "unbound kworker": (START + [wake(us(200), 0, 11, comm="kworker/u8:2"), switch(us(600), 0, 10, "S", 11)], PAIRS, 10, 0),
    "ksoftirqd": (START + [wake(us(200), 0, 11, comm="ksoftirqd/0")], PAIRS, 0, 0),
    "bound and preempted": (START + [switch(us(200), 0, 10, "R", 11, comm="cpuhp/0")], PAIRS, 0, 0),
    "odd names": (START + [wake(us(200), 0, 11, comm="a b=c pid=7"), switch(us(600), 0, 10, "S", 11)], PAIRS, 10, 0),
}


def analysed(tmp_path, text, llcs, name="trace-1-off.txt"):
    path = tmp_path / name
    path.write_text(text)
    return traces.analyse(path, llcs)


@pytest.mark.parametrize("case", CASES)
def test_trace(tmp_path, case):
    lines, llcs, wasted, latency = CASES[case]
    trace = analysed(tmp_path, trace_text(lines), llcs)
    assert (trace.wasted, trace.latency) == (pytest.approx(wasted), pytest.approx(latency))
    # What is drawn is what is counted.
    cells = traces.raster(trace, 50, trace.seconds)
    assert 100 * cells.wasted.mean() == pytest.approx(wasted)
    assert 100 * (cells.idle + cells.wasted).mean() == pytest.approx(trace.idle)
    assert 100 * cells.unknown.mean() == pytest.approx(trace.unknown)
    assert cells.busy + cells.idle + cells.wasted + cells.unknown == pytest.approx(numpy.ones((4, 50)))
    assert min(a.min() for a in (cells.busy, cells.idle, cells.wasted, cells.unknown)) > -1e-9


def test_idle_periods(tmp_path):
    early = [switch("99.9", 2, 0, "R", 12), switch("99.95", 2, 12, "S", 0), switch("99.96", 2, 0, "R", 7)]
    lines = early + START + [switch(us(100), 1, 0, "R", 11), switch(us(300), 1, 11, "S", 0), switch(us(900), 2, 0, "R", 12)]
    trace = analysed(tmp_path, trace_text(lines), PAIRS)
    assert trace.idle_periods == [0, 2, 1, 1]
    assert trace.idle_ns == [0, 800_000, 900_000, 1_000_000]
    assert trace.idle_mean_us == pytest.approx(675) and trace.idle == pytest.approx(67.5)
    assert trace.gaps == 0 and trace.unknown == 0


def test_busy_while_all_tasks_are_there(tmp_path):
    """From the last fork to the first exit: 100 to 600 us here, with CPU 0 idle for 200 of them, 1 for 500, 2 and 3 for none."""
    fork = wake(us(100), 1, 11).replace("sched_wakeup:", "sched_wakeup_new:")
    leave = "x-12 [002] d..2. {}: sched_process_exit: comm=x pid=12 prio=120"
    lines = [switch(us(0), 0, 0, "R", 10), switch(us(0), 1, 8, "S", 0), switch(us(0), 2, 0, "R", 12), switch(us(0), 3, 0, "R", 13),
             leave.format(us(50)), fork, switch(us(400), 0, 10, "S", 0), leave.format(us(600)), leave.format(us(900))]
    trace = analysed(tmp_path, trace_text(lines), PAIRS)
    assert trace.full_busy == pytest.approx(100 - 100 * (200 + 500) / 2000)
    lines.remove(fork)
    assert analysed(tmp_path, trace_text(lines), PAIRS).full_busy is None


def test_unknown_share(tmp_path):
    trace = analysed(tmp_path, trace_text([switch(us(250), 0, 0, "R", 10), switch(us(500), 1, 3, "S", 0)]), PAIRS)
    assert trace.unknown == pytest.approx((0 + 0 + 100 + 100) / 4)
    assert trace.idle_ns == [250_000, 500_000, 0, 0]


def test_raster_cells(tmp_path):
    """Rows are ordered by LLC; the rest of a common time axis is empty."""
    lines = [line.replace("[000]", "[002]").replace("target_cpu=000", "target_cpu=002") for line in WASTE if "[000]" in line]
    trace = analysed(tmp_path, trace_text(lines + [switch(us(0), 0, 7, "S", 0), switch(us(500), 0, 0, "R", 9)]), [[0, 2], [1, 3]])
    cells = traces.raster(trace, 20, 2e-3)
    assert cells.wasted[0].tolist() == pytest.approx([0, 0, 1, 1, 1] + [0] * 15)
    assert cells.idle[0].tolist() == pytest.approx([1, 1] + [0] * 18)
    assert cells.busy[1].tolist() == pytest.approx([1] * 10 + [0] * 10)
    assert cells.unknown[3].tolist() == pytest.approx([1] * 10 + [0] * 10)


@pytest.mark.parametrize("style", ["{0}-{1} [{2:03}] {3}: ", "  {0}-{1} (    123) [{2:03}] d..2. {3}: ",
                                   "  {0}-{1} (-------) [{2:03}] dN.2. {3}: ", "  a b-{1}  [{2:03}] ..... {3}000: ",
                                   "  x-1 [9] y-{1} [{2:03}] d..3. {3}: "])
def test_line_formats(tmp_path, style):
    lines = [switch(us(0), 0, 0, "R", 10, style=style), switch(us(0), 1, 5, "S", 0, style=style),
             switch(us(200), 0, 10, "R", 11, style=style), switch(us(600), 0, 11, "S", 10, style=style)]
    assert analysed(tmp_path, trace_text(lines), PAIRS).wasted == pytest.approx(10)


def test_gzip_and_no_marks(tmp_path):
    path = tmp_path / "trace-1-STEAL+X.txt.gz"
    lines = WASTE + [switch(us(800), 0, 11, "S", 10)]
    path.write_bytes(gzip.compress(trace_text(lines, begin=None, end=None, side="STEAL+X").encode()))
    trace = traces.analyse(path, PAIRS)
    assert (trace.groups, trace.side, trace.seconds) == (1, "STEAL+X", pytest.approx(800e-6))
    assert trace.wasted == pytest.approx(100 * 400 / 3200)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(records.ReportError, match="cannot read .*record the trace again"):
        traces.analyse(path, PAIRS)


REFUSED = {
    "overruns": (dict(overruns="17"), WASTE, "17 events were overwritten"),
    "other side": (dict(side="on"), WASTE, "its header says side on"),
    "other groups": (dict(groups="2"), WASTE, "its header says groups 2"),
    "other machine": (dict(cpus="8"), WASTE, "has 8 CPUs, but the records have 4"),
    "lost": ({}, WASTE + ["CPU:3 [LOST 45 EVENTS]"], "trace-1-off.txt:17: events are lost"),
    "empty": ({}, [], "has no scheduler events"),
    "unknown CPU": ({}, START + [wake(us(200), 4, 11)], "has CPU 4"),
    "bad mark": (dict(end="soon"), WASTE, "'#: end soon' is not a time"),
    "no time": (dict(end="100.000000"), WASTE, "its end is not after its begin"),
    "cut off": ({}, WASTE + [wake(us(700), 0, 11)[:-9]], "sched_wakeup is not understood or cut off"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused_trace(tmp_path, why):
    header, lines, message = REFUSED[why]
    with pytest.raises(records.ReportError, match=re.escape(message)):
        analysed(tmp_path, trace_text(lines, **header), PAIRS)


def test_refused_trace_does_not_stop_the_report(tmp_path):
    paths = [tmp_path / f"trace-1-{side}.txt" for side in ("off", "on", "x")]
    for path, header in zip(paths, ({}, {"overruns": "17"}, {})):
        path.write_text(trace_text(WASTE, side=path.stem[8:], **header))
    whole = summarised(tmp_path, raw({(1, "off"): BASE, (1, "on"): BASE}, cpus=4), paths)
    assert [row["wasted"] for row in figures(whole).values()] == [pytest.approx(10), None]
    table = texts.table(whole)
    for path, why in ((paths[1], "17 events were overwritten"), (paths[2], "side x is not among the sides, off on")):
        assert f"trace not used: {path}: {why}" in table


def test_lost_switches_are_noted(tmp_path):
    path = tmp_path / "trace-1-off.txt"
    path.write_text(trace_text(WASTE + [switch(us(700), 0, 77, "S", 0)]))
    whole = summarised(tmp_path, raw({(1, "off"): BASE}, cpus=4), [path])
    assert any("1 switches do not fit the switch before" in note for note in whole.records.notes)


@pytest.mark.parametrize("old,new,why", [("llc 0-3", "llc -", "does not say which CPUs share an LLC"),
                                         ("topology cpu 3", "other cpu 3", "has CPU 3, but the records have 3 CPUs"),
                                         ("topology cpu 0", "other cpu 0", "do not have all CPUs")])
def test_no_topology_no_trace(tmp_path, old, new, why):
    path = tmp_path / "trace-1-off.txt"
    path.write_text(trace_text(WASTE))
    assert why in summarised(tmp_path, raw({(1, "off"): BASE}, cpus=4).replace(old, new), [path]).refused[0]


# The files

def described(columns):
    """The columns that a text for --help lists."""
    return re.findall(r"^  (\w+)  ", columns, re.M)


def test_runs_csv_of_loads(tmp_path, monkeypatch):
    """A row for each metric of a valid run, in the order of loads, pairs and sides; the numbers as measured."""
    def run(pair, load, side, *metrics, status=0):
        return "\n".join([f"begin run s1\npair {pair}\nload {load}\nside {side}\nexit {status}\nvalid yes",
                          *(f"metric {metric}" for metric in metrics), "end run\n"])
    (tmp_path / "a.raw").write_text(
        "begin session s1\nsides off on\nend session\n" + run(2, "b-1", "on", "time s lower 0.12345678901") +
        run(10, "b-1", "off", "time s lower 3") + run(1, "a-1", "off", "rate MB/s higher 5", "share % same 2.5") +
        run(2, "b-1", "off", "time s lower 2") + run(1, "a-1", "on", "rate MB/s higher 7", status=1))
    monkeypatch.setattr(sys, "argv", ["loads-table", str(tmp_path)])
    assert LOADS_TABLE.main() == 0
    with (tmp_path / "runs.csv").open() as file:
        header, *lines = csv.reader(file)
    assert header == list(tidy.LOADS_COLUMNS) == described(tidy.LOADS)
    assert [" ".join(line) for line in lines] == [
        "s1 2 b-1 off time s lower 2.0", "s1 2 b-1 on time s lower 0.12345678901", "s1 10 b-1 off time s lower 3.0",
        "s1 1 a-1 off rate MB/s higher 5.0", "s1 1 a-1 off share % same 2.5"]


def test_runs_csv(simulated):
    """A row for each run, from which the medians of summary.csv follow to the last digit."""
    runs, summaries = (list(csv.DictReader((simulated[0] / name).read_text().splitlines())) for name in ("runs.csv", "summary.csv"))
    assert list(runs[0]) == described(tidy.HACKBENCH)
    assert len({(run["groups"], run["side"], run["pair"]) for run in runs}) == len(runs) == 20
    for row in summaries:
        of = [run for run in runs if (run["groups"], run["side"]) == (row["groups"], row["side"])]
        for figure in records.FIGURES:
            values = [float(run[tidy.UNITS.get(figure, figure)]) for run in of]
            assert statistics.median(values) == float(row[figure]), (row, figure)
    assert {run["across"] for run in runs} == {""}


def test_files(simulated):
    """The page has all pictures, and refers to nothing else."""
    where, printed = simulated
    pictures = {path.name for path in where.glob("*.png")}
    assert pictures == {"busy-1.png", "counts.png", "speedup.png", "time.png", "wasted.png"}
    assert (where / "table.txt").read_text() == printed
    page = (where / "report.html").read_text()
    references = re.findall(r"\b(?:src|href|srcset|data|action)=.{22}", page)
    assert references == len(pictures) * ['src="data:image/png;base64']
    assert not re.search(r"https?:|@import|url\(|<(script|link|iframe|object|embed)", page)
    assert '<td class="GAIN">GAIN</td>' in page and '<td class="LOSS">LOSS</td>' in page


def test_texts_are_escaped_in_the_page(tmp_path):
    text = raw({(1, "<b>"): BASE}, sides="<b>").replace("model Fake CPU", "model <b>&CPU")
    page = texts.report_html(summarised(tmp_path, text), {})
    assert "&lt;b&gt;&amp;CPU" in page and "<b>" not in page


def share(path, colour):
    """How much of a picture has this colour."""
    image = matplotlib.image.imread(path)[::2, ::2, :3]
    return (abs(image - matplotlib.colors.to_rgb(colour)) < 0.01).all(axis=-1).mean()


def test_runs_and_medians_are_plotted(tmp_path):
    times = {(1, "off"): BASE, (2, "off"): [2, 3, 4], (1, "on"): [0.5, 0.6], (2, "on"): [1, 5, 7]}
    whole = summarised(tmp_path, raw(times))
    figure, (axes,) = plots.new_figure(whole, "x", 1)
    plots.figure_panel(axes, whole, "time (s)", "time")
    plots.plt.close(figure)
    assert {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()} == {"off": [1.01, 3], "on": [0.55, 5]}
    assert [list(dots.get_offsets()[:, 1]) for dots in axes.collections] == list(times.values())


@pytest.mark.parametrize("name,colours", [("speedup.png", [plots.VERDICTS["GAIN"], plots.VERDICTS["LOSS"]]),
                                          ("busy-1.png", [plots.BUSY, plots.NOTHING_WAITS])])
def test_plots_show_something(simulated, name, colours):
    for colour in colours:
        assert share(simulated[0] / name, colour) > 1e-4, colour


def test_wasted_idle_has_its_own_colour(simulated):
    """It covers about as much of the panel as is wasted, and is nowhere else."""
    assert 0.03 < share(simulated[0] / "busy-1.png", plots.WASTED) < 0.12
    assert share(simulated[0] / "time.png", plots.WASTED) == 0
