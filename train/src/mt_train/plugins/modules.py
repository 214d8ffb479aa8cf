"""The plugins of a run: those that are installed, and modules that a program gives or ``MT_PLUGIN_MODULES`` names.

One file is enough to try a callback, a loss or a dataset; what others use belongs into a distribution.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from types import ModuleType

from mt_core.errors import ComponentError, UsageError
from mt_core.plugins.host import PluginHost
from mt_core.plugins.metadata import GROUP, PluginInfo, Selection
from mt_core.plugins.pins import UNKNOWN
from mt_train.config.arguments import refuse

VARIABLE = "MT_PLUGIN_MODULES"
"""Names of modules, with commas between, that every command takes as plugins."""

_MODULE = (
    "a module with hooks, such as a file of yours that is imported, or sys.modules[__name__] for the program itself"
)
_MODULES = "a list of modules with hooks, such as [experiment] after `import experiment`"


def load_plugins(blocked: Iterable[str] = (), modules: Iterable[ModuleType] = ()) -> PluginHost:
    """Load the installed plugins, and modules that are plugins.

    Garbage is not collected meanwhile: what is imported stays, and would be looked through again and again. Raises ``ComponentError``
    for a module that is no plugin; an installed one that fails is recorded.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        alone = dict.fromkeys([*modules, *modules_of_environment()])
        host = PluginHost.discover(Selection.from_environment(list(blocked)), tuple(map(describe_module, alone)))
    finally:
        if collects:
            gc.enable()
    check_modules(host)
    return host


def is_module_alone(plugin: PluginInfo) -> bool:
    """Return whether a plugin is a module that no distribution registers, as ``describe_module`` describes it."""
    return plugin.entry_point.dist is None and plugin.distribution == plugin.module


def modules_of_environment() -> list[ModuleType]:
    """Import the modules that the variable names. Raises ``UsageError`` for one that cannot be imported."""
    names = dict.fromkeys(name.strip() for name in os.environ.get(VARIABLE, "").split(","))
    return [_import(name) for name in names if name]


def describe_module(module: ModuleType) -> PluginInfo:
    """Describe a module as an entry point would, which the host loads like any other."""
    from importlib.metadata import EntryPoint  # here: every command imports this file, and few describe a module

    name = module.__name__
    return PluginInfo(
        name=name,
        distribution=name,
        version=UNKNOWN,
        module=name,
        location=getattr(module, "__file__", None) or "",
        blocked=False,
        entry_point=EntryPoint(name, name, GROUP),
    )


def check_modules(host: PluginHost) -> None:
    """Raise ``ComponentError`` for a module that is no plugin: who gave it by name wants to have it."""
    for plugin in host.plugins:
        if is_module_alone(plugin.info) and plugin.status == "failed":
            raise ComponentError(f"the module {plugin.info.name} is no plugin: {plugin.error}")


def check_given(call: str, plugins: object) -> list[ModuleType]:
    """Return the modules that a call was given, each once. Raises ``UsageError`` for anything else."""
    if isinstance(plugins, str | Mapping) or not isinstance(plugins, Iterable):
        raise refuse(call, "plugins", plugins, _MODULES)
    given = list(plugins)
    for module in given:
        if not isinstance(module, ModuleType):
            raise refuse(call, "an item of plugins", module, _MODULE)
        if sys.modules.get(module.__name__) is not module:
            raise UsageError(
                f"{call}(): the module {module.__name__} of plugins is not the one that `import {module.__name__}` gives, so no"
                " other process could find it; import it by its name"
            )
    return list(dict.fromkeys(given))


def _import(name: str) -> ModuleType:
    try:
        return import_module(name)
    except Exception as error:  # a stranger's module may raise anything
        fix = "; for a file of this folder also set PYTHONPATH=." if isinstance(error, ModuleNotFoundError) else ""
        raise UsageError(
            f"{VARIABLE} names {name!r}, which cannot be imported: {type(error).__name__}: {error}{fix}"
        ) from error
