"""``mt-plugins``: what is installed, what it offers, and whether it loads.

``list`` reads metadata alone, so the host, pydantic and the plugins are imported by the other commands only.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core.cli.guard import parse_and_run
from mt_core.cli.plugins_report import SCHEMA, component_report, metadata, plugin_report, problems
from mt_core.cli.plugins_text import check_lines, component_lines, installed_lines, plugin_lines, screen_width
from mt_core.config.secrets import redact, redact_values
from mt_core.errors import UsageError, did_you_mean
from mt_core.plugins.metadata import Selection, canonicalize, find_plugins, without_effect
from mt_core.version import __version__

if TYPE_CHECKING:
    from mt_core.plugins.host import Offer, Plugin, PluginHost

EXAMPLES = """examples:
  mt-plugins list --components     every name that a run takes
  mt-plugins info lora             options, bounds and defaults of a component
  mt-plugins new adapter my-lora   write a plugin, with its tests"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return parse_and_run(_parser(), _run, argv)


def _run(arguments: argparse.Namespace) -> int:
    module, _, name = arguments.command.partition(":")
    code = int(getattr(import_module(f"mt_core.cli.{module}"), name)(arguments) or 0)
    sys.stdout.flush()  # a closed pipe is noticed here, where it is handled
    return code


def _parser() -> argparse.ArgumentParser:
    """Each command names its function as ``MODULE:NAME`` here, and is imported when it runs."""
    parser = argparse.ArgumentParser(
        prog="mt-plugins",
        description="List, describe, check, write and install plugins.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mt-core {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", prog="mt-plugins")  # else it formats a usage
    plain = argparse.ArgumentParser(add_help=False)
    plain.add_argument("--debug", action="store_true", help="show tracebacks")
    common = argparse.ArgumentParser(add_help=False, parents=[plain])
    common.add_argument("--json", action="store_true", help="machine-readable output")
    common.add_argument("--block-plugin", action="append", default=[], metavar="NAME", help="do not import this plugin")

    def add(name: str, run: str, about: str, parent: argparse.ArgumentParser = common) -> argparse.ArgumentParser:
        command = commands.add_parser(name, parents=[parent], help=about, description=about[0].upper() + about[1:])
        command.set_defaults(command=run)
        return command

    lister = add("list", "plugins:list_plugins", "the installed plugins, from metadata alone")
    lister.add_argument("--components", action="store_true", help="load the plugins and list what each offers")
    lister.set_defaults(kind="")
    recipes = add("recipes", "plugins:list_plugins", "runs that distributions ship: mt-train --recipe NAME")
    recipes.set_defaults(components=True, kind="recipe")
    info = add("info", "plugins:describe", "everything about a plugin or a component")
    info.add_argument("name", metavar="NAME", help="entry point, distribution, component or DISTRIBUTION/COMPONENT")
    check = add("check", "plugins:check", "load each plugin and say what is wrong")
    check.add_argument("name", metavar="NAME", nargs="?", help="only this plugin; exit 1 when it failed")
    check.add_argument("--strict", action="store_true", help="exit 1 on any problem")
    add("doctor", "doctor:run", "machine, packages and plugins, to paste into an issue")
    new = add("new", "plugins_new:run", "write a new plugin that can be installed and tested as it is")
    new.add_argument("kind", metavar="KIND", help="what it offers: adapter, dataset, model …; a wrong one lists all")
    new.add_argument("name", metavar="NAME", help="what users will type: lower-case letters, digits and '-'")
    new.add_argument("--output", type=Path, metavar="DIR", help="its new folder (default: mt-plugin-NAME)")
    freeze = add("freeze", "plugins_install:freeze", "the installed plugins as exact pins, for pip install -r")
    freeze.add_argument("run", metavar="RUN", nargs="?", type=Path, help="what took part in this run (default: all)")
    adding = add("install", "plugins_install:install", "install plugins into this Python, with its pip or uv", plain)
    adding.add_argument("what", metavar="WHAT", nargs="*", help="as pip takes it: a name, NAME==VERSION, a folder")
    adding.add_argument("-e", "--editable", action="append", default=[], metavar="FOLDER", help="a folder to work on")
    adding.add_argument("-U", "--upgrade", action="store_true", help="newer releases of what is installed already")
    removing = add("uninstall", "plugins_install:uninstall", "remove plugins from this Python", plain)
    removing.add_argument("names", metavar="NAME", nargs="+", help="entry point or distribution")
    return parser


