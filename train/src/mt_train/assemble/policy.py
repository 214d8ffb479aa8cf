"""The model of a run as what collects answers sees it, on every layout: it writes, is measured, and gives its weights away.

Shapes: B rows, T tokens, D model width, n trained tokens of a batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mt_core.adapters import adapted_layers, viewing
from mt_core.errors import ComponentError, UsageError, first_line
from mt_core.generation import Generation, GenerationConfig
from mt_core.nn import AdaptedLinear, Batch, TrainModel
from mt_core.nn.objective import split_objective_name
from mt_core.rows import Sample
from mt_train.assemble.copies import Copies
from mt_train.assemble.data import RunData, make_held_out
from mt_train.assemble.parts import Parts
from mt_train.assemble.shared_base import load_over
from mt_train.assemble.subjects import RowEncoder, live_model
from mt_train.assemble.window_reference import changes_of_base
from mt_train.data.loader import HeldOut
from mt_train.data.online import Measure, View, Weights
from mt_train.data.samples import EncodedSamples
from mt_train.engine.build import gather_parameters
from mt_train.engine.engine import Engine
from mt_train.engine.processes import all_reduce, gather_texts, ranks_where, share_text
from mt_train.evaluate.subject import LiveSubject
from mt_train.generation.continuation import continue_prompts
from mt_train.generation.loaded_model import LoadedModel
from mt_train.generation.request import PromptIds

T = TypeVar("T")
Item = TypeVar("Item")
PLACE = "place"
"""Token value: the number of a trained token among all that are measured together, in fp32, which counts to ``MOST_PLACES``."""
AT_ONCE = 256
"""Samples that are measured without a question whether the run is to stop, where rows are not so long that there are too many places."""
MOST_PLACES = 1 << 24
BATCHES = 8
"""Batches that are read without a pause, which fill the stages of a pipeline."""


class LivePolicy(LiveSubject):
    """The model of a run that learns from its own answers (``mt_train.Policy``). Every call is collective."""

    ends_turns = True

    def __init__(
        self, parts: Parts, data: RunData, engine: Engine, *, stop: Callable[[], bool], batch_size: int
    ) -> None:
        loaded, template = live_model(parts, data, engine)
        size = parts.config.eval.batch_size or batch_size
        super().__init__(engine, loaded, template, RowEncoder(parts, data.tokenizer), batch_size=size, stop=stop)
        # also for samplers that have somebody else write
        self.eos_ids = tuple(dict.fromkeys((*loaded.eos_ids, *template.stop_ids)))
        self._parts, self._data = parts, data
        self._copies = Copies(parts, engine)
        self.version = 0

    # --------------------------------------------------------------------------------------------------------- writing

    def generate(
        self, prompts: Sequence[PromptIds], config: GenerationConfig, *, weights: Weights = "live"
    ) -> list[Generation]:
        """See ``Policy``. Raises ``UsageError`` for live weights on a layout where no rank can write texts."""
        if weights == "copy" or (weights == "auto" and self._prefers_copy):
            return self._generate(prompts, config, self._write_by_copy)
        if not self.texts:
            raise UsageError(
                "the weights of this layout write no texts: each rank has only some layers (a pipeline), or a part of each row. Take a copy"
                " on each rank (--sampler copy), which needs memory for all weights"
            )
        return super().generate(prompts, config)

    @cached_property
    def _prefers_copy(self) -> bool:
        """Whether a copy is better than the weights that are there. Collective when it is first asked."""
        return not self._engine.plan.forward_alone and self._copies.has_room

    def _write_by_copy(
        self, prompts: Sequence[PromptIds], config: GenerationConfig, indices: Sequence[int]
    ) -> list[Generation]:
        loaded = replace(self._loaded, model=self._copies.trained(self.version))
        return continue_prompts(
            loaded, prompts, config, batch_size=self._batch_size, indices=indices, template=self.template
        )

    # ------------------------------------------------------------------------------------------------------- measuring

    @torch.no_grad()
    def measure(
        self, samples: Sequence[Sample], measure: Measure, *, view: View = "live"
    ) -> list[Mapping[str, NDArray[np.float64]]]:
        """See ``Policy``. Raises ``ComponentError`` for values that are not one for each trained token."""
        found: list[Mapping[str, NDArray[np.float64]]] = []
        size = max(1, min(AT_ONCE, MOST_PLACES // self._parts.config.train.sequence_len))
        for start in range(0, len(samples), size):
            self._refuse_to_go_on()
            found += self._measure(samples[start : start + size], measure, view)
        return found

    def _measure(
        self, samples: Sequence[Sample], measure: Measure, view: View
    ) -> list[Mapping[str, NDArray[np.float64]]]:
        counts = [_trained_count(sample) for sample in samples]
        ends = np.cumsum(counts)
        numbered = EncodedSamples()
        for sample, end, count in zip(samples, ends.tolist(), counts, strict=True):
            numbered.add(_with_places(sample, range(end - count, end)))
        values = _Values(measure, int(ends[-1]))
        self._read(numbered, values, view)
        whole = values.gather(self._engine)
        cut = {name: np.split(each, ends[:-1]) for name, each in whole.items()}
        return [{name: each[number] for name, each in cut.items()} for number in range(len(samples))]

    def _read(self, samples: EncodedSamples, values: _Values, view: View) -> None:
        """Run the samples through the model of a view, and show ``values`` what its head gets."""
        engine, model = self._engine, self._engine.module.model
        if view == "reference" and not self._base_is_reference:
            self._read_alone(self._copies.reference, samples, values)
            return
        source = make_held_out(self._parts.config, replace(self._data, held_out=samples), engine.plan, engine.process)
        assert source is not None, "there are samples"
        batches = source.batches()
        with viewing(model, "base") if view == "reference" else nullcontext():
            while window := list(islice(batches, BATCHES)):
                engine.read(window, values)

    def _read_alone(self, model: TrainModel, samples: EncodedSamples, values: _Values) -> None:
        """Run this rank's share of the samples through a model that it has for itself."""
        config, process = self._parts.config, self._engine.process
        source = HeldOut(
            samples,
            self._data.objective,
            sequence_len=config.train.sequence_len,
            packing=config.data.batching == "packing",
            batch_size=self._batch_size,
            rank=process.rank,
            world=process.world,
        )
        for batch in source.batches():
            here = batch.to(process.device)
            values(model(here), model.head, here)

    @cached_property
    def _base_is_reference(self) -> bool:
        """Whether the base under the adapter is the model of step 0."""
        return not any(True for _ in changes_of_base(self._parts))

    # --------------------------------------------------------------------------------------------------------- sharing

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """See ``Policy``. The stages of a pipeline have no whole layers to merge, so that a copy is taken there."""
        plan = self._engine.plan
        model = self._copies.trained(self.version) if plan.pipeline > 1 else self._engine.module.model
        layers = dict(adapted_layers(model))
        taken: set[str] = set()
        for place, layer in layers.items():
            names = [f"{place}.{name}" for name, _ in layer.named_parameters(recurse=False)]
            taken.update(names)
            yield from merged_tensors(place, layer)
        own = {id(each) for layer in layers.values() for _, each in layer.own_parameters()}
        for name, parameter in model.named_parameters():
            if name not in taken and id(parameter) not in own and split_objective_name(name) is None:
                with gather_parameters([parameter]):
                    yield name, parameter.detach()

    def once(self, function: Callable[[], T]) -> T:
        """See ``Policy``."""
        is_main = self._engine.process.is_main
        (value,) = _shared_values(function if is_main else None, lambda text: [share_text(text)])
        found: T = value
        return found

    def divide(self, items: Sequence[Item], function: Callable[[Sequence[Item]], Sequence[T]]) -> list[T]:
        """See ``Policy``. Item i is that of rank i modulo the ranks."""
        rank, world = self._engine.process.rank, self._engine.process.world
        shares = _shared_values(lambda: list(function(items[rank::world])), gather_texts)
        return [shares[number % world][number // world] for number in range(len(items))]

    def load_over_base(self, run: Path) -> LoadedModel:
        """Load the model of a run whose adapter stands over the weights that this run's does; see ``mt_train.load_over_base``."""
        return load_over(self._parts, self._engine.module.model, self._engine.plan, run)


def _shared_values(function: Callable[[], Any] | None, share: Callable[[str], list[str]]) -> list[Any]:
    """Call a function where there is one, and share what it gives, or why it gives nothing: the other ranks must not wait for it.

    Raises what it raises, and ``ComponentError`` on ranks where another one's has failed.
    """
    try:
        said = json.dumps({"value": None if function is None else function()})
    except Exception as error:
        share(json.dumps({"problem": f"{type(error).__name__}: {first_line(error)}"}))
        raise
    found: list[dict[str, Any]] = [json.loads(text) for text in share(said)]
    for rank, each in enumerate(found):
        if "problem" in each:
            raise ComponentError(f"rank {rank} failed: {each['problem']}")
    return [each["value"] for each in found]


class _Values:
    """Reader of batches: puts values of trained tokens where these belong."""

    def __init__(self, measure: Measure, count: int) -> None:
        self._measure, self._count = measure, count
        self._found: dict[str, NDArray[np.float64]] = {}

    def __call__(self, hidden: Tensor, head: nn.Module, batch: Batch) -> None:
        places = batch.tokens[PLACE].reshape(-1)[batch.index_n()].long().cpu().numpy()
        for name, values in self._measure(hidden, head, batch).items():
            if values.shape != places.shape:
                raise ComponentError(
                    f"{name!r} is measured as {tuple(values.shape)}, and the batch has {len(places)} trained tokens; give a value for each"
                )
            self._found.setdefault(name, np.zeros(self._count))[places] = values.double().cpu().numpy()

    def gather(self, engine: Engine) -> Mapping[str, NDArray[np.float64]]:
        """Return the values of all ranks. Collective: stages of a pipeline without the head have measured nothing."""
        source = ranks_where(bool(self._found))[0]
        names = json.loads(share_text(json.dumps(sorted(self._found)), source=source))
        here = np.stack([self._found.get(name, np.zeros(self._count)) for name in names])
        whole = all_reduce(torch.from_numpy(here).to(engine.process.device)).cpu().numpy()
        return dict(zip(names, whole, strict=True))


def _trained_count(sample: Sample) -> int:
    """Return how many tokens of a sample are predicted: the first of a document is not."""
    trained = np.asarray(sample.trained, dtype=bool)
    return int(sum(trained[span][1:].sum() for span in sample.spans))


def _with_places(sample: Sample, places: range) -> Sample:
    """The sample with the number of each trained token, and without other values."""
    numbers = np.zeros(len(sample.ids), np.float64)
    trained = np.asarray(sample.trained, dtype=bool).copy()
    trained[[span.start for span in sample.spans]] = False
    numbers[trained] = places
    return replace(sample, weights=None, document_values={}, token_values={PLACE: numbers.tolist()})


@torch.no_grad()
def merged_tensors(place: str, layer: AdaptedLinear) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights that do what a layer and its adapter do, each as the layer stores it."""
    with gather_parameters(list(layer.parameters(recurse=False))):
        weight, bias = layer.merged_weight(), layer.merged_bias()
        weight = weight.T if layer.is_transposed else weight
        dtype = next(layer.parameters(recurse=False)).dtype
        bias = None if bias is None else bias.detach().to(dtype)
    yield f"{place}.weight", weight.to(dtype)
    if bias is not None:
        yield f"{place}.bias", bias
