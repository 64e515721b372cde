# SPDX-License-Identifier: GPL-2.0
"""The plots of the report, as PNG. The colours are those of Okabe and Ito, which colour-blind people can distinguish."""

import io
from typing import Callable, Optional

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.patches import Patch  # noqa: E402

from .summary import QEMU_WARNING, Row, Summary  # noqa: E402
from .traces import Raster, Trace, raster  # noqa: E402

DPI = 150
SIDES = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "osD^vP*"
VERDICTS = {"GAIN": "#0072B2", "LOSS": "#D55E00", "same?": "#777777", "-": "#777777"}
BUSY, NOTHING_WAITS, WASTED, UNKNOWN = "#33476b", "#dbe7f3", "#ff4d00", "#b5aa99"


def png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DPI)
    plt.close(figure)
    return file.getvalue()


def machine(summary: Summary) -> str:
    """The machine in a line, and what its times mean."""
    text = f"{summary.distinct('cpus')} CPUs, LLCs: {summary.distinct('llcs')}{summary.known_model}"
    if "topology" in summary.sim:
        text += f" ({summary.sim['topology']})"
    if summary.timing_caveat == QEMU_WARNING:
        return text + "\nemulated: the times mean nothing, the counts are valid"
    return text + (f"\n{summary.timing_caveat}" if summary.timing_caveat else "")


def new_figure(summary: Summary, what: str, panels: int, width: float = 10) -> tuple[Figure, list[Axes]]:
    figure, axes = plt.subplots(1, panels, figsize=(width, 4.8), layout="constrained", squeeze=False)
    figure.suptitle(f"{what}\n{machine(summary)}", fontsize=11)
    return figure, list(axes[0])


def by_groups(axes: Axes, summary: Summary, label: str, values: Callable[[Row], list[float]],
              median: Callable[[Row], Optional[float]], dots: str = "runs") -> None:
    """A value by groups, for each side: a dot for each run, and larger marks with a line for the medians."""
    groups = sorted({row.groups for row in summary.rows if median(row) is not None}) or summary.groups
    width = 0.6 / len(summary.sides)
    for number, side in enumerate(summary.sides):
        rows = [row for row in summary.rows if row.side == side and median(row) is not None]
        colour, marker = SIDES[number % len(SIDES)], MARKERS[number % len(MARKERS)]
        at = [groups.index(row.groups) + (number - (len(summary.sides) - 1) / 2) * width for row in rows]
        for x, row in zip(at, rows):
            axes.scatter([x] * len(values(row)), values(row), s=14, color=colour, alpha=0.35, linewidths=0)
        axes.plot(at, [median(row) for row in rows], marker=marker, markersize=7, color=colour, linewidth=1,
                  markerfacecolor="none", markeredgewidth=1.5, label=side)
    axes.set_xticks(range(len(groups)), map(str, groups))
    axes.set_xlim(-0.5, len(groups) - 0.5)
    axes.set_xlabel("hackbench groups (40 tasks each)")
    axes.set_ylabel(label)
    # From 0, with room for the marks that are there.
    axes.set_ylim(bottom=-0.03 * axes.get_ylim()[1])
    if not any(median(row) is not None for row in summary.rows):
        axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(title=f"marks: medians; dots: {dots}", title_fontsize=8, fontsize=9)


def figure_panel(axes: Axes, summary: Summary, label: str, figure: str) -> None:
    by_groups(axes, summary, label, lambda row: row.values(figure), lambda row: row.median(figure))


def time_plot(summary: Summary) -> bytes:
    figure, (left, right) = new_figure(summary, f"Time and busy CPUs of {summary.distinct('hackbench')}", 2)
    figure_panel(left, summary, "time (s)", "time")
    figure_panel(right, summary, "CPUs busy (% of the time)", "busy")
    return png(figure)


def counts_plot(summary: Summary) -> bytes:
    figure, axes = new_figure(summary, f"Scheduler counts of {summary.distinct('hackbench')}", 3, 14)
    for panel, (label, name) in zip(axes, (("tasks stolen per CPU", "steal"), ("wakeups per CPU", "wake"),
                                           ("idle entries per CPU", "idle"))):
        figure_panel(panel, summary, label, name)
    return png(figure)


def traced_command(traces: list[Trace], groups: str) -> str:
    """The traced command; it usually has fewer loops than the runs of the table."""
    loops = "; ".join(dict.fromkeys(trace.header.get("loops", "unknown") for trace in traces))
    return f"hackbench -g {groups} -l {loops}, traced"


def wasted_plot(summary: Summary) -> bytes:
    figure, (axes,) = new_figure(
        summary, f"CPUs idle while a task waits in the LLC, {traced_command(summary.traces, 'GROUPS')}", 1, 8)
    by_groups(axes, summary, "wasted idle (% of CPU time)", lambda row: [trace.wasted for trace in row.traces],
              lambda row: row.wasted, "traces")
    return png(figure)


def run_speedups(summary: Summary, row: Row) -> list[float]:
    """The speedup of each run (%) against the median of the baseline."""
    base = next(other.median("time") for other in summary.rows
                if (other.groups, other.side) == (row.groups, summary.sides[0]))
    return [100 * (base / time - 1) for time in row.values("time")]


