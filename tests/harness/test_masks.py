# SPDX-License-Identifier: GPL-2.0
"""bench/masks: the masks give the answers of an array, the program measures them, and the table is right. tests/kernel/test_masks.py
measures a simulated machine."""

import csv
import importlib.machinery
import importlib.util
import os
import subprocess

import pytest
from commands import TOP, call

LOADER = importlib.machinery.SourceFileLoader("masks", str(TOP / "bench/masks"))
MASKS = importlib.util.module_from_spec(importlib.util.spec_from_loader("masks", LOADER))
LOADER.exec_module(MASKS)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    where = tmp_path_factory.mktemp("masks")
    return where, MASKS.compile_trials(where, "gcc")


@pytest.mark.parametrize("mask", MASKS.MASKS)
@pytest.mark.parametrize("cpus", [1, 7, 8, 20, 64, 65, 288])
def test_as_an_array(built, mask, cpus):
    for seed in range(1, 4):
        call(built[1][mask], "check", cpus, 3000, seed)


def test_the_header_is_the_tree_s(built):
    """All of what the series adds, and nothing else."""
    text = (built[0] / "sparsemask/sparsemask.h").read_text()
    added = (TOP / "patches/0001-sched-Provide-sparsemask-a-reduced-contention-bitmap.patch").read_text()
    assert text == "".join(line[1:] + "\n" for line in added.split("+++ b/" + MASKS.HEADER, 1)[1].splitlines() if line.startswith("+"))


@pytest.mark.parametrize("mask,old,new", [
    ("sparsemask", "bits >>= elem % SPARSEMASK_DENSITY;", ""),
    ("sparsemask", "WRITE_ONCE(mask->maybe_set, true);\n}", ";\n}"),
    ("sparsemask", "clear_bit(elem % SPARSEMASK_DENSITY", "clear_bit(0"),
    ("sparsemask", "__sparsemask_find(mask, 0, start)", "mask->nr_elems"),
    ("sparsemask", "cpu[elem % SPARSEMASK_DENSITY] = cpu", "cpu[elem % SPARSEMASK_DENSITY] = elem ^ 1"),
    ("cpumask", "bits >>= elem % SPARSEMASK_WORD_CPUS;", ""),
    ("cpumask", "round_down(elem, SPARSEMASK_WORD_CPUS) + SPARSEMASK_WORD_CPUS",
     "round_down(elem, SPARSEMASK_WORD_CPUS) + 2 * SPARSEMASK_WORD_CPUS"),
    ("none", "&mask->words[elem / SPARSEMASK_WORD_CPUS].bits", "&mask->words[elem / 2].bits"),
    ("padded", "elem = 0;\n\t}", "return mask->nr_elems;\n\t}"),
])
def test_a_planted_fault_is_found(built, tmp_path, mask, old, new):
    where, _ = built
    text = (where / mask / "sparsemask.h").read_text()
    assert old in text
    (tmp_path / "sparsemask.h").write_text(text.replace(old, new))
    call("gcc", "-O2", "-w", "-pthread", *MASKS.MASKS[mask], "-I", tmp_path, "-I", where / "include", "-I", MASKS.PARTS, "-o",
         tmp_path / "trial", MASKS.PARTS / "trial.c")
    found = [subprocess.run([tmp_path / "trial", "check", str(cpus), "3000", "1"], check=False, stderr=subprocess.PIPE, text=True)
             for cpus in (20, 288)]
    assert 1 in [done.returncode for done in found] and any("gives another answer than an array" in done.stderr for done in found)


@pytest.mark.parametrize("mask", MASKS.MASKS)
def test_points(built, mask):
    """Each point counts what it says."""
    cpus = min(2, len(os.sched_getaffinity(0)))
    for point in MASKS.POINTS:
        stdout, _ = call(built[1][mask], point, cpus, 64, 1)
        name, number, *values = stdout.strip().split(",")
        assert (name, number, len(values)) == (point, str(cpus), len(MASKS.TRIAL))
        row = dict(zip(MASKS.TRIAL, map(float, values)))
        writers = 1 if point in ("walk", "not-empty") and cpus > 1 else 0
        measured = row["main_ops"] + (row["changes"] if point in MASKS.MIXED else 0)
        assert measured == 64 * (cpus - writers) and row["ops"] >= measured
        if point in MASKS.MIXED:
            assert row["main_ops"] > row["changes"] if point == "idle" else 20 < row["main_ops"] < 44 * cpus
        assert row["main_least"] <= row["main_ns"] <= row["main_most"] < 1e7


