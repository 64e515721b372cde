# SPDX-License-Identifier: GPL-2.0
"""What a comparison shows, from DIR/runs.csv and DIR/plan alone, and the table of it.

A pair is a run of each side. It counts if all of its runs ended with status 0 and are valid. For a metric it counts if each of its runs has
a value above 0, too (the ratio needs one). Pairs that do not count are dropped and counted by side and reason.
"""

import csv
import math
import shlex
import textwrap
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional, Sequence

import numpy
import pandas

from . import fold, stats
from .plan import FORMAT, TIME_UNITS, AbError, Metric, Plan, read_plan, read_text

NOTHING, GATED = "no significant difference", "within the gate"
SIMULATED = (
    "These are simulated machines in virtual time: an instruction takes the same time everywhere, and nothing else takes time. Not "
    "modelled: caches and memory latency (a task that moves finds its data at no cost, in another NUMA node, too: this flatters "
    "stealing and all balancing); cache lines that several CPUs write; cores that threads share (each thread is as fast as a core); "
    "turbo and frequencies; depth of idle states; the hardware's cost of virtual interrupts; x86's idle CPUs that poll for work; "
    "superscalar execution. The figures say what the scheduler does. They do not say what a given machine will gain. See "
    "Documentation/simulation.rst.")
# The columns of the second table: column of runs.csv, header, format, explanation.
COUNTS = (("busy_percent", "busy %", "%.2f", 
           "share of the time in which a CPU ran tasks (may exceed 100: the kernel counts some waits as running)"),
          ("slice_ms", "slice ms", "%.3f", "average time slice"), ("sched", "sched", "%.0f", "calls of schedule()"),
          ("idle", "idle", "%.0f", "of these, how many found nothing to run"), ("wake", "wake", "%.0f", "wake-ups"),
          ("find_percent", "find %", "%.3f", "share of the time in the newly idle balance and in stealing"),
          ("steal", "steal", "%.1f", "tasks stolen"), ("across", "across", "%.1f", "wake-ups onto another NUMA node than the waker's"),
          ("pulled", "pulled", "%.1f", "wake-ups that wake_affine() sent to the waker's node"))
COUNTS_TITLE = "what the scheduler did, averaged over the CPUs; medians of the runs"


HOSTS_TITLE = "heterogeneity: how much the hosts differ"
HOSTS_LEGEND = ("Q: Cochran's Q; a small p says that the hosts differ by more than chance. I^2: the share of the spread of the estimates "
                "that is not chance within hosts. Spread of hosts: the standard deviation between hosts (DerSimonian and Laird)")


@dataclass(frozen=True)
class Verdict:
    """loss: a significant loss in the deciding metric. cannot: why nothing can be said, or empty."""

    loss: bool
    cannot: str
    sentence: str


@dataclass
class Row:
    """A metric and a side against the baseline: the values of the pairs that count, and what comes of them."""

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


@dataclass
class Summary:
    """A comparison with all that is shown of it."""

    plan: Plan
    runs: pandas.DataFrame
    whole: list[tuple]
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    complete: int = 0
    cannot: str = ""
    # By label and metric column, the values of runs in pairs that count for this metric.
    values: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    @property
    def deciding(self) -> Metric:
        return self.plan.metrics[0]

    @property
    def decided(self) -> list[Row]:
        """The rows of the metric that decides."""
        return [row for row in self.rows if row.metric == self.deciding]

    @property
    def shown_rows(self) -> list[Row]:
        """The rows, each after those of the hosts that it combines."""
        return [shown for row in self.rows for shown in (*row.of_hosts, row)]

    @property
    def sentences(self) -> list[str]:
        """The result, a sentence a side."""
        return [f"No result: {self.cannot}."] if self.cannot else [sentence(self.plan, row) for row in self.decided]

    @property
    def early(self) -> str:
        if self.complete >= self.plan.planned:
            return ""
        return f"{self.complete} of {self.plan.planned} planned pairs: not finished, so not a final result"

    @property
    def same(self) -> str:
        """What the first line says if sides are the same."""
        same = self.plan.same_sides()
        if len(self.plan.labels) == 2:
            return "both sides are the same: this measures noise" if same else ""
        return "".join(f"sides {self.plan.labels[0]} and {label} are the same: this measures noise" + "\n" for label in same).strip()

    @property
    def verdict(self) -> Verdict:
        return Verdict(not self.cannot and any(row.verdict == "LOSS" for row in self.decided), self.cannot, " ".join(self.sentences))


