"""In which forms can a report be written?"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING

# The command line needs the forms to describe itself; what writes one is loaded when it is asked for.
if TYPE_CHECKING:
    from harness.figures import Figures


class Format(StrEnum):
    """What a report is written as."""

    table = "table"
    markdown = "markdown"
    csv = "csv"
    json = "json"
    html = "html"


def parts(records: list[Figures], form: Format, width: int, colours: bool) -> Iterable[str]:
    """The report in pieces, because as one text a large one would take hundreds of megabytes.

    Only a table heeds `width` and `colours`.
    """
    match form:
        case Format.table:
            from harness.terminal import terminal

            return [terminal(records, width, colours)]
        case Format.markdown:
            from harness.report import markdown

            return [markdown(records)]
        case Format.html:
            from harness.html import html

            return html(records)
        case Format.csv:
            from harness.frame import csv_lines

            return csv_lines(records)
        case Format.json:
            from harness.frame import json_lines

            return json_lines(records)
