"""The tokenizer of a folder as llama.cpp reads it: tokens with types, merges or scores, and the name of how a text is cut into words.

llama.cpp knows ways to cut a text by name (``tokenizer.ggml.pre``), each built in. Its own converter finds the name by a hash of the ids
of one text, which published vocabularies have, and none that was trained or given words. Here it follows from what ``tokenizer.json`` says
of the cut itself; one that has no name is refused, since it would be read otherwise without a word.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mt_core.errors import UsageError
from mt_core.weights import read_json

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Types of tokens (``llama_token_type``)."""
_SPACE = "\u2581"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
CUTS = {
    _CONTRACTIONS + _LETTERS + r"|\p{N}{1,3}" + _REST: "llama-bpe",
    _CONTRACTIONS + _LETTERS + r"|\p{N}" + _REST: "qwen2",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt-2",
}
"""Pattern of a word → what llama.cpp calls it."""
TAKES_WHOLE = "llama-bpe"
"""Cut with which llama.cpp takes a word that is a token whole, whatever the merges make of it; with others it always merges. No key says
that otherwise. Source: ``llama-vocab.cpp``, where this name sets ``ignore_merges``."""


@dataclass(frozen=True)
class GgufVocabulary:
    """Tokens by their ids. ``scores`` are those of a SentencePiece model, ``merges`` those of byte-level BPE."""

    model: str
    pre: str
    tokens: Sequence[str]
    types: Sequence[int]
    merges: Sequence[str]
    scores: Sequence[float]
    add_space_prefix: bool


