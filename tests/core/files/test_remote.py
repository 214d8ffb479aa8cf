"""Addresses and paths, and who serves addresses."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from mt_core.errors import DataError
from mt_core.files import files_of, is_remote, storage


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    storage.cache_clear()
    yield
    storage.cache_clear()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("s3://bucket/a.jsonl", True),
        ("memory://a", True),
        ("a/b.jsonl", False),
        ("C:/a", False),
        ("", False),
        ("a s3://b", False),
    ],
)
def test_an_address_is_told_from_a_path(text: str, told: bool) -> None:
    assert is_remote(text) is told


def test_without_a_distribution_that_serves_addresses_the_one_to_install_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: ())
    with pytest.raises(DataError, match="pip install mt-plugin-datasets"):
        files_of("s3://bucket/rows.jsonl", ".jsonl")


def test_files_of_an_address_are_what_the_distribution_returns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def remote_files(url: str, *suffixes: str, root: Path) -> list[Path]:
        asked.append((url, suffixes))
        return [tmp_path / "copy.jsonl"]

    point = SimpleNamespace(load=lambda: SimpleNamespace(remote_files=remote_files))
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: (point,) if group == "mt_core.storage" else ()
    )
    assert files_of("acme://rows", ".jsonl") == [tmp_path / "copy.jsonl"]
    assert asked == [("acme://rows", (".jsonl",))]
