"""Rows of a dataset: ids, tokens, digests, also as ``python -m mt_conformance.dataset_rows`` reads them in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Any

from mt_conformance.host import named_host
from mt_core.config.base import MtConfig
from mt_core.errors import DataError
from mt_core.protocols import Dataset, Stream
from mt_core.rows import Row

if TYPE_CHECKING:
    from mt_core.nn import Batch


def digest_of(row: Mapping[str, Any]) -> str:
    """Return a digest of everything that a row says; what is no JSON counts by its class."""
    text = json.dumps(dict(row), sort_keys=True, default=lambda value: type(value).__name__)
    return blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def rows_of_process(module: str, name: str, config: MtConfig, most: int) -> list[str]:
    """Return digests of the first rows as a process with other hashes reads them. Raises ``AssertionError`` where it fails."""
    asked = {"module": module, "name": name, "config": config.model_dump(mode="json", exclude_unset=True), "most": most}
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": seed}
    command = [sys.executable, "-m", "mt_conformance.dataset_rows"]
    done = subprocess.run(
        command, input=json.dumps(asked), env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert not done.returncode, f"in another process it ended with:\n{done.stderr[-2000:]}"
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def read_rows(asked: Mapping[str, Any]) -> list[str]:
    """Open the dataset and read its first rows."""
    component = named_host(asked["module"]).get("dataset", asked["name"]).component
    source = component.build(component.config(**asked["config"]), split="train")
    if isinstance(source, Stream):
        rows = (row for row in source.rows(0, 0) if not isinstance(row, DataError))
        return [digest_of(row) for row in islice(rows, asked["most"])]
    return [digest_of(source.row(index)) for index in range(min(len(source), asked["most"]))]


def ids_of(rows: Sequence[Row]) -> set[str]:
    return {str(row["id"]) for row in rows}


def tokens_of(batch: Batch) -> tuple[int, ...]:
    """Return the tokens that are trained on, without the padding, which depends on what shares a step."""
    from mt_core.nn import NOT_TRAINED  # with torch, which the process of ``read_rows`` does without

    return tuple(batch.labels[batch.labels != NOT_TRAINED].tolist())


def errors_of(component: Any, options: Mapping[str, Any]) -> list[BaseException]:
    """Return what asking for each row raises, the opening included where nothing can be opened."""
    try:
        source = component.build(component.config(**options), split="train")
        if isinstance(source, Stream):
            return [row for row in source.rows(0, 0) if isinstance(row, DataError)]
    except Exception as error:  # noqa: BLE001 - whatever a stranger's dataset raises is judged above
        return [error]
    found = [error_of(source, index) for index in range(len(source))]
    return [each for each in found if each is not None]


def error_of(source: Dataset, index: int) -> BaseException | None:
    try:
        source.row(index)
    except Exception as error:  # noqa: BLE001 - whatever a stranger's dataset raises is judged above
        return error
    return None


if __name__ == "__main__":
    print(json.dumps(read_rows(json.loads(sys.stdin.read()))))