def read_vocabulary(folder: Path, size: int) -> GgufVocabulary:
    """Read ``tokenizer.json``; ids without a token, up to ``size``, are unused. Raises ``UsageError`` for what llama.cpp has not."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise UsageError(
            f"{folder} has no tokenizer.json, which --gguf takes tokens from; train with a tokenizer that has one"
        )
    content = read_json(file)
    model = content["model"]
    if model.get("type") != "BPE":
        raise UsageError(f"--gguf writes vocabularies of BPE, and tokenizer.json has {model.get('type')}")
    merges = [each if isinstance(each, str) else " ".join(each) for each in model["merges"]]
    added = {each["id"]: each for each in content.get("added_tokens", ())}
    known = {number: token for token, number in model["vocab"].items()} | {
        n: each["content"] for n, each in added.items()
    }
    if (most := max(known, default=-1)) >= size:
        raise UsageError(
            f"tokenizer.json has the id {most}, and the model {size} tokens; resize it (mt-convert resize-vocab)"
        )
    tokens = [known.get(number, f"[PAD{number}]") for number in range(size)]
    if len(set(tokens)) < size:
        raise UsageError("tokenizer.json has a token twice, which a GGUF file cannot")
    pieces = bool(model.get("byte_fallback"))
    unknown = model.get("unk_token")
    types = [_type(number, known, added, unknown, pieces=pieces) for number in range(size)]
    words = [token for token, kind in zip(tokens, types, strict=True) if kind == NORMAL]
    if pieces:
        prefix = _prefix(content, file)
        _refuse_other_merges(words, merges)
        _refuse_other_words(words, model, "default")
        return GgufVocabulary("llama", "default", tokens, types, (), _scores(tokens, merges), prefix)
    cut = _cut(content, file)
    _refuse_other_words(words, model, cut)
    return GgufVocabulary("gpt2", cut, tokens, types, merges, (), add_space_prefix=False)


def _type(
    number: int, known: Mapping[int, str], added: Mapping[int, Mapping[str, Any]], unknown: str | None, *, pieces: bool
) -> int:
    if number not in known:
        return UNUSED
    if pieces and known[number] == unknown:
        return UNKNOWN
    if number in added:
        return CONTROL if added[number]["special"] else USER_DEFINED
    text = known[number]
    return BYTE if pieces and len(text) == 6 and text.startswith("<0x") and text.endswith(">") else NORMAL


def _refuse_other_merges(tokens: Sequence[str], merges: Sequence[str]) -> None:
    """Raise ``UsageError`` where merges are not those that llama.cpp makes: any two pieces whose text is a token, by the score of that."""
    ranks = {merge: rank for rank, merge in enumerate(merges)}
    known = set(tokens)
    for token in tokens:
        cuts = ((token[:place], token[place:]) for place in range(1, len(token)))
        pairs = [f"{one} {other}" for one, other in cuts if one in known and other in known]
        missing = next((pair for pair in pairs if pair not in ranks), None)
        found = [ranks[pair] for pair in pairs if pair in ranks]
        if missing is not None or (found and max(found) - min(found) >= len(found)):
            raise UsageError(
                f"tokenizer.json makes the token {token!r} otherwise than llama.cpp, which joins any two pieces that make it"
                f" ({missing or pairs[0]!r}): its ids would differ. A vocabulary that was trained as byte-level BPE is written"
            )


def _refuse_other_words(words: Sequence[str], model: Mapping[str, Any], cut: str) -> None:
    """Raise ``UsageError`` where only one of both takes words whole (``ignore_merges``), and merges do not make the same of them."""
    takes_whole = bool(model.get("ignore_merges"))
    if takes_whole == (cut == TAKES_WHOLE):
        return
    from tokenizers.models import BPE

    pairs = (each.split(" ") if isinstance(each, str) else each for each in model["merges"])
    bpe = BPE(vocab=model["vocab"], merges=[(left, right) for left, right in pairs])
    if word := next((word for word in words if len(bpe.tokenize(word)) != 1), None):
        who = "tokenizer.json takes" if takes_whole else f"llama.cpp (with the cut {cut}) takes"
        raise UsageError(
            f"the merges do not make the token {word!r}, and only {who} a word whole that is a token (ignore_merges): its ids would differ."
            " Serve the folder itself"
        )


def _scores(tokens: Sequence[str], merges: Sequence[str]) -> list[float]:
    """Return a higher score for what is merged earlier: SentencePiece merges the pair of the highest score first."""
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        ranks.setdefault(merge.replace(" ", ""), rank)
    last = len(merges)
    return [-float(ranks.get(token, last)) for token in tokens]


def _parts(section: Mapping[str, Any] | None, key: str) -> list[Mapping[str, Any]]:
    """Return the steps of a normalizer or pre-tokenizer, one after the other."""
    if section is None:
        return []
    return list(section[key]) if section["type"] == "Sequence" else [section]


def _cut(content: Mapping[str, Any], file: Path) -> str:
    """Return llama.cpp's name for how words are cut."""
    steps = _parts(content.get("pre_tokenizer"), "pretokenizers")
    normalizers = [each["type"] for each in _parts(content.get("normalizer"), "normalizers")]
    if steps and steps[-1]["type"] == "ByteLevel" and not steps[-1].get("add_prefix_space"):
        *before, last = steps
        name = _name_cut(before, by_itself=last.get("use_regex", True))
        if name is not None and normalizers in ([], ["NFC"]):
            return name
    shown = json.dumps({"normalizer": content.get("normalizer"), "pre_tokenizer": content.get("pre_tokenizer")})
    raise UsageError(
        f"{file} cuts texts into words in a way that llama.cpp has no name for: {shown[:300]}. It knows"
        f" {', '.join(sorted({*CUTS.values(), 'smollm'}))}; train with a tokenizer of these, or serve the folder itself"
    )


def _name_cut(before: Sequence[Mapping[str, Any]], *, by_itself: bool) -> str | None:
    match list(before):
        case [] if by_itself:
            return "gpt-2"
        case [{"type": "Digits", "individual_digits": True}] if by_itself:
            return "smollm"
        case [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}] if (
            not by_itself
        ):
            return CUTS.get(pattern)
    return None


def _prefix(content: Mapping[str, Any], file: Path) -> bool:
    """Return whether a text gets a space in front. Raises ``UsageError`` for other ways to write spaces than SentencePiece's."""
    steps = [*_parts(content.get("normalizer"), "normalizers"), *_parts(content.get("pre_tokenizer"), "pretokenizers")]
    match steps:
        case [{"type": "Prepend", "prepend": prefix}, {"type": "Replace", "content": space}] if (
            prefix == space == _SPACE
        ):
            return True
        case [{"type": "Replace", "content": space}] if space == _SPACE:
            return False
        case [{"type": "Metaspace", "prepend_scheme": scheme, "split": False}] if scheme in (
            "first",
            "always",
            "never",
        ):
            return bool(scheme != "never")
    raise UsageError(f"{file} writes spaces in a way that llama.cpp's SentencePiece has not; serve the folder itself")
