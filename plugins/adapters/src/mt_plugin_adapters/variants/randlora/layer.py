"""The layer of RandLoRA. Shapes: E inputs, F outputs, R rank, N products, S the smaller and L the larger of E and F."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Generator, Tensor, nn

from mt_core.adapters import (
    LinearAdapter,
    LowRankLinear,
    PeftForm,
    Place,
    adapted_layers,
    form_of_type,
    targets_of,
    tensor_names,
)
from mt_core.nn import SharedParameters, TrainModel

from .config import RandLoraConfig

_OF_DRAWING = ("sparse", "very_sparse")
"""Keys of peft's config that change no output where the matrices are in the file."""


class RandLoraLinear(LowRankLinear):
    """``randlora_A`` (R, 1, ≥S) and ``randlora_B`` (≥L, ≥N, R) are frozen and shared."""

    trained = ("randlora_lambda", "randlora_gamma")

    def __init__(self, base: nn.Module, store: SharedParameters, config: RandLoraConfig, most: tuple[int, int]) -> None:
        super().__init__(base, scale=config.alpha / config.rank, dropout=config.dropout, fp32=config.fp32)
        small, large = sorted(most)
        self.products = -(-min(self.in_features, self.out_features) // config.rank)
        shapes = (config.rank, 1, small), (large, -(-small // config.rank), config.rank)
        seed = config.projection_seed
        fills = [of_deviation_1] * 2 if seed is None else [partial(_put, seed, config.rank, most, i) for i in (0, 1)]
        self.randlora_A = self.shared_parameter(store, "randlora_A", shapes[0], fills[0])
        self.randlora_B = self.shared_parameter(store, "randlora_B", shapes[1], fills[1])
        self.randlora_lambda = self.new_parameter(config.rank, self.products)
        self.randlora_gamma = self.new_parameter(self.products, min(self.in_features, self.out_features))

    def initialise(self, generator: Generator) -> None:
        """Λ zero, so that the first output is the base's; Γ as peft."""
        self.randlora_lambda.data.zero_()
        self.randlora_gamma.data.fill_(1 / max(self.randlora_gamma.shape))

    def pair(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """N x R rows and columns; on A's side, which is that of S, with the diagonals."""
        sides = sorted((self.in_features, self.out_features))
        lambda_RN, gamma_NS = self.randlora_lambda.to(dtype), self.randlora_gamma.to(dtype)
        a_R1S = self.randlora_A[..., : sides[0]].to(dtype)
        b_LNR = self.randlora_B[: sides[1], : self.products].to(dtype)
        scaled = (lambda_RN[..., None] * gamma_NS * a_R1S).flatten(end_dim=1)
        shared = b_LNR.flatten(start_dim=1)
        return (scaled, shared) if self.in_features == sides[0] else (shared.mT, scaled.mT)


def of_deviation_1(tensor: Tensor, generator: Generator) -> None:
    """Uniform, divided by its deviation, as peft draws both."""
    values = torch.empty(tensor.shape).uniform_(-1, 1, generator=generator)
    tensor.copy_(values / values.std())


def projections(seed: int, rank: int, most: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """A and B as peft draws them from its ``projection_prng_key``, in bf16, as it does wherever the hardware has that."""
    generator, (small, large) = torch.Generator().manual_seed(seed), sorted(most)
    shapes = [(rank, 1, small)] + [(large, 1, rank)] * -(-small // rank)
    first, *rest = (
        nn.init.kaiming_uniform_(torch.empty(shape, dtype=torch.bfloat16), a=5**0.5, generator=generator)
        for shape in shapes
    )
    second = torch.cat(rest, dim=1)
    return first / first.std(), second / second.std()


def _projection(seed: int, rank: int, most: tuple[int, int], which: int) -> Tensor:
    return projections(seed, rank, most)[which].float()


def _put(seed: int, rank: int, most: tuple[int, int], which: int, tensor: Tensor, generator: Generator) -> None:
    """Fill from a seed of their own, so that the run's ``generator`` is not asked."""
    tensor.copy_(_projection(seed, rank, most, which))


class RandLora(LinearAdapter[RandLoraConfig]):
    """Trains the diagonals. The random matrices are saved with them, so that no other library has to draw the same numbers."""

    def inject(self, model: TrainModel) -> None:
        """See ``LinearAdapter``."""
        targets = targets_of(model, self.config).values()
        self.most = max(int(each.out_features) for each in targets), max(int(each.in_features) for each in targets)  # type: ignore[arg-type]
        super().inject(model)

    def layer(self, base: nn.Module, place: Place) -> RandLoraLinear:
        """See ``LinearAdapter``."""
        return RandLoraLinear(base, self.store, self.config, self.most)

    def peft_form(self, model: TrainModel) -> PeftForm:
        """RANDLORA, with the shared matrices, which its own files repeat in every layer."""
        config, first = self.config, next(name for name, _ in adapted_layers(model))
        seed, most = config.projection_seed, self.most
        training = ("projection_prng_key", "randlora_dropout", "save_projection")
        form = form_of_type(
            "RANDLORA",
            model,
            {each: each for each in RandLoraLinear.trained},
            transposes=True,
            training=training if seed is not None else (*training, *_OF_DRAWING),
            r=config.rank,
            randlora_alpha=config.alpha,
            randlora_dropout=config.dropout,
            save_projection=True,
            projection_prng_key=seed or 0,
        )
        shared = ("randlora_A", "randlora_B")
        once = {f"{first}.{each}": f"base_model.{each}" for each in shared}
        repeated = tensor_names(model, {each: each for each in shared}).values()
        places = enumerate(once) if seed is not None else ()
        drawn = {name: partial(_projection, seed or 0, config.rank, most, which) for which, name in places}
        return replace(
            form,
            names=once | dict(form.names),
            repeated=frozenset(repeated),
            defaults=drawn,
        )
