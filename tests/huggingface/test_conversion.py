"""Files that have the experts of a layer one by one: read into one tensor, written back, and refused by name where they do not fit."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.huggingface import tiny_models

from mt_core.errors import WeightsError
from mt_core.weights import Loaders
from mt_plugin_huggingface.config import HuggingFaceConfig
from mt_plugin_huggingface.weights import HUGGINGFACE, written

FILE = "model.safetensors"
TYPES = ("mixtral", "qwen3_moe")
FUSED = "model.layers.1.mlp.experts.gate_up_proj"


@pytest.fixture(scope="module", params=TYPES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / request.param
    tiny_models.model(request.param).save_pretrained(path)
    return path


def read(folder: Path) -> Loaders:
    config = HuggingFaceConfig(**HUGGINGFACE.values(folder))
    return dict(HUGGINGFACE.tensors(folder, config))


def changed(saved: Path, to: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    to.mkdir()
    (to / "config.json").write_text((saved / "config.json").read_text())
    found = load_file(saved / FILE)
    change(found)
    save_file(found, to / FILE)
    return to


def expert_names(found: dict[str, Any], expert: int) -> list[str]:
    """All tensors of an expert of the second block."""
    return [name for name in found if re.search(rf"layers\.1\..*experts\.{expert}\.", name)]


def test_rows_of_a_fused_tensor_are_read_from_their_own_tensors(saved: Path, tmp_path: Path) -> None:
    whole, load = read(saved)[FUSED](), read(saved)[FUSED]
    assert torch.equal(load.rows(1, 3), whole[1:3])  # type: ignore[attr-defined]

    def cut(found: dict[str, Any]) -> None:
        for name in expert_names(found, 0):
            found[name] = found[name][:1].clone()

    broken = read(changed(saved, tmp_path / "cut", cut))[FUSED]
    assert torch.equal(broken.rows(1, 3), whole[1:3])  # type: ignore[attr-defined]
    with pytest.raises(WeightsError, match=rf"experts\.0\..* is \(1, 32\) in the weights and .* a part of {FUSED}"):
        broken()


def test_files_of_a_model_that_was_saved_as_it_is_are_read_too(saved: Path, tmp_path: Path) -> None:
    found = {name: load() for name, load in read(saved).items()}
    as_is = changed(saved, tmp_path / "as_is", lambda tensors: (tensors.clear(), tensors.update(found)))
    again = read(as_is)
    assert again.keys() == found.keys()
    assert all(torch.equal(again[name](), tensor) for name, tensor in found.items())


def test_a_written_tensor_can_be_read_twice_and_in_any_order(saved: Path) -> None:
    config = HuggingFaceConfig(**HUGGINGFACE.values(saved))
    loaders, expected = written(config, read(saved)), load_file(saved / FILE)
    assert loaders.keys() == expected.keys()
    for name in [*sorted(expected), *sorted(expected, reverse=True)]:
        assert torch.equal(loaders[name](), expected[name]), name


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "one is missing": (
        lambda found: found.pop(expert_names(found, 2)[0]),
        r"parts of .* missing in the weights \(1\).*: .*layers\.1\..*experts\.2\.",
    ),
    "an expert is missing": (
        lambda found: [found.pop(name) for name in expert_names(found, 3)],
        r"missing in the weights \(\d\).*experts\.3\.",
    ),
    "one too many": (
        lambda found: found.update(
            {name.replace("s.3.", "s.4."): found[name].clone() for name in expert_names(found, 3)}
        ),
        r"left over in the weights \(\d\).*experts\.4\.",
    ),
    "twice": (
        lambda found: found.update(
            {name.removeprefix("model."): found[name].clone() for name in expert_names(found, 0)}
        ),
        r"two tensors for a part of .*: layers\.1.*|two tensors for a part of",
    ),
    "fused and listed": (
        lambda found: found.update({FUSED: torch.zeros(4, 2, 2)}),
        rf"two tensors for {FUSED}, .*experts\.0\..* and {FUSED}",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_experts_that_do_not_fit_are_named(saved: Path, tmp_path: Path, case: str) -> None:
    change, says = FAULTS[case]
    with pytest.raises(WeightsError, match=says):
        read(changed(saved, tmp_path / "changed", change))
