"""Number of blocks that each layer gets. Shapes: F outputs, E inputs."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mt_core import Probe
from mt_core.adapters import Place
from mt_core.nn import TrainModel

from ...probed import ProbedAdapter
from ...rank_allocation import allocate_ranks, importance_of
from .config import RaloraConfig
from .layer import BlockLinear


class Ralora(ProbedAdapter[RaloraConfig]):
    """Trains A and B of every block."""

    def prepare(self, model: TrainModel, probe: Probe) -> None:
        """The plan has how many blocks each layer gets, of which rank where ranks are moved between layers."""
        importances, effective = dict[str, float](), dict[str, float]()
        for name, base, gradient in self.gradients(model, probe):
            effective[name] = effective_rank(gradient)
            importances[name] = importance_of(base, gradient)
        targets, least, most = self.probed_layers(model), self.config.min_rank, self.config.max_rank
        self.plan = {}
        if least is not None and most is not None:
            self.plan["ranks"] = allocate_ranks(targets, importances, self.config.rank_of, least=least, most=most)
        self.plan["blocks"] = {name: self._blocks(name, base, effective[name]) for name, base in targets.items()}

    def scale_of(self, name: str) -> float:
        """Return the scale of the rank before ranks were moved between layers."""
        return self.config.scale_of(name)

    def layer(self, base: nn.Module, place: Place) -> BlockLinear:
        """See ``LinearAdapter``."""
        config, name = self.config, place.name
        blocks = self.plan.get("blocks", {}).get(name, 1)
        own = {"rank": self.rank_of(name), "scale": self.scale_of(name)}
        return BlockLinear(base, blocks=blocks, **{**config.arguments(name), **own})

    def _blocks(self, name: str, base: nn.Module, effective: float) -> int:
        most = min(self.config.max_blocks, effective / self.rank_of(name))
        blocks = 2 ** max(math.floor(math.log2(most)), 0)
        return math.gcd(blocks, int(base.in_features), int(base.out_features))  # type: ignore[arg-type]


def effective_rank(matrix_FE: Tensor) -> float:
    """exp of the entropy of the singular values (Roy and Vetterli, 2007), from 1 to the smaller dimension; 1 of zeros.

    In fp64 from the matrix's product with itself: values below 1e-7 of the largest, which weigh nothing, are lost.
    """
    whole = (matrix_FE if matrix_FE.shape[0] <= matrix_FE.shape[1] else matrix_FE.mT).double()
    values = torch.linalg.eigvalsh(whole @ whole.mT).clamp_min(0).sqrt()
    shares = values / values.sum().clamp_min(torch.finfo(values.dtype).tiny)
    return float(torch.special.entr(shares).sum().exp())
