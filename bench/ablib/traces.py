# SPDX-License-Identifier: GPL-2.0
"""Computes from scheduler traces how long CPUs were idle while a task waited.

A trace is ftrace's text (/sys/kernel/tracing/trace) with the events sched_switch, sched_wakeup,
sched_wakeup_new, sched_migrate_task and sched_process_exit, after lines `#: KEY VALUE`. The events are
sorted by time; events of the same time stay in the order of the file.

The events give for each CPU the task that it runs (pid 0: it is idle) and the tasks that wait on it:

* sched_wakeup and sched_wakeup_new make a task wait on target_cpu, unless it runs somewhere.
* sched_switch makes prev wait on the CPU if its state is R or R+, and sleep otherwise; next runs.
* sched_migrate_task moves a waiting task. A sleeping task moves with its next wakeup.
* sched_process_exit ends the wait of a task.

Unknown states do not count: a CPU without any switch, and a task before the first event that shows whether it waits. Before its
first sched_switch a CPU runs the prev of that switch.

Only fair tasks that another CPU could take count as waiting: priority 100 or more, and not the name of a kernel thread that is
bound to a CPU (kworker/N:..., or any name that ends in /N).

WASTED IDLE. At each moment, in each LLC, I is the number of idle CPUs, and W the number of tasks that wait on busy CPUs.
min(W, I) CPUs are wasted, because a task can occupy one CPU only. A task that waits on an idle CPU was just woken there; it is
not in W. But that CPU is in I, and is wasted if tasks wait on other CPUs. Wasted idle is the sum over the LLCs and over the time
from begin to end, divided by CPUs x time, in percent. It is 0 if no CPU is ever idle while a task waits in its LLC. If W < I,
each idle CPU counts as wasted with the share W / I.

FULL BUSY is the share of CPUs x time that is not idle between the last fork and the first exit of a task after it: the time in
which all tasks of hackbench exist. Before, one task forks all others; after, the last tasks wait for each other. Both leave CPUs
idle with any scheduler. All other figures include these times.

WAKEUP LATENCY is the share of CPUs x time in which a CPU was idle while a task waited on the same CPU. It is not a part of wasted
idle, but a moment may count in both.

Times are integers in ns of the trace's clock. Idle periods are cut at begin and end.
"""

import functools
import re
from dataclasses import dataclass
from typing import Iterable, Iterator, Optional

import numpy

from .plan import AbError

EVENT = re.compile(r".*?-\d+ +(?:\([ \d-]+\) +)?\[(\d+)\] +(?:\S+ +)?(\d+)\.(\d+): (sched_\w+): (.*)")
SWITCH = re.compile(r"prev_comm=(.*) prev_pid=(\d+) prev_prio=(-?\d+) prev_state=(\S+) ==> "
                    r"next_comm=(.*) next_pid=(\d+) next_prio=(-?\d+)\s*")
WAKEUP = re.compile(r"comm=(.*) pid=(\d+) prio=(-?\d+)(?: success=1)? target_cpu=(\d+)\s*")
MIGRATE = re.compile(r"comm=(.*) pid=(\d+) prio=(-?\d+) orig_cpu=(\d+) dest_cpu=(\d+)\s*")
EXIT = re.compile(r"comm=(.*) pid=(\d+) prio=(-?\d+)(?: group_dead=\w+)?\s*")
PATTERNS = {"sched_switch": SWITCH, "sched_wakeup": WAKEUP, "sched_wakeup_new": WAKEUP,
            "sched_migrate_task": MIGRATE, "sched_process_exit": EXIT}
BOUND = re.compile(r"kworker/\d+:.*|.*/\d+")
FAIR = 100
UNKNOWN, IDLE = -1, 0

# Time (ns), CPU, kind, and what the kind's pattern found.
Event = tuple[int, int, str, tuple[str, ...]]


@dataclass
class Trace:
    """The results of a trace. The lists have an entry for each CPU."""

    llcs: list[list[int]]
    begin: int
    end: int
    # In percent of CPUs x time.
    wasted: float
    latency: float
    unknown: float
    idle: float
    # None if there is no such time.
    full_busy: Optional[float]
    idle_ns: list[int]
    idle_periods: list[int]
    # For each CPU the times at which it became idle or busy: (ns, is it idle?); accounting starts at the first.
    changes: list[list[tuple[int, bool]]]
    # For each LLC the integral of min(W, I) / I: (ns, ns).
    shares: list[list[tuple[int, float]]]

    @property
    def idle_mean_us(self) -> float:
        """The mean length of an idle period, in us; 0 if there is none."""
        return sum(self.idle_ns) / max(1, sum(self.idle_periods)) / 1e3


