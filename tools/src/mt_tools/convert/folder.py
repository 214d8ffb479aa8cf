"""A Hugging Face folder of a source: weights, config, tokenizer, generation config, chat template and model card."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mt_core.errors import DataError, MtError
from mt_core.weights import CONFIG, Loaders, read_json
from mt_tools.convert.card import card
from mt_tools.convert.chat_template import write_template
from mt_tools.convert.classifier import classifier_config, classifier_names, say_classifier
from mt_tools.convert.file_tensors import FileTensors
from mt_tools.convert.source import Say, Source, SourceTensors, tensors_of
from mt_tools.convert.tokenizer_files import make_portable, open_written, tell_differences
from mt_tools.convert.whole import PROCESSOR_FILES, WholeModel
from mt_tools.convert.writing import SHARD_BYTES, stage_folder, write_beside, write_json, write_tensors
from mt_train.assemble.load import has_tokenizer_of_weights
from mt_train.assemble.objective_files import objective_files
from mt_train.config.data import DataConfig
from mt_train.data.templates import build_template

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
GENERATION_CONFIG = "generation_config.json"
_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def convert(source: Source, out: Path, *, dtype: str | None = None, shard_bytes: int = SHARD_BYTES, say: Say) -> None:
    """Write the folder, whole or not at all. Raises ``WeightsError`` as ``stage_folder`` and ``write_tensors`` do."""
    with stage_folder(out) as stage:
        tensors = tensors_of(source, say)
        write_folder(source, stage, tensors, dtype=dtype, shard_bytes=shard_bytes, title=out.name, say=say)


def write_folder(
    source: Source,
    stage: Path,
    tensors: SourceTensors,
    *,
    dtype: str | None,
    shard_bytes: int,
    title: str,
    say: Say,
) -> None:
    """Write these tensors, and all that stands beside them. What an objective trained beside the language head has files of its own."""
    whole = WholeModel.of(source)
    text, seeing = (tensors.loaders, {}) if whole is None else whole.split(tensors.loaders)
    own, beside = split_objective(text)
    more: Loaders = {}
    shapes: Mapping[str, tuple[int, ...]] = {}
    if source.parts.objective_component.head == "own":
        named, beside, shapes = classifier_names(tensors.loaders), {}, classifier_names(tensors.shapes)
        own = {name: load for name, load in named.items() if name in tensors.loaders}
        more = {name: load for name, load in named.items() if name not in own}
    files = FileTensors(source, own, tensors)
    shapes = files.shapes | {name: shapes[name] for name in more}
    loaders, kept = {**files.loaders, **more}, files.unconverted
    if whole is not None:
        loaders = whole.loaders(loaders, seeing)
        shapes, kept = ({whole.name(name): each for name, each in shapes.items()}, {whole.name(name) for name in kept})
    word = write_tensors(stage, loaders, dtype=dtype, shard_bytes=shard_bytes, shapes=shapes, unconverted=kept)
    files.check_complete()
    write_beside(stage, beside)
    write_json(stage / CONFIG, _model_config(source, whole))  # its model type gives transformers the tokenizer's class
    ids, ends = _tokenizer_files(source, stage, say, whole)
    _write_config(source, stage, ids, ends, word, whole)
    if whole is not None:
        whole.write_files(stage)
    if more:
        say_classifier(stage, list(more), say)
    (stage / "README.md").write_text(card(source, title, word), encoding="utf-8")


def _model_config(source: Source, whole: WholeModel | None) -> dict[str, Any]:
    """Return what the family writes into ``config.json``, without the ids of the tokenizer."""
    exported = _exported(source)
    return exported if whole is None else dict(whole.config(exported, {}))


def _exported(source: Source) -> dict[str, Any]:
    assert source.writer.exported is not None, "open_source() chose a format that writes"
    return dict(source.writer.exported(source.parts.config.model.options))


def _write_config(
    source: Source, stage: Path, ids: Mapping[str, Any], ends: Sequence[int], word: str, whole: WholeModel | None = None
) -> None:
    """``config.json`` and ``generation_config.json``, with all tokens that end a text (``ends``)."""
    exported = _exported(source)
    content = {**exported, **ids, "torch_dtype": word}
    if source.parts.objective_component.head == "own":
        content = classifier_config(content, ends)
    content = _with_special_ids(source, exported, content)
    if whole is not None:
        content = {**whole.config(content, ids), "torch_dtype": word}
    write_json(stage / CONFIG, content)
    given = read_json(stage / GENERATION_CONFIG) if (stage / GENERATION_CONFIG).exists() else dict(ids)
    changed = {key: ids[key] for key in ("pad_token_id",) if ids.get(key) is not None}
    said = given.get("eos_token_id")
    listed = said if isinstance(said, list) else [] if said is None else [said]
    known = listed
    if source.checkpoint is not None and not has_tokenizer_of_weights(source.parts):
        known = [token for token in listed if not source.parts.tokenizer.decode([token])]  # others are texts here
        changed |= {"bos_token_id": ids.get("bos_token_id")} if "bos_token_id" in given else {}
    wanted = list(dict.fromkeys([*known, *ends]))
    if wanted != listed:
        changed["eos_token_id"] = wanted if known or len(wanted) > 1 else next(iter(wanted), None)
    if {**given, **changed} != given or given == ids:
        content = {key: value for key, value in {**given, **changed}.items() if value is not None}
        write_json(stage / GENERATION_CONFIG, content)


def _with_special_ids(source: Source, exported: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``config.json`` with the ids of the tokenizer that the family takes; others are the model's own, where its config has them."""
    given = {key: content[key] for key in _IDS if key in content}
    own = {key: exported[key] for key in given if key in exported}
    named = {**own, **source.writer.special_ids(source.parts.config.model.options, given)}
    return {key: named.get(key, each) for key, each in content.items() if key not in given or key in named}


