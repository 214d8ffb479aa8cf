"""Trains pairs on many layouts in one launch. Run by test_layouts.py; see ../train/engine/layout_worker.py."""

from __future__ import annotations

import sys
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.alignment.two_terms import TwoTerms
from tests.train.engine.layout_worker import Bench, Losses, StopAfter, main, manifest_to_go_on

from mt_core.errors import CheckpointError
from mt_core.nn import Batch
from mt_train.assemble import reference
from mt_train.assemble.callbacks import Callbacks
from mt_train.assemble.session import Session
from mt_train.assemble.stopping import Stopper
from mt_train.checkpoint.store import find
from mt_train.engine.random_state import seed_everything
from mt_train.plugins.resolve import Resolved

STEPS = 3
reference.notice = lambda text: None


class PairsBench(Bench):
    """Sessions whose rows are pairs, with what the model of step 0 gives them."""

    def session(
        self, case: dict[str, Any], output: Path | None = None, checkpoint: Path | None = None, seed: int = 3
    ) -> Session:
        self.rows = Path(case["rows"])
        case = {"steps": STEPS, "length": 160, "eval_every": 3, "optimizer": {"name": "sgd", "lr": 0.1}, **case}
        case["data"] = {"cache": "none", **case.get("data", {})}
        built = super().session(case, output, checkpoint, seed)
        manifest = None if checkpoint is None else manifest_to_go_on(checkpoint)
        data, digest = reference.with_reference(
            built.parts, built.data, built.engine, output=output, checkpoint=checkpoint, manifest=manifest
        )
        return Session(built.parts, data, built.engine, output, Stopper(), reference=digest)

    def change_run(self, resolved: Resolved, case: dict[str, Any]) -> None:
        if "two_terms" in case:
            offer = resolved.offers["objective"]
            made = replace(offer.component, build=lambda config, **given: TwoTerms(counts=case["two_terms"], **given))
            resolved.offers["objective"] = replace(offer, component=made)

    def trained(self, case: dict[str, Any]) -> dict[str, Any]:
        """Figures of each step, weights before and after, pairs of each rank, and what the reference was."""
        session, losses = self.session(case), Losses()
        found: dict[str, Any] = {"reference": references(session), "before": weights(session)}
        if case.get("plain"):
            found["plain"] = plain_references(session)
            sides = [documents(each) for each in session.data.train]
            found["tokens of sides"] = [[int(trained[1:].sum()) for _, trained in each] for each in sides]
        if "two_terms" in case and case.get("plain"):
            found["plain norm"] = plain_norm(session)
        session.loop(session.restore(None, None), losses)
        return found | {"records": records(losses), "after": weights(session), "pairs": self.pairs(session)}

    def read(self, case: dict[str, Any]) -> dict[str, Any]:
        """Sums of squares of what the language head says of the first rows after training, over ranks, at three reads; then their loss."""
        session, said = self.session(case), []
        start = session.restore(None, None)
        batches = next(session.loader.windows(start.position)).batches
        session.loop(start, Losses())

        def read(hidden_BTD: Tensor, head: nn.Module, batch: Batch) -> None:
            said.append(head(hidden_BTD)[batch.labels != -100].double().square().sum())

        for _ in range(3):
            session.engine.read(batches[:1], read)
        for each in said:
            dist.all_reduce(each)
        return {"said": [each.item() for each in said], "loss": session.engine.evaluate(batches[:1])}

    def pairs(self, session: Session) -> list[list[list[int]]]:
        """For each step and rank the pairs of its micro-batches."""
        windows, found = session.loader.windows(session.restore(None, None).position), []
        for _ in range(session.total_steps):
            own, every = [len(batch.items) for batch in next(windows).batches], [None] * self.process.world
            dist.all_gather_object(every, own)
            found.append(every)
        return found

    def resumed(self, case: dict[str, Any]) -> dict[str, Any]:
        """What differs between a run that is stopped after step 2 of 5 and resumed, and one that is not."""
        case = {"steps": 5, "eval_every": 2, "optimizer": {"name": "adamw", "lr": 1e-2}, **case}
        with tempfile.TemporaryDirectory() as folder, counted() as count:
            shared = [folder]
            dist.broadcast_object_list(shared)
            output = Path(shared[0])
            whole, expected = self.session(case, None), Losses()
            whole.loop(whole.restore(None, None), expected)
            first, begun = self.again(case, output), Losses()
            first.events.callbacks = Callbacks({"stop": StopAfter(2)})
            first.loop(first.restore(None, None), begun)
            measured, checkpoint = count[0], find(output)
            second, ended = self.again(case, None, checkpoint), Losses()
            seed_everything(99, self.process.rank)  # what was restored must win
            second.loop(second.restore(checkpoint, manifest_to_go_on(checkpoint)), ended)
            return {
                "refused": self.refused(case, checkpoint),
                "records": records(expected) == [*records(begun), *records(ended)],
                "steps": [len(records(each)) for each in (begun, ended)],
                "weights": weights(whole) == weights(second),
                "measured before and after": [measured, count[0] - measured],
            }

    def refused(self, case: dict[str, Any], checkpoint: Path) -> list[str]:
        """What each rank says where the last one cannot read what was measured."""
        kept, said = reference.FILE, [""] * self.process.world
        try:
            reference.FILE = "gone" if self.process.rank == self.process.world - 1 else kept
            self.again(case, None, checkpoint)
        except CheckpointError as error:
            said[self.process.rank] = str(error)
        finally:
            reference.FILE = kept
        dist.all_gather_object(said, said[self.process.rank])
        return said

    def again(self, *given: Any) -> Session:
        """Another session in this process."""
        self.deepspeed.utils.groups.mpu = None
        return self.session(*given)


