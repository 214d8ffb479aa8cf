"""Losses equal those of TRL in value and gradient, through TRL's own functions and in float64.

``python tests/alignment/test_trl.py`` prints what was measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

import trl_losses as trl
from trl_losses import Tokens, tokens

from mt_plugin_alignment import Pairs, labelled, reward_losses, transport
from mt_plugin_alignment.modifications import weaken_tails, weigh
from mt_plugin_alignment.offers.losses import LOSSES

COMPONENTS = {each.name: each for each in LOSSES}
LENGTHS = [(4, 7), (5, 6), (6, 5), (1, 3), (9, 9), (2, 12)]
EXACT, SINGLE = 1e-10, 1e-5
"""Largest relative difference of values and of gradients, in float64 and in fp32."""

Measured = tuple[float, float]


def loss_of(name: str, **options: Any) -> Callable[[Pairs], Tensor]:
    component = COMPONENTS[name]
    built: Callable[[Pairs], Tensor] = component.build(component.config(**options))
    return built


def single(answers: Tokens) -> Tokens:
    return Tokens(*(each.float() for each in (answers.logp, answers.reference, answers.square, answers.mask)))


def compare(ours: Callable[[Tokens], Tensor], theirs: Callable[[Tokens], Tensor], *, fp32: bool = False) -> Measured:
    """Relative differences of value and gradient, the largest of three drawn steps."""
    found = []
    for seed in range(3):
        drawn = tokens(LENGTHS, seed=seed)
        answers = (single(drawn) if fp32 else drawn).leaf()
        found.append(
            trl.differences(trl.with_gradient(theirs(answers), answers), trl.with_gradient(ours(answers), answers))
        )
    return max(each[0] for each in found), max(each[1] for each in found)


def paired(
    name: str,
    options: Mapping[str, Any],
    kind: str,
    more: Mapping[str, Any] | None = None,
    *,
    before: Callable[[Pairs], Pairs] = lambda pairs: pairs,
    behind: Callable[[Tensor, Pairs], Tensor] = lambda loss, pairs: loss,
    fp32: bool = False,
) -> Measured:
    """A loss of pairs beside ``DPOTrainer``."""
    loss = loss_of(name, **options)

    def ours(answers: Tokens) -> Tensor:
        pairs = before(answers.pairs())
        return behind(loss(pairs), pairs).mean()

    return compare(ours, lambda answers: trl.dpo(answers, kind, beta=options["beta"], **(more or {})), fp32=fp32)


def of_sums(
    name: str, options: Mapping[str, Any], theirs: Callable[[Pairs], Tensor], *, fp32: bool = False
) -> Measured:
    """A loss of pairs beside a function of two log-probabilities."""
    loss = loss_of(name, **options)
    return compare(
        lambda answers: loss(answers.pairs()).mean(), lambda answers: theirs(answers.pairs()).mean(), fp32=fp32
    )


def transported(values_of: Callable[[Pairs], tuple[Tensor, Tensor]], kind: str) -> Measured:
    def ours(answers: Tokens) -> Tensor:
        values = values_of(answers.pairs())
        return transport.transport_loss(values, transport.counterparts(*values), beta=0.3, label_smoothing=0.1).mean()

    return compare(
        ours,
        lambda answers: trl.dpo(answers, kind, beta=0.3, label_smoothing=0.1),
    )


def labels(shift: float, kind: str) -> Measured:
    """Single answers, of which two thirds are desirable; ``shift`` moves z0 above or below 0."""
    desirable = torch.arange(2 * len(LENGTHS)) % 3 != 0
    others = torch.linspace(-2, 2, 2 * len(LENGTHS), dtype=torch.float64) + shift
    options = {"beta": 0.3, "desirable_weight": 1.25, "undesirable_weight": 0.75}
    z0 = labelled.kl_baseline(others.sum(), len(others)) if kind == "kto" else 0.0

    def ours(answers: Tokens) -> Tensor:
        ratios = answers.sums(answers.logp) - answers.sums(answers.reference)
        return labelled.kto(ratios, desirable, z0, **options).mean()

    return compare(ours, lambda answers: trl.kto(answers, desirable, others, kind, **options))


def scores(margin: Tensor | None, coefficient: float | None) -> Measured:
    """Sums stand for scores."""

    def ours(answers: Tokens) -> Tensor:
        chosen, rejected = answers.sums(answers.logp).chunk(2)
        loss = reward_losses.bradley_terry(chosen, rejected, 0.0 if margin is None else margin)
        return (loss + (coefficient or 0.0) * reward_losses.centring(chosen, rejected)).mean()

    return compare(ours, lambda answers: trl.reward(answers.sums(answers.logp), margin, coefficient))


def of_ratios(kind: str, **options: Any) -> Callable[[Pairs], Tensor]:
    """``cpo_loss`` of log-ratios: what TRL had in its DPO before, and has there no more."""
    return lambda pairs: trl.cpo(pairs.chosen_reward, pairs.rejected_reward, kind, **options)


def of_means(kind: str, **options: Any) -> Callable[[Pairs], Tensor]:
    return lambda pairs: trl.cpo(pairs.chosen_mean, pairs.rejected_mean, kind, **options)


PLAIN: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "sigmoid": ("sigmoid", {"beta": 0.3}, {}),
    "robust": ("robust", {"beta": 0.3, "label_smoothing": 0.2}, {"label_smoothing": 0.2}),
    "hinge": ("hinge", {"beta": 0.3}, {}),
    "ipo": ("ipo", {"beta": 0.3}, {}),
    "sigmoid-norm": ("sigmoid_norm", {"beta": 3.0}, {}),
    "exo-pair": ("exo_pair", {"beta": 0.3, "label_smoothing": 0.01}, {"label_smoothing": 0.01}),
    "nca-pair": ("nca_pair", {"beta": 0.3}, {}),
    "bco-pair": ("bco_pair", {"beta": 0.3}, {}),
    "sppo-hard": ("sppo_hard", {"beta": 0.3}, {}),
    "apo-zero": ("apo_zero", {"beta": 0.3}, {}),
    "apo-down": ("apo_down", {"beta": 0.3}, {}),
    "discopop": ("discopop", {"beta": 0.3, "tau": 0.2}, {"tau": 0.2}),
}
"""Our loss → that of TRL, our options, and TRL's beside β."""
DIVERGENT = ("sigmoid", "robust", "hinge", "ipo", "sigmoid-norm", "exo-pair", "discopop")
DIVERGENCES = {"forward-kl": "forward_kl", "js": "js_divergence"}


