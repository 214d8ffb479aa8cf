"""Recipes: configs of whole runs that distributions ship, found by name.

The file of recipe ``NAME`` is ``recipes/NAME.yaml`` in the package of the plugin that offers it; the component says what it is for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from mt_core.errors import ComponentError
from mt_core.kinds import Kinds
from mt_core.plugins.host import Offer, PluginHost
from mt_train.config.layers import RECIPE, Layer, Layers, read_layers
from mt_train.plugins.modules import load_plugins
from mt_train.plugins.shipped import find_offer

KIND = "recipe"


def read_recipe(name: str, host: PluginHost) -> Iterator[Layer]:
    """Yield the layers of a recipe. Raises ``UnknownComponentError``, with the line that installs it if it is one of ours."""
    offer = find_offer(host, KIND, name)
    yield from read_layers(recipe_file(offer), f"{RECIPE}{offer.component.name}")


def read_sources(recipe: str | None, files: Iterable[Path], host: PluginHost) -> list[Layer]:
    """Return the layers of a recipe, where one is named, and of config files over it, the last on top."""
    layers = [] if recipe is None else [*read_recipe(recipe, host)]
    return layers + [layer for file in files for layer in read_layers(file)]


def read_layered(recipe: str | None, files: Iterable[Path]) -> dict[str, Any]:
    """Return what a recipe and config files over it say together, key by key."""
    files = tuple(files)
    if recipe is None and not files:
        return {}
    host = load_plugins()
    return Layers.of(read_sources(recipe, files, host), host.kinds).raw


def installed_kinds() -> Kinds:
    """Return the kinds of components that a run may name here: those of the core, and those that installed plugins bring."""
    return load_plugins().kinds


def recipe_file(offer: Offer) -> Path:
    """Return the YAML file of a recipe. Raises ``ComponentError`` where its distribution has none."""
    package = sys.modules[offer.plugin.module].__package__ or offer.plugin.module
    file = Path(str(files(package))) / "recipes" / f"{offer.component.name}.yaml"
    if not file.is_file():
        raise ComponentError(
            f"recipe {offer.component.name!r} of {offer.plugin.label} has no file {file}; ship it as package data"
        )
    return file
