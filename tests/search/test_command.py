"""``mt-search`` as it is typed: faults, help, what it prints, codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_train import FakeTrain, loss

import mt_plugin_search.searching as searching
from mt_core import ConfigError
from mt_plugin_search import search
from mt_plugin_search.command import SWITCHES, VALUES, _read_search, main
from mt_plugin_search.process import STOPPED, Order
from mt_train.command import installed_kinds, parse, read_config

BASE = ["--model", "kit-tiny", "--model.n-layers", "1", "--train.steps", "4"]
KINDS = installed_kinds()
LR = ["--search.optimizer.lr", "log:1e-5..1e-1"]

FAULTS: list[tuple[list[str], str]] = [
    ([], "search: there is nothing to search. Give keys of the run, as in --search.optimizer.lr"),
    (["--search.optimizer.lr", "1e-3..1e-5"], "search.optimizer.lr: is 1e-3..1e-5, which holds less than two values"),
    (["--search.optimizer.lr", "1e-3"], "search.optimizer.lr: has one value, 0.001, so there is nothing to search"),
    (["--search.optimizer.lrr", "0.1..0.2"], "search.optimizer.lrr: no such key. Did you mean 'lr'?"),
    (
        ["--search.optimiser.lr", "0.1..0.2"],
        "optimiser: no such slot or section. Did you mean 'optimizer'?",
    ),
    (
        ["--search.optimizer", "adamw,adamm"],
        "search.optimizer.name: adamm of the choices adamw,adamm is refused: no optimizer named",
    ),
    (
        ["--search.train.micro-batch-size", "0..4"],
        "0 of the range 0..4 is refused: should be a whole number from 1 to 10,000,000, or auto; got 0",
    ),
    (
        ["--search.train.micro-batch-size", "1.5,2.5"],
        "1.5 of the choices 1.5,2.5 is refused: should be a whole number",
    ),
    (["--search.optimizer.beta1", "0.5..1.5"], "1.5 of the range 0.5..1.5 is refused"),
    (
        ["--search.train.sequence-len", "128..4096"],
        "4096 of the range 128..4096 is refused: 4096 tokens exceed the model's max_seq_len",
    ),
    (
        ["--search.train.max-minutes", "1..2"],
        "train.max-minutes: a trial that the clock ends would be resumed, not compared",
    ),
    ([*LR, "--train.max-minutes", "3"], "train.max-minutes: a trial that the clock ends"),
    ([*LR, "--data.eval", "none"], "metric: eval_loss never comes: this run holds no rows out. Set data.eval"),
    ([*LR, "--metric", "eval_loss"], "metric: 'eval_loss' is no figure with min or max"),
    ([*LR, "--trials", "0"], "trials: should be greater than 0, got 0"),
    ([*LR, "--trials", "many"], "trials: should be a valid integer, got 'many'"),
    ([*LR, "--sampler", "gird"], "sampler: should be 'tpe', 'random' or 'grid', got 'gird'"),
    ([*LR, "--sampler", "grid"], "search.optimizer.lr: log:1e-05..0.1 has no end of values for a grid. Give it a step"),
    ([*LR, "--nproc-per-node", "-1"], "nproc-per-node: a number from 1 to 99999, or auto, is needed, got -1"),
    (
        [*LR, "--parallel.pipeline", "3", "--nproc-per-node", "2"],
        "parallel.pipeline: 2 ranks do not divide into 3 stages",
    ),
    ([*LR, "--train.stepss", "4"], "train.stepss: no such key. Did you mean 'steps'?"),
    ([*LR, "--space", "missing.yaml"], "cannot read the config missing.yaml"),
    (["--resume", "nowhere"], "nowhere holds no search that could go on"),
    (["--resume", "a", *LR], "--resume goes on with the search as it is: leave out --search"),
    ([*LR, "--resume", "auto"], "--resume auto looks for a search in --output FOLDER"),
    ([*LR, "stray"], "unexpected argument 'stray'"),
    ([*LR, "--recipe", "lorra"], "no recipe named 'lorra'. Did you mean 'lora'?"),
]


@pytest.mark.parametrize(
    ("words", "said"), FAULTS, ids=lambda each: " ".join(each)[:50] if isinstance(each, list) else ""
)
def test_what_is_wrong_is_said_before_anything_starts(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    base = [] if "--resume" in words and "auto" not in words else BASE
    assert main([*base, *words, "--dry-run"]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err
    assert not [path.name for path in Path().iterdir()]


def test_all_faults_are_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--search.optimizer.lr",
        "2..1",
        "--search.train.micro-batch-size",
        "0,4",
        "--metric",
        "x",
        "--optimizer.nothing",
        "1",
    ]
    assert main([*BASE, *words, "--dry-run"]) == 2
    err = capsys.readouterr().err
    assert "4 faults" in err
    for key in ("metric:", "search.optimizer.lr:", "search.train.micro-batch-size:", "optimizer.nothing:"):
        assert key in err


def test_values_that_are_refused_only_together_are_found_too(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--search.train.micro-batch-size", "2,3", "--search.train.global-batch-size", "6,8"]
    assert main([*BASE, *words, "--dry-run"]) == 2
    assert "8 rows do not divide into 1 ranks × 3 rows" in capsys.readouterr().err


def test_a_file_says_what_the_command_line_says_which_wins(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.yaml").write_text("model: {name: kit-tiny, n_layers: 1}\n")
    Path("space.yaml").write_text("optimizer: {lr: 'log:1e-5..1e-3'}\ntrain.micro-batch-size: [4, 8]\n")
    words = ["--config", "run.yaml", "--space", "space.yaml", "--search.optimizer.lr", "0.1,0.2", "--dry-run"]
    assert main([*words, "--sampler", "grid"]) == 0
    out = capsys.readouterr().out
    assert "optimizer.lr" in out
    assert "0.1,0.2" in out
    assert "combinations            4" in out
    assert "trials                  4, grid" in out
    assert not Path("searches").exists()


def test_a_key_that_one_of_the_searched_components_lacks_is_told_with_its_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--search.optimizer", "adamw,sgd", "--search.optimizer.beta1", "0.8,0.9"]
    assert main([*BASE, *words, "--dry-run"]) == 2
    assert (
        "search.optimizer.beta1: sgd has no such key, and every trial of the search sets it." in capsys.readouterr().err
    )


def test_options_that_trials_with_another_component_do_not_have_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--optimizer.lr", "0.01", "--optimizer.beta1", "0.8", "--search.optimizer", "adamw,adam", "--dry-run"]
    words += ["--prune", "none"]
    assert main([*BASE, *words]) == 0
    assert "notice" not in capsys.readouterr().err, "without a name they are those of all"
    assert main([*BASE, "--optimizer", "adamw", *words]) == 0
    said = "notice: optimizer.lr, optimizer.beta1 belong to optimizer adamw, so trials of adam do not have them"
    assert said in capsys.readouterr().err
    assert main([*BASE, "--optimizer", "adamw", *words, "--search.optimizer.lr", "0.1,0.2"]) == 0
    assert "notice: optimizer.beta1 belongs to optimizer adamw" in capsys.readouterr().err


def test_trials_that_are_evaluated_at_their_end_alone_are_told_never_to_end_early(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = "notice: no trial ends early: a run of 4 steps is evaluated at its end alone; set --eval.every-steps to 1"
    for words, is_told in (([], True), (["--prune", "none"], False), (["--eval.every-steps", "2"], False)):
        assert main([*BASE, *LR, *words, "--dry-run"]) == 0
        assert (said in capsys.readouterr().err) == is_told


def test_components_are_searched_with_their_options_beside_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main([*BASE, *LR, "--search.optimizer", "adamw,adam", "--search.task-print", "loss,perplexity", "--dry-run"])
        == 0
    )
    assert "adamw,adam" in capsys.readouterr().out


@pytest.mark.needs("mt-plugin-evals")
def test_components_of_a_kind_that_a_plugin_brings_are_named_and_set_as_in_mt_train() -> None:
    Path("run.yaml").write_text("evaluations: [{name: boolq, path: b.jsonl}, {name: piqa, path: p.jsonl}]\n")
    words = [*BASE, *LR, "--config", "run.yaml", "--evaluations.piqa.limit", "1", "--evaluations", "arc"]
    line = parse([*words, "--evaluations.arc.path", "arc.jsonl"], switches=SWITCHES, values=VALUES, kinds=KINDS)
    found = {
        "boolq": {"path": "b.jsonl"},
        "piqa": {"path": "p.jsonl", "limit": 1},
        "arc": {"path": "arc.jsonl"},
    }
    assert _read_search(line, KINDS).raw["evaluations"] == found
    assert main([*words, "--evaluations.arc.path", "arc.jsonl", "--dry-run"]) == 0


def test_whole_numbers_for_a_key_that_takes_fractions_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(searching.Watch, "run", FakeTrain())
    assert main([*BASE, "--search.optimizer.weight-decay", "0..1", "--optimizer.lr", "1e-3", "--output", "a"]) == 0
    assert "takes fractions, and 0..1 is written in whole numbers" in capsys.readouterr().err


@pytest.fixture
def fake_runner(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Order], int]], None]:
    return lambda runner: monkeypatch.setattr(searching.Watch, "run", lambda self, order: runner(order))


def test_it_prints_a_table_and_what_to_do_next(fake_runner: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fake_runner(FakeTrain(fails=lambda lr: lr > 0.05))
    assert main([*BASE, "--search.optimizer.lr", "1e-1,1e-3,1e-2", "--sampler", "grid", "--output", "a"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].split() == ["trial", "eval_loss", "optimizer.lr", "steps", "time"]
    assert [line.split()[:2] for line in out.splitlines()[2:5]] == [["1", "failed"], ["2", "best"], ["3", "1.0200"]]
    assert f"best: trial 2, eval_loss {loss(1e-3):.4f}, in a/trial-002" in out
    assert "mt-train --config a/best.yaml" in out
    assert "trial 2 of 3: optimizer.lr 0.001" in err
    assert "\x1b" not in out


@pytest.mark.parametrize(("trials", "goes_on"), [("2", True), ("3", False)])
def test_further_trials_are_proposed_while_combinations_are_left(
    fake_runner: Any, capsys: pytest.CaptureFixture[str], trials: str, goes_on: bool
) -> None:
    fake_runner(FakeTrain())
    words = ["--search.optimizer.lr", "1e-1,1e-3,1e-2", "--sampler", "grid", "--trials", trials, "--output", "a"]
    assert main([*BASE, *words]) == 0
    assert ("mt-search --resume a" in capsys.readouterr().out) == goes_on


def test_json_is_all_that_standard_output_has(fake_runner: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fake_runner(FakeTrain())
    assert main([*BASE, *LR, "--trials", "2", "--output", "a", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert (about["schema"], about["metric"], about["best"] in (1, 2)) == (1, "eval_loss", True)
    assert about["trials"][0]["values"].keys() == {"optimizer.lr"}
    assert about["trials"][0]["evaluations"].keys() == {"1", "2", "3", "4"}


def test_a_search_that_is_stopped_has_code_75_and_goes_on(fake_runner: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fake_runner(FakeTrain(stop_after=2))
    assert main([*BASE, *LR, "--trials", "4", "--output", "a", "--resume", "auto"]) == STOPPED
    assert "go on with: mt-search --resume a" in capsys.readouterr().err
    fake_runner(FakeTrain())
    assert main([*BASE, *LR, "--trials", "4", "--output", "a", "--resume", "auto"]) == 0
    assert main(["--resume", "a", "--trials", "5"]) == 0
    assert "    5 " in capsys.readouterr().out


def test_where_no_trial_is_complete_the_code_is_1(fake_runner: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fake_runner(FakeTrain(fails=lambda lr: True))
    assert main([*BASE, *LR, "--trials", "2", "--output", "a"]) == 1
    assert "the first 2 trials failed" in capsys.readouterr().err


def test_a_launcher_is_told_to_stay_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main([*BASE, *LR]) == 2
    assert "give --nproc-per-node N" in capsys.readouterr().err


def test_help_and_faults_import_neither_torch_nor_optuna() -> None:
    code = (
        "import sys; from mt_plugin_search.command import main\n"
        "codes = [main(words) for words in (['--help'], ['--version'], ['--model', 'kit-tiny', '--search.optimizer.lr', '2..1'],\n"
        "  ['--model', 'kit-tiny', '--search.optimizer.lr', '1..2', '--dry-run'])]\n"
        "assert codes == [0, 0, 2, 2], codes\n"
        "assert not {'torch', 'optuna', 'numpy', 'rich'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "usage: mt-search" in done.stdout


def test_python_has_the_same_search(fake_runner: Any) -> None:
    fake_runner(FakeTrain())
    config = {"model": {"name": "kit-tiny", "n_layers": 1}, "train": {"steps": 4}}
    found = search(config, {"optimizer.lr": "log:1e-5..1e-1"}, output="a", trials=3, prune="none")
    assert [trial.state for trial in found.trials] == ["complete"] * 3
    assert found.best is not None
    assert read_config(found.output / "best.yaml")["optimizer"]["lr"] == found.best.values["optimizer.lr"]
    assert len(search(output="a", resume=True, trials=4).trials) == 4
    assert search(config, {"optimizer.lr": [0.1, 0.2]}, sampler="grid").output == Path("searches/kit-tiny-001")
    with pytest.raises(ConfigError, match="no such key"):
        search(config, {"optimizer.lr": [0.1, 0.2]}, output="b", trails=3)


def test_a_recipe_is_under_what_is_searched(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--recipe", "lora", "--model", "llama", "--search.adapter.rank", "2,4", "--dry-run"]
    assert main([*words, "--objective", "pretrain", "--train.sequence-len", "64"]) == 0
    assert "adapter.rank" in capsys.readouterr().out
