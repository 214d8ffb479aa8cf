"""A Hugging Face folder of a source: weights, config, tokenizer, generation config, chat template and model card."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mt_core.components import TokenizerComponent
from mt_core.convert.card import card
from mt_core.convert.source import Say, Source, tensors_of
from mt_core.errors import MtError
from mt_core.weights import CONFIG, SHARD_BYTES, Loaders, read_json, staged, write_json, write_tensors

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
TEMPLATE = "chat_template.jinja"
_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def convert(source: Source, out: Path, *, dtype: str | None = None, shard_bytes: int = SHARD_BYTES, say: Say) -> None:
    """Write the folder, whole or not at all. Raises ``WeightsError`` as ``staged`` and ``write_tensors`` do."""
    with staged(out) as stage:
        loaders, shapes = tensors_of(source, say)
        write_folder(source, stage, loaders, shapes, dtype=dtype, shard_bytes=shard_bytes, title=out.name, say=say)


def write_folder(
    source: Source,
    stage: Path,
    loaders: Loaders,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    dtype: str | None,
    shard_bytes: int,
    title: str,
    say: Say,
) -> None:
    """These tensors, and all that stands beside them."""
    word = write_tensors(stage, loaders, dtype=dtype, shard_bytes=shard_bytes, shapes=shapes)
    ids = _tokenizer_files(source, stage, say)
    _write_config(source, stage, ids, word)
    (stage / "README.md").write_text(card(source, title, word), encoding="utf-8")


def _write_config(source: Source, stage: Path, ids: Mapping[str, Any], word: str) -> None:
    """``config.json`` and ``generation_config.json``."""
    options = source.resolved.config.model.options
    assert source.writer.exported is not None, "opened() chose a format that writes"
    write_json(stage / CONFIG, {**source.writer.exported(options), **ids, "torch_dtype": word})
    given = read_json(stage / GENERATION_CONFIG) if (stage / GENERATION_CONFIG).exists() else dict(ids)
    padding = {key: ids[key] for key in ("pad_token_id",) if ids.get(key) is not None}
    if {**given, **padding} != given or given == ids:
        known = {key: value for key, value in {**given, **padding}.items() if value is not None}
        write_json(stage / GENERATION_CONFIG, known)


def _tokenizer_files(source: Source, stage: Path, say: Say) -> dict[str, Any]:
    """Write them and return the special ids."""
    weights = source.weights
    if weights is not None and (weights / GENERATION_CONFIG).is_file():
        shutil.copyfile(weights / GENERATION_CONFIG, stage / GENERATION_CONFIG)
    if source.checkpoint is not None:
        return _of_run(source, stage, say)
    assert weights is not None, "a source is a run or a folder"
    for name in TOKENIZER_FILES:
        if (weights / name).is_file():
            shutil.copyfile(weights / name, stage / name)
    if (weights / CONFIG).is_file():
        given = read_json(weights / CONFIG)
        stated = {key: given[key] for key in _IDS if key in given}
        return stated | _grown(source, stage)
    return _of_tokenizer(source, say)


def _grown(source: Source, stage: Path) -> dict[str, Any]:
    """Where the tokenizer gets tokens: its files with them, and the id that padding has now."""
    component, options = source.resolved.offers["tokenizer"].component, source.resolved.config.tokenizer.options
    if not isinstance(component, TokenizerComponent) or component.size(options) is None:
        return {}
    tokenizer = component.build(options)
    tokenizer.save(stage)
    return {} if tokenizer.pad_id is None else {"pad_token_id": tokenizer.pad_id}


def _of_tokenizer(source: Source, say: Say) -> dict[str, Any]:
    """The special ids that the tokenizer beside Meta's weights has, where it can be read by its file alone."""
    if not any((source.path / name).is_file() for name in TOKENIZER_FILES):
        say(f"notice: {source.path} has no tokenizer; put its files into the folder before you use it")
        return {}
    try:
        tokenizer = source.resolved.build("tokenizer", source.resolved.config.tokenizer.options)
    except MtError as error:
        say(f"notice: the special ids are left out of config.json, since the tokenizer tells none: {error}")
        return {}
    return _ids(tokenizer)


def _of_run(source: Source, stage: Path, say: Say) -> dict[str, Any]:
    tokenizer = source.resolved.build("tokenizer", source.resolved.config.tokenizer.options)
    save = getattr(tokenizer, "save", None)
    if save is None:
        say(f"notice: the tokenizer {source.resolved.config.tokenizer.name} cannot write itself; add its files by hand")
    else:
        save(stage)
    template = _template(source, tokenizer)
    if template is not None:
        (stage / TEMPLATE).write_text(template, encoding="utf-8")
    return _ids(tokenizer)


def _template(source: Source, tokenizer: Any) -> str | None:
    """The Jinja text of the run's chat template, where it has one."""
    from mt_core.data.templates import jinja_source

    return jinja_source(tokenizer, source.resolved.config.data)


def _ids(tokenizer: Any) -> dict[str, Any]:
    return {"bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id, "pad_token_id": tokenizer.pad_id}
