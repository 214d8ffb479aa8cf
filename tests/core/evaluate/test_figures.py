"""The figures of an evaluation equal those of whole logits in float64, whatever the batches."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mt_core.assemble.data import build_evaluation
from mt_core.assemble.load import load
from mt_core.data.encoded import EncodedSamples
from mt_core.evaluate.figures import Prediction, evaluate
from mt_core.generation.loaded import Loaded
from mt_core.nn.loss import token_scores
from mt_core.plugins.host import PluginHost
from mt_core.plugins.resolve import resolve
from mt_core.protocols import Objective

ROWS = [{"prompt": f"ask {i} ", "response": "café " * (i % 7 + 1) + "."} for i in range(23)]
Scene = tuple[Loaded, Objective, EncodedSamples]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    raw = {
        "model": {"name": "llama", "n_layers": 1},
        "dataset": {"name": "jsonl", "path": str(path)},
        "objective": "sft",
    }
    resolved = resolve(raw, PluginHost.discover())
    loaded = load(resolved, None, lambda text: None)
    return (loaded, *build_evaluation(resolved, loaded.tokenizer))


def whole(loaded: Loaded, objective: Objective, samples: EncodedSamples) -> dict[str, float]:
    """One sample at a time, all logits, float64."""
    total, tokens, hits, size = 0.0, 0, 0, 0
    for sample, row in zip(samples, ROWS, strict=True):
        batch = objective.collate([[sample]], length=len(sample.ids)).indexed()
        with torch.no_grad():
            logits = loaded.model.head(loaded.model(batch)).double()[0]
        labels = batch.labels[0]
        kept = labels != -100
        total += float(torch.nn.functional.cross_entropy(logits[kept], labels[kept], reduction="sum"))
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
    expected = whole(*scene)
    assert figures.keys() == expected.keys()
    assert figures == pytest.approx(expected, rel=1e-6)


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
    assert sum(each.token_accuracy * each.tokens for each in made) == pytest.approx(figures.correct)
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
