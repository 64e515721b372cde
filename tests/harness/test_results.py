# SPDX-License-Identifier: GPL-2.0
"""Documentation/results: small, complete, and the source of the figures in README.md, INDEX.md and the messages of the patches."""

import pathlib
import re
import subprocess
import sys

import pytest
from conftest import kernel_lines

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "bench"))

from ablib.published import MESSAGES, OTHERS  # noqa: E402

RESULTS = TOP / "Documentation/results"
COMPARISONS = sorted(path.name for path in RESULTS.iterdir() if path.is_dir() and path.name not in OTHERS)


def tracked(*paths):
    out = subprocess.run(["git", "ls-files", "-z", "--", *paths], cwd=TOP, stdout=subprocess.PIPE, check=True).stdout
    return [TOP / name for name in out.decode().split("\0") if name]


def size(paths):
    """Bytes; a file that the working tree lacks counts as empty."""
    return sum(path.stat().st_size for path in paths if path.exists())


def test_data_stay_small():
    assert size(tracked("Documentation/results")) < 6 << 20
    assert size(tracked()) < 12 << 20


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparison_is_complete(name):
    files = {path.name for path in (RESULTS / name).iterdir()}
    assert {"plan", "runs.csv", "table.txt"} <= files
    assert files - {"plan", "runs.csv", "table.txt"} <= {"wakeups.txt"}


def numbers(table):
    """All figures of a table, as they are printed there."""
    return {float(word) for line in (TOP / table).read_text().splitlines() for word in line.split()
            if re.fullmatch(r"[-+]?\d+\.\d+", word)}


def test_index_lists_all_comparisons_and_their_figures():
    text = (RESULTS / "INDEX.md").read_text()
    rows = dict(re.findall(r"^\| \[([^]]+)\]\(\1/table\.txt\)[^|]*\| ([^|]+) \|", text, re.M))
    assert sorted(rows) == COMPARISONS
    for name, figures in rows.items():
        for groups, figure in re.findall(r"(\d+): \**([+-]\d+\.\d)", figures):
            on = re.search(rf"^ *{groups} +on .*$", (RESULTS / name / "table.txt").read_text(), re.M)[0]
            assert float(figure) in {float(word) for word in on.split() if re.fullmatch(r"-?\d+\.\d+", word)}, (name, groups)


def test_figures_with_caches_are_in_their_tables():
    text = (RESULTS / "caches/README.md").read_text()
    checked, tables = 0, ()
    for row in re.findall(r"^\| .* \|$", text, re.M):
        tables = [RESULTS / "caches" / table for table in re.findall(r"\((\S+/table\.txt)\)", row)] or tables
        known = [float(figure) for table in tables for figure in re.findall(r"(?<=\s)[+-]\d+\.\d+\b", table.read_text())]
        for figure in re.findall(r"(?<![\w.])[+-]\d+\.\d\b", row):
            checked += 1
            assert any(abs(float(figure) - number) < 0.0501 for number in known), (figure, tables)
    assert checked > 60


def test_figures_of_the_readme_are_in_the_tables_it_links():
    text = (TOP / "README.md").read_text()
    checked = 0
    tables = set()
    for row in re.findall(r"^(?:\| .* \||\* .*)$", text, re.M):
        # a row that continues the one above may have no link of its own
        tables = set(re.findall(r"\((Documentation/results/\S+/table\.txt)\)", row)) or tables
        for figure in re.findall(r"(?<![\w.])[+-]\d+\.\d\b", row):
            checked += 1
            assert any(abs(float(figure) - number) < 0.0501 for table in tables for number in numbers(table)), (figure, sorted(tables))
    assert checked >= 150


def test_hackbench_loses_nowhere():
    """What the README says in short: with all features (the first figure of a cell), no significant loss."""
    text = (TOP / "README.md").read_text()
    table = text[text.index("| hackbench, groups |"):text.index("| requests |")]
    cells = re.findall(r"\| (\S+) \((\S+)\) (?=\|)", table)
    assert len(cells) >= 48 and sum(first.startswith("**+") for first, _ in cells) >= len(cells) / 2
    assert not [first for first, _ in cells if first.startswith("**-")] and [alone for _, alone in cells if alone.startswith("**-")]
    # The README names all losses: of requests, at a barrier, and one of mutexes.
    verdict = re.search(r"^\* `all`: .*\n((?:  \* .*\n)+)", (RESULTS / "README.md").read_text(), re.M)[1]
    assert "* gains and losses: `latency`, `barrier`\n" in verdict and "* only losses: `mutex`\n" in verdict
    assert all(re.search(rf"^\| {load} .* / {losses}<br>", (RESULTS / "README.md").read_text(), re.M) for load, losses in (("barrier", 2), ("mutex", 1)))


def test_figures_of_the_documents_are_in_the_tables_they_link():
    """Those of typed tables, with a link in the table or in the paragraph above it."""
    checked = 0
    for document in (TOP / "Documentation").glob("*.rst"):
        blocks = re.split(r"\n\s*\n", document.read_text())
        for before, block in zip(blocks, blocks[1:]):
            tables = set(re.findall(r"<(results/\S+/table\.txt)>", before + block)) if re.search(r"^ *=+(  =+)+$", block, re.M) else set()
            for figure in re.findall(r"(?<![\w.])[+-]\d+\.\d\b", block) if tables else []:
                checked += 1
                assert any(abs(float(figure) - number) < 0.0501 for table in tables for number in numbers(f"Documentation/{table}")), \
                    (document.name, figure, sorted(tables))
    assert checked > 30


def messages():
    """By patch, such as 0008 or 6.12/0008, the sentences with figures that its message must have."""
    return dict(re.findall(r"^\[(\S+)\]\n(.*?)\n(?=\n|\Z)", (TOP / MESSAGES).read_text(), re.M | re.S))


@pytest.mark.parametrize("patch", messages())
def test_figures_of_the_messages(patch):
    """Only the line breaks are the patch's own."""
    path, = (TOP / "patches").glob(f"{patch}-*.patch")
    message = path.read_text().split("\n---\n")[0]
    assert " ".join(messages()[patch].split()) in " ".join(message.split()), f"{path}: its message needs the text of {MESSAGES}"


def test_each_line_has_figures():
    assert {f"{line}/0008" for line in list(kernel_lines())[1:]} | {"0008"} <= set(messages())
