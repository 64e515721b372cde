# SPDX-License-Identifier: GPL-2.0
"""bench/campaign, on the made-up machines of test_ab.py, and what it makes of Documentation/results."""

import importlib.machinery
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import types
from pathlib import Path
from xml.etree import ElementTree

import pytest

TOP = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "bench"), str(TOP / "tests")]

from ablib import campaign_page, fold, loads, published, table  # noqa: E402
from ablib.job import Stop  # noqa: E402
from ablib.plan import FORMAT, AbError  # noqa: E402
from commands import wait_for  # noqa: E402
from test_ab import Simulated  # noqa: E402

LOADER = importlib.machinery.SourceFileLoader("campaign", str(TOP / "bench/campaign"))
campaign = importlib.util.module_from_spec(importlib.util.spec_from_loader("campaign", LOADER))
LOADER.exec_module(campaign)


def git(top, *words):
    done = subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(top), *words], text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def commit(top, message="x"):
    git(top, "add", "-A")
    git(top, "commit", "-qm", message)
    return git(top, "rev-parse", "--short", "HEAD")


# Documentation/results and the texts, as they are in the tree

WHOLE = subprocess.run(["git", "-C", str(TOP), "rev-parse", "--is-shallow-repository"], text=True, capture_output=True, check=False).stdout
with_history = pytest.mark.skipif(WHOLE.strip() != "false", reason="this clone lacks the history, so nobody can say which series a result is of "
                                                                  "(git fetch --unshallow)")


def comparisons():
    return campaign.read_comparisons()


@with_history
def test_texts_are_up_to_date():
    """INDEX.md, README.md and the cover letter have the figures of the results. A commit that the repository lacks is an error here."""
    for path, text in published.rendered(TOP, campaign.titles(comparisons())).items():
        assert path.read_text() == text, f"{path} is not up to date; run bench/campaign --render"


@with_history
def test_no_figure_is_of_older_code():
    """A result of another series than the present one says so (older.conf), and so does each row of the README with its figures."""
    results = published.results(TOP, campaign.titles(comparisons()), published.Series(TOP))
    undeclared = [result.name for result in results if not result.present and not result.declared]
    assert not undeclared, f"the patches have changed since {undeclared} was measured: measure it again, or name its version in {published.OLDER}"
    versions = {result.name: result.declared for result in results}
    checked = 0
    for row in (TOP / published.TEMPLATES / "readme-table.md.j2").read_text().splitlines():
        for name in re.findall(r"(?:better|effect|percent|median|cells|metric)\('([^']+)'", row):
            checked += 1
            assert not versions[name] or f"*{versions[name]}:*" in row, f"{name} is of {versions[name]}, and the row does not say so: {row}"
    assert checked >= 30


def test_all_loads_and_lines_are_compared():
    cases = [case for one in comparisons().values() for case in one.options.cases]
    # Threads that use pipes are between the two.
    assert {case.load for case in cases} - {"command"} == set(loads.read_loads()) - {"hackbench-pipe-threads"}
    lines = {one.options.kernel for one in comparisons().values() if len(one.options.kernels) == 1}
    assert {None, *campaign.ab.kernel_lines()[1:]} == lines
    assert all(one.options.seeds == "published" and one.options.runs >= 6 for one in comparisons().values())


@pytest.mark.parametrize("plan, kernels", [
    ({}, [""]), ({"kernel": "patched"}, ["patched"]), ({"kernel": "6.12"}, ["6.12"]), ({"kernel": "x=6.12+rt"}, ["6.12"]),
    ({"kernels": "off=base+matrix/up,a=base,all=patched,old=6.12+rt"}, ["base", "patched", "6.12"]), ({"kernels": "a=/one,b=/two"}, ["/one", "/two"])])
def test_kernels_of_a_plan(plan, kernels):
    """They say with which patches a result was measured."""
    assert published.kernels_of(plan) == kernels


# bench/campaign.conf

GOOD = "[one]\ntitle = What\nmachine = 1x4x1\nseeds = published\nruns = 2\nloads = hackbench-1  hackbench-2\n"


def test_conf(tmp_path, monkeypatch):
    monkeypatch.setattr(campaign, "TOP", tmp_path)
    (tmp_path / "bench").mkdir()
    (tmp_path / campaign.CONF).write_text("[DEFAULT]\nsides = off,nine,\n all\ncaches = intel\n" + GOOD +
                                          "line = 6.12\ngate = 1%\n[two]\ntitle = x\nmachine = 1x2x1\nseeds = published\nruns = 3\ncaches =\n"
                                          "command = sh -c 'a b'\nmetric = rate=([0-9]+),x/s,more\n[three]\ntitle = x\nmachine = 1x2x1\n"
                                          "seeds = published\nruns = 3\nsides =\nkernels = a=base,\n b=patched+rt\ncommand = true\n")
    one, two, three = comparisons().values()
    assert one.command == "bench/ab --machine 1x4x1 --caches intel --seeds published --runs 2 --sides off,nine,all --gate 1% --kernel 6.12 " \
        "--load hackbench-1,hackbench-2"
    assert one.total == 4 and one.units(one.options.cases[1]) == ["hackbench-2-1", "hackbench-2-2"]
    assert two.words[-4:] == ["--", "sh", "-c", "a b"] and two.options.caches == "none" and two.total == 3
    assert "--kernel a=base,b=patched+rt -- true" in three.command and three.total == 6
    assert three.units(three.options.cases[0]) == ["command-1-a", "command-1-b", "command-2-a", "command-2-b", "command-3-a", "command-3-b"]


