"""The README and the committed results say what the records say, and the records are of this tree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import REPOSITORY

from harness import figures, store
from harness.catalog import Catalog
from harness.records import Status
from harness.report import markdown

RESULTS = REPOSITORY / "results"
FILES = sorted(path for path in RESULTS.rglob("*.jsonl") if "baselines" not in path.parts)
NAMES = [str(path.relative_to(RESULTS).with_suffix("")) for path in FILES]
CATALOG = Catalog(REPOSITORY)


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_committed_records_are_whole_and_passed(path: Path) -> None:
    records, bad = store.read(path)
    assert bad == []
    workload = CATALOG.workload(path.stem)
    for kernel in {record.kernel for record in records}:
        mine = [record for record in records if record.kernel == kernel]
        assert [record.case for record in mine] == workload.case_ids()
        assert all(record.status is Status.PASSED and record.scale == 1 for record in mine)
    for record in records:
        for timing in record.timings.values():
            assert timing["iterations"] == len(timing["samples_ms"]) >= 10


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_committed_records_are_of_the_sources_in_this_tree(path: Path) -> None:
    workload = CATALOG.workload(path.stem)
    for record in store.read(path)[0]:
        assert record.workload_sha256 == workload.sha256, "the workload changed: measure again"
        assert record.protocol_sha256 == CATALOG.protocol(record.protocol).sha256, "the protocol changed"
        kernel = CATALOG.kernel(record.kernel, workload)
        assert record.kernel_sha256 == kernel.sha256, f"{record.kernel} changed: measure again"


@pytest.mark.parametrize(
    ("document", "folder"), [("README.md", "nvidia_h200"), ("results/README.md", "nvidia_h200/sol-execbench-v1.1")]
)
def test_a_readme_shows_what_report_makes_of_the_records(document: str, folder: str) -> None:
    files = [RESULTS / folder / f"{name}_swiglu_backward.jsonl" for name in ("moe", "dense")]
    records, _ = figures.read(files)
    readme = (REPOSITORY / document).read_text()
    shown = readme.partition("<!-- report -->\n")[2].partition("<!-- end of report -->")[0]
    assert shown.strip() == markdown(figures.with_baselines(records)).strip()


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_committed_records_lie_where_their_protocol_says(path: Path) -> None:
    protocols = {record.protocol for record in store.read(path)[0]}
    assert protocols == ({"queued"} if path.parent.parent == RESULTS else {path.parent.name})


def test_committed_records_name_no_place_of_the_machine_that_made_them() -> None:
    for path in FILES:
        assert not re.search(r'"/(root|home|tmp|work)', path.read_text())
