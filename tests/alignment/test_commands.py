"""Commands on pairs: the proof of the first step, the cache of references, what a resumed run and an evaluation need of them."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

sys.path.insert(0, str(Path(__file__).parent))

from pair_cases import write_pairs

from mt_core.nn import SdpaAttention
from mt_tools.cli.data import main as mt_data
from mt_tools.cli.eval import main as mt_eval
from mt_tools.cli.generate import main as mt_generate
from mt_tools.cli.report import main as mt_report
from mt_train.cli.train import main as mt_train

pytestmark = pytest.mark.usefixtures("kit_model")
MEASURES = "reference: the model of step 0 reads 24 rows once"
Command = Callable[..., int]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own."""
    monkeypatch.setenv("MT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "reference"


@pytest.fixture
def train(tmp_path: Path, cache: Path) -> Command:
    rows = write_pairs(tmp_path / "pairs.jsonl")

    def command(*words: str, **options: str) -> int:
        given = {
            "--model": "kit-tiny",
            "--dataset": "jsonl",
            "--dataset.path": str(rows),
            "--data.eval": "5",
            "--objective": "dpo",
            "--output": "none",
            "--train.steps": "2",
            "--train.sequence-len": "160",
            "--train.global-batch-size": "8",
            "--train.micro-batch-size": "8",
            "--train.dtype": "fp32",
            "--log.every-steps": "1",
        }
        given |= {f"--{name.replace('__', '.').replace('_', '-')}": value for name, value in options.items()}
        return mt_train([*words, *(word for pair in given.items() for word in pair)])

    return command


def records(run: Path) -> list[dict[str, Any]]:
    """Figures of the steps of a run, but times and memory."""
    times = {"tokens_per_second", "memory_gib", "data_wait_seconds", "seconds"}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in times} for line in lines]


# ------------------------------------------------------------------------------------------------- proof of the first step


def test_a_first_step_that_is_not_the_references_ends_the_run_with_what_may_be_wrong(
    train: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"adapter": "pissa", "adapter__dropout": "0.2"}
    assert train(**options) == 2
    said = capsys.readouterr().err
    assert "the loss of step 1 is 0." in said
    assert "and has to be 0.693147" in said
    assert "--adapter.dropout is 0.2 (set it to 0); adapter pissa" in said
    assert "--objective.prove false" in said
    assert "step 2/2" not in said
    assert train(**options, objective__prove="false") == 0


