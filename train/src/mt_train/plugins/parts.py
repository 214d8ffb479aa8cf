"""Components that are made of others of their kind, such as a mix of datasets: found and checked before anything is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mt_core.config.base import MtConfig
from mt_core.errors import ComponentError
from mt_core.plugins.host import Offer
from mt_train.plugins.draft import Draft


@dataclass(frozen=True)
class Part:
    """A component, its options, and what it is made of in turn; ``None`` where it is made of nothing."""

    offer: Offer
    options: MtConfig
    parts: tuple[Part, ...] | None

    def build(self, **keywords: Any) -> Any:
        """What the component builds, its parts first."""
        return self.offer.component.build(self.options, **with_parts(self.parts, keywords))


def with_parts(parts: tuple[Part, ...] | None, keywords: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a ``build``, with what its parts build where it has any."""
    return keywords if parts is None else {**keywords, "parts": [part.build(**keywords) for part in parts]}


def parts_of(draft: Draft, offer: Offer, options: MtConfig, key: str) -> tuple[Part, ...] | None:
    """The parts that the options name; whatever is wrong with one is a fault under its key."""
    if offer.component.parts is None:
        return None
    found = []
    for place, given in offer.component.parts(options).items():
        where = f"{key}.{place}"
        try:
            inner = draft.host.get(offer.kind, str(given.get("name", "")))
        except ComponentError as error:
            draft.fault(where, str(error))
            continue
        values = {name.replace("-", "_"): value for name, value in given.items() if name != "name"}
        own = draft.validated(inner.component.config, values, where)
        if own is not None:
            draft.offers[where] = inner
            found.append(Part(inner, own, parts_of(draft, inner, own, where)))
    return tuple(found)
