"""One run, from a resolved config to a finished folder."""

from __future__ import annotations

import faulthandler
import logging
import os
import platform
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mt_core import __version__
from mt_core.errors import OURS, StopNow, StoppedError, UsageError, WorkerError, refuse_exit
from mt_core.tracking.logs import RunLog, for_the_file, log_to_file, notice
from mt_train.assemble.own_files import files_of_components
from mt_train.assemble.stopping import Stopper
from mt_train.checkpoint.folder import hold_folder
from mt_train.config.ranks import ranks
from mt_train.plugins.resolve import Resolved

if TYPE_CHECKING:
    from mt_train.assemble.outcome import Outcome
    from mt_train.config.sections import TrainConfig


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run is started; none of it changes what is computed."""

    output: Path | None
    overwrite: bool = False
    anew: bool = False
    checkpoint: Path | None = None
    profile: Path | None = None


def run(resolved: Resolved, options: RunOptions) -> Outcome:
    """Train. Raises ``MtError`` for whatever a user can act on; the traceback is in the run's log in any case."""
    if sys.platform == "win32":
        raise UsageError(
            "mt-train does not train on Windows itself: DeepSpeed and gloo need Linux. Install it in WSL 2 (`wsl --install`), where"
            " it works as on Linux"
        )
    rank, levels = ranks().rank, resolved.config.log
    stopper = Stopper(resolved.config.train.max_minutes)
    with ExitStack() as stack:
        log = stack.enter_context(log_to_file(rank, console=levels.console_level, file=levels.file_level))
        stack.enter_context(stopper.listening())
        try:
            if rank == 0 and options.output is not None:
                folder = options.output
                resume = options.checkpoint is not None
                own = files_of_components(resolved)
                stack.enter_context(
                    hold_folder(
                        folder, overwrite=options.overwrite, anew=options.anew, resume=resume, own=own, say=notice
                    )
                )
                log.open(folder)
            stack.enter_context(_stacks_on_request())
            return _run(resolved, options, stopper, log, stack)
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
                refuse_exit(error, _owners(resolved))
            raise


def _owners(resolved: Resolved) -> dict[str, str]:
    """The components of the run by the top-level package of their code, ``dataset rows of acme-data 1.0``; ours are left out."""
    found: dict[str, list[str]] = {}
    for slot, offer in resolved.offers.items():
        package = offer.plugin.module.partition(".")[0]
        kind = slot.partition(":")[0].replace("_", " ")
        found.setdefault(package, []).append(f"{kind} {offer.component.name} of {offer.plugin.label}")
    return {package: " or ".join(names) for package, names in found.items() if package not in OURS}


def _consequence(error: RuntimeError, rank: int) -> WorkerError | None:
    from mt_train.engine.rendezvous import peer_error

    return peer_error(error, rank)


def _run(resolved: Resolved, options: RunOptions, stopper: Stopper, log: RunLog, stack: ExitStack) -> Outcome:
    from mt_train.assemble.data import build_data  # torch loads from here on

    data = build_data(resolved)
    from mt_train.assemble.agreement import (
        refuse_folders_apart,
        refuse_other_rows,
        refuse_other_start,
        verify_together,
    )
    from mt_train.assemble.batch_size import with_batch_size
    from mt_train.assemble.model import build_engine
    from mt_train.assemble.probe import probe_of
    from mt_train.assemble.session import Session
    from mt_train.engine.plan import make_plan
    from mt_train.engine.processes import Process, barrier, join_group, share_text
    from mt_train.engine.random_state import seed_everything

    config = resolved.config
    process = Process.from_environment()
    plan = make_plan(config, world=process.world, device=process.device.type, offers=resolved.offers.values())
    if process.is_main:
        for text in plan.notices:
            notice(f"notice: {text}")
    stack.enter_context(own_torch_settings(config.train, process.device.type))
    deepspeed = stack.enter_context(join_group(process, config.parallel.timeout_seconds))
    shared = share_text(str(options.output.absolute() if options.output else ""))
    output = options.output if process.is_main else Path(shared) if shared else None
    if output is not None:
        patience = config.parallel.timeout_seconds / 2  # the others wait meanwhile
        refuse_folders_apart(output, process, patience=patience)
        if not process.is_main:
            log.open(output)
    refuse_other_start(resolved, options.checkpoint, process)
    for_the_file(_versions(process.rank, process.world, str(process.device)), logging.DEBUG)
    seed_everything(config.train.seed, process.rank)
    checkpoint = options.checkpoint
    manifest = verify_together(checkpoint, process) if checkpoint else None
    build = partial(build_engine, objective=data.objective, process=process, deepspeed=deepspeed, checkpoint=checkpoint)
    resolved, plan = with_batch_size(resolved, data, plan, process, partial(build, say=lambda text: None))
    probe = partial(probe_of, resolved.config, data, plan, process)
    engine = build(resolved, plan=plan, say=notice if process.is_main else (lambda text: None), probe=probe)
    session = Session(resolved, data, engine, output, stopper)
    refuse_other_rows(session, process)
    outcome = session.train(checkpoint=checkpoint, manifest=manifest, profile=options.profile)
    barrier()  # a launcher ends the rest when one process ends with a code other than 0; rank 0 may still be writing
    engine.close()
    return outcome


@contextmanager
def _stacks_on_request() -> Iterator[None]:
    """``kill -USR2`` makes this process print where it is: for a run that hangs. To standard error itself, not through Python."""
    faulthandler.register(signal.SIGUSR2, file=2)
    try:
        yield
    finally:
        faulthandler.unregister(signal.SIGUSR2)


def _versions(rank: int, world: int, device: str) -> str:
    import torch

    return (
        f"rank {rank} of {world} on {platform.node()}, process {os.getpid()}, {device}; mt-core {__version__},"
        f" torch {torch.__version__}, Python {platform.python_version()}, {platform.platform()}"
    )


@contextmanager
def own_torch_settings(config: TrainConfig, device: str) -> Iterator[None]:
    """Random generators and settings of this process as they were, once the run is over."""
    import torch

    from mt_train.assemble.matmul import matmul_precision
    from mt_train.engine.random_state import preserve_random_state

    def set_deterministic(wanted: bool) -> None:
        if wanted != torch.are_deterministic_algorithms_enabled():  # this imports the compiler, a third of a start
            torch.use_deterministic_algorithms(wanted)

    before = torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()
    set_deterministic(config.deterministic)
    torch.set_float32_matmul_precision(matmul_precision(device, tf32=config.tf32))
    try:
        with preserve_random_state():
            yield
    finally:
        set_deterministic(before[0])
        torch.set_float32_matmul_precision(before[1])
