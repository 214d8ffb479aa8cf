"""A file of prompts, answered batch after batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mt_core.errors import DataError, MtError
from mt_core.generation import Generation, GenerationConfig
from mt_tools.generation.generate import Generator
from mt_tools.generation.media import NO_MEDIA, mark_row
from mt_tools.generation.output import Output
from mt_tools.generation.progress import Progress
from mt_tools.generation.prompts import template_of
from mt_tools.generation.rows import PromptRow
from mt_train.data.media.rules import MediaRules
from mt_train.generation.backend import Backend
from mt_train.generation.loaded_model import LoadedModel
from mt_train.generation.request import PromptIds


def answer(
    loaded: LoadedModel,
    output: Output,
    rows: Mapping[int, PromptRow],
    wishes: GenerationConfig,
    *,
    file: Path,
    batch_size: int,
    chat_template: str | None = None,
    rules: MediaRules = NO_MEDIA,
    backend: Backend | None = None,
) -> None:
    """Append a line for each row, in order. The keys are places in the whole file, which decide what is drawn.

    Files of media, which are read by ``rules``, may lie in the folder of ``file``. A ``backend`` writes the texts instead of the model.

    Raises ``DataError`` with file and line for a prompt that does not fit, before the first text is made.
    """
    template = template_of(loaded, chat_template) if output.converses else None
    writer = Generator(loaded, wishes, template)
    prompts = {index: _prepare(writer, row, file, rules) for index, row in rows.items()}
    found: dict[int, Generation] = {}
    unwritten = deque(rows)
    with Progress(len(rows)) as progress:
        texts = writer.write(prompts, batch_size) if backend is None else writer.write_elsewhere(prompts, backend)
        for index, text in texts:
            found[index] = text
            progress.advance(1, len(text.ids))
            lines = []
            while unwritten and unwritten[0] in found:  # a text that ends before an earlier one waits for it
                ended = unwritten.popleft()
                lines.append(_line(rows[ended], found.pop(ended)))
            if lines:
                output.append(lines)


def _line(row: PromptRow, text: Generation) -> dict[str, Any]:
    return {**row.content, "text": text.text, "finish": text.finish, "tokens": len(text.ids)}


def _prepare(writer: Generator, row: PromptRow, file: Path, rules: MediaRules) -> PromptIds:
    place = f"{file}:{row.line}"
    try:
        return writer.prepare(mark_row({**row.content, "id": place}, rules, file.absolute().parent))
    except MtError as error:
        raise DataError(str(error)).of_row(place) from error
