"""Evaluations of a run: when they are asked, where their figures go, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mt_core.errors import ComponentError, ConfigError, DataError
from mt_core.evaluation import EvaluationComponent, Findings
from mt_core.plugins.host import PluginHost
from mt_tools.cli.eval import main as evaluate
from mt_tools.report.evaluations import read_evaluations
from mt_train import check_config, train
from mt_train.assemble.callbacks import CallbackContext, Callbacks
from mt_train.assemble.parts import Parts
from mt_train.assemble.run import RunOptions
from mt_train.evaluate.subject import EvaluationStopped
from mt_train.planning.dry_run import dry_run
from mt_train.plugins.resolve import resolve
from mt_train.tracking.metrics import MetricsFile

PLUGIN = """
from mt_core import Component, Control, begin_ids, hookimpl
from mt_core.evaluation import Continuation, EvaluationComponent, Findings, Subject
from mt_core.generation import GenerationConfig

class Likely:
    def __init__(self, config, *, split):
        pass

    def run(self, subject):
        start, encode = list(begin_ids(subject.tokenizer)), subject.tokenizer.encode
        asked = [Continuation(start + encode("The sea is"), encode(word)) for word in (" wide", " blue")]
        scores = subject.score(asked)
        figures = {"mean": sum(score.logprob for score in scores) / 2}
        return Findings(figures=figures, groups={"all": figures}, notes=["two words"], rows=[{"word": " wide"}])

class Fails:
    def __init__(self, config, *, split):
        pass

    def run(self, subject):
        raise KeyError("answer")

class Token(Fails):
    "Its figure is one of the held-out rows."
    def run(self, subject):
        return Findings(figures={"accuracy": 1.0})

class Nothing(Fails):
    def run(self, subject):
        return Findings(figures={"mean": float("nan")}, groups={"all": {"mean": float("inf"), "count": 0}})

class Checks(Fails):
    "Its rows cannot be asked."
    def check(self, subject):
        from mt_core import DataError
        raise DataError(f"rows.jsonl:3: longer than {subject.max_seq_len} tokens, {subject.tokenizer.encode('a')}")

class Breaks(Fails):
    def check(self, subject):
        raise KeyError("answer")

class Odd(Fails):
    def run(self, subject):
        return {"accuracy": 1.0}

class Writes(Fails):
    def run(self, subject):
        texts = subject.generate([subject.tokenizer.encode("The ")], GenerationConfig(max_new_tokens=4))
        return Findings(figures={"length": len(texts[0].ids)})

class Asks:
    "A callback that does the same in a few lines."
    def on_predict_end(self, context):
        encode = context.subject.tokenizer.encode
        score = context.subject.score([Continuation(encode("The sea is"), encode(" wide"))])[0]
        return Control(metrics={"wide": score.logprob})

@hookimpl
def mt_evaluations():
    def offer(name, build, needs="scores"):
        return EvaluationComponent(name=name, build=build, needs=frozenset({needs}), summary="for a test")
    kinds = [("likely", Likely), ("fails", Fails), ("odd", Odd), ("token", Token), ("nothing", Nothing)]
    kinds += [("checks", Checks), ("breaks", Breaks)]
    return [offer("writes", Writes, "texts"), *(offer(*kind) for kind in kinds)]

@hookimpl
def mt_callbacks():
    return [Component(name="asks", summary="asks the subject", build=lambda config: Asks())]
"""


@pytest.fixture(autouse=True)
def plugin(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's evaluations, installed."""
    site = tmp_path_factory.mktemp("site")
    (site / "acme_asking.py").write_text(PLUGIN)
    info = site / "acme_asking-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-asking\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mt_core.plugins]\nacme = acme_asking\n")
    monkeypatch.syspath_prepend(site)


