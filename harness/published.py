"""The leaderboards that others publish, as data: `results/published/WORKLOAD.yaml`."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from harness.errors import InputError
from harness.spec import Count, Name, Positive, Share, Strict, Text, Whole, read_model


def _date(value: object) -> date:
    if isinstance(value, date):
        return value
    try:
        return date.fromisoformat(str(value))
    except ValueError:
        raise ValueError(f'"{value}" is no date; write one such as 2026-07-14') from None


class RowModel(Strict):
    """One published record. `score` is the page's "% SOL" over 100; absent texts are unknown."""

    rank: Count
    implementation: Text | None
    latency_ms: Positive
    score: Share
    ratio_to_first: Positive
    observed: Annotated[date, BeforeValidator(_date)]
    source: Text | None = None
    license: Text | None = None


class BoardModel(Strict):
    """Records that were measured alike and are ranked together."""

    hardware: Text
    environment: Text
    protocol: Text
    statistic: Text
    trust: Literal["reported"]
    rows: Annotated[list[RowModel], Field(min_length=1)]


class AggregateModel(Strict):
    """The best known of one hardware and environment, and how many runs there are."""

    hardware: Text
    environment: Text
    best_ms: Positive
    implementation: Text | None
    runs: Count


class ImplementationModel(Strict):
    """The fastest latency of one run, whatever its environment."""

    implementation: Text | None
    best_ms: Positive
    ratio_to_first: Positive


class PublishedModel(Strict):
    """Everything that a leaderboard's page shows of one workload."""

    schema_: Annotated[Whole, Field(alias="schema", ge=1, le=1)]
    workload: Name
    source: Text
    notes: Annotated[list[Text], Field(default_factory=list)]
    aggregates: Annotated[list[AggregateModel], Field(default_factory=list)]
    implementations: Annotated[list[ImplementationModel], Field(default_factory=list)]
    boards: Annotated[list[BoardModel], Field(min_length=1)]


def load(roots: list[Path], workload: str) -> PublishedModel | None:
    """The published records of a workload from the first root that has them; None where none has.

    Raises `InputError` for a faulty file, or one that is about another workload.
    """
    for root in roots:
        path = root / "results" / "published" / f"{workload}.yaml"
        if path.is_file():
            model, document = read_model(path, PublishedModel)
            if model.workload != workload:
                place = f"{document.place(('workload',))}: workload"
                raise InputError(place, f'"{model.workload}" is not the file\'s name', f"write {workload}")
            return model
    return None
