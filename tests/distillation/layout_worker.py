"""Learns from a teacher on many layouts in one launch. Run by test_layouts.py; see ../train/engine/layout_worker.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.train.engine.layout_worker import Bench, Losses, SharedFolder, StopAfter, main, manifest_to_go_on, records

from mt_plugin_distillation import teacher
from mt_train.assemble.callbacks import Callbacks
from mt_train.assemble.session import Session
from mt_train.checkpoint.store import find

teacher.notice = lambda text: None
STEPS = 4


class StudentBench(Bench):
    """Sessions with a teacher."""

    def session(
        self, case: dict[str, Any], output: Path | None = None, checkpoint: Path | None = None, seed: int = 3
    ) -> Session:
        self.rows = Path(case["rows"])
        objective = {"name": "distill", **case.get("objective", {}), "teacher_path": case["teacher"]}
        data = {"cache": "none", "eval": 4, **case.get("data", {})}
        case = {"steps": STEPS, "eval_every": STEPS, "length": 96, **case, "objective": objective, "data": data}
        return super().session(case, output, checkpoint, seed)

    def run(self, case: dict[str, Any]) -> dict[str, Any]:
        """Figures of each step, answers where the student writes some, and weights."""
        with SharedFolder() as output:
            session, losses = self.session(case, output), Losses()
            session.loop(session.restore(None, None), losses)
            return self.found(session, output, losses)

    def resume(self, case: dict[str, Any]) -> dict[str, Any]:
        """A run that is not stopped, and those that are stopped after some steps and go on."""
        found: dict[str, Any] = {"whole": self.run(case), "stopped": {}}
        for step in case["stops"]:
            with SharedFolder() as output:
                first, begun = self.again(case, output), Losses()
                first.events.callbacks = Callbacks({"stop": StopAfter(step)})
                first.loop(first.restore(None, None), begun)
                if first.rollouts is not None:
                    first.rollouts.close()
                checkpoint = find(output)
                second = self.again(case, output, checkpoint)
                if second.rollouts is not None:
                    second.rollouts.cut_back(trained=step, evaluated=step)
                second.loop(second.restore(checkpoint, manifest_to_go_on(checkpoint)), begun)
                found["stopped"][str(step)] = self.found(second, output, begun)
        return found

    def again(self, *given: Any) -> Session:
        """Another session in this process."""
        self.deepspeed.utils.groups.mpu = None
        return self.session(*given)

    def found(self, session: Session, output: Path, losses: Losses) -> dict[str, Any]:
        """Return answers, figures and weights of a run."""
        answers: list[str] = []
        if session.rollouts is not None:
            session.rollouts.close()
            dist.barrier()
            answers = (output / "rollouts.jsonl").read_text("utf-8").splitlines()
            dist.barrier()
        weights = {name: weight.double().flatten().tolist() for name, weight in session.engine.whole_weights()}
        return {"answers": answers, "records": records(losses), "weights": weights}


if __name__ == "__main__":
    main(StudentBench)
