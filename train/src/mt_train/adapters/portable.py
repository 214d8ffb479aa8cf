"""A LoRA as all its readers multiply it alike: one rank R, lora_alpha = R, and the factor of each layer in its B.

Readers differ in what they multiply an update by: peft by alpha_i / r_i of each layer (/ √r_i for rsLoRA), vLLM and SGLang by
lora_alpha / r for all layers (SGLang also for rsLoRA), llama.cpp by lora_alpha over the tensor's own rank. Here all of these are 1.
Importing this imports no torch.

Shapes: F outputs, E inputs, R rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import frexp, sqrt
from typing import TYPE_CHECKING, Any

from mt_core.adapters.base import PeftForm
from mt_core.adapters.peft import PREFIX, value_for

if TYPE_CHECKING:
    from torch import Tensor

_A, _B = ".lora_A.weight", ".lora_B.weight"


def is_lora(form: PeftForm) -> bool:
    """Return whether the form is a pair of matrices for each layer, and nothing besides."""
    return form.config.get("peft_type") == "LORA" and all(name.endswith((_A, _B)) for name in form.names.values())


def rank_and_scale(config: Mapping[str, Any], module: str) -> tuple[int, float]:
    """The rank that peft gives a layer by its config, and what it multiplies the update by."""
    rank = value_for(config.get("rank_pattern"), module) or config["r"]
    alpha = value_for(config.get("alpha_pattern"), module) or config["lora_alpha"]
    return rank, alpha / (sqrt(rank) if config.get("use_rslora") else rank)


def portable_config(config: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """The config of a LoRA of this rank whose factors are in its tensors."""
    plain = {"r": rank, "lora_alpha": rank, "rank_pattern": {}, "alpha_pattern": {}, "use_rslora": False}
    return {**config, **plain}


def largest_rank(form: PeftForm) -> int:
    """The rank of the portable form."""
    return max(rank_and_scale(form.config, module)[0] for module in _modules(form))


def fold(form: PeftForm, name: str, tensor: Tensor, rank: int) -> Tensor:
    """A tensor of the form, by its name in the file, with rows or columns of zeros up to ``rank``; B with its factor.

    B in few bits stays so where that loses nothing, and is in fp32 otherwise: fp16 has fewer digits below 6e-5, and none beyond 65504.
    """
    from torch import equal
    from torch.nn.functional import pad

    own, scale = rank_and_scale(form.config, module_of(name))
    if name.endswith(_A):
        return pad(tensor, (0, 0, 0, rank - own))
    scaled = tensor * scale
    if frexp(scale)[0] != 0.5 or not equal(scaled / scale, tensor):
        scaled = tensor.float() * scale
    return pad(scaled, (0, rank - own))


def unfold(form: PeftForm, found: Mapping[str, Callable[[], Tensor]]) -> dict[str, Callable[[], Tensor]]:
    """The tensors of a portable file as the form has them."""
    return {
        name: partial(_unfold, form, name, load) if name.endswith((_A, _B)) else load for name, load in found.items()
    }


def _unfold(form: PeftForm, name: str, load: Callable[[], Tensor]) -> Tensor:
    rank, scale = rank_and_scale(form.config, module_of(name))
    return load()[:rank] if name.endswith(_A) else load()[:, :rank] / scale


def module_of(name: str) -> str:
    """The module of a tensor of the file, by the model's names."""
    return name.removeprefix(PREFIX).removesuffix(_A).removesuffix(_B)


def _modules(form: PeftForm) -> Sequence[str]:
    return [module_of(name) for name in form.names.values()]
