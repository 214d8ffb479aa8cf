"""Folders of Hugging Face's DeepseekV2ForCausalLM and DeepseekV3ForCausalLM, read and described.

What the keys mean, and what holds where one is missing: DeepseekV2Config and DeepseekV3Config of transformers.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import RopeScaling, WeightsError, WeightsFormat
from mt_core.weights import CONFIG, Loaders, check_folder, is_folder, open_folder, read_json, without_tied_head

from .config import SCALINGS, DeepseekConfig

if TYPE_CHECKING:
    from torch import Tensor

ARCHITECTURES = {2: "DeepseekV2ForCausalLM", 3: "DeepseekV3ForCausalLM"}
"""Generation → the class that a folder names."""
MODEL_TYPES = {generation: f"deepseek_v{generation}" for generation in ARCHITECTURES}
"""The same in a folder that names no class."""

NAMES = {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_seq_len",
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "first_k_dense_replace": "n_dense",
    "num_attention_heads": "n_heads",
    "kv_lora_rank": "kv_rank",
    "qk_nope_head_dim": "nope_dim",
    "qk_rope_head_dim": "rope_dim",
    "v_head_dim": "value_dim",
    "intermediate_size": "ffn_dim",
    "n_routed_experts": "n_experts",
    "num_experts_per_tok": "top_k",
    "n_shared_experts": "n_shared",
    "moe_intermediate_size": "expert_dim",
    "routed_scaling_factor": "routed_scale",
    "rms_norm_eps": "norm_eps",
    "tie_word_embeddings": "tie_embeddings",
}
"""Their key → ours. ``q_lora_rank``, which may be null, and what chooses experts are below."""

FIXED: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", None),
    "attention_bias": (False, None),
    "attention_dropout": (0.0, None),
    "mlp_bias": (False, None),
    "moe_layer_freq": (1, None),
    "rope_interleave": (True, None),
    "partial_rotary_factor": (1.0, None),
}
"""Keys that change the maths, and the values that this family has."""
CHOICES: Mapping[int, Mapping[str, tuple[Any, ...]]] = {
    2: {
        "scoring_func": ("softmax", None),
        "topk_method": ("greedy", "group_limited_greedy", None),
        "norm_topk_prob": (False, None),
    },
    3: {"scoring_func": ("sigmoid", None), "topk_method": ("noaux_tc", None)},
}
"""The same keys of how experts are chosen, by generation."""

ORIGINAL = ("original_max_position_embeddings", "original_max_seq_len")
"""The one key of a rotary scaling that has another name there, and its name here."""
SCALES = "_scale_inv"
"""What the name of a weight's factors ends in, where it is stored in fp8."""
_PREDICTORS = "num_nextn_predict_layers"


# -------------------------------------------------------------------------------------------------------------- config


def values(path: Path) -> dict[str, Any]:
    """The shape in a folder's ``config.json``. Raises ``WeightsError`` for what is no DeepSeek, and for damaged files."""
    shape = read_shape(_config_file(path))
    check_folder(path)
    return shape


def _config_file(path: Path) -> Path:
    return (path.parent if path.is_file() else path) / CONFIG


def read_shape(file: Path) -> dict[str, Any]:
    """Return the shape of a ``config.json`` alone."""
    try:
        return _shape(read_json(file), file)
    except (AttributeError, TypeError, ValueError) as error:
        raise WeightsError(f"{file} has a value of the wrong type: {error}") from error


