"""Real runs that are killed, starved and lied to: each in a process of its own."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mt_train.checkpoint.manifest import verify
from mt_train.checkpoint.store import CheckpointStore

DISTURBED = Path(__file__).parent / "disturbed_command.py"
PATIENCE_SECONDS = 120.0
TINY = {
    "model": "llama",
    "model.n-layers": 1,
    "model.dim": 16,
    "model.n-heads": 2,
    "model.n-kv-heads": 1,
    "model.ffn-dim": 16,
    "model.dropout": 0.1,
    "dataset": "jsonl",
    "data.eval": 2,
    "train.micro-batch-size": 1,
    "train.sequence-len": 16,
    "eval.every-steps": 3,
    "eval.sample-tokens": 3,
    "checkpoint.every-steps": 1,
    "log.every-steps": 1000,
}
TIMED = ("tokens_per_second", "memory_gib", "data_wait_seconds", "seconds")
TEXT = "the a model learns what it is told and nothing more than that because words follow words"


@dataclass
class Attempt:
    """One command in a process of its own."""

    said: Path
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait(self, timeout: float = PATIENCE_SECONDS) -> int:
        """Its exit code; negative for a signal. One that hangs is killed, and the test fails."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"it has not ended after {timeout} s: {self.err}") from error

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    @property
    def out(self) -> str:
        return self._text("out")

    @property
    def err(self) -> str:
        return self._text("err")

    def _text(self, kind: str) -> str:
        path = self.said.with_name(f"{self.said.name}.{kind}")
        return path.read_text(errors="replace") if path.exists() else ""


class Runs:
    """Starts commands, and knows the smallest run that has everything: dropout, evaluation, samples and saves."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        self.seconds: dict[Path, float] = {}
        self.rows = folder / "rows.jsonl"
        chance = random.Random(0)
        texts = [" ".join(chance.choice(TEXT.split()) for _ in range(12)) for _ in range(40)]
        self.rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    def words(self, output: Path, changes: Mapping[str, Any] | None = None) -> list[str]:
        """Words of a run that saves every step, with other options where ``changes`` says so."""
        options = {**TINY, "dataset.path": self.rows, "output": output, **(changes or {})}
        return [word for key, value in options.items() for word in (f"--{key}", str(value))]

    def start(self, words: list[str], *, module: str = "mt_train.cli.train", **request: Any) -> Attempt:
        self.count += 1
        said, folder = self.folder / f"said-{self.count:05d}", request.pop("folder", self.folder)
        command = [sys.executable, str(DISTURBED), json.dumps({"module": module, **request}), *words]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with open(f"{said}.out", "wb") as out, open(f"{said}.err", "wb") as err:
            options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
            return Attempt(said, subprocess.Popen(command, env=environment, cwd=folder, **options))

    def run(self, words: list[str], *, timeout: float = PATIENCE_SECONDS, **request: Any) -> tuple[int, Attempt]:
        attempt = self.start(words, **request)
        return attempt.wait(timeout), attempt

    def truth(self, steps: int, changes: Mapping[str, Any] | None = None, folder: Path | None = None) -> Truth:
        """What so many steps come to when nothing happens; all checkpoints are kept."""
        folder = folder or self.folder / f"undisturbed-{steps}"
        if folder not in self.seconds:
            began = time.monotonic()
            options = {"train.steps": steps, "checkpoint.keep-last": 1000, **(changes or {})}
            code, attempt = self.run(self.words(folder, options))
            assert code == 0, attempt.err
            self.seconds[folder] = time.monotonic() - began
        files = {step: hashes(path) for step, path in CheckpointStore(folder).list()}
        return Truth(folder, self.seconds[folder], files)


@dataclass
class Truth:
    """What a run that nobody disturbed came to: the hash of every tensor file of every step, and its figures."""

    run: Path
    seconds: float
    files: dict[int, dict[str, str]] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        return max(self.files)

    def check(self, run: Path) -> list[int]:
        """Steps of the checkpoints of another run: each is whole, and equal to this run's at that step."""
        found = CheckpointStore(run).list()
        for step, path in found:
            assert hashes(path) == self.files[step], f"step {step} differs"
        return [step for step, _ in found]

    def check_finished(self, run: Path) -> None:
        assert self.check(run)[-1] == self.steps
        for name in ("metrics.jsonl", "samples.jsonl"):
            assert lines_of(run / name) == lines_of(self.run / name), name
        assert (run / "completed").exists()


def hashes(checkpoint: Path) -> dict[str, str]:
    """Hash of every file of a checkpoint, after its content has been compared with them."""
    return {name: entry["sha256"] for name, entry in verify(checkpoint)["files"].items()}


def lines_of(path: Path) -> list[Mapping[str, Any]]:
    """Lines of figures or samples, without those that time decides."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in record.items() if key not in TIMED} for record in records]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def undisturbed_run(runs: Runs) -> Truth:
    return runs.truth(10)
