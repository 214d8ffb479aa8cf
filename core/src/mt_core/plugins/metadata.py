"""Installed plugins, from metadata alone: no plugin is imported here."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlparse

from mt_core.errors import did_you_mean
from mt_core.plugins.installed import PlainDistribution, PlainEntryPoint, entry_points
from mt_core.plugins.pins import FILE, FOLDER, UNKNOWN

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

GROUP = "mt_core.plugins"
CORE, TRAINING, BUILT_IN = "mt-core", "mt-train", "mt-plugin-standard"
OWN = frozenset({CORE, TRAINING, BUILT_IN})
"""Distributions without which no plugin works: they cannot be blocked."""
_REQUIRED = re.compile(r"[A-Za-z0-9][\w.-]*")


class PluginInfo(NamedTuple):
    """A plugin as its distribution's metadata describes it."""

    name: str
    distribution: str
    version: str
    module: str
    location: str
    blocked: bool
    entry_point: EntryPoint | PlainEntryPoint
    editable: bool = False
    origin: str = ""
    """Source that pip had it from, as ``Place`` says it."""

    @property
    def label(self) -> str:
        """Distribution and version, as messages name them."""
        return f"{self.distribution} {self.version}"


class Selection(NamedTuple):
    """The plugins that may be imported: all but ``blocked``, or only ``allowed``. What is built in always may."""

    blocked: frozenset[str] = frozenset()
    allowed: frozenset[str] | None = None

    @classmethod
    def from_environment(cls, block: Iterable[str] = ()) -> Selection:
        """``--block-plugin`` and the variables ``MT_BLOCK_PLUGINS`` and ``MT_PLUGINS`` (comma-separated)."""
        blocked = {*map(canonicalize, block), *_names(os.environ.get("MT_BLOCK_PLUGINS", ""))}
        allowed = os.environ.get("MT_PLUGINS")
        return cls(frozenset(blocked), None if allowed is None else frozenset(_names(allowed)))

    def blocks(self, name: str, distribution: str) -> bool:
        """Return whether a plugin stays unimported; it is named by its entry point or its distribution."""
        names = {canonicalize(name), canonicalize(distribution)}
        if canonicalize(distribution) in OWN:
            return False
        return bool(names & self.blocked) or (self.allowed is not None and not names & self.allowed)


def canonicalize(name: str) -> str:
    """``-`` and ``_`` are equal in names."""
    return name.strip().lower().replace("_", "-")


def words(kind: str) -> str:
    """``task_print`` as people read it."""
    return kind.replace("_", " ")


def find_plugins(selection: Selection) -> list[PluginInfo]:
    """Every plugin of the environment, sorted; the same entry point found twice counts once."""
    found: dict[tuple[str, str, str], PluginInfo] = {}
    for point in entry_points(GROUP):
        if point.dist is None:
            continue
        plugin = _describe(point, selection)
        found.setdefault((canonicalize(plugin.distribution), plugin.name, plugin.module), plugin)
    return [found[key] for key in sorted(found)]


def without_effect(selection: Selection, found: Iterable[PluginInfo]) -> list[str]:
    """Names that block or allow no installed plugin, each with what to do about it."""
    known = {canonicalize(name) for plugin in found for name in (plugin.name, plugin.distribution)}
    return [
        f"no installed plugin is named {name!r}: blocking or allowing it has no effect."
        f" {did_you_mean(name, sorted(known))}`mt-plugins list` shows what is installed."
        for name in sorted((selection.blocked | (selection.allowed or frozenset())) - known)
    ]


def _describe(point: EntryPoint | PlainEntryPoint, selection: Selection) -> PluginInfo:
    distribution = point.dist
    assert distribution is not None, "an installed entry point belongs to a distribution"
    place = place_of(distribution)
    metadata = distribution.metadata  # read anew each time that somebody asks
    name = metadata["Name"] or point.name  # a damaged dist-info has neither name nor version
    return PluginInfo(
        name=point.name,
        distribution=name,
        version=metadata["Version"] or UNKNOWN,
        module=point.value,
        location=place.sources or os.path.realpath(str(distribution.locate_file(""))),
        blocked=selection.blocks(point.name, name),
        entry_point=point,
        editable=bool(place.sources),
        origin=place.origin,
    )


class Place(NamedTuple):
    """Source of a distribution (PEP 610). ``origin`` is ``FOLDER``, ``FILE``, or an address as pip takes it, without a password; empty for
    an index, and where nobody has said it. ``sources`` is the folder of an editable install's sources; empty for any other."""

    origin: str
    sources: str


def place_of(distribution: Distribution | PlainDistribution) -> Place:
    """Return where a distribution was installed from, by its ``direct_url.json``."""
    found = _direct_url(distribution)
    address = urlparse(str(found.get("url", "")))
    sources = unquote(address.path) if found.get("dir_info", {}).get("editable") else ""
    if address.scheme in ("", "file"):
        return Place((FOLDER if "dir_info" in found else FILE) if found else "", sources)
    plain = address._replace(netloc=address.netloc.rpartition("@")[2]).geturl()
    source = found.get("vcs_info") or {}
    return Place(
        f"{source['vcs']}+{plain}@{source['commit_id']}" if {"vcs", "commit_id"} <= source.keys() else plain, sources
    )


def _direct_url(distribution: Distribution | PlainDistribution) -> dict[str, Any]:
    """Its ``direct_url.json``; empty without one, and for one that is damaged: it only says where something is from."""
    try:
        content = json.loads(distribution.read_text("direct_url.json") or "{}")
    except (ValueError, OSError):
        return {}
    parts = [content, *(content.get(key, {}) for key in ("dir_info", "vcs_info"))] if isinstance(content, dict) else []
    return content if parts and all(isinstance(part, dict) for part in parts) else {}


def missing_requirements(distribution: str, absent: Collection[str]) -> list[str]:
    """Names among what a distribution requires, with extras or without, that are not installed or are ``absent``."""
    from importlib.metadata import Distribution

    found = next(iter(Distribution.discover(name=distribution)), None)
    lines = (found.requires if found else None) or []
    names = dict.fromkeys(match[0] for line in lines if (match := _REQUIRED.match(line)))
    return [name for name in names if canonicalize(name) in absent or not any(Distribution.discover(name=name))]


def _names(text: str) -> set[str]:
    return {canonicalize(part) for part in text.split(",") if part.strip()}
