import inspect
import json
import math
from pathlib import Path
from typing import Any

import pytest

from mt_core.errors import MtError, UsageError
from mt_tools import evaluate
from mt_tools.cli.eval import main as mt_eval
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