@pytest.mark.parametrize("text, message", [
    ("", "no comparison in it"), ("what\n", "File contains no section headers"), (GOOD + GOOD, "section 'one' already exists"),
    (GOOD + "runs = 3\n", "option 'runs' in section 'one' already exists"),
    (GOOD + "pairs = 3\n", "[one] pairs: unknown key; there are: title command machine"),
    (GOOD + "Runs = 3\n", "[one] Runs: unknown key"), ("[DEFAULT]\nwhat = 1\n" + GOOD, "[DEFAULT] what: unknown key"),
    (GOOD.replace("title = What\n", ""), "[one] title: missing"), (GOOD.replace("runs = 2\n", "runs =\n"), "[one] runs: missing"),
    (GOOD.replace("runs = 2", "runs = ten"), "[one] runs: argument --runs: 'ten' is not a positive number"),
    (GOOD.replace("seeds = published", "seeds = any"), "[one] seeds: argument --seeds: invalid choice"),
    (GOOD.replace("1x4x1", "1x4"), "[one] machine: --machine '1x4' is not SOCKETSxCORESxTHREADS"),
    (GOOD.replace("hackbench-2", "what-2"), "[one] loads: --load what-2: no such load"),
    (GOOD + "scale = 3\n", "[one] scale: --scale needs a load other than hackbench"),
    (GOOD + "sides = off\n", "[one] sides: --sides: fewer than two sides"), (GOOD + "sides = off,nein\n", "[one] sides: --sides: 'nein' is not"),
    (GOOD + "factorial = STEAL,WHAT\n", "[one] factorial: --factorial: 'WHAT' is no bit"), (GOOD + "gate = 1\n", "[one] gate: gate '1': not PERCENT%"),
    (GOOD + "caches = nowhere\n", "[one] caches: --caches nowhere: there is no file"), (GOOD + "line = 1.0\n", "[one] line: '1.0' is no line of patches/lines"),
    (GOOD + "kernels = a=base,b=patched+what\n", "[one] kernels: --kernel: 'b=patched+what' is not an image"),
    (GOOD + "kernels = a=patched\n", "[one] kernels: fewer than two kernels"),
    (GOOD + "kernels = a=base,b=patched\nsides = off,all\n", "[one] sides: several kernels (--kernel) and --sides exclude each other"),
    (GOOD + "kernels = a=base,b=patched\nline = 6.12\n", "[one] kernels: the key line says which kernel; leave out one of the two"),
    (GOOD + "command = true\n", "[one] loads: --load and a command exclude each other"), (GOOD + "command = 'a\n", "[one]: No closing quotation"),
    (GOOD.replace("[one]", "[../one]"), "[../one]: cannot be the name of a directory"), (GOOD.replace("[one]", "[masks]"), "[masks]: cannot be")])
def test_bad_conf(tmp_path, monkeypatch, text, message):
    monkeypatch.setattr(campaign, "TOP", tmp_path)
    (tmp_path / "bench").mkdir()
    (tmp_path / campaign.CONF).write_text(text)
    with pytest.raises(Stop) as refused:
        comparisons()
    assert refused.value.status == 2 and message in str(refused.value) and str(refused.value).startswith(str(tmp_path / campaign.CONF)) and "\n" not in str(refused.value)


# The series of a commit and the present one

PATCH = """From 1
Subject: x

Why
---
 fair.c | 3 +++

diff --git a/Documentation/x.rst b/Documentation/x.rst
--- a/Documentation/x.rst
+++ b/Documentation/x.rst
@@ -1,1 +1,2 @@
 Here
+we are
diff --git a/fair.c b/fair.c
--- a/fair.c
+++ b/fair.c
@@ -10,6 +10,11 @@ static int steal(void)
 	context();
 	/* An old
-	 * comment
+	 * remark of
+	 * ours
 	 */
-	removed(1);
+	first("/*");	/* why */
+	second(2);
+
+	third(*
+	      four);	// so
 	context();
@@ -40,1 +46,2 @@ static int other(void)
 	 * of a comment
+	 * in the middle
--
2.39.5
"""
CODE = [("-", "removed(1);"), ("+", 'first("/*");'), ("+", "second(2);"), ("+", "third(*"), ("+", "four);")]


@pytest.fixture
def repo(tmp_path):
    """A repository with a series of one patch, and of another one for 6.12."""
    for folder in ("patches", "patches/6.12"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "0001-x.patch").write_text(PATCH)
    (tmp_path / "patches/lines").write_text("# lines\n7.3 maintained\n6.12 maintained\n")
    for place in (tmp_path, tmp_path / "patches/6.12"):
        (place / "series").write_text("# the series\n0001-x.patch # one\n")
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def test_what_counts():
    assert [change[1:] for change in published.code_of(PATCH)] == CODE


@pytest.mark.parametrize("old, new", [
    ("Why", "Therefore"), ("/* why */", "/* because\n+\t * of this */"), ("// so", ""), ("remark of", "remarks by"), ("in the middle", "of it"),
    ("we are", "we were"), ("\tcontext();\n@@", "\tmore();\n@@"), ("-10,6 +10,11", "-90,6 +92,11"), (";\n+\n", ";\n"), ("\tsecond(2);", "\t\tsecond(2);"),
    (" | 3 +++", " | 4 +++-"), ("2.39.5", "2.47.3")])
def test_present_series(repo, old, new):
    assert PATCH.count(old) == 1 and published.Series(repo).present("HEAD")
    text = PATCH.replace(old, new)
    # The numbers of lines in the head of the hunk follow.
    added = text.count("\n") - PATCH.count("\n")
    text = text.replace("+10,11", f"+10,{11 + added}")
    (repo / "patches/0001-x.patch").write_text(text)
    assert published.Series(repo).present("HEAD")
    commit(repo)
    assert published.Series(repo).present("HEAD~") and published.Series(repo).present(git(repo, "describe", "--always", "HEAD~"))


