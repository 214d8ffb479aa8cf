"""Imports one plugin and collects what it offers; whatever goes wrong becomes the plugin's ``error``."""

from __future__ import annotations

import contextlib
import inspect
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pluggy

from mt_core.components import (
    AdapterComponent,
    Component,
    ModelFamily,
    ModelSizes,
    ObjectiveComponent,
    OptimizerComponent,
)
from mt_core.deprecation import MtDeprecationWarning
from mt_core.errors import ComponentError, MtError, did_you_mean
from mt_core.hookspecs import HOOKS, PROJECT
from mt_core.plugins.compatibility import out_of_range
from mt_core.plugins.metadata import BUILT_IN, Installed, canonical

SIZES = "model_sizes"
"""Kind of what ``mt_model_configs`` adds to another plugin's family: no slot, so no name that a run could choose."""

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
    warnings: list[str] = field(default_factory=list)
    """What it uses that will go."""

    @property
    def status(self) -> str:
        """``blocked``, ``failed`` or ``loaded``."""
        if self.info.blocked:
            return "blocked"
        return "failed" if self.error else "loaded"


def words(kind: str) -> str:
    """``task_print`` as messages have it."""
    return kind.replace("_", " ")


def load(manager: pluggy.PluginManager, info: Installed) -> Plugin:
    plugin = Plugin(info)
    if info.blocked:
        return plugin
    start = time.perf_counter()
    key = f"{info.distribution}:{info.name}"
    try:
        with (
            contextlib.redirect_stdout(sys.stderr),
            _deprecations(plugin.warnings),
        ):  # what it prints is no command's data
            plugin.offers = list(_offers(manager, info, key))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a stranger's module may raise anything, sys.exit included
        plugin.error = _cause(error)
        if misfit := out_of_range(info):
            plugin.error += f" ({misfit}: install a release of the one that fits the other)"
        if manager.has_plugin(key):
            manager.unregister(name=key)
    plugin.load_ms = (time.perf_counter() - start) * 1000
    return plugin


@contextlib.contextmanager
def _deprecations(told: list[str]) -> Iterator[None]:
    """Collect what warns of its end, so that it is told with the plugin's name; other warnings are shown as ever."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MtDeprecationWarning)
        try:
            yield
        finally:
            told += dict.fromkeys(
                str(each.message) for each in caught if issubclass(each.category, MtDeprecationWarning)
            )
    for each in caught:
        if not issubclass(each.category, MtDeprecationWarning):
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def _offers(manager: pluggy.PluginManager, info: Installed, key: str) -> Iterator[Offer]:
    module = info.entry_point.load()
    _check_module(manager, module)
    manager.register(module, name=key)
    _check_hooks(manager, module)
    yield from _collect(manager, module, info)


def _cause(error: BaseException) -> str:
    """One line; the contract's own errors need no class name in front."""
    text = " ".join(str(error).split())
    if isinstance(error, MtError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _check_module(manager: pluggy.PluginManager, module: Any) -> None:
    """Refuse what pluggy would skip without a word, or report in words of its own."""
    if not isinstance(module, ModuleType):
        raise ComponentError(
            f"the entry point is a {type(module).__name__}; it must name a module of hook implementations"
        )
    if manager.is_registered(module):
        raise ComponentError(
            f"its module {module.__name__} is already that of {manager.get_name(module)}; every plugin needs its own"
        )
    for name, value in vars(module).items():
        marked = getattr(value, f"{PROJECT}_impl", None) if inspect.isroutine(value) else None
        if marked is not None:
            _check_function(name, value, marked)
        elif name in HOOKS or (name.startswith("mt_") and inspect.isfunction(value)):
            raise ComponentError(
                f"{name} is not marked with @mt_core.hookimpl, so it would never be called; mark it or rename it"
            )


def _check_function(name: str, function: Callable[..., Any], marked: Mapping[str, Any]) -> None:
    if marked.get("wrapper") or marked.get("hookwrapper"):
        raise ComponentError(f"{name} is a hook wrapper; hooks only offer components, so return a list instead")
    signature = inspect.signature(function)
    if signature.parameters:
        raise ComponentError(
            f"{name}{signature.replace(return_annotation=signature.empty)} has arguments, and hooks are called without"
            " any; remove them, also those with defaults"
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
        if caller.name not in HOOKS:
            continue  # mt_doctor, which is called when somebody asks
        kind = HOOKS[caller.name]
        seen: set[str] = set()
        for implementation in caller.get_hookimpls():
            if implementation.plugin is not module:
                continue
            for component in _components(caller.name, kind, implementation.function()):
                own = SIZES if isinstance(component, ModelSizes) else kind
                name = f"{own} {canonical(component.name)}"
                if name in seen:
                    raise ComponentError(f"{caller.name} offers {component.name!r} twice; names must differ")
                seen.add(name)
                yield Offer(own, component, info)


def _components(hook: str, kind: str, returned: Any) -> list[Component]:
    expected = COMPONENT_CLASS.get(kind, Component)
    if not isinstance(returned, list | tuple):
        raise ComponentError(
            f"{hook} returned a {type(returned).__name__}; it must return a list of {expected.__name__}"
        )
    for component in returned:
        sizes = kind == "model" and isinstance(component, ModelSizes)
        if not isinstance(component, expected) and not sizes:
            raise ComponentError(f"{hook} returned {component!r}; every item must be a {expected.__name__}")
    return list(returned)


def guard_builtins(plugins: list[Plugin]) -> None:
    """Names of built-ins are reserved: a plugin that takes one without ``replaces`` does not load."""
    builtin = [offer for plugin in plugins if _is_built_in(plugin) for offer in plugin.offers]
    reserved = {(offer.kind, canonical(offer.component.name)) for offer in builtin}
    for plugin in plugins:
        if _is_built_in(plugin):
            continue
        faults = [fault for offer in plugin.offers if (fault := _trespass(offer, reserved))]
        if faults:
            plugin.error, plugin.offers = faults[0], []


def _is_built_in(plugin: Plugin) -> bool:
    return canonical(plugin.info.distribution) == BUILT_IN


def _trespass(offer: Offer, reserved: set[tuple[str, str]]) -> str:
    """What is wrong with an offer beside the built-ins, or nothing."""
    kind, name = offer.kind, offer.component.name
    replaces = canonical(offer.component.replaces)
    if replaces and (kind, replaces) not in reserved:
        builtins = sorted(builtin for other, builtin in reserved if other == kind)
        return (
            f"{words(kind)} {name!r} has replaces={offer.component.replaces!r}, which is no built-in {words(kind)}."
            f" {did_you_mean(replaces, builtins)}Built-ins: {', '.join(builtins) or 'none'}."
        )
    if (kind, canonical(name)) in reserved and replaces != canonical(name):
        return (
            f"{words(kind)} {name!r} is a built-in name; choose another, or set replaces={name!r} and have it chosen"
            f" as {offer.qualified}"
        )
    return ""
