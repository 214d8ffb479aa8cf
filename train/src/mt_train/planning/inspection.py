"""The rows of a run on paper: read, encoded, counted and shown, and nothing trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mt_core import __version__
from mt_core.components import Component, ModelFamily
from mt_core.config.base import ModelConfig
from mt_core.plugins.host import Offer, PluginHost
from mt_core.plugins.metadata import BUILT_IN
from mt_train.assemble.data import RunData
from mt_train.assemble.parts import Parts
from mt_train.config.run import RunConfig
from mt_train.data.row_statistics import RowStatistics
from mt_train.data.sample_text import examples, names_of
from mt_train.plugins.resolve import Resolved, resolve

SCHEMA = 1
"""Version of the JSON."""

ANY_MODEL = "any-model"
_BOUND = 2**31 - 1


def resolve_rows(raw: Mapping[str, Any], host: PluginHost) -> Resolved:
    """The config; without a model the tokenizer alone says which ids there are. Raises ``ConfigError`` with every fault."""
    if "model" in raw:
        return resolve(raw, host)
    built_in = next(plugin for plugin in host.plugins if plugin.info.distribution == BUILT_IN)
    size = {"vocab_size": _BOUND, "max_seq_len": _BOUND}
    family = ModelFamily(
        name=ANY_MODEL, config=ModelConfig, summary="no model", variants={"any": size}, default_variant="any"
    )
    train_model = Component(name=ANY_MODEL, summary="no model")
    own = [Offer("model", family, built_in.info), Offer("train_model", train_model, built_in.info)]
    built_in.offers.extend(own)
    try:
        tokenizer = Parts.of(resolve({**raw, "model": {"name": ANY_MODEL}}, host)).tokenizer
        return resolve({**raw, "model": {"name": ANY_MODEL, "vocab_size": tokenizer.size}}, host)
    finally:
        for offer in own:  # the host is the caller's
            built_in.offers.remove(offer)


def describe_rows(config: RunConfig, data: RunData, *, count: int) -> dict[str, Any]:
    """Everything that is known of the rows, and ``count`` examples, as plain data; ``--json`` prints it."""
    splits = {"train": data.train, "held_out": data.held_out}
    reports = {name: samples.report for name, samples in splits.items() if samples.report.rows_read or len(samples)}
    whole = RowStatistics.total(reports.values())
    chosen = {slot: getattr(config, slot).name for slot in ("dataset", "objective", "tokenizer", "model")}
    return {
        "schema": SCHEMA,
        "core": __version__,
        **chosen,
        "model": None if config.model.name == ANY_MODEL else config.model.name,
        "batching": config.data.batching,
        "packing": config.data.packing,
        "pad_multiple": config.data.pad_multiple,
        "sequence_len": config.train.sequence_len,
        "warnings": data.findings,
        "document_names": list(names_of(data.objective, data.train[0])) if len(data.train) else [],
        **{key: value for key, value in whole.as_dict().items() if key != "filled"},
        "splits": {name: report.as_dict() for name, report in reports.items()},
        "examples": list(examples(data.train, data.tokenizer, count, data.objective)),
    }
