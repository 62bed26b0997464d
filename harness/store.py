"""Results files: JSON Lines that only ever grow.

A record is appended under a lock in one write, so several processes can share a file. A last line that
a crash cut off is never glued to the next record, and reading reports it instead of stopping at it.
"""

from __future__ import annotations

import codecs
import fcntl
import fnmatch
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, TypeVar

from harness.errors import InputError
from harness.records import Record, RecordError

T = TypeVar("T")

# A line of some 4 KB spans few pieces of this size; in pieces of the default 8 KB reading took three times as long.
_READ_BYTES = 1 << 20


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
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        os.close(descriptor)
    except OSError as error:
        raise InputError(f"--output {path}", f"cannot be written ({error.strerror})", "choose another path") from None
    if not regular:
        # A pipe or a device can be neither synced, nor read again, nor cut back after a failed write.
        raise InputError(f"--output {path}", "is no ordinary file", "choose another path, or print with --json")


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
            # Where even this fails, the torn line is told apart by the next append and by reading.
            with suppress(OSError):
                os.ftruncate(descriptor, end)
            raise
    finally:
        os.close(descriptor)


def keep(path: Path, record: Record) -> None:
    """As `append`, for one who measures. Raises `InputError`."""
    try:
        append(path, record)
    except OSError as error:
        problem = f"a record could not be written ({error.strerror})"
        remedy = "what was written before is whole; free space and go on with --resume"
        raise InputError(str(path), problem, remedy) from None


def read(path: Path) -> tuple[list[Record], list[BadLine]]:
    """All records of a file in order, and the lines that are none. Raises `InputError` if unreadable."""
    return read_as(path, record_of)


def read_whole(path: Path, patterns: Sequence[str] = ()) -> list[Record]:
    """The records of a file, of the cases that match (all for no patterns).

    Raises `InputError` for a file that cannot be read, a damaged line, or no records left.
    """
    records, bad = read(path)
    if bad:
        raise InputError(f"{bad[0].path}:{bad[0].number}", bad[0].problem, "remove the line, or measure again")
    kept = [r for r in records if not patterns or any(fnmatch.fnmatchcase(r.case, p) for p in patterns)]
    if not kept:
        raise InputError(str(path), "holds no records" if not records else "holds none of the cases", "give others")
    return kept


def record_of(line: bytes) -> Record:
    """Bad UTF-8 becomes replacement characters. Raises `RecordError`."""
    return Record.from_line(line.decode("utf-8", errors="replace"))


def read_as(path: Path, parse: Callable[[bytes], T]) -> tuple[list[T], list[BadLine]]:
    """As `read`, with what `parse` makes of each line; it raises `RecordError` for a bad one."""
    found, bad = read_numbered(path, parse)
    return [value for _, value in found], bad


def read_numbered(path: Path, parse: Callable[[bytes], T]) -> tuple[list[tuple[int, T]], list[BadLine]]:
    """As `read_as`, with the number of each line."""
    found: list[tuple[int, T]] = []
    bad: list[BadLine] = []
    try:
        for number, line in _lines(path):
            try:
                found.append((number, parse(line)))
            except RecordError as error:
                bad.append(BadLine(path, number, str(error)))
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})", "give a results file") from None
    return found, bad


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines that are not blank, without a byte order mark (of an editor, or of files joined)."""
    # Bytes, because text mode splits at more than newlines in some readers and stops at bad UTF-8.
    with path.open("rb", buffering=_READ_BYTES) as file:
        for number, raw in enumerate(file, start=1):
            line = raw.removeprefix(codecs.BOM_UTF8)
            if line and not line.isspace():
                yield number, line


class Dated(Protocol):
    """What `newest` looks at."""

    @property
    def time(self) -> str: ...

    @property
    def status(self) -> str: ...

    @property
    def latency_ms(self) -> float | None: ...

    @property
    def identity(self) -> tuple[object, ...]: ...


D = TypeVar("D", bound=Dated)


def newest(records: Iterable[D]) -> list[D]:
    """One record per identity, in order of first appearance: the latest one, of equal times the last given."""
    latest: dict[tuple[object, ...], D] = {}
    for record in records:
        held = latest.setdefault(record.identity, record)
        # A later check, which has no latency, does not take a measurement back.
        only_checked = record.status == "PASSED" and record.latency_ms is None and held.latency_ms is not None
        if held is not record and not only_checked and _instant(record.time) >= _instant(held.time):
            latest[record.identity] = record
    return list(latest.values())


def _instant(time: str) -> datetime:
    """A time without zone counts as UTC; what is no time counts as the oldest."""
    try:
        found = datetime.fromisoformat(time)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return found if found.tzinfo else found.replace(tzinfo=UTC)
