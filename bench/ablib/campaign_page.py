# SPDX-License-Identifier: GPL-2.0
"""The page of the campaign, Documentation/results/README.md, and its picture: what they show, of the results of bench/campaign.conf.

A section of the page has the comparisons on the same machine and kernel with the same sides. The verdict counts the rows of those with the
sides `off`, `nine` and `all`, and all else by default. All figures come from runs.csv.
"""

import configparser
import math
import re
from dataclasses import dataclass, field
from typing import Optional

from . import stats
from .plan import Case
from .table import Row, Summary, plural, show_percent

STANDARD = "off,nine,all"
# The axis of the picture ends at so many percent: an arrow and a number stand for what is beyond.
CLIP = 30
# What makes a machine and its kernel other than they are by default: key, and what the page calls it.
CHANGED = {"quantum": "quantum", "append": "kernel parameters"}
WHAT = ("line", "machine", "caches", *CHANGED)


def words(text: str) -> str:
    """A list of sides or bits, as it may stand in the file."""
    return ",".join(re.split("[, \n]+", text.strip()))


def machine_text(facts: dict[str, str]) -> str:
    """What a comparison ran on."""
    sizes = [int(size) for size in facts["machine"].split("x")]
    llcs, nodes = math.prod(sizes[:-2]), sizes[0]
    caches = facts["caches"] if facts["caches"] != "none" else ""
    return (f"Linux {facts['line']}, " if facts["line"] else "") + f"{math.prod(sizes)} CPUs in " + \
        ("one LLC" if llcs == 1 else f"{llcs} LLCs") + f" on {nodes} NUMA nodes" * (nodes > 1) + \
        (f", with caches ({caches})" if caches else ", without caches") + \
        "".join(f", {name} {facts[key]}" for key, name in CHANGED.items() if facts[key])


@dataclass
class Planned:
    """A comparison of bench/campaign.conf. sides: or kernels, if these are the sides. summary: its results with the present series, or nothing. older: it has some of another one."""

    name: str
    title: str
    facts: dict[str, str]
    sides: str
    factorial: str
    summary: Optional[Summary]
    older: bool

    @property
    def machine(self) -> str:
        return machine_text(self.facts)

    @property
    def heading(self) -> str:
        return self.title[:1].upper() + self.title[1:]


@dataclass(frozen=True)
class Found:
    """A row, of a comparison on a machine."""

    one: Planned
    row: Row

    def __str__(self) -> str:
        return f"{show_percent(self.row.better)}: {self.row.metric.name} of [{self.row.case}]({self.one.name}/table.txt), on {self.one.machine}"


@dataclass
class Count:
    """Rows of a side: how many are significant, and the ends of these."""

    rows: list[Found]

    def sure(self, sign: int) -> list[Found]:
        return sorted((some for some in self.rows if some.row.found.p < stats.ALPHA and some.row.better * sign > 0),
                      key=lambda some: -some.row.better * sign)

    @property
    def gains(self) -> list[Found]:
        """The largest first."""
        return self.sure(1)

    @property
    def losses(self) -> list[Found]:
        return self.sure(-1)

    @property
    def ends(self) -> list[float]:
        """The lowest and the highest that is significant."""
        better = [some.row.better for some in (*self.gains, *self.losses)]
        return [min(better), max(better)] if better else []

    @property
    def text(self) -> str:
        return counts(len(self.gains), len(self.losses))

    @property
    def corrected(self) -> str:
        """The same with q."""
        better = [some.row.better for some in self.rows if some.row.q < stats.ALPHA]
        return counts(sum(value > 0 for value in better), sum(value < 0 for value in better))

    @property
    def kind(self) -> str:
        return {(True, False): "gains", (False, True): "losses", (True, True): "both"}.get((bool(self.gains), bool(self.losses)), "neither")


def counts(gains: int, losses: int) -> str:
    return f"{plural(gains, 'gain')}, {losses} loss{'es' * (losses != 1)}"


