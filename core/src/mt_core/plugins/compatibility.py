"""Releases of mt-core that a plugin says it is for, by the range in its own metadata."""

from __future__ import annotations

from mt_core.plugins.metadata import CORE, PluginInfo, canonicalize
from mt_core.version import __version__


def out_of_range(plugin: PluginInfo) -> str:
    """Return what to know where this mt-core is not one that the plugin declares; nothing where it is, or declares none."""
    from packaging.requirements import InvalidRequirement, Requirement

    distribution = plugin.entry_point.dist
    for text in (distribution.requires or ()) if distribution is not None else ():
        try:
            needed = Requirement(text)
        except InvalidRequirement:
            continue  # pip refuses such metadata; it says nothing about the core
        if canonicalize(needed.name) == CORE and not needed.specifier.contains(__version__, prereleases=True):
            return f"it is for mt-core {needed.specifier}, and this is {__version__}"
    return ""
