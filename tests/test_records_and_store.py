"""Results files lose nothing, glue nothing, and say what they could not read."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest

from harness import store
from harness.errors import InputError
from harness.records import SCHEMA, Record, RecordError, Status


def record(case: str = "t1", reason: str | None = None) -> Record:
    return Record(
        run_id="r",
        time="2026-01-01T00:00:00+00:00",
        workload="w",
        workload_sha256="0" * 64,
        case=case,
        axes={"T": 1},
        scale=1,
        kernel="k",
        kernel_sha256=None,
        author=None,
        source=None,
        license=None,
        device="d",
        environment={},
        protocol="p",
        protocol_sha256="1" * 64,
        seed=1,
        status=Status.PASSED,
        reason=reason,
        latency_ms=1.5,
        backend="host",
        timings={"host": {"samples_ms": [1.5]}},
        correctness=None,
        sol=None,
    )


def test_a_record_survives_writing_and_reading(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    store.append(path, record())
    assert store.read(path) == ([record()], [])


@pytest.mark.parametrize("text", ["line\nbreak", "\u2028", "\x00", "\r\n", "“quotes” \\ / µs", "\ud800"])
def test_any_message_stays_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    store.append(path, record(reason=text))
    store.append(path, record("t2"))
    assert path.read_bytes().count(b"\n") == 2
    found, bad = store.read(path)
    assert [r.reason for r in found] == [text, None]
    assert bad == []


def test_windows_line_ends_and_blank_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes((record().to_line() + "\r\n\r\n" + record("t2").to_line() + "\r\n").encode())
    assert len(store.read(path)[0]) == 2


def test_a_torn_last_line_is_reported_and_not_glued_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    store.append(path, record())
    with path.open("ab") as file:
        file.write(record("t2").to_line().encode()[:50])
    store.append(path, record("t3"))
    found, bad = store.read(path)
    assert [r.case for r in found] == ["t1", "t3"]
    assert [(line.number, "not JSON" in line.problem) for line in bad] == [(2, True)]


def _append_five(path: Path, writer: int) -> None:
    for index in range(5):
        store.append(path, record(f"{writer}-{index}", reason="x" * 300_000))


def test_six_processes_append_whole_records(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append_five, args=(path, number)) for number in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found, bad = store.read(path)
    assert bad == []
    assert sorted(r.case for r in found) == sorted(f"{w}-{i}" for w in range(6) for i in range(5))


# name: (change to the JSON object, part of the problem)
BAD_LINES = {
    "newer schema": ({"schema": SCHEMA + 1}, "update solbench"),
    "no schema": ({"schema": None}, "no schema"),
    "schema that is a flag": ({"schema": True}, "no schema"),
    "unknown status": ({"status": "GREAT"}, "unknown status"),
    "negative latency": ({"latency_ms": -1.0}, "no latency"),
    "zero latency": ({"latency_ms": 0}, "no latency"),
    "latency as text": ({"latency_ms": "fast"}, "no latency"),
    "timings as text": ({"timings": "none"}, "timings"),
}


@pytest.mark.parametrize("kind", BAD_LINES)
def test_a_line_that_is_no_record_is_left_out_by_number(kind: str, tmp_path: Path) -> None:
    change, part = BAD_LINES[kind]
    path = tmp_path / "r.jsonl"
    path.write_text(record().to_line() + "\n" + json.dumps({**json.loads(record().to_line()), **change}) + "\n")
    found, bad = store.read(path)
    assert len(found) == 1
    assert bad[0].number == 2
    assert part in bad[0].problem


@pytest.mark.parametrize("line", ["[]", "3", "nonsense", "{}", '{"schema": 1}', "[" * 100_000, "\xff"])
def test_what_is_not_a_record_raises_a_record_error(line: str) -> None:
    with pytest.raises(RecordError):
        Record.from_line(line)


def test_not_a_number_is_never_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        replace(record(), latency_ms=float("nan")).to_line()


def test_unknown_fields_are_kept() -> None:
    line = json.dumps({**json.loads(record().to_line()), "colour": "green"})
    found = Record.from_line(line)
    assert found.unknown_fields == {"colour": "green"}
    assert json.loads(found.to_line())["colour"] == "green"


def test_the_newest_record_of_an_identity_counts() -> None:
    first, second = record(), replace(record(), latency_ms=2.0)
    other = replace(record(), scale=2)
    assert store.newest([first, other, second]) == [second, other]


def test_a_path_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        store.prepare(blocker / "r.jsonl")
    with pytest.raises(InputError, match="cannot be written"):
        store.prepare(tmp_path)


def test_a_failed_write_leaves_what_was_there_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    path = tmp_path / "r.jsonl"
    store.append(path, record())
    real_write = os.write
    written = 0

    def full_disk(descriptor: int, data: memoryview) -> int:
        nonlocal written
        if written:
            raise OSError(28, "No space left on device")
        written = real_write(descriptor, data[:10])
        return written

    monkeypatch.setattr(os, "write", full_disk)
    with pytest.raises(OSError, match="No space"):
        store.append(path, record("t2"))
    monkeypatch.undo()
    assert store.read(path) == ([record()], [])
