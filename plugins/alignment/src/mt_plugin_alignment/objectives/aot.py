"""AOT: the order of all pairs of a step says what each is compared with.

Shapes: B rows, T tokens, D model width, A documents of the batch, P pairs of the batch, S documents of the step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mt_core.nn import Batch

from ..losses.base import PreferenceLoss
from ..transport import counterparts, paired_values, transport_loss, unpaired_values
from .items import first_documents
from .preference import PreferenceObjective

if TYPE_CHECKING:
    from mt_core import Template, Tokenizer

    from ..pairs import Pairs
    from .config import AotConfig

FIRST, SECOND = "aot_first", "aot_second"
"""Values that are put in order, at the first document of each pair; NaN at others."""
OF_FIRST, OF_SECOND = "aot_of_first", "aot_of_second"
"""Values at the same place of the other order."""


class Transport(PreferenceLoss):
    """The loss of pairs that are a whole step."""

    known_start = math.log(2)

    def __init__(self, config: AotConfig) -> None:
        self.beta, self._config = config.beta, config

    def values(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Return what is put in order, (P,) each."""
        return (paired_values if self._config.rows == "paired" else unpaired_values)(pairs)

    def compare(self, values: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor]) -> Tensor:
        """Return the loss of values beside their counterparts, (P,)."""
        return transport_loss(values, others, beta=self.beta, label_smoothing=self._config.label_smoothing)

    def __call__(self, pairs: Pairs) -> Tensor:
        """See ``PreferenceLoss``; here a pair's loss follows from all pairs that are given."""
        values = self.values(pairs)
        return self.compare(values, counterparts(*values))


class AotObjective(PreferenceObjective):
    """Rows with ``chosen`` and ``rejected``, all of a step together."""

    step_values = (FIRST, SECOND)

    def __init__(self, tokenizer: Tokenizer, template: Template, config: AotConfig) -> None:
        self._transport = Transport(config)
        super().__init__(tokenizer, template, config, [self._transport], [1.0])

    def measure_step(self, hidden: Tensor, head: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Values that are put in order, (A,)."""
        pairs, _ = self.read_pairs(hidden, head, batch)
        first_P, second_P = self._transport.values(self.modify(pairs))
        places_P, nothing_A = first_documents(batch), first_P.new_full((batch.document_count,), torch.nan)
        return {
            FIRST: nothing_A.index_copy(0, places_P, first_P),
            SECOND: nothing_A.index_copy(0, places_P, second_P),
        }

    def couple(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """(S,) -> what has the same place in the other order, 0 where no pair begins."""
        is_pair_S, nothing_S = ~values[FIRST].isnan(), torch.zeros_like(values[FIRST])
        others = counterparts(values[FIRST][is_pair_S], values[SECOND][is_pair_S])
        return {
            name: nothing_S.masked_scatter(is_pair_S, each)
            for name, each in zip((OF_FIRST, OF_SECOND), others, strict=True)
        }

    def loss_of(self, pairs: Pairs, batch: Batch) -> Tensor:
        """See ``PreferenceObjective``. A batch that no step has measured, as a probe's, is a step of its own."""
        if OF_FIRST not in batch.documents:
            return super().loss_of(pairs, batch)
        places_P = first_documents(batch)
        others = batch.documents[OF_FIRST][places_P], batch.documents[OF_SECOND][places_P]
        return self._transport.compare(self._transport.values(pairs), others)
