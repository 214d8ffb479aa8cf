"""The shapes that a row may have, told apart by the names of its fields, and each of them as a conversation.

Fields that a shape does not know are ignored, as ``source`` and ``id`` are in most datasets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from mt_core.data.media_parts import media_of
from mt_core.data.tools import tools_of
from mt_core.data.turns import content, is_number, pairs, turns
from mt_core.errors import DataError, did_you_mean, show_value
from mt_core.rows import Message, Row

_NAMED = 12
"""Fields that a message names."""

LABELS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
"""How a label is written, in a table of texts or of numbers too."""

_PROMPTS = ("prompt", "instruction", "messages", "conversations")
"""Fields of what a pair answers."""

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Shape:
    """Fields that a row of this shape has, others that it may have, and how it becomes a conversation."""

    needs: tuple[str, ...]
    may: tuple[str, ...]
    turns: Callable[[Row], list[Message]]

    def __str__(self) -> str:
        return ", ".join(self.needs) + (f" (and perhaps {', '.join(self.may)})" if self.may else "")


def conversation(row: Row) -> list[Message]:
    """Return the turns of a row of any shape except ``text``. Raises ``DataError`` with the row's id if it fits no shape, or two.

    Turns from plain prompts and responses are ``raw``: without another wish (``data.template``) they are written as they stand.
    """
    return shape_of(row).turns(row)


def preference(row: Row) -> tuple[list[Message], list[Message], list[Message]]:
    """Prompt, chosen and rejected turns of a row with ``chosen`` and ``rejected``, each a text, a turn or a list of turns.

    The prompt is in ``prompt``, ``instruction``, ``messages`` or ``conversations``, the first that there is. Without any, or where both
    repeat it, it is what they have in common. Raises ``DataError``.
    """
    chosen, rejected = (_turn_of(row, name, "assistant") for name in ("chosen", "rejected"))
    prompt = _prompt_turns(row)
    common = 0
    while common < min(len(chosen), len(rejected)) - 1 and chosen[common] == rejected[common]:
        common += 1
    shared, asked = chosen[:common], [_key(turn) for turn in prompt]
    repeated = [_key(turn) for turn in shared[-len(prompt) :]] == asked or [_key(turn) for turn in chosen] == asked
    prompt = shared if repeated or not prompt else [*prompt, *shared]
    return _begin_turns(row, prompt), chosen[common:], rejected[common:]


def is_conversation(row: Row) -> bool:
    """Return whether the row has the fields of a conversation's shape."""
    return bool(_find_shapes(row))


def shape_of(row: Row) -> Shape:
    """The one shape that the row's fields make. Raises ``DataError`` when they make none, or two."""
    fits = _find_shapes(row)
    if len(fits) == 1:
        return fits[0]
    if not fits:
        near = _nearest_shape(row)
        missing = [name for name in near.needs if name not in row]
        wish = ", ".join(f"{name}: NAME" for name in missing)
        raise DataError(
            f"{row['id']}: no field {missing[0]!r}; fields found: {fields_of(row)}. The nearest shape is {near}. "
            f"Name the right fields with data.columns, for instance --data.columns '{{{wish}}}', or choose another --objective."
        )
    shapes = " and ".join(f"({', '.join(shape.needs)})" for shape in fits)
    spare = next(name for name in fits[-1].needs if name not in fits[0].needs)
    raise DataError(
        f"{row['id']}: its fields fit two shapes, {shapes}; fields found: {fields_of(row)}. Give one that is not meant another name, "
        f"for instance --data.columns '{{other: {spare}}}'."
    )


def text_field(row: Row, name: str) -> str:
    """Return the text in one field; raises ``DataError`` with the row's id if it is missing or not text."""
    if name not in row:
        raise DataError(
            f"{row['id']}: no field {name!r}; fields found: {fields_of(row)}. "
            f"Name the right one with data.columns, for instance --data.columns '{{{name}: NAME}}', or choose another --objective."
        )
    if not isinstance(value := row[name], str):
        raise DataError(
            f"{row['id']}: field {name!r} is of type {type(value).__name__}, not text: {str(value)[:60]!r}. "
            f"Write it as a string, or name another field with data.columns, for instance --data.columns '{{{name}: NAME}}'."
        )
    return value


def fields_of(row: Row) -> str:
    """The names of a row's fields, for a message: the first ones, and not all of a long one."""
    names = [show_value(key, 60) for key in row if key != "id"]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more or "none"