@contextmanager
def counted() -> Any:
    """Inside, a list whose number grows with each measurement."""
    measure, count = reference.measure_documents, [0]

    def counting(*given: Any) -> Any:
        count[0] += 1
        return measure(*given)

    reference.measure_documents = counting
    try:
        yield count
    finally:
        reference.measure_documents = measure


def records(losses: Losses) -> list[dict[str, float]]:
    """Figures of a step but times and memory."""
    names = ("step", "loss", "grad_norm", "lr", "tokens")
    return [
        {**{name: getattr(each, name) for name in names}, **each.metrics, **each.evaluation} for each in losses.records
    ]


def weights(session: Session) -> dict[str, list[float]]:
    """Every weight of the model."""
    return {name: weight.double().flatten().tolist() for name, weight in session.engine.whole_weights()}


def references(session: Session) -> dict[str, list[list[float]]]:
    """For each name the values of each training row's documents."""
    samples = list(session.data.train)
    return {name: [[*each.document_values[name]] for each in samples] for name in samples[0].document_values}


def plain_norm(session: Session) -> float:
    """The norm of the gradient of ``TwoTerms`` on all training rows, in plain torch, one answer at a time."""
    model = session.parts.model()
    model.load_state_dict({name: weight.clone() for name, weight in session.engine.whole_weights()})
    sides = [[logps(model, *each) for each in documents(sample)] for sample in session.data.train]
    pairs = torch.stack([(chosen.sum() - rejected.sum()) ** 2 / 1000 for chosen, rejected in sides])
    loss = pairs.mean() - torch.cat([each for pair in sides for each in pair]).mean()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return torch.stack([each.norm() for each in gradients]).norm().item()


@torch.no_grad()
def plain_references(session: Session) -> dict[str, list[list[float]]]:
    """The same in plain torch, one answer at a time; by a second copy of the model where it can be copied."""
    model: nn.Module = session.engine.module.model
    if session.config.adapter.name == "full":
        model = session.parts.model()
        model.load_state_dict({name: weight.clone() for name, weight in session.engine.whole_weights()})
    was_training = model.training
    model.eval()
    found: dict[str, list[list[float]]] = {"reference": [], "reference_tail": []}
    for sample in session.data.train:
        sides = [logps(model, ids, trained) for ids, trained in documents(sample)]
        shorter = min(map(len, sides))
        found["reference"].append([side.sum().item() for side in sides])
        found["reference_tail"].append([side[shorter:].sum().item() for side in sides])
    model.train(was_training)
    return found


def documents(sample: Any) -> list[tuple[Tensor, Tensor]]:
    """Ids and trained places of each side."""
    ids, trained = (torch.as_tensor(each).split(list(sample.documents)) for each in (sample.ids, sample.trained))
    return list(zip(ids, trained, strict=True))


def logps(model: nn.Module, ids_T: Tensor, trained_T: Tensor) -> Tensor:
    """Log-probabilities of the trained tokens of one document."""
    nothing = torch.zeros(1, len(ids_T), dtype=torch.int64)
    batch = Batch(ids_T[None], nothing - 100, torch.arange(len(ids_T))[None], nothing).with_index()
    logps_TV = model.head(model(batch))[0].float().log_softmax(1)
    return logps_TV[:-1].gather(1, ids_T[1:, None])[:, 0][trained_T[1:]]


if __name__ == "__main__":
    main(PairsBench)
