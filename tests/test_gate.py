"""The gate says yes only to what it has compared, and says what is wrong with everything else."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from conftest import HONEST, REPOSITORY, solbench
from test_comparison_statistics import record

from harness import baselines, store
from harness.catalog import gate_policy
from harness.errors import InputError
from harness.gate import Code, Decision, Kind, decide
from harness.gate_report import github_annotations, junit
from harness.records import Record, Status

POLICY = gate_policy(REPOSITORY, None)
NOW = datetime(2026, 1, 2, tzinfo=UTC)
Records = list[Record]


def measured(run_id: str, factor: float = 1.0, cases: int = 4, noise: float = 0.003, count: int = 40) -> Records:
    generator = random.Random(run_id)
    return [
        record(i, [(i + 1) * factor * math.exp(generator.gauss(0, noise)) for _ in range(count)], run_id)
        for i in range(cases)
    ]


def changed(records: Records, case: int, **fields: Any) -> Records:
    return [replace(r, **fields) if i == case else r for i, r in enumerate(records)]


def failing(records: Records, case: int, status: Status = Status.INCORRECT_NUMERICAL) -> Records:
    return changed(records, case, status=status, reason="y is wrong", latency_ms=None, backend=None, timings={})


def decision(current: Records, before: Records | None = None, **policy: Any) -> Decision:
    rules = POLICY.model_copy(update=policy)
    return decide(current, measured("before") if before is None else before, rules, NOW)


BEFORE = measured("before")
AFTER = measured("after")
GPU = {"sm_clock_max_mhz": 1980.0, "memory_clock_max_mhz": 3201.0, "power_limit_w": 700.0}

# name: (current, baseline, policy changes, code, part of the verdict)
DECISIONS: dict[str, tuple[Records, Records, dict[str, Any], Code, str]] = {
    "the same speed": (AFTER, BEFORE, {}, Code.PASS, "PASS: 4 cases compared"),
    "faster": (measured("after", 0.5), BEFORE, {}, Code.PASS, "PASS"),
    "three percent slower": (measured("after", 1.03), BEFORE, {}, Code.REGRESSION, "REGRESSION: w k is slower"),
    "one case slower": (changed(AFTER, 2, timings={"queued": {"samples_ms": [4.2] * 40}}, latency_ms=4.2), BEFORE, {},
                        Code.REGRESSION, "w k t2"),
    "slower and allowed": (measured("after", 1.03), BEFORE, {"suite_slowdown": 0.05}, Code.PASS, "PASS"),
    "slower within the noise": (measured("after", 1.03), BEFORE, {"minimum_effect": 0.05, "suite_slowdown": 0.05},
                                Code.PASS, "PASS"),
    "too noisy to say": (measured("after", 1.0, noise=0.2, count=6), BEFORE, {}, Code.INCONCLUSIVE, "INCONCLUSIVE"),
    "too noisy, allowed": (measured("after", noise=0.2, count=6), BEFORE, {"inconclusive": "pass"}, Code.PASS, "PASS"),
    "too noisy, forbidden": (measured("after", noise=0.2, count=6), BEFORE, {"inconclusive": "fail"},
                             Code.REGRESSION, "UNDECIDED, which this policy fails"),
    "too few samples": (measured("after", count=3), BEFORE, {}, Code.INCONCLUSIVE, "INCONCLUSIVE"),
    "a case fails now": (failing(AFTER, 1), BEFORE, {}, Code.KERNEL_FAILED, "FAILED: w k t1"),
    "a case fails and another is slower": (failing(measured("after", 2.0), 1), BEFORE, {}, Code.KERNEL_FAILED, "t1"),
    "a case failed before too": (failing(AFTER, 1), failing(BEFORE, 1), {}, Code.PASS, "PASS: 3 cases"),
    "a case passes again": (AFTER, failing(BEFORE, 1), {}, Code.PASS, "PASS: 3 cases"),
    "a case is gone": (AFTER[1:], BEFORE, {}, Code.REGRESSION, "MISSING: w k t0"),
    "a case is skipped": (failing(AFTER, 1, Status.SKIPPED), BEFORE, {}, Code.REGRESSION, "MISSING: w k t1"),
    "a case is only checked": (failing(AFTER, 1, Status.PASSED), BEFORE, {}, Code.REGRESSION, "MISSING: w k t1"),
    "a case is new": (measured("after", cases=5), BEFORE, {}, Code.PASS, "1 new and not compared"),
    "a new case fails": (failing(measured("after", cases=5), 4), BEFORE, {}, Code.KERNEL_FAILED, "w k t4"),
    "a new kernel fails": ([*AFTER, *(replace(r, kernel="n") for r in failing(AFTER, 0)[:1])], BEFORE, {},
                           Code.KERNEL_FAILED, "w n t0"),
    "a case is the baseline's own": ([BEFORE[0], *AFTER[1:]], BEFORE, {}, Code.REGRESSION, "MISSING: w k t0"),
    "a baseline of the future": (AFTER, [replace(r, time="2099-01-01T00:00:00+00:00") for r in BEFORE], {},
                                 Code.NOT_COMPARABLE, "days from now"),
    "the kernel is gone": ([replace(r, kernel="other") for r in AFTER], BEFORE, {}, Code.REGRESSION, "MISSING: w k"),
    "another workload": ([replace(r, workload="v") for r in AFTER], BEFORE, {}, Code.REGRESSION, "MISSING: w k"),
    "nothing was measured before": (AFTER, [r for i in range(4) for r in [failing(BEFORE, i)[i]]], {},
                                    Code.REGRESSION, "NOTHING COMPARED"),
    "a required kernel is missing": (AFTER, BEFORE, {"required_kernels": ["best*"]}, Code.REGRESSION, "best*"),
    "a required case is missing": (AFTER, BEFORE, {"required_cases": ["t9"]}, Code.REGRESSION, "t9"),
    "required ones are there": (AFTER, BEFORE, {"required_cases": ["t*"], "required_kernels": ["k"]}, Code.PASS, ""),
    "another device": ([replace(r, device="e") for r in AFTER], BEFORE, {}, Code.NOT_COMPARABLE, "device: d and e"),
    "another protocol": ([replace(r, protocol="q") for r in AFTER], BEFORE, {}, Code.NOT_COMPARABLE, "protocol: p"),
    "a protocol of other content": ([replace(r, protocol_sha256="2") for r in AFTER], BEFORE, {},
                                    Code.NOT_COMPARABLE, "protocol's content"),
    "another backend": ([replace(r, backend="cupti", timings={"cupti": r.timings["queued"]}) for r in AFTER], BEFORE,
                        {}, Code.NOT_COMPARABLE, "backend: queued and cupti"),
    "a changed workload": ([replace(r, workload_sha256="9") for r in AFTER], BEFORE, {},
                           Code.NOT_COMPARABLE, "workload's content"),
    "another scale": ([replace(r, scale=64) for r in AFTER], BEFORE, {}, Code.NOT_COMPARABLE, "scale: 1 and 64"),
    "another clock": ([replace(r, environment={"gpu": {**GPU, "sm_clock_max_mhz": 1410.0}}) for r in AFTER],
                      [replace(r, environment={"gpu": GPU}) for r in BEFORE], {}, Code.NOT_COMPARABLE, "SM clock"),
    "another power limit": ([replace(r, environment={"gpu": {**GPU, "power_limit_w": 350.0}}) for r in AFTER],
                            [replace(r, environment={"gpu": GPU}) for r in BEFORE], {}, Code.NOT_COMPARABLE, "power"),
    "one case of another device": (changed(AFTER, 3, device="e"), BEFORE, {}, Code.NOT_COMPARABLE, "device"),
    "an old baseline": (AFTER, [replace(r, time="2024-01-01T00:00:00+00:00") for r in BEFORE], {},
                        Code.NOT_COMPARABLE, "732 days old"),
}  # fmt: skip


@pytest.mark.parametrize("kind", DECISIONS)
def test_a_decision_has_its_code_and_names_what_decided(kind: str) -> None:
    current, before, policy, code, part = DECISIONS[kind]
    found = decision(current, before, **policy)
    assert found.code is code, found.verdict
    assert part in found.verdict
    assert "\n" not in found.verdict
    assert found.next_step


def test_an_undecided_gate_says_how_many_samples_would_do() -> None:
    found = decision(measured("after", noise=0.1, count=12))
    assert found.code is Code.INCONCLUSIVE
    assert "samples for each side would decide" in found.next_step
    assert all(f.samples_needed is None or f.samples_needed > 12 for f in found.of(Kind.UNDECIDED))


# name: (current, baseline)
BAD: dict[str, tuple[Records, Records]] = {
    "nothing current": ([], BEFORE),
    "nothing before": (AFTER, []),
    "the baseline's own records": (BEFORE, BEFORE),
    "a part of the baseline": (BEFORE[:2], BEFORE),
    "samples of zero": (changed(AFTER, 0, timings={"queued": {"samples_ms": [0.0] * 40}}), BEFORE),
    "negative samples": (changed(AFTER, 0, timings={"queued": {"samples_ms": [-1.0] * 40}}), BEFORE),
    "samples that are no number": (changed(AFTER, 0, timings={"queued": {"samples_ms": [math.nan] * 40}}), BEFORE),
    "infinite samples": (changed(AFTER, 0, timings={"queued": {"samples_ms": [math.inf] * 40}}), BEFORE),
    "samples of text": (changed(AFTER, 0, timings={"queued": {"samples_ms": ["fast"] * 40}}), BEFORE),
    "no samples": (changed(AFTER, 0, timings={}), BEFORE),
    "bad samples before": (AFTER, changed(BEFORE, 0, timings={"queued": {"samples_ms": [0.0] * 40}})),
    "a time that is none": (AFTER, changed(BEFORE, 0, time="yesterday")),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_never_a_pass(kind: str) -> None:
    with pytest.raises(InputError):
        decision(*BAD[kind])


def test_junit_has_a_test_case_for_each_finding_and_both_numbers_in_a_failure() -> None:
    slower = changed(AFTER, 2, timings={"queued": {"samples_ms": [4.2] * 40}}, latency_ms=4.2)
    found = decision(failing(slower, 1))
    root = ElementTree.fromstring(junit(found))
    cases = root.findall("testsuite/testcase")
    assert len(cases) == len(found.findings) == 5
    failures = {case.get("name"): case.find("failure") for case in cases if case.find("failure") is not None}
    assert set(failures) >= {"t1", "t2"}
    text = failures["t2"].text  # type: ignore[union-attr]
    assert text is not None
    assert "3.0" in text
    assert "4.20 ms now" in text
    assert root[0].get("failures") == str(len(failures))


def test_hostile_names_and_texts_break_neither_xml_nor_annotations() -> None:
    name = 'k<&>"\x00\n::error::'
    rename = [replace(r, kernel=name, reason="a\nb%\x1b", status=Status.TIMEOUT, latency_ms=None) for r in AFTER]
    found = decision(rename, [replace(r, kernel=name) for r in BEFORE])
    ElementTree.fromstring(junit(found))
    for line in github_annotations(found):
        assert "\n" not in line
        assert line.startswith("::error title=")
        assert line.count("::error") == 2 - line.count("%3A%3Aerror") or "%3A%3Aerror%3A%3A" in line


def test_a_passing_gate_annotates_nothing() -> None:
    assert github_annotations(decision(AFTER)) == []


# --- the commands ---------------------------------------------------------------------------------


def written(folder: Path, name: str, records: Records) -> str:
    path = folder / name
    now = datetime.now(UTC).isoformat()
    for r in records:
        store.append(path, replace(r, time=now))
    return name


def test_the_gate_prints_the_verdict_first_and_what_to_do_last(tmp_path: Path) -> None:
    before, after = written(tmp_path, "b.jsonl", BEFORE), written(tmp_path, "a.jsonl", measured("after", 1.2))
    done = solbench("gate", after, "--baseline", before, "--junit", "j.xml", "--github", cwd=tmp_path,
                    GITHUB_STEP_SUMMARY=str(tmp_path / "summary.md"))  # fmt: skip
    assert done.returncode == 3, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("REGRESSION: w k")
    assert lines[1].startswith("::error title=w k t0::")
    assert lines[-1].startswith("Confirm it with solbench compare")
    assert all(len(line) <= 80 for line in lines if not line.startswith("::") and line not in (lines[0], lines[-1]))
    assert ElementTree.parse(tmp_path / "j.xml").getroot().tag == "testsuites"
    assert "REGRESSION" in (tmp_path / "summary.md").read_text()
    shown = json.loads(solbench("gate", after, "--baseline", before, "--json", cwd=tmp_path).stdout)
    assert shown["code"] == 3
    assert {"within", "regression"} >= {f["finding"] for f in shown["findings"]}
    assert solbench("gate", after, "--baseline", before, "--markdown", cwd=tmp_path).stdout.startswith("**REGRESSION")


# name: (file of the current results, its content, part of the message)
BAD_FILES = {
    "empty": ("", "holds no records"),
    "damaged": ('{"schema": 1, "run', "not JSON"),
    "a latency that is no number": (
        json.dumps(json.loads(AFTER[0].to_line()) | {"latency_ms": 0}).replace('"latency_ms": 0', '"latency_ms": NaN'),
        "no latency"),
    "a latency of zero": (json.dumps(json.loads(AFTER[0].to_line()) | {"latency_ms": 0}), "no latency"),
    "a negative latency": (json.dumps(json.loads(AFTER[0].to_line()) | {"latency_ms": -1}), "no latency"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_is_exit_code_2(kind: str, tmp_path: Path) -> None:
    content, part = BAD_FILES[kind]
    (tmp_path / "a.jsonl").write_text(content)
    done = solbench("gate", "a.jsonl", "--baseline", written(tmp_path, "b.jsonl", BEFORE), cwd=tmp_path)
    assert done.returncode == 2
    assert part in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["gate", "none.jsonl", "--baseline", "b.jsonl"], "cannot be read"),
        (["gate", "b.jsonl", "--baseline", "mian"], "no baselines yet"),
        (["gate", "b.jsonl", "--baseline", "b.jsonl"], "own records"),
        (["gate", "b.jsonl", "--baseline", "b.jsonl", "--policy", "p.yaml"], 'did you mean "confidence"'),
        (["gate", "b.jsonl"], "--baseline"),
        (["baseline", "set", "a/b", "b.jsonl"], "no usable name"),
        (["baseline", "set", "x", "none.jsonl"], "cannot be read"),
        (["baseline", "show", "x"], "no baselines yet"),
        (["compare", "b.jsonl"], "nothing to be compared with"),
        (["compare", "b.jsonl", "none.jsonl"], "is no file"),
        (["compare", "b.jsonl", "b.jsonl", "b.jsonl"], "takes two results files"),
        (["compare", "k", "l", "--file", "b.jsonl"], 'no kernel "l"'),
        (["compare", "b.jsonl", "b.jsonl", "--confidence", "95"], "no confidence"),
        (["compare", "b.jsonl", "b.jsonl", "--plot", "x.nonsense"], "cannot be written"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_exit_code_2(arguments: list[str], part: str, tmp_path: Path) -> None:
    written(tmp_path, "b.jsonl", BEFORE)
    (tmp_path / "p.yaml").write_text("schema: 1\nconfidense: 0.9\n")
    done = solbench(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stdout
    assert part in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_baseline_is_set_shown_listed_replaced_and_pruned(tmp_path: Path) -> None:
    first, second = written(tmp_path, "1.jsonl", BEFORE), written(tmp_path, "2.jsonl", measured("after", 1.5))
    assert solbench("baseline", "set", "main", first, "--note", "the first", cwd=tmp_path).returncode == 0
    (stored,) = baselines.listed(tmp_path)
    assert stored.path == tmp_path / "results" / "baselines" / "d" / "main.jsonl"
    assert stored.provenance.note == "the first"
    shown = solbench("baseline", "show", "main", cwd=tmp_path).stdout
    assert "note: the first" in shown
    assert "mean latency" in shown
    assert "the first" in solbench("baseline", "list", cwd=tmp_path).stdout
    assert solbench("gate", second, "--baseline", "main", cwd=tmp_path).returncode == 3

    refused = solbench("baseline", "set", "main", second, cwd=tmp_path)
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    assert "slower" in refused.stdout, "replacing shows the difference first"
    assert baselines.records(stored)[0].run_id == "before"
    assert solbench("baseline", "set", "main", second, "--yes", cwd=tmp_path).returncode == 0
    assert baselines.records(baselines.find(tmp_path, "main"))[0].run_id == "after"

    assert "No baseline is that old" in solbench("baseline", "prune", "--older-than", "1", cwd=tmp_path).stdout
    assert solbench("baseline", "prune", "--older-than", "0", cwd=tmp_path).returncode == 2
    assert solbench("baseline", "prune", "--older-than", "0", "--yes", cwd=tmp_path).returncode == 0
    assert baselines.listed(tmp_path) == []


def test_a_damaged_baseline_can_be_replaced(tmp_path: Path) -> None:
    first, second = written(tmp_path, "1.jsonl", BEFORE), written(tmp_path, "2.jsonl", AFTER)
    solbench("baseline", "set", "main", first, cwd=tmp_path)
    (stored,) = baselines.listed(tmp_path)
    with stored.path.open("a") as file:
        file.write("x")
    assert solbench("gate", second, "--baseline", "main", cwd=tmp_path).returncode == 2
    done = solbench("baseline", "set", "main", second, "--yes", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "cannot be shown" in done.stdout
    assert solbench("gate", first, "--baseline", "main", cwd=tmp_path).returncode == 0


def test_a_gate_on_a_baseline_of_another_device_is_not_comparable(tmp_path: Path) -> None:
    for device in ("d1", "d2"):
        file = written(tmp_path, f"{device}.jsonl", [replace(r, device=device) for r in BEFORE])
        solbench("baseline", "set", "main", file, cwd=tmp_path)
    assert solbench("gate", written(tmp_path, "a.jsonl", AFTER), "--baseline", "main", cwd=tmp_path).returncode == 5
    assert solbench("baseline", "show", "main", "-d", "d3", cwd=tmp_path).returncode == 2


def test_devices_whose_names_differ_only_in_signs_do_not_overwrite_each_other(tmp_path: Path) -> None:
    baselines.save(tmp_path, "main", "x", [replace(r, device="gpu a") for r in BEFORE])
    with pytest.raises(InputError, match="differs only in signs"):
        baselines.save(tmp_path, "main", "x", [replace(r, device="gpu-a") for r in BEFORE])


@pytest.mark.parametrize("change", [{"time": "yesterday"}, {"timings": {"queued": {"samples_ms": [-1.0]}}}])
def test_a_baseline_of_impossible_records_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        baselines.prepare([replace(r, **change) for r in BEFORE], "main")


def test_an_edited_baseline_is_refused(tmp_path: Path) -> None:
    saved = baselines.save(tmp_path, "main", "x", BEFORE)
    saved.path.write_text(saved.path.read_text().replace('"samples_ms": [', '"samples_ms": [9.9, '))
    with pytest.raises(InputError, match="not the file that was set"):
        baselines.records(saved)


def test_a_baseline_of_several_devices_is_refused() -> None:
    with pytest.raises(InputError, match="mixes devices"):
        baselines.prepare([*BEFORE, replace(AFTER[0], device="e")], "main")


# --- the recipes of docs/ci.md --------------------------------------------------------------------


def recipe(name: str) -> Any:
    text = (REPOSITORY / "docs" / "ci.md").read_text()
    block = text.partition(f"<!-- recipe: {name} -->")[2].partition("```yaml\n")[2].partition("```")[0]
    return yaml.safe_load(block)


@pytest.fixture
def checkout(toy_root: Path) -> Path:
    """A repository as the recipes expect it, with the toy workload and an environment in place of .venv."""
    kernels = toy_root / "kernels" / "toy"
    kernels.mkdir(parents=True)
    (kernels / "eager.py").write_text(HONEST)
    policy = toy_root / "configs"
    policy.mkdir()
    # This machine's noise is not the subject: only failures and absences can stop the gate here.
    text = (REPOSITORY / "configs" / "gate.yaml").read_text()
    for key, value in (("suite_slowdown", "1000"), ("case_slowdown", "1000"), ("inconclusive", "pass")):
        text = "\n".join(f"{key}: {value}" if line.startswith(key) else line for line in text.splitlines())
    (policy / "gate.yaml").write_text(text)
    tools = toy_root / ".venv" / "bin"
    tools.mkdir(parents=True)
    shim = f'#!/bin/sh\nPYTHONPATH="{REPOSITORY}" exec "{sys.executable}" -m cli "$@"\n'
    (tools / "solbench").write_text(shim)
    (tools / "pip").write_text('#!/bin/sh\necho "$@" >> pip.log\n')
    (toy_root / "python3").write_text("#!/bin/sh\nexit 0\n")
    for file in (tools / "solbench", tools / "pip", toy_root / "python3"):
        file.chmod(0o755)
    return toy_root


def step(command: str, cwd: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run one step as a runner does: bash, stopping at the first error."""
    environment = {**os.environ, **variables, "PATH": f"{cwd}:{os.environ['PATH']}",
                   "GITHUB_STEP_SUMMARY": str(cwd / "summary.md")}  # fmt: skip
    return subprocess.run(["bash", "-eo", "pipefail", "-c", command], cwd=cwd, env=environment, capture_output=True,
                          text=True, timeout=180, check=False)  # fmt: skip


