"""The figures of an evaluation equal those of whole logits in float64, whatever the batches."""

from __future__ import annotations

import json
import math
from copy import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from mt_core.model_protocols import Objective
from mt_core.nn import Batch, LossSums
from mt_core.nn.loss import token_scores
from mt_core.plugins.host import PluginHost
from mt_train.assemble.data import build_evaluation
from mt_train.assemble.load import load
from mt_train.assemble.parts import Parts
from mt_train.data.samples import EncodedSamples
from mt_train.evaluate.figures import Prediction, evaluate
from mt_train.generation.loaded_model import LoadedModel
from mt_train.plugins.resolve import resolve

ROWS = [{"prompt": f"ask {i} ", "response": "café " * (i % 7 + 1) + "."} for i in range(23)]
Scene = tuple[LoadedModel, Objective, EncodedSamples]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    raw = {
        "model": {"name": "llama", "n_layers": 1},
        "dataset": {"name": "jsonl", "path": str(path)},
        "objective": "sft",
    }
    parts = Parts.of(resolve(raw, PluginHost.discover()))
    loaded = load(parts, None, lambda text: None)
    return (loaded, *build_evaluation(parts, loaded.tokenizer))


def whole_figures(loaded: LoadedModel, objective: Objective, samples: EncodedSamples) -> dict[str, float]:
    """One sample at a time, all logits, float64."""
    total, tokens, hits, size = 0.0, 0, 0, 0
    for sample, row in zip(samples, ROWS, strict=True):
        batch = objective.collate([[sample]], length=len(sample.ids)).with_index()
        with torch.no_grad():
            logits = loaded.model.head(loaded.model(batch)).double()[0]
        labels = batch.labels[0]
        kept = labels != -100
        total += float(cross_entropy(logits[kept], labels[kept], reduction="sum"))
        hits += int((logits[kept].argmax(-1) == labels[kept]).sum())
        tokens, size = tokens + int(kept.sum()), size + len(row["response"].encode())
    loss = total / tokens
    return {
        "samples": len(ROWS),
        "tokens": tokens,
        "loss": loss,
        "perplexity": math.exp(loss),
        "bits_per_byte": total / math.log(2) / size,
        "token_accuracy": hits / tokens,
    }


@pytest.mark.parametrize("size", [1, 4, 64])
def test_the_figures_equal_those_of_whole_logits(size: int, scene: Scene) -> None:
    """1e-6 relative: the sums are in fp32 per token and in float64 over tokens."""
    loaded, objective, samples = scene
    figures = evaluate(loaded.model, objective, samples, loaded.tokenizer, batch_size=size).as_dict()
    expected = whole_figures(*scene)
    assert figures.keys() == expected.keys()
    assert figures == pytest.approx(expected, rel=1e-6)


def weighted_rows(scale: float, even: bool) -> list[dict[str, Any]]:
    """Conversations whose answers weigh ``scale`` times 0.5, 1.5 … (or 1 each)."""
    rows = []
    for number in range(11):
        turns = []
        for turn in range(1 + number % 3):
            weight = scale * (1 if even else 0.5 + turn + number % 2)
            turns += [{"role": "user", "content": f"ask {turn} "}]
            turns += [{"role": "assistant", "content": "café " * (number % 4 + 1), "weight": weight}]
        rows.append({"messages": turns})
    return rows


def scene_of(path: Path, rows: list[dict[str, Any]]) -> Scene:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    raw = {
        "model": {"name": "llama", "n_layers": 1},
        "dataset": {"name": "jsonl", "path": str(path)},
        "objective": {"name": "sft", "token_accuracy": True, "answers": ["a", "b"]},
        "data": {"cache": None, "template": "plain"},
    }
    parts = Parts.of(resolve(raw, PluginHost.discover()))
    loaded = load(parts, None, lambda text: None)
    return (loaded, *build_evaluation(parts, loaded.tokenizer))


def weighted_means(loaded: LoadedModel, objective: Objective, samples: EncodedSamples) -> dict[str, float]:
    """Σ w x / Σ w over the trained tokens, from whole logits in float64; bits by the bytes of these tokens."""
    total, weight, hits, tokens, size = 0.0, 0.0, 0.0, 0, 0
    for sample in samples:
        batch = objective.collate([[sample]], length=len(sample.ids)).with_index()
        weights = torch.ones(batch.labels.shape) if batch.weights is None else batch.weights
        with torch.no_grad():
            logits = loaded.model.head(loaded.model(batch)).double()[0]
        labels, kept = batch.labels[0], batch.labels[0] != -100
        each = weights[0][kept].double()
        total += float((each * cross_entropy(logits[kept], labels[kept], reduction="none")).sum())
        hits += float(each[logits[kept].argmax(-1) == labels[kept]].sum())
        weight, tokens = weight + float(each.sum()), tokens + int(kept.sum())
        size += len(loaded.tokenizer.decode(labels[kept].tolist()).encode())
    loss = total / weight
    bits = loss / math.log(2) * tokens / size
    return {"tokens": tokens, "loss": loss, "bits_per_byte": bits, "token_accuracy": hits / weight}


