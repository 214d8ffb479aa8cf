"""Two SentencePiece models as one: what the second has and the first lacks comes after it, with lower scores.

The first model's pieces keep their ids, so that the rows of a model that was trained with it stay where they are. As
https://github.com/ymcui/Chinese-LLaMA-Alpaca did, and many after it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mt_core.errors import OutputError, WeightsError
from mt_tools.convert.disk import tell_full_disk
from mt_train.config.reading import read_small

_NORMAL, _USER_DEFINED = 1, 4
"""Types of pieces (``ModelProto.SentencePiece.Type``): texts, and texts that are never cut, whose scores mean nothing."""


def merge(first: Path, second: Path, out: Path) -> tuple[int, int]:
    """Write the merged model; returns the pieces of the first, and how many came to them.

    Raises ``WeightsError`` for a file that is no model, for models of different kinds (their scores mean different things),
    or for a full disk, and ``OutputError`` when the file exists.
    """
    if os.path.lexists(out):
        raise OutputError(f"{out} exists; choose another name, nothing is overwritten")
    merged, other = _model(first), _model(second)
    kinds = [model.trainer_spec.ModelType.Name(model.trainer_spec.model_type) for model in (merged, other)]
    if kinds[0] != kinds[1]:
        raise WeightsError(
            f"{first} is a {kinds[0]} model and {second} a {kinds[1]} model, whose scores mean different things; train"
            f" the second one with --model_type={kinds[0].lower()}"
        )
    known = {piece.piece for piece in merged.pieces}
    lowest, before = min((piece.score for piece in merged.pieces), default=0.0), len(merged.pieces)
    new = [piece for piece in other.pieces if piece.type in (_NORMAL, _USER_DEFINED) and piece.piece not in known]
    highest = max((piece.score for piece in new if piece.type == _NORMAL), default=0.0)
    for piece in new:
        score = lowest - 1.0 + piece.score - highest if piece.type == _NORMAL else piece.score
        merged.pieces.add(piece=piece.piece, score=score, type=piece.type)
    merged.trainer_spec.vocab_size = len(merged.pieces)
    content = merged.SerializeToString()
    staging = out.with_name(f"{out.name}.partial")
    try:
        with tell_full_disk(staging, len(content)):
            staging.write_bytes(content)
        os.replace(staging, out)
    except BaseException:
        staging.unlink(missing_ok=True)
        raise
    return before, len(new)


def _model(path: Path) -> Any:
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    try:
        model.ParseFromString(read_small(path, most=10**9))
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {error.strerror}; give a SentencePiece model") from error
    except DecodeError as error:
        raise WeightsError(f"{path} is no SentencePiece model ({error}); give a tokenizer.model of one") from error
    if not model.pieces:
        raise WeightsError(f"{path} is no SentencePiece model, it has no pieces; give a tokenizer.model of one")
    return model