# In place of the recipe's GPU suite: what a CPU measures in seconds.
SMALL = {"WORKLOADS": "toy", "KERNELS": "-k eager", "PROTOCOL": "quick"}


def with_baseline(checkout: Path) -> None:
    for command in (
        "solbench run toy -k eager -p quick -o first.jsonl",
        "solbench baseline set main first.jsonl",
    ):
        done = step(f".venv/bin/{command}", checkout, {})
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("broken", [False, True])
def test_the_github_recipe_runs_as_written(broken: bool, checkout: Path) -> None:
    job = recipe("github")["jobs"]["gate"]
    assert set(job["env"]) == set(SMALL)
    with_baseline(checkout)
    if broken:
        (checkout / "kernels" / "toy" / "eager.py").write_text("def run(a, b, bias):\n    return a, b")
    codes = {}
    for entry in job["steps"]:
        if "run" in entry:
            done = step(entry["run"], checkout, job["env"] | SMALL)
            codes[entry["name"]] = done.returncode
    assert codes == ({"Install": 0, "Measure": 0, "Gate": 1} if broken else {"Install": 0, "Measure": 0, "Gate": 0})
    assert (checkout / "pip.log").read_text() == "install -e .\n"
    assert ("FAILED" if broken else "PASS") in (checkout / "summary.md").read_text()
    assert ElementTree.parse(checkout / "gate.xml").getroot().tag == "testsuites"
    uploaded = job["steps"][-1]["with"]["path"].split()
    assert all((checkout / name).is_file() for name in uploaded)


