"""The key of an encoder's features: all that they follow from but the content, and the encoder as it computes."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from contextlib import suppress

import torch
from torch import nn

from mt_core.errors import UsageError
from mt_train.assemble.identity import package_of, processor_files
from mt_train.assemble.parts import Parts
from mt_train.assemble.run_encoder import RunEncoder
from mt_train.checkpoint.files import sha256
from mt_train.engine.build import gather_parameters, is_partitioned
from mt_train.engine.engine import Engine
from mt_train.plugins.lock import code_hash, installed_version

VERSION = 1
"""Version of how features are computed and kept; another number is another key."""
BESIDE_FEATURES = {"projector", "weights", "begin", "end", "token", "limit", "features"}
"""Options of an encoder that change no feature; weights are in the key by their values, and by the files beside them."""


def frozen_encoder(encoder: RunEncoder, engine: Engine) -> nn.Module | None:
    """Return the encoder as it computes, whole: a copy where ZeRO 3 has divided it; ``None`` where this rank has none. Collective."""
    media, process = engine.module.model.media, engine.process
    if not engine.plan.embeds(process.rank):
        return None
    assert media is not None, "a run with encoders has them in its model"
    live: nn.Module = media.get_submodule(f"{encoder.name}.encoder").eval()
    wanted = dict(live.named_parameters())
    if not any(map(is_partitioned, wanted.values())):
        return live
    with process.device:
        module: nn.Module = encoder.component.build(encoder.options).eval()
    own = dict(module.named_parameters())
    if own.keys() != wanted.keys():
        raise UsageError(
            f"encoders.{encoder.name}.features cannot be kept at ZeRO 3 of an encoder that an adapter or a quantizer has changed;"
            " leave features out, or leave the encoder as it is"
        )
    for name, parameter in own.items():
        with gather_parameters([wanted[name]]):
            parameter.data = wanted[name].detach().to(process.device).clone()
    for (_, buffer), (_, value) in zip(module.named_buffers(), live.named_buffers(), strict=True):
        buffer.data = value.detach().clone()
    return module


def feature_key(parts: Parts, encoder: RunEncoder, module: nn.Module, engine: Engine) -> str:
    """Return the name of the folder: a hash of all that a feature follows from but the content."""
    offer = parts.offers[f"encoder:{encoder.name}"]
    content = {
        "version": VERSION,
        "encoder": encoder.component.name,
        "options": encoder.options.model_dump(mode="json", exclude=BESIDE_FEATURES),
        "weights": _hash_of(module),
        "read": [(path.name, sha256(path)) for path in processor_files(encoder.path)],
        "code": [code_hash(package_of(encoder.component.build)), code_hash("mt_core")],
        "libraries": _libraries(offer.plugin.distribution),
        "dtype": engine.plan.dtype,
        "device": engine.process.device.type,
        "products": torch.get_float32_matmul_precision(),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:40]


def _hash_of(module: nn.Module) -> str:
    """Return the SHA-256 of all values of a module, under their names."""
    digest = hashlib.sha256()
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        content = value.detach().cpu().contiguous()
        digest.update(f"{name} {content.dtype} {tuple(content.shape)}\0".encode())
        digest.update(content.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _libraries(distribution: str) -> dict[str, str | None]:
    """Return the versions of what computes, and of what the encoder's distribution says that it needs."""
    names = {"torch", "numpy"}
    with suppress(importlib.metadata.PackageNotFoundError):
        names |= {re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in importlib.metadata.requires(distribution) or ()}
    return {name: installed_version(name) for name in sorted(names)}
