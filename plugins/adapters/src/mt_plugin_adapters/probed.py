"""Base of adapters whose ranks and first values come from rows of the run.

Whatever is asked of the probe is one dense matrix for each layer. It is asked for in portions of ``probe_gb``, and only what
is left of it (ranks, a few directions) is kept until the layers are there. At its peak a rank holds a portion three
times: the sum, the gradients of a micro-batch, and one copy on its way. A run that resumes has its ranks from the
checkpoint's plan and its values from the checkpoint, and looks at nothing.

Shapes: E inputs, F outputs, R rank, C how many directions, K the smaller of E and F.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Generator, Tensor, nn

from mt_core import ComponentError, Probe, UsageError
from mt_core.adapters import LinearAdapter, LoraLinear, PeftForm, Place, device_of, lora_form, targets_of, uniform
from mt_core.nn import AdaptedLinear, TrainModel, tensor_generator

from .probed_config import ProbedConfig

ProbedT = TypeVar("ProbedT", bound=ProbedConfig)


class FoundLinear(LoraLinear):
    """LoRA's layer, which begins with values that were found before there was a layer; see ``LoraLinear``."""

    first: tuple[Tensor, ...] = ()
    """Arguments for ``begin``, kept until it is called."""

    def initialise(self, generator: Generator) -> None:
        """The values that were found. Raises ``ComponentError`` where no row was looked at."""
        if not self.first:
            raise ComponentError(
                f"{type(self).__name__} begins with values from rows of the run, and the adapter was put into the model without"
                " a probe; call its prepare(model, probe) first, or give it the values of a checkpoint"
            )
        self.begin(*self.first)
        self.first = ()

    def begin(self, a_RE: Tensor, b_FR: Tensor | None = None) -> None:
        """A as found; B as found, or zero."""
        self.lora_A.data.copy_(a_RE)
        self.lora_B.data.zero_() if b_FR is None else self.lora_B.data.copy_(b_FR)


class ProbedAdapter(LinearAdapter[ProbedT]):
    """Looks at rows in ``prepare``, keeps ranks in ``plan`` and first values in ``found``, by the names of the layers."""

    kind: type[FoundLinear] = FoundLinear
    takes = 1
    """How many directions for each of its rank a layer must have."""

    def __init__(self, config: ProbedT) -> None:
        super().__init__(config)
        self.found: dict[str, tuple[Tensor, ...]] = {}

    def rank_of(self, name: str) -> int:
        """Return the rank that the plan gives this layer, else the config's."""
        return int(self.plan.get("ranks", {}).get(name, self.config.rank_of(name)))

    def scale_of(self, name: str) -> float:
        """Return the factor of a layer's update: as the config says for its rank."""
        return self.config.scale_of(name, self.rank_of(name))

    def alpha_of(self, name: str) -> float:
        """The alpha that gives its scale with its rank."""
        rank = self.rank_of(name)
        alpha = self.scale_of(name) * (rank**0.5 if self.config.rslora else rank)
        return float(f"{alpha:.12g}")  # 16 for 16.000000000000004

    def as_lora(self, model: TrainModel) -> PeftForm:
        """LORA, for what is one once it has begun, with the ranks of the plan."""
        return lora_form(self.config, model, rank_of=self.rank_of, alpha_of=self.alpha_of)

    def layer(self, base: nn.Module, place: Place) -> AdaptedLinear | None:
        """See ``LinearAdapter``."""
        name, config = place.name, self.config
        if self.rank_of(name) == 0:
            return None
        made = self.kind(
            base, rank=self.rank_of(name), scale=self.scale_of(name), dropout=config.dropout, fp32=config.fp32
        )
        made.first = self.found.pop(name, ())
        return made

    def probed_layers(self, model: TrainModel) -> dict[str, nn.Module]:
        """The targets. Raises ``UsageError`` for a rank that one of them has not room for."""
        targets = targets_of(model, self.config)
        for name, base in targets.items():
            rank, most = self.config.rank_of(name), smaller(base) // self.takes
            if rank > most:
                raise UsageError(
                    f"adapter.rank: {rank} is more than {name} has room for, which is {base.out_features} x {base.in_features};"
                    f" at most {most} there (--adapter.rank, or --adapter.ranks for this projection alone)"
                )
        return targets

    def with_gradients(self, model: TrainModel) -> dict[str, nn.Linear]:
        """The targets. Raises ``UsageError`` for a weight that has no gradient."""
        targets: dict[str, nn.Linear] = {}
        for name, base in self.probed_layers(model).items():
            if not isinstance(base, nn.Linear):
                raise UsageError(
                    f"{name} is a {type(base).__name__}, and a gradient of its weight is what this adapter begins with; load the"
                    " weights as they are (--quantizer none), or use another adapter"
                )
            targets[name] = base
        return targets

    def gradients(self, model: TrainModel, probe: Probe) -> Iterator[tuple[str, nn.Module, Tensor]]:
        """Name, layer and gradient (F, E) in fp32 of every target, on its device.

        Raises ``UsageError`` for a weight that has no gradient.
        """
        targets = self.with_gradients(model)
        sizes = {name: 4 * base.in_features * base.out_features for name, base in targets.items()}
        for portion in portions(sizes, self.config.probe_gb * 1e9):
            found = probe.gradients([f"{name}.weight" for name in portion], steps=self.config.probe_steps)
            for name in portion:
                yield name, targets[name], found.pop(f"{name}.weight").to(device_of(targets[name]))


