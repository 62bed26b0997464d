"""The command as a person uses it: exit codes, sentences, and files that keep what was measured."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import HONEST, REPOSITORY, TOY_YAML, made_record, solbench

from harness import store
from harness.records import Record, Status


@pytest.fixture
def home(toy_root: Path) -> Path:
    """The toy workload with an honest and a wrong kernel in the catalogue's places."""
    folder = toy_root / "kernels" / "toy"
    folder.mkdir(parents=True)
    (folder / "eager.py").write_text('"""The reference\'s formula."""\n' + HONEST)
    (toy_root / "wrong.py").write_text("def run(a, b, bias):\n    return a @ b, a @ b")
    (toy_root / "no_run.py").write_text("def walk(a): ...")
    (toy_root / "broken").mkdir()
    (toy_root / "broken" / "kernel.yaml").write_text("schema: 1\nentri: x.py\n")
    (toy_root / "empty.jsonl").write_text("")
    return toy_root


# name: (arguments, what the message must contain)
BAD_INPUT = {
    "unknown workload": (["run", "moee"], ['no workload "moee"', 'did you mean "moe"']),
    "unknown kernel": (["run", "toy", "-k", "eagre"], ['no kernel "eagre"', 'did you mean "eager"']),
    "unknown case": (["run", "toy", "-c", "r33"], ['no case "r33"', 'did you mean "r3"']),
    "unknown case of several": (["run", "moe", "dense", "-c", "t9999"], ['no case "t9999"']),
    "unknown device": (["run", "toy", "-d", "cuds"], ['no device "cuds"', 'did you mean "cuda"']),
    "unknown device of the catalogue": (["sol", "moe", "-d", "h200"], ['no device "h200"', "nvidia_h200"]),
    "unknown protocol": (["run", "toy", "-p", "quik"], ['no protocol "quik"', 'did you mean "quick"']),
    "no GPU": (["run", "toy", "-d", "cuda"], ["asks for a GPU", "give -d cpu"]),
    "a numbered CPU": (["run", "toy", "-d", "cpu:1"], ["numbers a CPU"]),
    "a protocol for GPUs": (["run", "toy", "-d", "cpu", "-p", "queued"], ["the device is the CPU", "-p host"]),
    "a kernel without run": (["run", "toy", "-k", "no_run.py"], ["no_run.py", "no function run"]),
    "a kernel of another kind": (["run", "toy", "-k", "empty.jsonl"], ["not a Python file"]),
    "a faulty kernel.yaml": (["run", "toy", "-k", "broken"], ["kernel.yaml:2", "entri", 'did you mean "entry"']),
    "an output that cannot be written": (["run", "toy", "-o", "wrong.py/x.jsonl"], ["cannot be written"]),
    "a scale that does not divide": (["run", "toy", "--scale", "7", "-d", "cpu"], ["7 does not divide K = 64"]),
    "a scale of nothing": (["run", "toy", "--scale", "0"], ["--scale"]),
    "a negative timeout": (["run", "toy", "--timeout", "-1"], ["--timeout"]),
    "resume without a file": (["run", "toy", "--resume"], ["--resume", "-o FILE"]),
    "an unknown option": (["run", "toy", "--fast"], ["--fast"]),
    "an unknown kind": (["list", "kernel"], ["kernel"]),
    "a root without catalogue": (["run", "--root", "broken"], ["holds no catalogue"]),
    "a report of nothing": (["report", "empty.jsonl"], ["holds no records"]),
    "a report of no file": (["report", "none.jsonl"], ["cannot be read"]),
    "a report that cannot be written": (["report", "good.jsonl", "-o", "no/such/place"], ["cannot be written"]),
}


@pytest.mark.parametrize("kind", BAD_INPUT)
def test_bad_input_is_one_sentence_and_exit_code_2(kind: str, home: Path) -> None:
    if kind == "no GPU":
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("there is a GPU here")
    if kind == "a report that cannot be written":
        (home / "good.jsonl").write_text(json.dumps(LINE) + "\n")
    arguments, parts = BAD_INPUT[kind]
    done = solbench(*arguments, cwd=home)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in " ".join(done.stderr.split())
    assert not (home / "runs").exists(), "nothing may be left behind by a run that never began"