@dataclass
class Section:
    """Comparisons on the same machine with the same sides."""

    heading: str
    members: list[Planned] = field(default_factory=list)

    @property
    def sides(self) -> list[str]:
        return self.members[0].summary.plan.labels

    @property
    def lines(self) -> list[tuple[str, Case, str, list[Optional[Row]]]]:
        """(comparison, case, metric, a row for each side but the first)."""
        return [(one.name, case, metric.name + ", must not change" * (metric.better == "same"),
                 [next((row for row in one.summary.rows if (row.case, row.metric, row.side) == (case, metric, side) and row.found), None)
                  for side in self.sides[1:]])
                for one in self.members for case in one.summary.plan.cases for metric in one.summary.plan.metrics[case.load]]


class Page:
    """What the template of the page gets. SUMMARIES: by name the results of the present series; OLDER: the names of others."""

    def __init__(self, conf: configparser.ConfigParser, summaries: dict[str, Summary], older: set[str]):
        self.planned = []
        for name in conf.sections():
            values = {key: conf[name].get(key) or "" for key in (*WHAT, "title", "sides", "factorial", "kernels")}
            facts = {key: values[key] for key in WHAT}
            self.planned.append(Planned(name, " ".join(values["title"].split()), facts, words(values["sides"] or values["kernels"]), words(values["factorial"]),
                                        summaries.get(name), name in older))
        self.measured = [one for one in self.planned if one.summary]
        self.standard = [one for one in self.measured if one.sides == STANDARD and not any(one.facts[key] for key in CHANGED)]
        self.factorial = [one for one in self.measured if one.factorial]
        self.sides = STANDARD.split(",")[1:]

    @property
    def sections(self) -> list[Section]:
        """A section for each machine, then one for each comparison with other sides."""
        made: dict[str, Section] = {}
        for one in self.standard:
            made.setdefault(one.machine, Section(one.machine)).members.append(one)
        return [*made.values(), *(Section(one.heading, [one]) for one in self.measured
                                  if one not in self.standard and not one.factorial)]

    @property
    def missing(self) -> dict[str, list[Planned]]:
        """What is not measured yet, by machine."""
        made: dict[str, list[Planned]] = {}
        for one in self.planned:
            if not one.summary:
                made.setdefault(one.machine, []).append(one)
        return made

    def found(self, side: str) -> list[Found]:
        return [Found(one, row) for one in self.standard for row in one.summary.rows if row.side == side and row.found]

    def count(self, side: str, load: str = "") -> Count:
        return Count([some for some in self.found(side) if load in ("", some.row.case.load) and some.row.metric.better != "same"])

    def fixed(self, side: str) -> list[Found]:
        """The rows of what must not change."""
        return [some for some in self.found(side) if some.row.metric.better == "same"]

    @property
    def loads(self) -> list[str]:
        return list(dict.fromkeys(load for one in self.standard for load in one.summary.plan.loads))

    def of_kind(self, side: str, kind: str) -> str:
        """The loads in which a side has gains alone, losses alone, both or neither."""
        return ", ".join(f"`{load}`" for load in self.loads if self.count(side, load).rows and self.count(side, load).kind == kind)

    @property
    def about(self) -> list[tuple[str, str, str]]:
        """The loads: (name, what it is, what its levels count)."""
        plans = [one.summary.plan for one in self.measured]
        return sorted({(load, f"`{plan.get('command')}`" if load == "command" else plan.get(f"about:{load}"), plan.get(f"level_name:{load}"))
                       for plan in plans for load in plan.loads})

    @property
    def picture(self) -> "Picture":
        """The machine that comes first, in a panel for each kind of caches."""
        panels: dict[str, list[Row]] = {}
        first = self.standard[0] if self.standard else None
        for one in self.standard:
            if {**one.facts, "caches": ""} == {**first.facts, "caches": ""}:
                panels.setdefault(one.machine.partition(", ")[2], []).extend(pictured(one.summary))
        return Picture(first.machine.partition(", ")[0] if first else "", self.sides, {title: of_most_pairs(rows) for title, rows in panels.items()})


