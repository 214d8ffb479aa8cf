"""The tables of docs/adapters.md, from the declarations. ``python tests/adapters/adapter_table.py`` writes them into the page."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from catalogue import components, expected_failures, in_tiny_llama

from mt_core import Adapter, AdapterComponent
from mt_core.nn import TrainModel

PAGE = Path(__file__).parents[2] / "docs" / "adapters.md"
BEGIN, END = "<!-- adapters: begin -->", "<!-- adapters: end -->"
ZERO = tuple(f"zero{stage}" for stage in range(4))
HEAD = (
    "adapter",
    "what it is",
    "trains",
    "needs",
    "ZeRO",
    "pipeline",
    "sequence",
    "quantized base",
    "merges",
    "base view",
    "file",
)


def table() -> str:
    """A row for each adapter, and below what is known to fail."""
    lines = [_row(HEAD), _row(["---"] * len(HEAD)), *(_row(_cells(each)) for each in components().values())]
    failures = [
        f"- `{name}`, {test}: {reason}" for name in components() for test, reason in expected_failures(name).items()
    ]
    return "\n".join(
        [
            *lines,
            "",
            "Known to fail, each in a test that says so:" if failures else "Known to fail: nothing.",
            *failures,
        ]
    )


def _cells(component: AdapterComponent) -> list[str]:
    stages = [layout[-1] for layout in ZERO if layout in component.layouts]
    adapter, model, base = in_tiny_llama(component.name)
    return [
        f"[`{component.name}`]({component.source})" if component.source else f"`{component.name}`",
        component.summary,
        _trained_names(adapter, model, base),
        _needs(component, adapter),
        "0–3" if len(stages) == len(ZERO) else ", ".join(stages),
        *("●" if layout in component.layouts else "" for layout in ("pipeline", "sequence")),
        "●" if component.on_quantized else "",
        "●" if component.mergeable else "",
        "●" if adapter.base_is_reference else "",
        _file(adapter, model),
    ]


def _trained_names(adapter: Adapter, model: TrainModel, base: set[str]) -> str:
    """The names of what it trains."""
    trained = adapter.trainable_parameters(model)
    own = dict.fromkeys(name.rpartition(".")[2] for name in trained if name not in base)
    return ", ".join(
        [*(f"`{name}`" for name in own), *["weights of the model"] * any(name in base for name in trained)]
    )


def _file(adapter: Adapter, model: TrainModel) -> str:
    """What peft calls it, where it opens what ``mt-export`` writes."""
    form = adapter.peft_form(model)
    return "" if form is None else str(form.config["peft_type"])


def _needs(component: AdapterComponent, adapter: Adapter) -> str:
    needs = {
        "rows of the run, before it begins": type(adapter).prepare is not Adapter.prepare,
        "base weights of its own: it rewrites them": component.rewrites_base,
        "a first output other than the base's": not component.exact_at_init,
    }
    return "; ".join([*(need for need, is_needed in needs.items() if is_needed), *component.requires])


def _row(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def page() -> str:
    """The page with the tables as they should be."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page())
