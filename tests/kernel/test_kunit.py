# SPDX-License-Identifier: GPL-2.0
"""sparsemask's KUnit suite, built and run by the kernel's kunit.py: with UML, and on arm64 in QEMU."""

import os
import platform
import re

import pytest

# UML, the kernel as a process, which starts at once, is there for x86 only.
HOST = "um" if platform.machine() == "x86_64" else "arm64"

# What an arm64 kernel has by default and the suite does not need; it more than doubles the time to build.
# Pointer authentication is slow to emulate.
ARM64_OPTIONS = ["EXPERT=y", *(name + "=n" for name in """
    BLOCK EFI SUSPEND PM VT INPUT HWMON USB_SUPPORT IOMMU_SUPPORT HW_RANDOM IO_URING AIO NAMESPACES COMPACTION
    COREDUMP SECCOMP FW_LOADER ARM64_PTR_AUTH ARM64_SVE SLUB_DEBUG""".split())]


def run_kunit(run, tree, cache, arch=HOST):
    """What the suite says: KTAP, after what kunit.py says."""
    # One of the cases needs two CPUs.
    compiler, options = "ccache gcc", ["--kernel_args=ncpus=2", "--kernel_args=seccomp=on"]
    if arch == "arm64":
        compiler = "ccache aarch64-linux-gnu-gcc"
        options = ["--cross_compile=aarch64-linux-gnu-", "--qemu_args=-smp 2",
                   *(f"--kconfig_add=CONFIG_{option}" for option in ARM64_OPTIONS)]
    build = cache / "kunit" / arch
    build.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "CCACHE_DIR": str(cache / "ccache"), "CCACHE_BASEDIR": str(tree),
                   "CCACHE_NOHASHDIR": "1", "CCACHE_NODEPEND": "1", "CCACHE_NAMESPACE": "preprocessed", "PYTHONDONTWRITEBYTECODE": "1"}
    return run("tools/testing/kunit/kunit.py", "run", f"--arch={arch}", *options, "--kunitconfig=kernel/sched",
               f"--build_dir={build}", f"--make_options=CC={compiler}", f"--jobs={os.cpu_count()}",
               "--timeout=600", "--raw_output=kunit", "sparsemask", cwd=tree, env=environment).stdout


@pytest.mark.parametrize("arch", [HOST, *([] if HOST == "arm64" else
                                          [pytest.param("arm64", marks=pytest.mark.full)])])
def test_suite_passes(run, top, extra_tree, cache, arch):
    source = (extra_tree / "kernel/sched/sparsemask_test.c").read_text()
    cases = re.findall(r"KUNIT_CASE(?:_SLOW)?\((\w+)\)", source)
    assert len(cases) >= 10
    said = run_kunit(run, extra_tree, cache, arch)
    # A case that is skipped has "# SKIP" after its name, and the suite's own line is not indented.
    lines = re.findall(r"^ +((?:not )?ok) (\d+) (.*)$", said, re.M)
    assert lines == [("ok", str(n), case) for n, case in enumerate(cases, 1)], said
    assert re.findall(r"^(?:not )?ok .*$", said, re.M) == ["ok 1 sparsemask"], said
    assert re.search(r"# sparsemask: seed \d+", said), said
    splats = re.findall(r"^splat (.*)$", (top / "scripts/splats").read_text(), re.M)
    log = (cache / "kunit" / arch / "test.log").read_text(errors="replace")
    assert len(splats) >= 10 and "Linux version" in log
    assert not re.search("|".join(splats), log), log
