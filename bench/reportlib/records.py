# SPDX-License-Identifier: GPL-2.0
"""Reads the raw records that run-hackbench.sh writes.

A record is the lines between `begin KIND SESSION` and `end KIND`. hackbench-table.awk defines the figures of a run; this file
computes them in the same way. Each is an average over the CPUs:

    time   s     as hackbench prints it
    busy   %     share of the run in which tasks ran (may exceed 100, see hackbench-table.awk)
    slice  ms    mean time slice
    sched        calls of schedule()
    idle         calls of schedule() that found no task
    wake         wakeups
    find   %     share of the run spent in newly idle balancing and in stealing
    steal        stolen tasks

A run without time slices has no slice. A kernel without idle_search has no find and no steal.

On machines with several NUMA nodes also, from the domain lines of /proc/schedstat:

    across       wakeups onto a CPU of another node than the waker's
    pulled       wakeups of a task that last ran on another node, for which wake_affine() starts the search at the waker's CPU
"""

import itertools
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

FIGURES = ("time", "busy", "slice", "sched", "idle", "wake", "find", "steal")
NODE_FIGURES = ("across", "pulled")
KINDS = ("session", "run", "host")

# The nine fields of a cpu line of /proc/schedstat, counted from 1.
SCHED_COUNT, SCHED_GOIDLE, TTWU_COUNT, RQ_CPU_TIME, PCOUNT = 3, 4, 5, 7, 9
# The fields of a domain line of versions 15 to 17, counted from its end.
TTWU_WAKE_REMOTE, TTWU_MOVE_AFFINE = -3, -2
# The list of lines that are the same in all sessions of a comparison is here; of these, the lines on a kernel.
SWITCH = Path(__file__).resolve().parents[1] / "switch.sh"
OF_KERNEL = ["release", "version"]
CPU_MASK = re.compile("[0-9a-f]+(,[0-9a-f]+)*")


class ReportError(Exception):
    """Prevents a report; the text names the file and what to do."""


@dataclass
class Record:
    """A record of the file: its lines by their first word."""

    kind: str
    session: str
    path: Path
    line: int
    fields: dict[str, list[str]] = field(default_factory=dict)

    def get(self, key: str, default: str = "") -> str:
        """The first line KEY, without KEY."""
        return self.fields.get(key, [default])[0]

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass
class Session:
    """A call of the collector: its description of the machine. None if the file has no description."""

    name: str
    where: str
    record: Optional[Record] = None
    # The sides that have runs, valid or not.
    ran: set[str] = field(default_factory=set)

    def get(self, key: str, default: str = "") -> str:
        return self.record.get(key, default) if self.record else default

    def lines(self, key: str) -> list[str]:
        """All lines KEY, without KEY."""
        return self.record.fields.get(key, []) if self.record else []

    def pairs(self, key: str) -> dict[str, str]:
        """The lines `KEY NAME VALUE` as {NAME: VALUE}."""
        return dict(line.partition(" ")[::2] for line in self.lines(key))

    @property
    def sides(self) -> list[str]:
        """The labels of the sides; the first is the baseline."""
        return self.get("sides").split() or ["off", "on"]

    @property
    def topology(self) -> dict[int, dict[str, str]]:
        """For each CPU its package, core, threads, llc and node."""
        cpus = {}
        for line in self.lines("topology"):
            words = line.split()
            if len(words) < 2 or len(words) % 2 or words[0] != "cpu" or not words[1].isdigit():
                raise ReportError(f"{self.where}: invalid line: topology {line}; correct or remove it")
            cpus[int(words[1])] = dict(zip(words[2::2], words[3::2]))
        return cpus

    @property
    def nodes(self) -> dict[int, str]:
        """For each CPU its NUMA node."""
        return {cpu: words.get("node", "0") for cpu, words in self.topology.items()}


@dataclass
class Run:
    """A valid run and its figures (see the top of the file)."""

    session: Session
    pair: str
    groups: int
    side: str
    figures: dict[str, float]


@dataclass
class Records:
    """The content of the files."""

    sessions: list[Session] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    failed: int = 0
    invalid: int = 0
    virtual_seconds: float = 0.0
    host_seconds: float = 0.0
    # The time in which the simulated CPUs executed, summed over the CPUs.
    busy_seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


