"""From a raw mapping to a ``RunConfig``: every slot filled with its plugin's typed config, every fault reported at once.

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mt_core.config.base import MtConfig
from mt_core.config.commandline import merge
from mt_core.config.faults import faults_of
from mt_core.config.run import SECTIONS, SLOTS, ModelOptions, ModelRef, RunConfig, SlotRef
from mt_core.errors import ComponentError, ConfigError, Fault, MtError, did_you_mean
from mt_core.plugins.host import Offer, PluginHost
from mt_core.plugins.metadata import canonical
from mt_core.protocols import ModelFamily, ObjectiveComponent, WeightsFormat

Origins = dict[str, str]
"""Dotted key → where its value came from."""


@dataclass
class Resolved:
    """A config, the components that it names, and where each value came from."""

    config: RunConfig
    offers: dict[str, Offer]
    weights_format: WeightsFormat | None
    origins: Origins

    def build(self, kind: str, *arguments: Any, **keywords: Any) -> Any:
        """What the chosen component of a kind builds."""
        return self.offers[kind].component.build(*arguments, **keywords)


@dataclass
class _Draft:
    """A config in the making."""

    raw: dict[str, Any]
    host: PluginHost
    origins: Origins
    faults: list[Fault] = field(default_factory=list)
    offers: dict[str, Offer] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    weights_format: WeightsFormat | None = None

    def fault(self, key: str, problem: str, fix: str = "") -> None:
        self.faults.append(Fault(key=key.replace("_", "-"), problem=problem, fix=fix))


def resolve(raw: Mapping[str, Any], host: PluginHost, origins: Origins | None = None) -> Resolved:
    """Fill, check and freeze. Raises ``ConfigError`` with every fault."""
    draft = _Draft(merge({}, raw), host, dict(origins or {}))
    _unknown_keys(draft)
    _pick_components(draft)
    _apply_run_defaults(draft)
    _fill_model(draft)
    _fill_slots(draft)
    _fill_callbacks(draft)
    _fill_sections(draft)
    if not draft.faults:
        _cross_checks(draft)
    if draft.faults:
        raise ConfigError(draft.faults)
    return Resolved(RunConfig(**draft.values), draft.offers, draft.weights_format, draft.origins)


def _unknown_keys(draft: _Draft) -> None:
    known = [*SLOTS, *SECTIONS, "callbacks"]
    for key in [key for key in draft.raw if key not in known]:
        hint = did_you_mean(key, known).replace("_", "-")
        draft.fault(key, "no such slot or section.", f"{hint}Known: {', '.join(known).replace('_', '-')}.")
        del draft.raw[key]
    for key, value in draft.raw.items():
        if key != "callbacks" and not isinstance(value, dict):
            draft.fault(key, f"must be a name or a mapping of keys, got {value!r}.")
            draft.raw[key] = {}


def _pick_components(draft: _Draft) -> None:
    for slot, default in SLOTS.items():
        given = draft.raw.get(slot, {})
        name = given.get("name", default)
        if slot == "tokenizer" and "name" not in given:
            name, options = _tokenizer_beside_weights(draft.raw.get("model", {}))
            draft.raw[slot] = {**options, **given}
        if name is None:
            installed = ", ".join(offer.component.name for offer in draft.host.offers("model"))
            draft.fault(
                slot,
                "is required.",
                f"Name an installed one, for instance --model NAME; installed: {installed or 'none'}.",
            )
            continue
        try:
            draft.offers[slot] = draft.host.get(slot, str(name))
        except ComponentError as error:
            draft.fault(slot, str(error))
    if "model" in draft.offers:
        family = draft.offers["model"].qualified
        try:
            draft.offers["train_model"] = draft.host.get("train_model", family)
        except ComponentError as error:
            draft.fault("model", f"{family} offers a config but nothing to train: {error}")


def _tokenizer_beside_weights(model: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The tokenizer of the weights' folder where there is one, else bytes."""
    folder = Path(str(model.get("weights") or ""))
    if model.get("weights") and (folder / "tokenizer.json").is_file():
        return "huggingface", {"path": str(folder)}
    if model.get("weights") and (folder / "tokenizer.model").is_file():
        return "sentencepiece", {"path": str(folder / "tokenizer.model")}
    return str(SLOTS["tokenizer"]), {}