def test_noise_that_parts_the_first_step_from_the_reference_is_refused_before_weights_are_loaded(
    train: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever the dtype is, whose rounding hides it at times; what an adapter drops counts where it was trained before."""
    adapter = {"adapter": "lora", "adapter__rank": "2"}
    assert train(**adapter, output=str(tmp_path / "sft"), train__steps="1") == 0
    trained = {"adapter__weights": str(tmp_path / "sft"), "adapter__dropout": "0.2"}
    noisy = {"model": "llama", "model__dropout": "0.5", "callbacks": "neftune"}
    with monkeypatch.context() as patched:
        patched.setattr("mt_train.assemble.steps.build_engine", None)
        capsys.readouterr()
        for more, wanted in (
            (noisy, ["model.dropout: 0.5 of the model's values", "Set --model.dropout 0.", "Leave neftune out"]),
            (trained, ["adapter.dropout: 0.2 of the inputs of a trained adapter", "--objective.prove false"]),
            ({**noisy, "objective": "kto", "train__dtype": "bf16"}, ["callbacks: neftune adds noise in training"]),
        ):
            assert train(**more) == 2
            said = capsys.readouterr().err
            assert all(text in said for text in wanted), said
            assert train("--dry-run", **more) == 2
            assert wanted[0] in capsys.readouterr().err
    assert train(**noisy, objective__prove="false", train__steps="1") == 0


@pytest.mark.parametrize(
    "options",
    [
        {"objective__wpo": "true"},
        {"objective__sft": "0.5"},
        {"objective__loss": "ipo", "train__dtype": "bf16"},
        {"objective": "simpo"},
        {"adapter": "lora", "adapter__dropout": "0.2"},
    ],
)
def test_a_first_step_that_is_right_or_not_known_is_no_error(train: Command, options: dict[str, str]) -> None:
    """LoRA begins at zero, whatever it drops; bf16 is rounded."""
    assert train(**options, train__steps="1") == 0


# ------------------------------------------------------------------------------------------------------------ cache


def test_a_repeated_run_measures_nothing_and_another_one_does(
    train: Command, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other rows, seed, precision or names of values are another one. A damaged file is measured again."""

    def measures(**options: str) -> bool:
        assert train(**{"train__steps": "1", **options}) == 0
        return "reference: the model of step 0 reads" in capsys.readouterr().err

    assert measures(output=str(tmp_path / "first"))
    (kept,) = cache.iterdir()
    assert not measures(output=str(tmp_path / "second"))
    assert (tmp_path / "first/reference.safetensors").read_bytes() == (
        tmp_path / "second/reference.safetensors"
    ).read_bytes()
    assert records(tmp_path / "first") == records(tmp_path / "second")
    for other in ({"train__seed": "1"}, {"train__dtype": "bf16"}, {"data__eval": "4"}, {"objective__ld_alpha": "0.5"}):
        assert measures(**other), other
        assert not measures(**other), other
    count = len(list(cache.iterdir()))
    assert measures(data__cache="none", train__seed="2")
    assert measures(data__cache="none", train__seed="2")
    assert len(list(cache.iterdir())) == count
    kept.write_bytes(kept.read_bytes()[:-9])
    assert measures()
    assert not measures()


@pytest.mark.needs("mt-plugin-multimodal")
def test_an_encoder_with_other_options_is_a_part_of_another_reference(
    train: Command, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {"encoders": "clip", "encoders__clip__image": "8", "encoders__clip__patch": "4"}
    for more in ({}, {"encoders__clip__projector": "linear"}, {"encoders__clip__activation": "gelu"}):
        for is_new in (True, False):
            assert train(**small, **more, train__steps="1") == 0
            assert (MEASURES in capsys.readouterr().err) is is_new, more


def test_other_weights_have_another_reference_wherever_they_lie(
    train: Command, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An adapter that is trained further is a part of the model of step 0: another one in the same folder is another start."""
    run = tmp_path / "run"
    assert train(output=str(run), adapter="lora", train__steps="1", optimizer__lr="0.05") == 0
    overlay = next((run / "checkpoints").glob("step-*")) / "model"
    assert train(adapter="lora", model__overlay=str(overlay)) == 0
    capsys.readouterr()
    assert train(adapter="lora", model__overlay=str(overlay)) == 0
    assert MEASURES not in capsys.readouterr().err
    for file in overlay.glob("*.safetensors"):
        save_file({name: value + 0.01 for name, value in load_file(file).items()}, file)
    assert train(adapter="lora", model__overlay=str(overlay)) == 0
    assert MEASURES in capsys.readouterr().err


def test_cleaning_the_cache_removes_references_that_were_not_used_for_long(
    train: Command, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train() == train(train__seed="1") == 0
    old, used = sorted(cache.iterdir())
    other = cache / "notes.txt"
    other.write_text("not ours")
    for path in (old, used, other):
        os.utime(path, (time.time() - 40 * 86_400,) * 2)
    assert train() == train(train__seed="1") == 0  # both were used now
    os.utime(old, (time.time() - 40 * 86_400,) * 2)
    capsys.readouterr()
    clean = ["clean", "--data.cache", str(cache.parent)]
    assert mt_data(clean) == 0
    assert "would remove 1 of 2 measured references, which were not used" in capsys.readouterr().out
    assert mt_data([*clean, "--yes"]) == 0
    assert sorted(cache.iterdir()) == sorted([used, other])


# ------------------------------------------------------------------------------------------- a run that goes on, and others


def test_a_resumed_run_reads_what_was_measured_and_is_refused_where_that_is_gone_or_changed(
    train: Command, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And not proved again: its dropout is on from the start, and its first step would fail."""
    options = {"model": "llama", "model__dim": "32", "model__dropout": "0.2", "objective__prove": "false"}
    assert train(output=str(tmp_path / "whole"), train__steps="4", checkpoint__every_steps="2", **options) == 0
    run, file = tmp_path / "whole", tmp_path / "whole/reference.safetensors"
    expected, content = records(run), file.read_bytes()
    shutil.rmtree(cache)

    def resume() -> int:
        shutil.rmtree(run / "checkpoints/step-00000004", ignore_errors=True)
        return mt_train(["--resume", str(run / "checkpoints/step-00000002")])

    file.unlink()
    assert resume() == 1
    assert f"{file} cannot be read (No such file or directory)" in capsys.readouterr().err
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert resume() == 1
    assert "is not the one that the checkpoint was trained with" in capsys.readouterr().err
    file.write_bytes(content)
    rows = tmp_path / "pairs.jsonl"
    written = rows.read_text()
    rows.write_text(written.replace("sea", "ice"))
    assert resume() == 1
    assert "the rows are not as in the run that saved the checkpoint" in capsys.readouterr().err
    rows.write_text(written)
    assert resume() == 0
    assert MEASURES not in capsys.readouterr().err
    assert records(run) == expected


def test_evaluation_generation_and_report_take_such_a_run(
    train: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own held-out rows have the figures that the run had at its end; rows that nobody measured are refused."""
    run, rows = tmp_path / "run", tmp_path / "pairs.jsonl"
    assert train(output=str(run), objective__sft="0.5", objective__sft_mean="tokens") == 0
    assert mt_eval(["--run", str(run)]) == 0
    (found,) = json.loads((run / "eval/001/metrics.json").read_text())["results"]
    last = records(run)[-1]
    assert found["loss"] == pytest.approx(last["eval_loss"], rel=1e-6)
    for name in ("sft", "reward_margin", "reward_accuracy", "logp_chosen"):
        assert found[name] == pytest.approx(last[f"eval_{name}"], rel=1e-4), name
    capsys.readouterr()
    assert mt_eval(["--run", str(run), "--on", f"rows=jsonl:{rows}"]) == 2
    assert "these rows have no reference" in capsys.readouterr().err
    assert mt_eval(["--run", str(run), "--on", f"rows=jsonl:{rows}", "--objective", "sft"]) == 0
    assert mt_generate(["--run", str(run), "--prompt", "sea", "--max-new-tokens", "3"]) == 0
    assert mt_report([str(run)]) == 0
    assert "reward_margin" in (run / "report.html").read_text()


@pytest.mark.parametrize("objective", ["simpo", "orpo", "dpo"])
def test_a_model_whose_documents_see_one_another_is_refused_for_pairs(
    train: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, objective: str
) -> None:
    """Also where the loss is no number without one side of a pair."""
    apart = SdpaAttention.__call__

    def mixed(self: Any, q: Any, k: Any, v: Any, context: Any, **options: Any) -> Any:
        return apart(self, q, k, v + v.mean((0, 1), keepdim=True), context, **options)

    monkeypatch.setattr(SdpaAttention, "__call__", mixed)
    assert train(model="llama", objective=objective, data__prove="true") == 2
    assert "data.prove: other documents of the batch changed the loss of a document by" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "lomo", "optimizer__lr": "0.1"},
        {"optimizer": "schedule-free-adamw", "schedule": "constant", "data__batching": "packing"},
        {"train__micro_batch_size": "auto", "objective__loss": "ipo", "data__prove": "true"},
        {
            "callbacks": "early-stopping",
            "callbacks__early_stopping__metric": "eval_reward_accuracy",
            "eval__every_steps": "1",
        },
    ],
    ids=lambda options: next(iter(options.values())),
)
def test_what_else_runs_may_have_goes_with_pairs(
    train: Command, capsys: pytest.CaptureFixture[str], options: dict[str, str]
) -> None:
    """Updates while gradients arrive, averaged weights, a search for the micro-batch, and a callback that looks at rewards."""
    assert train(**options) == 0
    assert "held-out loss" in capsys.readouterr().out