@pytest.mark.parametrize("args,message", [
    (["--cpus", "3"], "--cpus '3': a simulated machine has 1 CPU, or an even number"),
    (["--cpus", "4,"], "--cpus '' is not a number from 1 to 512"),
    (["--cpus", "0"], "--cpus '0' is not a number"),
    (["--cpus", "514"], "--cpus '514' is not a number from 1 to 512"),
    (["--host", "--cpus", "512"], "--cpus '512': this machine does not let"),
    (["--runs", "no"], "--runs 'no' is not a number from 1 to 1000"),
    (["--caches", "nope"], "--caches 'nope': there is no file"),
    (["--caches", "none"], "describes no caches"),
    (["--host", "--caches", "intel"], "--caches is for simulated machines"),
    (["--image", "/nonexistent"], "--image '/nonexistent': no such file"),
    (["--render", "x", "--host"], "--host and --render exclude each other"),
    (["--render", "x", "--runs", "2"], "--runs says nothing with --render"),
    (["--kernel", "nope"], "invalid choice: 'nope'"),
    (["--kernel", "none"], "invalid choice: 'none'"),
    (["--frob"], "unrecognized arguments: --frob"),
])
def test_usage_errors(tmp_path, args, message):
    stdout, stderr = call(TOP / "bench/masks", *args, rc=2, cwd=tmp_path)
    assert stdout == "" and stderr.startswith("masks: error: ") and message in stderr and "see --help" in stderr and stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def raw(ns, sections=True):
    """A file of raw/: each mask takes ns[mask] for all it does, and moves a line with each of 10 operations."""
    text, after = "masks: a message\n", ""
    for point in MASKS.POINTS:
        for mask in MASKS.MASKS:
            text += f"{mask},{point},4,10,8,{ns[mask]},1.00,99.00,2,{2 * ns[mask]},1.00,99.00\n"
            after += "section 1\nbegin_ns 1\n" + "".join(f"{key} {10 if key == 'from_core' else 0}\n" for key in MASKS.COUNTS) + "end\n"
    return text + (after if sections else "")


def measured(directory, **options):
    (directory / "raw").mkdir()
    (directory / "plan").write_text("machine that one\n")
    for run, ns in enumerate(({"sparsemask": 10, "cpumask": 20, "padded": 5, "none": 80}, {"sparsemask": 30, "cpumask": 20, "padded": 15, "none": 70},
                              {"sparsemask": 20, "cpumask": 60, "padded": 10, "none": 90}), start=1):
        (directory / f"raw/4-{run}.txt").write_text(raw(ns, **options))
    with open(directory / "runs.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, MASKS.COLUMNS)
        writer.writeheader()
        writer.writerows(MASKS.fold(directory))


def test_table(tmp_path):
    measured(tmp_path)
    stdout, _ = call(TOP / "bench/masks", "--render", tmp_path)
    assert stdout == (tmp_path / "table.txt").read_text()
    block = stdout.split("\n\n")
    walk = next(part for part in block if part.startswith("walk:")).splitlines()
    assert walk[2].split() == "4 walk 20.0 (10.0..30.0) 1.00 20.0 (20.0..60.0) 1.00 10.0 (5.0..15.0) 1.00 80.0 (70.0..90.0) 1.00 1.00 0.50 4.00".split()
    assert walk[3].split() == "4 change 40.0 (20.0..60.0) 40.0 (40.0..120.0) 20.0 (10.0..30.0) 160.0 (140.0..180.0) 1.00 0.50 4.00".split()
    # the kernel's lines are most of them
    rare = next(part for part in block if part.startswith("rare:")).splitlines()
    assert "1.00" not in rare[2].split()[:-3]


def test_table_of_a_host(tmp_path):
    measured(tmp_path, sections=False)
    stdout, _ = call(TOP / "bench/masks", "--render", tmp_path)
    assert "lines " not in stdout.split("*")[0] and "Lines that move are not known here" in stdout


@pytest.mark.parametrize("change", ["lacks a line", "lacks a section", "has a short line"])
def test_a_raw_file_that_is_not_complete(tmp_path, change):
    measured(tmp_path)
    path = tmp_path / "raw/4-2.txt"
    lines = path.read_text().splitlines(keepends=True)
    if change == "lacks a line":
        del lines[5]
    elif change == "lacks a section":
        del lines[lines.index("section 1\n"):lines.index("end\n") + 1]
    else:
        lines[5] = lines[5].rsplit(",", 1)[0] + "\n"
    path.write_text("".join(lines))
    with pytest.raises(MASKS.Stop, match="raw/4-2.txt: not complete; delete it"):
        MASKS.fold(tmp_path)


def test_a_mask_that_was_not_measured(tmp_path):
    """As in results of an earlier form."""
    measured(tmp_path)
    lines = (tmp_path / "runs.csv").read_text().splitlines(keepends=True)
    (tmp_path / "runs.csv").write_text("".join(line for line in lines if not line.startswith("none,")))
    stdout, stderr = call(TOP / "bench/masks", "--render", tmp_path, rc=1)
    assert (stdout, stderr) == ("", f"masks: error: {tmp_path}/runs.csv: nothing of the mask none; measure again\n")


@pytest.mark.parametrize("text", [None, "mask,point\nsparsemask,toggle\n"])
def test_results_that_are_none(tmp_path, text):
    (tmp_path / "plan").write_text("")
    if text:
        (tmp_path / "runs.csv").write_text(text)
    stdout, stderr = call(TOP / "bench/masks", "--render", tmp_path, rc=1)
    assert stdout == "" and stderr.startswith(f"masks: error: {tmp_path}/runs.csv: ") and stderr.count("\n") == 1
    assert not (tmp_path / "table.txt").exists()


def test_another_measurement_is_kept(tmp_path):
    (tmp_path / "plan").write_text("cpus 7\n")
    stdout, stderr = call(TOP / "bench/masks", "--host", "--cpus", "1", "--out", tmp_path, rc=2)
    assert stdout == "" and stderr == f"masks: error: {tmp_path}/plan: another measurement; give another --out DIR\n"
    assert [path.name for path in tmp_path.iterdir()] == ["plan"]


def test_the_table_of_the_results_is_that_of_their_rows(tmp_path):
    kept = TOP / "Documentation/results/masks"
    for name in ("plan", "runs.csv"):
        (tmp_path / name).write_bytes((kept / name).read_bytes())
    call(TOP / "bench/masks", "--render", tmp_path)
    assert (tmp_path / "table.txt").read_text() == (kept / "table.txt").read_text()
