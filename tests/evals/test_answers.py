"""``answers``: rows of any shape, metrics by name, references from the row, and every fault before anything is written."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness_worlds import write_llama
from plain_subject import PlainSubject, ScriptedSubject
from test_gsm8k import Rows

from mt_core import ConfigError, DataError, MtConfig, UsageError
from mt_core.evaluation import Findings
from mt_core.generation import Generation
from mt_plugin_evals.generated.answers import Answers
from mt_plugin_evals.generated.config import AnswersConfig
from mt_plugin_evals.metrics.number import Number
from mt_plugin_evals.metrics.squad import ExactMatch, WordF1
from mt_train import check_config, load_adapters

METRICS = {"exact-match": ExactMatch(MtConfig()), "word-f1": WordF1(MtConfig())}


def run(subject: Any, rows: list[dict[str, Any]], metrics: dict[str, Any] | None = None, **options: Any) -> Findings:
    metrics = metrics or METRICS
    config = AnswersConfig(rows={"name": "x"}, metrics=tuple(metrics), **options)
    return Answers(config, Rows(rows), metrics).run(subject)


def check(subject: Any, rows: list[dict[str, Any]], metrics: dict[str, Any] | None = None) -> None:
    metrics = metrics or METRICS
    Answers(AnswersConfig(rows={"name": "x"}, metrics=tuple(metrics)), Rows(rows), metrics).check(subject)


PAIRS = [{"prompt": "Say a.", "response": "the A"}, {"prompt": "Say b c.", "response": "b c"}]


def test_answers_are_compared_with_those_of_the_rows() -> None:
    subject = ScriptedSubject(lambda prompt, number: ["a!", "b d"][number])
    found = run(subject, PAIRS)
    assert (found.figures["exact_match"], found.figures["word_f1"]) == (0.5, 0.75)
    assert found.figures["exact_match_stderr"] == pytest.approx(0.5)
    assert (found.figures["empty"], found.figures["unfinished"]) == (0, 0)
    assert found.signatures["word_f1"].startswith("SQuAD 2.0")
    first, second = found.rows
    assert (first["id"], first["answer"], first["references"], first["exact_match"]) == (
        "rows.jsonl:1",
        "a!",
        ["the A"],
        1,
    )
    assert second["asked"] == [{"role": "user", "content": "Say b c."}]
    assert subject.prompts == ["Say a.", "Say b c."]
    (config,) = subject.configs
    assert (config.rules.greedy, config.max_new_tokens, config.stop) == (True, 256, ())


SHAPES: dict[str, tuple[dict[str, Any], str]] = {
    "prompt and references": ({"prompt": "Say a.", "references": ["x", "one"]}, "Say a."),
    "one reference": ({"prompt": "Say a.", "references": "one"}, "Say a."),
    "references win over the answer": ({"prompt": "Say a.", "response": "z", "references": ["one"]}, "Say a."),
    "another field": ({"prompt": "Say a.", "gold": "one"}, "Say a."),
    "instruction": ({"instruction": "Say", "input": "a.", "output": "one"}, "Say\na."),
    "instruction and references": ({"instruction": "Say", "input": "a.", "references": ["one"]}, "Say\na."),
    "prompt of turns": ({"prompt": [{"role": "user", "content": "Say a."}], "references": ["one"]}, "Say a."),
}


@pytest.mark.parametrize("name", SHAPES)
def test_rows_of_any_shape_are_asked(name: str) -> None:
    row, prompt = SHAPES[name]
    subject = ScriptedSubject(lambda prompt, number: "one")
    field = {"references": "gold"} if "gold" in row else {}
    raw = isinstance(row.get("prompt"), str)
    if not raw:
        subject.template = _Plainly(subject)
    assert run(subject, [row], **field).figures["exact_match"] == 1
    assert subject.prompts == [prompt]


class _Plainly:
    """A template that writes turns one behind the other."""

    stop_ids: tuple[int, ...] = ()
    stop_text = None

    def __init__(self, subject: Any) -> None:
        self._tokenizer = subject.tokenizer

    def prompt(self, messages: Any) -> list[int]:
        return self._tokenizer.encode("|".join(message["content"] for message in messages))


CHAT = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Ho"},
    {"role": "user", "content": "Bye"},
]


@pytest.mark.needs("mt-plugin-llama")
def test_a_conversation_is_asked_up_to_its_last_answer_by_the_runs_template(tmp_path: Path) -> None:
    write_llama(tmp_path)
    loaded, _ = load_adapters({}, model="llama", weights=tmp_path)
    subject = PlainSubject(loaded)
    end, said = loaded.tokenizer.encode("<|end|>")[0], loaded.tokenizer.encode("So long")
    subject.generate = lambda prompts, config: [  # type: ignore[method-assign]
        subject.prompts.append(prompt) or Generation("So long and more", (*said, end, *said), "length")
        for prompt in prompts
    ]
    answered = {"messages": [*CHAT, {"role": "assistant", "content": "So long"}]}
    found = run(
        subject, [answered, {"messages": CHAT, "references": ["So long"]}, {"messages": CHAT[:1], "references": "no"}]
    )
    assert subject.prompts == [*[subject.template.prompt(CHAT)] * 2, subject.template.prompt(CHAT[:1])]
    assert [row["exact_match"] for row in found.rows] == [1, 1, 0]
    assert found.figures["unfinished"] == 0


@pytest.mark.needs("mt-plugin-llama")
def test_a_plain_prompt_is_what_the_run_trains_on(tmp_path: Path) -> None:
    write_llama(tmp_path)
    loaded, _ = load_adapters({}, model="llama", weights=tmp_path)
    subject = PlainSubject(loaded)
    run(subject, PAIRS, max_new_tokens=2)
    tokenizer = loaded.tokenizer
    assert subject.prompts == [[tokenizer.bos_id, *tokenizer.encode(row["prompt"])] for row in PAIRS]


def test_answers_that_are_empty_cut_or_never_asked_are_counted() -> None:
    rows = [*PAIRS, {"prompt": "long " * 40, "response": "x"}]
    subject = ScriptedSubject(lambda prompt, number: [" ", "b c and more"][number], max_seq_len=60)
    found = run(subject, rows, max_new_tokens=3)
    assert (found.figures["empty"], found.figures["unfinished"]) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert [row["finish"] for row in found.rows] == ["eos", "length", "too_long"]
    assert found.notes == ["1 prompts fill the model's context (60 tokens) and count as empty answers"]


def test_figures_of_several_metrics_keep_their_names_apart() -> None:
    subject = ScriptedSubject(lambda prompt, number: "#### 7")
    rows = [{"prompt": "5 + 2?", "response": "#### 7"}]
    found = run(subject, rows, {"number": Number(MtConfig()), **METRICS})
    assert {"number", "number_strict", "number_flexible", "number_unread", "exact_match", "word_f1"} < set(
        found.figures
    )


def test_sampling_is_by_temperature_and_seed() -> None:
    subject = ScriptedSubject(lambda prompt, number: "a")
    run(subject, PAIRS, temperature=0.7, seed=5, stop="\n", limit=1)
    (config,) = subject.configs
    assert (config.rules.greedy, config.rules.temperature, config.seed, config.stop) == (False, 0.7, 5, ("\n",))
    assert len(subject.prompts) == 1


NO_REFERENCE = r"rows.jsonl:1: the row has neither an answer of its own nor a field 'references'"
FAULTS: dict[str, tuple[list[dict[str, Any]], str]] = {
    "none": ([], "the dataset of the evaluation has no rows"),
    "no answer": ([{"messages": CHAT}], NO_REFERENCE),
    "a prompt alone": ([{"prompt": "Hi", "gold": "Ho"}], rf"{NO_REFERENCE}; fields found: 'prompt', 'gold'"),
    "no text": (
        [*PAIRS, {"prompt": "Hi", "references": []}],
        r"rows.jsonl:3: field 'references' must be a text or a list",
    ),
    "no question": ([{"messages": [{"role": "assistant", "content": "Hi"}]}], "rows.jsonl:1: .* nothing that is asked"),
    "too long": ([{"prompt": "long " * 900, "response": "x"}], r"every prompt is as long as .*context \(4096 tokens\)"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_rows_are_told_before_anything_is_written_and_in_a_run_before_the_first_step(name: str) -> None:
    rows, message = FAULTS[name]
    subject = ScriptedSubject(lambda prompt, number: "a")
    with pytest.raises(DataError, match=message):
        run(subject, rows)
    with pytest.raises(DataError, match=message):
        check(subject, rows)
    assert not subject.prompts


def test_a_reference_that_a_metric_cannot_read_is_told_before_the_first_step_of_a_run() -> None:
    subject = ScriptedSubject(lambda prompt, number: "a")
    with pytest.raises(DataError, match=r"rows\.jsonl:2: the reference 'b c' has no number"):
        check(subject, [{"prompt": "1 + 1?", "response": "2"}, PAIRS[1]], {"number": Number(MtConfig())})
    check(subject, PAIRS)
    assert not subject.prompts


def test_a_layout_that_cannot_write_is_refused() -> None:
    subject = ScriptedSubject(lambda prompt, number: "a")
    subject.texts = False
    with pytest.raises(UsageError, match="answers lets the model write, which it cannot on this layout"):
        run(subject, PAIRS)


# ----------------------------------------------------------------------------------------------------- in a run's config


def config(tmp_path: Path, **options: Any) -> dict[str, Any]:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(map(json.dumps, PAIRS)))
    answers = {
        "name": "answers",
        "rows": {"name": "jsonl", "path": str(rows)},
        "metrics": "exact-match,word-f1",
        **options,
    }
    return {"dataset": {"name": "jsonl", "path": str(rows)}, "model": "llama", "evaluations": [answers]}


@pytest.mark.needs("mt-plugin-llama")
def test_a_run_finds_checks_and_builds_dataset_and_metrics(tmp_path: Path) -> None:
    from mt_train.assemble.discovery import discover_plugins
    from mt_train.assemble.parts import Parts
    from mt_train.plugins.resolve import resolve

    built = Parts.of(resolve(config(tmp_path), discover_plugins())).evaluations()["answers"]
    found = built.run(ScriptedSubject(lambda prompt, number: ["a!", "b d"][number]))
    assert found.figures["word_f1"] == 0.75


@pytest.mark.needs("mt-plugin-llama")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"metrics": "exact-match,rogue"},
            r"evaluations.*metrics.rogue: no metric named 'rogue'. Did you mean 'rouge'",
        ),
        ({"metrics": "rouge,rouge"}, "metrics name rouge twice"),
        ({"metrics": [{"name": "rouge", "tokeniser": "characters"}]}, "tokeniser"),
        ({"rows": {"name": "jsonl", "path": "nowhere", "colour": 1}}, "colour"),
        ({"rows": {"name": "json1"}}, "no dataset named 'json1'"),
        ({"metrics": ""}, "at least 1 item"),
    ],
)
def test_wrong_options_are_refused_on_paper(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        check_config(config(tmp_path, **options))
