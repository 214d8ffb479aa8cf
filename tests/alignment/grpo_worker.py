"""Collects answers and learns from them on many layouts in one launch. Run by test_grpo_layouts.py."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.alignment.test_memory import largest_sum
from tests.train.engine.layout_worker import Bench, Losses, SharedFolder, StopAfter, main, manifest_to_go_on, records

from mt_core import Control
from mt_core.errors import ComponentError, UsageError
from mt_core.generation import GenerationConfig
from mt_core.nn import Batch, token_logprobs
from mt_train.assemble.callbacks import CallbackContext, Callbacks
from mt_train.assemble.session import Session
from mt_train.checkpoint.store import find

REWARDS = [
    {"name": "pattern", "pattern": "[a-z]", "count": True},
    {"name": "length", "most": 4, "ramp": 4, "weight": 0.5},
]


class RolloutBench(Bench):
    """Sessions whose rows are prompts."""

    def session(
        self, case: dict[str, Any], output: Path | None = None, checkpoint: Path | None = None, seed: int = 3
    ) -> Session:
        self.rows = Path(case["rows"])
        objective = {"name": "grpo", "prompts": 4, "group": 4, "max_new_tokens": 8, **case.get("objective", {})}
        data = {"cache": "none", "eval": 4, **case.get("data", {})}
        case = {"steps": 4, "eval_every": 4, **case, "objective": objective, "data": data}
        return super().session({**case, "more": {"rewards": REWARDS}}, output, checkpoint, seed)

    def trained(self, case: dict[str, Any]) -> dict[str, Any]:
        """Answers, figures of each step, and weights."""
        with SharedFolder() as output:
            session, losses = self.session(case, output), Losses()
            session.loop(session.restore(None, None), losses)
            assert session.rollouts is not None
            session.rollouts.close()
            dist.barrier()
            return {"answers": answers(output), "records": records(losses), "weights": weights(session)}

    def resumed(self, case: dict[str, Any]) -> dict[str, Any]:
        """A run that is stopped after each step, and one that is not."""
        whole = self.trained(case)
        found: dict[str, Any] = {"whole": whole, "stopped": {}}
        for step in (1, 2, 3):
            with SharedFolder() as output:
                first, begun = self.again(case, output), Losses()
                first.events.callbacks = Callbacks({"stop": StopAfter(step)})
                first.loop(first.restore(None, None), begun)
                first.rollouts.close()
                checkpoint = find(output)
                second, ended = self.again(case, output, checkpoint), Losses()
                second.rollouts.cut_back(trained=step, evaluated=step)
                second.loop(second.restore(checkpoint, manifest_to_go_on(checkpoint)), ended)
                second.rollouts.close()
                dist.barrier()
                found["stopped"][str(step)] = {
                    "answers": answers(output),
                    "records": [*records(begun), *records(ended)],
                    "weights": weights(second),
                }
        return found

    def policy(self, case: dict[str, Any]) -> dict[str, Any]:
        """What collecting gets of the model before two steps and after them."""
        with SharedFolder() as output:
            session = self.session(case, output)
            first = seen(session)
            session.loop(session.restore(None, None), Losses())
            return {"first": first, "last": seen(session)}

    def rounds(self, case: dict[str, Any]) -> dict[str, Any]:
        """Iterations of a run in which one token in twelve is an end, and what is measured and written after each."""
        with SharedFolder() as output:
            session, look, losses = self.session({"steps": 6, **case}, output), Look(every=2), Losses()
            assert session.rollouts is not None
            policy = session.rollouts._policy
            policy._loaded = replace(policy._loaded, eos_ids=tuple(range(0, 259, 12)))
            look.session, session.events.callbacks = session, Callbacks({"look": look})
            session.loop(session.restore(None, None), losses)
            session.rollouts.close()
            dist.barrier()
            written = answers(output)
            dist.barrier()  # the folder is gone with rank 0
            return {"answers": written, "records": records(losses), "seen": look.found}

    def memory(self, case: dict[str, Any]) -> dict[str, Any]:
        """Bytes that are held at once while the model of step 0 is asked, beside those of the model's weights."""
        session = self.session(case)
        assert session.rollouts is not None
        policy = session.rollouts._policy
        sample = replace(session.data.train[0], trained=[True] * len(session.data.train[0].ids))
        held = largest_sum(lambda: policy.measure([sample], logprobs, view="reference"))
        weights = sum(each.numel() * each.element_size() for each in session.engine.module.model.parameters())
        return {"held": held, "weights": weights}

    def again(self, *given: Any) -> Session:
        """Another session in this process."""
        self.deepspeed.utils.groups.mpu = None
        return self.session(*given)


class Look:
    """A callback that asks the policy on every rank, after each iteration of so many steps."""

    session: Session

    def __init__(self, every: int) -> None:
        self._every = every
        self.found: list[dict[str, Any]] = []

    def on_step_end(self, context: CallbackContext) -> Control:
        if context.step % self._every == 0:
            self.found.append(seen(self.session, max_new_tokens=40))
        return Control()


def seen(session: Session, *, max_new_tokens: int = 6) -> dict[str, Any]:
    """Values of the prompts' own tokens under both views, texts of a copy, merged weights, and whether there is a model of step 0."""
    assert session.rollouts is not None
    policy = session.rollouts._policy
    policy.version += 1
    samples = [replace(each, trained=[True] * len(each.ids)) for each in session.data.train]
    measured = {
        view: [each["logprobs"].tolist() for each in policy.measure(samples, logprobs, view=view)]
        for view in ("live", "reference")
    }
    prompts, config = (
        [[int(token) for token in each.ids] for each in samples],
        GenerationConfig(max_new_tokens=max_new_tokens, seed=5),
    )
    written = {
        weights: [list(each.ids) for each in policy.generate(prompts, config, weights=weights)]
        for weights in (("copy", "auto", "live") if policy.texts else ("copy", "auto"))
    }
    refused = ""
    if not policy.texts:
        with pytest.raises(UsageError) as error:
            policy.generate(prompts, config)
        refused = str(error.value)
    expected = ZeroDivisionError if session.process.is_main else ComponentError
    with pytest.raises(expected, match="division by zero"):
        policy.once(lambda: 1 / 0)  # every rank hears of it, and none waits
    with pytest.raises((ValueError, ComponentError), match="'x'"):
        policy.divide(["1", "2", "x"], lambda share: [int(each) for each in share])
    merged = {name: weight.double().flatten().tolist() for name, weight in policy.weights()}
    return {
        "measured": measured,
        "written": written,
        "merged": merged,
        "once": policy.once(lambda: [1, "a"]),
        "divided": policy.divide(list("abcde"), lambda share: [each * len(share) for each in share]),
        "refused": refused,
        "has_reference": "reference" in vars(policy._copies),
    }


def logprobs(hidden: Tensor, head: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """How likely each trained token is."""
    return {"logprobs": token_logprobs(head, *batch.select_trained(hidden))[0]}


def answers(folder: Path) -> list[str]:
    """Lines of the file."""
    return (folder / "rollouts.jsonl").read_text("utf-8", "surrogateescape").splitlines()


def weights(session: Session) -> dict[str, list[float]]:
    """Every weight of the model."""
    return {name: weight.double().flatten().tolist() for name, weight in session.engine.whole_weights()}


if __name__ == "__main__":
    main(RolloutBench)
