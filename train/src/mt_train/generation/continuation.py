"""Texts after prompts, which are ids: end tokens, stop texts, choices, the room in the model, and the decoder that does it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mt_core.errors import UsageError
from mt_core.generation import Finish, Generation, GenerationConfig
from mt_core.protocols import Template, Tokenizer
from mt_train.generation.beams import search
from mt_train.generation.choices import Choices
from mt_train.generation.decoder import Decoder, refuse_media
from mt_train.generation.forward import Forward, last_logits
from mt_train.generation.loaded_model import LoadedModel
from mt_train.generation.request import PromptIds, Request, TokenOutput, split_prompt
from mt_train.generation.text import Show, TextStream


def continue_prompts(
    loaded: LoadedModel,
    prompts: Sequence[PromptIds],
    config: GenerationConfig,
    *,
    batch_size: int,
    indices: Sequence[int] | None = None,
    template: Template | None = None,
    forward: Forward = last_logits,
) -> list[Generation]:
    """Continue prompts of ids, perhaps with media, at most ``batch_size`` at a time; where one ends the next begins.

    ``indices`` (0, 1, … by default) and ``config.seed`` decide what each draws, so that ``batch_size`` changes the speed and no text.
    With a ``template`` texts end as its turns do, too. Everything that is computed with the model goes through ``forward``. The model
    is in evaluation mode afterwards. Raises ``UsageError`` for a prompt that has no room, before anything is generated.
    """
    continuer = Continuer(loaded, config, template, forward=forward)
    wanted = dict(enumerate(prompts))
    places = list(range(len(prompts)) if indices is None else indices)
    found = dict(continuer.run(wanted, batch_size=batch_size, indices=places))
    return [found[place] for place in wanted]


def check_room(loaded: LoadedModel, prompt: PromptIds, least: int = 1) -> int:
    """Return how many tokens the context has after a prompt. Raises ``UsageError`` where there is no prompt, or fewer than ``least``."""
    ids, media = split_prompt(prompt)
    if not ids:
        raise UsageError("the prompt has no tokens; give some text to continue, for instance --prompt 'The '")
    if loaded.vocabulary is not None and (highest := max(ids)) >= loaded.vocabulary:
        raise UsageError(
            f"the prompt has token id {highest}, and the model's embedding {loaded.vocabulary} rows; take out the text of that token"
        )
    if len(ids) + least > loaded.max_seq_len:
        of_media = f" ({sum(span.tokens for span in media)} of them of media)" if media else ""
        raise UsageError(
            f"the prompt has {len(ids)} tokens{of_media}, and the model takes {loaded.max_seq_len} with the new ones; shorten it"
        )
    return loaded.max_seq_len - len(ids)


class Continuer:
    """Continues prompts with one config. With a ``template``, prompts may be conversations, and answers end like its turns.

    With ``joins`` a text goes on in the prompt's: a blank between both, which many a tokenizer drops at the start of a text, is part of it.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: GenerationConfig,
        template: Template | None = None,
        *,
        joins: bool = False,
        forward: Forward = last_logits,
    ) -> None:
        self._loaded, self._config, self._forward, self._joins = loaded, config, forward, joins
        self._choices = _build_choices(loaded, config) if config.choices else None
        self._end_ids = (*loaded.eos_ids, *special_stops(config.stop, loaded.tokenizer))
        self._stop = config.stop
        if template is not None:
            self._end_ids = (*self._end_ids, *template.stop_ids)
            self._stop = (*config.stop, *([template.stop_text] if template.stop_text else []))
        if self._choices is not None:
            self._choices.refuse_ends(self._end_ids, self._stop)

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Tokens that end a text."""
        return self._end_ids

    def finish(self, prompt: PromptIds, ids: Sequence[int]) -> Generation:
        """Return the text of new ids that were written elsewhere, cut where it ends here: before a stop text, and before an end token."""
        room, wished = self.room(prompt), self._config.max_new_tokens
        ends = [place for place, token in enumerate(ids) if token in self._end_ids]
        own, end_id = (tuple(ids[: ends[0]]), ids[ends[0]]) if ends else (tuple(ids[: min(room, wished)]), None)
        stream = self._stream(prompt)
        for count, token in enumerate(own, 1):
            if stream.push(token):
                return Generation(stream.close(), own[:count], "stop")
        finish: Finish = "eos" if end_id is not None else "context" if room < wished else "length"
        if end_id is None and len(own) < min(room, wished):
            finish = "stop"  # whoever wrote them ends a text by a token that is not known here
        return Generation(stream.close(), own, finish, end_id)

    def room(self, prompt: PromptIds, least: int = 1) -> int:
        """Tokens that the context has after a prompt. Raises ``UsageError`` for fewer than ``least``, or where a choice would not fit."""
        room = check_room(self._loaded, prompt, least)
        if self._choices is not None and room < self._choices.longest:
            raise UsageError(
                f"the prompt has {len(split_prompt(prompt)[0])} tokens and the longest choice {self._choices.longest} with its end, and the"
                f" model takes {self._loaded.max_seq_len} in all; shorten one of them"
            )
        return room

    def run(
        self, prompts: Mapping[int, PromptIds], *, batch_size: int, indices: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Generation]]:
        """Yield each prompt's key and text, as soon as it has ended. ``indices``, or else the keys, decide what is drawn."""
        for prompt in prompts.values():
            self.room(prompt)
        keyed = zip(prompts.items(), prompts if indices is None else indices, strict=True)
        if self._config.rules.num_beams > 1:
            for (key, prompt), _ in keyed:  # the beams of one prompt are a batch already
                yield key, self._search(prompt)
            return
        decoder = Decoder(self._loaded, max_rows=batch_size, forward=self._forward)
        keys, parts = {}, {}
        for (key, prompt), index in keyed:
            number = decoder.add(self.request(prompt, index))
            keys[number], parts[number] = key, _Parts()
        while decoder.busy:
            for produced in decoder.step():
                parts[produced.number].add(produced)
                if produced.is_last:
                    yield keys[produced.number], parts.pop(produced.number).generation()

    def stream(self, prompt: PromptIds, index: int, show: Show) -> Generation:
        """Continue one prompt; ``show`` gets the text piece by piece as soon as it is certain."""
        self.room(prompt)
        if self._config.rules.num_beams > 1:
            found = self._search(prompt)
            show(found.text)
            return found
        decoder, parts = Decoder(self._loaded, max_rows=1, forward=self._forward), _Parts()
        decoder.add(self.request(prompt, index, streams=True))
        while decoder.busy:
            for produced in decoder.step():
                parts.add(produced)
                if produced.text:
                    show(produced.text)
        return parts.generation()

    def request(self, prompt: PromptIds, index: int, *, streams: bool = False) -> Request:
        """Return what a decoder is asked for one prompt; ``index`` and the config's seed decide what is drawn."""
        ids, media = split_prompt(prompt)
        return Request(
            ids=ids,
            media=media,
            rules=self._config.rules,
            most=self._config.max_new_tokens,
            stop=self._stop,
            choices=self._choices,
            end_ids=self._end_ids,
            seed=self._config.seed,
            index=index,
            top_logprobs=0 if self._config.logprobs else None,
            joins=self._joins,
            streams=streams,
        )

    def _stream(self, prompt: PromptIds) -> TextStream:
        after = split_prompt(prompt)[0] if self._joins else ()
        return TextStream(self._loaded.tokenizer, stop=self._stop, after=after)

    def _search(self, prompt: PromptIds) -> Generation:
        room, wished = self.room(prompt), self._config.max_new_tokens
        ids, media = split_prompt(prompt)
        refuse_media(self._loaded, media)
        found = search(
            self._loaded.model,
            ids,
            min(room, wished),
            rules=self._config.rules,
            end_ids=self._end_ids,
            choices=self._choices,
            forward=self._forward,
            media=media,
            read_media=self._loaded.read_media,
        )
        stream = self._stream(prompt)
        logprobs = tuple(found.logprobs) if self._config.logprobs else ()
        for count, token in enumerate(found.tokens, 1):
            if stream.push(token):
                return Generation(stream.close(), tuple(found.tokens[:count]), "stop", None, logprobs[:count])
        chosen = None if self._choices is None else self._choices.string(found.tokens)
        ended: Finish = "eos" if found.end_id is not None else "context" if room < wished else "length"
        return Generation(
            stream.close() if chosen is None else chosen, tuple(found.tokens), ended, found.end_id, logprobs
        )


