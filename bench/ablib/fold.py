# SPDX-License-Identifier: GPL-2.0
"""Folds the raw files of a comparison into DIR/runs.csv: a row for each run, also for failed ones. And the traces into DIR/busy.csv,
and the lines of memory that move into DIR/lines.csv.

runs.csv, format 2. Numbers have full precision. A cell is empty where the kernel or the program does not tell. The columns, in order:

    format          2
    host            the machine that ran it: `host` of the unit or of the plan, else `here`
    machine         SxCxT (sockets x cores x threads) of a simulated machine, or `here`
    boot            UNIT/BOOT_ID: what runs share that ran between one start of a machine and its end
    unit            the directory or archive in raw/ that has the run
    load            name of the load, or `command`
    level           how much of it: a number, or a multiple of the CPUs; empty for a load without levels
    tasks           the level as a number
    pair            number of the pair, from 1. 0: a traced run, whose times do not count
    position        position of the run in its pair, from 1
    side            label of the side
    command         as a shell would read it; of a load, its name, its level and its amount of work
    seed            of the simulated machine
    exit            status of the command
    valid           yes, or the reason why the run does not count
    time_ns         ns of the clock around the command
    cpus            CPUs
    metric:NAME     a metric of the load, in the plan's unit; a column each
    busy_percent    %   share of the run's time in which a CPU ran tasks. It may exceed 100: the kernel counts the wait of a task that
                        is preempted on its way to sleep as running
    slice_ms        ms  average time slice
    sched               calls of schedule()
    idle                of these, how many found nothing to run
    wake                wake-ups
    find_percent    %   share of the run's time in the newly idle balance and in stealing
    steal               tasks stolen
    across              wake-ups of a task onto a CPU of another NUMA node than the waker's (machines of several nodes)
    pulled              wake-ups whose search for a CPU began at the waker's, although the task last ran on another node (wake_affine())
    wasted_percent      %   share of CPUs x time in which a CPU is idle while a task waits on a busy CPU of the same LLC
    full_busy_percent   %   share of CPUs x time that is not idle between the last fork and the first exit
    idle_mean_us        us  mean length of an idle period
    perf:EVENT      a counter of perf stat; a column each
    memory:KEY      on a simulated machine with caches: what the machine counted in the run, and in about 0.7 ms around it, in which the
                    collector reads the clock; a column each

KEY is one of sim/machine --sections, such as accesses, from_core (where an access found its line: in another core), lines_moves (how often a
CPU took a line from another core, LLC or node); or stalled_percent, the share of the CPUs' busy time in which they waited for memory.

busy_percent to pulled are averages over the CPUs, from /proc/schedstat (versions 15 to 17) and sched/idle_search (version 1).
wasted_percent to idle_mean_us are those of a traced run; traces.py explains them.
plan says the unit and the direction of each metric.

busy.csv has a line for each traced run and CPU, with the columns format load level side cpu llc (its first CPU) ns (length of the run) busy
wasted. The run is cut into equal parts. busy and wasted have a digit for each, from 0 to 9: the share of it, in ninths, in which the CPU was
busy (or idle and wasted). They are empty if the trace does not say what the CPU does.

lines.csv has the lines of memory for which CPUs waited because other CPUs had or wanted them (lines.py explains their names), with the
columns format load level side name lines moves cost_ns queued_ns upgrades share_percent runs members places. Lines of all CPUs, and
those of other memory by function, are added up, over all runs that count. lines: how many. cost_ns: waits for them; queued_ns: of these, for
a line on its way to somebody else. upgrades: stores that made copies elsewhere invalid. share_percent: of all waits for memory. runs: how
many. members, places: what was used most often in these lines, and code that waited most often.
"""

import csv
import hashlib
import io
import re
import shlex
import tarfile
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterable, Iterator, Optional, Sequence

from . import lines, traces
from .plan import FORMAT, AbError, Case, Plan, read_plan, write_whole

HEAD = ("format", "host", "machine", "boot", "unit", "load", "level", "tasks", "pair", "position", "side", "command", "seed", "exit",
        "valid", "time_ns", "cpus")
