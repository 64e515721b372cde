# SPDX-License-Identifier: GPL-2.0
"""Storms: many things at once that change runqueues and domains, on 8 CPUs in 2 LLCs and 2 nodes.

tests/guest/storm.sh has what the storms are, and says what it found. What each run printed is kept in
log/storms/ of the cache directory.
"""

import os
import platform
import re
import subprocess
import time
from pathlib import Path

import pytest

import races
from conftest import first_line

ALL = ["plain", "hogs", "hotplug", "partitions", "toggles", "throttle", "affinity", "classes", "fifo", "deadline", "cookies"]
SECONDS = int(os.environ.get("STEAL_STORM", "10"))
# Minutes of the host that the soak takes.
SOAK = float(os.environ.get("STEAL_SOAK", "120"))

# Sharing threads and caches: 2 LLCs of 2 cores of 2 threads.
MACHINE = ["--smp", "8,sockets=2,cores=2,threads=2", "--numa", "2", "--also", "stress-ng", "--memory", "3072"]
# The same for arm64, simulated in virtual time: however slow or busy the host is, eight CPUs run at once, and as nothing runs
# while another one patches code, kernels with static branches do. Slow CPUs, as it is seconds that count here; they take turns of 200
# instructions, as those of the bench do.
SIMULATED = ["--topology", "2x2x2", "--numa", "--ips", str(200 * 10**6), "--quantum", "1000", "--also", "stress-ng"]
# Whatever changes CPUs and domains waits for RCU, whose own tasks would wait for real-time ones. Hotplug under real-time
# load takes minutes on a busy host; storm.sh itself finds what hangs. A task that is preempted while it reads under RCU, a
# SCHED_IDLE one above all, may wait for longer than RCU's 21 s, if hotplug has left few CPUs.
RCU = "rcutree.kthread_prio=70 rcupdate.rcu_expedited=1 sysctl.kernel.hung_task_timeout_secs=300 rcupdate.rcu_cpu_stall_timeout=300"

# Warnings that 6.12 has without the series, too (fair-server-inactive.rst, core-sched-forceidle.rst and fair-server-dying.rst in
# Documentation/base-faults). Other reports have a line of their own in scripts/splats, beside that of the backtrace.
KNOWN = {"6.12": [r"WARNING: .* kernel/sched/(deadline\.c:[0-9]+ (sub_running_bw|task_non_contending|inactive_task_timer)|"
                  r"core_sched\.c:[0-9]+ __sched_core_account_forceidle|"
                  r"core\.c:[0-9]+ sched_cpu_dying)"]}.get(os.environ.get("STEAL_LINE"), [])
# A warning where CPUs come while core scheduling is on: the base's code picks a task on a CPU that is coming, and first updates its clock,
# without its lock (core-sched-cpu-starting.rst: seen with the series only). Elsewhere, and from other callers, it is a fault.
STARTING = r"WARNING: .*kernel/sched/sched\.h:[0-9]+ (at )?update_rq_clock\+"
# What the kernel prints of a CPU that goes if something is left there: more than the thread that takes it down and the fair server.
LEFT_BEHIND = r"\tpid: \d+, name: (?!migration/).*|CPU\d+ enqueued tasks \((?!2 total).*"

# A search has the mask in its hands for a microsecond only.
LONG_SEARCHES = ["STORM_SEARCH_US=200"]

# Names of objects count in all directories: with core.o, KCSAN would watch its own, and the kernel does not boot.
KCSAN = ["KCSAN_SANITIZE=n"] + [f"KCSAN_SANITIZE_{name}.o=y" for name in ("fair", "build_policy", "build_utility")]


def known(rounds):
    """What these rounds allow in the kernel log: scripts/boot's option, or nothing."""
    patterns = KNOWN + [STARTING] * any({"hotplug", "cookies"} <= set(names.split("+")) for names in rounds)
    return ["--allow", "|".join([*patterns, "[cC]all [tT]race:"])] if patterns else []


def not_starting(log):
    """The warnings STARTING in the text of a kernel log that do not come from a pick of core scheduling."""
    found = []
    for report in re.split(r"-+\[ cut here \]-+", log):
        if re.search(STARTING, report):
            # compilers call the copies of a function NAME.isra.0 and the like
            callers = [name.split(".")[0] for name in re.findall(r"^\[ *[\d.]+\]  ([\w.]+)\+0x", report, re.M)]
            if [name for name in callers if name != "update_rq_clock"][:1] not in (["__schedule"], ["pick_next_task"]):
                found.append(report)
    return found


