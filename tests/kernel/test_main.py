# SPDX-License-Identifier: GPL-2.0
"""The main job, on a booted kernel: hackbench with stealing off and on, on a simulated machine."""

import re

import pytest


@pytest.fixture(scope="module")
def job(comparison):
    """Output and raw records of a small comparison on 4 CPUs in 2 LLCs."""
    out, directory = comparison
    return out, "".join(path.read_text() for path in sorted(directory.glob("run-*.raw")))


def steals(record):
    """Tasks stolen during the run of a record, all CPUs together."""
    total = {}
    for when in ("before", "after"):
        lines = re.findall(rf"^{when} idle_search cpu\d+ (\d+) \d+ \d+ \d+$", record, re.M)
        assert len(lines) == 4, record
        total[when] = sum(map(int, lines))
    return total["after"] - total["before"]


def runs(raw, side):
    return [r for r in re.findall(r"^begin run .*?^end run", raw, re.M | re.S) if f"\nside {side}\n" in r]


def test_guest_has_two_llcs(job):
    _, raw = job
    # a session for each pair
    assert re.findall(r"^llcs (\d+)$", raw, re.M) == ["2"] * 4
    assert set(re.findall(r"^topology cpu \d+ .* llc (\S+) node", raw, re.M)) == {"0-1", "2-3"}


def test_nothing_is_stolen_with_no_steal(job):
    _, raw = job
    off = runs(raw, "off")
    assert len(off) == 4
    assert [steals(r) for r in off] == [0, 0, 0, 0]


def test_tasks_are_stolen_with_steal(job):
    _, raw = job
    on = runs(raw, "on")
    assert len(on) == 4
    # A single run of this size can do without a steal; four cannot.
    assert sum(steals(r) for r in on) > 0


def test_table_is_printed(job):
    out, _ = job
    columns = r"^ *grps +side +time .*%busy +slice +sched +idle +wake +%find +steal +wasted +%speedup.*$"
    table = re.search(columns + r"((?:\n +[12] +(?:off|on) .*){4})\n(?! +[12] )", out, re.M)
    assert table, out
    assert re.findall(r"\n +([12]) +(\S+)", table[1]) == [("1", "off"), ("1", "on"), ("2", "off"), ("2", "on")], out


def test_proc_schedstat_is_as_before(job):
    """Nine fields on a cpu line, version 17: what perf sched stats and others expect."""
    _, raw = job
    lines = re.findall(r"^after schedstat cpu\d+ (.*)$", raw, re.M)
    assert len(lines) == 8 * 4
    assert {len(line.split()) for line in lines} == {9}
    assert set(re.findall(r"^after schedstat version (\d+)$", raw, re.M)) == {"17"}


def test_switching_on_makes_waiting_tasks_visible(run, top):
    """10 of 10 rounds find the task; 0 or 1 did when switching on did not look at the counts."""
    out = run(top / "scripts/boot", "--arch", "x86_64", "--smp", "2,sockets=1,cores=2", "--append", "schedstats=enable",
              "--add", top / "tests/guest/switch-on.sh", "--", "/opt/switch-on.sh").stdout
    found = re.search(r"^found in (\d+) of 10 rounds$", out, re.M)
    assert found, out
    assert int(found.group(1)) >= 6, out
