# SPDX-License-Identifier: GPL-2.0
"""The loads of bench/ab --load, as bench/collect/collect.sh --list tells them, and the cases that the words of --load stand for."""

import functools
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterable

from .plan import LEVEL, AbError, Case

COLLECT = Path(__file__).resolve().parents[1] / "collect"
# Programs of the simulated machines, of all loads but these: one image for all, as another takes longer to make than to unpack.
IN_GUEST = ("hackbench", "load", "")
GUEST_ALSO = "linux-perf=perf,dbench=tbench+tbench_srv,sysbench,stress-ng"


@dataclass
class Load:
    """A load. program: the one that it needs, of the package; `load` is load.c. amount: does --loops say how much it does, or --scale?"""

    name: str
    about: str = ""
    program: str = ""
    package: str = ""
    here: bool = True
    levels: list[str] = field(default_factory=list)
    level_name: str = ""
    amount: str = "scale"
    parse: list[str] = field(default_factory=list)
    # Nobody has named it, only `all`.
    optional: bool = True

    @property
    def guest_also(self) -> str:
        return "" if self.program in IN_GUEST else GUEST_ALSO

    @property
    def needed(self) -> str:
        """The program that a real machine must have in PATH."""
        return "cc" if self.program == "load" else self.program

    @property
    def missing(self) -> str:
        """What this machine lacks for it."""
        return "" if self.here else "cc, to compile load.c" if self.program == "load" else f"{self.program} (package {self.package})"


@functools.cache
def listed() -> str:
    """What collect.sh --list prints."""
    done = subprocess.run(["sh", COLLECT / "collect.sh", "--list"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise AbError((done.stderr.strip().splitlines() or ["collect.sh --list failed"])[-1].replace("collect: error: ", ""))
    return done.stdout


def read_loads() -> dict[str, Load]:
    """All loads, by name."""
    loads: dict[str, Load] = {}
    for line in listed().splitlines():
        key, _, value = line.partition(" ")
        if key == "load":
            load = loads[value] = Load(value)
        elif key == "needs":
            load.program, load.package = value.split()
        elif key == "parse":
            load.parse.append(value)
        elif key == "here":
            load.here = value == "yes"
        elif key == "levels":
            load.levels = value.split()
        elif key in ("about", "level_name", "amount"):
            setattr(load, key, value)
    return loads


def case_of(word: str, loads: dict[str, Load]) -> list[Case]:
    """The cases of LOAD or LOAD-LEVEL."""
    if word in loads:
        return [Case(word, level) for level in loads[word].levels or [""]]
    name = max((name for name in loads if word.startswith(name + "-")), key=len, default="")
    level = word[len(name) + 1:]
    if not name:
        raise AbError(f"--load {word}: no such load; --list shows all")
    if not loads[name].levels:
        raise AbError(f"--load {word}: {name} has no levels")
    if not re.fullmatch(LEVEL, level):
        raise AbError(f"--load {word}: '{level}' is not a number above 0, or a multiple of the number of CPUs such as 0.5x")
    return [Case(name, level)]


def cases_of(words: Iterable[str], loads: dict[str, Load]) -> list[Case]:
    """Each case once, in order. `all`: all loads but hackbench, which are left out where they cannot run."""
    made: dict[Case, None] = {}
    for word in words:
        named = [name for name, load in loads.items() if load.amount == "scale"] if word == "all" else [word]
        for case in (case for name in named for case in case_of(name, loads)):
            made[case] = None
            loads[case.load].optional &= word == "all"
    return list(made)


def list_text(loads: dict[str, Load]) -> str:
    """What --list prints."""
    lines = []
    for load in loads.values():
        lines.append(f"{load.name}: {load.about}")
        if load.levels:
            lines.append(f"    {load.level_name or 'levels'}: {' '.join(load.levels)}")
        if not load.here:
            lines.append(f"    missing on this machine: {load.missing}; simulated machines have it")
    return "\n".join(lines) + "\n"
