"""A real browser for tests: headless Chromium, driven through a pipe with the DevTools protocol."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from helpers import POSIX

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--remote-debugging-pipe",
)
# The browser reads from descriptor 3 and writes to 4: both pipes are moved there, by way of high
# numbers, since one may have the number of the other.
START = """
import fcntl, os, sys
high = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 64) for number in sys.argv[1:3]]
for source, target in zip(high, (3, 4)):
    os.dup2(source, target)
os.execv(sys.argv[3], sys.argv[3:])
"""
PATIENCE = 60.0  # seconds for one answer, on a machine that does other things as well


def find_chromium() -> str | None:
    """The path of a Chromium that can be driven here, or None: its pipes need POSIX."""
    if not POSIX:
        return None
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Page:
    """One tab. `errors` has what the page wrote to the console as an error or threw."""

    def __init__(self, send_to: int, read_from: int) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._send_to, self._read_from = send_to, read_from
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._events: list[str] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to one command of the protocol."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send_to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])

    def open(self, url: str) -> None:
        """Loads an address and waits until it has loaded."""
        self._events.clear()
        self.call("Page.navigate", url=url)
        while "Page.loadEventFired" not in self._events:
            self._receive()

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def resize(self, width: int, height: int, scale: int = 1) -> None:
        """Gives the page the size of a screen, and waits until it has drawn itself anew."""
        sizes = {"width": width, "height": height, "deviceScaleFactor": scale}
        self.call("Emulation.setDeviceMetricsOverride", mobile=width < 500, **sizes)
        self.settle()

    def prefer(self, scheme: str) -> None:
        """Sets the colour scheme that the reader prefers."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        self.settle()

    def settle(self) -> None:
        """Waits for two frames: by then the page has been told of a change, and has drawn it."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def press(self, key: str) -> None:
        """Presses a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def screenshot(self, path: Path) -> None:
        """Writes a picture of the whole page."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            ready = select.select([self._read_from], [], [], max(0, left))[0]
            assert ready, f"the browser did not answer within {PATIENCE} seconds"
            piece = os.read(self._read_from, 1 << 16)
            assert piece, "the browser closed"
            self._buffer += piece
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, parameters: dict[str, Any]) -> None:
        self._events.append(event)
        if event == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"]))
        elif event == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(parameters["entry"]["text"])
        elif event == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.errors.append(json.dumps(parameters["args"]))
        elif event == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])


@contextmanager
def browser(chromium: str, profile: Path) -> Iterator[Page]:
    """A page in a browser that has the profile's folder to itself and ends with the block."""
    to_browser, send_to = os.pipe()
    read_from, from_browser = os.pipe()
    command = [chromium, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(
        [sys.executable, "-c", START, str(to_browser), str(from_browser), *command],
        pass_fds=(to_browser, from_browser),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        yield Page(send_to, read_from)
    finally:
        os.close(send_to)
        os.close(read_from)
        process.terminate()
        process.wait(timeout=PATIENCE)
