# SPDX-License-Identifier: GPL-2.0
"""DIR/plan: what a comparison is. bench/ab writes it before the first run, as lines `KEY VALUE`.

    format 2
    case NAME                a line for each case, in order: LOAD or LOAD-LEVEL; or `command` alone
    command COMMAND          as a shell would read it, for the case `command`
    sides A=FEATURE[+FEATURE...],B=...    the first side is the baseline
    bits A,B                 the features of the series; each side names all of them, or none
    factorial A,B            of these, the sides are all combinations that differ
    kernels A=IMAGE,B=IMAGE  if the sides are kernels
    metric:LOAD SPEC         a line for each metric of a load; the first is its main metric
    level_name:LOAD TEXT     what the levels of a load count
    about:LOAD TEXT          what the load is
    loops N, scale N         how much work the loads do
    trace_loops N            loops of the traced pairs (pair 0), if there are any
    runs N                   planned pairs of each case
    seeds development        or validation or published
    order_seed N             seed of the order of the sides
    hosts A,B                the hosts that are measured, if it is not this one
    kernel_HOST KERNEL       the kernel of a host
    machine SxCxT            or here
    gate GATE                1% or 1%,2ms; no line without a gate
    hash_kernel_A HASH       tells kernels apart
    published NAME           the published comparison that this one repeats
    differs INPUT: WHAT      a line for each input that is not that of the published one

A level is a number, or a multiple of the CPUs such as 0.5x. SPEC is `time` or NAME=REGEX[,UNIT][,more|less|same]: what is better (default:
less); same: it must not change. Other keys are shown in the page.
"""

import math
import os
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