@dataclass
class _Parts:
    """A text as it grows. Raises what its row failed by."""

    text: str = ""
    produced: list[TokenOutput] = field(default_factory=list)

    def add(self, produced: TokenOutput) -> None:
        if produced.error is not None:
            raise produced.error
        self.text += produced.text
        self.produced.append(produced)

    def generation(self) -> Generation:
        finish = self.produced[-1].finish
        assert finish is not None, "a text is put together once it has ended"
        ids = [each.token for each in self.produced]
        end_id = ids.pop() if finish == "eos" else None
        logprobs = tuple(each.logprob for each in self.produced if each.logprob is not None)
        return Generation(self.text, tuple(ids), finish, end_id, logprobs)


def _build_choices(loaded: LoadedModel, config: GenerationConfig) -> Choices:
    ends = [token for token in loaded.eos_ids if loaded.vocabulary is None or token < loaded.vocabulary]
    if not ends:
        which = (
            "no end token of the tokenizer has a row in the model's embedding"
            if loaded.eos_ids
            else "the tokenizer has no end token"
        )
        raise UsageError(f"{which}; one has to follow a choice: name it (tokenizer.eos_token)")
    choices = Choices(config.choices, loaded.tokenizer, ends[0])
    if loaded.vocabulary is not None:
        choices.refuse_beyond(loaded.vocabulary)
    if choices.longest > config.max_new_tokens:
        raise UsageError(
            f"the longest choice has {choices.longest} tokens with its end, and max_new_tokens is"
            f" {config.max_new_tokens}; set it to {choices.longest} or more"
        )
    return choices


def special_stops(stop: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """Return the stop texts that are special tokens (``<|eot_id|>``), with or without blanks behind: no text has them in it.

    Raises ``UsageError`` for one with a special token and more, which would never be found.
    """
    special: Mapping[str, int] = getattr(tokenizer, "special_ids", {})
    found = []
    for word in stop:
        if (alone := word.rstrip()) and alone in special:
            found.append(special[alone])
        elif name := next((name for name in special if name and name in word), None):
            raise UsageError(
                f"stop text {word!r} has the special token {name!r} in it, of which a text has nothing, so that it would never be found;"
                f" give {name!r} alone, or the text without it"
            )
        elif len(ids := tokenizer.encode(word)) == 1 and not tokenizer.decode(ids):
            found += ids
    return found
