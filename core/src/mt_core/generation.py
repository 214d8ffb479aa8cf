"""Texts after prompts: what can be asked of a model, checked in one place, and what it answers.

Torch is not imported, so that a wrong option is told before a model loads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from mt_core.errors import UsageError, show_value

__all__ = ["Generation", "GenerationConfig", "SamplingRules", "find_faults"]

Finish = Literal["eos", "stop", "length", "context"]

_TYPES: dict[str, tuple[type, ...]] = {"bool": (bool,), "int": (int,), "float": (int, float)}
_WORDS = {"bool": "true or false", "int": "a whole number", "float": "a number"}
_MOST = 1e19
"""Above it is no count of tokens, and no weight."""

_SAMPLING = {"temperature": 1.0, "top_k": None, "top_p": None, "min_p": None, "typical_p": None}
_BEAMS = {"length_penalty": 1.0, "early_stopping": False}

MOST_CHOICES = 10**5
"""Choices, which are kept as a tree of tokens: some 100 MB."""
MOST_BEAMS, MOST_TOKENS, MOST_PROMPTS = 1024, 10**7, 10**5
"""Beams, of which each has a cache of its own; tokens of one text; prompts at a time."""

_BOUNDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (lambda x: x >= 0.001, "at least 0.001; greedy always takes the likeliest token"),
    "top_k": (lambda x: 1 <= x <= MOST_TOKENS, f"from 1 to {MOST_TOKENS:,} tokens"),
    "top_p": (lambda x: 0 < x <= 1, "above 0 and at most 1"),
    "min_p": (lambda x: 0 <= x <= 1, "between 0 and 1"),
    "typical_p": (lambda x: 0 < x < 1, "above 0 and below 1"),
    "repetition_penalty": (lambda x: x >= 1e-3, "0.001 or more; 1 changes nothing"),
    "frequency_penalty": (lambda x: True, "a finite number; 0 changes nothing"),
    "presence_penalty": (lambda x: True, "a finite number; 0 changes nothing"),
    "no_repeat_ngram": (lambda x: 1 <= x <= MOST_TOKENS, f"from 1 to {MOST_TOKENS:,} tokens"),
    "min_new_tokens": (lambda x: 0 <= x <= MOST_TOKENS, f"from 0 to {MOST_TOKENS:,} tokens"),
    "num_beams": (lambda x: 1 <= x <= MOST_BEAMS, f"from 1 to {MOST_BEAMS:,}"),
    "length_penalty": (lambda x: abs(x) <= 50, "from -50 to 50; above 0 favours long texts"),
    "max_new_tokens": (lambda x: 1 <= x <= MOST_TOKENS, f"from 1 to {MOST_TOKENS:,} tokens"),
    "seed": (lambda x: -(2**63) <= x < 2**63, "a whole number of 64 bits"),
    "batch_size": (lambda x: 1 <= x <= MOST_PROMPTS, f"from 1 to {MOST_PROMPTS:,} prompts"),
}


@dataclass(frozen=True, kw_only=True)
class SamplingRules:
    """Sampling options, with the names and formulas of transformers.

    ``greedy`` takes the most likely token, and ``num_beams`` above 1 searches for the most likely text; both are deterministic.
    Frequency and presence penalties are OpenAI's. Raises ``UsageError`` that lists every value out of bounds.
    """

    greedy: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    no_repeat_ngram: int | None = None
    min_new_tokens: int = 0
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool = False

    def __post_init__(self) -> None:
        raise_faults(find_faults(vars(self)))

    @property
    def draws(self) -> bool:
        """Return whether the text depends on random numbers."""
        return not self.greedy and self.num_beams == 1


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Everything that determines a generated text besides the model and the prompt. ``max_new_tokens`` counts tokens.

    A text ends before any of ``stop``; with ``choices`` it is one of them. ``logprobs`` adds the log-probability of each token.
    """

    rules: SamplingRules = field(default_factory=SamplingRules)
    max_new_tokens: int = 128
    stop: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    seed: int = 0
    logprobs: bool = False

    def __post_init__(self) -> None:
        own = {key: value for key, value in vars(self).items() if key != "rules"}
        raise_faults(find_faults({**vars(self.rules), **own}))


