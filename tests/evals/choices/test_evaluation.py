"""Evaluations of multiple choice as a run builds them: what is asked, what is counted, and which answer is right by which measure."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from llama_subject import FILES, LlamaSubject, open_evaluation, write_llama
from scripted_subject import CharacterTokenizer, ScriptedSubject

from mt_core import DataError, UsageError, WeightsError

HEAD = "The following are multiple choice questions (with answers) about marketing.\n\n"
SHOT = "The four Ps are product, price, place and\nA. people\nB. promotion\nC. profit\nD. process\nAnswer: B\n\n"
LAST = "Which is a channel of distribution?\nA. A retailer\nB. A slogan\nC. A logo\nD. A patent\nAnswer:"

Write = Callable[..., dict[str, Any]]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(*rows: dict[str, Any]) -> dict[str, Any]:
        """Options of a dataset with these rows."""
        (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        return {"name": "jsonl", "path": str(tmp_path / "own.jsonl")}

    return make


def mmlu(**options: Any) -> Any:
    return open_evaluation("mmlu", path=str(FILES / "mmlu"), **options)


def test_prompts_are_those_of_the_paper_but_for_one_space() -> None:
    subject = ScriptedSubject()
    mmlu(subjects=("marketing",), shots=1).run(subject)
    assert subject.asked[4:] == [(HEAD + SHOT + LAST, f" {letter}") for letter in "ABCD"]
    original = ScriptedSubject()
    mmlu(subjects=("marketing",), shots=1, prompt="original").run(original)
    assert original.asked[4][0] == (HEAD + SHOT + LAST).replace("about ", "about  ")


def test_choices_share_their_context_to_the_id_and_questions_of_a_subject_their_shots() -> None:
    subject = ScriptedSubject()
    mmlu(subjects=("philosophy",), shots=5).run(subject)
    contexts = [subject.requests[place : place + 4] for place in range(0, len(subject.requests), 4)]
    assert all(len({tuple(each.context) for each in own}) == 1 for own in contexts)
    prefix = subject.asked[0][0].partition("Kant called")[0]
    assert len(prefix) > 400
    assert all(context.startswith(prefix) for context, _ in subject.asked)


@pytest.mark.parametrize("begins", [True, False])
def test_a_text_begins_as_the_tokenizer_begins_texts(begins: bool) -> None:
    subject = ScriptedSubject(tokenizer=CharacterTokenizer(begins=begins))
    mmlu(subjects=("marketing",)).run(subject)
    begin = list(subject.requests[0].context[:2])
    assert begin == ([0, ord("T")] if begins else [ord("T"), ord("h")])


def test_a_limit_subjects_and_the_split_choose_questions() -> None:
    found = mmlu(limit=1, subjects=("anatomy", "marketing")).run(ScriptedSubject())
    assert len(list(found.rows)) == 2
    assert set(found.groups) == {"subject/anatomy", "subject/marketing", "category/stem", "category/other"}
    with pytest.raises(DataError, match=r"no rows of botany; there are abstract_algebra, anatomy"):
        mmlu(subjects=("botany",))
    with pytest.raises(DataError, match=r"mmlu/val does not exist"):
        mmlu(split="val")
    with pytest.raises(DataError, match=r"nowhere/test does not exist"):
        open_evaluation("mmlu", path="nowhere")


def test_shots_that_do_not_fit_drop_from_the_front_and_are_counted() -> None:
    whole = ScriptedSubject()
    mmlu(subjects=("marketing",), shots=5).run(whole)
    longest = max(len(each.context) for each in whole.requests)
    short = ScriptedSubject(max_seq_len=longest - 1)
    found = mmlu(subjects=("marketing",), shots=5).run(short)
    assert found.figures["dropped_shots"] == 1
    assert any("1 shots were dropped" in note for note in found.notes)
    cut = [context for context, _ in short.asked if SHOT not in context]
    assert len(cut) == 4
    assert cut[0].startswith(HEAD + "A brand that stands"), "the description stays, and the first shot goes"
    assert [row["shots"] for row in found.rows] == [4, 5] or [row["shots"] for row in found.rows] == [5, 4]


def test_a_question_that_does_not_fit_alone_is_an_error_or_counted() -> None:
    tight = ScriptedSubject(max_seq_len=len(HEAD + LAST) + 2)
    with pytest.raises(
        UsageError, match=r"marketing_test\.csv:1: the question alone has \d+ tokens, and the context of"
    ):
        mmlu(subjects=("marketing",), shots=2).run(tight)
    with pytest.raises(UsageError, match=r"marketing_test\.csv:1: the question alone has \d+ tokens"):
        mmlu(subjects=("marketing",), shots=2).check(tight)
    assert tight.asked == [], "before the first forward"
    found = mmlu(subjects=("marketing",), shots=2, too_long="skip").run(tight)
    assert (len(list(found.rows)), found.figures["too_long"], found.figures["dropped_shots"]) == (1, 1, 2)
    assert list(found.notes)[:3] == [
        "1 questions",
        "2 shots were dropped from the front of prompts that are longer than the context",
        "1 questions were left out: they are longer than the context",
    ]
    with pytest.raises(DataError, match=r"all 2 questions are longer than the context"):
        mmlu(subjects=("marketing",), too_long="skip").run(ScriptedSubject(max_seq_len=5))


def test_letters_that_share_a_token_are_refused_before_the_first_forward() -> None:
    subject = ScriptedSubject(tokenizer=CharacterTokenizer(same="BD"))
    with pytest.raises(UsageError, match=r"' B' and ' D' are the same tokens .* Ask for texts"):
        mmlu(subjects=("marketing",)).run(subject)
    assert subject.asked == []


def test_a_choice_without_a_token_of_its_own_is_named(write: Write) -> None:
    class Joins(CharacterTokenizer):
        def encode(self, text: str) -> list[int]:
            return super().encode(text.replace("?x", "!"))

    rows = write({"prompt": "Which?", "choices": ["x", "yy"], "answer": 0})
    evaluation = open_evaluation("multiple-choice", rows=rows, delimiter="")
    with pytest.raises(DataError, match=r"own\.jsonl:1: 'x' has no token of its own behind the prompt"):
        evaluation.run(ScriptedSubject(tokenizer=Joins()))


def test_a_choice_without_a_text_is_named(write: Write) -> None:
    rows = write({"prompt": "Which?", "choices": ["x", "y"], "word": "", "answer": 0})
    evaluation = open_evaluation("multiple-choice", rows=rows, prompt="{prompt} {choice}", target="{word}")
    with pytest.raises(
        DataError, match=r"own\.jsonl:1: the target of choice 1 is empty, so that there is nothing to score"
    ):
        evaluation.run(ScriptedSubject())


@pytest.mark.parametrize("broken", [" a", " b", "Answer: b"])
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_score_that_is_no_number_is_never_the_likeliest(write: Write, broken: str, value: float) -> None:
    rows = write({"prompt": "Q", "choices": ["a", "b"], "answer": 0})
    evaluation = open_evaluation("multiple-choice", rows=rows, unconditional="Answer:")
    subject = ScriptedSubject(lambda context, target: value if broken in (target, context + target) else -1.0)
    says = rf"own\.jsonl:1: the model's log-probability of '{broken[-2:]}' is {value}, .* broken, or overflow .* \(--dtype fp32"
    with pytest.raises(WeightsError, match=says):
        evaluation.run(subject)


def test_measures_divide_by_characters_and_bytes_and_take_the_choice_alone_off(write: Write) -> None:
    rows = write({"prompt": "Q", "choices": ["ab", "éééé", "abcdefgh"], "answer": 1})
    values = {" ab": -4.0, " éééé": -6.0, " abcdefgh": -7.9}
    base = {" ab": -1.0, " éééé": -5.0, " abcdefgh": -3.0}
    subject = ScriptedSubject(lambda context, target: (base if context == "Answer:" else values)[target])
    evaluation = open_evaluation("multiple-choice", rows=rows, unconditional="Answer:")
    (row,) = evaluation.run(subject).rows
    assert row["predicted"] == 0
    assert (row["accuracy"], row["accuracy_norm"], row["accuracy_bytes"], row["accuracy_pmi"]) == (0.0, 0.0, 1.0, 1.0)
    values |= {" éééé": -3.9}
    (row,) = evaluation.run(subject).rows
    assert (row["accuracy"], row["accuracy_norm"], row["accuracy_bytes"]) == (1.0, 1.0, 1.0)
    values |= {" éééé": -4.5, " abcdefgh": -4.4}
    (row,) = evaluation.run(subject).rows
    assert (row["accuracy"], row["accuracy_norm"], row["accuracy_bytes"]) == (0.0, 0.0, 0.0)
    values |= {" éééé": -4.2, " abcdefgh": -8.8}
    (row,) = evaluation.run(subject).rows
    assert (row["accuracy"], row["accuracy_norm"], row["accuracy_bytes"]) == (0.0, 1.0, 1.0)


def test_an_empty_unconditional_text_is_what_begins_texts(write: Write) -> None:
    rows = write({"prompt": "Q", "choices": ["a", "b"], "answer": 1})
    subject = ScriptedSubject(tokenizer=CharacterTokenizer(begins=False))
    open_evaluation("multiple-choice", rows=rows, unconditional="").run(subject)
    assert [list(each.context) for each in subject.requests[2:]] == [[0], [0]]


def test_equal_scores_go_to_the_first_choice_and_are_counted(write: Write) -> None:
    rows = write(*({"prompt": f"Q{n}", "choices": ["a", "b"], "answer": n % 2} for n in range(4)))
    found = open_evaluation("multiple-choice", rows=rows).run(ScriptedSubject(lambda context, target: -2.0))
    assert found.figures["accuracy"] == 0.5
    assert found.figures["accuracy_stderr"] == pytest.approx(math.sqrt(1 / 3) / 2)
    assert list(found.notes) == [
        "4 questions",
        "4 questions have two best choices within 0.05 nats: in bf16 they may turn",
    ]
    assert found.groups == {}
    assert "accuracy_macro" not in found.figures


def test_several_right_answers_give_their_share_of_the_mass() -> None:
    evaluation = open_evaluation("truthfulqa", path=str(FILES / "mc_task.json"), task="mc2")
    found = evaluation.run(ScriptedSubject(lambda context, target: math.log(len(target))))
    shares = []
    for row in json.loads((FILES / "mc_task.json").read_text()):
        lengths = {text: len(text) + 1 for text in row["mc2_targets"]}
        right = sum(lengths[text] for text, label in row["mc2_targets"].items() if label)
        shares.append(right / sum(lengths.values()))
    assert [row["mass"] for row in found.rows] == pytest.approx(shares)
    assert found.figures["mass"] == pytest.approx(sum(shares) / 2)


@pytest.mark.parametrize(
    ("name", "path", "context", "target"),
    [
        (
            "reclor",
            "reclor_val.json",
            "All roses in the park are red. This rose is white.\n\nWhich follows?\nA. It is",
            " A",
        ),
        (
            "c3",
            "c3-d-dev.json",
            "女：你明天去哪儿？\n男：我去图书馆。\n\n男的明天去哪儿？\nA. 学校\nB. 图书馆\nC. 商店\n答案：",
            " A",
        ),
        ("winogrande", "winogrande.jsonl", "The cup did not fit into the bag because the cup", " was too small."),
    ],
)
def test_a_set_is_asked_in_its_own_words(name: str, path: str, context: str, target: str) -> None:
    subject = ScriptedSubject()
    open_evaluation(name, path=str(FILES / path)).run(subject)
    assert subject.asked[0][0].startswith(context)
    assert subject.asked[0][1] == target


def test_shots_of_a_set_come_from_another_split() -> None:
    subject = ScriptedSubject()
    open_evaluation("ceval", path=str(FILES / "ceval/val"), shots=1, shots_path=str(FILES / "ceval/dev"), limit=1).run(
        subject
    )
    assert subject.asked[-1][0].startswith(
        "以下是中国关于逻辑学的单项选择题，请选出其中的正确答案。\n\n所有的猫都是动物，所以\nA. 猫是动物\n"
    )
    assert "答案： A\n\n如果下雨" in subject.asked[-1][0]


def test_rows_of_any_dataset_are_asked_in_words_of_their_own(write: Write) -> None:
    rows = write({"stem": "Sky?", "choices": ["red", "blue"], "answer": "B", "topic": "colours"})
    subject = ScriptedSubject()
    words = {"description": "On {topic}. ", "prompt": "{stem}\n{choices}\n", "target": "{letter}", "delimiter": "("}
    open_evaluation("multiple-choice", rows=rows, **words).run(subject)
    assert subject.asked == [("On colours. Sky?\nA. red\nB. blue", f"\n({letter}") for letter in "AB"], (
        "spaces at the end of a context belong to the target"
    )
    with pytest.raises(
        DataError, match=r"own\.jsonl:1: \{prompt\} of the prompt is no text of this row; there are .*stem"
    ):
        open_evaluation("multiple-choice", rows=rows)
    with pytest.raises(DataError, match=r"2 choices in a set of 4"):
        open_evaluation("multiple-choice", rows=rows, choices=4)


def test_a_dataset_with_the_name_of_a_set_is_asked_as_that_set() -> None:
    rows = {"name": "arc", "path": str(FILES / "ARC-Easy-Test.jsonl")}
    own, named, lettered = ScriptedSubject(), ScriptedSubject(), ScriptedSubject()
    open_evaluation("multiple-choice", rows=rows).run(own)
    open_evaluation("arc", path=rows["path"]).run(named)
    assert own.asked == named.asked
    open_evaluation("multiple-choice", rows=rows, form="reclor", prompt="{question}\n{choices}\nAnswer:")
    with pytest.raises(DataError, match=r"3 choices in a set of 4"):
        open_evaluation("multiple-choice", rows=rows, form="mmlu").run(lettered)


def test_bad_options_say_what_to_write() -> None:
    rows = {"name": "jsonl", "path": "x"}
    for options, message in {
        "rows": ({"rows": {"form": "x"}}, r"rows has no name of a dataset, and no path; write \{path: rows"),
        "shots": ({"rows": rows, "shot_rows": {}, "shots": 1}, r"shot-rows has no name of a dataset"),
        "form": ({"rows": rows, "form": "mmul"}, r"form is 'mmul'; there are mmlu, "),
    }.values():
        with pytest.raises(ValueError, match=message):
            open_evaluation("multiple-choice", **options)
    with pytest.raises(ValueError, match=r"is a file of QLoRA, whose prompts are written out with their shots"):
        open_evaluation("mmlu", path="five_shot_mmlu_test.json", shots=5)


def test_a_row_of_a_set_with_five_columns_too_many_is_named(tmp_path: Path) -> None:
    shutil.copytree(FILES / "mmlu", tmp_path / "mmlu")
    with (tmp_path / "mmlu/test/anatomy_test.csv").open("a") as file:
        file.write("Which?,a,b,c,d,e,A\n")
    with pytest.raises(DataError, match=r"anatomy_test\.csv:5: 7 fields, and there are 6 columns"):
        open_evaluation("mmlu", path=str(tmp_path / "mmlu"))


def test_the_same_answers_twice(tmp_path: Path) -> None:
    subject = LlamaSubject(write_llama(tmp_path, begins=True))
    evaluation = mmlu(shots=2, limit=1)
    one, other = evaluation.run(subject), evaluation.run(subject)
    assert (one.figures, one.groups, list(one.rows)) == (other.figures, other.groups, list(other.rows))


def test_texts_are_encoded_once_for_a_tokenizer_and_again_for_another_context() -> None:
    class Counts(CharacterTokenizer):
        calls = 0

        def encode(self, text: str) -> list[int]:
            self.calls += 1
            return super().encode(text)

    evaluation, tokenizer = mmlu(shots=5), Counts()
    whole = ScriptedSubject(tokenizer=tokenizer)
    first = evaluation.run(whole)
    calls = tokenizer.calls
    assert evaluation.run(ScriptedSubject(tokenizer=tokenizer)).figures == first.figures
    assert tokenizer.calls == calls
    short = evaluation.run(
        ScriptedSubject(tokenizer=tokenizer, max_seq_len=max(len(each.context) for each in whole.requests) - 1)
    )
    assert tokenizer.calls > calls
    assert short.figures["dropped_shots"] > 0
    other = ScriptedSubject(tokenizer=CharacterTokenizer(begins=False))
    evaluation.run(other)
    assert other.requests[0].context[0] != 0
