# SPDX-License-Identifier: GPL-2.0
"""Published results: Documentation/results, and the texts that have figures of them.

A result is a directory there. Its title is in bench/campaign.conf, or in Documentation/results/older.conf, which has the comparisons
that are not, or no more, in bench/campaign.conf. Its plan has the commit (`project`), the date and the command; for results of version 1.0,
older.conf has them. The templates in bench/campaign.d get their figures from Figures, which reads runs.csv; of version 1.0, whose
runs.csv has another format, table.txt.
"""

import configparser
import functools
import math
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import jinja2
import numpy

from . import campaign_page, stats, table
from .plan import FORMAT, AbError

# Directories of Documentation/results that are no comparisons of bench/ab.
OTHERS = {"cost", "irqsoff", "masks", "verification", "caches"}
CONF = "bench/campaign.conf"
OLDER = "Documentation/results/older.conf"
TEMPLATES = "bench/campaign.d"
# The sentences with figures that the messages of the patches must have.
MESSAGES = "Documentation/results/messages.txt"
# By template the files with its text. It stands between two lines, the first and the last of the text; a file of WHOLE is all of it.
TARGETS = {"INDEX.md.j2": ["Documentation/results/INDEX.md"], "page.md.j2": ["Documentation/results/README.md"],
           "campaign.svg.j2": ["Documentation/results/campaign.svg"], "readme-table.md.j2": ["README.md"], "readme-costs.md.j2": ["README.md"],
           "readme-alternatives.md.j2": ["README.md"],
           "cover-letter.txt.j2": ["Documentation/cover-letter.txt", "patches/cover-letter.txt"],
           "features.rst.j2": ["Documentation/why-wakees-wait.rst"], "shares.rst.j2": ["Documentation/why-wakees-wait.rst"],
           "messages.txt.j2": [MESSAGES]}
WHOLE = ("INDEX.md.j2", "page.md.j2", "campaign.svg.j2", "messages.txt.j2")
# A string, a character or a comment of C.
TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|/\*.*?(?:\*/|\Z)|//[^\n]*', re.S)
HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


def read_conf(path: Path) -> configparser.ConfigParser:
    """A file of sections; what is wrong in one line."""
    conf = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",), empty_lines_in_values=False)
    conf.optionxform = str
    try:
        conf.read_string(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise AbError(f"{path}: cannot read it: {error.strerror}; restore the file") from error
    except (configparser.Error, UnicodeDecodeError) as error:
        raise AbError(f"{path}: {' '.join(str(error).split())}") from error
    return conf


def uncommented(lines: list[str]) -> list[str]:
    """The lines of one side of a hunk without the comments of C, and as many of them."""
    text = "\n".join(lines)
    # A hunk may begin within a comment, or be within one.
    head, end, _ = text.partition("*/")
    if "/*" not in head and (end or all(line.lstrip().startswith("*") for line in lines if line.strip())):
        text = "\n" * head.count("\n") + text[len(head) + len(end):]
    return TOKEN.sub(lambda found: found[0] if found[0][0] in "\"'" else "\n" * found[0].count("\n"), text).split("\n")


def code_of(patch: str) -> list[tuple[str, str, str]]:
    """What counts in a patch: (file, + or -, line) of each line that it adds or removes, in order.

    Not counted: the message, file names and line numbers of hunks, context, comments of C, blank lines, spaces at the ends of lines
    and how many stand within, and all files in Documentation/. So a line that moves counts, and so does a change that goes to
    another patch of the series.
    """
    code, lines, file = [], iter(patch.split("\n")), ""
    for line in lines:
        if line.startswith("diff --git "):
            file = line.split(" b/")[-1]
        match = HUNK.match(line)
        if not match:
            continue
        left, hunk = [int(count or 1) for count in match.groups()], []
        while left[0] > 0 or left[1] > 0:
            line = next(lines, "") or " "
            left = [left[0] - (line[0] in " -"), left[1] - (line[0] in " +")]
            hunk.append(line)
            if line[0] not in " +-\\":
                raise AbError(f"a hunk of {file} is incomplete")
        if file.startswith("Documentation/"):
            continue
        for mark in "-+":
            side = [line for line in hunk if line[0] in (" ", mark)]
            bare = uncommented([line[1:] for line in side])
            code += [(file, mark, " ".join(text.split())) for line, text in zip(side, bare) if line[0] == mark and text.strip()]
    return code


class Series:
    """Has the series changed since a commit?"""

    def __init__(self, top: Path):
        self.top = top
        self.code = functools.cache(self.read_code)

    def git(self, *words: str) -> Optional[str]:
        done = subprocess.run(["git", "-C", str(self.top), *words], capture_output=True, text=True, errors="replace", check=False)
        return done.stdout if done.returncode == 0 else None

    def read(self, commit: str, path: str) -> Optional[str]:
        """A file at a commit, or, without one, as it is now."""
        if commit:
            return self.git("show", f"{commit}:{path}")
        return (self.top / path).read_text(errors="replace") if (self.top / path).is_file() else None

    def read_code(self, commit: str, kernel: str) -> list[tuple[str, str, str]]:
        """What counts in the series for a line of kernels; by default, for the first one."""
        first = re.search(r"^(\d\S*)", self.read(commit, "patches/lines") or self.read("", "patches/lines") or "", re.M)
        line = kernel if re.fullmatch(r"\d+\.\d+", kernel) else first[1] if first else ""
        for place in (f"patches/{line}/", f"patches/ended/{line}/", "patches/"):
            text = self.read(commit, "series" if place == "patches/" else place + "series")
            if text is None:
                continue
            patches = {name: self.read(commit, place + name) for name in (row.split("#")[0].strip() for row in text.splitlines()) if name}
            for name, patch in patches.items():
                if patch is None:
                    raise AbError(f"{place}{name}: not there{f' at commit {commit}' if commit else ''}, though the file series names it")
            return [change for patch in patches.values() for change in code_of(patch)]
        raise AbError(f"no file series{f' at commit {commit}' if commit else ''} for the line {line} of kernels")

    def present(self, commit: str, kernel: str = "patched") -> bool:
        """Is the series at this commit the present one?"""
        if self.git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}") is None:
            raise AbError(f"commit {commit} is not in this repository, so nobody can say whether its series is the present one; get the "
                          "whole history (git fetch --unshallow)")
        return self.code(commit, kernel) == self.code("", kernel)


