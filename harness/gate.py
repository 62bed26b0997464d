"""May this change land? Current results against a baseline, under a policy.

Silence is never consent: what is missing, unreadable, differently measured or undecided has a code of its
own, and a pass means that every gated case was compared and is within its limit.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import IntEnum, StrEnum

from harness import comparison
from harness.compare import (
    CaseComparison,
    Criteria,
    NotComparable,
    SuiteComparison,
    by_workload_and_kernel,
    compare_suite,
    measured_at,
)
from harness.comparison import Limit, LogRatio
from harness.errors import InputError
from harness.records import Record, Status
from harness.spec import GateModel
from harness.text import format_ms


class Code(IntEnum):
    """Exit codes of the gate."""

    PASS = 0
    KERNEL_FAILED = 1
    REGRESSION = 3
    INCONCLUSIVE = 4
    NOT_COMPARABLE = 5


# When several things are wrong, the first of these decides the exit code.
SEVERITY = (Code.NOT_COMPARABLE, Code.KERNEL_FAILED, Code.REGRESSION, Code.INCONCLUSIVE)


class Kind(StrEnum):
    """What became of one gated case, kernel or suite."""

    WITHIN = "within"
    REGRESSION = "regression"
    MISSING = "missing"
    FAILED = "failed"
    FAILED_BEFORE = "failed before too"
    UNDECIDED = "undecided"
    NEW = "new"
    NOT_COMPARABLE = "not comparable"


_CODES = {
    Kind.REGRESSION: Code.REGRESSION,
    Kind.MISSING: Code.REGRESSION,
    Kind.FAILED: Code.KERNEL_FAILED,
    Kind.NOT_COMPARABLE: Code.NOT_COMPARABLE,
}


@dataclass(frozen=True)
class Finding:
    """One gated thing; `case` is None for a kernel's suite. Latencies in ms, `ratio` current over baseline."""

    workload: str
    kernel: str
    case: str | None
    kind: Kind
    text: str
    baseline_ms: float | None = None
    current_ms: float | None = None
    ratio: LogRatio | None = None
    samples_needed: int | None = None

    @property
    def name(self) -> str:
        return f"{self.workload} {self.kernel}{'' if self.case is None else ' ' + self.case}"


@dataclass(frozen=True)
class Decision:
    """All findings, the exit code, and the two sentences that a person reads first and last."""

    findings: Sequence[Finding]
    code: Code
    verdict: str
    next_step: str
    suites: Sequence[SuiteComparison] = field(default=())

    def of(self, *kinds: Kind) -> list[Finding]:
        return [finding for finding in self.findings if finding.kind in kinds]


# For each workload and case the least difference that means anything there, as a share; see `harness.noise`.
Noise = Mapping[tuple[str, str], float]


def decide(
    current: Sequence[Record],
    baseline: Sequence[Record],
    policy: GateModel,
    now: datetime | None = None,
    noise: Noise | None = None,
) -> Decision:
    """Gate `current` on `baseline`. Where `noise` is greater than the policy's least effect, it takes its place.

    Raises `InputError` when a side has no records, a sample is no latency, or a required name matches
    nothing in either side.
    """
    for name, records in (("current results", current), ("baseline", baseline)):
        if not records:
            raise InputError(name, "hold no records", "give a results file of solbench run")
    if {_origin(record) for record in current} <= {_origin(record) for record in baseline}:
        remedy = "give the results of the change (a path that is given twice, perhaps)"
        raise InputError("current results", "are the baseline's own records", remedy)
    before, after = by_workload_and_kernel(baseline), by_workload_and_kernel(current)
    findings: list[Finding] = _stale(before, policy, now or datetime.now(UTC))
    suites: list[SuiteComparison] = []
    if not findings:
        for (workload, kernel), records in before.items():
            found, suite = _gate_kernel(
                workload, kernel, after.get((workload, kernel), []), records, policy, noise or {}
            )
            findings += found
            suites += [suite] if suite else []
        for (workload, kernel), records in after.items():
            if (workload, kernel) not in before:
                findings += _new(workload, kernel, records)
        findings += _required(before, after, policy)
    return _decision(findings, suites, policy)


