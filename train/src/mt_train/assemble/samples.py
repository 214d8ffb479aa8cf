"""Texts in ``samples.jsonl``, which the model writes after the same few held-out prompts, at each evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from mt_core.generation import GenerationConfig, SamplingRules
from mt_core.nn import Batch, TrainModel
from mt_core.protocols import Tokenizer
from mt_core.rows import Encoded, MediaSpan, Sample
from mt_core.tracking.logs import notice
from mt_core.tracking.step_lines import StepLines
from mt_train.assemble.data import RunData
from mt_train.assemble.parts import Parts
from mt_train.data.samples import EncodedSamples
from mt_train.data.templates import build_template
from mt_train.engine.engine import Engine
from mt_train.engine.lock_step import forwards_of
from mt_train.evaluate.figures import prompt_ids
from mt_train.generation.continuation import continue_prompts
from mt_train.generation.forward import Forward, last_logits
from mt_train.generation.loaded_model import LoadedModel
from mt_train.generation.text import earliest

FILE = "samples.jsonl"
LONGEST_PROMPT = 64
"""Tokens of a text that are shown to the model where the sample itself has no prompt."""


@dataclass(frozen=True)
class _Prompt:
    row_id: str
    prompt: tuple[int, ...]
    expected: tuple[int, ...]
    media: tuple[MediaSpan, ...] = ()


class SampleWriter:
    """Continues the first held-out samples greedily; no random number is drawn, so training goes on as without it.

    A text ends at its end token, and at ``stop`` where that is how a template ends its turns.
    """

    def __init__(
        self,
        held_out: EncodedSamples,
        tokenizer: Tokenizer,
        folder: Path,
        *,
        count: int,
        tokens: int,
        stop: str | None = None,
        read_media: Callable[[Batch], Batch] | None = None,
    ) -> None:
        self._tokenizer, self._file, self._tokens = tokenizer, StepLines(folder / FILE), tokens
        self._stop = () if stop is None else (stop,)
        self._read_media = read_media
        self._config = GenerationConfig(rules=SamplingRules(greedy=True), max_new_tokens=tokens, stop=self._stop)
        self._asked = [_prompt_of(sample) for sample in islice(held_out, count)]
        ends = [tokenizer.eos_id, *(_end(ask.expected, tokenizer) for ask in self._asked)]
        self._eos_ids = tuple({token for token in ends if token is not None})
        """The token that ends a text, and those that end the turns of a chat."""

    def cut_back(self, step: int) -> None:
        """Drop what was written after ``step``."""
        self._file.cut_back(step)

    def write(
        self, model: TrainModel, step: int, *, longest: int, forward: Forward = last_logits
    ) -> list[dict[str, Any]]:
        """Append a line for each prompt, and return what they hold. ``longest`` is what the model takes, prompt and new tokens together."""
        was_training = model.training
        loaded = LoadedModel(model, self._tokenizer, longest, self._eos_ids, read_media=self._read_media)
        prompts = [Encoded(list(ask.prompt), [False] * len(ask.prompt), media=ask.media) for ask in self._asked]
        try:
            texts = continue_prompts(loaded, prompts, self._config, batch_size=max(1, len(prompts)), forward=forward)
        finally:
            model.train(was_training)
        written = [self._texts(step, ask, found.text) for ask, found in zip(self._asked, texts, strict=True)]
        self._file.append(written)
        return written

    def close(self) -> None:
        """Write what could not be written so far."""
        self._file.close()

    def _texts(self, step: int, ask: _Prompt, text: str) -> dict[str, Any]:
        expected = self._tokenizer.decode(ask.expected[: self._tokens])
        at = earliest(expected, self._stop)
        texts = {"prompt": _show(ask, self._tokenizer), "expected": expected[:at], "text": text}
        return {"step": step, "row_id": ask.row_id, **texts}


def _show(ask: _Prompt, tokenizer: Tokenizer) -> str:
    """The prompt as text, in which each of its media is told."""
    pieces, end = list[str](), 0
    for span in ask.media:
        item = span.item
        pieces.append(tokenizer.decode(ask.prompt[end : span.start]))
        pieces.append(f"<{item.encoder}: {item.path or f'{len(item.content)} bytes'}>")
        end = span.start + span.tokens
    return "".join([*pieces, tokenizer.decode(ask.prompt[end:])])


def _end(expected: Sequence[int], tokenizer: Tokenizer) -> int | None:
    """The special token at the end, which adds nothing to the text."""
    is_silent = len(expected) > 1 and tokenizer.decode(expected[-2:]) == tokenizer.decode(expected[-2:-1])
    return expected[-1] if is_silent else None


def _prompt_of(sample: Sample) -> _Prompt:
    ids: Sequence[int] = [int(each) for each in sample.ids]
    start = len(prompt_ids(sample))
    if start < 2:  # a text that is trained on from its beginning
        start = max(1, min(LONGEST_PROMPT, len(ids) // 2))
        start = max([start, *(span.start + span.tokens for span in sample.media if span.start < start)])
        return _Prompt(sample.row_id, tuple(ids[:start]), tuple(ids[start:]), _before(sample, start))
    end = next((place for place in range(start, len(ids)) if not sample.trained[place]), len(ids))
    return _Prompt(sample.row_id, tuple(ids[:start]), tuple(ids[start:end]), _before(sample, start))


def _before(sample: Sample, end: int) -> tuple[MediaSpan, ...]:
    """The media of a prompt, none of which ends behind it."""
    return tuple(span for span in sample.media if span.start + span.tokens <= end)


class Samples:
    """Texts of a run at each evaluation. Rank 0 writes them: by itself where it can, or with the others, who run along in lock step."""

    def __init__(
        self, engine: Engine, writer: SampleWriter | None, read_media: Callable[[Batch], Batch] | None
    ) -> None:
        """``writer`` is there on rank 0."""
        self._engine, self._writer, self._read_media = engine, writer, read_media

    @classmethod
    def of(cls, parts: Parts, data: RunData, engine: Engine, output: Path | None) -> Samples | None:
        """Return the texts that a run asks for; ``None``, on every rank, where there are none, or nobody can write any: where no rank has
        whole rows and all layers, and where scores are trained instead of the language head."""
        config, trains_scores = parts.config, parts.objective_component.head == "own"
        if output is None or not len(data.held_out) or not config.eval.samples or trains_scores:
            return None
        if not engine.plan.writes_texts:
            if engine.process.is_main:
                notice(
                    f"notice: {FILE} is not written, as ranks share the layers of the model or the tokens of a row; mt-generate --prompts"
                    " writes texts of any checkpoint"
                )
            return None
        writer = None
        if engine.process.is_main:
            stop = None if config.data.template is None else build_template(data.tokenizer, config.data).stop_text
            writer = SampleWriter(
                data.held_out,
                data.tokenizer,
                output,
                count=config.eval.samples,
                tokens=config.eval.sample_tokens,
                stop=stop,
                read_media=data.held_out.reader,
            )
        return cls(engine, writer, data.held_out.reader)

    def write(self, step: int, *, longest: int) -> list[dict[str, Any]]:
        """Write the texts after this step, up to ``longest`` tokens with their prompts, and return them on rank 0. Collective."""
        with forwards_of(self._engine, self._read_media) as forward:
            if self._writer is None:
                return []
            return self._writer.write(self._engine.module.model, step, longest=longest, forward=forward)

    def cut_back(self, *, trained: int, evaluated: int) -> None:
        """See ``StepFile``."""
        if self._writer is not None:
            self._writer.cut_back(evaluated)

    def close(self) -> None:
        """See ``SampleWriter``."""
        if self._writer is not None:
            self._writer.close()
