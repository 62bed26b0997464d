"""Reports: comparable figures side by side, exact for programs, and small and fast for large files."""

from __future__ import annotations

import csv
import html.parser
import json
import subprocess
import sys
import warnings
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, made_record, module_of

import harness
from harness import figures, frame, report, store
from harness.errors import InputError
from harness.figures import Figures, Reader
from harness.html import html as page
from harness.records import Record, Status
from harness.terminal import terminal
from harness.text import one_line

RESULTS = sorted((REPOSITORY / "results").glob("**/*.jsonl"))
FULL = store.read(REPOSITORY / "tests" / "data" / "records_schema_1.jsonl")[0][0]
FORMS = ("table", "markdown", "csv", "json", "html")


def shown(*records: Record) -> list[Figures]:
    return list(map(Reader().of_record, records))


def write(path: Path, *records: Record) -> Path:
    for record in records:
        store.append(path, record)
    return path


def forms(records: list[Figures]) -> dict[str, str]:
    return {
        "table": terminal(records, 80, colour=False),
        "markdown": report.markdown(records),
        "html": "".join(page(records)),
    }


# --- which figures stand together ------------------------------------------------------------------

# what differs: (change to a record, what its title then says)
NEVER_TOGETHER: dict[str, tuple[dict[str, Any], str]] = {
    "workload": ({"workload": "other"}, "other · NVIDIA H200 · queued"),
    "size": ({"scale": 32}, "moe_swiglu_backward · SCALED 1/32 · NVIDIA H200 · queued"),
    "device": ({"device": "NVIDIA B200"}, "moe_swiglu_backward · NVIDIA B200 · queued"),
    "protocol": ({"protocol": "events"}, "moe_swiglu_backward · NVIDIA H200 · events"),
    "version of the workload": ({"workload_sha256": "abcdef0123"}, "moe_swiglu_backward@abcdef0 · NVIDIA H200"),
    "version of the protocol": ({"protocol_sha256": "abcdef0123"}, "NVIDIA H200 · queued@abcdef0"),
}


@pytest.mark.parametrize("what", NEVER_TOGETHER)
def test_what_cannot_be_compared_never_shares_a_table(what: str) -> None:
    change, title = NEVER_TOGETHER[what]
    records = shown(FULL, replace(FULL, **change))
    groups = report.groups(records)
    assert [len(group.records) for group in groups] == [1, 1]
    assert title in groups[1].title
    assert groups[0].title != groups[1].title
    for form, text in forms(records).items():
        plain = text.replace("\\", "")
        assert all(group.title in plain for group in groups), form
        assert plain.count("1 of 1") == 2, form


def test_a_name_of_several_sources_or_seeds_says_which() -> None:
    records = shown(FULL, replace(FULL, kernel_sha256="abcdef0123"), replace(FULL, kernel="k"))
    assert list(report.groups(records)[0].by_kernel()) == ["eager@bc6d900", "eager@abcdef0", "k"]
    records = shown(FULL, replace(FULL, seed=7), replace(FULL, kernel="k"))
    assert list(report.groups(records)[0].by_kernel()) == [f"eager seed {FULL.seed}", "eager seed 7", "k"]


def test_kernels_beside_each_other_are_as_many_as_fit_a_page_and_bring_their_own_cases() -> None:
    kernels = [replace(FULL, kernel=f"k{index}", case="t1" if index < 6 else "t2") for index in range(8)]
    (group,) = report.groups(shown(*kernels))
    first, second = report.side_by_side(group.by_kernel())
    assert list(first.kernels) == [f"k{index}" for index in range(6)]
    assert [row[0] for row in first.texts()] == ["t1"]
    assert list(second.kernels) == ["k6", "k7"]
    assert [row[0] for row in second.texts()] == ["t2"]


