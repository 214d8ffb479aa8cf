"""Steps that are computed again, and ranks that then give other gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mt_core import CallbackContext, ConfigError
from mt_core.plugins.host import PluginHost
from mt_plugin_callbacks.corruption import CorruptionCheck, CorruptionError, describe_repetition
from mt_plugin_callbacks.repetition import GradientRecord, RepeatedSteps, above_usual
from mt_train.plugins.resolve import resolve
from mt_train.tracking.metrics import MetricsFile

CHECK = {"name": "corruption-check", "every_steps": 2, "repeat": True}
ALONE: dict[str, Any] = {"eval": {"every_steps": 99}, "checkpoint": {"every_steps": 99}}


def test_a_norm_jumps_above_its_own_median_and_where_it_is_no_number() -> None:
    usual = [1.0] * 8
    assert above_usual(5.0, usual, 4.0) == 5.0
    assert above_usual(3.9, usual, 4.0) == 0
    assert above_usual(100.0, usual[:7], 4.0) == 0, "seven do not say what is usual"
    assert above_usual(1.0, [0.0] * 8, 4.0) == 0
    assert above_usual(float("nan"), [], 4.0) == float("inf")


def test_the_hash_of_gradients_has_every_bit_and_which_weight_it_is_of_but_not_their_order() -> None:
    model = torch.nn.ModuleList([torch.nn.Linear(3, 2, bias=False) for _ in range(2)])
    record = GradientRecord(model)
    first, second = (layer.weight for layer in model)
    given = [torch.randn(2, 3), torch.randn(2, 3)]

    def hash_of(*pairs: tuple[Any, torch.Tensor]) -> int:
        record.clear()
        for weight, gradient in pairs:
            weight.backward(gradient)
        return int(record.hash)

    plain = hash_of((first, given[0]), (second, given[1]))
    assert float(record.squares) == pytest.approx(sum(float(each.square().sum()) for each in given))
    assert hash_of((second, given[1]), (first, given[0])) == plain
    assert hash_of((second, given[0]), (first, given[1])) != plain
    given[1].view(torch.int32)[1, 2] ^= 1
    assert hash_of((first, given[0]), (second, given[1])) != plain


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_gradient_without_a_number_is_suspicious_but_where_a_loss_scale_is_found_by_it(dtype: str) -> None:
    model = torch.nn.Linear(2, 2)
    repeated = RepeatedSteps(model, 4.0)
    model(torch.full((1, 2), float("inf"))).sum().backward()
    weights, config = SimpleNamespace(rank=0, world=1), {"train": {"dtype": dtype}}
    context = CallbackContext(step=3, total_steps=9, output=None, config=config, weights=weights)  # type: ignore[arg-type]
    assert repeated.jumps(context) == ({} if dtype == "fp16" else {0: float("inf")})


def test_it_is_said_why_a_step_was_computed_again_and_what_came_of_it() -> None:
    hosts = list("abcd")
    assert describe_repetition([2], {2: 7.51}, hosts, 9) == (
        "the gradient norm of rank 2 on c was up to 7.51 times its median, and step 10, computed again on the same weights and rows,"
        " has other gradients on rank 2 on c"
    )
    assert describe_repetition([], {0: 5.0, 1: float("inf")}, hosts, 9).startswith(
        "the gradient norm of rank 0 on a, rank 1 on b was no finite number, and step 10, computed again, has the same"
    )
    assert describe_repetition([], {}, hosts, 9).startswith(
        "step 10, computed again, has the same gradients on all ranks"
    )


def enlarge_gradients(monkeypatch: pytest.MonkeyPatch, step: int, passes: int) -> None:
    """Give so many passes from this step on a hundredfold gradient below the first block."""
    begin = CorruptionCheck.on_step_start

    def on_step_start(self: CorruptionCheck, context: CallbackContext) -> None:
        begin(self, context)
        left = [passes if context.step == step else 0]

        def enlarge(module: Any, inputs: Any, output: Any) -> None:
            left[0] -= 1
            if left[0] >= 0:
                output.register_hook(lambda gradient: 100 * gradient)

        context.model.layers()[1].module.register_forward_hook(enlarge)

    monkeypatch.setattr(CorruptionCheck, "on_step_start", on_step_start)


def test_one_rank_is_told_as_well_when_it_computes_wrongly(runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    enlarge_gradients(monkeypatch, 9, 1)
    with pytest.raises(
        CorruptionError, match="step 10, computed again on the same weights and rows, has other gradients"
    ):
        runs.train("wrong", steps=12, callbacks=[CHECK], **ALONE)


def test_with_action_warn_each_step_that_is_computed_wrongly_is_said(
    runs: Any, monkeypatch: pytest.MonkeyPatch, said: Callable[[Path], list[str]]
) -> None:
    for step in (9, 11):
        enlarge_gradients(monkeypatch, step, 1)
    run = runs.train("warned", steps=12, callbacks=[{**CHECK, "action": "warn"}], **ALONE)
    found = [text for text in said(run) if "has other gradients on rank 0" in text]
    assert [f"step {step}, computed again" in text for step, text in zip((10, 12), found, strict=True)] == [True, True]


def test_a_norm_that_jumps_for_a_reason_is_said_and_the_run_goes_on_as_without(
    runs: Any, monkeypatch: pytest.MonkeyPatch, said: Callable[[Path], list[str]]
) -> None:
    with monkeypatch.context() as patched:
        enlarge_gradients(patched, 9, 2)
        repeated = runs.train("repeated", steps=12, callbacks=[CHECK], **ALONE)
    enlarge_gradients(monkeypatch, 9, 1)
    plain = runs.train("plain", steps=12, callbacks=[{**CHECK, "repeat": False}], **ALONE)
    assert [text for text in said(repeated) if "computed again, has the same gradients on all ranks" in text]
    assert runs.records(repeated) == runs.records(plain)


def test_what_an_adapter_gathers_in_a_backward_is_of_its_step_alone(runs: Any, needs: Callable[[str], None]) -> None:
    """IncreLoRA's importances, by which layers grow: the first step of a process is always computed twice."""
    needs("mt-plugin-adapters")
    adapter = {"name": "increlora", "warmup_steps": 50, "target_rank": 8}
    found = {}
    for repeat in (False, True):
        run = runs.train(f"{repeat}", steps=3, adapter=adapter, callbacks=[{**CHECK, "repeat": repeat}], **ALONE)
        found[repeat] = {
            name: kept for name, kept in runs.content(run).items() if name.startswith("adapter") or "model" in name
        }
    assert found[True], "weights are in the checkpoint"
    assert found[True] == found[False]


