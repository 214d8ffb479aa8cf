"""The steps of a run, in the order that they need: from rows to the end of training."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mt_core import __version__
from mt_core.tracking.logs import for_the_file, notice
from mt_train.assemble.agreement import refuse_folders_apart, refuse_other_rows, refuse_other_start, verify_together
from mt_train.assemble.base_files import first_adapter
from mt_train.assemble.batch_size import found_sizes, with_batch_size
from mt_train.assemble.data import RunData, build_data
from mt_train.assemble.evaluations import build_evaluations
from mt_train.assemble.features import with_features
from mt_train.assemble.first_loss import refuse_noise
from mt_train.assemble.matmul import describe_bf16, matmul_precision
from mt_train.assemble.model import build_engine
from mt_train.assemble.parts import Parts
from mt_train.assemble.probe import probe_of
from mt_train.assemble.reference import with_reference
from mt_train.assemble.replay import Replay
from mt_train.assemble.rollouts import refuse_for_rollouts
from mt_train.assemble.session import Session
from mt_train.assemble.start_times import StartTimes
from mt_train.assemble.stopping import Stopper
from mt_train.assemble.stream import share_blocks
from mt_train.assemble.window_reference import refuse_stream
from mt_train.config.sections import TrainConfig
from mt_train.engine.flash3 import use_flash3
from mt_train.engine.plan import Plan, make_plan
from mt_train.engine.processes import Process, barrier, join_group, share_text
from mt_train.engine.random_state import preserve_random_state, seed_everything
from mt_train.tracking.logs import RunLog, show

if TYPE_CHECKING:
    from mt_train.assemble.outcome import Outcome


def take_steps(
    parts: Parts,
    stopper: Stopper,
    log: RunLog,
    stack: ExitStack,
    *,
    output: Path | None,
    checkpoint: Path | None,
    profile: Path | None,
    replay: Replay | None = None,
) -> Outcome:
    """Train, and return what came of it. What has to be put back when the run is over is on ``stack``."""
    config, times = parts.config, StartTimes()
    # Adapter: what a new run trains on from is looked at before anything that takes long.
    if checkpoint is None:
        first_adapter(parts)
    # Rows: each process by itself, since encoding forks, and may take longer than processes wait for each other.
    data = _read_rows(parts, times, is_new=checkpoint is None)
    # Layout: known before anything is connected, so that what cannot be is refused by every process alike.
    process = Process.from_environment()
    plan = _lay_out(parts, process, is_new=checkpoint is None)
    # Settings of torch: before DeepSpeed is imported and before the first tensor of the model.
    stack.enter_context(own_torch_settings(config.train, process.device.type))
    # Connection: every step from here on may ask the other processes.
    deepspeed = stack.enter_context(join_group(process, config.parallel.timeout_seconds))
    times.end("connection")
    # Agreement: one folder, one config, one set of versions, before anything long begins.
    output = _share_folder(output, process, timeout_seconds=config.parallel.timeout_seconds)
    if output is None or not process.is_main:
        log.open(output)
    refuse_other_start(parts, checkpoint, process)
    for_the_file(_describe_versions(process), logging.DEBUG)
    # Seed: before the model, whose layers may draw.
    seed_everything(config.train.seed, process.rank)
    # Checkpoint: verified before its tensors are read.
    manifest = verify_together(checkpoint, process) if checkpoint else None
    times.end("agreement")
    # Stream: each rank has encoded its first block, and from here on a share of the blocks behind it.
    share_blocks(data.stream, process, timeout_seconds=config.parallel.timeout_seconds)
    # Micro-batch: an engine is tried and thrown away, before the run's own takes the memory.
    build = partial(build_engine, objective=data.objective, process=process, deepspeed=deepspeed, checkpoint=checkpoint)
    parts, plan = with_batch_size(parts, data, plan, process, partial(build, say=_say_nothing))
    # Engine: model, weights, adapter, optimizer.
    probe = partial(probe_of, parts.config, data, plan, process)
    engine = build(parts, plan=plan, say=notice if process.is_main else _say_nothing, probe=probe)
    times.end("model")
    # Rows once more: before the ranks read them together.
    refuse_other_rows(data, process)
    # Features: of encoders that train nothing, computed once if asked.
    data = with_features(parts, data, engine)
    # Reference: what the untrained model gives each row, before anything changes it.
    data, reference = with_reference(parts, data, engine, output=output, checkpoint=checkpoint, manifest=manifest)
    # Session: connects the engine with rows, callbacks and files.
    found = found_sizes(config.train, parts.config.train)
    session = Session(parts, data, engine, output, stopper, found=found, reference=reference)
    outcome = _train(session, replay, log, times, checkpoint=checkpoint, manifest=manifest, profile=profile)
    # Leave together: a launcher ends the rest when one process ends with a code other than 0, and rank 0 may be writing.
    barrier()
    engine.close()
    return outcome


def _train(session: Session, replay: Replay | None, log: RunLog, times: StartTimes, **places: Any) -> Outcome:
    """Train. Raises ``CheckpointError`` on every rank where steps that are computed again are others than those of the run."""
    log.step = lambda: session.step
    if replay is not None:
        session.events.callbacks.add("replay", replay)
        if session.rollouts is not None:
            session.rollouts.read_from(replay.run)
    outcome = session.train(times, **places)
    if replay is not None and (same := replay.describe()) and session.process.is_main:
        show(same)
    return outcome


def _read_rows(parts: Parts, times: StartTimes, *, is_new: bool) -> RunData:
    """Return the rows. Raises what ``build_data`` and ``build_evaluations`` do, and ``ConfigError`` for what the objective cannot have."""
    data = build_data(parts)
    refuse_stream(parts, data)
    refuse_for_rollouts(parts, data)
    if is_new:
        refuse_noise(parts, data.objective)
    data = replace(data, evaluations=build_evaluations(parts))
    times.end("rows")
    return data


def _say_nothing(text: str) -> None:
    """Say nothing, in processes that leave it to rank 0 to say what all of them would."""


def _lay_out(parts: Parts, process: Process, *, is_new: bool) -> Plan:
    """Return the layout, and say what was settled, and of a new run what bf16 would gain. Raises ``ConfigError`` where there is none."""
    offers = parts.offers.values()
    plan = make_plan(parts.config, world=process.world, device=process.device.type, offers=offers)
    if process.is_main:
        for text in plan.notices:
            notice(f"notice: {text}")
        if is_new and (text := describe_bf16(parts.config.train, process.device.type)):
            notice(text)
    return plan


def _share_folder(chosen: Path | None, process: Process, *, timeout_seconds: float) -> Path | None:
    """Return the run's folder, which rank 0 alone may have chosen. Raises ``OutputError`` unless all ranks see it. Collective."""
    shared = share_text(str(chosen.absolute() if chosen else ""))
    output = chosen if process.is_main else Path(shared) if shared else None
    if output is not None:
        refuse_folders_apart(output, process, patience=timeout_seconds / 2)  # the others wait meanwhile
    return output


def _describe_versions(process: Process) -> str:
    """Describe this process, its machine and its libraries for the run's log."""
    return (
        f"rank {process.rank} of {process.world} on {platform.node()}, process {os.getpid()}, {process.device};"
        f" mt-core {__version__}, torch {torch.__version__}, Python {platform.python_version()}, {platform.platform()}"
    )


@contextmanager
def own_torch_settings(config: TrainConfig, device: str) -> Iterator[None]:
    """Put random generators and settings of this process back as they were, once the run is over."""

    def set_deterministic(wanted: bool) -> None:
        if wanted != torch.are_deterministic_algorithms_enabled():  # this imports the compiler, a third of a start
            torch.use_deterministic_algorithms(wanted)

    before = torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()
    set_deterministic(config.deterministic)
    torch.set_float32_matmul_precision(matmul_precision(device, tf32=config.tf32))
    try:
        with preserve_random_state(), use_flash3() if config.attention == "flash3" else nullcontext():
            yield
    finally:
        set_deterministic(before[0])
        torch.set_float32_matmul_precision(before[1])