def _origin(record: Record) -> tuple[str, ...]:
    """Which measurement a record is."""
    return record.run_id, record.workload, record.kernel, record.case


def _stale(before: Mapping[tuple[str, str], Sequence[Record]], policy: GateModel, now: datetime) -> list[Finding]:
    found = []
    for (workload, kernel), records in before.items():
        times = [measured_at(record) for record in records]
        age_days = (now - min(times)).total_seconds() / 86400
        if age_days > policy.max_baseline_age_days:
            text = f"the baseline is {age_days:.0f} days old, the policy allows {policy.max_baseline_age_days:g}"
            found.append(Finding(workload, kernel, None, Kind.NOT_COMPARABLE, text))
        elif age_days < -1:
            text = f"the baseline says that it was measured {-age_days:.0f} days from now"
            found.append(Finding(workload, kernel, None, Kind.NOT_COMPARABLE, text))
    return found


def _gate_kernel(
    workload: str, kernel: str, current: Sequence[Record], baseline: Sequence[Record], policy: GateModel, noise: Noise
) -> tuple[list[Finding], SuiteComparison | None]:
    if not current:
        text = "the baseline has this kernel and the current results do not"
        return [Finding(workload, kernel, None, Kind.MISSING, text)], None
    now = {record.case: record for record in current}
    findings: list[Finding] = []
    measured: list[str] = []
    for old in baseline:
        new = now.get(old.case)
        if old.latency_ms is None:
            if new is not None and new.status.failed and old.status.failed:
                text = f"{new.status} now and {old.status} in the baseline"
                findings.append(Finding(workload, kernel, old.case, Kind.FAILED_BEFORE, text))
            elif new is not None and new.status.failed:
                findings.append(_failed(workload, kernel, new, old))
        elif new is not None and _origin(new) == _origin(old):
            text = "the current record is the baseline's own: it was not measured again"
            findings.append(Finding(workload, kernel, old.case, Kind.MISSING, text, old.latency_ms))
        elif new is None:
            text = "the baseline has this case and the current results do not"
            findings.append(Finding(workload, kernel, old.case, Kind.MISSING, text, old.latency_ms))
        elif new.status.failed:
            findings.append(_failed(workload, kernel, new, old))
        elif new.latency_ms is None:
            why = new.reason or "it was only checked"
            text = f"it was measured in the baseline and not now ({new.status}: {why})"
            findings.append(Finding(workload, kernel, old.case, Kind.MISSING, text, old.latency_ms))
        else:
            measured.append(old.case)
    findings += _new(workload, kernel, [r for r in current if r.case not in {old.case for old in baseline}])
    if not measured:
        return findings, None
    side_a = [record for record in baseline if record.case in measured]
    side_b = [now[case] for case in measured]
    try:
        suite = compare_suite(side_a, side_b, Criteria(policy.confidence, policy.minimum_effect))
    except NotComparable as error:
        texts = [f"differs from the baseline in {reason}" for reason in error.reasons]
        return findings + [Finding(workload, kernel, None, Kind.NOT_COMPARABLE, text) for text in texts], None
    for case in suite.cases:
        known = noise.get((workload, case.case), 0.0)
        findings.append(_gate_case(workload, kernel, case, len(suite.cases), policy, known))
    findings.append(_gate_suite(suite, policy))
    return findings, suite


def _new(workload: str, kernel: str, records: Sequence[Record]) -> list[Finding]:
    """What the baseline does not have: noted when it passes, a failure when it fails."""
    found = []
    for record in records:
        if record.status.failed:
            text = f"{record.status}: {record.reason or 'no reason given'} (it is new: the baseline has no such case)"
            found.append(Finding(workload, kernel, record.case, Kind.FAILED, text))
        else:
            text = "it is new: the baseline has no such case, so nothing is said of its speed"
            found.append(Finding(workload, kernel, record.case, Kind.NEW, text, None, record.latency_ms))
    return found


