"""Pairs train alike on every layout: loss, every figure, gradient norm, weights and reference. A sample; -m soak is all."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from pair_cases import COUPLED, OF_STREAMS, RESUMED, Cases, hows, one_process, two_processes, whole_of, write_pairs

WORKER = "alignment/layout_worker.py"
TOLERANCE = 1e-6
"""Of a loss and a norm, as a share of it: sums of fp32 in another order."""
OF_REWARDS = 4e-6
"""Of rewards and their margins, absolutely (nats): differences of sums of some hundred nats, of which fp32 keeps 2 ** -24."""
OF_SCORES = 1e-7
"""Of scores and what they differ by, absolutely: scores of some tenths in fp32."""
OF_MOVES = 1e-5
"""Of all that a weight moved: three steps move one by some 1e-3, and fp32 rounds it at 1e-8."""
Launch = Callable[[str, int, Path, Cases], dict[str, Any]]
Results = dict[str, Any]


@pytest.fixture(scope="module")
def launched(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, Cases], Results]:
    folder = tmp_path_factory.mktemp("pairs")
    rows = str(write_pairs(folder / "pairs.jsonl"))
    return lambda world, cases: launch(
        WORKER, world, tmp_path_factory.mktemp("out"), {name: {**each, "rows": rows} for name, each in cases.items()}
    )


@pytest.fixture(scope="module")
def one(launched: Callable[[int, Cases], Results]) -> Results:
    return launched(1, one_process(full=False))


@pytest.fixture(scope="module")
def two(launched: Callable[[int, Cases], Results]) -> Results:
    return launched(2, two_processes(full=False))


@pytest.fixture(scope="module")
def everything(launched: Callable[[int, Cases], Results]) -> tuple[Results, Results]:
    """Results of all cases on one process, and on two."""
    return launched(1, one_process(full=True)), launched(2, two_processes(full=True))


def assert_alike(one: Results, other: Results) -> None:
    """Every figure of every step, all weights at the end, and what the start gave each document.

    Rewards of step 1 are 0, or rounding, and so it is chance which side has the larger one.
    """
    for number, (expected, found) in enumerate(zip(one["records"], other["records"], strict=True)):
        assert expected.keys() == found.keys()
        for name, value in expected.items():
            if "reward_accuracy" in name and number == 0:
                continue
            allowed = OF_REWARDS if "reward_" in name or name.endswith("kl") else TOLERANCE * abs(value)
            allowed = max(allowed, OF_SCORES) if "score_" in name else allowed
            assert abs(found[name] - value) <= allowed, (
                f"step {number + 1}: {name} {found[name]!r}, and {value!r} in one"
            )
    assert far(moves(one), moves(other)) < OF_MOVES
    assert_same_reference(one["reference"], other["reference"], TOLERANCE)


def moves(result: Results) -> list[float]:
    """What each weight has moved since the start."""
    before, after = result["before"], result["after"]
    return [b - a for name in sorted(after) for a, b in zip(before[name], after[name], strict=True)]


def far(one: list[float], other: list[float]) -> float:
    """The length of the difference as a share of the first."""
    length = sum(value * value for value in one) ** 0.5
    assert length > 1e-4, "nothing has moved"
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5 / length


def assert_same_reference(one: Results, other: Results, tolerance: float) -> None:
    for name, rows in other.items():
        for number, (expected, found) in enumerate(zip(one[name], rows, strict=True)):
            assert found == pytest.approx(expected, rel=tolerance, abs=1e-5), f"{name} of row {number}"


@pytest.mark.parametrize(("kind", "how"), hows(full=False))
def test_two_processes_train_pairs_as_one_does(one: Results, two: Results, kind: str, how: str) -> None:
    assert_alike(one[f"{kind}/{whole_of(how)}"], two[f"{kind}/{how}"])


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("kind", "how"), hows(full=True))
def test_every_layout_trains_pairs_as_one_process_does(
    everything: tuple[Results, Results], kind: str, how: str
) -> None:
    one, two = everything
    assert_alike(one[f"{kind}/{whole_of(how)}"], two[f"{kind}/{how}"])


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("kind", COUPLED)
def test_micro_batches_of_any_size_give_the_same_training(one: Results, kind: str, size: int) -> None:
    assert_alike(one[f"{kind}/one"], one[f"{kind}/one/micro {size}"])


@pytest.mark.parametrize("kind", [*COUPLED, "terms"])
def test_packed_pairs_train_as_padded_ones_do(one: Results, two: Results, kind: str) -> None:
    """Where both have the same pairs in a step: some of them share a row."""
    packed = one[f"{kind}/few packed"]
    assert_alike(one[f"{kind}/few"], packed)
    (((pairs,),), *_) = packed["pairs"]
    assert pairs == 8
    if kind == "terms":
        assert_alike(packed, two["terms/few packed"])


def test_a_rank_and_a_micro_batch_without_any_pair_were_among_them(two: Results) -> None:
    """The last step of an epoch has 3 pairs: the first rank gets all of them; in a pipeline the second micro-batch has one."""
    assert two["everything/zero2"]["pairs"][2] == [[3], [0]]
    assert two["everything/zero1/micro 1"]["pairs"][2] == [[1, 1], [1, 0]]
    assert two["everything/pipeline"]["pairs"][2] == [[2, 1], [2, 1]]


@pytest.mark.parametrize("kind", ["everything", "qlora", "pissa"])
def test_the_reference_is_the_model_of_step_0_in_a_plain_forward(one: Results, kind: str) -> None:
    """1e-5: answers one by one, and without an engine. All layouts have what one process has."""
    found = one[f"{kind}/one"]
    assert_same_reference(found["plain"], found["reference"], 1e-5)
    assert set(found["reference"]) == ({"reference", "reference_tail"} if kind == "everything" else {"reference"})


def test_the_reference_is_measured_without_dropout(one: Results) -> None:
    assert_same_reference(one["dropped"]["plain"], one["dropped"]["reference"], 1e-5)


def test_an_adapter_that_begins_as_the_base_has_its_reference(one: Results) -> None:
    """Also one that splits the base's weights up, to rounding; one over four bits has another."""
    base = one["sft/one"]["reference"]
    for kind in ("lora", "dora", "pissa"):
        assert_same_reference(base, one[f"{kind}/one"]["reference"], 1e-5)
    quantized, plain = (chain(*each["reference"]) for each in (one["qlora/one"]["reference"], base))
    apart = [abs(one / other - 1) for one, other in zip(quantized, plain, strict=True)]
    assert max(apart) > 1e-4  # which pair is far depends on the weights; most are further than rounding
    assert median(apart) > 1e-5


