"""HyenaDNA against its formula in fp64, and its folders."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parent))

from drawn import COMPONENTS, drawn, ids_of, noisy, together
from hyena_reference import hyena_dna

from mt_core import WeightsError
from mt_plugin_bio.hyenadna.config import HyenaDNAConfig

TINY = HyenaDNAConfig(dim=6, n_layers=2, l_max=40)
SEQUENCES = [b"ACGTNACGGT", b"G", b"TTGACATTACNNGATTACA"]


def test_features_equal_the_formula_in_fp64() -> None:
    encoder = noisy(drawn("hyenadna", TINY))
    weights = {name: tensor.double() for name, tensor in encoder.state_dict().items()}
    items = [ids_of("hyenadna", TINY, each) for each in SEQUENCES]
    expected = [hyena_dna(ids, weights, 2, 40) for ids in items]
    for found, wanted in zip(together(encoder, items), expected, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-5)
    for found, wanted in zip(together(encoder.double(), items), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)


def test_layers_above_the_chosen_one_are_not_built() -> None:
    below = HyenaDNAConfig(dim=6, n_layers=2, l_max=40, layer=-2)
    encoder, whole = drawn("hyenadna", below), drawn("hyenadna", TINY)
    assert not any(name.startswith(("layers.1.", "ln_f.")) for name, _ in encoder.named_parameters())
    encoder.load_state_dict({name: whole.state_dict()[name] for name in encoder.state_dict()})
    ids = ids_of("hyenadna", TINY, b"ACGT")
    seen = []
    whole.layers[0].register_forward_hook(lambda *call: seen.append(call[-1][0]))
    whole({"ids": ids}, [5])
    assert torch.equal(encoder({"ids": ids}, [5]), seen[0])


@pytest.mark.parametrize(("size", "millions"), [("tiny-1k", 0.44), ("small-32k", 3.3), ("large-1m", 6.6)])
def test_sizes_have_the_parameters_of_the_paper(size: str, millions: float) -> None:
    with torch.device("meta"):
        encoder = COMPONENTS["hyenadna"].build(HyenaDNAConfig(size=size))
    assert sum(tensor.numel() for tensor in encoder.parameters()) / 1e6 == pytest.approx(millions, rel=0.02)


# ------------------------------------------------------------------------------------------------------------ folders


def published(
    folder: Path, *, prefix: str = "hyena.backbone.", checkpointed: bool = False, trained: bool = False
) -> Path:
    """A folder as LongSafari writes it, with buffers, repeated frequencies and a head."""
    encoder = noisy(drawn("hyenadna", TINY))
    tensors = {"lm_head.weight": torch.zeros(16, 6)}
    for name, tensor in encoder.state_dict().items():
        for inner in ("mixer.", "mlp."):
            name = name.replace(f".{inner}", f".{inner}layer.") if checkpointed else name
        tensors[prefix + name] = tensor.clone()
    n = torch.arange(40.0)
    f = torch.tensor([[1e-4, 1.0]])
    wave = torch.exp(-1j * f * (2 * torch.pi * n / 40).unsqueeze(1))
    t = torch.linspace(0, 1, 40).unsqueeze(1)
    z = torch.cat([t, wave.real, wave.imag], 1)
    for index in range(2):
        at = f"{prefix}layers.{index}.mixer.{'layer.' if checkpointed else ''}filter_fn"
        tensors[f"{at}.pos_emb.z"] = z[None] + (0.1 if trained else 0)
        tensors[f"{at}.pos_emb.t"] = t[None].clone()
        tensors[f"{at}.modulation.deltas"] = torch.linspace(-3.0701, -15.3506, 6)[None, None]
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    config = {"model_type": "hyenadna", "d_model": 6, "n_layer": 2, "d_inner": 24, "max_seq_len": 40, "vocab_size": 12}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(("prefix", "checkpointed"), [("hyena.backbone.", False), ("model.backbone.", True)])
def test_a_published_folder_is_read_under_the_names_of_the_module(
    prefix: str, checkpointed: bool, tmp_path: Path
) -> None:
    folder = published(tmp_path / "folder", prefix=prefix, checkpointed=checkpointed)
    (form,) = COMPONENTS["hyenadna"].formats
    assert form.matches(folder)
    assert form.values(folder) == {"dim": 6, "n_layers": 2, "l_max": 40}
    encoder = drawn("hyenadna", TINY)
    loaded = {name: load() for name, load in form.tensors(folder, TINY).items()}
    encoder.load_state_dict(loaded, strict=False)
    assert set(loaded) == {name for name, _ in encoder.named_parameters()}
    ids = ids_of("hyenadna", TINY, b"ACGT")
    assert torch.equal(encoder({"ids": ids}, [5]), noisy(drawn("hyenadna", TINY))({"ids": ids}, [5]))


def test_the_original_config_is_read(tmp_path: Path) -> None:
    folder = published(tmp_path / "folder")
    layer = {
        "_name_": "hyena",
        "emb_dim": 5,
        "filter_order": 64,
        "l_max": 40,
        "modulate": True,
        "w": 10,
        "lr_pos_emb": 0.0,
    }
    (folder / "config.json").write_text(
        json.dumps({"d_model": 6, "n_layer": 2, "d_inner": 24, "vocab_size": 12, "layer": layer})
    )
    (form,) = COMPONENTS["hyenadna"].formats
    assert form.matches(folder)
    assert form.values(folder) == {"dim": 6, "n_layers": 2, "l_max": 40}


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"l_max": "40"}, "l_max='40', and it must be a whole number"), ({"layer": 3, "n_layer": 0}, "n_layer=0")],
)
def test_a_number_of_a_folder_that_is_none_is_refused_by_its_key(changes: Any, message: str, tmp_path: Path) -> None:
    folder = published(tmp_path / "folder")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(WeightsError, match=message):
        COMPONENTS["hyenadna"].formats[0].values(folder)


def test_trained_positions_are_refused(tmp_path: Path) -> None:
    (form,) = COMPONENTS["hyenadna"].formats
    with pytest.raises(WeightsError, match=r"has a trained layers\.0\.mixer\.filter_fn\.pos_emb\.z"):
        form.tensors(published(tmp_path / "folder", trained=True), TINY)


def test_other_maths_is_refused_by_name(tmp_path: Path) -> None:
    folder = published(tmp_path / "folder")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hyena_order": 3}))
    with pytest.raises(WeightsError, match="hyena_order=3; this encoder is built for 2 only"):
        COMPONENTS["hyenadna"].formats[0].values(folder)


def test_a_folder_may_have_the_frequencies_once(tmp_path: Path) -> None:
    folder = published(tmp_path / "folder")
    tensors = {
        name: each
        for name, each in load_file(folder / "model.safetensors").items()
        if "filter.3." not in name and "filter.5." not in name
    }
    save_file(tensors, folder / "model.safetensors")
    read = COMPONENTS["hyenadna"].formats[0].tensors(folder, TINY)
    assert set(read) == {name for name, _ in drawn("hyenadna", TINY).named_parameters()}


def test_a_pickle_is_refused_with_a_command_that_converts_it(tmp_path: Path) -> None:
    folder = published(tmp_path / "folder")
    tensors = load_file(folder / "model.safetensors")
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    (form,) = COMPONENTS["hyenadna"].formats
    assert form.matches(folder)
    with pytest.raises(
        WeightsError, match=r"pytorch_model\.bin and no \.safetensors, and a pickle is not opened here; convert it"
    ) as caught:
        form.values(folder)
    command = shlex.split(str(caught.value).partition("trust it: ")[2])
    subprocess.run([sys.executable, *command[1:]], cwd=folder, check=True, timeout=300)
    assert form.values(folder)["l_max"] == 40
    assert load_file(folder / "model.safetensors").keys() == tensors.keys()