def _find_shapes(row: Row) -> list[Shape]:
    """A field that is null is none where the others make a shape: tables have all fields in every row."""
    said = frozenset(name for name in row if row[name] is not None) if None in row.values() else frozenset(row)
    return _fitting_names(said) or _fitting_names(frozenset(row))[:1]


@lru_cache(maxsize=256)
def _fitting_names(names: frozenset[str]) -> list[Shape]:
    fits = [shape for shape in SHAPES if names.issuperset(shape.needs)]
    return [shape for shape in fits if not any(set(shape.needs) < set(other.needs) for other in fits)]


def _nearest_shape(row: Row) -> Shape:
    """The shape that lacks the fewest fields, of those that have half of theirs; prompt and response where none has."""
    halves = [shape for shape in SHAPES if 2 * sum(name in row for name in shape.needs) >= len(shape.needs)]
    return min(halves or SHAPES[:1], key=lambda shape: sum(name not in row for name in shape.needs))


def _prompt_response(row: Row) -> list[Message]:
    # turns, of which the response is learned: https://huggingface.co/docs/trl/dataset_formats
    if any(isinstance(row[name], list | Mapping) for name in ("prompt", "response")):
        asked = [{"train": False, **turn} if turn["role"] == "assistant" else turn for turn in _prompt_turns(row)]
        return _begin_turns(row, [*asked, *_turn_of(row, "response", "assistant")])
    return _turns_of(row, text_field(row, "prompt"), text_field(row, "response"))


def _alpaca(row: Row) -> list[Message]:
    """https://github.com/tatsu-lab/stanford_alpaca: the template of that name tells ``input`` from the instruction."""
    earlier = pairs(row.get("history"), f"{row['id']}: field 'history'")
    answer = {"role": "assistant", "content": text_field(row, "output"), **media_of(row, "output")}
    return [*_system(row), *earlier, _instruction(row), answer]


def _instruction(row: Row) -> Message:
    instruction, more = text_field(row, "instruction"), row.get("input")
    media = media_of(row, "instruction", "input")
    if more is None or not text_field(row, "input"):
        return {"role": "user", "content": instruction, **media}
    return {"role": "user", "content": f"{instruction}\n{more}", "input": more, **media}


def _preferred_turns(row: Row) -> list[Message]:
    prompt, chosen, _ = preference(row)
    return [*prompt, *chosen]


def _labelled_turns(row: Row) -> list[Message]:
    """A response that is labelled bad is no turn to learn from."""
    label = LABELS.get(str(row["label"]).lower())
    if label is None:
        raise DataError(
            f"{row['id']}: field 'label' is {show_value(row['label'], 60)}; beside prompt and response it says whether that is good,"
            " true or false. Where it means something else, rename it: --data.columns '{other: label}'."
        )
    *before, answer = _prompt_response(row)
    return [*before, answer if label else {**answer, "train": False}]


def _best_scored_turns(row: Row) -> list[Message]:
    """The answer with the highest score, the first of equals."""
    answers = row["answers"]
    fine = isinstance(answers, list) and all(
        isinstance(each, dict) and isinstance(each.get("text"), str) and is_number(each.get("score"))
        for each in answers
    )
    if not fine or not answers:
        raise DataError(
            f'{row["id"]}: field \'answers\' must be a list of {{"text": "…", "score": 1.0}}, got {show_value(answers, 60)}.'
        )
    return _turns_of(row, text_field(row, "prompt"), max(answers, key=lambda each: each["score"])["text"])


def _choice(row: Row) -> list[Message]:
    """The prompt, a line for each choice with its letter, ``Answer:``, and the letter (https://arxiv.org/abs/2009.03300)."""
    choices, answer = row["choices"], row["answer"]
    if not isinstance(choices, list) or not 2 <= len(choices) <= len(LETTERS):
        raise DataError(
            f"{row['id']}: field 'choices' must be a list of 2 to {len(LETTERS)} texts, got {show_value(choices, 60)}."
        )
    texts = [content(text, f"{row['id']}: field 'choices', choice {n}") for n, text in enumerate(choices, 1)]
    letters = LETTERS[: len(texts)]
    is_letter = isinstance(answer, str) and len(answer) == 1 and answer.upper() in letters
    number = letters.index(answer.upper()) if is_letter else answer
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(texts):
        raise DataError(
            f"{row['id']}: field 'answer' is {show_value(answer, 60)}; it is a letter from A to {letters[-1]}, or a number from 0 to "
            f"{len(texts) - 1}."
        )
    lines = [f"{letter}. {text}\n" for letter, text in zip(letters, texts, strict=True)]
    return _turns_of(row, f"{text_field(row, 'prompt')}\n{''.join(lines)}Answer:", f" {letters[number]}")


