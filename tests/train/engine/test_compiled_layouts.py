"""Compiled blocks train on every layout what plain ones do, from as few graphs as the layout leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

WORKER = "train/engine/compile_worker.py"
Launch = Callable[..., dict[str, Any]]
PACKED = {"objective": "pretrain"}
LAYOUTS: dict[str, dict[str, Any]] = {
    "packed": {"stage": 0, **PACKED},
    "padded": {"stage": 0},
    "recompute": {"stage": 0, "recompute": True, **PACKED},
    "selective": {"stage": 0, "recompute": "selective", **PACKED},
    "lora": {"stage": 0, "adapter": "lora", **PACKED},
    "zero1": {"stage": 1, **PACKED},
    "zero2": {"stage": 2, **PACKED},
    "zero3": {"stage": 3, **PACKED},
    "sequence": {"stage": 1, "sequence": 2, **PACKED},
    "pipeline": {"stage": "auto", "pipeline": 2, "micro": 2, **PACKED},
}
WHOLE = ("packed", "padded", "recompute", "lora", "zero1", "pipeline")
"""Layouts in which a block is one graph."""
TWO = ("zero2", "sequence", "pipeline")


def cases(names: tuple[str, ...]) -> dict[str, Any]:
    plain = {name: LAYOUTS[name] for name in names}
    return plain | {f"{name}, compiled": {**case, "train": {"compile": True}} for name, case in plain.items()}


@pytest.fixture(scope="module")
def one(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    names = tuple(name for name in LAYOUTS if name not in ("zero2", "sequence"))
    return launch(WORKER, 1, tmp_path_factory.mktemp("one"), cases(names))


@pytest.fixture(scope="module")
def two(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return launch(WORKER, 2, tmp_path_factory.mktemp("two"), cases(TWO))


def assert_same_training(plain: dict[str, Any], compiled: dict[str, Any]) -> None:
    for key in ("losses", "norms", "eval"):
        assert compiled[key] == pytest.approx(plain[key], rel=1e-6), key
    for name, values in plain["values"].items():
        assert compiled["values"][name] == pytest.approx(values, rel=1e-4, abs=1e-4), (
            name
        )  # Adam divides small by small


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name not in ("zero2", "sequence")])
def test_one_process_trains_the_same(one: dict[str, Any], name: str) -> None:
    assert_same_training(one[name], one[f"{name}, compiled"])


@pytest.mark.night
@pytest.mark.parametrize("name", TWO)
def test_two_processes_train_the_same(two: dict[str, Any], name: str) -> None:
    assert_same_training(two[name], two[f"{name}, compiled"])


@pytest.mark.parametrize("name", WHOLE)
def test_a_block_is_one_graph(one: dict[str, Any], name: str) -> None:
    assert_one_graph(one[f"{name}, compiled"])


@pytest.mark.night
def test_a_block_is_one_graph_on_two_ranks(two: dict[str, Any]) -> None:
    assert_one_graph(two["zero2, compiled"])


def assert_one_graph(found: dict[str, Any]) -> None:
    """One graph for training and one for each shape of evaluation and gradient, whatever blocks there are: no break."""
    assert found["breaks"] == {}
    assert found["graphs"] <= 5


@pytest.mark.parametrize(
    ("ranks", "layout", "function"),
    [
        ("one", "selective", "KeptAttention.__call__"),
        ("one", "zero3", "_pre_forward_module_hook"),
        pytest.param("two", "sequence", "UlyssesAttention.__call__", marks=pytest.mark.night),
    ],
)
def test_what_stays_outside_is_a_break_with_its_name(
    request: pytest.FixtureRequest, ranks: str, layout: str, function: str
) -> None:
    """Attention that is kept, the hooks of ZeRO 3, the exchange of ranks that share rows: the page names them."""
    breaks = request.getfixturevalue(ranks)[f"{layout}, compiled"]["breaks"]
    assert any(function in text for text in breaks), breaks
