"""What differs though nothing changed: its size, what limits it, and what the gate makes of it."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, made_record, module_of, solbench

from harness import store
from harness.catalog import gate_policy
from harness.compare import Criteria
from harness.errors import InputError
from harness.gate import Code, decide
from harness.noise import FEWEST_PROCESSES, HEADINGS, least_effects, legend, limits, summarise
from harness.records import Record, Status

CRITERIA = Criteria(0.99, 0.01)


def process(index: int, factor: float, case: str = "t1", within: float = 0.001, gpu: Any = None) -> Record:
    """One process's record: 40 samples about `factor` ms."""
    generator = random.Random(f"{index} {case} {factor}")
    samples = [factor * math.exp(generator.gauss(0, within)) for _ in range(40)]
    timings = {"queued": {"samples_ms": samples, "gpu": gpu}}
    return made_record(run_id=f"r{index}", case=case, backend="queued", latency_ms=factor, timings=timings)


def processes(*factors: float, case: str = "t1", within: float = 0.001) -> list[Record]:
    return [process(index, factor, case, within) for index, factor in enumerate(factors)]


def test_equal_processes_show_no_spread_and_no_difference() -> None:
    records = processes(*[1.0] * 6)
    (found,) = summarise(records, CRITERIA)
    assert (found.workload, found.kernel, found.case, found.processes, found.pairs) == ("w", "k", "t1", 6, 15)
    assert found.median_ms == pytest.approx(1, rel=1e-3)
    assert found.spread < 2e-3
    assert -2e-3 < found.low <= 0 <= found.high < 2e-3
    assert found.relative_iqr == pytest.approx(1.35e-3, rel=0.5)
    assert found.false_differences == 0


def test_processes_that_differ_show_by_how_much_and_how_often() -> None:
    (found,) = summarise(processes(1.0, 1.0, 1.0, 1.0, 1.05), CRITERIA)
    assert found.spread == pytest.approx(0.05, abs=3e-3)
    assert found.high == pytest.approx(0.045, abs=3e-3)
    assert found.false_differences == pytest.approx(4 / 10)  # the one against the four others
    assert dict(zip(HEADINGS, found.row(), strict=True))["false differences"] == "4 of 10"
    # A difference below the least effect is none.
    assert summarise(processes(1.0, 1.0, 1.0, 1.0, 1.05), Criteria(0.99, 0.06))[0].false_differences == 0
    assert "99% confidence" in legend(CRITERIA)


def test_cases_and_kernels_stand_apart_and_one_process_says_nothing() -> None:
    records = [*processes(1.0, 1.1), *processes(2.0, 2.0, case="t2"), process(0, 1.0, "alone")]
    records += [replace(r, kernel="other") for r in processes(1.0, 1.2)]
    records += [replace(records[0], case="failed", status=Status.TIMEOUT, latency_ms=None, backend=None, timings={})]
    assert [(n.kernel, n.case) for n in summarise(records, CRITERIA)] == [("k", "t1"), ("k", "t2"), ("other", "t1")]


def gpu(low: float, high: float, **throttle: float) -> dict[str, Any]:
    clock = {"min": low, "median": (low + high) / 2, "max": high}
    return {"readings": 20, "sm_clock_mhz": clock, "throttle": throttle, "problem": None}


# name: (states of the GPU, what is said)
LIMITS: dict[str, tuple[list[Any], list[str]]] = {
    "nothing is known": ([None, None], []),
    "no NVML": ([{"readings": 0, "sm_clock_mhz": None, "throttle": {}, "problem": "no NVML"}], []),
    "a moving clock": ([gpu(1500, 1980), gpu(1410, 1900)], ["moved between 1410 and 1980 MHz over the 2"]),
    "a steady clock": ([gpu(1410, 1410, gpu_idle=0.5)], ["stood at 1410 MHz"]),
    "power": ([gpu(1500, 1980, sw_power_cap=0.5), gpu(1500, 1980, sw_power_cap=1.0, hw_thermal=0.1)],
              ["moved between", "held back: sw_power_cap in 75%, hw_thermal in 5% of the readings"]),
    "something else": (["text", {"readings": "many", "sm_clock_mhz": [1], "throttle": "x"}], []),
}  # fmt: skip


