"""Results files: JSON Lines that only ever grow.

A record is appended under a lock in one write, so several processes can share a file. A last line that
a crash cut off is never glued to the next record, and reading reports it instead of stopping at it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.errors import InputError
from harness.records import Record, RecordError


@dataclass(frozen=True)
class BadLine:
    """A line that is not a record: where it is and what is wrong with it."""

    path: Path
    number: int
    problem: str

    def __str__(self) -> str:
        return f"{self.path}:{self.number}: left out: {self.problem}"


def prepare(path: Path) -> None:
    """Make sure that `path` can be appended to, before anything is measured. Raises `InputError`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644))
    except OSError as error:
        raise InputError(f"--output {path}", f"cannot be written ({error.strerror})", "choose another path") from None


def append(path: Path, record: Record) -> None:
    """Add one record, durably. Raises `OSError` (disk full, say); what was there before stays whole."""
    line = record.to_line().encode() + b"\n"
    # O_APPEND alone does not keep writes of hundreds of kilobytes apart; the lock does.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        end = os.fstat(descriptor).st_size
        if end and os.pread(descriptor, 1, end - 1) != b"\n":
            line = b"\n" + line
        view = memoryview(line)
        try:
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, end)
            raise
    finally:
        os.close(descriptor)


def read(path: Path) -> tuple[list[Record], list[BadLine]]:
    """All records of a file in order, and the lines that are none. Raises `InputError` if unreadable."""
    records: list[Record] = []
    bad: list[BadLine] = []
    try:
        for number, text in _lines(path):
            try:
                records.append(Record.from_line(text))
            except RecordError as error:
                bad.append(BadLine(path, number, str(error)))
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})", "give a results file") from None
    return records, bad


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    # Bytes, because text mode splits at more than newlines in some readers and stops at bad UTF-8.
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if raw.strip():
                yield number, raw.decode("utf-8", errors="replace")


def newest(records: list[Record]) -> list[Record]:
    """One record per identity, the last one written, in order of first appearance."""
    latest: dict[tuple[object, ...], Record] = {}
    for record in records:
        latest[record.identity] = record
    return list(latest.values())
