# SPDX-License-Identifier: GPL-2.0
"""A comparison that is being measured: its directory, what is to be done in which order, what a person sees meanwhile, and the
measurement on this machine."""

import contextlib
import csv
import fcntl
import hashlib
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Optional

from . import features, fold, hosts, loads, table
from .plan import AbError, Case, Metric, read_plan

TOP = Path(__file__).resolve().parents[2]
# Who says something; bench/campaign changes it.
PROGRAM = "ab"
# After this many pairs of a case, a command or a metric that has always failed ends the comparison.
ENOUGH = 3
# To read out a trace takes so many times longer than the run.
TRACED_WEIGHT = 5
# A case and a pair; pair 0 is the traced one.
Step = tuple[Case, int]


class Stop(Exception):
    """Ends the program with a line of its own, if there is one, and an exit status."""

    def __init__(self, status: int, text: str = ""):
        super().__init__(text)
        self.status = status


def say(text: str) -> None:
    print(f"{PROGRAM}: {text}", file=sys.stderr, flush=True)


def sha(*paths: Path) -> str:
    """The first digits of the SHA-256 of files, one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(Path(path).read_bytes())
    return digest.hexdigest()[:16]


def project() -> str:
    try:
        done = subprocess.run(["git", "-C", str(TOP), "describe", "--always", "--dirty", "--tags"], capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


class Directory:
    """DIR: locked as long as this program runs."""

    def __init__(self, name: Optional[str]):
        self.path = Path(name or time.strftime("ab-%Y%m%d-%H%M%S")).absolute()
        self.raw = self.path / "raw"
        self.made, self.fresh = not self.path.exists(), False
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise Stop(2, f"{self.path}: cannot be made: {error.strerror} (--out)") from error
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Stop(2, f"{self.path}: another bench/ab uses this directory; wait for it to end, or choose another --out") from error

    def set_plan(self, lines: list[str]) -> None:
        """Writes the plan, or refuses one that differs."""
        plan = self.path / "plan"
        if not plan.exists():
            others = [name for name in os.listdir(self.path) if name not in (".lock", ".plan")]
            if others:
                raise Stop(2, f"{self.path}: not empty, and bench/ab did not make it; choose another --out")
            self.fresh = True
            new = self.path / ".plan"
            new.write_text("".join(line + "\n" for line in lines))
            new.rename(plan)
            return
        there = plan.read_text().splitlines()
        free = ("project ", "order_seed ")
        old, new = ([line for line in text if not line.startswith(free)] for text in (there, lines))
        if old != new:
            for line in old:
                if line not in new:
                    say(f"in the plan: {line}")
            for line in new:
                if line not in old:
                    say(f"now: {line}")
            raise Stop(2, f"{self.path}: has runs of another comparison (the differences are above); choose another --out")

    def hosts_place(self, *what: object) -> str:
        """The name of the directory on other hosts that is for this one."""
        return hosts.PLACE + "/" + hosts.identity(os.uname().nodename, self.path, self.order_seed(), *what)

    def order_seed(self) -> int:
        return int(re.search("^order_seed ([0-9]+)$", (self.path / "plan").read_text(), re.M)[1])

    def clean(self) -> None:
        """Makes DIR/raw, and deletes what a call that was killed has left there."""
        self.raw.mkdir(exist_ok=True)
        for rest in self.raw.glob(".*"):
            # What was killed may still delete some of it.
            shutil.rmtree(rest, ignore_errors=True) if rest.is_dir() else rest.unlink(missing_ok=True)

    def damaged(self, archive: Path) -> bool:
        """Is it there, but not whole? Then it is deleted."""
        why = archive.exists() and fold.check_unit(archive)
        if why:
            say(f"{archive}: incomplete or damaged ({why}); it is measured again")
            archive.unlink()
        return bool(why)

    def discard(self) -> None:
        """Deletes what this call has made, as there is no run in it."""
        if self.fresh:
            shutil.rmtree(self.raw, ignore_errors=True)
            for path in (self.path / "plan", *self.path.glob("names*")):
                path.unlink(missing_ok=True)
        if self.made:
            shutil.rmtree(self.path, ignore_errors=True)


def collector(options) -> dict[str, tuple[bytes, bool]]:
    """What is copied to a machine under test, for hosts.tar_of; the plan has its hash."""
    names = ["collect.sh", "llc.awk"]
    files = {"features": hosts.file_of(features.FILE)}
    if not options.command:
        names += ["load.c"] * any(options.loads[case.load].program == "load" for case in options.cases)
        names += sorted(f"loads/{path.name}" for path in (loads.COLLECT / "loads").iterdir())
    return files | {name: hosts.file_of(loads.COLLECT / name) for name in names}


class Job:
    """What is to be measured, in which order."""

    def __init__(self, options, directory: Directory):
        self.options, self.directory, self.plan = options, directory, read_plan(directory.path)
        pairs = [*range(1, options.runs + 1), *[0] * options.trace]
        by_weight = sorted(options.cases, key=lambda case: -self.weight((case, 1)))
        # There is a whole table as soon as each case has its first pair.
        self.steps: list[Step] = [(case, pair) for pair in pairs for case in by_weight]

    def weight(self, step: Step) -> float:
        """How long a pair takes, compared with others; 1 is for the boot of a simulated machine."""
        (case, pair), options = step, self.options
        if options.loads[case.load].amount == "scale":
            return 2 if pair else 1 + TRACED_WEIGHT
        return 1 + number(case) / 300 * (options.loops if pair else TRACED_WEIGHT * options.trace_loops)

    def schedule(self, host: str = "") -> dict[Step, dict[str, str]]:
        """By step and side the lines for the collector. Of each two pairs, the second has the order of the first reversed."""
        made = {}
        seed = f"{self.directory.order_seed()} {host}".strip()
        for case, pair in self.steps:
            order = list(self.options.sides)
            random.Random(f"{seed} {case} {(pair - 1) // 2}").shuffle(order)
            if pair % 2 == 0:
                order.reverse()
            made[case, pair] = {side: f"{case} {pair} {position} {side} {self.options.sides[side]}"
                                for position, side in enumerate(order, 1)}
        return made

    def collector_words(self) -> tuple[list[str], list[str]]:
        """The collector's options, and its command."""
        options = self.options
        words = ["--perf-stat"] * options.perf_stat
        for name in ("loops", "trace_loops", "scale"):
            words += [f"--{name.replace('_', '-')}", str(getattr(options, name))] * bool(getattr(options, name))
        return words, ["--", *options.command] if options.command else []

    def whole(self, runs, schedule: dict[Step, dict[str, str]]) -> set[Step]:
        """The steps of which all runs are there."""
        return {(case, pair) for (case, pair), lines in schedule.items() if all(f"{case}/{pair}-{side}" in runs for side in lines)}

    def rows(self) -> list[dict[str, str]]:
        """runs.csv, made anew."""
        with fold.fold(self.directory.path).open(newline="") as file:
            return list(csv.DictReader(file))

    def hopeless(self, case: Case, rows: list[dict[str, str]]) -> str:
        """Why this case can have no result, from its runs so far; or nothing."""
        command = "the command" if self.options.command else str(case)
        for side in self.options.sides:
            mine = [row for row in rows if (case_of(row), row["side"]) == (case, side) and row["pair"] != "0"]
            good = [row for row in mine if row["exit"] == "0" and row["valid"] == "yes"]
            if mine and not good:
                failed = [row for row in mine if row["exit"] != "0"]
                if failed:
                    return (f"{command} failed in {len(failed)} of {len(mine)} runs of side {side} (status {failed[0]['exit']}); "
                            f"its output: {self.where(failed[0])}")
                return f"{command}: none of {len(mine)} runs of side {side} is valid: {mine[0]['valid']}".removeprefix("the command: ")
            for metric in self.plan.metrics[case.load]:
                if good and not any(row[metric.column] for row in good):
                    way_out = "correct --metric" if self.options.command else f"bench/collect/loads/{case.load} does not fit it"
                    return (f"metric {metric.name}: no number in the output of {len(good)} runs of side {side}"
                            f"{'' if self.options.command else f' of {case}'}; {way_out}; the output: {self.where(good[0])}")
        return ""

    def where(self, row: dict[str, str]) -> str:
        """Of a run's output."""
        unit = self.directory.raw / row["unit"]
        inside = f"runs/{case_of(row)}/{row['pair']}-{row['side']}/std*"
        return f"{unit}/{inside}" if unit.is_dir() else f"tar -xOf {unit}.tar --wildcards '{inside}'"


