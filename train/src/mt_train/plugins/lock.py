"""The code that a run is made of: its distributions, their versions, and a hash of their files.

``importlib.metadata`` is imported where it is asked: every command imports this module, and few of them ask.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mt_core.errors import CheckpointError
from mt_core.plugins.host import Offer
from mt_core.plugins.lock_file import origins, read_lock
from mt_core.plugins.metadata import CORE, GROUP, TRAINING, PluginInfo, place_of
from mt_core.plugins.pins import indexes, pins
from mt_core.version import __version__
from mt_train.plugins.modules import VARIABLE, is_module_alone

LIBRARIES = ("deepspeed", "torch")
"""Distributions that compute beside the core and its plugins."""

MODULES = "modules"
"""Key of a lock: modules that are plugins and of no distribution, with a hash of each."""

ALWAYS = (CORE, TRAINING)
"""Distributions whose code is in every run; any other one is in a run through a component that it offers."""


def lock_content(offers: Iterable[Offer]) -> dict[str, Any]:
    """The content of ``plugins.lock.json``: every distribution that takes part, ``ALWAYS`` and who brings a kind among them.

    A hash is of the files that are imported, so that a wheel and a folder that is worked on (``editable``) have the same one.
    """
    from importlib import metadata

    taking, alone = _always(), set[str]()
    for plugin in (each for offer in offers for each in (offer.plugin, offer.bringer) if each is not None):
        if is_module_alone(plugin):
            alone.add(plugin.module)
        else:
            taking[plugin.distribution] = plugin
    modules = {MODULES: {name: code_hash(name) for name in sorted(alone)}} if alone else {}
    return {
        "core": __version__,
        "plugins": {name: taking[name].version for name in sorted(taking)},
        "libraries": {name: metadata.version(name) for name in LIBRARIES},
        "sha256": {name: distribution_hash(name, taking[name].module) for name in sorted(taking)},
        "origins": {name: taking[name].origin for name in sorted(taking) if taking[name].origin},
        "editable": sorted(name for name, plugin in taking.items() if plugin.editable),
        **modules,
    }


@dataclass(frozen=True)
class _Distribution:
    """The lock's entry of a distribution that offers no component."""

    version: str
    module: str
    origin: str
    editable: bool


def _always() -> dict[str, _Distribution | PluginInfo]:
    """Return what each run takes; nothing of what is not installed, as where a test has but the sources on its path."""
    from importlib import metadata

    found: dict[str, _Distribution | PluginInfo] = {}
    for name in ALWAYS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            each = metadata.distribution(name)
            module = name.replace("-", "_")
            place = place_of(each)
            found[name] = _Distribution(each.version, module, place.origin, bool(place.sources))
    return found


def distribution_hash(name: str, module: str = "") -> str:
    """SHA-256 of the packages that a distribution's plugins are in; of ``module`` where a test offers what none installed."""
    from importlib import metadata

    try:
        points = metadata.distribution(name).entry_points.select(group=GROUP)
    except metadata.PackageNotFoundError:
        return code_hash(module)
    if name in ALWAYS:  # mt-core is no plugin; that of mt-train is for the doctor
        return code_hash(name.replace("-", "_"))
    return code_hash(*sorted({point.value.partition(":")[0] for point in points}))


def code_hash(*modules: str) -> str:
    """SHA-256 of the top-level packages of these modules, data files included: a version that holds while somebody works on them."""
    digest = hashlib.sha256()
    for top in filter(None, dict.fromkeys(module.partition(".")[0] for module in modules)):
        for name, path in _files(top):
            content = path.read_bytes()
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _files(top: str) -> Iterator[tuple[str, Path]]:
    """The files of a package by their names in it, or the one of a module; nothing that Python or an editor leaves there."""
    module = sys.modules.get(top) or importlib.util.find_spec(top)
    places = [Path(place) for place in _places(module)]
    for place in places:
        found = (path for path in sorted(place.rglob("*")) if path.is_file())
        named = ((path.relative_to(place), path) for path in found)
        yield from ((f"{top}/{name.as_posix()}", path) for name, path in named if not _is_left_over(name))
    alone = getattr(module, "__file__", None) or getattr(module, "origin", None)
    if not places and alone:
        yield top, Path(alone)


