"""The slots that take several components, such as callbacks: each is chosen by name, with options of its own.

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mt_core.config.base import NOTHING
from mt_core.errors import ComponentError, show_value
from mt_train.config.run import SlotRef
from mt_train.plugins.draft import Draft
from mt_train.plugins.shipped import find_offer


def fill_lists(draft: Draft) -> None:
    """Fill the slot of every kind of which a run may have several components."""
    for kind in draft.host.kinds.values():
        if kind.slot == "many":
            _fill_list(draft, kind.key, kind.name)


def _fill_list(draft: Draft, key: str, kind: str) -> None:
    """``[name, …]``, ``[{name: …, option: …}]`` or ``{name: {option: …}}``."""
    chosen = []
    for entry in entries_of(draft.raw.get(key), key, draft.fault):
        try:
            name = str(entry.pop("name"))
            offer = find_offer(draft.host, kind, name)
        except ComponentError as error:
            draft.fault(key, str(error))
            continue
        name = offer.qualified_name if "/" in name else offer.component.name  # DISTRIBUTION/NAME stays unambiguous
        if f"{kind}:{name}" in draft.offers:
            draft.fault(key, f"{name} is named twice.", "Name it once.")
            continue
        options = draft.validate(offer.component.config, entry, f"{key}.{offer.component.name}")
        if options is not None:
            chosen.append(SlotRef(name=name, options=options))
            draft.offers[f"{kind}:{name}"] = offer
    draft.values[key] = tuple(chosen)


def entries_of(given: Any, key: str, fault: Callable[..., None]) -> Iterator[dict[str, Any]]:
    """Yield name and options of each component that a list has; ``fault`` is called for all that has no such shape."""
    if given in NOTHING:
        return
    if isinstance(given, dict):
        for name, options in given.items():
            if isinstance(options, dict):
                yield {**options, "name": name}
            else:
                fault(
                    f"{key}.{name}",
                    f"must be a mapping of its options, got {show_value(options)}.",
                    _SEVERAL.format(key),
                )
        return
    for item in given if isinstance(given, list | tuple) else [given]:
        if isinstance(item, str):
            yield {"name": item}
        elif isinstance(item, dict) and isinstance(item.get("name"), str):
            yield dict(item)
        else:
            fault(key, f"must be names, or mappings with a name, got {show_value(item)}.", _SEVERAL.format(key))


_SEVERAL = "Write {0}: [NAME, NAME], or {0}: {{NAME: {{OPTION: VALUE}}}}."
