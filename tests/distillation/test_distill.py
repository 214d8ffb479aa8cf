"""Rows of another objective with a teacher: what is encoded, weights of tokens, and the loss of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mt_conformance import trainer
from mt_core import DataError, Rejected, Sample
from mt_core.media import MediaItem, MediaSpan
from mt_core.nn import TokenObjective
from mt_core.plugins.host import PluginHost
from mt_plugin_distillation.objectives.distill import DistillObjective
from mt_plugin_distillation.options import DistillConfig

ROWS = [
    {"id": "row 0", "prompt": "say: ", "response": "a word"},
    {"id": "row 1", "prompt": "and? ", "response": ""},
    {"id": "row 2", "prompt": "more: ", "response": "of them, too"},
]


@pytest.fixture(scope="module")
def parts() -> Any:
    """The objective ``sft`` over bytes, and its tokenizer."""
    host = PluginHost.discover()
    component = host.get("tokenizer", "byte").component
    tokenizer = component.build(component.config())
    objective = host.get("objective", "sft").component
    return objective.build(
        objective.config(), tokenizer=tokenizer, template=trainer.build_template(tokenizer)
    ), tokenizer


@pytest.fixture(scope="module")
def distill(parts: Any, teacher: Path) -> DistillObjective:
    return DistillObjective(parts[1], parts[0], DistillConfig(teacher_path=teacher))


@pytest.fixture(scope="module")
def model() -> Any:
    component = PluginHost.discover().get("train_model", "llama").component
    sizes = {"dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_heads": 2, "ffn_dim": 48, "max_seq_len": 64}
    return component.build(component.config(vocab_size=272, **sizes))


def mean(objective: TokenObjective, model: Any, samples: Sequence[Sample]) -> float:
    batch = objective.collate([[sample] for sample in samples], length=32).with_index()
    sums = objective.loss(model(batch), model.head, batch)
    assert objective.count(batch) == pytest.approx(float(sums.token_count))
    return float(sums.loss_sum.detach() / sums.token_count)


def test_rows_become_the_samples_of_the_other_objective(distill: DistillObjective, parts: Any) -> None:
    expected = [parts[0].encode(row) for row in ROWS]
    assert isinstance(expected[1], Rejected)
    assert [distill.encode(row) for row in ROWS] == expected
    assert distill.encode_many(ROWS) == expected


def test_rows_with_media_are_refused(parts: Any, teacher: Path) -> None:
    class Pictures(TokenObjective):
        def encode(self, row: Any) -> Sample:
            return Sample([1, 2], [False, True], row["id"], media=(MediaSpan(0, 1, MediaItem("clip"), 1),))

    objective = DistillObjective(parts[1], Pictures(), DistillConfig(teacher_path=teacher))
    for encode in (objective.encode, lambda row: objective.encode_many([row])):
        with pytest.raises(DataError, match="row 0: the row has media, and a teacher reads text alone"):
            encode(ROWS[0])


def test_weights_of_tokens_multiply_both_terms(distill: DistillObjective, model: nn.Module) -> None:
    first, last = (each for each in map(distill.encode, ROWS) if isinstance(each, Sample))

    def weighted(sample: Sample, weight: float) -> Sample:
        return replace(sample, weights=[weight] * len(sample.ids))

    plain = mean(distill, model, [first, last])
    assert mean(distill, model, [weighted(first, 3.0), weighted(last, 3.0)]) == pytest.approx(plain, rel=1e-6)
    alone = mean(distill, model, [first])
    nearly = mean(distill, model, [first, weighted(last, 1e-6)])
    assert nearly == pytest.approx(alone, rel=1e-4) != plain


def test_the_loss_of_an_evaluation_is_that_of_sft(distill: DistillObjective, parts: Any, model: nn.Module) -> None:
    samples = [each for each in map(distill.encode, ROWS) if isinstance(each, Sample)]
    trained = mean(distill, model.train(), samples)
    with torch.no_grad():
        found, expected = (mean(each, model.eval(), samples) for each in (distill, parts[0]))
    assert found == pytest.approx(expected, rel=1e-6)
    assert abs(trained - found) > 0.1
