"""TRL's own losses on log-probabilities that a test chooses: its methods, called on what they read of a trainer and of a model.

A test gives log-probabilities by token, as a model would; TRL sums, weighs and compares them itself. Everything is float64, but for
what TRL computes in fp32 alone (ORPO, the alpha divergence). TRL takes seconds to import, and is imported when it is asked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from mt_plugin_alignment import Pairs
from mt_plugin_alignment.modifications import answer_weights, is_in_tail

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
        """What we are given of the same answers, what modifications read included."""
        values = {"": self.sums(self.logp), "reference_": self.sums(self.reference)}
        lengths = self.mask.sum(1)
        weights = answer_weights(self.sums(self.logp), self.sums(self.square), lengths)
        tails = {prefix: self.tails(each) for prefix, each in (("", self.logp), ("reference_", self.reference))}
        given: dict[str, Tensor] = {}
        for row, side in enumerate(("chosen", "rejected")):
            given |= {f"{prefix}{side}": each.chunk(2)[row] for prefix, each in values.items()}
            given |= {f"{prefix}{side}_tail": each.chunk(2)[row] for prefix, each in tails.items()}
            given |= {f"{side}_lengths": lengths.chunk(2)[row], f"{side}_weights": weights.chunk(2)[row]}
        return Pairs(**given)

    def sums(self, values: Tensor) -> Tensor:
        """Sum of each answer."""
        return (values * self.mask).sum(1)

    def tails(self, values: Tensor) -> Tensor:
        """Sum of each answer over what stands behind the shorter one's length, by the flat list of tokens that an objective has."""
        rows = len(self.mask)
        order = (
            torch.arange(rows).view(2, -1).T.flatten()
        )  # ours: chosen and rejected answer of a pair one after the other
        places = torch.arange(self.mask.shape[1]).expand(rows, -1)[order]
        answers = torch.arange(rows)[:, None].expand(places.shape)
        trained = self.mask[order].bool()
        tail = is_in_tail(places[trained], answers[trained], self.mask[order].sum(1), torch.arange(0, rows, 2))
        sums = values.new_zeros(rows).index_add(0, answers[trained], values[order][trained] * tail)
        return sums[order.argsort()]

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
    from trl import DPOTrainer

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
    with double():
        loss: Tensor = DPOTrainer._compute_loss(trainer, lambda **_: model_output(answers), inputs, False)
    return loss


