# SPDX-License-Identifier: GPL-2.0
"""The repository: shellcheck, licenses, usage texts and options, documentation, and what no file may name."""

import re
import subprocess
from collections import Counter
from pathlib import Path

import docutils.core
import docutils.nodes
import pytest
from conftest import kernel_lines, line_files
from conftest import named as patches_of

TOP = Path(__file__).resolve().parents[2]


def tracked():
    out = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=TOP,
                         stdout=subprocess.PIPE, check=True).stdout
    return [TOP / name for name in out.decode().split("\0") if name and (TOP / name).is_file()]


def shell_scripts():
    def head(path):
        with path.open("rb") as file:
            return file.read(200)
    return [p for p in tracked() if re.match(rb"#!.*\b(ba)?sh\b|(#.*\n)*# shellcheck shell=", head(p)) or p.suffix == ".sh"]


def commands():
    """What a person runs: the executables in three directories. Never those of tests/guest or sim/guest: they are for guests alone."""
    return [p for p in tracked() if p.parent in (TOP / "scripts", TOP / "sim", TOP / "bench") and p.stat().st_mode & 0o111]


def name(path):
    return str(path.relative_to(TOP))


def test_shellcheck(run):
    scripts = shell_scripts()
    assert len(scripts) >= 10 and TOP / "bench/collect/loads/tbench" in scripts
    run("shellcheck", *scripts)


def test_commands_are_found():
    assert len(commands()) >= 15


@pytest.mark.parametrize("script", commands(), ids=name)
def test_help(run, script):
    assert re.search(r"--help|^options '|\A#!.*python", script.read_text(), re.M), "not run: it does not know --help"
    out = run(script, "--help").stdout
    assert out.lower().startswith("usage: ") and "shellcheck" not in out, out


def taken(script):
    """The options of a script that uses options() of scripts/lib.sh: names, those with a value with a "="."""
    spec = re.search(r"^options '([^']*)'", script.read_text(), re.M).group(1)
    return {word.replace("+=", "=") for word in spec.split() if word[0].isalpha()}


def named(script):
    """The options that a usage text names: in its first paragraph, and in lines that begin with one."""
    text = re.sub(r"^#$", "# ", script.read_text(), flags=re.M)
    lines = re.search(r"^# Usage: (?:.*\n# )+", text, re.M).group(0).split("\n# ")
    usage = " ".join(lines[:lines.index("")])
    usage += "|" + "|".join(line.strip().split("  ")[0] for line in lines if re.match(r" +--[a-z]", line))
    return {option + ("=" if value else "") for option, value in re.findall(r"--([a-z][a-z0-9-]*)( [^\s|\]])?", usage)}


@pytest.mark.parametrize("script", [p for p in commands() if re.search("^options '", p.read_text(), re.M)], ids=name)
def test_usage_and_parser_agree(script):
    assert named(script) == taken(script)


@pytest.mark.parametrize("arguments, printed", [
    ("--tree x --add 1 --numa --add 2 --idle-exit 7 -- --tree b", "x|1 2|yes|7|--tree b"), ("--", "|||5|"), ("", "|||5|")])
def test_options(run, tmp_path, arguments, printed):
    """options() of scripts/lib.sh, with a script that takes a command."""
    assert run(*with_options(tmp_path), *arguments.split()).stdout == printed + "\n"


@pytest.mark.parametrize("rest, arguments, printed", [
    ("...", "--numa a --numa", "||yes|5|a --numa"), ("*", "a --what --numa -k x", "||yes|5|a --what -k x")])
def test_options_with_other_arguments(run, tmp_path, rest, arguments, printed):
    assert run(*with_options(tmp_path, rest), *arguments.split()).stdout == printed + "\n"


@pytest.mark.parametrize("arguments, message", [
    ("--what", "unknown argument '--what'"), ("--tree", "--tree needs a value"), ("--tree=", "unknown argument '--tree='"),
    ("true", "unknown argument 'true' (write -- before the command)"), ("-", "unknown argument '-'")])
def test_wrong_options(run, tmp_path, arguments, message):
    done = run(*with_options(tmp_path), *arguments.split(), check=False)
    assert (done.returncode, done.stdout) == (2, f"script: error: {message}; see --help\n")


def test_options_help_and_empty_value(run, tmp_path):
    assert run(*with_options(tmp_path), "--numa", "--help").stdout == "Usage: script\n"
    assert "--tree needs a value" in run(*with_options(tmp_path), "--tree", "", check=False).stdout


def with_options(directory, rest="--"):
    script = directory / "script"
    script.write_text(f"""# Usage: script

. {TOP}/scripts/lib.sh
tree='' add=() numa='' idle_exit=5
options 'tree= add+= numa idle-exit= {rest}' "$@"
echo "$tree|${{add[*]}}|$numa|$idle_exit|${{rest[*]}}"
""")
    return ["bash", script]


def test_init_of_the_guest_refuses_a_host(run):
    """As nobody, who could not do harm with it."""
    assert not (TOP / "sim/guest/init").stat().st_mode & 0o111
    done = run("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", "exec sh /dev/stdin --help", check=False,
               cwd="/", stdin=(TOP / "sim/guest/init").open())
    assert done.returncode == 2 and "PID 1 only" in done.stdout and len(done.stdout.splitlines()) == 1, done.stdout


def is_raw(path):
    """A record that is kept as it came."""
    return (TOP / "Documentation/results" in path.parents or path.suffix == ".svg"
            or path.parent == TOP / "tests/data" and path.name != "README")


