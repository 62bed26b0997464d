"""How a whole process tree ends: a supervisor that outlives the worker and leaves nothing behind.

`guard()` forks. The child goes on as the worker; the parent becomes the supervisor, adopts every orphan
below it (a "child subreaper"), and when the worker ends, or it is told to stop, or the judge dies, kills
all that is left. A candidate that starts daemons or ignores signals leaves no process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

# From <linux/prctl.h>.
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

# How the supervisor reports a worker that died of signal n, as shells do.
SIGNAL_EXIT_BASE = 128
_KILL_ROUNDS = 200
_AWAITED = (signal.SIGTERM, signal.SIGCHLD)
# How often to see whether the judge is still there, should its death not have been signalled.
_LOOK_UP_S = 2.0
# States of processes as /proc/PID/stat has them; the empty one is for a process that is no longer there.
_ENDED, _STOPPED = ("Z", "X", ""), ("T", "t")


def guard(keep_for_worker: int) -> None:
    """Return in the worker only; `keep_for_worker` is its channel, which the supervisor closes.

    The supervisor exits with the worker's exit code, or 128 + n after signal n.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    worker = os.fork()
    if worker == 0:
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.close(keep_for_worker)
    code = _supervise(worker)
    os._exit(code)


def _supervise(worker: int) -> int:
    code, judge = SIGNAL_EXIT_BASE + signal.SIGTERM, os.getppid()
    while os.getppid() == judge:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == worker:
            code = _exit_code(status)
            break
        if pid:
            continue
        # Asleep until something happens: a supervisor that polls would disturb what is being timed.
        received = signal.sigtimedwait(_AWAITED, _LOOK_UP_S)
        if received is not None and received.si_signo == signal.SIGTERM:
            break
    for _ in range(_KILL_ROUNDS):
        below = descendants(os.getpid())
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not _collect_dead() and not below:
            break
        time.sleep(0.01)
    return code


def _exit_code(status: int) -> int:
    if os.WIFSIGNALED(status):
        return SIGNAL_EXIT_BASE + os.WTERMSIG(status)
    return os.WEXITSTATUS(status)


def _collect_dead() -> bool:
    """Reap what has ended; whether children remain."""
    try:
        while True:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return True
    except ChildProcessError:
        return False


def adopt_orphans() -> None:
    """Make this process the parent of what is orphaned below it, should a supervisor be killed."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_descendants(spared: set[int]) -> None:
    """Kill and collect everything below this process but for `spared` and what is below those."""
    for _ in range(_KILL_ROUNDS):
        kept = spared | {below for pid in spared for below in descendants(pid)}
        left = [pid for pid in descendants(os.getpid()) if pid not in kept]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if not left:
            return
        time.sleep(0.01)


def descendants(root: int) -> list[int]:
    """Process ids below `root`, without those that have ended."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            state, parent = _state_and_parent(int(entry.name))
            if state not in _ENDED:
                children.setdefault(parent, []).append(int(entry.name))
    found, waiting = list[int](), [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def await_stop(pids: list[int]) -> None:
    """Wait until the processes, which were sent SIGSTOP, have stopped or ended; a second at the most."""
    deadline = time.monotonic() + 1.0
    for pid in pids:
        while time.monotonic() < deadline:
            if _state_and_parent(pid)[0] in (*_ENDED, *_STOPPED):
                break
            time.sleep(0.0001)


def _state_and_parent(pid: int) -> tuple[str, int]:
    """What a process does, as one letter, and its parent's id; an empty string and 0 when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "", 0
    # "pid (name) state ppid ...": the name may hold spaces and parentheses.
    state, parent = stat.rpartition(")")[2].split()[:2]
    return state, int(parent)
