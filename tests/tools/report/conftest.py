"""Folders of runs as mt-train leaves them, and a headless Chromium on a pipe."""

from __future__ import annotations

import base64
import contextlib
import copy
import fcntl
import json
import math
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CONFIG = {
    "model": {"name": "llama", "dim": 128},
    "optimizer": {"name": "adamw", "lr": 0.003},
    "train": {"steps": 60, "seed": 0},
}
ABOUT = {
    "schema": 1,
    "core": "0.1.0",
    "started": "2026-03-01T10:00:00+00:00",
    "model": "llama tiny from mt-plugin-llama 0.1.0",
    "parameters": [
        {"dtype": "float32", "trained": True, "count": 1000, "bytes": 4000},
        {"dtype": "float32", "trained": False, "count": 3000, "bytes": 12000},
    ],
    "data": {
        "train": {
            "rows_read": 76,
            "rows_kept": 71,
            "rows_dropped": {"empty": 4, "too long": 1},
            "rows_split": 70,
            "samples": 1853,
            "tokens_total": 464152,
            "tokens_trained": 462300,
        },
        "held_out": None,
    },
    "example": "Question: two and two? «four» Question: and three? «seven»",
    "layout": "1 rank × 8 rows of 256 tokens",
    "device": "CPU, 2 threads a process",
    "attention": "sdpa (auto)",
    "total_steps": 60,
    "sequence_len": 256,
}


def figures(step: int, rate: float = 0.1) -> dict[str, Any]:
    """A record like those of a run: the loss falls and wobbles."""
    record = {
        "step": step,
        "loss": 1.5 + 4 * math.exp(-rate * step) + 0.1 * math.sin(step),
        "lr": 0.003 * min(1.0, step / 10),
        "grad_norm": 1 + 1 / step,
        "tokens": step * 2000,
        "tokens_per_second": 10000.0 + step,
        "memory_gib": 0.45,
        "data_wait_seconds": 0.0006,
    }
    return record | ({"eval_loss": 1.6 + 4 * math.exp(-rate * step)} if step % 20 == 0 else {})


MakeRun = Callable[..., Path]


@pytest.fixture
def about() -> dict[str, Any]:
    return copy.deepcopy(ABOUT)


@pytest.fixture(scope="session")
def record() -> Callable[..., dict[str, Any]]:
    return figures


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    return lambda name="run", **parts: write_run(tmp_path / name, **parts)


def write_run(
    folder: Path,
    *,
    records: list[dict[str, Any]] | None = None,
    config: dict[str, Any] | None = None,
    about: dict[str, Any] | None = None,
    samples: list[dict[str, Any]] | None = None,
    evaluations: list[dict[str, Any] | str] | None = None,
    rollouts: list[dict[str, Any] | str] | None = None,
    alarms: list[dict[str, Any] | str] | None = None,
    completed: bool = True,
) -> Path:
    """A run's folder; YAML reads JSON, so the config is written as that."""
    folder.mkdir(parents=True)
    records = [figures(step) for step in range(1, 61)] if records is None else records
    (folder / "run.yaml").write_text(json.dumps(config or CONFIG))
    (folder / "plugins.lock.json").write_text(json.dumps({"core": "0.1.0", "plugins": {"mt-plugin-llama": "0.1.0"}}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if about is not None:
        (folder / "about.json").write_text(json.dumps(about))
    if samples is not None:
        (folder / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    for name, rows in (("evaluations", evaluations), ("rollouts", rollouts), ("alarms", alarms)):
        if rows is not None:
            lines = [each if isinstance(each, str) else json.dumps(each) for each in rows]
            (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    if completed:
        (folder / "completed").touch()
    return folder


# ------------------------------------------------------------------------------------------------------------- browser


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
        self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False, scripts: bool = True
    ) -> None:
        """Load a file in a window of this size; what was logged before is forgotten."""
        phone = width < 500
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
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


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """Started once, since it is slow."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs a browser: no `chromium` on the PATH (Debian: apt install chromium)")
    profile = tmp_path_factory.mktemp("chromium")
    browser = Chromium(program, profile)
    try:
        browser.attach()
    except (AssertionError, OSError) as error:
        browser.close()
        last = ((profile / "said").read_text(errors="replace").splitlines() or ["it said nothing"])[-1]
        pytest.skip(f"needs a browser: {program} does not start here ({error}): {last}")
    yield browser
    browser.close()