def _failed(workload: str, kernel: str, new: Record, old: Record) -> Finding:
    text = f"{new.status}: {new.reason or 'no reason given'} (it passed in the baseline)"
    if old.status is not Status.PASSED:
        text = f"{new.status}: {new.reason or 'no reason given'} ({old.status} in the baseline)"
    return Finding(workload, kernel, new.case, Kind.FAILED, text, old.latency_ms)


def _gate_case(
    workload: str, kernel: str, case: CaseComparison, cases: int, policy: GateModel, noise: float
) -> Finding:
    # What comes out without a change can be no reason to refuse one, so noise beyond the limit moves the limit.
    allowed, least = max(policy.case_slowdown, noise), max(policy.minimum_effect, noise)
    # To accuse one of many cases takes more than to accuse one: the error is shared among them (Bonferroni).
    strict = 1 - (1 - policy.confidence) / cases
    limit = comparison.against_limit(case.ratio, strict, allowed, least)
    slower = case.ratio.ratio > 1 + max(allowed, least)
    if slower and comparison.beyond_by_ranks(case.a_samples_ms, case.b_samples_ms, allowed, strict):
        limit = Limit.BEYOND
    if limit is Limit.UNDECIDED:
        limit = comparison.against_limit(case.ratio, policy.confidence, allowed, least)
        limit = Limit.WITHIN if limit is Limit.WITHIN else Limit.UNDECIDED
    found = _finding(
        workload, kernel, case.case, limit, case.a_ms, case.b_ms, case.ratio, allowed, case.samples, policy
    )
    if noise <= policy.minimum_effect:
        return found
    return replace(found, text=f"{found.text}; runs without a change differ by up to {noise * 100:.1f}%")


def _gate_suite(suite: SuiteComparison, policy: GateModel) -> Finding:
    assert suite.ratio is not None
    allowed = policy.suite_slowdown
    limit = comparison.against_limit(suite.ratio, policy.confidence, allowed, policy.minimum_effect)
    fewest = min(case.samples for case in suite.cases)
    return _finding(
        suite.workload,
        suite.kernel_b,
        None,
        limit,
        suite.a_mean_ms,
        suite.b_mean_ms,
        suite.ratio,
        allowed,
        fewest,
        policy,
    )


def _finding(
    workload: str,
    kernel: str,
    case: str | None,
    limit: Limit,
    a_ms: float | None,
    b_ms: float | None,
    ratio: LogRatio,
    allowed: float,
    samples: int,
    policy: GateModel,
) -> Finding:
    kind = {Limit.WITHIN: Kind.WITHIN, Limit.BEYOND: Kind.REGRESSION, Limit.UNDECIDED: Kind.UNDECIDED}[limit]
    low, high = ratio.interval(2 * policy.confidence - 1)
    span = "of unknown width" if high == math.inf else f"{(low - 1) * 100:+.1f}% to {(high - 1) * 100:+.1f}%"
    text = (
        f"{format_ms(a_ms)} before, {format_ms(b_ms)} now: {(ratio.ratio - 1) * 100:+.1f}% "
        f"(interval {span}, allowed {allowed * 100:+.1f}%)"
    )
    needed = None
    if kind is Kind.UNDECIDED:
        needed = comparison.samples_to_decide(ratio, policy.confidence, allowed, samples)
    return Finding(workload, kernel, case, kind, text, a_ms, b_ms, ratio, needed)


def _required(
    before: Mapping[tuple[str, str], Sequence[Record]],
    after: Mapping[tuple[str, str], Sequence[Record]],
    policy: GateModel,
) -> list[Finding]:
    """What the policy names and the current results do not hold, measured."""
    measured = {(w, k, r.case) for (w, k), records in after.items() for r in records if r.latency_ms is not None}
    found = []
    for pattern in policy.required_kernels:
        if not any(fnmatch.fnmatchcase(kernel, pattern) for _, kernel, _ in measured):
            text = f'the policy requires a kernel "{pattern}" and none was measured'
            found.append(Finding("–", pattern, None, Kind.MISSING, text))
    kernels = dict.fromkeys([*before, *after])
    for pattern in policy.required_cases:
        if not any(fnmatch.fnmatchcase(case, pattern) for _, _, case in measured):
            names = ", ".join(sorted({kernel for _, kernel in kernels}))
            text = f'the policy requires a case "{pattern}" and none was measured (kernels: {names})'
            found.append(Finding("–", "–", pattern, Kind.MISSING, text))
    return found


