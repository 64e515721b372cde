# SPDX-License-Identifier: GPL-2.0
"""Lines of memory that move between the caches of a simulated machine: reads what sim/machine --sections writes, and gives names to the
lines with a file of sim/names.

A line has one of these names; K counts lines from 0:

    runqueues[7] line K         a variable of a CPU, and which of its lines
    jiffies                     a variable of the kernel; with `line K` if it is large
    cfs_overload_cpus[LLC 0] header, cfs_overload_cpus[LLC 0] line K
    sd_llc_shared[LLC 0]        the same for other memory to which variables of CPUs point
    memory 0xffff... (by FUNCTION)  other memory of the kernel, and the function that waited most often
    user 0x...                  memory of programs

Lines without a name that cost little come as sums: memory (by FUNCTION), user (by FUNCTION).
"""

import bisect
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterable, Iterator, Optional

from .plan import AbError, read_text

LINE = 64
# How many members and code places a line shows.
SHOWN = 3


@dataclass
class Moving:
    """A line, or a sum of lines. members and places: how often they waited; of a sum the function only."""

    name: str
    count: int = 1
    moves: int = 0
    cost_ns: int = 0
    queued_ns: int = 0
    upgrades: int = 0
    members: Counter = field(default_factory=Counter)
    places: Counter = field(default_factory=Counter)

    def add(self, other: "Moving") -> None:
        self.count += other.count
        self.moves += other.moves
        self.cost_ns += other.cost_ns
        self.queued_ns += other.queued_ns
        self.upgrades += other.upgrades
        self.members.update(other.members)
        self.places.update(other.places)

    @property
    def title(self) -> str:
        """The name with the members that were used, most often first; the line's number is then of no use."""
        members = [name for name, _ in self.members.most_common(SHOWN)]
        return re.sub(r" line \d+$", "", self.name) + "." + ", .".join(members) if members else self.name

    @property
    def top_places(self) -> list[str]:
        return [name for name, _ in self.places.most_common(SHOWN)]


@dataclass
class Section:
    """counts: the lines with a key and a number. cpus: where each CPU has its variables; pointers: by variable and CPU."""

    counts: dict[str, int] = field(default_factory=dict)
    cpus: dict[int, int] = field(default_factory=dict)
    pointers: dict[int, dict[int, int]] = field(default_factory=dict)
    lines: list[list[str]] = field(default_factory=list)
    rest: list[list[str]] = field(default_factory=list)


def read_sections(text: str, where: str) -> Iterator[Section]:
    """The whole sections of a file. Raises AbError for a line that is none of a section."""
    section: Optional[Section] = None
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        try:
            if words[0] == "section":
                section = Section({"section": int(words[1])})
            elif words == ["end"]:
                yield section
                section = None
            elif words[0] == "cpu":
                section.cpus[int(words[1])] = int(words[2], 16)
            elif words[0] == "pointer":
                section.pointers.setdefault(int(words[1], 16), {})[int(words[2])] = int(words[3], 16)
            elif words[0] == "line":
                check_numbers(words[4:11:2])
                check_places(words[12])
                section.lines.append([*words[1:3], *words[4:11:2], words[12]])
            elif words[0] == "rest":
                check_numbers(words[3:12:2])
                section.rest.append([words[1], *words[3:12:2], words[13]])
            else:
                section.counts[words[0]] = int(words[1])
        except (AttributeError, IndexError, ValueError) as error:
            raise AbError(f"{where}:{number}: not a line of a section: {line[:60]!r}; delete the file and run again what made it") from error


def check_numbers(words: Iterable[str]) -> None:
    for word in words:
        int(word)


def check_places(text: str) -> None:
    for place in text.split(","):
        pc, offset, count = place.split(":")
        check_numbers((count,))
        int(pc, 16)
        int(offset, 16)


