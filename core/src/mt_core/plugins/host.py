"""Loads the installed plugins, one by one, and answers what exists.

Pluggy holds the contract (names and arguments of hooks); its own loader is not used, because it stops at the first
plugin that fails and drops the second of two with one name (docs/decisions/0008-own-loader.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import pluggy

from mt_core import hookspecs
from mt_core.errors import ComponentError, DuplicateComponentError, PluginLoadError, UnknownComponentError, did_you_mean
from mt_core.hookspecs import PROJECT
from mt_core.kinds import CORE_KINDS, Kinds
from mt_core.plugins.extension import add_kinds, adder, extend
from mt_core.plugins.loading import Manager, Offer, Plugin, collect_offers, guard_builtins, import_plugin
from mt_core.plugins.metadata import (
    BUILT_IN,
    CORE,
    PluginInfo,
    Selection,
    canonicalize,
    find_plugins,
    without_effect,
    words,
)

__all__ = ["Offer", "Plugin", "PluginHost"]


class PluginHost:
    """The plugins of one run. There is no global one."""

    def __init__(
        self,
        plugins: list[Plugin],
        unused_names: list[str],
        manager: pluggy.PluginManager | None = None,
        kinds: Kinds = CORE_KINDS,
    ) -> None:
        self.plugins = plugins
        self.unused_names = unused_names
        self.kinds = kinds
        self._manager = manager

    @classmethod
    def discover(cls, selection: Selection | None = None, more: Iterable[PluginInfo] = ()) -> PluginHost:
        """Load every installed plugin that is not blocked, and ``more``; a failure is recorded, not raised."""
        selection = selection or Selection.from_environment()
        found = find_plugins(selection)
        return cls.of([*found, *more], without_effect(selection, found))

    @classmethod
    def of(cls, found: Iterable[PluginInfo], unused_names: Sequence[str] = ()) -> PluginHost:
        """Load these and no others, in this order; a failure is recorded, not raised."""
        manager = Manager(PROJECT)
        manager.add_hookspecs(hookspecs)
        plugins = [Plugin(info) if info.blocked else import_plugin(info) for info in found]
        kinds, bringers = add_kinds(manager, plugins)
        absent = {canonicalize(plugin.info.distribution) for plugin in plugins if plugin.status != "loaded"}
        for plugin in plugins:
            if plugin.status == "loaded":
                collect_offers(manager, plugin, kinds, bringers, absent)
        guard_builtins(plugins)
        extend(plugins)
        return cls(plugins, list(unused_names), manager, kinds)

    @property
    def notices(self) -> list[str]:
        """Return what a user should know before a run: plugins that failed or use what will go, and names that block nothing."""
        failed = [plugin for plugin in self.plugins if plugin.status == "failed"]
        told = [f"plugin {_label(plugin)} not loaded: {plugin.error}" for plugin in failed]
        told += [f"plugin {_label(plugin)}: {text}" for plugin in self.plugins for text in plugin.warnings]
        return told + self.unused_names

    @property
    def bringers(self) -> Mapping[str, tuple[str, str]]:
        """Kind → distribution and version of who brings it; without those of the core."""
        loaded = [plugin for plugin in self.plugins if plugin.status == "loaded"]
        return {kind.name: (each.info.distribution, each.info.version) for each in loaded for kind in each.kinds}

    def offers(self, kind: str) -> Iterator[Offer]:
        """Everything of one kind, in the order of the distributions."""
        for plugin in self.plugins:
            yield from (offer for offer in plugin.offers if offer.kind == kind)

    def get(self, kind: str, name: str) -> Offer:
        """The component of this name, or of ``DISTRIBUTION/NAME``.

        Raises ``UnknownComponentError``, ``PluginLoadError`` (the plugin that likely offers it failed) or
        ``DuplicateComponentError``.
        """
        if kind not in self.kinds:
            raise UnknownComponentError(self._describe_unknown_kind(kind, name))
        distribution, _, short = name.rpartition("/")
        if canonicalize(distribution) == CORE:  # where the built-ins were, in configs of then
            distribution = BUILT_IN
        matches = [offer for offer in self.offers(kind) if canonicalize(offer.component.name) == canonicalize(short)]
        if distribution:
            matches = [
                offer for offer in matches if canonicalize(offer.plugin.distribution) == canonicalize(distribution)
            ]
        else:
            stand_ins = [offer for offer in matches if offer.component.replaces]
            matches = [offer for offer in matches if not offer.component.replaces]
            if stand_ins and not matches:
                raise _only_qualified(stand_ins, self.kinds)
        if not matches:
            raise self._unknown_error(kind, name)
        if len(matches) > 1:
            raise _duplicate(kind, short, matches, self.kinds)
        return matches[0]

    def doctors(self) -> Iterator[tuple[str, Callable[[], Mapping[str, Mapping[str, Any]]]]]:
        """Each implementation of ``mt_doctor``, with ``DISTRIBUTION:NAME`` of its plugin."""
        for implementation in self._manager.hook.mt_doctor.get_hookimpls() if self._manager is not None else ():
            hook: Any = implementation.function
            yield str(implementation.plugin_name), hook

    def adder(self, family: Offer, size: str) -> Offer | None:
        """Who adds a size to a family; ``None`` where it is the family's own."""
        return adder(family, size, self.plugins)

    def _describe_unknown_kind(self, kind: str, name: str) -> str:
        missing = [plugin for plugin in self.plugins if plugin.status != "loaded"]
        listed = f" Not loaded: {', '.join(map(_label, missing))}." if missing else ""
        return (
            f"{words(kind)} {name!r} is not available: no plugin that is loaded brings the kind {kind!r}."
            f" {did_you_mean(kind, list(self.kinds))}Kinds are {', '.join(self.kinds)}.{listed} Install the distribution that brings it."
        )

    def _unknown_error(self, kind: str, name: str) -> ComponentError:
        failed = [plugin for plugin in self.plugins if plugin.status == "failed"]  # notices say why, once
        for plugin in failed:
            if _likely_offers(plugin.info, name):
                return PluginLoadError(
                    f"{words(kind)} {name!r} is not available: plugin {_label(plugin)} failed to load;"
                    f" `mt-plugins check {plugin.info.name}` shows why."
                )
        short = canonicalize(name.rpartition("/")[2])
        offers = list(self.offers(kind))
        known = [
            f"{', '.join(offer.component.name for offer in own)} ({label})"
            for label, own in groupby(offers, lambda offer: offer.plugin.label)
        ]
        hint = did_you_mean(short, [offer.component.name for offer in offers])
        broken = "".join(
            f" Plugin {_label(plugin)} failed to load and may offer it; `mt-plugins check {plugin.info.name}` shows why."
            for plugin in failed
        )
        blocked = [_label(plugin) for plugin in self.plugins if plugin.status == "blocked"]
        held = f" Blocked: {', '.join(blocked)}." if blocked else ""
        return UnknownComponentError(
            f"no {words(kind)} named {name!r}. {hint}Installed: {'; '.join(known) or 'none'}.{broken}{held}"
            " `mt-plugins list --components` shows what each distribution offers."
        )


