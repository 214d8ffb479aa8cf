"""Plugins that extend plugins: sizes that one distribution adds to the family of another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from mt_core.components import ModelFamily, ModelSizes
from mt_core.plugins.loading import Offer, Plugin
from mt_core.plugins.metadata import canonical


def extend(plugins: Sequence[Plugin]) -> None:
    """Give each family the sizes that others add to it; those of a family that is not installed wait for it.

    Nothing wins silently: a plugin that adds a size which the family has, or another one adds too, fails.
    """
    owners: dict[tuple[str, str], list[Offer]] = defaultdict(list)
    for offer in _offers(plugins):
        if isinstance(offer.component, ModelFamily | ModelSizes):
            for size in offer.component.variants:
                owners[family_of(offer), size].append(offer)
    for (family, size), found in owners.items():
        if len(found) > 1:
            _refuse([offer for offer in found if isinstance(offer.component, ModelSizes)], plugins, family, size, found)
    for plugin in plugins:
        plugin.offers = [_extended(offer, plugins) for offer in plugin.offers]


def family_of(offer: Offer) -> str:
    """``DISTRIBUTION/NAME`` of a family, or of the one that sizes are of."""
    component = offer.component
    return canonical(component.family if isinstance(component, ModelSizes) else offer.qualified)


def adder(family: Offer, size: str, plugins: Iterable[Plugin]) -> Offer | None:
    """Who adds a size to a family; ``None`` where it is the family's own."""
    added = _added(family, plugins)
    return next((offer for offer, sizes in added if size in sizes.variants), None)


def _offers(plugins: Iterable[Plugin]) -> list[Offer]:
    return [offer for plugin in plugins for offer in plugin.offers]


def _added(family: Offer, plugins: Iterable[Plugin]) -> list[tuple[Offer, ModelSizes]]:
    own = family_of(family)
    found = ((offer, offer.component) for offer in _offers(plugins) if family_of(offer) == own)
    return [(offer, component) for offer, component in found if isinstance(component, ModelSizes)]


def _refuse(adding: list[Offer], plugins: Sequence[Plugin], family: str, size: str, found: list[Offer]) -> None:
    sources = " and ".join(offer.plugin.label for offer in found)
    for plugin in plugins:
        if any(offer.plugin is plugin.info for offer in adding):
            plugin.offers = []
            plugin.error = f"size {size!r} of {family} comes from {sources}; give it another name, or block one of them"


def _extended(family: Offer, plugins: Sequence[Plugin]) -> Offer:
    component = family.component
    if not isinstance(component, ModelFamily):
        return family
    variants, defaults = dict(component.variants), dict(component.variant_defaults)
    for _, sizes in _added(family, plugins):
        variants |= sizes.variants
        defaults |= sizes.variant_defaults
    return replace(family, component=replace(component, variants=variants, variant_defaults=defaults))
