"""A gate's decision for terminals, CI systems and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from harness.gate import Decision, Finding, Kind
from harness.text import ABSENT, escaped, format_ms, markdown_table

if TYPE_CHECKING:
    from rich.console import RenderableType

HEADINGS = ("case", "baseline", "now", "change", "finding")
# What a CI system shows as a failure, and what as an error of the set-up.
BAD = (Kind.REGRESSION, Kind.MISSING, Kind.FAILED)


def by_kernel(decision: Decision) -> dict[str, list[Finding]]:
    """Findings by workload and kernel, in order of first appearance."""
    found: dict[str, list[Finding]] = {}
    for finding in decision.findings:
        found.setdefault(f"{finding.workload} {finding.kernel}", []).append(finding)
    return found


def _row(finding: Finding) -> tuple[str, ...]:
    return (
        finding.case or "suite",
        format_ms(finding.baseline_ms),
        format_ms(finding.current_ms),
        ABSENT if finding.ratio is None else f"{(finding.ratio.ratio - 1) * 100:+.1f}%",
        finding.kind.value,
    )


def _explained(decision: Decision) -> list[Finding]:
    return [f for f in decision.findings if f.kind is not Kind.WITHIN]


def terminal(decision: Decision) -> list[RenderableType]:
    """Between the first line (the verdict) and the last (what to do): the table and the reasons."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    colours = dict.fromkeys(BAD, "red") | {Kind.UNDECIDED: "yellow", Kind.NOT_COMPARABLE: "red"}
    parts: list[RenderableType] = []
    for name, findings in by_kernel(decision).items():
        table = Table(box=box.SIMPLE_HEAD, title=name, title_justify="left", padding=(0, 1), pad_edge=False)
        for heading in HEADINGS:
            table.add_column(heading, justify="left" if heading in ("case", "finding") else "right")
        for finding in findings:
            table.add_row(*map(Text, _row(finding)), style=colours.get(finding.kind))
        parts.append(table)
    return parts + [Text(f"{finding.name}: {finding.text}") for finding in _explained(decision)]


def markdown(decision: Decision) -> str:
    """For a pull request or a step summary."""
    blocks = [f"**{escaped(decision.verdict)}**"]
    for name, findings in by_kernel(decision).items():
        blocks += [f"### {escaped(name)}", markdown_table(HEADINGS, [_row(finding) for finding in findings])]
    if explained := _explained(decision):
        blocks.append("\n".join(f"- {escaped(f.name)}: {escaped(f.text)}" for f in explained))
    blocks.append(escaped(decision.next_step))
    return "\n\n".join(blocks) + "\n"


def as_json(decision: Decision) -> dict[str, Any]:
    """For programs; latencies in ms, absent is null."""
    return {
        "code": int(decision.code),
        "verdict": decision.verdict,
        "next_step": decision.next_step,
        "findings": [
            {
                "workload": f.workload,
                "kernel": f.kernel,
                "case": f.case,
                "finding": f.kind.value,
                "text": f.text,
                "baseline_ms": f.baseline_ms,
                "current_ms": f.current_ms,
                "ratio": None if f.ratio is None else f.ratio.ratio,
                "samples_needed": f.samples_needed,
            }
            for f in decision.findings
        ],
    }


def junit(decision: Decision) -> str:
    """JUnit XML: one test case for each gated case, kernel or suite; failures carry both numbers."""
    root = ElementTree.Element("testsuites", name="solbench gate")
    for name, findings in by_kernel(decision).items():
        suite = ElementTree.SubElement(root, "testsuite", name=_xml_text(name), tests=str(len(findings)))
        counts = {"failures": 0, "errors": 0, "skipped": 0}
        for finding in findings:
            case = ElementTree.SubElement(
                suite, "testcase", classname=_xml_text(name), name=_xml_text(finding.case or "suite")
            )
            tag = _junit_tag(finding)
            if tag:
                counts[{"failure": "failures", "error": "errors", "skipped": "skipped"}[tag]] += 1
                element = ElementTree.SubElement(case, tag, message=_xml_text(finding.text), type=finding.kind.value)
                element.text = _xml_text(f"{finding.name}: {finding.text}")
        for key, count in counts.items():
            suite.set(key, str(count))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _junit_tag(finding: Finding) -> str | None:
    if finding.kind in BAD:
        return "failure"
    if finding.kind is Kind.NOT_COMPARABLE:
        return "error"
    return "skipped" if finding.kind in (Kind.UNDECIDED, Kind.FAILED_BEFORE) else None


def _xml_text(text: str) -> str:
    """Without the control characters that XML 1.0 cannot hold."""
    return "".join(c if c in "\t\n\r" or (c >= " " and not "\ud800" <= c <= "\udfff") else "�" for c in text)


def github_annotations(decision: Decision) -> list[str]:
    """Workflow commands that mark each finding in the run; a run that passes has none."""
    lines = []
    for finding in _explained(decision):
        level = "error" if finding.kind in (*BAD, Kind.NOT_COMPARABLE) else "warning"
        lines.append(f"::{level} title={_property(finding.name)}::{_data(finding.text)}")
    return lines


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
