# SPDX-License-Identifier: GPL-2.0
"""The files that a comparison leaves: table.txt, speedup.svg, and page.html, which needs nothing but itself."""

from pathlib import Path

import jinja2

from . import plots, table
from .plan import write_whole

# Keys of the plan that the header shows, or that say nothing to a reader.
SHOWN = ("format", "command", "sides", "metric", "metrics", "runs", "hosts", "seeds", "machine", "gate", "project", "kernel", "uname",
         "release")


def page(summary: table.Summary, speedup: str) -> str:
    """The page."""
    plan, decided = summary.plan, [row.verdict for row in summary.decided]
    kind = next((verdict for verdict in ("LOSS", "GAIN") if verdict in decided), "none") if not summary.cannot else "cannot"
    rest = [(key, value) for key, values in plan.lines.items() if key not in SHOWN for value in values]
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True,
                                     trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    return environment.get_template("page.html.j2").render(
        title=f"{plan.labels[0]} against {', '.join(plan.labels[1:])}: {plan.get('command')}", kind=kind, summary=summary,
        header=table.header(summary), columns=table.columns(plan), rows=[table.cells(plan, row) for row in summary.shown_rows],
        differ=table.host_table(summary), differ_title=table.HOSTS_TITLE, differ_legend=table.HOSTS_LEGEND,
        counts=table.count_table(summary), counts_title=table.COUNTS_TITLE, counts_legend=table.counts_legend(summary),
        perf=table.perf_table(summary), speedup=speedup, distribution=plots.distribution(summary),
        caveat=table.SIMULATED if plan.simulated else "", repeat=table.repeat_command(plan), rest=rest)


def render(directory: Path) -> table.Verdict:
    """Writes table.txt, page.html and speedup.svg into the directory."""
    summary = table.summarise(directory)
    speedup = plots.speedup(summary)
    # All are made before the first is written.
    files = {"table.txt": table.text(summary), "speedup.svg": f'<?xml version="1.0" encoding="utf-8"?>\n{speedup}',
             "page.html": page(summary, speedup)}
    for name, text in files.items():
        write_whole(directory / name, text.encode())
    return summary.verdict
