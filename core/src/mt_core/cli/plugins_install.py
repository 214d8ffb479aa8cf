"""``mt-plugins freeze``, ``install`` and ``uninstall``: exact pins, and the installer of this very interpreter."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import shlex
import shutil
import sys
from pathlib import Path

from mt_core.cli.plugins import answer
from mt_core.errors import MtError, UsageError, did_you_mean
from mt_core.plugins.metadata import OWN, PluginInfo, Selection, canonicalize, find_plugins
from mt_core.plugins.pins import FILE, FOLDER, indexes, is_name, pins, unfit_reason, unpinned_names


def freeze(arguments: argparse.Namespace) -> None:
    """``freeze``."""
    lines = _lines_of(arguments.run) if arguments.run is not None else _lines_here(arguments.block_plugin)
    answer(arguments, {"pins": lines}, lines)


def _lines_of(run: Path) -> list[str]:
    """Return what took part in a run. Raises ``CheckpointError`` for a damaged lock, ``UsageError`` for a folder without one."""
    from mt_core.plugins.lock_file import LOCK_FILE, origins, read_lock

    if not (run / LOCK_FILE).exists():
        raise UsageError(f"{run} has no {LOCK_FILE}; give the folder of a run, or none for what is installed here")
    lock = read_lock(run)
    versions = {**lock["plugins"], **lock.get("libraries", {})}
    _warn_unpinned(unpinned_names(versions))
    came = origins(lock)
    listed = {name: version for name, version in versions.items() if name not in came}
    return [
        *indexes(listed),
        *pins(listed),
        *(remark(name, versions[name], came[name]) for name in versions if name in came),
    ]


def _lines_here(block: list[str]) -> list[str]:
    """Return what is installed, a line for each distribution."""
    found = {
        plugin.distribution: plugin for plugin in find_plugins(Selection.from_environment(block)) if not plugin.blocked
    }
    lines = {name: line for name, plugin in found.items() if (line := pin(plugin))}
    _warn_unpinned([name for name in found if name not in lines])
    return list(lines.values())


def _warn_unpinned(names: list[str]) -> None:
    for name in names:
        print(f"warning: {name!r} has no name or version that pip knows, and is left out", file=sys.stderr)


def pin(plugin: PluginInfo) -> str:
    """A line of a requirements file: the version, where it came from, or the folder of one that is worked on; empty where pip would
    not read it."""
    versions = {plugin.distribution: plugin.version}
    if unfit_reason(versions) or unpinned_names(versions):
        return ""
    line = pins(versions)[0]
    if plugin.editable:
        return f"-e {_folder(plugin.location)}  # {line}"
    if plugin.origin in (FOLDER, FILE):
        return remark(plugin.distribution, plugin.version, plugin.origin)
    return f"{plugin.distribution} @ {plugin.origin}" if plugin.origin else line


def remark(name: str, version: str, origin: str) -> str:
    """A comment for what came from no index, since one may have another distribution under that name."""
    return f"# {name}=={version} was installed from {origin}: install it from there"


def _folder(location: str) -> str:
    """A folder as one word of a requirements file, where a space ends a word, ``#`` begins a comment and ``$`` a variable."""
    return location if shlex.quote(location) == location else Path(location).absolute().as_uri()


def install(arguments: argparse.Namespace) -> None:
    """``install``."""
    words = [*arguments.what, *(word for folder in arguments.editable for word in ("-e", folder))]
    if not words:
        raise UsageError(
            "nothing to install; name a distribution, a folder or a wheel, as in mt-plugins install mt-plugin-llama"
        )
    before = {(plugin.name, plugin.label) for plugin in find_plugins(Selection())}
    _run(["install", *(["--upgrade"] if arguments.upgrade else []), *words])
    _say_new(before)


def _say_new(before: set[tuple[str, str]]) -> None:
    """Print which plugins there are now that were not, or not in this version."""
    importlib.invalidate_caches()
    for plugin in find_plugins(Selection()):
        if (plugin.name, plugin.label) not in before:
            print(f"plugin {plugin.name} ({plugin.label}): `mt-plugins info {plugin.name}` shows what it offers")


def uninstall(arguments: argparse.Namespace) -> None:
    """``uninstall``."""
    found = find_plugins(Selection())
    _run(["uninstall", *dict.fromkeys(_distribution(name, found) for name in arguments.names)])


def _distribution(name: str, found: list[PluginInfo]) -> str:
    """The distribution of a plugin. Raises ``UsageError`` for a name that none has, and for the core."""
    known = {canonicalize(word): plugin.distribution for plugin in found for word in (plugin.name, plugin.distribution)}
    distribution = known.get(canonicalize(name))
    if distribution is None:
        hint = did_you_mean(canonicalize(name), sorted(known))
        raise UsageError(f"no installed plugin is named {name!r}. {hint}`mt-plugins list` shows what is installed.")
    if canonicalize(distribution) in OWN:
        raise UsageError(
            f"{name!r} is of {distribution}, without which no plugin works; remove it with pip uninstall {distribution}"
        )
    if not is_name(distribution):  # pip would read an option out of it
        raise UsageError(
            f"{distribution!r} is no name of a distribution, and cannot be given to pip; remove it by hand"
        )
    return distribution


def _run(words: list[str]) -> None:
    """Run the installer, whose output goes to standard error. Raises ``MtError`` where there is none, or it fails."""
    command = _installer(words)
    import subprocess  # here: a listing needs none

    result = subprocess.run(command, stdout=sys.stderr, check=False)
    if result.returncode:
        raise MtError(f"{shlex.join(command)} ended with {result.returncode}; what it said is above")


def _installer(words: list[str]) -> list[str]:
    """pip of this interpreter, else uv for this interpreter. Raises ``MtError`` with the line to type where there is neither."""
    action, *rest = words
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", action, *(["--yes"] if action == "uninstall" else []), *rest]
    if uv := shutil.which("uv"):
        return [uv, "pip", action, "--python", sys.executable, *rest]
    line = shlex.join(["pip", "--python", sys.executable, action, *rest])
    raise MtError(f"this Python has no pip, and there is no uv; where there is one, type: {line}")
