"""``mt-plugins``: what is installed, what it offers, and whether it loads."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mt_core import __version__
from mt_core.cli.guard import guarded
from mt_core.errors import UsageError, did_you_mean
from mt_core.plugins.metadata import Installed, Selection, canonical, installed

if TYPE_CHECKING:
    from mt_core.plugins.host import Offer, Plugin, PluginHost

SCHEMA = 1
"""Version of the JSON envelope."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = _parser().parse_args(argv)
    return guarded(lambda: int(arguments.command(arguments)), debug=arguments.debug)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mt-plugins", description="List, describe and check the installed plugins.")
    parser.add_argument("--version", action="version", version=f"mt-core {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="machine-readable output")
    common.add_argument("--block-plugin", action="append", default=[], metavar="NAME", help="do not import this plugin")
    common.add_argument("--debug", action="store_true", help="show tracebacks")
    lister = commands.add_parser("list", parents=[common], help="the installed plugins, from metadata alone")
    lister.add_argument("--components", action="store_true", help="load the plugins and list what each offers")
    lister.set_defaults(command=_list)
    info = commands.add_parser("info", parents=[common], help="everything about a plugin or a component")
    info.add_argument("name", help="entry point, distribution or component")
    info.set_defaults(command=_info)
    check = commands.add_parser("check", parents=[common], help="load each plugin and say what is wrong")
    check.add_argument("name", nargs="?", help="only this plugin")
    check.add_argument("--strict", action="store_true", help="exit 1 on any problem")
    check.set_defaults(command=_check)
    return parser


def _selection(arguments: argparse.Namespace) -> Selection:
    return Selection.from_environment(arguments.block_plugin)


def _host(arguments: argparse.Namespace) -> PluginHost:
    from mt_core.plugins.host import PluginHost

    return PluginHost.discover(_selection(arguments))


def _envelope(plugins: list[dict[str, Any]]) -> int:
    print(json.dumps({"schema": SCHEMA, "core": __version__, "plugins": plugins}, indent=2))
    return 0


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


# ---------------------------------------------------------------------------------------------------------------- list


def _list(arguments: argparse.Namespace) -> int:
    if arguments.components:
        return _list_components(arguments)
    found = installed(_selection(arguments))
    if arguments.json:
        return _envelope([_metadata(plugin) for plugin in found])
    rows = [[p.name, p.distribution, p.version, "blocked" if p.blocked else "installed", p.location] for p in found]
    _table(("name", "distribution", "version", "status", "location"), rows)
    return 0


def _metadata(plugin: Installed) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "module": plugin.module,
        "location": plugin.location,
        "status": "blocked" if plugin.blocked else "installed",
    }


def _list_components(arguments: argparse.Namespace) -> int:
    host = _host(arguments)
    if arguments.json:
        return _envelope([_loaded(plugin) for plugin in host.plugins])
    rows = [
        [
            offer.kind.replace("_", "-"),
            offer.component.name,
            plugin.info.distribution,
            plugin.status,
            offer.component.summary,
        ]
        for plugin in host.plugins
        for offer in plugin.offers
    ]
    _table(("kind", "name", "distribution", "status", "summary"), sorted(rows))
    for plugin in host.plugins:
        if plugin.status != "loaded":
            print(
                f"{plugin.info.name} ({plugin.info.label}) {plugin.status}"
                + (f": {plugin.error}" if plugin.error else "")
            )
    return 0


def _loaded(plugin: Plugin) -> dict[str, Any]:
    return {
        **_metadata(plugin.info),
        "status": plugin.status,
        "error": plugin.error,
        "load_ms": round(plugin.load_ms, 1),
        "components": [
            {"kind": offer.kind, "name": offer.component.name, "summary": offer.component.summary}
            for offer in plugin.offers
        ],
    }


# ---------------------------------------------------------------------------------------------------------------- info


