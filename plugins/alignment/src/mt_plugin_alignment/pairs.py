"""Pairs of answers as losses see them: log-probabilities, one number for each answer.

Shapes: every tensor is (pairs,), in fp32. An answer counts from its first token to its end token, which is trained and scored; the
prompt does not count. torch is imported by nobody here, so that plugins are listed without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mt_core import UsageError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Pairs:
    """Pairs of answers to one prompt each.

    ``chosen`` and ``rejected`` are the sums of log-probabilities of an answer's tokens under the model, with its gradient;
    ``reference_chosen`` and ``reference_rejected`` the same under the reference, without. These are ``None``, both of them, where no
    reference was measured: zeros would be a reference, one for which all answers are equally likely, and reading them is an error.
    ``…_lengths`` are tokens of an answer.

    What only modifications of a loss read (``modifications``) is ``None`` where nobody asked for it: ``…_tail`` are sums over the
    tokens of an answer behind the length of the shorter one (LD-DPO), ``…_weights`` how likely an answer is for the model (WPO).
    ``…_counts`` are what the tokens of an answer count together where a tail counts less.
    """

    chosen: Tensor
    rejected: Tensor
    chosen_lengths: Tensor
    rejected_lengths: Tensor
    reference_chosen: Tensor | None = None
    reference_rejected: Tensor | None = None
    chosen_tail: Tensor | None = None
    rejected_tail: Tensor | None = None
    reference_chosen_tail: Tensor | None = None
    reference_rejected_tail: Tensor | None = None
    chosen_weights: Tensor | None = None
    rejected_weights: Tensor | None = None
    chosen_counts: Tensor | None = None
    rejected_counts: Tensor | None = None

    @property
    def chosen_reward(self) -> Tensor:
        """Return r_w = log π(y_w) - log π_ref(y_w): the implicit reward of the chosen answer over β. Raises ``UsageError``."""
        return self.chosen - known(self.reference_chosen, "reference_chosen")

    @property
    def rejected_reward(self) -> Tensor:
        """Return r_l = log π(y_l) - log π_ref(y_l). Raises ``UsageError`` where there is no reference."""
        return self.rejected - known(self.reference_rejected, "reference_rejected")

    @property
    def margin(self) -> Tensor:
        """Return Δ = r_w - r_l. Raises ``UsageError`` where there is no reference."""
        return self.chosen_reward - self.rejected_reward

    @property
    def chosen_mean(self) -> Tensor:
        """Return the mean log-probability of a token of the chosen answer, each by what it counts."""
        return self.chosen / (self.chosen_lengths if self.chosen_counts is None else self.chosen_counts)

    @property
    def rejected_mean(self) -> Tensor:
        """Return the mean log-probability of a token of the rejected answer, each by what it counts."""
        return self.rejected / (self.rejected_lengths if self.rejected_counts is None else self.rejected_counts)

    @property
    def chosen_mean_reward(self) -> Tensor:
        """Return r_w by token. Raises ``UsageError`` where there is no reference."""
        return self.chosen_reward / self.chosen_lengths

    @property
    def rejected_mean_reward(self) -> Tensor:
        """Return r_l by token. Raises ``UsageError`` where there is no reference."""
        return self.rejected_reward / self.rejected_lengths


def known(value: Tensor | None, name: str) -> Tensor:
    """Return a value of pairs that may be missing. Raises ``UsageError`` that says what was not measured."""
    if value is None:
        raise UsageError(
            f"Pairs.{name} is None: it was not measured for these pairs, and what reads it cannot go on. A loss of the reference has"
            " needs_reference = True, and a modification asks its objective for what it reads"
        )
    return value
