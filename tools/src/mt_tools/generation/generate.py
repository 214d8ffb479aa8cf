"""Texts after prompts: what the command and Python programs call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mt_core.errors import UsageError
from mt_core.generation import Generation, GenerationConfig, find_faults, raise_faults
from mt_core.protocols import Template, Tokenizer
from mt_tools.generation.media import MediaText
from mt_tools.generation.prompts import Prompt, prepare, template_of
from mt_train.generation.backend import Backend
from mt_train.generation.continuation import Continuer
from mt_train.generation.loaded_model import LoadedModel
from mt_train.generation.request import PromptIds, split_prompt
from mt_train.generation.text import Show


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
    converses = any(not isinstance(prompt, str | MediaText) for prompt in listed)
    writer = Generator(loaded, wishes or GenerationConfig(), template_of(loaded, chat_template) if converses else None)
    ids = {index: writer.prepare(prompt, _place(index, len(listed))) for index, prompt in enumerate(listed)}
    found = dict(writer.write(ids, batch_size))
    return [found[index] for index in ids]


def describe_empty(found: Generation, tokenizer: Tokenizer) -> str:
    """Say why a text shows nothing, which looks like a command that did nothing."""
    why = "blanks alone" if found.ids else "no text: its first token ended it"
    turns = "; it has a chat template: --chat asks it in turns" if tokenizer.chat_template else ""
    return f"the model wrote {why}{turns}"


def _place(index: int, count: int) -> str:
    return "" if count == 1 else f"prompt {index} (counted from 0): "


class Generator:
    """Continues prompts by the same wishes: a prompt's text and the new one are the text of all ids.

    With a ``template`` they may be conversations, and end as its turns do. Then each new text is one of its own, as in transformers.
    """

    def __init__(self, loaded: LoadedModel, wishes: GenerationConfig, template: Template | None = None) -> None:
        self._loaded = loaded
        self._template = template
        self._wishes = wishes
        self._continuer = Continuer(loaded, wishes, template, joins=template is None)

    def prepare(self, prompt: Prompt, place: str = "") -> PromptIds:
        """Ids of a prompt that can be continued. ``place`` begins the message of what is wrong with it."""
        try:
            ids = prepare(self._loaded, prompt, self._template)
            self._continuer.room(ids)
        except UsageError as error:
            raise UsageError(f"{place}{error}") from error
        return ids

    def write(self, prompts: Mapping[int, PromptIds], batch_size: int) -> Iterator[tuple[int, Generation]]:
        """Yield the index and the text of each prepared prompt, as soon as it has ended; the index decides what is drawn."""
        return self._continuer.run(prompts, batch_size=batch_size)

    def write_elsewhere(self, prompts: Mapping[int, PromptIds], backend: Backend) -> Iterator[tuple[int, Generation]]:
        """Yield generations that a backend writes from the same prompt ids."""
        ids = {index: split_prompt(prompt)[0] for index, prompt in prompts.items()}
        most = {
            index: min(self._continuer.room(prompt), self._wishes.max_new_tokens) for index, prompt in prompts.items()
        }
        for index, found in backend.write(ids, self._wishes, most=most, end_ids=self._continuer.end_ids):
            yield index, self._continuer.finish(prompts[index], found)

    def stream(self, prompt: PromptIds, index: int, show: Show) -> Generation:
        """Continue a prepared prompt; ``show`` gets the text as it grows."""
        return self._continuer.stream(prompt, index, show)
