"""The layer of DenseLoRA. Shapes: E inputs, F outputs, R rank."""

from __future__ import annotations

from torch import Generator, Tensor, nn
from torch.nn.functional import gelu

from mt_core import LowRankConfig, UsageError
from mt_core.adapters import LinearAdapter, Place, uniform
from mt_core.nn import SharedParameters
from mt_plugin_adapters.added import AddedLinear
from mt_plugin_adapters.first_values import spread, zero


class DenseLoraLinear(AddedLinear):
    """``denselora_encoder`` and ``denselora_decoder`` are those of all blocks."""

    def __init__(self, base: nn.Module, place: Place, store: SharedParameters, config: LowRankConfig) -> None:
        super().__init__(base, scale=config.scale_of(place.name), dropout=config.dropout, fp32=config.fp32)
        rank = config.rank_of(place.name)
        key = f"{place.kind} {(self.in_features, self.out_features)} rank {rank}"
        self.denselora_encoder = self.shared_parameter(store, f"encoder {key}", (rank, self.in_features), spread)
        self.denselora_decoder = self.shared_parameter(store, f"decoder {key}", (self.out_features, rank), zero)
        self.denselora_M = self.new_parameter(rank, rank)

    def initialise(self, generator: Generator) -> None:
        """M uniform."""
        self.denselora_M.data.copy_(uniform(self.denselora_M, generator))

    def added_output(self, x: Tensor) -> Tensor:
        """(…, E) -> (…, F)."""
        inner = gelu(x @ self.denselora_encoder.to(x.dtype).mT) @ self.denselora_M.to(x.dtype).mT
        return gelu(inner @ self.denselora_decoder.to(x.dtype).mT)

    def delta_weight(self) -> Tensor:
        """Raises ``UsageError``: there is none."""
        raise UsageError(
            "denselora is not linear in its inputs, so that no weight does the same; generate with the adapter as it is,"
            " or train one that merges (sharelora has shared matrices too)"
        )


class DenseLora(LinearAdapter[LowRankConfig]):
    """Trains all three."""

    def layer(self, base: nn.Module, place: Place) -> DenseLoraLinear:
        """See ``LinearAdapter``."""
        return DenseLoraLinear(base, place, self.store, self.config)
