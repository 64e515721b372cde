# SPDX-License-Identifier: GPL-2.0
"""What the tests share: where things are, and running a command."""

import os
import pathlib
import re
import signal
import subprocess
import warnings

import pytest

TOP = pathlib.Path(__file__).resolve().parent.parent


def cache_directory():
    """As scripts/lib.sh has it."""
    default = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(os.environ.get("STEAL_CACHE") or default + "/sched-steal").absolute()


def pytest_configure(config):
    """At SIGTERM and SIGHUP, pytest ends as at Ctrl-C: commands end, and planted defects are taken back. A second signal does nothing. A
    signal that was ignored stays so. A worker of xdist ends with pytest."""
    if hasattr(config, "workerinput"):
        return
    numbers = [number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]

    def end(number, frame):
        for each in numbers:
            # not SIG_IGN, which commands would inherit
            signal.signal(each, lambda *_: None)
        signal.default_int_handler(number, frame)

    for number in numbers:
        signal.signal(number, end)


def tried(command, **options):
    """As subprocess.run(). If scripts/boot ends with 75, a fault of QEMU, it warns and runs the command once more."""
    done = subprocess.run(command, check=False, **options)
    if done.returncode == 75 and os.path.basename(command[0]) == "boot":
        # not print(): pytest does not show the output of a test that passes
        warnings.warn(f"tried again: {done.stderr or done.stdout}", stacklevel=2)
        done = subprocess.run(command, check=False, **options)
    return done


@pytest.fixture(scope="session")
def top():
    """The checkout."""
    return TOP


@pytest.fixture(scope="session")
def cache():
    """The cache directory."""
    return cache_directory()


@pytest.fixture(scope="session")
def run():
    """run(COMMAND...): runs it and returns the completed process, with stdout and stderr together as text."""

    def run(*command, cwd=TOP, check=True, **options):
        done = tried(
            [str(word) for word in command],
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            **options,
        )
        if check and done.returncode:
            pytest.fail(f"{' '.join(done.args)}: status {done.returncode}\n{done.stdout}", pytrace=False)
        return done

    return run


def kernel_lines():
    """The rows of patches/lines: by the name of a line the other columns, by the column's name in the comment above the rows."""
    text = (TOP / "patches/lines").read_text()
    names = re.findall("^# (LINE\t.*)", text, re.M)[-1].lower().split()
    rows = [line.split() for line in text.splitlines() if line and line[0] != "#"]
    return {row[0]: dict(zip(names, row, strict=True)) for row in rows}


def first_line():
    """Is the selected line of kernels the first one?"""
    default = next(iter(kernel_lines()))
    return (os.environ.get("STEAL_LINE") or default) == default


def line_files(line=None):
    """Of a line of kernels: the directory of its patches, and its files series and base. By default of the selected line, as
    scripts/lib.sh has it."""
    rows = kernel_lines()
    default = next(iter(rows))
    line = line or os.environ.get("STEAL_LINE") or default
    if line == default:
        return TOP / "patches", TOP / "series", TOP / "base"
    directory = TOP / "patches" / ("" if rows[line]["state"] == "maintained" else "ended") / line
    return directory, directory / "series", directory / "base"


def named(series):
    """The patches that a series file names, in order, as paths. They are beside it, except those of the default line."""
    beside = series.parent / "patches"
    directory = beside if beside.is_dir() else series.parent
    lines = (line.split("#")[0].strip() for line in series.read_text().splitlines())
    return [directory / line for line in lines if line]


@pytest.fixture(scope="session")
def series():
    """The patches of the series."""
    return named(line_files()[1])


@pytest.fixture(scope="session")
def extras():
    """The extra patches."""
    return named(line_files()[0] / "extra/series")


@pytest.fixture(scope="session")
def tree(run, top):
    """The cache's kernel tree with the whole series applied."""
    run(top / "scripts/apply")
    return pathlib.Path(
        subprocess.run([top / "scripts/get-kernel"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    )


def worktree(top, *arguments):
    """The path that scripts/worktree prints with these arguments."""
    done = subprocess.run([top / "scripts/worktree", *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return pathlib.Path(done.stdout.strip())


@pytest.fixture(scope="session")
def base_tree(top):
    """A kernel tree without the series."""
    return worktree(top, "base", "--upto", "0")


@pytest.fixture(scope="session")
def extra_tree(top):
    """A kernel tree with the series and the extra patches."""
    return worktree(top, "extra", "--extra")


@pytest.fixture(scope="session")
def sim_kernel(run, top):
    """The kernel of the simulated machines, with the series applied."""
    run(top / "scripts/apply")
    return subprocess.run([top / "scripts/build", "--arch", "arm64", "--config", "guest,steal,sim"],
                          stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


@pytest.fixture(scope="session")
def comparison(run, top, tmp_path_factory):
    """What bench/ab says, and its directory: a small comparison on 4 CPUs in 2 LLCs and 2 nodes."""
    out = tmp_path_factory.mktemp("comparison") / "out"
    said = run(top / "bench/ab", "--machine", "2x2x1", "--load", "hackbench-1,hackbench-2", "--loops", 100, "--runs", 2, "--trace",
               "--trace-loops", 20, "--out", out).stdout
    return said, out
