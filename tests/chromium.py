"""A headless Chromium on a pipe, for tests of pages."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


class Chromium:
    """One page of a headless Chromium, driven by the DevTools protocol: JSON on two pipes, each message ended by NUL.

    https://chromedevtools.github.io/devtools-protocol/ and --remote-debugging-pipe, which reads 3 and writes 4.
    """

    def __init__(self, program: str, profile: Path) -> None:
        reads_from, self._out = os.pipe()
        self._in, writes_to = os.pipe()
        theirs = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (reads_from, writes_to)]  # never 3 or 4 themselves

        def place() -> None:
            os.dup2(theirs[0], 3)
            os.dup2(theirs[1], 4)

        command = [program, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}", "--disable-gpu"]
        command += ["--no-first-run", "--disable-background-networking", "--disable-extensions", "--hide-scrollbars"]
        command += ["--no-sandbox"] if os.geteuid() == 0 else []
        with (profile / "said").open("wb") as said:
            self.process = subprocess.Popen(
                [*command, "about:blank"],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                pass_fds=(3, 4),
                preexec_fn=place,
                start_new_session=True,
            )
        for end in (reads_from, writes_to, *theirs):
            os.close(end)
        self.events: list[dict[str, Any]] = []
        self._rest = b""
        self._count = 0
        self._session: str | None = None

    def attach(self) -> None:
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        os.write(
            self._out, json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + b"\0"
        )
        while True:
            reply = self._message(60)
            if reply.get("id") == self._count:
                assert "error" not in reply, (method, reply)
                return reply.get("result", {})
            self.events.append(reply)

    def _message(self, seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0, end - time.monotonic()))
            chunk = os.read(self._in, 1 << 20) if ready else b""
            assert chunk, f"Chromium {'ended' if ready else f'did not answer within {seconds} s'}"
            self._rest += chunk
        first, self._rest = self._rest.split(b"\0", 1)
        return json.loads(first)

    def open(
        self, page: Path | str, *, width: int = 1280, height: int = 900, dark: bool = False, scripts: bool = True
    ) -> None:
        """Load a file, or what is at an address, in a window of this size; what was logged before is forgotten."""
        phone = width < 500
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._message(60))
        if scripts:  # without, nothing can be awaited in the page
            self.settle()

    def settle(self) -> None:
        """Wait until the page has been laid out and drawn twice."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def run(self, code: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)
        self.settle()

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(picture["data"]))

    def close(self) -> None:
        os.close(self._out)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        os.close(self._in)


@contextmanager
def started_chromium(profile: Path) -> Iterator[Chromium]:
    """Skips the test where there is none, or none that starts."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs a browser: no `chromium` on the PATH (Debian: apt install chromium)")
    browser = Chromium(program, profile)
    try:
        browser.attach()
    except (AssertionError, OSError) as error:
        browser.close()
        last = ((profile / "said").read_text(errors="replace").splitlines() or ["it said nothing"])[-1]
        pytest.skip(f"needs a browser: {program} does not start here ({error}): {last}")
    try:
        yield browser
    finally:
        browser.close()
