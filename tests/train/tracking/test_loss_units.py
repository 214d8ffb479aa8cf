"""What a loss is counted in is the objective's word, everywhere that a loss is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mt_core.nn import TokenObjective
from mt_core.protocols import NATS_PER_TOKEN
from mt_tools.cli.eval import main as evaluate
from mt_train import train
from mt_train.tracking.loss_units import counts_tokens, loss_unit_of

PLUGIN = """
from mt_core import Component, ObjectiveComponent, hookimpl

def build(config, *, tokenizer, template):
    from mt_core import Sample
    from mt_core.nn import TokenObjective

    class Pairs(TokenObjective):
        loss_unit = "nats per pair"

        def encode(self, row):
            ids = tokenizer.encode(row["text"])
            return Sample(ids, [True] * len(ids), row["id"])

    return Pairs(pad_id=0)

@hookimpl
def mt_objectives():
    return [ObjectiveComponent(name="pairs", build=build, summary="as if rows were pairs", truncation="split")]
"""


@pytest.fixture
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kit_model: None) -> None:
    """A stranger's objective, installed."""
    info = tmp_path / "site" / "acme_pairs-1.0.dist-info"
    info.mkdir(parents=True)
    (tmp_path / "site" / "acme_pairs.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-pairs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mt_core.plugins]\nacme = acme_pairs\n")
    monkeypatch.syspath_prepend(tmp_path / "site")


@pytest.mark.usefixtures("pairs")
def test_a_loss_of_pairs_is_nowhere_called_a_loss_of_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    train(
        {
            "model": "kit-tiny",
            "objective": "pairs",
            "task_print": "loss",
            "train": {"steps": 2, "micro_batch_size": 2, "sequence_len": 32},
            "data": {"eval": 4, "read_rows": 20},
            "eval": {"samples": 0},
        },
        output=run,
    )
    assert " nats per pair" in capsys.readouterr().out
    about = json.loads((run / "about.json").read_text())
    assert about["loss_unit"] == "nats per pair"
    assert about["ended"] == {"reason": "completed", "step": 2, "error": ""}
    assert evaluate(["--run", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "perplexity" not in shown
    assert "tokens" not in shown
    [result] = json.loads((run / "eval" / "001" / "metrics.json").read_text())["results"]
    assert result["count"] > 0
    assert not result.keys() & {"perplexity", "bits_per_byte", "token_accuracy", "tokens"}


def test_token_losses_are_in_nats_per_token_and_of_others_nothing_is_claimed() -> None:
    assert (loss_unit_of(TokenObjective()), counts_tokens(TokenObjective())) == (NATS_PER_TOKEN, True)
    assert (loss_unit_of(object()), counts_tokens(object())) == ("", False)
