# SPDX-License-Identifier: GPL-2.0
"""The sides of a comparison: which scheduler features each side turns on and off. bench/features lists the bits of the series.

A side is WORD[+WORD...]. A WORD is a feature as in sched/features (X turns it on, NO_X off), or one of these:

    off   all bits of the series are off
    nine  the bits of the nine patches are on, all other bits of the series are off
    all   all bits of the series are on

The last word about a feature counts. If a side says something about one bit of the series, those that it does not name are off. Other
features stay as they are unless a side names them. bench/run-hackbench.sh has the same rules.
"""

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Collection, Sequence

from .plan import AbError

FILE = Path(__file__).resolve().parents[1] / "features"
LINE = re.compile(r"([A-Z][A-Z0-9_]*)\s+(nine|follow-up)\s+(?:needs\s+([A-Z0-9_,]+)\s+)?(?:not\s+([0-9.,]+)\s+)?((?!(?:needs|not)\s)\S.*)")
WORDS = ("off", "nine", "all")
WORD = re.compile(r"[A-Z0-9_]+|" + "|".join(WORDS))
# The series has so many bits; as some do nothing without others, these are 34 sides.
MOST = 6


@dataclass(frozen=True)
class Bit:
    """A feature of the series; nine: it is in the nine patches; needs: it does nothing without these; lacking: these lines of kernels
    do not have it."""

    name: str
    nine: bool
    needs: frozenset[str]
    what: str
    lacking: frozenset[str] = frozenset()

    def is_in(self, release: str) -> bool:
        """Has a kernel of this line, or with this release, the bit, if it has the series?"""
        return not any(re.match(rf"{re.escape(line)}(?![0-9])", release) for line in self.lacking)


def read_bits(path: Path = FILE) -> dict[str, Bit]:
    """The bits by name, in the order of the series."""
    bits: dict[str, Bit] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise AbError(f"{path}: cannot read it: {error.strerror}; restore the file") from error
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = LINE.fullmatch(line.strip())
        needs = match and [need for need in (match[3] or "").split(",") if need]
        if not match or match[1] in bits or any(need not in bits for need in needs):
            raise AbError(f"{path}:{number}: not NAME nine|follow-up [needs NAME[,NAME...]] [not LINE[,LINE...]] TEXT, or NAME stands twice, or it needs a bit "
                          "that does not stand above it; correct the line")
        bits[match[1]] = Bit(match[1], match[2] == "nine", frozenset(needs), match[5],
                             frozenset(line for line in (match[4] or "").split(",") if line))
    if not bits:
        raise AbError(f"{path}: no bit in it; restore the file")
    return bits


def spelled(on: Sequence[str], bits: dict[str, Bit]) -> list[str]:
    """The features of a side that has these bits on and the others off."""
    return [name if name in on else f"NO_{name}" for name in bits]


def is_side(text: str) -> bool:
    return all(WORD.fullmatch(word) for word in text.split("+"))


def resolve(text: str, bits: dict[str, Bit]) -> str:
    """FEATURE[+FEATURE...] of WORD[+WORD...]: each bit of the series is named, or none."""
    ours: dict[str, bool] = {}
    others: dict[str, str] = {}
    for word in text.split("+"):
        name = word.removeprefix("NO_")
        if word in WORDS:
            ours |= {bit.name: word == "all" or word == "nine" and bit.nine for bit in bits.values()}
        elif name in bits:
            ours[name] = name == word
        else:
            others[name] = word
    return "+".join([*(spelled([name for name, on in ours.items() if on], bits) if ours else []), *others.values()])


def factorial(text: str, bits: dict[str, Bit]) -> tuple[list[str], dict[str, str]]:
    """The bits of --factorial in the order of the series, and by label the features of each combination that differs from the others."""
    named = text.split(",")
    for name in named:
        if name not in bits:
            raise AbError(f"--factorial: '{name}' is no bit of the series: {', '.join(bits)}")
        if named.count(name) > 1:
            raise AbError(f"--factorial: {name} stands twice")
        missing = sorted(bits[name].needs - set(named))
        if missing:
            raise AbError(f"--factorial: {name} does nothing without {', '.join(missing)}; add {', '.join(missing)}, or leave {name} out")
    if len(named) > MOST:
        raise AbError(f"--factorial: {len(named)} bits; at most {MOST}, which are up to {2**MOST} sides")
    chosen = [name for name in bits if name in named]
    sides = {}
    for some in itertools.chain.from_iterable(itertools.combinations(chosen, count) for count in range(len(chosen) + 1)):
        # A bit without one that it needs does nothing: the side would be equal to the one without this bit.
        if all(bits[name].needs <= set(some) for name in some):
            sides["+".join(some) or "off"] = "+".join(spelled(some, bits))
    return chosen, sides


def left_out(chosen: Sequence[str], sides: Collection[str]) -> int:
    """How many combinations of the bits CHOSEN are not among the sides."""
    return 2**len(chosen) - len(sides)


def left_out_text(chosen: Sequence[str], sides: Collection[str]) -> str:
    return f"{left_out(chosen, sides)} of {2**len(chosen)} combinations left out: each is equal to another one, as it turns on a bit " \
        "without one that it needs"
