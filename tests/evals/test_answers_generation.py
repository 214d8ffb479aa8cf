"""``answers`` with the options of generation, in training and afterwards."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness_worlds import write_llama

from mt_core import ConfigError, UsageError
from mt_core.generation import Generation
from mt_core.plugins.host import PluginHost
from mt_plugin_evals.generated import answers
from mt_plugin_evals.generated.config import AnswersConfig
from mt_tools import generate
from mt_tools.cli.eval import main as evaluate
from mt_train import check_config, load_run, train
from mt_train.assemble.load import load
from mt_train.assemble.parts import Parts
from mt_train.assemble.subjects import loaded_subject
from mt_train.plugins.resolve import resolve

pytestmark = pytest.mark.needs("mt-plugin-llama")

ASKED = ["The quick brown", "Two and three", "Which of these is", "12 less 4", "Where is the fox?"]
ROWS = {
    "plain": [{"prompt": text, "response": "a"} for text in ASKED],
    "turns": [{"messages": [{"role": "user", "content": text}], "references": "a"} for text in ASKED],
}
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "top_p alone": {"top_p": 0.9, "seed": 3},
    "drawn": {"temperature": 1.7, "top_k": 20, "top_p": 0.95, "min_p": 0.001, "typical_p": 0.98, "seed": 7},
    "penalties": {
        "repetition_penalty": 1.4,
        "frequency_penalty": 0.6,
        "presence_penalty": 0.7,
        "no_repeat_ngram": 2,
        "min_new_tokens": 5,
    },
    "beams": {"num_beams": 3},
    "beams of all options": {"num_beams": 4, "length_penalty": 2.5, "early_stopping": True, "no_repeat_ngram": 3},
}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    write_llama(folder)
    return folder


def ask(weights: Path, rows: list[dict[str, Any]], folder: Path, *, data: Any = None, **options: Any) -> Any:
    """The subject as mt-eval has it, and the lines of the answers that it gives."""
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    asked = {"name": "answers", "rows": {"name": "jsonl", "path": str(folder / "rows.jsonl")}, "metrics": "word-f1"}
    raw = {
        "model": {"name": "llama", "weights": str(weights)},
        "evaluations": [{**asked, **options}],
        "train": {"sequence_len": 64},
        "data": data or {},
    }
    parts = Parts.of(resolve(raw, PluginHost.discover()))
    loaded = load(parts, None, lambda text: None)
    subject = loaded_subject(parts, loaded, batch_size=2)
    return subject, loaded, list(parts.evaluations()["answers"].run(subject).rows)


@pytest.mark.parametrize("shape", ROWS)
@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_writes_what_mt_generate_writes(weights: Path, tmp_path: Path, name: str, shape: str) -> None:
    options = OPTIONS[name]
    _, loaded, lines = ask(weights, ROWS[shape], tmp_path, max_new_tokens=12, **options)
    rules = {"greedy": True, **options} if name in ("greedy", "penalties") else options
    prompts: Any = ASKED if shape == "plain" else [row["messages"] for row in ROWS["turns"]]
    wanted = generate(loaded, prompts, max_new_tokens=12, **rules)
    assert [line["answer"] for line in lines] == [each.text for each in wanted]
    assert [line["finish"] for line in lines] == [each.finish for each in wanted]
    assert len(set(map(tuple, (each.ids for each in wanted)))) > 1, "something was written"


def test_options_differ_from_each_other(weights: Path, tmp_path: Path) -> None:
    texts = {
        name: tuple(line["answer"] for line in ask(weights, ROWS["plain"], tmp_path, max_new_tokens=12, **options)[-1])
        for name, options in OPTIONS.items()
    }
    assert len(set(texts.values())) == len(OPTIONS)


def test_beams_end_where_a_turn_ends_by_a_text(weights: Path, tmp_path: Path) -> None:
    """The search takes no stop texts: the answer is cut where one is, and counts as finished."""
    turns = ROWS["turns"][:1]
    _, _, (line,) = ask(weights, turns, tmp_path, num_beams=3, max_new_tokens=12)
    end = next(letter for letter in line["answer"][2:] if letter.isalpha())
    template = tmp_path / "own.jinja"
    template.write_text("{% for message in messages %}{{ message['content'] }}" + end + "{% endfor %}")
    data = {"template": str(template)}
    subject, loaded, (found,) = ask(weights, turns, tmp_path, data=data, num_beams=3, max_new_tokens=12)
    (wanted,) = generate(loaded, [turns[0]["messages"]], num_beams=3, max_new_tokens=12, chat_template=str(template))
    assert subject.template.stop_text == end
    assert (found["answer"], found["finish"]) == (wanted.text, wanted.finish)
    assert end not in found["answer"]


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "top_k": ({"top_k": 0}, "top_k must be from 1 to .*; got 0"),
    "top_p": ({"top_p": 1.5}, "top_p must be above 0 and at most 1; got 1.5"),
    "min_p": ({"min_p": -0.5}, "min_p must be between 0 and 1; got -0.5"),
    "typical_p": ({"typical_p": 1.0}, "typical_p must be above 0 and below 1; got 1.0"),
    "repetition_penalty": ({"repetition_penalty": 0.0}, "repetition_penalty must be 0.001 or more"),
    "no_repeat_ngram": ({"no_repeat_ngram": 0}, "no_repeat_ngram must be from 1 to"),
    "num_beams": ({"num_beams": 0}, "num_beams must be from 1 to 1,?024; got 0"),
    "two": ({"num_beams": 0, "top_p": 2.0}, "top_p must .*num_beams must"),
    "no number": ({"top_p": "much"}, "top-p: should be a valid number, .*got 'much'"),
    "beams that draw": ({"num_beams": 3, "top_p": 0.9}, "num_beams draws nothing by chance, so top_p would have no"),
    "greedy that draws": ({"temperature": 0, "min_p": 0.1}, "temperature 0 draws nothing by chance, so min_p would"),
    "no beams": ({"length_penalty": 2.0}, "length_penalty belong to beam search; add num_beams of 2 or more"),
    "beams and a stop text": ({"num_beams": 2, "stop": "\n"}, "stop is looked for in one growing text"),
    "lengths": ({"min_new_tokens": 9, "max_new_tokens": 4}, "min_new_tokens 9 is above max_new_tokens 4"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_bad_values_are_refused_on_paper(name: str) -> None:
    options, message = FAULTS[name]
    asked = {"name": "answers", "rows": {"name": "jsonl", "path": "rows.jsonl"}, "metrics": "word-f1"}
    with pytest.raises(ConfigError, match=rf"(?s)evaluations\.answers.*{message}"):
        check_config({"model": "llama", "evaluations": [{**asked, **options}]})


def test_every_rule_is_an_option() -> None:
    """A rule that mt-generate learns, answers has to learn."""
    from dataclasses import fields

    from mt_core.generation import SamplingRules

    assert {each.name for each in fields(SamplingRules)} - {"greedy"} < set(AnswersConfig.model_fields)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Prompts in ``asked.jsonl`` of the folder that the test runs in."""
    prompts = [f"row {number} is" for number in range(6)]
    lines = [json.dumps({"prompt": prompt, "response": "a"}) for prompt in prompts]
    (tmp_path / "asked.jsonl").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    return prompts


