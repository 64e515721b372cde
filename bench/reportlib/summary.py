# SPDX-License-Identifier: GPL-2.0
"""Collects the runs and traces of each side and number of groups, and compares the sides."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from . import stats
from .records import FIGURES, NODE_FIGURES, Records, ReportError, Run, Session
from .traces import NAME, Trace, analyse

QEMU_WARNING = ("QEMU (TCG) guest: time and %speedup mean nothing, because busy CPUs get the host time of idle ones. The counts are "
                "valid.")


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
    """The content of a report."""

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
        """The values of KEYS in the sessions, each value once."""
        said = [" ".join(session.get(key, "unknown") for key in keys) for session in self.records.sessions]
        return "; ".join(dict.fromkeys(said))

    @property
    def known_model(self) -> str:
        """The model of the CPUs after a comma; empty if it is unknown."""
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
        """0 if unknown."""
        cpus = self.records.sessions[0].get("cpus")
        return int(cpus) if cpus.isdigit() else 0

    @property
    def timing_caveat(self) -> str:
        """What the times of this machine mean; empty for a real machine."""
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
        raise ReportError(f"{session.where}: does not say which CPUs share an LLC; traces need records with 'topology' lines")
    if sorted(topology) != list(range(len(topology))):
        raise ReportError(f"{session.where}: the 'topology' lines do not have all CPUs; record traces with all CPUs online")
    return list(members.values())


def load_traces(paths: list[Path], records: Records, sides: list[str]) -> tuple[list[Trace], list[str]]:
    """The traces, and the reason for each that is not used."""
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
            records.notes.append(f"{path}: {trace.gaps} switches do not fit the switch before; events may be missing")
        traces.append(trace)
    return sorted(traces, key=lambda trace: (trace.groups, sides.index(trace.side))), refused


def find_files(path: Path) -> tuple[list[Path], list[Path]]:
    """The raw files and the traces of a directory; a file stands for itself."""
    if not path.is_dir():
        return [path], []
    raw = sorted(path.glob("*.raw"))
    if not raw:
        raise ReportError(f"{path}: has no *.raw file; name a directory with raw files, or a raw file")
    return raw, sorted(trace for trace in path.iterdir() if NAME.fullmatch(trace.name))


def make_row(groups: int, side: str, base: list[Run], runs: list[Run], traces: list[Trace], is_base: bool) -> Row:
    times = [run.figures["time"] for run in runs]
    comparison = None if is_base else stats.compare([run.figures["time"] for run in base], times)
    return Row(groups, side, runs, traces, stats.median_interval(times), comparison)


def summarise(records: Records, trace_paths: list[Path]) -> Summary:
    """The content of a report, from the records and the trace files."""
    if not records.runs:
        raise ReportError(f"{records.sessions[0].where if records.sessions else 'the files'}: no complete valid run "
                          f"(failed: {records.failed}, not valid: {records.invalid}); read the messages above and run the bench again")
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


def row_figures(row: Row) -> dict[str, object]:
    """A row of summary.csv; None where there is no value."""
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
