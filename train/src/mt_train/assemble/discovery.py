"""The installed plugins, and what a user should know of them."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

from mt_core.plugins.host import PluginHost
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