def pictured(summary: Summary) -> list[Row]:
    """The rows in the picture: of each load the first metric that may change, and rates."""
    first = {load: next((metric for metric in metrics if metric.better != "same"), None) for load, metrics in summary.plan.metrics.items()}
    return [row for row in summary.rows if row.found and (row.metric == first[row.case.load] or row.metric.better == "more")]


def of_most_pairs(rows: list[Row]) -> list[Row]:
    """One row of each case, metric and side: if several comparisons have it, that of most pairs."""
    found: dict[tuple, Row] = {}
    for row in rows:
        key = row.case, row.metric, row.side
        if key not in found or len(row.values) > len(found[key].values):
            found[key] = row
    return list(found.values())


@dataclass(frozen=True)
class Mark:
    """An estimate with its interval. text: instead of an estimate beyond the axis."""

    x: float
    y: float
    low: float
    high: float
    sure: bool
    text: str

    @property
    def left(self) -> bool:
        return self.text.startswith("-")


@dataclass
class Picture:
    """The places of everything in the picture, for its template. panels: the rows by title. Lengths are pixels."""

    machine: str
    sides: list[str]
    panels: dict[str, list[Row]]

    # A narrow one, so that a telephone shows it without making the text too small.
    width, left, gap, top, step = 440, 154, 10, 46, 14

    @property
    def lines(self) -> dict[tuple[str, str, str], float]:
        """By load, metric and level the middle of the line."""
        some: dict[tuple[str, str], set[str]] = {}
        for row in (row for rows in self.panels.values() for row in rows):
            some.setdefault((row.case.load, row.metric.name), set()).add(row.case.level)
        keys = [(*key, level) for key, levels in some.items()
                for level in sorted(levels, key=lambda level: (level.endswith("x"), float(level.rstrip("x") or 0)))]
        return {key: self.top + self.step * (number + 0.5) for number, key in enumerate(keys)}

    @property
    def bottom(self) -> int:
        return self.top + self.step * max(2, len(self.lines))

    @property
    def groups(self) -> list[tuple[str, float]]:
        """What stands at the left of the levels, at the first of them; with the metric, if the load has several."""
        first: dict[tuple[str, str], float] = {}
        for (load, metric, _), y in self.lines.items():
            first.setdefault((load, metric), y)
        loads = [load for load, _ in first]
        return [(f"{load} {metric}" if loads.count(load) > 1 else load, y) for (load, metric), y in first.items()]

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the axis, in %."""
        seen = [end for rows in self.panels.values() for row in rows for end in (row.better, *(row.bounds or ()))]
        return max(-CLIP, min([-5.0, *seen])), min(CLIP, max([5.0, *seen]))

    @property
    def ticks(self) -> list[int]:
        low, high = self.ends
        step = 10 if high - low <= 40 else 20
        return [value for value in range(-CLIP - CLIP % step, CLIP + 1, step) if low <= value <= high]

    @property
    def panel_width(self) -> float:
        number = max(1, len(self.panels))
        return (self.width - 4 - self.left - self.gap * (number - 1)) / number

    def start(self, panel: int) -> float:
        return self.left + panel * (self.panel_width + self.gap)

    def x(self, panel: int, percent: float) -> float:
        """The place of a figure. There is room beyond the ends."""
        low, high = self.ends
        share = (min(max(percent, low), high) - low) / (high - low)
        return self.start(panel) + 5 + share * (self.panel_width - 10)

    def marks(self, panel: int, side: str) -> list[Mark]:
        made, (low, high) = [], self.ends
        for row in list(self.panels.values())[panel]:
            if row.side == side:
                y = self.lines[row.case.load, row.metric.name, row.case.level] + self.step * 0.4 * (self.sides.index(side) - 0.5)
                made.append(Mark(self.x(panel, row.better), y, *(self.x(panel, end) for end in row.bounds or [row.better] * 2),
                                 row.found.p < stats.ALPHA, "" if low <= row.better <= high else f"{row.better:+.0f}"))
        return made
