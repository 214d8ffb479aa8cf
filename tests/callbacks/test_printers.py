"""The lines that people read, and the figures in them."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from mt_core import ConfigError, StepRecord, UsageError
from mt_core.nn import TokenScores
from mt_plugin_callbacks.printers import binary_figures, classification_line, perplexity_line


def record(metrics: dict[str, float], **evaluation: float) -> StepRecord:
    return StepRecord(3, 2.0, 1e-3, 1.0, 9, 1000.0, 1.0, 0.0, metrics, evaluation)


def test_perplexity_is_the_exponential_of_the_mean_loss() -> None:
    line = perplexity_line(
        [record({}), record({"token_accuracy": 0.25}, eval_loss=math.log(12.0), eval_token_accuracy=0.5)]
    )
    assert line == (
        "perplexity 7.39 | eval perplexity 12.00 | token accuracy 25.0% | eval token accuracy 50.0% | lr 1.00e-03 |"
        " 1,000 tokens/s"
    )


def test_a_loss_that_is_no_mean_over_tokens_has_no_perplexity() -> None:
    pairs = replace(record({}, eval_loss=0.5), counts_tokens=False)
    assert perplexity_line([pairs]) == "loss 2.0000 | eval loss 0.5000 | lr 1.00e-03 | 1,000 tokens/s"


@pytest.mark.parametrize("line", [perplexity_line, classification_line])
def test_what_is_missing_is_left_out(line: Any) -> None:
    assert line([]) == ""
    assert line([SimpleNamespace()]) == ""
    assert "perplexity inf" in perplexity_line([SimpleNamespace(loss=1000.0)])


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        # Wikipedia, "Precision and recall" and "Phi coefficient": cats and dogs, 6 + 3 of 12
        ((6, 1, 2, 3), {"accuracy": 9 / 12, "precision": 6 / 7, "recall": 6 / 8, "f1": 12 / 15, "mcc": 0.478}),
        ((0, 0, 0, 5), {"accuracy": 1.0, "precision": 0.0, "recall": 0.0, "f1": 0.0, "mcc": 0.0}),
    ],
)
def test_figures_are_those_of_the_textbook(counts: tuple[int, ...], expected: dict[str, float]) -> None:
    names = ("true_positive", "false_positive", "false_negative", "true_negative")
    assert binary_figures(dict(zip(names, counts, strict=True))) == pytest.approx(expected, abs=5e-4)


def test_marked_tokens_are_sorted_into_four_cases() -> None:
    """A head that repeats its input: hidden states are the logits."""
    labels = torch.tensor([1, 1, 1, 2, 2, 4])
    likeliest = torch.tensor([1, 2, 3, 2, 1, 4])
    figures = TokenScores((1, 2)).of(nn.Identity(), nn.functional.one_hot(likeliest, 5).float(), labels)
    assert {name: (int(total), int(count)) for name, (total, count) in figures.items()} == {
        "token_accuracy": (3, 6),
        "true_positive": (1, 5),
        "false_negative": (2, 5),
        "true_negative": (1, 5),
        "false_positive": (1, 5),
    }


def test_a_yes_or_no_task_is_printed_as_it_is_learned(runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rows = runs.folder / "rows.jsonl"
    lines = [{"prompt": f"{n} is even: ", "response": "yes" if n % 2 == 0 else "no"} for n in range(40)]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = {"dataset": {"name": "jsonl", "path": str(rows)}, "data": {"eval": 10, "read_rows": 40}}
    run = runs.train("run", objective={"name": "sft", "answers": ["yes", "no"]}, task_print="classification", **words)
    last = runs.records(run)[-1]
    cases = [last[f"eval_{name}"] for name in ("true_positive", "false_positive", "false_negative", "true_negative")]
    assert sum(cases) == pytest.approx(1.0)
    assert last["eval_token_accuracy"] <= 1
    assert re.search(r"eval accuracy \d\.\d{3} \| eval precision .* \| eval f1 .* \| eval mcc", capsys.readouterr().out)
    with pytest.raises(UsageError, match="'yes' and 'yep' begin with the same token"):
        runs.train("other", objective={"name": "sft", "answers": ["yes", "yep"]}, **words)
    with pytest.raises(ConfigError, match=r"truth values: .* in quotes: \['yes', 'no'\]"):
        runs.train("truth", objective={"name": "sft", "answers": [True, False]}, **words)
    with pytest.raises(ConfigError, match="give two"):
        runs.train("one", objective={"name": "sft", "answers": ["yes"]}, **words)


def test_figures_that_never_come_are_said_with_the_key_that_brings_them(
    runs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.train("run", steps=1, task_print="classification")
    assert "no answers (--objective.answers names them)" in capsys.readouterr().out
