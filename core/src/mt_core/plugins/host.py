"""Loads the installed plugins, one by one, and answers what exists.

Pluggy holds the contract (names and arguments of hooks); its own loader is not used, because it stops at the first
plugin that fails and drops the second of two with one name (see DESIGN in docs/architecture.md).
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pluggy

from mt_core import hookspecs
from mt_core.errors import (
    ComponentError,
    DuplicateComponentError,
    MtError,
    PluginLoadError,
    UnknownComponentError,
    did_you_mean,
)
from mt_core.hookspecs import HOOKS, PROJECT
from mt_core.plugins.metadata import CORE, Installed, Selection, canonical, installed
from mt_core.protocols import (
    AdapterComponent,
    Component,
    ModelFamily,
    ObjectiveComponent,
    OptimizerComponent,
)

COMPONENT_CLASS: dict[str, type[Component]] = {
    "model": ModelFamily,
    "objective": ObjectiveComponent,
    "adapter": AdapterComponent,
    "optimizer": OptimizerComponent,
}
"""Kind → what its hook returns; every other kind returns plain components."""


@dataclass(frozen=True)
class Offer:
    """A component and who offers it."""

    kind: str
    component: Component
    plugin: Installed

    @property
    def qualified(self) -> str:
        """``DISTRIBUTION/NAME``, which is never ambiguous."""
        return f"{self.plugin.distribution}/{self.component.name}"


@dataclass
class Plugin:
    """An installed plugin and what came of loading it."""

    info: Installed
    offers: list[Offer] = field(default_factory=list)
    error: str = ""
    load_ms: float = 0.0

    @property
    def status(self) -> str:
        """``blocked``, ``failed`` or ``loaded``."""
        if self.info.blocked:
            return "blocked"
        return "failed" if self.error else "loaded"


class PluginHost:
    """The plugins of one run. There is no global one."""

    def __init__(self, plugins: list[Plugin], notices: list[str]) -> None:
        self.plugins = plugins
        self.notices = notices

    @classmethod
    def discover(cls, selection: Selection | None = None) -> PluginHost:
        """Load every installed plugin that is not blocked; a failure is recorded, not raised."""
        selection = selection or Selection.from_environment()
        found = installed(selection)
        manager = pluggy.PluginManager(PROJECT)
        manager.add_hookspecs(hookspecs)
        plugins = [_load(manager, info) for info in found]
        _guard_builtins(plugins)
        return cls(plugins, _notices(plugins, selection))

    def offers(self, kind: str) -> Iterator[Offer]:
        """Everything of one kind, in the order of the distributions."""
        for plugin in self.plugins:
            yield from (offer for offer in plugin.offers if offer.kind == kind)

    def get(self, kind: str, name: str) -> Offer:
        """The component of this name, or of ``DISTRIBUTION/NAME``.

        Raises ``UnknownComponentError``, ``PluginLoadError`` (the plugin that likely offers it failed) or
        ``DuplicateComponentError``.
        """
        distribution, _, short = name.rpartition("/")
        wanted = canonical(short)
        matches = [offer for offer in self.offers(kind) if canonical(offer.component.name) == wanted]
        if distribution:
            matches = [offer for offer in matches if canonical(offer.plugin.distribution) == canonical(distribution)]
        else:
            matches = [offer for offer in matches if not offer.component.replaces]
        if not matches:
            raise self._unknown(kind, name)
        if len(matches) > 1:
            raise _duplicate(kind, short, matches)
        return matches[0]

    def _unknown(self, kind: str, name: str) -> ComponentError:
        short = name.rpartition("/")[2]
        failed = [plugin for plugin in self.plugins if plugin.status == "failed"]
        for plugin in failed:
            if canonical(short) in canonical(f"{plugin.info.name} {plugin.info.distribution}"):
                return PluginLoadError(
                    f"{_words(kind)} {name!r} is not available: plugin {plugin.info.name!r} ({plugin.info.label}) failed to"
                    f" load: {plugin.error}. `mt-plugins check {plugin.info.name}` shows more."
                )
        known = [f"{offer.component.name} ({offer.plugin.label})" for offer in self.offers(kind)]
        hint = did_you_mean(canonical(short), [offer.component.name for offer in self.offers(kind)])
        broken = "".join(
            f" {plugin.info.name} ({plugin.info.label}) failed to load and may offer it." for plugin in failed
        )
        blocked = [plugin.info.name for plugin in self.plugins if plugin.status == "blocked"]
        held = f" Blocked: {', '.join(blocked)}." if blocked else ""
        return UnknownComponentError(
            f"no {_words(kind)} named {name!r}. {hint}Installed: {', '.join(known) or 'none'}.{broken}{held}"
            " `mt-plugins list --components` shows what each distribution offers."
        )


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def _duplicate(kind: str, name: str, matches: list[Offer]) -> DuplicateComponentError:
    sources = ", ".join(offer.plugin.label for offer in matches)
    first, last = matches[0], matches[-1]
    option = "--" + kind.replace("_", "-")
    return DuplicateComponentError(
        f"{_words(kind)} {name!r} is offered by {len(matches)} plugins: {sources}. Choose one, for instance"
        f" {option} {first.qualified}, or block one with --block-plugin {last.plugin.name}."
    )


def _notices(plugins: list[Plugin], selection: Selection) -> list[str]:
    notices = [
        f"plugin {plugin.info.name!r} ({plugin.info.label}) not loaded: {plugin.error}"
        for plugin in plugins
        if plugin.status == "failed"
    ]
    known = {canonical(name) for plugin in plugins for name in (plugin.info.name, plugin.info.distribution)}
    for name in sorted((selection.blocked | (selection.allowed or frozenset())) - known):
        notices.append(f"no installed plugin is named {name!r}: blocking or allowing it has no effect")
    return notices


# ------------------------------------------------------------------------------------------------------------- loading


def _load(manager: pluggy.PluginManager, info: Installed) -> Plugin:
    plugin = Plugin(info)
    if info.blocked:
        return plugin
    start = time.perf_counter()
    key = f"{info.distribution}:{info.name}"
    try:
        module = info.entry_point.load()
        _check_functions(module)
        manager.register(module, name=key)
        _check_hooks(manager, module)
        plugin.offers = list(_collect(manager, module, info))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a stranger's module may raise anything, sys.exit included
        plugin.error = _cause(error)
        if manager.has_plugin(key):
            manager.unregister(name=key)
    plugin.load_ms = (time.perf_counter() - start) * 1000
    return plugin


def _cause(error: BaseException) -> str:
    """One line; the contract's own errors need no class name in front."""
    if isinstance(error, pluggy.PluginValidationError):
        return " ".join(str(error).split())
    text = str(error).strip().split("\n")[0]
    return text if isinstance(error, MtError) else f"{type(error).__name__}: {text}"


