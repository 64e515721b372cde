# SPDX-License-Identifier: GPL-2.0
"""bench/wakeups: what it counts, on traces made by hand."""

import pytest

from test_report import died, migrate, switch, trace_text, us, wake

# CPU 0 runs 10, CPU 1 is idle.
START = [switch(us(0), 0, 0, "R", 10), switch(us(0), 1, 9, "S", 0)]

CASES = {
    "to an idle CPU": (START + [wake(us(100), 1, 11), switch(us(110), 1, 0, "R", 11)],
                       {"wakeups": 1, "idle": 1, "alone": 0, "others": 0, "here": 0, "preempted": 0}),
    "preempts its waker": (START + [wake(us(100), 0, 11), switch(us(110), 0, 10, "R", 11)],
                           {"wakeups": 1, "alone": 1, "here": 1, "preempted": 1, "by_wakee": 1}),
    "waits behind its waker": (START + [wake(us(100), 0, 11), switch(us(110), 0, 10, "S", 11)],
                               {"alone": 1, "preempted": 0, "by_wakee": 0, "run": "110.0"}),
    "preempts another than its waker": (START + [switch(us(50), 1, 0, "R", 12), wake(us(100), 1, 11),
                                                 switch(us(110), 1, 12, "R", 11)],
                                        {"alone": 1, "here": 0, "preempted": 1, "by_wakee": 0}),
    "others wait there": (START + [wake(us(100), 0, 11), wake(us(101), 0, 12), wake(us(102), 0, 13)],
                          {"wakeups": 3, "alone": 1, "others": 2}),
    "whoever waits and dies is no other": (START + [wake(us(100), 0, 11), died(us(101), 11), wake(us(102), 0, 12)],
                                           {"alone": 2, "others": 0}),
    "stolen, and runs until it sleeps": (START + [wake(us(100), 0, 11), migrate(us(110), 11, 0, 1),
                                                  switch(us(112), 1, 0, "R", 11), switch(us(142), 1, 11, "S", 0)],
                                         {"pulled": 1, "p_preempt": "0", "p_run": "30.0"}),
    "stolen and preempted": (START + [wake(us(100), 0, 11), migrate(us(110), 11, 0, 1),
                                      switch(us(112), 1, 0, "R", 11), switch(us(122), 1, 11, "R", 12)],
                             {"pulled": 1, "p_preempt": "100", "p_run": "10.0"}),
    "moved in its sleep": (START + [migrate(us(100), 11, 1, 0), wake(us(110), 0, 11), switch(us(120), 0, 10, "S", 11)],
                           {"pulled": 0, "p_preempt": "-", "p_run": "-"}),
}


@pytest.mark.parametrize("name", CASES)
def test_counts(run, top, tmp_path, name):
    lines, expected = CASES[name]
    (tmp_path / "trace-1-off.txt").write_text(trace_text(lines))
    header, row = run(top / "bench/wakeups", tmp_path / "trace-1-off.txt").stdout.splitlines()
    found = dict(zip(header.split(), row.split()))
    assert {key: found[key] for key in expected} == {key: str(value) for key, value in expected.items()}


@pytest.mark.parametrize("arguments,status,words", [([], 2, "see --help"), (["--frob"], 2, "see --help"),
                                                    (["/nonexistent"], 1, "cannot read /nonexistent")])
def test_wrong_calls(run, top, arguments, status, words):
    done = run(top / "bench/wakeups", *arguments, check=False)
    assert done.returncode == status
    assert words in done.stdout


def test_trace_without_events(run, top, tmp_path):
    (tmp_path / "trace-1-off.txt").write_text(trace_text([]))
    done = run(top / "bench/wakeups", tmp_path / "trace-1-off.txt", check=False)
    assert done.returncode == 1
    assert "has no events" in done.stdout
