"""A mixture has its experts fused or listed as the run needs them; weights, adapters and folders go from one form to the other."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from mt_conformance.layouts import small_run
from mt_core.nn import Experts, ListedExperts, TrainModel
from mt_core.plugins.host import PluginHost
from mt_tools.cli.convert import main as convert
from mt_tools.cli.export import main as export
from mt_train.assemble.load import load_model
from mt_train.assemble.parts import Parts
from mt_train.checkpoint.manifest import read_manifest
from mt_train.checkpoint.store import find
from mt_train.cli.train import main as train
from mt_train.engine.build import fill_model
from mt_train.engine.processes import Process
from mt_train.plugins.resolve import resolve

SHAPE: dict[str, Any] = {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 32, "expert_dim": 16}
MIXTURE: dict[str, Any] = {"name": "qwen", "variant": "3-tiny-moe", **SHAPE, "n_experts": 4}
ALONE = Process(0, 1, 0, torch.device("cpu"))


@cache
def host() -> PluginHost:
    return PluginHost.discover()


def model_of(adapter: str = "full", quantizer: str = "none") -> TrainModel:
    return Parts.of(resolve(small_run(model=dict(MIXTURE), adapter=adapter, quantizer=quantizer), host())).model()


@pytest.mark.parametrize(
    ("adapter", "quantizer", "form"),
    [
        ("full", "none", Experts),
        ("freeze", "none", Experts),
        ("lora", "none", ListedExperts),
        ("bitfit", "none", ListedExperts),
        ("lora", "nf4", ListedExperts),
    ],
)
def test_experts_are_listed_where_something_stands_for_projections(
    adapter: str, quantizer: str, form: type[torch.nn.Module]
) -> None:
    found = {type(each) for each in model_of(adapter, quantizer).modules() if isinstance(each, Experts | ListedExperts)}
    assert found == {form}


def test_both_forms_are_drawn_from_a_seed_as_one_model() -> None:
    fused, listed = model_of(), model_of("lora")
    for each in (fused, listed):
        fill_model(each, {}, seed=3, process=ALONE)
    place = "model.layers.1.mlp.experts"
    assert torch.equal(
        fused.get_parameter(f"{place}.down_proj")[2], listed.get_parameter(f"{place}.2.down_proj.weight")
    )
    up = fused.get_parameter(f"{place}.gate_up_proj")[3, 16:]
    assert torch.equal(up, listed.get_parameter(f"{place}.3.up_proj.weight"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``full``, a run; ``in``, its weights; ``lora``, a run over them; ``adapter`` and ``merged``, what came of that."""
    root = tmp_path_factory.mktemp("forms")
    words = [f"--model.{key.replace('_', '-')}={value}" for key, value in MIXTURE.items() if key != "name"]
    assert train(["--model", "qwen", *words, *SMALL, "--output", str(root / "full")]) == 0
    assert convert([str(root / "full"), str(root / "in")]) == 0
    over = ["--model.weights", str(root / "in"), *SMALL]
    assert train([*over, "--adapter", "lora", "--output", str(root / "lora")]) == 0
    assert export(["--run", str(root / "lora"), "--output", str(root / "adapter")]) == 0
    assert export(["--run", str(root / "lora"), "--merge", "--output", str(root / "merged")]) == 0
    return root


SMALL = [
    *("--train.steps", "1", "--train.sequence-len", "32", "--data.eval", "none", "--data.read-rows", "4"),
    *("--optimizer.lr", "0.05"),
]


def logits(raw: dict[str, Any], checkpoint: Path | None = None) -> torch.Tensor:
    from mt_conformance.forward import rows_of

    parts = Parts.of(resolve({"train": {"sequence_len": 2}, **raw}, host()))
    model = load_model(parts, checkpoint, lambda text: None)
    with torch.no_grad():
        return model.head(model(rows_of(torch.arange(20)[None], 20)))  # type: ignore[no-any-return]


def test_a_manifest_says_which_form_its_run_had(folders: Path) -> None:
    found = {name: read_manifest(find(folders / name))["experts"] for name in ("full", "lora")}
    assert found == {"full": "fused", "lora": "listed"}


def test_a_folder_has_experts_by_their_published_names(folders: Path) -> None:
    from mt_core.weights import open_folder

    names = set(open_folder(folders / "in"))
    assert "model.layers.0.mlp.experts.3.gate_proj.weight" in names
    assert not any("gate_up_proj" in name for name in names)


def test_an_adapter_over_listed_experts_is_the_same_merged_into_fused_ones(folders: Path) -> None:
    """On top of listed experts, merged while fused ones are read, and written as a folder."""
    weights = {"name": "qwen", "weights": str(folders / "in")}
    over = logits({"model": weights, "adapter": {"name": "lora", "weights": str(folders / "adapter")}})
    merged = logits({"model": {**weights, "adapters": [str(folders / "adapter")]}})
    written = logits({"model": {"name": "qwen", "weights": str(folders / "merged")}})
    assert float((over - logits({"model": weights})).abs().max()) > 1e-3
    torch.testing.assert_close(merged, over, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(written, over, atol=1e-5, rtol=1e-5)


def test_a_run_says_what_share_of_the_weights_its_adapter_reaches(folders: Path) -> None:
    """2 blocks of 4 + 3 · 4 linear layers; what is left are embedding, router and norms."""
    about = json.loads((folders / "lora/about.json").read_text())["adapter"]
    model = model_of()
    rest = sum(
        each.numel()
        for name, each in model.named_parameters()
        if any(x in name for x in ("embed", "norm", "gate.weight"))
    )
    total = sum(each.numel() for each in model.parameters())
    assert about == {"name": "lora", "layers": 32, "share": pytest.approx(1 - rest / total)}
    assert json.loads((folders / "full/about.json").read_text())["adapter"] is None


def test_a_quantizer_that_leaves_most_of_the_weights_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"--model.{key.replace('_', '-')}={value}" for key, value in MIXTURE.items() if key != "name"]
    run = ["--model", "qwen", *words, *SMALL, "--adapter", "lora", "--quantizer", "nf4", "--dry-run"]
    assert train(run) == 0
    assert "leaves" not in capsys.readouterr().err
    assert train([*run, "--model.vocab-size", "9000"]) == 0
    assert "quantizer nf4 leaves 89% of the model's weights as they are" in capsys.readouterr().err


def test_a_checkpoint_is_not_resumed_in_the_other_form(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mt_core.errors import CheckpointError
    from mt_train.assemble.expert_forms import refuse_other_form

    refuse_other_form("fused", model_of())
    refuse_other_form(None, model_of())
    with pytest.raises(CheckpointError, match="experts fused, and this run has them listed"):
        refuse_other_form("fused", model_of("lora"))
