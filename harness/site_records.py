"""Which records of the results files can a site show, and what is wrong with the others?"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import stats, store
from harness.compare import measured_at, samples_ms
from harness.errors import InputError
from harness.records import Record, RecordError
from harness.store import BadLine


@dataclass
class Gathered:
    """Records in order of first appearance, and a sentence for each thing that was left out."""

    records: list[Record] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def gather(paths: Iterable[Path], workloads: Mapping[str, str | None]) -> Gathered:
    """Every usable record once, whichever files it is in.

    `workloads` are the names that are known, each with what is wrong with its file in a clause, or None.
    Raises `InputError` for a file that cannot be read, and for two records that contradict each other: those of
    one run that answer the same question differently.
    """
    found = Gathered()
    places: dict[tuple[object, ...], tuple[str, Record]] = {}
    for path in paths:
        numbered, bad = store.read_numbered(path, _usable)
        if not numbered and not bad:
            found.problems.append(f"{path}: holds no records")
        for number, record in numbered:
            if (fault := workloads.get(record.workload, "which is not known here")) is not None:
                bad.append(BadLine(path, number, f'it is of the workload "{record.workload}", {fault}'))
                continue
            place = f"{path}:{number}"
            before, held = places.setdefault((record.run_id, *record.identity), (place, record))
            if held is record:
                found.records.append(record)
            elif held != record:
                raise _contradiction(before, place, record)
        found.problems += _sentences(path, bad)
    return found


def _usable(line: bytes) -> Record:
    """A record that every page can show, as the file has it. Raises `RecordError`."""
    store.record_of(line)
    text = line.decode("utf-8", errors="replace")
    # Foreign writers may leave NaN and the like, which no JSON of a page can hold: absent is null.
    values = json.loads(text, strict=False, parse_constant=lambda _: None, parse_float=_finite)
    try:
        record = Record.from_line(json.dumps(values))
        measured_at(record)
        if record.latency_ms is not None:
            _agrees_with_its_samples(record, record.latency_ms)
    except InputError as error:
        raise RecordError(f"it {error.problem}; {error.remedy}") from None
    except RecursionError:
        raise RecordError("it nests too deeply to be a record") from None
    return record


def _agrees_with_its_samples(record: Record, latency_ms: float) -> None:
    """A page shows the latency beside figures that come from the samples. Raises `InputError`, `RecordError`."""
    median_ms = stats.median(samples_ms(record))
    if not math.isclose(latency_ms, median_ms, rel_tol=1e-6):
        raise RecordError(f"its latency is {latency_ms:g} ms and the median of its samples {median_ms:g} ms")


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _contradiction(before: str, place: str, record: Record) -> InputError:
    what = f"{record.kernel} on {record.case} of {record.workload}"
    problem = f"contradicts {before}: both are {what} in run {record.run_id[:12]}, and their content differs"
    return InputError(place, problem, "remove the one that was changed")


def _sentences(path: Path, bad: Iterable[BadLine]) -> Iterator[str]:
    """One for each different problem of a file, with the numbers of its lines."""
    numbers: dict[str, list[int]] = {}
    for line in sorted(bad, key=lambda line: line.number):
        numbers.setdefault(line.problem, []).append(line.number)
    for problem, (first, *more) in numbers.items():
        also = f" (so are {len(more)} more, for the same reason: lines {_ranges(more)})" if more else ""
        yield f"{BadLine(path, first, problem)}{also}"


def _ranges(numbers: Sequence[int]) -> str:
    """`2-5, 9` for 2, 3, 4, 5, 9."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    shown = [f"{low}-{high}" if high > low else str(low) for low, high in ranges[:8]]
    return ", ".join([*shown, "…"] if len(ranges) > 8 else shown)
