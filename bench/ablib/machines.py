# SPDX-License-Identifier: GPL-2.0
"""Simulated machines: each case and pair is a unit of work for bench/ab-unit, on this host or on others, by GNU parallel."""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from . import fold, hosts, loads
from .job import ENOUGH, TOP, Child, Job, Progress, Step, Stop, collector, number, project, say
from .plan import SEEDS, Case, write_whole
from .remote import leave

PARALLEL = ["parallel", "--will-cite", "--line-buffer", "--termseq", "TERM,10000,KILL,100"]
# Once on each host and comparison: unpacks the archive. Then makes a unit.
ON_HOST = ("flock .lock sh -c '[ -d tree ] || { rm -rf new && mkdir new && tar -xf bundle.tar -C new && mv new tree; }' "
           "&& exec tree/bench/ab-on-host {}")
# Connections may be lost for a while: so often the units that no host has done are given to the hosts again.
ROUNDS = 4
COLLECTOR = "ab-collector.tar"
# As in sim/machine.
SECTION_FLAGS = ["-nostdlib", "-ffreestanding", "-fno-stack-protector"]


@dataclass
class Unit:
    """What one simulated machine does: a pair, or one side of it if the sides are kernels."""

    step: Step
    name: str
    lines: list[str]
    kernel: str


def units_of(job: Job) -> list[Unit]:
    units = []
    for step, lines in job.schedule().items():
        name = f"{step[0]}-{step[1]}"
        if len(job.options.images) > 1:
            units += [Unit(step, f"{name}-{side}", [line], side) for side, line in lines.items()]
        else:
            units.append(Unit(step, name, list(lines.values()), next(iter(job.options.images))))
    return units


def also_of(options, case: Case) -> str:
    """The packages for the guest of a case."""
    return ",".join(filter(None, (options.also, options.loads[case.load].guest_also)))


def timeout_of(job: Job, case: Case) -> int:
    """Seconds of this host. Twice what a slow one needs."""
    options = job.options
    if options.timeout or options.command:
        return options.timeout or 3600
    if options.loads[case.load].amount == "scale":
        return 3600 + 3000 * options.scale
    loops = max(options.loops, 10 * options.trace_loops) if options.trace else options.loops
    return 3600 + int((1 if options.caches == "none" else 3) * number(case) * loops * len(options.sides) / 4)


def unit_words(job: Job, unit: Unit, kernel: str, preset: object, added: list[str], collector_tar: object) -> list[str]:
    """The arguments of bench/ab-unit."""
    options, case = job.options, unit.step[0]
    more, command = job.collector_words()
    sockets = options.machine.partition("x")[0]
    several = ["--topology", options.machine, "--nodes", sockets] if options.machine.count("x") == 3 else ["--machine", options.machine]
    words = ["--kernel", kernel, "--seed", SEEDS[options.seeds] + unit.step[1], *several, "--quantum", options.quantum, "--ips", options.ips, "--idle-exit", options.idle_exit, "--timeout", timeout_of(job, case), "--collector", collector_tar]
    words += [word for line in unit.lines for word in ("--run", line)] + more
    words += ["--caches", preset] * (options.caches != "none") + ["--append", options.append] * bool(options.append)
    words += ["--also", also_of(options, case)] * bool(also_of(options, case))
    words += [word for file in added for word in ("--add", file)]
    return [*map(str, words), *command]


def compiled_for_guest(source: Path, program: Path, *flags: str) -> tuple[bytes, bool]:
    """A program for the guest, for hosts.tar_of."""
    compiler = "gcc" if platform.machine() == "aarch64" else "aarch64-linux-gnu-gcc"
    if subprocess.run([compiler, "-O2", "-static", *flags, "-o", program, source], check=False).returncode:
        raise Stop(3, f"{source} could not be compiled (see above)")
    return hosts.file_of(program)


def collector_tar(job: Job, place: Path) -> bytes:
    """What the guests get, with load.c compiled for them."""
    files = collector(job.options)
    if files.pop("load.c", None):
        files["load"] = compiled_for_guest(loads.COLLECT / "load.c", place / "load", "-pthread")
    return hosts.tar_of(files)


