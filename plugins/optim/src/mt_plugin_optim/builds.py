"""Builders of optimizers from options; torch and libraries load here."""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mt_core import GradientTransform, GroupOptions, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.optim import Optimizer

    Build = Callable[[Any, list[dict[str, Any]]], Optimizer | GradientTransform]

_POLICY = frozenset(GroupOptions.model_fields) - {"lr", "weight_decay"}
"""Options that divide parameters into groups, and are not the optimizer's."""


def options_of(config: GroupOptions) -> dict[str, Any]:
    """The config as arguments of an optimizer, or defaults of its groups."""
    return {name: value for name, value in config.model_dump().items() if name not in _POLICY}


def rule(module: str, name: str) -> Build:
    """Builds a ``RuleOptimizer`` of this plugin, which reads the config's fields from its groups."""

    def build(config: GroupOptions, groups: list[dict[str, Any]]) -> Optimizer:
        chosen = getattr(import_module(f"{__package__}.rules.{module}"), name)
        return chosen(groups, options_of(config))  # type: ignore[no-any-return]

    return build


def from_torch(name: str, **fixed: Any) -> Build:
    """Builds an optimizer of torch. Plain operations: each number is treated alike, however ZeRO cuts the weights."""

    def build(config: GroupOptions, groups: list[dict[str, Any]]) -> Optimizer:
        import torch

        options = options_of(config)
        if "beta1" in options:
            options["betas"] = (options.pop("beta1"), options.pop("beta2"))
        return getattr(torch.optim, name)(groups, **options, **fixed)  # type: ignore[no-any-return]

    return build


def transform(module: str, name: str) -> Build:
    """Builds a gradient transform of a ``RuleOptimizer``, which sees the whole matrices of ``split_hidden``."""

    def build(config: GroupOptions, groups: list[dict[str, Any]]) -> GradientTransform:
        from .rules.directions import RuleTransform

        chosen, options = getattr(import_module(f"{__package__}.rules.{module}"), name), options_of(config)
        return RuleTransform(chosen(groups, options), options)

    return build


def build_eight_bit_galore(config: GroupOptions, groups: list[dict[str, Any]]) -> GradientTransform:
    """Raises ``UsageError`` where bitsandbytes is not installed."""
    with _extra("bitsandbytes"):
        from .rules.galore_8bit import EightBitGaLore
    return EightBitGaLore(groups, options_of(config))


def from_torchao(name: str) -> Build:
    """Builds torchao's AdamW with moments of few bits. Raises ``UsageError`` where that is not installed."""

    def build(config: GroupOptions, groups: list[dict[str, Any]]) -> Optimizer:
        with _extra("torchao"):
            from .rules import quantised
        return getattr(quantised, name)(groups, options_of(config))  # type: ignore[no-any-return]

    return build


@contextmanager
def _extra(name: str) -> Iterator[None]:
    """Guard the import of what an extra of this plugin brings."""
    try:
        yield
    except ImportError as error:
        raise UsageError(f"this optimizer needs {name}: pip install 'mt-plugin-optim[{name}]' ({error})") from error


def build_adafactor(config: Any, groups: list[dict[str, Any]]) -> Optimizer:
    """torch's Adafactor, with the library's own least gradient; our own where steps are not relative to the weights."""
    import torch

    options = options_of(config)
    if not options.pop("relative"):
        return rule("adafactor", "Adafactor")(config, groups)  # type: ignore[return-value]
    return torch.optim.Adafactor(groups, **{**options, "eps": (None, options["eps"])}, foreach=False)


def build_muon(config: Any, groups: list[dict[str, Any]]) -> GradientTransform:
    """torch's Muon for matrices of blocks, AdamW for the rest."""
    import torch

    from .rules.directions import AdamW, Follower, LibraryTransform, stand_in_group

    options = {"momentum": config.momentum, "nesterov": config.nesterov, "ns_steps": config.ns_steps}
    rule = torch.optim.Muon(stand_in_group(), lr=1.0, weight_decay=0.0, adjust_lr_fn=config.adjust, **options)
    return LibraryTransform(rule, Follower(AdamW(groups, options_of(config))))


def from_bitsandbytes(name: str) -> Build:
    """Builds an optimizer of bitsandbytes. Raises ``UsageError`` where that is not installed."""

    def build(config: Any, groups: list[dict[str, Any]]) -> Optimizer:
        with _extra("bitsandbytes"):
            from bitsandbytes import optim
        options = options_of(config)
        betas = (options.pop("beta1"), options.pop("beta2"))
        return getattr(optim, name)(groups, betas=betas, **options)  # type: ignore[no-any-return]

    return build
