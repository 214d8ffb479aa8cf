"""Components with what they are made of, and what they take of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mt_core.config.base import MtConfig
from mt_core.kinds import Kind
from mt_core.plugins.host import Offer


@dataclass(frozen=True)
class Part:
    """A component and its options; ``parts`` are what it is made of, ``None`` where that is nothing."""

    kind: Kind
    offer: Offer
    options: MtConfig
    parts: tuple[Part, ...] | None = None
    uses: Uses = field(default_factory=dict)

    def build(self, **keywords: Any) -> Any:
        """Return what the component builds, its parts first. Of the keywords of the whole it gets those of its own kind."""
        own = {name: keywords[name] for name in self.kind.given if name in keywords}
        return self.offer.component.build(self.options, **with_parts(self.parts, self.uses, own))


Uses = Mapping[str, Part | Mapping[str, Part] | None]
"""Key of a kind → what the run names under it, for a component that ``uses`` this kind."""


def with_parts(parts: tuple[Part, ...] | None, uses: Uses, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of a ``build``, with what parts and components of the run build."""
    built = dict(keywords)
    if parts is not None:
        built["parts"] = [part.build(**keywords) for part in parts]
    for key, used in uses.items():
        if isinstance(used, Mapping):
            built[key] = {name: part.build(**keywords) for name, part in used.items()}
        else:
            built[key] = None if used is None else used.build(**keywords)
    return built