@dataclass
class Result:
    """A published comparison. declared: the version of the series, if somebody has said that it is an older one."""

    name: str
    title: str
    command: str
    commit: str
    date: str
    declared: str
    present: bool

    @property
    def series(self) -> str:
        return "present" if self.present else "older series" + (f" ({self.declared})" if self.declared else "")


class Figures:
    """The figures of the results, for templates. MARK is how a significant one is written (p < 0.05, not corrected)."""

    def __init__(self, root: Path, mark: str = "**{}**"):
        self.root, self.mark = root, mark
        self.summary = functools.cache(lambda name: table.summarise(root / name))

    def is_old(self, name: str) -> bool:
        """Has it the format of version 1.0?"""
        return f"format {FORMAT}" not in (self.root / name / "plan").read_text().splitlines()[:1]

    def old_rows(self, name: str) -> list[tuple[str, str, float, Optional[float]]]:
        """Of version 1.0, from the end of each line of its table: (case, metric, better %, p)."""
        rows = []
        for words in map(str.split, (self.root / name / "table.txt").read_text().splitlines()):
            if len(words) > 8 and words[-1].isdigit() and re.fullmatch(r"-?[0-9.]+", words[-6]):
                case, metric = (f"hackbench-{words[0]}", "time") if words[1] == "on" else words[:2]
                # A loss may be printed as 0.0: then it is -0.0 here.
                rows.append((case, metric, -abs(float(words[-6])) if words[-2] == "LOSS" else float(words[-6]), None if words[-3] == "-" else float(words[-3])))
        return rows

    def row(self, name: str, case: str, side: str, metric: str = "") -> table.Row:
        summary = self.summary(name)
        rows = [row for row in (summary.rows if metric else summary.main_rows)
                if str(row.case) == case and row.side == side and metric in ("", row.metric.name) and row.found]
        if not rows:
            raise AbError(f"{self.root / name}: no figure for {case} {metric} of side {side}")
        return rows[0]

    def found(self, name: str, case: str, side: str, metric: str) -> tuple[float, Optional[float]]:
        """better % and p."""
        if self.is_old(name):
            rows = [row[2:] for row in self.old_rows(name) if row[0] == case and metric in ("", row[1])]
            if not rows:
                raise AbError(f"{self.root / name}: no figure for {case} {metric}")
            return rows[0]
        row = self.row(name, case, side, metric)
        return row.better, row.found.p

    def shown(self, better: float, p: Optional[float]) -> str:
        text = re.sub(r"^[-+](0\.0)$", r"\1", f"{better:+.1f}")
        return self.mark.format(text) if p is not None and p < stats.ALPHA else text

    def better(self, name: str, cases: str, side: str = "all", metrics: str = "") -> str:
        """By how many % a side is better in each of the cases and metrics; by default in the main metric."""
        return ", ".join(self.shown(*self.found(name, case, side, metric)) for case in cases.split() for metric in metrics.split() or [""])

    def effect(self, name: str, cases: str, bit: str, metrics: str = "") -> str:
        """The main effect of a bit, in a comparison of combinations, in each of the cases and metrics; by default in the main metric."""
        summary = self.summary(name)
        shares = {(str(some.main.case), some.main.side, some.main.metric.name): some for some in summary.shares if "main" in some.percent}
        main = {str(case): summary.plan.metrics[case.load][0].name for case in summary.plan.cases}
        found = []
        for case in cases.split():
            for metric in metrics.split() or [main.get(case, "")]:
                if (case, bit, metric) not in shares:
                    raise AbError(f"{self.root / name}: no main effect of {bit} on {metric} of {case}")
                one = shares[case, bit, metric]
                found.append(self.shown(one.percent["main"], one.main.found.p))
        return ", ".join(found)

    def ends(self, name: str, case: str, bit: str, metric: str = "") -> tuple[str, str]:
        """By how many % all combinations with a bit are better than off: the least and the most."""
        found = sorted(self.found(name, case, side, metric)[0] for bits, side in self.summary(name).plan.combinations.items() if bit in bits)
        return self.shown(found[0], None), self.shown(found[-1], None)

    def percent(self, name: str, case: str, side: str = "all", metric: str = "") -> str:
        """The same in whole numbers, without sign and mark."""
        return f"{abs(self.found(name, case, side, metric)[0]):.0f}"

    def median(self, name: str, case: str, side: str, metric: str, digits: int = 1) -> str:
        """The median of a side, in the unit of the table."""
        labels = self.summary(name).plan.labels
        row = self.row(name, case, labels[1] if side == labels[0] else side, metric)
        values = row.base if side == labels[0] else row.values
        return f"{float(numpy.median(values)) / table.shown_unit(row.metric, row.base)[1]:.{digits}f}"

    def changes(self, name: str, side: str, cases: list[tuple[str, str, str]]) -> list[str]:
        """The significant figures of a side, by how many % it is better; of each case (case, metric, words for the two)."""
        found = [(words, *self.found(name, case, side, metric)) for case, metric, words in cases]
        return [f"{words} {better:+.1f}" for words, better, p in found if p is not None and p < stats.ALPHA]

    @staticmethod
    def columns(label: str, ends: list[int], values: str) -> str:
        """A line of a table of text; in each column the digits end at the same place."""
        for end, value in zip(ends, values.split(", "), strict=True):
            label = label.ljust(end - len(value.rstrip("*"))) + value
        return label

    def text(self, path: str, regex: str) -> str:
        """The first group of a regular expression in a file."""
        match = re.search(regex, (self.root / path).read_text(), re.M)
        if not match:
            raise AbError(f"{self.root / path}: nothing matches '{regex}'")
        return match[1]

    def overview(self, name: str) -> str:
        """Gains and losses, for the index."""
        if self.is_old(name):
            rows = self.old_rows(name)
            if all(p is None for _, _, _, p in rows):
                return "see the table"
            if all(case.startswith("hackbench-") for case, _, _, _ in rows):
                return ", ".join(f"{case.partition('-')[2]}: {self.shown(better, p)}" for case, _, better, p in rows)
            return counted("on", [(better, p) for _, _, better, p in rows])
        summary = self.summary(name)
        if summary.plan.factorial:
            return "see the table"
        return "; ".join(counted(side, [(row.better, row.found.p) for row in summary.rows
                                        if row.side == side and row.found and row.metric.better != "same"])
                         for side in summary.plan.labels[1:])


