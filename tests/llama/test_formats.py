"""Weights come and go: Hugging Face's format and Meta's, whole and in shards, and never by executing anything."""

from __future__ import annotations

import json
import os
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaForCausalLM
from transformers import LlamaConfig as TransformersConfig

from mt_core.errors import WeightsError
from mt_core.nn import Batch
from mt_plugin_llama.config import LlamaConfig
from mt_plugin_llama.huggingface import HUGGINGFACE
from mt_plugin_llama.meta import META
from mt_plugin_llama.model import Llama
from mt_tools import save_folder
from mt_tools.cli.convert import main as mt_convert
from mt_train.cli.train import main


def theirs(**more: Any) -> LlamaForCausalLM:
    torch.manual_seed(2)
    shape = {"vocab_size": 48, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    return LlamaForCausalLM(TransformersConfig(**shape, **heads, **more)).eval()


def load_model(folder: Path, reader: Any = HUGGINGFACE) -> Llama:
    assert reader.matches(folder)
    config = LlamaConfig(**reader.values(folder))
    model = Llama(config)
    found = {name: load() for name, load in reader.tensors(folder, config).items()}
    assert set(found) == {name for name, _ in model.named_parameters()}
    model.load_state_dict(found, strict=False)
    return model


def logits(model: Llama) -> torch.Tensor:
    ids = torch.arange(20)[None] % 48
    zeros = torch.zeros_like(ids)
    return model.head(model(Batch(ids, zeros, torch.arange(20)[None], zeros)))


def assert_same(ours: Llama, reference: LlamaForCausalLM) -> None:
    torch.testing.assert_close(
        logits(ours), reference(torch.arange(20)[None] % 48).logits, atol=3e-5, rtol=1e-5
    )  # 5e-6 at worst, by kernels


SCALINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "linear": {"rope_type": "linear", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
}


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("tied", [True, False])
def test_a_folder_that_transformers_saved_gives_its_logits(scaling: str, tied: bool, tmp_path: Path) -> None:
    more = {"rope_parameters": {"rope_theta": 5000.0, **SCALINGS[scaling]}} if SCALINGS[scaling] else {}
    reference = theirs(tie_word_embeddings=tied, **more)
    reference.save_pretrained(tmp_path)
    assert_same(load_model(tmp_path), reference)


def test_shards_are_read_by_their_index(tmp_path: Path) -> None:
    reference = theirs()
    reference.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert_same(load_model(tmp_path), reference)


def test_a_bin_file_is_read_as_plain_tensors(tmp_path: Path) -> None:
    reference = theirs()
    reference.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(reference.state_dict(), tmp_path / "pytorch_model.bin")
    assert_same(load_model(tmp_path), reference)


def test_an_old_config_with_rope_scaling_is_read(tmp_path: Path) -> None:
    reference = theirs()
    reference.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop("rope_parameters", None)
    config |= {"rope_theta": 500_000.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = HUGGINGFACE.values(tmp_path)
    assert shape["rope_theta"] == 500_000.0
    assert shape["rope_scaling"] == {"type": "linear", "factor": 2.0}


@pytest.mark.parametrize("tied", [True, False])
def test_what_we_write_transformers_opens(tied: bool, tmp_path: Path) -> None:
    reference = theirs(tie_word_embeddings=tied, rope_parameters={"rope_theta": 5000.0, **SCALINGS["llama3"]})
    reference.save_pretrained(tmp_path / "in")
    ours = load_model(tmp_path / "in")
    tensors = {name: partial(torch.clone, parameter) for name, parameter in ours.named_parameters()}
    assert HUGGINGFACE.exported is not None
    save_folder(tmp_path / "out", tensors, HUGGINGFACE.exported(ours.config))
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(again(torch.arange(20)[None]).logits, reference(torch.arange(20)[None]).logits)
    with pytest.raises(WeightsError, match="is not empty"):
        save_folder(tmp_path / "out", tensors, {})


# ---------------------------------------------------------------------------------------------------------------- meta


def pairs(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """From halves to Meta's neighbouring pairs, element by element: written apart from the code that it tests."""
    width = weight.shape[0] // heads
    out = torch.empty_like(weight)
    for head in range(heads):
        for channel in range(width // 2):
            out[head * width + 2 * channel] = weight[head * width + channel]
            out[head * width + 2 * channel + 1] = weight[head * width + width // 2 + channel]
    return out


def write_meta(reference: LlamaForCausalLM, folder: Path, shards: int, *, vocabulary_split: bool) -> None:
    state = reference.state_dict()
    whole = {"tok_embeddings.weight": state["model.embed_tokens.weight"], "norm.weight": state["model.norm.weight"]}
    whole["output.weight"] = state["lm_head.weight"]
    for layer in range(2):
        here, there = f"layers.{layer}.", f"model.layers.{layer}."
        attention, mlp = there + "self_attn.", there + "mlp."
        whole[here + "attention.wq.weight"] = pairs(state[attention + "q_proj.weight"], 4)
        whole[here + "attention.wk.weight"] = pairs(state[attention + "k_proj.weight"], 2)
        whole[here + "attention.wv.weight"] = state[attention + "v_proj.weight"]
        whole[here + "attention.wo.weight"] = state[attention + "o_proj.weight"]
        whole[here + "feed_forward.w1.weight"] = state[mlp + "gate_proj.weight"]
        whole[here + "feed_forward.w2.weight"] = state[mlp + "down_proj.weight"]
        whole[here + "feed_forward.w3.weight"] = state[mlp + "up_proj.weight"]
        whole[here + "attention_norm.weight"] = state[there + "input_layernorm.weight"]
        whole[here + "ffn_norm.weight"] = state[there + "post_attention_layernorm.weight"]
    for shard in range(shards):
        part = {}
        for name, weight in whole.items():
            second = name.endswith(("wo.weight", "w2.weight")) or (name.startswith("tok") and not vocabulary_split)
            dimension = None if weight.dim() == 1 else int(second)
            part[name] = weight if dimension is None else weight.chunk(shards, dimension)[shard].clone()
        part["rope.freqs"] = torch.zeros(4)
        torch.save(part, folder / f"consolidated.{shard:02d}.pth")
    parameters = {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "norm_eps": 1e-6, "vocab_size": 48}
    (folder / "params.json").write_text(json.dumps({**parameters, "multiple_of": 32, "ffn_dim_multiplier": 0.75}))


@pytest.mark.parametrize("vocabulary_split", [True, False])
@pytest.mark.parametrize("shards", [1, 2])
def test_metas_format_gives_the_same_logits(shards: int, vocabulary_split: bool, tmp_path: Path) -> None:
    reference = theirs()
    write_meta(reference, tmp_path, shards, vocabulary_split=vocabulary_split)
    assert_same(load_model(tmp_path, META), reference)


@pytest.mark.parametrize("vocabulary_split", [True, False])
def test_metas_format_becomes_a_hugging_face_folder(vocabulary_split: bool, tmp_path: Path) -> None:
    reference = theirs()
    source = tmp_path / "meta"
    source.mkdir()
    write_meta(reference, source, 2, vocabulary_split=vocabulary_split)
    assert mt_convert([str(source), str(tmp_path / "out"), "--shard-size", "20KB"]) == 0
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    for name, value in reference.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    (source / "consolidated.00.pth").rename(source / "consolidated.07.pth")
    assert mt_convert([str(source), str(tmp_path / "other")]) == 2
    assert not (tmp_path / "other").exists()


def test_metas_parameters_give_the_published_shapes(tmp_path: Path) -> None:
    llama_3_70b = {"dim": 8192, "n_layers": 80, "n_heads": 64, "n_kv_heads": 8, "vocab_size": 128256}
    llama_3_70b |= {"multiple_of": 4096, "ffn_dim_multiplier": 1.3, "norm_eps": 1e-05, "rope_theta": 500000.0}
    (tmp_path / "params.json").write_text(json.dumps(llama_3_70b))
    shape = META.values(tmp_path)
    assert (shape["ffn_dim"], shape["max_seq_len"]) == (28_672, 8192)


# -------------------------------------------------------------------------------------------------------------- safety


class Canary:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth"])
def test_a_pickle_is_never_executed(name: str, tmp_path: Path) -> None:
    theirs().config.save_pretrained(tmp_path)
    (tmp_path / "params.json").write_text('{"dim": 32, "n_layers": 1, "n_heads": 4, "norm_eps": 1e-6}')
    canary, path = Canary(tmp_path / "fired"), tmp_path / name
    for write in (lambda: torch.save({"w": canary}, path), lambda: path.write_bytes(pickle.dumps(canary))):
        write()
        reader = HUGGINGFACE if name.endswith("bin") else META
        with pytest.raises(WeightsError, match="cannot read"):
            reader.tensors(tmp_path, LlamaConfig(**reader.values(tmp_path)))
        assert not (tmp_path / "fired").exists()


@pytest.mark.parametrize(
    "file", ["../outside.safetensors", "/{tmp}/outside.safetensors", "link.safetensors", "pipe.safetensors"]
)
def test_an_index_never_leads_out_of_its_folder(file: str, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "model"
    folder.mkdir(parents=True)
    theirs().config.save_pretrained(folder)
    save_file({"x": torch.zeros(1)}, str(tmp_path / "outside.safetensors"))
    save_file({"x": torch.zeros(1)}, str(folder.parent / "outside.safetensors"))
    (folder / "link.safetensors").symlink_to(tmp_path / "outside.safetensors")
    os.mkfifo(folder / "pipe.safetensors")
    index = {"weight_map": {"x": file.replace("{tmp}", str(tmp_path))}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WeightsError, match=r"outside|no regular file"):
        HUGGINGFACE.tensors(folder, LlamaConfig(**HUGGINGFACE.values(folder)))


# ----------------------------------------------------------------------------------------------------------- in a run


def train(*words: str) -> int:
    return main(["--model", "llama", "--train.steps", "1", "--output", "none", "--train.sequence-len", "32", *words])


@pytest.fixture
def bytes_folder(tmp_path: Path) -> Path:
    config = {"vocab_size": 260, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    model = LlamaForCausalLM(TransformersConfig(**config, num_attention_heads=2, max_position_embeddings=64))
    model.save_pretrained(tmp_path / "weights")
    return tmp_path / "weights"


def edit(folder: Path, change: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})


def test_a_run_starts_from_weights_in_their_own_shape(bytes_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--model.weights", str(bytes_folder), "--print-config") == 0
    assert "dim: 16" in capsys.readouterr().out
    assert train("--model.weights", str(bytes_folder)) == 0


def test_a_variant_that_disagrees_with_the_weights_is_an_error(
    bytes_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("--model.weights", str(bytes_folder), "--model.variant", "tiny") == 2
    assert "'tiny' disagrees with the weights" in capsys.readouterr().err


def test_every_missing_and_left_over_key_is_listed_unless_a_pattern_allows_it(
    bytes_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["strange.one"] = tensors.pop("model.norm.weight")
        tensors["strange.two"] = tensors.pop("lm_head.weight")

    edit(bytes_folder, change)
    words = ["--model.weights", str(bytes_folder)]
    assert train(*words) == 1
    error = capsys.readouterr().err
    for name in ("model.norm.weight", "lm_head.weight", "strange.one", "strange.two", "--model.allow-missing"):
        assert name in error
    words += ["--model.allow-unexpected", "[strange.*]", "--model.allow-missing", "[model.norm.weight, lm_head*]"]
    assert train(*words) == 0
    notices = capsys.readouterr().err
    assert "allowed by model.allow-missing: lm_head.weight" in notices
    assert "allowed by model.allow-unexpected: strange.two" in notices


def test_a_key_of_another_shape_is_an_error_that_lists_all(
    bytes_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"] = torch.zeros(17)
        tensors["lm_head.weight"] = torch.zeros(16, 260)

    edit(bytes_folder, change)
    assert train("--model.weights", str(bytes_folder)) == 1
    error = capsys.readouterr().err
    for words in ("model.norm.weight", "(17,)", "(16,)", "lm_head.weight", "(16, 260)", "(260, 16)"):
        assert words in error


def test_an_overlay_wins_over_the_weights(bytes_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overlay = bytes_folder.parent / "overlay.safetensors"
    save_file({"model.norm.weight": torch.full((16,), 1e-6)}, str(overlay))
    words = ["--model.weights", str(bytes_folder), "--model.overlay", str(overlay)]
    assert train(*words) == 0
    captured = capsys.readouterr()
    assert "1 tensors replace or complete the weights" in captured.err
    assert "step 1/1 | loss 5.56" in captured.out, "logits near zero: ln(260) = 5.5607"
