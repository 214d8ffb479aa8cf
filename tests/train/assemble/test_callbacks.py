"""What callbacks hear of a run, in which order, and what they may do to it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from mt_core import CallbackContext, ConfigError, Control
from mt_core.errors import CallbackError
from mt_train import train
from mt_train.assemble import evaluations as evaluation_module
from mt_train.assemble.callbacks import Callbacks
from mt_train.checkpoint.store import CheckpointStore, find
from mt_train.cli.train import main
from mt_train.tracking.metrics import MetricsFile

EVENTS = (
    *("on_run_start", "on_model_built", "on_epoch_start", "on_step_start", "on_before_optimizer_step"),
    *("on_after_optimizer_step", "on_step_end", "on_evaluate_end", "on_predict_end", "on_log", "on_checkpoint_saved"),
    *("on_exception", "on_epoch_end", "on_run_end"),
)

PLUGIN = """
import torch
from mt_core import Component, Control, hookimpl

EVENTS = EVENTS_OF_THE_CONTRACT
SEEN = []

class Watch:
    def __getattr__(self, name):
        if name not in EVENTS:
            raise AttributeError(name)
        return lambda context: self.heard(name, context)

    def heard(self, name, context):
        gradients = [p.grad is not None for g in context.weights.optimizer.param_groups for p in g["params"]]
        SEEN.append((name, context.step, context.epoch, len(context.batches), len(context.predictions), all(gradients)))
        if name == "on_run_end":
            return Control(latest=context.output / "checkpoints/step-00000002")

class Keep:
    def on_model_built(self, context):
        self.kept = [(name, start, value.clone()) for name, start, value in context.weights.slices()]
        self.weights = context.weights

    def tensors(self):
        return self.weights.gather(self.kept)

    def load_tensors(self, read):
        SEEN.append({name: load() for name, load in read.items()})

class Exact:
    figures = {}

    def on_predict_end(self, context):
        SEEN.append(context.tokenizer.decode(context.tokenizer.encode("the run's own")))
        return Control(metrics=self.figures)

    def on_evaluate_end(self, context):
        SEEN.append(dict(context.record.evaluation))

@hookimpl
def mt_callbacks():
    layouts = frozenset({"zero0", "zero1"})
    return [
        Component(name="watch", summary="listens", build=lambda config: Watch()),
        Component(name="exact", summary="counts hits", build=lambda config: Exact()),
        Component(name="keep", summary="keeps the first weights", build=lambda config: Keep(), layouts=layouts),
    ]
""".replace("EVENTS_OF_THE_CONTRACT", repr(EVENTS))


@pytest.fixture
def seen_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    site = tmp_path / "site"
    info = site / "acme_watching-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "acme_watching.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-watching\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mt_core.plugins]\nacme = acme_watching\n")
    monkeypatch.syspath_prepend(site)
    import acme_watching

    acme_watching.SEEN.clear()
    return acme_watching.SEEN


def raw_config(*callbacks: str, steps: int = 4) -> dict[str, Any]:
    return {
        "model": {"name": "llama", "n_layers": 1, "dim": 32, "n_heads": 2, "n_kv_heads": 1},
        "train": {"steps": steps, "micro_batch_size": 2, "global_batch_size": 4, "sequence_len": 256},
        "data": {"eval": 1, "read_rows": 2},
        "eval": {"every_steps": 2, "samples": 1, "sample_tokens": 2},
        "checkpoint": {"every_steps": 2, "keep_last": 9},
        "log": {"every_steps": 3},
        "callbacks": list(callbacks),
    }


def test_every_event_of_the_contract_comes_in_its_place(tmp_path: Path, seen_events: list[Any]) -> None:
    train(raw_config("watch"), output=tmp_path / "run")
    names = [(name, step) for name, step, *_ in seen_events]
    assert {name for name, _ in names} == set(EVENTS) - {"on_exception", "on_epoch_end"}, "the epoch has not ended"
    assert names[:3] == [("on_model_built", 0), ("on_run_start", 0), ("on_epoch_start", 0)]
    second = [name for name, step in names if step == 2 and name not in ("on_epoch_start", "on_step_start")]
    assert second[:-1] == [
        "on_after_optimizer_step",
        "on_predict_end",
        "on_evaluate_end",
        "on_log",
        "on_step_end",
        "on_checkpoint_saved",
    ], "and last the gradients of step 3"
    assert [step for name, step in names if name == "on_log"] == [2, 3, 4], "each third step, and each evaluation"
    with_rows = ("on_step_start", "on_before_optimizer_step", "on_after_optimizer_step")
    assert all(batches == 2 for name, _, _, batches, _, _ in seen_events if name in with_rows)
    assert all(texts == 1 for name, _, _, _, texts, _ in seen_events if name == "on_predict_end")
    assert all(ready for name, *_, ready in seen_events if name == "on_before_optimizer_step"), "gradients are whole"
    assert [epoch for name, _, epoch, *_ in seen_events if name == "on_epoch_start"] == [0]
    assert find(tmp_path / "run").name == "step-00000002", "latest is what the callback asked for"


def test_an_epoch_ends_once_after_its_last_step_also_where_the_run_is_stopped_and_goes_on(
    tmp_path: Path, seen_events: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five rows, two a step: three steps an epoch."""
    import acme_watching

    def epochs_of(raw: dict[str, Any], **how: Any) -> list[tuple[str, int, int]]:
        seen_events.clear()
        train(raw, **how)
        return [(name.removeprefix("on_epoch_"), *rest[:2]) for name, *rest in seen_events if "epoch" in name]

    (tmp_path / "rows.jsonl").write_text('{"text": "a row"}\n' * 5)
    raw = raw_config("watch", steps=6) | {
        "dataset": {"name": "jsonl", "path": str(tmp_path / "rows.jsonl")},
        "data": {"eval": None, "batching": "padding"},
        "eval": {"every_steps": None},
    }
    raw["train"] |= {"global_batch_size": 2, "sequence_len": 16}
    whole = epochs_of(raw, output=tmp_path / "whole")
    assert whole == [("start", 0, 0), ("end", 3, 0), ("start", 3, 1), ("end", 6, 1)]
    last = [name for name, step, *_ in seen_events if step == 6]
    assert last[1:] == ["on_log", "on_step_end", "on_epoch_end", "on_checkpoint_saved", "on_run_end"]
    heard = acme_watching.Watch.heard
    for place in (2, 3):
        run = tmp_path / f"stopped-{place}"

        def stopping(watch: Any, name: str, context: CallbackContext, place: int = place) -> Any:
            asked = heard(watch, name, context) if name != "on_run_end" else None
            ends = name == ("on_epoch_end" if place == 3 else "on_step_start") and context.step == place - (place != 3)
            return Control(stop=True, save=True) if ends else asked

        monkeypatch.setattr(acme_watching.Watch, "heard", stopping)
        before = epochs_of(raw, output=run)
        assert MetricsFile(run / "metrics.jsonl").read()[-1]["step"] == place, "it stops where it was asked to"
        monkeypatch.setattr(acme_watching.Watch, "heard", heard)
        assert before + epochs_of({"train": {"steps": 7}}, resume=run) == [*whole, ("start", 6, 2)]
    records = MetricsFile(run / "metrics.jsonl").read()
    assert [each["epoch"] for each in records] == [0.4, 0.8, 1.0, 1.4, 1.8, 2.0, 2.4]
    spent = [each["seconds"] for each in records]
    assert all(later > before for before, later in pairwise([0.0, *spent])), "the time of the run before is in it"


