"""``mt-checkpoint``: what is there, whether it is whole, and what may go."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mt_tools.cli.checkpoint import main
from mt_train.checkpoint.file_names import LOCK
from mt_train.checkpoint.lock import hold_lock
from mt_train.cli.train import main as train

WORDS = ["--model", "llama", "--model.n-layers", "1", "--train.steps", "5", "--train.micro-batch-size", "1"]
WORDS += ["--eval.every-steps", "2", "--checkpoint.every-steps", "1", "--checkpoint.keep-last", "9", "--data.eval", "2"]


@pytest.fixture(scope="module")
def made_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("checkpoints") / "run"
    assert train([*WORDS, "--output", str(run)]) == 0
    return run


@pytest.fixture
def run(made_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made_run, tmp_path / "run"))


def steps(run: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in (run / "checkpoints").glob("step-*"))


def test_the_list_shows_steps_figures_and_marks(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "checkpoints" / "step-00000003" / "model" / "model-00001.safetensors").unlink(missing_ok=True)
    next((run / "checkpoints" / "step-00000003").rglob("*.safetensors")).unlink(missing_ok=True)
    assert main(["list", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["step", "size", "eval_loss"]
    assert [line.split()[0] for line in lines[1:]] == ["1", "2", "3", "4", "5"]
    assert lines[3].endswith("incomplete")
    assert lines[5].split()[-2:] == ["last,", "best"]
    assert lines[1].split()[3] == "-", "step 1 was not evaluated"


def test_a_damaged_checkpoint_is_named_and_the_others_are_read_too(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(run)]) == 0
    assert capsys.readouterr().out.count("every file is as it was written") == 5
    path = next((run / "checkpoints" / "step-00000002" / "model").glob("*.safetensors"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert main(["verify", str(run), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["checkpoints"]
    assert [entry["whole"] for entry in found] == [True, False, True, True, True]
    assert path.name in found[1]["fault"]
    assert main(["verify", str(path.parent.parent)]) == 1


def test_pruning_keeps_the_newest_and_the_best(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["prune", str(run), "--keep-last", "1", "--keep-best", "3"]
    assert main([*words, "--dry-run"]) == 0
    assert "would remove 2 of 5 checkpoints" in capsys.readouterr().out
    assert steps(run) == [1, 2, 3, 4, 5]
    assert main(["prune", str(run)]) == 0
    assert "removed 0 of 5" in capsys.readouterr().out, "the run's own settings keep nine"
    assert main([*words, "--json"]) == 0
    assert [entry["step"] for entry in json.loads(capsys.readouterr().out)["checkpoints"]] == [1, 3]
    assert steps(run) == [2, 4, 5], "those with an evaluation, the newest among them"


def test_pruning_keeps_the_checkpoint_that_the_run_is_read_from(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After ``--callbacks best`` that is an older one, and without it nothing could read the run."""
    (run / "checkpoints/latest").write_text("step-00000003\n")
    assert main(["prune", str(run), "--keep-last", "1", "--keep-best", "0"]) == 0
    assert "removed 3 of 5 checkpoints" in capsys.readouterr().out
    assert steps(run) == [3, 5]
    assert main(["list", str(run)]) == 0


def test_a_run_that_is_going_on_is_not_pruned(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = "import sys; from mt_tools.cli.checkpoint import main; sys.exit(main(sys.argv[1:]))"
    with hold_lock(run / LOCK):
        words = [sys.executable, "-c", code, "prune", str(run), "--keep-last", "1"]
        result = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 1
    assert "is in use by process" in result.stderr
    assert len(steps(run)) == 5


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["list", "{tmp}"], "holds no checkpoint"),
        (["verify", "{tmp}/none"], "does not exist"),
        (["prune", "{run}", "--keep-last", "0"], "at least 1"),
    ],
)
def test_bad_calls_get_one_clear_message(
    words: list[str], says: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert main([word.replace("{tmp}", str(tmp_path / "empty")).replace("{run}", str(run)) for word in words]) > 0
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error


def test_it_never_imports_torch(run: Path) -> None:
    code = "import sys; from mt_tools.cli.checkpoint import main; main(sys.argv[1:]); assert 'torch' not in sys.modules"
    for command in ("list", "verify"):
        subprocess.run([sys.executable, "-c", code, command, str(run)], check=True, timeout=300, capture_output=True)
