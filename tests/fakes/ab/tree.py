# SPDX-License-Identifier: GPL-2.0
"""A made-up machine of 4 CPUs in 2 packages: /proc and /sys below a directory, for STEAL_PROC and STEAL_SYS."""

from pathlib import Path

DATA = Path(__file__).resolve().parents[2] / "data"


def put(root, name, text):
    path = Path(root) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def make(root, features="PLACE_LAG STEAL NO_NEXT_BUDDY"):
    put(root, "proc/schedstat", (DATA / "schedstat-v17").read_text())
    put(root, "proc/sys/kernel/sched_schedstats", "0\n")
    put(root, "proc/sys/kernel/random/boot_id", "11111111-2222-3333-4444-555555555555\n")
    put(root, "proc/timer_list", "Timer List Version: v0.11\nHRTIMER_MAX_CLOCK_BASES: 8\nnow at 3204867600 nsecs\n")
    put(root, "proc/uptime", "100.25 0.00\n")
    put(root, "proc/cpuinfo", "processor : 0\nmodel name : Fake CPU\nmodel name : Fake CPU\n")
    put(root, "proc/cmdline", "console=ttyS0\n")
    put(root, "sys/kernel/debug/sched/features", features + " \n")
    put(root, "sys/kernel/debug/sched/idle_search", "version 1\n" + "".join(f"cpu{c} 5 6 7000 8000\n" for c in range(4)))
    put(root, "sys/devices/system/cpu/online", "0-3\n")
    for c in range(4):
        cpu = f"sys/devices/system/cpu/cpu{c}/"
        put(root, cpu + "topology/physical_package_id", f"{c // 2}\n")
        put(root, cpu + "topology/core_id", f"{c % 2}\n")
        put(root, cpu + "topology/core_cpus_list", f"{c}\n")
        put(root, cpu + "cache/index0/level", "1\n")
        put(root, cpu + "cache/index0/shared_cpu_list", f"{c}\n")
        put(root, cpu + "cache/index3/level", "3\n")
        put(root, cpu + "cache/index3/shared_cpu_list", f"{c // 2 * 2}-{c // 2 * 2 + 1}\n")
        (Path(root) / cpu / f"node{c // 2}").mkdir(exist_ok=True)
