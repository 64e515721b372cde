# SPDX-License-Identifier: GPL-2.0
"""The pictures of a comparison, as SVG. They are narrow: a telephone shows them without making the text too small.

Colours are Okabe and Ito's, which colour-blind people can tell apart.
"""

import io
import re
from typing import Sequence

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import FuncFormatter, MaxNLocator  # noqa: E402

from . import stats  # noqa: E402
from .table import Row, Summary, shown_unit  # noqa: E402

WIDTH = 4.4
SIDES = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
STYLES = ("-", "--", "-.", ":")
VERDICTS = {"GAIN": "#0072B2", "LOSS": "#D55E00"}
OTHER = "#555555"
SETTINGS = {"font.size": 9, "font.family": "DejaVu Sans", "axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "path",
            # A metric's name is text, whatever is in it.
            "text.parse_math": False}


def svg(figure: Figure, name: str) -> str:
    """The same picture is the same text: no date, no random names. NAME keeps the names of two pictures in one page apart."""
    file = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    text = file.getvalue()
    text = text[text.index("<svg"):]
    # matplotlib's ids of groups and glyphs are the same in each picture.
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)


def shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length - 1] + "…"


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


def speedup(summary: Summary) -> str:
    """For each metric a dot a pair, and the estimate with its interval."""
    rows = [row for row in summary.shown_rows if row.found]
    with matplotlib.rc_context(SETTINGS):
        figure, axes = plt.subplots(figsize=(WIDTH, 0.75 + 0.75 * max(1, len(rows))), layout="constrained")
        axes.axvline(0, color="#000000", linewidth=1)
        if summary.plan.gate.percent:
            axes.axvspan(-summary.plan.gate.percent, summary.plan.gate.percent, color="#999999", alpha=0.25, linewidth=0)
        for number, row in enumerate(rows):
            y, colour, ratios = len(rows) - 1 - number, VERDICTS.get(row.verdict, OTHER), pair_ratios(row)
            # Dots of equal ratios stand beside each other.
            axes.scatter(ratios, y - 0.2 - 0.05 * (numpy.arange(len(ratios)) % 4), s=13, color=colour, alpha=0.5, linewidths=0)
            if row.bounds:
                axes.plot(row.bounds, [y] * 2, color=colour, linewidth=2.5, solid_capstyle="butt")
            axes.plot([row.better], [y], marker="D", markersize=6.5, color=colour)
            # It stands above, not at the left, so that a long name leaves the dots their room.
            name = shorten(row.metric.name, 20) + ("" if len(summary.plan.labels) == 2 else f", {shorten(row.side, 14)}")
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
        return svg(figure, "speedup")


def distribution(summary: Summary) -> str:
    """For each side the share of runs that are at most so long, or so high, in the deciding metric."""
    metric, labels = summary.deciding, summary.plan.labels
    values = {label: summary.values[label, metric.column] for label in labels}
    unit, divisor = shown_unit(metric, values[labels[0]])
    with matplotlib.rc_context(SETTINGS):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.2), layout="constrained")
        for number, label in enumerate(labels):
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
        if any(map(len, values.values())):
            short = sum(map(len, labels)) <= 30
            axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, ncol=len(labels) if short else 1)
        else:
            axes.text(0.5, 0.5, "no complete pair", transform=axes.transAxes, ha="center")
        return svg(figure, "distribution")
