"""Each type computes what transformers' own model does: whole, layer by layer, packed, with a cache, read from a folder and written.

float32, small and random, norms away from 1, windows and caps shorter and lower than what is there.

Shapes: B rows, T tokens, V tokens of the vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.huggingface import tiny_models
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from mt_core.groups import matching_pattern
from mt_core.nn import Batch, BlockContext, KVCache
from mt_plugin_huggingface.build import build_plain
from mt_plugin_huggingface.config import HuggingFaceConfig
from mt_plugin_huggingface.model import HuggingFaceModel
from mt_plugin_huggingface.types import known_types
from mt_plugin_huggingface.weights import HUGGINGFACE, exported, written
from mt_tools import save_folder
from mt_train.generation.row_cache import RowCache

IN_CI = (
    *(
        "apertus",
        "bamba",
        "bloom",
        "cohere2",
        "ctrl",
        "deepseek_v3",
        "falcon_mamba",
        "gemma2",
        "gpt2",
        "gpt_neox",
        "gpt_oss",
    ),
    *("granite", "lfm2", "llama4_text", "mistral", "mixtral", "modernbert-decoder", "mpt", "nanochat", "nemotron_h"),
    *("opt", "phi3", "phimoe", "qwen3_moe", "recurrent_gemma"),
)
TYPES = [pytest.param(kind, marks=() if kind in IN_CI else pytest.mark.soak) for kind in sorted(known_types())]
"""All of them with ``-m "soak or not soak"``; those in CI differ most."""
TOLERANCE = 1e-5
OF_GRADIENTS = {"qwen3_5_text": 3e-5}
"""Type → tolerance of gradients, where a sum over the row cancels (of ``A_log``) and is added up in another order."""


OF_STEPS = {"nemotron_h": 2e-4}
"""Type → tolerance of tokens one by one, which differ in transformers' own code: it limits time steps from below in a text alone."""


def distance(ours: Tensor, theirs: Tensor) -> float:
    """Relative to the length of what is expected."""
    return float((ours - theirs).norm() / theirs.norm().clamp(min=1e-12))


def rows_of(ids_BT: Tensor, lengths: tuple[int, ...] | None = None) -> Batch:
    """Rows of documents with these lengths."""
    lengths = lengths or (ids_BT.shape[1],)
    positions = torch.cat([torch.arange(length) for length in lengths]).expand(ids_BT.shape)
    documents = torch.cat([torch.full((length,), number) for number, length in enumerate(lengths)])
    return Batch(ids_BT, torch.zeros_like(ids_BT), positions, documents.expand(ids_BT.shape)).with_index()


@pytest.fixture(scope="module", params=TYPES)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[HuggingFaceModel, PreTrainedModel, Path]:
    """Ours, read from the folder that theirs was saved to."""
    theirs = tiny_models.model(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    return read(theirs, folder), theirs, folder


def read(theirs: PreTrainedModel, folder: Path) -> HuggingFaceModel:
    """Our model of a folder to which theirs is saved."""
    theirs.save_pretrained(folder)
    config = HuggingFaceConfig(**HUGGINGFACE.values(folder))
    ours = HuggingFaceModel(config)
    loaders = HUGGINGFACE.tensors(folder, config)
    assert loaders.keys() == {name for name, _ in ours.named_parameters()}
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.copy_(loaders[name]())
    return ours


def ids_of(rows: int, length: int) -> Tensor:
    return torch.randint(3, tiny_models.VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(7))


def logits_of(model: HuggingFaceModel, batch: Batch, cache: KVCache | None = None) -> Tensor:
    hidden = model(batch, cache)
    logits: Tensor = model.head(hidden.flatten(0, 1)).unflatten(0, hidden.shape[:2])
    return logits


def test_logits_and_gradients_equal_transformers(pair: tuple[HuggingFaceModel, PreTrainedModel, Path]) -> None:
    ours, theirs, _ = pair
    ids = ids_of(2, 24)
    logits, expected = logits_of(ours, rows_of(ids)), theirs(ids, use_cache=False).logits
    assert distance(logits, expected) < TOLERANCE
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    (logits * weight).sum().backward()
    (expected * weight).sum().backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    largest = max(float(each.norm()) for each in gradients.values() if each is not None)
    for name, parameter in ours.named_parameters():
        if not parameter.requires_grad:
            assert matching_pattern(name, ours.kept), name
            continue
        assert parameter.grad is not None, name
        apart = float((parameter.grad - gradients[name]).norm()) / max(float(gradients[name].norm()), 1e-3 * largest)
        assert apart < OF_GRADIENTS.get(ours.config.kind.name, TOLERANCE), (name, apart)
    ours.zero_grad()
    theirs.zero_grad()


@torch.no_grad()
def test_layers_that_know_nothing_of_each_other_are_the_model(
    pair: tuple[HuggingFaceModel, PreTrainedModel, Path],
) -> None:
    """As if each block stood on a pipeline stage of its own, whose context no other layer has filled."""
    ours, theirs, _ = pair
    ids = ids_of(2, 24)
    batch = rows_of(ids)
    embed, *blocks, norm, head = (layer.module for layer in ours.layers())
    hidden = embed(ids)
    for block in blocks:
        fresh = BlockContext(
            positions_BT=batch.positions,
            document_ids_BT=batch.document_ids,
            attention=ours.attention,
            document_lengths=batch.document_lengths,
        )
        hidden = block(hidden, fresh)
    logits = head(norm(hidden).flatten(0, 1)).unflatten(0, ids.shape)
    assert distance(logits, theirs(ids, use_cache=False).logits) < TOLERANCE


@torch.no_grad()
def test_documents_in_one_row_are_what_each_is_alone(pair: tuple[HuggingFaceModel, PreTrainedModel, Path]) -> None:
    ours, theirs, _ = pair
    if not ours.ragged_batches:
        pytest.skip("refused on paper")
    ids = ids_of(1, 26)
    packed = logits_of(ours, rows_of(ids, (10, 16)))
    alone = torch.cat([theirs(ids[:, :10], use_cache=False).logits, theirs(ids[:, 10:], use_cache=False).logits], 1)
    assert distance(packed, alone) < TOLERANCE


@torch.no_grad()
def test_rows_that_are_padded_behind_are_what_each_is_alone(
    pair: tuple[HuggingFaceModel, PreTrainedModel, Path],
) -> None:
    ours, theirs, _ = pair
    ids = ids_of(2, 20)
    ids[0, 11:] = 0
    logits = logits_of(ours, rows_of(ids))
    assert distance(logits[:1, :11], theirs(ids[:1, :11], use_cache=False).logits) < TOLERANCE
    assert distance(logits[1:], theirs(ids[1:], use_cache=False).logits) < TOLERANCE


@torch.no_grad()
def test_tokens_one_by_one_with_a_cache_are_the_whole_text(
    pair: tuple[HuggingFaceModel, PreTrainedModel, Path],
) -> None:
    """In pieces of several tokens too, and when rows were picked from the cache, as beam search does."""
    ours, theirs, _ = pair
    ids, cache = ids_of(2, 20), RowCache()
    expected = theirs(ids, use_cache=False).logits
    for start, end in ((0, 2), (2, 9), *((at, at + 1) for at in range(9, 20))):
        if start == 14:
            picked = torch.tensor([1, 0, 1])
            cache.select(picked)
            ids, expected = ids[picked], expected[picked]
        new = ids[:, start:end]
        zeros, positions = torch.zeros_like(new), torch.arange(start, end).expand(new.shape)
        logits = logits_of(ours, Batch(new, zeros, positions, zeros), cache)
        tolerance = OF_STEPS.get(ours.config.kind.name, TOLERANCE)
        assert distance(logits, expected[:, start:end]) < tolerance, (start, end)


@torch.no_grad()
def test_a_written_folder_is_opened_by_transformers_bit_for_bit(
    pair: tuple[HuggingFaceModel, PreTrainedModel, Path], tmp_path: Path
) -> None:
    ours, theirs, folder = pair
    loaders = written(ours.config, HUGGINGFACE.tensors(folder, ours.config))
    save_folder(tmp_path / "out", loaders, exported(ours.config))
    published, ours_written = load_file(folder / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert published.keys() == ours_written.keys()
    assert all(torch.equal(ours_written[name], tensor) for name, tensor in published.items())
    again = AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", attn_implementation="eager", experts_implementation="eager"
    )
    state = again.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in theirs.state_dict().items())
    ids = ids_of(2, 24)
    assert torch.equal(again(ids, use_cache=False).logits, theirs(ids, use_cache=False).logits)


def test_a_cast_leaves_buffers_as_transformers_computes_them(
    pair: tuple[HuggingFaceModel, PreTrainedModel, Path],
) -> None:
    ours, theirs, _ = pair
    if ours.config.kind.name == "ctrl":
        pytest.skip("its own forward rounds its positions to the dtype of the hidden states")
    model = HuggingFaceModel(ours.config).bfloat16()
    for name in model.kept_names():
        model.get_parameter(name).data = model.get_parameter(name).data.float()  # as in a run
    with torch.no_grad():
        assert model(rows_of(ids_of(1, 8))).dtype == torch.bfloat16
    saved = theirs.state_dict()
    true = {name: each for name, each in theirs.named_buffers() if each.is_floating_point() and name not in saved}
    found = dict(model.named_buffers())
    for name, value in true.items():
        assert torch.equal(found[name], value), name


def test_a_model_whose_first_forward_only_evaluates_trains_afterwards(
    pair: tuple[HuggingFaceModel, PreTrainedModel, Path],
) -> None:
    """As where a run collects answers, or evaluates, before its first step."""
    ours, _, _ = pair
    model, batch = HuggingFaceModel(ours.config), rows_of(ids_of(1, 8))
    with torch.inference_mode():
        model(batch)
    model(batch).sum().backward()


def test_first_values_are_spread_as_transformers_draws_them(
    pair: tuple[HuggingFaceModel, PreTrainedModel, Path],
) -> None:
    """Those too that a module draws for its children, such as time steps, routers, and projections that a block adds up."""
    ours, theirs, _ = pair
    torch.manual_seed(0)
    drawn = AutoModelForCausalLM.from_config(theirs.config).state_dict()
    for name, parameter in ours.named_parameters():
        value, expected = torch.full(parameter.shape, torch.nan), drawn[name].float()
        ours.init_tensor(name, value, torch.Generator().manual_seed(0))
        assert torch.isfinite(value).all(), name
        spread, error = float(expected.std()) if expected.numel() > 1 else 0.0, 6 / expected.numel() ** 0.5
        if expected.numel() >= 32 or not spread:
            assert float(value.std(correction=0)) == pytest.approx(spread, rel=error, abs=1e-6), name
            assert float(value.mean()) == pytest.approx(float(expected.mean()), abs=error * spread + 1e-6), name


@pytest.mark.parametrize("original", [None, 48])
@pytest.mark.parametrize("rope_type", ["yarn", "llama3"])
def test_a_length_of_the_run_leaves_rotary_positions_as_they_were(rope_type: str, original: int | None) -> None:
    """Where a file does not say the original length of a scaling, it is ``max_position_embeddings``."""
    rope: dict[str, Any] = {"rope_type": rope_type, "factor": 4.0}
    rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if rope_type == "llama3" else {}
    rope |= {} if original is None else {"original_max_position_embeddings": original}
    content = {key: value for key, value in tiny_models.content("llama").items() if key != "rope_parameters"}
    found = [
        build_plain(HuggingFaceConfig(config={**content, "rope_scaling": rope}, **longest)).model.rotary_emb.inv_freq
        for longest in ({}, {"max_seq_len": 24}, {"max_seq_len": 1000})
    ]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


LONG = [("llama", "dynamic"), ("mistral", "dynamic"), ("phi3", "longrope"), ("qwen3", "longrope")]


@pytest.mark.parametrize(("kind", "scaling"), LONG)
@torch.no_grad()
def test_rotary_positions_that_hang_on_lengths_take_those_of_documents(kind: str, scaling: str, tmp_path: Path) -> None:
    """Documents shorter and longer than the original length, packed or padded, are what transformers makes of each alone."""
    theirs = tiny_models.model(kind, rope=scaling)
    ours = read(theirs, tmp_path)
    assert ours.config.max_seq_len == (40 if scaling == "dynamic" else tiny_models.LONGEST)
    ids, lengths = ids_of(1, 46), (8, 18, 20)  # theirs remembers the longest row that it has seen
    batch = rows_of(ids, lengths)
    batch = replace(batch, lengths=torch.repeat_interleave(torch.tensor(lengths), torch.tensor(lengths))[None])
    alone = [theirs(each, use_cache=False).logits for each in ids.split(lengths, 1)]
    assert distance(logits_of(ours, batch), torch.cat(alone, 1)) < TOLERANCE
    assert distance(logits_of(ours, rows_of(ids[:, 8:26])), alone[1]) < TOLERANCE
    assert not ours.ragged_batches
    cache, kept = KVCache(), DynamicCache(config=theirs.config)
    for start, end in ((0, 6), (6, 14), (14, 15)):
        new = ids[:, start:end]
        zeros, positions = torch.zeros_like(new), torch.arange(start, end)[None]
        expected = theirs(new, past_key_values=kept, position_ids=positions).logits
        assert distance(logits_of(ours, Batch(new, zeros, positions, zeros), cache), expected) < TOLERANCE
