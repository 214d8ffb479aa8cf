"""The parts of a run, typed: what a resolved config builds, each by its component. Imports no torch before one is built."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mt_core.components import (
    AdapterComponent,
    Component,
    ObjectiveComponent,
    OptimizerComponent,
    TokenizerComponent,
    WeightsFormat,
)
from mt_core.config.base import ModelConfig, MtConfig
from mt_core.errors import UsageError
from mt_core.groups import whole_shape
from mt_core.media import EncoderComponent, EncoderConfig
from mt_core.plugins.host import Offer
from mt_train.assemble.run_encoder import RunEncoder, refuse_shared_kinds
from mt_train.config.run import RunConfig, SlotRef
from mt_train.plugins.built import check_built
from mt_train.plugins.composition import Part, Uses, with_parts
from mt_train.plugins.lock import lock_content
from mt_train.plugins.resolve import Resolved
from mt_train.plugins.saved_adapter import SavedAdapter

if TYPE_CHECKING:
    import torch
    from torch import nn

    from mt_core.adapters.base import Adapter
    from mt_core.evaluation import Evaluation
    from mt_core.events import TrackedRun, Tracker
    from mt_core.model_protocols import Objective, Quantizer
    from mt_core.nn import LayerSpec, TrainModel
    from mt_core.protocols import Dataset, GradientTransform, Schedule, Stream, TaskPrint, Template, Tokenizer

Split = Literal["train", "eval"]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A config, and what builds each part that it names.

    Methods build anew whenever they are called; the tokenizer, which may take long to read and never changes, is built once.
    """

    config: RunConfig
    offers: Mapping[str, Offer]
    """The chosen components, by slot; those of lists by ``KIND:NAME``."""
    chosen: Mapping[str, SlotRef]
    """The choices of the run and their options, by the same places."""
    weights_path: Path | None
    """Place of ``model.weights``; ``None`` where weights are drawn from the seed."""
    weights_format: WeightsFormat | None
    merged: tuple[SavedAdapter, ...]
    """The adapters of ``model.adapters``, which are merged into the weights in this order."""
    stem: str
    """The name that a run's folder has by default: the model and its size."""
    made_of: Mapping[str, tuple[Part, ...] | None]
    """Parts of each, by the same places; ``None`` where there are none."""
    uses: Mapping[str, Uses]
    """Components of the run that each takes, by the same places."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where a value of the config comes from, by its key; those that are not here are defaults."""
    adapters_follow: bool = False
    """Whether adapters come into the model that the config does not name: its experts are listed for them."""

    @classmethod
    def of(cls, resolved: Resolved) -> Parts:
        """Return the parts of a config that ``resolve`` has filled and checked."""
        return cls(
            config=resolved.config,
            offers=resolved.offers,
            chosen=resolved.chosen,
            weights_path=resolved.weights_path,
            weights_format=resolved.weights_format,
            merged=resolved.merged,
            stem=resolved.stem,
            made_of=resolved.parts,
            uses=resolved.uses,
            origins=resolved.origins,
        )

    @cached_property
    def lock(self) -> dict[str, Any]:
        """The content of ``plugins.lock.json``: code as it was when a run of these parts began."""
        return lock_content([*self.offers.values(), *(each.offer for each in self.merged)])

    # ------------------------------------------------------------------------------------------------- what is built

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; nothing is checked against the model (``assemble.data.build_tokenizer`` does)."""
        built: Tokenizer = self._build("tokenizer", self.config.tokenizer.options)
        return built

    def rows(self, split: Split, options: MtConfig | None = None) -> Dataset | Stream | None:
        """Open the source of a split, perhaps with other options; ``None`` where the dataset has no such split."""
        wanted = self.config.dataset.options if options is None else options
        built: Dataset | Stream | None = self._build("dataset", wanted, split=split)
        return built

    def objective(self, tokenizer: Tokenizer, template: Template) -> Objective:
        """Build the objective over a tokenizer and a chat template."""
        options = self.config.objective.options
        built: Objective = self._build("objective", options, tokenizer=tokenizer, template=template)
        return built

    def model(self, options: ModelConfig | None = None, *, adaptable: bool | None = None) -> TrainModel:
        """Build the model on the default device, in fp32, perhaps in another shape, with what the objective trains beside it.

        ``adaptable``: experts of a mixture are listed, so that adapters and quantizers find their projections; without it they are
        where the run has such an adapter or a quantizer.
        """
        options = self.config.model.options if options is None else options
        built: TrainModel = self._build("train_model", options)
        self._add_media(built)
        self._add_objective_modules(built.head)
        self._list_experts(built, adaptable)
        return built

    def _list_experts(self, module: nn.Module, adaptable: bool | None = None) -> None:
        from mt_core.nn import Experts, list_experts

        if any(isinstance(each, Experts) for each in module.modules()) and (
            self.takes_projections if adaptable is None else adaptable
        ):
            list_experts(module)

    @cached_property
    def takes_projections(self) -> bool:
        """Return whether the run has a quantizer, or an adapter that puts something into the model: these need linear layers."""
        from mt_core.adapters.base import Adapter

        return self.adapters_follow or self.quantizer() is not None or type(self.adapter()).inject is not Adapter.inject

    def pipeline_layers(self) -> list[LayerSpec] | None:
        """Return the layers that the model's plugin offers for a pipeline, if it does."""
        if "pipeline_layers" not in self.offers:
            return None
        *layers, last = self._build("pipeline_layers", self.config.model.options)

        def build_head() -> nn.Module:
            head: nn.Module = last.build()
            self._add_objective_modules(head)
            return head

        def build_layer(spec: LayerSpec) -> nn.Module:
            module = spec.build()
            self._list_experts(module)
            return module

        return [
            *(replace(spec, build=partial(build_layer, spec)) for spec in layers),
            replace(last, build=build_head),
        ]

    def _add_objective_modules(self, head: nn.Module) -> None:
        build = self.objective_component.modules
        if build is not None:
            from mt_core.nn.objective import OBJECTIVE

            head.add_module(OBJECTIVE, build(self.config.objective.options, _width(head)))

    def _add_media(self, model: TrainModel) -> None:
        if self.encoders:
            from mt_train.engine.media_inputs import MediaInputs

            width = _width(model.head)
            model.media = media = MediaInputs({each.name: each.build(width) for each in self.encoders})
            blocks = len(model.layers()) - 3
            if media.levels > blocks:
                raise UsageError(
                    f"a projector adds something behind each of the first {media.levels} blocks (levels), and the model has {blocks};"
                    " take an encoder with features of fewer blocks, or a deeper model"
                )

    @cached_property
    def encoders(self) -> tuple[RunEncoder, ...]:
        """The encoders, in the order of the config. Raises ``ConfigError`` where two read parts of one kind."""
        named = self.config.extensions.get("encoders", ())
        found = tuple(map(self._encoder, named if isinstance(named, tuple) else (named,)))
        refuse_shared_kinds(found)
        return found

    def _encoder(self, reference: SlotRef) -> RunEncoder:
        place = f"encoder:{reference.name}"
        component, options = self.offers[place].component, reference.options
        assert isinstance(component, EncoderComponent), "the host checks what mt_encoders returns"
        assert isinstance(options, EncoderConfig), "its config class is checked with the component"
        (projector,) = self.made_of[place] or ()
        return RunEncoder.of(reference.name, component, options, projector, self.weights_path)

    def quantizer(self) -> Quantizer | None:
        """Build the quantizer; ``None`` where frozen weights stay as they are."""
        built: Quantizer | None = self._build("quantizer", self.config.quantizer.options)
        return built

    def adapter(self) -> Adapter:
        """Build an adapter that is in no model yet."""
        built: Adapter = self._build("adapter", self.config.adapter.options)
        return built

    def optimizer(self, groups: Sequence[dict[str, Any]]) -> torch.optim.Optimizer | GradientTransform:
        """Build the optimizer over parameter groups."""
        built: torch.optim.Optimizer | GradientTransform = self._build(
            "optimizer", self.config.optimizer.options, groups
        )
        return built

    def schedule(self, total_steps: int) -> Schedule:
        """Build the schedule of a run of so many optimizer steps. Raises ``ConfigError`` where it needs more."""
        built: Schedule = self._build("schedule", self.config.schedule.options, total_steps=total_steps)
        return built

    def task_print(self) -> TaskPrint:
        """Build the printer of figures."""
        built: TaskPrint = self._build("task_print", self.config.task_print.options)
        return built

    def callbacks(self) -> dict[str, Any]:
        """Build the callbacks, by name, in the order of the config."""
        return {each.name: self._build(f"callback:{each.name}", each.options) for each in self.config.callbacks}

    def trackers(self, run: TrackedRun) -> dict[str, Callable[[], Tracker]]:
        """Return what builds each tracker of a run, by name: one that fails must not keep the others from being built."""
        return {
            each.name: partial(self._build, f"tracker:{each.name}", each.options, run=run)
            for each in self.config.trackers
        }

    def evaluations(self) -> dict[str, Evaluation]:
        """Build the evaluations, by name, in the order of the config."""
        return {
            each.name: self._build(f"evaluation:{each.name}", each.options, split="train")
            for each in self.named_evaluations
        }

    def _build(self, place: str, *arguments: Any, **keywords: Any) -> Any:
        """Build a component, its parts first. What that is, its kind says: whoever calls this gives it its type."""
        made = with_parts(self.made_of.get(place), self.uses.get(place, {}), keywords)
        built = self.offers[place].component.build(*arguments, **made)
        check_built(built, self.offers[place])
        return built

    # ------------------------------------------------------------------------------------------ what components declare

    @property
    def named_evaluations(self) -> tuple[SlotRef, ...]:
        """The evaluations that the run names."""
        named = self.config.extensions.get("evaluations", ())
        return named if isinstance(named, tuple) else (named,)

    @property
    def optimizer_component(self) -> OptimizerComponent:
        """The declaration of the optimizer: its form and its policy for parameter groups."""
        component = self.offers["optimizer"].component
        assert isinstance(component, OptimizerComponent), "the host checks what mt_optimizers returns"
        return component

    @property
    def objective_component(self) -> ObjectiveComponent:
        """The declaration of the objective."""
        component = self.offers["objective"].component
        assert isinstance(component, ObjectiveComponent), "the host checks what mt_objectives returns"
        return component

    @property
    def adapter_component(self) -> AdapterComponent:
        """The declaration of the adapter."""
        component = self.offers["adapter"].component
        assert isinstance(component, AdapterComponent), "the host checks what mt_adapters returns"
        return component

    @property
    def adds_tokens(self) -> bool:
        """Return whether the tokenizer's config adds tokens, which need rows in the model."""
        component = self.offers["tokenizer"].component
        return isinstance(component, TokenizerComponent) and component.size(self.config.tokenizer.options) is not None

    def components(self) -> Iterator[tuple[Component, MtConfig]]:
        """Yield each component that the run names, with its options."""
        for place, reference in self.chosen.items():
            yield self.offers[place].component, reference.options


def _width(head: nn.Module) -> int:
    """The width of the hidden states that a head takes."""
    return next(shape[-1] for shape in map(whole_shape, head.parameters()) if len(shape) == 2)