# What tells runs apart; and the columns that depend on where a simulated machine ran. The others repeat to the digit.
RUN = ("load", "level", "pair", "side")
OF_HOST = ("format", "host", "boot", "unit")
SCHEDSTAT = ("busy_percent", "slice_ms", "sched", "idle", "wake", "find_percent", "steal", "across", "pulled")
TRACED = ("wasted_percent", "full_busy_percent", "idle_mean_us")
LINES = ("format", "load", "level", "side", "name", "lines", "moves", "cost_ns", "queued_ns", "upgrades", "share_percent", "runs", "members",
         "places")
BUSY = ("format", "load", "level", "side", "cpu", "llc", "ns", "busy", "wasted")
# Cells of a run in busy.csv: at most so many for a CPU, and for all CPUs.
CELLS, ALL_CELLS = 400, 16000

# The nine fields of a cpu line of /proc/schedstat, counted from 0.
SCHED_COUNT, SCHED_GOIDLE, TTWU_COUNT, RQ_CPU_TIME, PCOUNT = 2, 3, 4, 6, 8
# The fields of a domain line of versions 15 to 17, counted from its end.
TTWU_WAKE_REMOTE, TTWU_MOVE_AFFINE = -3, -2
CPU_MASK = re.compile("[0-9a-f]+(,[0-9a-f]+)*")

REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
AGAIN = "run the same bench/ab command again: it measures this again"


