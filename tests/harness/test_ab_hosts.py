# SPDX-License-Identifier: GPL-2.0
"""bench/ab --hosts: the hosts are sshds of the test, on loopback, each with a home directory of its own."""

import contextlib
import csv
import fcntl
import getpass
import os
import re
import shutil
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
FAKES = TOP / "tests/fakes/ab"
sys.path[:0] = [str(FAKES), str(TOP / "bench"), str(TOP / "tests")]

import tree  # noqa: E402
from ablib import hosts as ab_hosts  # noqa: E402
from ablib.plan import AbError  # noqa: E402
from collector import make_checkout  # noqa: E402
from commands import gone, processes, wait_for  # noqa: E402

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
pytestmark = pytest.mark.skipif(not os.path.exists(SSHD) or not shutil.which("rsync"), reason="no sshd or no rsync; run scripts/setup")


def descendants(pid):
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def name_of(pid):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/comm").read_text()
    return ""


def send(number, pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Sshd:
    """A host."""

    def __init__(self, name, home, keys, environment):
        self.name, self.home, self.keys = name, home, keys
        self.set(environment)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.config = keys / f"{name}.conf"
        self.config.write_text(
            f"ListenAddress 127.0.0.1\nPort {self.port}\nHostKey {keys}/host\nAuthorizedKeysFile {keys}/user.pub\nStrictModes no\n"
            f"UsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nPidFile none\n"
            # bash reads .bashrc if sshd starts it; what the tester's own one starts may leave locks when the host is killed.
            f"MaxStartups 100\nSetEnv HOME={home}\nForceCommand {FAKES}/login {home}\n")
        self.start()

    def set(self, environment):
        (self.home / ".host").write_text("".join(f"export {name}='{value}'\n" for name, value in environment.items()))

    def start(self):
        with (self.keys / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(self.config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

        def listens():
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0
        wait_for(listens)

    def kill(self):
        """All that runs there, at once, as if the power had gone."""
        pids = descendants(self.process.pid)
        send(signal.SIGSTOP, pids)
        send(signal.SIGKILL, descendants(self.process.pid))
        self.process.wait()
        wait_for(lambda: all(map(gone, pids)))

    def lost_connections(self):
        """The sshds end, but nothing else."""
        send(signal.SIGKILL, [pid for pid in descendants(self.process.pid) if name_of(pid).startswith("sshd")])
        self.process.wait()

    def end(self):
        if self.process.poll() is None:
            self.kill()


class Lab:
    """A checkout whose simulated machines are made-up ones, and two hosts."""

    def __init__(self, root):
        self.root, self.out, self.log, self.hang = root, root / "out", root / "machines", root / "hang"
        keys = root / "keys"
        keys.mkdir()
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / name], check=True)
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        self.top = root / "checkout"
        make_checkout(self.top)
        (self.top / "sim/machine").write_text(f'#!/bin/sh\n[ ! -e "$FAKE_NO_MACHINE" ] || exit 125\nexec {FAKES}/machine "$@"\n')
        (self.top / "sim/machine").chmod(0o755)
        programs = root / "bin"
        programs.mkdir()
        for name in ("load", "hackbench"):
            (programs / name).symlink_to(FAKES / name)
        (programs / "qemu-system-aarch64").symlink_to(FAKES / "script")
        (root / "tmp").mkdir()
        self.environment = {"STEAL_QEMU": str(self.top / "scripts/qemu"), "TMPDIR": str(root / "tmp")}
        self.hosts = {}
        for name in ("alpha", "beta"):
            home = root / name
            tree.make(home)
            self.hosts[name] = Sshd(name, home, keys, {
                "PATH": f"{programs}:{os.environ['PATH']}", "FAKE_LOG": self.log, "FAKE_HANG": f"1003:{self.hang}",
                "STEAL_PROC": home / "proc", "STEAL_SYS": home / "sys", "FAKE_SEED": len(name), "FAKE_NO_MACHINE": home / "no-machine"})
        ssh = keys / "ssh"
        ssh.write_text("".join(f"Host {name}\nPort {host.port}\n" for name, host in self.hosts.items()) + f"Host *\nHostName 127.0.0.1\n"
                       f"User {getpass.getuser()}\nIdentityFile {keys}/user\nIdentitiesOnly yes\nStrictHostKeyChecking no\n"
                       f"UserKnownHostsFile /dev/null\nLogLevel ERROR\n")
        self.ssh = f"ssh -F {ssh}"
        self.file = root / "hosts"
        self.file.write_text(f"# two\n\n1/{self.ssh} alpha\n  1/{self.ssh} beta\n")

    def start(self, *words):
        return subprocess.Popen([str(word) for word in (self.top / "bench/ab", "--out", self.out, "--hosts", self.file, *words)],
                                cwd=self.root, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | self.environment)

    @staticmethod
    def finish(process, rc=0):
        stdout, stderr = process.communicate(timeout=240)
        assert process.returncode == rc, stdout + stderr
        return stdout, stderr

    def ab(self, *words, rc=0):
        return self.finish(self.start(*words), rc)

    def sim(self, *words, load=("1000", "900")):
        return ["--machine", "1x4x1", *words, "--", "load", *load]

    def where(self, pid):
        """The host on which a process runs."""
        return next(host for host in self.hosts.values() if pid in descendants(host.process.pid))

    @property
    def rows(self):
        with (self.out / "runs.csv").open() as file:
            return list(csv.DictReader(file))

    @property
    def seeds(self):
        return sorted(int(line.split()[0]) for line in self.log.read_text().splitlines())

    def whole(self, pairs):
        """Each run is there once, and nothing else is left, here or on the hosts that live."""
        assert sorted((int(row["pair"]), row["side"]) for row in self.rows) == [(pair, side) for pair in range(1, pairs + 1)
                                                                                for side in ("all", "off")]
        assert sorted(path.name for path in (self.out / "raw").iterdir() if path.name != ".joblog") == sorted(
            f"command-{pair}.tar" for pair in range(1, pairs + 1))
        self.nothing_left()

    def nothing_left(self):
        for host in self.hosts.values():
            if host.process.poll() is None:
                assert not list(host.home.glob(".cache/sched-steal-ab/*"))
        assert not list((self.root / "tmp").iterdir())


@pytest.fixture
def lab(tmp_path):
    made = Lab(tmp_path)
    made.hang.write_text("never")
    yield made
    for host in made.hosts.values():
        host.end()


# the file

@pytest.mark.parametrize("line, words", [
    ("root@box", "ssh OPTIONS root@box"), ("8/box-2.example.net", "ssh OPTIONS box-2.example.net"),
    ("u@box:2222", "ssh OPTIONS -p 2222 u@box"), ("2/ssh -p 22 -i '/a b' u@box", "ssh OPTIONS -p 22 -i '/a b' u@box"),
    ("/usr/bin/ssh box", "/usr/bin/ssh OPTIONS box"), ("a b/c", None), ("@group/box", None),
    ("root:secret@box", None), ("2/", None), ("bo;x", None), ("0/box", None), ("ssh 'x box", None), ("-oProxyCommand=x", None)])
def test_lines(tmp_path, line, words):
    file = tmp_path / "hosts"
    file.write_text(f"# first\n\n{line}\n")
    if words is None:
        with pytest.raises(AbError, match="hosts:3: not "):
            ab_hosts.read_hosts(file)
        return
    (host,) = ab_hosts.read_hosts(file)
    options = " ".join(f"-o {option}" for option in ab_hosts.OPTIONS)
    assert shlex.join(host.words) == words.replace("OPTIONS", options)
    assert host.name == line.split()[-1].split("/")[-1] and host.slots == (int(line[0]) if line[0].isdigit() else None)


@pytest.mark.parametrize("text, message", [
    (None, "cannot be read: No such file"), ("", "no host in it"), ("# none\n\n", "no host in it"), ("a\nb\n2/a\n", ":3: a second host a"),
    (b"\xff\xfe", "it is not text")])
def test_file_refused(tmp_path, text, message):
    file = tmp_path / "hosts"
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    done = subprocess.run([TOP / "bench/ab", "--hosts", file, "--out", tmp_path / "out", "--", "true"], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1 and str(file) in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("simulated", [False, True])
def test_host_that_cannot_be_reached(lab, simulated):
    lab.hosts["beta"].kill()
    words = lab.sim() if simulated else ["--", "load", "1", "1"]
    stdout, stderr = lab.ab(*words, rc=3)
    assert stdout == "" and len(stderr.splitlines()) == 1 and "host beta cannot be reached" in stderr and "refused" in stderr
    assert not lab.out.exists() and not lab.log.exists() and not (lab.hosts["alpha"].home / ".cache").exists()


def test_something_is_missing_on_a_host(lab):
    bare = lab.root / "bare"
    bare.mkdir()
    for tool in "bash sh uname nproc sed env".split():
        (bare / tool).symlink_to(shutil.which(tool))
    lab.hosts["beta"].set({"PATH": bare})
    stderr = lab.ab(*lab.sim(), rc=3)[1]
    assert len(stderr.splitlines()) == 1
    assert "host beta: not installed: tar flock perl rsync setpriv taskset gcc make cpio gzip awk python3 qemu-system-aarch64" in stderr
    stderr = lab.ab("--", "load", "1", "1", rc=3)[1]
    assert len(stderr.splitlines()) == 1 and "host beta: not installed: tar awk load" in stderr
    stderr = lab.ab("--load", "tbench-1", rc=3)[1]
    assert "host alpha: not installed: tbench\n" in stderr or "host beta: not installed: tar awk tbench\n" in stderr
    assert not lab.out.exists()


def test_another_qemu(lab):
    other = lab.root / "other"
    other.write_text("#!/bin/sh\necho QEMU emulator version 9.9.8\n")
    other.chmod(0o755)
    lab.hosts["beta"].set({"STEAL_QEMU": other, "PATH": os.environ["PATH"]})
    stderr = lab.ab(*lab.sim(), rc=3)[1]
    assert "host beta has QEMU 9.9.8, this host 9.9.9" in stderr and not lab.out.exists()


# simulated machines on hosts

def test_the_bundle_has_what_a_machine_needs(tmp_path):
    """sim/machine of the bundle reads its presets and starts QEMU, here one that is too old."""
    subprocess.run(["tar", "-xf", "-", "-C", tmp_path], input=ab_hosts.bundle(TOP, {}), check=True)
    qemu = tmp_path / "qemu"
    qemu.write_text("#!/bin/sh\necho QEMU emulator version 8.0.0\n")
    qemu.chmod(0o755)
    done = subprocess.run([tmp_path / "sim/machine", "--topology", "1x2x2x1", "--caches", "intel", "--", "true"], capture_output=True,
                          text=True, check=False, env=os.environ | {"STEAL_QEMU": str(qemu)})
    assert done.returncode == 1 and "is version 8.0; simulated machines need QEMU" in done.stderr, done.stderr
    missing = {str(path) for path in (TOP / "sim").iterdir() if path.is_file()} - {str(TOP / "sim" / path.name)
                                                                                    for path in (tmp_path / "sim").iterdir()}
    assert {Path(name).name for name in missing} == {"README.md", "boots", "cost", "fidelity", "irqsoff"}


def test_simulated(lab):
    added = lab.root / "mine"
    added.write_text("#!/bin/sh\nexec load \"$@\"\n")
    added.chmod(0o755)
    words = ["1000", "900", "{}", "{%}", "a  b", "$(echo no)", "'"]
    (lab.root / "preset").write_text("smt 0.7\n")
    options = ["--machine", "1x4x1", "--runs", 6, "--add", "mine", "--append", "a=b c", "--caches", "./preset", "--", "mine"]
    stdout, _ = lab.ab(*options, *words)
    assert "GAIN" in stdout and "words: {} {%} a  b $(echo no) '" in subprocess.run(
        ["tar", "-xOf", lab.out / "raw/command-1.tar", "runs/command/1-all/stdout"], capture_output=True, text=True, check=True).stdout
    lab.whole(6)
    assert "runqueues[*] line 2," in (lab.out / "lines.csv").read_text()
    assert lab.seeds == list(range(1001, 1007)) and lab.log.read_text().count(" smt 0.7\n") == 6
    logins = {line.split("\t")[1].split()[-1] for line in (lab.out / "raw/.joblog").read_text().splitlines()[1:]}
    assert logins == {"alpha", "beta"}
    # Where it ran does not matter, and nothing is left to do.
    lab.file.write_text(f"{lab.ssh} beta\n")
    again, _ = lab.ab(*options, *words)
    assert again == stdout and len(lab.seeds) == 6 and "hosts" not in (lab.out / "plan").read_text()


def test_host_dies(lab):
    """In the middle of a unit: another host makes it. No unit is lost, none is double."""
    lab.hang.unlink()
    process = lab.start(*lab.sim("--runs", 8))
    wait_for(lambda: lab.hang.exists() and lab.hang.read_text())
    dead = lab.where(int(lab.hang.read_text()))
    dead.kill()
    stdout, stderr = lab.finish(process)
    assert "GAIN" in stdout
    lab.whole(8)
    assert lab.seeds.count(1003) == 2 and set(lab.seeds) == set(range(1001, 1009))
    # GNU parallel has given its units to the other one. They did not wait for the others' end.
    assert "have not come back" not in stderr, stderr
    assert stderr.count(f"ssh: connect to host 127.0.0.1 port {dead.port}: Connection refused") == 1, stderr


def test_host_without_luck(lab):
    """Each unit fails on it: the other makes them."""
    (lab.hosts["alpha"].home / "no-machine").touch()
    lab.ab(*lab.sim("--runs", 4))
    lab.whole(4)


def test_connection_is_lost(lab):
    """The only host: when it is back, it makes the unit again, and the process of the first try ends."""
    lab.file.write_text(f"1/{lab.ssh} alpha\n")
    lab.hang.unlink()
    process = lab.start(*lab.sim("--runs", 4))
    wait_for(lambda: lab.hang.exists() and lab.hang.read_text())
    lab.hosts["alpha"].lost_connections()
    lab.hosts["alpha"].start()
    _, stderr = lab.finish(process)
    assert "units have not come back; asking the hosts again" in stderr
    wait_for(lambda: gone(int(lab.hang.read_text())))
    lab.whole(4)


def test_all_units_fail(lab):
    for host in lab.hosts.values():
        (host.home / "no-machine").touch()
    stderr = lab.ab(*lab.sim("--runs", 4), rc=3)[1]
    assert stderr.splitlines()[-1].startswith("ab: error: ") and "status 125" in stderr
    assert not (lab.out / "runs.csv").exists()


def test_kernel_without_the_feature(lab):
    (lab.top / "scripts/image").write_text("PLACE_LAG\n")
    stderr = lab.ab(*lab.sim("--runs", 12), rc=2)[1]
    errors = [line for line in stderr.splitlines() if "error" in line]
    assert len(errors) == 1 and "has no STEAL; boot a kernel with the patches (scripts/apply)" in errors[0] and len(lab.seeds) <= 6
    assert not lab.out.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_interrupted_call_goes_on(lab, number):
    lab.hang.unlink()
    process = lab.start(*lab.sim("--runs", 5))
    wait_for(lambda: lab.hang.exists() and lab.hang.read_text() and len(list(lab.out.glob("raw/*.tar"))) >= 2)
    process.send_signal(number)
    lab.finish(process, -9 if number == signal.SIGKILL else 130)
    wait_for(lambda: gone(int(lab.hang.read_text())))
    before = {path: path.stat().st_mtime_ns for path in lab.out.glob("raw/*.tar")}
    lab.ab(*lab.sim("--runs", 5))
    lab.whole(5)
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())


# hosts that are measured

def test_two_hosts(lab):
    stdout, stderr = lab.ab("--runs", 6, "--", "load", "1000", "900")
    rows = lab.rows
    assert sorted((row["host"], int(row["pair"]), row["side"]) for row in rows) == [
        (host, pair, side) for host in ("alpha", "beta") for pair in range(1, 7) for side in ("all", "off")]
    assert "12 of 12 pairs" in stderr and {path.name for path in (lab.out / "raw").iterdir()} == {"alpha.tar", "beta.tar"}
    # each host has an order of its own
    order = {host: [row["side"] for row in rows if row["host"] == host and row["position"] == "1"] for host in ("alpha", "beta")}
    assert all(sorted(sides) == ["all"] * 3 + ["off"] * 3 for sides in order.values())
    table = [re.split(r"\s{2,}", line) for line in stdout.splitlines() if line.startswith("time (less")]
    assert [line[2] for line in table] == ["alpha", "beta", "all"]
    assert [line[-1] for line in table] == ["6", "6", "12"] and all(10 < float(line[5]) < 12 for line in table)
    assert "heterogeneity" in stdout and "GAIN" in stdout and "on 2 hosts" in stdout and "all hosts" in (lab.out / "page.html").read_text()
    plan = (lab.out / "plan").read_text()
    assert "\nhosts alpha,beta\n" in plan and "\nkernel_alpha Linux " in plan
    for host in lab.hosts.values():
        assert "STEAL" in (host.home / "sys/kernel/debug/sched/features").read_text().split()
    lab.nothing_left()
    # Other hosts are another comparison.
    lab.file.write_text(f"{lab.ssh} alpha\n")
    stderr = lab.ab("--runs", 6, "--", "load", "1000", "900", rc=2)[1]
    assert "in the plan: hosts alpha,beta" in stderr and "now: hosts alpha\n" in stderr


def test_loads(lab):
    """On measured hosts, and on simulated machines there."""
    words = ["--load", "hackbench-1,hackbench-2", "--runs", 2, "--loops", 1000]
    expected = sorted((level, pair, side) for level in "12" for pair in "12" for side in ("all", "off"))
    _, stderr = lab.ab(*words)
    assert re.search(r"^ab: beta, hackbench-2, pair 1: all \+1\d\.\d %; \d of 8 pairs", stderr, re.M), stderr
    for host in ("alpha", "beta"):
        assert sorted((row["level"], row["pair"], row["side"]) for row in lab.rows if row["host"] == host) == expected
    shutil.rmtree(lab.out)
    lab.ab("--machine", "1x4x1", *words)
    assert sorted((row["level"], row["pair"], row["side"]) for row in lab.rows) == expected
    assert {path.name for path in lab.out.glob("raw/[!.]*")} == {f"hackbench-{groups}-{pair}.tar" for groups in (1, 2) for pair in (1, 2)}
    lab.nothing_left()
    assert "--trace is not for --hosts without --machine" in lab.ab(*words, "--trace", rc=2)[1]


def test_one_host(lab):
    """The table is that of this machine."""
    lab.file.write_text(f"{lab.ssh} beta\n")
    stdout, _ = lab.ab("--runs", 6, "--", "load", "1000", "900")
    assert {row["host"] for row in lab.rows} == {"beta"} and "heterogeneity" not in stdout
    (row,) = [re.split(r"\s{2,}", line) for line in stdout.splitlines() if line.startswith("time (less")]
    assert len(row) == 10 and row[-2:] == ["GAIN", "6"]


@pytest.mark.parametrize("how", ["dies", "lost"])
def test_measured_host_goes_away(lab, how):
    """In the middle of a run: the other host goes on, and the features are put back. With the host, the same command goes on."""
    load = ["--runs", 6, "--", "load", "1000", "900", "hang-on-4"]
    alpha, beta = lab.hosts.values()
    (alpha.home / "proc/count-on").write_text("20\n")
    process = lab.start(*load)
    pids = beta.home / "proc/pids"
    wait_for(lambda: pids.exists() and pids.read_text() and (lab.out / "raw/alpha.tar").exists())
    if how == "dies":
        beta.kill()
        stdout, stderr = lab.finish(process)
        assert "host beta: " in stderr and "3 of 6 pairs are done there" in stderr and "not complete: beta" in stderr
        assert "9 of 12 planned pairs" in stdout
        beta.start()
        stdout, stderr = lab.ab(*load)
        assert "9 of 12 pairs; going on" in stderr
    else:
        beta.lost_connections()
        beta.start()
        stdout, stderr = lab.finish(process)
        assert "host beta: " in stderr and "trying again" in stderr
    assert len(lab.rows) == 24 == len({(row["host"], row["pair"], row["side"]) for row in lab.rows}) and "GAIN" in stdout
    wait_for(lambda: all(gone(int(pid)) for pid in pids.read_text().split()))
    assert "STEAL" in (beta.home / "sys/kernel/debug/sched/features").read_text().split()
    lab.nothing_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_on_hosts(lab, number):
    """The host puts its features back. What came back before is not measured again, though the host has lost it."""
    load = ["--runs", 5, "--", "load", "1000", "900", "hang-on-4"]
    lab.file.write_text(f"{lab.ssh} alpha\n")
    home = lab.hosts["alpha"].home
    process = lab.start(*load)
    wait_for(lambda: (home / "proc/pids").exists() and (home / "proc/pids").read_text())
    process.send_signal(number)
    lab.finish(process, -9 if number == signal.SIGKILL else 130)
    # Until the collector there has ended, too.
    place = next((home / ".cache/sched-steal-ab").iterdir()).name
    wait_for(lambda: not processes(place))
    assert "STEAL" in (home / "sys/kernel/debug/sched/features").read_text().split()
    shutil.rmtree(home / ".cache")
    stderr = lab.ab(*load)[1]
    assert "3 of 5 pairs; going on" in stderr and len(lab.rows) == 10
    # the 4th of side all was interrupted, and its other run may have been
    assert (home / "proc/count-on").read_text() == "6"


def test_measured_hosts_wait_for_another_comparison(lab):
    """While it has the machine."""
    with contextlib.ExitStack() as files:
        for host in lab.hosts.values():
            file = os.open(host.home / "sys/kernel", os.O_RDONLY)
            files.callback(os.close, file)
            fcntl.flock(file, fcntl.LOCK_EX)
        process = lab.start("--runs", 2, "--", "load", "1000", "900")
        wait_for(lambda: all((host.home / ".cache/sched-steal-ab").exists() for host in lab.hosts.values()))
        time.sleep(2)
        assert not any((host.home / "proc/pids").exists() for host in lab.hosts.values())
    lab.finish(process)
    assert len(lab.rows) == 8
    lab.nothing_left()


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox"])
def test_machine_that_stays_taken(tmp_path, shell):
    """attended.sh gives up with a status that bench/ab takes for a lost connection. Its command does not have the lock."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sleep").write_text(f"#!/bin/sh\necho >>{tmp_path}/slept\n")
    (tmp_path / "bin/sleep").chmod(0o755)
    (tmp_path / "sys/kernel").mkdir(parents=True)
    environment = os.environ | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "STEAL_SYS": str(tmp_path / "sys")}
    words = [shell, *["sh"] * (shell == "busybox"), TOP / "bench/collect/attended.sh", "sh", "-c", "[ ! -e /proc/self/fd/9 ] && exit 7"]

    def attended():
        stdin, other_end = os.pipe()
        with open(stdin), open(other_end, "w"):
            return subprocess.run(words, env=environment, stdin=stdin, capture_output=True, text=True, check=False)

    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    file = os.open(tmp_path / "sys/kernel", os.O_RDONLY)
    fcntl.flock(file, fcntl.LOCK_EX)
    done = attended()
    assert (done.returncode, done.stderr) == (4, "error: another comparison measures this machine; wait for it to end\n")
    assert len((tmp_path / "slept").read_text()) == 59
    os.close(file)
    assert attended().returncode == 7


def test_locked_host(lab):
    (lab.hosts["beta"].home / "sys/kernel/debug/sched/features").write_text("")
    stderr = lab.ab("--", "load", "1000", "900", rc=3)[1]
    assert "host beta: " in stderr and "cannot be read (kernel lockdown?)" in stderr


def test_host_cannot_measure(lab):
    (lab.hosts["beta"].home / "sys/kernel/debug/sched/features").write_text("PLACE_LAG\n")
    stdout, stderr = lab.ab("--", "load", "1000", "900", rc=2)
    errors = [line for line in stderr.splitlines() if "error" in line]
    assert stdout == "" and len(errors) == 1 and "host beta: " in errors[0] and "has no STEAL" in errors[0]


def test_factorial(lab):
    """On measured hosts, and on simulated machines there: the collector knows the bits."""
    shutil.copy(TOP / "tests/data/features", lab.top / "bench/features")
    for host in lab.hosts.values():
        # The collector's features file is a plain file, which cannot have two features.
        (host.home / "sys/kernel/debug/sched/features").write_text("PLACE_LAG STEAL\n")
    stdout, _ = lab.ab("--factorial", "STEAL", "--runs", 2, "--", "load", "1000", "900")
    assert {(row["host"], row["side"]) for row in lab.rows} == {(host, side) for host in ("alpha", "beta") for side in ("off", "STEAL")}
    assert "share of each bit:" in stdout and "Hartung and Knapp's over the hosts" in " ".join(stdout.split())
    shutil.rmtree(lab.out)
    stdout, _ = lab.ab(*lab.sim("--runs", 2, "--sides", "off,nine"))
    assert {row["side"] for row in lab.rows} == {"off", "nine"}


def test_command_fails_on_hosts(lab):
    stderr = lab.ab("--runs", 20, "--", "load", "1000", "900", "fail-on", rc=3)[1]
    assert "the command failed in " in stderr and "runs of side all (status 7)" in stderr and len(lab.rows) < 40


def test_attended(tmp_path):
    """The command ends when standard input does."""
    marker = tmp_path / "ended"
    script = f"trap 'sleep 0.3; echo put back >{marker}; exit 5' TERM; echo begun; while :; do sleep 0.1; done"
    process = subprocess.Popen(["sh", TOP / "bench/collect/attended.sh", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True)
    assert process.stdout.readline() == "begun\n" and process.poll() is None
    process.stdin.close()
    assert process.wait(20) == 5 and marker.read_text() == "put back\n"
    process = subprocess.Popen(["sh", TOP / "bench/collect/attended.sh", "sh", "-c", "cat; exit 7"], stdin=subprocess.PIPE)
    assert process.wait(20) == 7
    process.stdin.close()
