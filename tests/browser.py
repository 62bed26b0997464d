"""A headless Chromium, driven over a pipe by its DevTools protocol: nothing to install but the browser."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# What a call may take on a busy machine.
TIMEOUT_S = 60.0


def find() -> str | None:
    """The browser's path, or None where there is none."""
    named = os.environ.get("SOLBENCH_BROWSER")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One tab. What goes wrong in a page is kept in `complaints`."""

    def __init__(self, path: str, profile: Path) -> None:
        commands, events = os.pipe(), os.pipe()

        def place() -> None:
            # The browser reads commands from 3 and writes to 4; copies first, so that neither overwrites the other.
            read, write = os.dup(commands[0]), os.dup(events[1])
            os.dup2(read, 3)
            os.dup2(write, 4)

        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        arguments += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-first-run", "about:blank"]
        self._process = subprocess.Popen(
            [path, *arguments],
            preexec_fn=place,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )
        os.close(commands[0])
        os.close(events[1])
        self._write, self._read, self._buffer, self._id = commands[1], events[0], b"", 0
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # Its own way to end takes its helpers along; without an answer it is killed.
        with suppress(OSError):
            os.write(self._write, b'{"id": 0, "method": "Browser.close"}\0')
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, **parameters: Any) -> Any:
        self._id += 1
        message: dict[str, Any] = {"id": self._id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + TIMEOUT_S
        while True:
            reply = self._next(until)
            if reply.get("id") == self._id:
                assert "error" not in reply, reply
                return reply["result"]
            self._note(reply)

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select.select([self._read], [], [], max(until - time.monotonic(), 0))[0], "the browser is silent"
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser ended"
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        what, values = event.get("method"), event.get("params", {})
        match what:
            case "Runtime.exceptionThrown":
                self.complaints.append(str(values["exceptionDetails"]))
            case "Runtime.consoleAPICalled":
                self.complaints.append(str([argument.get("value") for argument in values["args"]]))
            case "Log.entryAdded":
                self.complaints.append(values["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(values["request"]["url"])
            case "Page.loadEventFired":
                self._loaded = True

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False, script: bool = True) -> None:
        """Load a file and wait until it is there."""
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self._loaded = False
        self.call("Page.navigate", url=path.resolve().as_uri())
        until = time.monotonic() + TIMEOUT_S
        while not self._loaded:
            self._note(self._next(until))

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        reply = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, reply
        return reply["result"].get("value")

    def click(self, selector: str) -> None:
        """As a person would: on the middle of the element that the selector finds first."""
        target = f"document.querySelector({json.dumps(selector)})"
        x, y = self.run(
            f"(() => {{ const e = {target}; e.scrollIntoView({{block: 'center', inline: 'center'}});"
            " const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: int, text: str = "") -> None:
        values = {"key": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **values)
        self.call("Input.dispatchKeyEvent", type="keyUp", **values)

    def screenshot(self, whole: bool = False) -> bytes:
        reply = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(reply["data"])

    def pdf(self) -> bytes:
        """The page as a printer would get it."""
        return base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True)["data"])
