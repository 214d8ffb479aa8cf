"""The tokenizer of a path: its files name it, and what is written wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from mt_core.errors import ConfigError
from mt_train.assemble.discovery import load_plugins
from mt_train.plugins.resolve import resolve

HOST = load_plugins()


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for file in ("fast/tokenizer.json", "slow/tokenizer.model", "none/vocab.txt"):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "name", "read"),
    [
        ("fast", "huggingface", "fast"),
        ("fast/tokenizer.json", "huggingface", "fast/tokenizer.json"),
        ("slow", "sentencepiece", "slow/tokenizer.model"),
        ("slow/tokenizer.model", "sentencepiece", "slow/tokenizer.model"),
    ],
)
def test_files_at_a_path_name_the_tokenizer(path: str, name: str, read: str, folders: Path) -> None:
    resolved = resolve({"model": "llama", "tokenizer": {"path": path}}, HOST)
    assert (resolved.config.tokenizer.name, resolved.config.tokenizer.options.path) == (name, read)
    assert resolved.origins["tokenizer.name"] == "the files at tokenizer.path"


def test_a_name_that_is_written_wins(folders: Path) -> None:
    resolved = resolve({"model": "llama", "tokenizer": {"name": "llama3", "path": "slow/tokenizer.model"}}, HOST)
    assert resolved.config.tokenizer.name == "llama3"


@pytest.mark.parametrize("path", ["none", "nowhere", "none/vocab.txt"])
def test_a_path_that_names_none_is_refused(path: str, folders: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.path: no such key"):
        resolve({"model": "llama", "tokenizer": {"path": path}}, HOST)
