"""Texts after prompts: what the command and Python programs call."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from mt_core.errors import UsageError
from mt_core.protocols import Template, Tokenizer
from mt_tools.generation.beams import search
from mt_tools.generation.prompts import Prompt, prepare, template_of
from mt_train.generation.choices import Choices
from mt_train.generation.config import GenerationConfig, find_faults, raise_faults
from mt_train.generation.decode import Continuation, Finish, decode
from mt_train.generation.loaded_model import LoadedModel
from mt_train.generation.text import TextStream

Show = Callable[[str], None]


@dataclass(frozen=True)
class Generation:
    """Text after a prompt."""

    text: str
    """The new text alone, without the prompt; it ends before a stop text. With ``choices`` it is one of them, to the letter."""
    ids: tuple[int, ...]
    """The new tokens, at most ``max_new_tokens``: without the prompt's and without an end token; those of a stop text are in them."""
    finish: Finish
    """Why it ended: ``eos`` an end token (or a special token among the stop texts), ``stop`` a stop text, ``length`` the wanted
    number of tokens, ``context`` the longest that the model takes."""


def generate(
    loaded: LoadedModel,
    prompts: str | Sequence[Prompt],
    wishes: GenerationConfig | None = None,
    *,
    batch_size: int = 8,
    chat_template: str | None = None,
) -> list[Generation]:
    """Continue each prompt: a text, or the messages of a conversation.

    Prompt i draws from a generator that (``wishes.seed``, i) decides, so ``batch_size`` changes the speed and no text.
    Raises ``UsageError`` for what is wrong with a prompt, before anything is generated.
    """
    raise_faults(find_faults({"batch_size": batch_size}))
    listed = [prompts] if isinstance(prompts, str) else list(prompts)
    converses = any(not isinstance(prompt, str) for prompt in listed)
    writer = Generator(loaded, wishes or GenerationConfig(), template_of(loaded, chat_template) if converses else None)
    ids = [writer.prepare(prompt, _place(index, len(listed))) for index, prompt in enumerate(listed)]
    found: list[Generation] = []
    for start in range(0, len(ids), batch_size):
        batch = ids[start : start + batch_size]
        found += writer.write(batch, range(start, start + len(batch)))
    return found


def _place(index: int, count: int) -> str:
    return "" if count == 1 else f"prompt {index} (counted from 0): "


class Generator:
    """Continues prompts by the same wishes, batch after batch. With a ``template`` they may be conversations, and end as its turns do."""

    def __init__(self, loaded: LoadedModel, wishes: GenerationConfig, template: Template | None = None) -> None:
        self._loaded = loaded
        self._wishes = wishes
        self._template = template
        self._choices = self._build_choices() if wishes.choices else None
        self._end_ids = (*loaded.eos_ids, *_special(wishes.stop, loaded.tokenizer))
        self._stop = wishes.stop
        if template is not None:
            self._end_ids = (*self._end_ids, *template.stop_ids)
            self._stop = (*wishes.stop, *([template.stop_text] if template.stop_text else []))

    def prepare(self, prompt: Prompt, place: str = "") -> list[int]:
        """Ids of a prompt that can be continued. ``place`` begins the message of what is wrong with it."""
        try:
            ids = prepare(self._loaded, prompt, self._template)
            self.room(ids)
        except UsageError as error:
            raise UsageError(f"{place}{error}") from error
        return ids

    def write(
        self, prompts: Sequence[Sequence[int]], indices: Sequence[int], show: Show | None = None
    ) -> list[Generation]:
        """One batch of prepared prompts; ``indices`` decide what is drawn. ``show`` gets the text of a single prompt."""
        assert show is None or len(prompts) == 1, "texts that grow at the same time cannot be shown in one stream"
        rules, room = self._wishes.rules, [self.room(prompt) for prompt in prompts]
        live = show if self._choices is None and rules.num_beams == 1 else None
        streams = [TextStream(self._loaded.tokenizer, stop=self._stop, show=live) for _ in prompts]
        rows = [
            Continuation(
                prompt, min(space, self._wishes.max_new_tokens), prompt_generator(self._wishes.seed, index), stream.push
            )
            for prompt, space, index, stream in zip(prompts, room, indices, streams, strict=True)
        ]
        self._run(rows)
        found = [self._generation(*parts) for parts in zip(rows, room, streams, strict=True)]
        if show is not None and live is None:
            show(found[0].text)
        return found

    def _run(self, rows: Sequence[Continuation]) -> None:
        model, rules, eos_ids = self._loaded.model, self._wishes.rules, self._end_ids
        if rules.num_beams == 1:
            for batch in [rows] if model.ragged_batches else _equally_long(rows):
                decode(model, batch, rules=rules, eos_ids=eos_ids, choices=self._choices)
            return
        for row in rows:  # the beams of one prompt are a batch already
            search(model, row, rules=rules, eos_ids=eos_ids, choices=self._choices)

    def _generation(self, row: Continuation, room: int, stream: TextStream) -> Generation:
        assert row.finish is not None, "decoding ends when every row is finished"
        if self._wishes.rules.num_beams > 1:
            for token in row.new:
                stream.push(token)
        text = stream.close()
        if self._choices is not None:
            chosen = self._choices.string(row.new)
            assert chosen is not None, f"{row.new} is none of the choices"
            text = chosen  # a tokenizer may decode its tokens to something a little different
        cut_short = row.finish == "length" and room < self._wishes.max_new_tokens
        return Generation(text, tuple(row.new), "context" if cut_short else row.finish)

    def room(self, prompt: Sequence[int]) -> int:
        """Tokens that the context has after a prompt. Raises ``UsageError`` where a choice would not fit."""
        room = self._loaded.max_seq_len - len(prompt)
        if self._choices is not None and room < self._choices.longest:
            raise UsageError(
                f"the prompt has {len(prompt)} tokens and the longest choice {self._choices.longest} with its end, and the"
                f" model takes {self._loaded.max_seq_len} in all; shorten one of them"
            )
        return room

    def _build_choices(self) -> Choices:
        if not self._loaded.eos_ids:
            raise UsageError(
                "the tokenizer has no end token, which has to follow a choice; name it (tokenizer.eos_token)"
            )
        choices = Choices(self._wishes.choices, self._loaded.tokenizer, self._loaded.eos_ids[0])
        if choices.longest > self._wishes.max_new_tokens:
            raise UsageError(
                f"the longest choice has {choices.longest} tokens with its end, and max_new_tokens is"
                f" {self._wishes.max_new_tokens}; set it to {choices.longest} or more"
            )
        return choices


def _special(stop: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """Stop texts that are special tokens (``<|eot_id|>``): these give no text in which they could be found."""
    ids = [tokenizer.encode(word) for word in stop]
    return [tokens[0] for tokens in ids if len(tokens) == 1 and not tokenizer.decode(tokens)]


def _equally_long(rows: Sequence[Continuation]) -> list[list[Continuation]]:
    groups: dict[int, list[Continuation]] = {}
    for row in rows:
        groups.setdefault(len(row.prompt), []).append(row)
    return list(groups.values())


def prompt_generator(seed: int, index: int) -> torch.Generator:
    """The generator of one prompt, the same in every batch and on every device."""
    digest = hashlib.sha256(f"{seed}:{index}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
