"""Names that distributions of this project offer, or a new plugin beside, so that one that is not installed is met with its ``pip`` line.

``shipped.json`` has them by kind and distribution; ``python tests/reference/write_pages.py`` writes it.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path

from mt_core.errors import UnknownComponentError
from mt_core.plugins.host import Offer, PluginHost
from mt_core.plugins.metadata import canonicalize, words
from mt_train.config.foreign_answers import answer_component
from mt_train.plugins.hub import is_name, is_there

FILE = "shipped.json"
PATHS = {
    "model": "model.weights",
    "dataset": "dataset.path",
    "tokenizer": "tokenizer.path",
    "adapter": "adapter.weights",
}
"""Kind → the key for a path, which is easily given in the place of a name."""
HUB = {"model": "--model.weights", "dataset": "--dataset hf --dataset.path"}
"""Kind → the options for a name on the Hub, which other programs take in the same place."""


def find_offer(host: PluginHost, kind: str, name: str) -> Offer:
    """Return the component of a kind and name. Raises ``UnknownComponentError``, with the line that installs it where that is known."""
    try:
        return host.get(kind, name)
    except UnknownComponentError as error:
        installed = {plugin.info.distribution for plugin in host.plugins}
        if (folder := _new_plugin(name)) is not None and _distribution(name) not in installed:
            raise UnknownComponentError(
                f"no {words(kind)} named {name!r} is installed; {folder.absolute()} is a plugin of that name: pip install -e {folder}"
            ) from error
        distribution = distribution_of(kind, name)
        if distribution is not None and distribution not in installed:
            raise UnknownComponentError(
                f"{words(kind)} {name!r} comes with {distribution}, which is not installed here: pip install {distribution}"
            ) from error
        if (key := PATHS.get(kind)) is not None and is_there(Path(name)):
            raise UnknownComponentError(
                f"no {words(kind)} is named {name!r}, which is a path here: --{key} {name} gives it"
            ) from error
        if (options := HUB.get(kind)) is not None and is_name(name):
            raise UnknownComponentError(
                f"no {words(kind)} is named {name!r}, which may be a name on the Hub: {options} {name} gives it"
            ) from error
        if (answer := answer_component(kind, canonicalize(name))) and host.offers(kind):
            raise UnknownComponentError(f"no {words(kind)} named {name!r}. {answer}") from error
        raise


def distribution_of(kind: str, name: str) -> str | None:
    """Return the distribution of this project that offers a component; ``None`` for a name that none offers."""
    short = canonicalize(name)
    return next((distribution for distribution, names in _table().get(kind, {}).items() if short in names), None)


def _distribution(name: str) -> str:
    """Return how ``mt-plugins new`` calls the distribution of a plugin."""
    return f"mt-plugin-{canonicalize(name)}"


def _new_plugin(name: str) -> Path | None:
    """Return the folder that ``mt-plugins new`` has made for a name, where it lies here or is the one that the command runs in."""
    import tomllib  # here: a name that is known needs none

    distribution = _distribution(name)
    for folder in (Path(distribution), Path()):
        try:
            about = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
        except (OSError, ValueError):  # none there, or none that can be read: what is installed is told instead
            continue
        if isinstance(project := about.get("project"), dict) and project.get("name") == distribution:
            return folder
    return None


@cache
def _table() -> dict[str, dict[str, list[str]]]:
    text = files(__package__).joinpath(FILE).read_text(encoding="utf-8")
    table: dict[str, dict[str, list[str]]] = json.loads(text)
    return table
