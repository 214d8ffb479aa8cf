"""Whatever befalls a file that a resume reads is found before the first step, by the file's name, or does no harm."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt_core.errors import CheckpointError
from mt_train.checkpoint.manifest import verify
from mt_train.checkpoint.store import find

STEPS = 3
Mutation = Callable[[Path, Path, random.Random], None]
"""Damages a file; the second path is another file, whose content may take its place."""


def truncate(path: Path, other: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])


def halve(path: Path, other: Path, chance: random.Random) -> None:
    content = path.read_bytes()  # nothing is missed of the last lines of a config where they say what is so anyway
    path.write_bytes(content[: len(content) // 2])


def flip(path: Path, other: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def delete(path: Path, other: Path, chance: random.Random) -> None:
    path.unlink()


def swap(path: Path, other: Path, chance: random.Random) -> None:
    mine, others = path.read_bytes(), other.read_bytes()
    path.write_bytes(others)
    other.write_bytes(mine)


def append(path: Path, other: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes() + chance.randbytes(chance.randrange(1, 50)))


def replace(path: Path, other: Path, chance: random.Random) -> None:
    path.write_bytes(chance.randbytes(path.stat().st_size))


def from_another_step(path: Path, other: Path, chance: random.Random) -> None:
    """The file of this name in a checkpoint beside this one."""
    step = path.relative_to(checkpoints := next(p for p in path.parents if p.name == "checkpoints")).parts[0]
    beside = next(p for p in sorted(checkpoints.glob("step-*")) if p.name != step)
    path.write_bytes((beside / path.relative_to(checkpoints / step)).read_bytes())


MUTATIONS: list[Mutation] = [truncate, flip, delete, swap, append, replace, from_another_step]


@pytest.fixture(scope="module")
def truth(runs: Any) -> Any:
    return runs.truth(STEPS)


def test_of_a_thousand_mutations_the_verifier_finds_every_one_by_name(truth: Any, tmp_path: Path) -> None:
    whole, chance = shutil.copytree(truth.run / "checkpoints", tmp_path / "checkpoints"), random.Random(3)
    checkpoint = whole / f"step-{STEPS:08d}"
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    assert len(files) == 5
    contents = {path: path.read_bytes() for path in files}
    verify(checkpoint)
    for number in range(1000):
        mutate = MUTATIONS[number % len(MUTATIONS)]
        path = chance.choice(files)
        other = chance.choice([file for file in files if file != path])
        mutate(path, other, chance)
        changed = [file for file in files if not file.exists() or file.read_bytes() != contents[file]]
        if changed:  # weights of two steps may have the same index
            with pytest.raises(CheckpointError) as caught:
                verify(checkpoint)
            assert any(file.name in str(caught.value) for file in changed), f"{mutate.__name__} of {path}"
        for file in changed:
            file.write_bytes(contents[file])
    verify(checkpoint)


STATE, MODEL = "state/rank-0000.safetensors", "model/model-00001.safetensors"
REFUSED: list[tuple[Mutation, str, str]] = [
    *((mutate, file, file) for mutate in (truncate, flip, delete, append) for file in (STATE, MODEL)),
    (swap, STATE, STATE),
    (replace, MODEL, MODEL),
    (from_another_step, STATE, STATE),
    (flip, "state/rank-0000.json", "state/rank-0000.json"),
    (truncate, "model/index.json", "model/index.json"),
    (delete, "model/index.json", "model/index.json"),
    (truncate, "manifest.json", "manifest.json"),
    (delete, "manifest.json", "manifest.json"),
    (from_another_step, "manifest.json", "step-00000002"),
    (truncate, "../latest", "latest"),
    (replace, "../latest", "latest"),
    (halve, "../../run.yaml", "run.yaml"),
    (delete, "../../run.yaml", "run.yaml"),
    (replace, "../../run.yaml", "run.yaml"),
    (append, "../../run.yaml", "run.yaml"),
    (truncate, "../../plugins.lock.json", "plugins.lock.json"),
    (replace, "../../plugins.lock.json", "plugins.lock.json"),
]
WARNED: list[tuple[Mutation, str, str]] = [
    (replace, "../../metrics.jsonl", "metrics.jsonl"),
    (halve, "../../metrics.jsonl", "lacks the figures of"),
    (delete, "../../metrics.jsonl", "lacks the figures of 2 of 2 steps (1 to 2)"),
]
HARMLESS: list[tuple[Mutation, str, str]] = [
    (replace, "../../about.json", ""),  # written anew from what is
    (delete, "../../plugins.lock.json", ""),
]


@pytest.fixture(scope="module")
def stopped_run(runs: Any, truth: Any) -> Path:
    """The run after its second step of three."""
    run: Path = shutil.copytree(truth.run, runs.folder / "stopped")
    shutil.rmtree(run / "checkpoints" / "step-00000003")
    (run / "checkpoints" / "latest").write_text("step-00000002\n")
    return run


def copy_damaged(stopped: Path, run: Path, mutate: Mutation, file: str, seed: int) -> Path:
    """A copy of the run with one file damaged."""
    shutil.copytree(stopped, run)
    path = Path(os.path.normpath(run / "checkpoints" / "step-00000002" / file))
    mutate(path, run / "checkpoints" / "step-00000001" / "state" / "rank-0000.json", random.Random(seed))
    return run


def test_thirty_damaged_runs_are_found_by_the_command_before_the_first_step(
    runs: Any, truth: Any, stopped_run: Path, tmp_path: Path
) -> None:
    cases = [(*case, kind) for kind, cases in ((1, REFUSED), (0, WARNED), (0, HARMLESS)) for case in cases]
    assert len(cases) >= 30
    for number, (mutate, file, expected, refused) in enumerate(cases):
        run = copy_damaged(stopped_run, tmp_path / str(number), mutate, file, number)
        code, attempt = runs.run(["--resume", str(run), "--train.steps", str(STEPS)])
        told = f"{mutate.__name__} {file}: code {code}\n{attempt.err}"
        assert "Traceback" not in attempt.err, told
        assert "unexpected" not in attempt.err, told
        assert expected in attempt.err, told
        if refused:
            assert code in (1, 2), told
            assert "step " not in attempt.out, told
            assert attempt.err.count("error:") == 1, told
        else:
            assert code == 0, told
            assert truth.check(run)[-1] == STEPS, told


def test_every_bit_of_latest_matters_or_is_told(runs: Any, stopped_run: Path, tmp_path: Path) -> None:
    """One bit turns step 2 into another step that may exist, so a checkpoint that is not the last save is always told."""
    run = shutil.copytree(stopped_run, tmp_path / "run")
    (run / "checkpoints" / "latest").write_text("step-00000001\n")
    code, attempt = runs.run(["--resume", str(run), "--train.steps", "2"])
    assert code == 0
    assert "latest names step-00000001, and step-00000002 was saved after it" in attempt.err
    latest = run / "checkpoints" / "latest"
    text = b"step-00000002\n"
    for bit in range(8 * len(text)):
        changed = bytearray(text)
        changed[bit // 8] ^= 1 << bit % 8
        latest.write_bytes(changed)
        named = changed.decode(errors="replace").strip()
        if (run / "checkpoints" / named).is_dir() and len(named) == len("step-00000002"):
            assert find(run).name == named
        else:
            with pytest.raises(CheckpointError, match="latest names"):
                find(run)


def test_damaged_lines_of_figures_are_set_aside_and_nothing_else_is_lost(
    runs: Any, stopped_run: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(stopped_run, tmp_path / "run")
    metrics = run / "metrics.jsonl"
    lines = metrics.read_bytes().split(b"\n")
    metrics.write_bytes(b"\n".join([b"\xff" + lines[0], *lines[1:]]))
    code, attempt = runs.run(["--resume", str(run), "--train.steps", str(STEPS)])
    assert code == 0
    assert "1 line(s) of" in attempt.err
    assert "lacks the figures of 1 of 2 steps (1)" in attempt.err
    assert (run / "metrics.jsonl.damaged").read_bytes() == b"\xff" + lines[0] + b"\n"
    assert metrics.read_bytes().split(b"\n")[0] == lines[1]
    assert len(metrics.read_bytes().splitlines()) == STEPS - 1
