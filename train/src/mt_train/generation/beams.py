"""Beam search as transformers does it (``generate(num_beams=…, do_sample=False)``), for one prompt.

Shapes: K beams, C candidates of a step, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mt_core.errors import MtError
from mt_core.generation import SamplingRules
from mt_core.nn import TrainModel
from mt_core.nn.positions import shift_behind
from mt_core.rows import MediaSpan
from mt_train.generation.choices import Choices
from mt_train.generation.forward import Forward, ReadMedia, grid_of, last_logits, make_batch, media_batch, next_batch
from mt_train.generation.history import History, adjust
from mt_train.generation.row_cache import RowCache
from mt_train.generation.sampling import find_stuck_rows

_NEVER = -1.0e9
"""Score of what must not be picked; finite, so that a difference of two is still a number."""


@dataclass
class _Candidate:
    """A text with its log-probability; ``beam`` is the beam that it grew from, ``logprobs`` what the model alone gives each token."""

    tokens: list[int]
    score: float
    logprobs: list[float]
    beam: int = 0
    ended: bool = False


@dataclass
class _FinishedTexts:
    """The best whole texts so far, at most as many as there are beams, each scored per token."""

    beams: int
    found: list[_Candidate] = field(default_factory=list)

    def add(self, candidates: Sequence[_Candidate], length_penalty: float) -> None:
        scored = [
            _Candidate(c.tokens, c.score / len(c.tokens) ** length_penalty, c.logprobs) for c in candidates if c.ended
        ]
        possible = [*self.found, *(c for c in scored if c.score > _NEVER)]
        self.found = sorted(possible, key=lambda c: -c.score)[: self.beams]

    @property
    def full(self) -> bool:
        return len(self.found) == self.beams

    def beaten_by(self, score: float) -> bool:
        """Return whether a text of this score would get in."""
        return score > (self.found[-1].score if self.full else _NEVER)


@dataclass(frozen=True)
class BestText:
    """The best text of a search."""

    tokens: list[int]
    """Its tokens, without the end token."""
    end_id: int | None
    logprobs: list[float]
    """Log-probabilities of each token and the end token, under the model itself."""


@torch.inference_mode()
def search(
    model: TrainModel,
    prompt: Sequence[int],
    most: int,
    *,
    rules: SamplingRules,
    end_ids: Sequence[int] = (),
    choices: Choices | None = None,
    forward: Forward = last_logits,
    media: Sequence[MediaSpan] = (),
    read_media: ReadMedia | None = None,
) -> BestText:
    """Return the best continuation of a prompt, of ``most`` tokens at most.

    A score is the log-probability divided by length to the power ``length_penalty``. The search ends once no running
    beam can beat the worst of the finished ones (judged at its present length, as in transformers), or, with
    ``early_stopping``, once there are as many finished ones as beams.
    """
    model.eval()
    device = next(model.parameters()).device
    cache = RowCache()
    grid_T3, shift = grid_of(media, len(prompt)), shift_behind(media)
    grid_1T3 = None if grid_T3 is None else torch.from_numpy(grid_T3)[None]
    begin = make_batch(torch.tensor([list(prompt)]), torch.arange(len(prompt))[None], grid_1T3)
    begin = media_batch(begin, [(0, span) for span in media], 0, read_media)
    logits_KV = forward(model, begin.to(device), cache)
    cache.select(torch.zeros(rules.num_beams, dtype=torch.long, device=device))
    logits_KV = logits_KV.expand(rules.num_beams, -1)
    # all beams are the same at first: only the first may be continued, or all would stay the same
    running = [_Candidate([], 0.0 if beam == 0 else _NEVER, []) for beam in range(rules.num_beams)]
    finished = _FinishedTexts(rules.num_beams)
    while True:
        log_KV = logits_KV.float().log_softmax(-1)
        scores_KV = _scores(log_KV, prompt, running, rules, end_ids, choices)
        candidates = _best(scores_KV, log_KV, running, max(2, 1 + len(end_ids)) * rules.num_beams)
        for candidate in candidates:
            candidate.ended = candidate.tokens[-1] in end_ids or len(candidate.tokens) >= most
        finished.add(candidates[: rules.num_beams], rules.length_penalty)
        running = _surviving_beams(candidates, rules.num_beams)
        if all(candidate.ended for candidate in candidates) or _is_over(running, finished, rules):
            return _best_text(finished, end_ids)
        cache.select(torch.tensor([candidate.beam for candidate in running], device=device))
        last = [candidate.tokens[-1] for candidate in running]
        positions = [len(prompt) + len(running[0].tokens) - 1] * len(running)
        logits_KV = forward(model, next_batch(last, positions, device, [shift] * len(last)), cache)


def _scores(
    log_KV: Tensor,
    prompt: Sequence[int],
    running: Sequence[_Candidate],
    rules: SamplingRules,
    end_ids: Sequence[int],
    choices: Choices | None,
) -> Tensor:
    """(K, V) log-probability of each beam with each token after it."""
    new = [beam.tokens for beam in running]
    history = History(
        prompts=[prompt] * len(new),
        new=new,
        eos_ids=end_ids,
        allowed=None if choices is None else [choices.allowed_tokens(tokens) for tokens in new],
        group=len(running),
    )
    log_KV = adjust(log_KV, history, rules)
    for fault in find_stuck_rows(log_KV.amax(0, keepdim=True)).values():  # one beam that can go on is enough
        raise fault
    return log_KV + torch.tensor([beam.score for beam in running], device=log_KV.device)[:, None]


def _best(scores_KV: Tensor, log_KV: Tensor, running: Sequence[_Candidate], count: int) -> list[_Candidate]:
    """The likeliest continuations of all beams together, best first."""
    vocabulary = scores_KV.shape[-1]
    scores_C, flat_C = torch.topk(scores_KV.flatten(), min(count, scores_KV.numel()))
    found = []
    for score, flat, logprob in zip(scores_C.tolist(), flat_C.tolist(), log_KV.flatten()[flat_C].tolist(), strict=True):
        beam, token = divmod(flat, vocabulary)
        grown = running[beam]
        found.append(_Candidate([*grown.tokens, token], score, [*grown.logprobs, logprob], beam))
    return found


def _surviving_beams(candidates: Sequence[_Candidate], beams: int) -> list[_Candidate]:
    """Return the beams that go on, best first. Ended ones come last, marked down: they only fill up where all others are impossible.

    That happens under choices, and then such a filler counts as finished a second time. So it does in transformers.
    """
    marked = [_Candidate(c.tokens, c.score + _NEVER if c.ended else c.score, c.logprobs, c.beam) for c in candidates]
    order = torch.topk(torch.tensor([candidate.score for candidate in marked]), beams).indices.tolist()
    return [marked[index] for index in order]


def _is_over(running: Sequence[_Candidate], finished: _FinishedTexts, rules: SamplingRules) -> bool:
    if finished.full and rules.early_stopping:
        return True
    reach = running[0].score / len(running[0].tokens) ** rules.length_penalty
    return not finished.beaten_by(reach)


def _best_text(finished: _FinishedTexts, end_ids: Sequence[int]) -> BestText:
    if not finished.found:
        raise MtError("beam search found no text that the rules allow; raise no_repeat_ngram or lower max_new_tokens")
    best = finished.found[0]
    end = next((at for at, token in enumerate(best.tokens) if token in end_ids), None)
    if end is None:
        return BestText(best.tokens, None, best.logprobs)
    return BestText(best.tokens[:end], best.tokens[end], best.logprobs[: end + 1])
