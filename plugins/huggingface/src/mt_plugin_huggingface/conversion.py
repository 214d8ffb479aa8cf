"""Tensors of a model as its files have them, by transformers' own conversions: what is one tensor here may be many there.

transformers 5 keeps the experts of a layer in one tensor, and published files have a tensor for each expert and projection. Which
names mean what, and how they are joined, is said by ``WeightRenaming`` and ``WeightConverter`` at transformers; they run here one
tensor of the model at a time, so that nobody holds a whole model.

Shapes: X experts, as the first dimension of a tensor that is joined from theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    MergeModulelist,
    PrefixChange,
    WeightConverter,
    WeightRenaming,
    apply_converters,
    apply_renamings,
    dot_natural_key,
    rename_source_key,
)

from mt_core import WeightsError
from mt_core.weights import Loaders

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Members = list[tuple[str, str]]
"""Pattern of the conversion and name, for each tensor that it takes."""


class Piece(NamedTuple):
    """A tensor in files that is a part of one of the model."""

    name: str
    shape: torch.Size


@dataclass(frozen=True)
class Conversion:
    """How transformers turns some tensors into others: those of a file into one of the model, or back."""

    converter: Any
    first: str
    """The name of the first tensor that comes out."""
    members: Members
    model: PreTrainedModel

    def run(self, tensors: Iterable[Tensor]) -> dict[str, Tensor]:
        """Convert tensors, given in the order of ``members``; return those that come out, by name."""
        converter = deepcopy(self.converter)
        for (pattern, name), tensor in zip(self.members, tensors, strict=True):
            converter.add_tensor(self.first, name, pattern, tensor)
        found = converter.convert(self.first, model=self.model, config=self.model.config)
        return {name: each[0] if isinstance(each, list) else each for name, each in found.items()}


class JoinedLoader:
    """Loads one tensor of the model out of several in the files, which have ``shapes``."""

    def __init__(self, conversion: Conversion, name: str, found: Loaders, shapes: Mapping[str, torch.Size]) -> None:
        self._conversion, self._name, self._found, self._shapes = conversion, name, found, shapes
        self._shape: torch.Size = conversion.model.get_parameter(name).shape

    def __call__(self) -> Tensor:
        return self._run(self._conversion.members)

    @property
    def shape(self) -> torch.Size:
        """The shape of the whole."""
        return self._shape

    def rows(self, start: int, end: int) -> Tensor:
        """Rows of the first dimension; where they are tensors of their own in the files, no other one is read."""
        operations = self._conversion.converter.operations
        if not isinstance(operations[0], MergeModulelist) or any(_moves_rows(each) for each in operations):
            return self()[start:end]
        by_pattern: dict[str, Members] = {}
        for pattern, name in self._conversion.members:
            by_pattern.setdefault(pattern, []).append((pattern, name))
        members = [each for found in by_pattern.values() for each in found[start:end]]
        return self._run(members)

    def _run(self, members: Members) -> Tensor:
        part = replace(self._conversion, members=members)
        return part.run(self._load(name) for _, name in members)[self._name]

    def _load(self, name: str) -> Tensor:
        """A tensor of the files. Raises ``WeightsError`` for one of another shape."""
        tensor, wanted = self._found[name](), self._shapes[name]
        if tensor.shape != wanted:
            raise WeightsError(
                f"{name} is {tuple(tensor.shape)} in the weights and {tuple(wanted)} as a part of {self._name} in the model"
            )
        return tensor


def _moves_rows(operation: Any) -> bool:
    """Return whether an operation does something else to the first dimension than to stack tensors along it."""
    at = {getattr(operation, key, None) for key in ("dim", "dim0", "dim1")} - {None}
    return at != {0} if isinstance(operation, MergeModulelist) else not at or 0 in at


class SplitLoader:
    """Loads the tensors that files have instead of one of the model; those that were not asked for yet are held."""

    def __init__(self, conversion: Conversion, loaders: Loaders) -> None:
        self._conversion = conversion
        self._loaders = [loaders[name] for _, name in conversion.members]
        self._ready: dict[str, Tensor] = {}

    def load(self, name: str) -> Tensor:
        """Return one of them, which is held until it is taken once."""
        if name not in self._ready:
            self._ready = self._conversion.run(load() for load in self._loaders)
        return self._ready.pop(name)


class Conversions:
    """Names and forms of one model's tensors. ``model`` is transformers' own, on the meta device."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._state = model.state_dict()
        transforms = get_model_conversion_mapping(model, add_legacy=True)
        self._renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
        self._converters = [each for each in transforms if isinstance(each, WeightConverter)]

    # ------------------------------------------------------------------------------------------------- files to model

    def read(self, found: Loaders, where: object) -> Loaders:
        """One loader a tensor of the model, and those of files that are none of it under their own names.

        Raises ``WeightsError`` for tensors that are there twice, and where some of those that make one are missing.
        """
        plain: dict[str, str] = {}
        groups: dict[str, Members] = {}
        by_pattern = {pattern: each for each in self._converters for pattern in each.source_patterns}
        for theirs in sorted(found, key=dot_natural_key):
            ours, pattern = self._renamed(theirs)
            if pattern is not None:
                groups.setdefault(ours, []).append((pattern, theirs))
            elif ours in plain or ours in groups:
                other = plain.get(ours) or groups[ours][0][1]
                raise WeightsError(f"{where} has two tensors for {ours}, {other} and {theirs}; fetch the files again")
            else:
                plain[ours] = theirs
        out: Loaders = {ours: found[theirs] for ours, theirs in plain.items()}
        pieces = self._pieces() if groups else {}
        for ours, members in groups.items():
            if ours not in self._state:
                out |= {theirs: found[theirs] for _, theirs in members}  # of a layer that this model has not
                continue
            if ours in plain:
                raise WeightsError(
                    f"{where} has two tensors for {ours}, {plain[ours]} and {members[0][1]}; fetch the files again"
                )
            shapes = self._shapes_of(ours, [name for _, name in members], pieces.get(ours, {}), where)
            conversion = Conversion(by_pattern[members[0][0]], ours, members, self.model)
            out[ours] = JoinedLoader(conversion, ours, found, shapes)
        return out

    def _renamed(self, theirs: str) -> tuple[str, str | None]:
        """Name of the model, and the pattern of a conversion where one takes this tensor."""
        prefix = self.model.base_model_prefix
        ours, pattern = rename_source_key(theirs, self._renamings, self._converters, prefix, self._state)
        if ours not in self._state and theirs in self._state:
            return theirs, None
        return ours, pattern

    def _shapes_of(
        self, ours: str, names: list[str], pieces: Mapping[str, Piece], where: object
    ) -> dict[str, torch.Size]:
        """Shape of each tensor in files. Raises ``WeightsError`` unless they are those that make the model's."""
        there: dict[str, str] = {}
        for name in names:
            plain = self._plain_name(name)
            if plain in there:
                raise WeightsError(
                    f"{where} has two tensors for a part of {ours}, {there[plain]} and {name}; fetch the files again"
                )
            there[plain] = name
        lacks = [piece.name for plain, piece in pieces.items() if plain not in there]
        beyond = [name for plain, name in there.items() if plain not in pieces]
        if lacks or beyond:
            fault, listed = ("missing in", lacks) if lacks else ("left over in", beyond)
            shown = ", ".join(listed[:8]) + (", …" if len(listed) > 8 else "")
            raise WeightsError(
                f"parts of {ours} {fault} the weights ({len(listed)}), {where}: {shown}; fetch the files again"
            )
        return {name: pieces[plain].shape for plain, name in there.items()}

    def _plain_name(self, name: str) -> str:
        """A name in files without what old versions and bare decoders write differently."""
        plain: str = apply_renamings(name, self._renamings)
        return plain.removeprefix(f"{self.model.base_model_prefix}.")

    def _pieces(self) -> dict[str, dict[str, Piece]]:
        """Tensor of the model → plain name → the tensor in files, of those that make it."""
        out: dict[str, dict[str, Piece]] = {}
        for conversion, pieces in self._splits(self._state):
            for _, ours in conversion.members:
                out[ours] = {self._plain_name(piece.name): piece for piece in pieces.values()}
        return out

    # ------------------------------------------------------------------------------------------------- model to files

    def written(self, loaders: Loaders) -> Loaders:
        """Loaders of the tensors that files have, of those of the model."""
        splits = self._splits(loaders)
        joined = {name for conversion, _ in splits for _, name in conversion.members}
        renamings = self._reverse()[0]
        out: Loaders = {apply_renamings(name, renamings): load for name, load in loaders.items() if name not in joined}
        for conversion, pieces in splits:
            parts = SplitLoader(conversion, loaders)
            out |= {piece.name: partial(parts.load, name) for name, piece in pieces.items()}
        return out

    def _reverse(self) -> tuple[list[Any], list[Any]]:
        """Renamings and converters from the model to today's files, in transformers' order.

        A prefix that a file may have or lack is not added (``revert_weight_conversion``).
        """
        transforms = get_model_conversion_mapping(self.model, add_legacy=False)
        back = [each.reverse_transform() for each in reversed(transforms) if not isinstance(each, PrefixChange)]
        return (
            [each for each in back if isinstance(each, WeightRenaming)],
            [each for each in back if isinstance(each, WeightConverter)],
        )

    def _splits(self, names: Iterable[str]) -> list[tuple[Conversion, dict[str, Piece]]]:
        """Conversions from the model to files, with the names that come out → tensors in files."""
        renamings, converters = self._reverse()
        by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
        groups: dict[str, Members] = {}
        for name in sorted(names, key=dot_natural_key):
            theirs, pattern = apply_converters(name, converters)
            if pattern is not None:
                groups.setdefault(theirs, []).append((pattern, name))
        out = []
        for theirs, members in groups.items():
            conversion = Conversion(by_pattern[members[0][0]], theirs, members, self.model)
            found = conversion.run(torch.empty_like(self._state[name], device="meta") for _, name in members)
            pieces = {name: Piece(apply_renamings(name, renamings), each.shape) for name, each in found.items()}
            out.append((conversion, pieces))
        return out
