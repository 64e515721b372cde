# SPDX-License-Identifier: GPL-2.0
"""Real machines that are measured over ssh: the collector runs on each, and its raw files come back as one archive for each host."""

import os
import shlex
import subprocess
import threading
import time
from typing import Optional

from . import fold, hosts, loads
from .job import ENOUGH, Child, Job, Progress, Step, Stop, collector, project, say


def leave(some: list[hosts.Host], place: str) -> None:
    """Deletes what a comparison had on the hosts."""
    for host in some:
        try:
            host.call(f"rm -rf {place}", timeout=30)
        except subprocess.TimeoutExpired:
            say(f"host {host.name} does not answer; {place} is left there")


class Measured(threading.Thread):
    """A host that is measured: makes its pairs there, one after the other, and brings its raw files here."""

    TRIES, FETCH_S = 3, 30

    def __init__(self, job: Job, host: hosts.Host, place: str):
        super().__init__(daemon=True)
        self.job, self.host, self.place = job, host, place
        self.archive = job.directory.raw / f"{host.name}.tar"
        self.lines = job.schedule(host.name)
        self.stopping, self.child = False, None
        self.messages: list[str] = []
        self.error: Optional[Exception] = None
        # What is done there, and what of it is here.
        self.fetched = self.done = self.here()

    def here(self) -> set[Step]:
        return self.job.whole(fold.read_unit(self.archive).runs, self.lines) if self.archive.exists() else set()

    def call(self, script: str, stdin: bytes = b"") -> bytes:
        """Runs a script on the host; what it prints. Raises ConnectionError."""
        try:
            done = self.host.call(script, stdin)
        except subprocess.TimeoutExpired as error:
            raise ConnectionError("no answer for 600 s") from error
        if done.returncode:
            raise ConnectionError(hosts.last_line(done.stderr))
        return done.stdout

    def send(self) -> None:
        """The collector and the schedules, and the runs that it had made if the host has lost them."""
        files = collector(self.job.options) | {"attended.sh": hosts.file_of(loads.COLLECT / "attended.sh")}
        for (case, pair), lines in self.lines.items():
            files[f"schedule-{case}-{pair}"] = "".join(line + "\n" for line in lines.values()).encode(), False
        self.call(f"mkdir -p {self.place}/unit && tar -xf - -C {self.place}", hosts.tar_of(files))
        if self.archive.exists() and not self.call(f"ls {self.place}/unit"):
            self.call(f"tar -xf - -C {self.place}/unit", self.archive.read_bytes())

    def fetch(self) -> None:
        data = self.call(f"cd {self.place}/unit && echo {self.host.name} >machine/host && tar -cf - machine runs")
        new = self.archive.with_name(f".{self.archive.name}")
        new.write_bytes(data)
        why = fold.check_unit(new)
        if why:
            raise ConnectionError(f"what came back is not whole: {why}")
        os.rename(new, self.archive)
        self.fetched = self.here()

    def measure(self, step: Step) -> None:
        """A pair, and the messages of the collector."""
        more, command = self.job.collector_words()
        words = ["sh", f"{self.place}/collect.sh", "--out", f"{self.place}/unit",
                 "--schedule", f"{self.place}/schedule-{step[0]}-{step[1]}", "--timeout", self.job.options.timeout or 3600, *more, *command]
        script = f"STEAL_PROJECT={shlex.quote(project())} exec sh {self.place}/attended.sh {shlex.join(map(str, words))}"
        if self.stopping:
            return
        # Its standard input stays open as long as this program is there.
        self.child = Child(self.host.ssh("exec sh -c " + shlex.quote(script)), stdin=subprocess.PIPE)
        status = self.child.wait()
        self.child.process.stdin.close()
        said = [line.replace("collect: ", "", 1) for line in self.child.take()]
        if status not in (0, 1, 2, 3) or status == 1 and any(line.startswith("error: ") for line in said):
            raise ConnectionError(said[-1] if said else f"status {status}")
        if status in (2, 3):
            why = next((line for line in said if line.startswith("error: ")), said[-1] if said else f"status {status}")
            raise Stop(status, f"host {self.host.name}: {why.removeprefix('error: ')}")
        self.messages += [f"ab: {self.host.name}: {line}" for line in said]
        self.done = self.done | {step}

    def run(self) -> None:
        # After the first pair of each case there is a table, and after some more one knows whether all is in vain.
        early = {len(self.job.options.cases), ENOUGH * len(self.job.options.cases)}
        tries, last = 0, time.monotonic()
        while not self.stopping and len(self.fetched) < len(self.lines):
            try:
                self.send()
                for step in self.lines:
                    if step in self.done:
                        continue
                    self.measure(step)
                    if self.stopping:
                        return
                    tries = 0
                    if len(self.done) in early or time.monotonic() - last > self.FETCH_S:
                        self.fetch()
                        last = time.monotonic()
                if self.fetched != self.done:
                    self.fetch()
            except ConnectionError as error:
                tries += 1
                if self.stopping:
                    return
                if tries == self.TRIES:
                    self.messages.append(f"ab: error: host {self.host.name}: {error}; {len(self.done)} of {len(self.lines)} pairs are "
                                         "done there")
                    return
                self.messages.append(f"ab: host {self.host.name}: {error}; trying again")
                time.sleep(2)
                # The host may have lost what was not brought here.
                self.done = self.here()
            except (Stop, OSError) as error:
                self.error = error
                return

    def stop(self) -> None:
        self.stopping = True
        if self.child:
            self.child.end()


def measure_hosts(job: Job) -> None:
    """All pairs on each of the hosts, which work at the same time."""
    directory, options = job.directory, job.options
    directory.clean()
    for archive in directory.raw.glob("*.tar"):
        directory.damaged(archive)
    place = directory.hosts_place()
    workers = [Measured(job, host, place) for host in options.hosts]

    def done() -> set:
        return {(worker.host.name, *step) for worker in workers for step in worker.fetched}

    progress = Progress(job, done(), tuple(worker.host.name for worker in workers))
    if progress.done:
        say(f"{directory.path} has {len(progress.done)} of {progress.total} pairs; going on")
    try:
        for worker in workers:
            worker.start()
        busy = True
        while busy:
            busy = any(worker.is_alive() for worker in workers)
            for worker in workers:
                for _ in range(len(worker.messages)):
                    progress.message(worker.messages.pop(0))
                if worker.error:
                    if isinstance(worker.error, Stop) and not any(directory.raw.glob("*.tar")):
                        directory.discard()
                    raise worker.error
            now = done()
            if len(now) > len(progress.done):
                progress.show(now)
            if busy:
                time.sleep(0.2)
        progress.end(done())
    finally:
        progress.clear()
        for worker in workers:
            worker.stop()
    leave([worker.host for worker in workers if len(worker.fetched) == len(worker.lines)], place)
    missing = [worker for worker in workers if len(worker.fetched) < len(worker.lines)]
    if missing:
        say(f"not complete: {', '.join(worker.host.name for worker in missing)}; the same command with --out {directory.path} goes on")