def run_of(*evaluations: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": {"name": "llama", "n_layers": 2, "dim": 32, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 64},
        "dataset": {"name": "jsonl", "path": "asked.jsonl"},
        "data": {"eval": 0.2},
        "objective": "sft",
        "train": {"steps": 4, "micro_batch_size": 4, "sequence_len": 32},
        "optimizer": {"name": "adamw", "lr": 0.02},
        "eval": {"every_steps": 2},
        "evaluations": list(evaluations),
    }


@pytest.mark.parametrize("options", [{"num_beams": 3}, {"top_p": 0.9, "seed": 4}], ids=["beams", "drawn"])
def test_a_run_asks_with_the_options_of_the_evaluation(
    options: dict[str, Any], asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[list[str]] = []
    ask = answers.ask

    def record(*given: Any, **more: Any) -> list[Any]:
        found = ask(*given, **more)
        texts.append([each.text for each in found])
        return found

    monkeypatch.setattr(answers, "ask", record)
    rows = {"name": "jsonl", "path": "asked.jsonl"}
    evaluation = {"name": "answers", "rows": rows, "metrics": "word-f1", "max_new_tokens": 8, **options}
    train(run_of(evaluation), output="run")
    wanted: list[Generation] = generate(load_run("run"), asked, max_new_tokens=8, **options)
    assert len(texts) == 2, "asked twice in training"
    assert texts[-1] == [each.text for each in wanted]


def test_a_stop_text_that_would_never_be_found_is_refused_before_the_first_step(
    weights: Path, asked: list[str], tmp_path: Path
) -> None:
    rows = {"name": "jsonl", "path": "asked.jsonl"}
    evaluation = {"name": "answers", "rows": rows, "metrics": "word-f1", "stop": ["</s> and more"]}
    run = {**run_of(evaluation), "model": {"name": "llama", "weights": str(weights)}}
    with pytest.raises(
        UsageError, match=r"^evaluations\.answers: stop text '</s> and more' has the special token '</s>'"
    ):
        train(run, output="run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_the_command_line_has_the_options(asked: list[str]) -> None:
    train(run_of(), output="run")
    words = "--evaluations answers --evaluations.answers.metrics word-f1 --evaluations.answers.top-p 0.9 --output none"
    rows = ["--evaluations.answers.rows.name", "jsonl", "--evaluations.answers.rows.path", "asked.jsonl"]
    assert evaluate(["--run", "run", *words.split(), *rows, "--evaluations.answers.limit", "2"]) == 0
