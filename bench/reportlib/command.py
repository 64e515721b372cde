# SPDX-License-Identifier: GPL-2.0
"""Arguments, messages and output files of the commands beside this directory."""

import os
import sys
from pathlib import Path
from typing import NoReturn

from .records import ReportError

PROGRAM = Path(sys.argv[0])


def say(text: str) -> None:
    print(f"{PROGRAM.name}: {text}", file=sys.stderr)


def wrong(text: str) -> NoReturn:
    say(f"error: {text}; see --help")
    sys.exit(2)


def usage() -> str:
    """The comment at the top of the program, from Usage: on."""
    lines = PROGRAM.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("# Usage:"))
    end = next(i for i in range(start, len(lines)) if not lines[i].startswith("#"))
    return "\n".join(line[2:] for line in lines[start:end])


def arguments(words: list[str], columns: str) -> tuple[list[Path], Path]:
    """Parses [--out DIR] PATH...: the paths and the output directory. --help prints the usage text and COLUMNS."""
    out, paths = "", []
    while words:
        word = words.pop(0)
        if word == "--help":
            print(f"{usage()}\n\n{columns}")
            sys.exit(0)
        if word == "--out":
            out = words.pop(0) if words else ""
            if not out:
                wrong("--out needs a value")
        elif word.startswith("-"):
            wrong(f"unknown option: {word}")
        else:
            paths.append(Path(word))
    if not paths:
        wrong("PATH is missing")
    if not out and len(paths) > 1:
        wrong("several PATHs need --out")
    default = paths[0] if paths[0].is_dir() else Path(f"{paths[0]}.report")
    return paths, Path(out) if out else default


def write(out: Path, files: dict[str, bytes]) -> None:
    """Writes all files under temporary names and then renames them, so that no file is ever incomplete."""
    temporary = {name: out / f".{name}.{os.getpid()}" for name in files}
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            temporary[name].write_bytes(data)
        for name in files:
            temporary[name].replace(out / name)
    except OSError as error:
        name = error.filename2 or error.filename
        raise ReportError(f"cannot write {name}: {error.strerror}; choose another --out") from error
    finally:
        for path in temporary.values():
            if path.exists():
                path.unlink()
