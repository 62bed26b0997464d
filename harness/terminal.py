"""What do records look like in a terminal? Plain texts, as wide as the terminal, coloured where it has colours.

Written without rich's tables, which take most of a minute for a hundred thousand rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest

from rich.cells import cell_len, chop_cells

from harness.figures import Figures
from harness.records import Status
from harness.report import COLUMNS, LEGEND, SUMMARY_HEADINGS, groups, reasons, summary_row
from harness.text import one_line

BOLD, DIM, RED, YELLOW = "1", "2", "31", "33"  # parameters of the escape sequence "select graphic rendition"
GAP = 2
NARROWEST = 8

Paint = Callable[[str, str], str]


def terminal(records: Iterable[Figures], width: int, colour: bool) -> str:
    """Per kernel a table of its cases, per group a summary; from 80 columns on, no line is wider than `width`."""
    paint = _painted if colour else _plain
    lines: list[str] = []
    for group in groups(records):
        kernels = group.by_kernel()
        lines += ["", *_paragraph(group.title, width, paint, BOLD)]
        rows = {name: [_texts(record) for record in members] for name, members in kernels.items()}
        table = _Table([column.heading for column in COLUMNS], [row for of in rows.values() for row in of], 2, width)
        head = table.head(paint)
        for name, members in kernels.items():
            prefix = ""
            if all(record.status is Status.SKIPPED for record in members):
                prefix = f"{name}: "
            else:
                lines += [*_paragraph(name, width, paint, BOLD), *head]
                for record, row in zip(members, rows[name], strict=True):
                    lines += table.body(row, paint, _style(record))
                lines.append("")
            for line in reasons(members):
                lines += _paragraph(prefix + line, width, paint, YELLOW)
        summaries = [[one_line(cell) for cell in summary_row(name, members)] for name, members in kernels.items()]
        table = _Table(SUMMARY_HEADINGS, summaries, 1, width)
        lines += [*_paragraph("summary", width, paint, BOLD), *table.head(paint)]
        for row in summaries:
            lines += table.body(row, paint, None)
        lines.append("")
        for line in group.notes:
            lines += _paragraph(line, width, paint, DIM)
    if lines:
        for line in LEGEND:
            lines += _paragraph(line, width, paint, DIM)
    return "\n".join([*lines, ""])


def _texts(record: Figures) -> list[str]:
    return [one_line(column.text(record)) for column in COLUMNS]


def _style(record: Figures) -> str | None:
    return RED if record.status.failed else DIM if record.status is Status.SKIPPED else None


def _painted(text: str, style: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m"


def _plain(text: str, style: str) -> str:
    return text


class _Table:
    """Rows under headings; the first `left` columns stand to the left and fold where the width is too small."""

    def __init__(self, headings: Sequence[str], rows: Sequence[Sequence[str]], left: int, width: int) -> None:
        self._headings, self._left = headings, left
        self._widths = [max(map(_cells, column)) for column in zip(headings, *rows, strict=True)]
        while (excess := self._width - width) > 0:
            widest = max(range(left), key=lambda index: self._widths[index])
            if self._widths[widest] <= NARROWEST:
                break
            self._widths[widest] = max(self._widths[widest] - excess, NARROWEST)

    @property
    def _width(self) -> int:
        return 1 + sum(self._widths) + GAP * (len(self._widths) - 1)

    def head(self, paint: Paint) -> list[str]:
        return [*self.body(self._headings, paint, BOLD), " " + "─" * (self._width - 1)]

    def body(self, row: Sequence[str], paint: Paint, style: str | None) -> list[str]:
        """One line, or several where a cell of the first columns is too long."""
        lines = []
        if all(_cells(row[index]) <= self._widths[index] for index in range(self._left)):
            lines.append(self._line(row))
        else:
            pieces = [chop_cells(row[index], self._widths[index]) for index in range(self._left)]
            rest = row[self._left :]
            for folded in zip_longest(*pieces, fillvalue=""):
                lines.append(self._line([*folded, *rest]))
                rest = [""] * len(rest)
        return [paint(line, style) for line in lines] if style else lines

    def _line(self, row: Sequence[str]) -> str:
        cells = []
        for index, (cell, width) in enumerate(zip(row, self._widths, strict=True)):
            fill = width if cell.isascii() else width - _cells(cell) + len(cell)
            cells.append(cell.ljust(fill) if index < self._left else cell.rjust(fill))
        return (" " + (" " * GAP).join(cells)).rstrip()


def _paragraph(text: str, width: int, paint: Paint, style: str) -> Iterator[str]:
    """Lines of a text, broken at spaces where it is wider than `width`."""
    text = one_line(text)
    while _cells(text) > width:
        head = chop_cells(text, width)[0]
        if text[len(head)] != " " and " " in head.strip():
            head = head[: head.rindex(" ")]
        yield paint(head.rstrip(), style)
        text = text[len(head) :].lstrip()
    yield paint(text, style)


def _cells(text: str) -> int:
    """How many character cells of a terminal a text takes; wide characters take two."""
    return len(text) if text.isascii() else cell_len(text)