def plain_start(name: str, rank: int, inputs: int) -> tuple[Tensor]:
    """A (R, E) as LoRA's, with which B begins at zero: for a layer that no row has reached, such as an expert that no token chose.

    Where A and B both began at zero neither would ever have a gradient.
    """
    return (uniform(torch.empty(rank, inputs), tensor_generator(0, name)),)


def portions(sizes: Mapping[str, int], most: float) -> Iterator[list[str]]:
    """The names in their order, in lists of at most this size together, or of one name."""
    portion: list[str] = []
    total = 0
    for name, size in sizes.items():
        if portion and total + size > most:
            yield portion
            portion, total = [], 0
        portion.append(name)
        total += size
    if portion:
        yield portion


def smaller(base: Any) -> int:
    """The smaller dimension of a linear layer."""
    return min(int(base.in_features), int(base.out_features))


def largest(matrix_FE: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Left vectors (F, C), values (C,) and right vectors (C, E) of the largest singular values, in fp32.

    From the eigenvectors of the smaller of the matrix's two products with itself, in fp64: exact to fp32 for values
    down to 1e-7 of the largest. The largest number of each right vector is positive, so that they are the same whatever
    found them. Vectors of values that are zero are any that are orthogonal to the rest.
    """
    turned = matrix_FE.shape[0] > matrix_FE.shape[1]
    whole = (matrix_FE.mT if turned else matrix_FE).double()
    first, values = principal(whole @ whole.mT, count)
    second, triangle = torch.linalg.qr(whole.mT @ first.mT)
    second = second * torch.where(triangle.diagonal() < 0, -1.0, 1.0)
    left, right = (second, first) if turned else (first.mT, second.mT)
    sign = signs(right)
    return (left * sign).float(), values.sqrt().float(), (right * sign[:, None]).float()


def principal(moment_EE: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Eigenvectors (C, E) and eigenvalues (C,) of a symmetric matrix without negative ones, the largest first, in fp64."""
    values, vectors = torch.linalg.eigh(moment_EE)
    return vectors.flip(1)[:, :count].mT, values.flip(0)[:count].clamp_min(0)


def signs(vectors_CE: Tensor) -> Tensor:
    """Return for each vector the sign of its largest number."""
    return vectors_CE.gather(1, vectors_CE.abs().argmax(1, keepdim=True)).squeeze(1).sign()
