"""Logits of runs, folders and transformers' models on the same tokens, for the tests of exported adapters."""

from __future__ import annotations

from pathlib import Path

import peft
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from mt_core.nn import Batch, TrainModel
from mt_train.assemble.adapter_slot import with_adapter
from mt_train.assemble.discovery import discover_plugins
from mt_train.assemble.load import load_model
from mt_train.assemble.parts import Parts
from mt_train.checkpoint.store import find
from mt_train.config.files import read_config
from mt_train.plugins.resolve import resolve

IDS = torch.arange(40)[None]
TRAIN = ("--dataset", "demo", "--train.steps", "2", "--train.sequence-len", "32", "--train.micro-batch-size", "2")
QUIET = ("--eval.samples", "0", "--data.read-rows", "4", "--data.eval", "none")


def ours(model: TrainModel) -> Tensor:
    zeros = torch.zeros_like(IDS)
    with torch.no_grad():
        return model.head(model(Batch(IDS, zeros, torch.arange(IDS.shape[1])[None], zeros)))  # type: ignore[no-any-return]


def of_run(run: Path) -> Tensor:
    return ours(load_model(Parts.of(resolve(read_config(run / "run.yaml"), discover_plugins())), find(run), print))


def of_folder(base: Path, adapter: Path) -> Tensor:
    """What ``mt-generate --weights BASE --adapter-folder ADAPTER`` runs."""
    raw = {"model": {"name": "llama", "weights": str(base)}, "train": {"sequence_len": 2}}
    return ours(
        load_model(Parts.of(resolve(with_adapter(raw, adapter, discover_plugins()), discover_plugins())), None, print)
    )


def theirs(base: Path, adapter: Path | None = None) -> Tensor:
    model = AutoModelForCausalLM.from_pretrained(base)
    with torch.no_grad():
        return (model if adapter is None else peft.PeftModel.from_pretrained(model, adapter))(IDS).logits


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def make_adapter(base: Path, out: Path, config: peft.PeftConfig) -> Tensor:
    """Write an adapter with random values; its logits."""
    torch.manual_seed(1)
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).eval()
    model.save_pretrained(out)
    with torch.no_grad():
        return model(IDS).logits  # type: ignore[no-any-return]
