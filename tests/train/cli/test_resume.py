"""What a resumed run may change, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mt_tools.cli.convert import main as convert
from mt_tools.cli.eval import main as evaluate
from mt_tools.cli.generate import main as generate
from mt_train.assemble import run_state, steps
from mt_train.cli.train import main
from mt_train.tracking.metrics import MetricsFile

BASE = ["--model", "llama", "--train.steps", "2", "--train.micro-batch-size", "2", "--eval.every-steps", "none"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    assert main([*BASE, "--model.n-layers", "1", "--output", str(tmp_path / "run")]) == 0
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("model", "drops"),
    [
        (("llama",), False),
        (("llama", "--adapter", "lora", "--adapter.dropout", "0.1"), True),
        (("gemma", "--model.dropout", "0.1"), True),
    ],
)
def test_other_random_numbers_are_told_of_where_there_is_dropout(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    model: tuple[str, ...],
    drops: bool,
) -> None:
    """The random generators are those of as many processes as saved."""
    run = tmp_path / "run"
    assert main(["--model", *model, *BASE[2:], "--model.n-layers", "1", "--output", str(run)]) == 0
    assert "done: 2 steps in " in capsys.readouterr().out
    read = run_state.read_snapshot
    monkeypatch.setattr(run_state, "read_snapshot", lambda *saved: read(*saved) and False)
    assert main(["--resume", str(run), "--train.steps", "3"]) == 0
    assert ("so dropout will not repeat bit for bit" in capsys.readouterr().err) == drops


def test_a_checkpoint_of_another_model_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = run.parent / "other"
    assert main([*BASE, "--model.n-layers", "2", "--output", str(other)]) == 0
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(other / "checkpoints", run / "checkpoints")
    capsys.readouterr()
    assert main(["--resume", str(run), "--train.steps", "4"]) == 2
    error = capsys.readouterr().err
    assert f"model.n-layers: is 1 in {run / 'run.yaml'}, and 2 in the checkpoint." in error
    assert generate(["--run", str(run), "--prompt", "x"]) == 2
    assert f"model.n-layers: is 1 in {run / 'run.yaml'}, and 2 in the checkpoint." in capsys.readouterr().err


def test_a_resumed_run_keeps_what_defines_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--resume", str(run), "--optimizer.lr", "0.5", "--train.seed", "9", "--train.steps", "4"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "2 faults" in error
    assert "optimizer.lr: is 0.5, and 0.003 in the run" in error
    assert "train.seed: is 9, and 0 in the run" in error
    precious, file = run.parent / "precious", run / "run.yaml"
    precious.write_text("step\n")
    file.write_text(file.read_text().replace("trackers: []", f"trackers: [{{name: csv, file: {precious}}}]"))
    for words in (["--train.steps", "4"], ["--train.steps", "4", "--dry-run"]):
        assert main(["--resume", str(run), *words]) == 2
        error = capsys.readouterr().err
        assert f"trackers: is {{'csv': {{'file': '{precious}'}}}} in {file}, and None in the checkpoint." in error
        assert f"Give `--trackers csv --trackers.csv.file {precious}` or `--trackers none`" in error
    assert precious.read_text() == "step\n"
    assert main(["--resume", str(run), "--train.steps", "3", "--trackers", "none"]) == 0
    assert "trackers: []" in file.read_text()


def test_a_resumed_run_may_be_longer_and_laid_out_otherwise(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--train.steps", "4", "--train.micro-batch-size", "1", "--parallel.zero-stage", "2"]
    assert main(["--resume", str(run), *words]) == 0
    captured = capsys.readouterr()
    assert "4 steps instead of 2" in captured.err
    assert "done: 4 steps, 2 of them now, in " in captured.out
    assert "1 rows × 2 micro-batches = 2 rows a step, ZeRO 2" in captured.out, "the rows of a step stay"
    assert main(["--resume", str(run), "--train.steps", "6", "--train.global-batch-size", "4"]) == 2
    assert "train.global-batch-size: is 4, and 2 in the run" in capsys.readouterr().err
    assert [record["step"] for record in MetricsFile(run / "metrics.jsonl").read()] == [1, 2, 3, 4]


def test_a_machine_with_other_kernels_of_fp32_products_is_told_of(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses agree to rounding, and not bit for bit; on the machine of the run there is nothing to say."""
    capsys.readouterr()
    assert main(["--resume", str(run), "--train.steps", "3"]) == 0
    assert "matrix products" not in capsys.readouterr().err
    monkeypatch.setattr(steps, "matmul_precision", lambda device, *, tf32: "high")
    assert main(["--resume", str(run), "--train.steps", "4"]) == 0
    assert (
        "has 'high' on this machine: other kernels, so that it does not repeat bit for bit" in capsys.readouterr().err
    )


def test_a_folder_without_its_run_file_is_no_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "run.yaml").unlink()
    assert main(["--resume", str(run)]) == 1
    assert "has no run.yaml" in capsys.readouterr().err