def test_notes_name_every_version_and_rate_that_a_table_holds() -> None:
    assert FULL.sol is not None
    slower = {**FULL.sol, "peak": {**FULL.sol["peak"], "label": "calibrated", "peak_flops": 5e14}}
    other = replace(FULL, case="t2", environment={**FULL.environment, "torch": "9.9"}, sol=slower)
    (group,) = report.groups(shown(FULL, other))
    notes = " ".join(group.notes)
    assert "torch 2.11.0+cu130, 9.9, triton 3.6.0" in notes
    assert "datasheet peaks of NVIDIA H200: 989.4 TFLOP/s, 4800 GB/s; calibrated peaks of NVIDIA H200: 500" in notes


def test_a_group_without_versions_rates_or_times_still_has_its_notes() -> None:
    bare = replace(FULL, environment={}, sol=None, timings={}, backend=None, latency_ms=None)
    (group,) = report.groups(shown(bare))
    assert group.notes == [
        "No peak rates are known for this device, so there is no bound.",
        "Backend none; 2026-11-30.",
    ]


# timings of two backends: (cupti's median, queued's, whether each call was held, what is said)
GAPS: dict[str, tuple[Any, Any, Any, str | None]] = {
    "half of the span": (0.2, 0.1, [True, True], "t1 50%"),
    "none": (0.1, 0.1, [True], "t1 0%"),
    "less than none, by the queue's floor": (0.1, 0.101, [True], "t1 0%"),
    "not held": (0.2, 0.1, [True, False], None),
    "held unknown": (0.2, 0.1, None, None),
    "no time": (None, 0.1, [True], None),
    "nonsense": ("1", {}, 5, None),
}


@pytest.mark.parametrize("what", GAPS)
def test_host_gaps_are_shown_for_each_case_that_two_backends_timed(what: str) -> None:
    span_ms, queued_ms, held, said = GAPS[what]
    timings = {"cupti": {"median_ms": span_ms}, "queued": {"median_ms": queued_ms, "held": held}}
    record = replace(FULL, timings=timings)
    read = [Reader().of_line(record.to_line().encode()), Reader().of_record(record)]
    assert read[0].host_gaps == read[1].host_gaps
    assert (read[0].host_gaps is None) == (said is None)
    for form, text in forms([read[0], *shown(replace(FULL, case="t2"))]).items():
        assert ("host gaps" in text) == (said is not None), form
        assert said is None or f"host gaps (of the cupti span): {said}" in text, form


# --- texts stay texts ------------------------------------------------------------------------------

HOSTILE = "<script>alert(1)</script> | `x` \x1b[31m\u2028\x00\r\nend"


def hostile() -> list[Figures]:
    names = dict.fromkeys(("workload", "case", "kernel", "device", "protocol", "reason"), HOSTILE)
    return shown(replace(FULL, **names, status=Status.RUNTIME_ERROR, latency_ms=None, remarks=("\ud800" + HOSTILE,)))


@pytest.mark.parametrize("form", ["table", "markdown", "html"])
def test_names_and_reasons_make_no_markup_no_rows_and_no_colours(form: str) -> None:
    text = forms(hostile())[form]
    text.encode()  # a lone surrogate would stop every file from being written
    assert "\x1b" not in text
    assert "\u2028" not in text
    assert "\x00" not in text
    assert "\r" not in text
    if form != "table":
        assert "<script>" not in text
    if form == "markdown":
        assert all(line.startswith(("|", "#", "-")) for line in text.splitlines() if line)


class _Page(html.parser.HTMLParser):
    """Every tag, every attribute value and the open elements, which must close in order."""

    VOID = ("meta", "link", "br", "img")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action", "style")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "title"):
            self.text += data


@pytest.mark.parametrize("records", [hostile(), figures.read(RESULTS)[0]], ids=["hostile names", "the results"])
def test_the_page_is_whole_and_needs_neither_network_nor_scripts(records: list[Figures]) -> None:
    text = "".join(page(records))
    found = _Page(text)
    assert found.open == []
    assert not found.tags & {"script", "link", "img", "iframe"}
    assert all(address.startswith("#") for address in found.addresses)
    assert "url(" not in text
    assert "@import" not in text
    for group in report.groups(records):
        assert one_line(group.title) in found.text
    for line in report.LEGEND:
        assert line in found.text