def _host(arguments: argparse.Namespace) -> PluginHost:
    from mt_core.plugins.host import PluginHost

    host = PluginHost.discover(Selection.from_environment(arguments.block_plugin))
    _warn(host.unused_names)
    return host


def answer(arguments: argparse.Namespace, facts: Mapping[str, Any], lines: Iterable[str]) -> None:
    """Print what a command has found: with ``--json`` the facts in an envelope, else the lines."""
    told = {"schema": SCHEMA, "core": __version__, **facts}
    print(json.dumps(redact_values(told), indent=2) if arguments.json else redact("\n".join(lines)))


def _warn(notices: Iterable[str]) -> None:
    for notice in notices:
        print(redact(f"warning: {notice}"), file=sys.stderr)


def list_plugins(arguments: argparse.Namespace) -> None:
    """``list`` and ``recipes``."""
    if arguments.components:
        host = _host(arguments)
        plugins = [plugin_report(plugin, arguments.kind) for plugin in host.plugins]
        answer(arguments, {"plugins": plugins}, component_lines(plugins, screen_width()))
        return
    selection = Selection.from_environment(arguments.block_plugin)
    found = find_plugins(selection)
    _warn(without_effect(selection, found))
    plugins = [metadata(plugin) for plugin in found]
    answer(arguments, {"plugins": plugins}, installed_lines(plugins, screen_width()))


def describe(arguments: argparse.Namespace) -> None:
    """``info``."""
    host = _host(arguments)
    chosen = [(plugin, offers) for plugin in host.plugins if (offers := _offers_of(plugin, arguments.name)) is not None]
    if not chosen:
        raise _unknown_error("plugin or component", arguments.name, host.plugins)
    reports = [
        plugin_report(plugin) | {"components": [component_report(offer, host.kinds) for offer in offers]}
        for plugin, offers in chosen
    ]
    pages = ["\n".join(plugin_lines(report, screen_width())) for report in reports]
    answer(arguments, {"plugins": reports}, ["\n\n".join(pages)])


def _offers_of(plugin: Plugin, name: str) -> list[Offer] | None:
    """Return what of a plugin a name means: all of it, its components of that name, or nothing of it."""
    wanted = canonicalize(name)
    if _is(plugin, name):
        return plugin.offers
    return [
        offer
        for offer in plugin.offers
        if wanted in (canonicalize(offer.component.name), canonicalize(offer.qualified_name))
    ] or None


def check(arguments: argparse.Namespace) -> int:
    """``check``."""
    host = _host(arguments)
    chosen = [plugin for plugin in host.plugins if arguments.name is None or _is(plugin, arguments.name)]
    if not chosen and arguments.name is not None:
        raise _unknown_error("plugin", arguments.name, host.plugins)
    reports = [plugin_report(plugin) | {"problems": problems(plugin, host)} for plugin in chosen]
    answer(arguments, {"plugins": reports}, check_lines(reports, screen_width()))
    failed = arguments.name is not None and any(plugin.status == "failed" for plugin in chosen)
    wrong = bool(host.unused_names) or any(report["problems"] for report in reports)
    return int(failed or (arguments.strict and wrong))


def _is(plugin: Plugin, name: str) -> bool:
    return canonicalize(name) in (canonicalize(plugin.info.name), canonicalize(plugin.info.distribution))


def _unknown_error(what: str, name: str, plugins: Sequence[Plugin]) -> UsageError:
    known = [word for plugin in plugins for word in (plugin.info.name, plugin.info.distribution)]
    if "component" in what:
        known += [offer.component.name for plugin in plugins for offer in plugin.offers]
    absent = [f"{plugin.info.name} ({plugin.info.label})" for plugin in plugins if plugin.status != "loaded"]
    return UsageError(
        f"no {what} is named {name!r}. {did_you_mean(canonicalize(name), sorted(set(known)))}"
        f"Installed plugins: {', '.join(plugin.info.name for plugin in plugins)}."
        + (f" Failed or blocked: {', '.join(absent)}." if absent else "")
        + " `mt-plugins list --components` shows what each offers."
    )


if __name__ == "__main__":
    sys.exit(main())
