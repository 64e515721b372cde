# SPDX-License-Identifier: GPL-2.0
"""A published comparison that is measured again. The same inputs give the same figures, to the nanosecond: the plan of the new runs says
which inputs differ, in lines `differs INPUT: ...`, and the runs are compared column by column.

The version of the project is an input, too, as the guest is told it. It is not compared: bench/ab tells the guest that of the published runs.
"""

import csv
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable, Optional

from . import fold, hosts
from .plan import FORMAT, AbError, Case, Plan, read_plan, read_text

RESULTS = "Documentation/results"
# Lines of a plan that are no input. `runs`: a part of the pairs may be measured again.
FREE = ("format", "project", "date", "repeat", "published", "differs", "runs")
NAMES = {"guest": "guest image", "qemu": "QEMU", "hash_qemu": "QEMU's binary"}
# Compared only if the published plan has it: older ones do not.
LATER = ("QEMU's binary",)
# A longer value is cut.
SHOWN = 80
# What is no line of the plan, but makes the machine and what runs on it.
FILES = (*hosts.FILES, "bench/ablib/machines.py", "bench/collect")


def published_plan(top: Path, name: str) -> Plan:
    """The plan of a published comparison."""
    place = top / RESULTS / name
    if "/" in name or not (place / "plan").is_file():
        raise AbError(f"{name}: not published: there is no file {place}/plan; bench/campaign --list shows what is")
    if not read_text(place / "plan", "restore the file").startswith(f"format {FORMAT}\n"):
        raise AbError(f"{name}: of version 1.0, whose results have another format; check out version 1.0 to measure it again")
    return read_plan(place)


def inputs(lines: dict[str, list[str]]) -> dict[str, str]:
    """By name the inputs in the lines of a plan."""
    kernels = [key for key in lines if key.startswith("hash_kernel_")]
    made = {}
    for key, values in lines.items():
        if key in FREE or key.startswith(("about:", "level_name:")):
            continue
        name = NAMES.get(key, key)
        if key in kernels:
            name = "kernel image" + f" {key.removeprefix('hash_kernel_')}" * (len(kernels) > 1)
        made[name] = " ".join(values)
    return made


def plan_lines(published: Plan, lines: Iterable[str]) -> list[str]:
    """For the new plan, which has LINES: what is repeated, and which inputs differ."""
    new: dict[str, list[str]] = {}
    for line in lines:
        key, _, value = line.partition(" ")
        new.setdefault(key, []).append(value)
    theirs, ours = inputs(published.lines), inputs(new)

    def shown(value: str) -> str:
        return (value if len(value) <= SHOWN else value[:SHOWN - 3] + "...") or "none"

    return [f"published {published.path.parent.name}"] + [
        f"differs {name}: {shown(theirs.get(name, ''))} published, {shown(ours.get(name, ''))} here"
        for name in dict.fromkeys([*theirs, *ours])
        if theirs.get(name, "") != ours.get(name, "") and (name in theirs or name not in LATER)]


def measured(path: Path) -> dict[tuple[str, ...], dict[str, str]]:
    """By what tells runs apart, the columns of runs.csv that do not depend on the host."""
    rows = list(csv.DictReader(read_text(path, "restore the file").splitlines()))
    if not rows or any(row.get("format") != FORMAT or None in row or None in row.values() for row in rows):
        raise AbError(f"{path}: not a whole runs.csv of format {FORMAT}; restore the file")
    return {tuple(row[column] for column in fold.RUN): {key: value for key, value in row.items() if key not in fold.OF_HOST} for row in rows}


@dataclass
class Outcome:
    """How many runs were compared, how many differ, and the first that does."""

    runs: int
    differ: int
    first: str


def compare(published: Plan, directory: Path) -> Outcome:
    """The runs in DIRECTORY and the published ones of the same pairs."""
    pairs = read_plan(directory).runs
    old, new = (measured(path / "runs.csv") for path in (published.path.parent, directory))
    old = {run: row for run, row in old.items() if int(run[fold.RUN.index("pair")]) <= pairs}
    differ, first = 0, ""
    for run in dict.fromkeys([*old, *new]):
        theirs, ours = old.get(run), new.get(run)
        # A column is there if a run has a value in it.
        columns = [key for key in dict.fromkeys([*(theirs or {}), *(ours or {})]) if (theirs or {}).get(key, "") != (ours or {}).get(key, "")]
        if not columns:
            continue
        differ += 1
        load, level, pair, side = run
        what = "only published" if not ours else "not published" if not theirs else \
            f"{columns[0]} is {theirs.get(columns[0]) or 'empty'} published, {ours.get(columns[0]) or 'empty'} here"
        first = first or f"{Case(load, level)}, pair {pair}, side {side}: {what}"
    return Outcome(len(old), differ, first)


def changed_files(top: Path, commit: str) -> Optional[list[str]]:
    """The files that make the machine and have changed since a commit; None if nobody can say."""
    done = subprocess.run(["git", "-C", str(top), "diff", "--name-only", commit, "--", *FILES], capture_output=True, text=True, check=False)
    return done.stdout.split() if done.returncode == 0 else None


def report(top: Path, published: Plan, directory: Path) -> tuple[list[str], bool]:
    """What a person reads of the comparison, and whether all is the same."""
    found, differs = compare(published, directory), read_plan(directory).lines.get("differs", [])
    if not found.differ:
        return [*differs, f"{found.runs} of {found.runs} runs are the same to the digit"], True
    said = f"{found.differ} of {found.runs} runs differ. The first: {found.first}. "
    if differs:
        return [*differs, said + "So the figures are another sample"], False
    commit = published.get("project")
    files = changed_files(top, commit)
    if files:
        why = f"Since {commit}, these files have changed: {' '.join(files)}. If they do not explain it, it is a bug: please report it"
    else:
        why = "This is a bug: please report it" + f" (commit {commit} is not in this repository)" * (files is None)
    return ["all inputs are the same, but " + said + why], False
