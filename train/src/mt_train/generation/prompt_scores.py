"""Log-probabilities of the tokens of a prompt, in pieces, so that a caller can do something else in between.

Shapes: T tokens of a piece, V vocabulary, K likeliest tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mt_core.nn import KVCache
from mt_train.generation.decoder import refuse_media
from mt_train.generation.forward import make_batch
from mt_train.generation.loaded_model import LoadedModel
from mt_train.generation.request import PromptIds, TokenScore, split_prompt


class PromptScores:
    """Log-probabilities of each token of a prompt except the first, with the ``top`` most likely tokens at its position.

    ``scores`` is whole once ``step`` has returned true.
    """

    def __init__(self, loaded: LoadedModel, prompt: PromptIds, top: int) -> None:
        ids, media = split_prompt(prompt)
        refuse_media(loaded, media)
        assert not media, "prompts with media are continued, not scored"
        self._model, self._ids, self._top = loaded.model, list(ids), top
        self._device = next(loaded.model.parameters()).device
        self._cache = KVCache()
        self._done = 0
        self.scores: list[TokenScore] = []

    @torch.inference_mode()
    def step(self, tokens: int) -> bool:
        """Run over ``tokens`` more tokens, or all where the model takes no pieces. Return whether all are scored."""
        last = len(self._ids) - 1  # nothing is asked about what follows the prompt
        end = min(last, self._done + tokens) if self._model.ragged_batches else last
        if self._done < end:
            self._score(self._done, end)
            self._done = end
        return self._done >= last

    def _score(self, first: int, end: int) -> None:
        ids_1T = torch.tensor([self._ids[first:end]], device=self._device)
        positions_1T = torch.arange(first, end, device=self._device)[None]
        hidden_1TD = self._model(make_batch(ids_1T, positions_1T), self._cache)
        logits_TV: Tensor = self._model.head(hidden_1TD[0])
        self.scores += score_tokens(logits_TV, self._ids[first + 1 : end + 1], self._top)


def score_tokens(logits_TV: Tensor, tokens: Sequence[int], top: int) -> list[TokenScore]:
    """Return the score of each row's token."""
    log_TV = logits_TV.float().log_softmax(-1)
    chosen_T = log_TV.gather(1, torch.tensor(tokens, device=log_TV.device)[:, None])[:, 0].tolist()
    likeliest = log_TV.topk(min(top, log_TV.shape[-1]))
    rows = zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
    return [
        TokenScore(token, logprob, tuple(zip(ids, values, strict=True)))
        for token, logprob, (ids, values) in zip(tokens, chosen_T, rows, strict=True)
    ]
