"""Prompts, and launches of the worker that answers them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

WORKER = "alignment/grpo_worker.py"
Cases = Mapping[str, Mapping[str, Any]]


@pytest.fixture(scope="session")
def launch_prompts(
    launch: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., dict[str, Any]]:
    """``launch_prompts(world, cases, **usual)``: what each case wrote, in so many processes; ``usual`` is in every case that does not
    say otherwise."""
    rows = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    rows.write_text("".join(json.dumps({"prompt": "go on: " + "abc"[n % 3] * (1 + n % 7)}) + "\n" for n in range(14)))

    def launched(world: int, cases: Cases, **usual: Any) -> dict[str, Any]:
        whole = {name: {**usual, **each, "rows": str(rows)} for name, each in cases.items()}
        return launch(WORKER, world, tmp_path_factory.mktemp("out"), whole)

    return launched
