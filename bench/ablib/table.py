# SPDX-License-Identifier: GPL-2.0
"""What a comparison shows, from DIR/runs.csv, DIR/busy.csv, DIR/lines.csv and DIR/plan alone, and the table of it.

A pair is a run of each side. It counts if all of its runs ended with status 0 and are valid. For a metric it counts if each of its runs has
a value above 0, too (the ratio needs one). Pairs that do not count are dropped and counted by side and reason. Pair 0, the traced one, is
in no comparison.
"""

import csv
import math
import re
import shlex
import textwrap
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterable, Optional, Sequence

import numpy
import pandas

from . import features, fold, stats
from .plan import FORMAT, TIME_UNITS, AbError, Case, Metric, Plan, read_plan, read_text

NOTHING, GATED = "no significant difference", "within the gate"
# A metric that must not change may change by so many percent.
SHARE = 1.0
WITHOUT_CACHES = (
    "These are simulated machines in virtual time: an instruction takes the same time everywhere, and nothing else takes time. Not "
    "modelled: caches and memory latency (a task that moves finds its data at no cost, in another NUMA node, too: this flatters "
    "stealing and all balancing); cache lines that several CPUs write; cores that threads share (each thread is as fast as a core); ")
WITH_CACHES = (
    "These are simulated machines in virtual time: an instruction takes the same time everywhere. An access to memory takes longer, as {} "
    "says, and so do two threads that share a core. Not modelled: misses that overlap (a CPU waits for one after the other, so their cost "
    "is too high); TLBs and walks of page tables; bandwidth of memory; prefetching; ")
NOT_MODELLED = (
    "turbo and frequencies; depth of idle states; the hardware's cost of virtual interrupts; x86's idle CPUs that poll for work; "
    "superscalar execution. The figures say what the scheduler does. They do not say what a given machine will gain. See "
    "Documentation/simulation.rst.")
# The columns of the second table: column of runs.csv, header, format, explanation.
COUNTS = (
    ("busy_percent", "busy %", "%.2f", "share of the time in which a CPU ran tasks; may exceed 100"),
    ("slice_ms", "slice ms", "%.3f", "average time slice"), ("sched", "sched", "%.0f", "calls of schedule()"),
    ("idle", "idle", "%.0f", "of these, how many found nothing to run"), ("wake", "wake", "%.0f", "wake-ups"),
    ("find_percent", "find %", "%.3f", "share of the time in the newly idle balance and in stealing"),
    ("steal", "steal", "%.1f", "tasks stolen"), ("across", "across", "%.1f", "wake-ups onto another NUMA node than the waker's"),
    ("pulled", "pulled", "%.1f", "wake-ups that wake_affine() sent to the waker's node"),
    ("memory:stalled_percent", "stalled %", "%.1f", "share of the busy time in which a CPU waited for memory"),
    ("wasted_percent", "wasted %", "%.2f", "traced: share of the time in which a CPU is idle while a task waits in its LLC"),
    ("full_busy_percent", "full busy %", "%.2f", "traced: share of the time that is not idle from the last fork to the first exit"),
    ("idle_mean_us", "idle us", "%.1f", "traced: mean length of an idle period"))
# These stand in the table only if a run has them.
SOMETIMES = ("across", "pulled", "memory:stalled_percent", *fold.TRACED)
# Where an access finds its line: key of the sections, header, explanation.
PLACES = (("l2", "L2", "of the core"), ("llc", "LLC", ""), ("core", "core", "another of the LLC"), ("other_llc", "other LLC", "of the node"),
          ("other_node", "other node", "modified there"), ("memory", "memory", "of the node"), ("other_memory", "other memory", "of other nodes"))
# So many lines of memory of each case are in the page: variables, and other memory.
SHOWN_VARIABLES, SHOWN_MEMORY = 15, 10


@dataclass(frozen=True)
class Verdict:
    """loss: a significant loss. cannot: the cases of which nothing can be said and why, or empty."""

    loss: bool
    cannot: str
    sentence: str


@dataclass
class Row:
    """A case, a metric and a side against the baseline: the values of the pairs that count, and what comes of them."""

    case: Case
    metric: Metric
    side: str
    base: list[float]
    values: list[float]
    comparison: Optional[stats.Comparison] = None
    q: Optional[float] = None
    verdict: str = "-"
    # Of one of several hosts. A row that combines several has theirs.
    host: str = ""
    of_hosts: list["Row"] = field(default_factory=list)
    combination: Optional[stats.Combination] = None

    def compare(self) -> None:
        """Makes the comparison, or those of the hosts and their combination."""
        for part in self.of_hosts or [self]:
            if part.pairs:
                part.comparison = stats.compare(part.base, part.values, part.metric.more)
        effects = [stats.effect(stats.log_ratios(part.base, part.values, part.metric.more)) for part in self.of_hosts if part.pairs > 1]
        if len(effects) > 1:
            self.combination = stats.combine(effects)

    @property
    def pairs(self) -> int:
        return len(self.values)

    @property
    def found(self) -> "stats.Combination | stats.Comparison | None":
        """What the row says: that of all hosts, if there are several."""
        return self.combination if self.of_hosts else self.comparison

    @property
    def better(self) -> Optional[float]:
        return stats.percent(self.found.estimate) if self.found else None

    @property
    def apart(self) -> float:
        """The absolute difference of the medians; of several hosts, the median of theirs."""
        return float(numpy.median([abs(float(numpy.median(row.values)) - float(numpy.median(row.base)))
                                   for row in self.of_hosts or [self] if row.pairs]))

    @property
    def bounds(self) -> Optional[tuple[float, float]]:
        """The interval in %."""
        found = self.found and self.found.interval
        return (stats.percent(found.low), stats.percent(found.high)) if found else None


@dataclass(frozen=True)
class Head:
    """A column: its name, what it is, and whether it has words."""

    name: str
    what: str = ""
    left: bool = False


