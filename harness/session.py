"""One worker process, seen from the judge: start it, ask it, and be sure that it is gone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from harness import reaper
from harness.channel import CHANNEL_VARIABLE, ChannelClosed, ChannelTimeout, Message, pair
from harness.records import Status

# What the worker may see of the caller's environment: what finds programs, libraries and the GPU.
_KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CC", "CXX", "CPATH", "LIBRARY_PATH")
_KEPT_PREFIXES = ("CUDA_", "NVIDIA_", "OMP_", "MKL_", "OPENBLAS_", "GOMP_", "KMP_", "TRITON_INTERPRET")
_GRACE_S = 3.0
_LOG_LINES = 15


class WorkerFailure(Exception):
    """The candidate's process failed; `status` and `reason` go into the record."""

    def __init__(self, status: Status, reason: str, log_tail: str | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.log_tail = status, reason, log_tail


_STATUS_OF = {
    "memory": Status.OUT_OF_MEMORY,
    "compile": Status.COMPILE_ERROR,
    "runtime": Status.RUNTIME_ERROR,
}


class Session:
    """A worker with a temporary folder of its own. Use as a context manager; nothing outlives it."""

    def __init__(self) -> None:
        reaper.adopt_orphans()
        self._others = set(reaper.descendants(os.getpid()))
        self._folder = Path(tempfile.mkdtemp(prefix="solbench-"))
        self._log = self._folder / "log"
        self._channel, theirs = pair()
        self._allowed_s = self._left_s = float("inf")
        work = self._folder / "work"
        work.mkdir()
        with self._log.open("wb") as log, theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "harness.worker"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=work,
                env=_environment(os.environ, work, theirs.fileno()),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def allow(self, seconds: float) -> None:
        """Set how long the worker may take for the requests that follow, all together."""
        self._allowed_s = self._left_s = seconds

    def ask(self, message: Message, descriptors: tuple[int, ...] = ()) -> Message:
        """One request and its reply. Raises `WorkerFailure` when the worker fails, dies or is late."""
        started = time.monotonic()
        try:
            self._channel.send(message, descriptors)
            reply, _ = self._channel.receive(max(self._left_s, 0.001), lambda: self._process.poll() is None)
        except ChannelTimeout:
            reason = f"the kernel's process used up its {self._allowed_s:g} s for this case (--timeout)"
            raise WorkerFailure(Status.TIMEOUT, reason, self._tail()) from None
        except ChannelClosed:
            raise self._death() from None
        self._left_s -= time.monotonic() - started
        if self._process.poll() is not None:
            raise self._death()  # a reply from a process whose supervisor is gone counts for nothing
        error = reply.get("error")
        if error is not None:
            status = _STATUS_OF.get(error.get("kind"), Status.RUNTIME_ERROR)
            raise WorkerFailure(status, str(error.get("text"))[:600], self._tail())
        return reply

    def _death(self) -> WorkerFailure:
        try:
            code = self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            return WorkerFailure(Status.RUNTIME_ERROR, "the kernel's process closed its channel", self._tail())
        if code < 0:
            # The supervisor itself was killed, and nobody but the candidate would.
            return WorkerFailure(Status.RUNTIME_ERROR, "the kernel's process killed its supervisor", self._tail())
        number = code - reaper.SIGNAL_EXIT_BASE
        if number > 0:
            try:
                name = signal.Signals(number).name
            except ValueError:
                name = f"signal {number}"
            if number == signal.SIGKILL:
                reason = f"the kernel's process was ended by {name}, as happens when memory runs out"
                return WorkerFailure(Status.OUT_OF_MEMORY, reason, self._tail())
            return WorkerFailure(Status.RUNTIME_ERROR, f"the kernel's process was ended by {name}", self._tail())
        return WorkerFailure(Status.RUNTIME_ERROR, f"the kernel's process exited with code {code}", self._tail())

    def _tail(self) -> str | None:
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - 8000))
            text = log.read().decode("utf-8", errors="replace").replace("\0", "�")
        lines = text.replace(str(self._folder), "<worker>").splitlines()[-_LOG_LINES:]
        return "\n".join(lines) or None

    def close(self) -> None:
        """End the worker and everything that it started, and remove its folder."""
        self._channel.close()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.returncode < 0:
            # The supervisor did not end by itself, so what it watched over is ours now.
            reaper.kill_descendants(self._others)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _environment(given: Mapping[str, str], work: Path, descriptor: int) -> dict[str, str]:
    kept = {k: v for k, v in given.items() if k in _KEPT or k.startswith(_KEPT_PREFIXES)}
    caches = {
        "HOME": work,
        "TMPDIR": work,
        "TRITON_CACHE_DIR": work / "triton",
        "TORCHINDUCTOR_CACHE_DIR": work / "inductor",
    }
    # The harness must be found although the worker's folder is not the caller's.
    search_path = [str(Path(__file__).resolve().parent.parent), kept.get("PYTHONPATH", "")]
    return {
        **kept,
        **{name: str(path) for name, path in caches.items()},
        "PYTHONPATH": os.pathsep.join(filter(None, search_path)),
        "PYTHONDONTWRITEBYTECODE": "1",
        CHANNEL_VARIABLE: str(descriptor),
    }