@pytest.fixture(scope="session")
def kernel(top):
    """kernel(ARCH, KIND, TREE): a kernel of this tree as it is now; KIND is plain, debug, rt or kcsan."""

    def make(arch, kind, tree, checker=True):
        names = ["guest", "steal", {"x86_64": "storm", "arm64": "sim"}[arch]] + ["checker"] * checker
        names += [kind] * (kind != "plain")
        command = [top / "scripts/build", "--arch", arch, "--config", ",".join(names), "--tree", tree]
        for variable in KCSAN if kind == "kcsan" else []:
            command += ["--make", variable]
        image = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        if arch == "x86_64":
            # A compiler's cache that does not see .incbin gives the kernel of an earlier build.
            packed = Path(image).parent / "compressed/vmlinux.bin.gz"
            assert packed.read_bytes() in Path(image).read_bytes(), f"{image} is not what was linked last"
        return image

    return make


@pytest.fixture(scope="session")
def storm(run, top, cache, tmp_path_factory):
    """storm(NAME, ARCH, KERNEL, ROUND...): boots, runs these rounds and returns what was said."""
    programs = {}

    def program(arch):
        if arch not in programs:
            compiler = {"x86_64": "x86_64-linux-gnu-gcc", "arm64": "aarch64-linux-gnu-gcc"}[arch]
            programs[arch] = tmp_path_factory.mktemp(arch) / "storm"
            run(compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-o", programs[arch],
                top / "tests/guest/storm.c")
        return programs[arch]

    def start(name, arch, image, *rounds, options=(), append=RCU, seconds=SECONDS, environment=(), check=True):
        logs = cache / "log/storms"
        logs.mkdir(parents=True, exist_ok=True)
        if arch == "arm64":
            seconds = -(-seconds // 5)
            machine = [top / "sim/machine", *SIMULATED, "--timeout", 1800 * len(rounds)]
        else:
            machine = [top / "scripts/boot", "--arch", arch, *MACHINE, "--timeout", 300 + len(rounds) * (seconds + 1000)]
        done = run(*machine, "--kernel", image, "--log", logs / f"{name}.log", "--append", append,
                   "--add", program(arch), "--add", top / "tests/guest/storm.sh", *known(rounds), *options, "--",
                   "env", *environment, "/opt/storm.sh", seconds, *rounds, check=False)
        (logs / f"{name}.txt").write_text(done.stdout)
        log = logs / f"{name}.log"
        text = log.read_text(errors="replace") if log.exists() else ""
        left, unlocked = re.findall(LEFT_BEHIND, text), not_starting(text)
        if check and (done.returncode or left or unlocked):
            pytest.fail(f"{name}: status {done.returncode}, left on a CPU that went: {left}, clocks updated without the lock: {unlocked}\n"
                        f"{done.stdout}", pytrace=False)
        return done.stdout

    return start


def assert_whole(said, rounds, unsupported=()):
    """Each round has ended well, so storms, stealing and checker have come to what storm.sh wants."""
    assert re.findall(r"^round (\S+) seconds \d+ good$", said, re.M) == list(rounds), said
    assert set(re.findall(r"^storm (\S+) unsupported$", said, re.M)) == set(unsupported), said
    assert len(re.findall(r"^steals [1-9]", said, re.M)) == len(rounds), said
    assert len(re.findall(r"^checker readings ", said, re.M)) == len(rounds), said


# Hotplug and partitions are not at once: that gives warnings in kernel/cgroup/cpuset.c, partition_xcpus_del().
# Where there are cookies, CPUs hardly ever steal, and the clocks' checks are off.
TOGETHER = ["+".join(storm for storm in ALL if storm not in without)
            for without in (["partitions"], ["hotplug"], ["partitions", "cookies"], ["hotplug", "cookies"])]
SOME = "partitions+toggles+affinity+plain"


@pytest.mark.parametrize("caller,faults", [("__schedule", 0), ("pick_next_task", 0), ("pick_next_task.constprop.0", 0),
                                           ("sched_balance_newidle", 1), ("try_steal.isra.0", 1)])
def test_only_picks_update_clocks_without_the_lock(caller, faults):
    """What is allowed with hotplug and cookies is the base's warning, and not one like it."""
    warning = "[   60.784406] WARNING: kernel/sched/sched.h:1687 at update_rq_clock+0x2e8/0x800, CPU#7: storm/268\n"
    log = (f"[   60.784364] ------------[ cut here ]------------\n{warning}[   60.789854] Call trace:\n"
           f"[   60.789977]  update_rq_clock+0x2e8/0x800 (P)\n[   60.790213]  {caller}+0x14fc/0x50bc\n[   60.790455]  __schedule+0xcc/0x22c\n")
    assert len(not_starting(log)) == faults
    assert re.search(known(TOGETHER)[1], warning) and not known(ALL)


def assert_tickless(run, top, arch, image, cpus):
    """The ticks of these CPUs (and not that of CPU 0) stop while they run one task."""
    machine = {"x86_64": [top / "scripts/boot", "--arch", arch, *MACHINE], "arm64": [top / "sim/machine", *SIMULATED]}[arch]
    said = run(*machine, "--kernel", image, "--append", f"nohz_full={cpus}", "--add", top / "tests/guest/ticks.sh",
               "--", "/opt/ticks.sh", "6").stdout
    ticks = [int(n) for n in re.search(r"^ticks((?: \d+){8})$", said, re.M)[1].split()]
    first, last = map(int, cpus.split("-"))
    assert ticks[0] > 50 and max(ticks[first:last + 1]) < ticks[0] / 4, said


def test_alone_and_some_under_debug(run, top, storm, kernel, extra_tree):
    """Each by itself, and some at once, with lockdep, KASAN and UBSAN watching, and two CPUs without a tick."""
    rounds = [*ALL, SOME]
    image = kernel("x86_64", "debug", extra_tree)
    assert_tickless(run, top, "x86_64", image, "6-7")
    said = storm("x86_64-debug-nohz", "x86_64", image, *rounds, seconds=SECONDS // 2, append=RCU + " nohz_full=6-7")
    assert_whole(said, rounds)


@pytest.mark.line
@(pytest.mark.full if first_line() else pytest.mark.line)
def test_throttle_and_hotplug(storm, kernel, extra_tree):
    """Where the lines of kernels differ most: throttling by group, and domains. The first line has the debug kernel for that."""
    said = storm("x86_64-line", "x86_64", kernel("x86_64", "plain", extra_tree), "throttle", "hotplug")
    assert_whole(said, ["throttle", "hotplug"])


@pytest.mark.line
@pytest.mark.full
@pytest.mark.parametrize("kind", ["plain", "debug", "rt"])
@pytest.mark.parametrize("arch", ["x86_64", "arm64"])
def test_alone_and_together(storm, kernel, extra_tree, arch, kind):
    said = storm(f"{arch}-{kind}", arch, kernel(arch, kind, extra_tree), *ALL, *TOGETHER)
    assert_whole(said, [*ALL, *TOGETHER])


@pytest.mark.full
def test_soak(storm, kernel, extra_tree):
    """All storms at once for two hours, with lockdep and KASAN watching, on machines that boot with seeds of their own."""
    image = kernel("arm64", "debug", extra_tree)
    end = time.monotonic() + 60 * SOAK
    boots = 0
    while not boots or time.monotonic() < end:
        boots += 1
        said = storm(f"arm64-soak-{boots}", "arm64", image, *TOGETHER, seconds=5 * SECONDS, options=["--seed", boots])
        assert_whole(said, TOGETHER)
        print(f"soak: {boots} boots, {(time.monotonic() - end) / 60 + SOAK:.0f} of {SOAK:.0f} minutes", flush=True)


@pytest.mark.full
@pytest.mark.parametrize("arch", ["x86_64", "arm64"])
def test_without_a_tick(run, top, storm, kernel, extra_tree, arch):
    rounds = ["plain", "affinity+partitions+toggles", "affinity+hotplug+toggles"]
    kind = {"x86_64": "plain", "arm64": "matrix/nohz-full"}[arch]
    image = kernel(arch, kind, extra_tree)
    assert_tickless(run, top, arch, image, "1-7")
    said = storm(f"{arch}-nohz", arch, image, *rounds, append=RCU + " nohz_full=1-7")
    assert_whole(said, rounds)


@pytest.mark.full
@pytest.mark.parametrize("arch", ["x86_64", "arm64"])
def test_masks_come_and_go(storm, kernel, extra_tree, cache, arch):
    """Domains are rebuilt all the time while old masks wait for late RCU callbacks, under KASAN."""
    rounds = ["hotplug+plain", "partitions+toggles+plain"]
    # Without full dynticks there is nothing that would offload callbacks; x86_64's storm kernels all have them.
    kind = {"x86_64": "debug", "arm64": "debug,matrix/nohz-full"}[arch]
    said = storm(f"{arch}-debug-masks", arch, kernel(arch, kind, extra_tree), *rounds, seconds=3 * SECONDS, environment=LONG_SEARCHES,
                 append="rcutree.kthread_prio=70 rcupdate.rcu_expedited=0 rcutree.blimit=1 rcutree.jiffies_till_first_fqs=50 "
                        "rcu_nocbs=all sysctl.kernel.hung_task_timeout_secs=300")
    assert_whole(said, rounds)
    assert "Offload RCU callbacks from CPUs: 0-7" in (cache / f"log/storms/{arch}-debug-masks.log").read_text(errors="replace")


@pytest.mark.full
def test_sched_ext(run, storm, kernel, extra_tree, top, tmp_path):
    """All fair tasks change their class and come back, some ten times a second."""
    # The program is linked with this machine's libbpf, so the guest is of this machine's kind.
    arch = {"x86_64": "x86_64", "aarch64": "arm64"}[platform.machine()]
    run("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-o", tmp_path / "ext", top / "tests/guest/ext.c",
        "-lbpf", "-lelf", "-lz")
    rounds = ["ext", "ext+toggles+affinity+plain", "ext+hotplug+hogs", "ext+partitions+throttle"]
    said = storm(f"{arch}-ext", arch, kernel(arch, "matrix/sched-ext", extra_tree), *rounds,
                 options=["--add", tmp_path / "ext"])
    assert_whole(said, rounds)
    # Not only did the program say so: the kernel counts as well, and more from round to round.
    enabled = [0, *map(int, re.findall(r"^sched_ext enabled (\d+)$", said, re.M))]
    assert len(enabled) == len(rounds) + 1 and enabled == sorted(set(enabled)), said


@pytest.mark.full
def test_no_new_data_race(run, storm, kernel, base_tree, extra_tree, cache):
    """KCSAN in kernel/sched: it reports no unmarked access of the series that it does not report without the series, too.

    It reports a sample of the races that there are, so that two runs of the same kernel differ as well. Pairs of functions that
    only the run with the series has, in code that was there before, are printed. KCSAN makes the machine so slow that three operations
    of each storm are enough. In the rounds with all storms, CPUs hardly steal; those without hotplug and cookies have most of the searches.
    """
    allow = ["--allow", "BUG: KCSAN: data-race in"]
    found, image = {}, {}
    for name, tree in (("base", base_tree), ("steal", extra_tree)):
        ours = name == "steal"
        image[name] = kernel("x86_64", "kcsan", tree, checker=ours)
        environment = ["STORM_OPERATIONS=3"] + ["STORM_NO_CHECKER=1"] * (not ours)
        said = storm(f"x86_64-kcsan-{name}", "x86_64", image[name], *TOGETHER, "plain", SOME, seconds=6 * SECONDS, options=allow,
                     environment=environment)
        found[name] = races.reports((cache / f"log/storms/x86_64-kcsan-{name}.log").read_text(errors="replace"))
    steals = sum(map(int, re.findall(r"^steals (\d+)", said, re.M)))
    assert steals >= 500, f"{steals} steals are too few to see races in a search"
    assert found["base"], "no race found in the base: does KCSAN look at kernel/sched?"
    before = {race.pair for race in found["base"]}
    diff = run("git", "diff", "--no-color", run("git", "rev-parse", "HEAD", cwd=base_tree).stdout.strip(), "--", "kernel/sched",
               cwd=extra_tree).stdout
    vmlinux = image["steal"].replace("/arch/x86/boot/bzImage", "/vmlinux")
    new = [race for race in races.in_added_code(found["steal"], vmlinux, diff) if race.pair not in before]
    print(f"base: {len(found['base'])} reports, {sorted(before)}\nwith the series: {len(found['steal'])} reports, of them only there: "
          f"{sorted({race.pair for race in found['steal']} - before)}")
    assert not new


def no_memory(top, image):
    """The command that runs tests/guest/no-memory.sh; cpumasks that fail leave a backtrace in a debug kernel."""
    return [top / "scripts/boot", "--arch", "x86_64", "--kernel", image, *MACHINE, "--timeout", 600, "--append", RCU,
            "--allow", "Call Trace:", "--add", top / "tests/guest/no-memory.sh", "--", "/opt/no-memory.sh"]


# No CPU balances when it is newly idle.
RELAXED = "relax_domain_level=0"


def relaxed(top, image):
    """The command that prints what the checker says of a machine with RELAXED."""
    return [top / "scripts/boot", "--arch", "x86_64", "--kernel", image, "--smp", "4,sockets=2,cores=2", "--append", RELAXED, "--",
            "cat", "/sys/kernel/debug/sched/overload_check"]


@pytest.mark.line
def test_no_mask_without_newly_idle_balancing(run, top, kernel, extra_tree):
    """CPUs that may not balance when they are newly idle do not steal, and need no mask."""
    said = run(*relaxed(top, kernel("x86_64", "plain", extra_tree))).stdout
    assert re.search("^missing 0$", said, re.M) and re.search("^violations 0$", said, re.M) and not re.search("^llc ", said, re.M), said


@pytest.mark.full
def test_failing_allocations(run, top, kernel, extra_tree):
    """Whichever allocation fails in a rebuild of the domains: nothing breaks, a lacking mask is said once, and tasks spread."""
    said = run(*no_memory(top, kernel("x86_64", "debug", extra_tree))).stdout
    found = re.search(r"^allocations (\d+) said (\d+) missing (\d+) spread (\d+)$", said, re.M)
    assert found, said
    allocations, lines, missing, spread = map(int, found.groups())
    assert allocations > 20, said
    assert lines == 1, said
    assert missing >= 2, said
    assert spread == 6, said