@dataclass
class Grid:
    """A table; legend: what is to be known about it."""

    title: str
    heads: list[Head]
    lines: list[list[str]]
    legend: str = ""

    @property
    def text(self) -> list[str]:
        """Its lines, aligned."""
        lines = [[head.name for head in self.heads], *self.lines]
        widths = [max(map(len, column)) for column in zip(*lines)]
        return ["  ".join(cell.ljust(width) if head.left else cell.rjust(width)
                          for cell, width, head in zip(line, widths, self.heads)).rstrip() for line in lines]

    @property
    def explained(self) -> str:
        """Its legend, or else what its columns are."""
        return self.legend or ". ".join(f"{head.name}: {head.what}" for head in self.heads if head.what)


@dataclass
class Share:
    """What a bit adds in a case and a metric: on the average, alone, and added last. The rows compare the sides without and with it; their
    side is the bit. PERCENT: of each, the mean of the ratios of the medians, in % better."""

    main: Row
    alone: Optional[Row]
    last: Row
    # So many sides differ from another one in this bit alone.
    sides: int
    percent: dict[str, float]


@dataclass
class Summary:
    """A comparison with all that is shown of it."""

    plan: Plan
    runs: pandas.DataFrame
    # The runs of the pairs that count, and the traced runs that do.
    whole: pandas.DataFrame
    traced: pandas.DataFrame
    busy: pandas.DataFrame
    moving: pandas.DataFrame
    complete: int
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    # What each bit adds, if the sides are combinations of bits.
    shares: list["Share"] = field(default_factory=list)
    # By case, why nothing can be said of it.
    cannot: dict[Case, str] = field(default_factory=dict)

    @property
    def shown_rows(self) -> list[Row]:
        """The rows, each after those of the hosts that it combines."""
        return [shown for row in self.rows for shown in (*row.of_hosts, row)]

    @property
    def main_rows(self) -> list[Row]:
        """The rows of the main metric of each load."""
        return [row for row in self.rows if row.metric == self.plan.metrics[row.case.load][0]]

    @property
    def main_shares(self) -> list[Row]:
        """What each bit adds in the main metric of each load."""
        return [share.main for share in self.shares if share.main.metric == self.plan.metrics[share.main.case.load][0]]

    @property
    def nothing(self) -> list[str]:
        """The cases of which nothing can be said, and why."""
        why: dict[str, list[str]] = {}
        for case, reason in self.cannot.items():
            why.setdefault(reason, []).append(str(case))
        return [(f"{', '.join(cases)}: " if len(self.plan.cases) > 1 else "") + reason for reason, cases in why.items()]

    @property
    def sentences(self) -> list[str]:
        """The result: a sentence a side, one for each loss, and one for what has no result."""
        plan, of_one = self.plan, len(self.plan.cases) == 1
        rows = [row for row in self.rows if row.case not in self.cannot]
        of_one = of_one and not plan.factorial
        said = [sentence(plan, row) for row in rows if of_one and row in self.main_rows]
        said += [adding(plan, bit, self.shares) for bit in plan.factorial]
        if not of_one and not plan.factorial and any(row.found for row in rows):
            said += [counting(plan, label, rows) for label in plan.labels[1:]]
        said += [sentence(plan, row) for row in rows if row.verdict in ("LOSS", "DIFF") and not (of_one and row in self.main_rows)]
        return [*filter(None, said), *(f"No result{' for' if len(plan.cases) > 1 else ':'} {text}." for text in self.nothing)]

    @property
    def early(self) -> str:
        if self.complete >= self.plan.planned:
            return ""
        return f"{self.complete} of {self.plan.planned} planned pairs: not finished, so not a final result"

    @property
    def another(self) -> str:
        """What the first line says if a published comparison was measured again with other inputs."""
        differs = self.plan.lines.get("differs", [])
        return f"Not the published sample of {self.plan.get('published')}, as inputs differ: {'; '.join(differs)}" if differs else ""

    @property
    def same(self) -> str:
        """What the first line says if sides are the same."""
        same = self.plan.same_sides()
        if len(self.plan.labels) == 2:
            return "both sides are the same: this measures noise" if same else ""
        return "".join(f"sides {self.plan.labels[0]} and {label} are the same: this measures noise" + "\n" for label in same).strip()

    @property
    def verdict(self) -> Verdict:
        lost = any(row.verdict in ("LOSS", "DIFF") for row in self.rows if row.case not in self.cannot)
        return Verdict(lost, "; ".join(self.nothing), " ".join(self.sentences))

    @property
    def grids(self) -> list[Grid]:
        """The tables, the first of which is the main one."""
        return [main_grid(self), *filter(None, (share_grid(self), host_grid(self), count_grid(self), perf_grid(self)))]

    @property
    def page_grids(self) -> list[Grid]:
        """The tables of the page: it has room for more."""
        return [*self.grids, *filter(None, (memory_grid(self), *(lines_grid(self, case) for case in self.plan.cases)))]


def read_csv(path: Path, columns: Sequence[str], numbers: Sequence[str]) -> pandas.DataFrame:
    """A file of fold's: numbers in the columns NUMBERS and those of metrics and counters, else text."""
    way_out = "delete it and run the same bench/ab command again: it is made from the raw files"
    lines = list(csv.reader(read_text(path, "run bench/ab first").splitlines()))
    found = lines[0] if lines else []
    wrong = next((line[0] for line in lines[1:] if line[:1] != [FORMAT]), None)
    if found[:1] != ["format"] or wrong is not None:
        has = f" (format '{wrong}')" if wrong is not None else ""
        raise AbError(f"{path}: not a {path.name} of format {FORMAT}{has}; {way_out}")
    missing = [column for column in columns if column not in found]
    if missing or any(len(line) != len(found) for line in lines[1:]):
        raise AbError(f"{path}: " + (f"no column {missing[0]}" if missing else "a line is incomplete") + f"; {way_out}")
    frame = pandas.DataFrame(lines[1:], columns=found, dtype=object)
    try:
        for column in found:
            if column in numbers or column.startswith(("metric:", "perf:", "memory:")):
                frame[column] = pandas.to_numeric(frame[column].where(frame[column] != "", None)).astype(float)
    except ValueError as error:
        raise AbError(f"{path}: column {column}: {error}; {way_out}") from error
    frame["case"] = [Case(load, level) for load, level in zip(frame["load"], frame["level"])]
    return frame