@pytest.mark.parametrize("old, new", [
    ("second(2)", "second(3)"), ("removed(1)", "removed(0)"), ('"/*"', '"*/"'), ("third(*", "third(+"), ("\tsecond(2);", "/*\tsecond(2); */"),
    ('+\tfirst("/*");\t/* why */\n+\tsecond(2);\n', '+\tsecond(2);\n+\tfirst("/*");\t/* why */\n'), ("a/fair.c b/fair.c", "a/core.c b/core.c"),
    ("/* why */", "/* why */ why();"), ("\t * in the middle", "\t */ in_the_middle();")])
def test_older_series(repo, old, new):
    assert PATCH.count(old) == 1
    (repo / "patches/0001-x.patch").write_text(PATCH.replace(old, new))
    assert not published.Series(repo).present("HEAD") and published.Series(repo).present("HEAD", "6.12")


def test_series_of_another_line(repo):
    (repo / "patches/6.12/0001-x.patch").write_text(PATCH.replace("second(2)", "second(3)"))
    series = published.Series(repo)
    assert series.present("HEAD") and series.present("HEAD", "7.3") and not series.present("HEAD", "6.12")
    # Its support has ended, or it is the first line now.
    git(repo, "checkout", "-q", ".")
    (repo / "patches/ended").mkdir()
    (repo / "patches/6.12").rename(repo / "patches/ended/6.12")
    assert published.Series(repo).present("HEAD", "6.12")
    (repo / "series").write_text("0001-x.patch\n0002-y.patch\n")
    (repo / "patches/0002-y.patch").write_text(PATCH)
    assert not published.Series(repo).present("HEAD") and published.Series(repo).present("HEAD", "6.12")


def test_unknown_commit(repo):
    """As in a clone without the history: nobody can say, so it is an error."""
    with pytest.raises(AbError, match="commit 1234567 is not in this repository, .* get the whole history"):
        published.Series(repo).present("1234567")
    (repo / "patches/0001-x.patch").unlink()
    with pytest.raises(AbError, match="patches/0001-x.patch: not there, though the file series names it"):
        published.Series(repo).present("HEAD")


# What is made of results

@pytest.fixture
def tree(repo):
    """The repository with the result `waited`, which is of its commit, and short templates."""
    place = repo / "Documentation/results/waited"
    shutil.copytree(TOP / "Documentation/results/waited", place)
    plan = (place / "plan").read_text()
    (place / "plan").write_text(re.sub("^project .*", f"project {git(repo, 'rev-parse', '--short', 'HEAD')}", plan, flags=re.M))
    older = repo / published.OLDER
    older.write_text("[waited]\ntitle = T\ncommand = bench/ab x\ndate = 2026-01-02\n")
    (repo / "bench").mkdir()
    (repo / published.CONF).write_text("")
    (repo / published.TEMPLATES).mkdir(parents=True)
    for name, targets in published.TARGETS.items():
        text = f"begin {name}\n{{{{ better('waited', 'hackbench-1 hackbench-2', 'nine') }}}}\nend {name}\n"
        if name == "INDEX.md.j2":
            text = "{% for one in results %}\n{{ one.name }} {{ one.title }} {{ one.command }} {{ one.date }} {{ one.series }} {{ overview(one.name) }}\n{% endfor %}\n"
        (repo / published.TEMPLATES / name).write_text(text)
        for target in targets:
            with (repo / target).open("a") as file:
                file.write(f"before\nbegin {name}\nold\nend {name}\nafter\n")
    return repo


def test_rendered(tree):
    texts = published.rendered(tree, {})
    assert texts[tree / "Documentation/results/INDEX.md"] == \
        "waited T bench/ab x 2026-01-02 present nine: 14 gains, 5 losses of 31; all: 19 gains, 3 losses of 31; without: 17 gains, 4 losses of 31\n"
    assert texts[tree / "patches/cover-letter.txt"] == "before\nbegin cover-letter.txt.j2\n+10.9*, +1.1\nend cover-letter.txt.j2\nafter\n"
    assert texts[tree / "README.md"].count("**+10.9**, +1.1") == sum("README.md" in targets for targets in published.TARGETS.values()) == 3 and "old" not in texts[tree / "README.md"]
    assert published.rendered(tree, {"waited": "Of the campaign"})[tree / "Documentation/results/INDEX.md"].startswith("waited Of the campaign ")


@pytest.mark.parametrize("file, old, new, message", [
    (published.OLDER, "date = 2026-01-02", "", "[waited]: no date, and "), (published.OLDER, "date", "day", "[waited]: unknown key 'day'"),
    (published.OLDER, "[waited]", "[gone]", "waited: neither bench/campaign.conf nor Documentation/results/older.conf has a section"),
    (published.OLDER, "[waited]", "[gone]\ntitle = x\n[waited]", "[gone]: there is no such directory"),
    (published.OLDER, "title", "series = 1.0\ntitle", "[waited] series: its series is the present one"),
    ("Documentation/results/waited/plan", "\nproject ", "\nproject 0", "waited/plan: commit 0"),
    (published.TEMPLATES + "/readme-table.md.j2", "hackbench-2", "hackbench-5", "waited: no figure for hackbench-5  of side nine"),
    (published.TEMPLATES + "/readme-table.md.j2", "better", "worse", "'worse' is undefined"),
    ("README.md", "end readme-table.md.j2\n", "", "README.md: not once each, in this order: the line 'begin readme-table.md.j2'")])
def test_cannot_be_rendered(tree, file, old, new, message):
    text = (tree / file).read_text()
    assert old in text
    (tree / file).write_text(text.replace(old, new, 1))
    with pytest.raises(AbError) as refused:
        published.rendered(tree, {})
    assert message in str(refused.value) and "\n" not in str(refused.value), refused.value