LINE = json.loads(
    made_record(
        workload="w|x",
        kernel="<script>",
        latency_ms=0.0389,
        timings={"host": {"samples_ms": [0.0389], "relative_iqr": 0.01}},
        sol={"bound_ms": 0.01, "limit": "memory", "roofline": 0.257, "score": 0.5},
    ).to_line()
)


def test_a_third_workload_runs_from_its_folder_alone(home: Path) -> None:
    done = solbench(
        "run", "toy", "-k", "eager", "-k", "wrong.py", "-d", "cpu", "-p", "quick", "-o", "r.jsonl", "--json", cwd=home
    )
    assert done.returncode == 1, done.stderr
    printed = [Record.from_line(line) for line in done.stdout.splitlines()]
    found, bad = store.read(home / "r.jsonl")
    assert bad == []
    assert found == printed
    assert [(r.kernel, r.case, r.status) for r in found] == [
        ("eager", "r3", Status.PASSED),
        ("eager", "r8", Status.PASSED),
        ("wrong", "r3", Status.INCORRECT_NUMERICAL),
        ("wrong", "r8", Status.INCORRECT_NUMERICAL),
    ]
    first = found[0]
    assert first.sol is not None
    assert first.sol["score"] == pytest.approx(0.5)
    assert first.sol["peak"]["label"] == "calibrated"
    assert first.environment["torch"]
    assert all(len(line) <= 80 for line in done.stderr.splitlines())
    for word in ("latency", "spread", "bound", "roofline", "% SOL", "geometric mean", "shifted: "):
        assert word in done.stderr

    again = solbench(
        "run", "toy", "-k", "eager", "-d", "cpu", "-p", "quick", "-o", "r.jsonl", "--resume", "--json", cwd=home
    )
    assert again.returncode == 0, again.stderr
    # What the file holds is part of the answer.
    assert [Record.from_line(line) for line in again.stdout.splitlines()] == found[:2]
    assert len(store.read(home / "r.jsonl")[0]) == 4
    # Another source under the same name is another kernel.
    (home / "kernels" / "toy" / "eager.py").write_text(HONEST + "# changed\n")
    changed = solbench(
        "check",
        "toy",
        "-k",
        "eager",
        "-d",
        "cpu",
        "-p",
        "quick",
        "-o",
        "r.jsonl",
        "--resume",
        "--json",
        "-c",
        "r3",
        cwd=home,
    )
    (record,) = [Record.from_line(line) for line in changed.stdout.splitlines()]
    assert record.status is Status.PASSED
    assert record.latency_ms is None
    assert record.timings == {}


MEASURING = {
    "run": (["run", "toy", "-k", "eager", "-k", "slow"], "--resume"),
    "compare": (["compare", "eager", "slow", "-w", "toy"], "what was measured is in r.jsonl"),
}


