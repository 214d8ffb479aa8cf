"""A host that discovers nothing: what is built in, the plugins that it is given, and what their distributions require."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import EntryPoint, PackageNotFoundError, requires, version
from types import ModuleType

from mt_core.plugins.host import PluginHost
from mt_core.plugins.metadata import (
    BUILT_IN,
    GROUP,
    TRAINING,
    PluginInfo,
    Selection,
    canonicalize,
    find_plugins,
)

OWN = {BUILT_IN: ("standard", "mt_plugin_standard.plugin"), TRAINING: ("train", "mt_train.plugin")}
"""Distributions that are built in → name and module of their plugin; mt-train brings the kind of evaluations."""

_REQUIRED = re.compile(r"[A-Za-z0-9][\w.-]*")


def hermetic_host(*plugins: ModuleType) -> PluginHost:
    """Make a host with the built-in components, if they are installed, and these plugin modules; ignore other plugins.

    A plugin that does not load is in it all the same, with its error; so is one that no distribution offers. Plugins that the
    distribution of one of them requires are in it, too: where it is installed, they are.
    """
    return named_host(*(plugin.__name__ for plugin in plugins))


def named_host(*modules: str) -> PluginHost:
    """Make a host by the names of the modules, which are imported here, the last ones of all."""
    beside = sorted(required_plugins(*modules), key=lambda each: each.module in modules)
    known = {module for _, module in OWN.values()}
    return PluginHost.of([*beside, *(_describe_module(name) for name in modules if name not in known)])


@cache
def required_plugins(*modules: str) -> tuple[PluginInfo, ...]:
    """Describe what stands beside these modules: what is built in, and the plugins that their distributions require."""
    given = {_distribution_of(module) for module in modules}
    found: dict[str, PluginInfo] = {}
    waiting = [name for distribution in given for name in _requirements(distribution)]
    plugins = {canonicalize(each.distribution): each for each in find_plugins(Selection())} if waiting else {}
    while waiting:
        name = waiting.pop()
        if name in plugins and name not in {*OWN, *given, *found}:
            found[name] = plugins[name]
            waiting += _requirements(name)
    return (*_built_in(), *(found[name] for name in sorted(found)))


def _built_in() -> Iterator[PluginInfo]:
    for distribution, (name, module) in OWN.items():
        try:
            yield _describe(name, distribution, version(distribution), module)
        except PackageNotFoundError:  # beside mt-core and the kit alone
            continue


def _requirements(distribution: str) -> list[str]:
    """Return the names that a distribution requires without an extra; nothing where it is not installed."""
    try:
        lines = requires(distribution) or []
    except PackageNotFoundError:
        return []
    plain = [line for line in lines if "extra ==" not in line.partition(";")[2]]
    return [canonicalize(found[0]) for line in plain if (found := _REQUIRED.match(line))]


def is_installed(module: str) -> bool:
    """Return whether the distribution of a plugin's module is installed; without it nothing says which plugins it requires."""
    try:
        version(_distribution_of(module))
    except PackageNotFoundError:
        return False
    return True


def _distribution_of(module: str) -> str:
    """Return the distribution of a module, as if it had the name of its package."""
    return canonicalize(module.partition(".")[0])


def _describe_module(module: str) -> PluginInfo:
    distribution = _distribution_of(module)
    return _describe(distribution.removeprefix("mt-plugin-"), distribution, "under test", module)


def _describe(name: str, distribution: str, version: str, module: str) -> PluginInfo:
    point = EntryPoint(name=name, value=module, group=GROUP)
    return PluginInfo(
        name=name,
        distribution=distribution,
        version=version,
        module=module,
        location="",
        blocked=False,
        entry_point=point,
    )