def speedup_plot(summary: Summary) -> bytes:
    """The speedups with their intervals and verdicts."""
    base, *others = summary.sides
    figure, (axes,) = new_figure(summary, f"Speedup against {base} in {summary.distinct('hackbench')}", 1, 10)
    groups, width = summary.groups, 0.7 / len(others)
    rows = [row for row in summary.rows if row.comparison and row.comparison.speedup is not None]
    for row in rows:
        number, comparison, interval = others.index(row.side), row.comparison, row.comparison.interval
        x = groups.index(row.groups) + (number - (len(others) - 1) / 2) * width
        colour = VERDICTS[row.verdict]
        dots = run_speedups(summary, row)
        axes.scatter([x - 0.06] * len(dots), dots, s=12, color=colour, alpha=0.4, linewidths=0)
        if interval:
            axes.plot([x, x], [interval.low, interval.high], color=colour, linewidth=2, marker="_", markersize=10)
        axes.plot([x], [comparison.speedup], MARKERS[number % len(MARKERS)], color=colour, markersize=8)
        top = max([*dots, interval.high if interval else comparison.speedup])
        axes.annotate(f"{row.verdict}\n{comparison.speedup:+.1f} %", (x, top), xytext=(0, 6),
                      textcoords="offset points", ha="center", va="bottom", color=colour,
                      fontsize=7 if len(others) > 2 else 9)
    axes.axhline(0, color="black", linewidth=1)
    axes.set_xticks(range(len(groups)), map(str, groups))
    axes.set_xlim(-0.5, len(groups) - 0.5)
    axes.margins(y=0.25)
    axes.set_xlabel("hackbench groups (40 tasks each)")
    axes.set_ylabel("speedup (%); below 0: slower")
    axes.grid(axis="y", alpha=0.3)
    for number, side in enumerate(others):
        axes.plot([], [], MARKERS[number % len(MARKERS)], color="#444444", label=side)
    axes.legend(title="marks: of the medians; bars: interval; dots: runs", title_fontsize=8, fontsize=9)
    return png(figure)


def blend(shares: Raster) -> numpy.ndarray:
    """The mixed colour of each cell; white after the end of the run."""
    known = shares.busy + shares.idle + shares.wasted
    over = numpy.clip(1 - known - shares.unknown, 0, 1)
    layers = ((shares.busy, BUSY), (shares.idle, NOTHING_WAITS), (shares.wasted, WASTED),
              (shares.unknown, UNKNOWN), (over, "white"))
    mix = sum(share[..., None] * numpy.array(matplotlib.colors.to_rgb(colour)) for share, colour in layers)
    return numpy.clip(mix, 0, 1)


def busy_panel(axes: Axes, trace: Trace, seconds: float) -> None:
    """One trace: a line of cells for each CPU, ordered by LLC."""
    cpus = sum(map(len, trace.llcs))
    axes.imshow(blend(raster(trace, 1600, seconds)), aspect="auto", interpolation="nearest",
                extent=(0, seconds, cpus, 0))
    start, ticks, labels = 0, [], []
    for members in trace.llcs:
        ticks.append(start + len(members) / 2)
        labels.append(f"LLC of\nCPU {members[0]}")
        start += len(members)
        if start < cpus:
            axes.axhline(start, color="black", linewidth=1)
    step = -(-len(labels) // 24)
    axes.set_yticks(ticks[::step], labels[::step], fontsize=7)
    axes.set_ylabel(f"{cpus} CPUs, one line each")
    axes.set_title(f"side {trace.side}: busy {100 - trace.idle - trace.unknown:.1f} %, idle {trace.idle:.1f} %, "
                   f"wasted {trace.wasted:.2f} % of CPU time", fontsize=10, loc="left")


def busy_plot(summary: Summary, groups: int) -> bytes:
    """The traces of one number of groups, with a common time axis."""
    traces = [trace for trace in summary.traces if trace.groups == groups]
    seconds = max(trace.seconds for trace in traces)
    height = min(6.0, max(2.2, 0.025 * summary.cpus + 1.2))
    figure, axes = plt.subplots(len(traces), 1, figsize=(12, 1.8 + height * len(traces)), layout="constrained",
                                squeeze=False, sharex=True)
    figure.suptitle(f"State of each CPU in {traced_command(traces, str(groups))}\n{machine(summary)}", fontsize=11)
    for panel, trace in zip(axes[:, 0], traces):
        busy_panel(panel, trace, seconds)
    axes[-1, 0].set_xlabel("time since the start of the run (s)")
    axes[-1, 0].legend(handles=[Patch(facecolor=colour, edgecolor="#888888", label=label) for colour, label in (
        (BUSY, "busy"), (NOTHING_WAITS, "idle, no task waits in the LLC"),
        (WASTED, "idle, a task waits in the LLC (wasted)"), (UNKNOWN, "unknown (no switch in the trace)"))],
        loc="upper center", bbox_to_anchor=(0.5, -0.55 / height), ncols=4, fontsize=9)
    return png(figure)


def draw(summary: Summary) -> dict[str, bytes]:
    """All plots by file name."""
    plots = {"time.png": time_plot(summary), "counts.png": counts_plot(summary)}
    if any(row.comparison and row.comparison.speedup is not None for row in summary.rows):
        plots["speedup.png"] = speedup_plot(summary)
    if any(row.traces for row in summary.rows):
        plots["wasted.png"] = wasted_plot(summary)
    for groups in sorted({trace.groups for trace in summary.traces}):
        plots[f"busy-{groups}.png"] = busy_plot(summary, groups)
    return plots
