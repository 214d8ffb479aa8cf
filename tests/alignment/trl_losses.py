"""TRL's own losses on log-probabilities that a test chooses: its methods, called on what they read of a trainer and of a model.

A test gives log-probabilities by token, as a model would; TRL sums, weighs and compares them itself. Everything is float64.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import Tensor
from trl import DPOTrainer

from mt_plugin_alignment import Pairs

CPU = torch.device("cpu")
PROMPT = 2
"""Tokens of each prompt."""


@dataclass(frozen=True)
class Tokens:
    """Answers by token, all chosen ones first as TRL has them: shapes (2 pairs, tokens), ``mask`` 1 where an answer has a token."""

    logp: Tensor
    reference: Tensor
    square: Tensor
    """log Σ p² over the vocabulary at each place."""
    mask: Tensor

    def pairs(self) -> Pairs:
        """What we are given of the same answers."""
        (chosen, rejected), (known_chosen, known_rejected) = (
            (each * self.mask).sum(1).chunk(2) for each in (self.logp, self.reference)
        )
        chosen_lengths, rejected_lengths = self.mask.sum(1).chunk(2)
        return Pairs(
            chosen=chosen,
            rejected=rejected,
            chosen_lengths=chosen_lengths,
            rejected_lengths=rejected_lengths,
            reference_chosen=known_chosen,
            reference_rejected=known_rejected,
        )

    def leaf(self) -> Tokens:
        """The same with a ``logp`` of its own that collects a gradient."""
        return replace(self, logp=self.logp.detach().clone().requires_grad_())


def tokens(lengths: list[tuple[int, int]], seed: int = 0, spread: float = 1.0, far: float = 0.5) -> Tokens:
    """Answers of these lengths, with log-probabilities as models have them; ``far`` is how far the reference is by token."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.tensor([each[0] for each in lengths] + [each[1] for each in lengths])
    mask = (torch.arange(int(counts.max()))[None] < counts[:, None]).double()

    def drawn(scale: float) -> Tensor:
        return scale * torch.randn(mask.shape, generator=generator, dtype=torch.float64)

    logp = -(drawn(spread).abs() + 1e-3)
    reference = -(logp + drawn(far)).abs()
    return Tokens(logp=logp * mask, reference=reference * mask, square=logp - drawn(0.3).abs(), mask=mask)


def dpo(answers: Tokens, kind: str, **options: Any) -> Tensor:
    """Mean loss over the pairs, by ``DPOTrainer._compute_loss``."""
    trainer = dpo_trainer(kind, **options)
    rows = len(answers.mask)
    completion = torch.cat([torch.zeros(rows, PROMPT, dtype=torch.long), answers.mask.long()], 1)
    reference_chosen, reference_rejected = (answers.reference * answers.mask).sum(1).chunk(2)
    if trainer.ld_alpha is not None:  # its precomputed sums have no tails, so that the reference is asked
        trainer.precompute_ref_logps = False
        trainer.ref_model = lambda **_: model_output(replace(answers, logp=answers.reference))
    inputs = {
        "input_ids": torch.zeros_like(completion),
        "attention_mask": torch.ones_like(completion),
        "completion_mask": completion,
        "ref_chosen_logps": reference_chosen,
        "ref_rejected_logps": reference_rejected,
    }
    loss: Tensor = DPOTrainer._compute_loss(trainer, lambda **_: model_output(answers), inputs, False)
    return loss


def model_output(answers: Tokens) -> Any:
    """Values by token of the shifted row, whose first ones are the prompt's."""

    def shifted(values: Tensor) -> Tensor:
        return torch.cat([values.new_zeros(len(values), PROMPT - 1), values], 1)

    zeros = shifted(torch.zeros_like(answers.mask))
    return SimpleNamespace(
        log_probs=shifted(answers.logp * answers.mask),
        log_sum_sq_probs=shifted(answers.square),
        entropy=zeros,
        mean_logits=zeros,
        is_top1=zeros.bool(),
    )


def dpo_trainer(kind: str, **options: Any) -> Any:
    """What ``_compute_loss`` reads of a ``DPOTrainer``; ``tau`` is DiscoPOP's."""
    accelerator = SimpleNamespace(device=CPU, gather=identity, gather_for_metrics=identity, unwrap_model=identity)
    values: dict[str, Any] = {
        "model": SimpleNamespace(training=True),
        "accelerator": accelerator,
        "aux_loss_enabled": False,
        "ld_alpha": None,
        "precompute_ref_logps": True,
        "f_divergence_type": "reverse_kl",
        "f_alpha_divergence_coef": 0.5,
        "loss_types": [kind],
        "loss_weights": [1.0],
        "beta": 0.1,
        "label_smoothing": 0.0,
        "use_weighting": False,
        "args": SimpleNamespace(discopop_tau=options.pop("tau", 0.05), gradient_checkpointing_kwargs=None),
        "_metrics": {"train": defaultdict(list)},
        "_total_train_tokens": 0,
        "_tp_size": 1,
    }
    assert options.keys() <= values.keys(), "an option that TRL does not read"
    return SimpleNamespace(**(values | options))


def identity(value: Any) -> Any:
    return value


def differences(theirs: tuple[Tensor, Tensor], ours: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Relative difference of two values, and of their gradients."""
    return tuple(float((a - b).norm() / b.norm().clamp(min=1e-12)) for a, b in zip(ours, theirs, strict=True))  # type: ignore[return-value]


def with_gradient(value: Tensor, answers: Tokens) -> tuple[Tensor, Tensor]:
    """A value, and its gradient by token."""
    (gradient,) = torch.autograd.grad(value, answers.logp)
    return value.detach(), gradient * answers.mask
