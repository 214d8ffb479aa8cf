"""Items of the classic sets, read from their rows. Each function reads the shapes in which a set was published."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mt_core import Row

from .published import LETTERS, Item, text_of
from .subjects import CEVAL, CMMLU

_TURN = re.compile(r"\n\n(Human|Assistant):")
_VERSION = re.compile(r"^[0-9a-f]{16}-")
"""Begin of the name of a copy (``RemoteFile.place``)."""

_SUBSET = re.compile(r":([^:/\[]+)\[[^\]]*\]$")
"""Subset in the id of a row of the Hub (``HubRows``)."""

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}


def fields(**names: str) -> Callable[[Row], list[Item]]:
    """Texts under other names: ours = theirs; ``theirs?`` may be missing or null, and is then empty."""

    def items(row: Row) -> list[Item]:
        return [{ours: _text(row, theirs) for ours, theirs in names.items()}]

    return items


def _text(row: Row, name: str) -> str:
    if name.endswith("?"):
        return "" if row.get(name[:-1]) is None else text_of(row, name[:-1])
    return text_of(row, name)


def chip2(row: Row) -> list[Item]:
    """``{"text": "<human>: …\\n<bot>: …"}`` (https://github.com/LAION-AI/Open-Instruction-Generalist)."""
    human, bot, response = text_of(row, "text").partition("\n<bot>: ")
    if not bot or not human.startswith("<human>: ") or "\n<human>: " in response:
        raise ValueError("its text is not one '<human>: …' and one '<bot>: …'")
    return [{"prompt": human.removeprefix("<human>: "), "response": response}]


def hh(row: Row) -> list[Item]:
    """``{"chosen", "rejected"}``: two dialogues that differ in the last answer (https://github.com/anthropics/hh-rlhf)."""
    chosen, rejected = _turns(text_of(row, "chosen")), _turns(text_of(row, "rejected"))
    if chosen[:-1] != rejected[:-1]:
        raise ValueError("chosen and rejected differ before their last answer")
    if len(chosen) % 2 or any(role != ("Human", "Assistant")[place % 2] for place, (role, _) in enumerate(chosen)):
        raise ValueError("its turns are not Human, Assistant, Human, Assistant …")
    texts = [text for _, text in chosen]
    history = [[texts[place], texts[place + 1]] for place in range(0, len(texts) - 2, 2)]
    answers = {"response": texts[-1], "chosen": texts[-1], "rejected": rejected[-1][1]}
    return [{**({"history": history} if history else {}), "prompt": texts[-2], **answers}]


def _turns(text: str) -> list[tuple[str, str]]:
    before, *parts = _TURN.split(text)
    if before.strip() or not parts:
        raise ValueError("a dialogue has to begin with 'Human:' after two line ends")
    return [(role, content.strip()) for role, content in zip(parts[::2], parts[1::2], strict=True)]


def ultrafeedback(row: Row) -> list[Item]:
    """``{"chosen": [{"role", "content"}], "rejected": […], "score_chosen", "score_rejected"}``: both sides begin with the prompt."""
    sides = {name: _messages_of(row[name]) for name in ("chosen", "rejected")}
    *prompt, chosen = sides["chosen"]
    *other, rejected = sides["rejected"]
    if prompt != other or {chosen["role"], rejected["role"]} != {"assistant"}:
        raise ValueError("chosen and rejected are not one prompt and an answer each")
    scores = {name: row[name] for name in ("score_chosen", "score_rejected") if row.get(name) is not None}
    return [{"prompt": prompt, "chosen": [chosen], "rejected": [rejected], **scores}]


def _messages_of(turns: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    return [{"role": _ROLES[each["role"]], "content": text_of(each, "content")} for each in turns]


def safe_rlhf(row: Row) -> list[Item]:
    """``{"prompt", "response_0", "response_1", "better_response_id"}`` (https://github.com/PKU-Alignment/safe-rlhf)."""
    return [_pair_of(row, "prompt", ("response_0", "response_1"), row["better_response_id"])]


def shp(row: Row) -> list[Item]:
    """``{"history", "human_ref_A", "human_ref_B", "labels"}``; a label of 1 prefers A (https://huggingface.co/datasets/stanfordnlp/SHP)."""
    return [_pair_of(row, "history", ("human_ref_B", "human_ref_A"), row["labels"])]


def _pair_of(row: Row, prompt: str, names: tuple[str, str], better: Any) -> Item:
    """A pair out of two columns; ``better`` is the place of the better one."""
    if better not in (0, 1):
        raise ValueError(f"{better!r} says of neither answer that it is the better one; it is 0 or 1")
    chosen, rejected = text_of(row, names[int(better)]), text_of(row, names[1 - int(better)])
    return {"prompt": text_of(row, prompt), "chosen": chosen, "rejected": rejected}


def unnatural(row: Row) -> list[Item]:
    """``{"instruction", "instances": [{"instruction_with_input", "input", "constraints", "output"}], "reformulations"?}``.

    All instances (https://github.com/orhonovich/unnatural-instructions); reformulations are further rows with their input.
    """
    given = [*_list_objects(row["instances"]), *_list_objects(row.get("reformulations") or [])]
    return [
        {"prompt": text_of({**each, "id": row["id"]}, "instruction_with_input"), "response": each["output"]}
        for each in given
    ]


def _list_objects(value: Any) -> list[Mapping[str, Any]]:
    """A list of objects, also where it is stored as an object of lists."""
    if isinstance(value, Mapping):
        return [dict(zip(value, each, strict=True)) for each in zip(*value.values(), strict=True)]
    return list(value)


def messages(row: Row) -> list[Item]:
    """``{"messages": [{"role", "content"}]}``, ShareGPT's ``{"conversations": [{"from", "value"}]}``, or instruction and output."""
    if "conversations" in row:
        turns = [{"role": _ROLES[each["from"]], "content": each["value"]} for each in row["conversations"]]
    elif "messages" in row:
        turns = [{"role": _ROLES[each["role"]], "content": each["content"]} for each in row["messages"]]
    else:
        texts = {"user": text_of(row, "instruction"), "assistant": text_of(row, "output")}
        turns = [{"role": role, "content": text} for role, text in texts.items()]
    if not turns or not all(isinstance(turn["content"], str) for turn in turns):
        raise ValueError("a turn is no text, or there is none")
    return [{"messages": turns}]


def c3(row: Row) -> list[Item]:
    """``[[documents], [{"question", "choice", "answer"}], id]`` (https://dataset.org/c3), or the Hub's columns of these."""
    documents, questions = row["value"][:2] if "value" in row else (row["documents"], row["questions"])
    context = "\n".join(documents)
    return [
        choice({"context": context, "question": each["question"]}, each["choice"], each["choice"].index(each["answer"]))
        for each in _list_objects(questions)
    ]


def reclor(row: Row) -> list[Item]:
    """``{"context", "question", "answers": […], "label"}`` (https://whyu.me/reclor)."""
    return [choice({name: row[name] for name in ("context", "question")}, row["answers"], row["label"])]


def logiqa(row: Row) -> list[Item]:
    """Eight lines of text, the first blank (https://github.com/lgw863/LogiQA-dataset), version 2's JSON, or the Hub's columns.

    The lines are the letter of the answer, the context, the question, and four options that begin with ``A.`` to ``D.``.
    """
    if "options" in row:
        old = "correct_option" in row
        context, question, answer = ("context", "query", "correct_option") if old else ("text", "question", "answer")
        return [choice({"context": row[context], "question": row[question]}, row["options"], row[answer])]
    letter, context, question, *options = text_of(row, "text").splitlines()
    if len(options) != 4 or any(
        not option.startswith(f"{name}.") for name, option in zip("ABCD", options, strict=True)
    ):
        raise ValueError("not a letter, a context, a question and four options 'A.' to 'D.'")
    texts = [option[2:].strip() for option in options]
    return [choice({"context": context.strip(), "question": question.strip()}, texts, letter.strip().upper())]


def mmlu(row: Row) -> list[Item]:
    """The columns question, A, B, C, D, answer of CSV files (https://github.com/hendrycks/test), or the Hub's."""
    choices = row["choices"] if "choices" in row else [row[letter] for letter in "ABCD"]
    subject = row["subject"] if "choices" in row else _subject(row)
    said = {"subject": subject.replace("_", " "), "question": row["question"]}
    return [choice(said, choices, row["answer"], group=subject)]


def mmlu_prompts(row: Row) -> list[Item]:
    """``{"subject"?, "input", "output"}``: QLoRA's files, whose ``input`` is a whole prompt, with its shots where it has some.

    Those without shots have no subject (https://github.com/artidoro/qlora/tree/main/data/mmlu).
    """
    subject = row.get("subject") or ""
    return [choice({"subject": subject, "input": text_of(row, "input")}, "ABCD", row["output"], group=subject)]


def ceval(row: Row) -> list[Item]:
    """The columns id, question, A, B, C, D, answer of CSV files (https://github.com/hkust-nlp/ceval); ``test`` has no answers."""
    return _chinese(row, "question", "answer", CEVAL)


def cmmlu(row: Row) -> list[Item]:
    """The columns Question, A, B, C, D, Answer of CSV files (https://github.com/haonan-li/CMMLU)."""
    return _chinese(row, "Question", "Answer", CMMLU)


def _chinese(row: Row, question: str, answer: str, names: Mapping[str, str]) -> list[Item]:
    subject = _subject(row)
    said = {"subject": names.get(subject, subject), "question": row[question]}
    return [choice(said, [row[letter] for letter in "ABCD"], row[answer], group=subject)]


def _subject(row: Row) -> str:
    """The subject that a CSV file, a copy of one behind an address, or a subset on the Hub is named after; empty for other rows."""
    place = str(row["id"]).rpartition(":")[0]
    if subset := _SUBSET.search(place):
        return subset[1]
    file = _VERSION.sub("", Path(place).name)
    name, csv, _ = re.sub(r"(_(test|val|dev))?(\.csv)", r"\3", file).partition(".csv")
    return name if csv else ""


def science(row: Row) -> list[Item]:
    """``{"question": {"stem", "choices": [{"text", "label"}]}, "answerKey"}`` of ARC and OpenBookQA, or the Hub's columns."""
    inner = row["question"] if isinstance(row.get("question"), Mapping) else row
    question = inner["stem"] if "stem" in inner else inner.get("question_stem", inner.get("question"))
    choices = _list_objects(inner["choices"])
    labels = [each["label"] for each in choices]
    answer = row["answerKey"].strip()
    if answer not in labels:
        raise ValueError(f"its answer {answer!r} is none of its {len(labels)} choices; the test split may have none")
    return [choice({"question": question}, [each["text"] for each in choices], labels.index(answer))]


def hellaswag(row: Row) -> list[Item]:
    """``{"activity_label", "ctx_a", "ctx_b", "endings", "label"}`` (https://github.com/rowanz/hellaswag).

    Marks of WikiHow's pages go, and the second part of the context begins with a capital, as everybody scores it.
    """
    context = _without_marks(f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}")
    endings = [_without_marks(ending) for ending in row["endings"]]
    return [choice({"activity": row["activity_label"], "context": context}, endings, int(row["label"]))]


def _without_marks(text: str) -> str:
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def winogrande(row: Row) -> list[Item]:
    """``{"sentence", "option1", "option2", "answer"}``, answer 1 or 2 (https://github.com/allenai/winogrande)."""
    before, gap, after = text_of(row, "sentence").partition("_")
    if not gap:
        raise ValueError("its sentence has no gap '_'")
    said = {"sentence": row["sentence"], "before": before, "after": after.strip()}
    return [choice(said, [row["option1"], row["option2"]], int(row["answer"]) - 1)]


def piqa(row: Row) -> list[Item]:
    """``{"goal", "sol1", "sol2", "label"}``; labels stand in a file of their own (https://github.com/ybisk/ybisk.github.io)."""
    return [choice({"question": row["goal"]}, [row["sol1"], row["sol2"]], row["label"])]


def boolq(row: Row) -> list[Item]:
    """``{"question", "passage", "answer"}`` (https://github.com/google-research-datasets/boolean-questions), or SuperGLUE's ``label``."""
    answer = row["answer"] if "answer" in row else row["label"]
    if not isinstance(answer, bool | int):
        raise ValueError(f"its answer is {answer!r}, neither true nor false")
    return [choice({"context": row["passage"], "question": row["question"]}, ["no", "yes"], int(answer))]


def truthfulqa(row: Row, task: str) -> list[Item]:
    """``{"question", "mc1_targets": {choice: 0 or 1}, "mc2_targets": …}`` (https://github.com/sylinrl/TruthfulQA), or the Hub's columns."""
    given = row[f"{task}_targets"]
    choices, labels = (given["choices"], given["labels"]) if "choices" in given else (list(given), list(given.values()))
    right = [place for place, label in enumerate(labels) if label]
    if not right or len(choices) != len(labels):
        raise ValueError(f"none of its {len(choices)} choices of {task} is right")
    item = choice({"question": row["question"]}, choices, right[0])
    return [item if task == "mc1" else {**item, "right": right}]


def choice(said: Mapping[str, str], choices: Sequence[str], answer: int | str, *, group: str = "") -> Item:
    """An item of multiple choice. ``answer`` is an index or a letter, ``group`` what its figures are listed by.

    Raises ``ValueError`` when there is no such choice.
    """
    if not all(isinstance(text, str) for text in (*said.values(), *choices)):
        raise ValueError("a question or choice is no text")
    if isinstance(answer, bool) or not isinstance(answer, int | str):
        raise ValueError(f"its answer is {answer!r}, neither an index nor a letter; the test split has none")
    place = LETTERS.find(answer.strip()) if isinstance(answer, str) and len(answer.strip()) == 1 else answer
    if not isinstance(place, int) or not 0 <= place < len(choices) <= len(LETTERS):
        raise ValueError(f"its answer {answer!r} is none of its {len(choices)} choices")
    return {**said, "choices": list(choices), "answer": place, "group": group}
