"""A tiny Llama as Hugging Face writes it, a subject that asks it with one forward a request, and evaluations as a run builds them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mt_core.evaluation import Continuation, Evaluation, Score, TokenValues
from mt_core.generation import Generation, GenerationConfig
from mt_core.rows import Row, Sample
from mt_plugin_evals import plugin
from mt_plugin_standard.tokenizers.huggingface import build_huggingface
from mt_plugin_standard.tokenizers.huggingface_config import HuggingFaceConfig

sys.path.insert(0, str(Path(__file__).parents[1] / "datasets"))

from dataset_files import open_dataset

FILES = Path(__file__).parent / "files"
_TEXTS = [path.read_text("utf-8") for path in sorted(FILES.rglob("*.*"))]


def write_llama(folder: Path, *, begins: bool, positions: int = 1024, vocab: int = 420) -> Path:
    """A random Llama, sure enough of itself that scores differ; its tokenizer puts a begin token in front of texts or none."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        _TEXTS,
        trainers.BpeTrainer(
            vocab_size=vocab, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
        ),
    )
    if begins:
        inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape |= {"vocab_size": inner.get_vocab_size(), "max_position_embeddings": positions}
    LlamaForCausalLM(LlamaConfig(**shape, bos_token_id=0, eos_token_id=1, initializer_range=0.3)).save_pretrained(
        folder
    )
    return folder


class LlamaSubject:
    """A folder of weights; see ``Subject``."""

    template: Any = None

    def __init__(self, folder: Path, *, max_seq_len: int | None = None, texts: bool = True) -> None:
        from transformers import LlamaForCausalLM

        self.model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer: Any = build_huggingface(HuggingFaceConfig(path=str(folder)))
        self.max_seq_len: int = max_seq_len or self.model.config.max_position_embeddings
        self.eos_ids, self.texts = (1,), texts
        self.asked: list[Continuation] = []

    @torch.inference_mode()
    def _logprobs(self, ids: Sequence[int]) -> torch.Tensor:
        assert len(ids) <= self.max_seq_len
        return self.model(torch.tensor([list(ids)])).logits[0].float().log_softmax(-1)

    def score(self, requests: Sequence[Continuation]) -> list[Score]:
        self.asked += requests
        return [self._score(*request) for request in requests]

    def _score(self, context: Sequence[int], target: Sequence[int]) -> Score:
        values = self._logprobs([*context, *target][:-1])[len(context) - 1 :]
        found = values[torch.arange(len(target)), torch.tensor(list(target))]
        return Score(float(found.double().sum()), values.argmax(-1).tolist() == list(target))

    def token_values(self, samples: Sequence[Sample], *, top: int = 1) -> list[TokenValues]:
        return [self._values(sample, top) for sample in samples]

    def _values(self, sample: Sample, top: int) -> TokenValues:
        values = self._logprobs(sample.ids[:-1])
        places = [place for place in range(1, len(sample.ids)) if sample.trained[place]]
        rows = values[[place - 1 for place in places]]
        best = rows.topk(top, dim=-1)
        own = rows[torch.arange(len(places)), torch.tensor([sample.ids[place] for place in places])]
        return TokenValues(own.double().numpy(), best.indices.numpy(), best.values.double().numpy().astype(np.float64))

    def generate(self, prompts: Sequence[Sequence[int]], config: GenerationConfig) -> list[Generation]:
        return [self._choose(list(prompt), config.choices) for prompt in prompts]

    def _choose(self, prompt: list[int], choices: Sequence[str]) -> Generation:
        """Follow the likeliest token among those with which a choice goes on."""
        left = {choice: self.tokenizer.encode(choice) for choice in choices}
        new: list[int] = []
        while True:
            allowed = sorted({ids[len(new)] if len(ids) > len(new) else 1 for ids in left.values()})
            values = self._logprobs([*prompt, *new])[-1]
            best = max(allowed, key=lambda token: float(values[token]))
            done = [choice for choice, ids in left.items() if len(ids) == len(new) and best == 1]
            if done:
                return Generation(done[0], tuple(new), "eos", 1)
            new.append(best)
            left = {choice: ids for choice, ids in left.items() if ids[: len(new)] == new}

    def encode(self, rows: Iterable[Row]) -> list[Sample]:
        encoded = [(row, self.tokenizer.encode(row["text"])) for row in rows]
        return [Sample(ids, [True] * len(ids), str(row["id"])) for row, ids in encoded]


def open_evaluation(name: str, /, **options: Any) -> Evaluation:
    """What a run gets from ``--evaluations NAME`` with these options."""
    component = next(each for each in plugin.mt_evaluations() if each.name == name)
    config = component.config(**options)
    assert component.parts is not None
    parts = [open_part(part) for part in component.parts(config).values()]
    evaluation: Evaluation = component.build(config, split="train", parts=parts)
    return evaluation


def open_part(part: Any) -> Any:
    """A dataset or metric that an evaluation is made of."""
    if part.kind == "dataset":
        return open_dataset(part.name, **part.options)
    component = next(each for each in plugin.mt_metrics() if each.name == part.name)
    return component.build(component.config(**part.options))
