"""What is known after a case has run: one record, one line of JSON.

Absent is null, never 0. Raw samples are kept and everything else can be derived from them. Fields that
this version does not know are kept on reading and written back.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from operator import attrgetter
from typing import Any

SCHEMA = 1

Migration = Callable[[dict[str, Any]], dict[str, Any]]

# MIGRATIONS[N] makes the values of a line of schema N those of schema N + 1. None is ever removed, so every
# file that a version wrote opens for ever; tests/data/ holds one file for each schema.
MIGRATIONS: dict[int, Migration] = {}


class Status(StrEnum):
    """How a case ended. Every one but PASSED comes with a reason of one sentence."""

    PASSED = "PASSED"
    INCORRECT_SHAPE = "INCORRECT_SHAPE"
    INCORRECT_DTYPE = "INCORRECT_DTYPE"
    INCORRECT_NUMERICAL = "INCORRECT_NUMERICAL"
    RUNTIME_ERROR = "RUNTIME_ERROR"
    COMPILE_ERROR = "COMPILE_ERROR"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    TIMEOUT = "TIMEOUT"
    REWARD_HACK = "REWARD_HACK"
    INVALID_REFERENCE = "INVALID_REFERENCE"
    SKIPPED = "SKIPPED"

    @property
    def failed(self) -> bool:
        return self not in (Status.PASSED, Status.SKIPPED)


# What a record's question was: everything that shows which measurement it is, but not when it was made.
identity_of: Callable[[object], tuple[object, ...]] = attrgetter(
    "workload",
    "workload_sha256",
    "case",
    "scale",
    "kernel",
    "kernel_sha256",
    "device",
    "protocol",
    "protocol_sha256",
    "seed",
)


def number(value: object) -> float | None:
    """A finite number; None for anything else that may stand where one belongs."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:
        return None
    return float(value)


class RecordError(ValueError):
    """A line is not a record that this version can read; the message says why."""


@dataclass(frozen=True)
class Record:
    """One kernel on one case. Field by field in docs/records.md."""

    run_id: str
    time: str
    workload: str
    workload_sha256: str
    case: str
    axes: Mapping[str, int]
    scale: int
    kernel: str
    kernel_sha256: str | None
    author: str | None
    source: str | None
    license: str | None
    device: str
    environment: Mapping[str, Any]
    protocol: str
    protocol_sha256: str
    seed: int
    status: Status
    reason: str | None
    latency_ms: float | None
    backend: str | None
    timings: Mapping[str, Mapping[str, Any]]
    correctness: Mapping[str, Any] | None
    sol: Mapping[str, Any] | None
    memory: Mapping[str, Any] | None = None
    referee: Mapping[str, Any] | None = None
    remarks: tuple[str, ...] = ()
    log_tail: str | None = None
    schema: int = SCHEMA
    unknown_fields: Mapping[str, Any] = field(default_factory=dict)

    def to_line(self) -> str:
        """One line of JSON without its newline; whatever the texts contain, it stays one line."""
        values = asdict(self)
        unknown = values.pop("unknown_fields")
        # ASCII escapes keep U+2028 and the like from looking like line ends to other readers.
        return json.dumps({**unknown, **values}, ensure_ascii=True, allow_nan=False)

    @staticmethod
    def from_line(line: str) -> Record:
        """A record of any schema up to this version's. Raises `RecordError` for everything else."""
        try:
            # Not strict, because a foreign writer may leave NUL and other control characters bare in texts.
            values = json.loads(line, strict=False)
        except ValueError:
            raise RecordError("it is not JSON (a write that was cut off, perhaps)") from None
        except RecursionError:
            raise RecordError("it nests too deeply to be a record") from None
        if not isinstance(values, dict):
            raise RecordError("it is not a JSON object")
        schema = values.get("schema")
        if not isinstance(schema, int) or isinstance(schema, bool):
            raise RecordError("it has no schema number")
        if schema > SCHEMA:
            raise RecordError(f"it has schema {schema} and this version reads up to {SCHEMA}; update solbench")
        if schema < 1:
            raise RecordError(f"it has schema {schema}, and the first one is 1")
        values = _migrated(values, schema)
        known = {f.name: f for f in fields(Record) if f.name != "unknown_fields"}
        missing = sorted(name for name in _REQUIRED if name not in values)
        if missing:
            raise RecordError(f"it lacks {', '.join(missing)}")
        for name, kind in _KINDS.items():
            if name in values and not isinstance(values[name], kind):
                raise RecordError(f"{name} is {json.dumps(values[name])[:60]}, which is not what belongs there")
        try:
            values["status"] = Status(values["status"])
        except ValueError:
            raise RecordError(f"it has the unknown status {json.dumps(values['status'])[:60]}") from None
        latency = values["latency_ms"]
        if latency is not None and not (isinstance(latency, (int, float)) and 0 < latency <= sys.float_info.max):
            raise RecordError(f"latency_ms is {latency}, which is no latency")
        values["remarks"] = tuple(values.get("remarks") or ())
        unknown = {name: values.pop(name) for name in list(values) if name not in known}
        return Record(**values, unknown_fields=unknown)

    @property
    def identity(self) -> tuple[object, ...]:
        """Records with the same identity answer the same question; the newest one counts."""
        return identity_of(self)


def _migrated(values: dict[str, Any], schema: int) -> dict[str, Any]:
    for number in range(schema, SCHEMA):
        try:
            values = MIGRATIONS[number](values)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise RecordError(f"it does not hold what a record of schema {number} holds") from None
    return {**values, "schema": SCHEMA}


_REQUIRED = [
    f.name for f in fields(Record) if f.name not in ("unknown_fields", "memory", "referee", "remarks", "log_tail")
]
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "run_id": str,
    "time": str,
    "workload": str,
    "workload_sha256": str,
    "case": str,
    "axes": dict,
    "scale": int,
    "kernel": str,
    "kernel_sha256": (str, type(None)),
    "author": (str, type(None)),
    "source": (str, type(None)),
    "license": (str, type(None)),
    "device": str,
    "environment": dict,
    "protocol": str,
    "protocol_sha256": str,
    "seed": int,
    "status": str,
    "reason": (str, type(None)),
    "backend": (str, type(None)),
    "timings": dict,
    "correctness": (dict, type(None)),
    "sol": (dict, type(None)),
    "remarks": (list, type(None)),
}