@functools.lru_cache(maxsize=65536)
def bound(comm: str) -> bool:
    """Is this the name of a kernel thread that is bound to one CPU?"""
    return BOUND.fullmatch(comm) is not None


def nanoseconds(seconds: str, fraction: str) -> int:
    return int(seconds) * 10**9 + int(fraction[:9].ljust(9, "0"))


def read(lines: Iterable[str], where: str) -> tuple[dict[str, str], list[Event]]:
    """The header and the events, sorted. WHERE names the trace in messages."""
    header: dict[str, str] = {}
    events: list[Event] = []
    entries, said = "all", 0
    for number, line in enumerate(lines, 1):
        said += not line.startswith("#") and line != "\n"
        event = EVENT.match(line)
        if event:
            pattern = PATTERNS.get(event[4])
            what = pattern.fullmatch(event[5]) if pattern else None
            if what:
                events.append((nanoseconds(event[2], event[3]), int(event[1]), event[4], what.groups()))
            elif pattern:
                raise AbError(f"{where}:{number}: {event[4]} is not understood or cut off; record the trace again")
        elif line.startswith("# entries-in-buffer"):
            entries = line.split()[2].partition("/")[0]
        elif line.startswith("#:"):
            key, _, value = line[2:].strip().partition(" ")
            header[key] = value.strip()
        elif "[LOST " in line:
            raise AbError(f"{where}:{number}: events are lost; record the trace again with a larger buffer")
    if entries not in ("all", str(said)):
        raise AbError(f"{where}: is cut off: it has {said} of {entries} entries; record the trace again")
    if not events:
        raise AbError(f"{where}: has no scheduler events; record the trace again with sched_switch and sched_wakeup enabled")
    events.sort(key=lambda event: event[0])
    return header, events


def llcs_of(topology: str) -> list[list[int]]:
    """The CPUs of each LLC, in the order of their first CPUs, from the lines `cpu N ... llc L node M`.

    The scheduler's LLC ends with the node. That of sysfs does not, where the hardware splits a socket into nodes.
    """
    members: dict[tuple[str, str], list[int]] = {}
    for cpu, words in sorted(topology_of(topology).items()):
        members.setdefault((words.get("llc", "-"), words.get("node", "-")), []).append(cpu)
    if not members or "-" in [llc for llc, _ in members]:
        raise AbError("machine/topology: does not say which CPUs share an LLC")
    llcs = list(members.values())
    if sorted(sum(llcs, [])) != list(range(sum(map(len, llcs)))):
        raise AbError("machine/topology: does not have all CPUs; record traces with all CPUs online")
    return llcs


def topology_of(text: str) -> dict[int, dict[str, str]]:
    """For each CPU its words, from the lines `cpu N KEY VALUE...`."""
    lines = (line.split() for line in text.splitlines())
    return {int(words[1]): dict(zip(words[2::2], words[3::2])) for words in lines
            if len(words) % 2 == 0 and words[:1] == ["cpu"] and words[1].isdigit()}


