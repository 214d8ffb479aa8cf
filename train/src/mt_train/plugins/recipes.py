"""Recipes: configs of whole runs that distributions ship, found by name.

The file of recipe ``NAME`` is ``recipes/NAME.yaml`` in the package of the plugin that offers it; the component says what it is for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from mt_core.errors import ComponentError, UnknownComponentError
from mt_core.plugins.host import Offer, PluginHost
from mt_core.plugins.metadata import canonicalize
from mt_train.config.layers import Layer, read_layers

KIND = "recipe"
SHIPPED = {
    "dna-caption": "mt-plugin-bio",
    "dpo": "mt-plugin-alignment",
    "gemma-1b-chat-lora": "mt-plugin-gemma",
    "grpo": "mt-plugin-alignment",
    "images": "mt-plugin-multimodal",
    "llama-1b-alpaca-lora": "mt-plugin-llama",
    "llama-1b-ultrafeedback-dpo": "mt-plugin-llama",
    "llama-8b-alpaca-qlora": "mt-plugin-llama",
    "llama-8b-full": "mt-plugin-llama",
    "qlora": "mt-plugin-quantizers",
    "qwen-gsm8k-grpo": "mt-plugin-qwen",
    "reward": "mt-plugin-alignment",
    "sft-exam": "mt-plugin-evals",
}
"""Recipes of our distributions that need not be installed, for the line that installs them."""


def read_recipe(name: str, host: PluginHost) -> Iterator[Layer]:
    """Yield the layers of a recipe. Raises ``UnknownComponentError``, with the line that installs it where it is known."""
    try:
        offer = host.get(KIND, name)
    except UnknownComponentError as error:
        distribution = SHIPPED.get(canonicalize(name))
        if distribution is None or any(plugin.info.distribution == distribution for plugin in host.plugins):
            raise
        raise UnknownComponentError(
            f"recipe {name!r} comes with {distribution}, which is not installed here: pip install {distribution}"
        ) from error
    yield from read_layers(recipe_file(offer), f"recipe {offer.component.name}")


def recipe_file(offer: Offer) -> Path:
    """Return the YAML file of a recipe. Raises ``ComponentError`` where its distribution has none."""
    package = sys.modules[offer.plugin.module].__package__ or offer.plugin.module
    file = Path(str(files(package))) / "recipes" / f"{offer.component.name}.yaml"
    if not file.is_file():
        raise ComponentError(
            f"recipe {offer.component.name!r} of {offer.plugin.label} has no file {file}; ship it as package data"
        )
    return file