@pytest.mark.parametrize(
    ("name", "sent"), [("run", signal.SIGINT), ("run", signal.SIGTERM), ("compare", signal.SIGINT)]
)
def test_what_is_interrupted_keeps_what_was_measured(name: str, sent: signal.Signals, home: Path) -> None:
    (home / "kernels" / "toy" / "slow.py").write_text("import time\ndef run(a, b, bias):\n    time.sleep(600)")
    asked, told = MEASURING[name]
    command = [*asked, "-d", "cpu", "-p", "quick", "-o", "r.jsonl"]
    temporary = home / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(temporary)}
    with subprocess.Popen(
        [sys.executable, "-m", "cli", *command], cwd=home, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        deadline = time.monotonic() + 120
        path = home / "r.jsonl"
        while time.monotonic() < deadline and not (path.exists() and path.read_bytes().count(b"\n") == 2):
            time.sleep(0.1)
        time.sleep(1)
        process.send_signal(sent)
        _, message = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in message
    assert told in " ".join(message.split())
    assert [r.status for r in store.read(path)[0]] == [Status.PASSED, Status.PASSED]
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("form", ["table", "markdown", "csv", "json"])
def test_a_report_is_written_in_every_form(form: str, tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text(json.dumps(LINE) + "\nbroken\n")
    done = solbench("report", "r.jsonl", "-f", form, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "r.jsonl:2" in done.stderr
    assert "t1" in done.stdout
    if form == "table":
        assert "38.90 µs" in done.stdout
        assert all(len(line) <= 80 for line in done.stdout.splitlines())
    elif form == "markdown":
        assert "38.90 µs (26%)" in done.stdout
        assert "<script>" not in done.stdout
        assert r"w\|x" in done.stdout
    elif form == "json":
        assert json.loads(done.stdout.splitlines()[0])["latency_ms"] == 0.0389
    to_file = solbench("report", "r.jsonl", "-f", form, "-o", "out", cwd=tmp_path)
    assert to_file.returncode == 0
    assert (tmp_path / "out").read_text() == done.stdout


def test_scaled_and_full_size_figures_never_share_a_table(tmp_path: Path) -> None:
    lines = [LINE, {**LINE, "scale": 32}, {**LINE, "device": "other"}, {**LINE, "workload_sha256": "9"}]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = solbench("report", "r.jsonl", "-f", "markdown", cwd=tmp_path)
    assert done.stdout.count("### ") == 4
    assert "SCALED 1/32" in done.stdout
    assert "not comparable with full-size figures" in done.stdout


@pytest.mark.parametrize("kind", ["workloads", "kernels", "devices", "protocols", "suites"])
def test_lists_are_tables_or_json_lines(kind: str, tmp_path: Path) -> None:
    shown = solbench("list", kind, cwd=tmp_path)
    rows = [json.loads(line) for line in solbench("list", kind, "--json", cwd=tmp_path).stdout.splitlines()]
    assert shown.returncode == 0
    assert rows
    assert all("name" in row for row in rows)


def test_an_own_workload_is_found_beside_the_installed_ones(home: Path) -> None:
    rows = [json.loads(line) for line in solbench("list", "workloads", "--json", cwd=home).stdout.splitlines()]
    assert {"toy", "moe_swiglu_backward", "dense_swiglu_backward"} <= {row["name"] for row in rows}


def test_a_faulty_workload_does_not_hide_the_others(home: Path) -> None:
    (home / "workloads" / "toy" / "workload.yaml").write_text(TOY_YAML.replace("schema: 1", "schema: x"))
    assert solbench("sol", "moe", cwd=home).returncode == 0
    done = solbench("sol", "toy", cwd=home)
    assert done.returncode == 2
    assert "workload.yaml:1" in done.stderr


def test_sol_shows_the_exception_and_why(tmp_path: Path) -> None:
    done = solbench("sol", "dense", cwd=tmp_path)
    assert "1.37 ms" in done.stdout
    assert "920.0 µs" in done.stdout
    assert "No implementation can reach the published figure" in " ".join(done.stderr.split())
    rows = [
        json.loads(line)
        for line in solbench("sol", "dense", "-d", "nvidia_h200", "--json", cwd=tmp_path).stdout.splitlines()
    ]
    assert len(rows) == 18
    assert all(row["published_bound_ms"] is None for row in rows)  # published for another device


def test_a_shell_pipe_that_closes_early_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m cli list kernels --json | head -1"
    done = subprocess.run(
        command,
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert "Traceback" not in done.stderr


# name: (how standard output is used, exit code)
OUTPUTS = {
    "a reader that leaves": ("| head -1 > /dev/null; exit ${PIPESTATUS[0]}", 0),
    "closed": (">&-", 0),
    "a full disk": ("> /dev/full", 2),
}


@pytest.mark.parametrize("kind", OUTPUTS)
@pytest.mark.parametrize("command", ["report r.jsonl", "report r.jsonl -f csv", "list kernels"])
def test_the_exit_code_does_not_depend_on_who_reads(command: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text("".join(json.dumps({**LINE, "case": f"t{n}"}) + "\n" for n in range(2000)))
    use, code = OUTPUTS[kind]
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m cli {command} {use}"], cwd=tmp_path, capture_output=True, text=True,
        check=False, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


def test_a_check_does_not_take_a_measurement_back(home: Path) -> None:
    for command in ("run", "check"):
        done = solbench(
            command, "toy", "-k", "eager", "-c", "r3", "-p", "quick", "-d", "cpu", "-o", "r.jsonl", cwd=home
        )
        assert done.returncode == 0, done.stderr
    assert json.loads(solbench("report", "r.jsonl", "-f", "json", cwd=home).stdout)["latency_ms"] is not None


def test_a_kernel_entry_stays_in_its_folder(home: Path) -> None:
    (home / "broken" / "kernel.yaml").write_text("schema: 1\nentry: ../wrong.py\n")
    done = solbench("run", "toy", "-k", "broken", cwd=home)
    assert done.returncode == 2
    assert "leads out of the folder" in done.stderr
