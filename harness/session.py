"""One worker process, seen from the judge: start it, ask it, and be sure that it is gone."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType

from harness import reaper, sandbox
from harness.channel import CHANNEL_VARIABLE, ChannelClosed, ChannelTimeout, Message, pair
from harness.records import Status

# What the worker may see of the caller's environment: what finds programs, libraries and the GPU.
_KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CC", "CXX", "CPATH", "LIBRARY_PATH")
_KEPT_PREFIXES = ("CUDA_", "NVIDIA_", "OMP_", "MKL_", "OPENBLAS_", "GOMP_", "KMP_", "TRITON_INTERPRET")
_GRACE_S = 3.0
_LOG_LINES = 15
# How often to see how many processes and files a worker that does not answer has made.
_LOOK_S = 0.5


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


# Of all sessions that are open in this process.
_supervisors: set[int] = set()


class Session:
    """A worker with a temporary folder of its own. Use as a context manager; nothing outlives it."""

    def __init__(self) -> None:
        reaper.adopt_orphans()
        self._others = set(reaper.descendants(os.getpid()))
        self._folder = Path(tempfile.mkdtemp(prefix="solbench-"))
        self._log = self._folder / "log"
        self._channel, theirs = pair()
        self._allowed_s = self._left_s = float("inf")
        self._nonce = ""
        self._next_look = 0.0
        self._closers: list[Callable[[], None]] = []
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
        _supervisors.add(self._process.pid)

    def on_close(self, action: Callable[[], None]) -> None:
        """Have something done once, when the worker is gone."""
        self._closers.append(action)

    def allow(self, seconds: float) -> None:
        """Set how long the worker may take for the requests that follow, all together."""
        self._allowed_s = self._left_s = seconds

    def ask(self, message: Message, descriptors: tuple[int, ...] = ()) -> Message:
        """One request and its reply. Raises `WorkerFailure` when the worker fails, dies or is late."""
        self.tell(message, descriptors)
        reply = self.hear()
        assert reply is not None
        return reply

    def tell(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        """A request whose replies `hear` gives. Raises `WorkerFailure` when the worker is gone."""
        self._nonce = secrets.token_hex(16)
        try:
            self._channel.send({**message, "nonce": self._nonce}, descriptors)
        except ChannelClosed:
            raise self._death() from None

    def go_on(self) -> None:
        """Let the worker, which waits in the middle of a request, continue."""
        try:
            self._channel.send({"nonce": self._nonce})
        except ChannelClosed:
            raise self._death() from None

    def hear(self, patience_s: float = float("inf")) -> Message | None:
        """The next reply to the latest request; None when it takes longer than `patience_s`.

        Raises `WorkerFailure` when the worker fails, dies, answers something else, or uses up what it was
        allowed.
        """
        started = time.monotonic()
        self._next_look = started + _LOOK_S
        allowed_s = max(self._left_s, 0.001)
        try:
            reply, _ = self._channel.receive(min(allowed_s, patience_s), self._is_well)
        except ChannelTimeout:
            if patience_s < allowed_s:
                self._left_s -= time.monotonic() - started
                return None
            raise self._timeout() from None
        except ChannelClosed:
            raise self._death() from None
        self._left_s -= time.monotonic() - started
        if self._process.poll() is not None:
            raise self._death()  # a reply from a process whose supervisor is gone counts for nothing
        if reply.get("nonce") != self._nonce:
            reason = "a reply came that answers no request: the kernel wrote to the harness's channel"
            raise WorkerFailure(Status.REWARD_HACK, reason, self._tail())
        error = reply.get("error")
        if error is not None:
            status = _STATUS_OF.get(error.get("kind"), Status.RUNTIME_ERROR)
            raise WorkerFailure(status, str(error.get("text"))[:600], self._tail())
        return reply

    def spend(self, seconds: float) -> None:
        """Charge time that the worker took while nobody listened. Raises `WorkerFailure` when too much is spent."""
        self._left_s -= seconds
        if self._left_s <= 0:
            raise self._timeout()

    def _timeout(self) -> WorkerFailure:
        reason = f"the kernel's process used up its {self._allowed_s:g} s for this case (--timeout)"
        return WorkerFailure(Status.TIMEOUT, reason, self._tail())

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """While this holds, no process of the worker's runs."""
        stopped: list[int] = []
        try:
            while new := [pid for pid in reaper.descendants(self._process.pid) if pid not in stopped]:
                for pid in new:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGSTOP)
                stopped += new
                reaper.await_stop(new)
            yield
        finally:
            for pid in reversed(stopped):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _is_well(self) -> bool:
        """Whether the worker's supervisor is alive; raises `WorkerFailure` when the worker takes too much."""
        now = time.monotonic()
        if now >= self._next_look:
            # Looking costs milliseconds, so it is done when nothing has come for a while.
            self._next_look = now + _LOOK_S
            if (count := len(reaper.descendants(self._process.pid))) > sandbox.PROCESSES:
                reason = f"the kernel started {count} processes; {sandbox.PROCESSES} are allowed"
                raise WorkerFailure(Status.RUNTIME_ERROR, reason, self._tail())
            if (size := _folder_bytes(self._folder)) > sandbox.FOLDER_BYTES:
                reason = f"the kernel wrote {size >> 30} GiB of files; {sandbox.FOLDER_BYTES >> 30} GiB are allowed"
                raise WorkerFailure(Status.RUNTIME_ERROR, reason, self._tail())
        return self._process.poll() is None

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
        _supervisors.discard(self._process.pid)
        if self._process.returncode < 0:
            # The supervisor did not end by itself, so what it watched over is ours now.
            reaper.kill_descendants(self._others | _supervisors)
        shutil.rmtree(self._folder, ignore_errors=True)
        while self._closers:
            self._closers.pop()()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _folder_bytes(folder: Path) -> int:
    """What the files below a folder take on the disk; files that come and go meanwhile may be left out."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
    return total


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
