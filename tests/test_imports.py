"""Who may import whom, and what works without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY

# The table of docs/architecture.md: each module of harness/, and the modules of harness/ that it may import.
ALLOWED = {
    "errors": set(),
    "strict_yaml": {"errors"},
    "expressions": set(),
    "stats": set(),
    "sol": {"stats"},
    "spec": {"errors", "expressions", "sol", "strict_yaml"},
    "output": {"errors"},
    "records": set(),
    "store": {"errors", "records"},
    "text": set(),
    "rows": set(),
    "gpu_state": {"errors"},
    "measured": {"errors", "gpu_state", "spec", "text"},
    "catalog": {"errors", "measured", "spec", "text"},
    "listing": {"catalog"},
    "choice": {"catalog", "errors", "spec"},
    "figures": {"records", "sol", "store", "text"},
    "frame": {"errors", "figures", "store"},
    "rooflines": {"catalog", "errors", "figures", "sol"},
    "report": {"figures", "records", "sol", "text"},
    "terminal": {"figures", "records", "report", "text"},
    "html": {"figures", "report", "text"},
    "forms": {"figures", "frame", "html", "report", "terminal"},
    "comparison": {"stats"},
    "compare": {"comparison", "errors", "records", "stats"},
    "sides": {"compare", "errors", "store"},
    "compare_report": {"compare", "comparison", "errors", "text"},
    "gate": {"compare", "comparison", "errors", "records", "spec", "text"},
    "gate_report": {"gate", "text"},
    "noise": {"compare", "comparison", "errors", "records", "stats", "text"},
    "published": {"errors", "spec"},
    "leaderboard": {"compare", "comparison", "published", "records", "sol", "spec", "stats", "store"},
    "leaderboard_report": {"leaderboard", "text"},
    "baselines": {"compare", "errors", "records", "store", "text"},
    "bounds": {"sol", "spec", "stats", "text"},
    "tables": set(),
    "chart": {"stats"},
    "site_records": {"compare", "errors", "records", "stats", "store"},
    "site_plots": {"chart", "figures", "published", "report", "sol", "spec", "stats", "text"},
    "site_page": {"figures", "leaderboard", "published", "records", "report", "spec", "text"},
    "site_workload": {
        "bounds",
        "chart",
        "figures",
        "frame",
        "leaderboard",
        "leaderboard_report",
        "published",
        "report",
        "site_page",
        "site_plots",
        "spec",
        "stats",
        "tables",
        "text",
    },
    "site_record": {
        "catalog",
        "errors",
        "figures",
        "leaderboard",
        "leaderboard_report",
        "records",
        "report",
        "site_page",
        "site_plots",
        "tables",
        "text",
    },
    "site_index": {"figures", "leaderboard", "report", "site_page", "site_workload", "tables", "text"},
    "site": {
        "catalog",
        "errors",
        "html",
        "published",
        "site_index",
        "site_page",
        "site_record",
        "site_records",
        "site_workload",
        "spec",
    },
    "channel": set(),
    "reaper": set(),
    "arena": {"driver"},
    "timing": {"driver", "hold", "sample"},
    "worker": {"arena", "channel", "cupti", "integrity", "reaper", "sample", "sandbox", "timing"},
    "session": {"channel", "reaper", "records", "sandbox"},
    "inputs": {"errors", "expressions", "spec"},
    "judge": {"judge_kernel", "records", "spec"},
    "machine": {"errors", "gpu_state"},
    "calibrate": {"errors", "gpu_state", "machine", "measured", "sol", "spec"},
    "doctor": {
        "catalog",
        "choice",
        "driver",
        "errors",
        "evaluation",
        "gpu_state",
        "machine",
        "measured",
        "sandbox",
        "spec",
        "text",
    },
    "doctor_report": {"doctor", "text"},
    "evaluation": {
        "arena",
        "calls",
        "channel",
        "gpu_state",
        "inputs",
        "judge",
        "records",
        "sampling",
        "session",
        "slices",
        "spec",
        "starting",
    },
    "interleave": {"records", "runner"},
    "runner": {
        "cache",
        "catalog",
        "evaluation",
        "gpu_state",
        "inputs",
        "machine",
        "records",
        "session",
        "sol",
        "spec",
        "starting",
    },
    "starting": {"calls", "catalog", "channel", "hold", "machine", "session", "spec"},
    "preparation": {
        "calibrate",
        "catalog",
        "choice",
        "cupti",
        "errors",
        "evaluation",
        "gpu_state",
        "machine",
        "records",
        "rooflines",
        "runner",
        "sol",
        "spec",
        "starting",
        "store",
    },
    "progress": {"records", "text"},
    "execution": {"errors", "interleave", "preparation", "progress", "records", "runner", "store"},
    "corpus": {"catalog", "errors", "records", "sandbox", "spec"},
    "turns": set(),
    "selftest": {"catalog", "corpus", "machine", "reaper", "records", "runner", "sandbox", "spec", "turns"},
    "selftest_report": {"selftest"},
    "sandbox": set(),
    "driver": set(),
    "sample": set(),
    "cupti": {"driver", "sample"},
    "hold": {"driver"},
    "cache": set(),
    "integrity": set(),
    "calls": {"arena", "channel", "hold", "records", "session"},
    "slices": {"spec"},
    "judge_kernel": set(),
    "plausibility": set(),
    "stopping": {"stats"},
    "sampling": {"calls", "gpu_state", "judge", "plausibility", "records", "spec", "stats", "stopping"},
}
NEEDS_TORCH = {
    "arena",
    "cache",
    "calibrate",
    "calls",
    "cupti",
    "driver",
    "evaluation",
    "execution",
    "hold",
    "inputs",
    "integrity",
    "interleave",
    "judge",
    "judge_kernel",
    "runner",
    "sampling",
    "selftest",
    "slices",
    "starting",
    "timing",
}


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "harness":
            found |= {alias.name for alias in node.names if not alias.name.startswith("__")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("harness."):
            found.add(str(node.module).split(".")[1])
    return found


MODULES = sorted(path.stem for path in (REPOSITORY / "harness").glob("*.py") if path.stem != "__init__")


def test_every_module_is_in_the_table() -> None:
    assert sorted(ALLOWED) == MODULES


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_it_may(module: str) -> None:
    assert imported(REPOSITORY / "harness" / f"{module}.py") <= ALLOWED[module]


def test_no_import_goes_in_a_circle() -> None:
    done: set[str] = set()
    while waiting := [m for m in ALLOWED if m not in done]:
        ready = [m for m in waiting if ALLOWED[m] <= done]
        assert ready, f"a circle among {waiting}"
        done |= set(ready)


def test_the_table_is_the_one_in_the_documentation() -> None:
    text = (REPOSITORY / "docs" / "architecture.md").read_text()
    for module, allowed in ALLOWED.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| `{module}` |"))
        listed = {word.strip(" `") for word in row.split("|")[3].split(",")} - {"–", ""}
        assert listed == allowed, module


@pytest.mark.parametrize("module", [*sorted(set(ALLOWED) - NEEDS_TORCH - {"worker"}), "worker"])
def test_reading_results_needs_no_torch(module: str) -> None:
    code = f"import sys; sys.modules['torch'] = None; import harness.{module}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPOSITORY)


@pytest.mark.parametrize("arguments", [["--help"], ["list", "workloads"], ["list", "kernels"], ["sol", "moe"]])
def test_looking_at_things_needs_no_torch(arguments: list[str]) -> None:
    code = f"import sys; sys.modules['torch'] = None; sys.argv = ['solbench', *{arguments}]; import cli; cli.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_a_missing_package_is_named_in_a_sentence() -> None:
    code = "import sys; sys.modules['torch'] = None; sys.argv = ['solbench', 'run', 'moe']; import cli; cli.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert done.returncode == 2
    assert done.stderr == "solbench: this command needs torch, which is not installed; pip install torch\n"
