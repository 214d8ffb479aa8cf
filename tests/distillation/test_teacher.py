"""Teachers read beside a student as they would alone, and one that does not fit is refused by name."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mt_core import Sample, UsageError
from mt_core.nn import Batch, TokenObjective
from mt_core.plugins.host import PluginHost
from mt_plugin_distillation import tokenizers
from mt_plugin_distillation.options import DistillConfig
from mt_plugin_distillation.teacher import Teacher
from mt_plugin_distillation.teacher_files import teacher_digest, weight_bytes
from mt_plugin_distillation.whole_rows import whole_rows
from mt_tools.cli.convert import main as mt_convert

TEXTS = ("a lazy dog", "the quick brown fox", "it rests")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    component = PluginHost.discover().get("tokenizer", "byte").component
    return component.build(component.config())


@pytest.fixture(scope="module")
def folder(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same teacher as a folder of whole weights."""
    made = tmp_path_factory.mktemp("weights") / "teacher"
    assert mt_convert([str(teacher), str(made)]) == 0
    return made


def samples(tokenizer: Any) -> list[Sample]:
    ids = [tokenizer.encode(text) for text in TEXTS]
    return [Sample(each, [n > 2 for n in range(len(each))], f"row {number}") for number, each in enumerate(ids)]


def batch(rows: list[list[Sample]], length: int = 64) -> Batch:
    return TokenObjective().collate(rows, length=length).with_index()


def test_packed_and_padded_rows_are_read_as_documents_alone(teacher: Path, tokenizer: Any) -> None:
    read = Teacher(DistillConfig(teacher_path=teacher), tokenizer)
    each = samples(tokenizer)
    alone = torch.cat([read.read(batch([[sample]], len(sample.ids))) for sample in each])
    assert torch.allclose(read.read(batch([each])), alone, atol=1e-5)
    assert torch.allclose(read.read(batch([[sample] for sample in each])), alone, atol=1e-5)


def test_ranks_that_share_rows_read_whole_ones(teacher: Path, tokenizer: Any) -> None:
    """Each has a part of the tokens; ``over_row`` adds up what both put in."""
    read = Teacher(DistillConfig(teacher_path=teacher), tokenizer)
    whole = TokenObjective().collate([samples(tokenizer), samples(tokenizer)[:1]], length=64)
    parts = [whole.cut(part, 2).with_index() for part in range(2)]
    given: list[torch.Tensor] = []
    for part in parts:
        whole_rows(replace(part, over_row=lambda value: (given.append(value), value)[1]))
    shared = [replace(part, over_row=lambda value: sum(given)) for part in parts]
    rows = whole_rows(shared[1])
    for name in ("input_ids", "positions", "document_ids", "lengths"):
        assert torch.equal(getattr(rows, name), getattr(whole, name).long()), name
    found = [read.read(each) for each in shared]
    hidden, expected = torch.zeros(2, 64, found[0].shape[1]), read.read(whole.with_index())
    for part, values in zip(shared, found, strict=True):
        rows_n, columns_n = part.index_n() // 32, part.index_n() % 32 + part.begin
        hidden[rows_n, columns_n] = values
    assert torch.allclose(hidden.flatten(0, 1)[whole.with_index().index_n()], expected, atol=1e-6)


def test_a_run_and_its_weights_are_the_same_teacher(teacher: Path, folder: Path, tokenizer: Any) -> None:
    given = batch([[sample] for sample in samples(tokenizer)])
    both = [Teacher(DistillConfig(teacher_path=path), tokenizer).read(given) for path in (teacher, folder)]
    assert torch.allclose(*both, atol=1e-6)
    assert not both[0].requires_grad
    half = Teacher(DistillConfig(teacher_path=folder, teacher_dtype="bf16"), tokenizer).read(given)
    assert half.dtype == torch.bfloat16


def test_the_best_checkpoint_of_a_run_is_as_large_as_the_last(teacher: Path) -> None:
    assert weight_bytes(teacher, "best") == weight_bytes(teacher, "last") == weight_bytes(teacher, 8) > 100_000


