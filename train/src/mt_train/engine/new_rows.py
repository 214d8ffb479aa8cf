"""Rows of an embedding and a head for tokens that a model did not have.

Means are what https://nlp.stanford.edu/~johnhew/vocab-expansion.html finds harmless: a new token is no likelier than the
average one. Shapes: V rows of old tokens, D channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mt_core.weights import RowInit

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class NewRows:
    """``added`` says what each new token was read as before, id → ids; ``size`` is the rows that a tensor gets in all.

    ``known`` rows are those of old tokens: all below the first new one, if that is not said.
    """

    added: Mapping[int, tuple[int, ...]]
    size: int
    init: RowInit = "mean"
    seed: int = 0
    known: int | None = None

    def put(self, name: str, load: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Return a function that loads the tensor with its new rows, in its dtype: of new tokens, and such as fill up the size.

        Rows of old tokens stay bit for bit. What is random follows from the seed and the name, on any layout.
        """

        def extend() -> Tensor:
            import torch

            from mt_core.nn import tensor_generator

            old = load()
            first = min(self.added, default=len(old))
            known = old[: first if self.known is None else self.known].float()
            mean = known.mean(0)
            grown = torch.empty((max(self.size, len(old)), *old.shape[1:]), dtype=old.dtype)
            grown[: len(old)] = old
            grown[len(old) :] = mean.to(old.dtype)
            noise = tensor_generator(self.seed, name)
            for token, pieces in sorted(self.added.items()):
                row = mean
                if self.init == "subtokens" and pieces:
                    row = known[list(pieces)].mean(0)
                elif self.init == "normal":
                    row = mean + known.std(0) * torch.randn(mean.shape, generator=noise)
                grown[token] = row.to(old.dtype)
            return grown

        return extend
