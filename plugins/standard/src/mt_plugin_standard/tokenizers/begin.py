"""Ids that a Hugging Face tokenizer puts in front of a text: its post-processor says it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

AUTO, ALWAYS, NONE = "auto", "always", "none"
"""Words that ``tokenizer.bos_token`` may say instead of a token."""
_TEXT = "x"
_TEMPLATE, _PAIRED = "TemplateProcessing", ("BertProcessing", "RobertaProcessing")
"""Processors that put tokens around a text: as a template says, and one in front (``cls``) with one behind (``sep``)."""


def begin_of(inner: Any) -> tuple[int, ...]:
    """Return the ids in front of a text where transformers adds special tokens."""
    whole, alone = (list(inner(_TEXT, add_special_tokens=added)["input_ids"]) for added in (True, False))
    places = range(len(whole) - len(alone) + 1)
    return tuple(whole[: next((place for place in places if whole[place : place + len(alone)] == alone), 0)])


def set_begin(inner: Any, token: str | None) -> None:
    """Let the tokenizer put this token in front of a text, or none. What it puts behind a text stays."""
    if not inner.is_fast:
        return  # a method in Python, which stays: an export tells what transformers reads otherwise
    from tokenizers import Tokenizer

    backend = inner.backend_tokenizer
    shell = _shell(backend.post_processor)
    processors = list(_flatten(shell["post_processor"]))
    others = [each for each in processors if each["type"] not in (_TEMPLATE, *_PAIRED)]
    behind = [token for each in processors for token in _behind(each)]
    around = dict([*behind, *_number_tokens(inner, token)])
    begin = [] if token is None else [token]
    texts = [[*begin, name, *(each for each, _ in behind)] for name in ("$A", "$B")]
    written = {
        "type": _TEMPLATE,
        "single": [_piece(each, 0) for each in texts[0]],
        "pair": [_piece(each, number) for number, pieces in enumerate(texts) for each in pieces],
        "special_tokens": {name: {"id": name, "ids": [number], "tokens": [name]} for name, number in around.items()},
    }
    shell["post_processor"] = {"type": "Sequence", "processors": [*others, written]} if others else written
    backend.post_processor = Tokenizer.from_str(json.dumps(shell)).post_processor


def _shell(processor: Any) -> dict[str, Any]:
    """A tokenizer of no words with this processor, as JSON: the tokenizer itself would write all of its vocabulary."""
    from tokenizers import Tokenizer, models

    empty = Tokenizer(models.BPE())
    if processor is not None:
        empty.post_processor = processor
    shell: dict[str, Any] = json.loads(empty.to_str())
    return shell


def _flatten(processor: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """Processors, and those in a sequence of them."""
    if processor is None:
        return
    if processor["type"] != "Sequence":
        yield processor
        return
    for each in processor["processors"]:
        yield from _flatten(each)


def _behind(processor: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Tokens that it puts behind a text, with their ids."""
    if processor["type"] in _PAIRED:
        return [tuple(processor["sep"])]
    if processor["type"] != _TEMPLATE:
        return []
    pieces = processor["single"]
    place = next(number for number, piece in enumerate(pieces) if "Sequence" in piece)
    names = [piece["SpecialToken"]["id"] for piece in pieces[place + 1 :]]
    known = processor["special_tokens"]
    return [pair for name in names for pair in zip(known[name]["tokens"], known[name]["ids"], strict=True)]


def _number_tokens(inner: Any, token: str | None) -> list[tuple[str, int]]:
    return [] if token is None else [(token, inner.convert_tokens_to_ids(token))]


def _piece(name: str, kind: int) -> dict[str, Any]:
    if name in ("$A", "$B"):
        return {"Sequence": {"id": name[1:], "type_id": kind}}
    return {"SpecialToken": {"id": name, "type_id": kind}}
