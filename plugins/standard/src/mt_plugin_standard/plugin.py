"""Entry point of the built-ins: the same hooks as a stranger's plugin, found the same way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mt_core import (
    ANY,
    ZERO,
    AdapterComponent,
    Component,
    DatasetComponent,
    Layout,
    LowRankConfig,
    ObjectiveComponent,
    OptimizerComponent,
    TokenizerComponent,
    hookimpl,
)
from mt_core.adapters import lora_options

from .adapter import FullConfig, build_full
from .datasets.demo import DemoConfig, build_demo
from .datasets.jsonl import JsonlConfig, build_jsonl, jsonl_files
from .datasets.text import TextConfig, build_text, text_files
from .loss_line import LossLineConfig, build_loss_line
from .objectives.config import FineTuningConfig, TokenLossConfig
from .optimizer import AdamWConfig, build_adamw
from .schedules import ConstantConfig, CosineConfig, build_constant, build_cosine
from .tokenizers.byte import ByteConfig, build_byte
from .tokenizers.huggingface import build_huggingface, size_with_new_tokens
from .tokenizers.huggingface_config import HuggingFaceConfig
from .tokenizers.sentencepiece import SentencePieceConfig, build_sentencepiece

if TYPE_CHECKING:
    from mt_core import Adapter
    from mt_core.nn import TokenObjective
    from mt_core.protocols import Template, Tokenizer

_TESTED: frozenset[Layout] = ZERO | {"sequence", "pipeline"}


@hookimpl
def mt_datasets() -> list[Component]:
    return [
        Component(
            name="demo",
            config=DemoConfig,
            build=build_demo,
            summary="demo corpus: Python's own help topics, 465,000 characters of English",
            source="https://docs.python.org/3/library/pydoc.html",
            run_defaults={"train.steps": 400},
            notice="trained on the built-in demo corpus; name your own with --dataset text --dataset.path FILE"
            " or --dataset jsonl --dataset.path FILE",
        ),
        DatasetComponent(
            name="text",
            files=text_files,
            config=TextConfig,
            build=build_text,
            summary="plain UTF-8 text files, one document per file, paragraph or line",
        ),
        DatasetComponent(
            name="jsonl",
            files=jsonl_files,
            config=JsonlConfig,
            build=build_jsonl,
            summary="JSON lines: one object per line, with text, or prompt and response",
            source="https://jsonlines.org",
        ),
    ]


@hookimpl
def mt_tokenizers() -> list[Component]:
    return [
        Component(
            name="byte",
            config=ByteConfig,
            build=build_byte,
            summary="the 256 bytes of UTF-8, with begin, end and padding: 259 tokens",
            source="https://arxiv.org/abs/2105.13626",
        ),
        Component(
            name="sentencepiece",
            config=SentencePieceConfig,
            build=build_sentencepiece,
            summary="a SentencePiece model, tokenizer.model",
            source="https://arxiv.org/abs/1808.06226",
        ),
        TokenizerComponent(
            name="huggingface",
            config=HuggingFaceConfig,
            build=build_huggingface,
            size=size_with_new_tokens,
            summary="a tokenizer.json, or a folder as transformers saves it, chat template included",
            source="https://huggingface.co/docs/tokenizers",
        ),
    ]


@hookimpl
def mt_objectives() -> list[ObjectiveComponent]:
    return [
        ObjectiveComponent(
            name="pretrain",
            config=TokenLossConfig,
            build=_build_pretrain,
            summary="next-token prediction on all of 'text', or of a conversation",
            layouts=_TESTED,
            batching="packing",
            truncation="split",
        ),
        ObjectiveComponent(
            name="sft",
            config=FineTuningConfig,
            build=_build_sft,
            summary="supervised fine-tuning: loss on the answers of a conversation, or on 'response' given 'prompt'",
            source="https://arxiv.org/abs/2203.02155",
            layouts=_TESTED,
            batching="padding",
            truncation="error",
        ),
    ]


@hookimpl
def mt_quantizers() -> list[Component]:
    return [Component(name="none", build=lambda config: None, summary="weights as they are", layouts=ANY | {"expert"})]


@hookimpl
def mt_adapters() -> list[AdapterComponent]:
    return [
        AdapterComponent(
            name="full",
            config=FullConfig,
            build=build_full,
            summary="trains every parameter",
            layouts=_TESTED | {"expert"},
        ),
        AdapterComponent(
            name="lora",
            config=LowRankConfig,
            build=_build_lora,
            summary="a trained pair of low-rank matrices beside each projection; the rest is frozen",
            source="https://arxiv.org/abs/2106.09685",
            layouts=_TESTED,
            peft_options=lora_options,
        ),
    ]


@hookimpl
def mt_optimizers() -> list[OptimizerComponent]:
    return [
        OptimizerComponent(
            name="adamw",
            config=AdamWConfig,
            build=build_adamw,
            summary="Adam with decoupled weight decay",
            source="https://arxiv.org/abs/1711.05101",
            layouts=ZERO | {"offload", "pipeline"},
            form="elementwise",
        )
    ]


@hookimpl
def mt_schedules() -> list[Component]:
    return [
        Component(
            name="constant",
            config=ConstantConfig,
            build=build_constant,
            summary="the base rate throughout, after an optional linear warm-up",
        ),
        Component(
            name="cosine",
            config=CosineConfig,
            build=build_cosine,
            summary="linear warm-up, then half a cosine down to a floor",
            source="https://arxiv.org/abs/1608.03983",
        ),
    ]


@hookimpl
def mt_task_prints() -> list[Component]:
    return [
        Component(
            name="loss",
            config=LossLineConfig,
            build=build_loss_line,
            summary="one line: step, loss, evaluation, rate, gradient norm, tokens/s, memory",
        )
    ]


def _build_lora(config: LowRankConfig) -> Adapter:
    from .lora import Lora

    return Lora(config)


def _build_pretrain(config: TokenLossConfig, *, tokenizer: Tokenizer, template: Template) -> TokenObjective:
    from .objectives.pretrain import Pretrain

    return Pretrain(tokenizer, template, **config.arguments(tokenizer))


def _build_sft(config: FineTuningConfig, *, tokenizer: Tokenizer, template: Template) -> TokenObjective:
    from .objectives.sft import DynamicFineTuning, SupervisedFineTuning

    chosen = DynamicFineTuning if config.loss == "dft" else SupervisedFineTuning
    return chosen(tokenizer, template, **config.arguments(tokenizer))


@hookimpl
def mt_recipes() -> list[Component]:
    return [
        Component(name="pretrain", summary="a model from scratch on a folder of text; of 1B on a GPU of 80 GB"),
        Component(name="sft", summary="all weights on answers, full fine-tuning; of 1B on a GPU of 40 GB"),
        Component(name="lora", summary="a low-rank pair beside each projection, on answers; of 1B on a GPU of 12 GB"),
    ]