def test_the_gitlab_recipe_runs_as_written(checkout: Path) -> None:
    job = recipe("gitlab")["kernels"]
    with_baseline(checkout)
    done = step("\n".join(job["script"]), checkout, job["variables"] | SMALL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (checkout / job["artifacts"]["reports"]["junit"]).is_file()


def test_the_recipe_for_stored_records_needs_no_torch(checkout: Path) -> None:
    with_baseline(checkout)
    results = checkout / "results"
    (results / "current.jsonl").write_text(
        (checkout / "first.jsonl").read_text().replace('"run_id": "', '"run_id": "again')
    )
    shim = f'#!/bin/sh\nPYTHONPATH="{REPOSITORY}" exec "{sys.executable}" -c ' + (
        "\"import sys; sys.modules['torch'] = None; import cli; sys.argv[0] = 'solbench'; cli.main()\" \"$@\"\n"
    )
    (checkout / ".venv" / "bin" / "solbench").write_text(shim)
    for entry in recipe("stored")["jobs"]["gate"]["steps"]:
        if "run" in entry:
            done = step(entry["run"], checkout, {})
            assert done.returncode == 0, done.stdout + done.stderr


def test_the_documented_exit_codes_are_those_of_the_gate() -> None:
    text = (REPOSITORY / "docs" / "ci.md").read_text()
    for code in (*Code, 2):
        assert f"\n| {int(code)} |" in text
