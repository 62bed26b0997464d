"""Processes that share a device take turns, and one that dies within its turn blocks nobody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import REPOSITORY

from harness.turns import Turn

# Says when it is within, and stays there until it is told to go on.
HOLDER = """
import subprocess, sys
from pathlib import Path
from harness.turns import Turn
with Turn(Path(sys.argv[1])):
    child = subprocess.Popen(["sleep", "30"])
    print(child.pid, flush=True)
    sys.stdin.readline()
print("out", flush=True)
child.kill()
"""
WAITER = """
import sys
from pathlib import Path
from harness.turns import Turn
print("waits", flush=True)
with Turn(Path(sys.argv[1])):
    print("within", flush=True)
"""


def python(source: str, turns: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", source, str(turns)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def lines(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("ending", ["goes on", "is killed"])
def test_one_waits_until_the_other_is_out_or_dead(ending: str, tmp_path: Path) -> None:
    with python(HOLDER, tmp_path / "turns") as holder:
        child = int(lines(holder))
        with python(WAITER, tmp_path / "turns") as waiter:
            assert lines(waiter) == "waits"
            time.sleep(0.3)  # time enough to get in, if it could
            assert waiter.poll() is None
            if ending == "goes on":
                assert holder.stdin is not None
                holder.stdin.write("\n")
                holder.stdin.flush()
                assert lines(holder) == "out"
            else:
                holder.kill()  # its child lives on, and does not hold the turn
            assert lines(waiter) == "within"
        if ending == "is killed":
            os.kill(child, signal.SIGKILL)


def test_a_turn_can_be_had_again_and_again(tmp_path: Path) -> None:
    turn = Turn(tmp_path / "turns")
    for _ in range(3):
        with turn:
            pass
    with Turn(tmp_path / "turns"):
        pass
