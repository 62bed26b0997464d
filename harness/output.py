"""What becomes of standard output that its reader has left, or whose disk is full?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from harness.errors import InputError


class Output:
    """Standard output that a reader may leave, and that takes any text.

    A reader that goes away (`| head`) changes neither what is measured nor the exit code; a full disk is told
    in a sentence.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        stream.reconfigure(errors="backslashreplace")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """As a stream's; this and what else writes raises `InputError` where nothing can be written any more."""
        return int(self._try(lambda: self._stream.write(text)))

    def writelines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.write(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except OSError as error:
            # Whatever is still to be written goes nowhere, so that it fails no second time.
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())
            if isinstance(error, BrokenPipeError):
                return 0
            problem = f"cannot be written ({error.strerror})"
            raise InputError("standard output", problem, "free space, or use -o") from None
