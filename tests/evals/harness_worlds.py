"""Task files of lm-evaluation-harness with local rows, and tiny Hugging Face folders of three families."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from plain_subject import PlainSubject, ScriptedSubject

from mt_core.evaluation import Findings
from mt_plugin_evals.harness.config import HarnessConfig
from mt_plugin_evals.harness.evaluation import Harness
from mt_train import load_adapters

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
LINES = [
    "Which of these is a colour? red, stone, seven and yesterday are words.",
    "Two and three make five; 12 less 4 is 8, and 100 is a hundred.",
    "The quick brown fox jumps over the lazy dog. Überall grünt es – naïve 東京 😀.",
    "Question: how many apples are left? Answer: there are 7 apples. #### 7",
]
QUESTIONS = [
    {"q": "Which of these is a colour?", "choices": ["red", "stone", "seven", "yesterday"], "gold": 0},
    {"q": "What is 12 less 4?", "choices": ["6", "7", "8", "9"], "gold": 2},
    {"q": "Where is the fox?  ", "choices": ["over the dog", "in 東京", "nowhere", "naïve 😀"], "gold": 1},
    {"q": "And then?", "choices": ["it rests", "it grünt", "it jumps", "a"], "gold": 3},
    {"q": "Which is a number?", "choices": ["dog", "hundred", "lazy", "apples"], "gold": 1},
]
SHOTS = [
    {"q": "Which one is an animal?", "choices": ["fox", "hundred", "red", "8"], "gold": 0},
    {"q": "What is two and three?", "choices": ["4", "7", "5", "seven"], "gold": 2},
]
DOCUMENTS = [" ".join(LINES), "short", LINES[2] * 3, " leading space"]
SUMS = [{"q": "how many apples are left of 9 after 2?", "a": "#### 7"}, {"q": "12 less 4?", "a": "#### 8"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Task files and their rows."""
    folder = tmp_path_factory.mktemp("tasks")

    def write(name: str, rows: list[Any]) -> str:
        path = folder / f"{name}.jsonl"
        path.write_text("\n".join(json.dumps(row) for row in rows), "utf-8")
        return str(path)

    questions, shots = write("questions", QUESTIONS), write("shots", SHOTS)
    common = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": questions, "dev": shots}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_target": "{{gold}}",
        "metadata": {"version": 2.0},
    }
    both = [{"metric": "acc"}, {"metric": "acc_norm"}]
    letters = {
        **common,
        "fewshot_split": "dev",
        "fewshot_config": {"sampler": "first_n"},
        "num_fewshot": 2,
        "doc_to_text": "{{q.strip()}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\nD. {{choices[3]}}\nAnswer:",
        "doc_to_choice": ["A", "B", "C", "D"],
        "metric_list": both,
    }
    long = {**common, "doc_to_text": "Question: {{q}}\nAnswer:", "doc_to_choice": "{{choices}}", "metric_list": both}
    mutual = {**long, "metric_list": [{"metric": "acc_mutual_info"}]}
    rolling = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": write("documents", [{"text": text} for text in DOCUMENTS])}},
        "test_split": "test",
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": name} for name in ("word_perplexity", "byte_perplexity", "bits_per_byte")],
    }
    sums = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": write("sums", SUMS)}},
        "test_split": "test",
        "output_type": "generate_until",
        "metadata": {"version": 3.0},
        "doc_to_text": "Question: {{q}}\nAnswer:",
        "doc_to_target": "{{a}}",
        "generation_kwargs": {
            "until": ["Question:", "</s>"],
            "do_sample": False,
            "temperature": 0.0,
            "max_gen_toks": 24,
        },
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        "filter_list": [
            {
                "name": "strict-match",
                "filter": [{"function": "regex", "regex_pattern": "#### (\\d+)"}, {"function": "take_first"}],
            },
            {"name": "all", "filter": [{"function": "take_first"}]},
        ],
    }
    tasks = {"my-letters": letters, "my_long": long, "my_mutual": mutual, "my_rolling": rolling, "my_sums": sums}
    for name, task in tasks.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"task": name, **task}))
    group = {"group": "my_group", "task": ["my-letters", "my_long"], "aggregate_metric_list": [{"metric": "acc"}]}
    (folder / "my_group.yaml").write_text(yaml.safe_dump(group))
    return folder


TASKS = ("my-letters", "my_long", "my_mutual", "my_rolling", "my_sums")


def write_tokenizer(folder: Path, *, begins: bool) -> Any:
    """Byte-level BPE, which puts its begin token in front of a text where it ``begins``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<s>", "</s>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    inner.train_from_iterator(LINES * 4, trainer)
    if begins:
        inner.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", inner.token_to_id("<s>"))]
        )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=special[2:],
        chat_template=TEMPLATE,
    )
    wrapped.save_pretrained(folder)
    return wrapped


def write_llama(folder: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 192,
        "initializer_range": 0.3,
    }
    LlamaForCausalLM(LlamaConfig(**_model_config(folder, begins=True), **shape)).save_pretrained(folder)


def write_gemma2(folder: Path) -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    shape = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 192}
    caps = {
        "final_logit_softcapping": 5.0,
        "attn_logit_softcapping": 3.0,
        "sliding_window": 16,
        "initializer_range": 0.3,
    }
    config = Gemma2Config(**_model_config(folder, begins=True), **shape, **caps, attn_implementation="eager")
    model = Gemma2ForCausalLM(config)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(0.1)  # they are the head too: each token would only repeat itself
    model.save_pretrained(folder)


def write_qwen3(folder: Path) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 192}
    Qwen3ForCausalLM(
        Qwen3Config(**_model_config(folder, begins=False), **shape, initializer_range=0.3)
    ).save_pretrained(folder)


def _model_config(folder: Path, *, begins: bool) -> dict[str, Any]:
    """Shape and special tokens; weights are wide, so that attention matters."""
    tokenizer = write_tokenizer(folder, begins=begins)
    torch.manual_seed(5)
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": None}
    return {"vocab_size": len(tokenizer), "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3, **ids}


FAMILIES: dict[str, Callable[[Path], None]] = {"llama": write_llama, "gemma": write_gemma2, "qwen": write_qwen3}


@pytest.fixture(scope="module", params=FAMILIES)
def weights(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, needs: Any) -> tuple[str, Path]:
    """A family, and a Hugging Face folder of it."""
    needs(f"mt-plugin-{request.param}")
    folder = tmp_path_factory.mktemp(request.param)
    FAMILIES[request.param](folder)
    return request.param, folder


@pytest.fixture(scope="module")
def subject(weights: tuple[str, Path]) -> PlainSubject:
    loaded, _ = load_adapters({}, model=weights[0], weights=weights[1])
    return PlainSubject(loaded)


@pytest.fixture
def scripted_subject() -> ScriptedSubject:
    return ScriptedSubject(lambda prompt, number: " It is 7.\n#### 7\nQuestion: and")


def run(subject: Any, folder: Path, *tasks: str, **options: Any) -> Findings:
    return Harness(HarnessConfig(tasks=tasks or TASKS, include=str(folder), **options)).run(subject)
