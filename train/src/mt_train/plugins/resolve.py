"""Resolution of a raw mapping to a ``RunConfig``: every slot filled with its plugin's typed config, every fault reported at once.

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mt_core.components import ModelFamily, WeightsFormat
from mt_core.config.base import MtConfig
from mt_core.config.faults import HINTED
from mt_core.errors import ComponentError, ConfigError, did_you_mean, show_value
from mt_core.kinds import CORE_KINDS, Kind
from mt_core.plugins.host import Offer, PluginHost
from mt_train.config.commandline import merge
from mt_train.config.foreign_answers import answer_names
from mt_train.config.names import expand
from mt_train.config.own_names import answer_own_name
from mt_train.config.plain import check_plain
from mt_train.config.run import SECTIONS, RunConfig, SlotRef
from mt_train.config.secrets import secret_keys
from mt_train.kinds import KEYS
from mt_train.plugins.adapter_slot import fill_adapter, find_merged, take_saved_options
from mt_train.plugins.composition import Part, Uses
from mt_train.plugins.cross_checks import check_together, chosen_components
from mt_train.plugins.dataset_slot import name_dataset
from mt_train.plugins.draft import Draft, Origins
from mt_train.plugins.encoder_slots import fill_encoders
from mt_train.plugins.list_slots import fill_lists
from mt_train.plugins.model_slot import (
    fill_model,
    fit_vocabulary,
    locate_weights,
    name_family,
    name_tokenizer,
)
from mt_train.plugins.parts import parts_of, uses_of
from mt_train.plugins.saved_adapter import SavedAdapter
from mt_train.plugins.sections import fill_sections
from mt_train.plugins.shipped import find_offer

__all__ = ["Origins", "Resolved", "resolve"]


@dataclass
class Resolved:
    """A config, the components that it names, and where each value came from."""

    config: RunConfig
    offers: dict[str, Offer]
    weights_format: WeightsFormat | None
    weights_path: Path | None
    origins: Origins
    parts: Mapping[str, tuple[Part, ...] | None] = field(default_factory=dict)
    uses: Mapping[str, Uses] = field(default_factory=dict)
    chosen: Mapping[str, SlotRef] = field(default_factory=dict)
    """Each component that the run names, by its place among the offers: ``KIND``, or ``KIND:NAME`` where there may be several."""
    merged: tuple[SavedAdapter, ...] = ()
    """The adapters of ``model.adapters``, in order."""

    @property
    def stem(self) -> str:
        """Return what a run's folder is called by default: the model and its size."""
        model = self.config.model
        default = getattr(self.offers["model"].component, "default_variant", "")
        name = model.name.rpartition("/")[2]
        return name if model.source.weights else f"{name}-{model.source.variant or default}"


def resolve(
    raw: Mapping[str, Any], host: PluginHost, origins: Origins | None = None, *, trains: bool = True
) -> Resolved:
    """Fill, check and freeze; what nothing ``trains`` is loaded alone. Raises ``ConfigError`` with every fault."""
    check_plain(raw)
    draft = Draft(merge({}, expand(raw), host.kinds), host, dict(origins or {}), trains=trains)
    _refuse_secrets(draft)
    _refuse_unknown_keys(draft)
    locate_weights(draft)
    name_family(draft)
    name_dataset(draft)
    name_tokenizer(draft)
    take_saved_options(draft)
    _pick_components(draft)
    _apply_run_defaults(draft)
    fill_model(draft)
    fill_adapter(draft)
    find_merged(draft)
    _fill_slots(draft)
    fit_vocabulary(draft)
    fill_lists(draft)
    fill_encoders(draft)
    _find_parts(draft)
    fill_sections(draft)
    if not draft.faults:
        check_together(draft)
    if draft.faults:
        raise ConfigError(draft.faults)
    chosen = {place: reference for _, place, reference in chosen_components(draft)}
    further = {key: draft.values.pop(key, None) for key in _further_keys(host)}
    config = RunConfig(**draft.values, extensions={key: value for key, value in further.items() if value})
    return Resolved(
        config,
        draft.offers,
        draft.weights_format,
        draft.weights_path,
        draft.origins,
        draft.parts,
        draft.uses,
        {"model": config.model, **chosen},
        tuple(draft.merged),
    )


