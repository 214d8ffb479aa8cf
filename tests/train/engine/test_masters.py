"""Masters of our own compute what DeepSpeed's optimizer for bf16 does: many cases in one launch of one process, and in one of two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

WORKER = "train/engine/layout_worker.py"
Launch = Callable[..., dict[str, Any]]

OWN: dict[str, Any] = {"stage": 1, "dtype": "bf16", "clip": None}
THEIRS = {**OWN, "masters": "deepspeed"}
ALIKE: dict[str, dict[str, Any]] = {
    "whole": {},
    "several": {"micro": 2},
    "buckets": {"bucket": 700},
    "several-buckets": {"micro": 2, "bucket": 700},
    "tied": {"model": {"tie_embeddings": True}},
    "dropout": {"model": {"dropout": 0.1}},
    "frozen": {"adapter": "lora"},
    "written": {"adapter": {"name": "relora", "every_steps": 2}},
    "written gradients": {"adapter": {"name": "adalora", "orthogonality": 1.0}},
    "lion": {"optimizer": {"name": "lion", "lr": 1e-3}},
    "muon": {"optimizer": {"name": "muon", "lr": 1e-2}},
    "average": {"optimizer": {"name": "schedule-free-adamw", "lr": 1e-2}},
    "sequence": {"sequence": 2},
}
"""What both do to the bit, without clipping: DeepSpeed adds the squares of a norm up in fp32."""
WHOLE: dict[str, Any] = {**OWN, "stage": 0, "whole": True}
"""As for an optimizer that looks at whole parameters: each rank has the masters of all."""
WHOLE_ALIKE = {name: case for name, case in ALIKE.items() if name not in ("muon", "average") and "buckets" not in name}
STAYS = ("dropout", "several-buckets", "muon", "average")
MOVES = {"to-theirs": (OWN, {"masters": "deepspeed"}), "from-theirs": (THEIRS, {"masters": "auto"})}
MOVES |= {f"to-{stage}": (OWN, {"stage": stage}) for stage in (2, 3)}
MOVES |= {f"from-{stage}": ({**OWN, "stage": stage}, {"stage": 1}) for stage in (2, 3)}
MOVES |= {"from-whole": (WHOLE, {"stage": 1, "whole": False}), "to-whole": (OWN, {"stage": 0, "whole": True})}
MOVES["other-buckets"] = ({**OWN, "bucket": 700}, {"bucket": 1500})
EXACT = ("to-theirs", "from-theirs", "other-buckets", "from-whole", "to-whole")

CASES = {f"own-{name}": {**OWN, **case} for name, case in ALIKE.items()}
CASES |= {f"whole-{name}": {**WHOLE, **case} for name, case in WHOLE_ALIKE.items()}
CASES |= {f"theirs-{name}": {**THEIRS, **case} for name, case in ALIKE.items() if "buckets" not in name}
CLIPPED: dict[str, Any] = {"clip": 0.5, "optimizer": {"name": "sgd", "lr": 0.5}}
"""Adam would hardly notice: a factor on every gradient cancels out."""
CASES |= {"whole-clipped": {**WHOLE, **CLIPPED}, "inf-whole": {**WHOLE, "do": "inf", "micro": 2}}
CASES |= {"resume-whole": {**WHOLE, **ALIKE["dropout"], "do": "resume"}}
CASES |= {"own-clipped": {**OWN, **CLIPPED}, "theirs-clipped": {**THEIRS, **CLIPPED}}
CASES |= {"inf": {**OWN, "do": "inf"}, "inf-buckets": {**OWN, "do": "inf", "micro": 2, "bucket": 700}}
CASES |= {f"resume-{name}": {**OWN, **ALIKE[name], "do": "resume"} for name in STAYS}
CASES |= {name: {**first, "do": "resume", "then": then} for name, (first, then) in MOVES.items()}


@pytest.fixture(scope="module")
def one(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return launch(WORKER, 1, tmp_path_factory.mktemp("one"), CASES)


@pytest.fixture(scope="module")
def two(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return launch(WORKER, 2, tmp_path_factory.mktemp("two"), CASES)


@pytest.fixture(scope="module", params=["one", "two"])
def results(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.getfixturevalue(request.param)


def far(first: list[float], second: list[float]) -> float:
    return max(abs(a - b) / abs(a) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", ALIKE)
def test_every_bit_is_that_of_deepspeeds_optimizer(results: dict[str, Any], name: str) -> None:
    own, theirs = results[f"own-{name}"], results[f"theirs-{name.removesuffix('buckets').removesuffix('-') or 'whole'}"]
    assert (own["losses"], own["eval"], own["weights"]) == (theirs["losses"], theirs["eval"], theirs["weights"])
    assert far(own["norms"], theirs["norms"]) < 1e-6


@pytest.mark.parametrize("name", [*WHOLE_ALIKE, "clipped"])
def test_whole_masters_on_every_rank_give_the_bits_of_their_pieces(results: dict[str, Any], name: str) -> None:
    whole, pieces = results[f"whole-{name}"], results[f"own-{name}"]
    assert (whole["losses"], whole["eval"], whole["weights"]) == (pieces["losses"], pieces["eval"], pieces["weights"])
    assert far(whole["norms"], pieces["norms"]) < 1e-6


def test_clipped_steps_differ_by_the_rounding_of_the_norm_alone(results: dict[str, Any]) -> None:
    """The first step's norm is of equal gradients; a later weight may be rounded to the next number of bf16 (2 ** -8)."""
    own, theirs = results["own-clipped"], results["theirs-clipped"]
    assert own["norms"][0] > 0.5, "it is clipped"
    assert far(own["norms"][:1], theirs["norms"][:1]) < 1e-6
    assert far(own["losses"], theirs["losses"]) < 1e-3


def test_splitting_rows_otherwise_gives_the_same_training(one: dict[str, Any], two: dict[str, Any]) -> None:
    """To 2e-3: the gradients of each part are rounded to bf16 (2 ** -8) before they are added up."""
    for name in ("own-whole", "own-several"):
        assert far(one["own-whole"]["losses"], two[name]["losses"]) < 2e-3
    assert far(one["own-whole"]["losses"], one["own-several"]["losses"]) < 2e-3


@pytest.mark.parametrize("case", ["inf", "inf-buckets", "inf-whole"])
def test_a_loss_that_is_not_a_number_changes_nothing_on_any_rank(results: dict[str, Any], case: str) -> None:
    assert results[case].items() >= {"finite": False, "applied": False, "unchanged": True}.items()


@pytest.mark.parametrize(
    ("name", "resumed"), [*((f"own-{name}", f"resume-{name}") for name in STAYS), ("whole-dropout", "resume-whole")]
)
def test_two_steps_and_another_equal_three_bit_for_bit(results: dict[str, Any], name: str, resumed: str) -> None:
    whole, parts = results[name], results[resumed]
    assert (whole["losses"], whole["state"]) == (parts["losses"][-len(whole["losses"]) :], parts["state"])


@pytest.mark.parametrize("name", MOVES)
def test_a_run_goes_on_in_another_layout(results: dict[str, Any], name: str) -> None:
    """To the bit where the arithmetic is the same; ZeRO 2 and 3 round what they add up to bf16 (2 ** -8)."""
    whole, parts = results["own-whole"], results[name]
    assert far(whole["losses"], parts["losses"]) <= (0 if name in EXACT else 4e-3)
    assert name not in EXACT or whole["weights"] == parts["weights"]
