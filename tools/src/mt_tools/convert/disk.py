"""Room on the disk for what is written: refused before where there is too little, told where a write fails for want of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mt_core.errors import WeightsError
from mt_train.checkpoint.files import amount, free_bytes, is_full, sizes

_FIX = "free some space, raise the limit or quota, or write to another disk. Nothing is left of it"


def check_room(stage: Path, needed: int) -> None:
    """Raise ``WeightsError`` where the disk of a folder has less than ``needed`` bytes left."""
    if (free := free_bytes(stage)) < needed:
        raise WeightsError(
            f"the disk of {stage.parent} has too little room: {amount(needed)} are needed, and {amount(free)} are free; {_FIX}"
        )


@contextmanager
def tell_full_disk(stage: Path, needed: int | None = None) -> Iterator[None]:
    """Raise ``WeightsError`` for a write that fails for want of space, with what was written to ``stage`` and is ``needed`` (bytes)."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        if not is_full(error):
            raise
        written = sum(sizes(stage).values()) if stage.is_dir() else stage.stat().st_size if stage.exists() else 0
        wanted = "" if needed is None else f" of {amount(needed)} that are needed"
        raise WeightsError(
            f"the disk of {stage.parent} is full, or a limit is reached ({error}): {amount(written)}{wanted} were written, and"
            f" {amount(free_bytes(stage.parent))} are free there; {_FIX}"
        ) from error
