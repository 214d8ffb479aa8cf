"""Encoders of media and their projectors, as a run names them, and the half of an encoder that reads. Torch is not imported.

An encoder makes features of an image, a sequence or a sound, and its projector makes of these the hidden states that stand in a row in
the place of tokens. How many there are follows from the content's header or length alone, so rows are cut, packed and counted before
anything is encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from pydantic import Field, field_validator

from mt_core.components import Component, PartChoice, WeightsFormat
from mt_core.config.base import ANY, Layout, MtConfig
from mt_core.errors import ComponentError
from mt_core.rows import MEDIA_MARK, Encoded, Grid, MediaItem, MediaPart, MediaSpan, Message, join_media

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "MEDIA_MARK",
    "Arrays",
    "DescribesItems",
    "EncoderComponent",
    "EncoderConfig",
    "EncodesMedia",
    "Grid",
    "Measured",
    "MediaItem",
    "MediaPart",
    "MediaSpan",
    "Processor",
    "ProjectorComponent",
    "join_media",
]

Arrays = Mapping[str, "NDArray[np.generic]"]
"""Arrays of items by name. Several items are concatenated along the first dimension, in which an item may have any size."""


@dataclass(frozen=True)
class Measured:
    """Facts from an item's header: the number of its features, their rows and columns, and 8 bytes of its content's hash."""

    features: int
    grid: Grid | None
    digest: bytes


class Processor(Protocol):
    """The half of an encoder that reads files: it measures a media part, and turns it into arrays for the encoder.

    It is called in threads and forked workers, and imports no torch.
    """

    def measure(self, part: MediaPart) -> Measured:
        """Return what is known before anything is decoded. Raises ``DataError`` for a part that cannot be read."""
        ...

    def read(self, item: MediaItem) -> Arrays:
        """Decode one item: a pure function of its content. Raises ``DataError`` where that is another than was measured."""
        ...

    def dummy(self) -> tuple[Measured, Arrays]:
        """Return the smallest item, which is encoded where a batch has none: every rank calls every encoder once."""
        ...


@runtime_checkable
class DescribesItems(Protocol):
    """A processor that describes an item in a few words, ``image 336×336``, from its header only."""

    def describe(self, item: MediaItem) -> str: ...


@runtime_checkable
class EncodesMedia(Protocol):
    """The template of a run with encoders, which also encodes media in texts that are not conversations.

    What ``prompt`` of such a template refuses, conversations with media, ``encode_prompt`` takes.
    """

    def encode_prompt(self, messages: Sequence[Message]) -> Encoded:
        """Return the ids up to where the assistant begins to speak, and the media among them; nothing is trained on."""
        ...

    def encode_text(
        self, text: str, parts: Sequence[MediaPart], *, begin: Sequence[int], end: Sequence[int]
    ) -> Encoded:
        """Return a text with its media, all else of which is trained on, between the ids that begin and end it."""
        ...


class EncoderConfig(MtConfig):
    """Options of every encoder; subclass it to add an encoder's own."""

    projector: Mapping[str, Any] = Field(
        default={"name": "mlp"}, description="the projector and its options: {name: mlp, depth: 2}"
    )
    weights: str | None = Field(
        None,
        description="folder of its weights, its name on the Hub, or 'model' for that of model.weights; drawn without",
    )
    layer: int | None = Field(
        None,
        ge=-1000,
        le=1000,
        description="layer whose output is the features (-2: the second to last); default: the last",
    )
    begin: str = Field("", description="text before an item, special tokens allowed")
    end: str = Field("", description="text after an item, special tokens allowed")
    token: str | None = Field(
        None, description="special token whose id fills the places of an item; it has no meaning here"
    )
    limit: int | None = Field(None, ge=1, le=1_000_000, description="most items of a row; a row with more is a bad one")
    features: str | None = Field(
        None,
        description="folder of the features of an encoder that trains nothing, each computed once; auto is MT_CACHE or ~/.cache/mt/tokens;"
        " none computes them in every step",
    )

    @field_validator("projector", mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {**cls.model_fields["projector"].default, **value} if "name" not in value else value
        return {"name": value} if isinstance(value, str) else value


def projector_of(config: EncoderConfig) -> Mapping[str, PartChoice]:
    """Return the projector that an encoder's config names, as its only part."""
    return {"projector": PartChoice.of(config.projector, kind="projector")}


@dataclass(frozen=True, kw_only=True)
class EncoderComponent(Component):
    """An encoder. ``build(config)`` returns a ``mt_core.nn.Encoder`` without its projector.

    ``reads`` are the kinds of parts that it takes (``image``); a run has one encoder for each kind. ``width(config)`` is that of a feature,
    ``processor(config)`` the half that reads, both without torch. ``formats`` are those of ``weights``; names there are
    those of the module that ``build`` returns. A format that writes has ``exported`` and ``written``, too: the keys of a whole model's
    ``config.json`` beside ``text_config``, ``architectures`` among them, and the tensors of its files, those included that are not built.
    ``files(config, token)`` are JSON files that say there how media are read, and which token stands for them. ``layouts`` need
    not be said: whoever has the first layer encodes.
    """

    given_to_parts: ClassVar[tuple[str, ...]] = ("source", "target")
    """Keywords that the run builds the projector with, which it does apart: widths of a feature and of a hidden state."""
    config: type[MtConfig] = EncoderConfig
    layouts: frozenset[Layout] = ANY
    parts: Callable[[Any], Mapping[str, PartChoice]] | None = projector_of
    reads: frozenset[str]
    width: Callable[[Any], int]
    processor: Callable[[Any], Processor]
    formats: tuple[WeightsFormat, ...] = ()
    files: Callable[[Any, str], Mapping[str, Mapping[str, Any]]] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not issubclass(self.config, EncoderConfig):
            raise ComponentError(
                f"the config of encoder {self.name!r} is {self.config.__name__}; it must be a subclass of mt_core.EncoderConfig"
            )
        if not self.reads:
            raise ComponentError(
                f"encoder {self.name!r} reads no kind of part; say reads=frozenset({{'image'}}), for instance"
            )


@dataclass(frozen=True, kw_only=True)
class ProjectorComponent(Component):
    """A projector: ``build(config, source, target)`` returns a ``mt_core.nn.Projector`` from features to hidden states of these widths.

    ``tokens(config, features, grid)`` is how many hidden states it makes of an item: pure, without torch. Raises ``DataError`` for an
    item of which it can make none. ``formats`` are whole models that have such a projector beside an encoder and a text model; names
    there are those of the module that ``build`` returns.
    """

    layouts: frozenset[Layout] = ANY
    tokens: Callable[[Any, int, Grid | None], int]
    formats: tuple[WeightsFormat, ...] = ()
