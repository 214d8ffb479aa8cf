"""Conformance of an encoder: as many features as were measured, an item the same beside any others, and files that are anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

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
from mt_conformance.media_items import Read, batch_of, bytes_of, content_of, inputs_of, item_of, mangled, read_part
from mt_core.errors import ConfigError
from mt_core.media import EncoderComponent, MediaItem, MediaPart, Processor
from mt_core.nn import Encoder, Projector
from mt_core.plugins.host import PluginHost

PLACE = "rows.jsonl:7"
DIGEST_BYTES = 8


class BaseEncoderConformance(BasePluginConformance):
    """Checks of an encoder and its processor. ``contents`` are small, varied items; ``parts`` turns them into media parts of rows."""

    kind = "encoder"
    contents: Sequence[bytes] = ()
    """Content of 2 to 10 items."""
    broken: Sequence[bytes] = (b"",)
    """Content that is refused."""
    tolerance: float = 1e-5
    """By how much a feature may differ where an item is encoded beside others: another order of summation."""

    # ------------------------------------------------------------------------------------------------ what is tested

    def parts(self, host: PluginHost, folder: Path) -> list[MediaPart]:
        """The parts of a row that it is tried on: ``contents``, as the first kind that it reads."""
        assert len(set(self.contents)) > 1, (
            f"{type(self).__name__} has {len(set(self.contents))} contents to try; set `contents` to the bytes of a few small"
            " items, of other lengths where it knows lengths"
        )
        return [MediaPart(self.reads(host), content=each, place=PLACE) for each in self.contents]

    def reads(self, host: PluginHost) -> str:
        """The kind of the parts."""
        return min(self.declared_component(host).reads)

    def declared_component(self, host: PluginHost) -> EncoderComponent:
        """The component, which says what it reads."""
        component = self.component(host)
        assert isinstance(component, EncoderComponent), "the host checks what mt_encoders returns"
        return component

    def config(self, host: PluginHost, folder: Path) -> Any:
        """The validated options, whatever projector they name: that is another component's."""
        offer, draft = self.offer(host), trainer.Draft({}, host, {})
        options = draft.validate(offer.component.config, self.values_in(host, folder), self.kind)
        assert not draft.faults, f"the options of {type(self).__name__} are not valid: {ConfigError(draft.faults)}"
        return options

    def processor(self, host: PluginHost, folder: Path) -> Processor:
        """The half that reads."""
        return self.declared_component(host).processor(self.config(host, folder))

    def encoder(self, host: PluginHost, folder: Path) -> Encoder:
        """The half that encodes, with values, in evaluation mode."""
        built: Encoder = self.declared_component(host).build(self.config(host, folder))
        draw(built)
        move(built)
        return built.eval()

    def items(self, host: PluginHost, folder: Path) -> list[Read]:
        """Every part, measured and read."""
        processor = self.processor(host, folder)
        return [read_part(processor, part) for part in self.parts(host, folder)]

    def features(self, encoder: Encoder, items: Sequence[Read]) -> Tensor:
        """Encode some items at once. Raises ``AssertionError`` for whatever is raised."""
        counts = [each.measured.features for each in items]
        try:
            found = encoder(inputs_of(items), counts)
        except Exception as error:
            raise AssertionError(
                f"items of {counts} features: forward raised {type(error).__name__}: {error}. It gets the arrays of all items,"
                " joined along their first dimension, and how many features each one has"
            ) from error
        assert isinstance(found, Tensor), f"forward gave a {type(found).__name__}; it returns a tensor (N, W)"
        return found

    def draws(self, items: Sequence[Read]) -> Iterator[list[Read]]:
        """Yield each item alone, then some of them together in any order."""
        random = Random(0)
        yield from ([each] for each in items)
        for count in (2, 3, 4):
            yield random.choices(items, k=count)
        yield list(items)

    # ------------------------------------------------------------------------------------------------------ checks

    def test_it_makes_as_many_features_as_were_measured(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """An item alone and several items together have the declared counts: truncation and packing rely on them."""
        trainer.require()
        encoder, items = self.encoder(mt_host, tmp_path), self.items(mt_host, tmp_path)
        width = self.declared_component(mt_host).width(self.config(mt_host, tmp_path))
        for some in self.draws(items):
            counts = [each.measured.features for each in some]
            found = tuple(self.features(encoder, some).shape)
            assert found == (sum(counts), width), (
                f"items of {counts} features are encoded as {found}, and ({sum(counts)}, {width}) was said: measure() counts the"
                " features of an item, and width(config) their channels"
            )

    def test_an_item_is_the_same_beside_any_others(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """An item has the same features, within ``tolerance``, alone and in any batch."""
        trainer.require()
        encoder, items = self.encoder(mt_host, tmp_path), self.items(mt_host, tmp_path)
        for some in [*self.draws(items)][len(items) :]:
            counts = [each.measured.features for each in some]
            together = self.features(encoder, some).split(counts)  # type: ignore[no-untyped-call]
            for item, beside in zip(some, together, strict=True):
                apart = most_apart(self.features(encoder, [item]), beside)
                assert apart <= self.tolerance, (
                    f"an item of {item.measured.features} features has other ones beside items of {counts}: they are {apart:.3g} apart"
                    f" (allowed: {self.tolerance:g}). No item sees another one, and none sees padding"
                )

    def test_the_dummy_is_encoded_and_reaches_every_parameter(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Ranks without an item encode the dummy; it gives every parameter a gradient, so that all ranks reduce the same ones."""
        trainer.require()
        encoder, processor = self.encoder(mt_host, tmp_path), self.processor(mt_host, tmp_path)
        dummy = Read(*processor.dummy())
        features = self.features(encoder.train(), [dummy])
        assert len(features) == dummy.measured.features, (
            f"the dummy has {len(features)} features, and {dummy.measured.features} were said; dummy() returns what measure() would"
        )
        assert not len(features) or features.isfinite().all(), "features of the dummy are not finite"
        features.square().sum().backward()  # type: ignore[no-untyped-call]
        lacking = without_gradient(encoder)
        assert not lacking, (
            f"the dummy gives {lacking[0]} no finite gradient ({len(lacking)} such parameters); other ranks would wait for it: use every"
            " parameter for every item, or leave it out of the module"
        )
        first, arrays = self.items(mt_host, tmp_path)[0].arrays, dummy.arrays
        kinds = [{name: str(each.dtype) for name, each in some.items()} for some in (first, arrays)]
        assert kinds[0] == kinds[1], (
            f"the dummy has the arrays {kinds[1]}, and an item {kinds[0]}; names and dtypes are the same"
        )

    def test_what_is_called_does_not_depend_on_the_items(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Modules are called equally often and in one order, for any items and for the dummy."""
        trainer.require()
        encoder, items = self.encoder(mt_host, tmp_path), self.items(mt_host, tmp_path)
        dummy = Read(*self.processor(mt_host, tmp_path).dummy())
        first = calls_of(encoder, lambda: self.features(encoder, [dummy]))
        for some in self.draws(items):
            said = describe_other_calls(first, calls_of(encoder, lambda some=some: self.features(encoder, some)))  # type: ignore[misc]
            assert not said, (
                f"{said}. Ranks with other items would wait for one another for ever at ZeRO 3: call each module once for all items"
            )

    def test_reading_is_a_pure_function_of_what_was_measured(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Reading twice, or by another processor, gives the same bytes. Content other than was measured is a ``DataError``."""
        trainer.require()
        processor, other = self.processor(mt_host, tmp_path), self.processor(mt_host, tmp_path)
        parts = self.parts(mt_host, tmp_path)
        for part in parts:
            measured = processor.measure(part)
            assert other.measure(part) == measured, f"measured twice, an item is {other.measure(part)} and {measured}"
            item = item_of(part, measured)
            first = bytes_of(processor.read(item))
            for who in (processor, other):
                assert bytes_of(who.read(item)) == first, (
                    "read again, an item has other arrays; draw nothing at random, and keep nothing of one item for the next"
                )
            last = processor.measure(parts[-1] if part is parts[0] else parts[0]).digest
            wrong = MediaItem(item.encoder, item.path, item.content, last)
            assert outcome(lambda wrong=wrong: processor.read(wrong)) == "DataError", (
                "an item whose content is another than was measured is read; compare its digest, where it has one, and raise DataError"
            )

    def test_the_digest_follows_from_the_content_alone(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """The digest has 8 bytes, which depend on the content only; it identifies encoded rows."""
        trainer.require()
        processor, parts = self.processor(mt_host, tmp_path), self.parts(mt_host, tmp_path)
        found = [processor.measure(each).digest for each in parts]
        assert {len(each) for each in found} == {DIGEST_BYTES}, (
            f"digests have {len(found[0])} bytes; they have {DIGEST_BYTES}"
        )
        assert len(set(found)) == len(parts), "two contents have one digest; hash all of the content"
        for part, digest in zip(parts, found, strict=True):
            for content in (content_of(part)[::-1], *mangled(content_of(part))):
                other = MediaPart(part.kind, content=content, place=PLACE)
                if content != content_of(part) and outcome(lambda other=other: processor.measure(other)) == "":
                    assert processor.measure(other).digest != digest, (
                        f"{content[:40]!r} has the digest of another content; hash all of it, not its length or its front"
                    )
        moved = processor.measure(MediaPart(parts[0].kind, parts[0].path, parts[0].content, place="other.jsonl:9"))
        assert moved.digest == found[0], "in another row the same content has another digest; hash the content alone"

    def test_broken_content_is_a_data_error_and_nothing_else(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """``broken`` content, missing files, and truncated or changed content raise a ``DataError``, and nothing else."""
        trainer.require()
        processor, kind = self.processor(mt_host, tmp_path), self.reads(mt_host)
        files = [MediaPart(kind, path=str(path), place=PLACE) for path in (tmp_path, tmp_path / "none" / "there")]
        for part in [*(MediaPart(kind, content=each, place=PLACE) for each in self.broken), *files]:
            shown = part.path or part.content[:40]
            said = outcome(lambda part=part: processor.measure(part))
            assert said == "DataError", (
                f"{shown!r} is measured ({said or 'no error'}); raise DataError: a run counts bad rows and goes on"
            )
        for part in self.parts(mt_host, tmp_path):
            for content in mangled(content_of(part)):
                changed = MediaPart(kind, content=content, place=PLACE)
                said = outcome(lambda changed=changed: read_part(processor, changed))
                assert said in ("", "DataError"), (
                    f"{content[:40]!r} raised {said}; whatever is no {kind} is a DataError that says what to do"
                )

    def test_files_are_read_without_torch(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Reading imports no torch: processors run in threads and forked workers, before anything is built."""
        trainer.require()
        component, config = self.declared_component(mt_host), self.config(mt_host, tmp_path)
        parts = self.parts(mt_host, tmp_path)
        with torch_refused():
            try:
                component.width(config)
                processor = component.processor(config)
                processor.dummy()
                for part in parts:
                    read_part(processor, part)
            except ImportError as error:
                raise AssertionError(
                    f"the processor imports torch ({error}); read with numpy, and import torch in `build`"
                ) from error

    def test_the_first_draw_fills_every_parameter(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """``init_tensor`` sets every value of a parameter, and the same generator gives the same values."""
        trainer.require()
        component, config = self.declared_component(mt_host), self.config(mt_host, tmp_path)
        check_first_draw(lambda: component.build(config))

    def test_it_is_built_without_memory(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """It can be built on torch's meta device, with the same parameters: a run is planned before memory is allocated."""
        trainer.require()
        component, config = self.declared_component(mt_host), self.config(mt_host, tmp_path)
        check_meta_build(lambda: component.build(config))

    def test_features_have_the_dtype_of_the_weights(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Inputs are fp32; features of a bf16 encoder are bf16, and finite."""
        trainer.require()
        encoder, items = self.encoder(mt_host, tmp_path), self.items(mt_host, tmp_path)
        found = self.features(encoder.bfloat16(), items)
        assert found.dtype == torch.bfloat16, (
            f"in bf16 its features are {found.dtype}; cast inputs to the dtype of the weights"
        )
        assert found.isfinite().all(), "in bf16 some features are not finite"

    def test_frozen_it_keeps_nothing_for_the_backward(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """A frozen encoder saves no activations, and gives the same features each time."""
        trainer.require()
        encoder, items = self.encoder(mt_host, tmp_path).train(), self.items(mt_host, tmp_path)
        encoder.requires_grad_(False)
        whole, batch = trainer.ProjectedEncoder(encoder, _Through()), batch_of(items)
        kept: list[tuple[int, ...]] = []

        def keep(tensor: Tensor) -> Tensor:
            kept.append(tuple(tensor.shape))
            return tensor

        with saved_tensors_hooks(keep, lambda tensor: tensor):
            first = whole(batch)
        assert not kept, (
            f"frozen, it keeps {len(kept)} tensors for a backward, {kept[0]} the first; leave gradients as they are set"
        )
        assert torch.equal(whole(batch), first), (
            "frozen, it gives other features each time; draw nothing outside of training"
        )


class _Through(Projector):
    """A projector that changes nothing."""

    def forward(self, features_NW: Tensor, features: Sequence[int], grids: Sequence[Any]) -> Tensor:
        return features_NW
