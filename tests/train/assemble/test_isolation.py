"""``data.prove`` as a user meets it; which layouts it holds for is shown in tests/train/engine/test_layouts.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from mt_core.nn import Block
from mt_train.cli.train import main as mt_train

SMALL = ["--model", "llama", "--model.dim", "32", "--model.n-layers", "1", "--model.n-heads", "2", "--output", "none"]
SMALL += [
    "--model.n-kv-heads",
    "2",
    "--model.ffn-dim",
    "48",
    "--objective",
    "sft",
    "--train.steps",
    "1",
    "--data.prove",
]


@pytest.fixture
def train(tmp_path: Path) -> Any:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{n}: ", "response": "x" * (n + 1)}) + "\n" for n in range(12)))
    return lambda *words: mt_train([*SMALL, "--dataset", "jsonl", "--dataset.path", str(rows), *words])


@pytest.fixture
def batch_normalised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with a norm over the batch, which keeps rows apart only when it is evaluated."""
    plain = Block.__init__

    def init(self: Block, *given: Any, dim: int, **options: Any) -> None:
        plain(self, *given, dim=dim, **options)
        self.mixing = nn.BatchNorm1d(dim, affine=False)
        self.register_forward_hook(lambda block, _, out: block.mixing(out.flatten(0, 1)).view_as(out))

    monkeypatch.setattr(Block, "__init__", init)


def test_a_model_that_keeps_rows_apart_trains(train: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert train() == 0
    assert "data.prove: documents that are computed together do not see one another" in capsys.readouterr().err


def test_one_row_at_a_time_has_nothing_to_prove(train: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--train.micro-batch-size", "1") == 0
    assert "data.prove found no two documents that are computed together" in capsys.readouterr().err


@pytest.mark.usefixtures("batch_normalised")
@pytest.mark.parametrize(
    ("batching", "remedy"),
    [("padding", "Train with --train.micro-batch-size 1"), ("packing", "Its attention has to read BlockContext")],
)
def test_a_model_that_mixes_rows_as_it_trains_is_refused(
    train: Any, capsys: pytest.CaptureFixture[str], batching: str, remedy: str
) -> None:
    assert train("--data.batching", batching) == 2
    said = capsys.readouterr().err
    assert "data.prove: other documents of the batch changed the loss of a document by" in said
    assert remedy in said
    assert "step 1/1" not in said