def test_the_page_says_what_markdown_says() -> None:
    records = figures.read(RESULTS)[0]
    text = " ".join(_Page("".join(page(records))).text.split())
    for line in report.markdown(records).replace("\\", "").splitlines():
        for cell in line.strip("|-# ").split("|"):
            assert cell.strip(" :-") in text


# name: (kernel, width)
WIDTHS = {
    "a usual terminal": ("eager", 80),
    "a long name": ("k" * 200, 80),
    "wide characters": ("核" * 60, 80),
    "a wide terminal": ("eager", 200),
}


@pytest.mark.parametrize("kind", WIDTHS)
def test_no_line_is_wider_than_the_terminal(kind: str) -> None:
    from rich.cells import cell_len

    kernel, width = WIDTHS[kind]
    wrong = replace(FULL, case="c" * 90, status=Status.INCORRECT_NUMERICAL, reason="word " * 60 + "w" * 100)
    records = shown(replace(FULL, kernel=kernel), replace(wrong, kernel=kernel))
    lines = terminal(records, width, colour=False).splitlines()
    assert max(map(cell_len, lines)) <= width
    joined = "".join(line.strip() for line in lines)
    assert kernel in joined
    assert "w" * 100 in joined


def test_colours_are_there_only_where_they_are_asked_for() -> None:
    records = shown(replace(FULL, status=Status.TIMEOUT, latency_ms=None, reason="too slow"))
    assert "\x1b[31m" in terminal(records, 80, colour=True)
    assert "\x1b" not in terminal(records, 80, colour=False)


# --- exact for programs ----------------------------------------------------------------------------

TEXTS = ["line\nbreak", "\r\n", "\r", "\u2028\u2029\x85", "\x00", 'a "quoted", text', "µs"]


@pytest.mark.parametrize("text", TEXTS)
def test_csv_and_json_keep_every_text_and_every_digit(text: str) -> None:
    records = shown(replace(FULL, reason=text), replace(FULL, case="t2", latency_ms=None, reason=None))
    rows = list(csv.DictReader(StringIO("".join(frame.csv_lines(records)), newline="")))
    assert rows[0]["reason"] == text
    assert float(rows[0]["latency_ms"]) == FULL.latency_ms
    assert rows[0]["iterations"] == "50"
    assert rows[1]["latency_ms"] == rows[1]["reason"] == ""
    lines = [json.loads(line) for line in "".join(frame.json_lines(records)).splitlines()]
    assert [line["reason"] for line in lines] == [text, None]
    assert [line["latency_ms"] for line in lines] == [FULL.latency_ms, None]
    assert list(lines[0]) == list(rows[0]) == list(frame.COLUMNS)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_fast_way_and_whole_records_come_to_the_same_figures(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = shown(*store.read(path)[0])
    # The fast way takes every line that solbench wrote.
    monkeypatch.setattr(store, "record_of", lambda line: pytest.fail("a line went the slow way"))
    fast, bad = figures.read([path])
    assert bad == []
    assert fast == slow


# name: (change to a record, the figures that it makes absent)
ODD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a bound as text": ({"sol": {"bound_ms": "short"}}, {"bound_ms": None}),
    "a bound that is not a number": ({"sol": {"bound_ms": float("nan")}}, {"bound_ms": None}),
    "a score that is a flag": ({"sol": {"score": True}}, {"sol_score": None}),
    "a bound that no float holds": ({"sol": {"bound_ms": 10**400}}, {"bound_ms": None}),
    "half a peak": ({"sol": {"peak": {"device": "d"}}}, {"peak": None}),
    "an interval of one": ({"timings": {"queued": {"ci95_ms": [1.0]}}}, {"ci95_low_ms": None, "ci95_high_ms": None}),
    "timings that are lists": ({"timings": {"queued": []}}, {"relative_iqr": None}),
    "outputs as a list": ({"correctness": {"outputs": [1]}}, {"worst_norm_rel_error": None}),
    "remarks that are numbers": ({"remarks": [1]}, {"remarks": ("1",)}),
    "axes of texts": ({"axes": {"mode": "fast"}}, {"axes": "mode = fast"}),
    "a lone surrogate": ({"reason": "\ud800"}, {"reason": "?"}),
    "a GPU by name": ({"environment": {"gpu": "H200"}}, {"power_limit_w": None}),
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_values_inside_a_record_count_as_absent(kind: str, tmp_path: Path) -> None:
    change, expected = ODD[kind]
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps({**json.loads(FULL.to_line()), **change}) + "\n")
    (found,), bad = figures.read([path])
    assert bad == []
    assert {name: getattr(found, name) for name in expected} == expected
    assert found == shown(*store.read(path)[0])[0]
    assert all(forms([found]).values())