def read_runs(directory: Path, plan: Plan) -> pandas.DataFrame:
    """DIR/runs.csv, with a column `case`, and a column `why` that says why a run does not count (empty: it does)."""
    path = directory / "runs.csv"
    runs = read_csv(path, [*fold.HEAD, *fold.SCHEDSTAT, *fold.TRACED],
                    ["tasks", "pair", "position", "time_ns", "cpus", *fold.SCHEDSTAT, *fold.TRACED])
    for what, known in (("side", plan.labels), ("case", plan.cases)):
        strangers = [key for key in runs[what] if key not in known]
        if strangers:
            raise AbError(f"{path}: {what} '{strangers[0]}' is none of {plan.path}; delete runs.csv and run the same bench/ab command "
                          "again")
    runs["why"] = ["" if (status, valid) == ("0", "yes") else valid if status == "0" else
                   f"exit {status}" + (" (timeout)" if status == "124" else "") for status, valid in zip(runs["exit"], runs["valid"])]
    return runs


def counted(reasons: Counter) -> str:
    """on: 2 x exit 1; off: 1 x ..."""
    return "; ".join(f"{whose}: {count} x {reason}" for (whose, reason), count in sorted(reasons.items()))


def plural(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def no_metric(metric: Metric) -> str:
    """Why a run without the metric does not count."""
    return f"no {metric.name} in the output"


def metric_values(plan: Plan, whole: pandas.DataFrame, metric: Metric) -> tuple[dict[str, list[float]], Counter]:
    """By side the values of a metric in the pairs of WHOLE, one case's, that count for it, and why other pairs do not."""
    if not len(whole):
        return {label: [] for label in plan.labels}, Counter()
    table = whole.pivot(index=["host", "pair"], columns="side", values=metric.column)[plan.labels]
    reasons = Counter((label, no_metric(metric) if math.isnan(value) else f"{metric.name} is not above 0")
                      for label in plan.labels for value in table[label] if not value > 0)
    table = table[(table > 0).all(axis=1)]
    return {label: table[label].tolist() for label in plan.labels}, reasons


def cannot(summary: Summary, case: Case, reasons: Counter) -> str:
    """Why the comparison says nothing of a case; empty if it says something. REASONS are of its main metric."""
    plan, metric = summary.plan, summary.plan.metrics[case.load][0]
    runs = summary.runs[(summary.runs["case"] == case) & (summary.runs["pair"] > 0)]
    for label in plan.labels:
        of_side = runs[runs["side"] == label]["why"]
        if len(of_side) and all(of_side):
            return f"every run of side {label} failed ({', '.join(dict.fromkeys(of_side))}); see its stderr in {plan.path.parent / 'raw'}"
    pairs = (summary.whole["case"] == case).sum() // len(plan.labels)
    never = [label for label in plan.labels if pairs and reasons[label, no_metric(metric)] == pairs]
    if never:
        return (f"the output of {' and '.join(never)} never has the metric {metric.name}: no number matches '{metric.regex}'; "
                "correct --metric")
    rows = [row for row in summary.main_rows if row.case == case]
    pairs = max(row.pairs for row in rows)
    if pairs < 2:
        return f"{plural(pairs, 'complete pair')}, and a comparison needs 2"
    if not any(row.found for row in rows):
        return "fewer than two hosts have two complete pairs, and the estimate for all hosts needs two"
    return ""


def decide(plan: Plan, row: Row) -> str:
    """GAIN, LOSS, or what it is instead."""
    interval, gate = row.found.interval, plan.gate
    share = max(SHARE, gate.percent)
    if row.metric.better == "same" and row.bounds and -share <= row.bounds[0] and row.bounds[1] <= share:
        return "same"
    if row.q >= stats.ALPHA or not interval or interval.low <= 0 <= interval.high:
        return NOTHING
    if row.metric.better == "same":
        return "DIFF" if abs(row.better) > share else NOTHING
    bound = gate.bound(row.metric)
    if abs(row.better) <= gate.percent or (bound is not None and row.apart <= bound):
        return GATED
    return "GAIN" if row.found.estimate > 0 else "LOSS"


def case_name(plan: Plan, case: Case) -> str:
    """What a sentence and a picture call it."""
    if len(plan.loads) > 1 or not case.level:
        return str(case)
    name = level_name(plan)
    return f"{case.level} {name.removesuffix('s') if case.level == '1' else name}"


def row_name(plan: Plan, row: Row) -> str:
    """What a sentence and a picture call a row of several cases or metrics."""
    case = case_name(plan, row.case)
    return f"{row.metric.name} of {case}" if len(plan.metrics[row.case.load]) > 1 else case


def counting(plan: Plan, side: str, rows: Sequence[Row]) -> str:
    """What comes of a side in several cases, in a sentence."""
    found = [row for row in rows if row.side == side and row.found]
    count = Counter(row.verdict for row in found)
    said = [f"GAIN in {count['GAIN']} of {plural(len(found), 'row')}" if count["GAIN"] else f"no GAIN in {plural(len(found), 'row')}",
            f"LOSS in {count['LOSS']}" if count["LOSS"] else "no LOSS", *[f"DIFF in {count['DIFF']}"] * bool(count["DIFF"])]
    ordered = sorted((row for row in found if row.metric.better != "same"), key=lambda row: row.better)
    ends = [f"{show_percent(row.better)} ({row_name(plan, row)})" for row in (ordered[:1] + ordered[-1:])]
    return f"{side} against {plan.labels[0]}: {', '.join(said)}" + (f"; from {ends[0]} to {ends[1]}" if ends else "") + "."


def adding(plan: Plan, bit: str, shares: Sequence[Share]) -> str:
    """What a bit adds in all cases, in a sentence; nothing if that is not known."""
    mine = sorted((share for share in shares if share.main.side == bit and share.main.metric.better != "same" and share.percent),
                  key=lambda share: share.percent["main"])
    if not mine:
        return ""
    ends = [show_percent(share.percent["main"]) + (f" ({row_name(plan, share.main)})" if len(mine) > 1 else "")
            for share in (mine[:1] + mine[-1:] * (len(mine) > 1))]
    sure = sum(share.main.q < stats.ALPHA for share in mine)
    return f"{bit}: main effect {'from ' * (len(mine) > 1)}{' to '.join(ends)}; " \
        f"q below {stats.ALPHA} in {sure} of {plural(len(mine), 'row')}."


def sentence(plan: Plan, row: Row) -> str:
    """What comes of a row, in a sentence."""
    base, better = plan.labels[0], row.better
    what = row.metric.name + (f" of {row.case}" if len(plan.cases) > 1 else "")
    if not row.found:
        return f"No result for {row.side} in {what}: fewer than two hosts have two complete pairs."
    interval = "" if not row.bounds else "95 % interval {} to {}, ".format(*map(show_percent, row.bounds))
    chance = f"p {show_p(row.found.p)}" + (f", q {show_p(row.q)}" if row.q != row.found.p else "")
    seen = f"{interval}{chance}, {plural(row.pairs, 'pair')}" + (f" on {row.combination.hosts} hosts" if row.of_hosts else "")
    how_much = show_percent(abs(better)).lstrip("+")
    direction = f"{row.side} is {how_much} {'better' if better > 0 else 'worse'} than {base} in {what}"
    if row.metric.better == "same" and row.verdict != NOTHING:
        return f"{row.verdict}: {what} changes by {show_percent(better)} from {base} to {row.side} ({seen})."
    if row.verdict in ("GAIN", "LOSS"):
        return f"{row.verdict}: {direction} ({seen})."
    if row.verdict == GATED:
        return f"No significant difference beyond the gate of {plan.gate}: {direction} ({seen})."
    few = "" if row.of_hosts or stats.smallest_p(row.pairs) < stats.ALPHA else \
        f" {plural(row.pairs, 'pair')} cannot show a significant difference."
    return f"No significant difference between {base} and {row.side} in {what}: {show_percent(better)} ({seen}).{few}"


def footnotes(summary: Summary, incomplete: int, reasons: dict[str, Counter]) -> list[str]:
    """What is to be known about the figures. REASONS: why runs are dropped, by metric."""
    plan, rows, runs = summary.plan, [row for row in summary.rows if row.pairs], summary.runs
    notes = []

    def whose(case: Case, side: str) -> str:
        return f"{case}, {side}" if len(plan.cases) > 1 else side

    failed = runs[(runs["why"] != "") & (runs["pair"] > 0)]
    if len(failed):
        dropped = len(failed[["host", "case", "pair"]].drop_duplicates())
        why = Counter((whose(case, side), why) for case, side, why in zip(failed["case"], failed["side"], failed["why"]))
        notes.append(f"dropped: {plural(dropped, 'pair')} with a failed or invalid run ({counted(why)})")
    if incomplete:
        notes.append(f"not complete: {plural(incomplete, 'pair')} without the run of a side")
    notes += [f"dropped for {name}: {counted(counts)}" for name, counts in reasons.items() if counts]
    bad = runs[(runs["why"] != "") & (runs["pair"] == 0)]
    notes += [f"traced run not used: {whose(case, side)}: {why}" for case, side, why in zip(bad["case"], bad["side"], bad["why"])]
    pairs = min((row.pairs for row in rows), default=0)
    floor = stats.smallest_p(pairs)
    if len(plan.hosts) > 1:
        left_out = sorted({shown.host for row in summary.rows for shown in row.of_hosts if shown.pairs < 2})
        notes += [f"not in the estimate for all hosts: {', '.join(left_out)} (fewer than two complete pairs)"] if left_out else []
        notes.append("all hosts: random effects (DerSimonian and Laird) of the mean log ratios of the hosts; interval (95 %) and p by "
                     "Hartung and Knapp. They are about hosts like these, and decide; two or three hosts say little about others. The row "
                     "of a host is about this host alone")
    elif rows and floor >= stats.ALPHA:
        notes.append(f"{plural(pairs, 'pair')} cannot have a p below {floor:.3g}: no difference can be significant"
                     + ("; use --runs 6 or more" if stats.smallest_p(plan.runs) >= stats.ALPHA else ""))
    elif rows and floor * len(rows) >= stats.ALPHA:
        notes.append(f"{plural(pairs, 'pair')} cannot have a p below {floor:.3g}: with {len(rows)} rows, a difference in one row alone "
                     f"cannot be significant; use --runs {1 + math.ceil(math.log2(len(rows) / stats.ALPHA) + 1e-9)} or more")
    shared = summary.whole.drop_duplicates(["host", "case", "pair", "boot"])
    if len(shared) and shared["boot"].duplicated().any():
        boots, number = shared["boot"].nunique(), len(shared.drop_duplicates(["host", "case", "pair"]))
        notes.append(f"{plural(number, 'pair')} ran in {plural(boots, 'boot')}. Runs of one boot are not independent samples of machines: "
                     f"the intervals and p {'of a host ' if len(plan.hosts) > 1 else ''}are about "
                     f"{'this boot' if boots == 1 else 'these boots'}")
    metrics = list(dict.fromkeys(row.metric for row in summary.rows))
    notes += [f"the gate's bound of {plan.gate.absolute:g}{plan.gate.unit} does not apply to {metric.name} ({metric.unit or 'no unit'})"
              for metric in metrics if plan.gate.unit and plan.gate.bound(metric) is None]
    coverage = sorted({f"{100 * row.comparison.interval.coverage:.1f}" for row in summary.shown_rows
                       if row.comparison and row.comparison.interval})
    notes.append("better %: Hodges-Lehmann estimate of the ratios within pairs; a loss is negative. p: exact signed-rank test. "
                 "q: p after Benjamini-Hochberg over the rows. GAIN and LOSS: q below 0.05"
                 + (f", and beyond the gate of {plan.gate}" if str(plan.gate) != "none" else "")
                 + (f". Exact coverage of the intervals: {', '.join(coverage)} %" if coverage else ""))
    if any(metric.better == "same" for metric in metrics):
        share = f"{max(SHARE, plan.gate.percent):g} %"
        notes.append(f"of what must stay the same, better % is the change. DIFF: q below 0.05, and the change is more than {share}. same: "
                     f"the whole interval is within {share}")
    if any(case.level.endswith("x") for case in plan.cases):
        notes.append("a level such as 2x: tasks for each CPU")
    return notes


def compare(summary: Summary) -> dict[str, Counter]:
    """Makes the rows. Returns why runs do not count for a metric, by its name."""
    plan, several = summary.plan, len(summary.plan.cases) > 1
    reasons: dict[str, Counter] = {}
    of_main: dict[Case, Counter] = {}
    for case in plan.cases:
        whole = summary.whole[summary.whole["case"] == case]
        for metric in plan.metrics[case.load]:
            values, why = metric_values(plan, whole, metric)
            of_main.setdefault(case, why)
            reasons.setdefault(metric.name, Counter()).update(
                {(f"{case}, {label}" if several else label, reason): count for (label, reason), count in why.items()})
            of_hosts = {host: metric_values(plan, whole[whole["host"] == host], metric)[0] for host in plan.hosts if len(plan.hosts) > 1}
            base = plan.labels[0]
            summary.rows += [Row(case, metric, label, values[base], values[label], of_hosts=[
                Row(case, metric, label, of_host[base], of_host[label], host=host) for host, of_host in of_hosts.items()])
                for label in plan.labels[1:]]
    for row in summary.rows:
        row.compare()
    measured = [row for row in summary.rows if row.found]
    for row, q in zip(measured, stats.benjamini_hochberg([row.found.p for row in measured])):
        row.q = q
        row.verdict = decide(plan, row)
    summary.cannot = {case: why for case in plan.cases for why in [cannot(summary, case, of_main[case])] if why}
    return reasons


def share(plan: Plan, case: Case, metric: Metric, bit: str, by_host: dict[str, dict[str, list[float]]]) -> Share:
    """What a bit adds. BY_HOST: of each host, by side the values of the pairs that count."""
    combinations, every = plan.combinations, frozenset(plan.factorial)
    # The side without the bit; if it was left out, the one that is equal to it, without the bits that need this one.
    others = max((some for some in combinations if bit not in some), key=len)
    sides = {"main": [(combinations[some - {bit}], label) for some, label in combinations.items()
                      if bit in some and some - {bit} in combinations],
             "alone": [(combinations[frozenset()], combinations[frozenset([bit])])] if frozenset([bit]) in combinations else [],
             "last": [(combinations[others], combinations[every])]}
    rows: dict[str, Row] = {}
    percent: dict[str, float] = {}
    for what, some in sides.items():
        if not some:
            continue
        parts = []
        for host, values in by_host.items():
            # In each pair of runs the mean of the logarithms, as the ratio of a row.
            logs = numpy.mean([stats.log_ratios(values[base], values[side], metric.more) for base, side in some], axis=0)
            parts.append(Row(case, metric, bit, [1.0] * len(logs), list(numpy.exp(logs if metric.more else -logs)), host=host))
        rows[what] = row = Row(case, metric, bit, [value for part in parts for value in part.base],
                               [value for part in parts for value in part.values], of_hosts=parts if len(parts) > 1 else [])
        row.compare()
        if row.of_hosts and row.found:
            percent[what] = row.better
        elif row.found:
            (values,) = by_host.values()
            medians = {label: float(numpy.median(values[label])) for pair in some for label in pair}
            power = 1 if metric.more else -1
            percent[what] = 100 * float(numpy.mean([(medians[side] / medians[base]) ** power - 1 for base, side in some]))
    return Share(rows["main"], rows.get("alone"), rows["last"], len(sides["main"]), percent)


def add_shares(summary: Summary) -> None:
    """What each bit adds, of a comparison of combinations."""
    plan = summary.plan
    for case in plan.cases if plan.factorial else ():
        whole = summary.whole[summary.whole["case"] == case]
        for metric in plan.metrics[case.load]:
            by_host = {host: metric_values(plan, whole[whole["host"] == host] if len(plan.hosts) > 1 else whole, metric)[0]
                       for host in (plan.hosts if len(plan.hosts) > 1 else [""])}
            summary.shares += [share(plan, case, metric, bit, by_host) for bit in plan.factorial]
    known = [some.main for some in summary.shares if some.main.found]
    for row, q in zip(known, stats.benjamini_hochberg([row.found.p for row in known])):
        row.q = q


def summarise(directory: Path) -> Summary:
    """Reads DIR/plan, DIR/runs.csv, DIR/busy.csv and DIR/lines.csv, and compares."""
    directory = Path(directory)
    plan = read_plan(directory)
    runs = read_runs(directory, plan)
    busy = directory / "busy.csv"
    raster = read_csv(busy, fold.BUSY, ("cpu", "llc", "ns")) if busy.exists() else pandas.DataFrame(columns=["case", "side"])
    moving = directory / "lines.csv"
    lines = read_csv(moving, fold.LINES, ("lines", "moves", "cost_ns", "share_percent", "runs")) if moving.exists() else \
        pandas.DataFrame(columns=["case", "side"])
    measured = runs[runs["pair"] > 0]
    pairs = measured.groupby(["host", "case", "pair"])
    complete = pairs["side"].transform("size") == len(plan.labels)
    good = pairs["why"].transform("max") == ""
    summary = Summary(plan, runs, measured[complete & good], runs[(runs["pair"] == 0) & (runs["why"] == "")], raster, lines,
                      complete=int(complete.sum()) // len(plan.labels))
    incomplete = measured[~complete & good].drop_duplicates(["host", "case", "pair"])
    summary.notes = footnotes(summary, len(incomplete), compare(summary))
    add_shares(summary)
    return summary


def show_p(p: float) -> str:
    return "<0.0001" if p < 0.0001 else f"{p:.2g}" if p >= 0.001 else f"{p:.4f}"


def show_percent(value: float) -> str:
    return f"{value:+.1f} %" if abs(value) >= 0.95 else f"{value:+.2g} %"


def show_number(value: float) -> str:
    """Four digits, more before the point."""
    if value != value:
        return "-"
    digits = 0 if value == 0 else math.floor(math.log10(abs(value)))
    return f"{value:.{max(0, min(9, 3 - digits))}f}"


def shown_unit(metric: Metric, values: Sequence[float]) -> tuple[str, float]:
    """The unit in which a metric's values are shown, and what divides them."""
    if metric.name != "time":
        return metric.unit or "-", 1
    middle = float(numpy.median(values)) if len(values) else 0
    unit = next((unit for unit in ("s", "ms", "us") if middle >= TIME_UNITS[unit]), "ns")
    return unit, TIME_UNITS[unit]


def level_name(plan: Plan) -> str:
    """What the levels count, if they count the same in all loads."""
    names = {plan.get(f"level_name:{case.load}", "level") for case in plan.cases if case.level}
    return names.pop() if len(names) == 1 else "level"


def name_heads(plan: Plan) -> list[Head]:
    """The first columns of a table: what tells the cases apart."""
    return [*[Head("load", left=True)] * (len(plan.loads) > 1), *[Head(level_name(plan))] * any(case.level for case in plan.cases)]


def name_cells(plan: Plan, case: Case) -> list[str]:
    return [*[case.load] * (len(plan.loads) > 1), *[case.level or "-"] * any(case.level for case in plan.cases)]


def metric_text(metric: Metric) -> str:
    return f"{metric.name} ({'must not change' if metric.better == 'same' else f'{metric.better} is better'})"


def has_metric_column(plan: Plan) -> bool:
    """Has the table a column for metrics? With one metric, the header names it."""
    return len({metric.name for some in plan.metrics.values() for metric in some}) > 1 or not name_heads(plan)


def main_grid(summary: Summary) -> Grid:
    """The comparisons."""
    plan, (base, *others) = summary.plan, summary.plan.labels
    median = "of the runs that count"
    heads = [*name_heads(plan), *[Head("metric", left=True)] * has_metric_column(plan), Head("unit", left=True),
             *[Head("host", left=True)] * (len(plan.hosts) > 1), *[Head("side", left=True)] * (len(others) > 1),
             Head(f"{base} median", median), Head(f"{others[0] if len(others) == 1 else 'side'} median", median),
             Head("better %", f"against {base}; below 0: worse"), Head("95% interval %", "of better %"), Head("p", "signed-rank test"),
             Head("q", "p, corrected for all rows"), Head("verdict", "q below 0.05?", left=True), Head("pairs", "that count")]
    return Grid("comparison", heads, [cells(plan, row) for row in summary.shown_rows])


def cells(plan: Plan, row: Row) -> list[str]:
    """A row of the main table."""
    unit, divisor = shown_unit(row.metric, row.base)
    first = [*name_cells(plan, row.case), *[metric_text(row.metric)] * has_metric_column(plan), unit,
             *[row.host or "all"] * (len(plan.hosts) > 1), *[row.side] * (len(plan.labels) > 2)]
    if not row.found:
        return [*first, "-", "-", "-", "-", "-", "-", "-", str(row.pairs)]
    # Hosts may differ in speed: the median of all of them says nothing.
    medians = ["-", "-"] if row.of_hosts else [show_number(float(numpy.median(values)) / divisor) for values in (row.base, row.values)]
    interval = "{:+.2f} to {:+.2f}".format(*row.bounds) if row.bounds else "-"
    return [*first, *medians, f"{row.better:+.2f}", interval, show_p(row.found.p), "-" if row.q is None else show_p(row.q), row.verdict,
            str(row.pairs)]


def share_grid(summary: Summary) -> Optional[Grid]:
    """What each bit adds; none if the sides are not combinations of bits."""
    plan = summary.plan
    if not plan.factorial:
        return None
    lines = []
    for some in summary.shares:
        row, metric = some.main, some.main.metric
        found = {what: (f"{some.percent[what]:+.2f}", show_p(one.found.p)) if one and what in some.percent else ("-", "-")
                 for what, one in (("main", row), ("alone", some.alone), ("last", some.last))}
        interval = "{:+.2f} to {:+.2f}".format(*row.bounds) if row.bounds else "-"
        lines.append([*name_cells(plan, row.case), *[metric_text(metric)] * has_metric_column(plan), row.side, found["main"][0], interval,
                      found["main"][1], "-" if row.q is None else show_p(row.q), *found["last"], *found["alone"], str(some.sides),
                      str(row.pairs)])
    heads = [*name_heads(plan), *[Head("metric", left=True)] * has_metric_column(plan), Head("bit", left=True),
             Head("main effect %", "mean over sides; below 0: worse"), Head("95% interval %", "of the main effect"),
             Head("p", "of the main effect"), Head("q", "p, corrected for all rows"),
             Head("last %", "all others on against all on"), Head("p last"),
             Head("alone %", f"{plan.labels[0]} against this bit"), Head("p alone"),
             Head("contrasts", "sides that differ in this bit alone"), Head("pairs", "that count")]
    how = "Hartung and Knapp's over the hosts, and so is the effect" if len(plan.hosts) > 1 else \
        "those of the logarithms of the ratios within pairs of runs (in each pair, their mean over the contrasts): Hodges-Lehmann and " \
        "exact signed-rank test. Medians are not within pairs, so the main effect may be outside a narrow interval"
    count = features.left_out(plan.factorial, plan.sides)
    notes = ["share of each bit. contrasts: pairs of sides that differ in this bit alone. main effect: the mean over them of 100 x (ratio "
             f"of the medians - 1). Its interval and p are {how}. q: p after Benjamini-Hochberg over the rows of this table. last: all "
             "other bits on against all bits on; bits that need this one do nothing without it. alone: off against this bit alone; -: alone it "
             "does nothing. p last and p alone are not corrected"]
    notes += [features.left_out_text(plan.factorial, plan.sides)] * bool(count)
    return Grid("share of each bit", heads, lines, ". ".join(notes))


def host_grid(summary: Summary) -> Optional[Grid]:
    """How much hosts differ; none for one host."""
    plan, side = summary.plan, len(summary.plan.labels) > 2
    lines = [[*name_cells(plan, row.case), row.metric.name, *[row.side] * side, str(made.hosts), f"{made.q:.2f}", show_p(made.q_p),
              f"{100 * made.i2:.0f}", f"{stats.percent(math.sqrt(made.tau2)):.2f}"]
             for row in summary.rows if row.combination for made in [row.combination]]
    heads = [*name_heads(plan), Head("metric", left=True), *[Head("side", left=True)] * side, Head("hosts"), Head("Q", "Cochran's"),
             Head("p of Q", "small: hosts differ"), Head("I^2 %", "not chance within hosts"),
             Head("spread of hosts %", "standard deviation")]
    return Grid("heterogeneity: how much the hosts differ", heads, lines,
                "Q: Cochran's Q; a small p says that the hosts differ by more than chance. I^2: the share of the spread of the estimates "
                "that is not chance within hosts. Spread of hosts: the standard deviation between hosts (DerSimonian and Laird)") \
        if lines else None


def count_grid(summary: Summary) -> Optional[Grid]:
    """Medians by case and side of what the scheduler did; none if no kernel told."""
    plan = summary.plan
    frame = pandas.concat([summary.whole, summary.traced])
    told = [entry for entry in COUNTS if entry[0] in frame and frame[entry[0]].notna().any()]
    if not told:
        return None
    shown = [entry for entry in COUNTS if entry in told or entry[0] not in SOMETIMES]
    # A traced run has no say in the other figures.
    frame.loc[frame["pair"] == 0, [column for column in frame if column in fold.SCHEDSTAT or column.startswith("memory:")]] = math.nan
    medians = frame.groupby(["case", "side"])[[entry[0] for entry in shown]].median()
    lines = [[*name_cells(plan, case), label, *("-" if math.isnan(value) else entry[2] % value
                                                for entry, value in zip(shown, medians.loc[(case, label)]))]
             for case in plan.cases for label in plan.labels if (case, label) in medians.index]
    return Grid("what the scheduler did, averaged over the CPUs; medians of the runs; -: not known",
                [*name_heads(plan), Head("side", left=True), *(Head(name, what) for _, name, _, what in shown)], lines)


def perf_grid(summary: Summary) -> Optional[Grid]:
    """Medians by case and side of perf stat's counters; none without perf stat."""
    plan = summary.plan
    events = [column for column in summary.runs.columns if column.startswith("perf:")]
    if not events or not len(summary.whole):
        return None
    medians = summary.whole.groupby(["case", "side"])[events].median()
    lines = [[*name_cells(plan, case), event[5:], *(show_number(medians[event].get((case, label), math.nan)) for label in plan.labels)]
             for case in plan.cases for event in events]
    return Grid("counters of perf stat", [*name_heads(plan), Head("perf stat event", left=True),
                                          *(Head(f"{label} median") for label in plan.labels)], lines)


def memory_grid(summary: Summary) -> Optional[Grid]:
    """Medians by case and side of where accesses to memory found their lines; none without caches."""
    plan, whole = summary.plan, summary.whole
    if "memory:accesses" not in whole or not whole["memory:accesses"].notna().any():
        return None
    share = pandas.DataFrame({key: 100 * whole[f"memory:from_{key}"] / whole["memory:accesses"] for key, _, _ in PLACES})
    share["l1"] = 100 - share.sum(axis=1, skipna=False)
    shown = [("l1", "L1", "of the core"), *(place for place in PLACES if share[place[0]].any())]
    for key, column, of in (("stalled", "memory:stalled_ns", "memory:busy_ns"), ("others", "memory:lines_cost_ns", "memory:stalled_ns")):
        share[key] = 100 * whole[column] / whole[of]
    share["moves"] = whole["memory:lines_moves"]
    share["upgrades"] = whole["memory:upgrades"]
    medians = share.assign(case=whole["case"], side=whole["side"]).groupby(["case", "side"]).median()
    lines = [[*name_cells(plan, case), label, *("-" if math.isnan(value) else f"{value:.{digits}f}" for value, digits in (
        (medians.loc[(case, label), key], digits) for key, digits in (
            ("stalled", 1), ("others", 1), ("moves", 0), ("upgrades", 0), *((key, 3) for key, _, _ in shown))))]
        for case in plan.cases for label in plan.labels if (case, label) in medians.index]
    heads = [*name_heads(plan), Head("side", left=True), Head("stalled %", "of the busy time: waits for memory"),
             Head("for others %", "of these waits: for lines that other CPUs have or want"), Head("moves", "lines taken from another core, LLC or node"),
             Head("upgrades", "stores to lines that others had, too"),
             *(Head(f"{name} %", what) for _, name, what in shown)]
    return Grid("where accesses to memory found their lines; medians of the runs; -: not known", heads, lines,
                "L1 to other memory: share of all loads and stores")


def lines_grid(summary: Summary, case: Case) -> Optional[Grid]:
    """The lines of memory for which CPUs waited most, in one case, with the sides beside each other; none without caches."""
    plan, moving = summary.plan, summary.moving[summary.moving["case"] == case]
    if not len(moving):
        return None
    # A line with members, and the kernel: other kernels may have other members at the same place.
    by_name: dict[tuple[str, str], dict[str, pandas.Series]] = {}
    for _, row in moving.iterrows():
        by_name.setdefault((row["name"], row["side"] if plan.kernels and row["members"] else ""), {})[row["side"]] = row
    most = sorted(by_name, key=lambda name: (-max(row["cost_ns"] / row["runs"] for row in by_name[name].values()), name))

    def numbers(row: Optional[pandas.Series]) -> list[str]:
        if row is None:
            return ["-"] * 3
        return [f"{row['cost_ns'] / row['runs'] / 1e3:.1f}", f"{row['share_percent']:.2f}", f"{row['moves'] / row['runs']:.0f}"]

    other = [name for name in most if re.match("(memory|user) ", name[0])]
    shown = {*[name for name in most if name not in other][:SHOWN_VARIABLES], *other[:SHOWN_MEMORY]}
    lines = []
    for name in filter(shown.__contains__, most):
        one = max(by_name[name].values(), key=lambda row: row["cost_ns"])
        lines.append([titled(name[0], one["members"]), *(cell for label in plan.labels for cell in numbers(by_name[name].get(label))),
                      ", ".join(one["places"].split()[:2])])
    heads = [Head("line", left=True), *(head for label in plan.labels for head in (
        Head(f"{label} us", "waits of all CPUs in a run"), Head(f"{label} %", "of the waits for memory"), Head(f"{label} moves", "in a run"))),
        Head("code", "that waited most often", left=True)]
    of = f" in {case}" if len(plan.cases) > 1 else ""
    return Grid(f"lines of memory for which CPUs waited most{of}", heads, lines,
                "Lines that other CPUs had or wanted; averages of the runs. [*]: the lines of all CPUs. memory (by FUNCTION): other memory of the "
                "kernel, by the function that waited for it most often. user (by ...): memory of programs. -: none, or "
                "less than 0.002 % of these waits. lines.csv has more of both kinds")


def titled(name: str, members: str) -> str:
    """The name of a line, with the members that were used most often instead of its number."""
    return re.sub(r" line \d+$", "", name) + "." + members.replace(" ", ", .") if members else name


def side_text(plan: Plan, label: str) -> str:
    """A side's label, and what makes it."""
    off = {f"NO_{bit}" for bit in plan.words("bits")}
    on = "+".join(word for word in plan.sides[label].split("+") if word not in off)
    said = [text for text in (on, plan.kernels.get(label, "")) if text and text != label]
    said += ["baseline"] if label == plan.labels[0] else []
    return label + (f" ({', '.join(said)})" if said else "")


def preset(plan: Plan) -> str:
    """What the caches of simulated machines are; nothing if they have none."""
    name = plan.get("caches").partition(" ")[0]
    return name and (f"the file {name}" if "/" in name else f"the preset {name}")


def caveat(plan: Plan) -> str:
    """What simulated machines are not; nothing for others."""
    return (WITH_CACHES.format(preset(plan)) if preset(plan) else WITHOUT_CACHES) + NOT_MODELLED if plan.simulated else ""


def header(summary: Summary) -> list[tuple[str, str]]:
    """What was measured, on what: (what, value)."""
    plan, runs = summary.plan, summary.runs
    cpus = sorted({int(count) for count in runs["cpus"].dropna()})
    machine = f"{plan.get('machine')}, simulated, {f'caches: {preset(plan)}' if preset(plan) else 'no caches'}" if plan.simulated else \
        f"{', '.join(plan.hosts)} (no simulation)" if plan.hosts else "this machine (no simulation)"
    lines = [(load, plan.get("command") if load == "command" else plan.get(f"about:{load}", "a load of bench/collect/loads"))
             for load in plan.loads]
    work = [f"{key.replace('_', ' ')} {plan.get(key)}" for key in ("loops", "scale", "trace_loops") if plan.get(key)]
    lines += [("work", ", ".join(work))] if work else []
    lines += [] if has_metric_column(plan) else [("metric", metric_text(plan.metrics[plan.loads[0]][0]))]
    lines.append(("machine", machine + (f", {', '.join(map(str, cpus))} CPUs" if cpus else "")))
    kernel = plan.get("kernel") or plan.get("uname") or plan.get("release")
    lines += [("kernel", kernel)] if kernel else []
    each = " for each case" * (len(plan.cases) > 1) + " on each host" * (len(plan.hosts) > 1)
    lines.append(("sides", ", ".join(side_text(plan, label) for label in plan.labels)))
    lines += [("bits", f"{', '.join(plan.words('bits'))}; a side that names one of them has the others off")] if plan.get("bits") else []
    lines.append(("pairs", f"{plan.runs} planned{each}, {summary.complete} measured, {len(summary.whole) // len(plan.labels)} used"))
    lines.append(("gate", str(plan.gate)))
    if plan.simulated:
        lines.append(("seeds", f"{plan.get('seeds', 'development')}, {plan.seed(1)} to {plan.seed(max(1, plan.runs))}"))
    return lines + ([("project", plan.get("project"))] if plan.get("project") else [])


def repeat_command(plan: Plan) -> str:
    """The command that does the comparison again."""
    words, command = ["bench/ab"], "command" in plan.loads
    if plan.simulated:
        words += ["--machine", plan.get("machine"), "--seeds", plan.get("seeds", "development")]
    words += ["--hosts", "FILE"] if plan.hosts else []
    words += [] if command else ["--load", ",".join(map(str, plan.cases))]
    words += ["--runs", str(plan.runs)]
    specs = plan.lines.get("metric:command", ["time"])
    words += [word for spec in specs for word in ("--metric", spec)] if specs != ["time"] else []
    sides = ",".join(f"{label}={what}" for label, what in plan.sides.items())
    words += ["--factorial", ",".join(plan.factorial)] if plan.factorial else ["--sides", sides] if all(plan.sides.values()) else []
    words += ["--kernel", ",".join(f"{label}={image}" for label, image in plan.kernels.items())] if plan.kernels else []
    words += ["--kernel", plan.get("kernel")] if plan.simulated and plan.get("kernel", "patched") != "patched" else []
    words += ["--gate", str(plan.gate)] if str(plan.gate) != "none" else []
    words += ["--trace"] if plan.get("trace_loops") else []
    for key in ("loops", "scale", "trace_loops", "quantum_ns", "ips", "idle_exit_ns", "caches", "append", "add", "also", "timeout"):
        for value in plan.lines.get(key, []):
            # The hash of a file stands behind its name.
            words += ["--" + key.removesuffix("_ns").replace("_", "-"), value.split()[0] if key in ("add", "caches") else value] if value else []
    words += ["--repeats", plan.get("published")] if plan.get("published") else []
    words += ["--perf-stat"] if plan.get("perf_stat", "no") in ("1", "yes") else []
    return shlex.join(words) + (f" -- {plan.get('command')}" if command else "")


def text(summary: Summary) -> str:
    """The table as text."""
    lines = [line for line in (summary.another, summary.same, *summary.sentences, summary.early) if line] + [""]
    width = max(len(key) for key, _ in header(summary))
    lines += [f"{key.ljust(width)}  {value}" for key, value in header(summary)] + [""]
    main, *others = summary.grids
    lines += main.text
    for grid in others:
        lines += ["", grid.title + ":", *grid.text]
    lines.append("")
    notes: Iterable[str] = [note + "." for note in (*summary.notes, *(grid.explained for grid in others)) if note]
    for note in [*notes, *filter(None, [caveat(summary.plan)])]:
        lines += textwrap.wrap(note, 140, initial_indent="* ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines) + "\n"


def table(directory: Path) -> str:
    """The table of DIR/runs.csv and DIR/plan."""
    return text(summarise(directory))
