# SPDX-License-Identifier: GPL-2.0
"""scripts/bug-report, on made-up /proc, /sys and /boot, with each of the usual shells."""

import gzip
import os
import re
import shutil
import socket
import subprocess

import pytest

LOG = """\
[    0.000000] Linux version 7.3.4 (builder@forge) (gcc 14.2.0)
[    0.000000] Kernel command line: root=/dev/sda1 password=hunter2 sched_verbose
[    1.000000] usb 1-1: SerialNumber: S3CR3T
[    2.000000] WARNING: CPU: 3 PID: 117 at kernel/sched/fair.c:5000 steal_from+0x12/0x40
[    2.000001] Hostname set to <quark.example.net>.
[    2.000002] e1000: 52:54:00:12:34:56, inet 192.168.7.21, fe80::5054:ff:fe12:3456, for alice-laptop
[    2.000003] EXT4-fs (sda1): mounted 0d3f8a52-6a2e-4f0e-9a1b-3c5d7e9f1a2b, SerialNumber: S3CR3T, pci 0000:00:1f.2
[    2.000004] RIP: 0010:steal_from+0x12/0x40
""" + "".join(f"[    3.{n:06}] line {n}\n" for n in range(40)) + """\
[    9.000000] sched: RT throttling activated
"""

FILES = {
    "proc/version": "not shown",
    "proc/schedstat": "version 17\ntimestamp 1\ncpu0 1 2 3\n",
    "proc/sys/kernel/sched_schedstats": "1\n",
    "proc/sys/kernel/hostname": "quark\n",
    "proc/sys/kernel/tainted": "0\n",
    "proc/cmdline": "root=UUID=1234 ip=192.168.7.21 isolcpus=2-3 password=hunter2 nohz_full=2 preempt=full sched_verbose schedstats=enable "
                    "relax_domain_level=2 nosmt maxcpus=4 numa_balancing=0\n",
    "sys/kernel/debug/sched/features": "PLACE_LAG NO_STEAL HRTICK \n",
    "sys/kernel/debug/sched/idle_search": "version 1\ncpu0 5 6 7 8\n",
    "sys/devices/system/cpu/online": "0-3\n",
    "sys/devices/system/node/node0/cpulist": "0-1\n",
    "sys/devices/system/node/node0/distance": "10 20\n",
    "sys/devices/system/node/node1/cpulist": "2-3\n",
}
CONFIG = "CONFIG_SMP=y\nCONFIG_SCHED_MC=y\n# CONFIG_SCHEDSTATS is not set\nCONFIG_HZ=1000\nCONFIG_LOCALVERSION=\"-quark\"\nCONFIG_EXT4_FS=y\n"


