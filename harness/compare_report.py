"""Comparisons as people and programs read them: terminal, Markdown, JSON, plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.compare import CaseComparison, Criteria, Place, SuiteComparison
from harness.comparison import LogRatio
from harness.errors import InputError
from harness.text import ABSENT, escaped, format_ms, markdown_table

if TYPE_CHECKING:
    from rich.console import RenderableType

HEADINGS = ("case", "A", "B", "B/A", "interval", "verdict")


def format_ratio(ratio: LogRatio | None) -> str:
    return ABSENT if ratio is None else f"{ratio.ratio:.3f}"


def format_interval(ratio: LogRatio | None, confidence: float) -> str:
    if ratio is None:
        return ABSENT
    low, high = ratio.interval(confidence)
    return "unknown" if high == math.inf else f"{low:.3f} to {high:.3f}"


def _with_interval(ms: float, interval: tuple[float, float] | None) -> str:
    if interval is None:
        return format_ms(ms)
    reach = max(ms - interval[0], interval[1] - ms) / ms
    return f"{format_ms(ms)} ±{reach * 100:.1f}%"


def rows(suite: SuiteComparison, criteria: Criteria) -> list[tuple[str, ...]]:
    """One row for each compared case, and one for the suite."""
    cases = [
        (
            c.case,
            _with_interval(c.a_ms, c.a_interval_ms),
            _with_interval(c.b_ms, c.b_interval_ms),
            format_ratio(c.ratio),
            format_interval(c.ratio, criteria.confidence),
            c.verdict.value,
        )
        for c in suite.cases
    ]
    verdict = suite.verdict.value if suite.verdict else ABSENT
    interval = format_interval(suite.ratio, criteria.confidence)
    means = format_ms(suite.a_mean_ms), format_ms(suite.b_mean_ms)
    return [*cases, ("geo. mean", *means, format_ratio(suite.ratio), interval, verdict)]


def notes(suite: SuiteComparison) -> list[str]:
    """The cases that are not in the table, each group with its reason."""
    lines = []
    if suite.only_a:
        lines.append(f"only A has {', '.join(suite.only_a)}")
    if suite.only_b:
        lines.append(f"only B has {', '.join(suite.only_b)}")
    lines += [f"{case}: {why}" for case, why in suite.unmeasured.items()]
    return lines


def legend(criteria: Criteria) -> str:
    return (
        f"B/A: ratio of median latencies, above 1 when B is slower, with its {criteria.confidence:.0%} interval. "
        f"A change is called one when the interval leaves 1 out and it is larger than {criteria.least_effect:.1%}; "
        "± is the 95% interval of a median."
    )


def title(suite: SuiteComparison) -> str:
    return f"{suite.workload}: A = {suite.kernel_a}, B = {suite.kernel_b}"


def terminal(suites: Sequence[SuiteComparison], alone: Sequence[str], criteria: Criteria) -> list[RenderableType]:
    """Tables that fit 80 columns."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    colours = {"slower": "red", "faster": "green", "inconclusive": "yellow"}
    parts: list[RenderableType] = []
    for suite in suites:
        table = Table(box=box.SIMPLE_HEAD, title=title(suite), title_justify="left", padding=(0, 1), pad_edge=False)
        for heading in HEADINGS:
            table.add_column(heading, justify="left" if heading in ("case", "verdict") else "right")
        for row in rows(suite, criteria):
            table.add_row(*map(Text, row), style=colours.get(row[-1]), end_section=False)
        parts.append(table)
        parts += [Text(line, style="yellow") for line in notes(suite)]
    parts += [Text(line, style="yellow") for line in alone]
    parts.append(Text(legend(criteria), style="dim"))
    return parts


def markdown(suites: Sequence[SuiteComparison], alone: Sequence[str], criteria: Criteria) -> str:
    """For a pull request."""
    blocks: list[str] = []
    for suite in suites:
        blocks.append(f"### {escaped(title(suite))}")
        blocks.append(markdown_table(HEADINGS, rows(suite, criteria)))
        if lines := notes(suite):
            blocks.append("\n".join(f"- {escaped(line)}" for line in lines))
    if alone:
        blocks.append("\n".join(f"- {escaped(line)}" for line in alone))
    blocks.append(escaped(legend(criteria)))
    return "\n\n".join(blocks) + "\n"


def _ratio_json(ratio: LogRatio | None, criteria: Criteria) -> dict[str, Any] | None:
    if ratio is None:
        return None
    low, high = ratio.interval(criteria.confidence)
    bounded = high != math.inf
    return {"ratio": ratio.ratio, "interval": [low, high] if bounded else None, "confidence": criteria.confidence}


