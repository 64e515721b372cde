# SPDX-License-Identifier: GPL-2.0
"""tests/races.py, with made-up logs and a program that has what a kernel has: functions, lines and inlining."""

import re
import shutil
import subprocess

import pytest

import races

LOG = """\
[    6.482127] BUG: KCSAN: data-race in outer / other
[    6.482153] 
[    6.482204] write to 0xffff88813e59e428 of 8 bytes by task 117 on cpu 6:
[    6.482271]  outer+0x%x/0x5e0
[    6.482335]  update_cfs_rq_load_avg+0x3d/0x3d0
[    6.482429] 
[    6.482463] read to 0xffff88813e59e428 of 8 bytes by task 122 on cpu 1:
[    6.482479]  other+0x%x/0x1550
[    6.482556] 
[    6.482564] value changed: 0x00000000000003dc -> 0x00000000000003ef
[    6.492127] BUG: KCSAN: data-race in other
[    6.492153] 
[    6.492204] read (marked) to 0xffff88813e59e428 of 8 bytes by interrupt on cpu 6:
[    6.492271]  other+0x%x/0x5e0
"""

SOURCE = """\
volatile int field, base_field, sysctl_sched_features;
static inline __attribute__((always_inline)) void inner(void)
{
	field++;
}
__attribute__((noinline)) void outer(void)
{
	inner();
}
__attribute__((noinline)) void other(void)
{
	base_field++;
}
int main(void)
{
	outer();
	other();
	return 0;
}
"""


def diff_adding(*numbers):
    """A diff that adds these lines of prog.c."""
    return "--- a/prog.c\n+++ b/prog.c\n" + "".join(f"@@ -{n} +{n},3 @@\n base\n+added\n base\n" for n in (n - 1 for n in numbers))


@pytest.fixture
def program(tmp_path):
    (tmp_path / "prog.c").write_text(SOURCE)
    subprocess.run(["gcc", "-g", "-O1", "-no-pie", "-o", "prog", "prog.c"], cwd=tmp_path, check=True)
    return tmp_path / "prog"


def offset(program, function):
    """Behind the first access to memory in this function."""
    said = subprocess.run(["objdump", "-d", "--no-show-raw-insn", f"--disassemble={function}", program],
                          stdout=subprocess.PIPE, text=True, check=True).stdout
    lines = re.findall(r"^ +([0-9a-f]+):\s+(.*)$", said, re.M)
    access = next(i for i, (_, text) in enumerate(lines) if "field" in text)
    return int(lines[access + 1][0], 16) - int(lines[0][0], 16)


def test_reports():
    found = races.reports(LOG % (1, 2, 3))
    assert [race.pair for race in found] == ["other / outer", "other"]
    assert [race.places for race in found] == [("outer+0x1", "other+0x2"), ("other+0x3",)]
    assert [race.how for race in found] == [("write", "read"), ("read (marked)",)]
    assert [race.address for race in found] == [0xffff88813e59e428] * 2


@pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump")
@pytest.mark.parametrize("added,expected", [([4], ["other / outer"]),          # the access, inlined
                                            ([8], ["other / outer"]),          # the call that was inlined
                                            ([12], ["other / outer"]),             # the second report's access is marked
                                            ([15, 16], [])])
def test_in_added_code(program, added, expected):
    log = LOG % (offset(program, "outer"), offset(program, "other"), offset(program, "other"))
    found = races.in_added_code(races.reports(log), program, diff_adding(*added))
    assert [race.pair for race in found] == expected


@pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump")
@pytest.mark.parametrize("change,added,expected", [
    (("read to", "read (marked) to"), [12], ["other"]),                     # a marked read in a line of the diff, a plain write elsewhere
    (("read to", "read (marked) to"), [4], ["other / outer"]),              # the other way round
    (("read to", "read (marked) to"), [4, 12], ["other / outer", "other"]),  # both in lines of the diff
    (("write to", "write (marked) to"), [4], ["other / outer"]),            # a marked write is not left out
    (("write to", "read-write (marked) to"), [4], ["other / outer"]),       # nor is one that reads and writes
])
def test_marked_access(program, change, added, expected):
    log = (LOG % (offset(program, "outer"), offset(program, "other"), offset(program, "other"))).replace(*change)
    log = log.replace("read (marked) to 0xffff88813e59e428 of 8 bytes by interrupt", "write to 0xffff88813e59e428 of 8 bytes by interrupt")
    found = races.in_added_code(races.reports(log), program, diff_adding(*added))
    assert [race.pair for race in found] == expected


@pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump")
def test_features(program):
    """A race on the features is left out, others of the same functions are not."""
    log = LOG % (offset(program, "outer"), offset(program, "other"), offset(program, "other"))
    address = next(address for address, _ in races.symbols_of(program)[races.FEATURES])
    some = log.replace("0xffff88813e59e428", hex(address), 2)
    assert [race.pair for race in races.in_added_code(races.reports(some), program, diff_adding(4, 12))] == []
    assert [race.pair for race in races.in_added_code(races.reports(log), program, diff_adding(4, 12))] == ["other / outer"]


def test_no_line_numbers(program):
    subprocess.run(["strip", "-g", program], check=True)
    with pytest.raises(AssertionError, match="no line numbers"):
        races.in_added_code(races.reports(LOG % (1, 1, 1)), program, "")