def test_whole_tensors_that_a_callback_keeps_come_back(tmp_path: Path, seen_events: list[Any]) -> None:
    train(raw_config("keep", steps=2), output=tmp_path / "run")
    train({"train": {"steps": 3}}, resume=tmp_path / "run")
    [kept] = seen_events
    assert kept["model.embed_tokens.weight"].shape[1] == 32
    assert all(torch.isfinite(value).all() for value in kept.values())


def test_a_layout_that_a_callback_has_not_declared_is_refused_on_paper(
    seen_events: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", "llama", "--callbacks", "keep", "--output", "none", "--nproc-per-node", "2"]
    assert main([*words, "--parallel.pipeline", "2"]) == 2
    assert "keep does not support pipeline" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="zero3"):
        train({**raw_config("keep"), "parallel": {"zero_stage": 3}}, output=None)


def test_wishes_add_up_and_a_failure_names_the_callback() -> None:
    class Asks:
        def __init__(self, **wish: Any) -> None:
            self.wish = wish

        def on_log(self, context: CallbackContext) -> Control:
            return Control(**self.wish)

        def on_step_end(self, context: CallbackContext) -> None:
            raise ValueError("mine")

    callbacks = Callbacks({"one": Asks(save=True, metrics={"a": 1.0}), "two": Asks(stop=True, metrics={"b": 2.0})})
    context = CallbackContext(step=7, total_steps=9, output=None)
    assert callbacks.call("on_log", context) == Control(save=True, stop=True, metrics={"a": 1.0, "b": 2.0})
    assert callbacks.listens("on_log")
    assert not callbacks.listens("on_run_end")
    with pytest.raises(
        CallbackError,
        match=r"callback one .* failed in on_step_end at step 7: ValueError: mine \(.*_callbacks.py, line \d+; ",
    ):
        callbacks.call("on_step_end", context)


def test_figures_of_a_callback_are_figures_of_the_evaluation(tmp_path: Path, seen_events: list[Any]) -> None:
    import acme_watching

    acme_watching.Exact.figures = {"exact": 0.25, "eval_hits": 3}
    config = raw_config("exact", steps=2)
    config["checkpoint"] |= {"best": "eval_exact:max"}
    train(config, output=tmp_path / "run")
    said, evaluation = seen_events
    assert said == "the run's own"
    assert (evaluation["eval_exact"], evaluation["eval_hits"]) == (0.25, 3.0)
    assert MetricsFile(tmp_path / "run" / "metrics.jsonl").read()[-1]["eval_exact"] == 0.25
    assert CheckpointStore(tmp_path / "run").best("eval_exact:max") == find(tmp_path / "run")


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        ({"exact": "high"}, "callback exact gives 'exact': 'high' in on_predict_end; figures are numbers by name"),
        ({"exact": True}, "figures are numbers by name"),
        ({"loss": 1.0}, "a callback gives eval_loss in on_predict_end, which the evaluation has"),
    ],
)
def test_figures_that_are_none_or_there_already_are_refused(
    figures: dict[str, Any], says: str, tmp_path: Path, seen_events: list[Any]
) -> None:
    import acme_watching

    acme_watching.Exact.figures = figures
    with pytest.raises(CallbackError, match=says):
        train(raw_config("exact", steps=2), output=tmp_path / "run")


def test_figures_are_those_of_rank_0_on_all_ranks(seen_events: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank has no texts: what rank 0 sends it counts."""
    import acme_watching

    acme_watching.Exact.figures = {"exact": 0.0}
    monkeypatch.setattr(evaluation_module, "share_text", lambda text: text.replace("0.0", "0.75"))
    train(raw_config("exact", steps=2), output=None)
    assert seen_events[-1]["eval_exact"] == 0.75
