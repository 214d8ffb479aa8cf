"""The bench of tests/train/engine for the family that counts. Run by test_counting.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "train/engine"))

from layout_worker import Bench, Losses, main

from mt_conformance.host import named_host
from mt_core.errors import MtError
from mt_core.plugins.host import PluginHost
from mt_train.engine.engine import Engine
from mt_train.engine.processes import Process

PLUGINS = ("mt_plugin_optim.plugin", "counting_family")


class Counts(Bench):
    """Cases may be refused."""

    def __init__(self, host: PluginHost, process: Process, deepspeed: Any, rows: Path) -> None:
        super().__init__(named_host(*PLUGINS), process, deepspeed, rows)

    def summary(self, engine: Engine, losses: Losses) -> dict[str, Any]:
        """Also the figures of each step, the precision of the kept bias, and the keys of evaluations."""
        found = super().summary(engine, losses)
        figures = [dict(record.metrics) for record in losses.records]
        keys = sorted({key for record in losses.records for key in record.evaluation})
        kept = engine.module.model.kept_names()
        dtypes = {name: str(each.dtype) for name, each in engine.whole_weights() if name in kept}
        trained = [name for name, each in engine.module.model.named_parameters() if each.requires_grad and name in kept]
        values = {name: found["values"][name] for name in dtypes}
        return {**found, "values": values, "figures": figures, "eval_keys": keys, "dtypes": dtypes, "trained": trained}

    def refused(self, case: dict[str, Any]) -> dict[str, Any]:
        try:
            self.run(case)
        except MtError as error:
            return {"error": str(error)}
        return {"error": ""}


if __name__ == "__main__":
    main(Counts)
