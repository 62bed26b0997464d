"""What is a table on a page? Cells with what is shown, and what they are sorted by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class Cell:
    """`value` is what sorting goes by; None sorts last. `link` is relative; `mark` is a class of the style sheet."""

    text: str
    value: float | str | None = None
    link: str | None = None
    mark: str | None = None


@dataclass(frozen=True)
class Table:
    """Rows under headings.

    key: the column that names a row and stays in sight. filter: what its filter is called, where it has one.
    hides: the columns that a reader may hide, as a range of indices.
    """

    id: str
    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    key: int = 0
    filter: str | None = None
    hides: range = field(default=range(0))

    @cached_property
    def numeric(self) -> Sequence[bool]:
        """For each column whether it holds numbers, which stand to the right."""
        return [_numeric(row[index] for row in self.rows) for index in range(len(self.headings))]


def _numeric(cells: Iterable[Cell]) -> bool:
    values = [cell.value for cell in cells]
    return any(value is not None for value in values) and not any(isinstance(value, str) for value in values)


def texts(value: str | None) -> Cell:
    """A cell that is sorted by its text; None is shown as absent and sorts last."""
    return Cell(value or "–", value.casefold() if value else None)


def of_texts(id: str, caption: str, rows: Sequence[Mapping[str, str]]) -> Table:
    """A table of texts by heading, as terminals show them."""
    return Table(id, caption, list(rows[0]) if rows else [], [[Cell(text) for text in row.values()] for row in rows])
