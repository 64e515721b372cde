# SPDX-License-Identifier: GPL-2.0
"""What the tests share: where things are, and running a command."""

import os
import pathlib
import subprocess
import warnings

import pytest

TOP = pathlib.Path(__file__).resolve().parent.parent


def pytest_configure(config):
    config.pluginmanager.register(Passed(config.getoption("leave_out")))


class Passed:
    """The tests that have passed on this commit: a file of their names in the cache directory, for --continue.

    What runs in a changed checkout belongs to no commit: nothing is written then, nor read.
    """

    def __init__(self, leave_out):
        self.leave_out = leave_out
        self.left_out = 0
        self.failed = set()
        self.path = self.record()

    @staticmethod
    def record():
        """The file for the checkout as it is now; None if it has none."""
        git = ["git", "-C", str(TOP)]
        changed, commit = (subprocess.run([*git, *words], capture_output=True, text=True, check=False).stdout.strip()
                           for words in (["status", "--porcelain"], ["rev-parse", "HEAD"]))
        storm = os.environ.get("STEAL_STORM")
        return cache_directory() / f"passed/{commit}{'-storm-' + storm if storm else ''}" if commit and not changed else None

    # after -k and -m
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        if not self.leave_out:
            return
        if not self.path:
            raise pytest.UsageError("--continue: the checkout has changes, or git knows no commit: nothing is known of its tests")
        known = set(self.path.read_text().splitlines()) if self.path.exists() else set()
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in known])
        self.left_out = sum(item.nodeid in known for item in items)
        items[:] = [item for item in items if item.nodeid not in known]

    def pytest_runtest_logreport(self, report):
        if not report.passed:
            self.failed.add(report.nodeid)
        elif report.when == "teardown" and report.nodeid not in self.failed and self.path and self.path == self.record():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(report.nodeid + "\n")

    def pytest_sessionfinish(self, session, exitstatus):
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.left_out:
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter):
        if self.leave_out and self.path:
            terminalreporter.write_line(f"--continue: {self.left_out} tests left out, as they have passed on this commit before: {self.path}")


def cache_directory():
    """As scripts/lib.sh has it."""
    default = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(os.environ.get("STEAL_CACHE") or default + "/sched-steal")


def pytest_addoption(parser):
    parser.addoption("--continue", action="store_true", dest="leave_out",
                     help="leave out the tests that have passed on this commit before (as the cache directory has it)")


def tried(command, **options):
    """As subprocess.run(); once more, and saying so, if scripts/boot ends with 75: QEMU's own fault."""
    done = subprocess.run(command, check=False, **options)
    if done.returncode == 75 and os.path.basename(command[0]) == "boot":
        # not print(), which nobody sees of a test that passes
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
    """run(COMMAND...): its completed process, with stdout and stderr together as text."""

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


def named(top, extra):
    lines = (line.split("#")[0].strip() for line in (top / "series").read_text().splitlines())
    return [top / "patches" / line for line in lines if line and line.startswith("extra/") == extra]


@pytest.fixture(scope="session")
def series(top):
    """The patches named in the file series, in order, as paths; without the extra ones."""
    return named(top, False)


@pytest.fixture(scope="session")
def extras(top):
    """The extra patches, likewise."""
    return named(top, True)


@pytest.fixture(scope="session")
def tree(run, top):
    """The cache's kernel tree with the whole series applied."""
    run(top / "scripts/apply")
    return pathlib.Path(
        subprocess.run([top / "scripts/get-kernel"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    )


def worktree(top, *arguments):
    """The path that scripts/worktree prints for these arguments."""
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
    """What bench/in-sim says, and its directory: a small comparison on 4 CPUs in 2 LLCs and 2 nodes."""
    out = tmp_path_factory.mktemp("comparison") / "out"
    said = run(top / "bench/in-sim", "--machine", "2x2x1", "--groups", "1 2", "--loops", 100, "--runs", 2,
               "--trace-loops", 20, "--out", out).stdout
    return said, out
