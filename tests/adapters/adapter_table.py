"""The tables of docs/adapters.md, from the declarations. ``python tests/adapters/adapter_table.py`` writes them into the page."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from catalogue import EXPECTED_FAILURES, components, small

from mt_core import Adapter, AdapterComponent
from mt_plugin_llama.config import LlamaConfig
from mt_plugin_llama.model import Llama

PAGE = Path(__file__).parents[2] / "docs" / "adapters.md"
BEGIN, END = "<!-- adapters: begin -->", "<!-- adapters: end -->"
SHAPE = {"vocab_size": 32, "dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 48, "max_seq_len": 8}
ZERO = tuple(f"zero{stage}" for stage in range(4))
HEAD = ("adapter", "what it is", "trains", "needs", "ZeRO", "pipeline", "sequence", "quantized base", "merges")


def table() -> str:
    """A row for each adapter, and below what is known to fail."""
    lines = [_row(HEAD), _row(["---"] * len(HEAD)), *(_row(_cells(each)) for each in components().values())]
    failures = [f"- `{name}`, {test}: {reason}" for (name, test), reason in EXPECTED_FAILURES.items()]
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
    adapter, trained = _built(component)
    return [
        f"[`{component.name}`]({component.source})" if component.source else f"`{component.name}`",
        component.summary,
        trained,
        _needs(component, adapter),
        "0–3" if len(stages) == len(ZERO) else ", ".join(stages),
        *("●" if layout in component.layouts else "" for layout in ("pipeline", "sequence")),
        "●" if component.on_quantized else "",
        "●" if component.mergeable else "",
    ]


def _built(component: AdapterComponent) -> tuple[Adapter, str]:
    """The adapter in a tiny Llama, and the names of what it trains there."""
    with torch.device("meta"):
        model = Llama(LlamaConfig(**SHAPE))
        base = {name for name, _ in model.named_parameters()}
        adapter: Adapter = component.build(component.config(**small(component.name)))
        adapter.inject(model)
    trained = adapter.trainable_parameters(model)
    own = dict.fromkeys(name.rpartition(".")[2] for name in trained if name not in base)
    words = [f"`{name}`" for name in own] + ["weights of the model"] * any(name in base for name in trained)
    return adapter, ", ".join(words)


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
