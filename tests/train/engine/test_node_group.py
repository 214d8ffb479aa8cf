"""Ranks of a machine encode a stream in shares: batches, losses and figures are those of ranks that encode everything, on every layout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt_train.planning.start_counts import COLLECTIVES_OF_BLOCK

pytestmark = [pytest.mark.needs(f"mt-plugin-{name}") for name in ("llama", "datasets", "alignment")]

WORKER = "train/engine/shared_stream_worker.py"
STEPS, BUFFER, HELD_OUT = 6, 8, 3
LORA = {"name": "lora", "rank": 4}
Results = list[dict[str, dict[str, Any]]]
"""Results of each rank, by case."""


def write_rows(folder: Path) -> dict[str, Path]:
    """Texts, conversations and pairs; some texts are no rows, or empty."""
    made: dict[str, list[str]] = {"texts": [], "turns": [], "pairs": []}
    for number in range(60):
        text = f"row {number} " * (1 + number % 5)
        made["texts"].append(
            '{"text": }' if number % 13 == 12 else json.dumps({"text": "" if number % 9 == 8 else text})
        )
        said = [{"role": "user", "content": text}, {"role": "assistant", "content": f"yes {number}"}]
        made["turns"].append(json.dumps({"messages": said}))
        made["pairs"].append(
            json.dumps({"prompt": f"row {number}", "chosen": "yes", "rejected": "no " * (1 + number % 3)})
        )
    for name, lines in made.items():
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return {name: folder / f"{name}.jsonl" for name in made}


def config(
    path: Path,
    *,
    objective: Any = "pretrain",
    adapter: Any = "full",
    length: int = 160,
    alone: bool = False,
    **parallel: Any,
) -> dict[str, Any]:
    return {
        "model": {"name": "llama", "n_layers": 2, "dim": 32, "n_heads": 4, "n_kv_heads": 4, "ffn_dim": 48},
        "dataset": {"name": "stream", "path": str(path)},
        "objective": objective,
        "adapter": adapter,
        "data": {"shuffle_buffer": BUFFER, "eval": HELD_OUT, "on_bad_row": "skip", "template": "chatml"},
        "train": {"steps": STEPS, "micro_batch_size": 1, "global_batch_size": 4, "sequence_len": length},
        "parallel": {"timeout_seconds": 100, **parallel},
        "eval": {"samples": 0},
        "checkpoint": {"every_steps": 2, "keep_last": 9} if alone else {},
        "log": {"console_level": "error"},
    }


def cases(folder: Path, world: int) -> dict[str, dict[str, Any]]:
    texts, turns, pairs = write_rows(folder).values()
    if world == 1:
        return {"zero0": {"config": config(texts, zero_stage=0, alone=True)}}
    if world == 4:
        whole = config(texts, zero_stage=0)
        return {
            "zero0": {"config": whole},
            "nodes": {"config": whole, "nodes": 2},
            "apart": {"config": whole, "nodes": 4},
        }
    found = {
        "zero0": config(texts, zero_stage=0),
        "zero1": config(turns, zero_stage=1, objective="sft"),
        "zero2": config(pairs, zero_stage=2, objective="dpo", adapter=LORA, length=512),
        "zero3": config(pairs, zero_stage=3, objective="kto", adapter=LORA, length=512),
        "pipeline": config(texts, pipeline=2),
        "sequence": config(turns, sequence=2, objective="sft"),
    }
    return {name: {"config": each} for name, each in found.items()} | {
        f"{name} alone": {"config": each, "alone": True} for name, each in found.items()
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("streams")


@pytest.fixture(scope="module")
def launched(launch: Callable[..., Any], folder: Path) -> Callable[[int, dict[str, Any]], Results]:
    def launched(world: int, given: dict[str, Any]) -> Results:
        launch(WORKER, world, folder, given, timeout=600)
        return [json.loads((folder / f"rank-{rank}-of-{world}.json").read_text()) for rank in range(world)]

    return launched


@pytest.fixture(scope="module")
def one(launched: Callable[..., Results], folder: Path) -> Results:
    return launched(1, cases(folder, 1))


@pytest.fixture(scope="module")
def two(launched: Callable[..., Results], folder: Path, one: Results) -> Results:
    again = {"resume": "zero0-1/checkpoints/step-00000002", "config": {}}
    return launched(2, cases(folder, 2) | {"resumed": again})


WHAT = ("batches", "places", "rows", "losses", "report")


@pytest.mark.parametrize("layout", ["zero0", "zero1", "zero2", "zero3", "pipeline", "sequence"])
def test_what_is_trained_on_is_what_ranks_that_encode_everything_train_on(two: Results, layout: str) -> None:
    for rank in two:
        shared, alone = rank[layout], rank[f"{layout} alone"]
        assert len(shared["batches"]) == STEPS
        for what in WHAT:
            assert shared[what] == alone[what], what
        assert (shared["groups"], alone["groups"]) == ([[0, 1]], [])
        assert shared["gathers"] == COLLECTIVES_OF_BLOCK * shared["shares"] > 0
    blocks = len({place["block"] for place in two[0][layout]["places"]})
    assert blocks > 2, "there are blocks behind the first"
    begun, whole = BUFFER + HELD_OUT, two[0][f"{layout} alone"]["encoded"]
    encoded = [rank[layout]["encoded"] - begun for rank in two]
    assert sum(encoded) == whole - begun
    if layout != "zero3":  # kto takes runs of 64 rows, and a block has 8
        assert max(encoded) - min(encoded) <= two[0][layout]["shares"], "a row a block at most"


def test_one_process_makes_no_group_and_has_the_same_steps(one: Results, two: Results) -> None:
    (alone,) = one
    assert (alone["zero0"]["groups"], alone["zero0"]["shares"], alone["zero0"]["gathers"]) == ([], 0, 0)
    for rank in two:
        for what in ("places", "rows", "report"):
            assert rank["zero0"][what] == alone["zero0"][what]
    losses = [figures[0] for figures in alone["zero0"]["losses"]]
    assert [figures[0] for figures in two[0]["zero0"]["losses"]] == pytest.approx(losses, rel=1e-5)


def test_a_run_of_one_process_goes_on_with_two_at_the_same_rows(one: Results, two: Results) -> None:
    for rank in two:
        assert rank["resumed"]["groups"] == [[0, 1]]
        for what in ("places", "rows"):
            assert rank["resumed"][what] == one[0]["zero0"][what][2:]
        assert rank["resumed"]["batches"] == rank["zero0"]["batches"][2:]


@pytest.mark.long
def test_only_ranks_of_one_machine_share(launched: Callable[..., Results], folder: Path, two: Results) -> None:
    four = launched(4, cases(folder, 4))
    groups = {name: [rank[name]["groups"] for rank in four] for name in ("zero0", "nodes", "apart")}
    assert groups["zero0"] == [[[0, 1, 2, 3]]] * 4
    assert groups["nodes"] == [[[0, 1]]] * 2 + [[[2, 3]]] * 2
    assert groups["apart"] == [[]] * 4
    for rank in four:
        for what in WHAT:
            assert rank["zero0"][what] == rank["nodes"][what] == rank["apart"][what]
        assert rank["zero0"]["rows"] == two[0]["zero0"]["rows"]
    begun = BUFFER + HELD_OUT
    encoded = {name: [rank[name]["encoded"] - begun for rank in four] for name in groups}
    (whole,) = set(encoded["apart"])
    assert sum(encoded["zero0"]) == sum(encoded["nodes"][:2]) == sum(encoded["nodes"][2:]) == whole
    assert max(encoded["zero0"]) < whole / 2