@pytest.fixture
def machine(top, tmp_path):
    """The directory of a machine of 4 CPUs in two sockets; machine.report(ARGUMENT...) runs the script there."""
    files = dict(FILES)
    for cpu in range(4):
        socket_cpus = f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}\n"
        at = f"sys/devices/system/cpu/cpu{cpu}/"
        files.update({at + "topology/physical_package_id": f"{cpu // 2}\n", at + "topology/thread_siblings_list": f"{cpu}\n",
                      at + "cache/index0/level": "1\n", at + "cache/index0/shared_cpu_list": f"{cpu}\n",
                      at + "cache/index3/level": "3\n", at + "cache/index3/shared_cpu_list": socket_cpus})
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "proc/config.gz").write_bytes(gzip.compress(CONFIG.encode()))
    (tmp_path / "log").write_text(LOG)
    for name, text in {"dmesg": f"cat {tmp_path}/log", "journalctl": "exit 1", "getent": "echo alice:x:1000:1000::/home/alice:/bin/sh",
                       "uname": "case $* in -n) echo quark.example.net ;; -r) echo 7.3.4-quark ;; *) echo Linux 7.3.4-quark x86_64 ;; esac"}.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "clone/scripts").mkdir(parents=True)
    shutil.copy(top / "scripts/bug-report", tmp_path / "clone/scripts")

    def report(*arguments, shell="sh", rc=0):
        environment = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "SUDO_USER": "", "USER": "root", "LOGNAME": "root",
                       **{f"STEAL_{name.upper()}": f"{tmp_path}/{name}" for name in ("proc", "sys", "boot")}}
        done = subprocess.run([*shell.split(), tmp_path / "clone/scripts/bug-report", *arguments], env=environment, cwd=tmp_path,
                              capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == rc, done.stdout + done.stderr
        return done.stdout if rc == 0 else done.stderr

    tmp_path.joinpath("clone/base").write_text("series_version=1.0\nversion=7.3.4\n")
    report.path = tmp_path
    return report


def parts(text):
    """The report's sections by their titles."""
    return dict(zip(*[iter(re.split(r"^== (.*)\n", text, flags=re.M)[1:])] * 2))


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox sh"])
def test_what_the_report_has(machine, shell):
    text = machine("--out", "-", shell=shell)
    found = parts(text)
    assert "series: 1.0\nmade for Linux: 7.3.4\nLinux 7.3.4-(host) x86_64\n" in found["versions"]
    assert "STEAL: off\n" in found["scheduler features"] and "PLACE_LAG" in found["scheduler features"]
    assert re.search(r"schedstat: version 17\n.*sched_schedstats: 1\nversion 1\ncpu0 5 6 7 8\n", found["counters"])
    assert re.search(r"socket:\n *2 0\n *2 1\n(.*\n)*.*last-level cache \(level 3\):\n *2 0-1\n *2 2-3\n", found["topology"])
    assert "node0: CPUs 0-1, distances 10 20\nnode1: CPUs 2-3" in found["topology"]
    assert found["kernel command line"].split("\n")[:-3] == [
        "isolcpus=2-3", "nohz_full=2", "preempt=full", "sched_verbose", "schedstats=enable", "relax_domain_level=2", "nosmt", "maxcpus=4",
        "numa_balancing=0"]
    assert found["configuration"].split() == "CONFIG_SMP=y CONFIG_SCHED_MC=y # CONFIG_SCHEDSTATS is not set CONFIG_HZ=1000".split()
    log = found["kernel log: splats and lines about the scheduler"]
    assert "steal_from+0x12/0x40" in log and "pci 0000:00:1f.2" in log and "RT throttling" in log
    # 20 lines after the splat
    assert "line 15\n" in log and "line 16\n" not in log
    for secret in ["quark", "alice", "hunter2", "192.168", "fe80", "52:54", "S3CR3T", "0d3f8a52", "UUID=1234", "builder"]:
        assert secret not in text
    assert not re.search(r"nothing", found["versions"]) and "debug/sched/preempt: no such file; this kernel does not have it" in found["not read"]


def test_what_cannot_be_read(machine):
    """Each has a line; the rest is there."""
    path = machine.path
    shutil.rmtree(path / "sys/kernel/debug/sched")
    (path / "proc/config.gz").unlink()
    (path / "proc/schedstat").unlink()
    (path / "clone/base").unlink()
    (path / "bin/dmesg").write_text("#!/bin/sh\nexit 1\n")
    found = parts(machine("--out", "-"))
    assert "STEAL: unknown\n" in found["scheduler features"] and "series: unknown" in found["versions"]
    said = found["not read"].splitlines()
    for text in ["version of the series: ", "sched/features: no such file; is debugfs mounted?", "proc/schedstat: no such file",
                 "idle_search: no such file; is debugfs mounted?", "the configuration: neither ", "the kernel log: "]:
        assert len([line for line in said if text in line]) == 1, (text, said)
    (path / "boot").mkdir()
    (path / "boot/config-7.3.4-quark").write_text(CONFIG)
    assert "CONFIG_SCHED_MC=y" in parts(machine("--out", "-"))["configuration"]


def test_lockdown(machine):
    """Root has the permission, and the kernel refuses to open the file: here, as it is a directory."""
    for name in ("features", "preempt"):
        file = machine.path / "sys/kernel/debug/sched" / name
        file.unlink(missing_ok=True)
        file.mkdir()
    found = parts(machine("--out", "-"))
    assert "STEAL: unknown\n" in found["scheduler features"] and "not in this kernel" not in found["scheduler features"]
    assert "sched/features: cannot be read; kernel lockdown forbids it\n" in found["not read"]
    assert "sched/preempt: cannot be read\n" in found["not read"]


def test_where_it_goes(machine):
    machine()
    made = list(machine.path.glob("bug-report-*.txt"))
    assert len(made) == 1 and "STEAL: off" in made[0].read_text()
    before = made[0].read_bytes()
    assert "exists already" in machine("--out", made[0], rc=1)
    assert made[0].read_bytes() == before
    assert "cannot be written" in machine("--out", "/nonexistent/file", rc=1)
    for arguments in [("--what",), ("--out",), ("file",)]:
        said = machine(*arguments, rc=2)
        assert "see --help" in said and said.count("\n") == 1


def test_this_machine(run, top):
    text = run(top / "scripts/bug-report", "--out", "-").stdout
    assert "Linux " in text and "not read" in text
    for name in {socket.gethostname(), socket.gethostname().split(".")[0]} - {"localhost"}:
        assert not re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", text)
