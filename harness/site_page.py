"""Which pages has a site, and what is known for each? The parts that all of them share."""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from harness.figures import Figures, Reader, with_baselines
from harness.leaderboard import Board, MeasuredSet, boards_of, measured_sets
from harness.published import PublishedModel
from harness.records import Record
from harness.report import Group, groups
from harness.spec import Workload
from harness.text import slug

INDEX = "index"
# A file's name has at most 255 bytes; this leaves room for a hash and a suffix.
_LONGEST = 120


@dataclass(frozen=True)
class Page:
    """One page: `path` without suffix, `view` for its template, and `data` for the JSON beside it."""

    path: str
    template: str
    title: str
    view: Mapping[str, Any]
    data: Mapping[str, Any]

    def to(self, path: str) -> str:
        """The relative address of another page of the site, or of a file."""
        return relative(self.path, path)


@dataclass(frozen=True)
class Known:
    """Everything that is known of one workload: what others published of it, and what was measured."""

    workload: Workload
    published: PublishedModel | None
    records: Sequence[Record]

    @cached_property
    def sets(self) -> Sequence[MeasuredSet]:
        return measured_sets(self.records)

    @cached_property
    def ranked(self) -> tuple[list[Board], list[str]]:
        """Boards, and sentences about what is on none."""
        return boards_of(self.workload, self.published, self.records)

    @property
    def boards(self) -> Sequence[Board]:
        return self.ranked[0]

    @cached_property
    def figures(self) -> Sequence[tuple[MeasuredSet, Sequence[Figures]]]:
        """What stands for each set of runs."""
        reader, cases = Reader(), self.workload.case_ids()
        sizes = [len(found.shown(cases)) for found in self.sets]
        flat = iter(with_baselines([reader.of_record(r) for found in self.sets for r in found.shown(cases)]))
        return [(found, list(islice(flat, size))) for found, size in zip(self.sets, sizes, strict=True)]

    @cached_property
    def groups(self) -> Sequence[Group]:
        """Groups of comparable records, as reports have them."""
        return groups(record for _, records in self.figures for record in records)

    @property
    def path(self) -> str:
        return f"workloads/{_file_name(self.workload.name)}"

    def page_of(self, record: Figures) -> str:
        """The path of the page that holds the record."""
        return next(record_path(found) for found, records in self.figures if any(record is one for one in records))


def record_path(found: MeasuredSet) -> str:
    """A name that people can read and that no other set of runs has, whatever the names hold."""
    readable = "-".join(slug(name) for name in (found.workload, found.kernel, found.device, found.protocol))
    return f"records/{readable[:_LONGEST]}-{_hash(found.key)}"


def _file_name(name: str) -> str:
    """The name itself where it is safe in any file system, or else one that tells it apart."""
    return name if name == slug(name) else f"{slug(name)[:_LONGEST]}-{_hash(name)}"


def _hash(key: object) -> str:
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:10]


def relative(start: str, target: str) -> str:
    """From one page to another, as in `../index.html`; both paths without suffix."""
    return posixpath.relpath(target, posixpath.dirname(start) or ".")
