"""What do figures look like on a plane with logarithmic axes? Positions for an SVG; the template writes it.

Everything is a class of the style sheet, so a drawing follows dark mode and print, and needs no inline style.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from harness.stats import geometric_mean

WIDTH, HEIGHT = 560, 380
LEFT, RIGHT, TOP, BOTTOM = 78, 14, 30, 50
# More labels than these beside an axis run into each other.
MOST_TICKS = 8
# Paths around (0, 0) for the marks, in the order of the looks that use them.
MARKS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "M-3.6-3.6h7.2v7.2h-7.2z",
    "M0-5L4.8 3.8h-9.6z",
    "M0-5.2L5.2 0L0 5.2L-5.2 0z",
    "M0 5L4.8-3.8h-9.6z",
    "M-1.5-5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z",
)


@dataclass(frozen=True)
class Point:
    """A figure at a place; `label` says it in words."""

    x: float
    y: float
    label: str


@dataclass(frozen=True)
class Series:
    """Points of one thing. `look` is a class of the style sheet, `mark` one of `MARKS`; None draws no marks."""

    name: str
    look: str
    points: Sequence[Point]
    line: bool = True
    mark: int | None = None

    @property
    def mark_path(self) -> str | None:
        return None if self.mark is None else MARKS[self.mark % len(MARKS)]


@dataclass(frozen=True)
class Chart:
    """What is drawn over what. Texts of ticks are made by `x_text` and `y_text`."""

    id: str
    title: str
    description: str
    x_label: str
    y_label: str
    x_text: Callable[[float], str]
    y_text: Callable[[float], str]
    series: Sequence[Series]


@dataclass(frozen=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True)
class Drawn:
    """A series in the drawing's own units."""

    series: Series
    path: str
    marks: Sequence[tuple[float, float, str]]


@dataclass(frozen=True)
class Drawing:
    chart: Chart
    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    drawn: Sequence[Drawn]


@dataclass(frozen=True)
class _Axis:
    """Values from `low` to `high` along the drawing from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.start + share * (self.end - self.start), 1)


def draw(chart: Chart) -> Drawing | None:
    """Where everything goes; None when there is nothing to draw. Values that are not above zero are left out."""
    series = [(one, [p for p in one.points if _drawable(p.x) and _drawable(p.y)]) for one in chart.series]
    series = [(one, points) for one, points in series if points]
    if not series:
        return None
    xs, ys = ([getattr(p, name) for _, points in series for p in points] for name in ("x", "y"))
    x_axis = _Axis(*_reach(xs), LEFT, WIDTH - RIGHT)
    y_axis = _Axis(*_reach(ys), HEIGHT - BOTTOM, TOP)
    drawn = []
    for one, points in series:
        at = [(x_axis.at(p.x), y_axis.at(p.y), p.label) for p in points]
        drawn.append(Drawn(one, _path(points, x_axis, y_axis) if one.line else "", at if one.mark is not None else []))
    return Drawing(
        chart,
        WIDTH,
        HEIGHT,
        LEFT,
        WIDTH - RIGHT,
        TOP,
        HEIGHT - BOTTOM,
        [Tick(x_axis.at(value), chart.x_text(value)) for value in ticks(x_axis.low, x_axis.high)],
        [Tick(y_axis.at(value), chart.y_text(value)) for value in ticks(y_axis.low, y_axis.high)],
        drawn,
    )


def _drawable(value: float) -> bool:
    """Whether a value has a logarithm, and none so far out that arithmetic with it overflows."""
    return 1e-100 < value < 1e100


def _reach(values: Sequence[float]) -> tuple[float, float]:
    """A little more than the values take, so that no mark is cut off."""
    low, high = min(values), max(values)
    room = max(1.15, (high / low) ** 0.04)
    return low / room, high * room


def _path(points: Sequence[Point], x_axis: _Axis, y_axis: _Axis) -> str:
    """From left to right; through the geometric mean where several points share a place."""
    by_x: dict[float, list[float]] = {}
    for point in points:
        by_x.setdefault(point.x, []).append(point.y)
    steps = [f"{x_axis.at(x)} {y_axis.at(geometric_mean(by_x[x]))}" for x in sorted(by_x)]
    return "M" + "L".join(steps)


def ticks(low: float, high: float) -> list[float]:
    """Round values between `low` and `high`, as many as are well told apart."""
    if high < 5 * low:
        return _even(low, high)
    for steps, every in (((1, 2, 5), 1), ((1, 3), 1), ((1,), 1), ((1,), 2), ((1,), 3), ((1,), 5)):
        found = list(_rounds(low, high, steps, every))
        if len(found) <= MOST_TICKS:
            return found
    return [low, high]


def _rounds(low: float, high: float, steps: Sequence[int], every: int) -> Iterator[float]:
    for decade in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        if decade % every == 0:
            yield from (step * 10.0**decade for step in steps if low <= step * 10.0**decade <= high)


def _even(low: float, high: float) -> list[float]:
    """At even distances, where powers of ten are too far apart."""
    least = (high - low) / (MOST_TICKS - 1)
    decade = 10.0 ** math.floor(math.log10(least))
    step = next(factor * decade for factor in (1, 2, 5, 10) if factor * decade >= least)
    found = (index * step for index in range(math.ceil(low / step), math.floor(high / step) + 1))
    return [float(f"{value:.6g}") for value in found]
