"""Records as a tidy data frame: one row per record, units in the column names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from harness.records import Record


def frame(records: Sequence[Record]) -> pd.DataFrame:
    """Times in ms, shares from 0 to 1, sizes in bytes; absent values are missing, never 0."""
    return pd.DataFrame([_row(record) for record in records])


def _row(record: Record) -> dict[str, Any]:
    sol, correctness = record.sol or {}, record.correctness or {}
    timing = record.timings.get(record.backend or "", {})
    outputs = (correctness.get("outputs") or {}).values()
    interval = timing.get("ci95_ms") or (None, None)
    errors = [o["norm_rel_error"] for o in outputs if o.get("norm_rel_error") is not None]
    return {
        "workload": record.workload,
        "case": record.case,
        "scale": record.scale,
        "kernel": record.kernel,
        "device": record.device,
        "protocol": record.protocol,
        "status": record.status.value,
        "reason": record.reason,
        "backend": record.backend,
        "latency_ms": record.latency_ms,
        "ci95_low_ms": interval[0],
        "ci95_high_ms": interval[1],
        "relative_iqr": timing.get("relative_iqr"),
        "iterations": timing.get("iterations"),
        "ended_by": timing.get("ended_by"),
        "bound_ms": sol.get("bound_ms"),
        "limit": sol.get("limit"),
        "published_bound_ms": sol.get("published_bound_ms"),
        "baseline_ms": sol.get("baseline_ms"),
        "roofline": sol.get("roofline"),
        "sol_score": sol.get("score"),
        "rounds": correctness.get("rounds"),
        "worst_norm_rel_error": max(errors, default=None),
        "worker_peak_bytes": (record.memory or {}).get("worker_peak_bytes"),
        "time": record.time,
        "run_id": record.run_id,
        "workload_sha256": record.workload_sha256,
        "kernel_sha256": record.kernel_sha256,
    }
