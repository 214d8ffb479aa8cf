"""``README.md`` of a converted folder: what the weights are and where they come from, as far as files here say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mt_core import __version__
from mt_core.config.secrets import redact
from mt_core.weights import read_json
from mt_tools.convert.source import Source
from mt_train.checkpoint.manifest import read_manifest
from mt_train.engine.snapshot import read_callback_tensors


def card(source: Source, title: str, dtype: str, *, library: str = "transformers") -> str:
    """Markdown with a head that the Hub reads (https://huggingface.co/docs/hub/model-cards). No path of this machine is in it.

    ``library`` opens the folder: ``peft`` an adapter.
    """
    base = _base(source)
    head = [f"library_name: {library}", "pipeline_tag: text-generation", "# license: fill in, before you share it"]
    if base and "/" in base:
        head.append(f"base_model: {base.partition('@')[0]}")
    model = source.parts.config.model
    lines = [f"- family: {model.name}, {model.options.vocab_size:,} tokens, weights in {dtype}"]
    lines += [f"- base: {base}"] if base else []
    lines += _training(source) if source.checkpoint is not None else []
    lines += ["- license: fill in, before you share it", f"- written by mt-convert of mt-core {__version__}"]
    return redact("\n".join(["---", *head, "---", "", f"# {title}", "", *lines, ""]))


def _base(source: Source) -> str:
    """A name on the Hub as it is, of a path its last part only."""
    if source.base_name is not None:
        return source.base_name
    given = source.started_from
    if source.checkpoint is None:
        return source.path.resolve().name
    if given is None:
        return "none, trained from scratch"
    return Path(given).name if Path(given).is_absolute() or Path(given).exists() else given


def _training(source: Source) -> Iterator[str]:
    assert source.checkpoint is not None, "a run has one"
    config = source.parts.config
    manifest = read_manifest(source.checkpoint)
    adapter = "" if config.adapter.name == "full" else f", adapter {config.adapter.name}"
    yield f"- trained: {manifest['step']:,} steps, objective {config.objective.name}, dataset {config.dataset.name}{adapter}"
    if source.averaged is not None:
        yield f"- weights: their average, by the callback {source.averaged}"
    measured = _measured_average(source)
    figures = manifest.get("evaluation") if source.averaged in (None, measured) else None
    if figures:
        of = f" (of the average, by the callback {measured})" if measured != source.averaged else ""
        yield f"- held out{of}: " + ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
    file = source.checkpoint.parent.parent / "about.json"
    rows = read_json(file).get("data") if file.is_file() else None
    if isinstance(rows, Mapping) and isinstance(rows.get("train"), Mapping):
        yield _rows(rows["train"])
    used = {offer.plugin.distribution: offer.plugin.version for offer in source.parts.offers.values()}
    yield "- plugins: " + ", ".join(f"{name} {version}" for name, version in sorted(used.items()))


def _measured_average(source: Source) -> str | None:
    """Return the callback with whose averaged weights a run was evaluated; ``None`` where it was with its own."""
    kept = read_callback_tensors(source.checkpoint) if source.checkpoint is not None else {}
    slots = source.parts.config.callbacks
    return next((each.name for each in slots if kept.get(each.name) and getattr(each.options, "evaluate", False)), None)


def _rows(report: Mapping[str, Any]) -> str:
    names = {
        "rows_read": "rows read",
        "samples": "samples",
        "tokens_total": "tokens",
        "tokens_trained": "trained tokens",
    }
    return "- rows: " + ", ".join(
        f"{report[key]:,} {word}" for key, word in names.items() if isinstance(report.get(key), int)
    )
