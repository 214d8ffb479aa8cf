"""The model slot: its family's shape, from a named size or from the weights' own config."""

from __future__ import annotations

from collections.abc import Mapping
from os.path import expanduser
from pathlib import Path
from typing import Any

from mt_core.components import ModelFamily, TokenizerComponent
from mt_core.errors import MtError, did_you_mean
from mt_core.kinds import CORE_KINDS
from mt_core.plugins.lock_file import RUN_FILE
from mt_train.config.commandline import merge
from mt_train.config.files import read_config
from mt_train.config.run import ModelOptions, ModelRef
from mt_train.plugins.draft import Draft
from mt_train.plugins.hub import folder_of, locate
from mt_train.plugins.list_slots import entries_of
from mt_train.plugins.weights_family import family_of, hint_of_family
from mt_train.plugins.whole_models import MODEL, refuse_unread

_TOKENIZERS = {".json": "huggingface", ".model": "sentencepiece"}
"""Ending of a file → the tokenizer that reads it."""


def locate_weights(draft: Draft) -> None:
    """Find ``model.weights`` here or on the Hub, before anything looks into it."""
    given = draft.raw.get("model", {}).get("weights")
    if not isinstance(given, str):
        return  # absent, or a fault that validation names
    try:
        draft.weights_path = locate(given)
    except MtError as error:
        draft.fault("model.weights", str(error))
        return
    for name in _encoders_of_model(draft):
        try:
            refuse_unread(draft.weights_path, f"encoders.{name}.weights")
        except MtError as error:
            draft.fault(f"encoders.{name}.weights", str(error))


def _encoders_of_model(draft: Draft) -> list[str]:
    """Return the encoders whose weights are those of the model; what is no list of encoders is a fault when the list is filled."""
    entries = entries_of(draft.raw.get("encoders"), "encoders", lambda *_: None)
    return [each["name"] for each in entries if each.get("weights") == MODEL]


def name_family(draft: Draft) -> None:
    """Take the family that the weights' own config names, where the run names none."""
    path, given = draft.weights_path, draft.raw.get("model")
    if path is None or not isinstance(given, dict) or given.get("name") is not None:
        return
    if not path.exists():
        draft.fault("model.weights", f"{path.absolute()} does not exist.", "Give a folder or file of weights.")
        return
    try:
        given["name"] = family_of(path, draft.host)
    except MtError as error:
        hint = _hint_of_folder(path)
        draft.fault("model.weights", f"{error}." if hint else str(error), hint)
        return
    draft.origins["model.name"] = str(path)


def name_tokenizer(draft: Draft) -> None:
    """Name the tokenizer where a run does not: by the files at its path, or beside the weights; else it is bytes."""
    given = draft.raw.get("tokenizer", {})
    if given.get("name") is not None:
        return
    path = given.get("path")
    if isinstance(path, str) and (found := _tokenizer_at(Path(expanduser(path)))) is not None:
        draft.origins["tokenizer.name"] = "the files at tokenizer.path"
        draft.raw["tokenizer"] = {**given, **found}
    else:
        place = draft.weights_path
        beside = None if place is None else tokenizer_in(folder_of(place))
        beside = beside or {"name": CORE_KINDS["tokenizer"].default}
        draft.raw["tokenizer"] = {**beside, **given, "name": beside["name"]}


def _tokenizer_at(path: Path) -> dict[str, Any] | None:
    """Return name and path of the tokenizer at a path, a file or a folder; ``None`` where nothing tells which one reads it."""
    if path.is_dir():
        return tokenizer_in(path)
    return {"name": _TOKENIZERS[path.suffix]} if path.suffix in _TOKENIZERS else None


def tokenizer_in(folder: Path) -> dict[str, Any] | None:
    """Return name and path of the tokenizer whose files are in a folder; ``None`` where there are none."""
    if (folder / "tokenizer.json").is_file():
        return {"name": "huggingface", "path": str(folder)}
    if (folder / "tokenizer.model").is_file():
        return {"name": "sentencepiece", "path": str(folder / "tokenizer.model")}
    return None


def fill_model(draft: Draft) -> None:
    """Settle family, size, shape and where the weights come from."""
    offer = draft.offers.get("model")
    if offer is None:
        return
    family = offer.component
    assert isinstance(family, ModelFamily), "the host checks what mt_model_configs returns"
    given = {key: value for key, value in draft.raw["model"].items() if key != "name"}
    core = {key: given.pop(key) for key in list(given) if key in ModelOptions.model_fields}
    source = draft.validate(ModelOptions, core, "model")
    if source is None:
        return
    shape = _shape(draft, family, source)
    if shape is None:
        return
    extra = set(ModelOptions.model_fields)
    options = draft.validate(family.config, {**shape, **given}, "model", extra)
    if options is not None:
        draft.values["model"] = ModelRef(name=draft.raw["model"]["name"], options=options, source=source)


