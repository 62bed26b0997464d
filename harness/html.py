"""What do records look like on a page? One HTML file that needs no network and no scripts.

`environment` and `assets` serve every page that solbench writes: whatever names and reasons hold stays text, and
a page's policy allows nothing but its own style sheet and script, told by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from harness.figures import Figures
from harness.report import LEGEND, SUMMARY_HEADINGS, Group, SideBySide, cell, groups, reasons, side_by_side, summary_row
from harness.text import ABSENT, format_ms, one_line, sound

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Assets:
    """What goes into a page's head: the texts, and the policy that allows them and nothing else."""

    style: Markup
    script: Markup | None
    policy: str


@cache
def assets(with_script: bool) -> Assets:
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    script = (TEMPLATES / "script.js").read_text(encoding="utf-8") if with_script else None
    policy = ["default-src 'none'", f"style-src '{_hash(style)}'"]
    if script is not None:
        policy += [f"script-src '{_hash(script)}'", "img-src data:"]
    policy += ["base-uri 'none'", "form-action 'none'"]
    return Assets(Markup(style), Markup(script) if script is not None else None, "; ".join(policy))


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def environment() -> Environment:
    """Templates of this package, in which every value is escaped and stays on one line."""
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )


def _finalize(value: object) -> object:
    if value is None:
        return ABSENT
    return one_line(sound(value)) if isinstance(value, str) and not isinstance(value, Markup) else value


def html(records: Iterable[Figures]) -> Iterator[str]:
    """The groups of the Markdown report as a page, in pieces."""
    views = [_view(group) for group in groups(records)]
    page = environment().get_template("report.html")
    return page.generate(groups=views, headings=SUMMARY_HEADINGS, legend=LEGEND, assets=assets(with_script=False))


def _view(group: Group) -> dict[str, Any]:
    kernels = group.by_kernel()
    return {
        "title": group.title,
        "notes": group.notes,
        "summary": (summary_row(name, members) for name, members in kernels.items()),
        "tables": ({"kernels": table.kernels, "rows": _rows(table)} for table in side_by_side(kernels)),
        "reasons": _reasons(kernels),
    }


Row = tuple[str, str, str, list[tuple[str, bool]]]


def _rows(table: SideBySide) -> Iterator[Row]:
    """Case, bound, what limits it, and for each kernel a text and whether it tells of a failure."""
    for first, records in table.rows:
        cells = [(cell(record), record is not None and record.status.failed) for record in records]
        yield first.case, format_ms(first.bound_ms), first.limit or ABSENT, cells


def _reasons(kernels: Mapping[str, Sequence[Figures]]) -> list[tuple[str, str]]:
    return [(name, line) for name, members in kernels.items() for line in reasons(members)]
