"""A family whose blocks report figures and gather counts, whose model balances a kept bias by them after each step, and whose files hold
two tensors for one of the model's: a mixture of experts without the experts.

Shapes: B rows, T tokens, D model width, X experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Generator, Tensor, nn

from mt_core import ANY, AdapterContext, Component, ModelConfig, ModelFamily, WeightsFormat, hookimpl
from mt_core.nn import NOT_TRAINED, BlockContext, RMSNorm, TrainModel, swiglu
from mt_core.weights import CONFIG, Loaders, check_folder, is_folder, open_folder, read_json

EXPERTS = 4
START = 0.5
"""The first value of the bias: in bf16 a step of 0.001 away from it would be lost."""


class CountingConfig(ModelConfig):
    """The shape."""

    dim: int = Field(16, gt=0, le=1024, multiple_of=4, description="width of the hidden states (channels)")
    n_layers: int = Field(2, gt=0, le=100, description="blocks, one on top of the other")
    n_heads: int = Field(2, gt=0, le=100, description="query heads")
    rate: float = Field(0.05, ge=0, le=1, description="step of the bias (per update)")
    figure: str = Field("score", description="name of the figure that blocks report")


class Counting(TrainModel):
    """Embed, blocks, norm, head."""

    kept = ("*.balance", "*.seen")
    default_targets = ("qkv_proj", "gate_up_proj", "down_proj")

    def __init__(self, config: CountingConfig) -> None:
        super().__init__()
        self.config = config
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(config.vocab_size, config.dim)
        self.model.layers = nn.ModuleList(CountingBlock(config, index) for index in range(config.n_layers))
        self.model.norm = RMSNorm(config.dim)
        self.lm_head = nn.Linear(config.dim, config.vocab_size, bias=False)

    def init_tensor(self, name: str, tensor: Tensor, generator: Generator) -> None:
        if name.endswith(("balance", "seen")):
            tensor.fill_(START if name.endswith("balance") else 0.0)
        elif name.endswith("router.weight"):
            tensor.normal_(0.0, 1.0, generator=generator)
        else:
            super().init_tensor(name, tensor, generator)

    @property
    def steps(self) -> bool:
        return self.config.rate > 0

    def after_step(self, context: AdapterContext) -> None:
        for name, module in context.modules():
            if isinstance(module, CountingBlock):
                counts = context.step_sum(f"experts.{module.index}")
                bias, seen = context.read(f"{name}.balance"), context.read(f"{name}.seen")
                context.write(f"{name}.balance", bias + self.config.rate * torch.sign(counts.mean() - counts).float())
                context.write(f"{name}.seen", seen + counts.sum().float())


class CountingBlock(nn.Module):
    """Attention, a gated MLP, and a vector of the expert that a token chooses."""

    def __init__(self, config: CountingConfig, index: int) -> None:
        super().__init__()
        dim = config.dim
        self.index, self.n_heads, self.figure = index, config.n_heads, config.figure
        self.norm = RMSNorm(dim)
        self.qkv_proj = nn.Linear(dim, 3 * dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)
        self.gate_up_proj = nn.Linear(dim, 4 * dim, bias=False)
        self.down_proj = nn.Linear(2 * dim, dim, bias=False)
        self.router = nn.Linear(dim, EXPERTS, bias=False)
        self.balance = nn.Parameter(torch.zeros(EXPERTS))
        self.seen = nn.Parameter(torch.zeros(1))
        self.experts = nn.Parameter(torch.zeros(EXPERTS, dim))

    def forward(self, x_BTD: Tensor, context: BlockContext) -> Tensor:
        normed = self.norm(x_BTD)
        q, k, v = (part.unflatten(-1, (self.n_heads, -1)) for part in self.qkv_proj(normed).chunk(3, -1))
        if context.cache is not None:
            k, v = context.cache.append(self.index, k, v)
        x_BTD = x_BTD + self.o_proj(context.attention(q, k, v, context).flatten(2))
        gate, up = self.gate_up_proj(x_BTD).chunk(2, -1)
        x_BTD = x_BTD + self.down_proj(swiglu(gate, up))
        scores_BTX = self.router(normed).float().sigmoid()
        choice_BT = (scores_BTX + self.balance).argmax(-1)
        score_BT = scores_BTX.gather(-1, choice_BT[..., None])[..., 0]
        if context.collects():
            self.tell(score_BT, choice_BT, context)
        return x_BTD + score_BT[..., None].to(x_BTD.dtype) * self.experts[choice_BT]

    def tell(self, score_BT: Tensor, choice_BT: Tensor, context: BlockContext) -> None:
        """Count trained tokens alone: how much padding there is hangs on the layout."""
        assert context.labels_BT is not None, "training has labels"
        trained_BT = context.labels_BT != NOT_TRAINED
        counts_X = torch.bincount(choice_BT[trained_BT], minlength=EXPERTS)
        context.gather(f"experts.{self.index}", counts_X, busiest)
        context.report(self.figure, (score_BT * trained_BT).sum(), trained_BT.sum())
        context.report(f"first_expert_{self.index}", counts_X[0], trained_BT.sum())
        context.report("trained_share", trained_BT.sum(), float(trained_BT.numel()))


def busiest(counts_X: Tensor) -> dict[str, Tensor]:
    """Return the share of the busiest expert: of a step, not the mean of those of micro-batches."""
    return {"busiest": counts_X.max() / counts_X.sum()}


# --------------------------------------------------------------------------------------------------------------- files

HALVES = ("gate_proj", "up_proj")
FUSED = "gate_up_proj"
DOWN, STORED_DOWN = "down_proj.weight", "down_proj.stored"


def values(path: Path) -> Mapping[str, Any]:
    check_folder(path)
    found = read_json(path / CONFIG)
    return {key: found[key] for key in ("vocab_size", "max_seq_len", "dim", "n_layers", "n_heads")}


def tensors(path: Path, config: CountingConfig) -> Loaders:
    """Join the halves, and turn what is stored the other way round."""
    found = open_folder(path)
    joined: Loaders = {}
    for name, load in found.items():
        if f".{HALVES[0]}." in name:
            other = found[name.replace(*HALVES)]
            joined[name.replace(HALVES[0], FUSED)] = lambda load=load, other=other: torch.cat([load(), other()])
        elif name.endswith(STORED_DOWN):
            joined[name.replace(STORED_DOWN, DOWN)] = lambda load=load: load().T
        elif f".{HALVES[1]}." not in name:
            joined[name] = load
    return joined


def written(config: CountingConfig, loaders: Loaders) -> Loaders:
    """Cut the fused tensor, turn one, and pass the rest on."""
    files: Loaders = {}
    for name, load in loaders.items():
        if FUSED in name:
            files |= {name.replace(FUSED, half): partial(half_of, load, at) for at, half in enumerate(HALVES)}
        elif name.endswith(DOWN):
            files[name.replace(DOWN, STORED_DOWN)] = lambda load=load: load().T
        else:
            files[name.replace("balance", "score_bias")] = load
    return files


def half_of(load: Any, at: int) -> Tensor:
    return load().chunk(2)[at]


def read(path: Path, config: CountingConfig) -> Loaders:
    return {name.replace("score_bias", "balance"): load for name, load in tensors(path, config).items()}


def exported(config: CountingConfig) -> Mapping[str, Any]:
    return {
        "architectures": ["CountingForCausalLM"],
        **config.model_dump(include={"vocab_size", "max_seq_len", "dim", "n_layers", "n_heads"}),
    }


FILES = WeightsFormat(
    name="huggingface", matches=is_folder, values=values, tensors=read, exported=exported, written=written
)


@hookimpl
def mt_model_configs() -> list[ModelFamily]:
    sizes = {"tiny": {"vocab_size": 259, "max_seq_len": 256}}
    return [
        ModelFamily(
            name="counting",
            config=CountingConfig,
            summary="of the tests",
            variants=sizes,
            default_variant="tiny",
            architectures=("CountingForCausalLM",),
            formats=(FILES,),
        )
    ]


@hookimpl
def mt_train_models() -> list[Component]:
    return [Component(name="counting", config=CountingConfig, build=Counting, summary="of the tests", layouts=ANY)]
