# SPDX-License-Identifier: GPL-2.0
"""bench/cores: how often tasks share a core while another idles, on traces made by hand."""

import importlib.machinery
import importlib.util

import pytest

from commands import TOP

from test_traces import switch, trace_text, us

LOADER = importlib.machinery.SourceFileLoader("cores", str(TOP / "bench/cores"))
CORES = importlib.util.module_from_spec(importlib.util.spec_from_loader("cores", LOADER))
LOADER.exec_module(CORES)


def topology(threads, cpus=4, llc="0-3"):
    return "".join(f"cpu {cpu} package 0 core {cpu // threads} llc {llc or cpu // threads} node 0\n" for cpu in range(cpus))


def begins(cpu, at=0):
    """A task begins on an idle CPU."""
    return switch(us(at), cpu, 0, "R", 10 + cpu)


# Cores of two CPUs in one LLC, and in one each; each trace is of 1 ms.
ONE, TWO = topology(2), topology(2, llc=None)
CASES = {
    "one on each core": (ONE, [begins(0), begins(2)], {"busy": 2, "shared": 0, "avoidable": 0, "when": 0}),
    "two on a core": (ONE, [begins(0), begins(1)], {"time": 1, "busy": 2, "shared": 1, "idle": 1, "avoidable": 1, "when": 100}),
    "the idle core is of another LLC": (TWO, [begins(0), begins(1)], {"shared": 1, "idle": 1, "avoidable": 0, "when": 0}),
    "no core idles": (ONE, [begins(0), begins(1), begins(2)], {"busy": 3, "shared": 1, "idle": 0, "avoidable": 0}),
    "for a fourth of the time": (ONE, [begins(0), begins(1, 750)],
                                 {"busy": 1.25, "shared": 0.25, "idle": 1, "avoidable": 0.25, "when": 25}),
    "until one moves": (ONE, [begins(0), begins(1), switch(us(500), 1, 11, "R", 0), switch(us(500), 2, 0, "R", 11)],
                        {"busy": 2, "shared": 0.5, "avoidable": 0.5, "when": 50}),
    "busy before its first switch": (ONE, [begins(0), switch(us(400), 1, 11, "S", 0)], {"busy": 1.4, "avoidable": 0.4}),
    "four threads of a core, one idle core": (topology(4, 8, "0-7"), [begins(cpu) for cpu in range(4)],
                                              {"busy": 4, "shared": 1, "idle": 1, "avoidable": 1}),
    "three threads of a core, two idle cores": (topology(4, 12, "0-11"), [begins(cpu) for cpu in range(3)],
                                                {"busy": 3, "shared": 1, "idle": 2, "avoidable": 2}),
}


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes the topology and the trace of a case, with other words in the trace's header."""
    monkeypatch.chdir(tmp_path)

    def written(name="two on a core", **header):
        where, lines, expected = CASES[name]
        (tmp_path / "topology").write_text(where)
        (tmp_path / "trace").write_text(trace_text(lines, **{"cpus": None} | header))
        return where, expected
    return written


@pytest.mark.parametrize("name", CASES)
def test_means(write, name):
    where, expected = write(name)
    found = CORES.measure("trace", CORES.cores_of(where, "topology"))
    assert {key: round(found[key], 9) for key in expected} == expected


def test_lines(write, capsys):
    write()
    assert CORES.main(["topology", "trace", "trace"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["trace", *CORES.COLUMNS] and len(rows) == 2
    assert rows[0].split() == ["trace", "1.0", "2.00", "1.00", "1.00", "1.00", "100.0"]


@pytest.mark.parametrize("arguments,status,words", [
    ([], 2, "see --help"), (["--frob"], 2, "see --help"), (["topology"], 2, "see --help"),
    (["/nonexistent", "trace"], 1, "/nonexistent: cannot read it"), (["topology", "/nonexistent"], 1, "/nonexistent: cannot read it"),
    (["topology", "empty"], 1, "empty: has no scheduler events"), (["small", "trace"], 1, "trace: has 2 CPUs"),
    (["strange", "trace"], 1, "strange: does not say of which core CPU 0 is")])
def test_errors(write, tmp_path, capsys, arguments, status, words):
    write()
    (tmp_path / "small").write_text(topology(2, 1, "0"))
    (tmp_path / "strange").write_text(ONE.replace("core 0", "core -"))
    (tmp_path / "empty").write_text(trace_text([]))
    assert CORES.main(arguments) == status
    assert words in capsys.readouterr().err


def test_events_are_missing(write, capsys):
    write(overruns="3")
    assert CORES.main(["topology", "trace"]) == 1 and "3 events were overwritten" in capsys.readouterr().err


def test_help(run, top):
    assert "Exit status" in run(top / "bench/cores", "--help").stdout
