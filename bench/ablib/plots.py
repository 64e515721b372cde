# SPDX-License-Identifier: GPL-2.0
"""The pictures of a comparison, as SVG. They are narrow: a telephone shows them without making the text too small.

Colours are Okabe and Ito's, which colour-blind people can tell apart.
"""

import io
import re
from dataclasses import dataclass
from typing import Sequence

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy  # noqa: E402
import pandas  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.colors import to_rgb  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.patches import Patch  # noqa: E402
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator  # noqa: E402

from . import stats  # noqa: E402
from .plan import Case, Metric  # noqa: E402
from .table import Row, Summary, case_name, level_name, metric_values, row_name, shown_unit  # noqa: E402

WIDTH = 4.4
SIDES = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
STYLES = ("-", "--", "-.", ":")
VERDICTS = {"GAIN": "#0072B2", "LOSS": "#D55E00", "DIFF": "#D55E00"}
OTHER = "#555555"
BUSY, NOTHING_WAITS, WASTED, UNKNOWN = "#33476b", "#dbe7f3", "#ff4d00", "#b5aa99"
SETTINGS = {"font.size": 9, "font.family": "DejaVu Sans", "axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "path"}
# A metric's name is text, whatever is in it. Versions before 3.6 lack the setting.
SETTINGS |= {"text.parse_math": False} if "text.parse_math" in matplotlib.rcParams else {}
# In one picture at most so many lines, and on one page so many pictures of busy CPUs.
LINES, RASTERS = 6, 3
PERCENTILE = re.compile(r"(.*?)_?(?:p([0-9]{1,2}(?:\.[0-9]+)?)|(max))")


@dataclass(frozen=True)
class Picture:
    """An SVG and what a reader has to know of it."""

    name: str
    svg: str
    caption: str


def svg(figure: Figure, name: str) -> str:
    """The same picture is the same text: no date, no random names. NAME keeps the names of two pictures in one page apart."""
    file = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    text = file.getvalue()
    # The id of an image is a sum of it: two of the same content have the same.
    text = re.sub(r'(<image [^>]*?)\bid="[^"]*"', r"\1", text[text.index("<svg"):])
    # matplotlib's ids of groups and glyphs are the same in each picture.
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)


def shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length - 1] + "…"


def panels_of(number: int, height: float) -> tuple[Figure, list[Axes]]:
    """A picture of panels, one above the other."""
    figure, panels = plt.subplots(number, 1, figsize=(WIDTH, height), layout="constrained", squeeze=False, sharex=True)
    return figure, list(panels[:, 0])


def legend(axes: Axes, labels: Sequence[str]) -> None:
    """Above the picture, in a line if it fits; none if nothing was drawn."""
    columns = len(labels) if sum(map(len, labels)) <= 30 else 1
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, ncol=columns)


def drawn(labels: Sequence[str]) -> list[str]:
    """The sides in a picture that has a colour for each: all, or the first and the last if these are too many."""
    return list(labels) if len(labels) <= len(SIDES) else [labels[0], labels[-1]]


def which(labels: Sequence[str]) -> str:
    """For a caption: which sides a picture shows, if not all."""
    return "" if len(drawn(labels)) == len(labels) else f" Of {len(labels)} sides, the first and the last."


def pair_ratios(row: Row) -> list[float]:
    """How much better the side is in each pair, in %."""
    return [stats.percent(ratio) for ratio in stats.log_ratios(row.base, row.values, row.metric.more)]


def limits(summary: Summary, rows: Sequence[Row]) -> tuple[float, float]:
    """The range of the axis: all dots and intervals, and 0."""
    seen = [0.0, *(ratio for row in rows for ratio in pair_ratios(row)), *(bound for row in rows for bound in row.bounds or ())]
    gate = summary.plan.gate.percent
    low, high = min(*seen, -gate), max(*seen, gate)
    margin = 0.06 * (high - low) or 1
    return low - margin, high + margin