def test_every_file_names_its_license():
    # The format of the others has no place for it.
    without = [name(p) for p in tracked() if not is_raw(p) and p.suffix != ".patch" and p.name not in (
        "LICENSE", "MAINTAINERS.snippet", "cover-letter.txt") and b"SPDX-License-Identifier: GPL-2.0" not in p.read_bytes()[:600]]
    assert not without, without


# The patterns do not match themselves.
@pytest.mark.parametrize("pattern", [
    r"\b(pypi|pythonhosted|npmjs|rubygems|crates)\.(org|com|io)\b", r"\bproxy\.golang\.org\b",
    r"\b(deb|ftp|archive|security|snapshot|httpredir|mirrors?|packages|ports)\.([a-z0-9-]+\.)*(debian|ubuntu)\.(org|com|net)\b",
    r"(?<![\w}$.*])/[w]ork/"], ids=["registry", "go", "mirror", "path"])
def test_no_file_names(pattern):
    """Hosts of package registries and mirrors, and paths of the machine on which the files were made."""
    found = [f"{name(p)}: {match.group(0)}" for p in tracked() if not is_raw(p)
             for match in re.finditer(pattern, p.read_text(errors="replace"))]
    assert not found, found


def test_documentation_builds(run, top, tmp_path):
    run("/usr/bin/python3", "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", tmp_path / "doctrees",
        top / "Documentation", tmp_path / "html")


def wide(text):
    """The lines of paragraphs, outside tables, that have more than 80 columns and a place to break."""
    tree = docutils.core.publish_doctree(text, settings_overrides={"report_level": 5})
    return [line for paragraph in tree.findall(docutils.nodes.paragraph) if not any(isinstance(node, docutils.nodes.entry) for node in above(paragraph))
            for line in paragraph.rawsource.splitlines() if len(line) > 80 and " " in line.strip()]


def above(node):
    while node.parent:
        node = node.parent
        yield node


@pytest.mark.parametrize("path", sorted(p for p in tracked() if p.suffix == ".rst"), ids=name)
def test_documents_are_narrow(path):
    """As the kernel's own documents, so that they can be read as they are."""
    assert not wide(path.read_text())


def test_wide_lines_are_found():
    text = "Title\n=====\n\n" + "A sentence of 24 letters. " * 4 + "\n\n::\n\n   " + "code " * 20 + "\n\n* An item.\n\n  " + "word " * 20 + "\n"
    assert [line[:4] for line in wide(text)] == ["A se", "word"]


def test_readme_names_what_is_there():
    """Every path in the README's layout table exists."""
    text = (TOP / "README.md").read_text()
    cells = re.findall(r"^\| (`[^|]+`) \|", text[text.index("\n## Layout\n"):], re.M)
    paths = [path for cell in cells for path in re.findall(r"`([^`]+)`", cell)]
    assert len(paths) >= 8
    missing = [p for p in paths if not (TOP / p).exists()]
    assert not missing, missing


def test_series_and_patches_agree(series, extras):
    assert len(series) >= 9
    folder = line_files()[0]
    assert series + extras == sorted(folder.glob("*.patch")) + sorted((folder / "extra").glob("*.patch"))


def test_nine_patches_and_follow_ups(run, series):
    """The heading of the follow-ups is below the ninth patch, if there are more; git am takes the series with one glob."""
    folder, file, _ = line_files()
    text = file.read_text()
    above = re.split(r"^# Follow-ups", text, maxsplit=1, flags=re.M)[0]
    assert len(re.findall(r"^[0-9]{4}-", above, re.M)) == 9
    whole = sorted((TOP / "patches").glob("00*.patch"))
    assert [int(p.name[:4]) for p in whole] == list(range(1, len(whole) + 1))
    assert sorted(folder.glob("00*.patch")) == series


def message_words(patch):
    """Of the message, from the first line below the header to the tags."""
    return len(patch.read_text().split("\n\n", 1)[1].split("\n---\n")[0].split())


@pytest.mark.parametrize("line", kernel_lines())
def test_messages_are_short(line):
    folder, series, _ = line_files(line)
    counts = {patch: message_words(patch) for patch in patches_of(series) + patches_of(folder / "extra/series")}
    assert len(counts) >= 15
    limits = {patch: 350 if patch.name.startswith("0008-") else 250 for patch in counts}
    too_long = [f"{patch.relative_to(TOP)}: {count} words, limit {limits[patch]}" for patch, count in counts.items() if count >= limits[patch]]
    assert not too_long, "\n".join(too_long)


def test_cover_letter_is_short():
    assert len((TOP / "Documentation/cover-letter.txt").read_text().split()) < 900


def test_cover_letter_is_that_of_the_mail():
    """scripts/regen puts the one into the other; who edits one by hand has to do so with both."""
    subject, text = (TOP / "Documentation/cover-letter.txt").read_text().split("\n\n", 1)
    mail = (TOP / "patches/cover-letter.txt").read_text()
    assert text.strip() in mail
    assert f"] {subject}\n" in mail


def test_the_nine_are_small():
    """Fewer added lines than the 694 of the version of 2026 that the cover letter names. Lines that a later patch removes don't count."""
    added = Counter()
    # the default line's: the cover letter is of these
    series = sorted((TOP / "patches").glob("000[1-9]-*.patch"))
    assert len(series) == 9
    for patch in series:
        diff = patch.read_text().split("\n---\n", 1)[1]
        # Short lines, such as braces, are everywhere.
        minus = Counter(re.findall(r"^-(?!-- [ab/])(.{15,})", diff, re.M))
        added = added - minus + Counter(re.findall(r"^\+(?!\+\+ [ab/])(.*)", diff, re.M))
    assert 0 < added.total() < 694
