# SPDX-License-Identifier: GPL-2.0
"""bench/wakeups: what it counts, on traces made by hand."""

import importlib.machinery
import importlib.util

import pytest

from commands import TOP

from test_traces import died, migrate, switch, trace_text, us, wake

# CPU 0 runs 10, CPU 1 is idle.
START = [switch(us(0), 0, 0, "R", 10), switch(us(0), 1, 9, "S", 0)]
LOADER = importlib.machinery.SourceFileLoader("wakeups", str(TOP / "bench/wakeups"))
WAKEUPS = importlib.util.module_from_spec(importlib.util.spec_from_loader("wakeups", LOADER))
LOADER.exec_module(WAKEUPS)

CASES = {
    "to an idle CPU": ([wake(us(100), 1, 11), switch(us(110), 1, 0, "R", 11)],
                       {"wakeups": 1, "idle": 1, "alone": 0, "others": 0, "here": 0, "preempted": 0}),
    "preempts its waker": ([wake(us(100), 0, 11), switch(us(110), 0, 10, "R", 11)],
                           {"wakeups": 1, "alone": 1, "here": 1, "preempted": 1, "by_wakee": 1}),
    "waits behind its waker": ([wake(us(100), 0, 11), switch(us(110), 0, 10, "S", 11)],
                               {"alone": 1, "preempted": 0, "by_wakee": 0, "run": 110}),
    "preempts another than its waker": ([switch(us(50), 1, 0, "R", 12), wake(us(100), 1, 11), switch(us(110), 1, 12, "R", 11)],
                                        {"alone": 1, "here": 0, "preempted": 1, "by_wakee": 0}),
    "others wait there": ([wake(us(100), 0, 11), wake(us(101), 0, 12), wake(us(102), 0, 13)],
                          {"wakeups": 3, "alone": 1, "others": 2}),
    "a waiting task exits": ([wake(us(100), 0, 11), died(us(101), 11), wake(us(102), 0, 12)], {"alone": 2, "others": 0}),
    "stolen, and runs until it sleeps": ([wake(us(100), 0, 11), migrate(us(110), 11, 0, 1), switch(us(112), 1, 0, "R", 11),
                                          switch(us(142), 1, 11, "S", 0)], {"pulled": 1, "p_preempt": 0, "p_run": 30}),
    "stolen and preempted": ([wake(us(100), 0, 11), migrate(us(110), 11, 0, 1), switch(us(112), 1, 0, "R", 11),
                              switch(us(122), 1, 11, "R", 12)], {"pulled": 1, "p_preempt": 100, "p_run": 10}),
    "moved in its sleep": ([migrate(us(100), 11, 1, 0), wake(us(110), 0, 11), switch(us(120), 0, 10, "S", 11)],
                           {"time": 0.12, "pulled": 0, "p_preempt": None, "p_run": None}),
}


@pytest.mark.parametrize("name", CASES)
def test_counts(tmp_path, name):
    lines, expected = CASES[name]
    (tmp_path / "trace").write_text(trace_text(START + lines))
    found = WAKEUPS.measure(tmp_path / "trace")
    assert {key: found[key] for key in expected} == expected


def test_lines(tmp_path, capsys):
    traces = [tmp_path / name for name in ("trace", "0-STEAL+SYNC_WAIT")]
    for trace, name in zip(traces, ("stolen and preempted", "moved in its sleep")):
        trace.write_text(trace_text(START + CASES[name][0]))
    assert WAKEUPS.main(list(map(str, traces))) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(map(str, traces))
    assert [line.split()[-2:] for line in (header, *lines)] == [["p_preempt", "p_run"], ["100", "10.0"], ["-", "-"]]


@pytest.mark.parametrize("arguments,status,words", [([], 2, "see --help"), (["--frob"], 2, "see --help"),
                                                    (["/nonexistent"], 1, "/nonexistent: cannot read it"),
                                                    (["EMPTY"], 1, "has no scheduler events")])
def test_errors(tmp_path, capsys, arguments, status, words):
    (tmp_path / "trace").write_text(trace_text([]))
    assert WAKEUPS.main([str(tmp_path / "trace") if word == "EMPTY" else word for word in arguments]) == status
    assert words in capsys.readouterr().err


def test_help(run, top):
    assert "Exit status" in run(top / "bench/wakeups", "--help").stdout
