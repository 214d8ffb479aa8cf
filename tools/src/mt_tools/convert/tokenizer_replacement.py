"""Replacement of the tokenizer of a folder of weights by one that has all of it, at the same ids, and more, which get rows."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mt_core.data.text_ids import text_encoder
from mt_core.errors import DataError
from mt_core.plugins.host import PluginHost
from mt_core.weights import RowInit, read_json
from mt_tools.convert.chat_template import FILE as CHAT_TEMPLATE
from mt_tools.convert.folder import write_folder
from mt_tools.convert.source import Say, Source, SourceTensors, locate_source, open_source, tensors_of
from mt_tools.convert.tokenizer_files import TOKENIZER_CONFIG
from mt_tools.convert.writing import SHARD_BYTES, stage_folder, write_json
from mt_train.assemble.parts import Parts
from mt_train.assemble.weights import per_token_names
from mt_train.engine.new_rows import NewRows
from mt_train.plugins.hub import folder_of
from mt_train.plugins.model_slot import tokenizer_in
from mt_train.plugins.resolve import resolve

JSON, SENTENCEPIECE = "tokenizer.json", "tokenizer.model"
_NAMED = ("bos", "eos", "pad")
_FRAGMENT = "\ufffd"
"""The text of bytes that are no whole character: it is not what the piece says."""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """How many rows there are in all, a multiple of ``multiple``, and how new ones begin."""

    init: RowInit = "subtokens"
    multiple: int = 1
    seed: int = 0


def open_with_tokenizer(given: str, host: PluginHost, family: str | None) -> Source:
    """Return the source with the tokenizer that its folder has. Raises ``DataError`` where it has none to compare another one with."""
    path = locate_source(given)
    options = _options(folder_of(path))
    source = open_source(given, host, family, options or {"name": "byte"})
    if options is None:
        raise DataError(f"{path} has no tokenizer, so that nobody knows what its rows stand for; put its files there")
    return source


def replace_tokenizer(
    old: Source,
    tokenizer: Path,
    out: Path,
    host: PluginHost,
    *,
    growth: Growth,
    dtype: str | None = None,
    shard_bytes: int = SHARD_BYTES,
    say: Say,
) -> Source:
    """Write the folder with this tokenizer, and rows for what it has more; return the model that was written.

    Raises ``DataError`` for a tokenizer that is missing, or under whose ids other pieces stand than before.
    """
    with TemporaryDirectory() as folder:
        new = _with_tokenizer(old, _found(tokenizer, old, Path(folder)), host, growth)
        added = _new_tokens(old, new, tokenizer)
        with stage_folder(out) as stage:
            tensors = _with_rows(old, new, added, growth, say)
            write_folder(new, stage, tensors, dtype=dtype, shard_bytes=shard_bytes, title=out.name, say=say)
            _keep_template(old, new, stage, say)
    return new


def _options(path: Path) -> dict[str, Any] | None:
    """Return the name and the place of the tokenizer in a folder; ``None`` where there is none."""
    if (found := tokenizer_in(path)) is not None:
        return found
    return {"name": "huggingface", "path": str(path)} if (path / TOKENIZER_CONFIG).is_file() else None


def _found(path: Path, old: Source, folder: Path) -> dict[str, Any]:
    """Return name and place of the new tokenizer. A file that stands alone gets, in ``folder``, the settings of the old tokenizer."""
    if not path.exists():
        raise DataError(f"{path} does not exist; give a tokenizer's folder, a {JSON} or a SentencePiece model")
    if path.is_dir():
        found = _options(path)
        if found is None:
            raise DataError(f"{path} has no tokenizer: neither {JSON}, {SENTENCEPIECE} nor {TOKENIZER_CONFIG}")
        return found
    is_json = path.suffix == ".json"
    if (path.parent / TOKENIZER_CONFIG).is_file() and (path.name == JSON or not is_json):
        return {"name": "huggingface" if is_json else "sentencepiece", "path": str(path)}
    shutil.copyfile(path, folder / (JSON if is_json else SENTENCEPIECE))
    write_json(folder / TOKENIZER_CONFIG, _settings(old))
    found = _options(folder)
    assert found is not None, "a file has just been put there"
    return found


def _settings(old: Source) -> dict[str, Any]:
    """Settings of the old tokenizer, for a file that has its vocabulary alone and is read as it is."""
    assert old.weights is not None, "a run has been refused"
    tokenizer: Any = old.parts.tokenizer
    pieces = tokenizer.pieces()
    ids = {f"{name}_token": getattr(tokenizer, f"{name}_id") for name in _NAMED}
    named = {key: pieces[number] for key, number in ids.items() if number in pieces}
    beside = old.weights / TOKENIZER_CONFIG
    told = read_json(beside) if beside.is_file() else {}
    told = {key: value for key, value in told.items() if key not in ("added_tokens_decoder", "tokenizer_file")}
    named |= getattr(tokenizer, "special_tokens", {})
    return {**named, **told, "tokenizer_class": "PreTrainedTokenizerFast"}


def _with_tokenizer(old: Source, options: Mapping[str, Any], host: PluginHost, growth: Growth) -> Source:
    raw = {**old.parts.config.as_raw(), "tokenizer": dict(options)}
    size = max(Parts.of(resolve(raw, host)).tokenizer.size, raw["model"]["vocab_size"])
    raw["model"] |= {"vocab_size": -(-size // growth.multiple) * growth.multiple}
    return replace(old, parts=Parts.of(resolve(raw, host)), replaces_tokenizer=True)


def _new_tokens(old: Source, new: Source, path: Path) -> dict[int, tuple[int, ...]]:
    """Return each new id with the old ids that its text was read as. Raises ``DataError`` where an old id has another piece."""
    before: Any = old.parts.tokenizer  # both are of the kinds that _options names, which tell their pieces
    after: Any = new.parts.tokenizer
    known, pieces = before.pieces(), after.pieces()
    for number, piece in sorted(known.items()):
        if pieces.get(number) != piece:
            now = f"and {pieces[number]!r} in {path}" if number in pieces else f"and {path} has no such id"
            raise DataError(
                f"id {number} is {piece!r} in the tokenizer of {old.path}, {now}: rows of weights belong to ids. Give a tokenizer"
                " that has the old pieces at their ids and others after them, as mt-convert merge-vocab writes one"
            )
    rows, encode = old.parts.config.model.options.vocab_size, text_encoder(before)
    texts = {number: after.decode([number]) for number in sorted(pieces) if number not in known or number >= rows}
    read = {number: [] if _FRAGMENT in text else encode(text) for number, text in texts.items()}
    return {number: tuple(each for each in ids if each < rows) for number, ids in read.items()}


def _with_rows(
    old: Source, new: Source, added: Mapping[int, tuple[int, ...]], growth: Growth, say: Say
) -> SourceTensors:
    """The old tensors; those with a row a token have one for each new token, too."""
    tensors, model = tensors_of(old, say), old.parts.config.model
    size = new.parts.config.model.options.vocab_size
    known = min(old.parts.tokenizer.size, model.options.vocab_size)
    rows = NewRows(added=added, size=size, init=growth.init, seed=growth.seed, known=known)
    grown = [name for name in per_token_names(old.parts, model) if name in tensors.loaders]
    say(f"notice: {len(added)} tokens are new; their rows in {', '.join(grown)} begin as {growth.init}")
    return replace(
        tensors,
        loaders={**tensors.loaders, **{name: rows.put(name, tensors.loaders[name]) for name in grown}},
        shapes={**tensors.shapes, **{name: (size, *tensors.shapes[name][1:]) for name in grown}},
    )


def _keep_template(old: Source, new: Source, stage: Path, say: Say) -> None:
    """Write the old chat template where the new tokenizer has none: the tokens that it spells are what they were."""
    template = old.parts.tokenizer.chat_template
    if template and not new.parts.tokenizer.chat_template:
        (stage / CHAT_TEMPLATE).write_text(template, encoding="utf-8")
        if (stage / TOKENIZER_CONFIG).is_file():
            write_json(stage / TOKENIZER_CONFIG, {**read_json(stage / TOKENIZER_CONFIG), "chat_template": template})
        say(f"notice: the new tokenizer has no chat template, so that {old.path}'s is kept")
