"""Texts as requests: the ids of a context and of what is scored after it.

Ids are those of lm-evaluation-harness: context and target are encoded together, and the target's are what comes behind the ids of the
context; spaces at the end of a context belong to the target. A text begins as the tokenizer begins texts (``mt_core.begin_ids``).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from mt_core import ManyTexts, Tokenizer, UsageError, begin_ids, text_encoder
from mt_core.evaluation import Continuation


class PairEncoder:
    """Encodes contexts with their targets."""

    def __init__(self, tokenizer: Tokenizer, eos_ids: Sequence[int]) -> None:
        self._tokenizer, self._encode = tokenizer, text_encoder(tokenizer)
        self._begin = list(begin_ids(tokenizer))
        self._eos_ids = eos_ids

    def start(self) -> list[int]:
        """Return the ids before a text that nothing precedes: how texts begin, else the begin token, else an end token."""
        if self._begin:
            return list(self._begin)
        bos = self._tokenizer.bos_id
        if bos is None and not self._eos_ids:
            raise UsageError(
                "the tokenizer has neither a begin nor an end token, so nothing can stand before a text. Name one with"
                " --tokenizer.bos-token or --tokenizer.eos-token."
            )
        return [self._eos_ids[0] if bos is None else bos]

    def texts(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of texts without what they begin with, all at once where the tokenizer can."""
        if isinstance(self._tokenizer, ManyTexts):
            return self._tokenizer.encode_many(texts)
        return [self._encode(text) for text in texts]

    def pairs(self, texts: Sequence[tuple[str, str]], *, alone: bool = False) -> list[Continuation]:
        """Return a request for each (context, target).

        A target may have no ids, where a token of the context takes all of it up. Requests with the same context share its ids, which are
        an array: a tenth of a list's memory.
        """
        parts = list(texts) if alone else [move_spaces(context, target) for context, target in texts]
        known = list(dict.fromkeys(context for context, _ in parts))
        contexts = dict(zip(known, self.texts(known), strict=True))
        if alone:
            targets = self.texts([target for _, target in parts])
        else:
            wholes = self.texts([context + target for context, target in parts])
            targets = [ids[len(contexts[context]) :] for (context, _), ids in zip(parts, wholes, strict=True)]
        starts = {
            context: array("i", [*self._begin, *ids] if context else self.start()) for context, ids in contexts.items()
        }
        return [Continuation(starts[context], target) for (context, _), target in zip(parts, targets, strict=True)]


def fits(request: Continuation, max_seq_len: int) -> bool:
    """Return whether the model can score it: the last id of the target is predicted, and never read."""
    return len(request.context) + len(request.target) - 1 <= max_seq_len


def move_spaces(context: str, target: str) -> tuple[str, str]:
    """Return both texts, with the spaces at the end of the context in front of the target."""
    bare = context.rstrip()
    return bare, context[len(bare) :] + target
