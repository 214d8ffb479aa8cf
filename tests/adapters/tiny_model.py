"""A small Llama with an adapter in it, for what a single layer does not show."""

from __future__ import annotations

import torch

from mt_core import Adapter
from mt_core.nn import TrainModel, sharing_of, tensor_generator
from mt_plugin_llama.config import LlamaConfig
from mt_plugin_llama.model import Llama

SHAPE = {"vocab_size": 31, "dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 48, "max_seq_len": 32}


def tiny_model(n_layers: int = 2) -> Llama:
    """With the first values that a run would give it."""
    model = Llama(LlamaConfig(**{**SHAPE, "n_layers": n_layers}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            model.init_tensor(name, parameter, tensor_generator(0, name))
    return model


def inject(adapter: Adapter, model: TrainModel | None = None) -> tuple[TrainModel, Adapter]:
    """The model with the adapter, its own parameters begun, and only the trained ones requiring gradients."""
    model = model or tiny_model()
    known = {id(parameter) for parameter in model.parameters()}
    adapter.inject(model)
    for name, module in model.named_modules():
        own = [each for each in module.parameters(recurse=False) if id(each) not in known]
        for parameter in own:
            if (shared := sharing_of(parameter)) is not None:
                shared.fill(parameter.data, tensor_generator(0, shared.key))
        if own:
            module.initialise(tensor_generator(0, name))
    trained = set(adapter.trainable_parameters(model))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)
    return model, adapter
