"""Several datasets as one: in sequence, or in shares by rows, by length, or by temperature.

Temperature: a share is proportional to rows ** (1 / temperature) (https://arxiv.org/abs/1907.05019); 1 keeps the sizes,
large values give every source the same.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from mt_core import DataError, Dataset, MtConfig, PartChoice, Row, Stream

from .stream_mix import MixedSource, StreamMix

_OWN = ("weight", "read_rows", "columns")
"""Keys of a source that belong to the mix; all others are the source's."""

_MOST_ROWS = 2**53
"""Rows of a source in an epoch that are still counted exactly."""
_MEASURED = 1000
"""Rows of a source, evenly spread, whose length is measured."""

_BYTES_A_TOKEN = 4

_MORE = ("system", "history", "tools", "chosen", "rejected")
_TEXTS = {
    "input_ids": (),
    "text": (),
    "messages": _MORE,
    "conversations": _MORE,
    "instruction": ("input", "output", *_MORE),
    "prompt": ("response", "choices", "answers", *_MORE),
    "chosen": _MORE,
}
"""Field of a shape that is trained on (docs/conversations.md), the first that a row has → the others of its texts."""


class ConcatConfig(MtConfig):
    """Datasets, and how much of each."""

    sources: tuple[dict[str, Any], ...] = Field(
        min_length=1,
        description="datasets: {name (by default that of the path's ending), options …, weight (1), read_rows (only its first rows; all),"
        " columns {ours: theirs}}, each",
    )
    mix: Literal["sequential", "rows", "tokens", "temperature"] = Field(
        "sequential",
        description="all rows once, or shares: of rows by weight, of tokens (text measured in bytes) by weight, or by weight"
        " times rows ** (1 / temperature)",
    )
    temperature: float = Field(2.0, ge=1, allow_inf_nan=False, description="for mix temperature; 1 keeps the sizes")
    until: Literal["all", "first"] = Field(
        "all",
        description="with shares, an epoch ends when all sources were read (others repeat), or when the first was (rows are left out)",
    )

    @model_validator(mode="after")
    def _options_belong_to_the_mix(self) -> Self:
        if self.mix == "sequential" and self.until != "all":
            raise ValueError("until=first has no effect with mix sequential; set mix to rows, tokens or temperature")
        if self.mix != "temperature" and self.temperature != type(self).model_fields["temperature"].default:
            raise ValueError(
                f"temperature={self.temperature:g} has no effect with mix {self.mix}; set mix to temperature"
            )
        return self

    @model_validator(mode="after")
    def _sources_are_named(self) -> Self:
        for number, source in enumerate(self.sources):
            if not isinstance(source.get("name", ""), str) or not (source.get("name") or source.get("path")):
                raise ValueError(f"sources.{number} has neither name nor path; write {{path: rows.jsonl}}")
            weight = source.get("weight", 1)
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
                raise ValueError(f"sources.{number}.weight is {weight!r}; write a number above 0")
            if "weight" in source and self.mix == "sequential":
                raise ValueError(
                    f"sources.{number}.weight has no effect with mix sequential; set mix to rows or tokens"
                )
            most = source.get("read_rows")
            if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
                raise ValueError(f"sources.{number}.read_rows is {most!r}; write a whole number of 1 or more")
            columns = source.get("columns", {})
            if not isinstance(columns, dict) or not all(
                isinstance(each, str) for pair in columns.items() for each in pair
            ):
                raise ValueError(
                    f"sources.{number}.columns is {columns!r}; write {{prompt: question, response: answer}}"
                )
        return self


def parts(config: ConcatConfig) -> Mapping[str, PartChoice]:
    """The datasets to build, without what belongs to the mix."""
    return {
        f"sources.{number}": PartChoice.of({key: value for key, value in source.items() if key not in _OWN})
        for number, source in enumerate(config.sources)
    }


class Mix:
    """Rows of several datasets: index → (source, index) by arithmetic. ``sizes`` are how many of the first rows of each are read,
    ``counts`` its rows in an epoch, and ``names`` what reports call it."""

    def __init__(
        self,
        sources: Sequence[Dataset],
        columns: Sequence[Mapping[str, str]],
        sizes: Sequence[int],
        counts: Sequence[int],
        names: Sequence[str],
    ) -> None:
        self._sources, self._columns, self._names = sources, columns, names
        self._sizes, self._counts = sizes, counts
        self._begins = list(accumulate(counts, initial=0))

    def __len__(self) -> int:
        return self._begins[-1]

    def row(self, index: int) -> Row:
        """The row with our field names; ``id`` is the source's."""
        from mt_core import rename_columns  # numpy loads here, not when plugins are listed

        number, inner = self.place(index)
        return rename_columns(self._sources[number].row(inner), self._columns[number])

    def place(self, index: int) -> tuple[int, int]:
        """(source, index in it); a source that is asked for more rows than it has begins anew."""
        number = bisect_right(self._begins, index) - 1
        return number, (index - self._begins[number]) % self._sizes[number]

    def sources(self) -> Sequence[tuple[str, int]]:
        """Return name and number of rows of each source, in the order of the indices."""
        return list(zip(self._names, self._counts, strict=True))

    def originals(self) -> Sequence[int]:
        """Return for each index the lowest one with the same row, also where a source is a mix itself."""
        found = array("q")
        for begin, count, size, source in zip(self._begins, self._counts, self._sizes, self._sources, strict=False):
            own = source.originals() if isinstance(source, Mix) else range(size)
            found.extend(begin + own[place % size] for place in range(count))
        return found


