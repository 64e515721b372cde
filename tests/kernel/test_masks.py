# SPDX-License-Identifier: GPL-2.0
"""bench/masks on a simulated machine; tests/harness/test_masks.py has the rest."""

import csv

import pytest


def test_simulated_machine(run, top, sim_kernel, tmp_path):
    run(top / "bench/masks", "--cpus", "1,20", "--runs", 1, "--image", sim_kernel, "--out", tmp_path / "out")
    with (tmp_path / "out/runs.csv").open() as file:
        rows = {(row["mask"], row["point"], row["cpus"]): row for row in csv.DictReader(file)}
    assert len(rows) == 4 * 7 * 2
    for mask in ("sparsemask", "cpumask", "padded"):
        alone, many = rows[mask, "toggle", "1"], rows[mask, "toggle", "20"]
        # a CPU alone has its line; among many, it gets it from another for each operation, or the other thread of its core does
        assert int(alone["from_core"]) == 0 and 0.5 < int(many["from_core"]) / int(many["ops"]) < 1.1
        assert float(many["main_ns"]) > 10 * float(alone["main_ns"])
        # nobody writes a mask that is empty
        assert float(rows[mask, "empty", "20"]["main_ns"]) < 50
    # without a mask, each CPU keeps its line, and a check reads those of all
    assert int(rows["none", "toggle", "20"]["from_core"]) < int(rows["none", "toggle", "20"]["ops"]) / 10
    assert float(rows["none", "empty", "20"]["main_ns"]) > 5 * float(rows["sparsemask", "empty", "20"]["main_ns"])
    # 8 CPUs for a line against 20
    assert float(rows["cpumask", "toggle", "20"]["main_ns"]) > 2 * float(rows["sparsemask", "toggle", "20"]["main_ns"])


@pytest.mark.full
@pytest.mark.parametrize("mask", ["cpumask", "padded"])
def test_kernel(run, top, mask):
    image = run(top / "bench/masks", "--kernel", mask).stdout.splitlines()[-1]
    said = run(top / "sim/machine", "--machine", "1x10x2", "--kernel", image, "--", "sh", "-c",
               "hackbench -g 1 -l 20 && grep -c . /sys/kernel/debug/sched/idle_search").stdout
    assert "Time:" in said
