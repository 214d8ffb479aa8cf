"""Difference between the logits of two models, on rows of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mt_core.errors import MtError, WeightsError
from mt_core.nn import Batch, TrainModel, objective_modules
from mt_tools.convert.source import Say, Source
from mt_train.assemble.data import build_held_out, build_tokenizer

ROWS, TOKENS = 4, 64
"""Size of the sample at most; its logits are kept: 128 MiB for a vocabulary of 128k."""

TEXT = """The first thing to do with a new instrument is to measure something that is known. In 1798 Henry Cavendish weighed the Earth
with two lead balls and a wire; the answer was within one per cent of today's. What is 17 + 25? It is 42.
def mean(values): return sum(values) / len(values)"""


@dataclass(frozen=True)
class Difference:
    """Difference of logits, over all places and tokens of the sample; ``equal`` is the share of places with the same likeliest token."""

    mean: float
    largest: float
    equal: float
    tokens: int
    text: str = "some text"
    than: str = "the other"

    def __str__(self) -> str:
        return (
            f"logits differ from {self.than} by {self.mean:.2e} on average, {self.largest:.2e} at most;"
            f" {self.equal:.1%} of the likeliest tokens are the same ({self.tokens} tokens of {self.text})"
        )


def sample_rows(source: Source, say: Say) -> tuple[list[list[int]], str]:
    """The begins of some rows that a run holds out, or of a text of ours where it has none any more; and which of the two."""
    parts = source.parts
    tokenizer = build_tokenizer(parts)
    try:
        _, samples = build_held_out(parts, tokenizer)
        rows = [list(samples[number].ids[:TOKENS]) for number in range(min(ROWS, len(samples)))]
    except MtError as error:
        say(f"notice: the run's rows cannot be read ({error}); a built-in text stands for them")
        rows = []
    if rows:
        return rows, "held-out rows"
    ids = list(tokenizer.encode(TEXT))[: ROWS * TOKENS]
    return [ids[start : start + TOKENS] for start in range(0, len(ids), TOKENS)], "a built-in text"


@torch.inference_mode()
def logits(model: TrainModel, rows: Sequence[Sequence[int]], *, scores: bool = False) -> list[Tensor]:
    """(T, V) of each row, in fp32 on the CPU; with ``scores`` (T, 1), those of an objective's own head."""
    model.eval()
    own = objective_modules(model.head) if scores else None
    device = next(model.parameters()).device
    found = []
    for row in rows:
        ids_BT = torch.tensor([list(row)], device=device)
        zeros_BT, positions_BT = torch.zeros_like(ids_BT), torch.arange(len(row), device=device)[None]
        hidden_BTD = model(Batch(ids_BT, zeros_BT, positions_BT, zeros_BT))
        values = model.head(hidden_BTD[0]) if own is None else own(hidden_BTD[0])[:, None]
        found.append(values.float().cpu())
    return found


def refuse_beyond(found: Difference, most: float, hint: str) -> None:
    """Raises ``WeightsError`` where logits are further apart on average."""
    if not found.mean <= most:
        raise WeightsError(f"nothing is written: {found}, and {most} on average is tolerated (--tolerance). {hint}")


def difference(before: Sequence[Tensor], after: Sequence[Tensor]) -> Difference:
    """Measure the difference of two models on the same rows, in the units of logits (nats)."""
    total, count, largest, equal, tokens = 0.0, 0, 0.0, 0, 0
    for one_TV, other_TV in zip(before, after, strict=True):
        apart_TV = (one_TV - other_TV).abs()
        total, count = total + float(apart_TV.double().sum()), count + apart_TV.numel()
        largest = max(largest, float(apart_TV.max()))
        equal += int((one_TV.argmax(1) == other_TV.argmax(1)).sum())
        tokens += len(one_TV)
    return Difference(total / count, largest, equal / tokens, tokens)
