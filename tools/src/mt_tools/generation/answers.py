"""A file of prompts, answered batch after batch."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from mt_core.errors import DataError, MtError
from mt_tools.generation.generate import Generator
from mt_tools.generation.output import Output
from mt_tools.generation.progress import Progress
from mt_tools.generation.prompts import template_of
from mt_tools.generation.rows import PromptRow
from mt_train.generation.config import GenerationConfig
from mt_train.generation.loaded_model import LoadedModel


def answer(
    loaded: LoadedModel,
    output: Output,
    rows: Mapping[int, PromptRow],
    wishes: GenerationConfig,
    *,
    file: Path,
    batch_size: int,
    chat_template: str | None = None,
) -> None:
    """Append a line for each row, in order. The keys are places in the whole file, which decide what is drawn.

    Raises ``DataError`` with file and line for a prompt that does not fit, before the first text is made.
    """
    template = template_of(loaded, chat_template) if output.converses else None
    writer, indices = Generator(loaded, wishes, template), iter(rows)
    prompts = {index: _prepare(writer, row, file) for index, row in rows.items()}
    with Progress(len(rows)) as progress:
        while batch := list(islice(indices, batch_size)):
            texts = writer.write([prompts[index] for index in batch], batch)
            lines = [
                {**rows[index].content, "text": text.text, "finish": text.finish, "tokens": len(text.ids)}
                for index, text in zip(batch, texts, strict=True)
            ]
            output.append(lines)
            progress.advance(len(batch), sum(len(text.ids) for text in texts))


def _prepare(writer: Generator, row: PromptRow, file: Path) -> list[int]:
    try:
        return writer.prepare(row.prompt)
    except MtError as error:
        raise DataError(f"{file}:{row.line}: {error}") from error