def test_rows_that_have_changed_are_refused_with_the_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": f"row number {i}"}) + "\n" for i in range(40)))
    words = [*BASE, "--model.n-layers", "1", "--dataset", "jsonl", "--dataset.path", str(rows)]
    run = tmp_path / "run"
    assert main([*words, "--output", str(run)]) == 0
    original = rows.read_text()
    rows.write_text(original + json.dumps({"text": "one more"}) + "\n")
    capsys.readouterr()
    assert main(["--resume", str(run), "--train.steps", "4"]) == 1
    error = capsys.readouterr().err
    assert "rows 38 then, 39 now" in error
    assert "start a new run" in error
    rows.write_text(original.replace("row number 7", "row number 8"))
    assert main(["--resume", str(run), "--train.steps", "4"]) == 1
    assert "as many, and others" in capsys.readouterr().err
    rows.write_text(original)
    assert main(["--resume", str(run), "--train.steps", "4"]) == 0


def test_a_plugin_that_is_gone_is_named_with_its_pip_line_and_another_version_is_told(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run / "plugins.lock.json"
    lock = json.loads(path.read_text())
    lock["plugins"]["mt-plugin-llama"] = "0.0.9"
    lock |= {"origins": {}, "editable": []}  # of an index, wherever it is from here
    path.write_text(json.dumps(lock))
    assert main(["--resume", str(run), "--train.steps", "3"]) == 0
    error = capsys.readouterr().err
    assert f"the run {run} used mt-plugin-llama 0.0.9, now 0.1.0" in error
    assert "pip install mt-plugin-llama==0.0.9" in error
    lock["plugins"]["mt-plugin-gone"] = "2.0"
    path.write_text(json.dumps(lock))
    assert main(["--resume", str(run), "--train.steps", "4"]) == 1
    line = "used mt-plugin-gone, not installed here: pip install mt-plugin-llama==0.0.9 mt-plugin-gone==2.0"
    assert line in capsys.readouterr().err
    for command, words in (
        (generate, ["--run", str(run), "--prompt", "x"]),
        (evaluate, ["--run", str(run)]),
        (convert, [str(run), str(run.parent / "out")]),
        (main, ["--config", str(run / "run.yaml"), "--output", str(run.parent / "again")]),
    ):
        assert command(words) == 1
        assert line in capsys.readouterr().err, command.__module__


def test_the_config_in_a_run_repeats_it_bit_for_bit_and_other_code_is_told(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run / "plugins.lock.json"
    lock = json.loads(path.read_text())
    assert (
        lock["sha256"].keys()
        == lock["plugins"].keys()
        == {"mt-core", "mt-plugin-llama", "mt-plugin-standard", "mt-train"}
    )
    lock["sha256"]["mt-core"] = "0" * 64
    path.write_text(json.dumps(lock))
    again = run.parent / "again"
    assert main(["--config", str(run / "run.yaml"), "--output", str(again)]) == 0
    assert "used other files of mt-core, under the same version" in capsys.readouterr().err
    then, now = (MetricsFile(folder / "metrics.jsonl").read() for folder in (run, again))
    assert [record["loss"] for record in now] == [record["loss"] for record in then]
    assert (again / "run.yaml").read_bytes() == (run / "run.yaml").read_bytes()


def test_the_printed_config_says_what_comes_from_the_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["--resume", str(run), "--train.epochs", "2", "--print-config"]) == 0
    lines = {line.split(":")[0].strip(): line for line in capsys.readouterr().out.splitlines()}
    assert lines["n_layers"].endswith(f"# the run {run}")
    assert lines["epochs"].endswith("# command line")
    assert "steps: null" in lines["steps"], "epochs on top replace the steps below"


def test_a_resumed_run_says_where_it_goes_on_and_what_is_computed_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    words = [
        *BASE[:2],
        "--train.steps",
        "5",
        "--model.n-layers",
        "1",
        "--train.micro-batch-size",
        "2",
        "--data.eval",
        "4",
    ]
    assert main([*words, "--checkpoint.every-steps", "2", "--checkpoint.keep-last", "9", "--output", str(run)]) == 0
    assert "goes on from" not in capsys.readouterr().err
    assert main(["--resume", str(run / "checkpoints" / "step-00000002")]) == 0
    assert (
        f"notice: the run goes on from {run}/checkpoints/step-00000002, after step 2 of 5; steps 3 to 5, whose figures were"
        " there already, will be computed anew" in capsys.readouterr().err
    )


ODD: list[tuple[str, Any]] = [
    ("tokens", "many"),
    ("position", {"epoch": 0, "row": 10**6}),
    ("position", [0, 2]),
    ("pending", {"step": 2}),
    ("skipped", None),
    ("total_steps", 0),
    ("layout", {}),
    ("config", {"train": {"steps": "two"}}),
    ("data", {"sha256": 3}),
    ("callbacks", []),
    ("adapter", 3),
    *((name, ...) for name in ("tokens", "position", "total_steps", "layout", "config", "callbacks")),
]


def test_odd_fields_of_a_manifest_end_a_resume_with_one_message_that_names_file_and_field(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``...`` stands for a field that is missing."""
    path = run / "checkpoints" / "step-00000002" / "manifest.json"
    honest = json.loads(path.read_text())
    for field, value in ODD:
        content = {**honest, field: value}
        del content["sha256"]
        if value is ...:
            del content[field]
        files = content.pop("files")  # the last one
        path.write_text(json.dumps({**content, "files": files}))
        capsys.readouterr()
        assert main(["--resume", str(run), "--train.steps", "4"]) == 1, field
        error = capsys.readouterr().err
        assert str(path) in error, error
        assert field in error, error
        assert "unexpected" not in error, error
