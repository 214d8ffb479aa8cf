"""Imports one plugin and collects what it offers; whatever goes wrong becomes the plugin's ``error``."""

from __future__ import annotations

import contextlib
import inspect
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pluggy

from mt_core.components import Component, ModelSizes
from mt_core.deprecation import MtDeprecationWarning
from mt_core.errors import ComponentError, MtError, did_you_mean
from mt_core.hookspecs import PROJECT
from mt_core.kinds import Kind, Kinds
from mt_core.plugins.compatibility import out_of_range
from mt_core.plugins.metadata import BUILT_IN, PluginInfo, canonicalize, missing_requirements, words

SIZES = "model_sizes"
"""Kind of what ``mt_model_configs`` adds to another plugin's family: no slot, so no name that a run could choose."""


@dataclass(frozen=True)
class Offer:
    """A component and who offers it."""

    kind: str
    component: Component
    plugin: PluginInfo
    bringer: PluginInfo | None = None
    """Who brings the kind; ``None`` for the core's own."""

    @property
    def qualified_name(self) -> str:
        """``DISTRIBUTION/NAME``, which is never ambiguous."""
        return f"{self.plugin.distribution}/{self.component.name}"


@dataclass
class Plugin:
    """An installed plugin and what came of loading it."""

    info: PluginInfo
    offers: list[Offer] = field(default_factory=list)
    error: str = ""
    load_ms: float = 0.0
    warnings: list[str] = field(default_factory=list)
    """Warnings of names that it uses and that will go, and of offers that are left out."""
    module: Any = None
    """Its module of hooks, once it is imported."""
    kinds: list[Kind] = field(default_factory=list)
    """Kinds that it brings."""

    @property
    def status(self) -> str:
        """``blocked``, ``failed`` or ``loaded``."""
        if self.info.blocked:
            return "blocked"
        return "failed" if self.error else "loaded"


class Manager(pluggy.PluginManager):
    """Pluggy's manager, which looks for hooks among a module's own names only: its own search takes a third of a start."""

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        """Return the options with which ``hookimpl`` marked a function of a module; ``None`` for anything else."""
        return _marks(vars(plugin).get(name))


def _marks(value: Any) -> Any:
    return getattr(value, f"{PROJECT}_impl", None) if inspect.isroutine(value) else None


def import_plugin(info: PluginInfo) -> Plugin:
    """Import a plugin's module and ask for the kinds that it brings; a blocked one stays unimported."""
    plugin = Plugin(info)
    with _faults_of(plugin):
        plugin.module = info.entry_point.load()
        _check_module(plugin.module)
        plugin.kinds = _kinds_of(plugin.module)
    return plugin


def collect_offers(
    manager: pluggy.PluginManager, plugin: Plugin, kinds: Kinds, bringers: Mapping[str, Plugin], absent: Collection[str]
) -> None:
    """Register an imported plugin and ask each of its hooks. ``absent`` are distributions whose plugins did not load."""
    key = f"{plugin.info.distribution}:{plugin.info.name}"
    with _faults_of(plugin):
        _check_functions(manager, plugin.module, kinds)
        manager.register(plugin.module, name=key)
        plugin.warnings += _check_hooks(manager, plugin, kinds, absent)
        plugin.offers = list(_collect(manager, plugin, kinds, bringers))
    if plugin.error and manager.has_plugin(key):
        manager.unregister(name=key)


@contextlib.contextmanager
def _faults_of(plugin: Plugin) -> Iterator[None]:
    """Time and warnings of a step of loading are kept, and whatever is raised in it becomes the plugin's error."""
    start = time.perf_counter()
    try:
        # What it prints is no command's data.
        with contextlib.redirect_stdout(sys.stderr), _deprecations(plugin.warnings):
            yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a stranger's module may raise anything, sys.exit included
        plugin.error = _cause(error)
        if misfit := out_of_range(plugin.info):
            plugin.error += f" ({misfit}: install a release of the one that fits the other)"
    plugin.load_ms += (time.perf_counter() - start) * 1000


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


