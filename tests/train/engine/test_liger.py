"""Liger's kernels in the place of ours: they compute the same, and what they stand for keeps its parameters.

Where Triton and Liger are installed, the kernels themselves run here, on a CPU, in Triton's interpreter; elsewhere functions by the
formulas stand in for them. ``tests/gpu`` runs them on a GPU.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mt_core.errors import ConfigError, UsageError
from mt_core.nn import Batch, RMSNorm
from mt_core.plugins.host import PluginHost
from mt_plugin_llama.config import LlamaConfig
from mt_plugin_llama.model import Llama
from mt_train.engine import liger
from mt_train.engine.liger import LigerRMSNorm, LigerRotary, replace_operations, require_liger, use_liger
from mt_train.engine.plan import make_plan
from mt_train.plugins.resolve import resolve

CONFIG = LlamaConfig(vocab_size=97, dim=32, n_layers=2, n_heads=4, n_kv_heads=2, ffn_dim=48, max_seq_len=128)


def trained(model: Llama) -> dict[str, Tensor]:
    tokens = torch.randint(0, 97, (2, 24), generator=torch.Generator().manual_seed(1))
    places = torch.arange(24).expand(2, 24)
    batch = Batch(input_ids=tokens, labels=tokens, positions=places, document_ids=torch.zeros_like(places)).with_index()
    hidden = model(batch)
    (hidden * torch.arange(hidden.numel()).view(hidden.shape).cos()).sum().backward()
    grads = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    return {"hidden": hidden.detach(), **grads}


def model_of(config: LlamaConfig = CONFIG) -> Llama:
    torch.manual_seed(0)
    model = Llama(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.2)
    return model


def test_a_model_trains_the_same_with_the_kernels_put_in(liger_formulas: None) -> None:
    expected, model = trained(model_of()), model_of()
    names = list(model.state_dict())
    assert replace_operations(model) == {"norms": 5, "activations": 2, "turns": 2}
    assert list(model.state_dict()) == names
    found = trained(model)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", [{}, {"centred": True}, {"rounds_last": True}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_form_of_norm_has_its_mode(liger_formulas: None, form: dict[str, bool], dtype: torch.dtype) -> None:
    """In bf16 the modes differ, by where they round."""
    torch.manual_seed(0)
    norm = RMSNorm(64, **form).to(dtype)
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(3, 5, 64).to(dtype)
    torch.testing.assert_close(LigerRMSNorm(norm)(x), norm(x), rtol=1e-6, atol=1e-6)


def test_blocks_share_their_tables_and_neighbours_turn_as_ever(
    liger_formulas: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of()
    replace_operations(model)
    one, other = (block.self_attn for block in model.model.layers)
    assert type(one.rotary) is LigerRotary
    assert one.rotary is other.rotary
    monkeypatch.setattr(liger_formulas, "apply", lambda *given: pytest.fail("Liger turns halves"))
    for attention in (one, other):
        attention.interleaved = True
    assert trained(model)


def test_a_cpu_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"train\.kernels=liger has kernels for GPUs, and this run is on cpu; leave it out"
    ):
        use_liger(model_of(), torch.device("cpu"))


@pytest.mark.parametrize(
    ("train", "device", "says"),
    [
        ({}, "cpu", "liger has kernels for GPUs, and this run is on a CPU. Set it to torch."),
        (
            {"compile": True},
            "cuda",
            "train.compile makes such kernels itself. Set it to torch, or --train.compile false.",
        ),
    ],
)
def test_where_it_cannot_run_is_said_on_paper(train: dict[str, Any], device: str, says: str) -> None:
    resolved = resolve({"model": {"name": "llama"}, "train": {"kernels": "liger", **train}}, PluginHost.discover())
    with pytest.raises(ConfigError) as caught:
        make_plan(resolved.config, world=1, device=device, offers=resolved.offers.values())
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("installed", "says"),
    [(None, "which is not installed"), ("0.8.4", "and 0.8.4 is installed"), ("0.7", "and 0.7 is")],
)
def test_a_missing_or_old_liger_is_refused(installed: str | None, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if installed is None:
            raise liger.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(liger, "version", version)
    with pytest.raises(UsageError, match=says) as caught:
        require_liger()
    assert str(caught.value).endswith("pip install 'mt-train[liger]'")
    monkeypatch.setattr(liger, "version", lambda name: "0.10.1")
    require_liger()


@pytest.mark.skipif(
    importlib.util.find_spec("liger_kernel") is None or importlib.util.find_spec("triton") is None,
    reason="Liger and Triton are not installed; pip install 'mt-train[liger]'",
)
def test_ligers_own_kernels_equal_ours_in_tritons_interpreter() -> None:
    script = Path(__file__).parents[3] / "benchmarks" / "gpu_kernels.py"
    command = [sys.executable, str(script)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "TRITON_INTERPRET": "1"}, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == {"norm", "centred norm", "norm that rounds last", "swiglu", "geglu", "turn", "part that turns"}
    assert all(max(far) <= 1e-5 for far in found.values()), found
