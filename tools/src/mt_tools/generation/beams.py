"""Beam search as transformers does it (``generate(num_beams=…, do_sample=False)``), for one prompt.

Shapes: K beams, C candidates of a step, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mt_core.errors import MtError
from mt_core.nn import TrainModel
from mt_train.generation.choices import Choices
from mt_train.generation.config import SamplingRules
from mt_train.generation.decode import Continuation, advance, prefill
from mt_train.generation.history import History, adjust
from mt_train.generation.sampling import refuse_nothing

_NEVER = -1.0e9
"""Score of what must not be picked; finite, so that a difference of two is still a number."""


@dataclass
class _Candidate:
    """A text with its log-probability; ``beam`` is the beam that it grew from."""

    tokens: list[int]
    score: float
    beam: int = 0
    ended: bool = False


@dataclass
class _Finished:
    """The best whole texts so far, at most as many as there are beams, each scored per token."""

    beams: int
    found: list[_Candidate] = field(default_factory=list)

    def add(self, candidates: Sequence[_Candidate], length_penalty: float) -> None:
        scored = [_Candidate(c.tokens, c.score / len(c.tokens) ** length_penalty) for c in candidates if c.ended]
        possible = [*self.found, *(c for c in scored if c.score > _NEVER)]
        self.found = sorted(possible, key=lambda c: -c.score)[: self.beams]

    @property
    def full(self) -> bool:
        return len(self.found) == self.beams

    def beaten_by(self, score: float) -> bool:
        """Return whether a text of this score would get in."""
        return score > (self.found[-1].score if self.full else _NEVER)


@torch.inference_mode()
def search(
    model: TrainModel,
    row: Continuation,
    *,
    rules: SamplingRules,
    eos_ids: Sequence[int] = (),
    choices: Choices | None = None,
) -> None:
    """Give the row its best continuation.

    A score is the log-probability divided by length to the power ``length_penalty``. The search ends once no running
    beam can beat the worst of the finished ones (judged at its present length, as in transformers), or, with
    ``early_stopping``, once there are as many finished ones as beams.
    """
    model.eval()
    logits_KV, cache = prefill(model, [row.prompt])
    device = logits_KV.device
    cache.select(torch.zeros(rules.num_beams, dtype=torch.long, device=device))
    logits_KV = logits_KV.expand(rules.num_beams, -1)
    # all beams are the same at first: only the first may be continued, or all would stay the same
    running = [_Candidate([], 0.0 if beam == 0 else _NEVER) for beam in range(rules.num_beams)]
    finished = _Finished(rules.num_beams)
    while True:
        scores_KV = _scores(logits_KV, row, running, rules, eos_ids, choices)
        candidates = _best(scores_KV, running, max(2, 1 + len(eos_ids)) * rules.num_beams)
        for candidate in candidates:
            candidate.ended = candidate.tokens[-1] in eos_ids or len(candidate.tokens) >= row.most
        finished.add(candidates[: rules.num_beams], rules.length_penalty)
        running = _surviving_beams(candidates, rules.num_beams)
        if all(candidate.ended for candidate in candidates) or _is_over(running, finished, rules):
            return _give(row, finished, eos_ids)
        cache.select(torch.tensor([candidate.beam for candidate in running], device=device))
        position = len(row.prompt) + len(running[0].tokens) - 1
        last = [candidate.tokens[-1] for candidate in running]
        logits_KV = advance(model, last, [position] * len(running), cache)


def _scores(
    logits_KV: Tensor,
    row: Continuation,
    running: Sequence[_Candidate],
    rules: SamplingRules,
    eos_ids: Sequence[int],
    choices: Choices | None,
) -> Tensor:
    """(K, V) log-probability of each beam with each token after it."""
    new = [beam.tokens for beam in running]
    history = History(
        prompts=[row.prompt] * len(new),
        new=new,
        eos_ids=eos_ids,
        allowed=None if choices is None else [choices.allowed_tokens(tokens) for tokens in new],
        group=len(running),
    )
    log_KV = adjust(logits_KV.float().log_softmax(-1), history, rules)
    refuse_nothing(log_KV.amax(0, keepdim=True))  # one beam that can go on is enough
    return log_KV + torch.tensor([beam.score for beam in running], device=log_KV.device)[:, None]


def _best(scores_KV: Tensor, running: Sequence[_Candidate], count: int) -> list[_Candidate]:
    """The likeliest continuations of all beams together, best first."""
    vocabulary = scores_KV.shape[-1]
    scores_C, flat_C = torch.topk(scores_KV.flatten(), min(count, scores_KV.numel()))
    found = zip(scores_C.tolist(), flat_C.tolist(), strict=True)
    return [
        _Candidate([*running[flat // vocabulary].tokens, flat % vocabulary], score, flat // vocabulary)
        for score, flat in found
    ]


def _surviving_beams(candidates: Sequence[_Candidate], beams: int) -> list[_Candidate]:
    """Return the beams that go on, best first. Ended ones come last, marked down: they only fill up where all others are impossible.

    That happens under choices, and then such a filler counts as finished a second time. So it does in transformers.
    """
    marked = [_Candidate(c.tokens, c.score + _NEVER if c.ended else c.score, c.beam) for c in candidates]
    order = torch.topk(torch.tensor([candidate.score for candidate in marked]), beams).indices.tolist()
    return [marked[index] for index in order]


def _is_over(running: Sequence[_Candidate], finished: _Finished, rules: SamplingRules) -> bool:
    if finished.full and rules.early_stopping:
        return True
    reach = running[0].score / len(running[0].tokens) ** rules.length_penalty
    return not finished.beaten_by(reach)


def _give(row: Continuation, finished: _Finished, eos_ids: Sequence[int]) -> None:
    if not finished.found:
        raise MtError("beam search found no text that the rules allow; raise no_repeat_ngram or lower max_new_tokens")
    tokens = finished.found[0].tokens
    end = next((at for at, token in enumerate(tokens) if token in eos_ids), None)
    row.new, row.finish = list(tokens[:end]), "length" if end is None else "eos"