def _further_keys(host: PluginHost) -> list[str]:
    """Return the keys of the kinds that plugins bring."""
    return [kind.key for name, kind in host.kinds.items() if kind.key and name not in CORE_KINDS]


def _refuse_secrets(draft: Draft) -> None:
    """Report every key that looks like a secret: a config is saved and shown. Raises ``ConfigError`` at once."""
    for key in secret_keys(draft.raw):
        draft.fault(key, "looks like a secret, and configs are saved.", "Put it into the environment, e.g. HF_TOKEN.")
    if draft.faults:  # before anything is looked up, fetched or repeated in a message
        raise ConfigError(draft.faults)


def _refuse_unknown_keys(draft: Draft) -> None:
    kinds = draft.host.kinds
    known, places = [*kinds.slots, *SECTIONS, *kinds.lists], dict[str, type[MtConfig]]()
    listed = f"Known: {', '.join(known).replace('_', '-')}."
    for number, key in enumerate([key for key in draft.raw if key not in known]):
        value = draft.raw.pop(key)
        hint = did_you_mean(key, known).replace("_", "-") if number < HINTED else ""
        answer = answer_names(key, value if isinstance(value, dict) and not hint else ())
        if not answer and not isinstance(value, dict):
            places = places or _option_places(draft)
            answer = answer_own_name(key, places)
        draft.fault(key or "''", "no such slot or section.", answer or f"{hint}{listed}".rstrip())
        listed = listed if answer else ""  # once is enough
    for key, value in draft.raw.items():
        if key not in kinds.lists and not isinstance(value, dict):
            what = "a name or a mapping of keys" if key in kinds.slots else "a mapping of keys"
            draft.fault(key, f"must be {what}, got {show_value(value)}.")
            draft.raw[key] = {}


def _option_places(draft: Draft) -> dict[str, type[MtConfig]]:
    """Section or slot → the config that has its keys, of the component that is named there or is the default."""
    places: dict[str, type[MtConfig]] = dict(SECTIONS)
    for kind in draft.host.kinds.values():
        given = draft.raw.get(kind.key)
        name = (given.get("name") if isinstance(given, dict) else given) or kind.default
        if kind.slot != "one" or name is None:
            continue
        with suppress(ComponentError):  # a name that is unknown is a fault of its own
            places[kind.key] = draft.host.get(kind.name, str(name)).component.config
    return places


def _pick_components(draft: Draft) -> None:
    for kind in draft.host.kinds.values():
        slot, default = kind.key, kind.default
        if kind.slot != "one" or (kind.name not in CORE_KINDS and slot not in draft.raw):
            continue
        given = draft.raw.get(slot, {})
        if given.get("name") is None:
            given.pop("name", None)
        name = given.get("name", default)
        if name is None:
            _refuse_unnamed(draft, kind)
            continue
        try:
            draft.offers[kind.name] = find_offer(draft.host, kind.name, str(name))
        except ComponentError as error:
            draft.fault(slot, str(error))
    if "model" in draft.offers:
        family = draft.offers["model"].qualified_name
        try:
            draft.offers["train_model"] = draft.host.get("train_model", family)
        except ComponentError as error:
            draft.fault("model", f"{family} offers a config but nothing to train: {error}")
        for offer in draft.host.offers("pipeline_layers"):
            if offer.qualified_name == family:
                draft.offers["pipeline_layers"] = offer
        size = str(draft.raw.get("model", {}).get("variant", ""))
        if adding := draft.host.adder(draft.offers["model"], size):
            draft.offers[adding.kind] = adding


