# SPDX-License-Identifier: GPL-2.0
"""The texts of the report: the table, the CSV of its rows, and the HTML page."""

import base64
import html
from typing import Optional, Sequence

from . import stats
from .records import FIGURES, Session
from .summary import QEMU_WARNING, Row, Summary, row_figures
from .tidy import csv_text

COLUMNS = ("grps", "side", "time", "median interval", "%busy", "slice", "sched", "idle", "wake", "%find", "steal",
           "wasted", "%speedup", "interval", "conf", "p", "verdict", "runs")
FORMATS = {"time": "%.3f", "busy": "%.2f", "slice": "%.3f", "sched": "%.0f", "idle": "%.0f", "wake": "%.0f",
           "find": "%.2f", "steal": "%.0f"}
NODE_COLUMNS = ("grps", "side", "wake", "across", "%across", "pulled")
TRACE_COLUMNS = ("grps", "side", "loops", "seconds", "%idle", "%full busy", "%wasted", "%latency", "%unknown",
                 "idle periods/CPU", "mean us")

NODE_TITLE = ("wakeups per CPU; across: onto a CPU of another NUMA node than the waker's; pulled: of tasks that last ran on another "
              "node, for which wake_affine() starts the search at the waker's CPU")


def show(value: Optional[float], form: str) -> str:
    return "-" if value is None else form % value


def sessions_text(sessions: list[Session]) -> str:
    """Their names, or their number if there are many."""
    names = [session.name + ("" if session.record else " (without description)") for session in sessions]
    return ", ".join(names) if len(names) <= 6 else f"{len(names)}, from {names[0]} to {names[-1]}"


def header(summary: Summary) -> list[tuple[str, str]]:
    """What was measured, and on which machine: (what, value)."""
    sessions = summary.records.sessions
    lines = [
        ("kernel", summary.distinct("release", "version", "machine")),
        ("CPUs", f"{summary.distinct('cpus')} ({summary.distinct('online')}), LLCs: {summary.distinct('llcs')}"
                 + summary.known_model),
        ("command", f"{summary.distinct('hackbench')}, {summary.distinct('hackbench_version')}"),
        ("patches", summary.distinct("project")),
        ("sides", ", ".join(side_text(summary, side) for side in summary.sides)),
        ("sessions", sessions_text(sessions)),
    ]
    if summary.sim:
        lines.append(("time", summary.timing_caveat))
        lines += [("sim " + key, value) for key, value in summary.sim.items()]
    virtual, host = summary.records.virtual_seconds, summary.records.host_seconds
    if virtual > 0:
        busy = summary.records.busy_seconds
        per_busy = f", {host / busy:.1f} host s per busy CPU-second" if busy > 0 else ""
        lines.append(("host time", f"{host:.1f} s for {virtual:.3f} s of virtual time, with boots "
                                   f"({host / virtual:.1f} host s per virtual s{per_busy})"))
    return lines


def side_text(summary: Summary, side: str) -> str:
    """The label of a side and the features it sets."""
    features = dict.fromkeys(session.pairs("side_features").get(side, "") for session in summary.records.sessions)
    said = [text for text in features if text] + (["baseline"] if side == summary.sides[0] else [])
    return side + (f" ({', '.join(said)})" if said else "")


def cells(row: Row) -> list[str]:
    """A row of the table, as in COLUMNS."""
    figures = {figure: show(row.median(figure), form) for figure, form in FORMATS.items()}
    time, comparison = row.time_interval, row.comparison or stats.Comparison(None, None, None)
    interval = comparison.interval
    return [
        str(row.groups), row.side, figures["time"], f"{time.low:.3f}..{time.high:.3f}" if time else "-",
        *(figures[figure] for figure in FIGURES[1:]), show(row.wasted, "%.2f"),
        show(comparison.speedup, "%.1f"), f"{interval.low:.1f}..{interval.high:.1f}" if interval else "-",
        f"{100 * interval.confidence:.0f}%" if interval else "-", show(comparison.p, "%.2g"), row.verdict,
        str(len(row.runs)),
    ]


