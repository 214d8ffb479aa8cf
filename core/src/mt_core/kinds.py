"""Kinds of components: one table of the core, and what installed distributions add to it.

Torch is not imported; what ``build`` of a kind returns is named by ``MODULE:NAME``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from mt_core.components import (
    AdapterComponent,
    Component,
    ModelFamily,
    ModelSizes,
    ObjectiveComponent,
    OptimizerComponent,
)
from mt_core.errors import ComponentError

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_HOOK = re.compile(r"mt_[a-z0-9]+(_[a-z0-9]+)*")
_PLACE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

KEYS_OF_RUNS = frozenset(
    {
        *("data", "train", "parallel", "eval", "checkpoint", "log", "nnodes", "gpu", "host_memory", "network", "plan"),
        *("config", "output", "overwrite", "resume", "profile", "plot", "nproc_per_node", "block_plugin"),
        *("dry_run", "print_config", "schema", "json", "debug", "version", "help", "name", "recipe", "include"),
        *("completion", "restart", "replay"),
    }
)
"""Keys of a config, and options of the commands, that no kind can have: they mean something else."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of component: how it is offered, named in a run, and built.

    ``name`` is the first half of ``adapter:dora``; plugins implement ``hook``, which returns components of the class ``offers``.

    ``slot`` says who names a component: a run names ``one``, or ``many``, under ``key``; a ``part`` is named by other components only.
    ``default`` is what a run takes that names none, and ``required`` means that each run has to name one; a kind that a plugin brings has
    neither, since an installed plugin changes no run that does not name it.

    ``given`` are the keywords that ``build`` gets besides the config. ``returns`` is the type that it returns and ``conformance`` its test
    class, both as ``MODULE:NAME``. ``template`` is the folder of files that ``mt-plugins new`` fills in, as ``MODULE:FOLDER``.
    """

    name: str
    hook: str
    offers: type[Component] | tuple[type[Component], ...] = Component
    slot: Literal["one", "many", "part"]
    key: str = ""
    default: str | None = None
    required: bool = False
    given: tuple[str, ...] = ()
    returns: str
    template: str = ""
    conformance: str = ""
    summary: str

    def __post_init__(self) -> None:
        if not self.key:
            object.__setattr__(self, "key", "" if self.slot == "part" else self.name)
        problems = [
            f"{self.name!r} is no name of a kind; use lower-case letters, digits and '_'"
            * (not _NAME.fullmatch(self.name)),
            f"hook {self.hook!r} of kind {self.name!r} is no name of a hook; it begins with 'mt_', as in 'mt_{self.name}s'"
            * (not _HOOK.fullmatch(self.hook)),
            f"kind {self.name!r} is a part and has key {self.key!r}; leave out one of the two"
            * (self.slot == "part" and bool(self.key)),
            f"key {self.key!r} of kind {self.name!r} is a key of every run, or an option of its commands; choose another"
            * (self.key in KEYS_OF_RUNS),
            f"key {self.key!r} of kind {self.name!r} is no key; use lower-case letters, digits and '_'"
            * (bool(self.key) and not _NAME.fullmatch(self.key)),
            f"kind {self.name!r} returns {self.returns!r}; write MODULE:NAME, as in 'acme.rewards:Reward'"
            * (not _PLACE.fullmatch(self.returns)),
            f"kind {self.name!r} has conformance={self.conformance!r}; write MODULE:NAME of a class of tests"
            * (bool(self.conformance) and not _PLACE.fullmatch(self.conformance)),
            f"kind {self.name!r} has no summary; say in one line what it is" * (not self.summary.strip()),
        ]
        if found := [problem for problem in problems if problem]:
            raise ComponentError(found[0])

    @property
    def words(self) -> str:
        """The name as messages have it, ``task print``."""
        return self.name.replace("_", " ")

    @property
    def classes(self) -> tuple[type[Component], ...]:
        """Classes of what the hook may return."""
        return self.offers if isinstance(self.offers, tuple) else (self.offers,)


class Kinds(Mapping[str, Kind]):
    """Kinds by name, in their order: those of the core first."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._kinds = {kind.name: kind for kind in kinds}

    def __getitem__(self, name: str) -> Kind:
        return self._kinds[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)

    @cached_property
    def hooks(self) -> Mapping[str, Kind]:
        """Hook → kind of what it offers."""
        return {kind.hook: kind for kind in self.values()}

    @cached_property
    def slots(self) -> Mapping[str, str | None]:
        """Key under which a run names one component → what it takes where it names none."""
        return {kind.key: kind.default for kind in self.values() if kind.slot == "one"}

    @cached_property
    def lists(self) -> Mapping[str, str]:
        """Key under which a run may name several components → their kind."""
        return {kind.key: kind.name for kind in self.values() if kind.slot == "many"}

    @cached_property
    def keys_of_kinds(self) -> Mapping[str, str]:
        """Kind → the key under which a run names it; without those that only components name."""
        return {kind.name: kind.key for kind in self.values() if kind.key}

    @cached_property
    def templates(self) -> Mapping[str, str]:
        """Kind → ``MODULE:FOLDER`` of the files of a new plugin."""
        return {kind.name: kind.template for kind in self.values() if kind.template}

    def refuse(self, other: Kind) -> str:
        """Why a kind cannot stand beside these, as a clause; empty where it can."""
        if other.name in self:
            return f"kind {other.name!r} exists already"
        if other.hook in self.hooks:
            return f"its hook {other.hook!r} is that of kind {self.hooks[other.hook].name!r}"
        if other.key and other.key in {*self.slots, *self.lists}:
            return f"its key {other.key!r} names another kind"
        return ""