def test_a_step_shows_each_term_and_counts_tokens_whatever_the_loss_counts(one: Results) -> None:
    """The loss is the sum of both means, and the gradient that of it, as plain torch has them of each answer by itself."""
    found, first = one["terms/few"], one["terms/few"]["records"][0]
    sums, tokens = found["plain"]["reference"], found["tokens of sides"]
    pairs = sum((chosen - rejected) ** 2 / 1000 for chosen, rejected in sums) / 8
    likelihood = -sum(map(sum, sums)) / sum(map(sum, tokens))
    assert first["likelihood"] == pytest.approx(likelihood, rel=1e-6)
    assert first["loss"] == pytest.approx(pairs + likelihood, rel=1e-6)
    assert first["grad_norm"] == pytest.approx(found["plain norm"], rel=1e-5)
    assert [each["tokens"] for each in found["records"]] == [sum(map(sum, tokens)) * step for step in (1, 2, 3)]


def test_a_balance_loss_is_a_mean_over_tokens_whatever_the_loss_counts(one: Results) -> None:
    """What it adds to the weights in the first step is the same beside a mean over pairs and beside one over tokens."""
    added = {
        counts: [
            with_it - without
            for with_it, without in zip(
                moves(one[f"balance 0.3 of {counts}"]), moves(one[f"balance 0.0 of {counts}"]), strict=True
            )
        ]
        for counts in ("pairs", "tokens")
    }
    assert far(added["tokens"], added["pairs"]) < 1e-3


@pytest.mark.parametrize("kind", ["reward lora", "reward tied lora"])
def test_evaluations_may_read_the_language_head_of_a_reward_model_in_slices(
    one: Results, two: Results, kind: str
) -> None:
    """At ZeRO 3, where the objective does not call that head. Behind the reads the objective finds its own as before."""
    for key in ("said", "loss"):
        assert two[f"read {kind}"][key] == pytest.approx(one[f"read {kind}"][key], rel=1e-5)


@pytest.mark.parametrize("layout", ["one", *RESUMED])
def test_a_resumed_run_equals_one_that_was_not_stopped_and_measures_nothing(
    one: Results, two: Results, layout: str
) -> None:
    """To the bit: rows, figures, weights. Both runs before it measured both of their splits."""
    found = (one if layout == "one" else two)[f"resumed/{layout}"]
    assert found["steps"] == [2, 3]
    assert found["records"]
    assert found["weights"]
    assert found["measured before and after"] == [4, 0]
    (said,) = set(found["refused"])
    assert "gone cannot be read (No such file or directory)" in said, "all ranks end where one of them cannot read"


def test_a_stream_trains_as_a_file_of_the_same_rows_whose_reference_was_measured_at_step_0(one: Results) -> None:
    """Each step asks the base under the adapter, which has long moved away from it."""
    file, stream = one["in order/lora"], one["in order/stream"]
    assert file["reference"]
    assert not stream["reference"], "nobody has seen its rows"
    assert_alike(file, stream)
    assert abs(stream["records"][-1]["reward_margin"]) > 1e-3, "the model has left its reference"
    assert stream["records"][0]["loss"] == pytest.approx(math.log(2), rel=1e-6)


@pytest.mark.parametrize("layout", ["one", *OF_STREAMS])
def test_a_resumed_stream_equals_one_that_was_not_stopped(one: Results, two: Results, layout: str) -> None:
    """To the bit. What was measured once are the held-out rows; the others are asked for again."""
    found = one["resumed/stream"] if layout == "one" else two[f"resumed stream/{layout}"]
    assert found["steps"] == [2, 3]
    assert found["records"]
    assert found["weights"]
    assert found["measured before and after"] == [2, 0]