class Symbols:
    """Symbols of one kind, to be found by address."""

    def __init__(self, found: Iterable[tuple[int, int, str]]):
        best: dict[int, tuple[int, int, str]] = {}
        # Of several names for one address, the shortest.
        for symbol in found:
            if symbol[0] not in best or (len(symbol[2]), symbol[2]) < (len(best[symbol[0]][2]), best[symbol[0]][2]):
                best[symbol[0]] = symbol
        self.symbols = sorted(best.values())
        self.begins = [symbol[0] for symbol in self.symbols]

    def at(self, address: int) -> Optional[tuple[int, int, str]]:
        """The symbol that has this address."""
        n = bisect.bisect_right(self.begins, address) - 1
        return self.symbols[n] if n >= 0 and address < self.symbols[n][0] + self.symbols[n][1] else None


class Names:
    """A file of sim/names; without one, all lines are addresses."""

    def __init__(self, path: Optional[Path] = None):
        self.layouts: dict[str, str] = {}
        self.members: dict[str, list[tuple[int, int, str]]] = {}
        self.pointers: list[tuple[int, str, str]] = []
        self.mask = (LINE, LINE, 1)
        self.sizes: dict[str, int] = {}
        self.percpu = (0, 0)
        found: dict[str, list[tuple[int, int, str]]] = {"text": [], "data": [], "cpu": []}
        text = read_text(path, "make it with sim/names IMAGE").splitlines() if path else ["names 1"]
        if text[:1] != ["names 1"]:
            raise AbError(f"{path}: not a file of sim/names; make it with sim/names IMAGE")
        for number, line in enumerate(text, 1):
            try:
                kind, *words = line.split()
                if kind == "symbol":
                    found[words[0]].append((int(words[1], 16), int(words[2], 16), words[3]))
                elif kind == "member":
                    self.members.setdefault(words[0], []).append((int(words[1], 16), int(words[2], 16), words[3]))
                elif kind == "layout":
                    self.layouts[words[0]] = words[1]
                elif kind == "struct":
                    self.sizes[words[0]] = int(words[1], 16)
                elif kind == "pointer":
                    self.pointers.append((int(words[0], 16), words[2], words[3]))
                elif kind == "mask":
                    self.mask = (int(words[0], 16), int(words[1], 16), int(words[2], 16))
                elif kind == "variables":
                    self.percpu = (int(words[2], 16), int(words[3], 16))
            except (IndexError, KeyError, ValueError) as error:
                raise AbError(f"{path}:{number}: not a line of sim/names: {line}; delete the file and make it again with sim/names "
                              "IMAGE") from error
        self.symbols = {kind: Symbols(of_kind) for kind, of_kind in found.items()}

    def place(self, pc: int) -> str:
        symbol = self.symbols["text"].at(pc)
        return f"{symbol[2]}+0x{pc - symbol[0]:x}" if symbol else f"0x{pc:x}"

    def function(self, pc: int) -> str:
        symbol = self.symbols["text"].at(pc)
        return symbol[2] if symbol else f"0x{pc:x}" if pc >> 63 else "programs"

    def member(self, structure: str, offset: int) -> str:
        """The first member of a structure that has this offset, or nothing."""
        return next((path for at, size, path in self.members.get(structure, []) if at <= offset < at + size), "")


@dataclass(frozen=True)
class Area:
    """Memory with a name of its own: a structure, or a mask."""

    begin: int
    size: int
    name: str
    structure: str