def raw_config(*evaluations: Any, steps: int = 6, **sections: Any) -> dict[str, Any]:
    return {
        "model": {"name": "llama", "n_layers": 1, "dim": 32, "n_heads": 2, "n_kv_heads": 1},
        "train": {"steps": steps, "micro_batch_size": 2, "sequence_len": 64},
        "data": {"eval": None},
        "eval": {"every_steps": 1, "samples": 0},
        "checkpoint": {"every_steps": 2, "keep_last": 9},
        "evaluations": list(evaluations),
        **sections,
    }


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]


def figures(run: Path, name: str) -> dict[int, float]:
    return {record["step"]: record[name] for record in MetricsFile(run / "metrics.jsonl").read() if name in record}


def test_figures_are_in_the_record_and_groups_in_a_file_of_their_own(tmp_path: Path) -> None:
    """No rows are held out: evaluations are enough alone."""
    train(raw_config("likely", steps=2), output=tmp_path / "run")
    found = figures(tmp_path / "run", "eval_likely_mean")
    assert set(found) == {1, 2}
    for line in lines(tmp_path / "run"):
        assert line["figures"]["mean"] == line["groups"]["all"]["mean"] == found[line["step"]]
        assert (line["evaluation"], line["requests"], line["notes"]) == ("likely", 2, ["two words"])
        assert line["seconds"] > 0