@pytest.mark.parametrize("kind", LIMITS)
def test_what_the_clock_did_is_said_where_it_is_known(kind: str) -> None:
    states, parts = LIMITS[kind]
    lines = limits([process(i, 1.0, gpu=state) for i, state in enumerate(states)])
    assert len(lines) == len(parts)
    assert all(part in line for part, line in zip(parts, lines, strict=True))


# --- the gate --------------------------------------------------------------------------------------

POLICY = gate_policy(REPOSITORY, None)
NOW = datetime(2026, 1, 2, tzinfo=UTC)
NOISY = processes(1.0, 1.02, 1.05, 1.15, 1.2)


def run_of(run_id: str, factor: float) -> list[Record]:
    return [replace(process(9, factor, case), run_id=run_id) for case in ("t1", "t2", "t3")]


def test_the_least_effect_is_the_greatest_spread_of_a_case() -> None:
    noise = [*NOISY, *(replace(r, kernel="calm") for r in processes(*[1.0] * 5)), *processes(*[1.0] * 5, case="t9")]
    found = least_effects(noise, run_of("now", 1.0), "noise.jsonl")
    assert found == {("w", "t1"): pytest.approx(0.2 / 1.05, abs=5e-3)}


def test_a_case_is_no_regression_within_its_noise_and_others_are_judged_as_before() -> None:
    before, after = run_of("before", 1.0), run_of("after", 1.15)
    noise = least_effects(NOISY, after, "noise.jsonl")
    plain = decide(after, before, POLICY, NOW)
    found = decide(after, before, POLICY, NOW, noise)
    kinds = [{f.case: f.kind.value for f in decision.findings} for decision in (plain, found)]
    assert kinds[0] == {"t1": "regression", "t2": "regression", "t3": "regression", None: "regression"}
    assert kinds[1] == {**kinds[0], "t1": "within"}
    text = next(f.text for f in found.findings if f.case == "t1")
    assert text.endswith("; runs without a change differ by up to 19.0%")
    worse = decide(run_of("after", 1.4), before, POLICY, NOW, noise)
    assert worse.code is Code.REGRESSION
    assert {f.case for f in worse.findings if f.kind.value == "regression"} == {"t1", "t2", "t3", None}


def test_noise_smaller_than_the_policys_changes_nothing() -> None:
    before, after = run_of("before", 1.0), run_of("after", 1.005)
    noise = least_effects(processes(*[1.0] * 5), after, "n")
    assert decide(after, before, POLICY, NOW, noise) == decide(after, before, POLICY, NOW)


