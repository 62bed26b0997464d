"""How near each other separate processes come, as docs/measuring.md shows it, from results of `solbench noise`.

    python benchmarks/noise_table.py FILE... [--json FILE] [--write docs/measuring.md]

For every case the greatest and the least median of the processes lie `spread` apart. They are to agree within 1%, and
within 2% in MoE cases of fewer than 128 tokens; ≠ marks where they do not. `--json` keeps the medians, and what a
launch of next to nothing read in each process; `--write` puts the table between the marks of a document.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(Path(__file__).resolve().parent), str(REPOSITORY)]

from documents import write_between_marks  # noqa: E402

from harness import noise, store  # noqa: E402
from harness.catalog import gate_policy  # noqa: E402
from harness.compare import Criteria, NotComparable  # noqa: E402
from harness.errors import InputError  # noqa: E402
from harness.noise import CaseNoise  # noqa: E402
from harness.records import Record  # noqa: E402
from harness.text import ABSENT, format_ms, format_share, markdown_table  # noqa: E402

MARK = "noise"
HEADINGS = ("case", "processes", "median", "spread", "95% of them", "within a process (IQR)")
# How near medians of separate processes are to be: launches take most of the time of a few tokens.
AGREED, AGREED_FOR_FEW = 0.01, 0.02
FEW_TOKENS = 128


def whole(file: Path) -> list[Record]:
    """The records of a file. Raises `InputError` for one without any, and for a line that is none."""
    records, bad = store.read(file)
    if bad or not records:
        raise InputError(str(file), str(bad[0]) if bad else "holds no records", "give what solbench noise -o wrote")
    return records


def agreed(record: Record) -> float:
    tokens = record.axes.get("T")
    return AGREED_FOR_FEW if tokens is not None and int(tokens) < FEW_TOKENS else AGREED


def tables(records: Sequence[Record]) -> str:
    """A table for each workload and kernel, with what the clock did. Raises `NotComparable`, `InputError`."""
    policy = gate_policy(REPOSITORY, None)
    found = noise.summarise(records, Criteria(policy.confidence, policy.minimum_effect))
    of = {(r.workload, r.kernel, r.case): r for r in records}
    parts = []
    for workload, kernel in dict.fromkeys((one.workload, one.kernel) for one in found):
        cases = [one for one in found if (one.workload, one.kernel) == (workload, kernel)]
        same = [record for record in records if (record.workload, record.kernel) == (workload, kernel)]
        holds = [one.spread <= agreed(of[workload, kernel, one.case]) for one in cases]
        commit = str(same[0].environment.get("git_commit"))[:7]
        where = f"{same[0].device}, {same[0].protocol}, commit {commit}, {same[0].time[:10]}"
        parts.append(f"**{workload}, `{kernel}`** ({where}): {sum(holds)} of {len(cases)} cases agree.")
        rows = [_row(one, agrees) for one, agrees in zip(cases, holds, strict=True)]
        parts.append(markdown_table(HEADINGS, rows))
        parts += noise.limits(same)
    return "\n\n".join(parts) + "\n"


def _row(one: CaseNoise, agrees: bool) -> list[str]:
    apart = format_share(one.spread, 2) + ("" if agrees else " ≠")
    middle = f"{one.low * 100:+.2f}% to {one.high * 100:+.2f}%"
    inside = ABSENT if one.relative_iqr is None else format_share(one.relative_iqr, 2)
    return [one.case, str(one.processes), format_ms(one.median_ms), apart, middle, inside]


def medians(records: Sequence[Record]) -> dict[str, Any]:
    """By workload, kernel and case, of every process in order: its median and its floor, in ms."""
    found: dict[str, Any] = {}
    for (workload, kernel, case), same in noise.by_case(records).items():
        timings: list[Mapping[str, Any]] = [record.timings[record.backend or ""] for record in same]
        found.setdefault(workload, {}).setdefault(kernel, {})[case] = {
            "median_ms": [timing["median_ms"] for timing in timings],
            "floor_ms": [timing.get("floor_ms") for timing in timings],
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what solbench noise -o wrote")
    parser.add_argument("--json", type=Path, help="keep the processes' medians and floors in this file")
    parser.add_argument("--write", type=Path, help="put the tables between the marks of this file")
    options = parser.parse_args()
    try:
        records = [record for file in options.files for record in whole(file)]
        text = tables(records)
    except (InputError, NotComparable) as error:
        parser.error(str(error))  # exit code 2
    print(text)
    if options.json:
        options.json.write_text(json.dumps(medians(records), indent=1) + "\n")
    if options.write:
        write_between_marks(options.write, MARK, text)


if __name__ == "__main__":
    main()
