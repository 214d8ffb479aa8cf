"""Writing a folder that ``transformers.AutoModelForCausalLM.from_pretrained`` opens, as the text-only class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import WeightsError

from .config import GemmaConfig
from .folder import CONFIG, staged, write_json, write_shards
from .names import ARCHITECTURES, LATER_NAMES, MODEL_TYPES, NAMES
from .shapes import HEAD, parameter_shapes

if TYPE_CHECKING:
    from torch import Tensor


def save_huggingface(config: GemmaConfig, tensors: Iterable[tuple[str, Tensor]], folder: Path) -> None:
    """Write ``config.json`` and safetensors, shard by shard, each tensor in its dtype.

    Raises ``WeightsError`` when the folder has files (nothing is overwritten), or when the tensors are not those of the
    config. The folder appears when it is complete: until then it has ``.partial`` at the end of its name.
    """
    dtypes: list[str] = []
    with staged(folder) as stage:
        write_shards(_checked(config, tensors, dtypes), stage)
        write_json(stage / CONFIG, their_config(config, dtypes[0]))


def _checked(
    config: GemmaConfig, tensors: Iterable[tuple[str, Tensor]], dtypes: list[str]
) -> Iterator[tuple[str, Tensor]]:
    """The tensors of this config, each once, without the head, which is the embedding once more."""
    missing = parameter_shapes(config)
    for name, tensor in tensors:
        if name == HEAD:
            continue
        wanted = missing.pop(name, None)
        if wanted is None:
            raise WeightsError(
                f"{name} is no parameter of this Gemma, or came twice; give its named_parameters(), adapters merged"
            )
        if tuple(tensor.shape) != wanted:
            raise WeightsError(
                f"{name} has shape {tuple(tensor.shape)} and the config says {wanted}; give the config of these tensors"
            )
        dtypes.append(str(tensor.dtype).removeprefix("torch."))
        yield name, tensor
    if missing:
        raise WeightsError(
            f"tensors are missing for the export: {', '.join(missing)}; give all parameters of the model"
        )


def their_config(config: GemmaConfig, dtype: str = "float32") -> dict[str, Any]:
    """``config.json`` as transformers reads it, releases 4 and 5.

    The special ids belong to a tokenizer and are unknown here; left out, transformers would take 0, 1 and 2.
    """
    return {
        "architectures": [ARCHITECTURES[config.generation]],
        "model_type": MODEL_TYPES[config.generation],
        **{theirs: getattr(config, mine) for theirs, mine in NAMES.items()},
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "tie_word_embeddings": True,
        **(_later(config) if config.generation >= 2 else {}),
        **(_two_ropes(config) if config.generation >= 3 else _rope(config)),
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
        "torch_dtype": dtype,
    }


def _later(config: GemmaConfig) -> dict[str, Any]:
    local = [config.is_local(index) for index in range(config.n_layers)]
    return {
        **{theirs: getattr(config, mine) for theirs, mine in LATER_NAMES.items()},
        "query_pre_attn_scalar": _whole(config.query_scalar),
        "layer_types": ["sliding_attention" if each else "full_attention" for each in local],
        "sliding_window_pattern": config.global_every,
    }


def _whole(number: float | None) -> float | None:
    """As an int where it is one: transformers takes no other."""
    return int(number) if number is not None and number == int(number) else number


def _rope(config: GemmaConfig) -> dict[str, Any]:
    return {
        "rope_theta": config.rope_theta,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
    }


def _two_ropes(config: GemmaConfig) -> dict[str, Any]:
    scaling = (
        {"rope_type": "default"} if config.rope_factor == 1 else {"rope_type": "linear", "factor": config.rope_factor}
    )
    return {
        "rope_theta": config.rope_theta,
        "rope_local_base_freq": config.rope_local_theta,
        "rope_scaling": None if config.rope_factor == 1 else scaling,
        "rope_parameters": {
            "full_attention": {"rope_theta": config.rope_theta, **scaling},
            "sliding_attention": {"rope_theta": config.rope_local_theta, "rope_type": "default"},
        },
    }
