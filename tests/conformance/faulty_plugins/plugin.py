"""The hooks. Each component does one thing wrong; its name says what."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from itertools import count
from typing import Any

from pydantic import Field, field_serializer

from mt_core import (
    ZERO,
    AdapterComponent,
    Component,
    DatasetComponent,
    Kind,
    LowRankConfig,
    ModelConfig,
    ModelFamily,
    MtConfig,
    ObjectiveComponent,
    OptimizerComponent,
    hookimpl,
    split_decay,
)
from mt_core.evaluation import EvaluationComponent
from mt_core.media import EncoderComponent, ProjectorComponent
from mt_plugin_alignment import plugin as alignment
from mt_plugin_evals import plugin as evals

from .datasets import files_of

CALLS = count()


class Mute(MtConfig):
    rate: float = Field(1.0, gt=0)


class Unbounded(MtConfig):
    rate: float | None = Field(None, description="how fast")


class TwoLines(MtConfig):
    rate: float = Field(1.0, gt=0, description="how fast\n(per update)")


class Unfaithful(MtConfig):
    steps: int = Field(5, gt=0, description="how many (updates)")

    @field_serializer("steps")
    def _one_less(self, value: int) -> int:
        return value - 1


class Ignored(MtConfig):
    power: float = Field(1.0, gt=0, description="power of what is left")


class Shape(ModelConfig):
    fault: str = Field("", description="what is wrong with the model")


class Rate(MtConfig):
    lr: float = Field(3e-4, gt=0, description="base learning rate (per update)")


class Decay(Rate):
    weight_decay: float = Field(0.1, ge=0, description="share taken away per update, times the rate")


def _import_and_build(module: str, name: str, config: Any, *arguments: Any, **keywords: Any) -> Any:
    """What ``build`` gives, imported when it is asked for."""
    return getattr(import_module(f"faulty_plugins.{module}"), name)(config, *arguments, **keywords)


def _module(name: str) -> Any:
    return import_module(f"{__package__}.{name}")


def _build(module: str, name: str) -> Any:
    return partial(_import_and_build, module, name)


@hookimpl
def mt_schedules() -> list[Component]:
    plain = [
        Component(name=name, summary="spoiled", build=_build("schedules", name.replace("-", "_")))
        for name in ("counts", "negative", "still", "straight", "remembers", "hasty", "rates")
    ]
    options = {"mute": Mute, "unbounded": Unbounded, "two-lines": TwoLines, "unfaithful": Unfaithful, "deaf": Ignored}
    odd = [
        Component(name=name, summary="spoiled", config=config, build=_build("schedules", "straight"))
        for name, config in options.items()
    ]
    silent = Component(name="silent", summary="", build=_build("schedules", "straight"))
    return [*plain, *odd, silent, Component(name=f"another-{next(CALLS)}", summary="spoiled")]


@hookimpl
def mt_task_prints() -> list[Component]:
    names = (
        "needs-records",
        "needs-figures",
        "two-lines",
        "changes",
        "two-when-missing",
        "all-or-none",
        "returns",
        "hoards",
    )
    return [Component(name=name, summary="spoiled", build=_build("prints", name.replace("-", "_"))) for name in names]


@hookimpl
def mt_tokenizers() -> list[Component]:
    names = ("lower", "too-large", "begins", "shows-specials", "strict", "shifted", "hasty", "early")
    names += ("too-large-begin", "shown-begin")
    return [
        Component(name=name, summary="spoiled", build=_build("tokenizers", name.title().replace("-", "")))
        for name in names
    ]


@hookimpl
def mt_objectives() -> list[ObjectiveComponent]:
    names = ("unmarked", "mean", "whole-rows", "padded", "unmasked", "miscounts", "own-count", "pairs")
    names += ("mean-of-pairs", "mean-of-term", "neighbours", "miscounts-term", "renames-term", "short-documents")
    names += ("short-values", "trains-prompts", "measures-means", "measures-pairs", "wavering", "shifting")
    names += ("averaging", "widening")
    return [
        ObjectiveComponent(name=name, summary="spoiled", build=_build("objectives", name.title().replace("-", "")))
        for name in names
    ]


def _first_only(named: Any, config: Any) -> list[dict[str, Any]]:
    return split_decay(named[:1], config)


def _decay_all(named: Any, config: Any) -> list[dict[str, Any]]:
    return [{"name": "all", "params": [each for _, each in named], "weight_decay": config.weight_decay}]


@hookimpl
def mt_optimizers() -> list[OptimizerComponent]:
    names = (
        "forgets-some",
        "uphill",
        "own-rate",
        "decays-all",
        "forgetful",
        "keeps-text",
        "sees-shapes",
        "off",
        "uncounted",
        "keen",
        "even",
        "early",
        "first-group",
        "swelling",
    )
    layouts = {"sees-shapes": frozenset({"zero3"}), "off": frozenset({"zero0", "zero2"})}
    return [
        OptimizerComponent(
            name=name,
            summary="spoiled",
            config=Decay if name in ("keen", "even", "swelling") else Rate,
            build=_build("optimizers", name.title().replace("-", "")),
            form="elementwise",
            layouts=layouts.get(name, frozenset({"zero0"})),  # type: ignore[arg-type]
            split={"forgets-some": _first_only, "even": _decay_all}.get(name, split_decay),
        )
        for name in names
    ]


MODELS = (
    *(
        "hot",
        "acausal",
        "mixed",
        "forgetful",
        "padded",
        "own-forward",
        "deaf",
        "idle",
        "stateful",
        "recounting",
        "careless",
        "buffered",
        "late",
        "blind",
        "sociable",
        "wide",
    ),
    "sober",
)


@hookimpl
def mt_model_configs() -> list[ModelFamily]:
    def family(name: str) -> ModelFamily:
        sizes = {"tiny": {"vocab_size": 60, "max_seq_len": 64, "fault": name}}
        return ModelFamily(name=name, summary="spoiled", config=Shape, variants=sizes, default_variant="tiny")

    return [family(name) for name in MODELS]


@hookimpl
def mt_train_models() -> list[Component]:
    return [
        Component(name=name, summary="spoiled", config=Shape, build=_build("models", "build"), layouts=ZERO)
        for name in MODELS
    ]


class Folder(MtConfig):
    path: str = Field("", description="file of lines")


@hookimpl
def mt_datasets() -> list[Component]:
    names = (
        "nameless",
        "miscounted",
        "moody",
        "unseeded",
        "selfish",
        "amnesiac",
        "listed",
        "rude",
        "monotonous",
        "drifting",
        "tired",
        "hashing",
    )
    plain = [
        Component(name=name, summary="spoiled", config=Folder, build=_build("datasets", name.title())) for name in names
    ]
    worker = DatasetComponent(
        name="process", summary="spoiled", config=Folder, build=_build("datasets", "Process"), files=files_of
    )
    return [*plain, worker]


@hookimpl
def mt_adapters() -> list[AdapterComponent]:
    names = (
        "hasty",
        "moody",
        "greedy",
        "idle",
        "numb",
        "half",
        "forgetful",
        "counting",
        "wide",
        "thawing",
        "rough",
        "shy",
        "restless",
        "sparing",
    )
    plain = [
        AdapterComponent(name=name, summary="spoiled", config=LowRankConfig, build=_build("adapters", name.title()))
        for name in names
    ]
    sober = _build("adapters", "Sober")
    return [
        *plain,
        AdapterComponent(name="bold", summary="spoiled", config=LowRankConfig, build=sober, mergeable=False),
        AdapterComponent(
            name="leaky", summary="spoiled", config=LowRankConfig, build=_build("adapters", "Leaky"), mergeable=False
        ),
        AdapterComponent(name="coy", summary="spoiled", config=LowRankConfig, build=sober, exact_at_init=False),
    ]


@hookimpl
def mt_callbacks() -> list[Component]:
    layouts = {"local": frozenset({"zero1"}), "quiet": frozenset({"zero1", "pipeline"})}
    return [
        Component(
            name=name,
            summary="spoiled",
            build=_build("callbacks", name.title()),
            layouts=layouts.get(name, frozenset({"zero0"})),  # type: ignore[arg-type]
        )
        for name in ("quiet", "misspelt", "lonely", "opaque", "swallows", "local", "amnesiac")
    ]


@hookimpl
def mt_evaluations() -> list[EvaluationComponent]:
    names = ("sober", "counting", "moody", "drawing", "misnamed", "boxed", "bare", "unwritten", "idle", "writing")
    names += ("dividing", "choosing", "ranked")
    return [
        EvaluationComponent(
            name=name,
            summary="spoiled",
            build=_build("evaluations", name.title()),
            needs=frozenset({"scores"}),
            layouts=frozenset({"zero0", "zero1", "zero3", "pipeline"} if name == "sober" else {"zero0"}),  # type: ignore[arg-type]
        )
        for name in names
    ]


@hookimpl
def mt_encoders() -> list[EncoderComponent]:
    processors = ("uncounted", "drawing", "trusting", "placed", "shallow", "fragile", "heavy", "measuring")
    modules = ("sober", "mixing", "unreached", "looping", "undrawn", "fixed", "wide", "keeping")
    halves = {
        **{name: (name.title(), "Sober") for name in processors},
        **{name: ("Sober", name.title()) for name in modules},
    }
    return [
        EncoderComponent(
            name=name,
            summary="spoiled",
            build=_build("encoders", f"{module}Encoder"),
            reads=frozenset({"dna"}),
            width=lambda config: 4,
            processor=lambda config, processor=processor: getattr(_module("encoders"), processor)(),  # type: ignore[misc]
        )
        for name, (processor, module) in halves.items()
    ]


@hookimpl
def mt_projectors() -> list[ProjectorComponent]:
    counts = {"generous": "count_one_more", "sharing": "count_shares", "heavy": "count_by_torch"}
    modules = dict.fromkeys(("sober", "mixing", "looping", "unreached", "undrawn", "fixed", "wide"), "count_all")
    return [
        ProjectorComponent(
            name=name,
            summary="spoiled",
            build=lambda config, source, target, name=name: getattr(  # type: ignore[misc]
                _module("projectors"), name.title() if name in modules else "Sober"
            )(source, target),
            tokens=lambda *given, function=function: getattr(_module("projectors"), function)(*given),  # type: ignore[misc]
        )
        for name, function in {**counts, **modules}.items()
    ]


@hookimpl
def mt_metrics() -> list[Component]:
    names = ("remembers", "drifts", "wordy", "referring", "named", "mean", "spread", "unsigned", "changes", "sorts")
    names += ("newest", "hoards")
    return [Component(name=name, summary="spoiled", build=_build("metrics", name.title())) for name in (*names, "same")]


@hookimpl
def mt_kinds() -> list[Kind]:
    """Those of plugins of this repository, of which there are spoiled components here."""
    return [*evals.mt_kinds(), *alignment.mt_kinds()]


@hookimpl
def mt_rewards() -> list[Component]:
    names = (
        "just",
        "fragile",
        "lossy",
        "boundless",
        "unweighed",
        "tiring",
        "ranking",
        "queueing",
        "writing",
        "alike",
        "first-row",
    )
    return [
        Component(name=name, summary="spoiled", build=_build("rewards", name.title().replace("-", "")))
        for name in names
    ]


@hookimpl
def mt_samplers() -> list[Component]:
    names = ("faithful", "vague", "needy", "merging", "endless", "wordless", "foreign", "renaming", "claiming")
    names += ("retelling", "stale", "peeking", "hoarding", "short", "tepid", "trimming", "drawing", "fixed", "copying")
    return [Component(name=name, summary="spoiled", build=_build("samplers", name.title())) for name in names]


@hookimpl
def mt_preference_losses() -> list[Component]:
    names = ("plain", "reticent", "secretive", "greedy", "averaged", "naive", "branching", "misstated", "turned")
    names += ("centred", "lengthening", "moving", "aloof")
    return [Component(name=name, summary="spoiled", build=_build("preference_losses", name.title())) for name in names]