def _check_functions(module: ModuleType) -> None:
    """Refuse what pluggy would skip without a word."""
    if not isinstance(module, ModuleType):
        raise ComponentError(
            f"the entry point is a {type(module).__name__}; it must name a module of hook implementations"
        )
    for name, function in vars(module).items():
        if not name.startswith("mt_") or not inspect.isfunction(function) or function.__module__ != module.__name__:
            continue
        options = getattr(function, f"{PROJECT}_impl", None)
        if options is None:
            raise ComponentError(
                f"{name} is not marked with @mt_core.hookimpl, so it would never be called; mark it or rename it"
            )
        if options.get("wrapper") or options.get("hookwrapper"):
            raise ComponentError(f"{name} is a hook wrapper; hooks only offer components, so return a list instead")
        if any(
            parameter.default is not parameter.empty for parameter in inspect.signature(function).parameters.values()
        ):
            raise ComponentError(
                f"{name} has arguments with defaults, which pluggy never checks; hooks take no arguments"
            )


def _check_hooks(manager: pluggy.PluginManager, module: ModuleType) -> None:
    for caller in manager.get_hookcallers(module) or []:
        if not caller.has_spec():
            raise ComponentError(
                f"it implements the hook {caller.name!r}, which does not exist. {did_you_mean(caller.name, list(HOOKS))}"
                f"Hooks are {', '.join(HOOKS)}."
            )


def _collect(manager: pluggy.PluginManager, module: ModuleType, info: Installed) -> Iterator[Offer]:
    for caller in manager.get_hookcallers(module) or []:
        kind = HOOKS[caller.name]
        seen: set[str] = set()
        for implementation in caller.get_hookimpls():
            if implementation.plugin is not module:
                continue
            for component in _components(caller.name, kind, implementation.function()):
                name = canonical(component.name)
                if name in seen:
                    raise ComponentError(f"{caller.name} offers {component.name!r} twice; names must differ")
                seen.add(name)
                yield Offer(kind, component, info)


def _components(hook: str, kind: str, returned: Any) -> list[Component]:
    expected = COMPONENT_CLASS.get(kind, Component)
    if not isinstance(returned, list | tuple):
        raise ComponentError(
            f"{hook} returned a {type(returned).__name__}; it must return a list of {expected.__name__}"
        )
    for component in returned:
        if not isinstance(component, expected):
            raise ComponentError(f"{hook} returned {component!r}; every item must be a {expected.__name__}")
    return list(returned)


def _guard_builtins(plugins: list[Plugin]) -> None:
    """Names of built-ins are reserved: a plugin that takes one without ``replaces`` does not load."""
    reserved = {
        (offer.kind, canonical(offer.component.name))
        for plugin in plugins
        if canonical(plugin.info.distribution) == CORE
        for offer in plugin.offers
    }
    for plugin in plugins:
        if canonical(plugin.info.distribution) == CORE:
            continue
        for offer in plugin.offers:
            taken = (offer.kind, canonical(offer.component.name)) in reserved
            if taken and canonical(offer.component.replaces) != canonical(offer.component.name):
                plugin.error = (
                    f"{_words(offer.kind)} {offer.component.name!r} is a built-in name; choose another, or set"
                    f" replaces={offer.component.name!r}"
                )
                plugin.offers = []
                break