@dataclass(frozen=True)
class Generation:
    """A text generated after a prompt."""

    text: str
    """The new text alone, without the prompt; it ends before a stop text. With ``choices`` it is one of them, to the letter."""
    ids: tuple[int, ...]
    """The new tokens, at most ``max_new_tokens``: without the prompt's and without an end token; those of a stop text are in them."""
    finish: Finish
    """Why it ended: ``eos`` an end token (or a special token among the stop texts), ``stop`` a stop text, ``length`` the wanted
    number of tokens, ``context`` the longest that the model takes."""
    end_id: int | None = None
    """The end token that it ended with, where it did."""
    logprobs: tuple[float, ...] = ()
    """Log-probability (nats) of each of ``ids``, and last of ``end_id`` where there is one, under the model itself: before temperature
    and every other rule. Only where ``GenerationConfig.logprobs`` asks for it."""


def raise_faults(found: Sequence[str]) -> None:
    """Raise ``UsageError`` with all faults, if there are any."""
    if len(found) == 1:
        raise UsageError(found[0])
    if found:
        raise UsageError("\n".join([f"{len(found)} faults:", *(f"  {fault}" for fault in found)]))


def find_faults(values: Mapping[str, Any], spell: Callable[[str], str] = str) -> list[str]:
    """Return the faults of values of ``SamplingRules`` and ``GenerationConfig``, which may be only some of them.

    ``spell`` turns the name of a field into what the user calls it.
    """
    wrong = {name: allowed for name, value in values.items() if (allowed := _fault(name, value))}
    found = [f"{spell(name)} must be {allowed}; got {show_value(values[name])}" for name, allowed in wrong.items()]
    return [*found, *_clashes({name: value for name, value in values.items() if name not in wrong}, spell)]


def _fault(name: str, value: Any) -> str:
    """Return what a value has to be, where it is not; nothing for a fine one, and for what is no rule."""
    kind, optional, _ = _KINDS.get(name, "").partition(" | None")
    fine, allowed = _BOUNDS.get(name, (lambda x: True, ""))
    if optional and value is None:
        return ""
    if kind in _TYPES and (not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "bool")):
        return f"{_WORDS[kind]}{allowed and ', '}{allowed}"
    return "" if not allowed or (abs(value) < _MOST and fine(value)) else allowed


def _clashes(values: Mapping[str, Any], spell: Callable[[str], str]) -> Iterator[str]:
    drawing = [spell(name) for name, off in _SAMPLING.items() if values.get(name, off) != off]
    beams = (values.get("num_beams") or 1) > 1
    if drawing and (beams or values.get("greedy")):
        what = spell("num_beams") if beams else spell("greedy")
        yield f"{what} draws nothing by chance, so {', '.join(drawing)} would have no effect; leave one or the other out"
    searching = [spell(name) for name, off in _BEAMS.items() if values.get(name, off) != off]
    if searching and not beams:
        yield f"{', '.join(searching)} belong to beam search; add {spell('num_beams')} of 2 or more, or leave them out"
    yield from _stop_clashes(values, spell, beams)
    most = values.get("max_new_tokens")
    if most is not None and values.get("min_new_tokens", 0) > most:
        yield (
            f"{spell('min_new_tokens')} {values['min_new_tokens']} is above {spell('max_new_tokens')} {most};"
            " raise the second or lower the first"
        )


def _stop_clashes(values: Mapping[str, Any], spell: Callable[[str], str], beams: bool) -> Iterator[str]:
    stop = values.get("stop") or ()
    if "" in stop:
        yield f"{spell('stop')} is an empty text, which is everywhere; give the text to stop at"
    if stop and beams:
        yield f"{spell('stop')} is looked for in one growing text, and {spell('num_beams')} has several; leave one out"
    choices = values.get("choices")
    if isinstance(choices, tuple) and len(choices) > MOST_CHOICES:
        yield f"{spell('choices')} has {len(choices):,} texts, and takes at most {MOST_CHOICES:,}"
    if stop and values.get("choices"):
        yield f"{spell('choices')} already says what the text may be; leave {spell('stop')} out"


_KINDS = {each.name: str(each.type) for each in (*fields(SamplingRules), *fields(GenerationConfig))} | {
    "batch_size": "int"
}
"""The type of each rule, as its class has it."""
