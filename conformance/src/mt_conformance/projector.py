"""Conformance of a projector: as many hidden states as it counts, an item the same beside any others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from mt_conformance import trainer
from mt_conformance.base import BasePluginConformance
from mt_conformance.media import (
    calls_of,
    check_first_draw,
    check_meta_build,
    describe_other_calls,
    draw,
    most_apart,
    move,
    outcome,
    torch_refused,
    without_gradient,
)
from mt_core.errors import DataError
from mt_core.media import Grid, ProjectorComponent
from mt_core.nn import Projector
from mt_core.plugins.host import PluginHost

Item = tuple[int, Grid | None]
"""Features of an item, and their rows and columns where it has such."""

LENGTHS = (1, 2, 3, 4, 7, 9, 16, 36)
GRIDS: tuple[Grid, ...] = (
    (1, 1, 1),
    (1, 2, 2),
    (1, 2, 4),
    (2, 4, 2),
    (1, 3, 6),
    (1, 6, 6),
    (1, 5, 7),
    (1, 4, 12),
    (3, 6, 4),
    (1, 12, 12),
)
FEWEST = 3
"""Items that a projector has to take of those that it is tried on."""


class BaseProjectorConformance(BasePluginConformance):
    """Checks of a projector. ``items`` are the features and grids to test; items that it refuses are left out."""

    kind = "projector"
    items: Sequence[Item] = (
        *((length, None) for length in LENGTHS),
        *((times * rows * columns, (times, rows, columns)) for times, rows, columns in GRIDS),
    )
    source: int = 12
    """Width of a feature."""
    target: int = 8
    """Width of a hidden state."""
    tolerance: float = 1e-5
    """By how much a hidden state may differ where an item is projected beside others: another order of summation."""

    # ------------------------------------------------------------------------------------------------ what is tested

    def declared_component(self, host: PluginHost) -> ProjectorComponent:
        """The component, which counts hidden states."""
        component = self.component(host)
        assert isinstance(component, ProjectorComponent), "the host checks what mt_projectors returns"
        return component

    def projector(self, host: PluginHost, folder: Path) -> Projector:
        """Build it with values."""
        built: Projector = self.declared_component(host).build(
            self.config(host, folder), source=self.source, target=self.target
        )
        draw(built)
        move(built)
        return built

    def tokens(self, host: PluginHost, folder: Path) -> dict[Item, int]:
        """The items that it takes, and the hidden states that it says of each. Raises ``AssertionError`` for another error."""
        component, config = self.declared_component(host), self.config(host, folder)
        taken: dict[Item, int] = {}
        for features, grid in self.items:
            try:
                taken[features, grid] = component.tokens(config, features, grid)
            except DataError:
                continue
            except Exception as error:
                raise AssertionError(
                    f"tokens() of {features} features, grid {grid}, raised {type(error).__name__}: {error}. An item of which nothing"
                    " can be made is a DataError that says what to do"
                ) from error
        assert len(taken) >= FEWEST, (
            f"it takes {len(taken)} of {len(self.items)} items; set `items` of {type(self).__name__} to some that it takes, such as"
            " (16, (1, 4, 4)): 16 features in 4 rows of 4"
        )
        return taken

    def states(self, projector: Projector, items: Sequence[Item], features_NW: Tensor) -> Tensor:
        """Project some items at once. Raises ``AssertionError`` for whatever is raised."""
        try:
            found: Tensor = projector(features_NW, [count for count, _ in items], [grid for _, grid in items])
        except Exception as error:
            raise AssertionError(
                f"forward raised {type(error).__name__} for {list(items)}: {error}. tokens() takes them; let it raise DataError for"
                " items of which nothing can be made"
            ) from error
        return found

    def values(self, items: Sequence[Item], seed: int = 0) -> Tensor:
        """Features of some items (N, W)."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(sum(count for count, _ in items), self.source, generator=generator)

    def draws(self, taken: Sequence[Item]) -> Iterator[list[Item]]:
        """Yield each item alone, then some of them together in any order."""
        random = Random(0)
        yield from ([each] for each in taken)
        for count in (2, 2, 3, 4, 5):
            yield random.choices(list(taken), k=count)

    def effect(self, host: PluginHost, folder: Path) -> Any:
        """Return the hidden states of every item that it takes, and how many it says."""
        taken, projector = self.tokens(host, folder), self.projector(host, folder)
        return list(taken.values()), [self.states(projector, [each], self.values([each])).detach() for each in taken]

    # ------------------------------------------------------------------------------------------------------ checks

    def test_it_makes_as_many_hidden_states_as_it_counts(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """An item alone and several items together have the declared counts: truncation and packing rely on them."""
        trainer.require()
        projector, taken = self.projector(mt_host, tmp_path), self.tokens(mt_host, tmp_path)
        for some in self.draws(list(taken)):
            counts = [taken[each] for each in some]
            found = tuple(self.states(projector, some, self.values(some)).shape)
            assert found == (sum(counts), self.target * (1 + projector.levels)), (
                f"items of {some} (features, grid) become {found}, and tokens() says {counts} for a width of {self.target} and"
                f" levels={projector.levels}; both count the same"
            )

    def test_an_item_is_the_same_beside_any_others(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """An item has the same hidden states, within ``tolerance``, alone and in any batch."""
        trainer.require()
        projector, taken = self.projector(mt_host, tmp_path), self.tokens(mt_host, tmp_path)
        for some in [*self.draws(list(taken))][len(taken) :]:
            features_NW = self.values(some)
            parts = features_NW.split([count for count, _ in some])  # type: ignore[no-untyped-call]
            together = self.states(projector, some, features_NW).split([taken[each] for each in some])  # type: ignore[no-untyped-call]
            for item, own, beside in zip(some, parts, together, strict=True):
                apart = most_apart(self.states(projector, [item], own), beside)
                assert apart <= self.tolerance, (
                    f"an item of {item} (features, grid) has other hidden states beside {some}: they are {apart:.3g} apart (allowed:"
                    f" {self.tolerance:g}). No item sees another one, and none sees padding"
                )

    def test_an_item_without_features_is_a_data_error(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """For an item that it cannot project, ``tokens`` returns 0 or raises ``DataError``, and nothing else."""
        trainer.require()
        component, config = self.declared_component(mt_host), self.config(mt_host, tmp_path)
        for item in ((0, None), (0, (1, 0, 4)), (35, (1, 5, 7))):
            said = outcome(lambda item=item: component.tokens(config, *item))
            assert said in ("", "DataError"), (
                f"tokens() of {item} (features, grid) raised {said}; raise DataError, and say what to do"
            )

    def test_it_counts_without_torch(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """``tokens`` imports no torch, and returns the same number each time."""
        trainer.require()
        with torch_refused():
            try:
                first = self.tokens(mt_host, tmp_path)
            except AssertionError as error:
                if not isinstance(error.__cause__, ImportError):
                    raise
                raise AssertionError(f"tokens() imports torch ({error.__cause__}); count with whole numbers") from error
        again = self.tokens(mt_host, tmp_path)
        differ = [item for item in first if again.get(item) != first[item]]
        assert not differ, (
            f"counted again, {differ[0]} (features, grid) has {again.get(differ[0])} tokens, and {first[differ[0]]} at first"
        )

    def test_what_is_called_does_not_depend_on_the_items(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Modules are called equally often and in one order, for any items."""
        trainer.require()
        projector, taken = self.projector(mt_host, tmp_path), self.tokens(mt_host, tmp_path)
        found = [
            calls_of(projector, lambda some=some: self.states(projector, some, self.values(some)))  # type: ignore[misc]
            for some in self.draws(list(taken))
        ]
        said = next((said for each in found if (said := describe_other_calls(found[0], each))), "")
        assert not said, (
            f"{said}. Ranks with other items would wait for one another for ever at ZeRO 3: call each module once for all items"
        )

    def test_gradients_reach_every_parameter_and_feature(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Each item alone gives every parameter a gradient, since a rank may have only this item."""
        trainer.require()
        projector, taken = self.projector(mt_host, tmp_path), self.tokens(mt_host, tmp_path)
        for item in taken:
            features_NW = self.values([item]).requires_grad_()
            projector.zero_grad()
            self.states(projector, [item], features_NW).square().sum().backward()  # type: ignore[no-untyped-call]
            lacking = without_gradient(projector)
            assert not lacking, (
                f"an item of {item} (features, grid) gives {lacking[0]} no finite gradient ({len(lacking)} such parameters); use every"
                " parameter for every item"
            )
            reached = features_NW.grad is not None and bool(features_NW.grad.isfinite().all())
            assert reached, (
                f"no finite gradient reaches the features of {item}; an encoder is trained through its projector"
            )

    def test_the_first_draw_fills_every_parameter(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """``init_tensor`` sets every value of a parameter, and the same generator gives the same values."""
        trainer.require()
        component, config = self.declared_component(mt_host), self.config(mt_host, tmp_path)
        check_first_draw(lambda: component.build(config, source=self.source, target=self.target))

    def test_it_is_built_without_memory(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """It can be built on torch's meta device, with the same parameters: a run is planned before memory is allocated."""
        trainer.require()
        component, config = self.declared_component(mt_host), self.config(mt_host, tmp_path)
        check_meta_build(lambda: component.build(config, source=self.source, target=self.target))

    def test_hidden_states_have_the_dtype_of_the_weights(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Hidden states of a bf16 projector are bf16, and finite."""
        trainer.require()
        projector, taken = self.projector(mt_host, tmp_path), self.tokens(mt_host, tmp_path)
        some = list(taken)
        found = self.states(projector.bfloat16(), some, self.values(some).bfloat16())
        assert found.dtype == torch.bfloat16, (
            f"in bf16 its hidden states are {found.dtype}; leave the dtype as it comes"
        )
        assert found.isfinite().all(), "in bf16 some hidden states are not finite"
