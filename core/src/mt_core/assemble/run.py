"""One run, from a resolved config to a finished folder."""

from __future__ import annotations

import os
import time
import traceback
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mt_core.checkpoint.folder import opened
from mt_core.checkpoint.store import verify
from mt_core.plugins.resolve import Resolved
from mt_core.tracking.console import notice

if TYPE_CHECKING:
    from mt_core.assemble.session import Outcome


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run is started; none of it changes what is computed."""

    output: Path | None
    overwrite: bool = False
    checkpoint: Path | None = None
    profile: Path | None = None

    @property
    def resumes(self) -> bool:
        """Whether the run goes on from a checkpoint."""
        return self.checkpoint is not None


def run(resolved: Resolved, options: RunOptions) -> Outcome:
    """Train. Raises ``MtError`` for whatever a user can act on; the traceback is in the run's log in any case."""
    rank = int(os.environ.get("RANK", "0"))
    with ExitStack() as stack:
        folder = options.output
        if rank == 0 and folder is not None:
            stack.enter_context(opened(folder, overwrite=options.overwrite, resume=options.resumes))
        try:
            return _run(resolved, options, stack)
        except BaseException:
            if folder is not None and folder.is_dir():
                write_log(folder, rank, traceback.format_exc())
            raise


def write_log(folder: Path, rank: int, text: str) -> None:
    """Append to this rank's log file."""
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    with (logs / f"rank-{rank}.log").open("a", encoding="utf-8") as file:
        file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}\n")


def _run(resolved: Resolved, options: RunOptions, stack: ExitStack) -> Outcome:
    from mt_core.assemble.data import build_data  # torch loads from here on

    data = build_data(resolved)
    from mt_core.assemble.model import build_engine, checkpoint_weights
    from mt_core.assemble.session import Session
    from mt_core.engine.plan import make_plan
    from mt_core.engine.processes import Process, connected, share_text
    from mt_core.engine.random_state import seed_everything

    config = resolved.config
    process = Process.from_environment()
    components = [offer.component for offer in resolved.offers.values()]
    plan = make_plan(config, world=process.world, device=process.device.type, components=components)
    if process.is_main:
        for text in plan.notices:
            notice(f"notice: {text}")
    _set_precision(config.train.deterministic)
    deepspeed = stack.enter_context(connected(process, config.parallel.timeout_seconds))
    output = share_text(str(options.output or "")) or None
    seed_everything(config.train.seed, process.rank)
    checkpoint = options.checkpoint
    manifest = verify(checkpoint) if checkpoint else None
    engine = build_engine(
        resolved,
        data.objective,
        plan=plan,
        process=process,
        deepspeed=deepspeed,
        say=notice if process.is_main else (lambda text: None),
        weights=checkpoint_weights(checkpoint) if checkpoint else None,
    )
    session = Session(resolved, data, engine, Path(output) if output else None)
    return session.train(checkpoint=checkpoint, manifest=manifest, profile=options.profile)


def _set_precision(deterministic: bool) -> None:
    import torch

    torch.use_deterministic_algorithms(deterministic)
