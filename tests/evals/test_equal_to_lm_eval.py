"""Figures of the sets equal those of lm-evaluation-harness on the same rows with its own model, to the last digit."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from llama_subject import FILES, LlamaSubject, open_evaluation, write_llama
from lm_eval_tasks import json_lines, logprobs, run_tasks

pytest.importorskip("lm_eval")

SUBJECTS = ["abstract_algebra", "anatomy", "marketing", "philosophy"]
"""As they are sorted; the first two are of one category."""
MMLU_TEXT = "{{question.strip()}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\nD. {{choices[3]}}\nAnswer:"
NATS = 1e-4


@pytest.fixture(scope="module", params=[True, False], ids=["with a begin token", "without"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool]:
    return write_llama(tmp_path_factory.mktemp("llama"), begins=request.param), request.param


def metrics(*names: str) -> list[dict[str, Any]]:
    return [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in names]


def mmlu_rows(subject: str, split: str) -> list[dict[str, Any]]:
    with (FILES / "mmlu" / split / f"{subject}_{split}.csv").open(newline="", encoding="utf-8") as file:
        return [{"question": row[0], "choices": row[1:5], "answer": "ABCD".index(row[5])} for row in csv.reader(file)]


def mmlu_task(subject: str, shots: int, folder: Path) -> dict[str, Any]:
    files = {split: json_lines(folder, f"{subject}_{split}", mmlu_rows(subject, split)) for split in ("dev", "test")}
    about = subject.replace("_", " ")
    return {
        "dataset_kwargs": {"data_files": files},
        "test_split": "test",
        "fewshot_split": "dev",
        "fewshot_config": {"sampler": "first_n"},
        "num_fewshot": shots,
        "output_type": "multiple_choice",
        "description": f"The following are multiple choice questions (with answers) about {about}.\n\n",
        "doc_to_text": MMLU_TEXT,
        "doc_to_choice": ["A", "B", "C", "D"],
        "doc_to_target": "answer",
        "metric_list": metrics("acc"),
    }


@pytest.mark.parametrize("shots", [0, 5])
def test_mmlu(shots: int, folder: tuple[Path, bool], tmp_path: Path) -> None:
    model, begins = folder
    theirs = run_tasks(
        model, {f"own_{name}": mmlu_task(name, shots, tmp_path) for name in SUBJECTS}, tmp_path, begins=begins
    )
    ours = open_evaluation("mmlu", path=str(FILES / "mmlu"), shots=shots).run(LlamaSubject(model))
    rows = list(ours.rows)
    for subject in SUBJECTS:
        wanted, own = theirs["results"][f"own_{subject}"], ours.groups[f"subject/{subject}"]
        assert own["accuracy"] == wanted["acc,none"]
        assert own["accuracy_stderr"] == wanted["acc_stderr,none"]
        found = [row["logprobs"] for row in rows if row["group"] == subject]
        for mine, other in zip(found, logprobs(theirs, f"own_{subject}"), strict=True):
            assert mine == pytest.approx(other, abs=NATS)
    sizes = [len(mmlu_rows(subject, "test")) for subject in SUBJECTS]
    parts = [theirs["results"][f"own_{subject}"] for subject in SUBJECTS]
    from lm_eval.api.metrics import aggregate_subtask_metrics, pooled_sample_stderr, unweighted_mean_stderr

    accuracies, errors = ([part[name] for part in parts] for name in ("acc,none", "acc_stderr,none"))
    assert ours.figures["accuracy"] == pytest.approx(aggregate_subtask_metrics(accuracies, sizes), abs=1e-12)
    assert ours.figures["accuracy_stderr"] == pytest.approx(pooled_sample_stderr(errors, sizes), abs=1e-12)
    assert ours.figures["accuracy_macro"] == pytest.approx(sum(accuracies) / len(accuracies), abs=1e-12)
    assert ours.figures["accuracy_macro_stderr"] == pytest.approx(unweighted_mean_stderr(errors), abs=1e-12)
    stem = ours.groups["category/stem"]
    assert stem["accuracy"] == pytest.approx(aggregate_subtask_metrics(accuracies[:2], sizes[:2]), abs=1e-12)
    assert stem["accuracy_stderr"] == pytest.approx(pooled_sample_stderr(errors[:2], sizes[:2]), abs=1e-12)
    assert 0 < ours.figures["accuracy"] < 1, "a model that is always right or always wrong proves nothing"


def read_lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FILES / name).read_text("utf-8").splitlines()]


def science_rows(name: str) -> list[dict[str, Any]]:
    """As the Hub has them."""
    return [
        {
            "question": row["question"]["stem"],
            "question_stem": row["question"]["stem"],
            "answerKey": row["answerKey"],
            "choices": {key: [each[key] for each in row["question"]["choices"]] for key in ("text", "label")},
        }
        for row in read_lines(name)
    ]


def hellaswag_rows() -> list[dict[str, Any]]:
    from datasets import Dataset
    from lm_eval.tasks.hellaswag.utils import process_docs

    return list(process_docs(Dataset.from_list(read_lines("hellaswag_val.jsonl"))))


def winogrande_rows() -> list[dict[str, Any]]:
    from lm_eval.tasks.winogrande import preprocess_winogrande as theirs

    return [
        {
            "gold": theirs.doc_to_text(row),
            "target": theirs.doc_to_target(row),
            "stems": theirs.doc_to_choice(row),
        }
        for row in read_lines("winogrande.jsonl")
    ]


def piqa_rows() -> list[dict[str, Any]]:
    labels = (FILES / "piqa/valid-labels.lst").read_text().split()
    return [{**row, "label": int(label)} for row, label in zip(read_lines("piqa/valid.jsonl"), labels, strict=True)]


def chinese_rows(path: str, names: dict[str, str]) -> list[dict[str, Any]]:
    with (FILES / path).open(newline="", encoding="utf-8") as file:
        return [{ours: row[name] for name, ours in names.items()} for row in csv.DictReader(file)]


def truthful_rows(task: str) -> list[dict[str, Any]]:
    given = json.loads((FILES / "mc_task.json").read_text("utf-8"))
    return [
        {
            "question": row["question"],
            f"{task}_targets": {
                "choices": list(row[f"{task}_targets"]),
                "labels": list(row[f"{task}_targets"].values()),
            },
        }
        for row in given
    ]


def logiqa_rows() -> list[dict[str, Any]]:
    from lm_eval.tasks.logiqa import utils_logiqa

    found = []
    for block in (FILES / "logiqa_Eval.txt").read_text("utf-8").strip().split("\n\n"):
        label, context, question, *options = block.split("\n")
        row = {"label": label, "context": context, "question": question, "options": [each[2:] for each in options]}
        found.append({**row, "text": utils_logiqa.doc_to_text(row), "gold": utils_logiqa.doc_to_target(row)})
    return found


def task_of(rows: list[dict[str, Any]], folder: Path, **more: Any) -> dict[str, Any]:
    names = more.pop("metrics", ["acc", "acc_norm", "acc_bytes"])
    return {
        "dataset_kwargs": {"data_files": {"test": json_lines(folder, "rows", rows)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "metric_list": metrics(*names),
        **more,
    }


def packaged_words(task: str) -> dict[str, Any]:
    """Words of a task as the harness has them in its own file."""
    import lm_eval.tasks
    import yaml

    text = (Path(lm_eval.tasks.__file__).parent / task).read_text("utf-8")
    values = yaml.safe_load(text.replace("!function", ""))
    return {
        key: values[key] for key in ("doc_to_text", "doc_to_choice", "doc_to_target", "description") if key in values
    }


TASKS: dict[str, tuple[str, Any, Any]] = {
    "arc": ("ARC-Easy-Test.jsonl", lambda: science_rows("ARC-Easy-Test.jsonl"), "arc/arc_easy.yaml"),
    "hellaswag": ("hellaswag_val.jsonl", hellaswag_rows, "hellaswag/hellaswag.yaml"),
    "winogrande": (
        "winogrande.jsonl",
        winogrande_rows,
        {"doc_to_text": "gold", "doc_to_target": "target", "doc_to_choice": "stems", "metrics": ["acc"]},
    ),
    "piqa": ("piqa/valid.jsonl", piqa_rows, "piqa/piqa.yaml"),
    "openbookqa": ("openbookqa.jsonl", lambda: science_rows("openbookqa.jsonl"), "openbookqa/openbookqa.yaml"),
    "boolq": (
        "boolq.jsonl",
        lambda: [{**row, "label": int(row["answer"])} for row in read_lines("boolq.jsonl")],
        "super_glue/boolq/default.yaml",
    ),
    "truthfulqa": ("mc_task.json", lambda: truthful_rows("mc1"), "truthfulqa/truthfulqa_mc1.yaml"),
    "logiqa": (
        "logiqa_Eval.txt",
        logiqa_rows,
        {"doc_to_text": "text", "doc_to_target": "gold", "doc_to_choice": "options"},
    ),
    "ceval": (
        "ceval/val/logic_val.csv",
        lambda: chinese_rows(
            "ceval/val/logic_val.csv", {"question": "question", **{x: x for x in "ABCD"}, "answer": "answer"}
        ),
        ["ceval/_default_ceval_yaml", "ceval/ceval-valid_logic.yaml"],
    ),
    "cmmlu": (
        "cmmlu/test/anatomy.csv",
        lambda: chinese_rows(
            "cmmlu/test/anatomy.csv", {"Question": "Question", **{x: x for x in "ABCD"}, "Answer": "Answer"}
        ),
        ["cmmlu/_default_template_yaml", "cmmlu/cmmlu_anatomy.yaml"],
    ),
}
"""Set → file, its rows for the harness, and the harness's own words: its files where these need no code."""