def names_of(image: str) -> bytes:
    """The names of a kernel's addresses, for the lines of memory that move; nothing if they cannot be made."""
    done = subprocess.run([TOP / "sim/names", image], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        say(f"{image}: lines of memory have no names, only addresses (see above)")
        return b""
    return Path(done.stdout.strip()).read_bytes()


def keep_names(job: Job) -> None:
    """Writes DIR/names, for fold."""
    for label, names in job.options.names.items():
        if names:
            write_whole(fold.names_file(job.plan, label), names)


def measure_simulated(job: Job) -> None:
    """Makes the units on simulated machines, as many at a time as --jobs says, here or on other hosts."""
    directory, options = job.directory, job.options
    directory.clean()
    keep_names(job)
    units = units_of(job)
    archives = {unit.name: directory.raw / f"{unit.name}.tar" for unit in units}
    todo = [unit for unit in units if directory.damaged(archives[unit.name]) or not archives[unit.name].exists()]

    def done() -> set:
        missing = {unit.step for unit in units if not archives[unit.name].exists()}
        return {("", *step) for step in job.steps if step not in missing}

    if not todo:
        return
    progress = Progress(job, done())
    where_to = ", ".join(host.name for host in options.hosts) or f"{options.jobs} host core(s)"
    say(f"{len(todo)} of {len(units)} units to run on {where_to}; results go to {directory.path}")
    try:
        (on_hosts if options.hosts else on_this_host)(job, units, todo, progress, done)
        progress.end(done())
    except Stop as stop:
        if stop.status == 2 and not any(archive.exists() for archive in archives.values()):
            directory.discard()
        raise
    finally:
        progress.clear()
    failed = sum(not archives[unit.name].exists() for unit in todo)
    if failed:
        say(f"{failed} of {len(units)} units failed; to try them again: the same command with --out {directory.path}")


@dataclass
class Inputs:
    """Kernels (by label), added files and the preset by their names where a unit is made, and the files there, for hosts.tar_of."""

    kernels: dict[str, str]
    added: list[str]
    preset: str
    files: dict[str, tuple[bytes, bool]]


def inputs_of(job: Job) -> Inputs:
    """As the plan has them: a build of another call may replace an image meanwhile, and a user may edit a file."""
    options, plan, files = job.options, job.plan, {}
    kernels = {label: f"kernels/{label}/{os.path.basename(image)}" for label, image in options.images.items()}
    added = [f"add/{number}/{os.path.basename(name)}" for number, name in enumerate(options.add)]
    hashed = [(kernels[label], image, plan.kernel_of(label)) for label, image in options.images.items()]
    hashed += [(name, file, line.rpartition(" ")[2]) for name, file, line in zip(added, options.add, plan.lines.get("add", []))]
    hashed += [("preset", options.preset, plan.get("caches").rpartition(" ")[2])] * (options.caches != "none")
    for name, path, wanted in hashed:
        files[name] = hosts.file_of(Path(path))
        if not hashlib.sha256(files[name][0]).hexdigest().startswith(wanted):
            raise Stop(3, f"{path}: somebody has changed it meanwhile; run the same command again, with another --out if it is to differ")
    files |= {f"{kernels[label]}.names": (names, False) for label, names in options.names.items() if names}
    return Inputs(kernels, added, "preset", files)


def on_this_host(job: Job, _: list[Unit], todo: list[Unit], progress: Progress, done: Callable[[], set]) -> None:
    raw, options, jobs = job.directory.raw, job.options, []
    inputs = inputs_of(job)
    place = raw / ".collector"
    place.mkdir()
    (place / COLLECTOR).write_bytes(collector_tar(job, place))
    for name, (data, program) in inputs.files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
        (place / name).chmod(0o755 if program else 0o644)
    added = [str(place / name) for name in inputs.added]
    for unit in todo:
        words = ["setpriv", "--pdeathsig", "TERM", TOP / "bench/ab-unit", "--out", raw / f"{unit.name}.tar",
                 "--cpus", ",".join(map(str, sorted(os.sched_getaffinity(0)))),
                 *unit_words(job, unit, str(place / inputs.kernels[unit.kernel]), place / inputs.preset, added, place / COLLECTOR)]
        jobs.append("exec " + shlex.join(map(str, words)))
    # In a file that names the units, not on standard input: a job's line may be longer than a pipe.
    (raw / ".jobs").write_text("".join(line + "\n" for line in jobs))
    joblog = raw / ".joblog"

    def statuses() -> list[int]:
        log = [line.split("\t") for line in joblog.read_text(errors="replace").splitlines()[1:]] if joblog.exists() else []
        return [int(fields[6]) for fields in log if len(fields) > 8]

    child = Child([*PARALLEL, "--jobs", options.jobs, "--joblog", joblog, "--arg-file", raw / ".jobs"],
                  env=os.environ | {"SHELL": "/bin/sh", "STEAL_PROJECT": told(options), "STEAL_SIM": simulated(options)})
    try:
        watch_units(child, statuses, progress, done)
    finally:
        child.end()
        shutil.rmtree(place)


def bundle_of(job: Job, units: list[Unit], here: Path) -> bytes:
    """One archive with all that the units need on another host: programs, kernels, and the arguments of each unit."""
    options, inputs = job.options, inputs_of(job)
    files = dict(inputs.files)
    if options.caches != "none":
        # hosts need no compiler for guests
        files["sim/guest/section"] = compiled_for_guest(TOP / "sim/guest/section.c", here / "section", *SECTION_FLAGS)
    files |= {f"cache/guest/{os.path.basename(guest)}": hosts.file_of(Path(guest)) for guest in options.guests}
    files[COLLECTOR] = collector_tar(job, here), False
    for unit in units:
        files[f"units/{unit.name}"] = "".join(word + "\n" for word in unit_words(job, unit, inputs.kernels[unit.kernel], f"./{inputs.preset}",
                                                                                  inputs.added, COLLECTOR)).encode(), False
    said = f"export STEAL_PROJECT={shlex.quote(told(options))} STEAL_SIM={shlex.quote(simulated(options))}\n"
    return hosts.bundle(TOP, files | {"environment": (said.encode(), False)})


def on_hosts(job: Job, units: list[Unit], todo: list[Unit], progress: Progress, done: Callable[[], set]) -> None:
    """Makes the units on other hosts. GNU parallel gives a unit whose host dies to another one."""
    raw, here, options = job.directory.raw, job.directory.raw / ".hosts", job.options
    here.mkdir()
    archive = bundle_of(job, units, here)
    (here / "bundle.tar").write_bytes(archive)
    place = job.directory.hosts_place(archive)
    ended: dict[str, int] = {}
    told: set[str] = set()

    def take() -> set:
        """Puts what has come back into place, once; of a unit that failed, keeps its messages."""
        for came in here.glob("*.out"):
            name = came.stem
            try:
                status = int((came / "status").read_text())
            except (OSError, ValueError):
                continue
            made = raw / f"{name}.tar"
            if status == 0 and not made.exists():
                # Whole, or still on its way.
                if fold.check_unit(came / f"{name}.tar"):
                    continue
                os.rename(came / f"{name}.tar", made)
                (raw / f"{name}.tar.log").unlink(missing_ok=True)
            elif status:
                text = "".join(file.read_text(errors="replace") for file in (came / "said", came / "log") if file.exists())
                (raw / f"{name}.tar.log").write_text(text)
            ended[name] = status
        return done()

    def failures() -> list[int]:
        """The statuses that no other host would change, and 0 for units that are done."""
        return [status for status in ended.values() if status in (0, 2, 3)]

    def tell(lines: list[str]) -> list[str]:
        """What ssh and the jobs say, each once: each unit of a dead host says the same. After ssh, rsync says nothing new."""
        new = [line for line in dict.fromkeys(lines) if line.strip() and line not in told and not (told and line.startswith("rsync"))]
        told.update(new)
        return new

    def messages() -> list[str]:
        """What the units that failed have said."""
        return [line.partition("; the whole output")[0] for name, status in ended.items() if status
                for line in (raw / f"{name}.tar.log").read_text().splitlines()]

    alive = options.hosts
    for attempt in range(ROUNDS):
        if attempt:
            say(f"{len(todo)} units have not come back; asking the hosts again")
            time.sleep(2)
            gone = hosts.ask_all(options.hosts, hosts.SIMULATOR)
            for name, why in gone.items():
                say(f"host {name} cannot be reached: {why}")
            alive = [host for host in options.hosts if host.name not in gone]
            if not alive:
                continue
        (here / "units").write_text("".join(f"{unit.name}\n" for unit in todo))
        (here / "logins").write_text("".join(f"{host.slots or options.slots or host.facts['cores']}/{shlex.join(host.words)}\n"
                                             for host in alive))
        told.clear()
        child = Child([*PARALLEL, "--jobs", "100%", "--sshloginfile", here / "logins", "--workdir", place, "--basefile", "bundle.tar",
                       "--return", "{}.out", "--cleanup", "--retries", min(3, len(alive)), "--joblog", raw / ".joblog",
                       "--arg-file", here / "units", ON_HOST], cwd=here, env=os.environ | {"SHELL": "/bin/sh"})
        try:
            watch_units(child, failures, progress, take, messages, tell)
        finally:
            child.end()
            take()
        todo = [unit for unit in todo if unit.name not in ended]
        if not todo:
            break
    for name, status in ended.items():
        if status:
            said = (raw / f"{name}.tar.log").read_text().splitlines()
            errors = [line.partition("error: ")[2].partition("; the whole output")[0] for line in said if "error: " in line]
            why = errors[0] if errors else f"status {status}"
            say(f"error: {why}; the whole output: {raw / name}.tar.log")
    shutil.rmtree(here)
    leave(alive, place)


def watch_units(child: Child, statuses_of: Callable[[], list[int]], progress: Progress, done: Callable[[], set],
                said: Callable[[], list[str]] = list, tell: Callable[[list[str]], list[str]] = list) -> None:
    """Until all units are done, or it is known that none can be of use."""
    ended, was, held, failures = False, done(), [], 0
    while not ended:
        ended = child.process.poll() is not None
        if ended:
            child.wait()
        now, statuses, messages = done(), statuses_of(), held + child.take()
        useless = next((status for status in statuses if status in (2, 3)), 0)
        if useless or len(statuses) >= ENOUGH and all(statuses):
            child.end()
            messages += child.take() + said()
            error = next((line for line in messages if "error: " in line), "error: all units have failed until now")
            why = error.partition("error: ")[2]
            # What a usage error leaves is deleted.
            raise Stop(useless or 3, why.partition("; the whole output")[0] if useless == 2 else why)
        # A unit says why it fails, and then its status is known: only that tells whether the reason is the reason to end.
        failed = sum(map(bool, statuses))
        held = [] if ended or failed > failures else [line for line in messages if line.startswith("ab-unit: error: ")]
        failures = failed
        for line in tell([line for line in messages if line not in held]):
            progress.message(line)
        if now != was:
            was = now
            progress.show(now)
        if not ended:
            time.sleep(0.3)


def told(options) -> str:
    """The version of the project that a guest is told. Another text is another sample: a repeated comparison has that of the published one."""
    return options.published.get("project") if options.repeats else project()


def simulated(options) -> str:
    """What the machine says of itself."""
    lines = [f"topology {options.machine}", f"quantum_ns {options.quantum}", f"ips {options.ips}", f"idle_exit_ns {options.idle_exit}"]
    lines += [f"append {options.append}"] * bool(options.append) + [f"caches {options.caches}"] * (options.caches != "none")
    lines.append("not_modelled " + "caches, memory latency, cost of moving cache lines, threads of a core sharing it, " *
                 (options.caches == "none") + "turbo, depth of idle states")
    return "\n".join(lines)
