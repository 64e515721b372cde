# SPDX-License-Identifier: GPL-2.0
"""Running commands, and waiting for what they do. The limits are for a busy machine."""

import subprocess
import time
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
FAKES = TOP / "tests/fakes"


def call(*command, rc=0, timeout=300, **options):
    """The command's (stdout, stderr)."""
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          errors="replace", timeout=timeout, check=False, **options)
    assert done.returncode == rc, "%s: status %d\n%s%s" % (command, done.returncode, done.stdout, done.stderr)
    return done.stdout, done.stderr


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


def gone(pid):
    try:
        return "\nState:\tZ" in Path("/proc/%d/status" % pid).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def processes(text):
    """The command lines of all processes that have this text in it."""
    lines = subprocess.run(["ps", "-ewwo", "args"], text=True, stdout=subprocess.PIPE, check=True)
    return [line for line in lines.stdout.split("\n") if text in line]
