"""Folders of runs as mt-train leaves them, and a browser."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from board_runs import ABOUT, CONFIG, record, text_of
from chromium import Chromium, started_chromium


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """A run's folder below ``runs``; YAML reads JSON."""

    def made(
        name: str = "a",
        *,
        steps: int = 60,
        about: Mapping[str, Any] = {},
        config: Any = CONFIG,
        completed: bool = False,
    ) -> Path:
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "run.yaml").write_text(json.dumps(config))
        (folder / "about.json").write_text(json.dumps({**ABOUT, **about}))
        (folder / "plugins.lock.json").write_text(json.dumps({"plugins": {"mt-plugin-llama": "0.1.0"}}))
        (folder / "metrics.jsonl").write_text(text_of([record(step) for step in range(1, steps + 1)]))
        if completed:
            (folder / "completed").touch()
        return folder

    return made


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """Started once, since it is slow."""
    with started_chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser
