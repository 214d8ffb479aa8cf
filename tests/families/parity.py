"""Tests that a family subclasses: equal to transformers, and read, written and refused as its table says.

A subclass gives data; ``cases`` are options over ``shape`` that each switch something on. Texts are longer than windows and original
lengths, norms are away from 1 and biases from 0, where a fault would hide.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from mt_conformance.forward import generate_greedily
from mt_core import DecoderConfig, ModelConfig, WeightsError, WeightsFormat
from mt_core.nn import Batch, KVCache, TrainModel
from mt_core.weights import CONFIG, Architecture, fused_experts, read_config
from mt_core.weights.rope_json import ROPE_TYPES
from mt_tools import save_folder

TOLERANCE = 1e-5
"""Relative, per tensor. fp32 has 6e-8; sums of a hundred terms in another order make some 1e-6."""
LENGTHS = {"one document": [40], "packed": [9, 20, 11]}
SHAPE: dict[str, Any] = {
    "vocab_size": 61,
    "max_seq_len": 256,
    "dim": 64,
    "n_layers": 3,
    "n_heads": 4,
    "n_kv_heads": 2,
    "ffn_dim": 96,
    "norm_eps": 1e-3,
    "rope_theta": 2e4,
}
"""Nothing is a default of anybody."""
YARN: dict[str, Any] = {"type": "yarn", "factor": 4.0, "original_max_seq_len": 16}

Distance = Callable[[Tensor, Tensor], float]


class BaseParity:
    """What a family promises beside transformers, by data."""

    model: ClassVar[type[TrainModel]]
    config: ClassVar[type[ModelConfig]]
    format: ClassVar[WeightsFormat]
    architectures: ClassVar[tuple[Architecture, ...]]
    variants: ClassVar[Mapping[str, Mapping[str, Any]]]
    shape: ClassVar[Mapping[str, Any]] = SHAPE
    cases: ClassVar[Mapping[str, Mapping[str, Any]]]
    """Name → options of a model."""
    published: ClassVar[Mapping[str, int]]
    """Size → parameters of the published files, where they are known."""
    configs: ClassVar[Mapping[str, Mapping[str, Any]]]
    """Size → its published ``config.json``, the keys that say something."""
    refused: ClassVar[Mapping[str, tuple[Mapping[str, Any], str]]]
    """What is said → changes of the first case's ``config.json``, and a pattern of the error."""
    impossible: ClassVar[Mapping[str, tuple[Mapping[str, Any], str]]] = {}
    """The same for a config of ours."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Each name is a test."""
        sizes = [size for size in getattr(self, "variants", {}) if "tiny" not in size]
        values = {"case": "cases", "refusal": "refused", "fault": "impossible", "described": "configs"}
        for name, attribute in values.items():
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, list(getattr(self, attribute, {})))
        if "size" in metafunc.fixturenames:
            metafunc.parametrize("size", sizes)

    def pair(self, case: str, **more: Any) -> tuple[TrainModel, PreTrainedModel]:
        """The same random weights in both."""
        torch.manual_seed(7)
        config = self.config(**{**self.shape, **self.cases[case], **more})
        described = AutoConfig.for_model(**{**self.exported(config), "initializer_range": 0.2})
        theirs = AutoModelForCausalLM.from_config(described, attn_implementation="eager")
        with torch.no_grad():
            for parameter in theirs.parameters():
                if parameter.dim() == 1:
                    parameter.uniform_(0.5, 1.5)
        ours = type(self).model(config)
        ours.load_state_dict(theirs.state_dict())
        return ours, theirs

    def exported(self, config: Any) -> dict[str, Any]:
        """The ``config.json`` of a config."""
        assert self.format.exported is not None
        return dict(self.format.exported(config))

    # ------------------------------------------------------------------------------------------------------- the maths

    @pytest.mark.parametrize("given", LENGTHS)
    def test_logits_and_gradients_equal_transformers_within_1e_5(
        self, case: str, given: str, distance: Distance
    ) -> None:
        ours, theirs = self.pair(case)
        batch = rows(LENGTHS[given])
        pieces = batch.input_ids.split(LENGTHS[given], 1)
        logits, expected = ours.head(ours(batch)), torch.cat([theirs(piece).logits for piece in pieces], 1)
        weight = torch.randn(logits.shape, generator=torch.Generator().manual_seed(4))
        (logits * weight).sum().backward()
        (expected * weight).sum().backward()
        gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
        worst = {name: distance(p.grad, gradients[name]) for name, p in ours.named_parameters()}
        assert distance(logits, expected) < TOLERANCE
        assert set(worst) == set(gradients)
        assert max(worst.values()) < TOLERANCE, max(worst.items(), key=lambda item: item[1])

    def test_each_case_is_another_model(self, distance: Distance) -> None:
        """With the same weights, where they have the same names: an option that does nothing would show nothing."""
        models = {case: self.pair(case) for case in self.cases}
        outputs = {case: theirs(rows([40]).input_ids).logits for case, (_, theirs) in models.items()}
        for case, (ours, _) in models.items():
            for other, (_, like) in models.items():
                if case != other and ours.state_dict().keys() == like.state_dict().keys():
                    assert distance(outputs[case], outputs[other]) > 1e-4, (case, other)

    def test_greedy_tokens_equal_transformers(self, case: str) -> None:
        """Token by token with a cache, in a batch with prompts of other lengths where the family may."""
        ours, theirs = self.pair(case)
        ours.eval(), theirs.eval()
        theirs.generation_config.eos_token_id = theirs.generation_config.bos_token_id = None
        prompts = [list(range(1, 31)), [3], [40, 2, 8, 8, 1, 60]]
        prompts = prompts if ours.ragged_batches else prompts[:1]  # the others would grow beyond an original length
        expected = []
        for prompt in prompts:
            ids = torch.tensor([prompt])
            more = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(ids)}
            expected.append(theirs.generate(ids, **more)[0, len(prompt) :].tolist())
        assert len({token for text in expected for token in text}) > 5, "models that repeat themselves show nothing"
        assert generate_greedily(ours, prompts, 20) == expected

    def test_a_cache_filled_in_pieces_gives_what_one_forward_gives(self, case: str, distance: Distance) -> None:
        ours, _ = self.pair(case)
        batch, cache, pieces = rows([40]), KVCache(), []
        for start, end in [(0, 17), (17, 18), (18, 25), (25, 40)]:
            cut = [x[:, start:end] for x in (batch.input_ids, batch.labels, batch.positions, batch.document_ids)]
            pieces.append(ours(Batch(*cut), cache))
        assert distance(torch.cat(pieces, 1), ours(batch)) < TOLERANCE

    # ------------------------------------------------------------------------------------------------------ the folders

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
    def test_a_folder_of_transformers_comes_back_bit_for_bit(
        self, case: str, dtype: torch.dtype, tmp_path: Path
    ) -> None:
        ours, theirs = self.pair(case)
        theirs.to(dtype).save_pretrained(tmp_path / "in", max_shard_size="60KB" if dtype is torch.bfloat16 else "1GB")
        config = self.config(**self.format.values(tmp_path / "in"))
        assert config == ours.config
        tensors = fused_experts(self.format.tensors(tmp_path / "in", config), experts_of(config))
        assert set(tensors) == {name for name, _ in ours.named_parameters()}
        in_files = tensors if self.format.written is None else self.format.written(config, tensors)
        save_folder(tmp_path / "out", in_files, self.exported(config))
        names = [set(self.format.tensors(tmp_path / folder, config)) for folder in ("in", "out")]
        assert names[0] == names[1]
        assert self.config(**self.format.values(tmp_path / "out")) == config
        first, again = (
            AutoModelForCausalLM.from_pretrained(tmp_path / folder, dtype=dtype, attn_implementation="eager")
            for folder in ("in", "out")
        )
        assert type(again) is type(theirs)
        assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in theirs.state_dict().items())
        ids = torch.arange(20)[None]
        assert torch.equal(again(ids).logits, first(ids).logits)
        stored = [load_file(file) for file in sorted((tmp_path / "out").glob("*.safetensors"))]
        assert all(tensor.dtype == dtype for file in stored for tensor in file.values())

    def test_a_published_config_is_the_size_of_its_name(self, described: str, tmp_path: Path) -> None:
        (tmp_path / CONFIG).write_text(json.dumps(self.configs[described]))
        found = self.config(**read_config(tmp_path / CONFIG, self.architectures))
        assert found == self.config(**self.variants[described])

    def test_a_size_has_the_published_parameters_and_is_described_so_that_it_is_read(
        self, size: str, tmp_path: Path
    ) -> None:
        config = self.config(**self.variants[size])
        with torch.device("meta"):
            model = type(self).model(config)
        count = sum(parameter.numel() for parameter in model.parameters())
        assert count == self.published.get(size, count)
        (tmp_path / CONFIG).write_text(json.dumps(self.exported(config)))
        assert self.config(**read_config(tmp_path / CONFIG, self.architectures)) == config
        theirs = AutoConfig.from_pretrained(tmp_path)
        assert (theirs.num_hidden_layers, theirs.vocab_size) == (config.n_layers, config.vocab_size)

    # --------------------------------------------------------------------------------------------------------- refusals

    def test_a_scaling_of_positions_that_a_run_may_have_is_one_that_its_folder_is_read_with(self) -> None:
        assert issubclass(self.config, DecoderConfig)
        for architecture in self.architectures:
            assert {ROPE_TYPES[name] for name in architecture.rope_types} == set(self.config.scalings)

    def test_what_a_config_json_may_not_say_is_named(self, refusal: str, tmp_path: Path) -> None:
        change, said = self.refused[refusal]
        config = self.exported(self.config(**{**self.shape, **next(iter(self.cases.values()))}))
        if "rope_scaling" in change:
            config.pop("rope_parameters")
        (tmp_path / CONFIG).write_text(json.dumps({**config, **change}))
        with pytest.raises(WeightsError, match=said):
            read_config(tmp_path / CONFIG, self.architectures)

    def test_a_shape_that_is_not_the_familys_is_refused(self, fault: str) -> None:
        change, said = self.impossible[fault]
        with pytest.raises(ValidationError, match=said):
            self.config(**{**self.shape, **next(iter(self.cases.values())), **change})


def experts_of(config: Any) -> dict[str, Any]:
    """The layouts of a mixture's experts."""
    return getattr(config, "expert_layouts", {})


def rows(lengths: list[int], count: int = 2) -> Batch:
    """Rows of documents with these lengths."""
    ids = torch.randint(0, 61, (count, sum(lengths)), generator=torch.Generator().manual_seed(3))
    positions = torch.cat([torch.arange(length) for length in lengths]).expand(count, -1)
    documents = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).expand(count, -1)
    sizes = torch.repeat_interleave(torch.tensor(lengths), torch.tensor(lengths)).expand(count, -1)
    return Batch(ids, torch.zeros_like(ids), positions, documents, lengths=sizes).with_index()
