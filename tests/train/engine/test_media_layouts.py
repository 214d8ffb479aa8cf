"""Runs with an encoder on every layout equal one process, whichever ranks have media: all cases in one launch of one process, and in one
of two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

WORKER = "train/engine/media_worker.py"
Launch = Callable[..., dict[str, Any]]
FROZEN: dict[str, Any] = {"train": {"disable": ["media.*.encoder.*"]}}
ADAMW: dict[str, Any] = {"optimizer": {"name": "adamw", "lr": 1e-2}}
LORA: dict[str, Any] = {"adapter": {"name": "lora", "rank": 2}, **ADAMW}
ALL_AT_ONCE: dict[str, Any] = {"steps": 1, "train": {"global_batch_size": 64, "micro_batch_size": 64}}
PIPELINE: dict[str, Any] = {"stage": "auto", "pipeline": 2, "micro": 2}
SEQUENCE: dict[str, Any] = {"stage": 1, "sequence": 2}

CLIP: dict[str, Any] = {"kind": "-pictures", "objective": "pretrain", "length": 128}
CLIP |= {"encoders": {"clip": {"size": "tiny", "projector": "mlp"}}}
SHAPE = {"vocab_size": 259, "dim": 32, "n_layers": 3, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 48, "head_dim": 8}
SECTIONS = {"sections": [2, 1, 1], "sections_interleaved": True}
AREAS = {"min_area": 64, "max_area": 1024}
QWEN: dict[str, Any] = {"kind": "-pictures", "objective": "pretrain", "length": 128}
QWEN |= {"family": {"name": "qwen", "generation": 3, **SHAPE, "rope_scaling": SECTIONS}}
QWEN |= {"encoders": {"qwen3-vl": {"taps": [0, 1], "projector": {"levels": 2}, "table": 5, **AREAS}}}
"""Positions in rows and columns, and features behind two blocks."""
QWEN2: dict[str, Any] = {**QWEN, "encoders": {"qwen2-5-vl": {"window": 16, **AREAS}}}
QWEN2 |= {"family": {"name": "qwen", "generation": 2, **SHAPE, "rope_scaling": {"sections": [1, 1, 2]}}}

ALONE: dict[str, dict[str, Any]] = {
    "plain": {"stage": 0},
    "plain, one row at a time": {"stage": 0, "micro": 1},
    "frozen": {"stage": 0, **FROZEN},
    "frozen, stored": {"stage": 0, **FROZEN, "stored": "features"},
    "lora": {"stage": 0, **LORA},
    "padded rows at once": {"stage": 0, **ALL_AT_ONCE},
    "packed rows at once": {"stage": 0, **ALL_AT_ONCE, "data": {"batching": "packing"}},
    "adamw": {"stage": 1, **ADAMW},
    "qwen3": {"stage": 0, **QWEN},
    "qwen3, padded rows at once": {"stage": 0, **QWEN, **ALL_AT_ONCE},
    "qwen3, packed rows at once": {"stage": 0, **QWEN, **ALL_AT_ONCE, "data": {"batching": "packing"}},
}
PROVE: dict[str, Any] = {"do": "prove", "objective": "spelled", "data": {"batching": "packing"}}
SHARED: dict[str, dict[str, Any]] = {
    **{f"plain, zero{stage}": {"stage": stage} for stage in range(4)},
    "plain, zero3, one row at a time": {"stage": 3, "micro": 1},
    "plain, pipeline": PIPELINE,
    "plain, sequence": SEQUENCE,
    "frozen, zero3": {"stage": 3, **FROZEN},
    "frozen, pipeline": {**PIPELINE, **FROZEN},
    "frozen, zero3, stored": {"stage": 3, **FROZEN, "stored": "features"},
    "frozen, pipeline, stored": {**PIPELINE, **FROZEN, "stored": "features"},
    "lora, zero3": {"stage": 3, **LORA},
    "adamw, zero3": {"stage": 3, **ADAMW},
    "adamw, resumed at zero3": {"stage": 3, "do": "resume", **ADAMW},
    "adamw, pipeline to zero1": {**PIPELINE, "do": "resume", **ADAMW, "then": {"stage": 1, "pipeline": 1}},
    "qwen3, zero3": {"stage": 3, **QWEN},
    "qwen3, pipeline": {**PIPELINE, **QWEN},
    "qwen3, sequence": {**SEQUENCE, **QWEN},
}
MORE: dict[str, dict[str, Any]] = {
    **{f"frozen, zero{stage}": {"stage": stage, **FROZEN} for stage in (0, 1, 2)},
    **{f"frozen, zero{stage}, stored": {"stage": stage, **FROZEN, "stored": "features"} for stage in (0, 1, 2)},
    "frozen, sequence": {**SEQUENCE, **FROZEN},
    "frozen, sequence, stored": {**SEQUENCE, **FROZEN, "stored": "features"},
    "frozen, zero3, stored, resumed": {"stage": 3, "do": "resume", **FROZEN, "stored": "features"},
    **{f"plain, zero{stage}, one row at a time": {"stage": stage, "micro": 1} for stage in (1, 2)},
    "plain, zero3, recomputed": {"stage": 3, "recompute": True},
    "plain, pipeline, recomputed": {**PIPELINE, "recompute": True},
    "plain, sequence at zero3": {"stage": 3, "sequence": 2},
    "lora, pipeline, recomputed": {**PIPELINE, **LORA, "recompute": True},
    "lora, sequence": {**SEQUENCE, **LORA},
    "adamw, zero1 to pipeline": {"stage": 1, "do": "resume", **ADAMW, "then": PIPELINE},
    "adamw, sequence to zero3": {**SEQUENCE, "do": "resume", **ADAMW, "then": {"stage": 3, "sequence": 1}},
    "adamw, resumed at zero1": {"stage": 1, "do": "resume", **ADAMW},
    "adamw, zero1": {"stage": 1, **ADAMW},
    "lora, resumed at zero3": {"stage": 3, "do": "resume", **LORA},
    **{f"clip, zero{stage}": {"stage": stage, **CLIP} for stage in (1, 3)},
    "clip, pipeline, recomputed": {**PIPELINE, **CLIP, "recompute": True},
    "clip, sequence": {**SEQUENCE, **CLIP},
    **{f"qwen3, zero{stage}": {"stage": stage, **QWEN} for stage in (0, 1, 2)},
    "qwen3, pipeline, recomputed": {**PIPELINE, **QWEN, "recompute": True},
    **{f"qwen2, zero{stage}": {"stage": stage, **QWEN2} for stage in (1, 3)},
    "qwen2, pipeline": {**PIPELINE, **QWEN2},
    "qwen2, sequence": {**SEQUENCE, **QWEN2},
}
"""What takes too long for every day."""


CHANGE: dict[str, dict[str, Any]] = {
    "full": {},
    "frozen": FROZEN,
    "lora": LORA,
    "lora and the first block": {**LORA, "train": {"enable": ["media.letters.encoder.layers.0.*"]}},
    "lora in the encoder": {"adapter": {"name": "lora", "rank": 2, "targets": ["q_proj", "media.*.q_proj"]}, **ADAMW},
}
"""Runs whose changed tensors are looked at."""
PROJECTOR, ENCODER = "letters.projector 224 parameters, ", "letters.encoder 132 parameters, "
SAID = {
    "full": [ENCODER + "trained", PROJECTOR + "trained"],
    "frozen": [ENCODER + "frozen", PROJECTOR + "trained"],
    "lora": [ENCODER + "frozen", PROJECTOR + "trained"],
    "lora and the first block": [ENCODER + "42 of them trained", PROJECTOR + "trained"],
    "lora in the encoder": ["letters.encoder 180 parameters, 48 of them trained", PROJECTOR + "trained"],
}
REFUSED: dict[str, dict[str, Any]] = {
    "unreadable": {"do": "refuse", "stage": 3, **FROZEN, "stored": "bad", "unreadable": "cafe"},
    "apart": {"do": "refuse", "stage": 1, **FROZEN, "stored": "apart", "apart": True},
}
WRITE: dict[str, Any] = {
    "do": "write",
    **ADAMW,
    "more": {"eval": {"samples": 6, "sample_tokens": 6, "every_steps": 99}},
}
WRITTEN = {f"write, zero{stage}": {**WRITE, "stage": stage} for stage in (2, 3)}
PROVED = {"prove": {**PROVE, "stage": 0}, "prove, pipeline": {**PROVE, **PIPELINE}}


@pytest.fixture(scope="module")
def one(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    changes = {f"change, {name}": {"stage": 0, "do": "change", **case} for name, case in CHANGE.items()}
    return launch(WORKER, 1, tmp_path_factory.mktemp("one"), ALONE | changes | {"write": {**WRITE, "stage": 0}})


@pytest.fixture(scope="module")
def one_clip(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cases = {"clip": {"stage": 0, **CLIP}, "qwen2": {"stage": 0, **QWEN2}}
    return launch(WORKER, 1, tmp_path_factory.mktemp("clip"), cases)


@pytest.fixture(scope="module")
def two(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return launch(WORKER, 2, tmp_path_factory.mktemp("two"), SHARED | PROVED | REFUSED | WRITTEN)


@pytest.fixture(scope="module")
def more(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return launch(WORKER, 2, tmp_path_factory.mktemp("more"), MORE)


@pytest.fixture(scope="module")
def four(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cases = {"plain, pipeline": PIPELINE, "plain, pipeline and sequence": {**PIPELINE, "sequence": 2}}
    return launch(WORKER, 4, tmp_path_factory.mktemp("four"), cases)


def require_equal(found: dict[str, Any], plain: dict[str, Any], tolerance: float = 1e-6) -> None:
    """Losses, norms and every weight, those of encoder and projector among them."""
    assert found["tokens"] == plain["tokens"]
    for key in ("losses", "norms", "eval"):
        assert found[key] == pytest.approx(plain[key], rel=tolerance), key
    assert found["values"].keys() == plain["values"].keys()
    for name, values in plain["values"].items():
        assert found["values"][name] == pytest.approx(values, abs=tolerance), name


@pytest.mark.parametrize("case", PROVED)
def test_media_of_other_documents_change_no_bit_of_a_document(two: dict[str, Any], case: str) -> None:
    """And where attention mixes them they do."""
    assert two[case]["honest"] == 0.0
    assert two[case]["leaky"] > 1e-5


def tolerance_of(case: str) -> float:
    """Adam divides by the root of what may be nearly nothing, and so makes more of a rounding."""
    return 1e-6 if case.startswith(("plain", "frozen", "clip", "qwen")) else 1e-4


@pytest.mark.parametrize("case", SHARED)
def test_two_processes_equal_one_whichever_has_media(one: dict[str, Any], two: dict[str, Any], case: str) -> None:
    """Both ranks, the first, none, the second, and one whose rows have ended; evaluations, too."""
    require_equal(two[case], one[case.partition(",")[0]], tolerance_of(case))


@pytest.mark.parametrize("case", WRITTEN)
def test_texts_behind_media_are_those_of_one_process_where_one_rank_alone_has_media(
    one: dict[str, Any], two: dict[str, Any], case: str
) -> None:
    """At ZeRO 3 ranks run along with those that still write, as the others do where rank 0 writes the samples of a run."""
    (alone,) = one["write"]["texts"]
    assert two[case]["texts"] == [alone, alone]
    assert alone["greedy"] != alone["drawn"]
    assert len({tuple(ids) for ids in alone["drawn"]}) == 7
    lines = one["write"]["lines"]
    assert any("<letters: " in prompt for prompt, _ in lines)
    assert two[case]["lines"] == lines


@pytest.mark.soak
@pytest.mark.parametrize("case", MORE)
def test_two_processes_equal_one_on_more_layouts(
    one: dict[str, Any], one_clip: dict[str, Any], more: dict[str, Any], case: str
) -> None:
    require_equal(more[case], (one | one_clip)[case.partition(",")[0]], tolerance_of(case))


@pytest.mark.soak
@pytest.mark.parametrize("case", ["plain, pipeline", "plain, pipeline and sequence"])
def test_two_pipelines_equal_one_process(one: dict[str, Any], four: dict[str, Any], case: str) -> None:
    require_equal(four[case], one["plain"])


def test_stored_features_train_as_computed_ones_do(one: dict[str, Any], two: dict[str, Any]) -> None:
    """At ZeRO 3 with ranks that have no item, and where other stages have no encoder. Each word is read once, by one of them all."""
    require_equal(one["frozen, stored"], one["frozen"])
    assert one["frozen, stored"]["reads"] == [6]
    for layout in ("frozen, zero3", "frozen, pipeline"):
        require_equal(two[f"{layout}, stored"], two[layout])
    first, second = two["frozen, zero3, stored"]["reads"]
    assert (first + second, min(first, second) > 0) == (6, True)
    assert two["frozen, pipeline, stored"]["reads"] == [0, 0]  # the same encoder on another layout


def test_features_that_one_rank_cannot_store_stop_all_ranks_alike(two: dict[str, Any]) -> None:
    assert two["unreadable"] == ["DataError: this word cannot be read"] * 2
    for said in two["apart"]:
        assert said.startswith("UnusableStoreError: ")
        assert "is not the same folder on every rank" in said


@pytest.mark.soak
@pytest.mark.parametrize("layout", ["zero0", "zero1", "zero2", "sequence"])
def test_stored_features_train_as_computed_ones_do_on_more_layouts(more: dict[str, Any], layout: str) -> None:
    require_equal(more[f"frozen, {layout}, stored"], more[f"frozen, {layout}"])
    assert sum(more[f"frozen, {layout}, stored"]["reads"]) in (0, 6)


@pytest.mark.soak
def test_a_run_with_stored_features_goes_on_bit_for_bit(two: dict[str, Any], more: dict[str, Any]) -> None:
    assert more["frozen, zero3, stored, resumed"]["state"] == two["frozen, zero3, stored"]["state"]


def test_rows_one_at_a_time_give_the_training_of_all_at_once(one: dict[str, Any]) -> None:
    require_equal(one["plain, one row at a time"], one["plain"])


@pytest.mark.parametrize("model", ["", "qwen3, "])
def test_packed_rows_give_the_training_of_padded_ones(one: dict[str, Any], model: str) -> None:
    require_equal(one[f"{model}packed rows at once"], one[f"{model}padded rows at once"])


def test_media_are_learned_from(one: dict[str, Any], two: dict[str, Any]) -> None:
    """Else equal values would show nothing: what is trained of the encoder changes, and what is frozen does not."""
    media = [name for name in one["plain"]["values"] if name.startswith("media.letters.")]
    assert len(media) == 7
    for name in media:
        is_changed = one["plain"]["values"][name] != one["frozen"]["values"][name]
        assert is_changed, name
        of_encoder = ".encoder." in name
        assert (name in one["frozen"]["trained"]) is not of_encoder
        assert (one["frozen"]["values"][name] == one["lora"]["values"][name]) is of_encoder


@pytest.mark.parametrize("case", CHANGE)
def test_what_a_run_changes_is_what_it_says(one: dict[str, Any], case: str) -> None:
    found = one[f"change, {case}"]
    assert found["changed"] == found["trained"]
    assert found["said"] == SAID[case]


def test_a_run_with_media_goes_on_bit_for_bit(two: dict[str, Any]) -> None:
    for key in ("losses", "norms", "state"):
        assert two["adamw, resumed at zero3"][key] == two["adamw, zero3"][key], key


@pytest.mark.soak
@pytest.mark.parametrize("case", ["adamw, resumed at zero1", "lora, resumed at zero3"])
def test_more_runs_with_media_go_on_bit_for_bit(two: dict[str, Any], more: dict[str, Any], case: str) -> None:
    whole = {**two, **more}[case.replace("resumed at ", "")]
    assert more[case]["losses"] == whole["losses"]
    assert more[case]["state"] == whole["state"]


@pytest.mark.parametrize("case", ["plain, zero1", "plain, sequence", "plain, pipeline"])
def test_each_item_is_read_by_the_ranks_that_encode_it(one: dict[str, Any], two: dict[str, Any], case: str) -> None:
    """Its own where ranks have rows of their own, all where ranks share them, and by the first stage of a pipeline alone."""
    (all_of_them,) = one["plain"]["reads"]
    first, second = two[case]["reads"]
    assert {
        "plain, zero1": 0 < min(first, second) <= max(first, second) < all_of_them,
        "plain, sequence": first == second == all_of_them,
        "plain, pipeline": (first, second) == (all_of_them, 0),
    }[case]