def _refuse_unnamed(draft: Draft, kind: Kind) -> None:
    if any(fault.key == f"{kind.key}.weights" for fault in draft.faults):
        return  # the model's family would follow from its weights, with which something is wrong
    installed = ", ".join(offer.component.name for offer in draft.host.offers(kind.name))
    option = kind.key.replace("_", "-")
    read = f", or give --{option}.weights FOLDER, which says it" if kind.name == "model" else ""
    fix = f"Name an installed one, for instance --{option} NAME{read}; installed: {installed or 'none'}."
    draft.fault(kind.key, "is required.", fix)


def _apply_run_defaults(draft: Draft) -> None:
    """Apply values that a component knows better than the core; whatever the user wrote wins."""
    suggestions: list[tuple[str, Mapping[str, Any]]] = []
    for offer in draft.offers.values():
        suggestions.append((offer.component.name, offer.component.run_defaults))
        if isinstance(offer.component, ModelFamily) and "weights" not in draft.raw.get("model", {}):
            variant = str(draft.raw["model"].get("variant") or offer.component.default_variant)
            suggestions.append((f"variant {variant}", offer.component.variant_defaults.get(variant, {})))
    for source, values in suggestions:
        for dotted, value in values.items():
            section, _, key = dotted.partition(".")
            slots = draft.host.kinds.slots
            if section in slots and draft.raw.get(section, {}).get("name", slots[section]) != slots[section]:
                continue  # the suggestion is for the default component of that slot
            given = draft.raw.setdefault(section, {})
            if not isinstance(given, dict):
                continue  # a list that is none, which is what the user wrote
            if key in given or (dotted == "train.steps" and "epochs" in given):
                continue
            given[key] = value
            draft.origins[dotted] = source


_FILLED_ELSEWHERE = ("model", "adapter")
"""Kinds whose slots have keys of the trainer's own: see ``model_slot`` and ``adapter_slot``."""


def _fill_slots(draft: Draft) -> None:
    for kind in draft.host.kinds.values():
        slot, offer = kind.key, draft.offers.get(kind.name)
        if kind.slot != "one" or kind.name in _FILLED_ELSEWHERE or offer is None:
            continue
        given = {key: value for key, value in draft.raw.get(slot, {}).items() if key != "name"}
        options = draft.validate(offer.component.config, given, slot)
        if options is not None:
            name = str(draft.raw.get(slot, {}).get("name", offer.component.name))
            draft.values[slot] = SlotRef(name=name, options=options)


def _find_parts(draft: Draft) -> None:
    """Find what each chosen component is made of, and then what it takes of the run, which may be made of something too."""
    chosen = list(chosen_components(draft))
    for kind, place, reference in chosen:
        draft.parts[place] = parts_of(draft, draft.offers[place], reference.options, _key_of(kind, place))
    for kind, place, _ in chosen:
        if kind.key in KEYS or kind.key not in _further_keys(draft.host):  # others are followed from who takes them
            draft.uses[place] = uses_of(draft, draft.offers[place], _key_of(kind, place))
    for key in _further_keys(draft.host):
        if draft.values.get(key) and key not in draft.used and key not in KEYS:
            _refuse_unused(draft, key)


def _key_of(kind: Kind, place: str) -> str:
    return place.replace(f"{kind.name}:", f"{kind.key}.") if kind.slot == "many" else kind.key


def _refuse_unused(draft: Draft, key: str) -> None:
    """Refuse what is named in vain: a kind that a plugin brings counts where a component takes it."""
    name = next(kind.name for kind in draft.host.kinds.values() if kind.key == key)
    if any(name in offer.component.uses for offer in draft.offers.values()):
        return  # whoever takes it has a fault of its own
    takers = [
        f"--{draft.host.kinds.keys_of_kinds[offer.kind].replace('_', '-')} {offer.component.name}"
        for kind in draft.host.kinds.values()
        if kind.key
        for offer in draft.host.offers(kind.name)
        if name in offer.component.uses
    ]
    fix = f"Choose one that does: {', '.join(takers)}." if takers else "Nothing that is installed does; leave it out."
    draft.fault(key, "is named, and no component of this run takes it.", fix)
