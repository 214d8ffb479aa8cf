"""The classic sets: where they are from, under which licence, what their rows say, and the prompt made of it.

A prompt is what a user would say; ``--data.template`` writes it down for a model, and ``--dataset.prompt`` replaces it.
"""

from __future__ import annotations

from . import items
from .multiple_choice import MULTIPLE_CHOICE
from .published import PublishedSet

SETS: dict[str, PublishedSet] = {
    each.name: each
    for each in (
        PublishedSet(
            name="alpaca",
            summary="52,000 instructions written by text-davinci-003",
            source="https://github.com/tatsu-lab/stanford_alpaca",
            licence="CC BY-NC 4.0",
            hub="tatsu-lab/alpaca",
            items=items.fields(instruction="instruction", input="input?", response="output"),
            prompt="{instruction}\n\n{input}",
        ),
        PublishedSet(
            name="alpaca-clean",
            summary="alpaca with its wrong answers corrected",
            source="https://github.com/gururise/AlpacaDataCleaned",
            licence="CC BY-NC 4.0",
            hub="yahma/alpaca-cleaned",
            items=items.fields(instruction="instruction", input="input?", response="output"),
            prompt="{instruction}\n\n{input}",
        ),
        PublishedSet(
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
        PublishedSet(
            name="chip2",
            summary="210,000 dialogues of one turn, of Open Instruction Generalist",
            source="https://github.com/LAION-AI/Open-Instruction-Generalist",
            licence="Apache-2.0",
            hub="laion/OIG",
            data_files=("unified_chip2.jsonl",),
            items=items.chip2,
        ),
        PublishedSet(
            name="hh-rlhf",
            summary="160,000 pairs of dialogues, a better and a worse last answer",
            source="https://github.com/anthropics/hh-rlhf",
            licence="MIT",
            hub="Anthropic/hh-rlhf",
            items=items.hh,
        ),
        PublishedSet(
            name="ultrafeedback",
            summary="61,000 pairs: the best of four answers by GPT-4's scores, and one of the others",
            source="https://huggingface.co/datasets/HuggingFaceH4/ultrafeedback_binarized",
            licence="MIT",
            hub="HuggingFaceH4/ultrafeedback_binarized",
            split="train_prefs",
            items=items.ultrafeedback,
        ),
        PublishedSet(
            name="orca-dpo-pairs",
            summary="13,000 pairs: an answer of GPT-4 or 3.5, and one of a model of 13 billion parameters",
            source="https://huggingface.co/datasets/Intel/orca_dpo_pairs",
            licence="Apache-2.0",
            hub="Intel/orca_dpo_pairs",
            items=items.fields(system="system?", prompt="question", chosen="chosen", rejected="rejected"),
        ),
        PublishedSet(
            name="safe-rlhf",
            summary="74,000 pairs on dangerous requests, by which answer helps more",
            source="https://huggingface.co/datasets/PKU-Alignment/PKU-SafeRLHF",
            licence="CC BY-NC 4.0",
            hub="PKU-Alignment/PKU-SafeRLHF",
            items=items.safe_rlhf,
        ),
        PublishedSet(
            name="shp",
            summary="349,000 pairs of comments on Reddit, by their votes",
            source="https://huggingface.co/datasets/stanfordnlp/SHP",
            licence="for research; terms of Reddit",
            hub="stanfordnlp/SHP",
            items=items.shp,
        ),
        PublishedSet(
            name="longform",
            summary="27,000 long texts with an instruction that they answer",
            source="https://github.com/akoksal/LongForm",
            licence="MIT",
            hub="akoksal/LongForm",
            items=items.fields(text="input", response="output"),
            prompt="{text}",
        ),
        PublishedSet(
            name="unnatural-instructions",
            summary="66,000 instructions (240,000 with reformulations) written by text-davinci-002",
            source="https://github.com/orhonovich/unnatural-instructions",
            licence="MIT",
            hub="mrm8488/unnatural-instructions",
            items=items.unnatural,
            many=True,
        ),
        PublishedSet(
            name="gsm8k",
            summary="8,500 word problems of arithmetic with their solutions",
            source="https://github.com/openai/grade-school-math",
            licence="MIT",
            hub="openai/gsm8k",
            subset="main",
            items=items.fields(question="question", response="answer"),
            prompt="{question}",
        ),
        *MULTIPLE_CHOICE,
        PublishedSet(
            name="metamathqa",
            summary="395,000 questions of arithmetic, rewritten from GSM8K and MATH",
            source="https://github.com/meta-math/MetaMath",
            licence="MIT",
            hub="meta-math/MetaMathQA",
            items=items.fields(question="query", response="response"),
            prompt="{question}",
        ),
        PublishedSet(
            name="code-feedback",
            summary="66,000 conversations on code",
            source="https://github.com/OpenCodeInterpreter/OpenCodeInterpreter",
            licence="Apache-2.0",
            hub="m-a-p/Code-Feedback",
            items=items.messages,
        ),
        PublishedSet(
            name="wizardlm",
            summary="143,000 conversations on evolved instructions",
            source="https://github.com/nlpxucan/WizardLM",
            licence="MIT",
            hub="WizardLMTeam/WizardLM_evol_instruct_V2_196k",
            items=items.messages,
        ),
        PublishedSet(
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
