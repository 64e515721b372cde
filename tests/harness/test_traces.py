# SPDX-License-Identifier: GPL-2.0
"""bench/ablib/traces.py: the reading of traces against cases worked out by hand; and what fold makes of the trace of a run."""

import re
import sys

import matplotlib.colors
import numpy
import pandas
import pytest

from commands import TOP

sys.path.insert(0, str(TOP / "bench"))
from ablib import AbError, fold, plots, table, traces  # noqa: E402
from test_ablib import AFTER, BEFORE, raw, shown  # noqa: E402,F401


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
    header = {"begin": begin, "end": end, "cpus": "4", "clock": "local", "overruns": "0"} | header
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


def analysed(text, llcs):
    return traces.analyse(text.splitlines(keepends=True), llcs)


@pytest.mark.parametrize("case", CASES)
def test_trace(case):
    lines, llcs, wasted, latency = CASES[case]
    trace = analysed(trace_text(lines), llcs)
    assert (trace.wasted, trace.latency) == (pytest.approx(wasted), pytest.approx(latency))
    # What is drawn is what is counted.
    cells = traces.raster(trace, 50)
    assert 100 * cells.wasted.mean() == pytest.approx(wasted)
    assert 100 * (cells.idle + cells.wasted).mean() == pytest.approx(trace.idle)
    assert 100 * cells.unknown.mean() == pytest.approx(trace.unknown)
    assert cells.busy + cells.idle + cells.wasted + cells.unknown == pytest.approx(numpy.ones((4, 50)))
    assert min(a.min() for a in (cells.busy, cells.idle, cells.wasted, cells.unknown)) > -1e-9


def test_idle_periods():
    early = [switch("99.9", 2, 0, "R", 12), switch("99.95", 2, 12, "S", 0), switch("99.96", 2, 0, "R", 7)]
    lines = early + START + [switch(us(100), 1, 0, "R", 11), switch(us(300), 1, 11, "S", 0), switch(us(900), 2, 0, "R", 12)]
    trace = analysed(trace_text(lines), PAIRS)
    assert trace.idle_periods == [0, 2, 1, 1]
    assert trace.idle_ns == [0, 800_000, 900_000, 1_000_000]
    assert trace.idle_mean_us == pytest.approx(675) and trace.idle == pytest.approx(67.5)
    assert trace.unknown == 0


def test_busy_while_all_tasks_are_there():
    """From the last fork to the first exit: 100 to 600 us here, with CPU 0 idle for 200 of them, 1 for 500, 2 and 3 for none."""
    fork = wake(us(100), 1, 11).replace("sched_wakeup:", "sched_wakeup_new:")
    leave = "x-12 [002] d..2. {}: sched_process_exit: comm=x pid=12 prio=120"
    lines = [switch(us(0), 0, 0, "R", 10), switch(us(0), 1, 8, "S", 0), switch(us(0), 2, 0, "R", 12), switch(us(0), 3, 0, "R", 13),
             leave.format(us(50)), fork, switch(us(400), 0, 10, "S", 0), leave.format(us(600)), leave.format(us(900))]
    trace = analysed(trace_text(lines), PAIRS)
    assert trace.full_busy == pytest.approx(100 - 100 * (200 + 500) / 2000)
    lines.remove(fork)
    assert analysed(trace_text(lines), PAIRS).full_busy is None


def test_unknown_share():
    trace = analysed(trace_text([switch(us(250), 0, 0, "R", 10), switch(us(500), 1, 3, "S", 0)]), PAIRS)
    assert trace.unknown == pytest.approx((0 + 0 + 100 + 100) / 4)
    assert trace.idle_ns == [250_000, 500_000, 0, 0]


def test_raster_cells():
    """Rows are ordered by LLC."""
    lines = [line.replace("[000]", "[002]").replace("target_cpu=000", "target_cpu=002") for line in WASTE if "[000]" in line]
    trace = analysed(trace_text(lines + [switch(us(0), 0, 7, "S", 0), switch(us(500), 0, 0, "R", 9)]), [[0, 2], [1, 3]])
    cells = traces.raster(trace, 10)
    assert cells.wasted[0].tolist() == pytest.approx([0, 0, 1, 1, 1] + [0] * 5)
    assert cells.idle[0].tolist() == pytest.approx([1, 1] + [0] * 8)
    assert cells.busy[1].tolist() == pytest.approx([1] * 10)
    assert cells.unknown[3].tolist() == pytest.approx([1] * 10)


@pytest.mark.parametrize("style", ["{0}-{1} [{2:03}] {3}: ", "  {0}-{1} (    123) [{2:03}] d..2. {3}: ",
                                   "  {0}-{1} (-------) [{2:03}] dN.2. {3}: ", "  a b-{1}  [{2:03}] ..... {3}000: ",
                                   "  x-1 [9] y-{1} [{2:03}] d..3. {3}: "])
