"""What runs now, how many of how many, and how long will it take?"""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from harness.records import Record
from harness.text import format_ms


class Progress:
    """A bar where there is a terminal, and a line for each that is done where there is none.

    It is what a runner tells what happens (`runner.Observer`).
    """

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total, self._count = console, total, 0
        self._live = console.is_terminal
        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            disable=not self._live,
            # The estimate looks back over many cases, because their lengths differ.
            speed_estimate_period=3600,
        )
        self._task = self._bar.add_task("", total=total)
        self._label = ""

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, kernel: str, workload: str, case: str) -> None:
        self._label = f"{workload.partition('_')[0]} {kernel} {case}"
        self._bar.update(self._task, description=self._label)

    def stage(self, text: str) -> None:
        self._bar.update(self._task, description=f"{self._label} {text}"[:44])

    def skipped(self) -> None:
        self._count += 1
        self._bar.advance(self._task)

    def done(self, record: Record) -> None:
        found = format_ms(record.latency_ms) if record.latency_ms is not None else record.reason or ""
        self.ended(self._label, f"{record.status.value} {found}")

    def ended(self, label: str, text: str) -> None:
        """One of them is done; where nobody sees the bar, a line says what came of it."""
        self.skipped()
        if not self._live:
            self._console.print(f"[{self._count}/{self._total}] {label}: {text}", markup=False)
