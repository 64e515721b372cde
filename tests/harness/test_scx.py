# SPDX-License-Identifier: GPL-2.0
"""bench/scx: bad input, and what runs in its guests, with made-up programs. tests/kernel/test_scx.py measures."""

import os
import subprocess

import pytest
from commands import TOP, processes, wait_for

PROGRAMS = {
    "uname": "echo 7.3.4-sim$SUFFIX",
    "hackbench": 'echo "hackbench $*" >>"$HERE/calls"; echo "now at ${2}00000000000 nsecs" >"$HERE/timer_list"; eval "$AFTER"',
    "requests": 'echo "requests $*" >>"$HERE/calls"; echo "metric wake_p50 us lower 7.5"',
    # Has the tasks after a while, and ends when it is told to.
    "scx_simple": 'eval "$REFUSED"; echo "local=1 global=0"; sleep 0.2; echo enabled >"$HERE/sys/kernel/sched_ext/state"; trap "echo EXIT; exit 1" TERM; '
                  'while :; do sleep 0.3; echo "local=5 global=2"; done',
}


def loads(where, *arguments, **environment):
    (where / "sys/kernel/sched_ext").mkdir(parents=True)
    (where / "sys/kernel/sched_ext/state").write_text("disabled\n")
    (where / "timer_list").write_text("Timer List Version: v0.9\nnow at 5 nsecs\n\n")
    (where / "bin").mkdir()
    for name, text in PROGRAMS.items():
        (where / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (where / "bin" / name).chmod(0o755)
    variables = {"SUFFIX": "", "AFTER": "", "REFUSED": ":"} | environment
    done = subprocess.run([TOP / "bench/scx.d/loads.sh", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=60,
                          env={**os.environ, **variables, "HERE": str(where), "STEAL_SYS": str(where / "sys"), "STEAL_PROC": str(where), "TMPDIR": str(where),
                               "PATH": f"{where / 'bin'}:{os.environ['PATH']}"})
    return done.returncode, done.stdout


@pytest.mark.parametrize("arguments", [["--groups", "0"], ["--groups", "1,2"], ["--groups", "x"], ["--loops", "0"], ["--loops", "1e3"]])
def test_bad_input(arguments):
    done = subprocess.run([TOP / "bench/scx", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(f"scx: error: {arguments[0]} '{arguments[1]}' is not a") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments,said", [
    (["--kernel", "base"], "'--kernel' is not for this script, whose comparison is fixed; see bench/ab; see --help"),
    (["--load=hackbench"], "'--load=hackbench' is not for this script, whose comparison is fixed; see bench/ab; see --help"),
    (["--", "ls"], "'--' is not for this script, whose comparison is fixed; see bench/ab; see --help"),
    (["--groups=4"], "'--groups=4': write a space instead of =; see --help"),
])
def test_what_is_compared_is_fixed(arguments, said):
    done = subprocess.run([TOP / "bench/scx", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"scx: error: {said}\n")


@pytest.mark.parametrize("arguments,said", [
    (["--runs", "0"], "argument --runs: '0' is not a positive number"),
    (["--machine", "1x10"], "--machine '1x10' is not SOCKETSxCORESxTHREADS"),
    (["--jobz", "2"], "unrecognized arguments: --jobz 2"),
])
def test_options_of_ab_are_checked_first(arguments, said):
    done = subprocess.run([TOP / "bench/scx", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1
    assert done.stderr.startswith("ab: error: " + said)


def test_another_line_of_kernels():
    done = subprocess.run([TOP / "bench/scx"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, env={**os.environ, "STEAL_LINE": "6.12"})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "scx: error: STEAL_LINE is 6.12: this script is for the first line of kernels only; unset it\n"


@pytest.mark.parametrize("suffix", ["", "-scx"])
def test_loads(tmp_path, suffix):
    status, said = loads(tmp_path, "70", "1", "4", SUFFIX=suffix)
    assert status == 0, said
    assert said.splitlines()[:3] == ["groups 1 time 99999999995", "groups 4 time 300000000000", "metric wake_p50 us lower 7.5"]
    assert said.splitlines()[3:] == ["local=5 global=2"] * bool(suffix)
    calls = (tmp_path / "calls").read_text().splitlines()
    cpus = os.cpu_count()
    assert calls == ["hackbench -g 1 -l 70", "hackbench -g 4 -l 70",
                     f"requests wake --busy 50 --workers {4 * cpus} --requests {400 * cpus} --seed 1"]


def test_a_scheduler_that_is_refused(tmp_path):
    status, said = loads(tmp_path, "70", "1", SUFFIX="-scx", REFUSED="echo no; exit 1")
    assert (status, said) == (1, "loads.sh: error: scx_simple ended\nno\n")
    assert not (tmp_path / "calls").exists()


def test_a_scheduler_that_is_stopped(tmp_path):
    (tmp_path / "stop").write_text("#!/bin/sh\necho disabled >\"$HERE/sys/kernel/sched_ext/state\"\n")
    (tmp_path / "stop").chmod(0o755)
    status, said = loads(tmp_path, "70", "1", SUFFIX="-scx", AFTER=str(tmp_path / "stop"))
    assert status == 1 and "loads.sh: error: scx_simple was stopped\n" in said
    wait_for(lambda: not processes(str(tmp_path / "bin/scx_simple")))


def test_a_load_that_fails(tmp_path):
    status, said = loads(tmp_path, "70", "1", AFTER="exit 3")
    assert status == 1 and said.startswith("loads.sh: error: hackbench failed\n")
