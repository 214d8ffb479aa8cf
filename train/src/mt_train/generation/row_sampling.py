"""The next token of each row, where every row has rules of its own. Rows with equal rules are computed together.

Shapes: B rows, V vocabulary, N biases of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mt_core.errors import MtError
from mt_train.generation.history import History
from mt_train.generation.request import Row, TokenOutput
from mt_train.generation.sampling import choose


def extend_rows(logits_BV: Tensor, rows: Sequence[Row]) -> list[TokenOutput]:
    """Give each row the token that its rules choose."""
    logits_BV = logits_BV.float()
    chosen = _choose_by_rules(_add_biases(logits_BV, rows), rows)
    tokens = [0 if isinstance(token, MtError) else token for token in chosen]
    scores = _log_probabilities(logits_BV, rows, tokens)
    produced = []
    for place, (row, token, found) in enumerate(zip(rows, tokens, chosen, strict=True)):
        logprob, top = scores.get(place, (None, ()))
        produced.append(row.take(token, logprob, top, found if isinstance(found, MtError) else None))
    return produced


def _add_biases(logits_BV: Tensor, rows: Sequence[Row]) -> Tensor:
    places = [(place, *pair) for place, row in enumerate(rows) for pair in row.request.logit_bias]
    if not places:
        return logits_BV
    row_N, token_N, bias_N = (torch.tensor(each, device=logits_BV.device) for each in zip(*places, strict=True))
    return logits_BV.index_put((row_N, token_N), bias_N.to(logits_BV.dtype), accumulate=True)


def _choose_by_rules(logits_BV: Tensor, rows: Sequence[Row]) -> list[int | MtError]:
    groups: dict[object, list[int]] = {}
    for place, row in enumerate(rows):
        key = (row.request.rules, row.request.end_ids, row.request.choices is None)
        groups.setdefault(key, []).append(place)
    found: dict[int, int | MtError] = {}
    for places in groups.values():
        alike = [rows[place] for place in places]
        part_BV = logits_BV if len(alike) == len(rows) else logits_BV[torch.tensor(places, device=logits_BV.device)]
        history = History(
            prompts=[row.request.ids for row in alike],
            new=[row.new for row in alike],
            eos_ids=alike[0].request.end_ids,
            allowed=_allowed_tokens(alike),
        )
        tokens = choose(part_BV, history, alike[0].request.rules, [row.generator for row in alike])
        found.update(zip(places, tokens, strict=True))
    return [found[place] for place in range(len(rows))]


def _allowed_tokens(rows: Sequence[Row]) -> list[list[int]] | None:
    """Tokens that the choices of each row allow: all rows have some, or none has."""
    listed = [(row.request.choices, row.new) for row in rows]
    return [choices.allowed_tokens(new) for choices, new in listed if choices is not None] or None


def _log_probabilities(
    logits_BV: Tensor, rows: Sequence[Row], tokens: Sequence[int]
) -> dict[int, tuple[float, tuple[tuple[int, float], ...]]]:
    """Place → log-probability of the row's token and of the likeliest, for the rows that ask. No rule has a part in them."""
    places = [place for place, row in enumerate(rows) if row.request.top_logprobs is not None]
    if not places:
        return {}
    device = logits_BV.device
    log_BV = logits_BV[torch.tensor(places, device=device)].log_softmax(-1)
    chosen_B1 = torch.tensor([[tokens[place]] for place in places], device=device)
    most = min(max(rows[place].request.top_logprobs or 0 for place in places), logits_BV.shape[-1])
    top = log_BV.topk(most)
    listed = zip(
        places, log_BV.gather(1, chosen_B1)[:, 0].tolist(), top.indices.tolist(), top.values.tolist(), strict=True
    )
    return {
        place: (logprob, tuple(zip(ids, values, strict=True))[: rows[place].request.top_logprobs])
        for place, logprob, ids, values in listed
    }