def fit_vocabulary(draft: Draft) -> None:
    """Rows for the tokens that the tokenizer's config adds, unless the user has said how many rows there are."""
    offer, model, tokenizer = draft.offers.get("tokenizer"), draft.values.get("model"), draft.values.get("tokenizer")
    if offer is None or model is None or tokenizer is None or not isinstance(offer.component, TokenizerComponent):
        return
    try:
        size = offer.component.size(tokenizer.options)
    except MtError as error:
        draft.fault("tokenizer", str(error))
        return
    if size is None or size <= model.options.vocab_size or "vocab_size" in draft.raw["model"]:
        return
    draft.origins["model.vocab_size"] = f"new tokens of tokenizer {offer.component.name}"
    options = model.options.model_copy(update={"vocab_size": size})
    draft.values["model"] = model.model_copy(update={"options": options})


def _shape(draft: Draft, family: ModelFamily, source: ModelOptions) -> Mapping[str, Any] | None:
    """Values of the chosen size, or of the weights' own config; ``None`` after a fault."""
    variant = source.variant or family.default_variant
    if variant not in family.variants:
        hint = did_you_mean(variant, list(family.variants))
        draft.fault(
            "model.variant", f"{family.name} has no size {variant!r}.", f"{hint}Sizes: {', '.join(family.variants)}."
        )
        return None
    if source.weights is None:
        _mark(draft, family.variants[variant], f"variant {variant}")
        return family.variants[variant]
    if draft.weights_path is None:
        return None
    return _shape_of_weights(draft, family, source.variant, draft.weights_path)


def _shape_of_weights(draft: Draft, family: ModelFamily, variant: str | None, path: Path) -> Mapping[str, Any] | None:
    if not path.exists():
        draft.fault("model.weights", f"{path.absolute()} does not exist.", "Give a folder or file of weights.")
        return None
    reader = next((candidate for candidate in family.formats if candidate.matches(path)), None)
    if reader is None:
        formats = ", ".join(candidate.name for candidate in family.formats) or "none"
        draft.fault(
            "model.weights",
            f"{path} is in no format that {family.name} reads.",
            f"It reads: {formats}; give the folder that has config.json or params.json beside the weights. {_hint_of_folder(path)}".strip(),
        )
        return None
    try:
        values = reader.values(path)
    except MtError as error:
        hint = hint_of_family(path, draft.host, family)
        draft.fault("model.weights", f"{error}." if hint else str(error), hint)
        return None
    draft.weights_format = reader
    _mark(draft, values, f"{reader.name} config of {path}")
    if variant is not None:
        named = family.variants[variant]
        differ = [
            f"{key} ({named[key]!r} / {values[key]!r})" for key in named if key in values and named[key] != values[key]
        ]
        if differ:
            draft.fault(
                "model.variant",
                f"{variant!r} disagrees with the weights in {path} on {', '.join(differ)}.",
                "Leave out the variant: the shape comes from the weights.",
            )
            return None
    return values


def _hint_of_folder(path: Path) -> str:
    """Say how to go on from an adapter's folder, a run or one of its checkpoints; nothing where it is none."""
    if (path / "adapter_config.json").is_file():
        return (
            f"It is an adapter, which needs the weights that it was trained on: --model.weights BASE --adapter.weights {path} trains"
            f" it on, --weights BASE --adapter-folder {path} runs it."
        )
    run = path if (path / RUN_FILE).is_file() else path.parent.parent
    if not (run / RUN_FILE).is_file():
        return ""
    try:
        raw = merge({}, read_config(run / RUN_FILE))
    except MtError:  # a damaged one is still a run
        raw = {}
    slots = {key: value for key, value in raw.items() if isinstance(value, dict)}
    adapter, base = slots.get("adapter", {}).get("name", "full"), slots.get("model", {}).get("weights")
    if adapter == "full":
        return f"It is a run, which a command that runs a model takes as --run {run}; `mt-convert {path} FOLDER` writes what can be read."
    trained_on = f"train on with --model.weights {base} --adapter.weights {path}, or " if base else ""
    runs = f"It is a run with the adapter {adapter}, which a command that runs a model takes as --run {run}: "
    return f"{runs}{trained_on}write both as one model: `mt-export --run {run} --merge --output FOLDER`."


def _mark(draft: Draft, values: Mapping[str, Any], source: str) -> None:
    for key in values:
        draft.origins.setdefault(f"model.{key}", source)
