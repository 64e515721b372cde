# SPDX-License-Identifier: GPL-2.0
"""bench/cores: how often tasks share a core while another idles, on traces made by hand."""

import importlib.machinery
import importlib.util

import pytest

from commands import TOP

from test_traces import switch, trace_text, us, wake

LOADER = importlib.machinery.SourceFileLoader("cores", str(TOP / "bench/cores"))
CORES = importlib.util.module_from_spec(importlib.util.spec_from_loader("cores", LOADER))
LOADER.exec_module(CORES)

# Two cores of two CPUs, in one LLC, and in two.
ONE = "".join(f"cpu {cpu} package 0 core {cpu // 2} llc 0-3 node 0\n" for cpu in range(4))
TWO = "".join(f"cpu {cpu} package 0 core {cpu // 2} llc {cpu // 2} node 0\n" for cpu in range(4))
# From 0 to 100 us, as the events of a trace say: a task begins on each of these CPUs, and the others idle.
END = [wake(us(100), 0, 99)]

CASES = {
    "one on each core": (ONE, [switch(us(0), 0, 0, "S", 10), switch(us(0), 2, 0, "S", 11)], {"busy": 2, "shared": 0, "avoidable": 0}),
    "two on a core": (ONE, [switch(us(0), 0, 0, "S", 10), switch(us(0), 1, 0, "S", 11)],
                      {"time": 0.1, "busy": 2, "shared": 1, "idle": 1, "avoidable": 1, "when": 100}),
    "the idle core is of another LLC": (TWO, [switch(us(0), 0, 0, "S", 10), switch(us(0), 1, 0, "S", 11)],
                                        {"shared": 1, "idle": 1, "avoidable": 0, "when": 0}),
    "no core idles": (ONE, [switch(us(0), cpu, 0, "S", 10 + cpu) for cpu in (0, 1, 2)], {"busy": 3, "shared": 1, "avoidable": 0}),
    "for a fourth of the time": (ONE, [switch(us(0), 0, 0, "S", 10), switch(us(75), 1, 0, "S", 11)],
                                 {"busy": 1.25, "shared": 0.25, "idle": 1, "avoidable": 0.25, "when": 25}),
    "until one moves": (ONE, [switch(us(0), 0, 0, "S", 10), switch(us(0), 1, 0, "S", 11), switch(us(50), 1, 11, "R", 0),
                              switch(us(50), 2, 0, "S", 11)], {"busy": 2, "shared": 0.5, "avoidable": 0.5, "when": 50}),
    "busy before its first switch": (ONE, [switch(us(0), 0, 0, "S", 10), switch(us(40), 1, 11, "S", 0)], {"busy": 1.4, "avoidable": 0.4}),
}


@pytest.fixture(params=CASES)
def case(request, tmp_path):
    topology, lines, expected = CASES[request.param]
    (tmp_path / "topology").write_text(topology)
    (tmp_path / "trace").write_text(trace_text(lines + END))
    return tmp_path, expected


def test_means(case):
    where, expected = case
    found = CORES.measure(where / "trace", CORES.cores_of((where / "topology").read_text()))
    assert {key: round(found[key], 9) for key in expected} == expected


def test_lines(tmp_path, capsys):
    names = [str(tmp_path / name) for name in ("topology", "trace", "trace")]
    topology, lines, _ = CASES["two on a core"]
    (tmp_path / "topology").write_text(topology)
    (tmp_path / "trace").write_text(trace_text(lines + END))
    assert CORES.main(names) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["trace", *CORES.COLUMNS] and len(rows) == 2
    assert rows[0].split() == [names[1], "0.1", "2.00", "1.00", "1.00", "1.00", "100.0"]


@pytest.mark.parametrize("arguments,status,words", [
    ([], 2, "see --help"), (["--frob"], 2, "see --help"), (["topology"], 2, "see --help"),
    (["/nonexistent", "trace"], 1, "/nonexistent: cannot read it"), (["topology", "/nonexistent"], 1, "/nonexistent: cannot read it"),
    (["topology", "empty"], 1, "has no scheduler events"), (["small", "trace"], 1, "CPU 1 is not in the topology")])
def test_errors(tmp_path, capsys, arguments, status, words):
    _, lines, _ = CASES["two on a core"]
    for name, text in (("topology", ONE), ("small", "cpu 0 package 0 core 0 llc 0 node 0\n"), ("trace", trace_text(lines + END)),
                       ("empty", trace_text([]))):
        (tmp_path / name).write_text(text)
    assert CORES.main([str(tmp_path / word) if word.isalpha() else word for word in arguments]) == status
    assert words in capsys.readouterr().err


def test_help(run, top):
    assert "Exit status" in run(top / "bench/cores", "--help").stdout
