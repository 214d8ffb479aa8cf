"""The bench of ``layout_worker`` with compiled blocks. Run by test_compiled_layouts.py."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from layout_worker import Bench, main
from torch._dynamo.utils import counters

torch.compile = partial(torch.compile, backend="aot_eager")  # type: ignore[assignment]  # inductor takes a minute for each graph


class Compiled(Bench):
    """A case says how many graphs its blocks became, and how often a frame was compiled in two parts."""

    def run(self, case: dict[str, Any]) -> dict[str, Any]:
        torch._dynamo.reset()
        counters.clear()
        found = super().run(case)
        return {**found, "graphs": counters["stats"]["unique_graphs"], "breaks": dict(counters["graph_break"])}


if __name__ == "__main__":
    main(Compiled)
