# SPDX-License-Identifier: GPL-2.0
"""The hosts of bench/ab --hosts FILE: reads them, asks each what it has, and makes what they need.

A line of FILE is one that GNU parallel's --sshloginfile takes: [N/][SSH [OPTION...] ][USER@]HOST[:PORT]. N is how many simulated
machines run there at a time. Empty lines and lines that begin with # are comments. The name of a host is the last word of its line,
without N/.
"""

import hashlib
import io
import re
import shlex
import subprocess
import tarfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterable, Optional, Sequence

from .plan import AbError

LINE = re.compile(r"(?:([1-9][0-9]{0,3})/)?(?:(\S.*\S|\S)\s+)?"
                  r"((?:([A-Za-z0-9_][A-Za-z0-9_.-]*)@)?([A-Za-z0-9][A-Za-z0-9_.-]*)(?::([0-9]{1,5}))?)")
# A host that is gone is noticed after a minute.
OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=15", "ServerAliveCountMax=4")
# Below the home directory of a host; each comparison has a directory of its own there.
PLACE = ".cache/sched-steal-ab"
# What a host must have: for a simulated machine, and to be measured itself.
SIMULATOR = "bash tar flock perl rsync setpriv taskset gcc make cpio gzip awk python3 qemu-system-aarch64".split()
REAL = "sh tar awk".split()
# What a unit of simulated machines needs of this repository.
FILES = ("bench/ab-unit", "bench/ab-on-host", "bench/collect/llc.awk", "scripts/lib.sh", "scripts/boot", "scripts/splats",
         "scripts/guest-image", "sim/machine", "sim/names", "sim/caches.awk", "sim/device-tree", "sim/presets/*", "sim/qemu/*", "sim/guest/*")
ASK = """
missing=
for c in %s; do
	case $c in
	qemu-system-aarch64) c=${STEAL_QEMU:-$c} ;;
	esac
	command -v "$c" >/dev/null 2>&1 || missing="$missing $c"
done
echo "missing$missing"
features=${STEAL_SYS:-/sys}/kernel/debug/sched/features
if [ -w "$features" ] && [ -z "$(cat "$features" 2>/dev/null)" ]; then
	echo "locked $features"
fi
echo "cores $(nproc 2>/dev/null || echo 1)"
echo "kernel $(uname -srv)"
echo "home $PWD"
echo "qemu $("${STEAL_QEMU:-qemu-system-aarch64}" --version 2>/dev/null | sed -n 's/.*version //p')"
"""


@dataclass
class Host:
    """A host of the file. facts: what it has said of itself."""

    name: str
    slots: Optional[int]
    words: list[str]
    facts: dict[str, str] = field(default_factory=dict)

    def ssh(self, *command: str) -> list[str]:
        """Runs a command of a shell there."""
        return [*self.words, *command]

    def call(self, script: str, stdin: bytes = b"", timeout: int = 600) -> subprocess.CompletedProcess:
        return subprocess.run(self.ssh("sh -c " + shlex.quote(script)), input=stdin, capture_output=True, check=False, timeout=timeout)


def last_line(data: bytes) -> str:
    lines = [line for line in data.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no message"


def read_hosts(name: str) -> list[Host]:
    """The hosts of a file."""
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AbError(f"--hosts {name}: cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}") from error
    hosts: list[Host] = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = LINE.fullmatch(line)
        try:
            command = shlex.split(match[2] or "ssh") if match else []
        except ValueError:
            command = []
        if not command:
            raise AbError(f"--hosts {name}:{number}: not [N/][SSH [OPTION...] ][USER@]HOST[:PORT]: {line}")
        login = (f"{match[4]}@" if match[4] else "") + match[5]
        if match[3] in (host.name for host in hosts):
            raise AbError(f"--hosts {name}:{number}: a second host {match[3]}; give each a name of its own in ~/.ssh/config")
        words = [command[0], *(word for option in OPTIONS for word in ("-o", option)), *command[1:],
                 *(("-p", match[6]) if match[6] else ()), login]
        hosts.append(Host(match[3], int(match[1]) if match[1] else None, words))
    if not hosts:
        raise AbError(f"--hosts {name}: no host in it")
    return hosts


def ask(host: Host, programs: Sequence[str]) -> str:
    """Asks a host what it has. Returns why it cannot be reached, or nothing."""
    try:
        done = subprocess.run(host.ssh("sh"), input=(ASK % " ".join(map(shlex.quote, programs))).encode(), capture_output=True, check=False,
                              timeout=60)
    except subprocess.TimeoutExpired:
        return "no answer for 60 s (does a start-up file of its shell wait?)"
    except OSError as error:
        return f"{host.words[0]}: {error.strerror}"
    words = [line.partition(" ") for line in done.stdout.decode(errors="replace").splitlines()]
    host.facts = {key: value.strip() for key, _, value in words}
    return "" if done.returncode == 0 and "missing" in host.facts else last_line(done.stderr)


def ask_all(hosts: Iterable[Host], programs: Sequence[str]) -> dict[str, str]:
    """By name, why hosts cannot be reached."""
    hosts = list(hosts)
    with ThreadPoolExecutor(16) as pool:
        answers = pool.map(lambda host: ask(host, programs), hosts)
        return {host.name: why for host, why in zip(hosts, answers) if why}


def check(hosts: list[Host], programs: Sequence[str], optional: Sequence[str] = ()) -> dict[str, str]:
    """Refuses hosts that cannot be reached or lack something. Returns which of the optional programs is missing on which host."""
    lacking = {}
    for name, why in ask_all(hosts, [*dict.fromkeys([*programs, *optional])]).items():
        raise AbError(f"host {name} cannot be reached (ssh -o BatchMode=yes): {why}")
    for host in hosts:
        missing = host.facts["missing"].split()
        lacking |= dict.fromkeys(missing, host.name)
        # The simulator's QEMU may have another name there.
        missing = [program for program in missing if program in programs or program not in optional]
        if missing:
            raise AbError(f"host {host.name}: not installed: {' '.join(missing)}")
        if re.search(r"[\s,:']", host.facts["home"]):
            raise AbError(f"host {host.name}: the path of its home directory has a space, comma, colon or apostrophe: {host.facts['home']}")
    return lacking


def check_qemu(hosts: list[Host], version: str) -> None:
    """Another QEMU may give other figures."""
    for host in hosts:
        if host.facts["qemu"] != version:
            raise AbError(f"host {host.name} has QEMU {host.facts['qemu'] or 'of an unknown version'}, this host {version}; install the "
                          "same one")


def tar_of(files: dict[str, tuple[bytes, bool]]) -> bytes:
    """An archive of files by name: (data, is it a program). The same files give the same archive."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, (data, program) in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o755 if program else 0o644
            archive.addfile(member, io.BytesIO(data))
    return made.getvalue()


def file_of(path: Path) -> tuple[bytes, bool]:
    return path.read_bytes(), bool(path.stat().st_mode & 0o100)


def bundle(top: Path, more: dict[str, tuple[bytes, bool]]) -> bytes:
    """All that a unit of simulated machines needs on a host."""
    files = {str(path.relative_to(top)): file_of(path) for pattern in FILES for path in top.glob(pattern) if path.is_file()}
    return tar_of(files | more)


def identity(*what: object) -> str:
    """A name for a directory on the hosts."""
    digest = hashlib.sha256()
    for part in what:
        digest.update(part if isinstance(part, bytes) else f"{part}\n".encode())
    return digest.hexdigest()[:16]