def areas_of(section: Section, names: Names) -> list[Area]:
    """The memory to which variables of CPUs point. CPUs with the same pointer are those of an LLC, or all."""
    areas = []
    for variable, name, structure in names.pointers:
        users: dict[int, list[int]] = {}
        for cpu, value in section.pointers.get(variable, {}).items():
            users.setdefault(value, []).append(cpu)
        users.pop(0, None)
        for number, (value, cpus) in enumerate(sorted(users.items(), key=lambda item: min(item[1]))):
            size = names.sizes.get(structure, 0)
            if structure == "sparsemask":
                header, line, elements = names.mask
                size = header + line * ((len(cpus) + elements - 1) // elements)
            of = f"{name}[LLC {number}]" if structure in ("sparsemask", "sched_domain_shared") else name
            areas.append(Area(value, size, of, structure))
    return areas


def line_in(name: str, begin: int, size: int, address: int) -> str:
    """A line of a variable: its number, if it has several."""
    lines = (begin + size - 1) // LINE - begin // LINE + 1
    return name if lines < 2 else f"{name} line {address // LINE - begin // LINE}"


def name_of(section: Section, names: Names, areas: list[Area], virtual: int, places: list[tuple[int, int, int]]) -> tuple[str, Counter]:
    """The name of a line, and how often its members were used."""
    members: Counter = Counter()

    def note(structure: str, begin: int) -> Counter:
        for _, offset, count in places:
            member = names.member(structure, virtual + offset - begin)
            if member:
                members[member] += count
        return members

    # Where the line was used most often: it may have several variables.
    used = virtual + (places[0][1] if places else 0)
    if not virtual >> 63:
        return f"user 0x{virtual:x}", members
    for area in areas:
        if area.begin < virtual + LINE and virtual < area.begin + area.size:
            if area.structure != "sparsemask":
                return line_in(area.name, area.begin, area.size, used), note(area.structure, area.begin)
            part = (virtual - area.begin - names.mask[0]) // names.mask[1]
            return f"{area.name} header" if part < 0 else f"{area.name} line {part}", members
    first, last = names.percpu
    for cpu, offset in section.cpus.items():
        static = (used - offset) % 2**64
        if first <= static < last:
            symbol = names.symbols["cpu"].at(static)
            if not symbol:
                return f"variables of CPUs[{cpu}]+0x{static - first:x}", members
            begin = (symbol[0] + offset) % 2**64
            return line_in(f"{symbol[2]}[{cpu}]", begin, symbol[1], used), note(names.layouts.get(symbol[2], ""), begin)
    symbol = names.symbols["data"].at(used) or names.symbols["text"].at(used)
    if symbol:
        return line_in(symbol[2], symbol[0], symbol[1], used), note(names.layouts.get(symbol[2], ""), symbol[0])
    by = names.function(places[0][0]) if places else "?"
    return f"memory 0x{virtual:x} (by {by})", members


def moving_lines(section: Section, names: Names) -> list[Moving]:
    """The lines of a section, and the sums of the others; most cost first."""
    areas, found = areas_of(section, names), []
    for _, virtual, *numbers, at in section.lines:
        places = [(int(pc, 16), int(offset, 16), int(count)) for pc, offset, count in (place.split(":") for place in at.split(","))]
        name, members = name_of(section, names, areas, int(virtual, 16), places)
        by_place: Counter = Counter()
        for pc, _, count in places:
            by_place[names.place(pc)] += count
        found.append(Moving(name, 1, *map(int, numbers), members, by_place))
    sums: dict[str, Moving] = {}
    for kind, *numbers, pc in section.rest:
        function = names.function(int(pc, 16))
        name = f"{'memory' if kind == 'kernel' else 'user'} (by {function})"
        sums.setdefault(name, Moving(name, 0)).add(Moving(name, *map(int, numbers), Counter(), Counter({names.place(int(pc, 16)): int(numbers[1]) + int(numbers[4])})))
    return sorted([*found, *sums.values()], key=lambda line: (-line.cost_ns, line.name))


def group_name(line: Moving) -> str:
    """The name of a line without what differs between runs: the number of a CPU, and the address of memory."""
    name = re.sub(r"^(\S+|variables of CPUs)\[\d+\]", r"\1[*]", line.name)
    name = re.sub(r"^memory 0x\w+ ", "memory ", name)
    if name.startswith("user 0x"):
        return f"user (by {line.top_places[0].partition('+')[0]})" if line.top_places and not line.top_places[0].startswith("0x") \
            else "user (by programs)"
    return name


def grouped(lines: Iterable[Moving]) -> list[Moving]:
    """The lines of all CPUs together, and those of memory by function; most cost first."""
    groups: dict[str, Moving] = {}
    for line in lines:
        name = group_name(line)
        groups.setdefault(name, Moving(name, 0)).add(line)
    return sorted(groups.values(), key=lambda line: (-line.cost_ns, line.name))