KINDS: tuple[Kind, ...] = (
    Kind(
        name="model",
        hook="mt_model_configs",
        offers=(ModelFamily, ModelSizes),
        slot="one",
        required=True,
        returns="mt_core:ModelConfig",
        template="mt_core.scaffold:templates/model",
        conformance="mt_conformance:BaseModelConformance",
        summary="a model family, as data: its config, sizes and formats of weights",
    ),
    Kind(
        name="train_model",
        hook="mt_train_models",
        slot="part",
        returns="mt_core.nn:TrainModel",
        conformance="mt_conformance:BaseModelConformance",
        summary="the trainable model of a family",
    ),
    Kind(
        name="pipeline_layers",
        hook="mt_pipeline_layers",
        slot="part",
        returns="mt_core.nn:LayerSpec",
        conformance="mt_conformance:BaseModelConformance",
        summary="the layers of a family for a pipeline",
    ),
    Kind(
        name="tokenizer",
        hook="mt_tokenizers",
        slot="one",
        default="byte",
        returns="mt_core:Tokenizer",
        template="mt_core.scaffold:templates/tokenizer",
        conformance="mt_conformance:BaseTokenizerConformance",
        summary="text to ids, and back",
    ),
    Kind(
        name="dataset",
        hook="mt_datasets",
        slot="one",
        default="demo",
        given=("split",),
        returns="mt_core:Dataset",
        template="mt_core.scaffold:templates/dataset",
        conformance="mt_conformance:BaseDatasetConformance",
        summary="a source of rows",
    ),
    Kind(
        name="objective",
        hook="mt_objectives",
        offers=ObjectiveComponent,
        slot="one",
        default="pretrain",
        given=("tokenizer", "template"),
        returns="mt_core.model_protocols:Objective",
        template="mt_core.scaffold:templates/objective",
        conformance="mt_conformance:BaseObjectiveConformance",
        summary="what is learned from a row, and its loss",
    ),
    Kind(
        name="quantizer",
        hook="mt_quantizers",
        slot="one",
        default="none",
        returns="mt_core:Quantizer",
        summary="how frozen weights are stored in fewer bits",
    ),
    Kind(
        name="adapter",
        hook="mt_adapters",
        offers=AdapterComponent,
        slot="one",
        default="full",
        returns="mt_core:Adapter",
        template="mt_core.scaffold:templates/adapter",
        conformance="mt_conformance:BaseAdapterConformance",
        summary="which part of a model is trained, and how",
    ),
    Kind(
        name="optimizer",
        hook="mt_optimizers",
        offers=OptimizerComponent,
        slot="one",
        default="adamw",
        given=("groups",),
        returns="torch.optim:Optimizer",
        template="mt_core.scaffold:templates/optimizer",
        conformance="mt_conformance:BaseOptimizerConformance",
        summary="the update of the weights, over named groups",
    ),
    Kind(
        name="schedule",
        hook="mt_schedules",
        slot="one",
        default="cosine",
        given=("total_steps",),
        returns="mt_core:Schedule",
        template="mt_core.scaffold:templates/schedule",
        conformance="mt_conformance:BaseScheduleConformance",
        summary="the factor of the learning rate, update by update",
    ),
    Kind(
        name="task_print",
        hook="mt_task_prints",
        slot="one",
        default="loss",
        returns="mt_core:TaskPrint",
        template="mt_core.scaffold:templates/task-print",
        conformance="mt_conformance:BaseTaskPrintConformance",
        summary="the line of a step on the console",
    ),
    Kind(
        name="callback",
        hook="mt_callbacks",
        slot="many",
        key="callbacks",
        returns="mt_core:CallbackContext",
        template="mt_core.scaffold:templates/callback",
        conformance="mt_conformance:BaseCallbackConformance",
        summary="an object that is told of a run's events and may steer it",
    ),
    Kind(
        name="tracker",
        hook="mt_trackers",
        slot="many",
        key="trackers",
        given=("run",),
        returns="mt_core:Tracker",
        summary="a service that the records of a run are sent to",
    ),
)
"""The kinds of the core. Slots of a run, checks of hooks, lists, templates and pages follow from this table."""

CORE_KINDS = Kinds(KINDS)
"""``KINDS`` by name; what is installed may bring more (``PluginHost.kinds``)."""
