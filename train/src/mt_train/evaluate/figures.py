"""Figures of a model on rows: over all of them, and each sample's own.

Shapes: B rows, T tokens, D model width, n trained tokens of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from mt_core.errors import UsageError
from mt_core.model_protocols import Objective
from mt_core.nn import NOT_TRAINED, Batch, TokenObjective, TokenScores, TrainModel, token_scores
from mt_core.nn.batch import mean_of
from mt_core.protocols import Tokenizer
from mt_core.rows import Sample
from mt_train.data.loader import make_batch
from mt_train.data.online import CollectsAnswers
from mt_train.data.samples import EncodedSamples
from mt_train.engine.coupling import couple
from mt_train.engine.step import Reader
from mt_train.tracking.loss_units import counts_tokens

SumsByName = Mapping[str, tuple[Tensor, Tensor]]
"""Sums and what they are divided by."""


@dataclass(kw_only=True)
class Figures:
    """Sums over samples; the figures follow from them. ``weight`` is what ``loss_sum`` is divided by, ``tokens`` are those trained."""

    samples: int = 0
    tokens: int = 0
    weight: float = 0.0
    loss_sum: float = 0.0
    bytes: int | None = None
    metrics: dict[str, tuple[float, float]] = field(default_factory=dict)
    terms: dict[str, tuple[float, float]] = field(default_factory=dict)
    counts_tokens: bool = True

    def as_dict(self) -> dict[str, float]:
        """Loss (nats per token), perplexity, bits per byte of the trained text, the objective's terms and metrics.

        Each is a mean in which a token counts as much as it weighs; weights that are all the same change none. A loss that is
        no mean over tokens has no perplexity, and is over a ``count``. A metric that counted nothing is left out.
        """
        terms = {name: mean_of(total, count) for name, (total, count) in self.terms.items()}
        loss = mean_of(self.loss_sum, self.weight) + sum(terms.values())
        counted = {"tokens": self.tokens or round(self.weight)} if self.counts_tokens else {"count": self.weight}
        figures: dict[str, float] = {"samples": self.samples, **counted, "loss": loss}
        if self.counts_tokens:
            figures["perplexity"] = math.exp(min(loss, 700.0))  # beyond that a float64 is infinite
        if self.bytes:
            figures["bits_per_byte"] = loss / math.log(2) * self.tokens / self.bytes
        known = {name: pair for name, pair in self.metrics.items() if pair[1] > 0 or not self.weight}
        return figures | terms | {name: mean_of(*pair) for name, pair in known.items()}

    def add(self, loss_sum: float, weight: float, metrics: SumsByName, terms: SumsByName | None = None) -> None:
        """Count the sums of one batch; ``terms`` are those of the loss that have denominators of their own."""
        self.loss_sum, self.weight = self.loss_sum + loss_sum, self.weight + weight
        for found, sums in ((self.metrics, metrics), (self.terms, terms or {})):
            for name, (total, count) in sums.items():
                before = found.get(name, (0.0, 0.0))
                found[name] = before[0] + float(total), before[1] + float(count)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One sample: ``predicted`` has the likeliest token at each trained place, given the true text before it.

    ``loss`` and ``token_accuracy`` are means over its trained tokens, as much as each weighs.
    """

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

    Token objectives get all figures; one with a loss of its own gets that and its metrics, as in the run. Raises ``UsageError`` for
    prompts.
    """
    if isinstance(objective, CollectsAnswers):
        raise UsageError(
            "rows of this objective are prompts, which have no loss: the run itself answers held-out ones, and its metrics.jsonl has"
            " their figures. Evaluate rows with answers (--objective sft), or by --evaluations NAME"
        )
    model.eval()
    device = next(model.parameters()).device
    figures = Figures(samples=len(samples), counts_tokens=counts_tokens(objective))
    has_tokens = isinstance(objective, TokenObjective) and figures.counts_tokens
    is_plain = has_tokens and type(objective).loss is TokenObjective.loss
    if is_plain:
        figures.bytes = text_bytes(samples, tokenizer)

    def read(batches: Iterable[Batch], reader: Reader) -> None:
        for batch in batches:
            reader(model(batch), model.head, batch)

    parts = list(_batches(samples, batch_size))
    made = (make_batch(samples, objective, [(number,) for number in numbers], None).to(device) for numbers in parts)
    for numbers, batch in zip(parts, couple(objective, made, read), strict=True):
        hidden_BTD = model(batch)
        figures.tokens += batch.trained_tokens
        if not is_plain:
            sums = objective.loss(hidden_BTD, model.head, batch)
            figures.add(float(sums.loss_sum), float(sums.token_count), sums.metrics, sums.terms)
        if is_plain or (has_tokens and on_prediction is not None):
            scored = _score(model, hidden_BTD, batch)
            if is_plain:
                scores = getattr(objective, "scores", None) or TokenScores()
                figures.add(scored.loss_sum, scored.weight, scored.shares(scores))
            if on_prediction is not None:
                for prediction in _predictions([samples[number] for number in numbers], scored, batch, tokenizer):
                    on_prediction(prediction)
    return figures


def _batches(samples: EncodedSamples, size: int) -> Iterator[list[int]]:
    order = samples.lengths.argsort(kind="stable").tolist()
    yield from (order[start : start + size] for start in range(0, len(order), size))


@dataclass(frozen=True, kw_only=True)
class _TokenScores:
    """The trained tokens of a batch, (n) each."""

    losses_n: Tensor
    likeliest_n: Tensor
    labels_n: Tensor
    weights_n: Tensor

    @property
    def loss_sum(self) -> float:
        return float((self.losses_n * self.weights_n).sum())

    @property
    def weight(self) -> float:
        return float(self.weights_n.sum())

    def shares(self, scores: TokenScores) -> dict[str, tuple[Tensor, Tensor]]:
        return scores.shares(self.likeliest_n, self.labels_n, self.weights_n)


def _score(model: TrainModel, hidden_BTD: Tensor, batch: Batch) -> _TokenScores:
    trained_BT = batch.labels != NOT_TRAINED
    labels_n = batch.labels[trained_BT]
    losses_n, likeliest_n = token_scores(model.head, hidden_BTD[trained_BT], labels_n)
    weights_n = torch.ones_like(losses_n) if batch.weights is None else batch.weights[trained_BT]
    return _TokenScores(losses_n=losses_n, likeliest_n=likeliest_n, labels_n=labels_n, weights_n=weights_n.double())


def _predictions(
    samples: Sequence[Sample], scored: _TokenScores, batch: Batch, tokenizer: Tokenizer
) -> Iterator[Prediction]:
    """The predictions for the rows of a batch."""
    counts = (batch.labels != NOT_TRAINED).sum(1).tolist()
    columns = (scored.losses_n, scored.likeliest_n, scored.labels_n, scored.weights_n)
    parts = zip(samples, *(torch.split(values, counts) for values in columns), strict=True)
    for sample, losses, likeliest, labels, weights in parts:
        weight = float(weights.sum())
        yield Prediction(
            id=sample.row_id,
            tokens=len(losses),
            loss=mean_of(float((losses * weights).sum()), weight),
            token_accuracy=mean_of(float(weights[likeliest == labels].sum()), weight),
            prompt=tokenizer.decode(prompt_ids(sample)),
            expected=tokenizer.decode(labels.tolist()),
            predicted=tokenizer.decode(likeliest.tolist()),
        )


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
