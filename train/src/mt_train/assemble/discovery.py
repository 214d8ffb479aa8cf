"""The installed plugins, and what a user should know of them."""

from __future__ import annotations

import gc
from collections.abc import Iterable

from mt_core.plugins.host import PluginHost
from mt_core.plugins.metadata import Selection
from mt_train.tracking.logs import first_notice


def discover_plugins(blocked: Iterable[str] = ()) -> PluginHost:
    """Load the plugins; one that failed, or a name that blocks nothing, is told once."""
    host = load_plugins(blocked)
    show_notices(host)
    return host


def load_plugins(blocked: Iterable[str] = ()) -> PluginHost:
    """Load the plugins, without collecting garbage: what is imported stays, and would be looked through again and again."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return PluginHost.discover(Selection.from_environment(list(blocked)))
    finally:
        if collects:
            gc.enable()


def show_notices(host: PluginHost) -> None:
    """Print what a user should know of the plugins, once for all processes of a run."""
    for text in host.notices:
        first_notice(f"warning: {text}")