# --- from Python -----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """results/a/one.jsonl and results/b/[2].jsonl, with a question in common."""
    for name in ("a", "b"):
        (tmp_path / "results" / name).mkdir(parents=True)
    write(tmp_path / "results/a/one.jsonl", replace(FULL, time="2027-01-01T00:00:00+00:00", latency_ms=2.0))
    write(tmp_path / "results/b/[2].jsonl", FULL, replace(FULL, case="t2", latency_ms=None))
    monkeypatch.chdir(tmp_path)
    return tmp_path


# name: (what is given, keep, the latencies)
LOADS: dict[str, tuple[Any, str, list[float | None]]] = {
    "a glob": ("results/**/*.jsonl", "newest", [2.0, None]),
    "a glob, all": ("results/**/*.jsonl", "all", [2.0, FULL.latency_ms, None]),
    "a path": ("results/a/one.jsonl", "newest", [2.0]),
    "a path object": (Path("results/a/one.jsonl"), "newest", [2.0]),
    "a path with brackets": ("results/b/[2].jsonl", "newest", [FULL.latency_ms, None]),
    "a list": (["results/b/*.jsonl", Path("results/a/one.jsonl")], "newest", [2.0, None]),
    "a file given twice": (["results/a/one.jsonl", "results/a/*.jsonl"], "all", [2.0]),
    "everything below": ("results/**", "newest", [2.0, None]),
}


@pytest.mark.parametrize("kind", LOADS)
@pytest.mark.usefixtures("folder")
def test_load_returns_one_row_for_each_question(kind: str) -> None:
    given, keep, latencies = LOADS[kind]
    found = harness.load(given, keep)  # type: ignore[arg-type]
    assert [None if ms != ms else ms for ms in found["latency_ms"]] == latencies
    assert list(found.columns) == list(frame.COLUMNS)


# name: (what is given, parts of the sentence)
NOTHING: dict[str, tuple[Any, list[str]]] = {
    "no such file": ("results/none.jsonl", ["results/none.jsonl", "matches no file", "results/**/*.jsonl"]),
    "a glob of nothing": ("results/*.jsonl", ["results/*.jsonl", "matches no file"]),
    "a folder": ("results", ["matches no file", "results/**/*.jsonl"]),
    "an empty list": ([], ["names no file"]),
    "one of several": (["results/a/*.jsonl", "none"], ["none: matches no file"]),
}


@pytest.mark.parametrize("kind", NOTHING)
@pytest.mark.usefixtures("folder")
def test_load_of_nothing_is_an_error(kind: str) -> None:
    given, parts = NOTHING[kind]
    with pytest.raises(InputError) as caught:
        harness.load(given)
    assert all(part in str(caught.value) for part in parts)


def test_load_refuses_another_keep(folder: Path) -> None:
    with pytest.raises(InputError, match='give "newest" or "all"'):
        harness.load("results/**", "oldest")  # type: ignore[arg-type]


