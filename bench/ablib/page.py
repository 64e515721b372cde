# SPDX-License-Identifier: GPL-2.0
"""The files that a comparison leaves: table.txt, the pictures, and page.html, which needs nothing but itself."""

from pathlib import Path

import jinja2

from . import plots, table
from .plan import write_whole

# Keys of the plan that the header shows, or that say nothing to a reader.
SHOWN = ("format", "case", "command", "sides", "bits", "factorial", "runs", "hosts", "seeds", "machine", "gate", "project", "kernel",
         "uname", "release", "loops", "scale", "trace_loops")


def page(summary: table.Summary, pictures: list[plots.Picture]) -> str:
    """The page."""
    plan, gain = summary.plan, any(row.verdict == "GAIN" for row in summary.rows)
    kind = "cannot" if len(summary.cannot) == len(plan.cases) else "LOSS" if summary.verdict.loss else "GAIN" if gain else "none"
    rest = [(key, value) for key, values in plan.lines.items() if key not in SHOWN and not key.startswith(("about:", "level_name:"))
            for value in values]
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True,
                                     trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    what = plan.get("command") if "command" in plan.loads else ", ".join(plan.loads)
    against = f"Combinations of {', '.join(plan.factorial)}" if plan.factorial else \
        f"{plan.labels[0]} against {', '.join(plan.labels[1:])}"
    return environment.get_template("page.html.j2").render(
        title=f"{against}: {what}", kind=kind, summary=summary, header=table.header(summary),
        pictures=[picture for picture in pictures if not picture.name.startswith("busy")],
        rasters=[picture for picture in pictures if picture.name.startswith("busy")],
        caveat=table.caveat(plan), repeat=table.repeat_command(plan), rest=rest)


def render(directory: Path) -> table.Verdict:
    """Writes table.txt, page.html and the pictures into the directory."""
    summary = table.summarise(directory)
    pictures = plots.draw(summary)
    # All are made before the first is written.
    files = {f"{picture.name}.svg": f'<?xml version="1.0" encoding="utf-8"?>\n{picture.svg}' for picture in pictures}
    files |= {"table.txt": table.text(summary), "page.html": page(summary, pictures)}
    for name, text in files.items():
        write_whole(directory / name, text.encode())
    return summary.verdict