def cksum(data: bytes) -> int:
    """The CRC that POSIX cksum prints. It is zlib's with the bits of each byte, and of the result, in reverse order."""
    length = len(data).to_bytes((len(data).bit_length() + 7) // 8, "little")
    crc = zlib.crc32((data + length).translate(REVERSED), 0xffffffff)
    return int(f"{crc:032b}"[::-1], 2)


@dataclass
class Unit:
    """What one start of the collector wrote: by CASE/PAIR-SIDE, and of machine/, the files' contents by name."""

    name: str
    path: Path
    runs: dict[str, dict[str, bytes]] = field(default_factory=dict)
    machine: dict[str, bytes] = field(default_factory=dict)


def text_of(files: dict[str, bytes], name: str) -> str:
    return files.get(name, b"").decode(errors="replace").strip("\n")


def add_file(unit: Unit, parts: tuple[str, ...], data: bytes) -> None:
    """A file of a unit by its path; what is neither of a whole run nor of machine/ is left out."""
    if len(parts) >= 2 and parts[0] == "machine":
        unit.machine["/".join(parts[1:])] = data
    elif len(parts) == 4 and parts[0] == "runs" and not parts[2].startswith("."):
        unit.runs.setdefault(f"{parts[1]}/{parts[2]}", {})[parts[3]] = data


def read_archive(path: Path) -> Unit:
    """Raises ValueError, with a text, for an archive that is not whole."""
    unit, end = Unit(path.stem, path), 0
    try:
        # Opened once: while it is read, a longer archive may take its name.
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                end = member.offset_data + (member.size + 511) // 512 * 512 if member.isreg() else member.offset_data
                if not member.isreg():
                    continue
                data = archive.extractfile(member).read()
                if len(data) != member.size:
                    raise ValueError("the archive is truncated")
                parts = tuple(part for part in member.name.split("/") if part not in ("", "."))
                add_file(unit, parts if parts[0] in ("runs", "machine") else parts[1:], data)
            file.seek(end)
            # An archive ends with two blocks of zeros. One that is cut between two files has none.
            if file.read(1024) != bytes(1024):
                raise ValueError("the archive is truncated")
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(f"the archive is truncated or damaged ({error})") from error
    return unit


def read_directory(path: Path, run: str = "*/*") -> Unit:
    unit = Unit(path.name, path)
    for file in sorted(path.glob("machine/*")) + sorted(path.glob(f"runs/{run}/*")):
        if file.is_file():
            add_file(unit, file.relative_to(path).parts, file.read_bytes())
    return unit


def read_unit(path: Path, run: str = "*/*") -> Unit:
    """All of it, or one run of a directory. Raises ValueError, with a text, for one that is not whole."""
    try:
        unit = read_directory(path, run) if path.is_dir() else read_archive(path)
    except OSError as error:
        raise ValueError(f"cannot read it: {error.strerror}") from error
    if not unit.runs:
        raise ValueError("it has no run")
    for name, files in unit.runs.items():
        reason = check_run(files)
        if reason:
            raise ValueError(f"runs/{name}: {reason}")
    return unit


def check_run(files: dict[str, bytes]) -> Optional[str]:
    """Why a run directory is not whole, by its file `sum`, of cksum or sha256sum; None if it is."""
    if "sum" not in files:
        return "no file sum"
    listed = {}
    for line in text_of(files, "sum").splitlines():
        match = re.fullmatch(r"([0-9]+ [0-9]+|[0-9a-f]{64} ) ?(\S+)", line)
        if not match:
            return f"sum: not a line of cksum or sha256sum: {line}"
        listed[match[2]] = match[1].strip()
    for name, data in files.items():
        if name != "sum" and listed.get(name) not in (f"{cksum(data)} {len(data)}", hashlib.sha256(data).hexdigest()):
            return f"{name} does not fit its sum"
    missing = sorted(set(listed) - set(files))
    return f"{missing[0]} is missing" if missing else None


def check_unit(path: Path) -> Optional[str]:
    """Why a unit, an archive or a directory, is not whole; None if it is."""
    try:
        read_unit(Path(path))
    except ValueError as error:
        return str(error)
    return None


@dataclass
class Snapshot:
    """What the kernel counted up to a moment, by CPU; by CPU and domain, the domain's CPUs and its wake-ups."""

    cpus: dict[str, list[int]] = field(default_factory=dict)
    domains: dict[tuple[str, str], tuple[int, int, int]] = field(default_factory=dict)
    version: str = ""


def read_schedstat(text: str) -> Snapshot:
    """Raises ValueError or IndexError where it is not understood."""
    snapshot, cpu = Snapshot(), ""
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["version"]:
            snapshot.version = words[1]
        elif words and re.fullmatch("cpu[0-9]+", words[0]):
            if len(words) != 10:
                raise ValueError(f"the line of {words[0]} has {len(words) - 1} fields, not 9")
            cpu = words[0]
            snapshot.cpus[cpu] = [int(word) for word in words[1:]]
        elif words and words[0].startswith("domain"):
            # Since version 17 the domain's name stands before the mask.
            mask = next((word for word in words[1:3] if CPU_MASK.fullmatch(word)), None)
            if mask is None:
                raise ValueError(f"the line of {words[0]} has no mask")
            snapshot.domains[cpu, words[0]] = (int(mask.replace(",", ""), 16), int(words[TTWU_WAKE_REMOTE]), int(words[TTWU_MOVE_AFFINE]))
    return snapshot


def read_idle_search(text: str) -> Optional[dict[str, list[int]]]:
    """By CPU: steals, failed attempts, ns in the newly idle balance, ns in stealing. None if the version is not 1."""
    rows = [line.split() for line in text.splitlines()]
    if ["version", "1"] not in [row[:2] for row in rows]:
        return None
    return {row[0]: [int(word) for word in row[1:5]] for row in rows if len(row) >= 5 and row[0].startswith("cpu")}


def wrapped(difference: int) -> int:
    """The difference of two readings of a 32-bit counter."""
    return difference + (1 << 32) if difference < 0 else difference


def nodes_of(topology: str) -> dict[int, str]:
    """For each CPU its NUMA node."""
    return {cpu: words.get("node", "0") for cpu, words in traces.topology_of(topology).items()}


def schedstat_figures(files: dict[str, bytes], window: int, nodes: dict[int, str]) -> dict[str, float]:
    """The columns SCHEDSTAT, as far as the kernel tells. Raises ValueError or IndexError where it is not understood."""
    before, after = (read_schedstat(text_of(files, f"schedstat.{when}")) for when in ("before", "after"))
    if not after.cpus or window <= 0 or after.version not in ("15", "16", "17") or before.cpus.keys() != after.cpus.keys():
        return {}
    count = len(after.cpus)

    def total(index: int) -> list[int]:
        return [after.cpus[cpu][index] - before.cpus[cpu][index] for cpu in after.cpus]

    busy, slices = sum(total(RQ_CPU_TIME)), sum(map(wrapped, total(PCOUNT)))
    figures = {"busy_percent": 100 * busy / (window * count)}
    if slices > 0:
        figures["slice_ms"] = busy / slices / 1e6
    for name, index in (("sched", SCHED_COUNT), ("idle", SCHED_GOIDLE), ("wake", TTWU_COUNT)):
        figures[name] = sum(map(wrapped, total(index))) / count
    searches = [read_idle_search(text_of(files, f"idle_search.{when}")) for when in ("before", "after")]
    if None not in searches:
        zeros = [0, 0, 0, 0]
        spent = [[searches[1].get(cpu, zeros)[i] - searches[0].get(cpu, zeros)[i] for cpu in after.cpus] for i in range(4)]
        steals, newidle, stealing = sum(map(wrapped, spent[0])), sum(spent[2]), sum(spent[3])
        figures["find_percent"] = 100 * (newidle + stealing) / (window * count)
        figures["steal"] = steals / count
    if len(set(nodes.values())) > 1 and after.domains:
        across = pulled = 0
        # A wake-up counts in the smallest domain that has both CPUs.
        for key, (mask, remote, affine) in after.domains.items():
            if len({node for cpu, node in nodes.items() if mask >> cpu & 1}) > 1:
                _, remote_before, affine_before = before.domains.get(key, (0, 0, 0))
                across += wrapped(remote - remote_before)
                pulled += wrapped(affine - affine_before)
        figures |= {"across": across / count, "pulled": pulled / count}
    return figures


def perf_counters(text: str) -> dict[str, float]:
    """Counters of perf stat, by event, from its lines with -x , or ; or without. What it did not count is left out."""
    counters = {}
    for line in text.splitlines():
        fields = re.split("[,;]", line.strip())
        if len(fields) >= 4 and re.fullmatch(r"[0-9.]+|<.*>", fields[0]):
            value, event = fields[0], fields[2]
        else:
            match = re.match(r"\s*([0-9][0-9,]*\.?[0-9]*)\s+(?:msec\s+)?([A-Za-z][^\s]*)", line)
            if not match or match[2] == "seconds":
                continue
            value, event = match[1].replace(",", ""), match[2]
        try:
            counters[event] = float(value) if "." in value else int(value)
        except ValueError:
            continue
    return counters


def count_cpus(files: dict[str, bytes]) -> Optional[int]:
    """From schedstat, or else from the list of CPUs that are online (0-3,5)."""
    listed = len(re.findall("^cpu[0-9]+ ", text_of(files, "schedstat.after"), re.M))
    if listed:
        return listed
    ranges = [part.split("-") for part in text_of(files, "online").split(",")]
    if all(len(ends) <= 2 and all(end.strip().isdigit() for end in ends) for ends in ranges):
        return sum(int(ends[-1]) - int(ends[0]) + 1 for ends in ranges)
    return None


def one_line(text: str) -> str:
    return " ".join(text.split())


def row_of(unit: Unit, name: str, plan: Plan) -> dict[str, object]:
    """The row of a run."""
    files = unit.runs[name]
    where = f"{unit.path}: runs/{name}"
    words = text_of(files, "schedule").split()
    if len(words) < 4 or not words[1].isdigit() or not words[2].isdigit() or name != f"{words[0]}/{words[1]}-{words[3]}":
        raise AbError(f"{where}/schedule: not CASE PAIR POSITION SIDE FEATURES; delete {unit.path} and {AGAIN}")
    case, pair, position, side = words[0], int(words[1]), int(words[2]), words[3]
    for what, known, key in (("case", map(str, plan.cases), case), ("side", plan.sides, side)):
        if key not in known:
            raise AbError(f"{where}: {what} '{key}' is none of {plan.path}; use another --out, or delete {unit.path} and {AGAIN}")
    case = Case.parse(case)
    boot, topology = text_of(files, "boot_id") or "unknown", text_of(unit.machine, "topology")
    clocks = [text_of(files, what).strip() for what in ("began_ns", "ended_ns")]
    time = int(clocks[1]) - int(clocks[0]) if all(clock.isdigit() for clock in clocks) else None
    valid = one_line(text_of(files, "valid")) or "it does not say that it is valid"
    if valid == "yes" and (time is None or time <= 0):
        valid = "the clock did not advance"
    command = text_of(files, "command").splitlines()
    row = {"format": FORMAT, "host": text_of(unit.machine, "host") or plan.get("host", "here"), "machine": plan.get("machine", "here"),
           "boot": f"{unit.name}/{boot}", "unit": unit.name, "load": case.load, "level": case.level,
           "tasks": text_of(files, "tasks").strip(), "pair": pair, "position": position, "side": side,
           "command": shlex.join(command) if case.load == "command" else " ".join(command), "seed": plan.seed(pair),
           "exit": text_of(files, "exit").strip() or "unknown", "valid": valid, "time_ns": time, "cpus": count_cpus(files)}
    output = "\n".join(text_of(files, what) for what in ("stdout", "stderr"))
    row |= {metric.column: metric.value(output) for metric in plan.metrics[case.load] if metric.name != "time"}
    try:
        row |= schedstat_figures(files, time or 0, nodes_of(topology))
    except (ValueError, IndexError):
        pass  # a schedstat of another form: the cells stay empty
    row |= {f"perf:{event}": value for event, value in perf_counters(text_of(files, "perf-stat")).items()}
    section = section_of(unit, files, time)
    if section:
        row |= memory_figures(section)
        if pair and (row["exit"], valid) == ("0", "yes"):
            row["lines"] = lines.grouped(lines.moving_lines(section, names_of(plan, side)))
    if pair == 0 and (row["exit"], valid) == ("0", "yes"):
        try:
            row |= traced_figures(files, topology)
        except AbError as error:
            row["valid"] = str(error)
    return row


# Files of names are large; by their path and time.
known_names: dict[tuple, lines.Names] = {}


def names_file(plan: Plan, side: str) -> Path:
    """The names of a side's kernel: DIR/names, or one for each side if they are kernels."""
    return plan.path.parent / (f"names-{side}" if plan.kernels else "names")


def names_of(plan: Plan, side: str) -> lines.Names:
    path = names_file(plan, side)
    key = (path, path.stat().st_mtime_ns) if path.exists() else ()
    if key not in known_names:
        known_names[key] = lines.Names(path if key else None)
    return known_names[key]


def section_of(unit: Unit, files: dict[str, bytes], time: Optional[int]) -> Optional[lines.Section]:
    """What a simulated machine counted in the run; None if it did not, or if the program itself marked sections."""
    number = text_of(files, "section")
    if not number:
        return None
    for section in lines.read_sections(text_of(unit.machine, "sections"), f"{unit.path}: machine/sections"):
        counts = section.counts
        if counts["section"] == int(number) and "stalled_ns" in counts and counts["end_ns"] - counts["begin_ns"] >= (time or 0):
            return section
    return None


def memory_figures(section: lines.Section) -> dict[str, object]:
    """The columns memory:KEY."""
    counts = {key: value for key, value in section.counts.items() if key not in ("section", "begin_ns", "end_ns")}
    share = {"stalled_percent": 100 * counts["stalled_ns"] / counts["busy_ns"]} if counts.get("busy_ns") else {}
    return {f"memory:{key}": value for key, value in (share | counts).items()}


def line_rows(rows: Iterable[dict[str, object]]) -> Iterator[dict[str, object]]:
    """The rows of lines.csv, by case and side, most cost first."""
    groups: dict[tuple, list[dict[str, object]]] = {}
    for row in rows:
        groups.setdefault((row["load"], row["level"], row["side"]), []).append(row)
    for (load, level, side), of_side in groups.items():
        stalled = sum(row["memory:stalled_ns"] for row in of_side)
        for line in lines.grouped(line for row in of_side for line in row["lines"]):
            yield {"format": FORMAT, "load": load, "level": level, "side": side, "name": line.name, "lines": line.count, "moves": line.moves,
                   "cost_ns": line.cost_ns, "queued_ns": line.queued_ns, "upgrades": line.upgrades,
                   "share_percent": 100 * line.cost_ns / stalled if stalled else "", "runs": len(of_side),
                   "members": " ".join(name for name, _ in line.members.most_common(lines.SHOWN)), "places": " ".join(line.top_places)}


def traced_figures(files: dict[str, bytes], topology: str) -> dict[str, object]:
    """The columns TRACED, and under `busy`, for each CPU the last columns of BUSY. Raises AbError for a trace that cannot be used."""
    llcs = traces.llcs_of(topology)
    trace = traces.analyse(io.TextIOWrapper(io.BytesIO(files.get("trace", b"")), errors="replace"), llcs)
    cells = traces.raster(trace, max(50, min(CELLS, ALL_CELLS // sum(map(len, llcs)))))
    owner = {cpu: members[0] for members in llcs for cpu in members}

    def digits(shares: Iterable[float]) -> str:
        return "".join(str(round(9 * min(1, max(0, share)))) for share in shares)

    return {"wasted_percent": trace.wasted, "full_busy_percent": trace.full_busy, "idle_mean_us": trace.idle_mean_us,
            "busy": [(cpu, owner[cpu], trace.end - trace.begin, *(("", "") if unknown[0] > 0.5 else (digits(busy), digits(wasted))))
                     for cpu, busy, wasted, unknown in zip(owner, cells.busy, cells.wasted, cells.unknown)]}


def unit_paths(directory: Path) -> Iterator[Path]:
    """The units of a comparison. Names that begin with a dot are not finished yet."""
    raw = directory / "raw"
    for path in sorted(raw.iterdir()) if raw.is_dir() else []:
        if path.name.startswith("."):
            continue
        # A directory without a run has just begun.
        if path.suffix == ".tar" or any(not run.name.startswith(".") for run in path.glob("runs/*/*")):
            yield path


# Rows that were made already, by the file that tells them apart: a table after each pair reads and makes only what is new.
known_rows: dict[tuple, list[dict[str, object]]] = {}


def rows_of(path: Path, plan: Plan) -> Iterator[dict[str, object]]:
    """The rows of a unit: of an archive as a whole, of a directory run by run."""
    for run in sorted(path.glob("runs/*/[!.]*")) if path.is_dir() else [path]:
        stamp = run / "sum" if path.is_dir() else run
        state = stamp.stat() if stamp.exists() else None
        key = (run, state and (state.st_mtime_ns, state.st_size), repr(plan.lines))
        if key not in known_rows:
            try:
                unit = read_unit(path, str(run.relative_to(path / "runs")) if path.is_dir() else "")
            except ValueError as error:
                raise AbError(f"{path}: incomplete or damaged: {error}; {AGAIN}") from error
            known_rows[key] = [row_of(unit, name, plan) for name in sorted(unit.runs)]
        yield from known_rows[key]


def pair_of(row: dict[str, object]) -> tuple:
    return tuple(row[key] for key in ("host", "load", "level", "pair"))


def fold(directory: Path) -> Path:
    """Writes DIR/runs.csv, and DIR/busy.csv if there are traced runs, from DIR/plan and DIR/raw. Returns the path of runs.csv."""
    directory = Path(directory)
    plan = read_plan(directory)
    known: dict[tuple, dict[str, object]] = {}
    for path in unit_paths(directory):
        for row in rows_of(path, plan):
            key = row["host"], row["load"], row["level"], row["pair"], row["side"]
            if key in known:
                raise AbError(f"{path}: {Case(row['load'], row['level'])}, pair {row['pair']}, side {row['side']} is also in unit "
                              f"{known[key]['unit']}; delete one of the two units")
            known[key] = row
    cases, sides = plan.cases, plan.labels
    rows = sorted(known.values(), key=lambda row: (row["host"], cases.index(Case(row["load"], row["level"])), row["pair"], row["position"],
                                                   sides.index(row["side"])))
    events = sorted({column for row in rows for column in row if column.startswith("perf:")})
    memory = list(dict.fromkeys(column for row in rows for column in row if column.startswith("memory:")))
    metrics = dict.fromkeys(metric.column for some in plan.metrics.values() for metric in some if metric.name != "time")
    path = directory / "runs.csv"
    write_csv(path, [*HEAD, *metrics, *SCHEDSTAT, *TRACED, *events, *memory], rows)
    traced = [row for row in rows if "busy" in row]
    if traced:
        write_csv(directory / "busy.csv", BUSY, (row | dict(zip(BUSY[4:], cpu)) for row in traced for cpu in row["busy"]))
    # as in the table: only pairs whose runs are all good
    good = Counter(pair_of(row) for row in rows if (row["exit"], row["valid"]) == ("0", "yes"))
    moved = [row for row in rows if "lines" in row and good[pair_of(row)] == len(sides)]
    if moved:
        write_csv(directory / "lines.csv", LINES, line_rows(moved))
    return path


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[dict[str, object]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue().encode())