def test_it_says_what_it_takes(folder: Path, tokenizer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Teacher(DistillConfig(teacher_path=folder), tokenizer)
    said = capsys.readouterr().err
    assert f"holds the teacher {folder} whole ({weight_bytes(folder, 'last') / 1e9:.3g} GB of files)" in said
    assert "--dry-run does not count" in said


@pytest.mark.parametrize(
    ("made", "options", "said"),
    [
        ("gone", {}, "is no folder; give one of whole weights with their tokenizer, or a run"),
        ("empty", {}, r"has no model; give the folder of a run \(with run.yaml\)"),
        ("run", {"teacher_family": "llama"}, "is a run, which brings its own model; leave out teacher_family"),
        (
            "weights",
            {"teacher_checkpoint": "best"},
            "is a folder of weights, which has no checkpoints; leave out teacher_checkpoint=best",
        ),
    ],
)
def test_a_folder_that_is_no_teacher_is_refused(
    made: str, options: dict[str, Any], said: str, teacher: Path, folder: Path, tmp_path: Path, tokenizer: Any
) -> None:
    (tmp_path / "empty").mkdir()
    path = {"run": teacher, "weights": folder}.get(made, tmp_path / made)
    with pytest.raises(UsageError, match=f"--objective.teacher-path {path} {said}"):
        Teacher(DistillConfig(teacher_path=path, **options), tokenizer)


class Renumbered:
    """The byte tokenizer with one thing changed."""

    def __init__(self, own: Any, **changed: Any) -> None:
        self.own, self.changed = own, changed

    def __getattr__(self, name: str) -> Any:
        return self.changed.get(name) or getattr(self.own, name)


def reverse(text: str) -> list[int]:
    return list(reversed(text.encode()))


def test_no_more_ids_are_compared_than_said(teacher: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(tokenizers, "COMPARED", 150)
    run = Renumbered(tokenizer, decode=lambda ids: (asked.extend(ids), tokenizer.decode(ids))[1])
    Teacher(DistillConfig(teacher_path=teacher), run).read(batch([[samples(tokenizer)[0]]]))
    assert asked == [*range(0, tokenizer.size, 2)]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"size": 300}, "has 272 ids, and the run's tokenizer 300"),
        ({"encode": reverse, "encode_text": reverse}, "has another tokenizer: .* for the run, and not for"),
        (
            {
                "decode": lambda ids: (
                    "x" if list(ids) == [65] else bytes(each for each in ids if each < 256).decode("utf-8", "replace")
                )
            },
            "id 65 is 'A' there, and 'x' in the run",
        ),
    ],
)
def test_a_teacher_with_other_ids_is_refused(changed: dict[str, Any], said: str, teacher: Path, tokenizer: Any) -> None:
    read = Teacher(DistillConfig(teacher_path=teacher), Renumbered(tokenizer, **changed))
    with pytest.raises(UsageError, match=f"{said}.*take one of the same family, or train on texts that it wrote"):
        read.read(batch([[sample] for sample in samples(tokenizer)]))


def test_words_that_the_runs_tokenizer_alone_has_are_said(
    teacher: Path, tokenizer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The head has padded rows for them."""
    size = tokenizer.size
    words = {size: "", size + 1: "word"}
    more = Renumbered(tokenizer, size=size + 2, decode=lambda ids: words.get(ids[0], tokenizer.decode(ids)))
    given = batch([[sample] for sample in samples(tokenizer)])
    for run, said in ((tokenizer, False), (more, True)):
        Teacher(DistillConfig(teacher_path=teacher), run).read(given)
        line = f"was not trained on 1 ids of the run's tokenizer, the first of which is {size + 1} ('word')"
        assert (line in capsys.readouterr().err) == said


def test_a_row_that_is_longer_than_the_teacher_reads_is_refused_and_padding_is_not(
    teacher: Path, tokenizer: Any
) -> None:
    read = Teacher(DistillConfig(teacher_path=teacher), tokenizer)
    most = read._loaded.max_seq_len
    read.read(batch([samples(tokenizer)[:1]], most + 8))
    long = Sample([65] * (most + 1), [True] * (most + 1), "row 0")
    with pytest.raises(UsageError, match=rf"reads at most {most} tokens, and a row has {most + 1}; set --data.max-len"):
        read.read(batch([[long]], most + 8))


def test_the_digest_follows_weights_and_configs_and_nothing_else(teacher: Path, folder: Path, tmp_path: Path) -> None:
    for kind, source, changed in (
        ("weights", folder, "config.json"),
        ("weights", folder, "model.safetensors"),
        ("run", teacher, f"checkpoints/{(teacher / 'checkpoints/latest').read_text().strip()}/manifest.json"),
    ):
        copy = tmp_path / kind
        shutil.copytree(source, copy)
        before = teacher_digest(copy, "last")
        assert before == teacher_digest(source, "last")
        (copy / "README.md").write_text("something else")
        (copy / "metrics.jsonl").write_text("{}")
        assert teacher_digest(copy, "last") == before
        with (copy / changed).open("ab") as stream:
            stream.write(b" ")
        assert teacher_digest(copy, "last") != before
        shutil.rmtree(copy)


def test_a_digest_of_a_run_is_that_of_the_checkpoint_that_is_read(teacher: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(teacher, run)
    (run / "checkpoints/latest").write_text("step-00000009")
    newer = shutil.copytree(teacher / "checkpoints/step-00000008", run / "checkpoints/step-00000009")
    (newer / "manifest.json").write_text(json.dumps({"step": 9}))
    assert teacher_digest(run, 8) == teacher_digest(teacher, "last") != teacher_digest(run, "last")
