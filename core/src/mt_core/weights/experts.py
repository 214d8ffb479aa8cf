"""Experts of a mixture in the form that is asked for, from weights in either: joined or sliced one tensor at a time, when it is loaded.

Files have experts listed (``experts.3.gate_proj.weight``) or fused (``experts.gate_up_proj``), and so have models; see ``ExpertLayout``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mt_core.config.experts import ExpertLayout
from mt_core.weights.files import Loaders, load_rows

if TYPE_CHECKING:
    from torch import Tensor


def fused_experts(loaders: Mapping[str, Callable[[], Tensor]], layouts: Mapping[str, ExpertLayout]) -> Loaders:
    """Return the loaders, with the listed parts of experts replaced by fused tensors.

    ``layouts`` are those of the model's experts, by the name of the module that has them.
    """
    found: Loaders = dict(loaders)
    for tensor in _tensors(layouts):
        if tensor.name not in found and all(name in found for names in tensor.listed for name in names):
            parts = [[found.pop(name) for name in names] for names in tensor.listed]
            found[tensor.name] = FusedLoader(tensor, parts)
    return found


def listed_experts(loaders: Mapping[str, Callable[[], Tensor]], layouts: Mapping[str, ExpertLayout]) -> Loaders:
    """Return the loaders, with fused tensors replaced by the parts of each expert; ``layouts`` as for ``fused_experts``."""
    found: Loaders = dict(loaders)
    for tensor in _tensors(layouts):
        if tensor.name in found:
            whole = found.pop(tensor.name)
            for expert, names in enumerate(tensor.listed):
                found |= {name: ListedLoader(tensor, whole, expert, part) for part, name in enumerate(names)}
    return found


@dataclass(frozen=True, eq=False)
class FusedTensor:
    """One tensor of the fused form: its name and shape, and the names of its parts for each expert."""

    name: str
    shape: tuple[int, ...]
    listed: Sequence[Sequence[str]]
    interleaved: bool
    transposed: bool


def _tensors(layouts: Mapping[str, ExpertLayout]) -> Iterator[FusedTensor]:
    for place, layout in layouts.items():
        *inner, down = layout.projections
        for name, shape in layout.fused_shapes().items():
            is_bias = name.endswith("_bias")
            kind = "bias" if is_bias else "weight"
            parts = inner if name.startswith(layout.inner) else [down]
            yield FusedTensor(
                name=f"{place}.{name}",
                shape=shape,
                listed=[[f"{place}.{expert}.{part}.{kind}" for part in parts] for expert in range(layout.n_experts)],
                interleaved=layout.interleaved and len(parts) > 1,
                transposed=layout.transposed and not is_bias,
            )


@dataclass(frozen=True, eq=False)
class FusedLoader:
    """Loads a fused tensor, or the rows of some experts, from the parts of each; one expert is in memory beside the result."""

    tensor: FusedTensor
    parts: Sequence[Sequence[Callable[[], Tensor]]]

    def __call__(self) -> Tensor:
        """Load all experts."""
        return self.rows(0, len(self.parts))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole."""
        return self.tensor.shape

    def rows(self, start: int, end: int) -> Tensor:
        """Load the experts from ``start`` up to ``end``."""
        found = self._expert(start)
        rows = found.new_empty(end - start, *found.shape)
        for expert in range(start, end):
            rows[expert - start] = found if expert == start else self._expert(expert)
        return rows

    def _expert(self, expert: int) -> Tensor:
        import torch

        parts = [load() for load in self.parts[expert]]
        joined = torch.stack(parts, 1).flatten(0, 1) if self.tensor.interleaved else torch.cat(parts)
        return joined.mT if self.tensor.transposed else joined


@dataclass(frozen=True, eq=False)
class ListedLoader:
    """Loads one part of one expert out of a fused tensor, of which nothing else is loaded where its loader has ``rows``."""

    tensor: FusedTensor
    whole: Callable[[], Tensor]
    expert: int
    part: int

    def __call__(self) -> Tensor:
        """Load it, as a linear layer has it."""
        value = load_rows(self.whole, self.expert, self.expert + 1)[0]
        value = value.mT if self.tensor.transposed else value
        if len(self.tensor.listed[0]) > 1:
            value = value[self.part :: 2] if self.tensor.interleaved else value.chunk(2)[self.part]
        return value.contiguous()
