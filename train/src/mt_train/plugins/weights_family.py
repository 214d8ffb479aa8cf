"""The family of a folder of weights, by what its ``config.json`` says. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mt_core.components import ModelFamily, WeightsFormat
from mt_core.errors import MtError, UsageError, WeightsError
from mt_core.plugins.host import Offer, PluginHost
from mt_core.weights import CONFIG, read_json, text_config
from mt_train.plugins.hub import folder_of

FALLBACK = "mt-plugin-huggingface"
"""The distribution whose family reads what no other one names. A message names it where it is not installed."""


def family_of(path: Path, host: PluginHost) -> str:
    """The one family that reads a folder: one that names its architecture, or else the fallback.

    Raises ``WeightsError`` when there is none, ``UsageError`` when there are several.
    """
    offers = [offer for offer in host.offers("model") if isinstance(offer.component, ModelFamily)]
    readers = [offer for offer in offers if any(each.matches(path) for each in _formats(offer))]
    if not readers:
        known = ", ".join(f"{offer.component.name} ({_names(offer)})" for offer in offers) or "no family"
        raise WeightsError(
            f"{path} holds no weights in a format that is read here: installed are {known}. Give the folder that has"
            f" config.json or params.json beside the weights{_lacking(path)}"
        )
    config = folder_of(path) / CONFIG
    named = [offer for offer in readers if not _is_fallback(offer)]
    fitting = [offer for offer in named if _is_of(offer, config)] if config.is_file() else _valid_families(named, path)
    if not fitting:  # by its model type, which has other words, or under another head
        fitting = [offer for offer in named if _takes(offer, path)]
    fitting = fitting or [offer for offer in readers if _is_fallback(offer)]
    if not fitting:
        known = ", ".join(f"{name} ({offer.component.name})" for offer in offers for name in _architectures(offer))
        raise WeightsError(
            f"{config} describes {_stated(config)}; the installed families read {known or 'none'}. Install the plugin of its"
            f" family, or the one that reads most others (pip install {FALLBACK})"
        )
    if len(fitting) > 1:
        names = " or ".join(offer.qualified_name for offer in fitting)
        raise UsageError(f"several families read {path}; say which one with --model {names}")
    name = fitting[0].component.name
    is_unique = sum(offer.component.name == name for offer in offers) == 1
    return name if is_unique else fitting[0].qualified_name


def _lacking(path: Path) -> str:
    """Return what a folder with a config lacks, as the end of a sentence; empty where it has none."""
    if not (path / CONFIG).is_file():
        return ""
    parts = sorted(path.glob("*.safetensors"))
    if not parts:
        return f"; it has {CONFIG} and no *.safetensors"
    return f"; it has {CONFIG} and parts ({parts[0].name} …), but no model.safetensors.index.json that says which has what: fetch it too"


def hint_of_family(path: Path, host: PluginHost, refused: ModelFamily) -> str:
    """Name what reads a folder that a family has refused: an installed family, or a distribution; empty where nothing does."""
    config = folder_of(path) / CONFIG
    try:
        if not config.is_file():
            return ""
        others = [offer for offer in host.offers("model") if _is_fallback(offer) or _is_of(offer, config)]
        others = [offer for offer in others if offer.component is not refused and _takes(offer, path)]
        is_other = not {*map(str, _stated_architectures(config))} & {*refused.architectures}
    except WeightsError:
        return ""  # the folder's fault is told already
    if others:
        best = next((offer for offer in others if not _is_fallback(offer)), others[0])
        alone = ", or leave --model out" if _is_found(best, path, host) else ""
        return f"The family {best.component.name} reads it: --model {best.component.name}{alone}."
    has_fallback = any(_is_fallback(offer) for offer in host.offers("model"))
    return f"`pip install {FALLBACK}` brings a family that reads most others." if is_other and not has_fallback else ""


def _is_found(offer: Offer, path: Path, host: PluginHost) -> bool:
    """Return whether a run that names no family comes to this one, and not to the one that refused."""
    try:
        return family_of(path, host) in (offer.component.name, offer.qualified_name)
    except MtError:
        return False


def _is_fallback(offer: Offer) -> bool:
    return isinstance(offer.component, ModelFamily) and offer.component.fallback


def _formats(offer: Offer) -> tuple[WeightsFormat, ...]:
    return offer.component.formats if isinstance(offer.component, ModelFamily) else ()


def _names(offer: Offer) -> str:
    return ", ".join(each.name for each in _formats(offer)) or "no format"


def _architectures(offer: Offer) -> tuple[str, ...]:
    return offer.component.architectures if isinstance(offer.component, ModelFamily) else ()


def _stated_architectures(config: Path) -> list[Any]:
    content = text_config(read_json(config))
    given = content.get("architectures")
    return given if isinstance(given, list) and given else [content.get("model_type")]


def _stated(config: Path) -> str:
    return ", ".join(str(each) for each in _stated_architectures(config) if each is not None) or "no architecture"


def _is_of(offer: Offer, config: Path) -> bool:
    """Return whether the family has an architecture of the config, or, where that names none, its model type."""
    stated = {str(each).lower() for each in _stated_architectures(config)}
    own = {name.lower() for name in _architectures(offer)}
    return bool(stated & (own | {name.removesuffix("forcausallm") for name in own}))


def _valid_families(offers: list[Offer], path: Path) -> list[Offer]:
    """The families that take the values; all of them when none does, so that its own message is told."""

    return [offer for offer in offers if _takes(offer, path)] or offers


def _takes(offer: Offer, path: Path) -> bool:
    reader = next((each for each in _formats(offer) if each.matches(path)), None)
    if reader is None:
        return False
    try:
        reader.values(path)
    except MtError:
        return False
    return True