# name: (noise records, part of the message)
UNFIT = {
    "another device": ([replace(r, device="e") for r in NOISY], "was measured differently (device: e and d)"),
    "another protocol": ([replace(r, protocol_sha256="2") for r in NOISY], "was measured differently (protocol's"),
    "too few processes": (NOISY[: FEWEST_PROCESSES - 1], "was measured by 4 processes"),
    "other cases": (processes(*[1.0] * 5, case="t9"), "holds the noise of none of these cases"),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_noise_that_does_not_fit_is_refused(kind: str) -> None:
    noise, part = UNFIT[kind]
    with pytest.raises(InputError) as caught:
        least_effects(noise, run_of("now", 1.0), "noise.jsonl")
    assert part in str(caught.value)
    assert str(caught.value).startswith("noise.jsonl")


# --- the commands ----------------------------------------------------------------------------------


def test_noise_is_measured_in_fresh_processes_and_serves_the_gate(toy_root: Path) -> None:
    kernel = toy_root / "quick.py"
    kernel.write_text("def run(a, b, bias):\n    product = a @ b\n    return product, product + bias\n")
    file = toy_root / "noise.jsonl"
    command = ["noise", "toy", "-k", str(kernel), "-c", "r3", "-d", "cpu", "-p", "quick", "--processes", "5"]
    done = solbench(*command, "-o", str(file), "--root", str(toy_root), cwd=toy_root)
    assert done.returncode == 0, done.stderr
    assert "toy quick" in done.stdout
    assert "spread" in done.stdout
    records, bad = store.read(file)
    assert bad == []
    assert len(records) == len({record.run_id for record in records}) == 5
    base, now = (toy_root / f"{name}.jsonl" for name in ("base", "now"))
    store.append(base, replace(records[0], run_id="base"))
    # The same samples, because on a busy machine five runs may differ by more than they show.
    store.append(now, replace(records[0], run_id="now"))
    done = solbench("gate", str(now), "--baseline", str(base), "--noise", str(file), "--json", cwd=toy_root)
    assert done.returncode in (Code.PASS, Code.INCONCLUSIVE), done.stderr
    texts = {f["case"]: f["text"] for f in json.loads(done.stdout)["findings"]}
    assert "runs without a change differ by up to" in texts["r3"]
    done = solbench("gate", str(now), "--baseline", str(base), "--noise", str(base), cwd=toy_root)
    assert done.returncode == 2
    assert "too few" in done.stderr
    # One process more, beside the five that the file holds.
    more = [*command[:-1], "6", "-o", str(file), "--resume", "--json", "--root", str(toy_root)]
    done = solbench(*more, cwd=toy_root)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["processes"] == 6
    assert len({record.run_id for record in store.read(file)[0]}) == 6


def test_a_kernel_that_fails_has_no_noise(toy_root: Path) -> None:
    kernel = toy_root / "wrong.py"
    kernel.write_text("def run(a, b, bias):\n    return a, b\n")
    command = ["noise", "toy", "-k", str(kernel), "-c", "r3", "-d", "cpu", "-p", "quick", "--processes", "2", "--json"]
    done = solbench(*command, "-o", "noise.jsonl", "--root", str(toy_root), cwd=toy_root)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "wrong r3: INCORRECT" in done.stderr


def test_going_on_needs_a_file(toy_root: Path) -> None:
    done = solbench("noise", "toy", "--resume", "-d", "cpu", "--root", str(toy_root), cwd=toy_root)
    assert done.returncode == 2
    assert "add -o FILE" in done.stderr


def test_the_public_protocol_is_refused_on_the_cpu(toy_root: Path) -> None:
    (toy_root / "k.py").write_text("def run(a, b, bias):\n    return a, b\n")
    command = ["noise", "toy", "-k", str(toy_root / "k.py"), "-d", "cpu", "-p", "sol-execbench-v1.1", "-o", "n.jsonl"]
    done = solbench(*command, "--root", str(toy_root), cwd=toy_root)
    assert done.returncode == 2
    assert "times with CUPTI and the device is the CPU" in done.stderr


# --- the table in docs/measuring.md ---------------------------------------------------------------


@pytest.fixture(scope="module")
def table() -> Any:
    return module_of(REPOSITORY / "benchmarks" / "noise_table.py")


@pytest.mark.parametrize(
    ("tokens", "spread", "agrees"), [(16, 0.018, True), (16, 0.022, False), (128, 0.018, False), (128, 0.008, True)]
)
def test_few_tokens_may_lie_two_percent_apart_and_others_one(
    tokens: int, spread: float, agrees: bool, table: Any
) -> None:
    records = [replace(record, axes={"T": tokens}) for record in processes(1.0, 1.0, 1.0 + spread, within=0.0)]
    text = table.tables(records)
    assert f"{int(agrees)} of 1 cases agree" in text
    assert ("≠" in text) is not agrees


def test_the_table_keeps_what_it_was_made_of(table: Any, tmp_path: Path) -> None:
    timings = {"queued": {"samples_ms": [1.0, 1.0], "median_ms": 1.0, "floor_ms": 0.003, "gpu": None}}
    file = tmp_path / "noise.jsonl"
    for record in processes(1.0, 1.0):
        store.append(file, replace(record, timings=timings))
    document = tmp_path / "document.md"
    document.write_text("<!-- noise -->\n<!-- end of noise -->\n")
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "noise_table.py"), str(file)]
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "kept.json"), "--write", str(document)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert kept == {"w": {"k": {"t1": {"median_ms": [1.0, 1.0], "floor_ms": [0.003, 0.003]}}}}
    assert done.stdout.strip() in document.read_text()
    for content in ("{\n", "", None):
        file.write_text(content) if content is not None else file.unlink()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert str(file) in done.stderr


def test_the_document_has_the_noise_tables_marks() -> None:
    text = (REPOSITORY / "docs" / "measuring.md").read_text()
    assert "<!-- noise -->" in text
    assert "<!-- end of noise -->" in text
