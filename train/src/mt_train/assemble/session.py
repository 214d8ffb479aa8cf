"""A built run: trains, evaluates, saves and writes down."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from mt_core.config.secrets import redact_values
from mt_core.events import Control
from mt_core.protocols import StepRecord
from mt_core.tracking.logs import notice
from mt_train.assemble.base_files import base_files, describe_adapters
from mt_train.assemble.callbacks import CallbackContext, Callbacks, EpochEvents, Events
from mt_train.assemble.data import RunData, make_held_out, make_loader
from mt_train.assemble.description import Description
from mt_train.assemble.evaluation import Evaluation
from mt_train.assemble.evaluations import Evaluations
from mt_train.assemble.first_loss import check_first_loss
from mt_train.assemble.held_out import evaluate_held_out
from mt_train.assemble.isolation import check_isolation_if_asked
from mt_train.assemble.outcome import Outcome
from mt_train.assemble.own_files import record_files
from mt_train.assemble.parts import Parts
from mt_train.assemble.recording import open_recorder
from mt_train.assemble.report import about_run, describe_run
from mt_train.assemble.rollouts import make_rollouts
from mt_train.assemble.run_length import count_steps
from mt_train.assemble.run_state import RunState
from mt_train.assemble.samples import Samples
from mt_train.assemble.save_interval import interval_of
from mt_train.assemble.saving import Saver, tell_saved
from mt_train.assemble.source_losses import watch_sources
from mt_train.assemble.start_times import StartTimes
from mt_train.assemble.stopping import Stopper
from mt_train.assemble.subjects import live_subject
from mt_train.assemble.summary import show_summary
from mt_train.assemble.window_reference import stepper_of
from mt_train.checkpoint.file_names import COMPLETED
from mt_train.checkpoint.request import SaveRequest
from mt_train.data.loader import Window
from mt_train.engine.access import EngineSteps
from mt_train.engine.engine import Engine
from mt_train.engine.live_weights import LiveWeights
from mt_train.engine.processes import agree, largest
from mt_train.loop import Every, LoopHooks, Progress, train
from mt_train.tracking.logs import show
from mt_train.tracking.loss_units import counts_tokens, loss_unit_of
from mt_train.tracking.memory import peak_memory_gib
from mt_train.tracking.profile import profile_steps
from mt_train.tracking.recorder import Recorder


class Session:
    """Everything of one run, built and connected."""

    def __init__(
        self,
        parts: Parts,
        data: RunData,
        engine: Engine,
        output: Path | None,
        stopper: Stopper,
        *,
        found: Mapping[str, int] | None = None,
        reference: str | None = None,
    ) -> None:
        """``found``: what the run found for itself, by key (``found_sizes``); ``reference``: SHA-256 of its rows' values of step 0."""
        self.parts, self.data, self.engine, self.output = parts, data, engine, output
        self.stopper, self.found = stopper, dict(found or {})
        self.config, self.plan, self.process = parts.config, engine.plan, engine.process
        self.rollouts = make_rollouts(parts, data, engine, output, stop=self._wants_to_stop)
        self.loader = self.rollouts or make_loader(self.config, data, self.plan, self.process)
        self.by_source = watch_sources(engine, self.loader, self.config.log.every_steps)
        self.held_out = make_held_out(self.config, data, self.plan, self.process)
        self.events = Events(Callbacks(parts.callbacks()), self._context)
        self.epochs = EpochEvents(self.events)
        self.saver = self._saver(output) if output else None
        saves_trained_only = self.process.is_main and self.saver is not None and self.saver.trained_only
        self.base = base_files(parts) if saves_trained_only else None
        """Hashes of the files that frozen weights were read from, taken now: they may be others by the time of a save."""
        self.samples = Samples.of(parts, data, engine, output)
        folder = output if self.process.is_main else None
        self.description, self.save_request = Description(folder), SaveRequest(folder)
        self.step = 0
        self.save_interval = interval_of(self.config.checkpoint, self.process.world, largest, self._say)
        self.total_steps = count_steps(self.config.train, self.loader)
        self.state = RunState(
            parts=parts, data=data, engine=engine, events=self.events, total_steps=self.total_steps, reference=reference
        )
        make_subject = partial(live_subject, parts, data, engine, stop=stopper.should_stop)
        self.evaluations = Evaluations(parts, data.evaluations, make_subject, folder, self.total_steps)

    @cached_property
    def raw(self) -> dict[str, Any]:
        """The content of ``run.yaml``."""
        return self.config.as_raw()

    def train(
        self,
        times: StartTimes,
        *,
        checkpoint: Path | None = None,
        manifest: Mapping[str, Any] | None = None,
        profile: Path | None = None,
    ) -> Outcome:
        """Train to the end (from a checkpoint, if given), and leave the folder complete; ``times`` are those of the start so far."""
        self.events.send("on_model_built", manifest["step"] if manifest else 0)
        progress = self.restore(checkpoint, manifest)
        self.step = progress.step
        check_isolation_if_asked(self.engine, self.loader, progress.position, asked=self.config.data.prove)
        recorder = open_recorder(
            self.parts,
            self.output,
            progress,
            [file for file in (self.samples, self.evaluations, self.rollouts) if file is not None],
            total_steps=self.total_steps,
            is_main=self.process.is_main,
            checkpoint=checkpoint,
            loss_unit=loss_unit_of(self.data.objective),
        )
        if self.process.is_main:
            about = about_run(self.parts, self.engine, self.data, self.total_steps)
            about |= {"adapters": describe_adapters(self.parts, resumed=checkpoint is not None)}
            about |= {"from_step": progress.step, "found": self.found}
            files = {} if self.output is None else record_files(self.parts, self.output)
            self.description.write(self.raw, self.parts.lock, redact_values(about) | files)
            show(describe_run(about, self.data))
            for text in about["warnings"]:
                notice(f"warning: {text}")
        times.end("checkpoint and files")
        times.record()
        return self._train(progress, recorder, profile)

    def _train(self, progress: Progress, recorder: Recorder, profile: Path | None) -> Outcome:
        began, from_step = time.perf_counter(), progress.step
        self.stopper.preparing = False
        self.events.send_ahead("on_run_start", progress.step)
        try:
            with profile_steps(profile, rank=self.process.rank) as profile_step:
                finished = self.loop(progress, recorder, profile_step)
        except BaseException as error:
            if self.saver is not None:
                self.saver.abandon()
            recorder.close_trackers(failed=True)
            self.events.send("on_exception", progress.step, error=error)
            raise
        ended = self.events.send("on_run_end", progress.step, finished=finished)
        if ended.latest is not None and self.saver is not None:
            self.saver.point(ended.latest)
        recorder.close_trackers(failed=False)
        if progress.pending is not None and progress.step > from_step:
            recorder.note_loss(progress.pending)
        outcome = Outcome(
            self.output,
            progress.step,
            recorder.first_loss,
            recorder.last_loss,
            recorder.eval_loss,
            time.perf_counter() - began,
            "" if finished else self.stopper.reason or "another process",
        )
        if self.process.is_main:
            recorder.finish()
            for file in (self.samples, self.evaluations, self.rollouts):
                if file is not None:
                    file.close()
            self.description.write_end(COMPLETED if finished else "stopped", progress.step, outcome.stopped)
            show_summary(outcome, self.parts, self.data, self.total_steps, from_step=from_step)
        return outcome

    def loop(self, progress: Progress, recorder: Recorder, after_step: Callable[[], None] = lambda: None) -> bool:
        """Run the training loop with everything that it needs; false when it was stopped before the end."""
        is_fresh = progress.step == 0
        self.save_interval.begin(progress.step)
        self.epochs.begin(progress.position)

        def on_record(record: StepRecord) -> Control:
            after_step()
            self.step = record.step
            self.save_interval.note_step()
            self.description.refuse_lost()
            recorder.append(record)
            if is_fresh:
                check_first_loss(self.config, self.plan.dtype, self.data.objective, record)
            control = Control()
            if record.evaluation:
                control |= self.events.send("on_evaluate_end", record.step, record=record)
            if record.evaluation or record.step % self.config.log.every_steps == 0:
                control |= self.events.send("on_log", record.step, record=record)
            control |= self.events.send("on_step_end", record.step, record=record)
            return control | self.epochs.after_step(progress.position, record)

        adapter, evaluation = EngineSteps(self.engine, self.total_steps), self._evaluation()

        def on_before_update(now: Progress, window: Window) -> None:
            adapter.after_backward(now.step + 1)
            fields = {"epoch": window.epoch, "batches": window.batches, "repeat": self.engine.repeat}
            self.events.send_ahead("on_before_optimizer_step", now.step, **fields)

        hooks = LoopHooks(
            evaluate=None if evaluation is None else lambda: evaluation.figures(progress.step, progress.evaluated + 1),
            save=self.save if self.saver is not None else None,
            on_step_start=self._on_step_start,
            on_before_update=on_before_update,
            on_applied=adapter.after_step,
            on_update=self._on_update,
            on_record=on_record,
            memory_gib=lambda: peak_memory_gib(self.process.device),
            stop=lambda: self._wants_to_stop() or self.save_request.take(),
            together=agree if self.data.stream is not None else bool,  # rows in files are there, and need no question
            skip_unapplied=self.plan.scales_loss,
            max_skips=self.config.train.max_skips if self.config.train.on_nonfinite == "skip" else 0,
            counts_tokens=counts_tokens(self.data.objective),
            on_skip=lambda text: notice(f"warning: skipped {text}") if self.process.is_main else None,
        )
        finished = train(
            stepper_of(self.engine, self.data),
            self.loader.windows(progress.position, self._wants_to_stop),
            self.events.callbacks.scale(self.parts.schedule(self.total_steps)),
            progress,
            hooks,
            total_steps=self.total_steps,
            eval_every=Every(self.config.eval.every_steps, self.config.eval.every_epochs),
            save_every=self.save_interval,
        )
        if self.saver is not None:
            self.saver.finish()
            self.save_request.fulfil()
        return finished

    def _say(self, text: str) -> None:
        """Say something once for all ranks."""
        if self.process.is_main:
            notice(text)

    def _wants_to_stop(self) -> bool:
        """Return whether to stop, also when a save in the background failed: the last save of the run then says why, on every rank."""
        return self.stopper.should_stop() or (self.saver is not None and self.saver.failed)

    def _on_step_start(self, now: Progress, window: Window) -> None:
        self.by_source.begin(now.step + 1)
        self.epochs.before_step(now.step, window.epoch)
        self.events.send_ahead("on_step_start", now.step, epoch=window.epoch, batches=window.batches)

    def _on_update(self, now: Progress, window: Window) -> Control:
        self.events.send_ahead("on_after_optimizer_step", now.step, epoch=window.epoch, batches=window.batches)
        return self.events.take_requests()

    def _evaluation(self) -> Evaluation | None:
        """Return the evaluation; ``None`` where no rows are held out, and nothing else is asked."""
        if not self._evaluates:
            return None
        longest = self.config.model.options.max_seq_len
        measure = None if self.held_out is None else self._measure_held_out
        return Evaluation(self.engine, measure, self.samples, self.evaluations, self.events, longest=longest)

    def _measure_held_out(self) -> dict[str, float] | None:
        assert self.held_out is not None, "there are rows to be measured on"
        if self.rollouts is not None:
            with self.engine.use_averaged_weights():
                return self.rollouts.evaluate(list(self.held_out.samples))
        return evaluate_held_out(self.engine, self.held_out, self.stopper.should_stop)

    @property
    def _evaluates(self) -> bool:
        return self.held_out is not None or bool(self.evaluations)

    def _context(self, step: int, **fields: Any) -> CallbackContext:
        fields |= {"model": self.engine.module.model, "weights": LiveWeights(self.engine), "config": self.raw}
        fields |= {"tokenizer": self.data.tokenizer, "output": self.output, "evaluates": self._evaluates}
        return CallbackContext(step=step, total_steps=self.total_steps, **fields)

    # ----------------------------------------------------------------------------------------------- checkpoints

    def save(self, progress: Progress, evaluation: Mapping[str, float]) -> None:
        """Commit a checkpoint of this step; every rank takes part."""
        assert self.saver is not None, "saving needs a folder"
        kept = {"plugins": self.parts.lock["plugins"], "base": self.base, "output": self.saver.folder}
        content = self.state.content(progress, evaluation, config=self.raw, **kept)
        began = time.perf_counter()
        self.saver.save(progress.step, content, self.events.callbacks.tensors())
        self.save_interval.note_save(progress.step, time.perf_counter() - began)

    def _saver(self, folder: Path) -> Saver:
        def on_saved(step: int, checkpoint: Path, seconds: float) -> None:
            if self.process.is_main:
                tell_saved(step, checkpoint, seconds)
            self.events.send("on_checkpoint_saved", step, checkpoint=checkpoint)

        timeout = self.config.parallel.timeout_seconds
        based = self.parts.weights_path is not None
        return Saver(folder, self.engine, self.config.checkpoint, on_saved, timeout_seconds=timeout, has_base=based)

    def restore(self, checkpoint: Path | None, manifest: Mapping[str, Any] | None) -> Progress:
        if checkpoint is None or manifest is None:
            return Progress()
        return self.state.restore(checkpoint, manifest, self.loader)