def test_a_figure_that_is_no_number_is_null_in_the_file(tmp_path: Path) -> None:
    train(raw_config("nothing", steps=1), output=tmp_path / "run")

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    (text,) = (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()
    line = json.loads(text, parse_constant=refuse)
    assert line["figures"] == {"mean": None}
    assert line["groups"] == {"all": {"mean": None, "count": 0}}
    assert read_evaluations(tmp_path / "run" / "evaluations.jsonl").unread == 0


def test_every_counts_evaluations_also_where_a_run_goes_on_and_the_last_step_has_all(tmp_path: Path) -> None:
    train(raw_config({"name": "likely", "every": 2}, steps=7), output=tmp_path / "whole")
    assert list(figures(tmp_path / "whole", "eval_likely_mean")) == [2, 4, 6, 7]
    run = tmp_path / "run"
    train(raw_config({"name": "likely", "every": 2}, steps=7, callbacks=[]), output=run)
    kept = lines(run)
    train({"train": {"steps": 7}}, resume=run / "checkpoints/step-00000004")
    assert [(line["step"], line["figures"]) for line in lines(run)] == [
        (line["step"], line["figures"]) for line in kept
    ]


def test_a_checkpoint_can_be_the_best_by_a_figure(tmp_path: Path) -> None:
    train(
        raw_config("likely", checkpoint={"every_steps": 1, "keep_last": 1, "best": "eval_likely_mean:max"}),
        output=tmp_path / "run",
    )
    found = figures(tmp_path / "run", "eval_likely_mean")
    best = max(found, key=lambda step: found[step])
    assert (tmp_path / f"run/checkpoints/step-{best:08}").is_dir()


def test_mt_eval_gives_the_figures_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(raw_config("likely", "writes", steps=2), output=tmp_path / "run")
    capsys.readouterr()
    words = ["--run", str(tmp_path / "run"), "--evaluations", "likely"]
    assert evaluate([*words, "--predictions", "--output", str(tmp_path / "out")]) == 0
    [result] = json.loads((tmp_path / "out/metrics.json").read_text())["results"]
    assert result["figures"]["mean"] == pytest.approx(figures(tmp_path / "run", "eval_likely_mean")[2], abs=1e-6)
    [row] = [json.loads(line) for line in (tmp_path / "out/predictions.jsonl").read_text().splitlines()]
    assert row == {"model": "step-00000002", "evaluation": "likely", "word": " wide"}
    table = capsys.readouterr().out
    assert "likely: two words" in table
    assert "writes" not in table, "only what is named is asked"


def test_a_dry_run_counts_and_shows_without_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(raw_config("likely", steps=2), output=tmp_path / "run")
    for weights in (tmp_path / "run/checkpoints/step-00000002").glob("**/*.safetensors"):
        weights.write_bytes(b"")
    assert evaluate(["--run", str(tmp_path / "run"), "--evaluations", "likely", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "likely: 2 scores asked of the model" in said
    assert "The sea is⟦ wide⟧" in said
    assert evaluate(["--run", str(tmp_path / "run"), "--dry-run"]) == 2
    assert "name some with --evaluations" in capsys.readouterr().err


def test_a_callback_asks_the_subject_too(tmp_path: Path) -> None:
    train(raw_config(steps=2, callbacks=["asks"], data={"eval": 1, "read_rows": 4}), output=tmp_path / "run")
    assert set(figures(tmp_path / "run", "eval_wide")) == {1, 2}


def test_a_stop_inside_a_callbacks_request_is_no_failure_of_the_callback() -> None:
    class Asks:
        def on_predict_end(self, context: CallbackContext) -> None:
            raise EvaluationStopped

    with pytest.raises(EvaluationStopped):
        Callbacks({"asks": Asks()}).call("on_predict_end", CallbackContext(step=1, total_steps=2, output=None))


def test_a_run_without_evaluations_makes_no_subject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would read files beside the weights that such a run has no use for."""

    def refuse(*arguments: Any, **keywords: Any) -> None:
        raise AssertionError("nobody asks")

    monkeypatch.setattr("mt_train.assemble.session.live_subject", refuse)
    train(raw_config(steps=1, data={"eval": 1, "read_rows": 4}), output=tmp_path / "run")


def test_one_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ComponentError,
        match=r"evaluation fails \(acme_asking\) failed: KeyError.*, line \d+; --debug shows",
    ):
        train(raw_config("fails"), output=tmp_path / "run")
    with pytest.raises(
        ComponentError, match=r"evaluation odd .* gives dict; run\(\) returns mt_core.evaluation.Findings"
    ):
        train(raw_config("odd"), output=tmp_path / "other")


def test_rows_that_cannot_be_asked_end_a_run_before_weights_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mt_train.assemble.steps.build_engine", None)
    messages = {
        "checks": (DataError, r"^rows.jsonl:3: longer than \d+ tokens, \["),
        "breaks": (ComponentError, r"evaluation breaks \(acme_asking\) failed: KeyError"),
    }
    for name, (kind, message) in messages.items():
        config = raw_config("likely", {"name": name, "every": 100})
        with pytest.raises(kind, match=message):
            train(config, output=tmp_path / name)
        with pytest.raises(kind, match=message):
            dry_run(Parts.of(resolve(config, PluginHost.discover())), RunOptions(output=None), world=1)


def test_no_figure_takes_the_place_of_another(tmp_path: Path) -> None:
    config = raw_config("token", steps=1, data={"eval": 1, "read_rows": 4}) | {
        "objective": {"name": "pretrain", "token_accuracy": True}
    }
    with pytest.raises(ComponentError, match=r"gives eval_token_accuracy, which the evaluation has already"):
        train(config, output=tmp_path / "run")


@pytest.mark.parametrize("layout", ["pipeline", "sequence"])
def test_texts_are_refused_on_paper_where_no_rank_can_write(layout: str) -> None:
    config = raw_config("writes", parallel={layout: 2}) | {"model": {"name": "llama", "n_layers": 2}}
    with pytest.raises(ConfigError, match=r"writes needs texts, which .* cannot generate\. .*mt-eval"):
        check_config(config, processes=2)
    check_config({**config, "evaluations": ["likely"]}, processes=2)
    check_config({**config, "parallel": {"zero_stage": 3}}, processes=2)


def test_a_figure_has_a_name_that_a_record_can_have() -> None:
    with pytest.raises(ComponentError, match="'Accuracy %' is no name of a figure"):
        Findings(figures={"Accuracy %": 1.0})


def test_options_of_an_evaluation_are_those_of_evaluations() -> None:
    from mt_core import MtConfig

    with pytest.raises(ComponentError, match="derive it from mt_core"):
        EvaluationComponent(name="x", summary="x", needs=frozenset(), config=MtConfig)