@pytest.mark.parametrize("name", TASKS)
def test_each_set(name: str, folder: tuple[Path, bool], tmp_path: Path) -> None:
    model, begins = folder
    file, rows, words = TASKS[name]
    if not isinstance(words, dict):
        words = {
            key: value
            for each in ([words] if isinstance(words, str) else words)
            for key, value in packaged_words(each).items()
        }
    task = task_of(rows(), tmp_path, **words)
    theirs = run_tasks(model, {f"own_{name}": task}, tmp_path, begins=begins)
    wanted = theirs["results"][f"own_{name}"]
    ours = open_evaluation(name, path=str(FILES / file)).run(LlamaSubject(model))
    for row, other in zip(ours.rows, logprobs(theirs, f"own_{name}"), strict=True):
        assert row["logprobs"] == pytest.approx(other, abs=NATS)
    for mine, other in {"accuracy": "acc", "accuracy_norm": "acc_norm", "accuracy_bytes": "acc_bytes"}.items():
        if mine in ours.figures and f"{other},none" in wanted:
            assert ours.figures[mine] == wanted[f"{other},none"]
            assert ours.figures.get(f"{mine}_stderr", "N/A") == wanted[f"{other}_stderr,none"]


def test_scores_without_the_question(folder: tuple[Path, bool], tmp_path: Path) -> None:
    model, begins = folder
    task = task_of(
        science_rows("ARC-Easy-Test.jsonl"),
        tmp_path,
        **packaged_words("arc/arc_easy.yaml"),
        metrics=["acc", "acc_mutual_info"],
    )
    theirs = run_tasks(model, {"own_pmi": task}, tmp_path, begins=begins)["results"]["own_pmi"]
    evaluation = open_evaluation("arc", path=str(FILES / "ARC-Easy-Test.jsonl"), unconditional="")
    ours = evaluation.run(LlamaSubject(model)).figures
    assert ours["accuracy_pmi"] == theirs["acc_mutual_info,none"]
    assert ours["accuracy_pmi_stderr"] == theirs["acc_mutual_info_stderr,none"]


