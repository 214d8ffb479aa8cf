"""Tasks of lm-evaluation-harness over local rows, with its own model: what our figures are compared with."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def run_tasks(
    model: Path, tasks: Mapping[str, Mapping[str, Any]], folder: Path, *, begins: bool, limit: int | None = None
) -> dict[str, Any]:
    """Return the harness's results for tasks (name → YAML without what is the same in all), with every sample's log-likelihoods."""
    shots = {name: task.get("num_fewshot", 0) for name, task in tasks.items()}
    for name, task in tasks.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"task": name, "dataset_path": "json", **task}))
    assert len(set(shots.values())) == 1
    with patch.dict(os.environ, {"HF_DATASETS_CACHE": str(folder / "cache"), **OFFLINE}):
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager

        lm = HFLM(pretrained=str(model), dtype="float32", device="cpu", batch_size=4, add_bos_token=begins)
        manager = TaskManager(include_path=str(folder), include_defaults=False)
        return evaluate(lm, tasks=list(tasks), task_manager=manager, bootstrap_iters=1, log_samples=True, limit=limit)


def evaluate(*arguments: Any, **named: Any) -> dict[str, Any]:
    """``simple_evaluate``, without what it says of the machine: for that it starts pip, a compiler and more, for seconds each time."""
    from lm_eval import simple_evaluate

    with patch("lm_eval.evaluator.add_env_info"):
        found: dict[str, Any] = simple_evaluate(*arguments, **named)
    return found


def json_lines(folder: Path, name: str, rows: list[Mapping[str, Any]]) -> str:
    """Write rows for the harness, and return the path."""
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return str(path)


def logprobs(results: Mapping[str, Any], task: str) -> list[list[float]]:
    """Log-likelihoods of each sample's requests, in the order of the rows."""
    samples = sorted(results["samples"][task], key=lambda sample: sample["doc_id"])
    return [[float(response[0]) for response in sample["filtered_resps"]] for sample in samples]


Task = Callable[[], Mapping[str, Any]]
