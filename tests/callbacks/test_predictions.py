"""What the model writes at each evaluation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mt_core import CallbackContext, ConfigError, MtError
from mt_core.plugins.host import PluginHost
from mt_plugin_callbacks.predictions import Predictions, PredictionsConfig, scores
from mt_plugin_callbacks.upload import Upload, UploadConfig
from mt_train.plugins.resolve import resolve


def test_each_evaluation_adds_its_texts_with_scores(runs: Any) -> None:
    run = runs.train("run", steps=4, eval={"samples": 2}, callbacks=["predictions"])
    lines = [json.loads(line) for line in (run / "predictions.jsonl").read_text().splitlines()]
    samples = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 2, 4, 4]
    assert [{key: line[key] for key in samples[0]} for line in lines] == samples
    assert json.loads((run / "about.json").read_text())["files"] == ["predictions.jsonl"]
    before = (run / "predictions.jsonl").read_bytes()
    with (run / "predictions.jsonl").open("ab") as file:
        file.write(b"damaged\n" + before[:20])
    runs.resume(run, "step-00000003")
    assert (run / "predictions.jsonl").read_bytes() == before, "later lines are written again, not twice"


def test_an_evaluation_that_a_resumed_run_makes_again_is_written_once(tmp_path: Path) -> None:
    text = {"row_id": "r", "prompt": "p", "expected": "e", "text": "t"}
    config = {"eval": {"samples": 1}}
    for start in (
        0,
        3,
        3,
    ):  # the second was killed between its evaluation of step 3 and the checkpoint with its figures
        context: Any = SimpleNamespace(
            step=start, evaluates=True, config=config, output=tmp_path, weights=None, predictions=[{"step": 3, **text}]
        )
        callback = Predictions(PredictionsConfig())
        callback.on_run_start(context)
        context.step = 3
        callback.on_predict_end(context)
        callback.on_run_end(context)
        assert len((tmp_path / "predictions.jsonl").read_text().splitlines()) == 1


def test_scores_are_exact_match_and_the_f1_of_words() -> None:
    assert scores({"text": " a b\n", "expected": "a b"}) == {"match": True, "overlap": 1.0}
    assert scores({"text": "a b c", "expected": "b d"}) == {"match": False, "overlap": pytest.approx(2 * 1 / 5)}
    assert scores({"text": "", "expected": "b"}) == {"match": False, "overlap": 0.0}


@pytest.mark.usefixtures("kit_model")
def test_a_run_that_writes_no_texts_is_refused_on_paper() -> None:
    raw = {"model": "kit-tiny", "callbacks": ["predictions"], "eval": {"samples": 0}}
    with pytest.raises(ConfigError, match=r"eval.samples: predictions .*Set --eval.samples 1 or more"):
        resolve(raw, PluginHost.discover())
    raw |= {"eval": {"samples": 1}, "data": {"eval": "none"}}
    with pytest.raises(ConfigError, match=r"data.eval: predictions .*held-out rows. Set --data.eval 0.05"):
        resolve(raw, PluginHost.discover())


def test_a_run_without_a_folder_is_refused() -> None:
    context = CallbackContext(step=0, total_steps=9, output=None, evaluates=True)
    with pytest.raises(MtError, match=r"needs a run folder, and this run writes no files \(output none\)"):
        Predictions(PredictionsConfig()).on_run_start(context)
    with pytest.raises(MtError, match="needs held-out rows, and this run has none"):
        Predictions(PredictionsConfig()).on_run_start(replace(context, evaluates=False))


@pytest.mark.parametrize("callback", [Predictions(PredictionsConfig()), Upload(UploadConfig(url="file:///nowhere"))])
def test_steps_that_are_computed_again_are_neither_written_nor_copied(callback: Any) -> None:
    """No run with one of them could be compared with itself: ``--replay`` has no folder."""
    context = CallbackContext(step=2, total_steps=9, output=None, evaluates=True, predictions=({"text": "a"},))
    callback.on_run_start(context)
    for event in ("on_predict_end", "on_run_end"):
        assert getattr(callback, event, lambda context: None)(context) is None
