"""Backends: generate texts on an inference server. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from mt_core.generation import GenerationConfig


class Backend(Protocol):
    """Generates texts on an inference server. Prompts and answers are ids of the run's tokenizer."""

    def describe(self) -> Mapping[str, Any]:
        """Return what of it decides the texts, as JSON: an output goes on with the same alone. Raises ``MtError`` where it is not there."""
        ...

    def refuse(self, config: GenerationConfig) -> None:
        """Raise ``UsageError`` for rules that it has not, or has with another meaning."""
        ...

    def write(
        self,
        prompts: Mapping[int, Sequence[int]],
        config: GenerationConfig,
        *,
        most: Mapping[int, int],
        end_ids: Sequence[int],
    ) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield the key and the new ids of each prompt, once its text has ended: with the end token, where one of ``end_ids`` ended it.

        The key and ``config.seed`` decide what is drawn. ``most`` are the new tokens that each has room for. A text may go on beyond a
        stop text: whoever asks cuts it off.
        """
        ...
