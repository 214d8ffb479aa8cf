"""Features of frozen encoders, computed once for each content and kept (``encoders.NAME.features``).

They are computed before the first step, by all ranks that encode, item by item: so nobody has to agree later on who calls an encoder, the
size is known before anything is written, and no bit of a feature depends on what stood beside its item.
"""

from __future__ import annotations

from dataclasses import replace
from os.path import expanduser
from pathlib import Path

from mt_core.errors import UsageError
from mt_core.files import cache_root
from mt_core.nn import TrainModel
from mt_train.assemble.data import RunData
from mt_train.assemble.feature_filling import Filling
from mt_train.assemble.feature_key import feature_key, frozen_encoder
from mt_train.assemble.media import MEDIA
from mt_train.assemble.parts import Parts
from mt_train.assemble.run_encoder import RunEncoder
from mt_train.data.media.store import FeatureStore
from mt_train.engine.engine import Engine
from mt_train.engine.processes import share_text

FOLDER = "features"
"""Folder of the token cache for ``features: auto``."""


def refuse_trained(parts: Parts, model: TrainModel) -> None:
    """Raise ``UsageError`` for an encoder that has ``features`` and trains: they would be those of other weights after a step."""
    for each in parts.encoders:
        begin = f"{MEDIA}{each.name}.encoder."
        trained = [name for name, value in model.named_parameters() if name.startswith(begin) and value.requires_grad]
        if each.options.features is not None and trained:
            raise UsageError(
                f"encoders.{each.name}.features={each.options.features}, and {len(trained)} tensors of this encoder are trained"
                f" ({trained[0]}, …), so that its features change with each step; leave features out, or train nothing of it:"
                f" --train.disable '{begin}*'"
            )


def with_features(parts: Parts, data: RunData, engine: Engine) -> RunData:
    """Return the rows with the features of all media of encoders that keep them, computed where they are not there yet. Collective.

    Raises ``UsageError`` for a stream, ``UnusableStoreError`` for a folder that cannot be used, ``DataError`` for an item that cannot be
    read.
    """
    wanted = [each for each in parts.encoders if each.options.features is not None]
    if not wanted:
        return data
    if data.stream is not None:
        raise UsageError(
            f"encoders.{wanted[0].name}.features needs rows that are known before the first step, and this dataset is a stream; leave"
            " features out"
        )
    stores = {each.name: _store_of(each, parts, data, engine) for each in wanted}
    for samples in (data.train, data.held_out):
        if samples.reader is not None:
            samples.reader = replace(samples.reader, stores=stores)
    return data


def _store_of(encoder: RunEncoder, parts: Parts, data: RunData, engine: Engine) -> FeatureStore:
    """Return the store of an encoder, with everything that the rows need. Collective."""
    module = frozen_encoder(encoder, engine)
    key = share_text(
        feature_key(parts, encoder, module, engine) if module is not None and engine.process.is_main else ""
    )
    root = encoder.options.features or ""
    folder = (cache_root() / FOLDER if root == "auto" else Path(expanduser(root))) / key
    store = FeatureStore(folder, encoder.component.width(encoder.options))
    Filling(encoder, module, store, data, engine).fill()
    return store
