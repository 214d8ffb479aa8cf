"""Folders of Hugging Face's DeepseekV2ForCausalLM and DeepseekV3ForCausalLM, in fp8 as V3 is published or in plain tensors.

What the keys mean, and what holds where one is missing: DeepseekV2Config and DeepseekV3Config of transformers.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import WeightsError
from mt_core.weights import (
    CONFIG,
    FIXED,
    KEYS,
    Architecture,
    Loaders,
    decoder_format,
    listed_experts,
    open_folder,
    read_json,
    refuse_values,
    without_tied_head,
)

from .config import DeepseekConfig

if TYPE_CHECKING:
    from torch import Tensor

SCALES = "_scale_inv"
"""End of the name of the factors of a weight that is stored in fp8."""
PREDICTORS = "num_nextn_predict_layers"
"""Their key for the number of blocks behind the last that predict further tokens."""
GROUPED = "group_limited_greedy"
"""Their word for a choice within groups, in V2."""

# -------------------------------------------------------------------------------------------------------------- config

THEIR_KEYS: Mapping[str, str] = {
    **{theirs: ours for theirs, ours in KEYS.items() if ours not in ("n_kv_heads", "head_dim")},
    "first_k_dense_replace": "n_dense",
    "kv_lora_rank": "kv_rank",
    "qk_nope_head_dim": "nope_dim",
    "qk_rope_head_dim": "rope_dim",
    "v_head_dim": "value_dim",
    "n_routed_experts": "n_experts",
    "num_experts_per_tok": "top_k",
    "n_shared_experts": "n_shared",
    "moe_intermediate_size": "expert_dim",
    "routed_scaling_factor": "routed_scale",
}
"""Their key → ours. ``q_lora_rank``, which may be null, and groups are in ``read_more``."""
THEIR_FIXED: Mapping[str, tuple[Any, ...]] = {
    **{key: FIXED[key] for key in FIXED if key != "quantization_config"},
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "moe_layer_freq": (1, None),
    "rope_interleave": (True, None),
}


def read_more(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return the width of queries' latents; refuse fewer heads of keys, and bits that are not V3's."""
    refuse_values(config, file, {"num_key_value_heads": (config["num_attention_heads"], None)})
    quantised = config.get("quantization_config") or {"quant_method": "fp8", "weight_block_size": [128, 128]}
    if quantised.get("quant_method") != "fp8" or quantised.get("weight_block_size") != [128, 128]:
        raise WeightsError(
            f"{file} has weights quantised by {quantised.get('quant_method')!r} in blocks of"
            f" {quantised.get('weight_block_size')}; this family reads 'fp8' in blocks of [128, 128], or none"
        )
    return {"q_rank": config.get("q_lora_rank")}


def read_second(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """V2: groups are there, and not used, where the method is ``greedy``."""
    return {**read_more(config, file), **(_groups(config) if config.get("topk_method") == GROUPED else {})}


def read_third(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """V3: always groups; weights add up to the factor unless the file says otherwise, with null too."""
    return {**read_more(config, file), **_groups(config), "normalise": bool(config.get("norm_topk_prob", True))}


def _groups(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"n_groups": config["n_group"], "top_groups": config["topk_group"]}


def write_more(config: DeepseekConfig) -> dict[str, Any]:
    """Return their keys for what the tables do not have."""
    method = "noaux_tc" if config.generation == 3 else GROUPED if config.n_groups > 1 else "greedy"
    return {
        "num_key_value_heads": config.n_heads,
        "q_lora_rank": config.q_rank,
        "topk_method": method,
        "n_group": config.n_groups,
        "topk_group": config.top_groups,
        "norm_topk_prob": config.normalise,
        **({PREDICTORS: 0} if config.generation == 3 else {}),
    }


SECOND = Architecture(
    name="DeepseekV2ForCausalLM",
    model_type="deepseek_v2",
    ours={"generation": 2},
    keys=THEIR_KEYS,
    defaults={"tie_word_embeddings": False, "q_lora_rank": 1536},
    fixed={
        **THEIR_FIXED,
        "scoring_func": ("softmax", None),
        "topk_method": ("greedy", GROUPED, None),
        "norm_topk_prob": (False, None),
    },
    read=read_second,
    write=write_more,
)
THIRD = Architecture(
    name="DeepseekV3ForCausalLM",
    model_type="deepseek_v3",
    ours={"generation": 3},
    keys=THEIR_KEYS,
    defaults={"tie_word_embeddings": False, "n_group": 8, "topk_group": 4, "q_lora_rank": 1536},
    fixed={**THEIR_FIXED, "scoring_func": ("sigmoid", None), "topk_method": ("noaux_tc", None)},
    read=read_third,
    write=write_more,
)

# ------------------------------------------------------------------------------------------------------------- tensors


def tensors(path: Path, config: DeepseekConfig) -> Loaders:
    """One loader a tensor, dequantised where it is in fp8; layers that predict further tokens are left out, which is said."""
    loaders = _dequantised(_without_predictors(open_folder(path), path), path)
    if config.tie_embeddings:
        return without_tied_head(loaders, path, embedding="model.embed_tokens.weight", head="lm_head.weight")
    return loaders


def _without_predictors(loaders: Loaders, path: Path) -> Loaders:
    """Leave out the blocks behind the last that predict more than the next token (https://arxiv.org/abs/2412.19437, section 2.2)."""
    said = read_json((path.parent if path.is_file() else path) / CONFIG)
    first = int(said.get("num_hidden_layers", 0))
    indices = range(first, first + int(said.get(PREDICTORS) or 0))
    prefixes = tuple(f"model.layers.{index}." for index in indices)
    predictors = [name for name in loaders if prefixes and name.startswith(prefixes)]
    if predictors:
        level = logging.INFO if os.environ.get("RANK", "0") == "0" else logging.DEBUG
        logging.getLogger("mt_core.deepseek").log(
            level,
            f"notice: {len(predictors)} tensors of {path} predict further tokens and are left out ({', '.join(prefixes)}*)",
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


def written(config: DeepseekConfig, loaders: Mapping[str, Callable[[], Tensor]]) -> Loaders:
    """The published names: each expert is listed, whatever form the model has."""
    return listed_experts(loaders, config.expert_layouts)


HUGGINGFACE = replace(decoder_format(SECOND, THIRD, tensors=tensors), written=written)
