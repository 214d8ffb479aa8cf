"""One process of the kit's launch: ``python -m mt_conformance.worker CASES``."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mt_conformance import tiny
from mt_conformance.host import named_host
from mt_core.errors import MtError
from mt_core.plugins.host import PluginHost
from mt_train.assemble.callbacks import Callbacks
from mt_train.assemble.parts import Parts
from mt_train.assemble.run import RunOptions, run
from mt_train.checkpoint.store import find
from mt_train.plugins.resolve import resolve
from mt_train.tracking.metrics import MetricsFile

BROKEN = "the kit broke this callback on purpose"
"""Message of the exception that the broken callback raises."""


def main(job: Path) -> None:
    """Run the cases of this process's world, and write down what came of each."""
    asked = json.loads(job.read_text())
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host = named_host(asked["plugin"], tiny.__name__)
    for name, case in asked["cases"].items():
        if case["processes"] == world:
            result = outcome(host, case, job.parent / f"{name}-{world}")
            (job.parent / f"{name}-{world}-{rank}.json").write_text(json.dumps(result))


def outcome(host: PluginHost, case: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The figures of one case, and of its second half after a resume; or its error."""
    result: dict[str, Any] = {"records": [], "again": [], "error": ""}
    try:
        with raise_in(case["raises_in"]):
            result["records"] = train_case(host, case["raw"], folder)
        if case["again_from"] is not None:
            result["again"] = train_case(host, case["raw"], folder, case["again_from"])
    except MtError as error:
        result["error"] = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - a stranger's code may raise anything, and the parent shows it
        result["error"] = traceback.format_exc()
    return result


def train_case(
    host: PluginHost, raw: Mapping[str, Any], folder: Path, again_from: int | None = None
) -> list[dict[str, Any]]:
    """Train from the start, or from a checkpoint of the same run; the figures of every step."""
    os.environ["MT_STORE"] = str(folder.with_name(f"{folder.name}-store-{again_from}"))
    checkpoint = None if again_from is None else find(folder / "checkpoints" / f"step-{again_from:08d}")
    run(Parts.of(resolve(raw, host)), RunOptions(output=folder, checkpoint=checkpoint))
    return MetricsFile(folder / "metrics.jsonl").read()


@contextmanager
def raise_in(event: str) -> Iterator[None]:
    """Inside, whatever a callback's own method for this event does ends in an error of the kit's."""
    if not event:
        yield
        return
    made = Callbacks.__init__
    with ExitStack() as patches:

        def init(self: Callbacks, named: Mapping[str, Any]) -> None:
            for callback in named.values():
                owner = type(callback) if hasattr(type(callback), event) else callback
                patches.enter_context(patch.object(owner, event, _raise(getattr(owner, event))))
            made(self, named)

        patches.enter_context(patch.object(Callbacks, "__init__", init))
        yield


def _raise(method: Callable[..., Any]) -> Callable[..., Any]:
    def raises(*arguments: Any) -> Any:
        method(*arguments)
        raise RuntimeError(BROKEN)

    return raises


if __name__ == "__main__":
    main(Path(sys.argv[1]))
