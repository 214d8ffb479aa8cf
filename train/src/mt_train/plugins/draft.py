"""A config in the making: what the steps of ``resolve`` read, fill and find fault with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import PydanticUserError, ValidationError

from mt_core.components import WeightsFormat
from mt_core.config.base import MtConfig
from mt_core.config.faults import faults_of
from mt_core.errors import ComponentError, Fault
from mt_core.plugins.host import Offer, PluginHost
from mt_core.plugins.metadata import canonicalize, words
from mt_train.config.foreign_answers import answer_fault
from mt_train.plugins.composition import Part, Uses
from mt_train.plugins.saved_adapter import SavedAdapter

Origins = dict[str, str]
"""Dotted key → where its value came from."""


@dataclass
class Draft:
    """A config in the making."""

    raw: dict[str, Any]
    host: PluginHost
    origins: Origins
    faults: list[Fault] = field(default_factory=list)
    offers: dict[str, Offer] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, tuple[Part, ...] | None] = field(default_factory=dict)
    uses: dict[str, Uses] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    """Keys of kinds that a chosen component takes of the run."""
    merged: list[SavedAdapter] = field(default_factory=list)
    """The adapters of ``model.adapters``."""
    trains: bool = True
    """Whether a run trains what is resolved; what is loaded alone has no adapter where none is named."""
    weights_path: Path | None = None
    weights_format: WeightsFormat | None = None

    def fault(self, key: str, problem: str, fix: str = "") -> None:
        self.faults.append(Fault(key=key.replace("_", "-"), problem=problem, fix=fix))

    def validate(self, config: type[MtConfig], values: Mapping[str, Any], prefix: str, extra: Any = ()) -> Any:
        """The config with these values; ``None`` after a fault. Raises ``ComponentError`` for a config that is none."""
        try:
            config.model_rebuild()  # where this is its first use
            return config(**{str(key): value for key, value in values.items()})
        except ValidationError as error:
            self.faults.extend(map(self._answer_key, faults_of(error, config, prefix, extra)))
            return None
        except (PydanticUserError, NameError) as error:
            problem = str(error).partition("\n")[0]
            raise ComponentError(
                f"config {config.__module__}.{config.__qualname__} cannot be built: {problem}"
            ) from error

    def _answer_key(self, fault: Fault) -> Fault:
        """A fault whose unknown key is the name of a component of its slot, as in ``adapter.dora``, with the option that names it."""
        slot, _, name = fault.key.partition(".")
        kind = next((kind for kind in self.host.kinds.values() if kind.key == slot.replace("-", "_")), None)
        if fault.problem != "no such key." or kind is None or kind.slot != "one":
            return answer_fault(fault)
        if canonicalize(name) not in {offer.component.name for offer in self.host.offers(kind.name)}:
            return answer_fault(fault)
        return fault._replace(fix=f"{words(kind.name).capitalize()} {name} is named: --{slot} {name}.")
