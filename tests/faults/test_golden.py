"""A run saved by an earlier version stays readable (tests/golden/README.md)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parents[1] / "golden"
TEXT = "fone fone fone f"
"""What it says greedily after "one ", as the version that saved it said."""
LOSS, EVAL_LOSS = 0.5985433287539724, 0.6121950626373291
"""Of its 61st step, as that version computed them (nats per token)."""


@pytest.fixture
def golden_run(tmp_path: Path) -> Path:
    """A copy, as a resumed run writes."""
    return shutil.copytree(GOLDEN, tmp_path / "golden")


def test_the_golden_run_verifies_speaks_and_trains_on_as_it_did(runs: Any, golden_run: Path) -> None:
    code, attempt = runs.run(["verify", "run"], module="mt_tools.cli.checkpoint", folder=str(golden_run))
    assert code == 0, attempt.out
    words = ["--run", "run", "--prompt", "one ", "--greedy", "--max-new-tokens", "16"]
    code, attempt = runs.run(words, module="mt_tools.cli.generate", folder=str(golden_run))
    assert code == 0, attempt.err
    assert attempt.out.strip() == TEXT
    code, attempt = runs.run(["--resume", "run", "--train.steps", "61"], folder=str(golden_run))
    assert code == 0, attempt.err
    record = json.loads((golden_run / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert record["step"] == 61
    assert record["loss"] == pytest.approx(LOSS, rel=1e-4)
    assert record["eval_loss"] == pytest.approx(EVAL_LOSS, rel=1e-4)


def test_the_golden_run_is_small_and_names_no_machine() -> None:
    files = [path for path in (GOLDEN / "run").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 200_000
    texts = [path.read_text() for path in files if path.suffix in (".json", ".jsonl", ".yaml")]
    assert texts
    assert not any("/home/" in text or "/tmp/" in text or "/root" in text for text in texts)
