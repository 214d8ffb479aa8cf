"""The layer of BSLoRA. Shapes: E inputs, F outputs, R rank of a pair, C inputs or outputs of a shared pair."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from mt_core import UsageError
from mt_core.adapters import LinearAdapter, LoraLinear, Place, targets_of, uniform
from mt_core.nn import SharedParameters, TrainModel
from mt_plugin_adapters.first_values import spread, zero

from .config import BsLoraConfig

SCOPES = ("block", "model")


class BsLoraLinear(LoraLinear):
    """Shared pairs are ``bslora_A_block`` (R, C), ``bslora_B_block`` (C, R) and likewise ``_model``. Variants write ``fit_shared_pair``."""

    def __init__(
        self, base: nn.Module, place: Place, store: SharedParameters, config: BsLoraConfig, sizes: tuple[int, int]
    ) -> None:
        rank, scale = config.rank_of(place.name), config.scale_of(place.name)
        super().__init__(base, rank=rank, scale=scale, dropout=config.dropout, fp32=config.fp32)
        outputs, inputs = sizes
        for scope, key, rank in (
            ("block", f"block {place.block}", config.rank_block),
            ("model", "model", config.rank_model),
        ):
            setattr(self, f"bslora_A_{scope}", self.shared_parameter(store, f"A {key}", (rank, inputs), spread))
            setattr(self, f"bslora_B_{scope}", self.shared_parameter(store, f"B {key}", (outputs, rank), zero))

    def fit_shared_pair(self, scope: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The shared pair of a scope at this projection's size, (R, E) and (F, R)."""
        raise NotImplementedError

    def pair(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The three pairs side by side."""
        pairs = [super().pair(dtype), *(self.fit_shared_pair(scope, dtype) for scope in SCOPES)]
        return torch.cat([a for a, _ in pairs]), torch.cat([b for _, b in pairs], 1)


class SlicedLinear(BsLoraLinear):
    """Takes the middle."""

    def fit_shared_pair(self, scope: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """See ``BsLoraLinear``."""
        a_RC, b_CR = getattr(self, f"bslora_A_{scope}"), getattr(self, f"bslora_B_{scope}")
        left, top = (a_RC.shape[1] - self.in_features) // 2, (len(b_CR) - self.out_features) // 2
        return (
            a_RC[:, left : left + self.in_features].to(dtype),
            b_CR[top : top + self.out_features].to(dtype),
        )


class KroneckerLinear(BsLoraLinear):
    """``bslora_row_*`` (1, E / C) and ``bslora_column_*`` (F / C, 1) are the projection's own."""

    def __init__(
        self, base: nn.Module, place: Place, store: SharedParameters, config: BsLoraConfig, sizes: tuple[int, int]
    ) -> None:
        super().__init__(base, place, store, config, sizes)
        for scope in SCOPES:
            setattr(self, f"bslora_row_{scope}", self.new_parameter(1, self.in_features // config.size))
            setattr(self, f"bslora_column_{scope}", self.new_parameter(self.out_features // config.size, 1))

    def initialise(self, generator: Generator) -> None:
        """LoRA's, and the factors uniform."""
        super().initialise(generator)
        for name, parameter in self.own_parameters():
            if "_row_" in name or "_column_" in name:
                parameter.data.copy_(uniform(parameter, generator))

    def fit_shared_pair(self, scope: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """See ``BsLoraLinear``."""
        a_RC, b_CR = getattr(self, f"bslora_A_{scope}"), getattr(self, f"bslora_B_{scope}")
        row, column = getattr(self, f"bslora_row_{scope}"), getattr(self, f"bslora_column_{scope}")
        return torch.kron(row.to(dtype), a_RC.to(dtype)), torch.kron(column.to(dtype), b_CR.to(dtype))


class BsLora(LinearAdapter[BsLoraConfig]):
    """Trains all of it."""

    def inject(self, model: TrainModel) -> None:
        """See ``LinearAdapter``."""
        targets = targets_of(model, self.config).values()
        self.most = max(int(each.out_features) for each in targets), max(int(each.in_features) for each in targets)  # type: ignore[arg-type]
        super().inject(model)

    def layer(self, base: nn.Module, place: Place) -> BsLoraLinear:
        """Raises ``UsageError`` where ``size`` does not divide a projection."""
        if self.config.fit == "slice":
            return SlicedLinear(base, place, self.store, self.config, self.most)
        size, sides = self.config.size, (int(base.out_features), int(base.in_features))  # type: ignore[arg-type]
        if any(side % size for side in sides):
            raise UsageError(
                f"adapter.size: {size} does not divide {place.name}, which is {sides[0]} x {sides[1]}; set a common divisor"
                " of all targets (--adapter.size), or --adapter.fit slice"
            )
        return KroneckerLinear(base, place, self.store, self.config, (size, size))
