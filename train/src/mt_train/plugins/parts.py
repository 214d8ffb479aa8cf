"""Parts of the components of a run, and what they take of the run: found and checked before anything is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mt_core.components import PartChoice
from mt_core.config.base import MtConfig
from mt_core.errors import ComponentError
from mt_core.kinds import Kind
from mt_core.plugins.host import Offer
from mt_train.config.run import SlotRef
from mt_train.plugins.composition import Part, Uses
from mt_train.plugins.dataset_slot import path_fault, reader_of
from mt_train.plugins.draft import Draft
from mt_train.plugins.shipped import find_offer


def parts_of(draft: Draft, offer: Offer, options: MtConfig, key: str) -> tuple[Part, ...] | None:
    """Return the parts that the options name; whatever is wrong with one is a fault under its key."""
    if offer.component.parts is None:
        return None
    found = []
    for place, choice in offer.component.parts(options).items():
        if (part := _part(draft, offer, choice, f"{key}.{place}")) is not None:
            found.append(part)
    return tuple(found)


def _part(draft: Draft, whole: Offer, choice: PartChoice, where: str) -> Part | None:
    name = choice.kind or whole.kind
    if (chosen := _name_of(draft, name, choice, where)) is None:
        return None
    try:
        inner = find_offer(draft.host, name, chosen)
    except ComponentError as error:
        draft.fault(where, str(error))
        return None
    kind = draft.host.kinds[name]
    given = getattr(whole.component, "given_to_parts", ())
    if lacking := _describe_lack(kind, draft.host.kinds[whole.kind], given):
        draft.fault(where, f"{whole.kind} {whole.component.name} cannot be made of a {kind.words}: {lacking}")
        return None
    values = {key.replace("-", "_"): value for key, value in choice.options.items()}
    options = draft.validate(inner.component.config, values, where)
    if options is None:
        return None
    draft.offers[where] = inner
    return Part(kind, inner, options, parts_of(draft, inner, options, where), uses_of(draft, inner, where))


def _name_of(draft: Draft, kind: str, choice: PartChoice, where: str) -> str | None:
    """Return the name of a part; that of a dataset with a path alone follows from the path, as for the run's own."""
    if kind != "dataset" or choice.name or not choice.options.get("path"):
        return choice.name
    reader = reader_of(choice.options)
    if reader is None:
        draft.fault(f"{where}.path", *path_fault(choice.options["path"], f"{where}.name"))
    return reader


def uses_of(draft: Draft, offer: Offer, key: str, above: tuple[str, ...] = ()) -> Uses:
    """Return what a component takes of the run. ``above`` are kinds whose components are being followed, to find a circle."""
    found: dict[str, Part | Mapping[str, Part] | None] = {}
    for name in offer.component.uses:
        kind = draft.host.kinds.get(name)
        here = f"{offer.kind} {offer.component.name} uses {name!r}"
        if kind is None:
            draft.fault(key, f"{here}, and no plugin that is loaded brings that kind.", "Install the one that does.")
        elif not kind.key:
            draft.fault(key, f"{here}, and a run names no {kind.words}; it is a part.", "Name it in `parts` instead.")
        elif name in above:
            draft.fault(key, f"{here}, in a circle: {' → '.join([*above, name])}.", "Take one of them out.")
        elif lacking := _describe_lack(kind, draft.host.kinds[offer.kind]):
            draft.fault(key, f"{here}, which cannot be built there: {lacking}")
        else:
            draft.used.add(kind.key)
            found[kind.key] = _used_parts(draft, kind, (*above, name))
    return found


def _used_parts(draft: Draft, kind: Kind, above: tuple[str, ...]) -> Part | Mapping[str, Part] | None:
    chosen = draft.values.get(kind.key)
    if kind.slot == "one":
        return None if chosen is None else _of_run(draft, kind, chosen, kind.name, above)
    return {each.name: _of_run(draft, kind, each, f"{kind.name}:{each.name}", above) for each in chosen or ()}


def _of_run(draft: Draft, kind: Kind, chosen: SlotRef, place: str, above: tuple[str, ...]) -> Part:
    offer = draft.offers[place]
    return Part(kind, offer, chosen.options, draft.parts.get(place), uses_of(draft, offer, kind.key, above))


def _describe_lack(kind: Kind, whole: Kind, given: Sequence[str] = ()) -> str:
    """Return what a part of this kind is built with, and what neither its whole gets nor is ``given`` to parts alone; empty where nothing
    is amiss."""
    lacking = [name for name in kind.given if name not in (*whole.given, *given)]
    if not lacking:
        return ""
    return f"build of a {kind.words} gets {', '.join(lacking)}, and that of a {whole.words} does not."
