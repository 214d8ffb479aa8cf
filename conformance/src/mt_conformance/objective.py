"""Conformance of an objective: its gradient belongs to the rows, however they are cut into batches.

Shapes: B rows, T tokens, D model width.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch

from mt_conformance import tiny, trainer
from mt_conformance.gradients import gradients, term_counts
from mt_conformance.host import hermetic_host
from mt_conformance.layouts import LayoutConformance
from mt_conformance.objective_batches import ROWS, batch_of, sum_of, with_reference, with_values, without
from mt_conformance.tiny_config import TinyConfig
from mt_conformance.weights import fill_weights
from mt_core.components import ObjectiveComponent
from mt_core.model_protocols import HasReference, Objective
from mt_core.nn import NOT_TRAINED, Batch, TrainModel
from mt_core.nn.objective import OBJECTIVE
from mt_core.plugins.host import PluginHost
from mt_core.rows import Rejected, Sample
from mt_train.data.outcomes import encode_rows


class BaseObjectiveConformance(LayoutConformance):
    """Checks of an objective. ``rows`` are rows that it can encode. If the loss of a row depends on others, declare ``batch_coupled``."""

    kind = "objective"
    rows: Sequence[Mapping[str, Any]] = ROWS
    next_tokens: bool = True
    """Whether a label is the token that comes next in the row."""

    def objective(self, host: PluginHost, folder: Path) -> Objective:
        """Build the objective as a run does, over bytes and the default template."""
        tokenizer = host.get("tokenizer", "byte").component
        bytes_ = tokenizer.build(tokenizer.config())
        built: Objective = self.part(host, folder).build(tokenizer=bytes_, template=trainer.build_template(bytes_))
        return built

    def model(self, host: PluginHost, folder: Path) -> TrainModel:
        """The kit's model with values that are far from each other, and with the modules that the objective has beside it."""
        config = TinyConfig(vocab_size=272, max_seq_len=256)
        model: TrainModel = hermetic_host(tiny).get("train_model", tiny.NAME).component.build(config)
        component = self.component(host)
        if isinstance(component, ObjectiveComponent) and component.modules is not None:
            model.head.add_module(OBJECTIVE, component.modules(self.config(host, folder), config.dim))
        return fill_weights(model, wide=True)

    def run(self, host: PluginHost, folder: Path) -> dict[str, Any]:
        rows = folder / "rows.jsonl"
        rows.write_text("".join(json.dumps(dict(row)) + "\n" for row in [*self.rows] * 4), "utf-8")
        raw = super().run(host, folder)
        data = {"eval": None, "truncation": "right", "cache": None}
        return {**raw, "dataset": {"name": "jsonl", "path": str(rows)}, "data": data}

    def samples(self, objective: Objective) -> list[Sample]:
        """The encoded rows. Raises ``AssertionError`` when there are fewer than two."""
        rows = [{"id": f"row {number}", **row} for number, row in enumerate(self.rows)]
        encoded = [*encode_rows(rows.__getitem__, range(len(rows)), objective)]
        for each in encoded:
            assert isinstance(each, Sample | Rejected), (
                f"encode returned {each!r}; it must return a Sample, or Rejected(reason, row_id) for a row that it cannot use"
            )
        samples = [with_reference(each, objective) for each in encoded if isinstance(each, Sample)]
        reasons = sorted({each.reason for each in encoded if isinstance(each, Rejected)})
        assert len(samples) >= 2, (
            f"{len(samples)} of {len(encoded)} rows were encoded ({'; '.join(reasons) or 'none rejected'}); set `rows` to some"
            " that this objective takes"
        )
        return samples

    def test_a_sample_says_which_tokens_are_trained(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """As many marks and weights as ids, the row's own id, and something to train on. Documents are all of the ids."""
        for sample in self.samples(self.objective(mt_host, tmp_path)):
            lengths = {"ids": len(sample.ids), "trained": len(sample.trained)}
            lengths |= {} if sample.weights is None else {"weights": len(sample.weights)}
            assert len(set(lengths.values())) == 1, f"{sample.row_id}: {lengths}; each id needs one mark (and weight)"
            assert sample.row_id.startswith("row "), (
                f"row_id is {sample.row_id!r}; it must be the row's `id`, for messages"
            )
            assert any(sample.trained), (
                f"{sample.row_id}: no token is trained; return Rejected(reason, row_id) for such a row"
            )
            documents = list(sample.documents) or [len(sample.ids)]
            are_all = sum(documents) == len(sample.ids) and min(documents) > 0
            assert are_all, (
                f"{sample.row_id}: documents of {documents} tokens for {len(sample.ids)} ids; they are the lengths of all parts, in order"
            )
            wrong = [name for name, each in sample.document_values.items() if len(each) != len(documents)]
            wrong += [name for name, each in sample.token_values.items() if len(each) != len(sample.ids)]
            assert not wrong, (
                f"{sample.row_id}: {wrong[0]!r} has another number of values than there are documents, or tokens; give one for each"
            )

    def test_a_row_is_encoded_the_same_each_time(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Rows have the same samples when they are encoded again, and are not changed: tokens are cached, and ranks encode shares."""
        objective = self.objective(mt_host, tmp_path)
        rows = [{"id": f"row {number}", **row} for number, row in enumerate(self.rows)]
        before = copy.deepcopy(rows)
        first = [*encode_rows(rows.__getitem__, range(len(rows)), objective)]
        changed = [row["id"] for row, kept in zip(rows, before, strict=True) if row != kept]
        assert not changed, f"encode changed {changed[0]}; other objectives and messages use the row: work on a copy"
        again = [*encode_rows(rows.__getitem__, range(len(rows)), objective)]
        wrong = [number for number, pair in enumerate(zip(first, again, strict=True)) if pair[0] != pair[1]]
        assert not wrong, (
            f"encoded again, row {wrong[0]} is {again[wrong[0]]}, and was {first[wrong[0]]}; a sample follows from its row alone: draw"
            " nothing, and keep nothing of one row for the next"
        )

    def test_labels_are_the_tokens_that_come_next(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """A token that is trained is the label of the place before it. An objective with other labels sets ``next_tokens``."""
        if not self.next_tokens:
            pytest.skip("next_tokens = False: its labels are something else")
        objective = self.objective(mt_host, tmp_path)
        for sample in self.samples(objective):
            batch = batch_of(objective, [[sample]])
            ends = {end - 1 for end in accumulate(sample.documents or [len(sample.ids)])}
            wanted = [
                sample.ids[place + 1] if place not in ends and sample.trained[place + 1] else NOT_TRAINED
                for place in range(len(sample.ids))
            ]
            found = batch.labels[0, : len(wanted)].tolist()
            wrong = [place for place, pair in enumerate(zip(found, wanted, strict=True)) if pair[0] != pair[1]]
            assert not wrong, (
                f"{sample.row_id}: place {wrong[0]} has the label {found[wrong[0]]}, and {wanted[wrong[0]]} is the"
                " token that comes next and is"
                " trained (NOT_TRAINED where it is not); collate shifts labels by one, and nothing else does. Set"
                " next_tokens = False for other labels"
            )

    def test_figures_are_sums_and_counts(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Each figure of the loss is a sum and a count: added up over micro-batches they are those of all rows at once."""
        self.require_independent_rows(mt_host)
        objective, model = self.objective(mt_host, tmp_path), self.model(mt_host, tmp_path)
        rows = [[sample] for sample in self.samples(objective)]
        ways = [[batch_of(objective, rows)], [batch_of(objective, [row]) for row in rows]]
        with torch.no_grad():
            one, many = ([objective.loss(model(each), model.head, each).metrics for each in way] for way in ways)
        for name in one[0]:
            pairs = [sum_of(way, name) for way in (one, many)]
            means = [total / count if count else 0.0 for total, count in pairs]
            assert math.isclose(*means, rel_tol=1e-4, abs_tol=1e-5), (
                f"the figure {name!r} is {means[0]:g} of all rows at once, and {means[1]:g} of one micro-batch for each"
                " row; metrics holds (sum,"
                " count), which the engine adds up: give sums over rows or tokens, and no mean over a batch"
            )

    def test_in_half_precision_it_has_a_loss(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """With hidden states and a head in bfloat16 loss and gradient are finite: GPUs train in bfloat16."""
        objective, model = self.objective(mt_host, tmp_path), self.model(mt_host, tmp_path).bfloat16()
        batch = batch_of(objective, [[sample] for sample in self.samples(objective)])
        try:
            found = gradients(model, objective, [batch])
        except RuntimeError as error:
            raise AssertionError(
                f"in bfloat16 it ends in an error: {error}. Give head(…) the dtype of the hidden states; cast its output, or use"
                " chunked_loss and token_logprobs, which do"
            ) from error
        assert found.loss.isfinite(), f"in bfloat16 the loss is {float(found.loss)}"

    def test_however_rows_are_cut_into_micro_batches_the_gradient_is_the_same(
        self, mt_host: PluginHost, tmp_path: Path
    ) -> None:
        """The gradient of all rows at once equals that of one row after another."""
        self.require_independent_rows(mt_host)
        objective = self.objective(mt_host, tmp_path)
        rows = [[sample] for sample in self.samples(objective)]
        together, alone = [batch_of(objective, rows)], [batch_of(objective, [row]) for row in rows]
        self.same_gradient(self.model(mt_host, tmp_path), objective, together, alone, "one micro-batch for each row")

    def test_packing_rows_changes_no_gradient(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """The gradient of one row for each sample equals that of all samples packed into one row."""
        self.require_independent_rows(mt_host)
        objective = self.objective(mt_host, tmp_path)
        samples = self.samples(objective)
        padded = [batch_of(objective, [[sample] for sample in samples])]
        self.same_gradient(
            self.model(mt_host, tmp_path),
            objective,
            padded,
            [batch_of(objective, [samples])],
            "all samples packed into one row",
        )

    def test_padding_changes_no_gradient(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """The gradient is the same with and without padding."""
        objective = self.objective(mt_host, tmp_path)
        rows = [[sample] for sample in self.samples(objective)]
        longer = [batch_of(objective, rows, more=17)]
        self.same_gradient(
            self.model(mt_host, tmp_path),
            objective,
            [batch_of(objective, rows)],
            longer,
            "17 more places of padding in each row",
        )

    def test_positions_that_are_not_trained_have_no_influence(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """The gradient of the loss is zero at every position without a label."""
        objective, model = self.objective(mt_host, tmp_path), self.model(mt_host, tmp_path)
        batch = batch_of(objective, [[sample] for sample in self.samples(objective)])
        hidden_BTD = model(batch).detach().requires_grad_(True)
        sums = objective.loss(hidden_BTD, model.head, batch)
        sum((term for term, _ in sums.terms.values()), sums.loss_sum).backward()  # type: ignore[no-untyped-call]
        assert hidden_BTD.grad is not None, "the loss does not depend on the hidden states; use `hidden` and `head`"
        reached_BT = hidden_BTD.grad.abs().sum(-1) > 0
        wrong = (reached_BT & (batch.labels == NOT_TRAINED)).nonzero().tolist()
        assert not wrong, (
            f"{len(wrong)} positions without a label (NOT_TRAINED, {NOT_TRAINED}) have a gradient, first (row, token)"
            f" {tuple(wrong[0])}; leave them out before the loss, not only out of its sum"
        )

    def test_the_count_is_known_before_any_forward(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """``count(batch)`` is what ``loss`` divides by, and ``count_terms`` what its terms: the engine adds them up over ranks before the
        first backward."""
        objective, model = self.objective(mt_host, tmp_path), self.model(mt_host, tmp_path)
        batch = batch_of(objective, [[sample] for sample in self.samples(objective)])
        sums = objective.loss(model(batch), model.head, batch)
        said, found = objective.count(batch), float(sums.token_count)
        equal = said > 0 and math.isclose(said, found, rel_tol=1e-6)
        assert equal, (
            f"count(batch) is {said}, and loss(…).token_count {found}; they must be equal and above 0, or the loss would be"
            " scaled by their ratio"
        )
        counted, terms = term_counts(objective, batch), {name: float(count) for name, (_, count) in sums.terms.items()}
        equal = counted.keys() == terms.keys() and all(
            math.isclose(counted[name], terms[name], rel_tol=1e-6) for name in terms
        )
        assert equal, (
            f"count_terms(batch) is {counted}, and loss(…).terms have the counts {terms}; give the same names with the same counts, or a"
            " term would be scaled by their ratio"
        )

    def test_its_reference_is_the_model_at_the_first_step(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """With values of ``measure`` the loss of the unchanged model equals the loss of batches without them."""
        objective = self.objective(mt_host, tmp_path)
        if not isinstance(objective, HasReference) or not objective.reference_values:
            pytest.skip("no reference_values: nothing is compared with a reference")
        names = objective.reference_values
        bare = [[without(sample, names)] for sample in self.samples(objective)]
        batch, model = batch_of(objective, bare), self.model(mt_host, tmp_path)
        with torch.no_grad():
            measured = {
                name: value.tolist() for name, value in objective.measure(model(batch), model.head, batch).items()
            }
        count = sum(len(sample.documents) or 1 for [sample] in bare)
        sizes = {name: len(value) for name, value in measured.items()}
        assert sizes == dict.fromkeys(names, count), (
            f"measure gives {sizes} values, and there are {count} documents and the names {list(names)}; give one for each document"
        )
        left = {name: iter(value) for name, value in measured.items()}
        filled_rows = [
            [with_values(sample, {name: [next(left[name]) for _ in sample.documents or [0]] for name in names})]
            for [sample] in bare
        ]
        self.same_gradient(
            self.model(mt_host, tmp_path),
            objective,
            [batch],
            [batch_of(objective, filled_rows)],
            "the reference measured with the same weights",
        )

    def effect(self, host: PluginHost, folder: Path) -> Any:
        """Return the samples, loss and gradient of all rows, and the figures."""
        objective, model = self.objective(host, folder), self.model(host, folder)
        samples = self.samples(objective)
        batch = batch_of(objective, [[sample] for sample in samples])
        found, sums = gradients(model, objective, [batch]), objective.loss(model(batch), model.head, batch)
        figures = {name: [each.detach() for each in pair] for name, pair in sums.metrics.items()}
        return [repr(each) for each in samples], found.loss, found.by_name, figures

    def require_independent_rows(self, host: PluginHost) -> None:
        """Skip where the objective says that its rows belong together."""
        component = self.component(host)
        if isinstance(component, ObjectiveComponent) and component.batch_coupled:
            pytest.skip("batch_coupled: the rows of a batch belong together")

    def same_gradient(
        self, model: TrainModel, objective: Objective, one: list[Batch], other: list[Batch], what: str
    ) -> None:
        """Raises ``AssertionError`` where two ways of putting the same samples into batches differ."""
        first, second = gradients(model, objective, one), gradients(model, objective, other)
        apart, name = first.distance(second)
        assert apart <= self.tolerance, (
            f"with {what} the gradient of {name} is another by {apart:.1e} of its length (allowed: {self.tolerance:g}), the loss"
            f" {float(second.loss):.6f} instead of {float(first.loss):.6f} nats. Return the sum over trained tokens in"
            " LossSums.loss_sum, never a mean over the batch; rows must not see each other (declare batch_coupled=True where"
            " that is meant)"
        )
