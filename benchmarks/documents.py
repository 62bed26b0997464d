"""Puts what a benchmark found into a document, between marks that name it."""

from __future__ import annotations

from pathlib import Path


def marks(name: str) -> tuple[str, str]:
    return f"<!-- {name} -->", f"<!-- end of {name} -->"


def write_between_marks(path: Path, name: str, text: str) -> None:
    """Raises `SystemExit` where the document has no marks of that name."""
    begin, end = marks(name)
    before, found, rest = path.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{path} has no {begin} with {end} behind it")
    path.write_text(f"{before}{begin}\n\n{text}\n{end}{after}", encoding="utf-8")
