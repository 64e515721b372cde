# SPDX-License-Identifier: GPL-2.0
"""Puts runs and traces of each side and number of groups together and compares the sides."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from . import stats
from .records import FIGURES, NODE_FIGURES, Records, ReportError, Run, Session
from .traces import NAME, Trace, analyse

QEMU_WARNING = ("QEMU (TCG) guest: idle CPUs lend their host core to busy ones, so time and %speedup say "
                "nothing here; the counts do.")


@dataclass
class Row:
    """A side at one number of groups."""

    groups: int
    side: str
    runs: list[Run]
    traces: list[Trace]
    time_interval: Optional[stats.Interval]
    # None for the baseline.
    comparison: Optional[stats.Comparison]

    def values(self, figure: str) -> list[float]:
        return [run.figures[figure] for run in self.runs if figure in run.figures]

    def median(self, figure: str) -> Optional[float]:
        """The median over the runs; None if one of them lacks the figure."""
        values = self.values(figure)
        return stats.median(values) if values and len(values) == len(self.runs) else None

    @property
    def wasted(self) -> Optional[float]:
        """Wasted idle, in %: the median over the traces."""
        return stats.median([trace.wasted for trace in self.traces]) if self.traces else None

    @property
    def verdict(self) -> str:
        return self.comparison.verdict if self.comparison else "-"


@dataclass
class Summary:
    """All that a report shows."""

    records: Records
    sides: list[str]
    rows: list[Row]
    traces: list[Trace]
    # Traces that cannot be used, and why.
    refused: list[str] = field(default_factory=list)

    @property
    def groups(self) -> list[int]:
        return sorted({row.groups for row in self.rows})

    @property
    def comparisons(self) -> list[Row]:
        """The rows that have a p value."""
        return [row for row in self.rows if row.comparison and row.comparison.p is not None]

    def distinct(self, *keys: str) -> str:
        """What the sessions say about KEYS, each different answer once."""
        said = [" ".join(session.get(key, "unknown") for key in keys) for session in self.records.sessions]
        return "; ".join(dict.fromkeys(said))

    @property
    def known_model(self) -> str:
        """The model of the CPUs after a comma; empty if the machine does not tell it."""
        model = self.distinct("model")
        return "" if model == "unknown" else ", " + model

    @property
    def sim(self) -> dict[str, str]:
        """The parameters of the simulated machine; empty for another."""
        found: dict[str, dict[str, None]] = {}
        for session in self.records.sessions:
            for key, value in session.pairs("sim").items():
                found.setdefault(key, {})[value] = None
        return {key: "; ".join(values) for key, values in found.items()}

    @property
    def cpus(self) -> int:
        """0 if no session says it."""
        cpus = self.records.sessions[0].get("cpus")
        return int(cpus) if cpus.isdigit() else 0

    @property
    def timing_caveat(self) -> str:
        """How far the times can be believed; empty for a real machine."""
        if self.sim:
            return "simulated machine, virtual time"
        return QEMU_WARNING if "QEMU" in self.distinct("model") else ""


def llcs_of(session: Session) -> list[list[int]]:
    """The CPUs of each LLC, in the order of their first CPUs."""
    members: dict[str, list[int]] = {}
    topology = session.topology
    for cpu in sorted(topology):
        members.setdefault(topology[cpu].get("llc", "-"), []).append(cpu)
    if not members or "-" in members:
        raise ReportError(f"{session.where}: does not say which CPUs share an LLC, so that no trace can be used; "
                          "give records that have 'topology' lines")
    if sorted(topology) != list(range(len(topology))):
        raise ReportError(f"{session.where}: there are CPUs missing among the 'topology' lines, so that no trace "
                          "can be used; take the trace with all CPUs online")
    return list(members.values())


def load_traces(paths: list[Path], records: Records, sides: list[str]) -> tuple[list[Trace], list[str]]:
    """The traces, and why others are not used."""
    traces, refused = [], []
    for path in paths:
        try:
            trace = analyse(path, llcs_of(records.sessions[0]))
            if trace.side not in sides:
                raise ReportError(f"{path}: side {trace.side} is not among the sides, {' '.join(sides)}; remove it")
        except ReportError as error:
            refused.append(f"trace not used: {error}")
            continue
        if trace.gaps:
            records.notes.append(f"{path}: {trace.gaps} switches do not follow each other; are events missing?")
        traces.append(trace)
    return sorted(traces, key=lambda trace: (trace.groups, sides.index(trace.side))), refused


def find_files(path: Path) -> tuple[list[Path], list[Path]]:
    """The raw files and the traces of a directory; a file stands for itself."""
    if not path.is_dir():
        return [path], []
    raw = sorted(path.glob("*.raw"))
    if not raw:
        raise ReportError(f"{path}: has no *.raw file; name a directory that has, or the file itself")
    return raw, sorted(trace for trace in path.iterdir() if NAME.fullmatch(trace.name))


def make_row(groups: int, side: str, base: list[Run], runs: list[Run], traces: list[Trace], is_base: bool) -> Row:
    times = [run.figures["time"] for run in runs]
    comparison = None if is_base else stats.compare([run.figures["time"] for run in base], times)
    return Row(groups, side, runs, traces, stats.median_interval(times), comparison)


def summarise(records: Records, trace_paths: list[Path]) -> Summary:
    """Everything that a report shows, from the records and the files of the traces."""
    if not records.runs:
        raise ReportError(f"{records.sessions[0].where if records.sessions else 'the files'}: no complete valid run "
                          f"(failed: {records.failed}, not valid: {records.invalid}); see the notes, and run the "
                          "bench again")
    sides = records.sessions[0].sides
    traces, refused = load_traces(trace_paths, records, sides)
    runs: dict[tuple[int, str], list[Run]] = {}
    for run in records.runs:
        runs.setdefault((run.groups, run.side), []).append(run)
    rows = []
    for groups in sorted({groups for groups, _ in runs}):
        for side in sides:
            if (groups, side) in runs:
                of_side = [trace for trace in traces if (trace.groups, trace.side) == (groups, side)]
                rows.append(make_row(groups, side, runs.get((groups, sides[0]), []), runs[groups, side], of_side,
                                     side == sides[0]))
    return Summary(records, sides, rows, traces, refused)


def trace_figures(trace: Trace) -> dict[str, object]:
    """What is said about a trace; percentages are of CPUs x time."""
    periods = sum(trace.idle_periods)
    return {
        "groups": trace.groups, "side": trace.side, "file": trace.path.name, "seconds": trace.seconds,
        "idle_percent": trace.idle, "full_busy_percent": trace.full_busy, "wasted_percent": trace.wasted,
        "wakeup_latency_percent": trace.latency, "unknown_percent": trace.unknown, "idle_periods": periods,
        "idle_periods_per_cpu": periods / len(trace.idle_periods), "idle_mean_us": trace.idle_mean_us,
    }


def row_figures(row: Row) -> dict[str, object]:
    """What is said about a row; None where there is nothing to say."""
    figures: dict[str, object] = {"groups": row.groups, "side": row.side, "runs": len(row.runs)}
    for figure in FIGURES + NODE_FIGURES:
        figures[figure] = row.median(figure)
    time = row.time_interval
    speedup = row.comparison or stats.Comparison(None, None, None)
    figures |= {
        "time_low": time.low if time else None, "time_high": time.high if time else None,
        "time_confidence": time.confidence if time else None, "wasted": row.wasted,
        "speedup": speedup.speedup,
        "speedup_low": speedup.interval.low if speedup.interval else None,
        "speedup_high": speedup.interval.high if speedup.interval else None,
        "speedup_confidence": speedup.interval.confidence if speedup.interval else None,
        "p": speedup.p, "verdict": row.verdict,
    }
    return figures
