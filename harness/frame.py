"""What do records look like to programs? Tidy rows: a pandas data frame, CSV, JSON Lines.

One row per record. docs/records.md lists the columns; units are in their names.
"""

from __future__ import annotations

import csv
import glob
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from harness import figures, store
from harness.errors import InputError
from harness.figures import Figures

# pandas is slow to import, and CSV and JSON do without it.
if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "workload",
    "case",
    "scale",
    "kernel",
    "device",
    "protocol",
    "seed",
    "status",
    "reason",
    "backend",
    "latency_ms",
    "ci95_low_ms",
    "ci95_high_ms",
    "relative_iqr",
    "iterations",
    "ended_by",
    "flops",
    "bytes_moved",
    "bound_ms",
    "limit",
    "published_bound_ms",
    "baseline_ms",
    "roofline",
    "sol_score",
    "rounds",
    "worst_norm_rel_error",
    "worker_peak_bytes",
    "torch",
    "triton",
    "time",
    "run_id",
    "workload_sha256",
    "kernel_sha256",
    "protocol_sha256",
)
WHOLE = {"scale", "seed", "iterations", "flops", "bytes_moved", "rounds", "worker_peak_bytes"}
FRACTIONAL = {
    "latency_ms",
    "ci95_low_ms",
    "ci95_high_ms",
    "relative_iqr",
    "bound_ms",
    "published_bound_ms",
    "baseline_ms",
    "roofline",
    "sol_score",
    "worst_norm_rel_error",
}

_row = attrgetter(*COLUMNS)

Results = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def load(results: Results, keep: Literal["newest", "all"] = "newest") -> pd.DataFrame:
    """The records of results files as a data frame; `harness.load` is this function.

    `results` is a path, a glob (`**` for folders at any depth), or several of them. `keep="newest"` leaves
    out records that a later one of the same question replaces. Lines that are no records are left out with
    a warning each. Raises `InputError` where nothing matches or a file cannot be read.
    """
    if keep not in ("newest", "all"):
        raise InputError("keep", f'"{keep}" is not known', 'give "newest" or "all"')
    found, bad = figures.read(_files(results))
    for line in bad:
        warnings.warn(str(line), stacklevel=3)  # at the line that called harness.load
    return frame(figures.with_baselines(store.newest(found) if keep == "newest" else found))


def _files(results: Results) -> list[Path]:
    """Each file once, in the order given and by name within a glob. Raises `InputError` for none."""
    patterns = [results] if isinstance(results, (str, os.PathLike)) else list(results)
    files: dict[Path, None] = {}
    for given in patterns:
        pattern = os.fspath(given)
        # A path that is there is meant as it is written, whatever brackets it has.
        names = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
        matched = [Path(name) for name in names if not os.path.isdir(name)]
        if not matched:
            remedy = f'give a results file or a glob such as "{os.path.join(pattern, "**", "*.jsonl")}"'
            if not os.path.isdir(pattern):
                remedy = 'give a results file or a glob such as "results/**/*.jsonl"'
            raise InputError(pattern, "matches no file", remedy)
        files |= dict.fromkeys(matched)
    if not files:
        raise InputError("results", "names no file", 'give a results file or a glob such as "results/**/*.jsonl"')
    return list(files)


def frame(records: Sequence[Figures]) -> pd.DataFrame:
    """Times in ms, shares from 0 to 1, sizes in bytes; absent values are missing, never 0."""
    import pandas as pd

    columns = {}
    for name in COLUMNS:
        values = [getattr(record, name) for record in records]
        if name == "status":
            values = [status.value for status in values]
        if name in FRACTIONAL:
            columns[name] = pd.Series(values, dtype="float64")
        elif name in WHOLE and all(value is None or abs(value) < 2**63 for value in values):
            columns[name] = pd.Series(values, dtype="Int64")  # whole, though some may be missing
        else:
            columns[name] = pd.Series(values, dtype="string")
    return pd.DataFrame(columns)


class _Echo:
    """A file for `csv.writer` that hands each line back instead of keeping it."""

    def write(self, line: str) -> str:
        # The writer quotes a carriage return only where it is part of its own line ends (before Python 3.13).
        return line.removesuffix("\r\n") + "\n"


def csv_lines(records: Iterable[Figures]) -> Iterator[str]:
    """A line of column names, then one line per record; absent is empty."""
    writer = csv.writer(_Echo(), lineterminator="\r\n")
    yield writer.writerow(COLUMNS)  # writerow returns what write returned
    for record in records:
        yield writer.writerow(_row(record))


def json_lines(records: Iterable[Figures]) -> Iterator[str]:
    """One JSON object per record and line; absent is null."""
    encode = msgspec.json.Encoder().encode
    for record in records:
        line = encode(dict(zip(COLUMNS, _row(record), strict=True))).decode()
        if not line.isascii():
            # Legal bare in JSON, but line ends to some readers.
            for character in ("\x85", "\u2028", "\u2029"):
                line = line.replace(character, f"\\u{ord(character):04x}")
        yield line + "\n"
