"""The classic sets: where they are from, under which licence, what their rows say, and the prompt made of it.

A prompt is what a user would say; ``--data.template`` writes it down for a model, and ``--dataset.prompt`` replaces it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mt_core import Dataset, Row
from mt_core.files import JsonRows, SpanIndex, paragraphs, suffix_of

from ..delimited import DelimitedRows
from ..formats import rows_of
from . import items
from .recipe import Recipe

_LETTERED = "{context}\n\n{question}\n{choices}\nAnswer:"


class _Blocks:
    """Blocks of lines between blank lines, as rows ``{"text"}``."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._index = SpanIndex(files, paragraphs)

    def __len__(self) -> int:
        return len(self._index)

    def row(self, index: int) -> Row:
        piece = self._index.read(index)
        return {"id": piece.place, "text": piece.text().rstrip("\r\n")}


def _arrays(files: list[Path]) -> Dataset:
    return JsonRows(files, key="value")


def _mmlu(files: list[Path]) -> Dataset:
    return DelimitedRows(files, delimiter=",", quote='"', header=("question", "A", "B", "C", "D", "answer"))


RECIPES: dict[str, Recipe] = {
    each.name: each
    for each in (
        Recipe(
            name="alpaca",
            summary="52,000 instructions written by text-davinci-003",
            source="https://github.com/tatsu-lab/stanford_alpaca",
            licence="CC BY-NC 4.0",
            hub="tatsu-lab/alpaca",
            items=items.fields(instruction="instruction", input="input?", response="output"),
            prompt="{instruction}\n\n{input}",
        ),
        Recipe(
            name="alpaca-clean",
            summary="alpaca with its wrong answers corrected",
            source="https://github.com/gururise/AlpacaDataCleaned",
            licence="CC BY-NC 4.0",
            hub="yahma/alpaca-cleaned",
            items=items.fields(instruction="instruction", input="input?", response="output"),
            prompt="{instruction}\n\n{input}",
        ),
        Recipe(
            name="self-instruct",
            summary="82,000 instructions that GPT-3 wrote for itself",
            source="https://github.com/yizhongw/self-instruct",
            licence="Apache-2.0",
            hub="yizhongw/self_instruct",
            subset="self_instruct",
            revision="refs/convert/parquet",
            items=items.fields(text="prompt", response="completion"),
            prompt="{text}",
        ),
        Recipe(
            name="chip2",
            summary="210,000 dialogues of one turn, of Open Instruction Generalist",
            source="https://github.com/LAION-AI/Open-Instruction-Generalist",
            licence="Apache-2.0",
            hub="laion/OIG",
            data_files=("unified_chip2.jsonl",),
            items=items.chip2,
        ),
        Recipe(
            name="hh-rlhf",
            summary="160,000 pairs of dialogues, a better and a worse last answer",
            source="https://github.com/anthropics/hh-rlhf",
            licence="MIT",
            hub="Anthropic/hh-rlhf",
            items=items.hh,
        ),
        Recipe(
            name="longform",
            summary="27,000 long texts with an instruction that they answer",
            source="https://github.com/akoksal/LongForm",
            licence="MIT",
            hub="akoksal/LongForm",
            items=items.fields(text="input", response="output"),
            prompt="{text}",
        ),
        Recipe(
            name="unnatural-instructions",
            summary="66,000 instructions (240,000 with reformulations) written by text-davinci-002",
            source="https://github.com/orhonovich/unnatural-instructions",
            licence="MIT",
            hub="mrm8488/unnatural-instructions",
            items=items.unnatural,
            many=True,
        ),
        Recipe(
            name="gsm8k",
            summary="8,500 word problems of arithmetic with their solutions",
            source="https://github.com/openai/grade-school-math",
            licence="MIT",
            hub="openai/gsm8k",
            subset="main",
            items=items.fields(question="question", response="answer"),
            prompt="{question}",
        ),
        Recipe(
            name="c3",
            summary="19,000 questions on Chinese texts and dialogues, multiple choice",
            source="https://dataset.org/c3",
            licence="for research",
            hub="dataset-org/c3",
            subset="mixed",
            items=items.c3,
            prompt="{context}\n\n{question}\n{choices}\n答案：",
            response="{letter}",
            many=True,
            read=lambda files: _arrays(files) if suffix_of(files[0]) in (".json", ".jsonl") else rows_of(files),
        ),
        Recipe(
            name="reclor",
            summary="6,100 questions of logical reasoning of law school tests, multiple choice",
            source="https://whyu.me/reclor",
            licence="for research",
            hub="metaeval/reclor",
            items=items.reclor,
            prompt=_LETTERED,
            response="{letter}",
        ),
        Recipe(
            name="logiqa",
            summary="8,700 questions of logical reasoning of civil service tests, multiple choice",
            source="https://github.com/lgw863/LogiQA-dataset",
            licence="for research",
            hub="lucasmccabe/logiqa",
            revision="refs/convert/parquet",
            items=items.logiqa,
            prompt=_LETTERED,
            response="{letter}",
            read=lambda files: _Blocks(files) if suffix_of(files[0]) == ".txt" else rows_of(files),
        ),
        Recipe(
            name="mmlu",
            summary="16,000 questions of 57 subjects, multiple choice",
            source="https://github.com/hendrycks/test",
            licence="MIT",
            hub="cais/mmlu",
            subset="all",
            split="auxiliary_train",
            items=items.mmlu,
            prompt="The following is a multiple choice question (with answers) about {subject}.\n\n{question}\n{choices}\nAnswer:",
            response="{letter}",
            read=lambda files: _mmlu(files) if suffix_of(files[0]) == ".csv" else rows_of(files),
        ),
        Recipe(
            name="metamathqa",
            summary="395,000 questions of arithmetic, rewritten from GSM8K and MATH",
            source="https://github.com/meta-math/MetaMath",
            licence="MIT",
            hub="meta-math/MetaMathQA",
            items=items.fields(question="query", response="response"),
            prompt="{question}",
        ),
        Recipe(
            name="code-feedback",
            summary="66,000 conversations on code",
            source="https://github.com/OpenCodeInterpreter/OpenCodeInterpreter",
            licence="Apache-2.0",
            hub="m-a-p/Code-Feedback",
            items=items.messages,
        ),
        Recipe(
            name="wizardlm",
            summary="143,000 conversations on evolved instructions",
            source="https://github.com/nlpxucan/WizardLM",
            licence="MIT",
            hub="WizardLMTeam/WizardLM_evol_instruct_V2_196k",
            items=items.messages,
        ),
        Recipe(
            name="flan",
            summary="tasks in the style of FLAN: inputs and targets; mix several with concat",
            source="https://github.com/google-research/FLAN",
            licence="Apache-2.0; each task has its own",
            hub="Open-Orca/FLAN",
            items=items.fields(text="inputs", response="targets"),
            prompt="{text}",
        ),
    )
}
