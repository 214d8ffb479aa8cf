"""W x + b ⊙ (B (d ⊙ (A x))). Shapes: E inputs, F outputs, R rank."""

from __future__ import annotations

from functools import partial

import torch
from torch import Generator, Tensor, nn

from mt_core.adapters import (
    LinearAdapter,
    LowRankLinear,
    PeftForm,
    Place,
    adapted_layers,
    target_keys,
    targets_of,
    tensor_names,
)
from mt_core.nn import SharedParameters, TrainModel

from .config import VeraConfig


class VeraLinear(LowRankLinear):
    """``vera_A`` and ``vera_B`` are shared and may have more columns and rows than are used here."""

    trained = ("vera_lambda_b", "vera_lambda_d")

    def __init__(self, base: nn.Module, store: SharedParameters, config: VeraConfig, most: tuple[int, int]) -> None:
        super().__init__(base, scale=1.0, dropout=config.dropout, fp32=config.fp32)
        self.d_initial = config.d_initial
        most_out, most_in = most
        seed = config.projection_seed
        fills = (
            [kaiming, kaiming] if seed is None else [partial(_put, seed, config.rank, most, which) for which in (0, 1)]
        )
        self.vera_A = self.shared_parameter(store, "vera_A", (config.rank, most_in), fills[0])
        self.vera_B = self.shared_parameter(store, "vera_B", (most_out, config.rank), fills[1])
        self.vera_lambda_d = self.new_parameter(config.rank)
        self.vera_lambda_b = self.new_parameter(self.out_features)

    def initialise(self, generator: Generator) -> None:
        """The paper's: b zero, so that the first output is that of the base."""
        self.vera_lambda_d.data.fill_(self.d_initial)
        self.vera_lambda_b.data.zero_()

    def pair(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """diag(d) A and diag(b) B."""
        a_RE, b_FR = self.vera_A[:, : self.in_features], self.vera_B[: self.out_features]
        d_R, b_F = self.vera_lambda_d.to(dtype), self.vera_lambda_b.to(dtype)
        return d_R[:, None] * a_RE.to(dtype), b_F[:, None] * b_FR.to(dtype)


def kaiming(tensor: Tensor, generator: Generator) -> None:
    """±sqrt(6 / last dimension): Kaiming's uniform values, drawn on the CPU in fp32."""
    bound = (6 / tensor.shape[-1]) ** 0.5
    tensor.copy_(torch.empty(tensor.shape).uniform_(-bound, bound, generator=generator))


def projections(seed: int, rank: int, most: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """A and B as peft draws them from its ``projection_prng_key``: one after the other."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.empty(rank, most[1]), torch.empty(most[0], rank)
    for each in drawn:
        kaiming(each, generator)
    return drawn


def _projection(seed: int, rank: int, most: tuple[int, int], which: int) -> Tensor:
    return projections(seed, rank, most)[which]


def _put(seed: int, rank: int, most: tuple[int, int], which: int, tensor: Tensor, generator: Generator) -> None:
    """Fill from a seed of their own, so that the run's ``generator`` is not asked."""
    tensor.copy_(_projection(seed, rank, most, which))


class Vera(LinearAdapter[VeraConfig]):
    """Trains the vectors. A and B are saved with them, so that no other library has to draw the same numbers."""

    def inject(self, model: TrainModel) -> None:
        """See ``LinearAdapter``."""
        targets = targets_of(model, self.config).values()
        self.most = max(int(each.out_features) for each in targets), max(int(each.in_features) for each in targets)  # type: ignore[arg-type]
        super().inject(model)

    def layer(self, base: nn.Module, place: Place) -> VeraLinear:
        """See ``LinearAdapter``."""
        return VeraLinear(base, self.store, self.config, self.most)

    def peft_form(self, model: TrainModel) -> PeftForm:
        """VERA, with the shared matrices."""
        config = self.config
        first = next(name for name, _ in adapted_layers(model))
        shared = {f"{first}.{each}": f"base_model.{each}" for each in ("vera_A", "vera_B")}
        seed, most = config.projection_seed, self.most
        places = enumerate(shared) if seed is not None else ()
        drawn = {name: partial(_projection, seed or 0, config.rank, most, which) for which, name in places}
        return PeftForm(
            config={
                "peft_type": "VERA",
                "r": config.rank,
                "d_initial": config.d_initial,
                "vera_dropout": config.dropout,
                "save_projection": True,
                "projection_prng_key": seed or 0,
                "bias": "none",
                **target_keys(model),
            },
            names=shared | tensor_names(model, {each: each for each in VeraLinear.trained}),
            training=frozenset(["d_initial", "projection_prng_key", "save_projection", "vera_dropout"]),
            defaults=drawn,
        )
