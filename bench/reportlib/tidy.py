# SPDX-License-Identifier: GPL-2.0
"""runs.csv: one row for each run, with numbers in full precision. Any program that reads CSV can use it. An empty field means
that the record does not have the value. Runs that failed or are not valid have no row.

HACKBENCH describes the columns of bench/report, LOADS those of bench/loads-table; --help prints them.
"""

import csv
import io
from typing import Iterable, Sequence

from .records import FIGURES, NODE_FIGURES, Run

HACKBENCH = """\
Columns of runs.csv, one row for each valid run; counts are averages over the CPUs:

  session       name of the session, one call of the collector
  pair          number of the pair; the runs of a pair ran one after the other, one on each side
  groups        hackbench groups, 40 tasks each
  side          label of the side
  time_s        time that hackbench printed (s)
  busy_percent  share of the run in which CPUs ran tasks (%)
  slice_ms      mean time slice (ms)
  sched         calls of schedule()
  idle          calls of schedule() after which the CPU was idle
  wake          wakeups
  find_percent  share of the run spent in newly idle balancing and in stealing (%); with the STEAL feature only
  steal         stolen tasks; with the STEAL feature only
  across        wakeups onto a CPU of another NUMA node than the waker's; with several nodes only
  pulled        wakeups of a task that last ran on another node, for which wake_affine() starts the search for a CPU at the
                waker's CPU; with several nodes only"""

LOADS = """\
Columns of runs.csv, one row for each metric of each valid run:

  session  name of the session, one call of the collector
  pair     number of the pair; the runs of a pair ran one after the other, one on each side
  load     name of the load, as run-loads.sh --list prints it
  side     label of the side
  metric   name of the metric
  unit     unit of the value
  better   lower, higher, or same (a share of CPU time, which must not change)
  value    value of the metric"""

LOADS_COLUMNS = ("session", "pair", "load", "side", "metric", "unit", "better", "value")
UNITS = {"time": "time_s", "busy": "busy_percent", "slice": "slice_ms", "find": "find_percent"}


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """CSV with a line of column names. None becomes an empty field, a float has all its digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def number_of(pair: str) -> int:
    """To sort by; a run may have no pair."""
    return int(pair) if pair.isdigit() else 0


def hackbench_csv(runs: list[Run], sides: list[str]) -> str:
    figures = FIGURES + NODE_FIGURES
    ordered = sorted(runs, key=lambda run: (run.groups, number_of(run.pair), sides.index(run.side)))
    return csv_text(["session", "pair", "groups", "side", *(UNITS.get(figure, figure) for figure in figures)],
                    ([run.session.name, run.pair, run.groups, run.side, *(run.figures.get(figure) for figure in figures)]
                     for run in ordered))
