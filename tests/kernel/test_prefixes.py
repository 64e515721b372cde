# SPDX-License-Identifier: GPL-2.0
"""Each prefix of the series, as a kernel: it boots and works, with stealing off and on where there is such a thing."""

import re
import subprocess

import pytest

from conftest import first_line, line_files, named

WHOLE = len(named(line_files()[1]))


def boot_behaves(top, arch, kernel, nodes=2):
    """The command that runs tests/guest/behaves.sh on this kernel."""
    return [top / "scripts/boot", "--arch", arch, "--kernel", kernel, "--smp", "4,sockets=2,cores=2",
            "--numa", nodes, "--add", top / "tests/guest/behaves.sh", "--", "/opt/behaves.sh"]


def behaves(run, top, arch, count):
    run(top / "scripts/apply", "--upto", count)
    config, nodes = ("guest,steal,matrix/i386", 1) if arch == "i386" else ("guest,steal", 2)
    kernel = subprocess.run([top / "scripts/build", "--arch", arch, "--config", config],
                            stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    said = run(*boot_behaves(top, arch, kernel, nodes)).stdout
    found = re.search(r"^steal (no|yes stolen (\d+|-))$", said, re.M)
    assert found, said
    assert (found[1] != "no") == (count >= 8), said
    assert (found[2] or "-").isdigit() == (count >= 9), said
    assert count < 9 or int(found[2]) > 0, said


# Where struct rq changes, most of the kernel is compiled again: the size of its parts is in linux/sched.h.
# The default tier boots the nine patches, on the first line of kernels only, and the whole series.
@pytest.mark.line
@pytest.mark.parametrize("count", [pytest.param(count, marks=[] if count == WHOLE or first_line() and count == 9 else pytest.mark.full)
                                   for count in range(WHOLE + 1)])
def test_prefix_works(run, top, count):
    behaves(run, top, "x86_64", count)


@pytest.mark.line
@pytest.mark.full
@pytest.mark.parametrize("count", range(WHOLE + 1))
@pytest.mark.parametrize("arch", ["arm64", "i386"])
def test_prefix_works_on(run, top, arch, count):
    behaves(run, top, arch, count)
