"""Words in which the questions of a set are asked: those of lm-evaluation-harness 0.4.13, so that figures can be compared."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mt_core import DataError

from .questions import LETTERS, Question

_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class Form:
    """Texts with ``{fields}`` of a question; ``{choices}`` are its lines with letters, ``{choice}`` and ``{letter}`` one of them.

    ``description`` stands in front of the shots, ``delimiter`` between a prompt and its target, ``separator`` behind a shot. Fields in
    ``stripped`` lose the spaces around them. ``count`` is how many choices each question has, where that is fixed. Targets are encoded
    together with what stands before them, or ``alone``.
    """

    prompt: str = "{prompt}"
    target: str = "{choice}"
    description: str = ""
    delimiter: str = " "
    separator: str = "\n\n"
    stripped: frozenset[str] = frozenset()
    count: int | None = None
    alone: bool = False

    @property
    def letters(self) -> bool:
        """Return whether letters are scored, all of one length, and not texts."""
        return self.target == "{letter}"

    def prompt_of(self, question: Question, place: int) -> str:
        """Return the question as it is asked for the choice at ``place``: most forms ask the same for all."""
        return self._fill(self.prompt, question, place)

    def target_of(self, question: Question, place: int) -> str:
        """Return what is scored for a choice, without the delimiter."""
        return self._fill(self.target, question, place)

    def description_of(self, question: Question) -> str:
        """Return what stands in front of everything."""
        return self._fill(self.description, question, question.answer)

    def shot_of(self, question: Question) -> str:
        """Return a question with its right answer, as an example before another one."""
        place = question.answer
        return self.prompt_of(question, place) + self.delimiter + self.target_of(question, place) + self.separator

    def _fill(self, text: str, question: Question, place: int) -> str:
        return _FIELD.sub(lambda match: self._value(match[1], question, place), text)

    def _value(self, name: str, question: Question, place: int) -> str:
        if name == "choices":
            return "\n".join(f"{letter}. {text}" for letter, text in zip(LETTERS, question.choices, strict=False))
        if name in ("choice", "letter"):
            return question.choices[place] if name == "choice" else LETTERS[place]
        if name not in question.fields:
            known = ", ".join(["choices", "choice", "letter", *question.fields])
            raise DataError(
                f"{question.id}: {{{name}}} of the prompt is no text of this row; there are {known}. Name one of them with the option"
                " prompt, target or description of the evaluation."
            )
        value = question.fields[name]
        return value.strip() if name in self.stripped else value


_LETTERED = "{question}\n{choices}\n"
_QUESTION = frozenset({"question"})
_TRUTHFUL = (
    "Q: What is human life expectancy in the United States?\n"
    "A: Human life expectancy in the United States is 78 years.\n\n"
    "Q: Who was president of the United States in 1955?\n"
    "A: Dwight D. Eisenhower was president of the United States in 1955.\n\n"
    "Q: Which party did he belong to?\nA: He belonged to the Republican Party.\n\n"
    "Q: What is the square root of banana?\nA: I have no comment.\n\n"
    "Q: How does a telescope work?\n"
    "A: Telescopes use lenses or mirrors to focus light and make objects appear closer.\n\n"
    "Q: Where were the 1992 Olympics held?\nA: The 1992 Olympics were held in Barcelona, Spain.\n\n"
)

ROWS = Form()
"""Prompts of the rows themselves, and texts of the choices."""
MMLU = Form(
    description="The following are multiple choice questions (with answers) about {subject}.\n\n",
    prompt=f"{_LETTERED}Answer:",
    target="{letter}",
    stripped=_QUESTION,
    count=4,
)
MMLU_ORIGINAL = Form(
    description="The following are multiple choice questions (with answers) about  {subject}.\n\n",
    prompt=f"{_LETTERED}Answer:",
    target="{letter}",
    count=4,
)
"""The paper's own code: two spaces before the subject (https://github.com/hendrycks/test)."""
MMLU_QLORA = Form(prompt="{input}", target="{letter}", delimiter="", count=4, alone=True)
"""Whole prompts, and letters encoded by themselves (https://github.com/artidoro/qlora/blob/main/qlora.py)."""

FORMS: Mapping[str, Form] = {
    "mmlu": MMLU,
    "mmlu-qlora": MMLU_QLORA,
    "arc": Form(prompt="Question: {question}\nAnswer:"),
    "hellaswag": Form(prompt="{context}", count=4),
    "winogrande": Form(prompt="{before}{choice}", target="{after}", count=2),
    "piqa": Form(prompt="Question: {question}\nAnswer:", count=2),
    "openbookqa": Form(prompt="{question}", count=4),
    "boolq": Form(prompt="{context}\nQuestion: {question}?\nAnswer:", count=2),
    "truthfulqa": Form(description=_TRUTHFUL, prompt="Q: {question}\nA:"),
    "logiqa": Form(prompt="Passage: {context}\nQuestion: {question}\nChoices:\n{choices}\nAnswer:", count=4),
    "reclor": Form(prompt=f"{{context}}\n\n{_LETTERED}Answer:", target="{letter}", count=4),
    "c3": Form(prompt=f"{{context}}\n\n{_LETTERED}答案：", target="{letter}"),
    "ceval": Form(
        description="以下是中国关于{subject}的单项选择题，请选出其中的正确答案。\n\n",
        prompt=f"{_LETTERED}答案：",
        target="{letter}",
        stripped=_QUESTION,
        count=4,
    ),
    "cmmlu": Form(
        description="以下是关于{subject}的单项选择题，请直接给出正确答案的选项。\n\n",
        prompt=f"{_LETTERED}答案：",
        target="{letter}",
        stripped=_QUESTION,
        count=4,
    ),
}
"""Set → form. ReClor and C3 are not in the harness: theirs are the rows' own prompts."""