def read_runs(directory: Path) -> pandas.DataFrame:
    """DIR/runs.csv: numbers where its columns are numbers, else text."""
    path = Path(directory) / "runs.csv"
    way_out = "delete it and run the same bench/ab command again: it is made from the raw files"
    lines = list(csv.reader(read_text(path, "run bench/ab first").splitlines()))
    columns = lines[0] if lines else []
    wrong = next((line[0] for line in lines[1:] if line[:1] != [FORMAT]), None)
    if columns[:1] != ["format"] or wrong is not None:
        raise AbError(f"{path}: not a runs.csv of format {FORMAT}" + (f" (format '{wrong}')" if wrong is not None else "") + f"; {way_out}")
    missing = [column for column in (*fold.HEAD, *fold.SCHEDSTAT) if column not in columns]
    if missing or any(len(line) != len(columns) for line in lines[1:]):
        raise AbError(f"{path}: " + (f"no column {missing[0]}" if missing else "a line is incomplete") + f"; {way_out}")
    frame = pandas.DataFrame(lines[1:], columns=columns, dtype=object)
    try:
        for column in columns:
            if column in ("pair", "position", "time_ns", "cpus", *fold.SCHEDSTAT) or column.startswith(("metric:", "perf:")):
                frame[column] = pandas.to_numeric(frame[column].where(frame[column] != "", None)).astype(float)
    except ValueError as error:
        raise AbError(f"{path}: column {column}: {error}; {way_out}") from error
    return frame


def failure(run: pandas.Series) -> str:
    """Why a run does not count; empty if it does."""
    if run["exit"] != "0":
        return f"exit {run['exit']}" + (" (timeout)" if run["exit"] == "124" else "")
    return "" if run["valid"] == "yes" else run["valid"]


def counted(reasons: Counter) -> str:
    """on: 2 x exit 1; off: 1 x ..."""
    return "; ".join(f"{side}: {count} x {reason}" for (side, reason), count in sorted(reasons.items()))


