"""Searches of the tiny model, each in a folder of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from mt_plugin_search.request import Search, prepare

sys.path.insert(0, str(Path(__file__).parent))

from fake_train import RAW, SPACE


@pytest.fixture
def make_search() -> Callable[..., Search]:
    """A search of the tiny model; keywords are settings."""

    def made(space: Mapping[str, Any] = SPACE, **options: Any) -> Search:
        return prepare(RAW, space, options)

    return made


@pytest.fixture(autouse=True)
def _here(kit_model: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
