"""How figures and texts are written, in every table."""

from __future__ import annotations

import re
from collections.abc import Sequence

ABSENT = "–"

_MARKUP = re.compile(r"[\\|<>`*_\[\]]")


def format_ms(ms: float | None) -> str:
    """A time with the unit that suits it, in four significant digits: `38.90 µs`, `68.86 ms`."""
    if ms is None:
        return ABSENT
    for unit, factor in (("µs", 1e3), ("ms", 1.0), ("s", 1e-3)):
        value = ms * factor
        if value < 999.95 or unit == "s":
            digits = 2 if value < 99.995 else 1
            return f"{value:.{digits}f} {unit}"
    raise AssertionError


def format_share(share: float | None, digits: int = 1) -> str:
    return ABSENT if share is None else f"{share * 100:.{digits}f}%"


def format_bytes(count: float) -> str:
    """A size in binary units, in three significant digits or more: `60.0 MiB`, `139.8 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def slug(text: str) -> str:
    """A text as the name of a file or folder: `NVIDIA H200` becomes `nvidia_h200`."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or "unknown"


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Escaped cells; the first column to the left, the others to the right."""
    align = [":--" if index == 0 else "--:" for index in range(len(headings))]
    heading, *cells = ([escaped(cell) for cell in row] for row in [headings, *rows])
    lines = [heading, align, *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def escaped(text: str) -> str:
    """Text that stays text: no table cell is broken, no markup is made."""
    text = one_line(text)
    # Most cells are figures, and looking is six times as fast as replacing.
    return _MARKUP.sub(r"\\\g<0>", text) if _MARKUP.search(text) else text


def sound(text: str) -> str:
    """Text that can be written as UTF-8: a lone surrogate, which JSON can hold, becomes a question mark."""
    return text if text.isascii() else text.encode("utf-8", errors="replace").decode()


def one_line(text: str) -> str:
    """Text without line ends and control characters, which could end a row or steer a terminal."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else " " for character in text)
