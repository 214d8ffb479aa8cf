"""An encoder of a run: with its projector, the shape and the values of its weights, and built into a model.

Torch is imported where a module is built.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core.components import WeightsFormat
from mt_core.errors import ConfigError, Fault
from mt_core.media import EncoderComponent, EncoderConfig, ProjectorComponent
from mt_train.plugins.composition import Part
from mt_train.plugins.encoder_slots import find_projector_format, find_weights

if TYPE_CHECKING:
    from torch import Tensor

    from mt_train.engine.media_inputs import ProjectedEncoder


@dataclass(frozen=True, kw_only=True)
class RunEncoder:
    """An encoder that a run names, with its projector; its options say what its weights are."""

    name: str
    component: EncoderComponent
    options: EncoderConfig
    projector: Part
    path: Path | None
    """Folder of its weights; ``None`` where they are drawn from the seed."""
    format: WeightsFormat | None
    projector_format: WeightsFormat | None = None
    """How the folder has the projector, too: where it is the whole model that the run starts from."""

    @classmethod
    def of(
        cls, name: str, component: EncoderComponent, options: EncoderConfig, projector: Part, model: Path | None
    ) -> RunEncoder:
        """Return an encoder with what reads its weights; ``model`` is the folder of ``model.weights``.

        Raises ``WeightsError`` for a folder that it does not read.
        """
        path, form = find_weights(name, component, options, model) or (None, None)
        if path is not None:
            options = options.model_copy(update={"weights": str(path)})
        kind, found = projector.offer.component, None
        if path is not None and path == model and isinstance(kind, ProjectorComponent):
            found = find_projector_format(kind, path)
        return cls(
            name=name,
            component=component,
            options=options,
            projector=projector,
            path=path,
            format=form,
            projector_format=found,
        )

    def tokens(self, features: int, grid: Any) -> int:
        """Return how many places an item of so many features takes."""
        component = self.projector.offer.component
        assert isinstance(component, ProjectorComponent), "the host checks what mt_projectors returns"
        return component.tokens(self.projector.options, features, grid)

    def build(self, target: int) -> ProjectedEncoder:
        """Build encoder and projector on the default device, for hidden states of this width."""
        from mt_train.engine.media_inputs import ProjectedEncoder

        widths = {"source": self.component.width(self.options), "target": target}
        return ProjectedEncoder(self.component.build(self.options), self.projector.build(**widths))

    def tensors(self) -> Mapping[str, Callable[[], Tensor]]:
        """Return the values of its weights by the names that they have in what ``build`` returns; none where they are drawn."""
        if self.path is None or self.format is None:
            return {}
        found = {f"encoder.{name}": load for name, load in self.format.tensors(self.path, self.options).items()}
        if self.projector_format is not None:
            own = self.projector_format.tensors(self.path, self.projector.options)
            found |= {f"projector.{name}": load for name, load in own.items()}
        return found

    @property
    def read_parts(self) -> tuple[str, ...]:
        """Return which of encoder and projector have values in its folder."""
        parts = {"encoder": self.format, "projector": self.projector_format}
        return tuple(name for name, form in parts.items() if form is not None)


def refuse_shared_kinds(encoders: Sequence[RunEncoder]) -> None:
    """Raise ``ConfigError`` where two encoders read parts of one kind."""
    counts = Counter(kind for each in encoders for kind in each.component.reads)
    faults = [
        Fault(
            key="encoders",
            problem=f"{' and '.join(each.name for each in encoders if kind in each.component.reads)} both read parts of kind {kind!r};"
            " name one",
        )
        for kind, count in counts.items()
        if count > 1
    ]
    if faults:
        raise ConfigError(faults)