def trace_cells(summary: Summary) -> list[list[str]]:
    """The rows of the table of traces, as in TRACE_COLUMNS."""
    return [[str(trace.groups), trace.side, trace.header.get("loops", "-"), f"{trace.seconds:.6f}",
             f"{trace.idle:.2f}", show(trace.full_busy, "%.2f"), f"{trace.wasted:.2f}", f"{trace.latency:.2f}", f"{trace.unknown:.2f}",
             f"{sum(trace.idle_periods) / len(trace.idle_periods):.1f}", f"{trace.idle_mean_us:.1f}"]
            for trace in summary.traces]


def node_cells(summary: Summary) -> list[list[str]]:
    """The rows of the table of wakeups and nodes, as in NODE_COLUMNS; none on a machine with one node."""
    cells = []
    for row in summary.rows:
        wake, across, pulled = (row.median(figure) for figure in ("wake", "across", "pulled"))
        if across is not None:
            share = 100 * across / wake if wake else None
            cells.append([str(row.groups), row.side, show(wake, "%.0f"), show(across, "%.0f"), show(share, "%.2f"),
                          show(pulled, "%.0f")])
    return cells


def align(columns: Sequence[str], rows: list[list[str]]) -> list[str]:
    """Lines with all columns right-aligned."""
    widths = [max(map(len, column)) for column in zip(columns, *rows)]
    return [" ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in [columns, *rows]]


def confidence_notes(summary: Summary) -> list[str]:
    """What more runs are needed for."""
    medians = {len(row.runs): row.time_interval.confidence for row in summary.rows
               if row.time_interval and row.time_interval.confidence < 0.95}
    notes = [f"median interval: {100 * confidence:.1f} % confidence with {runs} runs; 95 % needs more runs"
             for runs, confidence in sorted(medians.items())]
    counts = {side: {row.groups: len(row.runs) for row in summary.rows if row.side == side} for side in summary.sides}
    low = {(counts[summary.sides[0]][row.groups], len(row.runs)) for row in summary.comparisons}
    for base, new in sorted(low):
        least = stats.smallest_p(base, new)
        if least >= stats.ALPHA:
            notes.append(f"{base} runs against {new} cannot have p below {least:.2g}; a verdict needs more runs")
    return notes


def repetition_notes(summary: Summary) -> list[str]:
    """Which runs are not independent."""
    notes = []
    constant = [row for row in summary.rows if len(row.runs) > 1 and len(set(row.values("time"))) == 1]
    if constant:
        where = ", ".join(f"{row.groups} {row.side}" for row in constant)
        notes.append(f"all runs took the same time ({where}): they do not show how much the time varies, so p and intervals say "
                     "nothing about other runs")
    return notes


def footer(summary: Summary) -> list[str]:
    """How to read the table, and which runs it does not have."""
    records, number = summary.records, len(summary.comparisons)
    notes = [
        "medians of the runs; time in s, slice in ms, counts per CPU. %speedup: 100 * (time of "
        f"{summary.sides[0]} / time - 1); negative is slower",
        "GAIN, LOSS: p < 0.05 (Mann-Whitney test, two-sided); same?: no significant difference; the sides may still differ",
        f"{number} comparison{'' if number == 1 else 's'}; p values are not corrected for their number",
        "interval: of %speedup; conf: its confidence, 95 % or the next higher one that is possible with these runs",
    ]
    notes += confidence_notes(summary) + repetition_notes(summary)
    if summary.traces:
        notes.append("wasted: % of CPU time in which a CPU was idle while a task waited on a busy CPU of the same LLC; from the traces")
        notes.append("%latency: % of CPU time in which a CPU was idle while a task that was just woken waited on it")
        notes.append("%full busy: % of CPU time busy from the last fork to the first exit; the other columns of the traces cover the "
                     "whole run")
        if max(trace.unknown for trace in summary.traces) >= 1:
            notes.append("%unknown: CPUs without a switch in the trace; they count neither as idle nor as wasted")
    if any((row.median("busy") or 0) > 100 for row in summary.rows):
        notes.append("%busy above 100: the kernel counts some waiting time as running; see hackbench-table.awk")
    if records.failed + records.invalid:
        notes.append(f"failed runs, not in the table: {records.failed + records.invalid} "
                     f"(exit not 0: {records.failed}, not valid: {records.invalid})")
    if summary.timing_caveat == QEMU_WARNING:
        notes.append(QEMU_WARNING)
    return notes + summary.refused


def table(summary: Summary) -> str:
    about = header(summary)
    width = max(len(key) for key, _ in about) + 1
    lines = [f"{key + ':':{width}} {value}" for key, value in about]
    lines += align(COLUMNS, [cells(row) for row in summary.rows]) + footer(summary)
    if node_cells(summary):
        lines += ["", NODE_TITLE + ":", *align(NODE_COLUMNS, node_cells(summary))]
    if summary.traces:
        lines += ["", "traces:", *align(TRACE_COLUMNS, trace_cells(summary))]
    return "\n".join(lines) + "\n"


def summary_csv(summary: Summary) -> str:
    rows = [row_figures(row) for row in summary.rows]
    return csv_text(list(rows[0]), (list(row.values()) for row in rows))


STYLE = """body { font-family: sans-serif; margin: 2em; max-width: 80em }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1em 0 }
th, td { padding: .2em .6em; text-align: right; border-bottom: 1px solid #ccc }
table.about th, table.about td { text-align: left; vertical-align: top }
.GAIN { background: #cfe5f5; font-weight: bold } .LOSS { background: #fbd9c0; font-weight: bold }
img { max-width: 100%; margin: 1em 0 } .caveat { border-left: .4em solid #d55e00; padding: .5em }"""


def html_table(columns: Sequence[str], rows: list[list[str]]) -> str:
    def line(tag: str, row: Sequence[str]) -> str:
        marks = (f' class="{cell}"' if cell in ("GAIN", "LOSS") else "" for cell in row)
        return "<tr>" + "".join(f"<{tag}{mark}>{html.escape(cell)}</{tag}>" for mark, cell in zip(marks, row)) + "</tr>"
    return "\n".join(["<table>", line("th", columns), *(line("td", row) for row in rows), "</table>"])


def report_html(summary: Summary, plots: dict[str, bytes]) -> str:
    """One page that needs no other file."""
    about = "\n".join(f"<tr><th>{html.escape(key)}</th><td>{html.escape(value)}</td></tr>"
                      for key, value in header(summary))
    parts = ["<!DOCTYPE html>", '<html lang="en"><head><meta charset="utf-8"><title>Task stealing: hackbench</title>',
             f"<style>{STYLE}</style></head><body>", "<h1>hackbench, side by side</h1>",
             f'<table class="about">{about}</table>']
    if summary.timing_caveat:
        parts.append(f'<p class="caveat">{html.escape(summary.timing_caveat)}</p>')
    parts.append(html_table(COLUMNS, [cells(row) for row in summary.rows]))
    parts.append("<ul>" + "".join(f"<li>{html.escape(note)}</li>" for note in footer(summary)) + "</ul>")
    if node_cells(summary):
        parts += ["<h2>Wakeups and NUMA nodes</h2>", f"<p>{NODE_TITLE}</p>", html_table(NODE_COLUMNS, node_cells(summary))]
    if summary.traces:
        parts += ["<h2>Traces</h2>", html_table(TRACE_COLUMNS, trace_cells(summary))]
    for name, png in plots.items():
        data = base64.b64encode(png).decode()
        parts.append(f'<h2>{name}</h2><img alt="{name}" src="data:image/png;base64,{data}">')
    return "\n".join(parts + ["</body></html>"]) + "\n"
