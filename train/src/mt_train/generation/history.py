"""Rules that look back: penalties, barred repetitions, a minimal length and the choices.

Each equals the processor of the same name in transformers; frequency and presence follow OpenAI's formula
(https://developers.openai.com/api/docs/guides/advanced-usage, "Frequency and presence penalties").

Shapes: B rows, T tokens so far (padded on the left with ``NO_TOKEN``), V vocabulary, W windows, G tokens of one n-gram.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mt_core.generation import SamplingRules

NO_TOKEN = -1
"""Fills the start of a row that is shorter than another; no rule counts it."""


@dataclass(frozen=True)
class History:
    """Tokens before the one that is chosen now, as plain lists: each row's prompt, and what is new after it.

    ``allowed`` are the only tokens that may follow, row by row. ``group`` rows belong to one prompt (its beams).
    """

    prompts: Sequence[Sequence[int]]
    new: Sequence[Sequence[int]]
    eos_ids: Sequence[int] = ()
    allowed: Sequence[Sequence[int]] | None = None
    group: int = 1

    @property
    def ids(self) -> list[list[int]]:
        """Both together; made for the rules that look back so far, and only then."""
        return [[*prompt, *new] for prompt, new in zip(self.prompts, self.new, strict=True)]


def pad_rows(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """(B, T) ids, aligned on the right."""
    longest = max((len(row) for row in rows), default=0)
    return torch.tensor([[NO_TOKEN] * (longest - len(row)) + list(row) for row in rows], device=device).view(
        len(rows), longest
    )


def count_tokens(ids_BT: Tensor, vocabulary: int) -> Tensor:
    """(B, V) how often each token occurs; ``NO_TOKEN`` and ids beyond V are left out."""
    known_BT = (ids_BT >= 0) & (ids_BT < vocabulary)
    spare = torch.where(known_BT, ids_BT, vocabulary).long()
    counts = torch.zeros(len(ids_BT), vocabulary + 1, device=ids_BT.device)
    return counts.scatter_add(1, spare, torch.ones_like(spare, dtype=counts.dtype))[:, :vocabulary]


def penalize_repetition(logits_BV: Tensor, ids_BT: Tensor, penalty: float) -> Tensor:
    """Tokens seen before, the prompt's too, lose: positive logits divided, negative multiplied (https://arxiv.org/abs/1909.05858)."""
    lowered_BV = torch.where(logits_BV < 0, logits_BV * penalty, logits_BV / penalty)
    return torch.where(count_tokens(ids_BT, logits_BV.shape[-1]) > 0, lowered_BV, logits_BV)


def penalize_frequency(logits_BV: Tensor, new_BT: Tensor, frequency: float, presence: float) -> Tensor:
    """logit - count · frequency - [count > 0] · presence, where count is over the new tokens only."""
    counts_BV = count_tokens(new_BT, logits_BV.shape[-1]).to(logits_BV.dtype)
    return logits_BV - counts_BV * frequency - (counts_BV > 0).to(logits_BV.dtype) * presence


def bar_repeated_ngrams(logits_BV: Tensor, ids_BT: Tensor, size: int) -> Tensor:
    """No ``size`` tokens in a row come twice, those of the prompt included (https://arxiv.org/abs/1705.04304)."""
    length, vocabulary = ids_BT.shape[1], logits_BV.shape[-1]
    if length < size:
        return logits_BV
    windows_BWG = ids_BT.unfold(1, size, 1)
    ending_B1G = ids_BT[:, None, length + 1 - size :]
    repeated_BW = (windows_BWG[..., :-1] == ending_B1G).all(-1) & (windows_BWG >= 0).all(-1)
    barred_BW = torch.where(repeated_BW, windows_BWG[..., -1].clamp(max=vocabulary), vocabulary)
    barred = torch.zeros(len(ids_BT), vocabulary + 1, dtype=torch.bool, device=ids_BT.device)
    return logits_BV.masked_fill(barred.scatter(1, barred_BW, True)[:, :vocabulary], -torch.inf)


def bar_early_end(logits_BV: Tensor, new: Sequence[Sequence[int]], eos_ids: Sequence[int], least: int) -> Tensor:
    """No end token before ``least`` new tokens."""
    early = [row for row, tokens in enumerate(new) if len(tokens) < least]
    ends = [token for token in eos_ids if token < logits_BV.shape[-1]]  # a tokenizer may have one without a row
    if not early or not ends:
        return logits_BV
    logits_BV = logits_BV.clone()
    logits_BV[torch.tensor(early)[:, None], torch.tensor(ends)] = -torch.inf
    return logits_BV


def keep_allowed(logits_BV: Tensor, unbarred_BV: Tensor, allowed: Sequence[Sequence[int]], group: int = 1) -> Tensor:
    """Keep only the allowed tokens of each row; where other rules bar all of those in a whole group, these are as if unbarred."""
    mask_BV = torch.full_like(logits_BV, -torch.inf)
    for row, tokens in enumerate(allowed):
        mask_BV[row, list(tokens)] = 0
    kept_BV = logits_BV + mask_BV
    stuck_B = kept_BV.amax(-1).isneginf().view(-1, group).all(-1).repeat_interleave(group)
    least = torch.finfo(logits_BV.dtype).min  # the model itself may bar all of them
    return torch.where(stuck_B[:, None], unbarred_BV.clamp(min=least) + mask_BV, kept_BV)


def adjust(logits_BV: Tensor, history: History, rules: SamplingRules) -> Tensor:
    """Every rule that looks back, in the order of transformers."""
    device = logits_BV.device
    if rules.repetition_penalty != 1:
        logits_BV = penalize_repetition(logits_BV, pad_rows(history.ids, device), rules.repetition_penalty)
    if rules.frequency_penalty or rules.presence_penalty:
        new_BT = pad_rows(history.new, device)
        logits_BV = penalize_frequency(logits_BV, new_BT, rules.frequency_penalty, rules.presence_penalty)
    unbarred_BV = logits_BV
    if rules.no_repeat_ngram is not None:
        logits_BV = bar_repeated_ngrams(logits_BV, pad_rows(history.ids, device), rules.no_repeat_ngram)
    if rules.min_new_tokens:
        logits_BV = bar_early_end(logits_BV, history.new, history.eos_ids, rules.min_new_tokens)
    if history.allowed is None:
        return logits_BV
    return keep_allowed(logits_BV, unbarred_BV, history.allowed, history.group)
