"""Finds the linear layers that an adapter takes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from mt_core.adapters.config import TargetConfig, names
from mt_core.errors import UsageError, did_you_mean
from mt_core.groups import is_of_media
from mt_core.nn import Experts, StoredLinear, TrainModel


def linear_layers(model: TrainModel) -> dict[str, nn.Module]:
    """Return every linear layer by name, except the head and routers: ``nn.Linear`` and ``StoredLinear``."""
    beside = {id(module) for module in model.head.modules()}
    return {
        name: module
        for name, module in model.named_modules()
        if _is_linear(module) and id(module) not in beside and name not in model.routers
    }


def targets_of(model: TrainModel, config: TargetConfig, *, slot: str = "adapter") -> dict[str, nn.Module]:
    """Return the linear layers that the config of this slot names, in the order of the model, without those whose weight it has ``kept``.

    Encoders of media have projections of the same names: only a pattern that begins with ``media.`` names theirs.

    Raises ``UsageError`` for a pattern that names none of them, or kept ones only, and where none is left.
    """
    layers = linear_layers(model)
    wanted = model.default_targets if config.targets is None else config.targets
    if not wanted:
        raise UsageError(
            f"{type(model).__name__} names no projections of its own (default_targets); set --{slot}.targets all-linear,"
            f" or some of {_endings(layers)}"
        )
    patterns = ("*",) if wanted == "all-linear" else tuple(wanted)
    _refuse_fused(f"{slot}.targets", patterns, model)
    _require(f"{slot}.targets", patterns, _reachable(layers, patterns))
    _require(f"{slot}.exclude", config.exclude, layers)
    kept = set(model.kept_names())
    for pattern in patterns:
        model.refuse_kept(f"{slot}.targets", pattern, [f"{each}.weight" for each in layers if _takes(pattern, each)])
    found = {
        name: layer
        for name, layer in layers.items()
        if any(_takes(each, name) for each in patterns)
        and not any(names(name, each) for each in config.exclude)
        and f"{name}.weight" not in kept
    }
    if not found:
        raise UsageError(
            f"{slot}.exclude={list(config.exclude)} leaves none of the {len(layers)} projections; exclude fewer"
        )
    return found


def _takes(pattern: str, name: str) -> bool:
    return names(name, pattern) and (is_of_media(pattern) or not is_of_media(name))


def _reachable(layers: dict[str, nn.Module], patterns: Sequence[str]) -> dict[str, nn.Module]:
    """The layers that patterns may name: those of encoders where one of them begins as their names do."""
    all_of_them = any(map(is_of_media, patterns))
    return {name: layer for name, layer in layers.items() if all_of_them or not is_of_media(name)}


def _refuse_fused(key: str, patterns: Sequence[str], model: TrainModel) -> None:
    """Raise ``UsageError`` where patterns name projections of experts that are one tensor: attention alone would be adapted."""
    for place, module in model.named_modules():
        if not isinstance(module, Experts):
            continue
        for pattern in patterns:
            if any(names(f"{place}.0.{projection}", pattern) for projection in module.layout.projections):
                raise UsageError(
                    f"{key}: {pattern!r} names projections of {place}, whose experts are fused into one tensor; build the model with its"
                    " experts listed (mt_core.nn.list_experts), as a run with an adapter does"
                )


def require_named(key: str, patterns: Sequence[str], targets: Sequence[str]) -> None:
    """Raises ``UsageError`` for a pattern, such as one of ``adapter.ranks``, that names none of the targets."""
    _require(key, patterns, dict.fromkeys(targets))


def _require(key: str, patterns: Sequence[str], layers: dict[str, nn.Module] | dict[str, None]) -> None:
    for pattern in patterns:
        if not any(names(name, pattern) for name in layers):
            raise UsageError(
                f"{key}: {pattern!r} names none of the {len(layers)} linear layers."
                f" {did_you_mean(pattern, sorted(_ends(layers)))}They end in {_endings(layers)}; patterns have * and ?."
                " Head, embeddings and norms stay as they are, or are trained whole by --train.enable"
            )


def _ends(layers: dict[str, nn.Module] | dict[str, None]) -> set[str]:
    return {name.rpartition(".")[2] for name in layers}


def _endings(layers: dict[str, nn.Module] | dict[str, None]) -> str:
    return ", ".join(sorted(_ends(layers))) or "nothing"


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | StoredLinear)
