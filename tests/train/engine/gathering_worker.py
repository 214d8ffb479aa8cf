"""The bench of ``layout_worker`` on rows that a case names, perhaps with a loss that leaves out the head. Run by test_gathering.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from layout_worker import Bench, main
from torch import Tensor, nn

from mt_core.nn import Batch, LossSums
from mt_train.assemble.session import Session


def headless_loss(hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
    """A loss of the hidden states at trained places alone, as an objective of embeddings has it."""
    assert batch.trained_n is not None
    chosen = hidden.flatten(0, 1)[batch.trained_n].float()
    return LossSums((chosen - 0.5).square().sum(), hidden.new_tensor(float(len(chosen))))


class Heads(Bench):
    """Rows of the case's own; nothing of the weights, number by number: their hash says whether they are equal."""

    def session(self, case: dict[str, Any], *positional: Any, **named: Any) -> Session:
        self.rows = Path(case["rows"])
        session = super().session(case, *positional, **named)
        if case.get("headless"):
            session.engine.objective.loss = headless_loss
        return session

    def run(self, case: dict[str, Any]) -> dict[str, Any]:
        return without_weights(super().run(case))

    def resume(self, case: dict[str, Any]) -> dict[str, Any]:
        return without_weights(super().resume(case))


def without_weights(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "values"}


if __name__ == "__main__":
    main(Heads)