def _decision(findings: Sequence[Finding], suites: Sequence[SuiteComparison], policy: GateModel) -> Decision:
    codes = {_CODES[f.kind] for f in findings if f.kind in _CODES}
    undecided = [f for f in findings if f.kind is Kind.UNDECIDED]
    if undecided and policy.inconclusive != "pass":
        codes.add(Code.INCONCLUSIVE if policy.inconclusive == "exit" else Code.REGRESSION)
    gated = [f for f in findings if f.case is not None and f.kind in (Kind.WITHIN, Kind.UNDECIDED)]
    if not codes and not gated:
        codes.add(Code.REGRESSION)  # nothing was compared, and that is not a pass
    code = next((c for c in SEVERITY if c in codes), Code.PASS)
    verdict, next_step = _sentences(code, findings, len(gated), policy)
    return Decision(findings, code, verdict, next_step, suites)


def _sentences(code: Code, findings: Sequence[Finding], gated: int, policy: GateModel) -> tuple[str, str]:
    def named(*kinds: Kind) -> str:
        found = [f for f in findings if f.kind in kinds]
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        return ", ".join(f.name for f in found[:3]) + more

    match code:
        case Code.PASS:
            return (
                f"PASS: {gated} cases compared, none slower than allowed{_and_new(findings)}.",
                "Set a new baseline to gate what is new." if _and_new(findings) else "Nothing to do.",
            )
        case Code.NOT_COMPARABLE:
            reasons = [f.text for f in findings if f.kind is Kind.NOT_COMPARABLE]
            return (
                f"NOT COMPARABLE: {named(Kind.NOT_COMPARABLE)}: {reasons[0]}.",
                "Measure both sides on the same device with the same protocol, workload and scale, or set a new "
                "baseline with solbench baseline set.",
            )
        case Code.KERNEL_FAILED:
            return (
                f"FAILED: {named(Kind.FAILED)} fails and did not in the baseline.",
                "Mend the kernel; solbench check shows its failure without timing it.",
            )
        case Code.REGRESSION if slower := named(Kind.REGRESSION):
            return (
                f"REGRESSION: {slower} is slower than allowed.",
                "Confirm it with solbench compare of the two kernels in turn, then mend it or, if it is meant, set a "
                "new baseline.",
            )
        case Code.REGRESSION if missing := named(Kind.MISSING):
            return (
                f"MISSING: {missing}, which the gate expects, was not measured.",
                "Run what is missing, or take it out of the baseline on purpose with solbench baseline set.",
            )
        case Code.REGRESSION if undecided := named(Kind.UNDECIDED):
            return (
                f"UNDECIDED, which this policy fails: {undecided}.",
                _more_samples(findings),
            )
        case Code.REGRESSION:
            return (
                "NOTHING COMPARED: no case was measured on both sides.",
                "Run the kernels of the baseline, or set a baseline that holds measured cases.",
            )
    return f"INCONCLUSIVE: {named(Kind.UNDECIDED)} may or may not be slower than allowed.", _more_samples(findings)


def _and_new(findings: Sequence[Finding]) -> str:
    count = sum(f.kind is Kind.NEW for f in findings)
    return f"; {count} new and not compared" if count else ""


def _more_samples(findings: Sequence[Finding]) -> str:
    undecided = [f for f in findings if f.kind is Kind.UNDECIDED]
    known = [f.samples_needed for f in undecided if f.samples_needed is not None]
    if len(known) < len(undecided) or not known:
        return "Measure both sides again with more samples (protocol key timing.samples), or compare them in turn."
    return (
        f"About {max(known)} samples for each side would decide at the ratio seen (protocol key timing.samples); "
        "solbench compare of both in turn needs fewer."
    )