def _places(module: Any) -> Iterable[str]:
    """The folders of a package, loaded or not; none of a module that is one file."""
    return getattr(module, "__path__", None) or getattr(module, "submodule_search_locations", None) or ()


def _is_left_over(name: Path) -> bool:
    return name.suffix in (".pyc", ".pyo") or any(part == "__pycache__" or part.startswith(".") for part in name.parts)


# -------------------------------------------------------------------------------------------------------- comparison


def check_lock(folder: Path) -> str:
    """Describe the code that is not the run's; nothing when all of it is.

    Raises ``CheckpointError`` with the ``pip install`` line when a plugin is missing.
    """
    lock = read_lock(folder)
    return f"notice: {note}" if (note := compare(lock, f"the run {folder}")) else ""


def compare(lock: Mapping[str, Any], whose: str) -> str:
    """Return what differs here from what ``whose`` was made of, with the ``pip install`` line; nothing where all is the same.

    Raises ``CheckpointError`` with the line when a plugin is not installed.
    """
    modules = _modules(lock, whose)
    plugins, computing = lock["plugins"], lock.get("libraries", {})
    then = {**plugins, **computing}
    now = {name: installed_version(name) for name in then}
    line = pip_line({name: version for name, version in then.items() if now[name] != version}, origins(lock))
    if missing := [name for name in plugins if now[name] is None]:
        raise CheckpointError(f"{whose} used {', '.join(missing)}, not installed here: {line}")
    if other := [f"{name} {then[name]}, now {now[name] or 'none'}" for name in then if now[name] != then[name]]:
        return f"{whose} used {'; '.join(other)}. Equal bits are promised with the same versions only: {line}"
    changed = [name for name, value in lock.get("sha256", {}).items() if distribution_hash(name) != value]
    changed += [name for name, value in modules.items() if code_hash(name) != value]
    if not changed:
        return ""
    return (
        f"{whose} used other files of {', '.join(changed)}, under the same version: they have been worked on since."
        " Equal bits are promised with the same files only"
    )


def _modules(lock: Mapping[str, Any], whose: str) -> dict[str, str]:
    """Return the modules of a lock, all of which this program has imported; none is imported because a file names it."""
    modules = lock.get(MODULES, {})
    if not isinstance(modules, dict) or not all(map(_is_module, modules.items())):
        raise CheckpointError(f"the lock of {whose} has in {MODULES!r} what is no module with its hash; it is damaged")
    if absent := [name for name in modules if name not in sys.modules]:
        raise CheckpointError(
            f"{whose} used modules of a program as plugins: {', '.join(absent)}. A program gives them again with plugins=[…], and a"
            f" command takes them with {VARIABLE}={','.join(absent)}"
        )
    return modules


def _is_module(item: tuple[str, object]) -> bool:
    name, digest = item
    return isinstance(digest, str) and all(part.isidentifier() for part in name.split("."))


def pip_line(versions: Mapping[str, str], origins: Mapping[str, str]) -> str:
    """Return what to type for exactly these, as a shell reads it, and where those are from that no index has.

    An address that a file names is told, and no word of the line: it may be anybody's.
    """
    listed = {name: version for name, version in versions.items() if name not in origins}
    wanted = pins(listed)
    options = [word for line in indexes(listed) for word in line.split()]
    line = [shlex.join(["pip", "install", *wanted, *options])] if wanted else []
    told = [
        f"{name} {versions[name]} was installed from {origin}, and has to be installed from there"
        for name, origin in origins.items()
        if name in versions
    ]
    return "; ".join(line + told) or "no version of theirs is known, so there is none to install"


def installed_version(distribution: str) -> str | None:
    """The version of a distribution; ``None`` where it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
