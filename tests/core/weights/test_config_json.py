"""Tables of a family become values of its config and back; what is not in them is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from mt_core import DecoderConfig, WeightsError
from mt_core.weights import (
    CONFIG,
    FIXED,
    KEYS,
    Architecture,
    layer_types,
    read_config,
    read_json,
    read_windows,
    write_config,
)


class OddConfig(DecoderConfig):
    scalings = ("none", "linear", "dynamic", "yarn", "llama3")
    odd: bool = False
    window: int | None = None


PLAIN = Architecture(
    name="PlainForCausalLM",
    model_type="plain",
    ours={"odd": False},
    defaults={"head_dim": None, "rms_norm_eps": 1e-6},
    rope_types=("default", "linear", "dynamic", "yarn", "llama3"),
)
ODD = Architecture(
    name="OddForCausalLM",
    model_type="odd",
    ours={"odd": True},
    keys={**KEYS, "sliding_window": "window"},
    defaults={"sliding_window": None},
    fixed={**FIXED, "hidden_act": ("relu",), "clip_qkv": (None, 0)},
    rope_types=("default", "linear"),
    read=lambda config, file: {"norm_eps": config["layer_norm"]},
    write=lambda config: {"layer_norm": config.norm_eps},
)
BOTH = (PLAIN, ODD)
GIVEN: dict[str, Any] = {
    "architectures": ["PlainForCausalLM"],
    "vocab_size": 61,
    "max_position_embeddings": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
OTHER = {
    **GIVEN,
    "architectures": ["OddForCausalLM"],
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "hidden_act": "relu",
    "layer_norm": 1e-4,
}


def read(folder: Path, config: dict[str, Any]) -> OddConfig:
    (folder / CONFIG).write_text(json.dumps(config))
    return OddConfig(**read_config(folder / CONFIG, BOTH))


@pytest.mark.parametrize("given", [GIVEN, OTHER, {**OTHER, "sliding_window": 7}], ids=["plain", "odd", "window"])
def test_what_is_read_and_written_and_read_is_the_same(given: dict[str, Any], tmp_path: Path) -> None:
    config = read(tmp_path, given)
    written = write_config(config, BOTH)
    assert written["architectures"] == given["architectures"]
    assert written["head_dim"] == config.head_width
    assert read(tmp_path, written) == config


def test_an_architecture_is_found_by_its_type_where_no_class_is_named(tmp_path: Path) -> None:
    config = {key: value for key, value in OTHER.items() if key != "architectures"} | {"model_type": "odd"}
    assert read(tmp_path, config).odd


def test_heads_that_a_file_leaves_out_are_those_of_the_width(tmp_path: Path) -> None:
    given = {key: value for key, value in GIVEN.items() if key != "num_key_value_heads"}
    with pytest.raises(WeightsError, match="lacks num_key_value_heads"):
        read(tmp_path, given)
    assert read(tmp_path, {**GIVEN, "head_dim": 8}).head_dim is None
    assert read(tmp_path, {**GIVEN, "head_dim": 16}).head_dim == 16


SCALINGS: dict[str, dict[str, Any]] = {
    "none": {},
    "linear": {"rope_type": "linear", "factor": 2.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 20.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
}


@pytest.mark.parametrize("name", SCALINGS)
def test_rotary_scaling_is_read_in_both_forms_and_written_as_transformers_reads_it(name: str, tmp_path: Path) -> None:
    scaling = SCALINGS[name]
    old_names = {{"rope_type": "type"}.get(key, key): value for key, value in scaling.items()}
    old = read(tmp_path, {**GIVEN, "rope_theta": 5e5, "rope_scaling": old_names or None})
    new = read(tmp_path, {**GIVEN, "rope_parameters": {"rope_theta": 5e5, **scaling}})
    assert old == new
    assert (new.rope_theta, new.rope_scaling.type) == (5e5, name)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / CONFIG).write_text(json.dumps({**write_config(new, BOTH), "model_type": "llama"}))
    theirs = LlamaConfig.from_pretrained(tmp_path / "out")
    assert {key: theirs.rope_parameters[key] for key in scaling} == scaling
    assert theirs.rope_parameters["rope_theta"] == 5e5
    assert theirs.max_position_embeddings == 64
    assert new.max_seq_len == (128 if name == "dynamic" else 64)


def test_an_original_length_may_stand_outside_or_be_the_longest(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0}
    assert read(tmp_path, {**GIVEN, "rope_scaling": yarn}).rope_scaling.original_max_seq_len == 64
    outside = {**GIVEN, "original_max_position_embeddings": 16, "rope_scaling": {"rope_type": "yarn"}}
    found = read(tmp_path, outside).rope_scaling
    assert (found.original_max_seq_len, found.factor) == (16, 4.0)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another class": ({"architectures": ["OtherForCausalLM"]}, "OtherForCausalLM; this family reads Plain.* and Odd"),
    "a mixture": ({"architectures": ["PlainMoeForCausalLM"]}, "a mixture of experts"),
    "nothing": ({"architectures": None}, "describes no architecture"),
    "values by layer": ({"per_layer_config": {"1": {"skip": ["mlp"]}}}, "per_layer_config="),
    "bidirectional attention": ({"is_causal": False}, r"is_causal=False \(supported: True\); .* remove the key if"),
    "no direction, which transformers takes for both": ({"is_causal": None}, "is_causal=None"),
    "another activation": ({"hidden_act": "gelu"}, r"hidden_act='gelu' \(supported: 'silu'\)"),
    "a part of each head": (
        {"rope_parameters": {"partial_rotary_factor": 0.5}},
        r"partial_rotary_factor=0.5 \(supported: 1.0\)",
    ),
    "bits": ({"quantization_config": {"bits": 4}}, "quantization_config="),
    "a scaling": (
        {"rope_scaling": {"rope_type": "su", "factor": 2.0}},
        "rotary scaling 'su'; this family reads default",
    ),
    "no factor": ({"rope_scaling": {"rope_type": "linear"}}, "'linear' without a factor"),
    "a key of no scaling": (
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "fast": 1}},
        "has fast in a rotary",
    ),
    "no width": ({"hidden_size": None}, "lacks hidden_size"),
    "a word for a number": ({"num_attention_heads": "four"}, "wrong type"),
    "a word for an epsilon": ({"rms_norm_eps": "small"}, "wrong type"),
    "a word for a scaling": ({"rope_scaling": "linear"}, "wrong type"),
    "no heads": ({"num_attention_heads": 0}, "a number that no model has: division by zero"),
    "no length": (
        {"rope_scaling": {"rope_type": "yarn"}, "max_position_embeddings": 0},
        "a number that no model has: division by zero",
    ),
    "an endless factor": (
        {"rope_scaling": {"rope_type": "dynamic", "factor": float("inf")}},
        "a number that no model has: cannot convert float infinity",
    ),
    "two models": ({"model_type": "granite"}, "model_type='granite' and architectures=.*, which are two models"),
    "a number for classes": ({"architectures": 5}, r"architectures=5; write a list of names, such as \['Plain"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_config_may_not_say_is_named(case: str, tmp_path: Path) -> None:
    change, said = REFUSED[case]
    with pytest.raises(WeightsError, match=said) as raised:
        read(tmp_path, GIVEN | change)
    assert CONFIG in str(raised.value)


def test_a_key_that_stands_twice_is_named(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text('{"hidden_size": 8, "hidden_size": 16}')
    with pytest.raises(WeightsError, match="key 'hidden_size' stands twice"):
        read_json(tmp_path / CONFIG)


def test_a_family_may_support_fewer_scalings_and_other_values(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="this family reads default, linear"):
        read(tmp_path, {**OTHER, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}})
    with pytest.raises(WeightsError, match="clip_qkv=3"):
        read(tmp_path, {**OTHER, "clip_qkv": 3})
    with pytest.raises(WeightsError, match="hidden_act='silu'"):
        read(tmp_path, {**OTHER, "hidden_act": "silu"})


@pytest.mark.parametrize(
    ("types", "said"),
    [
        ([], "0 layer_types for num_hidden_layers=3"),
        (["full_attention"] * 2, "2 layer_types for num_hidden_layers=3"),
        (["chunked_attention"] * 3, "layer_types chunked_attention"),
    ],
)
def test_layer_types_that_do_not_name_each_layer_are_refused(types: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=said):
        read_windows({"num_hidden_layers": 3, "sliding_window": 4, "layer_types": types}, tmp_path / CONFIG)


def test_layer_types_become_the_shortest_pattern_that_they_repeat(tmp_path: Path) -> None:
    types = ["sliding_attention", "full_attention"] * 2
    found = read_windows({"num_hidden_layers": 4, "sliding_window": 7, "layer_types": types}, tmp_path / CONFIG)
    assert found == {"window": 7, "window_pattern": ["window", "full"]}


def test_layer_types_are_named_as_transformers_names_them() -> None:
    assert layer_types([None, 7]) == ["full_attention", "sliding_attention"]
