"""What encoders of media hold and keep, on paper and in the engine that tries sizes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))  # for the encoder of words

from media_worker import PLUGINS, row

from mt_conformance.host import named_host
from mt_core.nn import TrainModel
from mt_train.assemble.batch_size import LongestRows
from mt_train.assemble.data import build_data, make_loader
from mt_train.assemble.parts import Parts
from mt_train.assemble.run import RunOptions
from mt_train.engine.plan import make_plan
from mt_train.engine.processes import Process
from mt_train.planning.dry_run import dry_run
from mt_train.planning.media import fullest_media, media_activations
from mt_train.plugins.resolve import resolve

WORDS = "abcdefgh" * 40
SHAPE = {"vocab_size": 259, "dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 48}


@pytest.fixture
def parts(tmp_path: Path) -> Any:
    """``parts(**sections)``: a run whose longest row has no word, and whose fourth has a long one."""

    def resolved(**sections: Any) -> Parts:
        rows = [row(number, words=1) for number in range(8)]
        rows[3]["parts"][1] = WORDS[:40]
        rows[5]["parts"] = ["x" * 60]
        path = tmp_path / "rows.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        raw = {
            "model": {"name": "llama", **SHAPE},
            "dataset": {"name": "jsonl", "path": str(path)},
            "objective": "spelled",
            "encoders": {"letters": {"projector": "pairs", "width": 16}},
            "data": {"eval": None, "shuffle": False, "batching": "padding"},
            "train": {"sequence_len": 64, "global_batch_size": 4, "micro_batch_size": 2, "steps": 2},
        }
        raw = {
            key: {**value, **sections.get(key, {})} if isinstance(value, dict) else value for key, value in raw.items()
        }
        return Parts.of(
            resolve({**raw, **{key: sections[key] for key in sections.keys() - raw.keys()}}, named_host(*PLUGINS))
        )

    return resolved


def kept_by(model: TrainModel, letters: int) -> int:
    """Bytes of the storages that a real forward of the encoder keeps, weights apart."""
    from mt_core.nn import MediaBatch

    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    seen: dict[int, Tensor] = {}
    nothing = torch.empty(0, dtype=torch.int64)
    inputs = {"letters": torch.zeros(letters, dtype=torch.int64)}
    batch = MediaBatch((), (letters,), (), (None,), nothing, nothing, inputs)
    assert model.media is not None
    with saved_tensors_hooks(lambda x: seen.setdefault(x.untyped_storage().data_ptr(), x), lambda x: x):
        model.media["letters"](batch)
    return sum(x.untyped_storage().nbytes() for place, x in seen.items() if place not in own)


@pytest.mark.parametrize("frozen", [False, True])
def test_encoders_are_said_to_keep_what_they_do_in_a_real_forward(parts: Any, frozen: bool) -> None:
    """Of a dummy, times as many features."""
    run = parts()
    model = run.model()
    if frozen:
        model.media["letters"].encoder.requires_grad_(False)
    processors = {each.name: each.component.processor(each.options) for each in run.encoders}
    found = media_activations(model, processors, {"letters": 320}, torch.float32)
    real = kept_by(model, 320)
    assert found is not None
    assert abs(found - real) <= 0.25 * real, (found, real)
    if frozen:
        assert real < 320 * 16 * 4 * 2


def test_a_plan_counts_encoders_on_the_first_stage_alone(parts: Any) -> None:
    run = parts(parallel={"pipeline": 2}, train={"micro_batch_size": 2})
    about = dry_run(run, RunOptions(output=None), world=2).about()
    first, second = about["stages"]
    assert first["layers"].startswith("letters, embedding")
    assert "letters" not in second["layers"]
    own = sum(parameter.numel() for parameter in run.model().media.parameters())
    assert own == 8 * 16 + 2 * (16 * 16 + 16) + 16 * 32 + 32
    assert [part["trained"] for part in about["media"]] == [part["count"] for part in about["media"]] == [672, 544]
    without = dry_run(
        parts(parallel={"pipeline": 2}, train={"micro_batch_size": 2, "disable": ["media.*"]}),
        RunOptions(output=None),
        world=2,
    ).about()
    assert about["parameters"]["trained"] - without["parameters"]["trained"] == own
    assert first["parameters"] + second["parameters"] == about["parameters"]["total"]
    frozen, trained = (each["stages"][0]["memory"]["activations"]["device"] for each in (without, about))
    assert frozen < trained


def test_the_fullest_row_is_counted_for_as_many_as_a_micro_batch_has(parts: Any) -> None:
    data = build_data(parts())
    assert data.train.media_features.tolist() == [3, 6, 1, 40, 4, 0, 3, 6]
    assert fullest_media(data.train, rows=2, row_tokens=64, packing=False) == {"letters": 80}
    length = int(data.train.lengths[3])
    assert fullest_media(data.train, rows=2, row_tokens=2 * length, packing=True) == {"letters": 160}
    for most, features in {10: 80, 79: 80, 80: 160}.items():
        given = {"rows": 2, "row_tokens": 2 * length, "packing": True, "most_features": most}
        assert fullest_media(data.train, **given) == {"letters": features}


def test_sizes_are_tried_on_rows_with_most_media_as_long_as_the_longest(parts: Any) -> None:
    run = parts()
    data = build_data(run)
    plan = make_plan(run.config, world=1, device="cpu", offers=run.offers.values())
    loader = make_loader(run.config, data, plan, Process(0, 1, 0, torch.device("cpu")))
    (batch,) = LongestRows(loader, full_length=False).batches(2, 1)
    assert batch.media["letters"].features == (40, 6)
    longest = int(np.max(data.train.lengths))
    assert longest > data.train.lengths[3]
    assert batch.input_ids.shape == (2, -(-longest // 8) * 8)