def concat_files(
    config: ConcatConfig, split: Literal["train", "eval"], *, parts: Sequence[Sequence[Path] | None]
) -> list[Path] | None:
    """The files of all sources, where all say; for evaluation of those that have some of their own."""
    found = [files for files in parts if files is not None]
    if not found or (split == "train" and len(found) < len(parts)):
        return None
    return [path for files in found for path in files]


def build_concat(
    config: ConcatConfig, *, split: Literal["train", "eval"], parts: Sequence[Dataset | Stream | None]
) -> Mix | StreamMix | None:
    """The mix, a stream where a source is one. For evaluation: all rows of those sources that have some of their own, each once."""
    chosen = [(part, source) for part, source in zip(parts, config.sources, strict=True) if part is not None]
    if split == "eval" and not chosen:
        return None
    _check(config, parts, split)
    columns = [source.get("columns", {}) for _, source in chosen]
    datasets = [part for part, _ in chosen if isinstance(part, Dataset)]
    if len(datasets) < len(chosen):
        mixed = [
            MixedSource(part, source.get("columns", {}), name, source.get("read_rows"))
            for (part, source), name in zip(chosen, _names([source for _, source in chosen]), strict=True)
        ]
        in_turns = split == "train" and config.mix == "rows"
        return StreamMix(mixed, _weights(config) if in_turns else None, config.until)
    sizes = [
        min(len(part), source.get("read_rows") or len(part)) for part, (_, source) in zip(datasets, chosen, strict=True)
    ]
    counts = sizes if split == "eval" else _counts(config, datasets, sizes)
    return Mix(datasets, columns, sizes, counts, _names([source for _, source in chosen]))


def _names(sources: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what each source is called: its component, with its path or task, and its number where that is the same for two."""
    plain = [
        " ".join(str(source[key]) for key in ("name", "path", "task") if source.get(key) is not None)
        for source in sources
    ]
    return [f"{name} ({number})" if plain.count(name) > 1 else name for number, name in enumerate(plain)]


def _check(config: ConcatConfig, parts: Sequence[Dataset | Stream | None], split: str) -> None:
    for number, (part, source) in enumerate(zip(parts, config.sources, strict=True)):
        where = f"dataset.sources.{number} ({source.get('name', source.get('path'))})"
        if part is None and split == "train":
            raise DataError(f"{where} has no rows to train on. Take it out of the mix.")
        if isinstance(part, Dataset) and not len(part):
            raise DataError(f"{where} has no rows. Take it out of the mix.")
        if isinstance(part, Stream) and config.mix in ("tokens", "temperature"):
            raise DataError(
                f"{where} is a stream, and dataset.mix {config.mix} asks for the number or the length of all its rows. Set mix to rows,"
                " with weights, or to sequential."
            )


def _weights(config: ConcatConfig) -> list[float]:
    return [float(source.get("weight", 1)) for source in config.sources]


def _counts(config: ConcatConfig, sources: Sequence[Dataset], sizes: Sequence[int]) -> Sequence[int]:
    """Return the rows of each source in an epoch, of which the first ``sizes`` are read."""
    if config.mix == "sequential":
        return sizes
    wanted = _weights(config)
    if config.mix == "tokens":
        columns = [source.get("columns", {}) for source in config.sources]
        lengths = map(_mean_length, sources, columns, sizes)
        wanted = [weight / length for weight, length in zip(wanted, lengths, strict=True)]
    elif config.mix == "temperature":
        wanted = [weight * size ** (1 / config.temperature) for weight, size in zip(wanted, sizes, strict=True)]
    passes = [size / weight for size, weight in zip(sizes, wanted, strict=True)]
    rows = (min if config.until == "first" else max)(passes) * max(wanted)
    if not rows < _MOST_ROWS:
        raise DataError(
            f"dataset.sources have weights so far apart ({min(wanted):.3g} and {max(wanted):.3g}) that an epoch has {rows:.3g} rows of"
            f" one of them; {_MOST_ROWS:.3g} are counted. Set weights that are nearer, or until=first"
        )
    if config.until == "first":
        return [max(1, math.floor(weight * min(passes) + 1e-9)) for weight in wanted]
    return [max(size, round(weight * max(passes))) for size, weight in zip(sizes, wanted, strict=True)]


def _mean_length(source: Dataset, columns: Mapping[str, str], size: int) -> float:
    """Bytes of text in one of the first ``size`` rows, on average; a bad row is told when it is encoded."""
    from mt_core import rename_columns  # numpy loads here, not when plugins are listed

    measured, lengths = min(size, _MEASURED), []
    for number in range(measured):
        with suppress(DataError):
            lengths.append(_row_length(rename_columns(source.row(number * size // measured), columns)))
    return max(1.0, sum(lengths) / max(1, len(lengths)))


def _row_length(row: Row) -> int:
    """Bytes of the texts that a row is trained on, and not of an address or a copy beside them; all texts of an unknown shape."""
    first = next((name for name in _TEXTS if row.get(name) is not None), None)
    return _length(row if first is None else {name: row.get(name) for name in (first, *_TEXTS[first])})


def _length(value: Any) -> int:
    """Bytes of all text in a value but ids; a number stands for a token."""
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, Mapping):
        return sum(_length(item) for key, item in value.items() if key != "id")
    if isinstance(value, list | tuple):
        return sum(_length(item) if not isinstance(item, int) else _BYTES_A_TOKEN for item in value)
    return 0
