"""JSON messages between the judge and a worker, over a pair of sockets that nobody else holds."""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]

# Names the descriptor of the worker's end in the worker's environment.
CHANNEL_VARIABLE = "SOLBENCH_CHANNEL"
# The largest honest message is a traceback's tail. A worker cannot make the judge buffer more than this.
MAX_MESSAGE_BYTES = 1_000_000
_HEADER = struct.Struct("!I")
_POLL_S = 0.05


class ChannelClosed(Exception):
    """The other side is gone, or said something that is no message."""


class ChannelTimeout(Exception):
    """Nothing whole arrived in time."""


class Channel:
    """One end. Messages are JSON objects; nothing is ever unpickled."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        """Send one message, and open file descriptors with it. Raises `ChannelClosed`."""
        body = json.dumps(message).encode()
        packet = _HEADER.pack(len(body)) + body
        try:
            self._socket.setblocking(True)
            sent = socket.send_fds(self._socket, [packet], list(descriptors)) if descriptors else 0
            self._socket.sendall(packet[sent:])
        except OSError:
            raise ChannelClosed from None

    def receive(
        self, timeout_s: float | None = None, alive: Callable[[], bool] = lambda: True
    ) -> tuple[Message, tuple[int, ...]]:
        """One message and the descriptors that came with it.

        Raises `ChannelTimeout` after `timeout_s`, and `ChannelClosed` when the other side hung up, sent
        something that is no message, or `alive()` turns false while nothing more arrives. (A grandchild
        that inherited the socket keeps it open, so the end of the worker does not show as a hang-up.)
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        data, descriptors = bytearray(), list[int]()
        wanted = _HEADER.size
        while len(data) < wanted:
            self._wait(deadline, alive)
            try:
                chunk, fds, _, _ = socket.recv_fds(self._socket, min(wanted - len(data), 65536), 4)
            except OSError:
                raise ChannelClosed from None
            descriptors += fds
            if not chunk:
                raise ChannelClosed
            data += chunk
            if len(data) == _HEADER.size and wanted == _HEADER.size:
                wanted += _HEADER.unpack(data)[0]
                if wanted > MAX_MESSAGE_BYTES:
                    raise ChannelClosed
        try:
            message = json.loads(data[_HEADER.size :])
        except (ValueError, RecursionError):
            raise ChannelClosed from None
        if not isinstance(message, dict):
            raise ChannelClosed
        return message, tuple(descriptors)

    def _wait(self, deadline: float | None, alive: Callable[[], bool]) -> None:
        while True:
            left = _POLL_S if deadline is None else min(_POLL_S, deadline - time.monotonic())
            if left <= 0:
                raise ChannelTimeout
            was_alive = alive()
            if select.select([self._socket], [], [], left)[0]:
                return
            if not was_alive:
                raise ChannelClosed


def pair() -> tuple[Channel, socket.socket]:
    """The judge's end, and the socket that the worker inherits."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Channel(ours), theirs
