"""Trains the same rows with many optimizers in one launch, each stopped in the middle and resumed. Run by test_layouts.py."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1] / "train" / "engine"))

from layout_worker import Bench, Losses, main, state_hash

from mt_train.checkpoint.store import find, verify
from mt_train.engine.random_state import seed_everything
from mt_train.loop import Progress


class OptimBench(Bench):
    """What came of a run, and of its second half after a resume."""

    def gradients(self, case: dict[str, Any]) -> dict[str, Any]:
        """Two steps, and how many gradients there were when the optimizer changed a weight."""
        session = self.session(case)
        engine, held = session.engine, [0]
        inner, windows = engine.inner_optimizer, session.loader.windows(session.restore(None, None).position)
        name = "step_of" if hasattr(inner, "step_of") else "step"
        act = getattr(inner, name)

        def counted(*positional: Any, **named: Any) -> Any:
            held.append(sum(each.grad is not None for each in engine.module.parameters()))
            return act(*positional, **named)

        setattr(inner, name, counted)
        engine.set_rate(1.0)
        results = [engine.train_step(next(windows).batches) for _ in range(3)]
        return {
            "held": max(held),
            "norms": [result.grad_norm for result in results],
            "losses": [result.loss for result in results],
        }

    def halves(self, case: dict[str, Any]) -> dict[str, Any]:
        """Three steps, saved after the first, and the other two again in a fresh engine."""
        with tempfile.TemporaryDirectory() as folder:
            shared = [folder]
            dist.broadcast_object_list(shared)
            output = Path(shared[0])
            case = {"steps": 3, "eval_every": 2, **case}
            whole, losses = self.session({**case, "checkpoint": {"every_steps": 1}}, output), Losses()
            save, whole.samples = whole.save, None
            whole.save = lambda now, figures: save(now, figures) if now.step == 1 else None
            vars(whole)["lock"] = {"plugins": {}}  # hashes of every plugin, which nobody looks at
            whole.loop(Progress(), losses)
            checkpoint = find(output / "checkpoints" / "step-00000001")
            self.deepspeed.utils.groups.mpu = None
            resumed, again = self.session({**case, **case.get("then", {})}, None, checkpoint), Losses()
            seed_everything(99, self.process.rank)
            resumed.loop(resumed.restore(checkpoint, verify(checkpoint)), again)
            dist.barrier()
            return {
                "losses": [record.loss for record in losses.records],
                "norms": [record.grad_norm for record in losses.records],
                "eval": [value for record in losses.records for value in record.evaluation.values()],
                "again": [record.loss for record in again.records],
                "eval_again": [value for record in again.records for value in record.evaluation.values()],
                "equal": state_hash(whole.engine) == state_hash(resumed.engine),
            }


if __name__ == "__main__":
    main(OptimBench)
