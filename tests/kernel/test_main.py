# SPDX-License-Identifier: GPL-2.0
"""The main job, on a booted kernel: hackbench with stealing off and on, on a simulated machine."""

import csv
import re
import sys

import pytest
from commands import TOP

sys.path.insert(0, str(TOP / "bench"))

from ablib import fold  # noqa: E402


@pytest.fixture(scope="module")
def units(comparison):
    """A small comparison on 4 CPUs in 2 LLCs: a unit for each case and pair."""
    return [fold.read_unit(path) for path in sorted(comparison[1].glob("raw/hackbench-*-[12].tar"))]


def texts(units, name):
    """A file of all runs."""
    return [files[name].decode() for unit in units for files in unit.runs.values()]


def test_guest_has_two_llcs(units):
    assert len(units) == 4
    for unit in units:
        assert re.findall(r"^cpu \d+ .* llc (\S+) node", unit.machine["topology"].decode(), re.M) == ["0-1", "0-1", "2-3", "2-3"]


def test_tasks_are_stolen_with_steal_alone(comparison):
    """A single run of this size can do without a steal; four cannot."""
    with (comparison[1] / "runs.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["pair"] != "0"]
    stolen = {side: [float(row["steal"]) for row in rows if row["side"] == side] for side in ("off", "all")}
    assert stolen["off"] == [0, 0, 0, 0] and len(stolen["all"]) == 4 and sum(stolen["all"]) > 0


def test_table_is_printed(comparison):
    """A row for each number of groups, and one for each side of what the scheduler did."""
    said = comparison[0]
    assert re.findall(r"^ +([12]) +ms +[0-9.]+ +[0-9.]+ +[+-]", said, re.M)[-2:] == ["1", "2"], said
    assert re.findall(r"^ +([12]) +(off|all) +[0-9.]+ ", said, re.M)[-4:] == [("1", "off"), ("1", "all"), ("2", "off"), ("2", "all")], said


def test_proc_schedstat_is_as_before(units):
    """Nine fields on a cpu line, version 17: what perf sched stats and others expect."""
    snapshots = texts(units, "schedstat.after")
    lines = [line for text in snapshots for line in re.findall(r"^cpu\d+ (.*)$", text, re.M)]
    assert len(lines) == 8 * 4
    assert {len(line.split()) for line in lines} == {9}
    assert all(text.startswith("version 17\n") for text in snapshots)


def test_switching_on_makes_waiting_tasks_visible(run, top):
    """10 of 10 rounds find the task; 0 or 1 did when switching on did not look at the counts."""
    out = run(top / "scripts/boot", "--arch", "x86_64", "--smp", "2,sockets=1,cores=2", "--append", "schedstats=enable",
              "--add", top / "tests/guest/switch-on.sh", "--", "/opt/switch-on.sh").stdout
    found = re.search(r"^found in (\d+) of 10 rounds$", out, re.M)
    assert found, out
    assert int(found.group(1)) >= 6, out