def test_figures():
    """Both formats of results, against the typed ones of version 2.1."""
    figures = published.Figures(TOP / "Documentation/results")
    assert figures.better("waited", "latency-4x latency-2x", "all", "wake_p50 rate") == "+0.1, **+3.6**, **-32.8**, **+14.8**"
    assert figures.better("waited", "switch-2x") == "0.0" and figures.percent("waited", "latency-2x", "all", "rate") == "15"
    assert figures.median("waited", "latency-2x", "off", "wake_p50") == "7.1" and figures.median("waited", "hackbench-1", "all", "time", 2) == "12.83"
    assert figures.better("loads", "threads-2x mutex-1x latency-2x", "all", "") == "**+66.7**, 0.0, **-24.3**"
    assert figures.better("2x40x2", "hackbench-16 hackbench-8") == "-7.8, -29.5"
    cases = [("switch-2x", "", "pairs"), ("hackbench-8", "", "eight groups"), ("latency-2x", "rate", "requests")]
    assert figures.changes("waited", "nine", cases) == ["pairs -22.8", "requests +13.6"]
    assert figures.columns("x", [6, 9], "+1.0*, -2.0") == "x +1.0*-2.0"


@pytest.mark.parametrize("name", ["factorial-intel", "factorial-none"])
def test_effects(name):
    """The main effect, and not what a bit adds alone or last: as the table of all combinations has it, with a mark where p is small."""
    results = TOP / "Documentation/results"
    figures = published.Figures(results)
    sides, _, bits = (results / name / "table.txt").read_text().partition("share of each bit:\n")
    rows = re.findall(r"^(hackbench|hackbench-pipe|latency) +(\S+) +(\S+) \(.*\) +([A-Z_]+) +([-+][\d.]+) +\S+ to \S+ +([\d.]+) ", bits, re.M)
    assert len(rows) >= 6 * 6
    for load, level, metric, bit, percent, p in rows:
        shown = figures.effect(name, f"{load}-{level}", bit, metric)
        # The table has a digit more.
        assert abs(float(shown.strip("*")) - float(percent)) < 0.06 and ("*" in shown) == (float(p) < 0.05), (load, level, metric, bit, shown)
    assert figures.effect(name, "hackbench-1 hackbench-2", "STEAL").count(", ") == 1
    medians = re.findall(r"^latency +2x +wake_p50 \(.*\) +us +STEAL(?:[+]\S+)? +\S+ +\S+ +([-+][\d.]+) ", sides, re.M)
    assert len(medians) == 32
    for shown, percent in zip(figures.ends(name, "latency-2x", "STEAL", "wake_p50"), sorted(map(float, medians))[::31]):
        assert abs(float(shown) - percent) < 0.06
    with pytest.raises(AbError, match="no main effect of NONE on time of hackbench-1"):
        figures.effect(name, "hackbench-1", "NONE")


