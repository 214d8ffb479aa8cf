"""The installed plugins, and what a user should know of them."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

from mt_core.plugins.compatibility import out_of_range
from mt_core.plugins.host import Offer, PluginHost
from mt_train.plugins.modules import load_plugins
from mt_train.tracking.logs import first_notice


def discover_plugins(blocked: Iterable[str] = (), modules: Iterable[ModuleType] = ()) -> PluginHost:
    """Load the plugins, ``modules`` among them; one that failed, or a name that blocks nothing, is told once."""
    host = load_plugins(blocked, modules)
    show_notices(host)
    return host


def show_notices(host: PluginHost) -> None:
    """Print what a user should know of the plugins, once for all processes of a run."""
    for text in host.notices:
        first_notice(f"warning: {text}")


def tell_misfits(offers: Iterable[Offer]) -> None:
    """Warn of plugins that a run uses and that are for other releases of mt-core, once for all processes of a run."""
    plugins = {offer.plugin.label: offer.plugin for offer in offers}
    for label, plugin in plugins.items():
        if misfit := out_of_range(plugin):
            first_notice(
                f"warning: plugin {plugin.name!r} ({label}): {misfit}, so it may fail or compute something else; install a release of the"
                " one that fits the other"
            )