def _label(plugin: Plugin) -> str:
    return f"{plugin.info.name!r} ({plugin.info.label})"


def _option(kind: str, kinds: Kinds) -> str:
    return "--" + kinds.keys_of_kinds.get(kind, kind).replace("_", "-")


def _likely_offers(info: PluginInfo, name: str) -> bool:
    distribution, _, short = name.rpartition("/")
    if distribution:
        return canonicalize(distribution) == canonicalize(info.distribution)
    return canonicalize(short) in canonicalize(f"{info.name} {info.distribution}")


def _only_qualified(offers: list[Offer], kinds: Kinds) -> UnknownComponentError:
    offer = offers[0]
    return UnknownComponentError(
        f"{words(offer.kind)} {offer.component.name!r} of {offer.plugin.label} stands in for the built-in"
        f" {offer.component.replaces!r} and is never meant by its bare name. Choose it with"
        f" {_option(offer.kind, kinds)} {offer.qualified_name}."
    )


def _duplicate(kind: str, name: str, matches: list[Offer], kinds: Kinds) -> DuplicateComponentError:
    """Names both ways out: choose by distribution (where that tells them apart), or block one."""
    sources = " and ".join(f"{offer.plugin.name} ({offer.plugin.label})" for offer in matches)
    names = {offer.qualified_name for offer in matches}
    choose = (
        f"choose one, for instance {_option(kind, kinds)} {matches[0].qualified_name}, or " if len(names) > 1 else ""
    )
    return DuplicateComponentError(
        f"{words(kind)} {name!r} is offered by {len(matches)} plugins: {sources}; none of them wins."
        f" To go on, {choose}block one with --block-plugin {_handle(matches)}."
    )


def _handle(matches: list[Offer]) -> str:
    """A name that blocks the last of several plugins and none of the others."""
    *others, last = [offer.plugin for offer in matches]
    taken = {canonicalize(name) for other in others for name in (other.name, other.distribution)}
    return next((name for name in (last.distribution, last.name) if canonicalize(name) not in taken), last.name)