def case_of(row: dict[str, str]) -> Case:
    return Case(row["load"], row["level"])


def number(case: Case) -> float:
    """The level."""
    return float(case.level.rstrip("x") or 1)


class Progress:
    """A line for each pair, and a table as soon as each case has a pair; on a terminal, the table in place.

    Pairs are tuples of a host, a case and a number.
    """

    def __init__(self, job: Job, done: set, names: tuple[str, ...] = ("",)):
        self.job, self.hosts = job, len(names)
        self.done, self.said = done, set(done)
        self.total = len(job.steps) * len(names)
        self.all_weight = len(names) * sum(map(job.weight, job.steps))
        self.first_weight, self.begin = self.weight(), time.monotonic()
        self.terminal = sys.stderr.isatty()
        self.height, self.cost, self.last, self.text = 0, 0.0, 0.0, []
        self.tabled = False
        # By case that has been looked at, why it can have no result.
        self.hopeless: dict[Case, str] = {}

    def weight(self) -> float:
        return sum(self.job.weight(key[1:]) for key in self.done)

    def left(self) -> str:
        spent, made = time.monotonic() - self.begin, self.weight() - self.first_weight
        if not made or len(self.done) == self.total:
            return ""
        seconds = spent / made * (self.all_weight - self.weight())
        return f"; about {seconds:.0f} s left" if seconds < 120 else f"; about {seconds / 60:.0f} min left"

    def pair_text(self, key: tuple, rows: list[dict[str, str]]) -> str:
        """What a pair says, in its main metric."""
        host, case, pair = key
        name = ", ".join([*[host] * bool(host), *[str(case)] * (not self.job.options.command), f"pair {pair}" if pair else "traced"])
        metric = self.job.plan.metrics[case.load][0]
        mine = {row["side"]: row for row in rows if (case_of(row), row["pair"]) == (case, str(pair)) and host in ("", row["host"])}
        values = {side: float(row[metric.column] or 0) if row["exit"] == "0" and row["valid"] == "yes" else 0 for side, row in mine.items()}
        base, *others = self.job.options.sides
        if not pair:
            return name
        return f"{name}: " + ", ".join(f"{side} " + difference(metric, values.get(base, 0), values.get(side, 0)) for side in others)

    def show(self, done: set, ended: bool = False) -> None:
        """Called when more pairs are done, and at the end. Raises Stop if no case can have a result."""
        self.done, now = done, time.monotonic()
        counts = Counter(case for _, case, pair in done if pair)
        due = [case for case, count in counts.items()
               if case not in self.hopeless and count >= min(ENOUGH, self.job.options.runs) * self.hosts]
        first = not self.tabled and len(counts) == len(self.job.options.cases)
        # To fold takes time that simulated machines could use.
        if due or first or ended or len(done) == self.total or now - self.last > 20 * self.cost:
            self.fold(due, first and not ended and len(done) < self.total)
            self.last = time.monotonic()
            self.cost = self.last - now
        if self.terminal:
            self.clear()
            lines = [*self.text, f"ab: {len(done)} of {self.total} pairs{self.left()}"]
            sys.stderr.write("\n".join(lines) + "\n")
            sys.stderr.flush()
            self.height = len(lines)

    def fold(self, due: list[Case], first: bool) -> None:
        rows = self.job.rows()
        if not self.terminal:
            order = {step: number for number, step in enumerate(self.job.steps)}
            for key in sorted(self.done - self.said, key=lambda key: order[key[1:]]):
                self.said.add(key)
                say(f"{self.pair_text(key, rows)}; {len(self.said)} of {self.total} pairs{self.left()}")
        for case in due:
            self.hopeless[case] = self.job.hopeless(case, rows)
            if self.hopeless[case] and len(self.job.options.cases) > 1:
                self.message(f"ab: {self.hopeless[case]}")
        if len(self.hopeless) == len(self.job.options.cases) and all(self.hopeless.values()):
            raise Stop(3, next(iter(self.hopeless.values())))
        if self.terminal or first:
            self.tabled = True
            try:
                self.text = table.table(self.job.directory.path).splitlines()
            except AbError as error:
                self.text = [f"ab: {error}"]
            if not self.terminal:
                print("\n".join(self.text), file=sys.stderr, flush=True)
            size = shutil.get_terminal_size()
            # What has scrolled away cannot be deleted.
            self.text = [line[:size.columns - 1] for line in self.text[:size.lines - 2]]

    def end(self, done: set) -> None:
        """What has not been said yet."""
        if done - self.said and not self.terminal:
            self.show(done, True)
        self.clear()

    def clear(self) -> None:
        if self.height:
            sys.stderr.write(f"\033[{self.height}F\033[J")
            sys.stderr.flush()
            self.height = 0

    def message(self, text: str) -> None:
        self.clear()
        print(text, file=sys.stderr, flush=True)