T = TypeVar("T")


def split_objective(content: Mapping[str, T]) -> tuple[dict[str, T], dict[str, dict[str, T]]]:
    """Return what is of the model itself, and for each file beside it what is of the objective, by its own names."""
    files = objective_files(content)
    taken = {name for tensors in files.values() for name in tensors.values()}
    beside = {file: {own: content[name] for own, name in tensors.items()} for file, tensors in files.items()}
    return {name: each for name, each in content.items() if name not in taken}, beside


def _tokenizer_files(
    source: Source, stage: Path, say: Say, whole: WholeModel | None
) -> tuple[dict[str, Any], list[int]]:
    """Write them; return the special ids, and the ids that end a text beside those of the base's generation config."""
    weights = source.weights
    if weights is not None and (weights / GENERATION_CONFIG).is_file():
        shutil.copyfile(weights / GENERATION_CONFIG, stage / GENERATION_CONFIG)
    if source.checkpoint is not None:
        return _of_run(source, stage, say, whole)
    assert weights is not None, "a source is a run or a folder"
    theirs = () if source.replaces_tokenizer else TOKENIZER_FILES
    for name in (*theirs, *(PROCESSOR_FILES if whole is not None else ())):
        if (weights / name).is_file():
            shutil.copyfile(weights / name, stage / name)
    make_portable(stage)
    if (weights / CONFIG).is_file():
        given = read_json(weights / CONFIG)
        stated = {key: given[key] for key in _IDS if key in given}
        return stated | _extend_vocabulary(source, stage, say), _new_ends(source)
    return _of_tokenizer(source, stage, say), []


def _new_ends(source: Source) -> list[int]:
    """Return the end token of a tokenizer that replaces the folder's: it may be a new one."""
    end = source.parts.tokenizer.eos_id if source.replaces_tokenizer else None
    return [] if end is None else [end]


def _extend_vocabulary(source: Source, stage: Path, say: Say) -> dict[str, Any]:
    """Return where the tokenizer gets tokens: its files with them, and the id that padding has now."""
    if not source.parts.adds_tokens and not source.replaces_tokenizer:
        return {}
    tokenizer: Any = source.parts.tokenizer  # one that can be given tokens can also write itself
    _save_tokenizer(tokenizer, tokenizer.save, stage, say)
    return {} if tokenizer.pad_id is None else {"pad_token_id": tokenizer.pad_id}


def _of_tokenizer(source: Source, stage: Path, say: Say) -> dict[str, Any]:
    """The special ids that the tokenizer beside Meta's weights has, where it can be read by its file alone."""
    if not any((source.path / name).is_file() for name in TOKENIZER_FILES):
        say(f"notice: {source.path} has no tokenizer; put its files into the folder before you use it")
        return {}
    try:
        tokenizer = source.parts.tokenizer
    except MtError as error:
        say(f"notice: the special ids are left out of config.json, since the tokenizer tells none: {error}")
        return {}
    if (save := getattr(tokenizer, "save", None)) is not None:
        _save_tokenizer(tokenizer, save, stage, say)
    return _ids(tokenizer)


def _of_run(source: Source, stage: Path, say: Say, whole: WholeModel | None = None) -> tuple[dict[str, Any], list[int]]:
    config = source.parts.config
    tokenizer = source.parts.tokenizer
    save, theirs = getattr(tokenizer, "save", None), None
    if save is None:
        say(f"notice: the tokenizer {config.tokenizer.name} cannot write itself; add its files by hand")
    else:
        theirs = _save_tokenizer(tokenizer, save, stage, say)
    write_template(stage, tokenizer, theirs, config.data, say, media=None if whole is None else whole.spelled())
    eos = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
    return _ids(tokenizer), [*eos, *_stops(tokenizer, config.data, say)]


def _stops(tokenizer: Any, config: DataConfig, say: Say) -> tuple[int, ...]:
    """The ids that end a turn of the run's template; a text that does is told."""
    template = build_template(tokenizer, config)
    try:
        stop, ids = template.stop_text, template.stop_ids
    except DataError as error:
        say(f"notice: the chat template does not tell how an answer ends: {error}")
        return ()
    if stop:
        say(
            f"notice: answers end with {stop!r}, which is no single token, so generation_config.json cannot say it: give"
            f" stop_strings=[{stop!r}] and the tokenizer to generate() of transformers, or stop=[{stop!r}] to vLLM"
        )
    return ids


def _save_tokenizer(tokenizer: Any, save: Callable[[Path], None], stage: Path, say: Say) -> Any:
    """Write the tokenizer's files, and return it as transformers opens them; what it reads otherwise is told."""
    save(stage)
    make_portable(stage)
    theirs = open_written(stage, say)
    if theirs is not None:
        tell_differences(theirs, tokenizer, say)
    return theirs


def _ids(tokenizer: Any) -> dict[str, Any]:
    return {"bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id, "pad_token_id": tokenizer.pad_id}
