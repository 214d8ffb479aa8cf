"""One run, from a resolved config to a finished folder."""

from __future__ import annotations

import faulthandler
import logging
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mt_core.errors import OURS, StopNow, StoppedError, UsageError, WorkerError, refuse_exit
from mt_core.files import forget_remote
from mt_core.tracking.logs import for_the_file, notice
from mt_train.assemble.description import Description
from mt_train.assemble.discovery import tell_misfits
from mt_train.assemble.own_files import files_of_components
from mt_train.assemble.parts import Parts
from mt_train.assemble.replay import Replay
from mt_train.assemble.stopping import Stopper
from mt_train.checkpoint.file_names import LOCK
from mt_train.checkpoint.folder import open_run_folder
from mt_train.checkpoint.lock import is_ours
from mt_train.checkpoint.manifest import STEP_FOLDER
from mt_train.config.ranks import ranks
from mt_train.tracking.logs import log_to_file

if TYPE_CHECKING:
    from mt_train.assemble.outcome import Outcome


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Ways to start a run; none of them changes what is computed."""

    output: Path | None
    overwrite: bool = False
    anew: bool = False
    checkpoint: Path | None = None
    profile: Path | None = None
    replay: Replay | None = None


def run(parts: Parts, options: RunOptions) -> Outcome:
    """Train. Raises ``MtError`` for whatever a user can act on; the traceback is in the run's log in any case."""
    if sys.platform == "win32":
        raise UsageError(
            "mt-train does not train on Windows itself: DeepSpeed and gloo need Linux. Install it in WSL 2 (`wsl --install`), where"
            " it works as on Linux"
        )
    forget_remote()
    rank, levels = ranks().rank, parts.config.log
    stopper = Stopper(parts.config.train.max_minutes)
    with ExitStack() as stack:
        log = stack.enter_context(log_to_file(rank, console=levels.console_level, file=levels.file_level))
        stack.enter_context(stopper.listen())
        tell_misfits(parts.offers.values())
        if options.checkpoint is not None and (name := STEP_FOLDER.fullmatch(options.checkpoint.name)) is not None:
            begun = int(name[1])
            log.step = lambda: begun
        try:
            if rank == 0 and options.output is not None:
                folder = options.output
                resume = options.checkpoint is not None
                own = files_of_components(parts)
                stack.enter_context(
                    open_run_folder(
                        folder, overwrite=options.overwrite, anew=options.anew, resume=resume, own=own, say=notice
                    )
                )
                log.open(folder, is_ours=partial(is_ours, folder / LOCK))
            stack.enter_context(_stacks_on_request())
            description = Description(options.output if rank == 0 else None)
            with description.failures(lambda: log.step(), stopped_by=lambda: stopper.reason):
                if options.checkpoint is None:  # one that goes on says what it was until it trains
                    description.write_start(parts)
                from mt_train.assemble.steps import take_steps  # torch loads from here on

                places = {"output": options.output, "checkpoint": options.checkpoint, "profile": options.profile}
                return take_steps(parts, stopper, log, stack, replay=options.replay, **places)
        except StopNow:
            for_the_file(traceback.format_exc(), logging.ERROR)
            saved = f"; {options.checkpoint} is as it was" if options.checkpoint else ", so nothing is saved"
            raise StoppedError(f"stopped by {stopper.reason} before the first step{saved}; start it again") from None
        except BaseException as error:
            for_the_file(traceback.format_exc(), logging.ERROR)
            if isinstance(error, RuntimeError) and (consequence := _consequence(error, rank)):
                for_the_file(str(consequence), logging.ERROR)
                raise consequence from error
            if not isinstance(error, Exception):
                refuse_exit(error, _owners(parts))
            raise


def _owners(parts: Parts) -> dict[str, str]:
    """The components of the run by the top-level package of their code, ``dataset rows of acme-data 1.0``; ours are left out."""
    found: dict[str, list[str]] = {}
    for slot, offer in parts.offers.items():
        package = offer.plugin.module.partition(".")[0]
        kind = slot.partition(":")[0].replace("_", " ")
        found.setdefault(package, []).append(f"{kind} {offer.component.name} of {offer.plugin.label}")
    return {package: " or ".join(names) for package, names in found.items() if package not in OURS}


def _consequence(error: RuntimeError, rank: int) -> WorkerError | None:
    from mt_train.engine.rendezvous import peer_error

    return peer_error(error, rank)


@contextmanager
def _stacks_on_request() -> Iterator[None]:
    """``kill -USR2`` makes this process print where it is: for a run that hangs. To standard error itself, not through Python."""
    faulthandler.register(signal.SIGUSR2, file=2)
    try:
        yield
    finally:
        faulthandler.unregister(signal.SIGUSR2)