def plural(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def no_metric(metric: Metric) -> str:
    """Why a run without the metric does not count."""
    return f"no {metric.name} in the output"


def metric_values(summary: Summary, metric: Metric, keys: list[tuple],
                  by_pair: dict[tuple, dict[str, pandas.Series]]) -> tuple[dict[str, list[float]], Counter]:
    """By side the values of a metric in the pairs of KEYS that count for it, and why other pairs do not."""
    values: dict[str, list[float]] = {label: [] for label in summary.plan.labels}
    reasons: Counter = Counter()
    for key in keys:
        found = {label: run.get(metric.column, math.nan) for label, run in by_pair[key].items()}
        lacking = {label: no_metric(metric) if math.isnan(value) else f"{metric.name} is not above 0"
                   for label, value in found.items() if not value > 0}
        reasons.update(lacking.items())
        if not lacking:
            for label, value in found.items():
                values[label].append(value)
    return values, reasons


def cannot(summary: Summary, failed: Counter, reasons: Counter) -> str:
    """Why the comparison says nothing; empty if it says something."""
    runs, metric = summary.runs, summary.deciding
    for label in summary.plan.labels:
        of_side = Counter({reason: count for (side, reason), count in failed.items() if side == label})
        if of_side and sum(of_side.values()) == (runs["side"] == label).sum():
            return f"every run of side {label} failed ({', '.join(of_side)}); see its stderr in {summary.plan.path.parent / 'raw'}"
    never = [label for label in summary.plan.labels if summary.whole and reasons[label, no_metric(metric)] == len(summary.whole)]
    if never:
        return (f"the output of {' and '.join(never)} never has the metric {metric.name}: no number matches '{metric.regex}'; "
                "correct --metric")
    pairs = max((row.pairs for row in summary.rows if row.metric == metric), default=0)
    if pairs < 2:
        return f"{plural(pairs, 'complete pair')}, and a comparison needs 2"
    if len(summary.plan.hosts) > 1 and not any(row.found for row in summary.rows if row.metric == metric):
        return "fewer than two hosts have two complete pairs, and the estimate for all hosts needs two"
    return ""


def decide(plan: Plan, row: Row) -> str:
    """GAIN, LOSS, or what it is instead."""
    interval, gate = row.found.interval, plan.gate
    if row.q >= stats.ALPHA or not interval or interval.low <= 0 <= interval.high:
        return NOTHING
    bound = gate.bound(row.metric)
    if abs(row.better) <= gate.percent or (bound is not None and row.apart <= bound):
        return GATED
    return "GAIN" if row.found.estimate > 0 else "LOSS"


def sentence(plan: Plan, row: Row) -> str:
    """What comes of a row, in a sentence."""
    base, better = plan.labels[0], row.better
    interval = "" if not row.bounds else "95 % interval {} to {}, ".format(*map(show_percent, row.bounds))
    if not row.found:
        return f"No result for {row.side} in {row.metric.name}: fewer than two hosts have two complete pairs."
    chance = f"p {show_p(row.found.p)}" + (f", q {show_p(row.q)}" if row.q != row.found.p else "")
    seen = f"{interval}{chance}, {plural(row.pairs, 'pair')}" + (f" on {row.combination.hosts} hosts" if row.of_hosts else "")
    how_much = show_percent(abs(better)).lstrip("+")
    direction = f"{row.side} is {how_much} {'better' if better > 0 else 'worse'} than {base} in {row.metric.name}"
    if row.verdict in ("GAIN", "LOSS"):
        return f"{row.verdict}: {direction} ({seen})."
    if row.verdict == GATED:
        return f"No significant difference beyond the gate of {plan.gate}: {direction} ({seen})."
    few = "" if row.of_hosts or stats.smallest_p(row.pairs) < stats.ALPHA else \
        f" {plural(row.pairs, 'pair')} cannot show a significant difference."
    return f"No significant difference between {base} and {row.side} in {row.metric.name}: {show_percent(better)} ({seen}).{few}"


def footnotes(summary: Summary, failed: Counter, dropped: int, incomplete: int, reasons: dict[str, Counter]) -> list[str]:
    """What is to be known about the figures."""
    plan, rows = summary.plan, [row for row in summary.rows if row.pairs]
    notes = []
    if failed:
        notes.append(f"dropped: {plural(dropped, 'pair')} with a failed or invalid run ({counted(failed)})")
    if incomplete:
        notes.append(f"not complete: {plural(incomplete, 'pair')} without the run of a side")
    for name, counts in reasons.items():
        if counts:
            notes.append(f"dropped for {name}: {counted(counts)}")
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
    whole = summary.runs[[key in set(summary.whole) for key in zip(summary.runs["host"], summary.runs["pair"])]]
    boots = whole.groupby("boot")["pair"].nunique() if len(whole) else pandas.Series(dtype=int)
    if (boots > 1).any():
        notes.append(f"{plural(len(summary.whole), 'pair')} ran in {plural(len(boots), 'boot')}. Runs of one boot are not independent "
                     f"samples of machines: the intervals and p {'of a host ' if len(plan.hosts) > 1 else ''}are about "
                     f"{'this boot' if len(boots) == 1 else 'these boots'}")
    for metric in plan.metrics:
        if plan.gate.unit and plan.gate.bound(metric) is None:
            notes.append(f"the gate's bound of {plan.gate.absolute:g}{plan.gate.unit} does not apply to {metric.name} "
                         f"({metric.unit or 'no unit'})")
    coverage = sorted({f"{100 * row.comparison.interval.coverage:.1f}" for row in summary.shown_rows
                       if row.comparison and row.comparison.interval})
    notes.append("better %: Hodges-Lehmann estimate of the ratios within pairs; a loss is negative. p: exact signed-rank test. "
                 "q: p after Benjamini-Hochberg over the rows. GAIN and LOSS: q below 0.05"
                 + (f", and beyond the gate of {plan.gate}" if str(plan.gate) != "none" else "")
                 + (f". Exact coverage of the intervals: {', '.join(coverage)} %" if coverage else ""))
    return notes


def rows_of(plan: Plan, metric: Metric, values: dict[str, list[float]], host: str = "") -> list[Row]:
    """The rows of a metric, a side each."""
    return [Row(metric, label, values[plan.labels[0]], values[label], host=host) for label in plan.labels[1:]]


def summarise(directory: Path) -> Summary:
    """Reads DIR/plan and DIR/runs.csv, and compares."""
    plan = read_plan(directory)
    runs = read_runs(directory)
    by_pair: dict[tuple, dict[str, pandas.Series]] = {}
    for _, run in runs.iterrows():
        by_pair.setdefault((run["host"], run["pair"]), {})[run["side"]] = run
    complete = {key for key, sides in by_pair.items() if set(sides) == set(plan.labels)}
    strangers = sorted(set(runs["side"]) - set(plan.labels))
    if strangers:
        raise AbError(f"{Path(directory) / 'runs.csv'}: side '{strangers[0]}' is none of {plan.path}; delete runs.csv and run the same "
                      "bench/ab command again")
    failed = Counter((side, failure(run)) for sides in by_pair.values() for side, run in sides.items() if failure(run))
    dropped = {key for key, sides in by_pair.items() if any(map(failure, sides.values()))}
    whole = [key for key in by_pair if key in complete - dropped]
    summary = Summary(plan, runs, whole, complete=len(complete))
    reasons = {}
    for metric in plan.metrics:
        values, reasons[metric.name] = metric_values(summary, metric, whole, by_pair)
        for label, numbers in values.items():
            summary.values[label, metric.column] = numbers
        rows = rows_of(plan, metric, values)
        for host in plan.hosts if len(plan.hosts) > 1 else []:
            of_host, _ = metric_values(summary, metric, [key for key in whole if key[0] == host], by_pair)
            for row, part in zip(rows, rows_of(plan, metric, of_host, host)):
                row.of_hosts.append(part)
        summary.rows += rows
    for row in summary.rows:
        for part in row.of_hosts or [row]:
            if part.pairs:
                part.comparison = stats.compare(part.base, part.values, part.metric.more)
        effects = [stats.effect(stats.log_ratios(part.base, part.values, part.metric.more)) for part in row.of_hosts if part.pairs > 1]
        if len(effects) > 1:
            row.combination = stats.combine(effects)
    measured = [row for row in summary.rows if row.found]
    for row, q in zip(measured, stats.benjamini_hochberg([row.found.p for row in measured])):
        row.q = q
        row.verdict = decide(plan, row)
    summary.cannot = cannot(summary, failed, reasons[summary.deciding.name])
    summary.notes = footnotes(summary, failed, len(dropped), len(by_pair.keys() - complete - dropped), reasons)
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


def columns(plan: Plan) -> list[str]:
    """The headers of the table."""
    base, *others = plan.labels
    return ["metric", "unit", *([] if len(plan.hosts) < 2 else ["host"]), *([] if len(others) == 1 else ["side"]), f"{base} median",
            f"{others[0] if len(others) == 1 else 'side'} median", "better %", "95% interval %", "p", "q", "verdict", "pairs"]


def cells(plan: Plan, row: Row) -> list[str]:
    """A row of the table, as in columns()."""
    unit, divisor = shown_unit(row.metric, row.base)
    arrow = f"{row.metric.name} ({'more' if row.metric.more else 'less'} is better)"
    side = [row.host or "all"] * (len(plan.hosts) > 1) + [row.side] * (len(plan.labels) > 2)
    if not row.found:
        return [arrow, unit, *side, "-", "-", "-", "-", "-", "-", "-", str(row.pairs)]
    # Hosts may differ in speed: the median of all of them says nothing.
    medians = ["-", "-"] if row.of_hosts else [show_number(float(numpy.median(values)) / divisor) for values in (row.base, row.values)]
    interval = "{:+.2f} to {:+.2f}".format(*row.bounds) if row.bounds else "-"
    return [arrow, unit, *side, *medians, f"{row.better:+.2f}", interval, show_p(row.found.p), "-" if row.q is None else show_p(row.q),
            row.verdict, str(row.pairs)]


def host_table(summary: Summary) -> list[list[str]]:
    """How much hosts differ, with headers; empty for one host."""
    rows = [row for row in summary.rows if row.combination]
    side = len(summary.plan.labels) > 2
    return [["metric", *["side"] * side, "hosts", "Q", "p of Q", "I^2 %", "spread of hosts %"],
            *([row.metric.name, *[row.side] * side, str(made.hosts), f"{made.q:.2f}", show_p(made.q_p), f"{100 * made.i2:.0f}",
               f"{stats.percent(math.sqrt(made.tau2)):.2f}"] for row in rows for made in [row.combination])] if rows else []


def median(values: pandas.Series) -> float:
    """Of those that are there; NaN if there is none."""
    values = values.dropna()
    return float(numpy.median(values)) if len(values) else math.nan


def whole_runs(summary: Summary, label: str) -> pandas.DataFrame:
    """The runs of a side in pairs that count."""
    keys = set(summary.whole)
    return summary.runs[[side == label and (host, pair) in keys
                         for side, host, pair in zip(summary.runs["side"], summary.runs["host"], summary.runs["pair"])]]


def shown_counts(summary: Summary) -> list[tuple[str, str, str, str]]:
    """The entries of COUNTS that the second table has; those about NUMA nodes only where there are any."""
    told = [entry for entry in COUNTS if summary.runs[entry[0]].notna().any()]
    return [entry for entry in COUNTS if entry in told or entry[0] not in ("across", "pulled")] if told else []


def counts_legend(summary: Summary) -> str:
    """Explains the columns of the second table."""
    return ". ".join(f"{name}: {what}" for _, name, _, what in shown_counts(summary)) + ". -: the kernel does not tell"


def count_table(summary: Summary) -> list[list[str]]:
    """The second table, with its headers: medians by side of what the scheduler did. Empty if no kernel told."""
    shown = shown_counts(summary)
    if not shown or not summary.whole:
        return []
    body = []
    for label in summary.plan.labels:
        medians = [median(whole_runs(summary, label)[column]) for column, *_ in shown]
        body.append([label, *("-" if math.isnan(middle) else form % middle for middle, (_, _, form, _) in zip(medians, shown))])
    return [["side", *(name for _, name, *_ in shown)], *body]


def perf_table(summary: Summary) -> list[list[str]]:
    """Medians by side of perf stat's counters, with headers; empty without perf stat."""
    events = [column for column in summary.runs.columns if column.startswith("perf:")]
    if not events or not summary.whole:
        return []
    medians = {label: whole_runs(summary, label)[events].agg(median) for label in summary.plan.labels}
    return [["perf stat event", *(f"{label} median" for label in summary.plan.labels)],
            *([event[5:], *(show_number(medians[label][event]) for label in summary.plan.labels)] for event in events)]


def side_text(plan: Plan, label: str) -> str:
    """A side's label, and what makes it."""
    said = [text for text in (plan.sides[label], plan.kernels.get(label, "")) if text and text != label]
    said += ["baseline"] if label == plan.labels[0] else []
    return label + (f" ({', '.join(said)})" if said else "")


def header(summary: Summary) -> list[tuple[str, str]]:
    """What was measured, on what: (what, value)."""
    plan, runs = summary.plan, summary.runs
    cpus = sorted({int(count) for count in runs["cpus"].dropna()})
    machine = f"{plan.get('machine')}, simulated" if plan.simulated else \
        f"{', '.join(plan.hosts)} (no simulation)" if plan.hosts else "this machine (no simulation)"
    lines = [("command", plan.get("command")),
             ("machine", machine + (f", {', '.join(map(str, cpus))} CPUs" if cpus else ""))]
    kernel = plan.get("kernel") or plan.get("uname") or plan.get("release")
    lines += [("kernel", kernel)] if kernel else []
    lines += [("sides", ", ".join(side_text(plan, label) for label in plan.labels)),
              ("pairs", f"{plan.runs} planned{' on each host' if len(plan.hosts) > 1 else ''}, {summary.complete} measured, "
                        f"{len(summary.whole)} used"),
              ("gate", str(plan.gate))]
    if plan.simulated:
        lines.append(("seeds", f"{plan.get('seeds', 'development')}, {plan.seed(1)} to {plan.seed(max(1, plan.runs))}"))
    return lines + ([("project", plan.get("project"))] if plan.get("project") else [])


def repeat_command(plan: Plan) -> str:
    """The command that does the comparison again."""
    words = ["bench/ab"]
    if plan.simulated:
        words += ["--machine", plan.get("machine"), "--seeds", plan.get("seeds", "development")]
    words += ["--hosts", "FILE"] if plan.hosts else []
    words += ["--runs", str(plan.runs)]
    for metric in plan.metrics:
        if len(plan.metrics) > 1 or metric.name != "time":
            spec = "time" if metric.name == "time" else f"{metric.name}={metric.regex}" + (f",{metric.unit}" if metric.unit else "")
            words += ["--metric", spec + (",more" if metric.more else "")]
    features = ",".join(f"{label}={what}" for label, what in plan.sides.items())
    words += ["--sides", features] if all(plan.sides.values()) else []
    words += ["--kernel", ",".join(f"{label}={image}" for label, image in plan.kernels.items())] if plan.kernels else []
    words += ["--kernel", plan.get("kernel")] if plan.simulated and plan.get("kernel", "patched") != "patched" else []
    words += ["--gate", str(plan.gate)] if str(plan.gate) != "none" else []
    for key, option in (("quantum_ns", "--quantum"), ("append", "--append"), ("add", "--add"), ("also", "--also"),
                        ("timeout", "--timeout")):
        for value in plan.lines.get(key, []):
            # The hash of a program stands behind its name.
            words += [option, value.split()[0] if key == "add" else value] if value else []
    words += ["--perf-stat"] if plan.get("perf_stat", "no") in ("1", "yes") else []
    return f"{shlex.join(words)} -- {plan.get('command')}"


def aligned(lines: list[list[str]], left: Sequence[str]) -> list[str]:
    """Lines of a table; the columns that LEFT names are aligned to the left."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return ["  ".join(cell.ljust(width) if name in left else cell.rjust(width)
                      for cell, width, name in zip(line, widths, lines[0])).rstrip() for line in lines]


def text(summary: Summary) -> str:
    """The table as text."""
    plan = summary.plan
    lines = [line for line in (summary.same, *summary.sentences, summary.early) if line] + [""]
    width = max(len(key) for key, _ in header(summary))
    lines += [f"{key.ljust(width)}  {value}" for key, value in header(summary)] + [""]
    lines += aligned([columns(plan), *(cells(plan, row) for row in summary.shown_rows)], ("metric", "unit", "host", "side", "verdict"))
    counts, perf, differ = count_table(summary), perf_table(summary), host_table(summary)
    if differ:
        lines += ["", HOSTS_TITLE + ":", *aligned(differ, ("metric", "side"))]
    if counts:
        lines += ["", COUNTS_TITLE + ":", *aligned(counts, ("side",))]
    if perf:
        lines += ["", *aligned(perf, ("perf stat event",))]
    notes = [note + "." for note in [*summary.notes, *([HOSTS_LEGEND] if differ else []), *([counts_legend(summary)] if counts else [])]]
    notes += [SIMULATED] if plan.simulated else []
    lines.append("")
    for note in notes:
        lines += textwrap.wrap(note, 140, initial_indent="* ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines) + "\n"


def table(directory: Path) -> str:
    """The table of DIR/runs.csv and DIR/plan."""
    return text(summarise(directory))
