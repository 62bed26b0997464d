"""The pages of a site: whole, linked, equal to what the other commands say, and usable by hand."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import browser
import pytest
from conftest import REPOSITORY, TOY_REFERENCE, TOY_YAML, made_record, solbench

from harness import chart, leaderboard_report, site, site_plots, store
from harness.catalog import Catalog
from harness.chart import Chart, Point, Series
from harness.errors import InputError
from harness.records import Record, Status
from harness.site_page import record_path
from harness.site_records import gather
from harness.stats import geometric_mean
from harness.text import format_ms, one_line

RESULTS = site.results_files(Catalog(REPOSITORY))
CATALOG = Catalog(REPOSITORY)
MOE = store.read(REPOSITORY / "results" / "nvidia_h200" / "moe_swiglu_backward.jsonl")[0]
MADE = datetime(2026, 12, 1, tzinfo=UTC)
VOID = ("meta", "link", "br", "img", "input")


class Page(html.parser.HTMLParser):
    """What a page holds: tables as texts, links, ids, and how often each element is there."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.source = path.read_text(encoding="utf-8")
        self.count: dict[str, int] = {}
        self.attributes: list[tuple[str, str, str]] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.captions: dict[str, str] = {}
        self.numbers: dict[str, list[list[float | None]]] = {}
        self.kept: dict[str, str] = {"style": "", "script": "", "title": "", "h1": "", "pre": ""}
        self.text = ""
        self._table = ""
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.count[tag] = self.count.get(tag, 0) + 1
        self.attributes += [(tag, name, value) for name, value in values.items()]
        self.ids += [values["id"]] if "id" in values else []
        self.links += [values["href"]] if tag == "a" else []
        if tag == "table":
            self._table = values["id"]
            self.tables[self._table], self.numbers[self._table] = [], []
        if tag == "tr":
            self.tables[self._table].append([])
            self.numbers[self._table].append([])
        if tag in ("th", "td"):
            self.tables[self._table][-1].append("")
            number = values.get("data-number")
            self.numbers[self._table][-1].append(None if number is None else float(number))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"{self.path}: {tag}"

    def handle_data(self, data: str) -> None:
        inside = set(self.open)
        if "caption" in inside:
            self.captions[self._table] = self.captions.get(self._table, "") + data
        elif inside & {"th", "td"}:
            self.tables[self._table][-1][-1] += data
        for tag in inside & self.kept.keys():
            self.kept[tag] += data
        if not inside & {"style", "script", "title"}:
            self.text += data

    def rows(self, table: str) -> list[dict[str, str]]:
        """By heading, in order."""
        headings, *rows = [[" ".join(cell.split()) for cell in row] for row in self.tables[table]]
        return [dict(zip(headings, row, strict=True)) for row in rows]

    @property
    def data(self) -> Any:
        return json.loads(self.path.with_suffix(".json").read_text(encoding="utf-8"), parse_constant=pytest.fail)


def built(folder: Path, *records: Record, catalog: Catalog = CATALOG) -> dict[str, Page]:
    """The site of some records, by path without suffix."""
    file = folder / "r.jsonl"
    file.write_text("".join(record.to_line() + "\n" for record in records))
    pages, problems = site.pages(catalog, [file])
    assert problems == ([] if records else [f"{file}: holds no records"])
    site.write(folder / "site", pages, MADE)
    return opened(folder / "site")


def opened(folder: Path) -> dict[str, Page]:
    return {p.relative_to(folder).with_suffix("").as_posix(): Page(p) for p in sorted(folder.rglob("*.html"))}


