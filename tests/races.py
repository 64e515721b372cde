# SPDX-License-Identifier: GPL-2.0
"""What KCSAN reports, and which of it is in code that the series adds."""

import re
import subprocess
from typing import NamedTuple


# The variable with the features: sched_feat() reads it without a mark, wherever it is used, and debugfs writes it; in the base, too.
FEATURES = "sysctl_sched_features"


class Race(NamedTuple):
    """A report: the two functions' names as it has them; where the accesses are, as function+offset; how they are, such as
    "read (marked)"; and the address of the data."""
    pair: str
    places: tuple[str, ...]
    how: tuple[str, ...]
    address: int


def reports(log):
    """The races in the text of a kernel log."""
    found = []
    for text in re.split(r"(?=BUG: KCSAN: data-race in )", log)[1:]:
        functions = re.match(r"BUG: KCSAN: data-race in (\S+)(?: / (\S+))?", text).groups()
        # Below each of the accesses is its stack; the first line is where it was.
        accesses = re.findall(r"((?:read|write|assert no [a-z]+)(?: \([a-z, -]+\))?) to (\S+) of .*\n\[ *[\d.]+\]\s+(\S+\+0x[0-9a-f]+)/", text)
        assert accesses, text[:2000]
        how, addresses, places = zip(*accesses)
        found.append(Race(" / ".join(sorted(filter(None, functions))), places, how, int(addresses[0], 16)))
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


def symbols_of(vmlinux):
    """{name: [(address, kind)...]}"""
    symbols = {}
    for line in subprocess.run(["nm", vmlinux], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines():
        *address, kind, name = line.split()
        if address:
            symbols.setdefault(name, []).append((int(address[0], 16), kind))
    return symbols


def source_lines(vmlinux, places):
    """{place: [(file, line)...]}: the source line of each place, and of the calls that were inlined around it."""
    symbols = {name: [address for address, kind in some if kind in "tT"] for name, some in symbols_of(vmlinux).items()}
    where = {}
    for place in places:
        name, offset = place.split("+")
        assert symbols.get(name), f"{place}: not in {vmlinux}"
        # KCSAN is called before the access, and returns behind the call. Static functions of the same name: all of them.
        addresses = [hex(start + int(offset, 16) - 1) for start in symbols[name]]
        said = subprocess.run(["addr2line", "-i", "-e", vmlinux, *addresses], stdout=subprocess.PIPE, text=True, check=True).stdout
        where[place] = [(file, int(number)) for file, number in re.findall(r"^(\S+):(\d+)", said, re.M)]
    return where


def in_added_code(races, vmlinux, diff):
    """Those of the races that are the diff's: of which an access is in a line that it adds, or inlined into one.

    Not if its only such access is a marked read, as READ_ONCE(): that is meant to race, and KCSAN reports it if code that was there before
    writes without a mark. Nor if the data are the features.
    """
    lines = added_lines(diff)
    where = source_lines(vmlinux, {place for race in races for place in race.places})
    features = {address for address, _ in symbols_of(vmlinux).get(FEATURES, [])}
    assert any(where.values()), f"{vmlinux} has no line numbers"

    def added(place):
        return any(number in numbers for file, number in where[place]
                   for name, numbers in lines.items() if file.endswith("/" + name) or file == name)

    return [race for race in races if race.address not in features
            and any(added(place) and how != "read (marked)" for place, how in zip(race.places, race.how))]
