"""What do rows of facts look like in a terminal?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A column for each key of the first row, on the right where every row has a number."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in rows[0] if rows else ():
        numeric = all(isinstance(row[name], (int, float)) for row in rows)
        shown.add_column(name, justify="right" if numeric else "left")
    for row in rows:
        shown.add_row(*(Text(f"{v:g}" if isinstance(v, float) else str(v)) for v in row.values()))
    return shown
