"""What do the findings of a selftest look like to a reader?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from harness.selftest import Finding

HEADINGS = ("name", "what it does", "expected", "found", "verdict", "reason")
# Six columns of text need more room than other tables, where there is no terminal to say how much there is.
WIDTH = 180


def table(findings: Iterable[Finding]) -> Table:
    """One row for each kernel of the corpora; what went wrong is red."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in HEADINGS:
        shown.add_column(heading, no_wrap=heading in ("name", "verdict"))
    for found in findings:
        style = "red" if found.verdict.failed else "yellow" if found.verdict == "skipped" else ""
        expected = " or ".join(found.entry.expected)
        cells = (found.entry.name, found.entry.idea, expected, found.found, str(found.verdict), found.reason or "")
        shown.add_row(*map(Text, cells), style=style)
    return shown


def show(findings: Iterable[Finding], console: Console) -> None:
    """On stderr, as wide as `console` where that is a terminal."""
    Console(stderr=True, highlight=False, width=None if console.is_terminal else WIDTH).print(table(findings))