def _info(arguments: argparse.Namespace) -> int:
    host, wanted = _host(arguments), canonical(arguments.name)
    plugins = [p for p in host.plugins if wanted in (canonical(p.info.name), canonical(p.info.distribution))]
    offers = [o for p in host.plugins for o in p.offers if canonical(o.component.name) == wanted]
    if not plugins and not offers:
        known = [name for p in host.plugins for name in (p.info.name, *(o.component.name for o in p.offers))]
        raise UsageError(
            f"no plugin or component named {arguments.name!r}. {did_you_mean(wanted, known)}"
            "`mt-plugins list --components` shows all."
        )
    if arguments.json:
        found = {id(plugin): plugin for plugin in plugins}
        found |= {id(p): p for p in host.plugins if any(offer in p.offers for offer in offers)}
        return _envelope([_loaded(plugin) | {"options": _schemas(plugin)} for plugin in found.values()])
    for plugin in plugins:
        print(f"{plugin.info.name}: {plugin.info.label}, {plugin.status}, {plugin.info.module}, {plugin.info.location}")
        if plugin.error:
            print(f"  {plugin.error}")
    own = [offer for plugin in plugins for offer in plugin.offers]
    for offer in {id(offer): offer for offer in [*own, *offers]}.values():
        _describe(offer)
    return 0


def _schemas(plugin: Plugin) -> dict[str, Any]:
    return {f"{o.kind}/{o.component.name}": o.component.config.model_json_schema() for o in plugin.offers}


def _describe(offer: Offer) -> None:
    from mt_core.cli.train_help import options
    from mt_core.protocols import ModelFamily

    component = offer.component
    print(f"\n{offer.kind.replace('_', ' ')} {component.name} ({offer.plugin.label}): {component.summary}")
    if component.source:
        print(f"  source: {component.source}")
    print(f"  layouts: {', '.join(sorted(component.layouts))}; devices: {', '.join(sorted(component.devices))}")
    for title, names in (("requires", component.requires), ("conflicts with", component.conflicts)):
        if names:
            print(f"  {title}: {', '.join(names)}")
    if isinstance(component, ModelFamily):
        print(f"  sizes: {', '.join(component.variants)} (default {component.default_variant})")
    if offer.kind not in ("train_model", "pipeline_layers"):  # built from the model's own options
        print("\n".join(options(offer.kind, component.config)))


# --------------------------------------------------------------------------------------------------------------- check


def _check(arguments: argparse.Namespace) -> int:
    host = _host(arguments)
    chosen = host.plugins
    if arguments.name:
        wanted = canonical(arguments.name)
        chosen = [p for p in chosen if wanted in (canonical(p.info.name), canonical(p.info.distribution))]
        if not chosen:
            names = [plugin.info.name for plugin in host.plugins]
            raise UsageError(
                f"no plugin named {arguments.name!r}. {did_you_mean(wanted, names)}Installed: {', '.join(names)}."
            )
    problems = [f"{p.info.name} ({p.info.label}): {p.error}" for p in chosen if p.status == "failed"]
    problems += _duplicates(host, {id(plugin) for plugin in chosen})
    if arguments.json:
        _envelope([_loaded(plugin) for plugin in chosen])
    else:
        for plugin in chosen:
            print(f"{plugin.info.name} ({plugin.info.label}): {plugin.status}, {len(plugin.offers)} components")
        for problem in problems:
            print(f"problem: {problem}", file=sys.stdout)
    named_failed = bool(arguments.name) and any(plugin.status == "failed" for plugin in chosen)
    return 1 if named_failed or (arguments.strict and problems) else 0


def _duplicates(host: PluginHost, chosen: set[int]) -> list[str]:
    """Names that several plugins offer."""
    found: dict[tuple[str, str], list[Plugin]] = {}
    for plugin in host.plugins:
        for offer in plugin.offers:
            if not offer.component.replaces:
                found.setdefault((offer.kind, canonical(offer.component.name)), []).append(plugin)
    return [
        f"{kind.replace('_', ' ')} {name!r} is offered by {', '.join(p.info.label for p in owners)}"
        for (kind, name), owners in found.items()
        if len(owners) > 1 and any(id(plugin) in chosen for plugin in owners)
    ]


if __name__ == "__main__":
    sys.exit(main())
