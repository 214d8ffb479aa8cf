"""lm-evaluation-harness asks the server (``local-completions``), and finds what it finds with its own model on the same folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from served import running

sys.path.insert(0, str(Path(__file__).parents[1] / "evals"))

pytest.importorskip("lm_eval")
pytest.importorskip("tenacity")

from harness_worlds import folder, write_llama
from lm_eval_tasks import OFFLINE, evaluate, logprobs

from mt_plugin_serve.models import Models, ServedModel
from mt_tools import template_of
from mt_train import load_adapters

__all__ = ["folder"]
TASKS = ["my_long", "my_rolling", "my_sums"]
NATS = 1e-4


def run(lm: Any, folder: Path) -> dict[str, Any]:
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    return evaluate(lm, tasks=TASKS, task_manager=manager, bootstrap_iters=1, log_samples=True)


@pytest.mark.parametrize("batch", [1, 4])
def test_it_finds_what_its_own_model_finds(batch: int, folder: Path, tmp_path: Path) -> None:
    write_llama(tmp_path)
    loaded, _ = load_adapters({}, weights=tmp_path)
    served = Models({"tiny": ServedModel("tiny", loaded, template_of(loaded))})
    with patch.dict(os.environ, {"HF_DATASETS_CACHE": str(folder / "cache"), **OFFLINE}), running(served) as server:
        from lm_eval.models.huggingface import HFLM
        from lm_eval.models.openai_completions import LocalCompletionsAPI

        client = LocalCompletionsAPI(
            base_url=f"{server.url}/v1/completions",
            model="tiny",
            tokenizer=str(tmp_path),
            tokenizer_backend="huggingface",
            batch_size=batch,
            max_length=192,
            add_bos_token=True,
        )
        ours = run(client, folder)
        theirs = run(
            HFLM(pretrained=str(tmp_path), dtype="float32", device="cpu", batch_size=4, add_bos_token=True), folder
        )
    for one, other in zip(logprobs(ours, "my_long"), logprobs(theirs, "my_long"), strict=True):
        assert one == pytest.approx(other, abs=NATS)
    for task in TASKS:
        for name, value in theirs["results"][task].items():
            if isinstance(value, float):
                assert ours["results"][task][name] == pytest.approx(value, rel=NATS), (task, name)
    answers = [
        [sample["resps"] for sample in each["samples"]["my_sums"] if sample["filter"] == "all"]
        for each in (ours, theirs)
    ]
    assert answers[0] == answers[1]
