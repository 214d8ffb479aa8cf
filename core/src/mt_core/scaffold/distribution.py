"""A distribution in the making: its names, and its files out of the templates."""

from __future__ import annotations

import ast
import re
import shutil
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from string import Template

from mt_core.errors import OutputError, UsageError, did_you_mean
from mt_core.version import __version__

PREFIX = "mt-plugin-"
LONGEST = 30
"""Characters of a name: lines of the templates then stay within 120."""

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_WORDS = frozenset({"none", "null", "true", "false", "yes", "no", "on", "off"})
"""Words that YAML, or the command line, reads as something else than a name."""
_SUFFIX = ".tmpl"
_PLACES = {"package": "src/$package", "workflows": ".github/workflows"}
"""Folder of the templates → where its files go; the others keep their place."""
_HIDDEN = {"gitignore": ".gitignore"}

ABOUT = "template.toml"
"""File of a template with what its other files cannot say themselves."""

WITH_COMMANDS = ("model",)
"""Kinds whose distribution brings the commands (mt-tools), so that to install it is enough to train; the others have an extra."""


@dataclass(frozen=True, kw_only=True)
class KindTemplate:
    """The files of a new plugin of a kind, and its ``template.toml``: ``modules`` (file → what is in it), and ``try_it``, what to
    type to use one named ``{name}``. ``kind`` is as hooks have it.
    """

    kind: str
    folder: Traversable
    summary: str
    modules: Mapping[str, str]
    try_it: str
    imports_torch: bool = False


def read_template(kind: str, place: str) -> KindTemplate:
    """Return the template at ``MODULE:FOLDER``. Raises ``UsageError`` for one that is damaged, or not there."""
    module, _, path = place.partition(":")
    try:
        folder = resources.files(module).joinpath(*path.split("/"))
        about = tomllib.loads((folder / ABOUT).read_text(encoding="utf-8"))
        return KindTemplate(kind=kind, folder=folder, **about)
    except (ImportError, OSError, ValueError, TypeError) as error:
        raise UsageError(f"the template of kind {kind!r} at {place} cannot be read: {error}") from error


@dataclass(frozen=True)
class Distribution:
    """Everything about a new plugin before it is written; ``files`` by their path in its folder."""

    kind: KindTemplate
    name: str
    files: Mapping[PurePosixPath, str]

    @property
    def project(self) -> str:
        """Its name for pip."""
        return PREFIX + self.name

    def write(self, folder: Path) -> None:
        """Write all files into a folder that must not exist yet. Raises ``OutputError``, and then leaves nothing behind."""
        try:
            folder.mkdir(parents=True)
        except FileExistsError as error:
            raise OutputError(
                f"{folder} exists already, and nothing is overwritten; choose another --output"
            ) from error
        except OSError as error:
            raise OutputError(f"{folder} cannot be made: {error.strerror}; choose another --output") from error
        try:
            for place, text in self.files.items():
                (folder / place).parent.mkdir(parents=True, exist_ok=True)
                (folder / place).write_text(text, encoding="utf-8")
        except OSError as error:
            shutil.rmtree(folder)
            raise OutputError(f"{folder} cannot be written: {error.strerror}; choose another --output") from error


def draft(
    kind: str, name: str, places: Mapping[str, str], bringers: Mapping[str, tuple[str, str]] | None = None
) -> Distribution:
    """A plugin of this kind with one component of this name; ``places`` are kinds → ``MODULE:FOLDER`` of their templates.

    ``bringers`` are kinds that a plugin brings → its distribution and version, which the new one depends on. Raises ``UsageError``.
    """
    known = {each.replace("_", "-"): each for each in places}
    if kind not in known:
        raise UsageError(f"no template for {kind!r}. {did_you_mean(kind, list(known))}There are: {', '.join(known)}.")
    own = read_template(known[kind], places[known[kind]])
    short = _component_name(name)
    values = _values(kind, own, short, (bringers or {}).get(own.kind))
    texts = {place: Template(text).substitute(values) for place, text in _templates(own)}
    placed = {PurePosixPath(Template(str(place)).substitute(values)): text for place, text in texts.items()}
    _refuse_clashes(placed, name)
    return Distribution(own, short, dict(sorted(placed.items())))