def as_json(suite: SuiteComparison, criteria: Criteria) -> dict[str, Any]:
    """For programs; latencies in ms, absent is null."""

    def case_json(c: CaseComparison) -> dict[str, Any]:
        return {
            "case": c.case,
            "a_ms": c.a_ms,
            "b_ms": c.b_ms,
            "a_ci95_ms": c.a_interval_ms,
            "b_ci95_ms": c.b_interval_ms,
            "samples": c.samples,
            "b_over_a": _ratio_json(c.ratio, criteria),
            "verdict": c.verdict.value,
        }

    return {
        "workload": suite.workload,
        "kernel_a": suite.kernel_a,
        "kernel_b": suite.kernel_b,
        "cases": [case_json(c) for c in suite.cases],
        "only_a": list(suite.only_a),
        "only_b": list(suite.only_b),
        "unmeasured": dict(suite.unmeasured),
        "a_mean_ms": suite.a_mean_ms,
        "b_mean_ms": suite.b_mean_ms,
        "b_over_a": _ratio_json(suite.ratio, criteria),
        "verdict": suite.verdict.value if suite.verdict else None,
    }


RANKING_HEADINGS = ("rank", "kernel", "mean latency", "to first", "interval")


def ranking_rows(places: Sequence[Place], criteria: Criteria) -> list[tuple[str, ...]]:
    """Ties carry the same rank, with an equals sign."""
    ranks = [place.rank for place in places]
    return [
        (
            f"{place.rank}{'=' if ranks.count(place.rank) > 1 else ''}",
            place.kernel,
            format_ms(place.mean_ms),
            "1.000" if place.to_first is None else format_ratio(place.to_first),
            ABSENT if place.to_first is None else format_interval(place.to_first, criteria.confidence),
        )
        for place in places
    ]


def ranking_notes(left_out: Sequence[str]) -> list[str]:
    """What is to be said below a ranking in a terminal."""
    lines = ["Kernels of one rank (=) cannot be told apart at this confidence."]
    if left_out:
        lines.append(f"Left out, because not every kernel has them: {', '.join(left_out)}")
    return lines


def ranking_markdown(workload: str, places: Sequence[Place], criteria: Criteria) -> str:
    """For a pull request."""
    return f"### {escaped(workload)}\n\n{markdown_table(RANKING_HEADINGS, ranking_rows(places, criteria))}\n\n"


def ranking_as_json(workload: str, places: Sequence[Place]) -> list[dict[str, Any]]:
    """For programs, one row for each kernel."""
    return [
        {
            "workload": workload,
            "rank": place.rank,
            "kernel": place.kernel,
            "mean_ms": place.mean_ms,
            "to_first": place.to_first.ratio if place.to_first else 1.0,
        }
        for place in places
    ]


def plot(suites: Sequence[SuiteComparison], criteria: Criteria, path: Path) -> None:
    """Write a picture: ratio per case with intervals, and latency over the size of the case.

    Raises `InputError` without matplotlib, or for a path that cannot be written.
    """
    try:
        import matplotlib as mpl
    except ImportError:
        raise InputError("--plot", "needs matplotlib", "pip install 'solbench[plot]'") from None
    mpl.use("Agg")
    from matplotlib import pyplot

    height = sum(max(3.5, 0.3 * len(s.cases) + 1.5) for s in suites)
    figure, axes = pyplot.subplots(len(suites), 2, figsize=(11, height), squeeze=False, layout="constrained")
    for (left, right), suite in zip(axes, suites, strict=True):
        ordered = sorted(suite.cases, key=_tokens)
        for index, case in enumerate(ordered):
            low, high = case.ratio.interval(criteria.confidence)
            if high != math.inf:
                left.plot([low, high], [index, index], color="tab:blue")
            left.plot(case.ratio.ratio, index, "o", color="tab:blue")
        left.axvline(1, color="black", linewidth=0.8)
        left.axvspan(1 / (1 + criteria.least_effect), 1 + criteria.least_effect, color="black", alpha=0.08)
        left.set_yticks(range(len(ordered)), [c.case for c in ordered])
        left.set(xlabel=f"B/A with {criteria.confidence:.0%} interval (right of 1: B is slower)", title=title(suite))
        for label, times in (("A", [c.a_ms for c in ordered]), ("B", [c.b_ms for c in ordered])):
            right.plot(
                [_tokens(c) for c in ordered],
                times,
                "o-",
                label=f"{label} = {getattr(suite, f'kernel_{label.lower()}')}",
            )
        right.set(xscale="log", yscale="log", xlabel="tokens", ylabel="latency (ms)")
        right.legend()
        right.grid(visible=True, which="both", alpha=0.2)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise InputError(f"--plot {path}", f"cannot be written ({error})", "give a .png, .svg or .pdf path") from None
    finally:
        pyplot.close(figure)


def _tokens(case: CaseComparison) -> int:
    """The size that a case is drawn over: T where the workload has it, else the product of its axes."""
    return case.axes.get("T") or math.prod(case.axes.values())
