"""FlashAttention 3 is there while a run is, or what is missing is said; kernels are torch's own business."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import attention
from torch.nn.attention import _registry

from mt_core.errors import ConfigError, UsageError
from mt_core.plugins.host import PluginHost
from mt_train.engine.flash3 import use_flash3
from mt_train.engine.plan import make_plan
from mt_train.plugins.resolve import resolve


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *device: "NVIDIA H100")


class Handle:
    def __init__(self, said: list[str]) -> None:
        self.said = said

    def remove(self) -> None:
        self.said.append("removed")


def test_it_is_torchs_flash_kernel_inside_and_not_afterwards(hopper: None, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setitem(_registry._FLASH_ATTENTION_IMPLS, "FA3", lambda: Handle(said))
    with use_flash3():
        assert attention.current_flash_attention_impl() == "FA3"
    assert attention.current_flash_attention_impl() is None
    assert said == ["removed"]


def test_a_missing_package_is_named_with_where_it_is(hopper: None) -> None:
    with (
        pytest.raises(UsageError, match=r"No module named 'flash_attn_interface'.*Dao-AILab/flash-attention"),
        use_flash3(),
    ):
        pass


def test_an_older_torch_is_named(hopper: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(attention, "activate_flash_attention_impl")
    with pytest.raises(UsageError, match=r"needs a newer torch"), use_flash3():
        pass


def test_another_gpu_is_named(hopper: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *device: "NVIDIA A100")
    with pytest.raises(UsageError, match="this is NVIDIA A100"), use_flash3():
        pass


@pytest.mark.parametrize(("device", "dtype"), [("cpu", "bf16"), ("cuda", "fp32")])
def test_it_is_refused_on_paper_where_it_cannot_be(device: str, dtype: Any) -> None:
    raw = {"model": {"name": "llama"}, "train": {"attention": "flash3", "dtype": dtype}}
    resolved = resolve(raw, PluginHost.discover())
    with pytest.raises(ConfigError, match=r"train\.attention.*Set it to auto"):
        make_plan(resolved.config, world=1, device=device, offers=resolved.offers.values())