def _component_name(given: str) -> str:
    """The component's name, out of it or that of the distribution."""
    name = given.strip().lower().replace("_", "-").removeprefix(PREFIX)
    if not _NAME.fullmatch(name) or len(name) > LONGEST:
        near = re.sub(r"[^a-z0-9]+", "-", name).strip("-0123456789")[:LONGEST].strip("-")
        hint = f" Did you mean {near!r}?" if _NAME.fullmatch(near) else ""
        raise UsageError(
            f"{given!r} is no name for a plugin.{hint} Use up to {LONGEST} lower-case letters, digits and single '-' between them,"
            " starting with a letter"
        )
    if name in _WORDS:
        raise UsageError(f"{given!r} means something else than a name in a config; choose another one")
    return name


def _values(kind: str, own: KindTemplate, name: str, bringer: tuple[str, str] | None) -> dict[str, str]:
    release = _releases(__version__)
    needs = [
        f"mt-core{release}",
        *([f"mt-tools{release}"] if own.kind in WITH_COMMANDS else []),
        *([bringer[0] + _releases(bringer[1])] if bringer else []),
        *(["torch>=2.9,<3"] if own.imports_torch else []),
        "pydantic>=2.11,<3",
    ]
    trains = any(need.startswith(("mt-tools", "mt-train")) for need in needs)
    package = (PREFIX + name).replace("-", "_")
    return {
        "name": name,
        "distribution": PREFIX + name,
        "package": package,
        "snake": name.replace("-", "_"),
        "camel": _camel(name).removesuffix(_camel(kind)) or _camel(name),  # my-model gives MyModel, not MyModelModel
        "words": kind.replace("-", " "),
        "summary": own.summary,
        "extras": "" if trains else f'train = ["mt-train{release}"]\n',
        "dependencies": ", ".join(f'"{need}"' for need in sorted(needs)),
        "files": "\n".join(f"| `src/{package}/{file}` | {what} |" for file, what in own.modules.items()),
        "try_it": own.try_it.format(name=name),
    }


def _releases(version: str) -> str:
    """Return the releases that are like this one, as pip has them; any where the version has no number in it."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return f">={found[0]},<{found[1]}.{int(found[2]) + 1}" if found else ""


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("-"))


def _templates(own: KindTemplate) -> Iterator[tuple[PurePosixPath, str]]:
    """Return where each file goes, its names still to be filled in, and its text."""
    for source in (resources.files("mt_core.scaffold") / "templates" / "common", own.folder):
        for parts, file in _files(source):
            *folders, last = parts
            name = last.removesuffix(_SUFFIX)
            place = PurePosixPath(*(_PLACES.get(folder, folder) for folder in folders), _HIDDEN.get(name, name))
            yield place, file.read_text(encoding="utf-8")


def _files(folder: Traversable) -> Iterator[tuple[tuple[str, ...], Traversable]]:
    for item in sorted(folder.iterdir(), key=lambda each: each.name):
        if item.is_dir():
            yield from (((item.name, *parts), file) for parts, file in _files(item))
        elif item.name.endswith(_SUFFIX):
            yield (item.name,), item


def _refuse_clashes(files: Mapping[PurePosixPath, str], name: str) -> None:
    """``train`` would give a class ``TrainModel``, beside the one that it imports."""
    for place, text in files.items():
        if place.suffix != ".py":
            continue
        counts = Counter(_bound_names(ast.parse(text)))
        if taken := [each for each, count in counts.items() if count > 1]:
            raise UsageError(f"{name!r} would give a second {taken[0]!r} in {place.name}; choose another name")


def _bound_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            yield from (alias.asname or alias.name for alias in node.names if alias.name != "annotations")
        elif isinstance(node, ast.ClassDef | ast.FunctionDef) and node in tree.body:
            yield node.name