class Sweep:
    """The state of all CPUs and tasks at the current event, and the sums over time."""

    def __init__(self, llcs: list[list[int]], begin: int, end: int):
        cpus = sum(map(len, llcs))
        self.llc = [0] * cpus
        for number, members in enumerate(llcs):
            for cpu in members:
                self.llc[cpu] = number
        self.begin, self.end = begin, end
        self.running = [UNKNOWN] * cpus
        self.runs_on: dict[int, int] = {}
        self.waits_on: dict[int, int] = {}
        self.waiting = [0] * cpus
        # Switches whose prev is not the next of the switch before; 0 if no event is lost.
        self.gaps = 0
        # By LLC: I and W (see the top of the file), and the number of idle CPUs on which tasks wait.
        self.idle_cpus = [0] * len(llcs)
        self.stealable = [0] * len(llcs)
        self.waking = [0] * len(llcs)
        self.last = [begin] * len(llcs)
        self.wasted_ns = 0
        self.latency_ns = 0
        self.shares: list[list[tuple[int, float]]] = [[(begin, 0.0)] for _ in llcs]
        self.changes: list[list[tuple[int, bool]]] = [[] for _ in range(cpus)]

    def account(self, llc: int, now: int) -> None:
        """Adds the time since the last change in the LLC. Call it before each change."""
        passed = now - self.last[llc]
        if passed <= 0:
            return
        self.last[llc] = now
        idle, share = self.idle_cpus[llc], 0.0
        if idle:
            wasted = min(self.stealable[llc], idle)
            share = wasted / idle
            self.wasted_ns += wasted * passed
            self.latency_ns += self.waking[llc] * passed
        shares = self.shares[llc]
        shares.append((now, shares[-1][1] + share * passed))

    def wait(self, now: int, pid: int, cpu: int) -> None:
        """PID waits on CPU from now on, and on no other."""
        if self.waits_on.get(pid) == cpu:
            return
        self.no_wait(now, pid)
        llc = self.llc[cpu]
        self.account(llc, now)
        self.waits_on[pid] = cpu
        self.waiting[cpu] += 1
        if self.running[cpu] > 0:
            self.stealable[llc] += 1
        elif self.running[cpu] == IDLE and self.waiting[cpu] == 1:
            self.waking[llc] += 1

    def no_wait(self, now: int, pid: int) -> None:
        """PID does not wait any more, if it did."""
        cpu = self.waits_on.pop(pid, None)
        if cpu is None:
            return
        llc = self.llc[cpu]
        self.account(llc, now)
        self.waiting[cpu] -= 1
        if self.running[cpu] > 0:
            self.stealable[llc] -= 1
        elif self.running[cpu] == IDLE and not self.waiting[cpu]:
            self.waking[llc] -= 1

    def run(self, now: int, cpu: int, pid: int) -> None:
        """CPU runs PID from now on."""
        llc, old, waiting = self.llc[cpu], self.running[cpu], self.waiting[cpu]
        self.account(llc, now)
        if old > 0:
            self.stealable[llc] -= waiting
            self.runs_on.pop(old, None)
        elif old == IDLE:
            self.idle_cpus[llc] -= 1
            self.waking[llc] -= waiting > 0
        self.running[cpu] = pid
        if pid:
            self.stealable[llc] += waiting
            self.runs_on[pid] = cpu
        else:
            self.idle_cpus[llc] += 1
            self.waking[llc] += waiting > 0
        if old == UNKNOWN or (old == IDLE) != (pid == IDLE):
            self.changes[cpu].append((max(now, self.begin), pid == IDLE))

    def prime(self, events: list[Event]) -> None:
        """Makes each CPU run the prev of its first switch from the start."""
        for _, cpu, kind, what in events:
            if kind == "sched_switch" and self.running[cpu] == UNKNOWN:
                self.run(min(self.begin, events[0][0]), cpu, int(what[1]))

    def sched_switch(self, now: int, cpu: int, what: tuple[str, ...]) -> None:
        comm, prev, prio, state, _, following, _ = what
        prev_pid, next_pid = int(prev), int(following)
        if self.running[cpu] not in (UNKNOWN, prev_pid):
            self.gaps += 1
        if prev_pid:
            self.no_wait(now, prev_pid)
        if next_pid:
            self.no_wait(now, next_pid)
        self.run(now, cpu, next_pid)
        if prev_pid and state in ("R", "R+") and int(prio) >= FAIR and not bound(comm):
            self.wait(now, prev_pid, cpu)

    def sched_wakeup(self, now: int, _: int, what: tuple[str, ...]) -> None:
        comm, pid, prio, target = what
        if int(pid) not in self.runs_on and int(prio) >= FAIR and not bound(comm):
            self.wait(now, int(pid), int(target))

    sched_wakeup_new = sched_wakeup

    def sched_migrate_task(self, now: int, _: int, what: tuple[str, ...]) -> None:
        pid, target = int(what[1]), int(what[4])
        if pid in self.waits_on:
            self.wait(now, pid, target)

    def sched_process_exit(self, now: int, _: int, what: tuple[str, ...]) -> None:
        self.no_wait(now, int(what[1]))

    def finish(self) -> None:
        for llc in range(len(self.last)):
            self.account(llc, self.end)


def idle_times(changes: list[tuple[int, bool]], end: int) -> Iterator[int]:
    """The lengths (ns) of a CPU's idle periods."""
    ends = [now for now, _ in changes[1:]] + [end]
    for (start, idle), stop in zip(changes, ends):
        if idle and stop > start:
            yield stop - start


def full_busy(events: list[Event], changes: list[list[tuple[int, bool]]], end: int) -> Optional[float]:
    """FULL BUSY (see the top of the file), in percent; None without a fork. Unknown time counts as busy."""
    start = max((now for now, _, kind, _ in events if kind == "sched_wakeup_new"), default=end)
    stop = min((now for now, _, kind, _ in events if kind == "sched_process_exit" and now > start), default=end)
    if stop <= start:
        return None
    idle = 0
    for cpu in changes:
        ends = [now for now, _ in cpu[1:]] + [end]
        idle += sum(max(0, min(after, stop) - max(now, start)) for (now, is_idle), after in zip(cpu, ends) if is_idle)
    return 100 - 100 * idle / (len(changes) * (stop - start))


def mark(where: str, header: dict[str, str], key: str) -> int:
    """The time (ns) of the header's begin or end."""
    found = re.fullmatch(r"(\d+)(?:\.(\d+))?", header.get(key, ""))
    if not found:
        raise AbError(f"{where}: its {key} '{header.get(key, '')}' is not a time in seconds; record the trace again")
    return nanoseconds(found[1], found[2] or "0")


