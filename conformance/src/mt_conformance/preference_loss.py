"""Conformance of a preference loss: a finite loss for each pair by itself, which falls as the right answer becomes likelier."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from torch import Tensor

from mt_conformance.base import BasePluginConformance
from mt_core.plugins.host import PluginHost

CHOSEN = (-12.0, -3.5, -40.0, -0.25, -7.0)
REJECTED = (-15.0, -3.0, -22.0, -6.0, -7.0)
CHOSEN_LENGTHS = (6.0, 2.0, 31.0, 1.0, 4.0)
REJECTED_LENGTHS = (7.0, 2.0, 12.0, 5.0, 4.0)
"""Answers: sums of log-probabilities, and tokens. The model prefers the right one in some pairs, and neither in one."""

FAR = 1000.0
"""Log-ratio of a long answer that the model has learned, or forgotten."""
CLOSE = 1e-5
"""Difference of fp32 that counts as none (share of the value, or of 1)."""


class PreferenceLoss(Protocol):
    """A loss as the kit calls it: that of mt-plugin-alignment, which the kit does not import."""

    beta: float
    needs_reference: bool
    known_start: float | None
    nll: float

    def __call__(self, pairs: Any) -> Tensor:
        """Return the loss of each pair."""
        ...


class BasePreferenceLossConformance(BasePluginConformance):
    """Checks of a loss over pairs of answers."""

    kind = "preference_loss"
    raises_chosen: bool = True
    """Whether it makes the chosen answer likelier at the start; a loss that lowers both answers, the rejected one more, says ``False``."""
    lowers_rejected: bool = True
    """Whether it makes the rejected answer less likely at the start."""

    def loss(self, host: PluginHost, folder: Path) -> PreferenceLoss:
        """Build the loss as an objective does."""
        built: PreferenceLoss = self.part(host, folder).build()
        return built

    def pairs(self, host: PluginHost, loss: PreferenceLoss, shift: float | Tensor = 0.0) -> Any:
        """Pairs that collect a gradient; the model has moved by ``shift`` since it was the reference, up for chosen answers."""
        values = {"chosen": torch.tensor(CHOSEN), "rejected": torch.tensor(REJECTED)}
        values |= {"chosen_lengths": torch.tensor(CHOSEN_LENGTHS), "rejected_lengths": torch.tensor(REJECTED_LENGTHS)}
        if loss.needs_reference:
            values |= {f"reference_{side}": values[side] for side in ("chosen", "rejected")}
        return self.move_pairs(self.pairs_class(host)(**values), chosen=shift, rejected=-1.0 * shift)

    def pairs_class(self, host: PluginHost) -> Any:
        """The class of pairs, which stands beside the protocol that the kind names."""
        return import_module(host.kinds[self.kind].returns.partition(":")[0]).Pairs

    def move_pairs(self, pairs: Any, **by: float | Tensor) -> Any:
        """Return the same pairs where the model gives answers other log-probabilities, as leaves; the reference stays."""
        values = dict(vars(pairs))
        for side in ("chosen", "rejected"):
            values[side] = (values[side].detach() + by.get(side, 0.0)).requires_grad_()
        return type(pairs)(**values)

    def losses(self, loss: PreferenceLoss, pairs: Any, said: str) -> Tensor:
        """Return the loss of each pair. Raises ``AssertionError`` for what is no finite number of each."""
        found: Any = loss(pairs)
        count = len(pairs.chosen)
        assert isinstance(found, Tensor), f"of {said} it returns {type(found).__name__}; return a tensor"
        assert found.shape == (count,), (
            f"of {said} it returns shape {tuple(found.shape)}, and there are {count} pairs; return the loss of each, shape"
            f" ({count},): the objective adds them up and divides by the pairs of the whole step"
        )
        assert found.isfinite().all(), (
            f"of {said} its losses are {numbers(found)}; write log σ(x) as logsigmoid(x), and no e^x of what may be large"
        )
        return found

    def gradients(self, loss: PreferenceLoss, pairs: Any, said: str) -> Mapping[str, Tensor]:
        """Return the gradient by side. Raises ``AssertionError`` where it is not finite."""
        total = self.losses(loss, pairs, said).sum()
        found = dict(
            zip(("chosen", "rejected"), torch.autograd.grad(total, (pairs.chosen, pairs.rejected)), strict=True)
        )
        for side, gradient in found.items():
            assert gradient.isfinite().all(), (
                f"of {said} its gradient by the log-probabilities of {side} answers is {numbers(gradient)}; a torch.where whose other"
                " branch is infinite, or 0 times infinity, does that: cut what goes into each branch first"
            )
        return found

    def effect(self, host: PluginHost, folder: Path) -> Any:
        """Return losses, and the weight of likelihood, which the objective adds."""
        loss = self.loss(host, folder)
        return [loss(self.pairs(host, loss, shift)).detach() for shift in (0.5, -2.0)], loss.nll

    # ------------------------------------------------------------------------------------------------------ checks

    def test_it_says_what_it_needs(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Whether it reads the reference, the loss at its start, the factor of rewards, the share of likelihood."""
        loss: Any = self.loss(mt_host, tmp_path)
        told: dict[str, Any] = {
            name: getattr(loss, name, "missing") for name in ("needs_reference", "known_start", "beta", "nll")
        }
        assert isinstance(told["needs_reference"], bool), (
            f"its needs_reference is {told['needs_reference']!r}; say True or False: a reference that nobody reads costs a forward"
            " over all rows"
        )
        start = told["known_start"]
        assert start is None or type(start) in (int, float), (
            f"its known_start is {start!r}; say what a pair costs at r = 0, or None for a loss without such a value"
        )
        assert type(told["beta"]) in (int, float) and told["beta"] > 0, (  # noqa: PT018 - one sentence for both
            f"its beta is {told['beta']!r}; say the factor of r with which rewards are reported, above 0"
        )
        assert type(told["nll"]) in (int, float) and told["nll"] >= 0, (  # noqa: PT018
            f"its nll is {told['nll']!r}; say which weight the likelihood of chosen answers has in the method, 0 for none"
        )

    def test_each_pair_has_a_finite_loss(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Check pairs as they are at the start of a run, and those that the model has learned or forgotten a little."""
        loss = self.loss(mt_host, tmp_path)
        for shift in (0.0, 1.0, -1.0):
            self.gradients(loss, self.pairs(mt_host, loss, shift), f"pairs moved by {shift:g}")

    def test_it_reads_the_reference_where_it_needs_one(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """With ``needs_reference`` another reference gives another loss; without it no pair has one."""
        loss = self.loss(mt_host, tmp_path)
        pairs = self.pairs(mt_host, loss, 0.5)
        if not loss.needs_reference:
            try:
                self.losses(loss, pairs, "pairs without a reference")
            except TypeError as error:
                raise AssertionError(
                    f"needs_reference is False, and pairs without a reference raised TypeError: {error}. Say needs_reference = True"
                ) from error
            return
        shifted = {
            name: getattr(pairs, name) - by for name, by in (("reference_chosen", 1.0), ("reference_rejected", 3.0))
        }
        moved = type(pairs)(**{**vars(pairs), **shifted})
        one, other = (self.losses(loss, each, "pairs with a reference").detach() for each in (pairs, moved))
        assert not torch.equal(one, other), (
            f"with another reference pairs cost the same ({numbers(one)}). Compare with pairs.reference_chosen and"
            " pairs.reference_rejected (pairs.margin does), or say needs_reference = False: a reference costs a forward over all rows"
        )

    def test_the_start_costs_what_it_says(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """The loss equals ``known_start`` when the model is the reference, for any answers."""
        loss = self.loss(mt_host, tmp_path)
        if loss.known_start is None:
            pytest.skip("it knows no value of the start (known_start is None)")
        found = self.losses(loss, self.pairs(mt_host, loss), "pairs of which r = 0")
        assert torch.allclose(found, torch.full_like(found, loss.known_start), rtol=CLOSE, atol=CLOSE), (
            f"pairs with r = 0 cost {numbers(found)}, and known_start says {loss.known_start:g}. A run proves with it that its first"
            " step is right: set it to the formula's value at r = 0, or to None"
        )

    def test_it_prefers_the_chosen_answer(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """At the start, a more likely chosen answer has a lower loss, and a more likely rejected one a higher loss."""
        loss = self.loss(mt_host, tmp_path)
        found = self.gradients(loss, self.pairs(mt_host, loss), "pairs of the start")
        right = {"chosen": found["chosen"] < 0, "rejected": found["rejected"] > 0}
        asked = {"chosen": self.raises_chosen, "rejected": self.lowers_rejected}
        for side in (side for side in asked if asked[side]):
            assert right[side].all(), (
                f"its gradient by the log-probability of {side} answers is {numbers(found[side])}: the model would learn to prefer"
                " what was not chosen. Turn the sign; a method that means it says raises_chosen = False or lowers_rejected = False in"
                " this class"
            )

    def test_a_pair_does_not_depend_on_others(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """A pair has the same loss alone, and with others in any order."""
        loss = self.loss(mt_host, tmp_path)
        pairs = self.pairs(mt_host, loss, torch.tensor([0.5, -1.0, 2.0, 0.0, -0.1]))
        whole = self.losses(loss, pairs, "five pairs").detach()
        for place in range(len(whole)):
            alone = self.losses(loss, chosen_pairs(pairs, [place]), "a pair alone").detach()
            assert torch.allclose(alone[0], whole[place], rtol=CLOSE, atol=CLOSE), (
                f"pair {place} costs {alone[0]:g} alone, and {whole[place]:g} beside four others. Micro-batches and ranks part pairs"
                " as it suits them: use no mean, sort or count over the pairs"
            )
        turned = self.losses(loss, chosen_pairs(pairs, [4, 3, 2, 1, 0]), "pairs in another order").detach()
        assert torch.allclose(turned.flip(0), whole, rtol=CLOSE, atol=CLOSE), (
            "in another order, pairs cost something else"
        )

    def test_extreme_log_ratios_are_finite(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Loss and gradient are finite in fp32 for log-ratios of ±1000, and for answers of which the model is certain."""
        loss = self.loss(mt_host, tmp_path)
        for chosen in (-FAR, 0.0, FAR):
            for rejected in (-FAR, 0.0, FAR):
                pairs = self.move_pairs(self.pairs(mt_host, loss), chosen=min(chosen, 0.0), rejected=min(rejected, 0.0))
                if loss.needs_reference:
                    raised = {"reference_chosen": max(chosen, 0.0), "reference_rejected": max(rejected, 0.0)}
                    values = {name: getattr(pairs, name) - by for name, by in raised.items()}
                    pairs = type(pairs)(**vars(pairs) | values)
                self.gradients(loss, pairs, f"pairs with r_w = {chosen:g} and r_l = {rejected:g}")
        certain = self.pairs(mt_host, loss)
        for sides in ({"chosen"}, {"rejected"}, {"chosen", "rejected"}):
            by = {side: -getattr(certain, side).detach() for side in sides}
            self.gradients(loss, self.move_pairs(certain, **by), f"certain answers ({', '.join(sorted(sides))})")

    def test_it_changes_nothing(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Pairs are unchanged, since other losses and the record use them."""
        loss = self.loss(mt_host, tmp_path)
        pairs = self.pairs(mt_host, loss, 1.0)
        before = {name: value.detach().clone() for name, value in vars(pairs).items() if value is not None}
        with torch.no_grad():
            first, again = loss(pairs), loss(pairs)
        changed = [name for name, value in before.items() if not torch.equal(getattr(pairs, name), value)]
        assert not changed, f"it changed {', '.join(changed)} of the pairs in place; compute a tensor of its own"
        assert torch.equal(first, again), (
            f"the same pairs cost {numbers(first)} and then {numbers(again)}; keep no state"
        )


def chosen_pairs(pairs: Any, places: list[int]) -> Any:
    """The pairs at these places."""
    return type(pairs)(**{name: None if value is None else value[places] for name, value in vars(pairs).items()})


def numbers(values: Tensor) -> str:
    """A few numbers, for messages."""
    return ", ".join(f"{value:g}" for value in values.tolist())