def _turns_of(row: Row, prompt: str, response: str) -> list[Message]:
    """A prompt and its response, after other turns where the row has any."""
    earlier = pairs(row.get("history"), f"{row['id']}: field 'history'")
    asked = {"role": "user", "content": prompt, "raw": True, **media_of(row, "prompt", "choices")}
    answer = {"role": "assistant", "content": response, "raw": True, **media_of(row, "response")}
    return [*_system(row), *earlier, asked, answer]


def _list_turns(row: Row, name: str) -> list[Message]:
    place = f"{row['id']}: field {name!r}"
    found = turns(row[name], place)
    if not any(turn["role"] == "assistant" for turn in found):
        raise DataError(
            f"{place} has no turn of the assistant, so there is nothing to learn. Add one, or drop the row."
        )
    if row.get("label") is False:  # as beside prompt and response; a class is a number or a name
        found[-1] = {**found[-1], "train": False}
    return _begin_turns(row, found)


def _begin_turns(row: Row, found: list[Message]) -> list[Message]:
    """The turns after the system message of the row, and with its tools."""
    begun = [*(system := _system(row)), *found]
    if system and found and found[0]["role"] == "system":
        raise DataError(
            f"{row['id']}: its turns begin with a system message, and the field 'system' is another. Keep one of them."
        )
    tools = tools_of(row)
    return [{**begun[0], "tools": tools}, *begun[1:]] if tools and begun else begun


def _prompt_turns(row: Row) -> list[Message]:
    """The turns that both answers of a pair follow, but for those that these repeat."""
    earlier = pairs(row.get("history"), f"{row['id']}: field 'history'")
    name = next((name for name in _PROMPTS if row.get(name) is not None), None)
    asked = [_instruction(row)] if name == "instruction" else _turn_of(row, name, "user") if name else []
    return [*earlier, *asked]


def _turn_of(row: Row, name: str, role: str) -> list[Message]:
    value = row.get(name)
    if isinstance(value, list | Mapping):
        return turns([value] if isinstance(value, Mapping) else value, f"{row['id']}: field {name!r}")
    return [{"role": role, "content": text_field(row, name), "raw": True, **media_of(row, name)}]


def _system(row: Row) -> Sequence[Message]:
    if row.get("system") is None or not (text := text_field(row, "system")):
        return []
    return [{"role": "system", "content": text, **media_of(row, "system")}]


def _key(turn: Message) -> tuple[Any, ...]:
    return turn["role"], turn["content"], turn.get("tool_calls"), turn.get("reasoning_content"), turn.get("media")


SHAPES = (
    Shape(("prompt", "response"), ("system", "history"), _prompt_response),
    Shape(("instruction", "output"), ("input", "system", "history"), _alpaca),
    *(Shape((name,), ("system", "tools"), partial(_list_turns, name=name)) for name in ("messages", "conversations")),
    Shape(("chosen", "rejected"), ("prompt", "system", "history", "tools"), _preferred_turns),
    *(
        Shape((name, "chosen", "rejected"), ("system", "tools"), _preferred_turns)
        for name in ("messages", "conversations", "instruction")
    ),
    Shape(("prompt", "response", "label"), ("system", "history"), _labelled_turns),
    Shape(("prompt", "answers"), ("system", "history"), _best_scored_turns),
    Shape(("prompt", "choices", "answer"), ("system", "history"), _choice),
    # as the recipes of classic sets give them: written out already, with what they were made of
    Shape(("prompt", "response", "choices", "answer"), ("system", "history"), _prompt_response),
    Shape(("prompt", "response", "chosen", "rejected"), ("system", "history"), _prompt_response),
)
"""Every shape of a conversation; ``text`` is the other one. Where one's fields include another's, the larger is meant."""


def rename_columns(row: Row, columns: Mapping[str, str]) -> Row:
    """The row under our field names; ``columns`` maps ours to theirs. Raises ``DataError`` for a name that is not there."""
    if not columns:
        return row
    if "id" in columns or "id" in columns.values():
        raise DataError(
            f"{row['id']}: data.columns names 'id', which is the place of a row. Rename that field in the file."
        )
    values: dict[str, Any] = {key: value for key, value in row.items() if key not in columns.values()}
    for ours, theirs in columns.items():
        if theirs not in row:
            fields = [key for key in row if key != "id"]
            raise DataError(
                f"{row['id']}: data.columns maps {ours!r} to {theirs!r}, which the row does not have."
                f" {did_you_mean(theirs, fields)}Its fields: {fields_of(row)}."
            )
        values[ours] = row[theirs]
    return values
