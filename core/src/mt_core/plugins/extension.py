"""Plugins that extend plugins: kinds of components, and sizes that one distribution adds to the family of another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import pluggy

from mt_core.components import ModelFamily, ModelSizes
from mt_core.hookspecs import hookspec
from mt_core.kinds import CORE_KINDS, Kind, Kinds
from mt_core.plugins.loading import Offer, Plugin
from mt_core.plugins.metadata import canonicalize


def add_kinds(manager: pluggy.PluginManager, plugins: Sequence[Plugin]) -> tuple[Kinds, Mapping[str, Plugin]]:
    """Give the manager the hooks of all kinds that plugins bring; return all kinds, and who brings each that is not the core's.

    Nothing wins silently: a plugin whose kind the core has, or another one brings too, fails, and with it all that it offers.
    """
    brought = [(plugin, kind) for plugin in plugins for kind in plugin.kinds]
    for plugin, kind in brought:
        fault = CORE_KINDS.refuse(kind) or _fault_of(kind)
        others = [(other, each) for other, each in brought if each is not kind and Kinds([each]).refuse(kind)]
        if fault:
            plugin.error = f"it cannot bring the kind {kind.name!r}: {fault}"
        elif others:
            plugin.error = _twice(kind, [plugin, *(other for other, _ in others)])
    kept = {kind.name: (plugin, kind) for plugin, kind in brought if not plugin.error}
    hooks = {kind.hook: hookspec(_without_arguments(kind)) for _, kind in kept.values()}
    if hooks:
        manager.add_hookspecs(type("Hooks", (), dict(hooks)))
    kinds = Kinds([*CORE_KINDS.values(), *(kind for _, kind in kept.values())])
    return kinds, {name: plugin for name, (plugin, _) in kept.items()}


def _fault_of(kind: Kind) -> str:
    if kind.required or kind.default is not None:
        return (
            f"it has {'required=True' if kind.required else f'default={kind.default!r}'}, and what is installed changes no run"
            " that does not name it; leave that out"
        )
    return ""


def _twice(kind: Kind, plugins: Sequence[Plugin]) -> str:
    sources = " and ".join(dict.fromkeys(plugin.info.label for plugin in plugins))
    return (
        f"the kind {kind.name!r} (hook {kind.hook}{f', key {kind.key}' if kind.key else ''}) clashes with one of the same name,"
        f" hook or key; both come from {sources}, and none of them wins. Block one with --block-plugin"
    )


def _without_arguments(kind: Kind) -> Callable[[], None]:
    def hook() -> None: ...

    hook.__name__, hook.__doc__ = kind.hook, kind.summary
    return hook


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
        plugin.offers = [_extend(offer, plugins) for offer in plugin.offers]


def family_of(offer: Offer) -> str:
    """``DISTRIBUTION/NAME`` of a family, or of the one that sizes are of."""
    component = offer.component
    return canonicalize(component.family if isinstance(component, ModelSizes) else offer.qualified_name)


def adder(family: Offer, size: str, plugins: Iterable[Plugin]) -> Offer | None:
    """Who adds a size to a family; ``None`` where it is the family's own."""
    added = _sizes_of(family, plugins)
    return next((offer for offer, sizes in added if size in sizes.variants), None)


def _offers(plugins: Iterable[Plugin]) -> list[Offer]:
    return [offer for plugin in plugins for offer in plugin.offers]


def _sizes_of(family: Offer, plugins: Iterable[Plugin]) -> list[tuple[Offer, ModelSizes]]:
    own = family_of(family)
    found = ((offer, offer.component) for offer in _offers(plugins))
    return [(each, sizes) for each, sizes in found if isinstance(sizes, ModelSizes) and family_of(each) == own]


def _refuse(adding: list[Offer], plugins: Sequence[Plugin], family: str, size: str, found: list[Offer]) -> None:
    sources = " and ".join(offer.plugin.label for offer in found)
    for plugin in plugins:
        if any(offer.plugin is plugin.info for offer in adding):
            plugin.offers = []
            plugin.error = f"size {size!r} of {family} comes from {sources}; give it another name, or block one of them"


def _extend(family: Offer, plugins: Sequence[Plugin]) -> Offer:
    component = family.component
    if not isinstance(component, ModelFamily):
        return family
    variants, defaults = dict(component.variants), dict(component.variant_defaults)
    for _, sizes in _sizes_of(family, plugins):
        variants |= sizes.variants
        defaults |= sizes.variant_defaults
    return replace(family, component=replace(component, variants=variants, variant_defaults=defaults))