def divergent(name: str, ours: dict[str, Any], theirs: dict[str, Any], *, fp32: bool = False) -> Measured:
    kind, options, more = PLAIN[name]
    return paired(name, options | ours, kind, more | theirs, fp32=fp32)


CASES: dict[str, Callable[[], Measured]] = {
    **{name: partial(paired, name, options, kind, more) for name, (kind, options, more) in PLAIN.items()},
    **{
        f"{name}, {ours}": partial(divergent, name, {"divergence": ours}, {"f_divergence_type": theirs})
        for name in DIVERGENT
        for ours, theirs in DIVERGENCES.items()
    },
    **{
        f"{name}, LD-DPO": partial(
            paired, name, options, kind, more | {"ld_alpha": 0.4}, before=lambda pairs: weaken_tails(pairs, 0.4)
        )
        for name, (kind, options, more) in PLAIN.items()
    },
    **{
        f"{name}, WPO": partial(paired, name, options, kind, more | {"use_weighting": True}, behind=weigh)
        for name, (kind, options, more) in PLAIN.items()
        if name != "hinge"  # TRL 1.16 multiplies in place what the backward of its relu still needs, and fails
    },
    "sigmoid, smoothed (cpo_loss of r)": partial(
        of_sums, "sigmoid", {"beta": 0.3, "label_smoothing": 0.2}, of_ratios("sigmoid", beta=0.3, label_smoothing=0.2)
    ),
    "ipo, sums (cpo_loss of r)": partial(of_sums, "ipo", {"beta": 0.3, "length": "sum"}, of_ratios("ipo", beta=0.3)),
    "cpo": partial(of_sums, "cpo", {"beta": 0.3}, lambda pairs: trl.cpo(pairs.chosen, pairs.rejected, beta=0.3)),
    "cpo, smoothed": partial(
        of_sums,
        "cpo",
        {"beta": 0.3, "label_smoothing": 0.2},
        lambda pairs: trl.cpo(pairs.chosen, pairs.rejected, beta=0.3, label_smoothing=0.2),
    ),
    "simpo": partial(of_sums, "simpo", {"beta": 2.5, "gamma": 1.4}, of_means("simpo", beta=2.5, simpo_gamma=1.4)),
    "simpo, smoothed": partial(
        of_sums,
        "simpo",
        {"beta": 2.5, "gamma": 1.4, "label_smoothing": 0.1},
        of_means("simpo", beta=2.5, simpo_gamma=1.4, label_smoothing=0.1),
    ),
    "aot_paired": partial(transported, transport.paired_values, "aot"),
    "aot_unpaired": partial(transported, transport.unpaired_values, "aot_unpaired"),
    "kto, z0 above 0": partial(labels, 1.0, "kto"),
    "kto, z0 cut at 0": partial(labels, -1.0, "kto"),
    "kto without z0 (apo_zero_unpaired)": partial(labels, 0.0, "apo_zero_unpaired"),
    "reward": partial(scores, None, None),
    "reward, margins and centring": partial(scores, torch.linspace(0, 2, len(LENGTHS), dtype=torch.float64), 0.01),
}
"""What is compared in float64."""

SINGLES: dict[str, Callable[[], Measured]] = {
    **{
        f"{name}, alpha {alpha}": partial(
            divergent,
            name,
            {"divergence": "alpha", "divergence_alpha": alpha},
            {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": alpha},
            fp32=True,
        )
        for name in DIVERGENT
        for alpha in (0.0, 0.5, 0.9, 1.0, 1.5)
    },
    "orpo": partial(
        of_sums, "orpo", {"beta": 0.3}, lambda pairs: trl.orpo(pairs.chosen_mean, pairs.rejected_mean, 0.3), fp32=True
    ),
}
"""What TRL computes in fp32 alone."""


@pytest.mark.parametrize("case", CASES)
def test_a_loss_equals_that_of_trl_in_value_and_gradient(case: str) -> None:
    value, gradient = CASES[case]()
    assert value <= EXACT
    assert gradient <= EXACT


@pytest.mark.parametrize("case", SINGLES)
def test_a_loss_of_single_precision_equals_that_of_trl(case: str) -> None:
    value, gradient = SINGLES[case]()
    assert value <= SINGLE
    assert gradient <= SINGLE


def test_every_loss_is_compared() -> None:
    compared = {case.partition(",")[0].partition(" ")[0] for case in (*CASES, *SINGLES)}
    assert COMPONENTS.keys() <= compared


if __name__ == "__main__":
    for case, measure in (CASES | SINGLES).items():
        print(f"{case:44s}", *(f"{each:.1e}" for each in measure()))
