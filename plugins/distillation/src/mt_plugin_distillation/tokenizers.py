"""Comparison of a teacher's tokenizer with the student's: a token has to have the same id in both."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mt_core import UsageError, notice, text_encoder

if TYPE_CHECKING:
    from mt_core import Tokenizer
    from mt_train import LoadedModel

COMPARED = 16_384
"""Ids that are looked at, at most, evenly spread: each takes some ten microseconds."""

_TEXT = (
    "The quick brown fox's 12,345 jumps over 3.5 lazy dogs: naïve façade, Ελλάδα, Привет, 你好世界, こんにちは, 🙂!\n"
    "\tif x == 0:\r\n        return [x**2 for x in range(10)]  # done\n\n"
)
"""Words, numbers, scripts and white space, at which tokenizers part."""

_FIX = "A teacher needs the ids of the student: take one of the same family, or train on texts that it wrote (--objective sft)"


def refuse_other_tokenizer(tokenizer: Tokenizer, teacher: LoadedModel, path: Path) -> None:
    """Raise ``UsageError`` where the teacher reads other tokens from the ids of the run's tokenizer, or has fewer ids.

    Texts of up to ``COMPARED`` ids are compared, and the ids of a text; special tokens have no text, and may differ. A notice names
    the first of those with a text that the run alone has, which a teacher with padded rows reads as something that it never saw.
    """
    rows = teacher.vocabulary
    if rows is not None and tokenizer.size > rows:
        raise UsageError(f"the teacher {path} has {rows} ids, and the run's tokenizer {tokenizer.size}. {_FIX}")
    other = teacher.tokenizer
    ids, others = (text_encoder(each)(_TEXT) for each in (tokenizer, other))
    if ids != others:
        place = next((n for n, pair in enumerate(zip(ids, others, strict=False)) if pair[0] != pair[1]), 0)
        raise UsageError(
            f"the teacher {path} has another tokenizer: {tokenizer.decode(ids[: place + 1])[-40:]!r} ends in token {ids[place]} for"
            f" the run, and not for the teacher. {_FIX}"
        )
    size = min(tokenizer.size, other.size)
    for token in range(0, size, max(1, -(-size // COMPARED))):
        ours, theirs = tokenizer.decode([token]), other.decode([token])
        if ours != theirs:
            raise UsageError(
                f"the teacher {path} has another tokenizer: id {token} is {theirs!r} there, and {ours!r} in the run. {_FIX}"
            )
    own = [token for token in range(other.size, tokenizer.size) if tokenizer.decode([token])]
    if own:
        notice(
            f"notice: the teacher {path} was not trained on {len(own):,} ids of the run's tokenizer, the first of which is {own[0]}"
            f" ({tokenizer.decode(own[:1])!r}): rows with them are learned from what it makes of untrained embeddings"
        )