FORMAT = "2"
SEEDS = {"development": 1000, "validation": 500000, "published": 1000000}
LEVEL = r"[1-9][0-9]*|(?:0|[1-9][0-9]*)(?:[.][0-9]+)?x"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
UNIT = re.compile(r"[A-Za-z%µ][A-Za-z0-9%µ/_.^-]*")
TIME_UNITS = {"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}


class AbError(Exception):
    """One line that names the file and the way out."""


@dataclass(frozen=True)
class Metric:
    """A metric. `time` is measured by the collector's clock; others are the first group of a regex in the output."""

    name: str
    regex: str = ""
    unit: str = ""
    better: str = "less"

    @classmethod
    def parse(cls, spec: str) -> "Metric":
        """From `time` or NAME=REGEX[,UNIT][,more|less|same]."""
        if spec in ("time", "time,less"):
            return cls("time", unit="ns")
        name, equals, regex = spec.partition("=")
        if not equals or not NAME.fullmatch(name) or name == "time":
            raise AbError(f"metric '{spec}': not `time` or NAME=REGEX[,UNIT][,more|less|same]")
        direction, unit = "less", ""
        # The regex ends at the first comma before which it is one with a group: (a{1,3}),s has the unit s.
        words = regex.split(",")
        cut = next((n for n in range(1, len(words)) if groups(",".join(words[:n]))), len(words))
        regex, rest = ",".join(words[:cut]), words[cut:]
        if rest and rest[-1] in ("more", "less", "same"):
            direction = rest.pop()
        if rest and UNIT.fullmatch(rest[0]):
            unit = rest.pop(0)
        if rest:
            raise AbError(f"metric '{spec}': '{','.join(rest)}' is neither a unit nor more, less or same; in REGEX, write a comma as [,]")
        found = groups(regex)
        if found is None:
            raise AbError(f"metric '{spec}': '{regex}' is not a regular expression")
        if not found:
            raise AbError(f"metric '{spec}': '{regex}' has no group; put the number in parentheses: NAME='score: ([0-9.]+)'")
        return cls(name, regex, unit, direction)

    def value(self, text: str) -> Optional[float]:
        """The number in a run's output; None if there is none."""
        match = re.search(self.regex, text, re.MULTILINE)
        try:
            number = float(match.group(1)) if match else math.nan
        except (TypeError, ValueError):
            return None
        return number if math.isfinite(number) else None

    @property
    def more(self) -> bool:
        """Is the ratio side/baseline? Of one that must not change, too: its figure is the change."""
        return self.better != "less"

    @property
    def column(self) -> str:
        """Its column in runs.csv."""
        return "time_ns" if self.name == "time" else "metric:" + self.name


def groups(regex: str) -> Optional[int]:
    """How many groups a regular expression has; None if it is none."""
    try:
        return re.compile(regex, re.MULTILINE).groups
    except re.error:
        return None


@dataclass(frozen=True)
class Gate:
    """Bounds that a difference must exceed to count: relative in %, absolute in UNIT."""

    percent: float = 0
    absolute: float = 0
    unit: str = ""

    @classmethod
    def parse(cls, text: str) -> "Gate":
        """From 1% or 1%,2ms; '' is no gate."""
        if text in ("", "none", "-"):
            return cls()
        match = re.fullmatch(rf"([0-9]+\.?[0-9]*|\.[0-9]+)%(?:,([0-9]+\.?[0-9]*|\.[0-9]+)({UNIT.pattern}))?", text)
        if not match:
            raise AbError(f"gate '{text}': not PERCENT% or PERCENT%,NUMBERUNIT, such as 1% or 1%,2ms")
        return cls(float(match[1]), float(match[2] or 0), match[3] or "")

    def bound(self, metric: Metric) -> Optional[float]:
        """The absolute bound in the metric's own unit; None if there is none for this metric."""
        if not self.unit:
            return None
        if self.unit == metric.unit:
            return self.absolute
        if self.unit in TIME_UNITS and metric.unit in TIME_UNITS:
            return self.absolute * TIME_UNITS[self.unit] / TIME_UNITS[metric.unit]
        return None

    def __str__(self) -> str:
        if not self.percent and not self.absolute:
            return "none"
        return f"{self.percent:g}%" + (f",{self.absolute:g}{self.unit}" if self.unit else "")


@dataclass(frozen=True, order=True)
class Case:
    """A load, and how much of it; the level may be empty."""

    load: str
    level: str = ""

    @classmethod
    def parse(cls, name: str) -> "Case":
        match = re.fullmatch(rf"([A-Za-z0-9_]+(?:-[A-Za-z0-9_]+)*?)(?:-({LEVEL}))?", name)
        if not match:
            raise AbError(f"case '{name}': not LOAD or LOAD-LEVEL")
        return cls(match[1], match[2] or "")

    def __str__(self) -> str:
        return self.load + (f"-{self.level}" if self.level else "")


@dataclass
class Plan:
    """A comparison. sides: label -> features ('' for none); kernels: label -> image; metrics: by load."""

    path: Path
    lines: dict[str, list[str]] = field(default_factory=dict)
    sides: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)
    cases: list[Case] = field(default_factory=list)
    metrics: dict[str, list[Metric]] = field(default_factory=dict)
    gate: Gate = Gate()
    runs: int = 0

    def get(self, key: str, default: str = "") -> str:
        return self.lines.get(key, [default])[0]

    def words(self, key: str) -> list[str]:
        """A line of words with commas between them; empty if there is no such line."""
        return [word for word in self.get(key).split(",") if word]

    @property
    def labels(self) -> list[str]:
        return list(self.sides)

    @property
    def factorial(self) -> list[str]:
        """The bits of which the sides are combinations; empty if they are not."""
        return self.words("factorial")

    @property
    def combinations(self) -> dict[frozenset[str], str]:
        """The sides of a factorial comparison: the bits that are on -> label."""
        return {frozenset(bit for bit in self.factorial if bit in features.split("+")): label for label, features in self.sides.items()}

    @property
    def simulated(self) -> bool:
        return self.get("machine", "here") != "here"

    def seed(self, pair: int) -> Optional[int]:
        """The seed of a simulated machine of this pair."""
        return SEEDS[self.get("seeds", "development")] + pair if self.simulated else None

    @property
    def hosts(self) -> list[str]:
        """The hosts that are measured; empty if it is this one, or simulated machines."""
        return self.words("hosts")

    @property
    def loads(self) -> list[str]:
        return list(dict.fromkeys(case.load for case in self.cases))

    @property
    def planned(self) -> int:
        """Pairs of all cases and hosts."""
        return self.runs * len(self.cases) * max(1, len(self.hosts))

    def same_sides(self) -> list[str]:
        """The labels that are made of the same things as the baseline."""
        made = {label: (frozenset(features.split("+")), self.kernel_of(label)) for label, features in self.sides.items()}
        return [label for label in self.labels[1:] if made[label] == made[self.labels[0]]]

    def kernel_of(self, label: str) -> str:
        """What tells a side's kernel from another: its hash, or else its path."""
        return self.get(f"hash_kernel_{label}", self.kernels.get(label, ""))


