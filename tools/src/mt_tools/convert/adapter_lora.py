"""The change of an adapter to the weights that it began with, as a plain LoRA: for those that rewrite their base (PiSSA), which no file
of their own form can say to peft, and for any other whose change has a low rank.

Shapes: F outputs, E inputs, R rank.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from mt_core.adapters import adapted_layers, target_keys
from mt_core.adapters.peft import PREFIX
from mt_core.errors import UsageError
from mt_core.nn import TrainModel
from mt_core.plugins.host import PluginHost
from mt_tools.convert.adapter_experts import say_experts
from mt_tools.convert.adapter_merge import TOLERANCE, refuse_changed, refuse_unmergeable
from mt_tools.convert.adapter_readers import base_keys, say_base, say_merged, say_vllm
from mt_tools.convert.card import card
from mt_tools.convert.difference import Difference, difference, logits, refuse_beyond, sample_rows
from mt_tools.convert.folder import split_objective
from mt_tools.convert.overlay import base_hashes, base_overlay
from mt_tools.convert.source import Say, Source, saved_tensors
from mt_tools.convert.writing import stage_folder, write_beside, write_json
from mt_train.adapters.folder import CONFIG, TENSORS, WRITTEN
from mt_train.assemble.adapter_slot import with_adapter
from mt_train.assemble.load import load_base, load_model
from mt_train.assemble.parts import Parts
from mt_train.checkpoint.tensors import write_tensors
from mt_train.engine.build import stored_layers
from mt_train.plugins.resolve import resolve

EXACT = 1e-4
"""Share of the size of a change that may be left out where nobody names a rank."""
FIRST, MORE = 16, 8
"""Directions that are looked for first, and those beyond that make the last ones right (https://arxiv.org/abs/0909.4061)."""

Factors = tuple[Tensor, Tensor]


def export_as_lora(
    source: Source, out: Path, host: PluginHost, *, rank: int | None, tolerance: float | None, say: Say
) -> Difference:
    """Write the folder, whole or not at all, and say how far its logits are from the run's.

    ``rank`` is the most directions that are kept of a layer's change; ``None`` keeps all but ``EXACT`` of it. Raises ``UsageError``
    for a run that no such file can stand for, and ``WeightsError`` beyond ``tolerance``.
    """
    refuse_unmergeable(source)
    _refuse_without_base(source)
    assert source.checkpoint is not None, "a run has one"
    model = load_model(source.parts, source.checkpoint, say, averaged=source.averaged)
    if any(not layer.merges for _, layer in stored_layers(model)):
        raise UsageError(
            f"{source.path} ran over quantized weights; --merge writes what they were made from with the adapter"
        )
    rows, text = sample_rows(source, say)
    before = logits(model, rows)
    base = load_base(source.parts, source.checkpoint, say)
    refuse_changed(source, base, {name: model.get_parameter(name) for name in base.kept_names()})
    found = change_of(model, base, rank)
    with stage_folder(out) as stage:
        write_tensors(stage / TENSORS[0], name_tensors(found))
        if source.parts.objective_component.head == "language":
            write_beside(stage, split_objective(saved_tensors(source))[1])
        config = lora_config(found, model)
        write_json(stage / CONFIG, {**base_keys(source), **config})
        write_json(stage / WRITTEN, {"base": base_hashes(source)})
        (stage / "README.md").write_text(card(source, out.name, "float32", library="peft"), encoding="utf-8")
        del model
        merged = source.parts.config.model.source.adapters
        written = Parts.of(resolve(with_adapter(_over_base(source), stage, host), host))
        after = logits(load_model(written, None, say=lambda text: None), rows)
        apart = replace(difference(before, after), text=text, than="the run")
        refuse_beyond(apart, TOLERANCE if tolerance is None else tolerance, "A higher --as-lora RANK may come nearer")
    most = max(len(a_RE) for a_RE, _ in found.values())
    say_merged(source, say)
    say_base(source, say)
    say_experts(source, sorted(found), config, say)
    if not merged:
        say_vllm(source, out, most, say)
    return apart


def _over_base(source: Source) -> dict[str, Any]:
    """Config of the run's base, with the options and the new tokens that the run has given it."""
    raw, name = source.parts.config.as_raw(), source.parts.offers["model"].qualified_name
    return {
        "model": {**raw["model"], "name": name, "weights": str(source.weights)},
        "tokenizer": raw["tokenizer"],
        "train": {"sequence_len": 2, "seed": raw["train"]["seed"]},
    }


def _refuse_without_base(source: Source) -> None:
    if source.weights is None or source.parts.config.train.enable:
        what = "has trained other weights besides" if source.weights else "began with no folder of weights"
        raise UsageError(
            f"{source.path} {what}, so that a LoRA is not all of it; mt-export --run {source.path} --merge writes the whole model"
        )
    if (overlay := base_overlay(source)) is not None:
        raise UsageError(
            f"{source.path} has weights of model.overlay {overlay} under its adapter, which a LoRA is not for; mt-export --run"
            f" {source.path} --merge writes the whole model"
        )


@torch.no_grad()
def change_of(model: TrainModel, base: TrainModel, rank: int | None) -> dict[str, Factors]:
    """(A, B) of each adapted layer."""
    before, found = dict(base.named_modules()), {}
    for name, layer in adapted_layers(model):
        bias, own = before[name].bias, layer.merged_bias()
        if own is not None and (bias is None or not torch.equal(own, bias)):
            raise UsageError(f"the adapter changes the bias of {name}, which a LoRA has no place for; use --merge")
        change_FE = layer.merged_weight() - _dense_weight(before[name])
        found[name] = factors(change_FE, rank)
        if rank is None and sum(map(torch.numel, found[name])) > change_FE.numel():
            raise UsageError(
                f"the change of {name} has rank {len(found[name][0])} of {min(change_FE.shape)}, for which a LoRA would be larger than"
                " the weight; name how many directions to keep (--as-lora RANK), or use --merge"
            )
    if not found:
        raise UsageError(
            "the run has no layer with an adapter, so that there is no change to write as a LoRA; use --merge"
        )
    return found


def _dense_weight(layer: nn.Module) -> Tensor:
    return layer.weight.float() if isinstance(layer, nn.Linear) else layer.dense_weight()  # type: ignore[operator]


def factors(change_FE: Tensor, rank: int | None) -> Factors:
    """A (R, E) and B (F, R) whose product is the change: its ``rank`` largest directions, or all but ``EXACT`` of it."""
    dtype, change_FE = change_FE.dtype, change_FE.double()  # fp32 would leave out 2e-6 of it
    most, size = min(change_FE.shape), float(change_FE.norm())
    tried = min(most, rank or FIRST)
    while True:
        with torch.random.fork_rng():
            torch.manual_seed(0)  # the same file each time
            u_FR, s_R, v_ER = torch.svd_lowrank(change_FE, min(most, tried + MORE), niter=4)
        if rank is not None:
            kept = tried
            break
        left = float((change_FE - u_FR * s_R @ v_ER.T).norm())
        if left <= EXACT * size or tried >= most:
            rest = left**2 + s_R.square().flip(0).cumsum(0).flip(0)  # of directions from each on
            kept = max(1, int((rest.sqrt() > EXACT * size).sum()))
            break
        tried *= 2
    root_R = s_R[:kept].sqrt()
    a_RE, b_FR = root_R[:, None] * v_ER[:, :kept].T, u_FR[:, :kept] * root_R
    return a_RE.to(dtype).contiguous(), b_FR.to(dtype).contiguous()


def name_tensors(found: dict[str, Factors]) -> dict[str, Tensor]:
    """The tensors of the file, all of the largest rank: readers other than peft have one factor for all layers."""
    rank = max(len(a_RE) for a_RE, _ in found.values())
    named = {}
    for layer, (a_RE, b_FR) in found.items():
        more = rank - len(a_RE)
        named[f"{PREFIX}{layer}.lora_A.weight"] = functional.pad(a_RE, (0, 0, 0, more))
        named[f"{PREFIX}{layer}.lora_B.weight"] = functional.pad(b_FR, (0, more))
    return named


def lora_config(found: dict[str, Factors], model: TrainModel) -> dict[str, Any]:
    """Return the config of a LoRA whose update is multiplied by 1 in every layer."""
    rank = max(len(a_RE) for a_RE, _ in found.values())
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "inference_mode": True,
        "r": rank,
        "lora_alpha": rank,
        "rank_pattern": {},
        "alpha_pattern": {},
        "lora_dropout": 0.0,
        "use_rslora": False,
        "use_dora": False,
        "bias": "none",
        "init_lora_weights": True,
        **target_keys(model),
    }