def _apply_run_defaults(draft: _Draft) -> None:
    """Values that a component knows better than the core; whatever the user wrote wins."""
    suggestions: list[tuple[str, Mapping[str, Any]]] = []
    for offer in draft.offers.values():
        suggestions.append((offer.component.name, offer.component.run_defaults))
        if isinstance(offer.component, ModelFamily) and "weights" not in draft.raw.get("model", {}):
            variant = str(draft.raw["model"].get("variant") or offer.component.default_variant)
            suggestions.append((f"variant {variant}", offer.component.variant_defaults.get(variant, {})))
    for source, values in suggestions:
        for dotted, value in values.items():
            section, _, key = dotted.partition(".")
            if section in SLOTS and draft.raw.get(section, {}).get("name", SLOTS[section]) != SLOTS[section]:
                continue  # the suggestion is for the default component of that slot
            given = draft.raw.setdefault(section, {})
            if key in given or (dotted == "train.steps" and "epochs" in given):
                continue
            given[key] = value
            draft.origins[dotted] = source


def _validated(draft: _Draft, config: type[MtConfig], values: Mapping[str, Any], prefix: str, extra: Any = ()) -> Any:
    try:
        return config(**{str(key): value for key, value in values.items()})
    except ValidationError as error:
        draft.faults.extend(faults_of(error, config, prefix, extra))
        return None


def _fill_model(draft: _Draft) -> None:
    offer = draft.offers.get("model")
    if offer is None:
        return
    family = offer.component
    assert isinstance(family, ModelFamily), "the host checks what mt_model_configs returns"
    given = {key: value for key, value in draft.raw["model"].items() if key != "name"}
    core = {key: given.pop(key) for key in list(given) if key in ModelOptions.model_fields}
    source = _validated(draft, ModelOptions, core, "model")
    if source is None:
        return
    shape = _shape(draft, family, source)
    if shape is None:
        return
    extra = set(ModelOptions.model_fields)
    options = _validated(draft, family.config, {**shape, **given}, "model", extra)
    if options is not None:
        draft.values["model"] = ModelRef(name=draft.raw["model"]["name"], options=options, source=source)


def _shape(draft: _Draft, family: ModelFamily, source: ModelOptions) -> Mapping[str, Any] | None:
    """Values of the chosen size, or of the weights' own config; ``None`` after a fault."""
    variant = source.variant or family.default_variant
    if variant not in family.variants:
        hint = did_you_mean(variant, list(family.variants))
        draft.fault(
            "model.variant", f"{family.name} has no size {variant!r}.", f"{hint}Sizes: {', '.join(family.variants)}."
        )
        return None
    if source.weights is None:
        _mark(draft, family.variants[variant], f"variant {variant}")
        return family.variants[variant]
    return _shape_of_weights(draft, family, source.variant, Path(source.weights))


def _shape_of_weights(draft: _Draft, family: ModelFamily, variant: str | None, path: Path) -> Mapping[str, Any] | None:
    if not path.exists():
        draft.fault("model.weights", f"{path} does not exist.", "Give a folder or file of weights.")
        return None
    reader = next((candidate for candidate in family.formats if candidate.matches(path)), None)
    if reader is None:
        formats = ", ".join(candidate.name for candidate in family.formats) or "none"
        draft.fault("model.weights", f"{path} is in no format that {family.name} reads.", f"It reads: {formats}.")
        return None
    try:
        values = reader.values(path)
    except MtError as error:
        draft.fault("model.weights", str(error))
        return None
    draft.weights_format = reader
    _mark(draft, values, f"{reader.name} config of {path}")
    if variant is not None:
        named = family.variants[variant]
        differ = [
            f"{key} ({named[key]!r} / {values[key]!r})" for key in named if key in values and named[key] != values[key]
        ]
        if differ:
            draft.fault(
                "model.variant",
                f"{variant!r} disagrees with the weights in {path} on {', '.join(differ)}.",
                "Leave out the variant: the shape comes from the weights.",
            )
            return None
    return values


