"""Prompts as ids, and answers as texts: what every evaluation that lets the model write does alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

from mt_core import DataError, Dataset, Encoded, Message, Row, Stream, UsageError, begin_ids, text_encoder
from mt_core.evaluation import Subject
from mt_core.generation import Generation, GenerationConfig, SamplingRules
from mt_core.media import EncodesMedia

Prompt = Sequence[int] | Encoded
"""Ids, with media where it has any."""

TOO_LONG: Literal["too_long"] = "too_long"


@dataclass(frozen=True)
class Answer:
    """Text that the model wrote, and why it ended; ``too_long``: the prompt alone fills the context, so that nothing was asked."""

    text: str
    finish: str

    @property
    def is_cut(self) -> bool:
        """Return whether it might have gone on."""
        return self.finish in ("length", "context", TOO_LONG)


def read_rows(rows: Dataset | Stream | None, limit: int | None) -> list[Row]:
    """Return the rows, or the first ``limit``. Raises ``DataError`` for the first that cannot be read, and where there is none."""
    found = list(islice(_each(rows), limit))
    if not found:
        raise DataError("the dataset of the evaluation has no rows; look at its path and split")
    return found


def _each(rows: Dataset | Stream | None) -> Iterator[Row]:
    if isinstance(rows, Stream):
        for row in rows.rows(0, 0):
            if isinstance(row, DataError):
                raise row
            yield row
    elif rows is not None:
        yield from (rows.row(at) for at in range(len(rows)))


def refuse_no_texts(subject: Subject, name: str) -> None:
    """Raise ``UsageError`` where the layout cannot write."""
    if not subject.texts:
        raise UsageError(
            f"the evaluation {name} lets the model write, which it cannot on this layout;"
            " evaluate the checkpoint with mt-eval, or train without pipeline and sequence ranks"
        )


def plain_ids(subject: Subject, text: str) -> list[int]:
    """Ids of a text that the model goes on with, and what the tokenizer puts in front."""
    return [*begin_ids(subject.tokenizer), *text_encoder(subject.tokenizer)(text)]


def prepare_rows(subject: Subject, rows: Sequence[Row]) -> list[Row]:
    """Return the rows, with their media marked where the model has encoders. Raises ``DataError``."""
    return [subject.prepare(row) for row in rows] if isinstance(subject.template, EncodesMedia) else list(rows)


def turn_ids(subject: Subject, turns: Sequence[Message], row_id: object) -> list[int]:
    """Ids of a conversation up to where the assistant speaks. Raises ``DataError`` that names the row, also for one with media."""
    with _naming(row_id):
        return subject.template.prompt(turns)


def turn_prompt(subject: Subject, turns: Sequence[Message], row_id: object) -> Prompt:
    """A conversation up to where the assistant speaks, or a plain prompt as the run writes it; with its media where it has any.

    Raises ``DataError`` that names the row.
    """
    with _naming(row_id):
        if all(turn.get("raw") for turn in turns):
            return _raw_prompt(subject, turns)
        if isinstance(subject.template, EncodesMedia):
            written = subject.template.encode_prompt(turns)
            return written if written.media else written.ids
        return subject.template.prompt(turns)


@contextmanager
def _naming(row_id: object) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise error.of_row(row_id) from error.__cause__


def _raw_prompt(subject: Subject, turns: Sequence[Message]) -> Prompt:
    """Return the ids, and media, that stand before the first token of any answer."""
    answer = {"role": "assistant", "content": "x", "raw": True, "train": True}
    written = subject.template.encode([*({**turn, "train": False} for turn in turns), answer])
    end = list(written.trained).index(True)
    ids = list(written.ids[:end])
    return Encoded(ids, [False] * end, media=written.media) if written.media else ids


def count_tokens(prompt: Prompt) -> int:
    """Return the tokens of a prompt, places of media included."""
    return len(prompt.ids if isinstance(prompt, Encoded) else prompt)


def find_fitting(subject: Subject, prompts: Sequence[Prompt]) -> list[int]:
    """Return the places of prompts that leave room for a token. Raises ``DataError`` where none does."""
    fitting = [at for at, prompt in enumerate(prompts) if count_tokens(prompt) < subject.max_seq_len]
    if not fitting:
        raise DataError(
            f"every prompt is as long as the model's context ({subject.max_seq_len} tokens) or longer; there is nothing to ask"
        )
    return fitting


def ask(subject: Subject, prompts: Sequence[Prompt], config: GenerationConfig, *, chat: bool) -> list[Answer]:
    """Let the model answer each prompt that leaves room for a token; in a conversation an answer ends with its turn."""
    fitting = find_fitting(subject, prompts)
    wishes = with_turn_end(subject, config) if chat else config
    answers = [Answer("", TOO_LONG)] * len(prompts)
    written = subject.generate([prompts[at] for at in fitting], wishes)
    for at, generation in zip(fitting, written, strict=True):
        answers[at] = turn_answer(subject, generation) if chat else Answer(generation.text, generation.finish)
    return answers


def with_turn_end(subject: Subject, config: GenerationConfig) -> GenerationConfig:
    """Stop where a turn of the run's template ends with a text."""
    stop = subject.template.stop_text
    return (
        config
        if not stop or stop in config.stop or config.rules.num_beams > 1
        else replace(config, stop=(*config.stop, stop))
    )


def turn_answer(subject: Subject, generation: Generation) -> Answer:
    """Return the answer before the token with which the template ends a turn, where the model went on behind it."""
    ends = [at for at, token in enumerate(generation.ids) if token in subject.template.stop_ids]
    if not ends:
        return Answer(generation.text, generation.finish)
    return Answer(subject.tokenizer.decode(generation.ids[: ends[0]]), "eos")


def sampling_rules(temperature: float, *, top_p: float | None = None) -> SamplingRules:
    """Rules for a temperature; 0 takes the likeliest token."""
    if temperature == 0:
        return SamplingRules(greedy=True)
    return SamplingRules(temperature=temperature, top_p=top_p)


def share(answers: Sequence[Answer], counted: Callable[[Answer], bool]) -> float:
    """Return the share of answers that are counted."""
    return sum(map(counted, answers)) / len(answers)


def figure_name(metric: str, figure: str) -> str:
    """Name of a metric's figure beside those of other metrics: ``rouge1`` of ``rouge``, ``choice_letter_accuracy`` of ``choice-letter``."""
    own = metric.replace("-", "_")
    return figure if figure.startswith(own) else f"{own}_{figure}"


def name_figures(metric: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return figures under names of their metric."""
    return {figure_name(metric, figure): value for figure, value in figures.items()}


def too_long_notes(answers: Sequence[Answer], most: int) -> list[str]:
    """Say how many prompts were never asked."""
    count = sum(answer.finish == TOO_LONG for answer in answers)
    return [f"{count:,} prompts fill the model's context ({most:,} tokens) and count as empty answers"] if count else []
