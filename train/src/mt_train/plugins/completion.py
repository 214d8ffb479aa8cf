"""Scripts that complete, in a shell, the commands that take a run's options: these and names of what is installed, written by shtab.

A script is static, so that completing starts no Python; it is printed anew after an install.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping

from mt_core.cli.guard import SHELLS
from mt_core.components import AdapterComponent, ModelFamily
from mt_core.config.base import MtConfig, nested_config
from mt_core.errors import UsageError, did_you_mean, show_value
from mt_core.plugins.host import PluginHost
from mt_train.config.run import SECTIONS, AdapterOptions, ModelOptions
from mt_train.plugins.modules import load_plugins

PATHS = frozenset(
    {
        *("cache", "config", "file", "folder", "html", "output", "path", "plot"),
        *("profile", "resume", "root", "run", "space", "weights"),
    }
)
"""Last words of options whose values are files or folders."""


def write_completion(
    prog: str,
    shell: str,
    host: PluginHost | None = None,
    *,
    switches: Iterable[str],
    values: Iterable[str],
    commands: Iterable[str] = (),
) -> str:
    """Return the script of a shell for a command with a run's options and these of its own. Raises ``UsageError`` for a shell that
    is none of ``SHELLS``. ``commands`` are what its first word may be; ``host``: what is installed, where nobody has looked yet.
    """
    if shell not in SHELLS:
        raise UsageError(
            f"--completion {show_value(shell)} is no shell that is known. {did_you_mean(shell, SHELLS)}It takes {', '.join(SHELLS)}"
        )
    import shtab

    parser = argparse.ArgumentParser(prog=prog, add_help=False)
    if first := tuple(commands):
        parser.add_argument("command", choices=first)
    _add_options(parser, _options(host or load_plugins(), switches, values), shtab.FILE)
    return str(shtab.complete(parser, shell=shell))


def _add_options(
    parser: argparse.ArgumentParser, options: Mapping[str, tuple[str, ...] | None], files: Mapping[str, str]
) -> None:
    """Add what shtab reads; what a run is given is read by ``mt_train.config.commandline``."""
    for option, choices in options.items():
        if choices is None:
            parser.add_argument(option, action="store_true")
        else:
            action = parser.add_argument(option, choices=choices or None)
            if not choices and option.replace(".", "-").rpartition("-")[2] in PATHS:
                vars(action)["complete"] = files


def _options(host: PluginHost, switches: Iterable[str], values: Iterable[str]) -> dict[str, tuple[str, ...] | None]:
    """Each option with the words that may follow it: none known (empty), or no word at all (``None``)."""
    found: dict[str, tuple[str, ...] | None] = {_flag(name): None for name in switches if name != "help"}
    found |= {_flag(name): _names(host, name) for name in values}
    found |= {"--help": ("all", *topics(host)), "--completion": SHELLS}
    for section, config in SECTIONS.items():
        found |= dict.fromkeys(_keys(section, config), ())
    for kind in host.kinds.values():
        if kind.slot == "part":
            continue
        found[_flag(kind.key)] = _names(host, kind.name)
        for offer in host.offers(kind.name):
            component = offer.component
            prefix = kind.key if kind.slot == "one" else f"{kind.key}.{component.name}"
            configs = [component.config]
            configs += [ModelOptions] * isinstance(component, ModelFamily)
            configs += [AdapterOptions] * isinstance(component, AdapterComponent)
            found |= {key: () for config in configs for key in _keys(prefix, config) if key not in found}
        if kind.name == "model":
            sizes = (size for offer in host.offers(kind.name) for size in getattr(offer.component, "variants", ()))
            found[f"{_flag(kind.key)}.variant"] = tuple(dict.fromkeys(sizes))
    return found


def topics(host: PluginHost) -> tuple[str, ...]:
    """Names that ``--help`` takes: sections of the config, and keys of kinds that a run names."""
    return (*SECTIONS, *(kind.key.replace("_", "-") for kind in host.kinds.values() if kind.slot != "part"))


def _names(host: PluginHost, kind: str) -> tuple[str, ...]:
    """Names of the components of a kind; empty where it is no kind."""
    return tuple(dict.fromkeys(offer.component.name for offer in host.offers(kind)))


def _keys(prefix: str, config: type[MtConfig]) -> Iterable[str]:
    for name, field in config.model_fields.items():
        yield _flag(f"{prefix}.{name}")
        if nested := nested_config(field.annotation):
            yield from _keys(f"{prefix}.{name}", nested)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
