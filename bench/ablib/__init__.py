# SPDX-License-Identifier: GPL-2.0
"""The core of bench/ab: raw files -> fold -> runs.csv -> table, page and pictures.

Data goes one way. Only fold reads DIR/raw and DIR/names. table and render read DIR/plan, DIR/runs.csv, DIR/busy.csv and
DIR/lines.csv alone.
"""

from pathlib import Path

from . import fold, plan, stats, table
from .plan import AbError
from .table import Verdict

__all__ = ["AbError", "Verdict", "fold", "plan", "render", "stats", "table"]


def render(directory: Path) -> Verdict:
    """Writes table.txt, page.html and the pictures into the directory."""
    from . import page  # matplotlib takes a second to load
    return page.render(Path(directory))
