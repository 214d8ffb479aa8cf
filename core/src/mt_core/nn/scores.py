"""Figures of trained tokens beside the loss. Shapes: n trained tokens, D model width."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mt_core.nn.loss import token_scores


@dataclass(frozen=True)
class TokenScores:
    """``token_accuracy``: the share of trained tokens that the model ranks first. A token has the same weight as in the loss.

    With ``answers`` (ids of a positive and a negative answer) also the shares of the tokens that are one of both, by what
    they are and what the model finds likeliest: ``true_positive``, ``false_positive``, ``false_negative``, ``true_negative``.
    Anything that is not the positive answer counts as negative where the answer is positive, and the other way round.
    """

    answers: tuple[int, int] | None = None

    def of(
        self, head: nn.Module, hidden_nD: Tensor, labels_n: Tensor, weights_n: Tensor | None = None
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """(sum, count) of each figure. The head runs once more, in chunks and without gradients."""
        _, likeliest_n = token_scores(head, hidden_nD.detach(), labels_n)
        return self.shares(likeliest_n, labels_n, weights_n)

    def shares(
        self, likeliest_n: Tensor, labels_n: Tensor, weights_n: Tensor | None = None
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """(sum, count) of each figure, from what is likeliest; ``weights_n`` are those of the loss."""

        def count(is_it_n: Tensor) -> Tensor:
            return is_it_n.sum().float() if weights_n is None else (is_it_n * weights_n).sum().float()

        hit_n = likeliest_n == labels_n
        figures = {"token_accuracy": (count(hit_n), count(torch.ones_like(hit_n)))}
        if self.answers is None:
            return figures
        is_yes_n, is_no_n = (labels_n == each for each in self.answers)
        marked = count(is_yes_n | is_no_n)
        cases = {
            "true_positive": is_yes_n & hit_n,
            "false_negative": is_yes_n & ~hit_n,
            "true_negative": is_no_n & hit_n,
            "false_positive": is_no_n & ~hit_n,
        }
        return figures | {name: (count(case_n), marked) for name, case_n in cases.items()}
