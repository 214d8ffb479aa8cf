"""Google's own checkpoints: one file without a config, queries, keys and values in one matrix."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mt_core.errors import WeightsError
from mt_core.nn import Batch
from mt_plugin_gemma import google
from mt_plugin_gemma.config import GemmaConfig
from mt_plugin_gemma.google import GOOGLE
from mt_plugin_gemma.model import Gemma
from mt_tools.cli.convert import main as mt_convert

GENERATIONS = ["1, one key head", "2, window 7", "3, linear scaling"]
TORCH_IS_ABSENT = (
    "import sys; sys.modules['torch'] = None; from pathlib import Path; from mt_plugin_gemma.google import GOOGLE;"
)


def theirs_in_googles_words(model: torch.nn.Module, *, sees_images: bool = False) -> dict[str, Tensor]:
    """The tensors under the names of gemma_pytorch, with its buffers."""
    found = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    words: dict[str, Tensor] = {"freqs_cis": torch.polar(torch.ones(4, 2), torch.ones(4, 2))}
    words["text_token_embedder.weight" if sees_images else "embedder.weight"] = found.pop("model.embed_tokens.weight")
    for name in [name for name in found if name.endswith("q_proj.weight")]:
        parts = [found.pop(name.replace("q_proj", part)) for part in ("q_proj", "k_proj", "v_proj")]
        words[name.replace("q_proj", "qkv_proj")] = torch.cat(parts)
    if sees_images:
        words |= {"siglip_vision_model.x.weight": torch.ones(2), "mm_input_projection.weight": torch.ones(2, 2)}
    return words | {
        name.replace(".q_norm.", ".query_norm.").replace(".k_norm.", ".key_norm."): tensor
        for name, tensor in found.items()
    }


@pytest.fixture
def checkpoint(pair: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``checkpoint(name, …)``: transformers' model, and a file with its weights, whose size counts as a published one."""

    def make(name: str, **options: Any) -> tuple[Any, Path]:
        ours, theirs = pair(name)
        shape = ours.config.model_dump()
        monkeypatch.setattr(google, "_SHAPES", {(ours.config.generation, ours.config.n_layers): shape})
        torch.save({"model_state_dict": theirs_in_googles_words(theirs, **options)}, tmp_path / "model.ckpt")
        return theirs, tmp_path / "model.ckpt"

    return make


def assert_same(path: Path, theirs: torch.nn.Module) -> None:
    assert GOOGLE.matches(path)
    config = GemmaConfig(**GOOGLE.values(path))
    ours = Gemma(config)
    found = {name: load() for name, load in GOOGLE.tensors(path, config).items()}
    assert set(found) == {name for name, _ in ours.named_parameters()}
    ours.load_state_dict(found, strict=False)
    ids = torch.arange(20)[None] % 48
    zeros = torch.zeros_like(ids)
    logits = ours.head(ours(Batch(ids, zeros, torch.arange(20)[None], zeros)))
    torch.testing.assert_close(logits, theirs(input_ids=ids).logits, atol=3e-5, rtol=1e-5)  # 5e-6 at worst, by kernels


@pytest.mark.parametrize("name", GENERATIONS)
def test_googles_file_gives_the_logits_of_transformers(name: str, checkpoint: Callable[..., Any]) -> None:
    theirs, file = checkpoint(name)
    for path in (file, file.parent):
        assert_same(path, theirs)


def test_shards_with_an_index_give_the_same(checkpoint: Callable[..., Any], tmp_path: Path) -> None:
    theirs, _ = checkpoint("3, linear scaling")
    words, folder = list(theirs_in_googles_words(theirs).items()), tmp_path / "shards"
    folder.mkdir()
    parts = {"model-1.bin": dict(words[::2]), "model-2.bin": dict(words[1::2])}
    for file, part in parts.items():
        torch.save(part, folder / file)
    where = {name: file for file, part in parts.items() for name in part}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": where}))
    assert_same(folder, theirs)
    (folder / "model-2.bin").unlink()
    with pytest.raises(WeightsError, match=r"model-2\.bin is missing"):
        GOOGLE.values(folder)


def test_the_text_model_of_one_that_sees_images_is_read_and_the_rest_is_said(
    checkpoint: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, file = checkpoint("3, linear scaling", sees_images=True)
    said: list[str] = []
    monkeypatch.setattr(logging.getLogger("mt_core.gemma"), "handle", lambda record: said.append(record.getMessage()))
    assert_same(file, theirs)
    (line,) = said
    assert "2 tensors" in line
    assert "siglip_vision_model.*" in line


def test_it_becomes_a_hugging_face_folder(checkpoint: Callable[..., Any], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    theirs, file = checkpoint("3, linear scaling")
    assert mt_convert([str(file), str(tmp_path / "out"), "--model", "gemma"]) == 0
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in theirs.state_dict().items())


def test_the_shape_is_known_without_torch(checkpoint: Callable[..., Any]) -> None:
    _, file = checkpoint("2, window 7")
    code = f"{TORCH_IS_ABSENT} GOOGLE.values(Path({str(file)!r}))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert "blocks of Gemma 2; published are 18 (Gemma 1)" in ended.stderr, "a tiny one is no published size"


class Canary:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


def test_bad_checkpoints_are_refused_by_name(checkpoint: Callable[..., Any], tmp_path: Path) -> None:
    theirs, file = checkpoint("1, one key head")
    words = theirs_in_googles_words(theirs)
    faults: list[tuple[Any, str]] = [
        ({"model_state_dict": {**words, "embedder.weight_scaler": torch.ones(2)}}, "int8 weights .*without -quant"),
        ({"model_state_dict": {"model.norm.weight": torch.ones(2)}}, "0 blocks of Gemma 1; published are"),
        ({"model_state_dict": {name: words[name] for name in words if name != "embedder.weight"}}, "none of embedder"),
    ]
    for content, said in faults:
        torch.save(content, file)
        with pytest.raises(WeightsError, match=said):
            GOOGLE.values(file)
    config = GemmaConfig(**google._SHAPES[1, theirs.config.num_hidden_layers])
    for content in ({"model_state_dict": {**words, "x": Canary(tmp_path / "fired")}}, {"model_state_dict": 1}):
        torch.save(content, file)
        with pytest.raises(WeightsError, match=r"cannot read|more than named tensors"):
            GOOGLE.tensors(file, config)
    assert not (tmp_path / "fired").exists()
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(WeightsError, match="cut short"):
        GOOGLE.values(file)