def _mark(draft: _Draft, values: Mapping[str, Any], source: str) -> None:
    for key in values:
        draft.origins.setdefault(f"model.{key}", source)


def _fill_slots(draft: _Draft) -> None:
    for slot in SLOTS:
        offer = draft.offers.get(slot)
        if slot == "model" or offer is None:
            continue
        given = {key: value for key, value in draft.raw.get(slot, {}).items() if key != "name"}
        options = _validated(draft, offer.component.config, given, slot)
        if options is not None:
            name = str(draft.raw.get(slot, {}).get("name", offer.component.name))
            draft.values[slot] = SlotRef(name=name, options=options)


def _fill_callbacks(draft: _Draft) -> None:
    """``[name, …]``, ``[{name: …, option: …}]`` or ``{name: {option: …}}``."""
    given = draft.raw.get("callbacks", [])
    if isinstance(given, dict):
        given = [{"name": name, **(options or {})} for name, options in given.items()]
    chosen = []
    for item in given or []:
        entry = {"name": item} if isinstance(item, str) else dict(item)
        try:
            name = str(entry.pop("name", ""))
            offer = draft.host.get("callback", name)
        except ComponentError as error:
            draft.fault("callbacks", str(error))
            continue
        options = _validated(draft, offer.component.config, entry, f"callbacks.{offer.component.name}")
        if options is not None:
            chosen.append(SlotRef(name=name, options=options))  # as given: DISTRIBUTION/NAME stays unambiguous
            draft.offers[f"callback:{name}"] = offer
    draft.values["callbacks"] = tuple(chosen)


def _fill_sections(draft: _Draft) -> None:
    objective = draft.offers.get("objective")
    for section, config in SECTIONS.items():
        given = dict(draft.raw.get(section, {}))
        if section == "data" and objective is not None and isinstance(objective.component, ObjectiveComponent):
            length = draft.raw.get("train", {}).get(
                "sequence_len", SECTIONS["train"].model_fields["sequence_len"].default
            )
            own = {
                "batching": objective.component.batching,
                "truncation": objective.component.truncation,
                "max_len": length,
            }
            for key, value in own.items():
                if given.get(key) is None:
                    given[key] = value
                    draft.origins[f"data.{key}"] = f"objective {objective.component.name}"
        if section == "train" and given.get("steps") is None and given.get("epochs") is None:
            given["epochs"] = 1.0
        options = _validated(draft, config, given, section)
        if options is not None:
            draft.values[section] = options


def _cross_checks(draft: _Draft) -> None:
    """What no single config can know."""
    train, model = draft.values["train"], draft.values["model"].options
    data = draft.values["data"]
    if train.sequence_len > model.max_seq_len:
        draft.fault(
            "train.sequence-len",
            f"{train.sequence_len} tokens exceed the model's max_seq_len of {model.max_seq_len}.",
            f"Set --train.sequence-len {model.max_seq_len} or less.",
        )
    if data.max_len > train.sequence_len:
        draft.fault(
            "data.max-len",
            f"{data.max_len} tokens exceed a row of train.sequence_len={train.sequence_len}.",
            f"Set --data.max-len {train.sequence_len} or less.",
        )
    chosen = {f"{offer.kind}:{canonical(offer.component.name)}" for offer in draft.offers.values()}
    for offer in draft.offers.values():
        here = f"{offer.kind} {offer.component.name}"
        for needed in offer.component.requires:
            if needed not in chosen:
                draft.fault(offer.kind, f"{here} requires {needed}, which this run does not have.", f"Choose {needed}.")
        for enemy in offer.component.conflicts:
            if enemy in chosen:
                draft.fault(offer.kind, f"{here} conflicts with {enemy}.", "Choose one of them.")