def read_records(path: Path, notes: list[str]) -> list[Record]:
    """The complete records of a file; incomplete ones are noted."""
    try:
        lines = path.read_text(errors="replace").split("\n")
    except OSError as error:
        raise ReportError(f"cannot read {path}: {error.strerror}") from error
    records, record, stray = [], None, []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if words[:1] == ["begin"]:
            if record:
                notes.append(f"{record.where}: incomplete {record.kind} record: ignored")
            kind, name = (words + ["", ""])[1:3]
            record = Record(kind, name, path, number)
        elif record is None:
            if words:
                stray.append(number)
        elif words == ["end", record.kind]:
            if record.kind in KINDS:
                records.append(record)
            else:
                notes.append(f"{record.where}: unknown record '{record.kind}': ignored")
            record = None
        else:
            key, _, value = line.partition(" ")
            record.fields.setdefault(key, []).append(value)
    if record:
        notes.append(f"{record.where}: incomplete {record.kind} record at the end of the file: ignored")
    if stray:
        notes.append(f"{path}:{stray[0]}: {len(stray)} lines from here on belong to no record: ignored")
    return records


@dataclass
class Snapshot:
    """The counters before or after a run: the clock in ns, and the counters of schedstat and idle_search by CPU.

    domains: by CPU and domain, a bit for each CPU of the domain, and its counters of wakeups.
    """

    clock: int = 0
    schedstat: dict[str, list[int]] = field(default_factory=dict)
    domains: dict[tuple[str, str], tuple[int, int, int]] = field(default_factory=dict)
    idle_search_version: str = ""
    idle_search: dict[str, list[int]] = field(default_factory=dict)


def read_snapshot(lines: list[str]) -> Snapshot:
    """From the lines `before` or `after` of a run. Raises ValueError, with a text, for wrong lines."""
    snapshot, cpu = Snapshot(), ""
    for line in lines:
        words = line.split()
        if words[:1] == ["clock"]:
            snapshot.clock = int(words[1])
        elif words[:1] == ["schedstat"] and words[1][:3] == "cpu" and words[1][3:4].isdigit():
            if len(words) != 11:
                raise ValueError(f"the line of {words[1]} has {len(words) - 2} fields, not 9")
            snapshot.schedstat[words[1]] = [int(word) for word in words[2:]]
            cpu = words[1]
        elif words[:1] == ["schedstat"] and words[1][:6] == "domain":
            # Since version 17 the name of the domain is before the mask.
            mask = next(word for word in words[2:4] if CPU_MASK.fullmatch(word))
            snapshot.domains[cpu, words[1]] = (int(mask.replace(",", ""), 16), int(words[TTWU_WAKE_REMOTE]),
                                               int(words[TTWU_MOVE_AFFINE]))
        elif words[:2] == ["idle_search", "version"]:
            snapshot.idle_search_version = words[2]
        elif words[:1] == ["idle_search"] and len(words) >= 6:
            snapshot.idle_search[words[1]] = [int(word) for word in words[2:6]]
    return snapshot


def wrapped(difference: int) -> int:
    """The difference of two readings of a 32-bit counter."""
    return difference + (1 << 32) if difference < 0 else difference


def node_figures(before: Snapshot, after: Snapshot, nodes: dict[int, str]) -> dict[str, int]:
    """across and pulled, summed over the CPUs. A wakeup counts in the smallest domain that has both CPUs."""
    across = pulled = 0
    for key, (mask, remote, affine) in after.domains.items():
        if len({node for cpu, node in nodes.items() if mask >> cpu & 1}) > 1:
            _, remote_before, affine_before = before.domains.get(key, (0, 0, 0))
            across += wrapped(remote - remote_before)
            pulled += wrapped(affine - affine_before)
    return {"across": across, "pulled": pulled}


