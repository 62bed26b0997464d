"""Boards as people and programs read them."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from harness.leaderboard import Board, Row, Trust, history, why_apart
from harness.text import ABSENT, escaped, format_ms, format_share, markdown_table

# What fits 80 columns; the other forms have all of them.
NARROW = ("#", "implementation", "mean latency", "% SOL", "roofline", "to first", "trust", "observed")
HEADINGS = (*NARROW[:-1], "source", "license", "observed")
TRUST_LEGEND = (
    "reported: a source says so, not reproduced here. measured: by solbench, record kept. reproduced: runs of the "
    "same source on different days or machines agree within 2%. Roofline of published rows: geometric mean of the "
    "published bounds over the latency."
)


def cells(board: Board, row: Row) -> dict[str, str]:
    """One row's texts by heading."""
    return {
        "#": str(board.rank(row)),
        "implementation": row.implementation or "unnamed",
        "mean latency": format_ms(row.latency_ms),
        "% SOL": ABSENT if row.score is None else f"{row.score * 100:.{0 if row.trust is Trust.REPORTED else 1}f}",
        "roofline": format_share(row.roofline, 0),
        "to first": f"{board.ratio_to_first(row):.2f}×",
        "trust": row.trust.value,
        "source": row.source or "none known",
        "license": row.license or "unknown",
        "observed": row.observed,
    }


def title(board: Board) -> str:
    return f"{board.hardware} · {board.basis}"


def narrow_rows(board: Board) -> list[dict[str, str]]:
    """The rows for a terminal."""
    return [{heading: cells(board, row)[heading] for heading in NARROW} for row in board.rows]


def recipe_lines(board: Board) -> list[str]:
    """How to come by the implementations that say it, a line for each."""
    return [
        f"{row.implementation}: {row.recipe}; license {row.license or 'unknown'}; {row.source}"
        for row in board.rows
        if row.recipe
    ]


def notes(boards: Sequence[Board], left_out: Sequence[str]) -> list[str]:
    """What is to be said below the boards."""
    return [*filter(None, [why_apart(boards)]), TRUST_LEGEND, *(f"left out: {text}" for text in left_out)]


def markdown(boards: Sequence[Board], notes: Sequence[str]) -> str:
    blocks = []
    for board in boards:
        rows = [tuple(cells(board, row).values()) for row in board.rows]
        blocks += [f"### {escaped(title(board))}", markdown_table(HEADINGS, rows)]
        recipes = [f"- {escaped(row.implementation or '')}: `{row.recipe}`" for row in board.rows if row.recipe]
        if recipes:
            blocks.append("\n".join(recipes))
    blocks.append("\n".join(f"- {escaped(note)}" for note in notes))
    return "\n\n".join(blocks) + "\n"


def as_rows(boards: Sequence[Board], workload: str) -> list[dict[str, Any]]:
    """Flat rows with units in the names; absent is None."""
    return [
        {
            "workload": workload,
            "hardware": board.hardware,
            "basis": board.basis,
            "rank": board.rank(row),
            "implementation": row.implementation,
            "mean_latency_ms": row.latency_ms,
            "sol_score": row.score,
            "roofline": row.roofline,
            "ratio_to_first": board.ratio_to_first(row),
            "trust": row.trust.value,
            "source": row.source,
            "license": row.license,
            "observed": row.observed,
            "recipe": row.recipe,
        }
        for board in boards
        for row in board.rows
    ]


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def history_rows(board: Board) -> list[dict[str, Any]]:
    """How the record moved, oldest first, with the gain over the record before."""
    rows: list[dict[str, Any]] = []
    before: float | None = None
    for observed, row in history(board):
        gain = ABSENT if before is None else f"{(1 - row.latency_ms / before) * 100:.1f}%"
        rows.append(
            {
                "observed": observed,
                "record": format_ms(row.latency_ms),
                "gain": gain,
                "implementation": row.implementation or "unnamed",
            }
        )
        before = row.latency_ms
    return rows