def _shape(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    generation = _generation(config, file)
    _refuse_other_maths(config, generation, file)
    shape = {"tie_word_embeddings": False, **{key: value for key, value in config.items() if value is not None}}
    if missing := [key for key in NAMES if key not in shape]:
        raise WeightsError(
            f"{file} lacks {', '.join(missing)}; take the config.json that was published with the weights"
        )
    ours = {name: shape[key] for key, name in NAMES.items()}
    return {
        "generation": generation,
        **ours,
        "q_rank": config.get("q_lora_rank"),
        **_choice(config, generation),
        **_rotary(config, file),
    }


def _generation(config: Mapping[str, Any], file: Path) -> int:
    said = config.get("architectures") or [config.get("model_type")]
    for generation, name in ARCHITECTURES.items():
        if name in said or said == [MODEL_TYPES[generation]]:
            return generation
    known = " and ".join(ARCHITECTURES.values())
    raise WeightsError(
        f"{file} describes {said if said != [None] else 'no architecture'}; this family reads {known}"
    )


def _refuse_other_maths(config: Mapping[str, Any], generation: int, file: Path) -> None:
    heads = config.get("num_attention_heads")
    fixed = {**FIXED, **CHOICES[generation], "num_key_value_heads": (heads, None)}
    if other := [key for key, known in fixed.items() if config.get(key) not in known]:
        said = ", ".join(f"{key}={config[key]!r} (supported: {fixed[key][0]!r})" for key in other)
        raise WeightsError(f"{file} has {said}; use weights without it")
    quantised = config.get("quantization_config") or {"quant_method": "fp8", "weight_block_size": [128, 128]}
    if quantised.get("quant_method") != "fp8" or quantised.get("weight_block_size") != [128, 128]:
        raise WeightsError(
            f"{file} has weights quantised by {quantised.get('quant_method')!r} in blocks of"
            f" {quantised.get('weight_block_size')}; this family reads 'fp8' in blocks of [128, 128], or none"
        )


def _choice(config: Mapping[str, Any], generation: int) -> dict[str, Any]:
    """Groups, where they are used, and whether weights add up to one."""
    if generation == 2 and config.get("topk_method") != "group_limited_greedy":
        return {}
    groups = {"n_groups": config.get("n_group"), "top_groups": config.get("topk_group")}
    chosen = {name: value for name, value in groups.items() if value is not None}
    if generation == 2:
        return chosen
    return {"n_groups": 8, "top_groups": 4, **chosen, "normalise": config.get("norm_topk_prob") is not False}


def _rotary(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Base and scaling, as transformers 5 (``rope_parameters``) and 4 (``rope_scaling``) write them."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = rope.pop("rope_theta", None) or config.get("rope_theta") or 10_000.0
    old = rope.pop("type", "default")
    kind = rope.pop("rope_type", old)
    kind = "none" if kind == "default" else kind
    if kind not in SCALINGS:
        raise WeightsError(f"{file} has rotary scaling {kind!r}; this family reads {', '.join(SCALINGS)}")
    theirs, ours = ORIGINAL
    known = RopeScaling.parameters_of(kind)
    if ours in known:
        rope = {theirs: config.get("max_position_embeddings"), **rope}
    scaling = {ours if key == theirs else key: value for key, value in rope.items() if value is not None}
    if other := sorted(set(scaling) - known):
        raise WeightsError(f"{file} has {', '.join(other)} in a rotary scaling {kind!r}, which does not read it")
    return {"rope_theta": float(theta), "rope_scaling": {"type": kind, **scaling}}


def their_config(config: DeepseekConfig) -> dict[str, Any]:
    """``config.json`` as transformers reads it, 4 and 5."""
    scaling = _scaling(config.rope_scaling)
    return {
        "architectures": [ARCHITECTURES[config.generation]],
        "model_type": MODEL_TYPES[config.generation],
        **{theirs: getattr(config, ours) for theirs, ours in NAMES.items()},
        "num_key_value_heads": config.n_heads,
        "q_lora_rank": config.q_rank,
        **_their_choice(config),
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "moe_layer_freq": 1,
        "rope_theta": config.rope_theta,
        "rope_scaling": scaling if len(scaling) > 1 else None,
        "rope_parameters": {**scaling, "rope_theta": config.rope_theta},
    }


def _their_choice(config: DeepseekConfig) -> dict[str, Any]:
    groups = {"n_group": config.n_groups, "topk_group": config.top_groups, "norm_topk_prob": config.normalise}
    if config.generation == 3:
        return {**groups, "scoring_func": "sigmoid", "topk_method": "noaux_tc", _PREDICTORS: 0}
    method = "greedy" if config.n_groups == 1 else "group_limited_greedy"
    return {**groups, "scoring_func": "softmax", "topk_method": method}


def _scaling(scaling: RopeScaling) -> dict[str, Any]:
    theirs, ours = ORIGINAL
    chosen = {theirs if key == ours else key: value for key, value in scaling.active_parameters().items()}
    kind = chosen.pop("type")
    return {"rope_type": "default" if kind == "none" else kind, **chosen}


# ------------------------------------------------------------------------------------------------------------- tensors


def tensors(path: Path, config: DeepseekConfig) -> Loaders:
    """One loader a tensor, dequantised where it is in fp8; layers that predict further tokens are left out, which is said."""
    loaders = _dequantised(_without_predictors(open_folder(path), path), path)
    if config.tie_embeddings:
        return without_tied_head(loaders, path, embedding="model.embed_tokens.weight", head="lm_head.weight")
    return loaders


def _without_predictors(loaders: Loaders, path: Path) -> Loaders:
    """Leave out the blocks behind the last that predict more than the next token (https://arxiv.org/abs/2412.19437, section 2.2)."""
    said = read_json(_config_file(path))
    first = int(said.get("num_hidden_layers", 0))
    indices = range(first, first + int(said.get(_PREDICTORS) or 0))
    prefixes = tuple(f"model.layers.{index}." for index in indices)
    predictors = [name for name in loaders if prefixes and name.startswith(prefixes)]
    if predictors:
        level = logging.INFO if os.environ.get("RANK", "0") == "0" else logging.DEBUG
        logging.getLogger("mt_core.deepseek").log(
            level, f"notice: {len(predictors)} tensors of {path} predict further tokens and are left out ({', '.join(prefixes)}*)"
        )
    return {name: load for name, load in loaders.items() if name not in set(predictors)}


def _dequantised(loaders: Loaders, path: Path) -> Loaders:
    """Replace each weight that has factors by what both stand for."""
    scales = {name for name in loaders if name.endswith(SCALES)}
    if alone := sorted(name for name in scales if name.removesuffix(SCALES) not in loaders):
        raise WeightsError(f"{path} has {', '.join(alone)} without the weights; fetch the files again")
    return {
        name: partial(_load, name, load, loaders[name + SCALES], path) if name + SCALES in scales else load
        for name, load in loaders.items()
        if name not in scales
    }


def _load(name: str, load_weight: Callable[[], Tensor], load_scales: Callable[[], Tensor], path: Path) -> Tensor:
    from .fp8 import BLOCK, dequantise

    weight, scales = load_weight(), load_scales()
    expected = tuple(-(-size // BLOCK) for size in weight.shape)
    if weight.dim() != 2 or tuple(scales.shape) != expected:
        raise WeightsError(
            f"{path} has {name} of {tuple(weight.shape)} with factors of {tuple(scales.shape)}; fp8 has one for each"
            f" {BLOCK} × {BLOCK}, {expected}. Fetch the files again"
        )
    return dequantise(weight, scales)


HUGGINGFACE = WeightsFormat(
    name="huggingface", matches=is_folder, values=values, tensors=tensors, exported=their_config
)
