"""What one timed call came to, whichever backend timed it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sample:
    """One timed call.

    time_ms: the time, by the backend's meaning.
    held: for `queued`, whether every launch was in the queue before the first one ran.
    other_streams: the time had to be taken from the end of work on other streams.
    detail: what else the backend saw, as JSON.
    """

    time_ms: float
    held: bool | None = None
    other_streams: bool = False
    detail: dict[str, Any] | None = None