def test_power(capsys):
    """One row for each case, and one for its rate."""
    assert campaign.run(["--power", "waited,hackbench-none", "--pairs", "7"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[1][:4] == ["waited", "switch-0.5x", "rate", "7"] and [row[:3] for row in rows].count(["waited", "latency-2x", "rate"]) == 1
    assert len(rows) == 18 and all(float(spread) > 0 < float(shown) and int(one) >= int(five) >= 6 for _, _, _, _, spread, shown, one, five in rows[1:])
    for words, message in [(["--power", "loads"], "--power loads: no published comparison of pairs"), (["--power", "x"], "--power x: "),
                           (["--power", "waited", "--only", "paced"], "--power takes no other arguments but --pairs")]:
        with pytest.raises(campaign.Stop, match=message) as refused:
            campaign.run(words)
        assert refused.value.status == 2


# The page of the campaign, and its picture

PAGE, PICTURE = (f"Documentation/results/{name}" for name in ("README.md", "campaign.svg"))
PLANNED = """[DEFAULT]
machine = 1x10x2
caches = intel
sides = off,nine,all
[hack-intel]
title = What hackbench does
[wake]
title = What requests do
[hackbench-none]
title = What it does without caches
caches = none
[large]
title = What it does on LLCs
machine = 2x2x8x2
caches = epyc
line = 6.12
[without]
title = All but one
sides = all, no-first=all+NO_STEAL_FIRST
[append]
title = Another kernel
append = preempt=full
[kernels]
title = Kernels
sides =
kernels = a=base, b=patched+rt
[bits]
title = All combinations
sides =
factorial = STEAL, SYNC_WAIT
[later]
title = What comes later
[before]
title = What came before
"""
# The gain in % of each side, and whether all pairs agree.
LOSS, NONE = (-20.0, True), (2.0, False)


class Pages:
    """A repository with a campaign, of which some is measured."""

    def __init__(self, repo):
        self.top, self.commit = repo, git(repo, "rev-parse", "--short", "HEAD")
        (repo / published.TEMPLATES).mkdir(parents=True)
        (repo / "Documentation/results").mkdir(parents=True)
        (repo / published.CONF).write_text(PLANNED)
        (repo / published.OLDER).write_text("")
        for name, targets in published.TARGETS.items():
            if name in ("page.md.j2", "campaign.svg.j2"):
                shutil.copy(TOP / published.TEMPLATES / name, repo / published.TEMPLATES / name)
            else:
                (repo / published.TEMPLATES / name).write_text("begin\nend\n")
                for target in targets:
                    (repo / target).write_text("begin\nend\n")

    def add(self, name, gains, metrics=("time",), **plan):
        """Makes a result of six pairs. GAINS: by case and metric, by side (gain in %, do all pairs agree)."""
        sides = list(dict.fromkeys(side for of_sides in gains.values() for side in of_sides))
        cases = dict.fromkeys(case.partition(" ")[0] for case in gains)
        lines = {"format": FORMAT, "sides": "base=STEAL," + ",".join(f"{side}=STEAL" for side in sides), "runs": "6", "project": self.commit,
                 "date": "2026-01-02", "repeat": "bench/ab x", "machine": "1x10x2", "about:hackbench": "messages."} | plan
        place = self.top / "Documentation/results" / name
        place.mkdir()
        columns = [*fold.HEAD, *(f"metric:{metric.partition('=')[0]}" for metric in metrics if metric != "time"), *fold.SCHEDSTAT, *fold.TRACED]
        rows = [",".join(columns)]
        for case in cases:
            for pair in range(1, 7):
                for side in ("base", *sides):
                    row = dict.fromkeys(columns, "") | {"format": FORMAT, "host": "here", "boot": f"{case}{pair}", "pair": str(pair), "side": side,
                                                        "exit": "0", "valid": "yes", "time_ns": "1", "cpus": "20"}
                    row["load"], _, row["level"] = case.rpartition("-")
                    for metric in metrics:
                        gain, agree = gains[f"{case} {metric.partition('=')[0]}"].get(side, (0, True)) if side != "base" else (0, True)
                        better = (1 + gain / 100 + pair / 10000 * (side != "base")) if agree or pair % 2 else 1 / (1 + gain / 100)
                        row["time_ns" if metric == "time" else f"metric:{metric.partition('=')[0]}"] = \
                            str(1e6 * (better if metric.endswith("more") else 1 / better))
                    rows.append(",".join(row[column] for column in columns))
        (place / "runs.csv").write_text("\n".join(rows) + "\n")
        (place / "plan").write_text("".join(f"{key} {value}\n" for key, value in lines.items()) + "".join(f"case {case}\n" for case in cases) +
                                    "".join(f"metric:{load} {metric}\n" for load in {case.rpartition("-")[0] for case in cases} for metric in metrics))
        (place / "table.txt").write_text(table.text(table.summarise(place)))

    def rendered(self):
        texts = published.rendered(self.top, campaign.titles({}) | {name: name for name in re.findall(r"\[([a-z-]+)\]", PLANNED)})
        return texts[self.top / PAGE], texts[self.top / PICTURE]


@pytest.fixture
def pages(repo):
    return Pages(repo)


STANDARD_SIDES = {"nine": (4.0, True), "all": (10.0, True)}


def test_page_of_nothing(pages):
    page, picture = pages.rendered()
    assert "**Nothing of the campaign is measured yet.**" in page and "10 comparisons [are planned]" in page and "; 0 of them are measured" in page
    assert "* Linux 6.12, 64 CPUs in 4 LLCs on 2 NUMA nodes, with caches (epyc)\n  * `large`: What it does on LLCs\n" in page
    assert len(re.findall(r"^  \* `.*`: ", page, re.M)) == 10
    assert "|--|" not in page and "## Verdict" not in page and "campaign.svg" not in page
    assert ElementTree.fromstring(picture) is not None and ">not measured yet<" in picture


def test_page(pages):
    """Verdict, machine by machine, other sides, and what is not there."""
    pages.add("hack-intel", {"hackbench-1 time": STANDARD_SIDES, "hackbench-2 time": {"nine": LOSS, "all": NONE}})
    wake = {"latency-2x wake_p50": {"nine": (50.0, True), "all": LOSS}, "latency-2x wake_p99": STANDARD_SIDES, "latency-2x rate": STANDARD_SIDES}
    pages.add("wake", wake, ("wake_p50=(.)", "wake_p99=(.)", "rate=(.),x/s,more"))
    pages.add("hackbench-none", {f"hackbench-{groups} time": STANDARD_SIDES for groups in (1, 2, 3, 4)})
    pages.add("large", {"hackbench-16 time": STANDARD_SIDES}, kernel="6.12")
    pages.add("without", {"hackbench-1 time": {"no-first": LOSS}})
    pages.add("append", {"hackbench-1 time": {"nine": LOSS, "all": LOSS}})
    pages.add("kernels", {"hackbench-1 time": {"b": LOSS}}, kernels="base=base,b=patched+rt", hash_kernel_base="1", hash_kernel_b="2")
    pages.add("bits", {"hackbench-1 time": {"one": LOSS}})
    pages.add("before", {"hackbench-1 time": {"nine": (66.6, True), "all": (-66.6, True)}})
    pages.add("gone", {"hackbench-1 time": {"nine": (77.0, True), "all": (-77.0, True)}})
    (pages.top / published.OLDER).write_text("[gone]\ntitle = Gone\n")
    patch = pages.top / "patches/0001-x.patch"
    patch.write_text(PATCH.replace("second(2)", "second(3)"))
    new = commit(pages.top)
    for plan in (pages.top / "Documentation/results").glob("*/plan"):
        if plan.parent.name not in ("before", "gone"):
            plan.write_text(plan.read_text().replace(f"project {pages.commit}", f"project {new}"))

    page, picture = pages.rendered()
    assert "; 8 of them are measured" in page and "Nothing of the campaign" not in page
    # The rows of without, append, kernels, bits, before and gone do not count.
    assert "* `all`: **8 gains, 1 loss** in 10 rows; corrected for the rows of each table (q < 0.05), 8 gains, 1 loss\n" in page
    assert "* `nine`: **9 gains, 1 loss** in 10 rows;" in page
    assert "  * largest gain: +10.0 %: time of [hackbench-1](hack-intel/table.txt), on 20 CPUs in one LLC, with caches (intel)\n" in page
    assert "  * largest loss: -20.0 %: wake_p50 of [latency-2x](wake/table.txt), on 20 CPUs in one LLC, with caches (intel)\n" in page
    assert "  * only gains: `hackbench`\n  * gains and losses: `latency`\n" in page
    assert "| hackbench (7) | 6 / 1<br>-20.0 to +4.0 | 6 / 0<br>+10.0 to +10.0 |\n" in page
    headings = re.findall(r"^### (.*)$", page, re.M)
    assert headings == ["20 CPUs in one LLC, with caches (intel)", "20 CPUs in one LLC, without caches",
                        "Linux 6.12, 64 CPUs in 4 LLCs on 2 NUMA nodes, with caches (epyc)",
                        "All but one", "Another kernel", "Kernels", "All combinations"]
    sections = dict(zip(headings, page.split("\n### ")[1:]))
    rows = re.findall(r"^\| \[.*$", sections[headings[0]], re.M)
    assert rows[0] == "| [hackbench-1](hack-intel/table.txt)<br>time | **+4.0**<br>+4.0 to +4.1 | **+10.0**<br>+10.0 to +10.1 |"
    assert len(rows) == 5 and rows[2].startswith("| [latency-2x](wake/table.txt)<br>wake_p50 | **+50.0**<br>") and " | **-20.0**<br>" in rows[2]
    assert re.search(r"\| \+0\.0<br>|\| 0\.0<br>|\| [+-]\d\.\d<br>-\d\.\d to \+\d\.\d \|$", rows[1]), rows[1]
    assert "Against `base`, on 20 CPUs in one LLC, with caches (intel). Sides: `all`, `no-first=all+NO_STEAL_FIRST`.\n\n|" in sections[headings[3]]
    assert "Against `base`, on 20 CPUs in one LLC, with caches (intel), kernel parameters preempt=full." in sections[headings[4]]
    assert "Against `base`, on 20 CPUs in one LLC, with caches (intel). Sides: `a=base`, `b=patched+rt`.\n\n|" in sections[headings[5]]
    assert "| load, metric | `no-first` |\n" in sections[headings[3]] and "**-20.0**" in sections[headings[3]]
    assert "The [table](bits/table.txt) has what each feature adds, on 20 CPUs in one LLC, with caches (intel): `STEAL`, `SYNC_WAIT`.\n" in sections[headings[6]]
    assert ("\n## Not measured yet\n\n* 20 CPUs in one LLC, with caches (intel)\n  * `later`: What comes later\n"
            "  * `before`: What came before (of an older series: [table](before/table.txt))\n\n## Not planned\n\n* ") in page
    assert "66.6" not in page and "gone" not in page
    # beside published figures: what is measured with the present series
    assert "| 1x10x2, 1 | +36.1 | **+4.0** | - | **+10.0** | - |\n" in page and "| 1x22x2, 1, 2, 4 | -0.3, +33.2, +18.3 | - | - | - | - |\n" in page

    assert pages.rendered() == (page, picture) and len(picture) < 60000
    drawn = ElementTree.fromstring(picture)
    marks = [(mark.get("href"), group.get("fill")) for group in drawn.findall(".//{*}g") for mark in group.findall("{*}use")][2:]
    # hackbench-1, -2, latency wake_p50 and rate with caches, hackbench-1 to -4 without; +50 is an arrow, and one is hollow.
    assert sorted(marks) == [("#side0", "#0072B2")] * 7 + [("#side1", "#D55E00")] * 7 + [("#side1", "#fff")]
    texts = [text.text for text in drawn.findall(".//{*}text")]
    assert texts.count("+50") == 1 and [text for text in texts if "caches" in text] == ["with caches (intel)", "without caches"]
    assert texts[2:12] == ["hackbench", "latency wake_p50", "latency rate", "1", "2", "3", "4", "2x", "2x", "with caches (intel)"]


def test_picture_has_a_row_once():
    """Of several comparisons with the same case, metric and side, that of most pairs is drawn; of equal ones the first."""
    rows = [types.SimpleNamespace(case=case, metric="time", side=side, values=[0.0] * pairs, number=number)
            for number, (case, side, pairs) in enumerate([("a", "all", 6), ("a", "all", 30), ("a", "nine", 6), ("a", "all", 6), ("b", "all", 6), ("b", "all", 6)])]
    assert [row.number for row in campaign_page.of_most_pairs(rows)] == [1, 2, 4]


# Running

CONF = """[DEFAULT]
title = What it shows
machine = 1x4x1
seeds = published
runs = 2

[first]
command = load 1000 900

[second]
command = load 900 1000
machine = 1x2x1
# So many can be a loss, which is no failure.
runs = 6
"""


class Campaign(Simulated):
    """A checkout with a campaign of two comparisons, in a repository."""

    def __init__(self, root):
        super().__init__(root)
        for name in ("bench/campaign", "patches/lines"):
            (self.top / name).parent.mkdir(exist_ok=True)
            shutil.copy(TOP / name, self.top / name)
        (self.top / campaign.CONF).write_text(CONF)
        (self.top / "series").write_text("0001-x.patch\n")
        (self.top / "patches/0001-x.patch").write_text(PATCH)
        (self.top / "Documentation/results").mkdir(parents=True)
        (self.top / published.OLDER).write_text("")
        (self.top / published.TEMPLATES).mkdir()
        for name, targets in published.TARGETS.items():
            (self.top / published.TEMPLATES / name).write_text("{# #}\nbegin {{ results|map(attribute='series')|join(' ') }}\nend\n"
                                                               if name == "INDEX.md.j2" else f"begin {name}\nend {name}\n")
            for target in targets:
                with (self.top / target).open("a") as file:
                    file.write(f"begin {name}\nend {name}\n")
        git(self.top, "init", "-q")
        commit(self.top)

    def campaign(self, *words, rc=0, environment=()):
        return self.finish(self.begin(*words, environment=environment), rc)

    def begin(self, *words, environment=()):
        return self.popen([self.top / "bench/campaign", *words], env=os.environ | self.environment | dict(environment))

    def refused(self, message, *words, rc=2):
        stdout, stderr = self.campaign(*words, rc=rc)
        assert stdout == "" and len(stderr.splitlines()) == 1 and message in stderr, stderr


@pytest.fixture
def made(tmp_path):
    return Campaign(tmp_path)


def test_refused(made):
    """One line, and nothing is there."""
    made.refused("--only third: no such comparison; --list shows all", "--only", "first,third")
    made.refused("--list takes no other arguments", "--list", "--jobs", "1")
    made.refused("--jobs 999: this host has", "--jobs", "999", "--out", made.out)
    made.refused("cannot be read", "--hosts", made.root / "no", "--out", made.out)
    made.refused("no directory of bench/campaign", "--publish", made.root)
    made.refused("--repeat third: no such comparison; --list shows all", "--repeat", "third")
    made.refused("--repeat first: not published: there is no file", "--repeat", "first")
    made.refused("--pairs needs --repeat", "--pairs", "2")
    made.refused("--only and --repeat exclude each other", "--repeat", "first", "--only", "first")
    (made.top / "series").write_text("# changed\n0001-x.patch\n")
    made.refused("series has changes that are not committed", "--out", made.out)
    git(made.top, "checkout", "-q", "series")
    assert not made.out.exists() and not made.log.exists() and git(made.top, "status", "--porcelain") == ""
    mine = made.root / "mine"
    mine.mkdir()
    (mine / "letter").touch()
    made.refused("not empty, and bench/campaign did not make it", "--out", mine)
    assert [path.name for path in mine.iterdir()] == ["letter"]


def test_goes_on_and_is_published(made):
    """It is interrupted and goes on; then its results are published. A later commit is refused, and changes what the index says."""
    pid = made.root / "pid"
    process = made.begin("--out", made.out, "--jobs", 1, environment={"FAKE_HANG": f"1000002:{pid}"})
    wait_for(lambda: pid.exists() and pid.read_text())
    made.refused("another bench/campaign uses this directory", "--out", made.out)
    process.send_signal(signal.SIGINT)
    _, stderr = made.finish(process, 130)
    assert "campaign: 0 of 8 machines done; time left: unknown\n" in stderr
    assert stderr.endswith(f"campaign: interrupted; to continue: the same command with --out {made.out}\n")
    assert [line.split()[0] for line in made.machines] == ["1000001", "1000002"] and not (made.out / "second").exists()
    made.refused("no comparison of bench/campaign.conf is finished in it", "--publish", made.out, rc=3)

    _, stderr = made.campaign("--out", made.out, "--jobs", 1)
    assert re.search(r"campaign: 1 of 8 machines done; time left: about \d+ min, without 6 machines of kinds that have not run yet\n", stderr)
    assert re.search(r"campaign: 2 of 8 machines done; time left: about \d+ min, without 6 machines", stderr) and "all 2 comparisons are finished" in stderr
    assert "\nLOSS: " in "\n" + made.get("out/second/table.txt")
    assert sorted(line.split()[:2] for line in made.machines) == sorted([
        ["1000001", "1x4x1"], ["1000002", "1x4x1"], ["1000002", "1x4x1"], *([f"100000{pair}", "1x2x1"] for pair in range(1, 7))])
    lines = made.get("out/times").splitlines()
    assert [line.rpartition(" ")[0] for line in lines if " - " not in line] == ["first command"] * 2 + ["second command"] * 6
    before = {path: path.stat().st_mtime_ns for path in made.out.rglob("*") if path.is_file()}
    made.campaign("--out", made.out)
    assert before == {path: path.stat().st_mtime_ns for path in made.out.rglob("*") if path.is_file()}

    made.campaign("--publish", made.out)
    results = made.top / "Documentation/results"
    plan = (results / "first/plan").read_text()
    assert {path.name for path in (results / "first").iterdir()} == {"plan", "runs.csv", "table.txt"}
    assert re.search(r"^date \d{4}-\d\d-\d\d\nrepeat bench/ab --machine 1x4x1 --seeds published --runs 2 -- load 1000 900\n\Z", plan, re.M)
    assert (results / "INDEX.md").read_text() == "begin present present\nend\n"
    commit(made.top)
    made.refused("made at commit", "--out", made.out)
    patch = made.top / "patches/0001-x.patch"
    for old, new, state in (("/* why */", "/* so */", "present"), ("second(2)", "second(3)", "older series")):
        patch.write_text(patch.read_text().replace(old, new))
        listed = made.campaign("--list")[0].splitlines()
        assert [re.split("  +", line) for line in listed[1:3]] == [["first", "2", state, "What it shows"], ["second", "6", state, "What it shows"]]


def test_one_fails(made):
    """The next one still runs, and the same command tries the first again."""
    _, stderr = made.campaign("--out", made.out, "--jobs", 1, rc=3, environment={"FAKE_DIE": "1000002"})
    # One pair is no result; five are, but not all of what was planned.
    assert "campaign: error: first: bench/ab ended with status 3 (see above)\n" in stderr
    assert "campaign: error: second: 1 of 6 machines failed (see above)\n" in stderr
    assert "2 of 2 comparisons failed: first, second; to try them again" in stderr.splitlines()[-1]
    made.campaign("--out", made.out, "--jobs", 1, "--only", "second")
    assert (made.out / "second.done").exists() and not (made.out / "first.done").exists()


# Measuring published comparisons again

@pytest.fixture
def published_once(made):
    """With results of the commit before the present one."""
    made.campaign("--out", made.out, "--jobs", 1)
    made.campaign("--publish", made.out)
    commit(made.top)
    return made


def change(path, old, new):
    text = path.read_text()
    assert old in text, text
    path.write_text(text.replace(old, new, 1))


def test_repeated(published_once):
    """The same inputs at another commit: the same figures and the same table. Hosts do not count."""
    made, again = published_once, published_once.root / "again"
    first = made.top / "Documentation/results/first"
    for old, new in (("2,here,1x4x1,command-1/", "2,there,1x4x1,command-1/9"), ("\n2,here,", "\n2,elsewhere,")):
        change(first / "runs.csv", old, new)
    commit(made.top)
    words = ["--repeat", "second,first", "--out", again, "--jobs", 1]
    said = "second: 12 of 12 runs are the same to the digit\nfirst: 4 of 4 runs are the same to the digit\n"
    assert made.campaign(*words)[0] == said
    here, measured = (git(made.top, "rev-parse", "--short", name) for name in ("HEAD", "HEAD~2"))
    assert made.get("again/first/plan").endswith(f"project {here}\npublished first\n")
    assert made.get("again/first/table.txt") == (first / "table.txt").read_text().replace(measured, here)
    with tarfile.open(again / "first/raw/command-1.tar") as archive:
        assert archive.extractfile("machine/project").read().decode().strip() == measured

    machines = made.machines
    assert made.campaign(*words)[0] == said and made.machines == machines
    made.refused("made for all pairs, and not 1 (--pairs); choose another --out", *words, "--pairs", 1)
    made.refused("no directory of bench/campaign", "--publish", again)
    made.refused("not empty, and bench/campaign did not make it", "--out", again)
    made.refused("--pairs 3: first has 2 pairs", "--repeat", "second,first", "--pairs", 3)
    assert made.campaign("--repeat", "first", "--pairs", 1, "--out", made.root / "one")[0] == "first: 2 of 2 runs are the same to the digit\n"
    assert len(made.machines) == len(machines) + 1


def test_repeated_figures_differ(published_once):
    """With the same inputs that is a bug; with others another sample, and the table says so. Figures may be the same with other inputs."""
    made = published_once
    runs = made.top / "Documentation/results/first/runs.csv"
    ours = re.search(",off,.*,yes,([0-9]+),", runs.read_text())[1]
    change(runs, f",yes,{ours},", ",yes,1,")
    commit(made.top)
    count = iter(range(9))

    def again(rc):
        name = f"again-{next(count)}"
        return name, made.campaign("--repeat", "first", "--pairs", 1, "--out", made.root / name, rc=rc)[0]

    differ = f"1 of 2 runs differ. The first: command, pair 1, side off: time_ns is 1 published, {ours} here. "
    name, said = again(1)
    assert said == f"first: all inputs are the same, but {differ}This is a bug: please report it\n"
    assert "published sample" not in made.get(f"{name}/first/table.txt")
    change(made.top / "sim/guest/section.c", "\n", "\n\n")
    commit(made.top)
    assert "these files have changed: sim/guest/section.c. If they do not explain it, it is a bug" in again(1)[1]

    plan = (made.top / "Documentation/results/first/plan").read_text()
    kernel = re.search("^hash_kernel_patched (.*)$", plan, re.M)[1]
    change(made.top / "scripts/image", "\n", " \n")
    (made.top / "scripts/qemu").unlink()
    (made.top / "scripts/qemu").write_text("#!/bin/sh\necho QEMU emulator version 9.9.8\n")
    (made.top / "scripts/qemu").chmod(0o755)
    commit(made.top)
    name, said = again(1)
    new = re.search("^hash_kernel_patched (.*)$", made.get(f"{name}/first/plan"), re.M)[1]
    old_qemu, new_qemu = (re.search("^hash_qemu (.*)$", text, re.M)[1] for text in (plan, made.get(f"{name}/first/plan")))
    inputs = [f"kernel image: {kernel} published, {new} here", f"guest image: {kernel} published, {new} here", "QEMU: 9.9.9 published, 9.9.8 here",
              f"QEMU's binary: {old_qemu} published, {new_qemu} here"]
    assert said == "".join(f"first: {text}\n" for text in [*inputs, f"{differ}So the figures are another sample"])
    assert made.get(f"{name}/first/table.txt").splitlines()[0] == f"Not the published sample of first, as inputs differ: {'; '.join(inputs)}"

    # Older plans do not have it.
    change(made.top / "Documentation/results/first/plan", f"hash_qemu {old_qemu}\n", "")
    commit(made.top)
    assert "QEMU: " in again(1)[1] and "QEMU's binary" not in again(1)[1]

    change(runs, ",yes,1,", f",yes,{ours},")
    commit(made.top)
    assert again(0)[1].splitlines()[-1] == "first: 2 of 2 runs are the same to the digit"
    change(runs, "\n2,", "\n3,")
    commit(made.top)
    _, stderr = made.campaign("--repeat", "first", "--pairs", 1, "--out", made.root / "damaged", rc=2)
    assert stderr.splitlines()[-1] == f"campaign: error: {runs}: not a whole runs.csv of format 2; restore the file"


def test_repeat_fails_and_goes_on(published_once):
    made = published_once
    words = ["--repeat", "first,second", "--out", made.root / "again", "--jobs", 1]
    stdout, stderr = made.campaign(*words, rc=3, environment={"FAKE_DIE": "1000005"})
    assert stdout == "first: 4 of 4 runs are the same to the digit\n"
    assert "error: second: 1 of 6 machines failed (see above)\n" in stderr and "1 of 2 comparisons failed: second; to try them again" in stderr
    count = len(made.machines)
    assert made.campaign(*words)[0].splitlines()[-1] == "second: 12 of 12 runs are the same to the digit" and len(made.machines) == count + 1


@pytest.mark.parametrize("old, new, message", [
    ("format 2\n", "", "--repeat first: of version 1.0, whose results have another format; check out version 1.0"),
    ("--runs 2", "--what", "--repeat first: bench/ab no longer takes its command: unrecognized arguments: --what"),
    ("format 2\n", "format 2\nseeds none\n", "first/plan: seeds 'none', not one of development, ")])
def test_cannot_be_repeated(published_once, old, new, message):
    change(published_once.top / "Documentation/results/first/plan", old, new)
    published_once.refused(message, "--repeat", "first")
