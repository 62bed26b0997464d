"""Processes that take turns: of all that name the same file, one at a time is within."""

from __future__ import annotations

import fcntl
from pathlib import Path
from types import TracebackType


class Turn:
    """Use as a context manager, as often as wanted, in one thread of each process.

    A process that ends within gives its turn up, however it ends; processes that it started never have it.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")  # not inherited over exec, so a worker does not hold it

    def __enter__(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)
