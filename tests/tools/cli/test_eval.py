"""``mt-eval``: which model, which rows, and what is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mt_core.plugins.host import PluginHost
from mt_tools.cli.eval import main
from mt_tools.evaluation.jobs import jobs_of
from mt_train.assemble import encoder
from mt_train.cli.train import main as train
from mt_train.data.encoding import encode
from mt_train.tracking.metrics import MetricsFile

WORDS = ["--model", "llama", "--model.n-layers", "1", "--train.steps", "6", "--train.micro-batch-size", "2"]
WORDS += ["--eval.every-steps", "2", "--checkpoint.every-steps", "2", "--data.eval", "4", "--optimizer.lr", "0.05"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("eval") / "run"
    assert train([*WORDS, "--checkpoint.keep-last", "9", "--output", str(run)]) == 0
    return run


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": f"hello {name} " * 9}) + "\n")
    return tmp_path


def results(folder: Path) -> list[dict[str, float]]:
    content: list[dict[str, float]] = json.loads((folder / "metrics.json").read_text())["results"]
    return content


def test_every_checkpoint_has_the_loss_that_training_saw(run: Path, tmp_path: Path) -> None:
    """Packed in training and padded here: 1e-5 relative, the order of sums."""
    assert main(["--run", str(run), "--checkpoints", "all", "--output", str(tmp_path / "out")]) == 0
    seen = {r["step"]: r["eval_loss"] for r in MetricsFile(run / "metrics.jsonl").read() if "eval_loss" in r}
    found = {result["step"]: result["loss"] for result in results(tmp_path / "out")}
    assert found == pytest.approx(seen, rel=1e-5)
    assert main(["--run", str(run), "--checkpoints", "best", "--output", str(tmp_path / "best")]) == 0
    best = results(tmp_path / "best")
    assert [result["step"] for result in best] == [min(seen, key=lambda step: seen[step])]


def test_the_output_is_numbered_in_the_run_and_says_each_samples_loss_on_request(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--run", str(run), "--predictions"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == [
        "model",
        "dataset",
        "loss",
        "perplexity",
        "bits_per_byte",
        "token_accuracy",
        "tokens",
        "samples",
    ]
    assert table[1].startswith("step-00000006  held out")
    first = run / "eval" / "001"
    lines = [json.loads(line) for line in (first / "predictions.jsonl").read_text().splitlines()]
    total = sum(line["loss"] * line["tokens"] for line in lines) / sum(line["tokens"] for line in lines)
    assert total == pytest.approx(results(first)[0]["loss"], rel=1e-6)
    assert main(["--run", str(run)]) == 0
    assert (run / "eval" / "002" / "metrics.json").is_file()


def test_what_is_no_number_is_null_in_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"model": "m", "step": 1, "evaluation": "rows", "figures": {"loss": float("nan")}, "notes": []}
    figures |= {"signatures": {}, "groups": {"set/a": {"loss": float("inf")}}}
    rows = [{"model": "m", "id": "a", "loss": float("nan"), "logprobs": [-1.5, float("-inf")]}]
    monkeypatch.setattr("mt_tools.cli.eval._jobs", lambda *_: [])
    monkeypatch.setattr("mt_tools.cli.eval.measure", lambda *_, **__: ([figures], rows))
    assert main(["--weights", "nowhere", "--predictions", "--output", str(tmp_path / "out")]) == 0

    def read(name: str) -> Any:
        return json.loads((tmp_path / "out" / name).read_text(), parse_constant=pytest.fail)

    (found,) = read("metrics.json")["results"]
    assert (found["figures"], found["groups"]) == ({"loss": None}, {"set/a": {"loss": None}})
    assert read("predictions.jsonl") == {"model": "m", "id": "a", "loss": None, "logprobs": [-1.5, None]}


def test_of_a_runs_own_rows_only_those_held_out_are_encoded(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counts: list[int] = []

    def counting(dataset: Any, indices: Any, *arguments: Any, **options: Any) -> Any:
        listed = list(indices)
        counts.append(len(listed))
        return encode(dataset, listed, *arguments, **options)

    monkeypatch.setattr(encoder, "encode", counting)
    assert main(["--run", str(run), "--checkpoints", "2,4", "--output", "none"]) == 0
    assert counts == [4], "and once for all checkpoints"


def test_a_runs_limit_is_of_the_rows_that_it_holds_out_and_not_of_a_set_that_is_named(rows: Path) -> None:
    host = PluginHost.discover()
    stored = {"model": "llama", "data": {"eval": 4}, "eval": {"limit": 2}}
    dataset = {"dataset": {"name": "jsonl", "path": str(rows / "a.jsonl")}}

    def limits(asked: dict[str, Any], *, on: bool = False) -> list[int | None]:
        sets = [("a", dataset["dataset"])] if on else []
        return [job.parts.config.eval.limit for job in jobs_of(Path("step-1"), stored, asked, host, sets)]

    assert limits({}) == [2]
    assert limits(dataset) == limits({}, on=True) == [None]
    own = {"eval": {"limit": 1}}
    assert limits(own) == limits(dataset | own) == limits(own, on=True) == [1]


def test_several_datasets_have_a_line_each(run: Path, rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--on", f"first=jsonl:{rows}/a.jsonl", "--on", f"second=jsonl:{rows}/b.jsonl"]
    assert main(["--run", str(run), "--checkpoints", "2,6", *words, "--output", "none"]) == 0
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]]
    assert lines == [[f"step-0000000{step}", name] for step in (2, 6) for name in ("first", "second")]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "give one of --run RUN, or --weights FOLDER; got none"),
        (["--run", "{run}", "--weights", "x"], "got both"),
        (["--weights", "x"], "--weights has no held-out rows"),
        (["--weights", "x", "--tasks", "arc"], "tasks of lm-evaluation-harness is --evaluations harness here"),
        (["--run", "{run}", "--model", "llama"], "--run brings its own model"),
        (["--run", "{run}", "--checkpoints", "5"], "run: 2, 4, 6"),
        (["--run", "{run}", "--checkpoints", "fast"], "last, best, all or a saved step"),
        (["--run", "{run}", "--on", "a"], "is not LABEL=DATASET:PATH, for instance --on test=jsonl:a"),
        (["--run", "{run}", "--on", "a=b.csv"], "is not LABEL=DATASET:PATH, for instance --on a=csv:b.csv"),
        (["--run", "{run}", "--on", "a=jsonl:x", "--dataset", "demo"], "keep one"),
        (["--run", "{run}", "--on", "a=jsonl:x", "--on", "a=jsonl:y"], "names 'a' twice"),
        (["--run", "{run}", "--output", "{run}/eval/009"], "earlier evaluation"),
        (["--run", "{run}/none"], "does not exist"),
    ],
)
def test_bad_calls_get_one_clear_message(
    words: list[str], says: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "eval" / "009").mkdir(parents=True, exist_ok=True)
    (run / "eval" / "009" / "metrics.json").write_text("{}")
    assert main([word.replace("{run}", str(run)) for word in words]) in (1, 2)
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error
