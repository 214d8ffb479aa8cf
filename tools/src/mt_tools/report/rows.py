"""Row statistics (the JSON of ``mt-data inspect``) as lines of tables, for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Split = Mapping[str, Any]

_ROWS = {"rows_read": "rows read", "rows_kept": "rows kept", "rows_dropped": "rows dropped"}
_COUNTS = {
    "rows_truncated": ("rows truncated", "truncated"),
    "rows_split": ("rows split", ""),
    "rows_without_stop": ("rows without a stop token", "no stop token"),
    "rows_spelling": ("rows with special tokens as text", "special tokens as text"),
    "samples": ("samples", ""),
    "duplicates": ("duplicates", "duplicate"),
    "also_trained": ("also trained on", "also trained on"),
    "tokens_total": ("tokens", ""),
    "tokens_trained": ("tokens trained on", ""),
    "tokens_cut": ("tokens cut by truncation", ""),
    "trained_cut": ("trained tokens cut", ""),
    "longest": ("longest sample (tokens)", ""),
    "highest_id": ("highest token id", ""),
}
_BEGINS = {0: "no begin token", 1: "one begin token", 2: "two begin tokens in a row"}


@dataclass(frozen=True)
class Count:
    """One line: what, how often in each split, and the first rows of the kind. A part explains the line above it."""

    label: str
    values: tuple[str, ...]
    places: tuple[str, ...] = ()
    is_part: bool = False


def title_of(about: Mapping[str, Any]) -> str:
    """``jsonl, sft, byte, for any model``."""
    model = about["model"] or "any model"
    part = "the beginning of " if any(split["is_prefix"] for split in about["splits"].values()) else ""
    return (
        f"{part}dataset {about['dataset']}, objective {about['objective']}, tokenizer {about['tokenizer']}, for {model}"
    )


def counts(splits: Mapping[str, Split], names: Sequence[str] = ()) -> list[Count]:
    """Every figure of every split. A row is listed with the first rows of its kind; ``names`` are those of a sample's documents."""
    parts = list(splits.values())
    return [
        *_rows(parts),
        *_figures(parts),
        *_sources(parts),
        *_answers(parts, names),
        *_begins(parts),
        *_shares(parts),
    ]


def _rows(parts: list[Split]) -> Iterator[Count]:
    for key, label in _ROWS.items():
        values = (sum(part[key].values()) if key == "rows_dropped" else part[key] for part in parts)
        yield Count(label, tuple(f"{value:,}" for value in values))
    reasons = dict.fromkeys(reason for part in parts for reason in part["rows_dropped"])
    for reason in reasons:
        values = (part["rows_dropped"].get(reason, 0) for part in parts)
        yield Count(reason, tuple(f"{value:,}" for value in values), _places(parts, reason), is_part=True)


def _figures(parts: list[Split]) -> Iterator[Count]:
    for key, (label, kind) in _COUNTS.items():
        values = ("–" if part.get(key, 0) < 0 else f"{part.get(key, 0):,}" for part in parts)
        yield Count(label, tuple(values), _places(parts, kind))


def _sources(parts: list[Split]) -> Iterator[Count]:
    """Tokens of each source, where rows come from several."""
    for name in dict.fromkeys(name for part in parts for name in part.get("source_tokens", {})):
        yield Count(f"tokens of {name}", tuple(f"{part.get('source_tokens', {}).get(name, 0):,}" for part in parts))


def _answers(parts: list[Split], names: Sequence[str]) -> Iterator[Count]:
    """Lengths of prompts and answers, where samples have several documents."""
    if not any(part.get("answers_total") for part in parts):
        return
    yield Count("prompt, mean and longest (tokens)", tuple(_mean(part, "prompts") for part in parts))
    for number, name in enumerate(names):
        yield Count(f"{name}, mean and longest (tokens)", tuple(_mean(part, "answers", str(number)) for part in parts))
    shares = (100 * part["first_is_longest"] / max(part["samples"], 1) for part in parts)
    yield Count(f"{names[0]} is longest" if names else "first is longest", tuple(f"{share:.1f}%" for share in shares))


def _mean(part: Split, kind: str, number: str | None = None) -> str:
    total, longest = (
        part[f"{kind}_{what}"] if number is None else part[f"{kind}_{what}"].get(number, 0)
        for what in ("total", "longest")
    )
    return f"{total / max(part['samples'], 1):,.1f}, {longest:,}"


def _begins(parts: list[Split]) -> Iterator[Count]:
    found = [{int(key): count for key, count in part["begin_tokens"].items()} for part in parts]
    for number, label in _BEGINS.items():
        values = [sum(n for key, n in counts.items() if min(key, 2) == number) for counts in found]
        if any(values):
            yield Count(f"samples with {label}", tuple(f"{value:,}" for value in values), _places(parts, label))


def _shares(parts: list[Split]) -> Iterator[Count]:
    shares = (100 * part["tokens_trained"] / max(part["tokens_total"], 1) for part in parts)
    yield Count("trained share", tuple(f"{share:.2f}%" for share in shares))
    for kind, label in {"packing": "packed", "padding": "padded"}.items():
        filled = (f"{100 * part['filled'][kind]:.1f}%" if part["filled"] else "–" for part in parts)
        yield Count(f"rows filled when {label}", tuple(filled))


def _places(parts: list[Split], kind: str) -> tuple[str, ...]:
    return tuple(place for part in parts for place in part["places"].get(kind, ()))


def histogram(lengths: Mapping[str, int]) -> Iterator[tuple[str, int, float]]:
    """Label, samples, and their share of the most frequent length: powers of two, without gaps."""
    known = {int(key): count for key, count in lengths.items()}
    if not known:
        return
    most, bound = max(known.values()), min(known)
    while bound <= max(known):
        label = str(bound) if bound <= 2 else f"{bound // 2 + 1:,}–{bound:,}"
        yield label, known.get(bound, 0), known.get(bound, 0) / most
        bound *= 2
