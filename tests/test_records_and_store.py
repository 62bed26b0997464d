"""Results files lose nothing, glue nothing, and say what they could not read."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import HONEST, REPOSITORY, made_record

from harness import figures, records, store
from harness.errors import InputError
from harness.records import SCHEMA, Record, RecordError


def record(case: str = "t1", reason: str | None = None) -> Record:
    return made_record(case=case, reason=reason)


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


# name: what foreign tools and crashes leave in a file, as a function of two good lines
FOREIGN = {
    "Windows line ends": lambda a, b: a + b"\r\n" + b + b"\r\n",
    "a byte order mark": lambda a, b: b"\xef\xbb\xbf" + a + b"\n" + b + b"\n",
    "joined files with marks": lambda a, b: b"\xef\xbb\xbf" + a + b"\n\xef\xbb\xbf" + b + b"\n",
    "a line of a mark alone": lambda a, b: b"\xef\xbb\xbf\n" + a + b"\n" + b,
    "blank lines": lambda a, b: b"\n \t\r\n" + a + b"\n\n\n" + b,
    "a lone carriage return at the end": lambda a, b: a + b"\n" + b + b"\r",
    "bare U+2028 in a text": lambda a, b: a + b"\n" + b.replace(b"MARK", "\u2028".encode()) + b"\n",
    "bare NUL in a text": lambda a, b: a + b"\n" + b.replace(b"MARK", b"\x00") + b"\n",
    "a bare carriage return in a text": lambda a, b: a + b"\n" + b.replace(b"MARK", b"\r") + b"\n",
    "bytes that are no UTF-8": lambda a, b: a + b"\n" + b.replace(b"MARK", b"\xff") + b"\n",
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_files_of_foreign_tools_are_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    first, second = (record(case, reason="MARK").to_line().encode() for case in ("t1", "t2"))
    path.write_bytes(FOREIGN[kind](first, second))
    for found, bad in (store.read(path), figures.read([path])):
        assert [r.case for r in found] == ["t1", "t2"]
        assert bad == []


def test_the_zeros_that_a_crash_leaves_are_one_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    store.append(path, record())
    with path.open("ab") as file:
        file.write(bytes(4096))
    store.append(path, record("t2"))
    found, bad = store.read(path)
    assert [r.case for r in found] == ["t1", "t2"]
    assert [line.number for line in bad] == [2]


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
    "schema before the first": ({"schema": 0}, "the first one is 1"),
    "unknown status": ({"status": "GREAT"}, "unknown status"),
    "negative latency": ({"latency_ms": -1.0}, "no latency"),
    "zero latency": ({"latency_ms": 0}, "no latency"),
    "latency as text": ({"latency_ms": "fast"}, "no latency"),
    "latency that no float holds": ({"latency_ms": 10**400}, "no latency"),
    "scale with a point": ({"scale": 1.0}, "scale is 1.0"),
    "axes as a list": ({"axes": [1]}, "axes"),
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
    shown, bad_of_reports = figures.read([path])
    assert len(shown) == 1
    assert bad_of_reports == bad, "reports call a bad line by the same words"


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


def test_the_newest_record_is_so_by_its_time_wherever_it_stands() -> None:
    new = replace(record(), time="2026-02-01T00:30:00+01:00", latency_ms=2.0)
    old = replace(record(), time="2026-01-31T23:00:00+00:00")
    undated = replace(record(), time="yesterday")
    assert store.newest([new, old, undated]) == [new]


SCHEMA_FILES = {
    int(re.sub(r"\D", "", path.stem)): path
    for path in sorted((REPOSITORY / "tests" / "data").glob("records_schema_*.jsonl"))
}


def test_there_is_a_file_and_a_step_for_every_schema() -> None:
    assert list(SCHEMA_FILES) == list(range(1, SCHEMA + 1))
    assert list(records.MIGRATIONS) == list(range(1, SCHEMA))


@pytest.mark.parametrize("schema", SCHEMA_FILES)
def test_a_file_of_every_schema_opens(schema: int) -> None:
    assert {json.loads(line)["schema"] for line in SCHEMA_FILES[schema].open()} == {schema}
    found, bad = store.read(SCHEMA_FILES[schema])
    assert bad == []
    assert [(r.kernel, r.schema) for r in found] == [("eager", SCHEMA), ("fused_pointwise", SCHEMA)]
    assert all(r.latency_ms and r.timings["queued"]["samples_ms"] for r in found)


def test_an_old_line_goes_through_every_step_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def to_2(values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "name": values["kernel"]}

    def to_3(values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "kernel": values.pop("name") + " of old"}

    monkeypatch.setattr(records, "SCHEMA", SCHEMA + 2)
    monkeypatch.setattr(records, "MIGRATIONS", {**records.MIGRATIONS, SCHEMA: to_2, SCHEMA + 1: to_3})
    path = tmp_path / "r.jsonl"
    lines = [json.loads(record(case).to_line()) for case in ("t1", "t2", "t3")]
    lines[1]["schema"] = SCHEMA + 2
    del lines[2]["kernel"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found, bad = store.read(path)
    assert [(r.kernel, r.schema) for r in found] == [("k of old", SCHEMA + 2), ("k", SCHEMA + 2)]
    assert [line.problem for line in bad] == [f"it does not hold what a record of schema {SCHEMA} holds"]
    shown, bad_of_reports = figures.read([path])
    assert [r.kernel for r in shown] == ["k of old", "k"]
    assert bad_of_reports == bad


def test_a_path_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        store.prepare(blocker / "r.jsonl")
    with pytest.raises(InputError, match="cannot be written"):
        store.prepare(tmp_path)


@pytest.mark.parametrize("device", ["/dev/null", "/dev/full"])
def test_an_output_that_is_no_file_is_refused_before_anything_runs(device: str) -> None:
    with pytest.raises(InputError, match="no ordinary file"):
        store.prepare(Path(device))


def test_a_failed_write_leaves_what_was_there_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_disk_that_cannot_even_take_back_says_that_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> int:
        raise OSError(28, "No space left on device")

    def stuck(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "write", failing)
    monkeypatch.setattr(os, "ftruncate", stuck)
    with pytest.raises(OSError, match="No space"):
        store.append(tmp_path / "r.jsonl", record())


FULL_AFTER_ONE_RECORD = """
import sys
import cli
from harness import store

def append(path, record, append=store.append):
    if path.stat().st_size:
        raise OSError(28, "No space left on device")
    append(path, record)

store.append = append
sys.argv = ["solbench", *sys.argv[1:]]
cli.main()
"""


def test_a_full_disk_stops_the_run_and_shows_what_is_kept(toy_root: Path) -> None:
    (toy_root / "eager.py").write_text(HONEST)
    arguments = ["run", "toy", "-k", "eager.py", "-d", "cpu", "-p", "quick", "-o", "r.jsonl"]
    done = subprocess.run(
        [sys.executable, "-c", FULL_AFTER_ONE_RECORD, *arguments],
        cwd=toy_root,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert done.returncode == 2, done.stderr
    said = " ".join(done.stderr.split())
    assert "1 of 2 records, in r.jsonl" in said
    assert "1 of 1" in said.partition("summary")[2]
    assert said.endswith("what was written before is whole; free space and go on with --resume")
    assert "No space left on device" in said
    assert [r.case for r in store.read(toy_root / "r.jsonl")[0]] == ["r3"]
