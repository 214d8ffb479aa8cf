"""Directions and ranks. Shapes: E inputs, C directions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from mt_core import Probe
from mt_core.adapters import PeftForm, device_of
from mt_core.nn import TrainModel

from ...probed import ProbedAdapter, portions, principal, signs, smaller
from .config import EvaConfig


class Eva(ProbedAdapter[EvaConfig]):
    """Trains A and B."""

    def peft_form(self, model: TrainModel) -> PeftForm:
        """LORA."""
        return self.as_lora(model)

    def prepare(self, model: TrainModel, probe: Probe) -> None:
        """Two things are found: directions, and how many of them each layer gets."""
        targets = self.probed_layers(model)
        offers = {name: each for name, *each in self._directions(targets, probe)}
        budget = sum(self.config.rank_of(name) for name in targets)
        ranks = distribute_ranks({name: shares.tolist() for name, (_, shares) in offers.items()}, budget)
        self.plan = {"ranks": ranks}
        self.found = {name: (a_CE[: ranks[name]].clone(),) for name, (a_CE, _) in offers.items() if ranks[name]}

    def scale_of(self, name: str) -> float:
        """Return the scale of the rank before ranks were moved between layers."""
        return self.config.scale_of(name)

    def _directions(self, targets: Mapping[str, nn.Module], probe: Probe) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Name, directions (C, E) and their shares (C,) of every layer. Those of equal inputs are computed once."""
        sizes = {name: 8 * int(base.in_features) ** 2 for name, base in targets.items()}  # type: ignore[arg-type]
        seen, a_KE, shares_K = torch.empty(0), torch.empty(0), torch.empty(0)
        for portion in portions(sizes, self.config.probe_gb * 1e9):
            moments = probe.input_moments(portion, steps=self.config.probe_steps)
            for name in portion:
                moment = moments.pop(name)
                if not torch.equal(moment, seen):
                    seen, (a_KE, shares_K) = moment, principal_directions(moment.to(device_of(targets[name])))
                most = min(round(self.config.rank_of(name) * self.config.rho), smaller(targets[name]))
                yield name, a_KE[:most].clone(), shares_K[:most].clone()


def principal_directions(moment_EE: Tensor) -> tuple[Tensor, Tensor]:
    """All directions of a layer's inputs (E, E), and the share of their squares that is in each."""
    a_EE, values_E = principal(moment_EE, len(moment_EE))
    a_EE = a_EE * signs(a_EE)[:, None]
    return a_EE.float().cpu(), (values_E / values_E.sum().clamp_min(torch.finfo(values_E.dtype).tiny)).cpu()


def distribute_ranks(shares: Mapping[str, list[float]], budget: int) -> dict[str, int]:
    """Return how many of each one's shares are among the largest of all; of equal ones the first."""
    best = sorted((-share, place, name) for place, (name, own) in enumerate(shares.items()) for share in own)[:budget]
    return {name: sum(each == name for _, _, each in best) for name in shares}
