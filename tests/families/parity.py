"""Tests that a family subclasses: equal to transformers, and read, written and refused as its table says.

A subclass gives data; ``cases`` are options over ``shape`` that each switch something on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from tests.families.forward import (
    TOLERANCE,
    BaseForward,
    Distance,
    MakePair,
    Pair,
    generate_by_transformers,
    make_models,
    rows,
)
from transformers import AutoConfig, AutoModelForCausalLM

from mt_conformance.forward import generate_greedily
from mt_core import DecoderConfig, ModelConfig, WeightsError, WeightsFormat
from mt_core.nn import TrainModel
from mt_core.weights import CONFIG, Architecture, fused_experts, read_config
from mt_core.weights.rope_json import ROPE_TYPES
from mt_tools import save_folder

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
REMOVED = "removed"
YARN: dict[str, Any] = {"type": "yarn", "factor": 4.0, "original_max_seq_len": 16}


class BaseParity(BaseForward):
    """What a family promises beside transformers, by data."""

    parameters = {
        **BaseForward.parameters,
        "cached": "cases",
        "refusal": "refused",
        "foreign": "of_others",
        "fault": "impossible",
        "described": "configs",
        "size": "sizes",
    }
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
    of_others: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Name of a file by another hand → changes of the first case's ``config.json``; ``REMOVED`` leaves a key out."""
    read_otherwise: ClassVar[Set[str]] = frozenset()
    """Keys without which a config is written in another way, or with which transformers is at odds with itself."""
    impossible: ClassVar[Mapping[str, tuple[Mapping[str, Any], str]]] = {}
    """The same for a config of ours."""

    @property
    def sizes(self) -> list[str]:
        """Sizes that are published."""
        return [size for size in self.variants if "tiny" not in size]

    @pytest.fixture
    def pair(self) -> MakePair:
        """``pair(case)``: the same random weights in both."""

        def make(case: str, **more: Any) -> Pair:
            config = self.config(**{**self.shape, **self.cases[case], **more})
            return make_models(type(self).model, config, self.exported(config))

        return make

    def exported(self, config: Any) -> dict[str, Any]:
        """The ``config.json`` of a config."""
        assert self.format.exported is not None
        return dict(self.format.exported(config))

    # ------------------------------------------------------------------------------------------------------- the maths

    def test_each_case_is_another_model(self, pair: MakePair, distance: Distance) -> None:
        """With the same weights, where they have the same names: an option that does nothing would show nothing."""
        models = {case: pair(case) for case in self.cases}
        outputs = {case: theirs(rows([40]).input_ids).logits for case, (_, theirs) in models.items()}
        for case, (ours, _) in models.items():
            for other, (_, like) in models.items():
                if case != other and ours.state_dict().keys() == like.state_dict().keys():
                    assert distance(outputs[case], outputs[other]) > 1e-4, (case, other)

    def test_greedy_tokens_equal_transformers(self, case: str, pair: MakePair) -> None:
        """Token by token with a cache, in a batch with prompts of other lengths where the family may."""
        ours, theirs = pair(case)
        prompts = [list(range(1, 31)), [3], [40, 2, 8, 8, 1, 60]]
        prompts = prompts if ours.ragged_batches else prompts[:1]  # the others would grow beyond an original length
        expected = [generate_by_transformers(theirs, prompt, 20) for prompt in prompts]
        assert len({token for text in expected for token in text}) > 5, "models that repeat themselves show nothing"
        assert generate_greedily(ours.eval(), prompts, 20) == expected

    # ------------------------------------------------------------------------------------------------------ the folders

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
    def test_a_folder_of_transformers_comes_back_bit_for_bit(
        self, case: str, dtype: torch.dtype, pair: MakePair, tmp_path: Path
    ) -> None:
        ours, theirs = pair(case)
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

    def test_a_key_that_a_file_leaves_out_is_what_transformers_takes(self, case: str, tmp_path: Path) -> None:
        config = self.config(**{**self.shape, **self.cases[case]})
        content = self.exported(config)
        keys = content.keys() - self.read_otherwise
        assert_left_out_keys_are_those_of_transformers(content, self.architectures, self.config, tmp_path, keys=keys)

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

    def test_a_config_json_of_another_hand_is_the_model_that_transformers_makes_of_it(
        self, foreign: str, tmp_path: Path, distance: Distance
    ) -> None:
        written = self.exported(self.config(**{**self.shape, **next(iter(self.cases.values()))}))
        content = {**written, **self.of_others[foreign]}
        (tmp_path / CONFIG).write_text(json.dumps({key: x for key, x in content.items() if x != REMOVED}))
        config = self.config(**read_config(tmp_path / CONFIG, self.architectures))
        ours, theirs = make_models(type(self).model, config, AutoConfig.from_pretrained(tmp_path).to_dict())
        with torch.no_grad():
            batch = rows([40])
            assert distance(ours.head(ours(batch)), theirs(batch.input_ids).logits) < TOLERANCE

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
        content = {**config, **change}
        (tmp_path / CONFIG).write_text(json.dumps({key: x for key, x in content.items() if x != REMOVED}))
        with pytest.raises(WeightsError, match=said):
            read_config(tmp_path / CONFIG, self.architectures)

    def test_a_shape_that_is_not_the_familys_is_refused(self, fault: str) -> None:
        change, said = self.impossible[fault]
        with pytest.raises(ValidationError, match=said):
            self.config(**{**self.shape, **next(iter(self.cases.values())), **change})


def assert_left_out_keys_are_those_of_transformers(
    content: Mapping[str, Any],
    architectures: Sequence[Architecture],
    config: type[ModelConfig],
    folder: Path,
    *,
    keys: Set[str] | None = None,
) -> None:
    """Compare the config of a file without a key with that of the whole file that transformers makes of it, for each key."""

    def read(found: Mapping[str, Any]) -> ModelConfig | None:
        (folder / CONFIG).write_text(json.dumps(found))
        try:
            return config(**read_config(folder / CONFIG, architectures))
        except (WeightsError, ValidationError):
            return None

    new = {key: value for key, value in content.items() if key != "rope_scaling"}  # the same, for release 4
    for left_out in sorted((content.keys() if keys is None else keys) & new.keys() - {"architectures", "model_type"}):
        found = read({key: value for key, value in new.items() if key != left_out})
        if found is not None:
            theirs = AutoConfig.from_pretrained(folder).to_dict()
            assert found == read({**theirs, "architectures": content["architectures"]}), left_out


def experts_of(config: Any) -> dict[str, Any]:
    """The layouts of a mixture's experts."""
    return getattr(config, "expert_layouts", {})
