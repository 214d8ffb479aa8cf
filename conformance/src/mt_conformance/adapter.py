"""Conformance of an adapter: it begins as its base, trains what it says, merges, comes back, and runs where it declares."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mt_conformance import trainer
from mt_conformance.adapter_harness import TOKENS, AdapterConformance
from mt_conformance.adapter_model import check_merge_refused
from mt_conformance.forward import EXACT, change_tokens, difference, gradients_of, mean_loss, outputs
from mt_core.adapters import adapted_layers, merge, unmerge, viewing
from mt_core.errors import ConfigError, UsageError
from mt_core.nn import TrainModel
from mt_core.plugins.host import PluginHost


class BaseAdapterConformance(AdapterConformance):
    """Checks of an adapter. Cheap ones run on a small model in this process, the others in the class's launch."""

    # ------------------------------------------------------------------------------------------------------------ checks

    def test_it_begins_as_the_base(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """The first output is the base's, up to rounding. An adapter with ``exact_at_init=False`` sets ``exact_within`` in its test."""
        parts = self.parts(mt_host, tmp_path)
        base = self.base(parts).eval()
        batch = self.batches(base)[0]
        apart = difference(outputs(self.adapted_model(parts)[0].eval(), batch), outputs(base, batch))
        assert apart <= self.exact_within, (
            f"before the first step the output differs from the base's by {apart:.1e} of its length (allowed: {self.exact_within:g})."
            " Begin with an update of zero, or declare exact_at_init=False and say in exact_within of the test how far it is"
        )
        exact = self.declared_component(mt_host).exact_at_init
        assert exact or apart > EXACT, f"it begins as the base ({apart:.1e} away): declare exact_at_init=True"

    def test_its_base_is_the_model_of_step_0_where_it_says_so(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """With ``base_is_reference``, ``viewing(model, "base")`` after training equals the model without the adapter, bit for bit."""
        for quantized in (False, True)[: 1 + self.declared_component(mt_host).on_quantized]:
            parts = self.parts(mt_host, tmp_path, quantized=quantized)
            model, adapter = self.trained_model(parts)
            if not adapter.base_is_reference:
                pytest.skip("base_is_reference=False: nothing asks for its base")
            assert self.declared_component(mt_host).exact_at_init, (
                "the component declares exact_at_init=False, so that its base is not the model of step 0: set base_is_reference = False"
            )
            own = {f"{name}.{each}" for name, layer in adapted_layers(model) for each, _ in layer.own_parameters()}
            more = sorted(set(adapter.trainable_parameters(model)) - own)
            assert not more, f"it trains {', '.join(more[:3])} beside its layers: set base_is_reference = False"
            base = self.base(parts).eval()
            batch = self.batches(base)[0]
            with viewing(model, "base"):
                shown = outputs(model, batch)
            assert torch.equal(shown, outputs(base, batch)), (
                "the base that viewing(model, 'base') shows after three steps is another model than the one without the adapter:"
                " base_output(x) of its layers gives what the base gives, or base_is_reference = False"
            )

    def test_its_first_values_follow_from_the_seed(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Initial values do not depend on earlier random numbers, so every layout begins with the same ones."""
        parts = self.parts(mt_host, tmp_path)
        torch.manual_seed(1)
        one = dict(self.adapted_model(parts)[0].named_parameters())
        torch.manual_seed(2)
        two = dict(self.adapted_model(parts)[0].named_parameters())
        wrong = [name for name in one if not torch.equal(one[name], two[name])]
        assert not wrong, (
            f"{', '.join(wrong[:3])} begin with other values in the same run; draw them from the generator that initialise(generator) gets"
        )

    def test_only_what_it_declares_is_trained(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """After three steps all other parameters are the same bits; with ``rewrites_base`` the base of its layers may change."""
        parts = self.parts(mt_host, tmp_path)
        model, adapter = self.adapted_model(parts)
        before = {name: each.detach().clone() for name, each in model.named_parameters()}
        allowed = set(adapter.trainable_parameters(model)) | self._rewritten_weights(mt_host, model)
        own = set(before) - set(trainer.weight_names(self.base(parts)))
        self.training(parts, model, adapter, 3).run(self.batches(model, 3))
        changed = {name for name, each in model.named_parameters() if not torch.equal(each, before[name])}
        assert changed, "three steps changed nothing; trainable_parameters names what is trained"
        wrong = sorted(changed - allowed - own)
        assert not wrong, (
            f"{', '.join(wrong[:3])} of the base changed in training, and trainable_parameters does not name them; an adapter"
            " that rewrites the base declares rewrites_base=True, on its component and its class"
        )

    def test_every_trained_parameter_gets_a_gradient(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Each trained parameter has a gradient after the first steps (in the first step a zero factor may hide it)."""
        model, adapter = self.trained_model(self.parts(mt_host, tmp_path))
        mean_loss(model, self.batches(model)[0]).backward()  # type: ignore[no-untyped-call]
        trained = adapter.trainable_parameters(model)
        idle = sorted(set(trained) - set(gradients_of(model)))
        assert not idle, f"no gradient reaches {', '.join(idle[:3])}; use them, or do not name them as trained"

    def test_a_few_steps_lower_the_loss(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Twenty steps on one batch lower the loss."""
        parts = self.parts(mt_host, tmp_path)
        model, adapter = self.adapted_model(parts)
        losses = self.training(parts, model, adapter, 20).run(self.batches(model) * 20)
        assert losses[-1] < losses[0] - 0.01, (
            f"twenty steps on one batch took the loss from {losses[0]:.4f} to {losses[-1]:.4f} nats per token; set `rate` of"
            f" the test where {self.rate:g} does not suit it"
        )

    def test_its_dropout_is_of_training_alone(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """With an option ``dropout`` above 0 two forwards out of training are equal, and two in training differ."""
        if "dropout" not in self.component(mt_host).config.model_fields:
            pytest.skip("it has no option dropout")
        other = copy.copy(self)
        options = {**self.options_in(tmp_path), "dropout": 0.5}
        other.options_in = lambda folder: options  # type: ignore[method-assign]
        try:
            parts = other.parts(mt_host, tmp_path)
        except ConfigError as error:
            pytest.skip(f"it refuses dropout: {error}")
        model, _ = other.trained_model(parts)
        batch = self.batches(model)[0]
        assert torch.equal(outputs(model.eval(), batch), outputs(model, batch)), (
            "with dropout=0.5 two forwards in evaluation differ; use nn.Dropout, or give functional.dropout training=self.training"
        )
        model.train()
        assert not torch.equal(outputs(model, batch), outputs(model, batch)), (
            "with dropout=0.5 two forwards in training are equal: the option is ignored"
        )

    def test_merged_it_gives_the_same_and_unmerging_gives_the_bits_back(
        self, mt_host: PluginHost, tmp_path: Path
    ) -> None:
        """Merging after some training keeps the output, and unmerging restores the base. With ``mergeable=False`` merging is refused."""
        parts = self.parts(mt_host, tmp_path)
        model, _ = self.trained_model(parts)
        batch = self.batches(model)[0]
        if not self.declared_component(mt_host).mergeable:
            check_merge_refused(model)
            return
        before, bits = outputs(model, batch), {name: each.clone() for name, each in model.named_parameters()}
        try:
            merge(model)
        except UsageError as error:
            raise AssertionError(
                f"it declares mergeable=True, and does not merge: {error}; define delta_weight or merged_weight"
            ) from error
        between = outputs(model, batch)
        unmerge(model)
        apart = difference(between, before)
        assert apart <= self.merged_within, (
            f"merged, the output differs by {apart:.1e} of its length (allowed: {self.merged_within:g}); merged_weight or"
            " delta_weight says something else than adapted_output(x), or the component declares mergeable=False"
        )
        wrong = [name for name, each in model.named_parameters() if not torch.equal(each, bits[name])]
        assert not wrong, f"{', '.join(wrong[:3])} are others after unmerging; merge() keeps the base's own parameters"
        assert torch.equal(outputs(model, batch), before), "the output is another after unmerging"

    def test_what_it_saves_gives_the_same_model_again(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """``saved_state`` and the plan restore the model on an unchanged base, as a trained-only checkpoint does."""
        parts = self.parts(mt_host, tmp_path)
        model, adapter = self.trained_model(parts)
        values = dict(model.named_parameters())
        saved = set(adapter.saved_state(model))
        brought = set(values) - set(trainer.weight_names(self.base(parts)))
        missing = sorted((brought | set(adapter.trainable_parameters(model))) - saved)
        assert not missing, f"saved_state leaves out {', '.join(missing[:3])}, which base and seed cannot give again"
        again = self.resumed_model(parts, adapter.plan, {name: values[name] for name in saved})
        batch = self.batches(model)[0]
        assert torch.equal(outputs(again.eval(), batch), outputs(model, batch)), (
            "a second model with what saved_state names, and the same plan, gives another output. What training changes is a"
            " parameter (trained, or frozen by `trained`), and what changes shapes is in `plan`, as JSON"
        )

    def test_recomputing_blocks_changes_no_gradient(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """With ``train.activation_checkpointing`` every layer runs again in the backward, and gradients are the same."""
        model, _ = self.trained_model(self.parts(mt_host, tmp_path))
        found = []
        for model.checkpoint_blocks in (False, True):
            model.train().zero_grad()
            torch.manual_seed(0)
            mean_loss(model, self.batches(model)[0]).backward()  # type: ignore[no-untyped-call]
            found.append(gradients_of(model))
        wrong = [name for name, one in found[0].items() if difference(one, found[1][name]) > EXACT]
        assert not wrong, f"with activation checkpointing the gradients of {', '.join(wrong[:3])} are others"

    def test_later_tokens_never_change_earlier_outputs(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Changing the second half of a row does not change the outputs of the first half."""
        model, _ = self.trained_model(self.parts(mt_host, tmp_path))
        batch, at = self.batches(model)[0], TOKENS // 2
        one, other = (outputs(model, each)[:, :at] for each in (batch, change_tokens(batch, model, at, TOKENS)))
        assert (apart := difference(one, other)) <= EXACT, (
            f"other tokens from place {at} on change outputs before it by {apart:.1e} of their size (allowed: {EXACT:g}):"
            " adapted_output(x) works on each token by itself; normalise over the last dimension"
        )

    def test_in_half_precision_it_stays_half(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """The output has the dtype of the input, and gradients are finite."""
        parts = self.parts(mt_host, tmp_path)
        model, adapter = self.adapted_model(parts)
        training = self.training(parts, model.to(torch.bfloat16), adapter, 2)
        try:
            losses = training.run(self.batches(model, 2))
            hidden: Tensor = model(self.batches(model)[0])
        except RuntimeError as error:
            raise AssertionError(f"in bfloat16 it ends in an error: {error}. Give back the dtype of x") from error
        assert hidden.dtype == torch.bfloat16, (
            f"in bfloat16 the hidden states are {hidden.dtype}; adapted_output(x) gives back the dtype of x"
        )
        assert all(math.isfinite(loss) for loss in losses), f"in bfloat16 the losses are {losses}"

    def test_it_works_on_a_quantized_base_or_is_refused(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """It trains on quantized frozen weights, or declares ``on_quantized=False`` or ``rewrites_base``."""
        if not self.declared_component(mt_host).on_quantized:
            with pytest.raises(ConfigError, match=f"{self.name} does not work on a quantized base"):
                self.parts(mt_host, tmp_path, quantized=True)
            return
        parts = self.parts(mt_host, tmp_path, quantized=True)
        base = self.base(parts).eval()
        batch = self.batches(base)[0]
        plain, one = self.adapted_model(self.parts(mt_host, tmp_path))
        model, adapter = self.adapted_model(parts)
        same = adapter.trainable_parameters(model) == one.trainable_parameters(plain)
        assert same, "on a quantized base it trains other parameters than on a plain one; declare on_quantized=False"
        apart = difference(outputs(model.eval(), batch), outputs(base, batch))
        assert apart <= self.exact_within, f"on a quantized base it begins {apart:.1e} away from it"
        losses = self.training(parts, model, adapter, 20).run([batch] * 20)
        assert losses[-1] < losses[0] - 0.01, (
            f"on a quantized base the loss went from {losses[0]:.4f} to {losses[-1]:.4f}"
        )

    # -------------------------------------------------------------------------------------------------------- small parts

    def _rewritten_weights(self, host: PluginHost, model: TrainModel) -> set[str]:
        """Weights of the base that it may change."""
        if not self.declared_component(host).rewrites_base:
            return set()
        return {f"{name}.{each}" for name, layer in adapted_layers(model) for each, _ in layer.named_parameters()}
