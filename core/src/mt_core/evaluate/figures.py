"""How good a model is on rows: figures over all of them, and each sample's own.

Shapes: B rows, T tokens, D model width, n trained tokens of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from mt_core.data.encoded import EncodedSamples
from mt_core.data.loader import make_batch
from mt_core.nn import NOT_TRAINED, Batch, TokenObjective, TrainModel, token_scores
from mt_core.protocols import Objective, Sample, Tokenizer


@dataclass(kw_only=True)
class Figures:
    """Sums over samples; the figures follow from them."""

    samples: int = 0
    tokens: float = 0
    loss_sum: float = 0.0
    correct: float | None = None
    bytes: int | None = None
    metrics: dict[str, tuple[float, float]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, float]:
        """Loss (nats per token), perplexity, bits per byte of the trained text, token accuracy, the objective's metrics."""
        loss = self.loss_sum / max(self.tokens, 1)
        figures: dict[str, float] = {"samples": self.samples, "tokens": self.tokens, "loss": loss}
        figures["perplexity"] = math.exp(min(loss, 700.0))  # beyond that a float64 is infinite
        if self.bytes:
            figures["bits_per_byte"] = self.loss_sum / math.log(2) / self.bytes
        if self.correct is not None:
            figures["token_accuracy"] = self.correct / max(self.tokens, 1)
        return figures | {name: total / max(count, 1) for name, (total, count) in self.metrics.items()}


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One sample: ``predicted`` has the likeliest token at each trained place, given the true text before it."""

    id: str
    tokens: int
    loss: float
    token_accuracy: float
    prompt: str
    expected: str
    predicted: str


@torch.inference_mode()
def evaluate(
    model: TrainModel,
    objective: Objective,
    samples: EncodedSamples,
    tokenizer: Tokenizer,
    *,
    batch_size: int,
    on_prediction: Callable[[Prediction], None] | None = None,
) -> Figures:
    """Every sample once, in batches of similar length. Logits exist for one chunk of tokens at a time.

    A token objective gets all figures; any other one its loss and its own metrics.
    """
    model.eval()
    device = next(model.parameters()).device
    figures = Figures(samples=len(samples))
    plain = isinstance(objective, TokenObjective)
    if plain:
        figures.correct, figures.bytes = 0.0, text_bytes(samples, tokenizer)
    for numbers in _batches(samples, batch_size):
        batch = make_batch(samples, objective, [(number,) for number in numbers], None).to(device)
        hidden_BTD = model(batch)
        if plain:
            _add_scores(
                figures, model, hidden_BTD, batch, [samples[number] for number in numbers], tokenizer, on_prediction
            )
        else:
            _add_sums(figures, objective, model, hidden_BTD, batch)
    return figures


def _batches(samples: EncodedSamples, size: int) -> Iterator[list[int]]:
    order = samples.lengths.argsort(kind="stable").tolist()
    yield from (order[start : start + size] for start in range(0, len(order), size))


def _add_scores(
    figures: Figures,
    model: TrainModel,
    hidden_BTD: Tensor,
    batch: Batch,
    samples: Sequence[Sample],
    tokenizer: Tokenizer,
    on_prediction: Callable[[Prediction], None] | None,
) -> None:
    assert figures.correct is not None, "only token objectives have these figures"
    trained_BT = batch.labels != NOT_TRAINED
    labels_n = batch.labels[trained_BT]
    losses_n, likeliest_n = token_scores(model.head, hidden_BTD[trained_BT], labels_n)
    hits_n = likeliest_n == labels_n
    weights_n = None if batch.weights is None else batch.weights[trained_BT]
    figures.loss_sum += float((losses_n if weights_n is None else losses_n * weights_n).double().sum())
    figures.tokens += float(len(labels_n) if weights_n is None else weights_n.double().sum())
    figures.correct += float(hits_n.sum() if weights_n is None else (hits_n * weights_n).double().sum())
    if on_prediction is None:
        return
    counts = trained_BT.sum(1).tolist()
    parts = zip(
        samples, *(torch.split(values, counts) for values in (losses_n, hits_n, likeliest_n, labels_n)), strict=True
    )
    for sample, losses, hits, likeliest, labels in parts:
        prediction = Prediction(
            id=sample.row_id,
            tokens=len(losses),
            loss=float(losses.double().mean()) if len(losses) else 0.0,
            token_accuracy=float(hits.double().mean()) if len(hits) else 0.0,
            prompt=tokenizer.decode(prompt_ids(sample)),
            expected=tokenizer.decode(labels.tolist()),
            predicted=tokenizer.decode(likeliest.tolist()),
        )
        on_prediction(prediction)


def _add_sums(figures: Figures, objective: Objective, model: TrainModel, hidden_BTD: Tensor, batch: Batch) -> None:
    sums = objective.loss(hidden_BTD, model.head, batch)
    figures.loss_sum += float(sums.loss_sum)
    figures.tokens += float(sums.token_count)
    for name, (total, count) in sums.metrics.items():
        before = figures.metrics.get(name, (0.0, 0.0))
        figures.metrics[name] = before[0] + float(total), before[1] + float(count)


def prompt_ids(sample: Sample) -> list[int]:
    """The ids before the first one that is trained on; the first id of a sample is never predicted."""
    trained = np.flatnonzero(np.asarray(sample.trained, dtype=bool)[1:])
    first = 1 + int(trained[0]) if len(trained) else len(sample.ids)
    return np.asarray(sample.ids[:first]).tolist()  # type: ignore[no-any-return]


def text_bytes(samples: EncodedSamples, tokenizer: Tokenizer) -> int:
    """UTF-8 bytes of all trained text. The pieces of one row are decoded together, so that no character is cut."""
    return sum(
        len(tokenizer.decode([token for piece in pieces for token in _trained_ids(piece)]).encode())
        for _, pieces in groupby(samples, key=lambda sample: sample.row_id)
    )


def _trained_ids(sample: Sample) -> list[int]:
    trained = np.asarray(sample.trained, dtype=bool)[1:]
    return np.asarray(sample.ids)[1:][trained].tolist()  # type: ignore[no-any-return]