def test_load_warns_of_bad_lines_by_file_and_line_at_the_caller(folder: Path) -> None:
    path = folder / "results/a/one.jsonl"
    with path.open("a") as file:
        file.write("torn\n")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(harness.load(path)) == 1
    assert [str(warning.message) for warning in caught] == [
        f"{path}:2: left out: it is not JSON (a write that was cut off, perhaps)"
    ]
    assert caught[0].filename == __file__


def test_columns_have_the_same_types_whatever_they_hold(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    nothing = harness.load(tmp_path / "empty.jsonl")
    checked = made_record(latency_ms=None, backend=None, timings={})
    (tmp_path / "checked.jsonl").write_text(checked.to_line() + "\n")
    results = harness.load([*RESULTS, tmp_path / "checked.jsonl"])
    assert list(nothing.dtypes) == list(results.dtypes)
    assert len(nothing) == 0
    assert results["iterations"].isna().sum() == (results["latency_ms"].isna()).sum() > 0
    assert {"float64", "Int64", "string"} == {str(kind) for kind in results.dtypes}


def test_every_column_is_documented_with_its_unit() -> None:
    text = (REPOSITORY / "docs" / "records.md").read_text().partition("## The data frame")[2]
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| `")]
    units = {name.strip(" `"): unit.strip() for names, unit, _ in rows for name in names.split(",")}
    assert sorted(units) == sorted(frame.COLUMNS)
    assert all(units[name] == "ms" for name in frame.COLUMNS if name.endswith("_ms"))
    assert all(units[name] == "bytes" for name in frame.COLUMNS if name.endswith("_bytes"))


# --- large files, and little imported --------------------------------------------------------------


def _speed() -> Any:
    return module_of(REPOSITORY / "benchmarks" / "report_speed.py")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A file of ten thousand records, and how many they are."""
    path = tmp_path_factory.mktemp("large") / "r.jsonl"
    _speed().generate(path, 10_000)
    return path, 10_000


@pytest.mark.parametrize("form", [*FORMS, "load"])
def test_a_hundred_thousand_records_would_stay_under_500_mb(form: str, large: tuple[Path, int], tmp_path: Path) -> None:
    path, count = large
    few = tmp_path / "few.jsonl"
    with path.open() as lines:
        few.write_text("".join(line for line, _ in zip(lines, range(100), strict=False)))
    speed = _speed()

    def peak_mb(file: Path, records: int) -> float:
        if form == "load":
            found = speed.measure(speed.LOAD, [str(file), str(records)])
        else:
            found = speed.measure(speed.REPORT, ["report", str(file), "-f", form, "-o", str(tmp_path / "out")])
        peak: float = found[1]
        return peak

    fixed_mb = peak_mb(few, 100)
    assert fixed_mb + (peak_mb(path, count) - fixed_mb) * 100_000 / count < 500


@pytest.mark.parametrize("form", FORMS)
def test_a_report_imports_neither_torch_nor_pandas(form: str, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['pandas'] = None; "
        f"sys.argv = ['solbench', 'report', *{[str(path) for path in RESULTS]}, '-f', '{form}']; "
        "import cli; cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert done.returncode == 0, done.stderr
    assert "fused" in done.stdout


def test_load_imports_no_torch_and_importing_harness_imports_nothing_slow() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; import harness; "
        "assert not {'pandas', 'msgspec', 'rich', 'jinja2'} & set(sys.modules); "
        f"assert len(harness.load({str(RESULTS[0])!r}))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPOSITORY)


def test_a_page_is_written_to_a_file(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cli", "report", *map(str, RESULTS), "-f", "html", "-o", str(tmp_path / "r.html")]
    subprocess.run(command, check=True, cwd=REPOSITORY)
    assert (tmp_path / "r.html").read_text() == "".join(
        page(figures.with_baselines(store.newest(figures.read(RESULTS)[0])))
    )