@contextmanager
def double() -> Iterator[None]:
    """Numbers that TRL makes itself, as EXO's ε, are float64 in here."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


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


class Asked(torch.nn.Module):
    """What TRL asks of the model that it trains, beside its outputs."""

    is_gradient_checkpointing = False


def dpo_trainer(kind: str, **options: Any) -> Any:
    """What ``_compute_loss`` reads of a ``DPOTrainer``; ``tau`` is DiscoPOP's."""
    accelerator = SimpleNamespace(device=CPU, gather=identity, gather_for_metrics=identity, unwrap_model=identity)
    values: dict[str, Any] = {
        "model": Asked(),
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


def cpo(chosen: Tensor, rejected: Tensor, kind: str = "sigmoid", **options: Any) -> Tensor:
    """Loss of each pair by ``CPOTrainer.cpo_loss``, a function of two log-probabilities; log-ratios make it DPO's."""
    from trl.experimental.cpo import CPOTrainer

    values = {"beta": 0.1, "alpha": 0.0, "label_smoothing": 0.0, "simpo_gamma": 0.5, "loss_type": kind}
    assert options.keys() <= values.keys(), "an option that TRL does not read"
    loss: Tensor = CPOTrainer.cpo_loss(
        SimpleNamespace(**(values | options), accelerator=SimpleNamespace(device=CPU)), chosen, rejected
    )[0]
    return loss


def orpo(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    """Loss of each pair by ``ORPOTrainer.odds_ratio_loss``, whose sign its caller turns."""
    from trl.experimental.orpo import ORPOTrainer

    trainer = SimpleNamespace(beta=beta, accelerator=SimpleNamespace(device=CPU))
    loss: Tensor = -ORPOTrainer.odds_ratio_loss(trainer, chosen, rejected)[0]
    return loss


def orpo_step(model: torch.nn.Module, pairs: list[dict[str, list[int]]], *, beta: float, pad: int) -> Tensor:
    """Loss of a micro-batch by ``ORPOTrainer.get_batch_loss_metrics``: odds of answers, likelihood of prompts and answers."""
    from trl.experimental.orpo import ORPOTrainer

    trainer = ORPOTrainer.__new__(ORPOTrainer)
    trainer.accelerator = SimpleNamespace(device=CPU, gather_for_metrics=identity)
    trainer.beta, trainer.padding_value, trainer.is_encoder_decoder = beta, pad, False
    trainer.aux_loss_enabled = False
    batch: dict[str, Tensor] = {}
    for side in ("chosen", "rejected"):
        rows = [(each["prompt_ids"], each[f"{side}_ids"]) for each in pairs]
        longest = max(len(prompt) + len(answer) for prompt, answer in rows)
        behind = [longest - len(prompt) - len(answer) for prompt, answer in rows]
        columns = {
            "input_ids": [[*p, *a, *[pad] * n] for (p, a), n in zip(rows, behind, strict=True)],
            "attention_mask": [[1] * (longest - n) + [0] * n for n in behind],
            "labels": [[-100] * len(p) + a + [-100] * n for (p, a), n in zip(rows, behind, strict=True)],
        }
        batch |= {f"{side}_{name}": torch.tensor(values) for name, values in columns.items()}
    loss: Tensor = trainer.get_batch_loss_metrics(model, batch)[0]
    return loss


def kto(answers: Tokens, desirable: Tensor, others: Tensor, kind: str = "kto", **options: Any) -> Tensor:
    """Mean loss of answers by ``KTOTrainer._compute_loss``; ``others`` are r of the answers of other rows, as they come."""
    from trl import KTOTrainer

    values = vars(dpo_trainer("sigmoid")) | {"loss_type": kind, "calculate_KL": kind == "kto"}
    values |= {"desirable_weight": 1.0, "undesirable_weight": 1.0, "_compute_kl_logps": lambda model, batch: others}
    assert options.keys() <= values.keys(), "an option that TRL does not read"
    rows = len(answers.mask)
    completion = torch.cat([torch.zeros(rows, PROMPT, dtype=torch.long), answers.mask.long()], 1)
    inputs = {
        "input_ids": torch.zeros_like(completion),
        "attention_mask": torch.ones_like(completion),
        "completion_mask": completion,
        "label": desirable,
        "ref_logps": answers.sums(answers.reference),
        "ref_KL_logps": torch.zeros_like(others),
    }
    with double():
        loss: Tensor = KTOTrainer._compute_loss(
            SimpleNamespace(**(values | options)), lambda **_: model_output(answers), inputs, False
        )
    return loss


def reward(scores: Tensor, margin: Tensor | None, coefficient: float | None) -> Tensor:
    """Mean loss of scores, all chosen ones first, by ``RewardTrainer.compute_loss``."""
    from trl import RewardTrainer

    trainer = dpo_trainer("sigmoid")
    trainer.args = SimpleNamespace(center_rewards_coefficient=coefficient)
    inputs = {"attention_mask": torch.ones(len(scores), 3)} | ({} if margin is None else {"margin": margin})
    loss: Tensor = RewardTrainer.compute_loss(
        trainer, lambda **_: SimpleNamespace(logits=scores[:, None]), dict(inputs)
    )
    return loss


def identity(value: Any) -> Any:
    return value


def differences(theirs: tuple[Tensor, Tensor], ours: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Relative difference of two values, and of their gradients."""
    return tuple(float((a - b).norm() / b.norm().clamp(min=1e-12)) for a, b in zip(ours, theirs, strict=True))  # type: ignore[return-value]


def with_gradient(value: Tensor, answers: Tokens) -> tuple[Tensor, Tensor]:
    """A value, and its gradient by token."""
    (gradient,) = torch.autograd.grad(value, answers.logp)
    return value.detach(), gradient * answers.mask