def copies(of: str = "eager", /, **fields: Any) -> list[Record]:
    """The committed records of one kernel with other values."""
    return [replace(record, **fields) for record in MOE if record.kernel == of]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of the committed records, as the command writes it."""
    place = tmp_path_factory.mktemp("site")
    done = solbench("site", "-o", "out", "--root", str(REPOSITORY), cwd=place)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "index.html" in done.stderr
    assert "warning" not in done.stderr
    return place / "out"


@pytest.fixture(scope="module")
def pages(folder: Path) -> dict[str, Page]:
    return opened(folder)


HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "../../../etc/passwd",
    "</title></style></svg><script>alert(2)</script>",
    "{{ 7 * 7 }}",
    "line\r\n\x1b[31m\x00\u2028end",
    "核" * 90,
    "javascript:alert(3)",
    "'; rm -rf / #",
)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    """A site whose every free text tries to be something else."""
    records = []
    for text in HOSTILE:
        fields = dict.fromkeys(("kernel", "device", "protocol", "author", "source", "license"), text)
        changed = {"environment": {text: text, "gpu": {text: [text]}}, "remarks": (text,), "run_id": text}
        records += copies(**fields, **changed)
        failed = {"status": Status.RUNTIME_ERROR, "reason": text, "latency_ms": None, "case": text}
        records.append(copies(**fields, **changed, **failed)[0])
    return built(tmp_path_factory.mktemp("hostile"), *records)


# --- every page ------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["pages", "hostile"])
def test_every_link_leads_somewhere_within_the_site(which: str, request: pytest.FixtureRequest) -> None:
    found: dict[str, Page] = request.getfixturevalue(which)
    by_path = {page.path.resolve(): page for page in found.values()}
    reached = set()
    for page in found.values():
        for link in page.links:
            address, fragment = urldefrag(link)
            assert not re.match(r"[a-z]+:|/", address), f"{page.path}: {link}"
            target = (page.path.parent / unquote(address)).resolve() if address else page.path.resolve()
            assert target.is_file(), f"{page.path}: {link}"
            reached.add(target)
            if fragment:
                assert fragment in by_path[target].ids, f"{page.path}: {link}"
    top = found["index"].path.parent
    every = {path.resolve() for path in top.rglob("*") if path.is_file() and path.name != site.MARKER}
    assert reached == every


@pytest.mark.parametrize("which", ["pages", "hostile"])
def test_a_page_loads_nothing_and_allows_only_its_own_style_and_script(
    which: str, request: pytest.FixtureRequest
) -> None:
    for page in request.getfixturevalue(which).values():
        loaded = [(tag, name, value) for tag, name, value in page.attributes if name in ("src", "href", "action")]
        assert {value for tag, _, value in loaded if tag != "a"} == {"data:,"}
        assert not [name for _, name, _ in page.attributes if name == "style" or name.startswith("on")]
        assert (page.count["script"], page.count["style"]) == (1, 1)
        for part in ("url(", "@import", "http"):
            assert part not in page.kept["style"] + page.kept["script"]
        (policy,) = (value for _, name, value in page.attributes if name == "content" and "default-src" in value)
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        for kind in ("style", "script"):
            digest = base64.b64encode(hashlib.sha256(page.kept[kind].encode()).digest()).decode()
            assert f"{kind}-src 'sha256-{digest}'" in policy


@pytest.mark.parametrize("which", ["pages", "hostile"])
def test_a_page_can_be_read_by_everyone(which: str, request: pytest.FixtureRequest) -> None:
    for page in request.getfixturevalue(which).values():
        assert page.open == []
        assert page.count["h1"] == page.count["main"] == 1
        assert ("html", "lang", "en") in page.attributes
        assert len(page.ids) == len(set(page.ids)), page.path
        assert page.captions.keys() == page.tables.keys()
        assert all(caption.strip() for caption in page.captions.values())
        for table in page.tables.values():
            assert len({len(row) for row in table}) == 1
        scopes = [value for tag, name, value in page.attributes if (tag, name) == ("th", "scope")]
        assert len(scopes) == page.count["th"]
        referred = {word for _, name, value in page.attributes if name.startswith("aria-labelledby")
                    for word in value.split()}  # fmt: skip
        assert referred <= set(page.ids)


@pytest.mark.parametrize("which", ["pages", "hostile"])
def test_every_page_has_sound_json_beside_it(which: str, request: pytest.FixtureRequest) -> None:
    for page in request.getfixturevalue(which).values():
        assert page.data["schema"] == 1
        assert page.path.with_suffix(".json").name in [link.rpartition("/")[2] for link in page.links]


STYLE = (REPOSITORY / "harness" / "templates" / "style.css").read_text()


def colours(scheme: str) -> dict[str, str]:
    """The style sheet's colours in a scheme: the light ones, and what the scheme changes."""
    found = dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", STYLE.partition("@media")[0]))
    if scheme != "light":
        marker = {"dark": "(prefers-color-scheme: dark)", "print": "@media print"}[scheme]
        found |= dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", STYLE.partition(marker)[2].partition("}")[0]))
    return found


