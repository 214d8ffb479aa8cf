"""``mt-plugins new``: a plugin from nothing."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mt_core.cli.plugins_report import SCHEMA
from mt_core.errors import UsageError
from mt_core.plugins.metadata import Selection, canonicalize
from mt_core.scaffold import own_templates
from mt_core.version import __version__

if TYPE_CHECKING:
    from mt_core.plugins.host import PluginHost
    from mt_core.scaffold import Distribution

FAMILY, FAMILY_PLUGIN = "llama", "mt-plugin-llama"
"""The model that new plugins of other kinds are tried with, and where it comes from."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    """``new KIND NAME``."""
    new = commands.add_parser(
        "new", parents=[common], help="write a new plugin that can be installed and tested as it is"
    )
    kinds = ", ".join(own_templates())
    new.add_argument("kind", metavar="KIND", help=f"what it offers: {kinds}, and kinds that plugins bring")
    new.add_argument("name", metavar="NAME", help="what users will type: lower-case letters, digits and '-'")
    new.add_argument(
        "--output", type=Path, metavar="DIR", help="its folder, which must not exist; default mt-plugin-NAME"
    )
    new.set_defaults(command=_new)


def _new(arguments: argparse.Namespace) -> int:
    from mt_core.plugins.host import PluginHost
    from mt_core.scaffold import draft

    host = PluginHost.discover(Selection.from_environment(arguments.block_plugin))
    plugin = draft(arguments.kind, arguments.name, host.kinds.templates, host.bringers)
    _refuse_taken(plugin, host)
    folder = arguments.output or Path(plugin.project)
    plugin.write(folder)
    commands = list(_next(plugin, folder, host))
    if arguments.json:
        told = {"folder": str(folder), "files": [str(place) for place in plugin.files], "next": commands}
        print(json.dumps({"schema": SCHEMA, "core": __version__, "new": told}, indent=2))
        return 0
    print(f"{folder}: the distribution {plugin.project}, with the {arguments.kind} {plugin.name}")
    print("".join(f"  {place}\n" for place in plugin.files) + "next:")
    print("\n".join(f"  {command}" for command in commands))
    return 0


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
