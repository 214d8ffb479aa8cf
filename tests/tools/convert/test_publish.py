"""Folders on the Hub: one that speaks its protocol in memory, and fails at each request in turn."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parent))

from fake_hub import Hub, serve

from mt_core.errors import DataError, OutputError, UsageError
from mt_tools.cli.export import main as mt_export
from mt_tools.convert.publish import Repository, files_of, push, refuse_private

TOKEN = "hf_" + "q7Zr" * 8
NAME = "acme/sums"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub, with a token for it; its storage of large files is the plain one, which needs no program of its own."""
    from huggingface_hub import constants

    made = Hub()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    with serve(made) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "sums"
    made.mkdir()
    save_file({"q.lora_A.weight": torch.ones(2, 3)}, made / "adapter_model.safetensors")
    save_file({"v.weight": torch.zeros(3)}, made / "value_head.safetensors")
    (made / "adapter_config.json").write_text('{"r": 2}')
    (made / "README.md").write_text("---\nlibrary_name: peft\n---\n# sums\n")
    return made


def pushed(folder: Path, *, private: bool = False, said: list[str] | None = None) -> str:
    return push(
        folder, Repository.named(NAME, private=private), [folder.parent], [].append if said is None else said.append
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files_of(folder)}


def there(hub: Hub) -> dict[str, bytes]:
    return {path: content for path, (content, _) in hub.files.get(NAME, {}).items() if path != ".gitattributes"}


def test_a_folder_is_pushed_in_one_commit_and_not_again(hub: Hub, folder: Path) -> None:
    assert pushed(folder, private=True).startswith(f"{hub.url}/{NAME}/commit/")
    assert there(hub) == contents(folder)
    assert hub.commits == ["Upload sums"]
    assert hub.private[NAME]
    assert "has all 4 files already" in pushed(folder, private=True)
    assert len(hub.commits) == 1


def failure(folder: Path) -> str:
    """All that is shown of a push that fails, with what it came of; nothing for one that its client has mended."""
    try:
        pushed(folder)
    except OutputError as error:
        return "".join(traceback.format_exception(error))
    return ""


@pytest.mark.parametrize("after", [False, True], ids=["request lost", "answer lost"])
def test_whichever_request_fails_all_is_there_or_nothing_and_a_second_call_finishes(
    hub: Hub, folder: Path, after: bool
) -> None:
    pushed(folder)
    whole = len(hub.seen)
    assert whole >= 8, "create, look, list, validate, preupload, batch, two large files, commit"
    for number in range(1, whole + 1):
        hub.__dict__ |= {**Hub().__dict__, "url": hub.url, "fail_at": number, "after": after}
        said = failure(folder)
        assert not said or "Go on with mt-export --output" in said
        assert TOKEN not in said
        assert there(hub) in ({}, contents(folder)), f"request {number} of {whole}"
        hub.fail_at = 0
        pushed(folder)
        assert there(hub) == contents(folder)
        assert len(hub.commits) == 1, f"request {number} of {whole}"


def test_a_run_is_written_and_pushed_with_its_card_and_no_path(
    hub: Hub, train: Callable[..., Path], export: Callable[..., str], tmp_path: Path, pretrained_folder: Path
) -> None:
    run, out = train("--adapter", "lora"), tmp_path / "sums"
    said = export("--run", run, "--output", out, "--base", "acme/my-llama@v1", "--push", NAME, "--private")
    assert "README.md has no license yet" in said
    assert f"{hub.url}/{NAME}/commit/" in said
    assert there(hub) == contents(out)
    assert b"base_model: acme/my-llama\n" in there(hub)["README.md"]
    everything = b"".join(there(hub).values())
    for path in (run, pretrained_folder, tmp_path):
        assert str(path).encode() not in everything
    hub.files.clear()
    words = ("--run", run, "--merge", "--output", tmp_path / "merged", "--push", NAME)
    assert "/commit/" in export(*words)
    assert there(hub).keys() >= {"model.safetensors", "config.json", "tokenizer.json", "README.md"}


