"""A SentencePiece model as a ``tokenizer.json``, which transformers reads: alone it would guess what stands in front of a text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_UNIGRAM, _BPE = 1, 2
_NORMAL, _CONTROL, _USER = 1, 3, 4
_NEVER = -1e6
"""Score of pieces that no text is read as: control symbols, bytes, the unknown token."""
_SPACE = "\u2581"
_NFKC = frozenset({"nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf"})
"""Rules of SentencePiece that begin with NFKC; those of ``nmt`` make spaces of line ends."""
_WIDE_TILDE = "\uff5e"
"""The one character that NFKC changes and the rules of ``nmt`` keep."""
_STAND_INS = range(0x10FFFD, 0xFFFFF, -1)
"""Characters for private use, of which a normalizer makes nothing else: as many as symbols may need, from the end that fonts leave free."""


def as_tokenizer(serialized: bytes) -> Any:
    """Return the model as ``tokenizers`` has it; ``None`` for one of another kind than BPE and unigram.

    Formats: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto. As SentencePiece does, pieces are
    merged in the order of their scores, and whitespace is escaped after the text is normalised.
    """
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import AddedToken, Tokenizer, decoders

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(serialized)
    model = _model(proto)
    if model is None:
        return None
    tokenizer = Tokenizer(model)
    control = [piece.piece for piece in proto.pieces if piece.type == _CONTROL]
    # spaces are escaped before SentencePiece looks for symbols, so that it finds none with a space
    symbols = [piece.piece for piece in proto.pieces if piece.type == _USER and " " not in piece.piece]
    symbols.sort(key=len, reverse=True)
    normalizer = _normalizer(proto.normalizer_spec, symbols)
    tokenizer.normalizer = normalizer
    strip = [decoders.Strip(content=" ", left=1)] if proto.normalizer_spec.add_dummy_prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    # looked for in the normalised text, as SentencePiece does: what stands before and behind a symbol is one text
    found = {symbol: normalizer.normalize_str(symbol) == symbol for symbol in symbols}
    added = [AddedToken(symbol, special=False, normalized=is_found) for symbol, is_found in found.items()]
    tokenizer.add_tokens([AddedToken(piece, special=True, normalized=False) for piece in control] + added)
    return tokenizer


def _model(proto: Any) -> Any:
    from tokenizers import models

    spec = proto.trainer_spec
    if spec.treat_whitespace_as_suffix:
        return None
    if spec.model_type == _UNIGRAM:
        read = (_NORMAL, _USER)
        pieces = [(piece.piece, piece.score if piece.type in read else _NEVER) for piece in proto.pieces]
        return models.Unigram(pieces, unk_id=spec.unk_id, byte_fallback=spec.byte_fallback)
    if spec.model_type != _BPE:
        return None
    ids = {piece.piece: number for number, piece in enumerate(proto.pieces)}
    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == _NORMAL}
    pairs = [(word[:at], word[at:]) for word in scores for at in range(1, len(word))]
    merges = [pair for pair in pairs if pair[0] in ids and pair[1] in ids]
    merges.sort(key=lambda pair: (-scores["".join(pair)], ids[pair[0]], ids[pair[1]]))
    return models.BPE(ids, merges, unk_token=spec.unk_piece, fuse_unk=True, byte_fallback=spec.byte_fallback)


def _normalizer(spec: Any, symbols: Sequence[str]) -> Any:
    """SentencePiece's normalization, which leaves ``symbols`` in a text as they are.

    A text that is a symbol and nothing else gets no ``▁`` in front: ``tokenizers`` looks for symbols in the form that they get here.
    """
    from tokenizers import Regex, normalizers

    steps = _character_rules(spec)
    if spec.remove_extra_whitespaces:
        # spaces alone: Strip() would take line ends and tabs too
        steps += [normalizers.Replace(Regex(r"\A +"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    plain = normalizers.Sequence(steps)
    changed = [symbol for symbol in symbols if plain.normalize_str(symbol) != symbol]
    steps = _leave_alone(changed, steps, _STAND_INS[1:])
    if spec.remove_extra_whitespaces:
        steps.append(normalizers.Replace(Regex(rf"(?<=[^ {_SPACE}])[ {_SPACE}]+\z"), ""))
    if spec.add_dummy_prefix and symbols:
        alone = "|".join(re.escape(symbol) for symbol in symbols)
        steps.append(normalizers.Replace(Regex(rf"\A(?!(?:{alone})?\z)"), _SPACE))
    elif spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(_SPACE))
    return normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])


def _character_rules(spec: Any) -> list[Any]:
    """Steps for the rules of characters.

    ``tokenizers`` applies them to each grapheme, and to one of six bytes or more character by character, where SentencePiece takes the
    longest sequence: it would not compose a Korean syllable, and drop an accent behind a character that the rules change. So NFKC goes
    before.
    """
    from tokenizers import normalizers

    if not spec.precompiled_charsmap:
        return []
    rules = normalizers.Precompiled(spec.precompiled_charsmap)
    if spec.name not in _NFKC:
        return [rules]
    if not spec.name.startswith("nmt_"):
        return [normalizers.NFKC(), rules]
    lines = normalizers.Replace("\r\n", "\n\n")  # one grapheme, of which one space would be made
    return [lines, *_leave_alone([_WIDE_TILDE], [normalizers.NFKC(), rules], _STAND_INS[:1])]


def _leave_alone(texts: Sequence[str], steps: Sequence[Any], stand_ins: Sequence[int]) -> list[Any]:
    """Steps that do not change the texts: other characters stand for them meanwhile."""
    from tokenizers import normalizers

    pairs = [(text, chr(code)) for text, code in zip(texts, stand_ins, strict=False)]
    hide = [normalizers.Replace(text, stand_in) for text, stand_in in pairs]
    return [*hide, *steps, *(normalizers.Replace(stand_in, text) for text, stand_in in pairs)]
