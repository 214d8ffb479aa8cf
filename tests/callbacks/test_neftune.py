"""NEFTune: as much noise as the paper says, where it says, and only in training."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from mt_core import CallbackContext
from mt_core.nn import Batch
from mt_plugin_callbacks.neftune import Neftune, NeftuneConfig

WIDTH = 64


class EmbeddingModel(nn.Module):
    """A model that is its embedding, of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, WIDTH)
        nn.init.zeros_(self.embed.weight)

    def layers(self) -> list[Any]:
        return [type("Layer", (), {"module": self.embed})]

    def forward(self, batch: Batch) -> torch.Tensor:
        return self.embed(batch.input_ids)


def noise(model: EmbeddingModel, lengths: list[int]) -> torch.Tensor:
    ids = torch.zeros(1, sum(lengths), dtype=torch.long)
    documents = torch.cat([torch.full((n,), number) for number, n in enumerate(lengths)])[None]
    return model(Batch(ids, ids, ids, documents)).detach()[0]


def noisy_model(alpha: float) -> EmbeddingModel:
    model = EmbeddingModel()
    Neftune(NeftuneConfig(alpha=alpha)).on_model_built(CallbackContext(step=0, total_steps=1, output=None, model=model))
    return model


def test_noise_is_uniform_within_alpha_over_the_root_of_length_times_width() -> None:
    torch.manual_seed(0)
    found, bound = noise(noisy_model(5.0), [100]), 5.0 / math.sqrt(100 * WIDTH)
    assert 0.98 * bound < found.abs().max() <= bound
    assert abs(found.mean()) < 0.02 * bound
    assert math.isclose(found.std(), bound / math.sqrt(3), rel_tol=0.03)


def test_a_packed_document_is_as_noisy_as_alone() -> None:
    torch.manual_seed(0)
    found = noise(noisy_model(5.0), [25, 100])
    for part, length in ((found[:25], 25), (found[25:], 100)):
        bound = 5.0 / math.sqrt(length * WIDTH)
        assert 0.95 * bound < part.abs().max() <= bound


def test_evaluation_and_generation_have_none() -> None:
    model = noisy_model(5.0)
    noise(model, [5])
    assert not noise(model.eval(), [100]).any()


def test_a_run_with_it_has_other_losses_and_the_same_kind_of_evaluation(runs: Any) -> None:
    plain = runs.train("plain", steps=1, model={"dropout": 0.0}, optimizer={"lr": 1e-9})
    run = runs.train(
        "run", steps=1, model={"dropout": 0.0}, optimizer={"lr": 1e-9}, callbacks={"neftune": {"alpha": 50.0}}
    )
    before, after = runs.records(plain)[0], runs.records(run)[0]
    assert before["loss"] != after["loss"]
    assert math.isclose(before["eval_loss"], after["eval_loss"], rel_tol=1e-5), "the weights have hardly moved"