def test_line_formats(style):
    lines = [switch(us(0), 0, 0, "R", 10, style=style), switch(us(0), 1, 5, "S", 0, style=style),
             switch(us(200), 0, 10, "R", 11, style=style), switch(us(600), 0, 11, "S", 10, style=style)]
    assert analysed(trace_text(lines), PAIRS).wasted == pytest.approx(10)


REFUSED = {
    "overruns": (dict(overruns="17"), WASTE, "trace: 17 events were overwritten"),
    "other machine": (dict(cpus="8"), WASTE, "has 8 CPUs, but machine/topology has 4"),
    "lost": ({}, WASTE + ["CPU:3 [LOST 45 EVENTS]"], "trace:15: events are lost"),
    "empty": ({}, [], "has no scheduler events"),
    "unknown CPU": ({}, START + [wake(us(200), 4, 11)], "has 5 CPUs"),
    "bad mark": (dict(end="soon"), WASTE, "its end 'soon' is not a time"),
    "no mark": (dict(begin=None), WASTE, "its begin '' is not a time"),
    "no time": (dict(end="100.000000"), WASTE, "its end is not after its begin"),
    "cut in a line": ({}, WASTE + [wake(us(700), 0, 11)[:-9]], "sched_wakeup is not understood or cut off"),
    "cut": ({}, ["# entries-in-buffer/entries-written: 9/9   #P:4", *WASTE[1:]], "is cut off: it has 6 of 9 entries"),
    "a switch is missing": ({}, WASTE + [switch(us(700), 0, 77, "S", 0)], "1 switches do not fit the switch before"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused_trace(why):
    header, lines, message = REFUSED[why]
    with pytest.raises(AbError, match=re.escape(message)):
        analysed(trace_text(lines, **header), PAIRS)


def test_entries_are_counted():
    """A trace with as many entries as it says is whole; comments and empty lines are none."""
    lines = ["# entries-in-buffer/entries-written: 7/7   #P:4", *WASTE, "  sh-9  [001] .....  100.000000: tracing_mark_write: begins"]
    assert analysed(trace_text(lines), PAIRS).wasted == pytest.approx(10)


@pytest.mark.parametrize("topology, why", [
    ("", "does not say"), ("cpu 0 llc -\n", "does not say"), ("cpu 0 llc 0\ncpu 2 llc 0\n", "not have all"),
    ("cpu 0 core 1\n", "does not say")])
def test_no_llcs(topology, why):
    with pytest.raises(AbError, match=why):
        traces.llcs_of(topology)


def test_llcs_end_with_the_node():
    topology = "".join(f"cpu {cpu} llc 0-3 node {cpu // 2}\n" for cpu in range(4))
    assert traces.llcs_of(topology) == [[0, 1], [2, 3]]


def test_llcs():
    assert traces.llcs_of("cpu 0 node 0 llc 0,2\ncpu 10 llc x node 0\n" + "".join(f"cpu {cpu} llc {'0,2' if cpu in (0, 2) else 'x'} node 0\n"
                                                                         for cpu in range(1, 10))) == [[0, 2], [1, *range(3, 11)]]


# fold

TOPOLOGY = "".join(f"cpu {cpu} package 0 core {cpu} threads {cpu} llc {cpu // 2} node 0\n" for cpu in range(4))
FULL = [wake(us(100), 1, 12, kind="sched_wakeup_new"), switch(us(150), 1, 0, "R", 12), switch(us(350), 1, 12, "S", 0), died(us(600), 11)]


def traced(raw, text, name="traced", **files):
    """Three pairs, and traced runs of both sides; that of `on` has this trace."""
    made = raw(name, runs=3, cases=("hackbench-2", "hackbench-4"), more="trace_loops 100\n")
    for case in made.cases:
        for pair in (1, 2, 3):
            made.run(pair, "off", 100 + pair, case=case, topology=TOPOLOGY)
            made.run(pair, "on", 100, case=case, topology=TOPOLOGY)
    made.run(0, "off", 7, topology=TOPOLOGY, trace=trace_text(START))
    made.run(0, "on", 9, topology=TOPOLOGY, **{"trace": text} | files)
    return made


def test_figures_of_a_traced_run(raw):  # noqa: F811
    """Wasted are 400 of 4000 us, less 200 for which CPU 1 runs 12; from 100 to 600 us CPUs 2 and 3 are idle, CPU 1 for 300 us."""
    frame = traced(raw, trace_text(WASTE + FULL)).frame()
    both = frame[frame["pair"] == 0].set_index("side")
    assert both["valid"].tolist() == ["yes", "yes"] and both["seed"].tolist() == ["", ""]
    row = both.loc["on"]
    assert row["wasted_percent"] == pytest.approx(100 * 250 / 4000)
    assert row["full_busy_percent"] == pytest.approx(100 - 100 * (2 * 500 + 300) / 2000)
    assert row["idle_mean_us"] == pytest.approx((150 + 650 + 1000 + 1000) / 4)
    assert both.loc["off"]["wasted_percent"] == 0
    assert frame[frame["pair"] > 0][list(fold.TRACED)].isna().all(axis=None)


def test_traced_runs_count_in_no_comparison(raw):  # noqa: F811
    made = traced(raw, trace_text(WASTE), schedstat_before=BEFORE, schedstat_after=AFTER)
    fold.fold(made.path)
    summary = table.summarise(made.path)
    assert [(row.pairs, row.base) for row in summary.rows] == [(3, [101, 102, 103])] * 2 and summary.complete == 6
    counts = summary.grids[1]
    assert [head.name for head in counts.heads][:2] == ["level", "side"]
    assert {line[2] for line in counts.lines} == {"-"}
    assert [line[:2] + line[-2:] for line in counts.lines] == [["2", "off", "0.00", "1000.0"], ["2", "on", "10.00", "1000.0"],
                                                            ["4", "off", "-", "-"], ["4", "on", "-", "-"]]


@pytest.mark.parametrize("files, why", [
    ({"trace": trace_text(WASTE, overruns="17")}, "trace: 17 events were overwritten; record the trace again with a larger buffer"),
    ({"trace": None}, "trace: has no scheduler events"), ({"trace": trace_text(WASTE)[:-20]}, "trace:14: sched_switch is not understood"),
    ({"valid": "somebody changed the scheduler features\n"}, "somebody changed the scheduler features"), ({"exit": "3\n"}, "exit 3")])
def test_a_bad_trace_breaks_nothing_else(raw, files, why):  # noqa: F811
    made = traced(raw, trace_text(WASTE), **files)
    frame = made.frame()
    bad = frame[(frame["pair"] == 0) & (frame["side"] == "on")].iloc[0]
    assert bad["why"].startswith(why) and bad[list(fold.TRACED)].isna().all()
    assert frame[frame["why"] == ""]["wasted_percent"].notna().sum() == 1
    text, verdict = shown(made)
    assert " ".join(f"* traced run not used: hackbench-2, on: {why}".split()) in " ".join(text.split()) and not verdict.cannot
    assert "dropped" not in text and "not complete" not in text
    assert (made.path / "busy-hackbench-2.svg").exists()


def test_busy_csv(raw):  # noqa: F811
    made = traced(raw, trace_text([line for line in WASTE if "[003]" not in line]))
    fold.fold(made.path)
    busy = pandas.read_csv(made.path / "busy.csv", dtype=str, keep_default_na=False)
    assert list(busy) == list(fold.BUSY)
    assert busy[["load", "level", "ns"]].drop_duplicates().values.tolist() == [["hackbench", "2", "1000000"]]
    on = busy[busy["side"] == "on"]
    assert on[["cpu", "llc"]].values.tolist() == [["0", "0"], ["1", "0"], ["2", "2"], ["3", "2"]]
    cells = fold.CELLS
    assert on["busy"].tolist() == ["9" * cells, "0" * cells, "0" * cells, ""]
    wasted = "0" * (cells // 5) + "9" * (2 * cells // 5) + "0" * (2 * cells // 5)
    assert on["wasted"].tolist() == ["0" * cells, wasted, "0" * cells, ""]
    colours = [matplotlib.colors.to_rgb(colour) for colour in (plots.BUSY, plots.WASTED, plots.NOTHING_WAITS, plots.UNKNOWN)]
    picture = plots.blend(on["busy"], on["wasted"])
    assert [picture[0, 0].tolist(), picture[1, cells // 2].tolist(), picture[2, 0].tolist(), picture[3, 5].tolist()] == [
        pytest.approx(colour) for colour in colours]


def test_busy_csv_is_small(raw):  # noqa: F811
    """For 20 CPUs and 10 traced runs below 200 kB."""
    made = raw(cases=[f"hackbench-{level}" for level in range(1, 6)])
    topology = "".join(f"cpu {cpu} llc 0-19\n" for cpu in range(20))
    lines = [switch(us(10 * turn + cpu % 10), cpu, turn % 2 * 10, "S", 10 - turn % 2 * 10) for turn in range(99) for cpu in range(20)]
    for case in made.cases:
        for side in made.sides:
            made.run(0, side, case=case, topology=topology, trace=trace_text(lines, cpus="20"))
    assert made.frame()["why"].tolist() == [""] * 10
    assert 100000 < (made.path / "busy.csv").stat().st_size < 200000


def test_a_trace_is_analysed_once(raw, monkeypatch):  # noqa: F811
    """Also if its unit gets more runs, and if it is an archive."""
    made = traced(raw, trace_text(WASTE))
    made.run(0, "off", case="hackbench-4", unit="p0", topology=TOPOLOGY, trace=trace_text(WASTE))
    made.archive("p0")
    calls = []
    analyse = traces.analyse
    monkeypatch.setattr(traces, "analyse", lambda *args: calls.append(args) or analyse(*args))
    first = made.frame()
    assert len(calls) == 3
    made.run(4, "off")
    assert len(made.frame()) == len(first) + 1 and len(calls) == 3