def test_the_token_goes_to_the_hub_alone(
    hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    words = ["--output", str(folder), "--push", NAME]
    hub.fail_at = 2
    assert mt_export(words) == 1
    hub.fail_at = 0
    assert mt_export(words) == 0
    out, err = capfd.readouterr()
    assert TOKEN not in out + err
    assert {token for _, path, token in hub.seen if path.startswith("/api/repos")} == {f"Bearer {TOKEN}"}
    assert not any(TOKEN.encode() in body for body in hub.bodies)
    assert not any(TOKEN in path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    monkeypatch.delenv("HF_TOKEN")
    assert mt_export(words) == 2
    assert "in the environment variable HF_TOKEN alone" in capfd.readouterr().err


def test_a_repository_that_is_somebody_elses_or_seen_by_all_is_left_alone(hub: Hub, folder: Path) -> None:
    pushed(folder)
    with pytest.raises(UsageError, match="everybody sees it"):
        pushed(folder, private=True)
    (folder / "adapter_config.json").write_text('{"r": 3}')
    with pytest.raises(UsageError, match=r"other files \(adapter_config.json\); nothing is overwritten"):
        pushed(folder)
    (folder / "value_head.safetensors").unlink()
    with pytest.raises(UsageError, match=r"value_head.safetensors"):
        pushed(folder)
    assert len(hub.commits) == 1


def _in_config(folder: Path, text: str) -> None:
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": text}))


def _in_weights(folder: Path, text: str) -> None:
    save_file({"a": torch.ones(1)}, folder / "value_head.safetensors", metadata={"from": text})


def _in_card(folder: Path, text: str) -> None:
    (folder / "README.md").write_text(f"# sums\n\ntrained with {text} on a machine\n")


def _in_vocabulary(folder: Path, text: str) -> None:
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": [text]}))


@pytest.mark.parametrize("put", [_in_config, _in_weights, _in_card, _in_vocabulary])
@pytest.mark.parametrize("kind", ["a secret", "a path of this machine"])
def test_a_folder_with_what_is_nobody_elses_business_is_refused_before_any_request(
    put: Callable[[Path, str], None], kind: str, hub: Hub, folder: Path
) -> None:
    put(folder, TOKEN if kind == "a secret" else str(folder.parent / "base"))
    with pytest.raises(DataError, match=kind) as error:
        pushed(folder)
    assert TOKEN not in str(error.value)
    assert hub.seen == []


def test_paths_that_are_none_of_this_machine_and_words_of_a_vocabulary_are_no_fault(folder: Path) -> None:
    _in_config(folder, "/data/somewhere/that/is/not/here")
    _in_card(folder, "https://example.org/usr/bin/model, 1/2/3 and /v1/completions")
    _in_vocabulary(folder, "/usr/bin")
    refuse_private(folder, files_of(folder), [])
    _in_config(folder, "/usr/bin")
    with pytest.raises(DataError, match="/usr/bin"):
        refuse_private(folder, files_of(folder), [])


def test_a_link_and_an_empty_folder_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no files"):
        files_of(tmp_path / "empty")
    (folder / "more").symlink_to(tmp_path)
    with pytest.raises(DataError, match="is a link"):
        files_of(folder)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--push", "sums"), "write ORG/NAME"),
        (("--push", "/tmp/sums"), "write ORG/NAME"),
        (("--push", "a/b", "--merge"), "and nothing else"),
        ((), "--run says what is exported"),
        (("--push", "a/b", "--ollama"), "and nothing else; leave out --ollama"),
        (("--push", "a/b", "--dtype", "bf16", "--base", "a/c"), "and nothing else; leave out --base, --dtype"),
        (("--push", "a/b", "--gguf-type", "q8_0"), "and nothing else; leave out --gguf-type"),
        (("--gguf", "x.gguf", "--private"), "and nothing else; leave out --private"),
        (("--push", "a/b", "--output", "nowhere"), "is no folder"),
    ],
)
def test_what_cannot_be_pushed_is_refused(
    words: tuple[str, ...], says: str, folder: Path, hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mt_export(["--output", str(folder), *words]) == 2
    assert says in capsys.readouterr().err
    assert hub.seen == []