def in_the_run(loaded: LoadedModel, objective: Objective, samples: EncodedSamples) -> dict[str, float]:
    """What an evaluation of the run adds up: the objective's own sums, batch by batch."""
    sums: dict[str, list[float]] = {}
    for start in range(0, len(samples), 4):
        rows = [[samples[number]] for number in range(start, min(start + 4, len(samples)))]
        length = max(len(row[0].ids) for row in rows)
        batch = objective.collate(rows, length=length).with_index()
        with torch.no_grad():
            found = objective.loss(loaded.model(batch), loaded.model.head, batch)
        for name, (total, count) in {"loss": (found.loss_sum, found.token_count), **found.metrics}.items():
            before = sums.setdefault(name, [0.0, 0.0])
            sums[name] = [before[0] + float(total), before[1] + float(count)]
    return {name: total / count if count else total for name, (total, count) in sums.items()}


@pytest.mark.parametrize("even", [True, False])
def test_weights_count_in_every_figure_as_in_the_loss_and_their_size_in_none(even: bool, tmp_path: Path) -> None:
    """1e-5: weights are in fp32. The run and ``mt-eval`` say the same, the shares of marked answers included."""
    found = {}
    for scale in (1.0, 0.5, 2.0, 0.01):
        scene = scene_of(tmp_path / f"{scale}.jsonl", weighted_rows(scale, even))
        loaded, objective, samples = scene
        found[scale] = evaluate(loaded.model, objective, samples, loaded.tokenizer, batch_size=3).as_dict()
        expected = weighted_means(*scene)
        assert {name: found[scale][name] for name in expected} == pytest.approx(expected, rel=1e-5)
        own = in_the_run(*scene)
        assert {name: found[scale][name] for name in own} == pytest.approx(own, rel=1e-5)
        assert "true_positive" in own
    for figures in found.values():
        assert figures == pytest.approx(found[1.0], rel=1e-5)


def test_an_objective_with_a_loss_of_its_own_has_that_loss(scene: Scene) -> None:
    """As in the run; what it says is likeliest can still be written down."""

    class Squared(type(scene[1])):  # type: ignore[misc]
        def loss(self, hidden: torch.Tensor, head: torch.nn.Module, batch: Batch) -> LossSums:
            chosen = hidden.flatten(0, 1)[batch.trained_n]
            return LossSums(chosen.square().sum(), torch.tensor(2.0 * len(chosen)))

    loaded, objective, samples = scene
    other = copy(objective)
    other.__class__ = Squared
    made: list[Prediction] = []
    ours = evaluate(loaded.model, other, samples, loaded.tokenizer, batch_size=4, on_prediction=made.append).as_dict()
    assert ours["loss"] == pytest.approx(in_the_run(loaded, other, samples)["loss"], rel=1e-5)
    assert "bits_per_byte" not in ours, "its loss is no cross-entropy"
    assert len(made) == len(ROWS)


def test_each_samples_own_figures_add_up_to_the_whole(scene: Scene) -> None:
    loaded, objective, samples = scene
    made: list[Prediction] = []
    figures = evaluate(
        loaded.model,
        objective,
        samples,
        loaded.tokenizer,
        batch_size=4,
        on_prediction=made.append,
    )
    assert len(made) == len(ROWS)
    assert sum(each.loss * each.tokens for each in made) == pytest.approx(figures.loss_sum, rel=1e-6)
    assert sum(each.token_accuracy * each.tokens for each in made) == pytest.approx(
        figures.metrics["token_accuracy"][0]
    )
    texts = {(each.prompt, each.expected) for each in made}
    assert texts == {(row["prompt"], row["response"]) for row in ROWS}
    assert all(each.predicted for each in made)


def test_scores_made_in_chunks_equal_those_of_all_logits() -> None:
    torch.manual_seed(0)
    head, hidden, labels = torch.nn.Linear(8, 11, bias=False), torch.randn(30, 8), torch.randint(0, 11, (30,))
    losses, likeliest = token_scores(head, hidden, labels, chunk=7)
    logits = head(hidden)
    torch.testing.assert_close(losses, torch.nn.functional.cross_entropy(logits, labels, reduction="none"))
    assert torch.equal(likeliest, logits.argmax(-1))


class Largest(TorchDispatchMode):
    """The most elements of any floating tensor that is made."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.is_floating_point():
            self.elements = max(self.elements, out.numel())
        return out


def test_an_evaluation_never_holds_the_logits_of_all_tokens() -> None:
    tokens, vocabulary = 4000, 500
    head, hidden = torch.nn.Linear(4, vocabulary, bias=False), torch.randn(tokens, 4)
    with Largest() as seen:
        token_scores(head, hidden, torch.zeros(tokens, dtype=torch.long))
    assert seen.elements <= 1024 * vocabulary
