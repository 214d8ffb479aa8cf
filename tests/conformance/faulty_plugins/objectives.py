from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mt_core import Row, Sample
from mt_core.nn import NOT_TRAINED, Batch, LossSums, TokenObjective, token_logprobs


class Answers(TokenObjective):
    """An objective without a fault."""

    def __init__(self, config: Any, *, tokenizer: Any, template: Any) -> None:
        super().__init__(pad_id=258)

    def encode(self, row: Row) -> Sample:
        prompt, response = (list(row[key].encode()) for key in ("prompt", "response"))
        return Sample([*prompt, *response], [False] * len(prompt) + [True] * len(response), row["id"])


class Unmarked(Answers):
    def encode(self, row: Row) -> Sample:
        sample = super().encode(row)
        return replace(sample, trained=sample.trained[1:])


class Mean(Answers):
    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        sums = super().loss(hidden, head, batch)
        return LossSums(sums.loss_sum / sums.token_count, sums.token_count)


class WholeRows(Answers):
    """Each row of a batch counts as much as any other, whatever is packed into it."""

    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        sums, trained = super().loss(hidden, head, batch), (batch.labels != NOT_TRAINED).sum(-1)
        return LossSums(sums.loss_sum * trained.float().mean(), sums.token_count)


class Padded(Answers):
    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        sums = super().loss(hidden, head, batch)
        return LossSums(sums.loss_sum * batch.labels.shape[1], sums.token_count)


class Unmasked(Answers):
    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        sums = super().loss(hidden, head, batch)
        return LossSums(sums.loss_sum + 1e-3 * hidden.square().sum(), sums.token_count)


class Miscounts(Answers):
    def count(self, batch: Batch) -> float:
        return float(torch.numel(batch.labels))


class OwnCount(Answers):
    """Divides by its own tokens, and tells the count."""

    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        sums = super().loss(hidden, head, batch)
        return LossSums(20 * sums.loss_sum / (batch.labels != NOT_TRAINED).sum(), sums.token_count)


class Pairs(TokenObjective):
    """An objective over pairs without a fault: a logistic loss against a reference, and likelihood by tokens."""

    reference_values: tuple[str, ...] = ("reference",)

    def __init__(self, config: Any, *, tokenizer: Any, template: Any) -> None:
        super().__init__(pad_id=258)

    def encode(self, row: Row) -> Sample:
        sides = [[*row["prompt"].encode(), *row[side].encode()] for side in ("chosen", "rejected")]
        asked = len(row["prompt"].encode())
        trained = [place >= asked for side in sides for place in range(len(side))]
        return Sample([*sides[0], *sides[1]], trained, row["id"], None, [len(side) for side in sides])

    def count(self, batch: Batch) -> float:
        assert batch.items is not None, "there are pairs"
        return float(len(batch.items))

    def count_terms(self, batch: Batch) -> dict[str, float]:
        return {"likelihood": float(self.chosen_mask(batch).sum())}

    def chosen_mask(self, batch: Batch) -> Tensor:
        """(n,) which of the trained tokens are those of a chosen answer."""
        assert batch.items is not None, "there are pairs"
        return torch.isin(batch.document_n(), batch.items)

    def logps(self, hidden: Tensor, head: nn.Module, batch: Batch) -> Tensor:
        """(n,) of the trained tokens."""
        index_n = batch.index_n()
        return token_logprobs(head, hidden.flatten(0, 1)[index_n], batch.labels.reshape(-1)[index_n])[0]

    def measure(self, hidden: Tensor, head: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"reference": batch.document_sums(self.logps(hidden, head, batch))}

    def rejected_documents(self, firsts: Tensor) -> Tensor:
        """(P,) the number of the document that each chosen one is compared with."""
        return firsts + 1

    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        assert batch.items is not None, "there are pairs"
        logps_n = self.logps(hidden, head, batch)
        sums_A = batch.document_sums(logps_n)
        r_A = sums_A - batch.documents.get("reference", sums_A.detach())
        loss_P = -nn.functional.logsigmoid(r_A[batch.items] - r_A[self.rejected_documents(batch.items)])
        is_chosen = self.chosen_mask(batch)
        terms = {"likelihood": (-(logps_n * is_chosen).sum(), is_chosen.sum().float())}
        return LossSums(loss_P.sum(), torch.tensor(float(len(loss_P))), terms=terms)


class MeanOfPairs(Pairs):
    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        sums = super().loss(hidden, head, batch)
        return replace(sums, loss_sum=sums.loss_sum / sums.token_count)


class MeanOfTerm(Pairs):
    """Its term is a mean of the batch."""

    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        sums = super().loss(hidden, head, batch)
        total, count = sums.terms["likelihood"]
        return replace(sums, terms={"likelihood": (total / count, count)})


class Neighbours(Pairs):
    """Compares each chosen answer with the rejected one of the next pair."""

    def rejected_documents(self, firsts: Tensor) -> Tensor:
        return firsts.roll(-1) + 1


class MiscountsTerm(Pairs):
    def count_terms(self, batch: Batch) -> dict[str, float]:
        return {"likelihood": self.count(batch)}


class RenamesTerm(Pairs):
    def count_terms(self, batch: Batch) -> dict[str, float]:
        return {"sft": super().count_terms(batch)["likelihood"]}


class ShortDocuments(Pairs):
    def encode(self, row: Row) -> Sample:
        sample = super().encode(row)
        return replace(sample, documents=sample.documents[:1])


class ShortValues(Pairs):
    def encode(self, row: Row) -> Sample:
        return replace(super().encode(row), document_values={"margin": [1.0]})


class TrainsPrompts(Pairs):
    """Its term reaches the places that are not trained."""

    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        sums = super().loss(hidden, head, batch)
        total, count = sums.terms["likelihood"]
        return replace(sums, terms={"likelihood": (total + 1e-3 * hidden.square().sum(), count)})


class MeasuresMeans(Pairs):
    """Its reference is a mean over tokens, and its loss takes sums."""

    def measure(self, hidden: Tensor, head: nn.Module, batch: Batch) -> dict[str, Tensor]:
        logps_n = self.logps(hidden, head, batch)
        return {"reference": batch.document_sums(logps_n) / batch.document_sums(torch.ones_like(logps_n))}


class MeasuresPairs(Pairs):
    """Its reference has one value for a pair."""

    def measure(self, hidden: Tensor, head: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {name: value[::2] for name, value in super().measure(hidden, head, batch).items()}


class Wavering(Answers):
    """Leaves out the last token of every other row that it sees."""

    seen = 0

    def encode(self, row: Row) -> Sample:
        sample = super().encode(row)
        self.seen += 1
        return replace(sample, trained=[*sample.trained[:-1], self.seen % 5 > 0])


class Shifting(Answers):
    """Shifts labels once more."""

    def collate(self, rows: Any, *, length: int) -> Batch:
        batch = super().collate(rows, length=length)
        return replace(batch, labels=batch.labels.roll(-1, 1))


class Averaging(Answers):
    """Has a figure of a whole batch."""

    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        sums = super().loss(hidden, head, batch)
        width = torch.tensor(float(hidden.shape[1]))
        return LossSums(sums.loss_sum, sums.token_count, {"width": (width, torch.ones(()))})


class Widening(Answers):
    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        return super().loss(hidden.float(), head, batch)