def counted(side: str, rows: list[tuple[float, Optional[float]]]) -> str:
    """How many rows (better %, p) of a side are gains, and how many losses."""
    sure = [better for better, p in rows if p is not None and p < stats.ALPHA]
    lost = sum(math.copysign(1, better) < 0 for better in sure)
    return f"{side}: {table.plural(len(sure) - lost, 'gain')}, {lost} loss{'es' * (lost != 1)} of {len(rows)}"


def kernels_of(plan: dict[str, str]) -> list[str]:
    """What a plan says of its kernels, without labels and configurations: base, patched, lines, images; at least one."""
    texts = (plan.get("kernels") or plan.get("kernel", "")).split(",")
    return list(dict.fromkeys((text.partition("=")[2] or text).partition("+")[0] for text in texts))


def results(top: Path, titles: dict[str, str], series: Series) -> list[Result]:
    """The results, those of bench/campaign.conf (TITLES) first, then those of older.conf, in the order of these files."""
    older, root = read_conf(top / OLDER), top / "Documentation/results"
    there = {path.name for path in root.iterdir() if path.is_dir()} - OTHERS
    names = [name for name in dict.fromkeys([*titles, *older.sections()]) if name in there]
    for name in sorted(there - set(names)):
        raise AbError(f"{root / name}: neither bench/campaign.conf nor {OLDER} has a section for it; add one")
    for name in older.sections():
        if name not in there:
            raise AbError(f"{top / OLDER}: [{name}]: there is no such directory; delete the section")
    made = []
    for name in names:
        plan = dict(line.partition(" ")[::2] for line in (root / name / "plan").read_text().splitlines())
        said = dict(older[name]) if name in older else {}
        unknown = sorted(set(said) - {"title", "command", "commit", "date", "series"})
        if unknown:
            raise AbError(f"{top / OLDER}: [{name}]: unknown key '{unknown[0]}'")
        facts = {key: plan.get(ours) or said.get(key, "") for key, ours in
                 (("commit", "project"), ("date", "date"), ("command", "repeat"))} | {"title": titles.get(name) or said.get("title", "")}
        for key, value in facts.items():
            if not value:
                raise AbError(f"{top / OLDER}: [{name}]: no {key}, and {root / name / 'plan'} has none")
        try:
            present = all(series.present(facts["commit"], kernel) for kernel in kernels_of(plan))
        except AbError as error:
            raise AbError(f"{root / name / 'plan'}: {error}") from error
        if said.get("series") and present:
            raise AbError(f"{top / OLDER}: [{name}] series: its series is the present one; delete this key")
        made.append(Result(name, **facts, declared=said.get("series", ""), present=present))
    return made


