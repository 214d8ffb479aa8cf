"""docs/adapters.md compares every adapter, and says and shows what was measured."""

from __future__ import annotations

import sys
from itertools import islice
from math import log
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import adapter_runs
from adapter_costs import bytes_kept
from adapter_page import COSTS, DRAWN_FROM, NEAR, PAGE, PICTURE, RESULTS, page, picture_name, rows
from adapter_runs import FIRST, RATES, Results, compare, next_rate
from adapter_sizes import Size, counter, size_of
from catalogue import WHOLE, components, small_options
from learning import ROWS, SEEDS, TOKENS, Task, begin, python, trained_numbers
from PIL import Image

TINY = Task(dim=32, ffn_dim=48, base_steps=0)
RUN = "run python benchmarks/adapters.py, which adds what is missing, and then with --page"


def test_table_and_picture_on_the_page_are_those_of_the_results() -> None:
    found = rows()
    assert PAGE.read_text() == page(found), "run python benchmarks/adapters.py --page"
    assert Image.open(PICTURE).text[DRAWN_FROM] == picture_name(found), "run python benchmarks/adapters.py --page"


def test_every_adapter_that_is_offered_is_compared_with_every_seed() -> None:
    found = Results(RESULTS).all["adapters"]
    missing = [
        name for name in (WHOLE, *components()) if set(found.get(name, {}).get("runs", ())) != set(map(str, SEEDS))
    ]
    assert not missing, f"{', '.join(missing)}: {RUN}"
    without = sorted(set(components()) - set(Results(COSTS).all["adapters"]))
    assert not without, f"{', '.join(without)}: run python benchmarks/adapters.py --costs --only {' '.join(without)}"


def test_what_is_compared_is_still_offered() -> None:
    gone = sorted({*Results(RESULTS).all["adapters"], *Results(COSTS).all["adapters"]} - {WHOLE, *components()})
    assert not gone, f"{', '.join(gone)} are in the results and no adapters"


@pytest.mark.parametrize("name", ["lora", "dora", "hra", "lora-fa", "lokr", "adalora"])
def test_an_adapter_gets_the_trained_numbers_that_are_wanted(name: str) -> None:
    wanted = counter(TINY, "lora")({"rank": 6})
    size = size_of(TINY, name, wanted)
    assert size.trained == counter(TINY, name)(size.options)
    assert size.is_near(wanted), (size, wanted)


def test_the_scale_of_an_update_stays_when_its_rank_is_chosen() -> None:
    assert size_of(TINY, "lora-fa", counter(TINY, "lora")({"rank": 6})).options == {"rank": 12, "alpha": 24.0}


def test_one_that_cannot_have_as_many_is_said_to_be_another_size() -> None:
    wanted = counter(TINY, "lora")({"rank": 6})
    assert size_of(TINY, "ia3", wanted).trained < (1 - NEAR) * wanted
    assert not Size({}, round(wanted * (1 + 2 * NEAR))).is_near(wanted)


def test_options_that_a_small_model_needs_are_taken_where_nothing_trains_without_them() -> None:
    assert size_of(TINY, "bitfit", 1).options == small_options("bitfit")


@pytest.mark.parametrize("peak", [3e-4, 1e-3, 3e-3, 1e-2, 0.1])
def test_rates_are_tried_until_the_best_has_a_worse_one_on_each_side(peak: float) -> None:
    tried: dict[float, float | None] = {}
    while (rate := next_rate(tried)) is not None:
        tried[rate] = abs(log(rate / peak))
    at = RATES.index(peak)
    assert min(tried, key=lambda rate: tried[rate] or 0.0) == peak
    assert {RATES[at - 1], RATES[at + 1]} <= set(tried)
    assert len(tried) <= len(FIRST) + 3


def test_a_rate_that_diverges_is_worse_than_any_other() -> None:
    assert next_rate({FIRST[0]: 2.0, FIRST[1]: None}) == RATES[RATES.index(FIRST[0]) - 1]
    assert next_rate(dict.fromkeys((RATES[2], *FIRST))) == RATES[1]
    assert next_rate(dict.fromkeys(RATES)) is None


def test_a_run_that_was_killed_goes_on_with_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, int]] = []

    def run(name: str, options: dict[str, Any], rate: float, seed: int) -> dict[str, Any]:
        asked.append((rate, seed))
        if len(asked) == 4:
            raise KeyboardInterrupt
        return {"trained": 7, "validated": 2 + abs(log(rate / 3e-3)), "loss": 2.0}

    monkeypatch.setattr(adapter_runs, "run", run)
    path = tmp_path / "results.json"
    path.write_text('{"base": {"wanted": 1}, "adapters": {"lora": {"options": {}}}}')
    with pytest.raises(KeyboardInterrupt):
        compare(Results(path), "lora", 3)
    for _ in range(2):
        compare(Results(path), "lora", 3)
    assert asked == [(3e-3, 0), (1e-2, 0), (1e-3, 0), (3e-3, 1), (3e-3, 1), (3e-3, 2)]
    assert Results(path).of("lora")["rate"] == 3e-3


def test_two_processes_add_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text('{"base": 1, "adapters": {"lora": {"rate": 1}}}')
    one, other = Results(path), Results(path)
    one.of("dora")["rate"] = 2
    one.save()
    other.of("vera")["rate"] = 3
    other.save()
    one.save()
    assert Results(path).all == {
        "base": 1,
        "adapters": {name: {"rate": i} for i, name in enumerate(("lora", "dora", "vera"), 1)},
    }


def test_results_of_other_settings_are_not_added_to(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text('{"settings": {"steps": 7}}')
    with pytest.raises(SystemExit, match=r"was made with another .*steps"):
        Results(path).begin()


def test_memory_is_what_each_part_has_to_keep() -> None:
    bytes_of = {}
    for name in ("lora", "lora-fa", WHOLE):
        training = begin(TINY, name, {} if name == WHOLE else {"rank": 4}, rate=1e-3, seed=0)
        [batch] = islice(python(TINY, 0), 1)
        training.run([batch])
        bytes_of[name] = bytes_kept(training, batch)
        assert bytes_of[name]["gradients"] == 4 * trained_numbers(training.model)
        assert 0 <= bytes_of[name]["optimizer"] - 8 * trained_numbers(training.model) < 1000, "two moments and counts"
    assert bytes_of[WHOLE]["weights"] + bytes_of["lora"]["gradients"] == bytes_of["lora"]["weights"]
    frozen_inputs = 4 * ROWS * TOKENS * TINY.n_layers * 2 * TINY.dim
    assert bytes_of["lora"]["saved"] - bytes_of["lora-fa"]["saved"] == frozen_inputs, (
        "inputs of q, k, v and of gate, up; what goes into down is computed again"
    )