def run_figures(record: Record, nodes: dict[int, str]) -> dict[str, float]:
    """The figures of a run; NODES has the node of each CPU. Raises ValueError, with a text, if the run is not valid."""
    if record.get("valid") != "yes":
        raise ValueError(record.get("valid") or "it does not say that it is valid")
    before, after = (read_snapshot(record.fields.get(key, [])) for key in ("before", "after"))
    window, cpus = after.clock - before.clock, list(after.schedstat)
    if not cpus or window <= 0:
        raise ValueError("no CPUs or no time")
    missing = [cpu for cpu in cpus if cpu not in before.schedstat]
    if missing:
        raise ValueError(f"{missing[0]} is not in both snapshots")

    def total(index: int, wraps: bool = True) -> int:
        differences = (after.schedstat[cpu][index - 1] - before.schedstat[cpu][index - 1] for cpu in cpus)
        return sum(map(wrapped, differences)) if wraps else sum(differences)

    busy, slices, n = total(RQ_CPU_TIME, wraps=False), total(PCOUNT), len(cpus)
    figures = {"time": float(record.get("time")), "busy": 100 * busy / (window * n), "sched": total(SCHED_COUNT) / n,
               "idle": total(SCHED_GOIDLE) / n, "wake": total(TTWU_COUNT) / n}
    if slices > 0:
        figures["slice"] = busy / slices / 1e6
    if before.idle_search_version == after.idle_search_version == "1":
        zeros = [0, 0, 0, 0]
        steals, _, newidle, stealing = (
            sum(after.idle_search.get(cpu, zeros)[i] - before.idle_search.get(cpu, zeros)[i] for cpu in cpus)
            for i in range(4))
        figures["find"] = 100 * (newidle + stealing) / (window * n)
        figures["steal"] = steals / n
    if len(set(nodes.values())) > 1 and after.domains:
        figures |= {key: count / n for key, count in node_figures(before, after, nodes).items()}
    return figures


def side_of(record: Record, session: Session) -> str:
    """The side of a run; the session notes it."""
    side = record.get("side")
    if side not in session.sides:
        raise ReportError(f"{record.where}: side '{side}' is not among the session's sides, "
                          f"{' '.join(session.sides)}; correct the line 'sides' of session {session.name}")
    session.ran.add(side)
    return side


def add_run(records: Records, record: Record, session: Session) -> None:
    """Adds the run of a record, or counts it as failed or not valid."""
    side = side_of(record, session)
    if record.get("exit") != "0":
        records.failed += 1
        return
    try:
        run = Run(session, record.get("pair"), int(record.get("groups")), side, run_figures(record, session.nodes))
    except (ValueError, IndexError, StopIteration) as error:
        records.invalid += 1
        records.notes.append(f"{record.where}: run {record.get('number')} of session {record.session} "
                             f"is not used: {error}")
        return
    records.runs.append(run)


def add_host(records: Records, record: Record) -> None:
    """Adds the host's time for a simulated machine."""
    try:
        virtual, host = float(record.get("virtual_seconds")), float(record.get("host_seconds"))
        busy = float(record.get("busy_seconds", "0"))
    except ValueError:
        records.notes.append(f"{record.where}: host record without virtual_seconds and host_seconds: ignored")
        return
    records.virtual_seconds += virtual
    records.host_seconds += host
    records.busy_seconds += busy


def load(paths: list[Path]) -> Records:
    """Reads raw files. Several boots of a simulated machine may use the same session name. So a name means the last session of
    that name in the same file."""
    records = Records()
    seen: dict[str, Path] = {}
    for path in paths:
        known: dict[str, Session] = {}
        for record in read_records(path, records.notes):
            if record.kind == "host":
                add_host(records, record)
                continue
            if record.kind == "session" or record.session not in known:
                session = Session(record.session, record.where, record if record.kind == "session" else None)
                known[record.session] = session
                records.sessions.append(session)
                if seen.setdefault(record.session, path) != path:
                    records.notes.append(f"{record.where}: session {record.session} is also in "
                                         f"{seen[record.session]}: both are used")
            if record.kind == "run":
                add_run(records, record, known[record.session])
    check_same(records.sessions)
    return records


def compare_sessions(first: Session, other: Session, keys: list[str]) -> None:
    """Refuses a session whose lines KEYS are not those of the first."""
    for key in keys:
        ours, theirs = first.lines(key), other.lines(key)
        for line, expected in itertools.zip_longest(theirs, ours, fillvalue=""):
            if line != expected:
                raise ReportError(f"{other.where}: session {other.name} has {key} '{line}', but session {first.name} "
                                  f"({first.where}) has '{expected}'; they are different comparisons: use separate calls")


def check_same(sessions: list[Session]) -> None:
    """Refuses sessions that are not of the same comparison. The sides may have different kernels, each side one."""
    found = re.search("^same='(.*)'$", SWITCH.read_text(), re.MULTILINE)
    same = [key for key in found[1].split() if key not in OF_KERNEL]
    for session in sessions[1:]:
        compare_sessions(sessions[0], session, same)
    first: dict[str, Session] = {}
    for session in sessions:
        for side in sorted(session.ran):
            compare_sessions(first.setdefault(side, session), session, OF_KERNEL)