def _cause(error: BaseException) -> str:
    """One line; the contract's own errors need no class name in front."""
    text = " ".join(str(error).split())
    if isinstance(error, MtError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _check_module(module: Any) -> None:
    if not isinstance(module, ModuleType):
        raise ComponentError(
            f"the entry point is a {type(module).__name__}; it must name a module of hook implementations"
        )


def _kinds_of(module: ModuleType) -> list[Kind]:
    """The kinds that a module brings."""
    function = vars(module).get("mt_kinds")
    if function is None:
        return []
    _check_marked("mt_kinds", function)
    returned = function()
    if not isinstance(returned, list | tuple):
        raise ComponentError(f"mt_kinds returned a {type(returned).__name__}; it must return a list of Kind")
    if strange := [each for each in returned if not isinstance(each, Kind)]:
        raise ComponentError(f"mt_kinds returned {strange[0]!r}; every item must be a Kind")
    return list(returned)


def _check_functions(manager: pluggy.PluginManager, module: ModuleType, kinds: Kinds) -> None:
    """Refuse what pluggy would skip without a word, or report in words of its own."""
    if manager.is_registered(module):
        raise ComponentError(
            f"its module {module.__name__} is already that of {manager.get_name(module)}; every plugin needs its own"
        )
    for name, value in vars(module).items():
        is_hook = _marks(value) is not None
        if is_hook or name in kinds.hooks or (name.startswith("mt_") and inspect.isfunction(value)):
            _check_marked(name, value)


def _check_marked(name: str, value: Any) -> None:
    marked = _marks(value)
    if marked is None:
        raise ComponentError(
            f"{name} is not marked with @mt_core.hookimpl, so it would never be called; mark it or rename it"
        )
    _check_function(name, value, marked)


def _check_function(name: str, function: Callable[..., Any], marked: Mapping[str, Any]) -> None:
    if marked.get("wrapper") or marked.get("hookwrapper"):
        raise ComponentError(f"{name} is a hook wrapper; hooks only offer components, so return a list instead")
    signature = inspect.signature(function)
    if signature.parameters:
        raise ComponentError(
            f"{name}{signature.replace(return_annotation=signature.empty)} has arguments, and hooks are called without"
            " any; remove them, also those with defaults"
        )


def _check_hooks(manager: pluggy.PluginManager, plugin: Plugin, kinds: Kinds, absent: Collection[str]) -> Iterator[str]:
    """Raise ``ComponentError`` for a hook that is none; one of a kind that would come with another distribution is skipped, and said."""
    for caller in manager.get_hookcallers(plugin.module) or []:
        if caller.has_spec():
            continue
        hint = did_you_mean(caller.name, list(kinds.hooks))
        declared = missing_requirements(plugin.info.distribution, absent)
        if not declared:
            raise ComponentError(
                f"it implements the hook {caller.name!r}, which does not exist. {hint}Hooks are {', '.join(kinds.hooks)}."
            )
        yield (
            f"what it offers through {caller.name} is left out: no plugin that is loaded brings that kind. It depends on"
            f" {' and '.join(declared)}, which {'is' if len(declared) == 1 else 'are'} not installed, blocked or failed;"
            " `mt-plugins list` shows which"
        )


def _collect(
    manager: pluggy.PluginManager, plugin: Plugin, kinds: Kinds, bringers: Mapping[str, Plugin]
) -> Iterator[Offer]:
    for caller in manager.get_hookcallers(plugin.module) or []:
        kind = kinds.hooks.get(caller.name)
        if kind is None:
            continue  # mt_kinds, which was called; mt_doctor, which is called when somebody asks; one that was left out
        bringer = bringers[kind.name].info if kind.name in bringers else None
        seen: set[str] = set()
        for implementation in caller.get_hookimpls():
            if implementation.plugin is not plugin.module:
                continue
            for component in _components(kind, implementation.function()):
                own = SIZES if isinstance(component, ModelSizes) else kind.name
                name = f"{own} {canonicalize(component.name)}"
                if name in seen:
                    raise ComponentError(f"{caller.name} offers {component.name!r} twice; names must differ")
                seen.add(name)
                yield Offer(own, component, plugin.info, bringer)


def _components(kind: Kind, returned: Any) -> list[Component]:
    expected = kind.classes[0].__name__
    if not isinstance(returned, list | tuple):
        raise ComponentError(f"{kind.hook} returned a {type(returned).__name__}; it must return a list of {expected}")
    for component in returned:
        if not isinstance(component, kind.classes):
            raise ComponentError(f"{kind.hook} returned {component!r}; every item must be a {expected}")
    return list(returned)


def guard_builtins(plugins: list[Plugin]) -> None:
    """Names of built-ins are reserved: a plugin that takes one without ``replaces`` does not load."""
    builtin = [offer for plugin in plugins if _is_built_in(plugin) for offer in plugin.offers]
    reserved = {(offer.kind, canonicalize(offer.component.name)) for offer in builtin}
    for plugin in plugins:
        if _is_built_in(plugin):
            continue
        faults = [fault for offer in plugin.offers if (fault := _trespass(offer, reserved))]
        if faults:
            plugin.error, plugin.offers = faults[0], []


def _is_built_in(plugin: Plugin) -> bool:
    return canonicalize(plugin.info.distribution) == BUILT_IN


def _trespass(offer: Offer, reserved: set[tuple[str, str]]) -> str:
    """Return what is wrong with an offer beside the built-ins, or nothing."""
    kind, name = offer.kind, offer.component.name
    replaces = canonicalize(offer.component.replaces)
    if replaces and (kind, replaces) not in reserved:
        builtins = sorted(builtin for other, builtin in reserved if other == kind)
        return (
            f"{words(kind)} {name!r} has replaces={offer.component.replaces!r}, which is no built-in {words(kind)}."
            f" {did_you_mean(replaces, builtins)}Built-ins: {', '.join(builtins) or 'none'}."
        )
    if (kind, canonicalize(name)) in reserved and replaces != canonicalize(name):
        return (
            f"{words(kind)} {name!r} is a built-in name; choose another, or set replaces={name!r} and have it chosen"
            f" as {offer.qualified_name}"
        )
    return ""