def test_where_kernels_add_in_any_order_repetition_is_off_and_that_is_said(
    runs: Any, monkeypatch: pytest.MonkeyPatch, said: Callable[[Path], list[str]]
) -> None:
    enlarge_gradients(monkeypatch, 0, 1)
    run = runs.train("inexact", steps=4, callbacks=[CHECK], **ALONE)
    assert [text for text in said(run) if text.endswith("as kernels add in any order: repeat is off")]


@pytest.mark.needs("mt-plugin-optim")
@pytest.mark.usefixtures("kit_model")
def test_an_optimizer_that_updates_in_the_backward_is_refused_on_paper() -> None:
    raw = {"model": "kit-tiny", "optimizer": "lomo", "callbacks": [CHECK]}
    with pytest.raises(ConfigError, match=r"optimizer: corruption-check .*before its update. Set --optimizer adamw"):
        resolve(raw, PluginHost.discover())
    resolve({**raw, "callbacks": ["corruption-check"]}, PluginHost.discover())


def test_at_every_zero_stage_the_rank_that_computes_wrongly_is_named(machines: Callable[..., Path]) -> None:
    """Three ranks, in fp32 and in bf16, with several micro-batches; a flipped bit that stays is no fault of the computing."""
    wrong = {"steps": 14, "callbacks": [CHECK], "wrong": [[1], 10, 1], "train": {"global_batch_size": 48}}
    cases: dict[str, Any] = {f"{stage}": {**wrong, "stage": stage} for stage in range(4)}
    cases |= {f"bf16-{stage}": {**wrong, "stage": stage, "dtype": "bf16"} for stage in (1, 3)}
    cases["deepspeed"] = {**wrong, "stage": 1, "dtype": "bf16", "parallel": {"masters": "deepspeed"}}
    large = {"steps": 13, "wrong": [[0, 1, 2], 10, 2], "model": {"dropout": 0.2}}
    cases |= {f"large-{stage}": {**large, "stage": stage, "callbacks": [CHECK]} for stage in (1, 3)}
    plain = {**large, "wrong": [[0, 1, 2], 10, 1], "callbacks": [{**CHECK, "repeat": False}]}
    cases |= {f"plain-{stage}": {**plain, "stage": stage} for stage in (1, 3)}
    cases["flip"] = {"stage": 1, "steps": 6, "callbacks": [CHECK], "flip": [1, 4]}
    folder = machines(3, cases)
    for name, case in cases.items():
        text = (folder / f"{name}-0.txt").read_text()
        if case.get("wrong", [[]])[0] == [1]:
            assert text.startswith("65 the gradient norm of rank 1 on "), (name, text)
            assert "step 11, computed again on the same weights and rows, has other gradients on rank 1 on " in text
            assert text.count("rank ") == 2, "no other rank is blamed"
    assert "rank 1 on" in (flip := (folder / "flip-0.txt").read_text())
    assert "step 5, computed again, has the same gradients on all ranks" in flip
    for stage in (1, 3):
        with_repeat, without = (
            MetricsFile(folder / f"{name}-{stage}/metrics.jsonl").read() for name in ("large", "plain")
        )
        assert "computed again, has the same" in (folder / f"large-{stage}/events.jsonl").read_text()
        assert [each["loss"] for each in with_repeat] == [each["loss"] for each in without]
