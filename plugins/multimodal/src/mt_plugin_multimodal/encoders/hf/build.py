"""Transformers' own encoder of a config, without what makes nothing of its features.

Classes are transformers' own, found by the model type: nothing of a folder is imported or executed, whatever its ``auto_map`` says.
"""

from __future__ import annotations

import inspect
import os
import re
from typing import TYPE_CHECKING

from torch import nn

from mt_core import UsageError, WeightsError

from .config import HfConfig
from .convolution import directed_convolutions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_DROPOUT = re.compile(r"dropout|drop_path|layerdrop|mask_(time|feature)_prob")


def build_theirs(config: HfConfig) -> PreTrainedModel:
    """Build the encoder up to the layer of its features, on the default device and in the default dtype, without values.

    Dropout is 0, whatever the config says. Raises ``WeightsError`` for a config that transformers makes no encoder of.
    """
    os.environ["USE_HUB_KERNELS"] = (
        "0"  # or transformers fetches compiled code where the package ``kernels`` is installed
    )
    try:
        from huggingface_hub.errors import StrictDataclassError
        from transformers import CONFIG_MAPPING, MODEL_MAPPING
        from transformers.initialization import no_init_weights
    except ImportError as error:
        raise UsageError(
            f"the encoder hf-{config.kind} needs transformers 5.23: pip install 'mt-plugin-multimodal[hf]' ({error})"
        ) from error
    content, known = dict(config.content), config.type
    try:
        theirs = CONFIG_MAPPING[content["model_type"]].from_dict({**content, **known.settings})
        for key, value in theirs.to_dict().items():
            if _DROPOUT.search(key) and isinstance(value, float):
                setattr(theirs, key, 0.0)
        cls = MODEL_MAPPING[type(theirs)]
        pooled = "add_pooling_layer" in inspect.signature(cls.__init__).parameters
        with no_init_weights(), directed_convolutions():
            model = cls(theirs, add_pooling_layer=False) if pooled else cls(theirs)
    except (StrictDataclassError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        said = " ".join(str(error).split())
        raise WeightsError(
            f"transformers makes no {content['model_type']} of this config.json: {said}; correct it"
        ) from error
    if config.layer is not None:
        _cut_layers(model, int(theirs.num_hidden_layers), config.built_layers)
        if known.norm_key is None or getattr(theirs, known.norm_key):
            _leave_out(model, known.norm)
    for path in known.unused:
        _leave_out(model, path)
    return model


def _cut_layers(model: nn.Module, layers: int, built: int) -> None:
    """Keep the first layers. Configs say much of each one, so that the class is made with all of them."""
    (stack,) = (
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList)
        and len(module) == layers
        and name.rpartition(".")[2] in ("layer", "layers")
    )
    del stack[built:]


def _leave_out(model: nn.Module, path: str) -> None:
    """Put nothing in the place of a parameter, and what changes nothing in that of a module; it may not be there."""
    parent, _, name = path.rpartition(".")
    module = model.get_submodule(parent)
    if name in module._parameters:
        module._parameters[name] = None
    elif name in module._modules:
        module._modules[name] = nn.Identity()
