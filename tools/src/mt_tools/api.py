"""Text from Python, as ``mt-generate`` makes it: the same errors, no ``sys.exit``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from mt_core.errors import DataError, UsageError, did_you_mean
from mt_core.generation import GenerationConfig, SamplingRules
from mt_train.config import arguments

if TYPE_CHECKING:
    from mt_core.generation import Generation
    from mt_tools.generation.prompts import Prompt
    from mt_train.generation.loaded_model import LoadedModel


def generate(
    loaded: LoadedModel,
    prompts: str | Sequence[Prompt],
    *,
    max_new_tokens: int = 128,
    stop: Sequence[str] = (),
    choices: Sequence[str] = (),
    batch_size: int = 8,
    seed: int = 0,
    chat_template: str | None = None,
    logprobs: bool = False,
    **rules: Any,
) -> list[Generation]:
    """Continue each prompt (a text, or the messages of a conversation): text, ids, and why each ended.

    ``rules`` are those of ``mt-generate``: ``greedy``, ``temperature``, ``top_k``, ``top_p``, ``num_beams`` and more. Prompt i
    draws from a generator that (``seed``, i) decides, so ``batch_size`` changes no text. With ``logprobs`` each
    says how likely its tokens were. Raises ``UsageError``.
    """
    from mt_tools.generation.generate import generate as continue_each
    from mt_train.generation.loaded_model import LoadedModel

    if not isinstance(loaded, LoadedModel):
        raise arguments.refuse("generate", "loaded", loaded, "what load_run or load_adapters gives")
    wishes = GenerationConfig(
        rules=_rules(rules),
        max_new_tokens=max_new_tokens,
        stop=(stop,) if isinstance(stop, str) else arguments.texts("generate", "stop", stop),
        choices=arguments.texts("generate", "choices", choices),
        seed=seed,
        logprobs=logprobs,
    )
    listed = _prompts(prompts)
    if chat_template is not None:
        arguments.text("generate", "chat_template", chat_template, "the name of a template, a Jinja file, or None")
        if all(isinstance(prompt, str) for prompt in listed):
            raise UsageError(
                "generate(): chat_template writes conversations down, and every prompt is plain text; leave it out"
            )
    return continue_each(loaded, listed, wishes, batch_size=batch_size, chat_template=chat_template)


def _prompts(given: Any) -> list[Prompt]:
    """The prompts one by one. Raises ``UsageError`` for what is neither a text nor the messages of a conversation."""
    if isinstance(given, str):
        return [given]
    if not isinstance(given, Sequence) or isinstance(given, bytes):
        raise arguments.refuse("generate", "prompts", given, _PROMPTS)
    for index, prompt in enumerate(given):
        is_conversation = isinstance(prompt, list | tuple) and all(isinstance(turn, Mapping) for turn in prompt)
        if not isinstance(prompt, str) and not (prompt and is_conversation):
            raise arguments.refuse("generate", f"prompts[{index}]", prompt, _PROMPTS)
        if not isinstance(prompt, str):
            _check_turns(list(prompt), index)
    return list(given)


def _check_turns(prompt: list[Any], index: int) -> None:
    from mt_core.data.turns import turns

    try:
        turns(prompt, f"generate(): prompts[{index}]")
    except DataError as error:
        raise UsageError(str(error)) from error


_PROMPTS = (
    "a text or the messages of a conversation, or a list of these: ['The '], [[{'role': 'user', 'content': 'Hello'}]]"
)


def _rules(given: Mapping[str, Any]) -> SamplingRules:
    known: list[str] = [each.name for each in fields(SamplingRules)]
    if unknown := [name for name in given if name not in known]:
        hint = did_you_mean(unknown[0], known)
        raise UsageError(f"generate() knows no rule {unknown[0]!r}. {hint}Rules: {', '.join(known)}")
    return SamplingRules(**given)
