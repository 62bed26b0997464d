"""How does a catalogue with its records become a folder of pages? Self-contained, and replaced whole."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from harness import __version__, html, published, site_index, site_record, site_workload
from harness.catalog import Catalog
from harness.errors import InputError
from harness.site_page import Known, Page
from harness.site_records import Gathered, gather
from harness.spec import Workload

# In every folder that this module wrote: which pages are ours, and so may be replaced.
MARKER = ".solbench-site.json"
_OURS = re.compile(r"(index|(workloads|records)/[a-z0-9_-]+)\.(html|json)")


def results_files(catalog: Catalog) -> list[Path]:
    """The results files of the catalogue's roots but for baselines; of two with the same place, the first root's."""
    found: dict[Path, Path] = {}
    for root in catalog.roots:
        results = root / "results"
        for path in sorted([*results.glob("*/*.jsonl"), *results.glob("*/*/*.jsonl")]):
            place = path.relative_to(results)
            if place.parts[0] != "baselines":
                found.setdefault(place, path)
    return list(found.values())


def pages(catalog: Catalog, files: Iterable[Path]) -> tuple[list[Page], list[str]]:
    """Every page, and a sentence for each thing that could not be used. Raises `InputError`."""
    workloads, faults = _workloads(catalog)
    gathered: Gathered = gather(
        files, {**dict.fromkeys(workloads, None), **dict.fromkeys(faults, "whose file is faulty")}
    )
    devices = list(catalog.devices().values())
    known = [
        Known(
            workload,
            published.load(catalog.roots, workload.name),
            [record for record in gathered.records if record.workload == workload.name],
        )
        for workload in workloads.values()
    ]
    found = [site_index.page(known)]
    for one in known:
        found.append(site_workload.page(one, devices))
        found += [site_record.page(one, runs, figures, catalog) for runs, figures in one.figures]
    return found, [*faults.values(), *gathered.problems]


def _workloads(catalog: Catalog) -> tuple[dict[str, Workload], dict[str, str]]:
    """The workloads of the catalogue by name, and what is wrong with those that cannot be read."""
    sound: dict[str, Workload] = {}
    faults: dict[str, str] = {}
    for name in catalog.workload_folders():
        try:
            sound[name] = catalog.workload(name)
        except InputError as error:
            faults[name] = str(error)
    return sound, faults


def write(folder: Path, found: Sequence[Page], made: datetime | None = None) -> None:
    """Write the pages and the JSON beside them; pages of an earlier site that are gone are removed.

    Raises `InputError` for a folder that holds something else, or that cannot be written.
    """
    time = (made or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="seconds")
    # All of it before the folder is touched.
    files = {name: text for page in found for name, text in _files(page, time)}
    try:
        before = _ours(folder)
        folder.mkdir(parents=True, exist_ok=True)
        # First, so that a site whose writing was interrupted can be replaced.
        _put(folder / MARKER, _marker(before | files.keys()))
        for name, text in files.items():
            _put(folder / name, text)
        for name in before - files.keys():
            (folder / name).unlink(missing_ok=True)
        for name in ("workloads", "records"):
            with suppress(OSError):  # not empty, or never made
                (folder / name).rmdir()
        _put(folder / MARKER, _marker(files.keys()))
    except OSError as error:
        problem = f"cannot be written ({error.strerror})"
        raise InputError(f"--output {folder}", problem, "choose another folder") from None


def _files(page: Page, made: str) -> Iterator[tuple[str, str]]:
    """A page and the JSON beside it, by name."""
    template = _environment().get_template(page.template)
    around = {"page": page, "made": made, "version": __version__, "assets": html.assets(with_script=True)}
    yield f"{page.path}.html", template.render({**page.view, **around})
    data = {"schema": 1, "solbench": __version__, "made": made, **page.data}
    yield f"{page.path}.json", json.dumps(data, allow_nan=False) + "\n"


_environment = cache(html.environment)


def _marker(names: Iterable[str]) -> str:
    return json.dumps({"schema": 1, "files": sorted(names)}, indent=1) + "\n"


def _ours(folder: Path) -> set[str]:
    """The pages that an earlier call left there. Raises `InputError` for a folder that is none of ours."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--output {folder}", "is no folder", "name a folder that is new, empty or an earlier site")
    if not folder.is_dir() or not any(folder.iterdir()):
        return set()
    try:
        values = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        names = values["files"]
        if values["schema"] != 1 or not all(isinstance(name, str) for name in names):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError):
        problem = f"is not empty and no earlier site (it has no sound {MARKER})"
        raise InputError(f"--output {folder}", problem, "name a folder that is new, empty or an earlier site") from None
    # A marker that someone changed must not get other files removed.
    return {name for name in names if _OURS.fullmatch(name)}


def _put(path: Path, text: str) -> None:
    """Whole or not at all: a reader never sees half a page."""
    path.parent.mkdir(exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
