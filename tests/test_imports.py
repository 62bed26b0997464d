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
    "spec": {"errors", "strict_yaml", "expressions", "sol"},
    "records": set(),
    "store": {"errors", "records"},
    "catalog": {"errors", "spec"},
    "figures": {"records", "store"},
    "frame": {"errors", "figures", "store"},
    "text": set(),
    "report": {"figures", "records", "sol", "text"},
    "terminal": {"figures", "records", "report", "text"},
    "html": {"figures", "report", "text"},
    "comparison": {"stats"},
    "compare": {"comparison", "errors", "records", "stats"},
    "compare_report": {"compare", "comparison", "errors", "text"},
    "gate": {"compare", "comparison", "errors", "records", "spec", "text"},
    "gate_report": {"gate", "text"},
    "published": {"errors", "spec"},
    "leaderboard": {"compare", "comparison", "published", "records", "stats"},
    "leaderboard_report": {"leaderboard", "text"},
    "baselines": {"compare", "errors", "records", "store"},
    "channel": set(),
    "reaper": set(),
    "arena": set(),
    "timing": set(),
    "worker": {"arena", "channel", "reaper", "timing"},
    "session": {"channel", "reaper", "records"},
    "inputs": {"errors", "expressions", "spec"},
    "judge": {"records", "spec"},
    "machine": {"errors", "sol"},
    "evaluation": {"arena", "channel", "inputs", "judge", "records", "session", "spec", "stats"},
    "interleave": {"records", "runner"},
    "runner": {"catalog", "evaluation", "inputs", "machine", "records", "session", "sol", "spec"},
}
NEEDS_TORCH = {"arena", "timing", "inputs", "judge", "machine", "evaluation", "runner", "interleave"}


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