def contrast(a: str, b: str) -> float:
    """By the formula of the Web Content Accessibility Guidelines 2.2."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
def test_colours_are_told_apart_by_weak_eyes_too(scheme: str) -> None:
    found = colours(scheme)
    for text in ("text", "faint", "link", "failed"):
        for behind in ("page", "stripe"):
            assert contrast(found[text], found[behind]) >= 4.5, (text, behind)
    assert contrast(found["text"], found["best"]) >= 4.5
    for mark in ("control", *(f"s{index}" for index in range(site_plots.LOOKS))):
        assert contrast(found[mark], found["page"]) >= 3, mark


def test_names_stay_text_and_files_have_safe_names(hostile: dict[str, Page]) -> None:
    assert len([path for path in hostile if path.startswith("records/")]) == len(HOSTILE)
    for path, page in hostile.items():
        assert re.fullmatch(r"(records/|workloads/)?[a-z0-9_-]{1,180}", path)
        assert "\x1b" not in page.source
        assert "\u2028" not in page.source
        assert "img" not in page.count
    workload = hostile["workloads/moe_swiglu_backward"]
    for text in HOSTILE:
        assert " ".join(one_line(text).split()) in " ".join(workload.text.split())
        assert any(
            one_line(text) in page.kept["h1"] and one_line(text) in page.kept["title"] for page in hostile.values()
        )
    kept = [json.loads(json.dumps(page.data)) for path, page in hostile.items() if path.startswith("records/")]
    assert {data["kernel"] for data in kept} == set(HOSTILE)


def test_a_recipe_of_a_hostile_name_is_one_harmless_command(hostile: dict[str, Page]) -> None:
    recipes = [page.kept["pre"] for path, page in hostile.items() if path.startswith("records/")]
    assert any("""-k ''"'"'; rm -rf / #' -p""" in recipe for recipe in recipes)
    assert any("-k '<script>alert(1)</script>' -p" in recipe for recipe in recipes)


# --- what the pages say ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["moe_swiglu_backward", "dense_swiglu_backward"])
def test_the_boards_are_those_of_the_leaderboard(name: str, pages: dict[str, Page], tmp_path: Path) -> None:
    files = [str(path) for path in RESULTS if path.stem == name]
    done = solbench("leaderboard", name, *files, "--json", cwd=tmp_path)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    page = pages[f"workloads/{name}"]
    assert page.data["leaderboard"] == rows
    boards: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        boards.setdefault((row["hardware"], row["basis"]), []).append(row)
    assert len(boards) == 1 + len(files)  # the published one, and one for each device and protocol
    assert "not ranked against each other" in page.text
    for index, ((hardware, basis), members) in enumerate(boards.items()):
        shown = page.rows(f"board-{index}")
        assert hardware in page.captions[f"board-{index}"]
        assert basis in page.text
        assert list(shown[0]) == list(leaderboard_report.HEADINGS)
        assert [row["#"] for row in shown] == [str(row["rank"]) for row in members]
        assert [row["implementation"] for row in shown] == [row["implementation"] or "unnamed" for row in members]
        assert [row["observed"] for row in shown] == [row["observed"] for row in members]
        assert [row["trust"] for row in shown] == [row["trust"] for row in members]
        assert [row["license"] for row in shown] == [row["license"] or "unknown" for row in members]
        numbers = page.numbers[f"board-{index}"][1:]
        columns = {heading: place for place, heading in enumerate(leaderboard_report.HEADINGS)}
        for heading, key in (("mean latency", "mean_latency_ms"), ("% SOL", "sol_score"), ("roofline", "roofline"),
                             ("to first", "ratio_to_first")):  # fmt: skip
            assert [row[columns[heading]] for row in numbers] == [row[key] for row in members]


def test_published_ratios_are_the_published_ones(pages: dict[str, Page]) -> None:
    """The latencies that they are of had more digits than are published."""
    rows = pages["workloads/dense_swiglu_backward"].rows("board-0")
    assert [row["to first"] for row in rows][:8] == [
        "1.00×",
        "1.01×",
        "1.03×",
        "1.04×",
        "1.06×",
        "1.07×",
        "1.08×",
        "1.08×",
    ]
    assert rows[-1]["to first"] == "2.11×"


def test_the_history_is_that_of_the_leaderboard(pages: dict[str, Page], tmp_path: Path) -> None:
    shown = pages["workloads/dense_swiglu_backward"].rows("history-0")
    listed = solbench("leaderboard", "dense", "--history", cwd=tmp_path).stdout
    for row in shown:
        assert re.search(r"\s+".join(map(re.escape, row.values())), listed)
    assert [row["record"] for row in shown] == ["14.90 ms", "14.80 ms"]


@pytest.mark.parametrize("name", ["moe", "dense"])
def test_the_bounds_are_those_of_solbench_sol(name: str, pages: dict[str, Page], tmp_path: Path) -> None:
    page = pages[f"workloads/{name}_swiglu_backward"]
    for index, device in enumerate(("nvidia_b200", "nvidia_h200")):
        done = solbench("sol", name, "-d", device, "--json", cwd=tmp_path)
        assert page.data["bounds"][index]["cases"] == [json.loads(line) for line in done.stdout.splitlines()]
    differing = [row["case"] for row in page.rows("bounds-0") if "differs" in row["computed and published"]]
    assert differing == (["b1-s128"] if name == "dense" else [])
    assert ("No implementation can reach the published figure" in page.text) == (name == "dense")
    assert "published" not in page.rows("bounds-1")[0]


def test_the_known_implementations_are_there_as_published(pages: dict[str, Page]) -> None:
    page = pages["workloads/dense_swiglu_backward"]
    rows = page.rows("implementations")
    assert len(rows) == 29
    assert rows[0] == {"implementation": "Recursive", "runtime": "unknown", "best latency": "16.00 ms",
                       "to first": "1.08×", "evidence": "reported",
                       "availability": "license unknown, no source"}  # fmt: skip
    assert [row["runs"] for row in page.rows("aggregates")] == ["19", "10"]
    assert "implementations" not in pages["workloads/moe_swiglu_backward"].tables


def test_the_comparison_has_every_measured_figure(pages: dict[str, Page]) -> None:
    page = pages["workloads/moe_swiglu_backward"]
    shown = page.tables["group-0-cases"][0]
    numbers = dict(zip([row[0] for row in page.tables["group-0-cases"]], page.numbers["group-0-cases"], strict=True))
    measured = [figures for figures in page.data["measurements"] if figures["protocol"] == "queued"]
    assert len(measured) == len(MOE)
    for figures in measured:
        assert numbers[figures["case"]][shown.index(figures["kernel"])] == figures["latency_ms"]
    assert page.rows("group-0-cases")[0]["tokens"] == "1"
    kernels = {row["kernel"]: row for row in page.rows("group-0-kernels")}
    ranked = {row["implementation"]: row for row in page.rows("board-1")}
    for name, row in ranked.items():
        assert (kernels[name]["mean latency"], kernels[name]["% SOL"]) == (row["mean latency"], row["% SOL"])


def test_a_workload_says_what_is_asked_and_how_it_is_decided(pages: dict[str, Page]) -> None:
    page = pages["workloads/dense_swiglu_backward"]
    workload = CATALOG.workload("dense")
    for part in (
        "7fe88d3a3a93…", workload.sha256, "Hermes-4-405B", "005_swiglu_mlp_backward", "batch_size", "= 16384",
        "atol 0.13 to 0.26, rtol 0.05", "At least 99%", "at most 0.01", "Not measured on H100 for this workload.",
        "reported", "measured", "reproduced", "drawn in secret", "S = 1 / (1 + (T", "How records are decided",
    ):  # fmt: skip
        assert part in page.text
    assert [row["tensor"] for row in page.rows("tensors")] == [*workload.model.inputs, *workload.model.outputs]
    assert len(page.rows("cases-table")) == 18


def test_drawings_show_kernels_beside_bound_baseline_and_record(pages: dict[str, Page]) -> None:
    for name, record in (("moe", "42.20 µs"), ("dense", "14.80 ms")):
        page = pages[f"workloads/{name}_swiglu_backward"]
        assert page.count["figure"] == 2 * len([path for path in RESULTS if path.stem.startswith(name)])
        for part in ("eager (baseline)", "fused_pointwise", "bound, NVIDIA H200", "published baseline, NVIDIA B200",
                     "published bound, NVIDIA B200", f"published record, mean of all cases: {record}",
                     "datasheet peaks, NVIDIA H200", "it is not ranked against"):  # fmt: skip
            assert part in page.text, part


def test_the_index_counts_what_there_is(pages: dict[str, Page]) -> None:
    index = pages["index"]
    assert index.data["records"] == sum(len(store.read(path)[0]) for path in RESULTS)
    assert [one["name"] for one in index.data["workloads"]] == list(CATALOG.workload_folders())
    assert index.data["devices"] == ["NVIDIA H200"]
    assert index.data["made"] in index.text
    assert len(index.rows("sets")) == len([path for path in pages if path.startswith("records/")])
    records = [record for path in RESULTS for record in store.read(path)[0]]
    assert len(index.rows("sets")) == len({(record.workload, record.kernel, record.protocol) for record in records})


def test_a_measured_kernel_has_a_page_with_all_that_is_known(pages: dict[str, Page]) -> None:
    name = "records/moe_swiglu_backward-fused_pointwise-nvidia_h200-queued"
    (page,) = (page for path, page in pages.items() if path.startswith(name))
    records = copies("fused_pointwise")
    means = [geometric_mean([r.latency_ms or 0 for r in copies(name)]) for name in {r.kernel for r in MOE}]
    rank = 1 + sum(mean < geometric_mean([r.latency_ms or 0 for r in records]) for mean in means)
    assert page.kept["pre"] == "solbench run moe_swiglu_backward -k fused_pointwise -p queued --seed 200"
    for part in ("kernels/moe_swiglu_backward/fused_pointwise/kernel.py", records[0].kernel_sha256, "MIT",
                 "580.159.04", "1980 MHz", "700 W", "139.8 GiB", records[0].protocol_sha256,
                 f"{rank} of {len(means)}"):  # fmt: skip
        assert part is not None
        assert part in page.text
    assert page.data["records"] == [json.loads(record.to_line()) for record in records]
    row = page.rows("cases")[0]
    timing, referee = records[0].timings["queued"], records[0].referee
    assert referee is not None
    low, high = map(format_ms, timing["ci95_ms"])
    assert (row["case"], row["latency"]) == ("t1", format_ms(records[0].latency_ms))
    assert row["95% interval"] == f"{low} to {high}"
    assert (row["backend"], row["calls"], row["held"]) == ("queued", str(timing["iterations"]), "100%")
    assert row["checked"] == f"{len(referee['whole_calls'])} + parts"
    worst = {row["output"]: row for row in page.rows("worst")}
    assert list(worst) == list(CATALOG.workload("moe").model.outputs)
    worst_case = max(records, key=lambda record: record.correctness["outputs"]["grad_x"]["norm_rel_error"])  # type: ignore[index]
    assert worst["grad_x"]["norm-relative error"].endswith(f"({worst_case.case})")
    assert len(page.rows("correctness")) == 16 * 4


# --- records of every kind -------------------------------------------------------------------------


def only_record(found: dict[str, Page]) -> Page:
    (page,) = (page for path, page in found.items() if path.startswith("records/"))
    return page


def test_what_a_record_says_of_determinism_is_shown(tmp_path: Path) -> None:
    said = {"determinism": {"repeats": 3, "bitwise": True}}
    records = [
        replace(r, correctness={**(r.correctness or {}), **(said if r.case == "t1" else {"determinism": None})})
        for r in copies()
    ]
    page = only_record(built(tmp_path, *records))
    assert "t1: repeats 3, bitwise yes" in page.text
    assert "t2, t4" in page.text
    assert "not recorded" in page.text


def test_checked_calls_and_unheld_samples_are_counted(tmp_path: Path) -> None:
    timing = {**MOE[0].timings["queued"], "checked_calls": [2, 50], "held": [True] * 25 + [False] * 25}
    row = only_record(built(tmp_path, *copies(timings={"queued": timing}, latency_ms=MOE[0].latency_ms))).rows("cases")[
        0
    ]
    assert (row["checked"], row["held"]) == ("2", "50%")


def test_a_kernel_without_a_whole_run_is_shown_and_on_no_board(tmp_path: Path) -> None:
    failed = {"status": Status.TIMEOUT, "reason": "took longer than 300 s", "latency_ms": None}
    records = [replace(r, **failed) if r.case == "t8192" else r for r in copies()]  # type: ignore[arg-type]
    found = built(tmp_path, *records)
    page, workload = only_record(found), found["workloads/moe_swiglu_backward"]
    assert "No run of this kernel" in page.text
    assert "t8192: took longer than 300 s" in page.text
    assert "15 of 16" in page.text
    assert "Left out: eager: has 15 of 16 cases" in workload.text
    assert workload.rows("group-0-cases")[-1]["eager"] == "TIMEOUT"
    assert "board-1" not in workload.tables


def test_scaled_figures_are_apart_and_say_so(tmp_path: Path) -> None:
    found = built(tmp_path, *copies(), *copies(scale=8, run_id="other"))
    workload = found["workloads/moe_swiglu_backward"]
    assert "SCALED 1/8" in workload.text
    assert "Left out: eager: was measured at scale 1/8" in workload.text
    assert len(workload.rows("board-1")) == 1
    scaled = next(page for page in found.values() if "--scale 8" in page.kept["pre"])
    assert "not comparable with full size" in scaled.text


def test_the_newest_whole_run_is_what_every_table_shows(tmp_path: Path) -> None:
    """A later run of one case neither replaces a figure of the whole run nor gets lost."""
    later = "2100-01-01T00:00:00+00:00"
    newer = [replace(r, run_id="newer", time=later) for r in copies("compiled", kernel="eager", kernel_sha256=None)]
    older = [replace(r, run_id="older") for r in copies("eager", kernel_sha256=None)]
    part = replace(older[0], run_id="part", time="2100-01-02T00:00:00+00:00")
    found = built(tmp_path, *newer, *older, part)
    page, workload = only_record(found), found["workloads/moe_swiglu_backward"]
    compiled = copies("compiled")
    first, mean_ms = format_ms(compiled[0].latency_ms), geometric_mean([r.latency_ms or 0 for r in compiled])
    assert page.rows("cases")[0]["latency"] == first
    assert [(row["run"], row["shown here"]) for row in page.rows("runs")] == [
        ("older", "no"), ("newer", "yes"), ("part", "no"),
    ]  # fmt: skip
    assert workload.rows("group-0-cases")[0]["eager"] == f"{first} ({(compiled[0].sol or {})['roofline']:.0%})"
    assert workload.rows("board-1")[0]["mean latency"] == format_ms(mean_ms)


def test_an_older_version_of_a_workload_is_named(tmp_path: Path) -> None:
    found = built(tmp_path, *copies(workload_sha256="abcdef" * 10), *copies(run_id="now"))
    page = found["workloads/moe_swiglu_backward"]
    assert "Measured for version abcdefabcdef of this workload" in page.text
    assert "workload version abcdefa" in page.text
    assert len([path for path in found if path.startswith("records/")]) == 2


def test_a_site_without_measurements_shows_what_was_published(tmp_path: Path) -> None:
    found = built(tmp_path)
    assert set(found) == {"index", "workloads/moe_swiglu_backward", "workloads/dense_swiglu_backward"}
    page = found["workloads/moe_swiglu_backward"]
    assert len(page.rows("board-0")) == 34
    assert page.count["figure"] == 2
    assert "No kernel was measured here" in page.text


def test_results_are_found_in_the_catalogue_where_none_are_named(toy_root: Path, tmp_path: Path) -> None:
    record = made_record(workload="toy", case="r3", timings={"host": {"samples_ms": [1.5] * 8}})
    done = solbench("site", "-o", "out", "--root", str(toy_root), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    installed = "results/nvidia_h200/" in "".join(path.as_posix() for path in RESULTS)
    assert ("no results files" in done.stderr) != installed
    (toy_root / "results" / "mine").mkdir(parents=True)
    written(toy_root / "results" / "mine" / "r.jsonl", record.to_line())
    assert solbench("site", "-o", "out", "--root", str(toy_root), cwd=tmp_path).returncode == 0
    page = Page(tmp_path / "out" / "workloads" / "toy.html")
    assert [row["kernel"] for row in page.rows("group-0-kernels")] == ["k"]


def test_results_of_every_protocol_are_found_and_baselines_are_not(toy_root: Path) -> None:
    for place in ("device/a.jsonl", "device/host/a.jsonl", "baselines/device/main.jsonl", "published/b.yaml"):
        (toy_root / "results" / place).parent.mkdir(parents=True, exist_ok=True)
        (toy_root / "results" / place).write_text("")
    found = [path for path in site.results_files(Catalog(toy_root)) if path.is_relative_to(toy_root)]
    assert [path.relative_to(toy_root).as_posix() for path in found] == [
        "results/device/a.jsonl",
        "results/device/host/a.jsonl",
    ]


def test_a_workload_of_ones_own_has_a_page_without_published_figures(toy_root: Path, tmp_path: Path) -> None:
    records = [
        made_record(workload="toy", case=case, timings={"host": {"samples_ms": [1.5] * 8}}) for case in ("r3", "r8")
    ]
    page = built(tmp_path, *records, catalog=Catalog(toy_root))["workloads/toy"]
    assert [row["implementation"] for row in page.rows("board-0")] == ["k"]
    assert list(page.rows("cases-table")[0]) == ["case", "rows", "atol", "rtol"]
    assert page.count["figure"] == 2
    assert "grey" not in page.text


# --- bad input -------------------------------------------------------------------------------------


def written(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


GOOD = [record.to_line() for record in copies()]
NEWER = json.dumps({**json.loads(GOOD[0]), "schema": 99})

# name: (lines, the sentences that they come to)
BAD: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "a damaged line": ([*GOOD, GOOD[0][:200]], ["r.jsonl:17: left out: it is not JSON"]),
    "a newer schema": ([NEWER, *GOOD], ["r.jsonl:1: left out: it has schema 99 and this version reads up to"]),
    "an unknown workload": (
        [*GOOD, *(made_record(workload="strange", case=c).to_line() for c in "abdxyz")],
        ['r.jsonl:17: left out: it is of the workload "strange", which is not known here (so are 5 more'],
    ),
    "no samples": (
        [*GOOD, replace(copies()[0], timings={}, run_id="x").to_line()],
        ["r.jsonl:17: left out: it has a latency without samples; measure it again"],
    ),
    "a latency that its samples do not come to": (
        [*GOOD, replace(copies()[0], latency_ms=0.001, run_id="x").to_line()],
        ["r.jsonl:17: left out: its latency is 0.001 ms and the median of its samples"],
    ),
    "no time": ([*GOOD, replace(copies()[0], time="noon", run_id="x").to_line()], ["r.jsonl:17", "noon"]),
    "an empty file": ([], ["r.jsonl: holds no records"]),
    "blank lines": (["", " ", *GOOD], []),
    "every record twice": ([*GOOD, *GOOD], []),
    "figures that are no numbers": (
        [re.sub(r'"floor_ms": [0-9.]+', '"floor_ms": NaN', line).replace('"score": 0.5', '"score": 1e999')
         for line in GOOD], [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_what_cannot_be_shown_is_said_by_line_and_the_rest_is_used(kind: str, tmp_path: Path) -> None:
    lines, sentences = BAD[kind]
    written(tmp_path / "r.jsonl", *lines)
    done = solbench("site", "r.jsonl", "-o", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == (1 if sentences else 0)
    for sentence in sentences:
        assert sentence in warnings[0]
    index = Page(tmp_path / "out" / "index.html")
    assert index.data["records"] == (16 if lines else 0)
    for page in opened(tmp_path / "out").values():
        assert page.data["schema"] == 1


def test_two_records_that_contradict_each_other_stop_the_site(tmp_path: Path) -> None:
    changed = replace(copies()[0], license="changed").to_line()
    written(tmp_path / "a.jsonl", *GOOD)
    written(tmp_path / "b.jsonl", GOOD[1], changed)
    done = solbench("site", "a.jsonl", "b.jsonl", "-o", "out", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("solbench: b.jsonl:2: contradicts a.jsonl:1: both are eager on t1")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="contradicts"):
        gather([written(tmp_path / "c.jsonl", GOOD[0], changed)], {"moe_swiglu_backward": None})


def test_lines_of_one_problem_are_said_together(tmp_path: Path) -> None:
    bad = [GOOD[0], "{", *GOOD[1:3], "{", "{", "{", GOOD[3], "{"]
    found = gather([written(tmp_path / "r.jsonl", *bad)], {"moe_swiglu_backward": None})
    assert len(found.records) == 4
    (problem,) = found.problems
    assert "r.jsonl:2: left out" in problem
    assert problem.endswith("(so are 4 more, for the same reason: lines 5-7, 9)")


def test_a_faulty_workload_is_named_and_the_others_have_pages(tmp_path: Path) -> None:
    toy = tmp_path / "workloads" / "toy"
    toy.mkdir(parents=True)
    (toy / "reference.py").write_text(TOY_REFERENCE)
    (toy / "workload.yaml").write_text(TOY_YAML.replace("schema: 1", "schema: x"))
    written(tmp_path / "r.jsonl", *GOOD, made_record(workload="toy").to_line())
    done = solbench("site", "r.jsonl", "-o", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "workload.yaml:1" in done.stderr
    assert 'r.jsonl:17: left out: it is of the workload "toy", whose file is faulty' in done.stderr
    assert len(opened(tmp_path / "out")) == 4


# name: (arguments, part of what is said)
USAGE = {
    "a file that is not there": (["gone.jsonl", "-o", "out"], "gone.jsonl: cannot be read"),
    "a folder as results": ([".", "-o", "out"], ".: cannot be read"),
    "a file as folder": (["-o", "file"], "--output file: is no folder"),
    "a folder of something else": (["-o", "full"], "--output full: is not empty and no earlier site"),
    "a folder below a file": (["-o", "file/site"], "--output file/site: cannot be written"),
}


@pytest.mark.parametrize("kind", USAGE)
def test_a_wrong_use_is_told_in_a_sentence(kind: str, tmp_path: Path) -> None:
    arguments, part = USAGE[kind]
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious.txt").write_text("x")
    done = solbench("site", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert part in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "full", "precious.txt"]


# --- the folder ------------------------------------------------------------------------------------


def files_of(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_an_earlier_site_is_replaced_and_what_is_not_of_it_stays(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    built(tmp_path, *copies(), *copies("compiled"))
    before = set(files_of(folder))
    (folder / "notes.txt").write_text("mine")
    built(tmp_path, *copies())
    after = set(files_of(folder))
    (gone,) = {path.rpartition(".")[0] for path in before - after}
    assert "compiled" in gone
    assert after - before == {"notes.txt"}
    built(tmp_path)
    assert not (folder / "records").exists()


def test_the_same_records_make_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    built(tmp_path / "a", *copies())
    built(tmp_path / "b", *copies())
    assert files_of(tmp_path / "a" / "site") == files_of(tmp_path / "b" / "site")


def test_a_changed_marker_gets_no_other_file_removed(tmp_path: Path) -> None:
    built(tmp_path, *copies())
    precious = tmp_path / "precious.html"
    precious.write_text("x")
    (tmp_path / "site" / "notes.html").write_text("x")
    names = ["../precious.html", "notes.html", str(precious), "records/../../precious.html"]
    (tmp_path / "site" / site.MARKER).write_text(json.dumps({"schema": 1, "files": names}))
    built(tmp_path)
    assert precious.exists()
    assert (tmp_path / "site" / "notes.html").exists()
    (tmp_path / "site" / site.MARKER).write_text("{}")
    with pytest.raises(InputError, match="no earlier site"):
        built(tmp_path)


def test_sets_of_names_that_differ_in_signs_only_have_files_of_their_own() -> None:
    from harness.leaderboard import measured_sets

    names = ["my kernel", "my_kernel", "My-Kernel", "my/kernel", "MY KERNEL\n"]
    records = [made_record(kernel=name, kernel_sha256=sha) for name in names for sha in (None, "a")]
    paths = [record_path(found) for found in measured_sets(records)]
    assert len({path.lower() for path in paths}) == len(paths) == 10


# --- drawings --------------------------------------------------------------------------------------


def drawn(*points: tuple[float, float]) -> chart.Drawing | None:
    series = Series("s", "s0", [Point(x, y, "p") for x, y in points], mark=0)
    return chart.draw(Chart("c", "t", "d", "x", "y", str, str, [series]))


@pytest.mark.parametrize("points", [[(1.0, 1.0)], [(1.0, 2.0), (8192.0, 1e-9)], [(5.0, 5.0), (5.0, 6.0)]])
def test_every_mark_lies_within_the_drawing(points: list[tuple[float, float]]) -> None:
    drawing = drawn(*points)
    assert drawing is not None
    for x, y, _ in drawing.drawn[0].marks:
        assert drawing.left <= x <= drawing.right
        assert drawing.top <= y <= drawing.bottom


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.inf, math.nan, 1e308, 5e-324])
def test_what_has_no_logarithm_is_not_drawn(wrong: float) -> None:
    assert drawn((wrong, 1.0)) is None
    drawing = drawn((1.0, wrong), (2.0, 3.0))
    assert drawing is not None
    assert len(drawing.drawn[0].marks) == 1


@pytest.mark.parametrize(("low", "high"), [(0.9, 9500), (1.1, 1.3), (1e-3, 1e9), (4, 4.5), (0.002, 4), (99, 101)])
def test_axes_have_a_few_ticks_between_their_ends(low: float, high: float) -> None:
    ticks = chart.ticks(low, high)
    assert 1 <= len(ticks) <= chart.MOST_TICKS
    assert ticks == sorted(ticks)
    assert all(low <= tick <= high for tick in ticks)


# --- in a browser ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    path = browser.find()
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(browser.NAMES)} is installed, and SOLBENCH_BROWSER names none")
    with browser.Browser(path, tmp_path_factory.mktemp("profile")) as found:
        yield found


# What a phone, a large screen and a dark screen are.
SCREENS = {"desktop": (1280, False), "phone": (390, False), "dark": (1280, True), "dark phone": (390, True)}


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("which", ["pages", "hostile"])
def test_pages_load_without_complaint_and_fit_the_screen(
    which: str, screen: str, request: pytest.FixtureRequest, tab: browser.Browser
) -> None:
    width, dark = SCREENS[screen]
    found: dict[str, Page] = request.getfixturevalue(which)
    chosen = [page for path, page in found.items() if not path.startswith("records/")]
    chosen += [page for path, page in found.items() if path.startswith("records/")][:2]
    tab.complaints.clear()
    tab.requests.clear()
    for page in chosen:
        tab.open(page.path, width=width, dark=dark)
        assert tab.run("document.documentElement.scrollWidth") <= width, page.path
        assert tab.run("document.querySelector('thead button') !== null")
        brightness = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
        assert (max(tab.run(brightness)) < 80) == dark
    assert tab.complaints == []
    assert {url.split(":")[0] for url in tab.requests} <= {"file", "data"}


def column(tab: browser.Browser, table: str, index: int) -> list[str]:
    found = tab.run(
        f"[...document.getElementById('{table}').tBodies[0].rows].filter(r => !r.hidden)"
        f".map(r => r.cells[{index}].textContent.trim())"
    )
    return list(found)


def test_a_heading_sorts_by_numbers_and_again_the_other_way(pages: dict[str, Page], tab: browser.Browser) -> None:
    page = pages["workloads/moe_swiglu_backward"]
    tab.open(page.path)
    reference = page.tables["group-0-cases"][0].index("reference")
    heading = f"#group-0-cases thead th:nth-child({reference + 1})"
    in_order = column(tab, "group-0-cases", 0)
    numbers = [row[reference] for row in page.numbers["group-0-cases"][1:]]
    by_number = [case for _, case in sorted(zip(numbers, in_order, strict=True))]
    state = f"document.querySelector({json.dumps(heading)}).getAttribute('aria-sort')"
    assert tab.run(state) == "none"
    tab.click(f"{heading} button")
    assert column(tab, "group-0-cases", 0) == by_number != in_order
    assert tab.run(state) == "ascending"
    tab.click(f"{heading} button")
    assert column(tab, "group-0-cases", 0) == by_number[::-1]
    assert tab.run(state) == "descending"
    assert tab.run("document.querySelector('[role=status]').textContent") == "Sorted by reference, descending"
    tab.click("#group-0-cases thead th:first-child button")
    assert column(tab, "group-0-cases", 0) == in_order  # t16 after t8
    assert tab.run(state) == "none"


def test_the_keyboard_sorts_too(pages: dict[str, Page], tab: browser.Browser) -> None:
    tab.open(pages["workloads/dense_swiglu_backward"].path)
    tab.run("document.querySelector('#group-0-kernels thead th:nth-child(3) button').focus()")
    unsorted = column(tab, "group-0-kernels", 2)
    rising = sorted(unsorted, key=lambda text: float(text.split()[0]))
    assert len(set(unsorted)) > 1
    for expected in (rising, rising[::-1]):
        tab.press("Enter", 13, "\r")
        assert column(tab, "group-0-kernels", 2) == expected


def test_a_filter_leaves_the_rows_that_hold_every_word(pages: dict[str, Page], tab: browser.Browser) -> None:
    tab.open(pages["workloads/moe_swiglu_backward"].path)
    everything = column(tab, "group-0-cases", 0)
    box = "[data-filters=group-0-cases]"
    tab.click(f"{box} input[type=search]")
    tab.type("MEMORY t1")
    assert column(tab, "group-0-cases", 0) == ["t1", "t16", "t128"]
    assert tab.run(f"document.querySelector('{box} output').textContent") == "3 of 16 rows"
    tab.type(" nothing")
    assert column(tab, "group-0-cases", 0) == []
    tab.run(f"document.querySelector('{box} input').select()")
    tab.press("Backspace", 8)
    assert column(tab, "group-0-cases", 0) == everything


def test_kernels_can_be_hidden_from_the_comparison(pages: dict[str, Page], tab: browser.Browser) -> None:
    page = pages["workloads/moe_swiglu_backward"]
    tab.open(page.path)
    eager = page.tables["group-0-cases"][0].index("eager")
    seen = f"[...document.querySelectorAll('#group-0-cases tr')].map(r => r.cells[{eager}].offsetWidth > 0)"
    assert set(tab.run(seen)) == {True}
    tab.click(f"[data-filters=group-0-cases] input[value='{eager}']")
    assert set(tab.run(seen)) == {False}
    tab.click(f"[data-filters=group-0-cases] input[value='{eager}']")
    assert set(tab.run(seen)) == {True}


def test_without_scripts_the_tables_are_plain_and_whole(pages: dict[str, Page], tab: browser.Browser) -> None:
    page = pages["workloads/moe_swiglu_backward"]
    tab.open(page.path, script=False)
    assert tab.run("document.querySelectorAll('thead button').length") == 0
    assert tab.run("[...document.querySelectorAll('.controls')].every(c => c.offsetHeight === 0)")
    assert len(column(tab, "board-0", 0)) == 34


def test_a_page_prints_on_paper(pages: dict[str, Page], tab: browser.Browser) -> None:
    tab.open(pages["workloads/moe_swiglu_backward"].path, dark=True)
    assert tab.pdf().startswith(b"%PDF")
    tab.call("Emulation.setEmulatedMedia", media="print")
    assert tab.run("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    tab.call("Emulation.setEmulatedMedia", media="")
