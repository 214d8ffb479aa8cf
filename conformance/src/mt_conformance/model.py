"""Conformance of a model: causal, separate documents, one function however it is computed, and able to learn.

Shapes: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mt_conformance.family import FamilyConformance
from mt_conformance.forward import (
    EXACT,
    chain_layers,
    change_tokens,
    difference,
    generate_greedily,
    gradients_of,
    mean_loss,
    outputs,
    piece,
    rows_of,
)
from mt_core.nn import KVCache
from mt_core.plugins.host import PluginHost

HALF = "Give back the dtype of x: what is computed in fp32 (norms, rotary angles) is cast back"


class BaseModelConformance(FamilyConformance):
    """Checks of a model family, in the size ``variant`` (empty: the default size) with ``options``: choose a small model without dropout.

    Opt-in: ``reference``, the same model by other code.
    """

    fixed_options = ("max_seq_len",)
    initial_loss_within: float = 0.3
    """How far the loss of new weights may be from ln V (nats per token)."""
    overfit_rate: float = 1e-2
    overfit_steps: int = 60
    """AdamW steps at this rate in which a batch of 32 tokens has to be known by heart."""

    def reference(self) -> nn.Module | None:
        """Return the same shape by code that you did not write: called with ids (B, T) it gives logits (B, T, V), or an object with
        ``logits``. ``None`` leaves the check out."""
        return None

    def rename_tensors(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The reference's tensors (its weights, and their gradients) under the model's names and in its shapes."""
        return tensors

    def effect(self, host: PluginHost, folder: Path) -> Any:
        """Return shapes and first values of the parameters, and logits as in training."""
        model = self.model(host, folder, wide=False).train()
        torch.manual_seed(0)
        logits = model.head(model(self.batch(model, self.length(host, folder)))).detach()
        return {name: each.detach() for name, each in model.named_parameters()}, logits

    # ------------------------------------------------------------------------------------------------------ one function

    def test_the_loss_of_new_weights_is_that_of_guessing(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """The first loss is ln V: a larger one means a wrong scale, a smaller one that a token sees itself."""
        model = self.model(mt_host, tmp_path, wide=False).eval()
        batch, guess = self.batch(model, self.length(mt_host, tmp_path), rows=8), math.log(model.config.vocab_size)
        with torch.no_grad():
            loss = float(mean_loss(model, batch))
        assert abs(loss - guess) <= self.initial_loss_within, (
            f"new weights have a loss of {loss:.3f} nats per token on random tokens, and guessing has ln V = {guess:.3f}"
            f" (allowed: {self.initial_loss_within} away). "
            + (
                "Less than guessing means that a token sees the one it predicts."
                if loss < guess
                else "Scale down what init_tensor draws, or what reaches the head."
            )
        )

    def test_later_tokens_never_change_earlier_outputs(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Changing the second half of a row does not change the outputs of the first half."""
        model, length = self.model(mt_host, tmp_path).eval(), self.length(mt_host, tmp_path)
        batch, at = self.batch(model, length), length // 2
        one, other = outputs(model, batch), outputs(model, change_tokens(batch, model, at, length))
        apart = difference(one[:, :at], other[:, :at])
        assert apart <= EXACT, (
            f"other tokens from place {at} on change outputs before it by {apart:.1e} of their size (allowed: {EXACT:g}): the"
            " model sees the future. Use context.attention, which is causal, and shift convolutions to the left"
        )
        assert difference(one[:, at:], other[:, at:]) > EXACT, (
            f"other tokens from place {at} on change no output from there on: the model does not look at its input"
        )

    def test_documents_in_one_row_never_see_each_other(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Each document of a packed row has the same outputs as alone."""
        model, third = self.model(mt_host, tmp_path).eval(), max(1, self.length(mt_host, tmp_path) // 3)
        lengths = [third, third, max(1, third - 1)]
        batch = self.batch(model, *lengths, rows=2)
        packed = torch.split(outputs(model, batch), lengths, 1)
        for number, ids_BT in enumerate(torch.split(batch.input_ids, lengths, 1)):
            alone = torch.cat([outputs(model, rows_of(ids_1T, ids_1T.shape[1])) for ids_1T in torch.split(ids_BT, 1)])
            apart = difference(packed[number], alone)
            assert apart <= EXACT, (
                f"document {number + 1} of three in each of two rows differs from itself alone by {apart:.1e} of its outputs"
                f" (allowed: {EXACT:g}). Positions start at 0 in each (context.positions_BT), and nothing may cross from one to"
                " the next (context.document_ids_BT; context.attention keeps them apart), or from row to row"
            )

    def test_generating_with_a_cache_gives_the_outputs_of_one_forward(
        self, mt_host: PluginHost, tmp_path: Path
    ) -> None:
        """A cached prompt continued token by token, or by several tokens as in a conversation, equals one forward."""
        model, length = self.model(mt_host, tmp_path).eval(), self.length(mt_host, tmp_path)
        batch = self.batch(model, length, rows=2)
        whole = outputs(model, batch)
        by_token = [(prompt, *range(prompt + 1, length)) for prompt in sorted({1, min(7, length - 1)})]
        for ends in (*by_token, (length // 4, length // 2, length // 2 + 1)):
            cache = KVCache()
            pieces = [outputs(model, piece(batch, *each), cache) for each in pairwise(sorted({0, *ends, length}))]
            apart = difference(torch.cat(pieces, 1), whole)
            sizes = [each.shape[1] for each in pieces]
            assert apart <= EXACT, (
                f"read in pieces of {', '.join(map(str, sizes[:4]))} … tokens, the outputs differ by {apart:.1e} of their size"
                f" from those of one forward (allowed: {EXACT:g}). A block has to keep in context.cache all that it needs of"
                " earlier tokens, and take positions from context.positions_BT"
            )

    def test_a_batch_of_prompts_gives_what_each_gives_alone(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Short prompts are padded on the left; a model that does not support this sets ``ragged_batches = False``."""
        model, length = self.model(mt_host, tmp_path).eval(), self.length(mt_host, tmp_path)
        if not model.ragged_batches:
            pytest.skip("ragged_batches = False: prompts of other lengths are generated one after the other")
        ids = self.batch(model, length).input_ids[0].tolist()
        prompts = [ids[: length // 2], ids[:2], ids[1 : length // 3 + 1]]
        together, alone = (
            generate_greedily(model, prompts),
            [generate_greedily(model, [prompt])[0] for prompt in prompts],
        )
        wrong = [number for number in range(len(prompts)) if together[number] != alone[number]]
        assert not wrong, (
            f"prompt {wrong[0] + 1} of three goes on with {together[wrong[0]]} in a batch, and with {alone[wrong[0]]} alone."
            " Padding on the left (context.cache.padding_B) must not reach real tokens, or set ragged_batches = False"
        )

    def test_layers_chained_are_the_model(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Running the layers one by one, as a pipeline does, equals the forward."""
        model = self.model(mt_host, tmp_path).eval()
        batch = self.batch(model, self.length(mt_host, tmp_path))
        specs = self.pipeline_layers(mt_host, tmp_path, model)
        modules = [spec.build() for spec in specs]
        named = {
            f"{spec.prefix}.{name}"
            for spec, each in zip(specs, modules, strict=True)
            for name, _ in each.named_parameters()
        }
        wanted = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        assert named == wanted, (
            f"the layers have the parameters {sorted(named - wanted)[:3]} that the model lacks, and lack {sorted(wanted - named)[:3]};"
            " each layer's prefix is the path of its module in the model, and every parameter belongs to a layer"
        )
        for spec, module in zip(specs, modules, strict=True):
            module.load_state_dict(model.get_submodule(spec.prefix).state_dict())
        apart = difference(chain_layers(modules, model, batch), outputs(model, batch))
        assert apart <= EXACT, (
            f"its layers, one after the other, differ from the whole model by {apart:.1e} of the outputs (allowed: {EXACT:g})."
            " What a forward of its own does belongs into the layers, or into mt_pipeline_layers"
        )

    # ---------------------------------------------------------------------------------------------------------- training

    def test_one_batch_can_be_learned_by_heart(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Training on two rows reduces the loss to a tenth."""
        model = self.model(mt_host, tmp_path, wide=False).train()
        batch = self.batch(model, min(16, self.length(mt_host, tmp_path)), rows=2)
        optimizer, losses = torch.optim.AdamW(model.parameters(), lr=self.overfit_rate, weight_decay=0.0), []
        for _ in range(self.overfit_steps):
            loss = mean_loss(model, batch)
            losses.append(float(loss.detach()))
            if losses[-1] < losses[0] / 10:
                return
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        raise AssertionError(
            f"{self.overfit_steps} steps of AdamW at {self.overfit_rate:g} on the same two rows took the loss from"
            f" {losses[0]:.3f} to {losses[-1]:.3f} nats per token; a tenth was expected. Look for a gradient that does not get"
            " through, or set overfit_rate and overfit_steps for this model"
        )

    def test_every_parameter_gets_a_gradient(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """A parameter without a gradient is never trained, and blocks ZeRO."""
        model = self.model(mt_host, tmp_path).train()
        mean_loss(model, self.batch(model, self.length(mt_host, tmp_path), rows=2)).backward()  # type: ignore[no-untyped-call]
        kept = model.kept_names()  # an engine trains none of these
        grads = {name: each.grad for name, each in model.named_parameters() if name not in kept}
        idle = [name for name, grad in grads.items() if grad is None or not grad.any()]
        assert not idle, f"no gradient reaches {', '.join(idle)}; use these parameters, or do not make them"

    def test_in_half_precision_it_stays_half(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Hidden states have the dtype of the weights, and gradients are finite: GPUs train in bfloat16."""
        model = self.model(mt_host, tmp_path, wide=False)
        kept = {name: model.get_parameter(name).data for name in model.kept_names()}
        model.to(torch.bfloat16).train()
        for name, value in kept.items():  # as an engine leaves them
            model.get_parameter(name).data = value
        batch = self.batch(model, self.length(mt_host, tmp_path), rows=2)
        try:
            hidden_BTD = model(batch)
            mean_loss(model, batch).backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise AssertionError(f"in bfloat16 it ends in an error: {error}. {HALF}") from error
        assert hidden_BTD.dtype == torch.bfloat16, f"in bfloat16 the hidden states are {hidden_BTD.dtype}. {HALF}"
        wrong = [name for name, each in gradients_of(model).items() if not each.isfinite().all()]
        assert not wrong, f"in bfloat16 the gradients of {', '.join(wrong[:3])} are not finite"

    def test_recomputing_blocks_changes_no_gradient(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """With ``train.activation_checkpointing`` a block runs again in the backward, and gradients are the same."""
        model = self.model(mt_host, tmp_path).train()
        batch, found, counts = self.batch(model, self.length(mt_host, tmp_path)), [], []
        for model.checkpoint_blocks in (False, True):
            model.zero_grad()
            torch.manual_seed(0)
            with model.sums.collecting():
                mean_loss(model, batch).backward()  # type: ignore[no-untyped-call]
            found.append(gradients_of(model))
            counts.append({name: float(count) for name, (_, count) in model.sums.figures.items()})
            counts[-1] |= {name: float(total.sum()) for name, total in model.sums.gathered.items()}
        wrong = [name for name, one in found[0].items() if difference(one, found[1][name]) > EXACT]
        assert not wrong, (
            f"with activation checkpointing the gradients of {', '.join(wrong[:3])} are others; a block must be a function of"
            " its arguments: keep nothing from one forward for the next"
        )
        twice = [name for name, count in counts[0].items() if abs(count - counts[1].get(name, 0.0)) > EXACT * count]
        assert not twice, (
            f"with activation checkpointing the figure {twice[0]!r} counts {counts[1].get(twice[0], 0.0):g}, and"
            f" {counts[0][twice[0]]:g} without; a forward of its own has to run its blocks by mt_core.nn.run_recomputed"
        )

    # ----------------------------------------------------------------------------------------------------------- weights

    def test_new_weights_follow_from_seed_and_name(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Initial values do not depend on earlier random numbers, so every layout begins with the same ones."""
        torch.manual_seed(1)
        one = self.model(mt_host, tmp_path, seed=5, wide=False).state_dict()
        torch.manual_seed(2)
        two = self.model(mt_host, tmp_path, seed=5, wide=False).state_dict()
        wrong = [name for name in one if not torch.equal(one[name], two[name])]
        assert not wrong, (
            f"{', '.join(wrong[:3])} differ between two models of the same seed; init_tensor has to fill the tensor that it is"
            " given, from the generator that it is given"
        )

    def test_its_state_comes_back(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """A model that loads the saved parameters, by name, gives the same outputs."""
        model, fresh = self.model(mt_host, tmp_path).eval(), self.model(mt_host, tmp_path, seed=7).eval()
        batch = self.batch(model, self.length(mt_host, tmp_path))
        with torch.no_grad():
            kept = {name: each.detach().clone() for name, each in model.named_parameters()}
            for name, parameter in fresh.named_parameters():
                parameter.copy_(kept[name])
        beside = sorted(set(model.state_dict()) - {name for name, _ in model.named_parameters(remove_duplicate=False)})
        comes_back = torch.equal(outputs(model, batch), outputs(fresh, batch)) and not beside
        assert comes_back, (
            "a second model with the same parameters gives other outputs, or the state holds more than them"
            f" ({', '.join(beside) or 'nothing else'}). Checkpoints hold parameters only: make such tensors parameters, or compute"
            " them from the config (register_buffer(…, persistent=False))"
        )

    def test_it_equals_its_reference(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Optional: logits and the gradient of every parameter equal the reference's in fp32."""
        other = self.reference()
        if other is None:
            pytest.skip("opt-in: override reference() with the same shape by other code")
        model = self.model(mt_host, tmp_path).eval()
        with torch.no_grad():
            for name, value in self.rename_tensors(dict(other.eval().named_parameters())).items():
                model.get_parameter(name).copy_(value)
        batch = self.batch(model, self.length(mt_host, tmp_path), rows=2)
        answer = other(batch.input_ids)
        theirs, mine = getattr(answer, "logits", answer), model.head(model(batch))
        apart = difference(mine, theirs)
        assert apart <= EXACT, f"the logits differ by {apart:.1e} of the reference's (allowed: {EXACT:g})"
        weights = torch.randn(mine.shape, generator=torch.Generator().manual_seed(2))
        for logits in (mine, theirs):
            (logits * weights).sum().backward()
        wanted = self.rename_tensors(gradients_of(other))
        worst = max((difference(each, wanted[name]), name) for name, each in gradients_of(model).items())
        assert worst[0] <= EXACT, (
            f"the gradient of {worst[1]} differs by {worst[0]:.1e} of the reference's (allowed: {EXACT:g})"
        )
