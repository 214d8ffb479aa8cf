"""A SentencePiece model as a ``tokenizer.json``, which transformers reads: alone it would guess what stands in front of a text."""

from __future__ import annotations

from typing import Any

_UNIGRAM, _BPE = 1, 2
_NORMAL, _CONTROL, _USER = 1, 3, 4
_NEVER = -1e6
"""Score of pieces that no text is read as: control symbols, bytes, the unknown token."""
_SPACE = "\u2581"


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
    tokenizer.normalizer = _normalizer(proto.normalizer_spec)
    strip = [decoders.Strip(content=" ", left=1)] if proto.normalizer_spec.add_dummy_prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    own = [piece for piece in proto.pieces if piece.type in (_CONTROL, _USER)]
    tokenizer.add_tokens([AddedToken(each.piece, special=each.type == _CONTROL, normalized=False) for each in own])
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


def _normalizer(spec: Any) -> Any:
    from tokenizers import Regex, normalizers

    steps: list[Any] = [normalizers.Precompiled(spec.precompiled_charsmap)] if spec.precompiled_charsmap else []
    if spec.remove_extra_whitespaces:
        # spaces alone: Strip() would take line ends and tabs too
        steps += [normalizers.Replace(Regex(rf"\A +|[ {_SPACE}]+\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(_SPACE))
    return normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
