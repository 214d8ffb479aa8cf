"""State of a run in the manifest of its checkpoint: written, and compared and put back when the run goes on."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mt_core.tracking.logs import notice
from mt_train.assemble.callbacks import Events
from mt_train.assemble.data import RunData
from mt_train.assemble.directory import KEY, describe_directory
from mt_train.assemble.dropout import has_dropout
from mt_train.assemble.expert_forms import experts_form, refuse_other_form
from mt_train.assemble.identity import refuse_other_data
from mt_train.assemble.matmul import describe_change, present_setting
from mt_train.assemble.parts import Parts
from mt_train.assemble.progress import progress_content, saved_progress
from mt_train.checkpoint.manifest import MANIFEST
from mt_train.data.loader import Loader
from mt_train.engine.engine import Engine
from mt_train.engine.snapshot import read_callback_tensors, read_snapshot
from mt_train.loop import Progress


@dataclass(frozen=True, kw_only=True)
class RunState:
    """Everything of a run that its checkpoints say. ``reference`` is the SHA-256 of values that its rows have of the model of step 0."""

    parts: Parts
    data: RunData
    engine: Engine
    events: Events
    total_steps: int
    reference: str | None
    directory: str = field(default_factory=os.getcwd, init=False)
    """Where its relative paths start."""

    def content(
        self,
        progress: Progress,
        evaluation: Mapping[str, float],
        *,
        config: Mapping[str, Any],
        plugins: Any,
        base: Mapping[str, str] | None,
        output: Path,
    ) -> dict[str, Any]:
        """Return what a manifest keeps. ``config`` and ``plugins`` are those of the run's folder ``output``, ``base`` the files of weights
        that a trained-only checkpoint leaves out."""
        return {
            **progress_content(progress),
            "evaluation": {name: value for name, value in evaluation.items() if math.isfinite(value)},
            "total_steps": self.total_steps,
            "layout": asdict(self.engine.plan) | {"notices": []},
            "matmul": present_setting(),
            "model": {"name": self.parts.config.model.name, **self.parts.config.model.options.model_dump(mode="json")},
            "plugins": plugins,
            "config": config,
            "data": self.data.fingerprint,
            KEY: describe_directory(self.directory, output),
            "base": base,
            "callbacks": self.events.callbacks.state_dict(),
            "adapter": dict(self.engine.adapter.plan),
            "experts": experts_form(self.engine.module.model),
            "reference": self.reference,
        }

    def restore(self, checkpoint: Path, manifest: Mapping[str, Any], loader: Loader) -> Progress:
        """Put back weights, moments, random generators and callbacks, and return the progress. Says what goes on in another way.

        Raises ``CheckpointError`` for other rows or another form of experts than the checkpoint's. Collective.
        """
        is_main = self.engine.process.is_main
        refuse_other_data(manifest.get("data"), self.data.fingerprint)
        refuse_other_form(manifest.get("experts"), self.engine.module.model)
        repeats = read_snapshot(self.engine, checkpoint)
        if not repeats and is_main and has_dropout(self.parts.config, self.engine.module.model):
            notice("notice: the run was saved on another number of processes, so dropout will not repeat bit for bit")
        if (note := describe_change(manifest.get("matmul"))) and is_main:
            notice(note)
        progress = saved_progress(manifest, checkpoint, self.parts.config, loader, total_steps=self.total_steps)
        self.events.callbacks.load_state_dict(manifest["callbacks"], str(checkpoint / MANIFEST))
        self.events.callbacks.load_tensors(read_callback_tensors(checkpoint))
        limit, before = self.parts.config.eval.limit, (manifest["config"].get("eval") or {}).get("limit")
        held_out = self.data.fingerprint["held_out"]
        if limit == before and (manifest.get("data") or {}).get("held_out", held_out) != held_out and is_main:
            notice(
                "warning: the held-out rows are others than when the checkpoint was saved: figures of evaluations to come are not to be"
                " compared with those before, as early stopping and the best checkpoint do. Put the files back to have the run go on"
                " as it was"
            )
        if limit != before and is_main:
            notice(
                f"notice: eval.limit is {limit or 'none'}, and was {before or 'none'}: the figures of evaluations to come are of"
                " other rows than those before, which early stopping and the best checkpoint compare them with"
            )
        if manifest["total_steps"] != self.total_steps and is_main:
            notice(
                f"notice: the run now has {self.total_steps} steps instead of {manifest['total_steps']}; the schedule is"
                " computed for the new length"
            )
        return progress
