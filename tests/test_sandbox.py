"""What a worker may not do, tried in a child process that enters the sandbox."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest
from conftest import REPOSITORY

from harness import sandbox

# name: (source that raises OSError where it is kept from it, what Landlock has to be)
FORBIDDEN = {
    "writing elsewhere": ("open(outside / 'new', 'w')", 1),
    "changing a file": ("open(outside / 'file', 'r+')", 1),
    "removing a file": ("os.unlink(outside / 'file')", 1),
    "making a folder": ("os.mkdir(outside / 'folder')", 1),
    "a link to elsewhere": ("os.symlink('/', outside / 'link')", 1),
    "moving a file out": ("open('a', 'w').close(); os.rename('a', outside / 'a')", 1),
    "through a link of its own": ("os.symlink(outside, 'way'); open('way/file', 'r+')", 1),
    "cutting a file short": ("os.truncate(outside / 'file', 0)", 3),
    "memory of its parent": ("open(f'/proc/{os.getppid()}/mem', 'rb')", 1),
    "signals to its parent": ("os.kill(os.getppid(), 0)", 6),
    "the network": ("socket.create_connection(('127.0.0.1', 9), 1)", 4),
    "shared memory that stays": ("open('/dev/shm/solbench-test', 'w')", 1),
    "a file of any size": ("f = open('big', 'wb'); f.truncate(sandbox.FILE_BYTES + 1)", 0),
}
ALLOWED = {
    "its own folder": "open('a', 'w').write('x'); os.mkdir('b'); os.rename('a', 'b/a'); os.unlink('b/a')",
    "reading": "open(outside / 'file').read(); os.listdir(outside)",
    "nothing": "open('/dev/null', 'w').write('x')",
    "signals to itself": "os.kill(os.getpid(), 0)",
}


def tried(source: str, tmp_path: Path) -> str:
    """What became of `source` in the sandbox: "done", or the name of the OSError."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "file").write_text("whole")
    script = (
        "import os, signal, socket, sys\nfrom pathlib import Path\nfrom harness import sandbox\n"
        f"outside = Path({str(outside)!r})\nsandbox.enter(Path.cwd())\ntry:\n{indent(source, '    ')}\n"
        "    print('done')\nexcept OSError as error:\n    print(type(error).__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=inside, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert (outside / "file").read_text() == "whole"
    assert sorted(p.name for p in outside.iterdir()) == ["file"]
    return done.stdout.strip() or done.stderr


@pytest.mark.parametrize("what", FORBIDDEN)
def test_the_sandbox_forbids(what: str, tmp_path: Path) -> None:
    source, version = FORBIDDEN[what]
    if sandbox.landlock_version() < version:
        pytest.skip(f"needs Landlock {version}")
    assert tried(source, tmp_path) in ("PermissionError", "OSError")


@pytest.mark.parametrize("what", ALLOWED)
def test_the_sandbox_allows(what: str, tmp_path: Path) -> None:
    assert tried(ALLOWED[what], tmp_path) == "done"


def test_protections_say_whether_they_are_at_work() -> None:
    found = {protection.name: protection for protection in sandbox.protections()}
    assert found["files"].active == (sandbox.landlock_version() >= 1)
    assert found["file size"].active
    assert all(protection.detail for protection in found.values())


def test_without_landlock_the_protections_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "landlock_version", lambda: 0)
    files = next(protection for protection in sandbox.protections() if protection.name == "files")
    assert not files.active
    assert "no Landlock" in files.detail
