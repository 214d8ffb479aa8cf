"""A host that discovers nothing: the built-ins, and the plugins that it is given."""

from __future__ import annotations

from importlib.metadata import EntryPoint, PackageNotFoundError, version
from types import ModuleType

from mt_core.plugins.host import PluginHost
from mt_core.plugins.metadata import BUILT_IN, GROUP, Installed, canonical

STANDARD = "mt_plugin_standard.plugin"


def hermetic_host(*plugins: ModuleType) -> PluginHost:
    """The built-ins, where they are installed, and these modules of hooks, whatever else is installed, blocked or allowed here.

    A plugin that does not load is in it all the same, with its error; so is one that no distribution offers.
    """
    return named_host(*(plugin.__name__ for plugin in plugins))


def named_host(*modules: str) -> PluginHost:
    """Make a host by the names of the modules, which are imported here."""
    return PluginHost.of([*_built_in(), *(_describe_module(name) for name in modules if name != STANDARD)])


def _built_in() -> list[Installed]:
    try:
        return [_describe("standard", BUILT_IN, version(BUILT_IN), STANDARD)]
    except PackageNotFoundError:  # beside mt-core and the kit alone
        return []


def _describe_module(module: str) -> Installed:
    """Describe a module as if its distribution had the name of its package."""
    distribution = canonical(module.partition(".")[0])
    return _describe(distribution.removeprefix("mt-plugin-"), distribution, "under test", module)


def _describe(name: str, distribution: str, version: str, module: str) -> Installed:
    point = EntryPoint(name=name, value=module, group=GROUP)
    return Installed(
        name=name,
        distribution=distribution,
        version=version,
        module=module,
        location="",
        blocked=False,
        entry_point=point,
    )
