"""A real browser for tests: Chromium without a window, spoken to through a pipe.

Chromium's own protocol (DevTools) over two file descriptors, so nothing else has to be installed.
"""

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
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Self

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_SECONDS = 60.0


def find_browser() -> str | None:
    """The path of a Chromium, if this machine has one."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


def axe_violations(browser: Browser) -> list[str]:
    """What axe-core, Deque's checker of accessibility, has against the page that is open."""
    places = [*sys.path, str(Path(sys.prefix) / "axe")]
    found = PathFinder.find_spec("axe_playwright_python", places)
    if found is None or found.origin is None:
        pytest.skip("axe-core is not there: `make tests` puts it into .venv/axe")
    script = (Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8")
    browser.value(f"{script};0")
    # A graph is one picture with a label: looking at each of its marks takes seconds.
    question = (
        "axe.run({exclude: ['.graph svg']})"
        ".then(found => found.violations.map(v => v.id + ': ' + v.nodes[0].html))"
    )
    answer = browser.call(
        "Runtime.evaluate", expression=question, awaitPromise=True, returnByValue=True
    )
    assert "exceptionDetails" not in answer, answer["exceptionDetails"]
    return list(answer["result"]["value"])


class Browser:
    """One page in a browser; `events` is everything the browser has reported about it."""

    def __init__(self, program: str, folder: Path) -> None:
        read_here, write_there = os.pipe()
        read_there, write_here = os.pipe()
        words = [
            program,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
            f"--user-data-dir={folder}",
        ]

        def place() -> None:
            # Chromium reads from descriptor 3 and writes to 4. Both are copied out of the way
            # first: one of them may be 3 or 4 already.
            reading, writing = os.dup(read_there), os.dup(write_there)
            os.dup2(reading, 3)
            os.dup2(writing, 4)

        self._process = subprocess.Popen(
            words,
            preexec_fn=place,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_there)
        os.close(write_there)
        self._in, self._out = read_here, write_here
        self._waiting = b""
        self._numbers = itertools.count(1)
        self._session = ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    # --- what a test asks

    def open(self, address: str, width: int = 1280, height: int = 900) -> None:
        """Open a page and wait until it has loaded."""
        self.resize(width, height)
        self.events.clear()
        self.call("Page.navigate", url=address)
        self.wait_for("Page.loadEventFired")

    def resize(self, width: int, height: int) -> None:
        """Give the page another size."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def colours(self, scheme: str) -> None:
        """Ask pages to be "light" or "dark"."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_until(self, expression: str) -> None:
        """Wait until a JavaScript expression is true in the page."""
        deadline = time.monotonic() + _SECONDS
        while not self.value(expression):
            assert time.monotonic() < deadline, expression
            time.sleep(0.05)

    def picture(self, path: Path, *, whole: bool = False) -> Path:
        """Write what is to be seen, or the whole page, to a PNG file."""
        found = self.call(
            "Page.captureScreenshot",
            captureBeyondViewport=whole,
            **(
                {
                    "clip": {
                        "x": 0,
                        "y": 0,
                        "scale": 1,
                        "width": self.value("innerWidth"),
                        "height": self.value("document.documentElement.scrollHeight"),
                    }
                }
                if whole
                else {}
            ),
        )
        path.write_bytes(base64.b64decode(found["data"]))
        return path

    def requests(self) -> list[str]:
        """The addresses of everything that was loaded since the page was opened."""
        return [
            each["params"]["request"]["url"]
            for each in self.events
            if each["method"] == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[dict[str, Any]]:
        """Errors and warnings of the page."""
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        return [each for each in self.events if each["method"] in kinds]

    # --- the protocol

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser for something, and wait for its answer."""
        number = next(self._numbers)
        asked: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            asked["sessionId"] = self._session
        os.write(self._out, json.dumps(asked).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                return dict(answer["result"])

    def wait_for(self, method: str) -> None:
        """Wait until the browser has reported something."""
        while not any(each["method"] == method for each in self.events):
            self._next()

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + _SECONDS
        while b"\0" not in self._waiting:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(self._in, 1 << 16) if ready else b""
            if not part:
                raise TimeoutError("the browser does not answer")
            self._waiting += part
        text, self._waiting = self._waiting.split(b"\0", 1)
        found: dict[str, Any] = json.loads(text)
        if "method" in found:
            self.events.append(found)
        return found