def test_shots_of_the_own_split_leave_the_question_out(folder: tuple[Path, bool], tmp_path: Path) -> None:
    """Shots from the questions' own split: the question itself is left out, as the harness does."""
    model, begins = folder
    task = task_of(piqa_rows(), tmp_path, **packaged_words("piqa/piqa.yaml"))
    shots = {"fewshot_split": "test", "fewshot_config": {"sampler": "first_n"}, "num_fewshot": 2}
    theirs = run_tasks(model, {"own_shots": {**task, **shots}}, tmp_path, begins=begins)
    ours = open_evaluation("piqa", path=str(FILES / "piqa/valid.jsonl"), shots=2).run(LlamaSubject(model))
    for row, other in zip(ours.rows, logprobs(theirs, "own_shots"), strict=True):
        assert row["logprobs"] == pytest.approx(other, abs=NATS)


@pytest.mark.parametrize("positions", [1024, 32])
def test_perplexity_of_documents(positions: int, tmp_path: Path) -> None:
    """Without a begin token: the harness scores the one that a tokenizer adds, after another one; we do not."""
    model = write_llama(tmp_path / "llama", begins=False, positions=positions)
    task = {
        "dataset_kwargs": {"data_files": {"test": str(FILES / "documents.jsonl")}},
        "test_split": "test",
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": name} for name in ("word_perplexity", "byte_perplexity", "bits_per_byte")],
    }
    theirs = run_tasks(model, {"own_documents": task}, tmp_path, begins=False)
    rows = {"name": "jsonl", "path": str(FILES / "documents.jsonl")}
    ours = open_evaluation("perplexity", rows=rows).run(LlamaSubject(model))
    samples = sorted(theirs["samples"]["own_documents"], key=lambda sample: sample["doc_id"])
    for row, sample in zip(ours.rows, samples, strict=True):
        assert row["logprob"] == pytest.approx(float(sample["filtered_resps"][0]), rel=1e-6, abs=NATS)
    for name in ("word_perplexity", "byte_perplexity", "bits_per_byte"):
        assert ours.figures[name] == pytest.approx(theirs["results"]["own_documents"][f"{name},none"], rel=1e-5)