def speedups(summary: Summary) -> list[Picture]:
    """By level for loads with two levels or more, if these are few; a row each for the others. Of combinations, what each bit adds."""
    plan = summary.plan
    rows = [row for row in (summary.main_shares if plan.factorial else summary.main_rows if len(plan.cases) > 1 else summary.shown_rows)
            if row.found]
    lines: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.case.level:
            lines.setdefault((row.case.load, row.side), []).append(row)
    lines = {key: some for key, some in lines.items() if len(some) > 1}
    if len(lines) > LINES:
        lines = {}
    rest = [row for row in rows if (row.case.load, row.side) not in lines]
    side = plan.labels[1] if len(plan.labels) == 2 else "each side"
    metrics = dict.fromkeys(row.metric.name for row in rows)
    about = ("How much better it is with each bit than without it, over the sides that differ in this bit alone," if plan.factorial else
             f"How much better {side} is than {plan.labels[0]}") + f" in {', '.join(metrics) or 'time'}. Dots: one pair of runs each. " + \
        ("Grey: within the gate. " if plan.gate.percent else "")
    made = [Picture("speedup", by_level(summary, lines), about + "Diamonds: the estimates. Bars: their 95 % intervals.")] if lines else []
    if rest or not lines:
        made.append(Picture("speedup-others" if lines else "speedup", by_row(summary, rest),
                            about + "Diamond: the estimate. Line: its 95 % interval. Blue: GAIN. Orange: LOSS"
                            + (" or DIFF." if any(row.metric.better == "same" for row in rest) else ".")))
    return made


def by_level(summary: Summary, lines: dict[tuple[str, str], list[Row]]) -> str:
    """How much better against the level, a colour for each load and side."""
    plan = summary.plan
    tasks = summary.runs.groupby("case")["tasks"].max()
    with matplotlib.rc_context(SETTINGS):
        figure, (axes,) = panels_of(1, 3.4)
        axes.axhline(0, color="#000000", linewidth=1)
        if plan.gate.percent:
            axes.axhspan(-plan.gate.percent, plan.gate.percent, color="#999999", alpha=0.25, linewidth=0)
        loads, ticks = {load for load, _ in lines}, {}
        labels = []
        for number, ((load, side), rows) in enumerate(lines.items()):
            colour = SIDES[(number + 1) % len(SIDES)]
            rows = sorted(rows, key=lambda row: tasks[row.case])
            # Lines do not hide each other.
            at = numpy.array([tasks[row.case] for row in rows]) * 1.035 ** (number - (len(lines) - 1) / 2)
            ticks |= {float(tasks[row.case]): row.case.level for row in rows}
            labels.append(", ".join([load] * (len(loads) > 1) + [side] * (len(plan.labels) > 2 or len(loads) == 1)))
            axes.plot(at, [row.better for row in rows], marker="D", markersize=5, color=colour, linewidth=1.2,
                      label=shorten(labels[-1], 40))
            for x, row in zip(at, rows):
                axes.scatter([x * 1.02] * row.pairs, pair_ratios(row), s=9, color=colour, alpha=0.4, linewidths=0)
                if row.bounds:
                    axes.plot([x, x], row.bounds, color=colour, linewidth=2, marker="_", markersize=7)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(sorted(ticks)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: ticks.get(value, "")))
        axes.set_xlabel(f"{level_name(plan)} (log axis)")
        axes.set_ylabel("better (%); losses are below 0")
        axes.set_ylim(limits(summary, [row for rows in lines.values() for row in rows]))
        axes.grid(alpha=0.25)
        legend(axes, labels)
        return svg(figure, "speedup")