def difference(metric: Metric, base: float, value: float) -> str:
    """By how much a side is better, or larger if neither is better."""
    if min(base, value) <= 0:
        return "without a figure"
    return f"{100 * math.expm1(math.log(value / base) * (1 if metric.more else -1)):+.1f} %"


class Child:
    """A process of its own session that ends if this program is killed; its messages are read as they come."""

    def __init__(self, words: list, **more):
        self.process = subprocess.Popen(["setpriv", "--pdeathsig", "TERM", *map(str, words)],
                                        **{"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE,
                                           "text": True, "errors": "replace", "start_new_session": True} | more)
        self.messages: list[str] = []
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        for line in self.process.stderr:
            self.messages.append(line.rstrip("\n"))

    def take(self) -> list[str]:
        """The messages since the last call."""
        taken, self.messages[:] = self.messages[:], []
        return taken

    def wait(self) -> int:
        status = self.process.wait()
        # A command that went to the background may hold the pipe open.
        self.reader.join(2)
        return status

    def end(self) -> None:
        # GNU parallel ignores the signal until its first job begins.
        while self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                continue
        self.reader.join(2)


FEATURES = Path(os.environ.get("STEAL_SYS", "/sys")) / "kernel/debug/sched/features"


def lock_machine() -> int:
    """Only one comparison at a time changes the settings of this machine and puts them back. The lock is on a directory of the kernel, which
    all see; it holds as long as the file that this returns is open."""
    lock = os.open(FEATURES.parents[2], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise Stop(3, "another bench/ab measures this machine; wait for it to end") from error
    return lock


def put_back(unit: Path, schedule: Path) -> None:
    """What a collector has changed that was killed: its note is there. One that has nothing to do puts back all but the features."""
    note = unit / ".was"
    if not note.exists():
        return
    boot, was = note.read_text().splitlines()[:2]
    if boot == (Path(os.environ.get("STEAL_PROC", "/proc")) / "sys/kernel/random/boot_id").read_text().strip():
        for word in was.split():
            with contextlib.suppress(OSError):
                FEATURES.write_text(word + "\n")
        if not set(was.split()) <= set(FEATURES.read_text().split()):
            say(f"error: the features are not as they were; write into {FEATURES}, one by one: {was}; line 3 of {note} is the former "
                "sched_schedstats, line 5 the former tracing_on and buffer_size_kb")
            return
    schedule.write_text("")
    child = Child(["sh", loads.COLLECT / "collect.sh", "--out", unit, "--schedule", schedule])
    try:
        child.wait()
    finally:
        child.end()
    if note.exists():
        said = [line.replace("collect: ", "", 1) for line in child.take()]
        say(f"error: sched_schedstats may not be as it was{f' ({said[-1]})' if said else ''}; line 3 of {note} has what it was")


def measure_here(job: Job) -> None:
    """Makes the runs on this machine, a pair at a time: in between, nothing runs, and this program has the time for a table."""
    directory, options, schedule = job.directory, job.options, job.schedule()
    unit = directory.raw / "here"
    try:
        lock = lock_machine()
    except Stop:
        directory.discard()
        raise

    def runs() -> set[str]:
        return {f"{path.parent.name}/{path.name}" for path in unit.glob("runs/*/[0-9]*")}

    def done() -> set:
        return {("", *step) for step in job.whole(runs(), schedule)}

    there = runs()
    old = [step for step, lines in schedule.items() if any(f"{step[0]}/{step[1]}-{side}" in there for side in lines)]
    # The first call looks whether all of the earlier ones is whole.
    todo = [old] * bool(old) + [[step] for step in job.steps if step not in old]
    progress = Progress(job, done())
    if old:
        say(f"{directory.path} has {len(progress.done)} of {progress.total} pairs already; continuing")
    file = directory.path / ".schedule"
    words, command = job.collector_words()
    for some in todo:
        file.write_text("".join(line + "\n" for step in some for line in schedule[step].values()))
        child = Child(["sh", loads.COLLECT / "collect.sh", "--out", unit, "--schedule", file, "--timeout", options.timeout or 3600, *words,
                       *command], env=os.environ | {"STEAL_PROJECT": project()})
        try:
            status = child.wait()
        finally:
            # A second signal is not to come between. Not SIG_IGN, which what put_back() starts would inherit.
            handlers = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
            child.end()
            if child.process.returncode < 0:
                # It was killed: so is what it had started, the command and the clock of --timeout.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.process.pid, signal.SIGKILL)
            put_back(unit, file)
            file.unlink(missing_ok=True)
            for number, handler in handlers.items():
                signal.signal(number, handler)
        for line in child.take():
            progress.message(line.replace("collect: ", "ab: ", 1))
        now = done()
        if status not in (0, 1) or not {("", *step) for step in some} <= now:
            if not runs() and not (unit / ".was").exists():
                directory.discard()
            if status not in (1, 2, 3):
                say(f"error: the collector ended with status {status}; to continue: the same command with --out {directory.path}")
            raise Stop(2 if status == 2 else 3)
        try:
            progress.show(now)
        except Stop:
            progress.clear()
            raise
    progress.end(done())
    os.close(lock)