def cpus_used(kind: str, cpu: int, what: tuple[str, ...]) -> tuple[int, ...]:
    """The CPUs that an event names."""
    if kind == "sched_migrate_task":
        return cpu, int(what[3]), int(what[4])
    if PATTERNS[kind] is WAKEUP:
        return cpu, int(what[3])
    return (cpu,)


def analyse(lines: Iterable[str], llcs: list[list[int]], where: str = "trace") -> Trace:
    """Reads a trace. LLCS has the CPUs of each LLC, all CPUs from 0 on. Raises AbError if the trace cannot be used."""
    header, events = read(lines, where)
    cpus = sum(map(len, llcs))
    if header.get("overruns", "0") != "0":
        raise AbError(f"{where}: {header['overruns']} events were overwritten; record the trace again with a larger buffer")
    highest = max(max(cpus_used(kind, cpu, what)) for _, cpu, kind, what in events)
    if header.get("cpus", str(cpus)) != str(cpus) or highest >= cpus:
        raise AbError(f"{where}: has {max(highest + 1, int(header.get('cpus', 0)))} CPUs, but machine/topology has {cpus}; "
                      "record the trace again")
    begin, end = mark(where, header, "begin"), mark(where, header, "end")
    if end <= begin:
        raise AbError(f"{where}: its end is not after its begin; record the trace again")

    sweep = Sweep(llcs, begin, end)
    sweep.prime(events)
    handlers = {kind: getattr(sweep, kind) for kind in PATTERNS}
    for now, cpu, kind, what in events:
        if now >= end:
            break
        handlers[kind](now, cpu, what)
    sweep.finish()

    if sweep.gaps:
        raise AbError(f"{where}: {sweep.gaps} switches do not fit the switch before: events are missing; record the trace again")
    lengths = [list(idle_times(changes, end)) for changes in sweep.changes]
    whole = cpus * (end - begin) / 100
    known = sum(end - changes[0][0] for changes in sweep.changes if changes)
    return Trace(llcs=llcs, begin=begin, end=end, wasted=sweep.wasted_ns / whole,
                 latency=sweep.latency_ns / whole, unknown=100 - known / whole,
                 idle=sum(map(sum, lengths)) / whole, full_busy=full_busy(events, sweep.changes, end), idle_ns=list(map(sum, lengths)),
                 idle_periods=list(map(len, lengths)), changes=sweep.changes, shares=sweep.shares)


@dataclass
class Raster:
    """The states of the CPUs in each cell, as shares (0 to 1); a row for each CPU, ordered by LLC."""

    busy: numpy.ndarray
    idle: numpy.ndarray
    wasted: numpy.ndarray
    unknown: numpy.ndarray


def raster(trace: Trace, columns: int) -> Raster:
    """COLUMNS cells, from the begin of the run to its end. idle does not include wasted."""
    edges = numpy.linspace(trace.begin, trace.end, columns + 1)
    cell = edges[1] - edges[0]
    rows = []
    for members, shares in zip(trace.llcs, trace.shares):
        share_at, share_sum = numpy.array(shares).T
        for cpu in members:
            rows.append(cpu_row(trace.changes[cpu], share_at, share_sum, edges) / cell)
    busy, idle, wasted = numpy.array(rows).transpose(1, 0, 2)
    return Raster(busy, idle - wasted, wasted, 1 - busy - idle)


def cpu_row(changes: list[tuple[int, bool]], share_at: numpy.ndarray, share_sum: numpy.ndarray,
            edges: numpy.ndarray) -> numpy.ndarray:
    """For one CPU the ns busy, idle and wasted between the edges."""
    if not changes:
        return numpy.zeros((3, len(edges) - 1))
    at = numpy.array([now for now, _ in changes], dtype=float)
    is_idle = numpy.array([idle for _, idle in changes], dtype=float)
    # The state at an edge is that of the last change before it; before the first change it is unknown.
    state = numpy.searchsorted(at, edges, side="right") - 1

    def integral(points: numpy.ndarray, values: numpy.ndarray, factor: numpy.ndarray) -> numpy.ndarray:
        """For each edge the sum of factor * (growth of values) over the time before it."""
        sums = numpy.concatenate([[0], numpy.cumsum(numpy.diff(values) * factor[:-1])])
        return numpy.where(state < 0, 0, sums[state] + factor[state] * (points - values[state]))

    ones = numpy.ones_like(is_idle)
    known = integral(edges, at, ones)
    idle = integral(edges, at, is_idle)
    wasted = integral(numpy.interp(edges, share_at, share_sum), numpy.interp(at, share_at, share_sum), is_idle)
    return numpy.diff(numpy.array([known - idle, idle, wasted]), axis=1)