def by_row(summary: Summary, rows: Sequence[Row]) -> str:
    """For each row a dot a pair, and the estimate with its interval."""
    plan = summary.plan
    height = 0.75 if len(rows) < 8 else 0.5
    with matplotlib.rc_context(SETTINGS):
        figure, (axes,) = panels_of(1, 0.75 + height * max(1, len(rows)))
        axes.axvline(0, color="#000000", linewidth=1)
        if plan.gate.percent:
            axes.axvspan(-plan.gate.percent, plan.gate.percent, color="#999999", alpha=0.25, linewidth=0)
        for number, row in enumerate(rows):
            y, colour, ratios = len(rows) - 1 - number, VERDICTS.get(row.verdict, OTHER), pair_ratios(row)
            # Dots of equal ratios stand beside each other.
            axes.scatter(ratios, y - 0.2 - 0.05 * (numpy.arange(len(ratios)) % 4), s=13, color=colour, alpha=0.5, linewidths=0)
            if row.bounds:
                axes.plot(row.bounds, [y] * 2, color=colour, linewidth=2.5, solid_capstyle="butt")
            axes.plot([row.better], [y], marker="D", markersize=6.5, color=colour)
            # It stands above, not at the left, so that a long name leaves the dots their room.
            name = shorten(row_name(plan, row) if len(plan.cases) > 1 else row.metric.name, 26)
            name += "" if len(plan.labels) == 2 else f", {shorten(row.side, 14)}"
            name += f", {shorten(row.host or 'all hosts', 16)}" if row.host or row.of_hosts else ""
            axes.text(0.01, y + 0.22, f"{name}: {row.better:+.2f} %", transform=axes.get_yaxis_transform(), color=colour,
                      fontweight="bold", bbox={"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.8})
        axes.set_yticks([])
        axes.set_ylim(-0.55, max(1, len(rows)) - 0.4)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x", alpha=0.25)
        if rows:
            axes.set_xlim(limits(summary, rows))
        else:
            axes.text(0.5, 0.5, "no complete pair", transform=axes.transAxes, ha="center")
        axes.set_xlabel("better (%); losses are left of 0")
        return svg(figure, "speedup-rows")


def distribution(summary: Summary, case: Case) -> Picture:
    """For each side the share of runs that are at most so long, or so high, in the main metric."""
    plan, labels, metric = summary.plan, summary.plan.labels, summary.plan.metrics[case.load][0]
    values, _ = metric_values(plan, summary.whole[summary.whole["case"] == case], metric)
    unit, divisor = shown_unit(metric, values[labels[0]])
    with matplotlib.rc_context(SETTINGS):
        figure, (axes,) = panels_of(1, 3.2)
        for number, label in enumerate(drawn(labels)):
            ordered = numpy.sort(values[label]) / divisor
            if len(ordered):
                axes.step([ordered[0], *ordered], numpy.arange(len(ordered) + 1) * 100 / len(ordered), where="post",
                          label=shorten(label, 40), color=SIDES[number % len(SIDES)], linestyle=STYLES[number % len(STYLES)], linewidth=1.8)
        axes.set_ylim(0, 103)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        # All digits at each mark, no factor in a corner.
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.8g}"))
        axes.set_xlabel(shorten(metric.name, 30) + ("" if unit == "-" else f" ({shorten(unit, 12)})"))
        axes.set_ylabel("runs with at most this value (%)")
        axes.grid(alpha=0.25)
        legend(axes, drawn(labels))
        return Picture("distribution", svg(figure, "distribution"),
                       f"The runs of each side in {metric.name} ({metric.better if metric.better != 'same' else 'neither'} is better)." +
                       which(labels))


def families(metrics: Sequence[Metric]) -> dict[str, dict[float, Metric]]:
    """Metrics that are percentiles of the same thing: by its name, by 100 - percentile (0: the maximum)."""
    found: dict[str, dict[float, Metric]] = {}
    for metric in metrics:
        match = PERCENTILE.fullmatch(metric.name)
        if match:
            found.setdefault(match[1], {})[0 if match[3] else round(100 - float(match[2]), 9)] = metric
    return {name: some for name, some in found.items() if len(some) > 2}


def percentiles(summary: Summary, load: str, name: str, metrics: dict[float, Metric]) -> Picture:
    """For each level of a load the percentiles of a latency by side; the axis of the percentiles is stretched towards 100."""
    plan, cases = summary.plan, [case for case in summary.plan.cases if case.load == load]
    order = sorted(metrics, reverse=True)
    # A step is a factor of ten in what is above the percentile.
    at = [-numpy.log10(rest) if rest else 1 - numpy.log10(min(filter(None, metrics))) for rest in order]
    title = f"{load}-{name}".strip("-")
    with matplotlib.rc_context(SETTINGS):
        figure, panels = panels_of(len(cases), 0.7 + 2.1 * len(cases))
        for axes, case in zip(panels, cases):
            whole = summary.whole[summary.whole["case"] == case]
            for number, label in enumerate(drawn(plan.labels)):
                colour, mine = SIDES[number % len(SIDES)], whole[whole["side"] == label]
                columns = [mine[metrics[rest].column].dropna() for rest in order]
                for x, values in zip(at, columns):
                    axes.scatter([x + 0.04 * number] * len(values), values, s=9, color=colour, alpha=0.35, linewidths=0)
                axes.plot(at, [values.median() for values in columns], color=colour, linestyle=STYLES[number % len(STYLES)], linewidth=1.8,
                          label=shorten(label, 40))
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.set_xticks(at, [f"{100 - rest:g}" if rest else "max" for rest in order])
            axes.grid(alpha=0.25)
            axes.text(0.02, 0.97, case_name(plan, case), transform=axes.transAxes, va="top", fontweight="bold")
            unit = metrics[order[0]].unit
            axes.set_ylabel(shorten(name or "latency", 20) + (f" ({shorten(unit, 12)})" if unit else ""))
        legend(panels[0], drawn(plan.labels))
        panels[-1].set_xlabel("percentile")
        # A file name, and ids of an SVG.
        key = "percentiles-" + re.sub("[^A-Za-z0-9-]", "_", title)
        return Picture(key, svg(figure, key), f"{title}: so many percent of the latencies are at most so long (log axis; less is better). "
                       "Lines: medians of the runs. Dots: one run each." + which(plan.labels))


def blend(busy: Sequence[str], wasted: Sequence[str]) -> numpy.ndarray:
    """The mixed colour of each cell, from the digits of busy.csv."""
    cells = max(map(len, busy), default=0) or 1
    shares = [numpy.array([[int(digit) / 9 for digit in line.ljust(cells, "0")] for line in lines]) for lines in (busy, wasted)]
    unknown = numpy.repeat([[not line] for line in busy], cells, axis=1).astype(float)
    layers = ((shares[0], BUSY), (shares[1], WASTED), (unknown, UNKNOWN), (1 - shares[0] - shares[1] - unknown, NOTHING_WAITS))
    return numpy.clip(sum(share[..., None] * numpy.array(to_rgb(colour)) for share, colour in layers), 0, 1)


def busy_cpus(summary: Summary, case: Case) -> Picture:
    """What each CPU did in the traced run of each side, with a common time axis: a line for each CPU, ordered by LLC."""
    plan, mine = summary.plan, summary.busy[summary.busy["case"] == case]
    traced = [label for label in plan.labels if label in set(mine["side"])]
    labels = drawn(traced)
    panel = min(2.6, max(1.0, 0.03 * mine["cpu"].nunique() + 0.6))
    with matplotlib.rc_context(SETTINGS):
        figure, panels = panels_of(len(labels), 1.1 + (panel + 0.3) * len(labels))
        for axes, label in zip(panels, labels):
            lines: pandas.DataFrame = mine[mine["side"] == label]
            ends = (lines["llc"] != lines["llc"].shift(-1)).to_numpy().nonzero()[0] + 1
            axes.imshow(blend(lines["busy"], lines["wasted"]), aspect="auto", interpolation="none",
                        extent=(0, lines["ns"].iloc[0] / 1e6, len(lines), 0))
            for end in ends[:-1]:
                axes.axhline(end, color="#000000", linewidth=0.8)
            middles = [(start + end) / 2 for start, end in zip([0, *ends], ends)]
            step = -(-len(ends) // 8)
            axes.set_yticks(middles[::step], [f"LLC {number}" for number in range(len(ends))][::step], fontsize=8)
            run = summary.traced[(summary.traced["case"] == case) & (summary.traced["side"] == label)]
            axes.set_title(f"{shorten(label, 26)}: {run['wasted_percent'].median():.2f} % wasted", fontsize=9, loc="left")
        axes.set_xlim(0, mine["ns"].max() / 1e6)
        axes.set_xlabel("time since the start of the run (ms)")
        panels[-1].legend(handles=[Patch(facecolor=colour, edgecolor="#888888", label=text) for colour, text in (
            (BUSY, "busy"), (NOTHING_WAITS, "idle"), (WASTED, "wasted"), (UNKNOWN, "unknown"))],
            loc="upper left", bbox_to_anchor=(-0.14, -0.45 / panel), ncols=4, fontsize=8, frameon=False, columnspacing=1)
        key = f"busy-{case}"
        return Picture(key, svg(figure, re.sub("[^A-Za-z0-9-]", "_", key)),
                       f"The {mine['cpu'].nunique()} CPUs in {case}, a line each; traced runs, which may have less work. Wasted: idle "
                       "while a task waits on a busy CPU of the same LLC. Unknown: no switch in the trace." + which(traced))


def draw(summary: Summary) -> list[Picture]:
    """All pictures, the first of which is the speedup."""
    plan = summary.plan
    latencies = [percentiles(summary, load, name, metrics) for load in plan.loads if any(summary.whole["load"] == load)
                 for name, metrics in families(plan.metrics[load]).items()]
    one = [distribution(summary, plan.cases[0])] if len(plan.cases) == 1 and not latencies and len(summary.whole) else []
    traced = [case for case in plan.cases if case in set(summary.busy["case"])]
    # The first, the last, and one between.
    chosen = [traced[number] for number in sorted({0, len(traced) // 2, len(traced) - 1})] if len(traced) > RASTERS else traced
    return [*speedups(summary), *latencies, *one, *(busy_cpus(summary, case) for case in chosen)]
