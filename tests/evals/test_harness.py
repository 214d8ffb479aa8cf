"""Tasks of lm-evaluation-harness over our model: the answers and figures of its own Hugging Face model on the same folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from harness_worlds import DOCUMENTS, QUESTIONS, SUMS, TASKS, folder, run, subject, weights
from lm_eval_tasks import evaluate
from plain_subject import PlainSubject

pytest.importorskip("lm_eval")

__all__ = ["folder", "subject", "weights"]


def reference(weights: Path, tasks: Path, *, chat: bool) -> dict[str, Any]:
    """Figures and samples of lm_eval's own model."""
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32, attn_implementation="eager")
    lm = HFLM(
        pretrained=model, tokenizer=AutoTokenizer.from_pretrained(weights), batch_size=1, max_length=192, device="cpu"
    )
    return evaluate(
        lm,
        tasks=list(TASKS),
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        bootstrap_iters=0,
        apply_chat_template=chat,
    )


@pytest.mark.parametrize("chat", [False, True], ids=["plain", "chat"])
def test_answers_and_figures_are_those_of_lm_evals_own_model(
    chat: bool, weights: tuple[str, Path], folder: Path, subject: PlainSubject
) -> None:
    ours = run(subject, folder, chat=chat)
    theirs = reference(weights[1], folder, chat=chat)
    rows = {(row["task"], row["document"], row["filter"]): row for row in ours.rows}
    compared = greedy = 0
    for task, samples in theirs["samples"].items():
        for sample in samples:
            row = rows[task, sample["doc_id"], sample["filter"]]
            assert row["requests"] == [list(each) for each in sample["arguments"]]
            for (own,), (expected,) in zip(row["answers"], sample["resps"], strict=True):
                if isinstance(expected, str):
                    assert own == expected
                elif isinstance(expected, tuple):
                    assert own[1] == expected[1]
                    assert own[0] == pytest.approx(expected[0], abs=1e-4, rel=1e-6)
                else:
                    assert own == pytest.approx(expected, abs=1e-4, rel=1e-6)
                compared += 1
                greedy += own[1] if isinstance(own, list) else 0
    assert compared == len(QUESTIONS) * (4 + 4 + 8) + len(DOCUMENTS) + len(SUMS) * 2
    figures = {
        (task, key.partition(",")[0], key.partition(",")[2]): value
        for task, values in theirs["results"].items()
        for key, value in values.items()
        if "," in key and isinstance(value, float)
    }
    for (task, metric, kind), value in figures.items():
        name = f"{task}_{metric}" + ("" if kind == "none" else f"_{kind}")
        # a perplexity is an exponential: 1e-4 nats, which scores may differ by, are as much of it
        allowed = 1e-4 if "perplexity" in metric else 1e-6
        assert ours.figures[name.replace("-", "_")] == pytest.approx(value, rel=allowed), name
    assert len(figures) == 2 + 2 + 1 + 3 + 2


def test_the_answers_compared_above_are_no_empty_texts(subject: PlainSubject, folder: Path) -> None:
    texts = [row["answers"][0][0] for row in run(subject, folder, "my_sums").rows]
    assert all(len(text) > 10 for text in texts), texts
    assert len(set(texts)) == len(SUMS)
