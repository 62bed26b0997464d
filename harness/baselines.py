"""Named baselines of each device, with where they came from.

`results/baselines/DEVICE/NAME.jsonl` holds records as they were measured, `NAME.json` beside it the
provenance. Both are plain files to commit.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import store
from harness.compare import measured_at, samples_ms
from harness.errors import InputError, unknown_name
from harness.records import Record
from harness.text import slug

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Provenance:
    """Where a baseline came from. `records_sha256` is of the file's bytes, so a later edit shows."""

    name: str
    device: str
    set_at: str
    source: str
    records: int
    records_sha256: str
    measured_from: str
    measured_to: str
    git_commits: list[str | None]
    note: str | None = None


@dataclass(frozen=True)
class Baseline:
    """A stored baseline: its file and provenance."""

    path: Path
    provenance: Provenance


def listed(root: Path) -> list[Baseline]:
    """Every baseline under `root`. Raises `InputError` for one whose provenance cannot be read."""
    return [_read(path) for path in sorted((root / "results" / "baselines").glob("*/*.json"))]


def _read(provenance_path: Path) -> Baseline:
    try:
        values = json.loads(provenance_path.read_text(encoding="utf-8"))
        provenance = Provenance(**values)
        for time in (provenance.set_at, provenance.measured_from, provenance.measured_to):
            datetime.fromisoformat(time)
        if not all(isinstance(t, str) for t in (provenance.name, provenance.device, provenance.records_sha256)):
            raise TypeError("a name, device or hash is no text")
    except (OSError, ValueError, TypeError) as error:
        remedy = "set the baseline again with solbench baseline set"
        raise InputError(str(provenance_path), f"is no provenance ({error})", remedy) from None
    return Baseline(provenance_path.with_suffix(".jsonl"), provenance)


def rows(baselines: Iterable[Baseline]) -> list[dict[str, Any]]:
    """What a list of baselines shows of each."""
    return [
        {
            "name": p.name,
            "device": p.device,
            "records": p.records,
            "measured": p.measured_to[:10],
            "set": p.set_at[:10],
            "note": p.note or "",
        }
        for p in (baseline.provenance for baseline in baselines)
    ]


def find(root: Path, name: str, device: str | None = None, any_device: bool = False) -> Baseline:
    """The baseline of that name, for `device` where several devices have one. Raises `InputError`.

    With `any_device`, one of another device is given back where `device` has none: the gate then says that the
    two do not compare.
    """
    every = listed(root)
    named = [b for b in every if b.provenance.name == name]
    if not named:
        if not every:
            remedy = "give a results file that exists, or keep one with solbench baseline set"
            raise InputError(f'baseline "{name}"', "is no file, and there are no baselines yet", remedy)
        raise unknown_name("baseline", name, [b.provenance.name for b in every])
    if device is not None:
        of_device = [b for b in named if b.provenance.device == device]
        if not of_device and not any_device:
            raise unknown_name("device", device, [b.provenance.device for b in named], f"baseline {name}")
        named = of_device or named[:1]
    if len(named) > 1:
        devices = ", ".join(b.provenance.device for b in named)
        raise InputError(f"baseline {name}", f"is there for several devices ({devices})", "name one with --device")
    return named[0]


def records(baseline: Baseline) -> list[Record]:
    """The stored records. Raises `InputError` for a damaged file, or one edited since it was set."""
    try:
        digest = hashlib.sha256(baseline.path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(str(baseline.path), f"cannot be read ({error.strerror})", "set the baseline again") from None
    if digest != baseline.provenance.records_sha256:
        problem = "is not the file that was set (its hash differs)"
        raise InputError(str(baseline.path), problem, "set the baseline again, or restore the file")
    found, bad = store.read(baseline.path)
    if bad:
        raise InputError(str(bad[0]), "the baseline is damaged", "set it again")
    return found


def prepare(measured: Sequence[Record], name: str) -> tuple[str, list[Record]]:
    """The device of the records and those of them that a baseline holds: newest per question, measured.

    Raises `InputError` for a bad name, no measured records, or records of several devices.
    """
    if not _NAME.fullmatch(name):
        remedy = "use letters, digits, '.', '_' and '-', beginning with a letter or digit"
        raise InputError(f'baseline "{name}"', "is no usable name", remedy)
    # Failures are kept too: the gate tells an old one from a new one.
    kept = [record for record in store.newest(list(measured)) if record.latency_ms is not None or record.status.failed]
    for record in kept:
        if record.latency_ms is not None:
            samples_ms(record)
        measured_at(record)
    if not any(record.latency_ms is not None for record in kept):
        raise InputError(f"baseline {name}", "would hold no measured record", "give results of solbench run")
    devices = sorted({record.device for record in kept})
    if len(devices) > 1:
        raise InputError(f"baseline {name}", f"mixes devices ({', '.join(devices)})", "give results of one device")
    return devices[0], kept


def save(root: Path, name: str, source: str, measured: Sequence[Record], note: str | None = None) -> Baseline:
    """Store a baseline, replacing one of the same name and device whole. Raises `InputError`."""
    device, kept = prepare(measured, name)
    content = "".join(record.to_line() + "\n" for record in kept).encode()
    times = sorted(record.time for record in kept)
    provenance = Provenance(
        name=name,
        device=device,
        set_at=datetime.now(UTC).isoformat(timespec="seconds"),
        source=source,
        records=len(kept),
        records_sha256=hashlib.sha256(content).hexdigest(),
        measured_from=times[0],
        measured_to=times[-1],
        git_commits=sorted({record.environment.get("git_commit") for record in kept}, key=str),
        note=note,
    )
    folder = root / "results" / "baselines" / slug(device)
    path = folder / f"{name}.jsonl"
    others = [b for b in listed(root) if b.path == path and b.provenance.device != device]
    if others:
        problem = f'holds a baseline of "{others[0].provenance.device}", whose name differs only in signs'
        raise InputError(str(path), problem, "take another name")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(path, content)
        _replace(path.with_suffix(".json"), (json.dumps(asdict(provenance), indent=2) + "\n").encode())
    except OSError as error:
        raise InputError(str(path), f"cannot be written ({error.strerror})", "choose another --root") from None
    return Baseline(path, provenance)


def _replace(path: Path, content: bytes) -> None:
    """Write beside and rename, so that a crash leaves the old file or the new one."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def older_than(root: Path, days: float, now: datetime | None = None) -> list[Baseline]:
    """Baselines whose newest record was measured more than `days` ago."""
    limit = (now or datetime.now(UTC)).timestamp() - days * 86400
    return [b for b in listed(root) if datetime.fromisoformat(b.provenance.measured_to).timestamp() < limit]


def remove(baseline: Baseline) -> None:
    """Delete a baseline's two files."""
    baseline.path.unlink(missing_ok=True)
    baseline.path.with_suffix(".json").unlink(missing_ok=True)
