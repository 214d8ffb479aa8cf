import inspect
import json
import math
from pathlib import Path
from typing import Any

import pytest

from mt_core.errors import MtError, UsageError
from mt_tools import evaluate, export_run
from mt_tools.cli.convert import main as mt_convert
from mt_tools.cli.eval import main as mt_eval
from mt_tools.cli.export import main as mt_export
from mt_train import train

CONFIG = {
    "model": {"name": "llama", "n_layers": 1},
    "train": {"steps": 4, "micro_batch_size": 2, "sequence_len": 64},
    "data": {"eval": 4},
    "checkpoint": {"every_steps": 2},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluate") / "run"
    train(CONFIG, output=folder)
    return folder


@pytest.fixture
def rows(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": f"hello {n} " * 9}) + "\n" for n in range(3)))
    return {"name": "jsonl", "path": str(path)}


def test_python_gets_what_the_command_writes(run: Path, rows: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert mt_eval(["--run", str(run), "--checkpoints", "all", "--output", str(out)]) == 0
    assert evaluate(run, checkpoints="all") == json.loads((out / "metrics.json").read_text())["results"]
    words = ["--run", str(run), "--dataset", "jsonl", "--dataset.path", rows["path"]]
    assert mt_eval([*words, "--output", str(tmp_path / "rows")]) == 0
    found = evaluate(run, {"dataset": rows})
    assert found == json.loads((tmp_path / "rows" / "metrics.json").read_text())["results"]
    assert math.isclose(found[0]["perplexity"], math.exp(found[0]["loss"]), rel_tol=1e-9)
    assert not (run / "eval").exists(), "it writes no file"


def test_a_step_is_a_checkpoint(run: Path) -> None:
    assert [each["step"] for each in evaluate(run, checkpoints=2)] == [2]
    assert [each["step"] for each in evaluate(run, checkpoints="2,4")] == [2, 4]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, r"evaluate\(\) takes one of run and weights; got none"),
    ({"run": "a", "weights": "b"}, r"takes one of run and weights; got both"),
    ({"weights": "b", "checkpoints": "all"}, r"checkpoints are those of a run"),
    ({"run": 5}, r"evaluate\(\): run is a path .*; got 5"),
    ({"run": "a", "config": 5}, r"evaluate\(\): config is a mapping .*; got 5"),
    ({"run": "a", "config": {"model": "llama"}}, r"a run brings its own model"),
    ({"run": "a", "checkpoints": []}, r"evaluate\(\): checkpoints is 'last', .*; got \[\]"),
    ({"run": "a", "dtype": "int4"}, r"evaluate\(\): dtype is auto, .*; got 'int4'"),
    ({"run": "a", "averaged": 5}, r"evaluate\(\): averaged is the name of a callback"),
    ({"run": "a", "plugins": "x"}, r"evaluate\(\): plugins is a list of modules"),
]


@pytest.mark.parametrize(("given", "says"), WRONG, ids=[says[:40] for _, says in WRONG])
def test_a_wrong_argument_gets_one_clear_message(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        evaluate(**given)


ODD: tuple[Any, ...] = (5, -1, 1.5, "", b"x", [1], {}, object(), float("nan"), True)


def test_every_odd_argument_is_an_error_of_ours(run: Path) -> None:
    for name in inspect.signature(evaluate).parameters:
        for value in ODD:
            if (name, value) == ("config", {}) or name == "weights":
                continue
            with pytest.raises(MtError):
                evaluate(**{"run": run, name: value})


@pytest.fixture(scope="module")
def lora(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    export_run(run, folder / "base")
    tuned = {**CONFIG, "model": {"name": "llama", "weights": str(folder / "base")}, "adapter": "lora"}
    train(tuned, output=folder / "run")
    return folder / "run"


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but the card, which has the command and the folder's name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "README.md"}


@pytest.mark.parametrize(
    ("of", "asked", "words"),
    [
        ("run", {}, []),
        ("run", {"checkpoint": 2, "dtype": "bf16"}, ["--dtype", "bf16"]),
        ("lora", {}, ["--merge"]),
        ("lora", {"form": "adapter", "checkpoint": 2, "base": "org/base"}, ["--checkpoint", "2", "--base", "org/base"]),
        ("lora", {"form": "lora", "rank": 2, "tolerance": 1}, ["--as-lora", "2", "--tolerance", "1"]),
    ],
    ids=["whole", "a step in bf16", "merged", "adapter", "lora"],
)
def test_a_run_is_written_as_the_command_writes_it(
    of: str, asked: dict[str, Any], words: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path, theirs = request.getfixturevalue(of), tmp_path / "theirs"
    if of == "run":
        source = path / "checkpoints" / "step-00000002" if "checkpoint" in asked else path
        assert mt_convert([str(source), str(theirs), *words]) == 0
    else:
        assert mt_export(["--run", str(path), "--output", str(theirs), *words]) == 0
    out = export_run(path, tmp_path / "ours", **asked)
    assert out == tmp_path / "ours"
    assert contents(out) == contents(theirs)


WRONG_EXPORTS: list[tuple[dict[str, Any], str]] = [
    ({"form": "merged"}, r"form is 'model' or 'adapter' or 'lora'; got 'merged'"),
    ({"dtype": "int8"}, r"dtype is fp32, bf16, fp16 or None; got 'int8'"),
    ({"form": "adapter", "dtype": "bf16"}, r"dtype is None with form='adapter'; got 'bf16'"),
    ({"rank": 8}, r"rank is None with form='model'; got 8"),
    ({"form": "lora", "rank": 0}, r"rank is a whole number from 1 on; got 0"),
    ({"form": "adapter", "tolerance": 0.1}, r"tolerance is None with form='adapter'; got 0.1"),
    ({"tolerance": math.nan}, r"tolerance is a number from 0 on, or None; got nan"),
    ({"tolerance": 0.1}, r"tolerance is None for a run without an adapter to merge; got 0.1"),
    ({"checkpoint": "all"}, r"checkpoint all means 2 checkpoints; name one: last, best, or a saved step"),
    ({"base": "C:/x"}, "base"),
    ({"averaged": ""}, r"averaged is the name of a callback of the run"),
    ({"plugins": "x"}, r"export_run\(\): plugins is a list of modules"),
]


@pytest.mark.parametrize(("given", "says"), WRONG_EXPORTS, ids=[says[:40] for _, says in WRONG_EXPORTS])
def test_a_wrong_argument_of_an_export_writes_nothing(
    given: dict[str, Any], says: str, run: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=says):
        export_run(run, tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


def test_an_export_overwrites_nothing(run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(MtError, match="is not empty"):
        export_run(run, tmp_path)
