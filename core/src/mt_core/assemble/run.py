"""One run, from a resolved config to a finished folder."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import __version__
from mt_core.checkpoint.folder import opened
from mt_core.checkpoint.store import CheckpointStore, verify
from mt_core.config.files import write_yaml
from mt_core.plugins.resolve import Resolved
from mt_core.tracking.console import ProgressLines, duration, notice
from mt_core.tracking.metrics import MetricsFile
from mt_core.tracking.recorder import Recorder

if TYPE_CHECKING:
    from mt_core.assemble.callbacks import Callbacks
    from mt_core.assemble.data import RunData
    from mt_core.engine.engine import Engine
    from mt_core.engine.plan import Plan
    from mt_core.engine.processes import Process
    from mt_core.loop import Progress
    from mt_core.protocols import StepRecord


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


@dataclass(frozen=True)
class Outcome:
    """What came of a run."""

    output: Path | None
    steps: int
    first_loss: float | None
    last_loss: float | None
    eval_loss: float | None
    seconds: float


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
    manifest = verify(options.checkpoint) if options.checkpoint else None
    engine = build_engine(
        resolved,
        data.objective,
        plan=plan,
        process=process,
        deepspeed=deepspeed,
        say=notice if process.is_main else (lambda text: None),
        weights=checkpoint_weights(options.checkpoint) if options.checkpoint else None,
    )
    session = Session(resolved, data, engine, plan, process, Path(output) if output else None)
    return session.train(options, manifest)


def _set_precision(deterministic: bool) -> None:
    import torch

    torch.use_deterministic_algorithms(deterministic)


class Session:
    """A built run: trains, evaluates, saves and writes down."""

    def __init__(
        self, resolved: Resolved, data: RunData, engine: Engine, plan: Plan, process: Process, output: Path | None
    ) -> None:
        from mt_core.assemble.callbacks import Callbacks
        from mt_core.assemble.data import make_held_out, make_loader
        from mt_core.engine.processes import agree

        self.resolved, self.data, self.engine, self.plan, self.process = resolved, data, engine, plan, process
        self.output = output
        self.config = resolved.config
        self.loader = make_loader(self.config, data, plan, process)
        self.held_out = make_held_out(self.config, data, plan, process)
        self.callbacks: Callbacks = Callbacks(
            {item.name: resolved.build(f"callback:{item.name}", item.options) for item in self.config.callbacks}
        )
        self.store = CheckpointStore(output, rank=process.rank, agree=agree) if output else None
        train = self.config.train
        self.total_steps = train.steps or self.loader.steps_in(train.epochs or 1.0)

    def train(self, options: RunOptions, manifest: Mapping[str, Any] | None) -> Outcome:
        """Train to the end, and leave the folder complete."""
        from mt_core.loop import Plugs, train
        from mt_core.tracking.memory import peak_memory_gib
        from mt_core.tracking.profile import profiled

        progress = self._restore(options.checkpoint, manifest)
        schedule = self.resolved.build("schedule", self.config.schedule.options, total_steps=self.total_steps)
        recorder = self._recorder(progress)
        if self.process.is_main:
            self._write_head()
            from mt_core.assemble.report import describe_run

            print(describe_run(self.resolved, self.engine, self.data, self.total_steps), flush=True)
        began = time.perf_counter()
        self._event("on_run_start", progress.step)
        with profiled(options.profile, rank=self.process.rank) as profile_step:

            def on_record(record: StepRecord) -> Any:
                profile_step()
                recorder.append(record)
                if record.evaluation:
                    self._event("on_evaluate_end", record.step, record=record)
                return self._event("on_step_end", record.step, record=record)

            plugs = Plugs(
                evaluate=(lambda: self.engine.evaluate(self.held_out.batches())) if self.held_out else None,
                save=self._save if self.store else None,
                on_step_start=lambda now: self._event("on_step_start", now.step),
                on_record=on_record,
                memory_gib=lambda: peak_memory_gib(self.process.device),
                skip_unapplied=self.plan.dtype == "fp16",
            )
            try:
                train(
                    self.engine,
                    self.loader.windows(progress.position),
                    schedule,
                    progress,
                    plugs,
                    total_steps=self.total_steps,
                    eval_every=self.config.eval.every_steps,
                    save_every=self.config.checkpoint.every_steps,
                )
            except BaseException as error:
                self._event("on_exception", progress.step, error=error)
                raise
        self._event("on_run_end", progress.step)
        seconds = time.perf_counter() - began
        outcome = Outcome(self.output, progress.step, recorder.first_loss, recorder.last_loss, recorder.eval_loss, seconds)
        if self.process.is_main:
            recorder.finish()
            self._say_goodbye(outcome)
        return outcome

    def _event(self, event: str, step: int, **fields: Any) -> Any:
        from mt_core.assemble.callbacks import CallbackContext

        context = CallbackContext(
            step=step, total_steps=self.total_steps, output=self.output, model=self.engine.module.model, **fields
        )
        return self.callbacks.call(event, context)

    # ----------------------------------------------------------------------------------------------- checkpoints

    def _save(self, progress: Progress) -> None:
        from mt_core.engine.snapshot import write_snapshot

        assert self.store is not None, "saving needs a folder"
        content = {
            "tokens": progress.tokens,
            "position": asdict(progress.position),
            "total_steps": self.total_steps,
            "layout": asdict(self.plan) | {"notices": []},
            "model": {"name": self.config.model.name, **self.config.model.options.model_dump(mode="json")},
            "plugins": self._plugins(),
            "callbacks": self.callbacks.state_dict(),
        }
        path = self.store.save(
            progress.step,
            write=lambda folder: write_snapshot(self.engine, folder),
            manifest=content,
            keep_last=self.config.checkpoint.keep_last,
        )
        self._event("on_checkpoint_saved", progress.step, checkpoint=path)

    def _restore(self, checkpoint: Path | None, manifest: Mapping[str, Any] | None) -> Progress:
        from mt_core.data.loader import Position
        from mt_core.engine.snapshot import read_snapshot
        from mt_core.loop import Progress

        if checkpoint is None or manifest is None:
            return Progress()
        if not read_snapshot(self.engine, checkpoint) and self.process.is_main:
            notice("notice: the run was saved on another number of processes, so dropout will not repeat bit for bit")
        self.callbacks.load_state_dict(manifest["callbacks"])
        if manifest["total_steps"] != self.total_steps and self.process.is_main:
            notice(
                f"notice: the run now has {self.total_steps} steps instead of {manifest['total_steps']}; the schedule is"
                " computed for the new length"
            )
        return Progress(manifest["step"], manifest["tokens"], Position(**manifest["position"]))

    def _plugins(self) -> dict[str, str]:
        found = {offer.plugin.distribution: offer.plugin.version for offer in self.resolved.offers.values()}
        return dict(sorted(found.items()))

    # ------------------------------------------------------------------------------------------------- the folder

    def _write_head(self) -> None:
        if self.output is None:
            return
        (self.output / "completed").unlink(missing_ok=True)
        (self.output / "run.yaml").write_text(write_yaml(self.config.as_raw()), encoding="utf-8")
        lock = json.dumps({"core": __version__, "plugins": self._plugins()}, indent=1)
        (self.output / "plugins.lock.json").write_text(lock + "\n", encoding="utf-8")

    def _recorder(self, progress: Progress) -> Recorder:
        if not self.process.is_main:
            return Recorder(None, None, None, None)
        lines = ProgressLines(
            self.resolved.build("task_print", self.config.task_print.options),
            total_steps=self.total_steps,
            every_steps=self.config.log.every_steps,
            first_step=progress.step,
        )
        if self.output is None:
            return Recorder(None, None, lines, None)
        from mt_core.tracking.tensorboard import TensorBoardWriter

        metrics = MetricsFile(self.output / "metrics.jsonl")
        metrics.cut_back(progress.step)
        purge = progress.step + 1 if progress.step else None
        board = TensorBoardWriter(self.output / "tensorboard", purge_step=purge)
        return Recorder(metrics, board, lines, self.output, self.config.log.every_steps)

    def _say_goodbye(self, outcome: Outcome) -> None:
        loss = "" if outcome.eval_loss is None else f", held-out loss {outcome.eval_loss:.4f} nats per token"
        print(f"done: {outcome.steps} steps in {duration(outcome.seconds)}{loss}")
        if text := self.resolved.offers["dataset"].component.notice:
            notice(f"notice: {text}")
        if outcome.output is None:
            return
        (outcome.output / "completed").write_text("", encoding="utf-8")
        print(f"run folder: {outcome.output}")
        print("next:")
        print(f'  mt-generate --run {outcome.output} --prompt "The "')
        print(f"  mt-train --resume {outcome.output} --train.steps {outcome.steps * 2}")
