# SPDX-License-Identifier: GPL-2.0
"""What KCSAN reports, and which of it is in code that the series adds."""

import re
import subprocess
from typing import NamedTuple


# sched_feat() reads the features without a mark, wherever it is used, and these functions write them: in the base, too.
FEATURES = {"sched_feat_set", "sched_feat_write"}


class Race(NamedTuple):
    """A report: the two functions' names as it has them, where the accesses are, as function+offset, and which are marked."""
    pair: str
    places: tuple[str, ...]
    marked: tuple[bool, ...]


def reports(log):
    """The races in the text of a kernel log."""
    found = []
    for text in re.split(r"(?=BUG: KCSAN: data-race in )", log)[1:]:
        functions = re.match(r"BUG: KCSAN: data-race in (\S+)(?: / (\S+))?", text).groups()
        # Below each of the accesses is its stack; the first line is where it was.
        accesses = re.findall(r"(?:read|write|assert no [a-z]+)( \([a-z, -]+\))? to \S+ of .*\n\[ *[\d.]+\]\s+(\S+\+0x[0-9a-f]+)/", text)
        assert accesses, text[:2000]
        found.append(Race(" / ".join(sorted(filter(None, functions))), tuple(place for _, place in accesses),
                          tuple("marked" in how for how, _ in accesses)))
    return found


def added_lines(diff):
    """{file: numbers of lines} that a unified diff adds."""
    lines, file, number = {}, "", 0
    for line in diff.splitlines():
        if line.startswith("+++ "):
            file = line[4:].removeprefix("b/").split("\t")[0]
        elif line.startswith("@@ "):
            number = int(re.match(r"@@ -\S+ \+(\d+)", line).group(1))
        elif line.startswith("+"):
            lines.setdefault(file, set()).add(number)
            number += 1
        elif line.startswith(" "):
            number += 1
    return lines


def source_lines(vmlinux, places):
    """{place: [(file, line)...]}: the source line of each place, and of the calls that were inlined around it."""
    symbols = {}
    for line in subprocess.run(["nm", vmlinux], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines():
        *address, kind, name = line.split()
        if address and kind in "tT":
            symbols.setdefault(name, []).append(int(address[0], 16))
    where = {}
    for place in places:
        name, offset = place.split("+")
        assert name in symbols, f"{place}: not in {vmlinux}"
        # KCSAN is called before the access, and returns behind the call. Static functions of the same name: all of them.
        addresses = [hex(start + int(offset, 16) - 1) for start in symbols[name]]
        said = subprocess.run(["addr2line", "-i", "-e", vmlinux, *addresses], stdout=subprocess.PIPE, text=True, check=True).stdout
        where[place] = [(file, int(number)) for file, number in re.findall(r"^(\S+):(\d+)", said, re.M)]
    return where


def in_added_code(races, vmlinux, diff):
    """Those of the races that are the diff's: an access in a line that it adds, or inlined into one, is not marked.

    A marked access, such as READ_ONCE(), is meant to race. KCSAN reports it if the other access is not marked. That is for those to
    mend who wrote the other one: it is the diff's race only if the other one is in its lines. Nor is it the diff's race if it uses a
    feature while a function in FEATURES writes it.
    """
    lines = added_lines(diff)
    where = source_lines(vmlinux, {place for race in races for place in race.places})
    assert any(where.values()), f"{vmlinux} has no line numbers"

    def added(place):
        return any(number in numbers for file, number in where[place]
                   for name, numbers in lines.items() if file.endswith("/" + name) or file == name)

    return [race for race in races if not FEATURES & set(race.pair.split(" / "))
            and any(added(place) and not marked for place, marked in zip(race.places, race.marked))]
