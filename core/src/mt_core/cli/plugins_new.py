"""``mt-plugins new``: a plugin from nothing."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path

from mt_core.cli.plugins import answer
from mt_core.errors import UsageError
from mt_core.plugins.host import PluginHost
from mt_core.plugins.metadata import Selection, canonicalize
from mt_core.scaffold import Distribution, draft

FAMILY, FAMILY_PLUGIN = "llama", "mt-plugin-llama"
"""The model that new plugins of other kinds are tried with, and where it comes from."""


def run(arguments: argparse.Namespace) -> None:
    """``new KIND NAME``."""
    host = PluginHost.discover(Selection.from_environment(arguments.block_plugin))
    plugin = draft(arguments.kind, arguments.name, host.kinds.templates, host.bringers)
    _refuse_taken(plugin, host)
    folder = arguments.output or Path(plugin.project)
    plugin.write(folder)
    commands = list(_next(plugin, folder, host))
    facts = {"folder": str(folder), "files": [str(place) for place in plugin.files], "next": commands}
    head = f"{folder}: the distribution {plugin.project}, with the {arguments.kind} {plugin.name}"
    lines = [f"  {place}" for place in plugin.files] + ["next:"] + [f"  {command}" for command in commands]
    answer(arguments, {"new": facts}, [head, *lines])


def _next(plugin: Distribution, folder: Path, host: PluginHost) -> Iterator[str]:
    tried = plugin.kind.try_it.format(name=plugin.name)
    lacks = f"--model {FAMILY} " in tried and FAMILY not in {offer.component.name for offer in host.offers("model")}
    yield f"cd {shlex.quote(str(folder))}"
    yield "pip install -e '.[test]'" + (f" {FAMILY_PLUGIN}" if lacks else "")
    yield "pytest"
    yield tried


def _refuse_taken(plugin: Distribution, host: PluginHost) -> None:
    """Raises ``UsageError`` where an installed plugin has the name: one of the two could not be used by it."""
    for each in host.plugins:
        if canonicalize(each.info.distribution) == plugin.project:
            raise UsageError(f"{each.info.label} is installed already, and pip would replace it; choose another name")
    for offer in host.offers(plugin.kind.kind):
        if canonicalize(offer.component.name) == plugin.name:
            words = plugin.kind.kind.replace("_", " ")
            raise UsageError(f"{words} {plugin.name!r} is offered by {offer.plugin.label} already; choose another name")