def read_text(path: Path, way_out: str) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        raise AbError(f"{path}: cannot read it: {error.strerror}; {way_out}") from error


def labelled(path: Path, key: str, text: str) -> dict[str, str]:
    """From A=...,B=...; a label alone is a feature of that name. Several lines are joined by a comma."""
    made: dict[str, str] = {}
    for word in text.split(","):
        word = word.strip()
        if not word:
            continue
        label, equals, what = word.partition("=")
        if not label or label in made:
            raise AbError(f"{path}: the line '{key}' is not LABEL=...,LABEL=...; restore the file, or use another --out")
        made[label] = what if equals else word
    return made


def read_plan(directory: Path) -> Plan:
    """DIR/plan."""
    path = Path(directory) / "plan"
    text = read_text(path, "name a directory that bench/ab has written")
    plan = Plan(path)
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key:
            plan.lines.setdefault(key, []).append(value)
    if plan.get("format") != FORMAT:
        raise AbError(f"{path}: format '{plan.get('format')}', not {FORMAT}; use the version of bench/ab that wrote it, or another --out")
    plan.kernels = labelled(path, "kernels", ",".join(plan.lines.get("kernels", [])))
    plan.sides = labelled(path, "sides", ",".join(plan.lines.get("sides", []))) or dict.fromkeys(plan.kernels, "")
    plan.sides = {label: "" if what == "-" else what for label, what in plan.sides.items()}
    try:
        plan.cases = [Case.parse(name) for name in plan.lines.get("case", [])]
        plan.metrics = {load: [Metric.parse(spec) for spec in plan.lines.get(f"metric:{load}", ["time"])] for load in plan.loads}
        plan.gate = Gate.parse(plan.get("gate"))
        plan.runs = int(plan.get("runs", "0"))
    except (AbError, ValueError) as error:
        raise AbError(f"{path}: {error}; restore the file, or use another --out") from error
    if not plan.cases or len(set(plan.cases)) < len(plan.cases) or ("command" in plan.loads and plan.cases != [Case("command")]):
        raise AbError(f"{path}: no case, a case twice, or cases beside `command`; restore the file, or use another --out")
    if len(plan.sides) < 2:
        raise AbError(f"{path}: fewer than two sides; restore the file, or use another --out")
    if plan.factorial and not {frozenset(), frozenset(plan.factorial)} <= plan.combinations.keys() or \
            plan.factorial and len(plan.combinations) < len(plan.sides):
        raise AbError(f"{path}: the sides are not combinations of the bits in the line 'factorial'; restore the file, or use another --out")
    if plan.get("seeds", "development") not in SEEDS:
        raise AbError(f"{path}: seeds '{plan.get('seeds')}', not one of {', '.join(SEEDS)}; restore the file, or use another --out")
    return plan


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file as a whole or not at all."""
    name = ""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError as error:
        if name and os.path.exists(name):
            os.unlink(name)
        raise AbError(f"{path}: cannot write it: {error.strerror}; correct this, then run the same command again") from error