def merged(path: Path, old: str, made: str) -> str:
    """OLD with the text between the first and the last line of MADE replaced by MADE."""
    lines, new = old.split("\n"), made.rstrip("\n").split("\n")
    at = [number for line in (new[0], new[-1]) for number, other in enumerate(lines) if other == line]
    if len(at) != 2 or at[0] >= at[1]:
        raise AbError(f"{path}: not once each, in this order: the line '{new[0]}' and the line '{new[-1]}'; restore them")
    return "\n".join(lines[:at[0]] + new + lines[at[1] + 1:])


def rendered(top: Path, titles: dict[str, str]) -> dict[Path, str]:
    """The texts with published figures, as they should be."""
    series = Series(top)
    root, found = top / "Documentation/results", results(top, titles, series)
    figures = Figures(root)
    conf = read_conf(top / CONF)
    page = campaign_page.Page(conf, {one.name: figures.summary(one.name) for one in found if one.present and one.name in conf},
                              {one.name for one in found if not one.present})
    texts: dict[Path, str] = {}
    for name, targets in TARGETS.items():
        figures.mark = "**{}**" if ".md" in name else "{}*"
        environment = jinja2.Environment(loader=jinja2.FileSystemLoader(top / TEMPLATES), trim_blocks=True, lstrip_blocks=True,
                                         keep_trailing_newline=True, undefined=jinja2.StrictUndefined)
        environment.globals |= {key: getattr(figures, key) for key in ("better", "effect", "ends", "percent", "median", "row", "changes", "text",
                                                                       "overview", "columns", "shown")}
        try:
            made = environment.get_template(name).render(
                results=found, page=page, planned=[title for title in titles if not (root / title).is_dir()],
                series=lambda commit: "the present series" if series.present(commit) else "an older series")
        except jinja2.TemplateError as error:
            raise AbError(f"{top / TEMPLATES / name}: {error}") from error
        for target in targets:
            path = top / target
            texts[path] = made if name in WHOLE else merged(path, texts.get(path) or path.read_text(), made)
    return texts
