"""An adapter as peft writes it (https://huggingface.co/docs/peft, 0.21): what its files are called, and which adapter they are.

An adapter says so itself (``Adapter.peft_form``, ``AdapterComponent.peft_options``). Importing this imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mt_core.adapters.base import PeftForm
from mt_core.adapters.config import LowRankConfig
from mt_core.adapters.config import names as fits

if TYPE_CHECKING:
    from mt_core.nn import TrainModel

PREFIX = "base_model.model."
"""Text that peft puts before the name of a module."""

LORA_NAMES = {"lora_A": "lora_A.weight", "lora_B": "lora_B.weight"}
"""LoRA's parameters → peft's."""

RankOf = Callable[[str], int]
AlphaOf = Callable[[str], float]
"""Name of a layer → its alpha; ``RankOf`` gives its rank."""

_PLAIN = re.compile(r"[\w.]+")
_NARROWING = ("exclude_modules", "layers_pattern", "layers_to_transform", "modules_to_save")
"""Keys that leave some of its ``target_modules`` as they are."""


def lora_form(
    config: LowRankConfig,
    model: TrainModel,
    *,
    names: Mapping[str, str] = LORA_NAMES,
    rank_of: RankOf | None = None,
    alpha_of: AlphaOf | None = None,
    **more: Any,
) -> PeftForm:
    """The form of an adapter whose layers compute what peft's LoRA does; ``more`` are keys of its config.

    ``rank_of`` and ``alpha_of`` are for a plan: the config's own where they are not given.
    """
    return PeftForm(
        config={
            "peft_type": "LORA",
            **rank_keys(config, model, rank_of=rank_of, alpha_of=alpha_of),
            "lora_dropout": config.dropout,
            "use_rslora": config.rslora,
            "use_dora": False,
            "bias": "none",
            "init_lora_weights": True,
            **target_keys(model),
            **more,
        },
        names=tensor_names(model, names),
    )


def rank_keys(
    config: LowRankConfig,
    model: TrainModel,
    *,
    alpha_key: str = "lora_alpha",
    rank_of: RankOf | None = None,
    alpha_of: AlphaOf | None = None,
) -> dict[str, Any]:
    """Rank and alpha of all layers, and of those that have others; ``alpha_key`` is what the method calls alpha."""
    from mt_core.adapters.linear import adapted_layers

    rank_of, alpha_of = rank_of or config.rank_of, alpha_of or config.alpha_of
    layers = [name for name, _ in adapted_layers(model)]
    return {
        "r": config.rank,
        alpha_key: _number(config.alpha),
        "rank_pattern": {name: rank_of(name) for name in layers if rank_of(name) != config.rank},
        "alpha_pattern": {name: _number(alpha_of(name)) for name in layers if alpha_of(name) != config.alpha},
    }


def form_of_type(
    kind: str,
    model: TrainModel,
    names: Mapping[str, str],
    *,
    transposes: bool = False,
    training: Sequence[str] = (),
    **config: Any,
) -> PeftForm:
    """The form of a method that has a type of its own there; ``transposes`` where its config knows ``fan_in_fan_out``."""
    keys = target_keys(model)
    if not transposes:
        del keys["fan_in_fan_out"]
    return PeftForm(
        config={"peft_type": kind, **config, **keys}, names=tensor_names(model, names), training=frozenset(training)
    )


def tensor_names(model: TrainModel, names: Mapping[str, str]) -> dict[str, str]:
    """Our full names → peft's, for what adapted layers have of these parameters."""
    from mt_core.adapters.linear import adapted_layers

    return {
        f"{place}.{ours}": f"{PREFIX}{place}.{theirs}"
        for place, layer in adapted_layers(model)
        for ours, theirs in names.items()
        if ours in layer._parameters
    }


def target_keys(model: TrainModel) -> dict[str, Any]:
    """``target_modules``: last parts of names where no other module has them, else whole names; and whether weights are stored transposed.

    Another module need not be linear: a block is called 0 as the first layer of a sequence is, and peft takes the block.
    """
    from mt_core.adapters.linear import adapted_layers

    layers = dict(adapted_layers(model))
    ends = {name.rpartition(".")[2] for name in layers}
    alike = [name for name, _ in model.named_modules() if name.rpartition(".")[2] in ends]
    transposed = any(layer.is_transposed for layer in layers.values())
    return {"target_modules": sorted(ends if len(alike) == len(layers) else layers), "fan_in_fan_out": transposed}


def lora_options(config: Mapping[str, Any], modules: Sequence[str]) -> dict[str, Any] | None:
    """The options of plain LoRA; ``None`` for a config of another method. ``modules`` are those that the file has."""
    if config.get("peft_type") != "LORA" or config.get("use_dora"):
        return None
    return low_rank_options(config, modules)


def low_rank_options(config: Mapping[str, Any], modules: Sequence[str]) -> dict[str, Any]:
    """Return the options that a ``LowRankConfig`` takes out of a config that has LoRA's keys."""
    return {
        "rank": config.get("r", 8),
        "alpha": config.get("lora_alpha", 8),
        "rslora": bool(config.get("use_rslora")),
        "dropout": config.get("lora_dropout") or 0.0,
        "targets": targets_option(config, modules),
        "ranks": patterns_option(config.get("rank_pattern"), modules),
        "alphas": patterns_option(config.get("alpha_pattern"), modules),
    }


def targets_option(config: Mapping[str, Any], modules: Sequence[str]) -> list[str]:
    """``adapter.targets``: peft's own list where it says the same here, without what names nothing; else the modules themselves."""
    given = config.get("target_modules")
    if any(config.get(key) not in (None, [], "", {}) for key in _NARROWING):  # 0 is a layer
        return sorted(modules)
    return names_option(given, modules)


def names_option(given: Any, modules: Sequence[str]) -> list[str]:
    """Names or an expression of peft as names of ours: those of its list that name some module, else the modules that it means."""
    if isinstance(given, str):
        return sorted(each for each in modules if re.fullmatch(given, each))
    ends = [each for each in given or modules if any(fits(module, each) for module in modules)]
    return sorted(ends if all(_PLAIN.fullmatch(each) for each in ends) else modules)


def patterns_option(given: Mapping[str, Any] | None, modules: Sequence[str]) -> dict[str, Any]:
    """Values by peft's expressions as values by our patterns: its own keys where they say the same here, without those that no
    module fits, which peft reads over; else the modules themselves."""
    wanted = {module: value for module in modules if (value := value_for(given, module)) is not None}
    plain = {key: value for key, value in (given or {}).items() if any(fits(module, key) for module in wanted)}
    said = {module: next((v for key, v in plain.items() if fits(module, key)), None) for module in modules}
    return plain if {module: value for module, value in said.items() if value is not None} == wanted else wanted


def value_for(given: Mapping[str, Any] | None, module: str) -> Any:
    """The value of a module by peft's expressions, as its ``get_pattern_key``: of the first that ends the name; ``None`` without one."""
    return next((value for key, value in (given or {}).items() if re.match(rf"(.*\.)?({key})$", module)), None)


def _number(value: float) -> float | int:
    return int(value) if value == int(value) else value
