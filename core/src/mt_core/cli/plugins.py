"""``mt-plugins``: what is installed, what it offers, and whether it loads.

``list`` reads metadata alone, so the host, pydantic and the plugins are imported by the other commands only.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from mt_core.cli import plugins_install, plugins_new
from mt_core.cli.guard import parse_and_run
from mt_core.cli.plugins_report import SCHEMA, Report, component_report, metadata, plugin_report, problems
from mt_core.cli.plugins_text import check_lines, component_lines, installed_lines, plugin_lines, screen_width
from mt_core.config.secrets import redact, redact_values
from mt_core.errors import UsageError, did_you_mean
from mt_core.plugins.metadata import Selection, canonicalize, find_plugins, without_effect
from mt_core.version import __version__

if TYPE_CHECKING:
    from mt_core.plugins.host import Offer, Plugin, PluginHost


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return parse_and_run(_parser(), _run, argv)


def _run(arguments: argparse.Namespace) -> int:
    code = int(arguments.command(arguments))
    sys.stdout.flush()  # a closed pipe is noticed here, where it is handled
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mt-plugins", description="List, describe and check the installed plugins.")
    parser.add_argument("--version", action="version", version=f"mt-core {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    plain = argparse.ArgumentParser(add_help=False)
    plain.add_argument("--debug", action="store_true", help="show tracebacks")
    common = argparse.ArgumentParser(add_help=False, parents=[plain])
    common.add_argument("--json", action="store_true", help="machine-readable output")
    common.add_argument("--block-plugin", action="append", default=[], metavar="NAME", help="do not import this plugin")
    lister = commands.add_parser("list", parents=[common], help="the installed plugins, from metadata alone")
    lister.add_argument("--components", action="store_true", help="load the plugins and list what each offers")
    lister.set_defaults(command=_list, kind="")
    recipes = commands.add_parser(
        "recipes", parents=[common], help="runs that distributions ship: mt-train --recipe NAME"
    )
    recipes.set_defaults(command=_list, components=True, kind="recipe")
    info = commands.add_parser("info", parents=[common], help="everything about a plugin or a component")
    info.add_argument("name", metavar="NAME", help="entry point, distribution, component or DISTRIBUTION/COMPONENT")
    info.set_defaults(command=_info)
    check = commands.add_parser("check", parents=[common], help="load each plugin and say what is wrong")
    check.add_argument("name", metavar="NAME", nargs="?", help="only this plugin; exit 1 when it failed")
    check.add_argument("--strict", action="store_true", help="exit 1 on any problem")
    check.set_defaults(command=_check)
    doctor = commands.add_parser(
        "doctor", parents=[common], help="machine, packages and plugins, to paste into an issue"
    )
    doctor.set_defaults(command=_doctor)
    plugins_new.add_parser(commands, common)
    plugins_install.add_parsers(commands, common, plain)
    return parser


def _host(arguments: argparse.Namespace) -> PluginHost:
    from mt_core.plugins.host import PluginHost

    return PluginHost.discover(Selection.from_environment(arguments.block_plugin))


def _say(arguments: argparse.Namespace, plugins: list[Report], lines: Iterable[str]) -> None:
    if arguments.json:
        print(json.dumps(redact_values({"schema": SCHEMA, "core": __version__, "plugins": plugins}), indent=2))
    else:
        print(redact("\n".join(lines)))


def _warn(notices: Iterable[str]) -> list[str]:
    listed = list(notices)
    for notice in listed:
        print(redact(f"warning: {notice}"), file=sys.stderr)
    return listed


def _list(arguments: argparse.Namespace) -> int:
    if arguments.components:
        host = _host(arguments)
        _warn(host.unused_names)
        plugins = [plugin_report(plugin, arguments.kind) for plugin in host.plugins]
        _say(arguments, plugins, component_lines(plugins, screen_width()))
        return 0
    selection = Selection.from_environment(arguments.block_plugin)
    found = find_plugins(selection)
    _warn(without_effect(selection, found))
    plugins = [metadata(plugin) for plugin in found]
    _say(arguments, plugins, installed_lines(plugins, screen_width()))
    return 0


def _info(arguments: argparse.Namespace) -> int:
    host = _host(arguments)
    _warn(host.unused_names)
    chosen = [(plugin, offers) for plugin in host.plugins if (offers := _offers_of(plugin, arguments.name)) is not None]
    if not chosen:
        raise _unknown_error("plugin or component", arguments.name, host.plugins)
    reports = [
        plugin_report(plugin) | {"components": [component_report(offer, host.kinds) for offer in offers]}
        for plugin, offers in chosen
    ]
    pages = ["\n".join(plugin_lines(report, screen_width())) for report in reports]
    _say(arguments, reports, ["\n\n".join(pages)])
    return 0


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


def _check(arguments: argparse.Namespace) -> int:
    host = _host(arguments)
    chosen = [plugin for plugin in host.plugins if arguments.name is None or _is(plugin, arguments.name)]
    if not chosen and arguments.name is not None:
        raise _unknown_error("plugin", arguments.name, host.plugins)
    notices = _warn(host.unused_names)
    reports = [plugin_report(plugin) | {"problems": problems(plugin, host)} for plugin in chosen]
    _say(arguments, reports, check_lines(reports, screen_width()))
    failed = arguments.name is not None and any(plugin.status == "failed" for plugin in chosen)
    wrong = bool(notices) or any(report["problems"] for report in reports)
    return int(failed or (arguments.strict and wrong))


def _doctor(arguments: argparse.Namespace) -> int:
    from mt_core.cli import doctor

    report = doctor.examine(_host(arguments))
    wrong = doctor.problems(report)
    if arguments.json:
        told = {"schema": SCHEMA, "core": __version__, "doctor": report, "problems": wrong}
        print(json.dumps(redact_values(told), indent=2))
    else:
        print(redact("\n".join(doctor.lines(report))))
    return int(bool(wrong))


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
