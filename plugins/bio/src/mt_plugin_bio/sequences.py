"""Sequences of letters: options that all encoders here share, and the half of an encoder that reads. Torch is not imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, Self, TypeVar

from pydantic import Field, model_validator

from mt_core import DataError
from mt_core.media import Arrays, EncoderConfig, Measured, MediaItem, MediaPart

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Kind = Literal["dna", "protein"]
"""Alphabet of a sequence: the kind of a row's part."""


class Vocabulary(Protocol):
    """Letters to ids, with those that frame a sequence."""

    @property
    def letters(self) -> bytes:
        """Letters that it knows; the first alone is the shortest sequence."""
        ...

    def encode(self, letters: bytes) -> NDArray[np.int64]:
        """Return the ids of upper-case letters, all of them known."""
        ...


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Width of the hidden states, and blocks."""

    dim: int
    n_layers: int


@dataclass(frozen=True, kw_only=True)
class AttentionShape(Shape):
    """Width and blocks, attention heads, and the width between the two matrices of the MLP."""

    n_heads: int
    ffn_dim: int


class SequenceConfig(EncoderConfig):
    """Options of every encoder of sequences. Its numbers are those of a named size, or those that are given in their place."""

    dim: int | None = Field(None, ge=1, le=65_536, description="width of the hidden states and of a feature")
    n_layers: int | None = Field(None, ge=1, le=1000, description="blocks")
    max_len: int | None = Field(
        None, ge=1, le=2**31, description="longest sequence (letters); as many as the encoder takes without"
    )
    too_long: Literal["error", "cut"] = Field(
        "error", description="a longer sequence is a bad row, or loses its last letters"
    )
    soft_masked: bool = Field(
        False, description="read lower-case letters, which mark repeats, as their upper-case ones; bad rows without"
    )

    @property
    def shape(self) -> Shape:
        """The numbers that hold."""
        raise NotImplementedError

    @property
    def most_letters(self) -> int | None:
        """Letters of the longest sequence that the encoder takes."""
        return None

    @property
    def blocks(self) -> int:
        """Blocks that are built for the output of ``layer``: 0 is that of the embedding, -1 and nothing the last block's."""
        layer, n_layers = self.layer, self.shape.n_layers
        return n_layers if layer is None else layer if layer >= 0 else n_layers + 1 + layer

    @property
    def has_all_blocks(self) -> bool:
        """Whether the last block is built, and what stands behind it."""
        return self.blocks == self.shape.n_layers

    def build_vocabulary(self) -> Vocabulary:
        """Return what makes ids of letters."""
        raise NotImplementedError

    def faults(self) -> Iterator[str]:
        """Yield what does not fit together."""
        n_layers, most = self.shape.n_layers, self.most_letters
        if not 0 <= self.blocks <= n_layers:
            yield f"layer={self.layer}, and the encoder has {n_layers} layers; give one from {-n_layers - 1} to {n_layers}"
        if self.max_len is not None and most is not None and self.max_len > most:
            yield (
                f"max_len={self.max_len:,} letters are more than the encoder takes, {most:,} beside those that frame them;"
                " lower max_len, or choose a larger size"
            )

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.weights is not None and self.n_layers is None:
            return self  # the folder has the numbers, and the config is made again with them
        if found := list(self.faults()):
            raise ValueError("; and ".join(found))
        return self


class AttentionConfig(SequenceConfig):
    """Options of encoders with attention: a named size, or another one where its numbers are given."""

    sizes: ClassVar[Mapping[str, AttentionShape]]
    size: str = Field("tiny", description="size, of which the numbers below are taken where they are not given")
    n_heads: int | None = Field(None, ge=1, le=1024, description="attention heads")
    ffn_dim: int | None = Field(None, ge=1, le=262_144, description="width between the matrices of the MLP")

    @property
    def shape(self) -> AttentionShape:
        """The numbers that hold."""
        return shape_of(self.sizes[self.size], self)


class SequenceProcessor:
    """Parts of one ``kind`` to ids, one feature each: ``{"ids": (L,)}``."""

    def __init__(self, kind: Kind, vocabulary: Vocabulary, config: SequenceConfig) -> None:
        import numpy as np

        self.kind = kind
        self.vocabulary = vocabulary
        self.config = config
        self._bad = np.ones(256, bool)
        self._bad[np.frombuffer(vocabulary.letters, np.uint8)] = False

    def measure(self, part: MediaPart) -> Measured:
        """Count the ids of a sequence. Raises ``DataError`` for one that is empty, too long, or has letters of another alphabet."""
        place = f"{part.place}: " if part.place else ""
        if part.path:
            raise DataError(
                f"{place}{part.path} is a file, and a {self.kind} sequence is read from its row; put its letters there"
            )
        features = len(self.vocabulary.encode(self._letters(part.content, place)))
        return Measured(features=features, grid=None, digest=digest(part.content))

    def read(self, item: MediaItem) -> Arrays:
        """Return the ids of a sequence. Raises ``DataError`` where it is another one than was measured."""
        if item.digest and item.digest != digest(item.content):
            raise DataError(f"a {self.kind} sequence is another one than was measured; encode the rows again")
        return {"ids": self.vocabulary.encode(self._letters(item.content, ""))}

    def describe(self, item: MediaItem) -> str:
        """Say how long a sequence is: ``dna, 1,024 letters``."""
        return f"{self.kind}, {len(item.content):,} letters"

    def dummy(self) -> tuple[Measured, Arrays]:
        """Return a sequence of one letter."""
        content = self.vocabulary.letters[:1]
        ids = self.vocabulary.encode(content)
        return Measured(features=len(ids), grid=None, digest=digest(content)), {"ids": ids}

    def _letters(self, content: bytes, place: str) -> bytes:
        """Return the letters that are encoded: upper case, known, not too many."""
        import numpy as np

        if not content:
            raise DataError(f"{place}the {self.kind} sequence is empty; leave the part out, or give it letters")
        letters = content.upper() if self.config.soft_masked else content
        bad = self._bad[np.frombuffer(letters, np.uint8)]
        if bad.any():
            raise DataError(place + self._describe_bad(content, int(bad.argmax())))
        most = self.config.max_len or self.config.most_letters
        if most is None or len(letters) <= most:
            return letters
        if self.config.too_long == "cut":
            return letters[:most]
        raise DataError(
            f"{place}the {self.kind} sequence has {len(letters):,} letters, and the encoder takes {most:,};"
            " cut it, or set too_long to cut"
        )

    def _describe_bad(self, content: bytes, index: int) -> str:
        letter, known = content[index : index + 1], self.vocabulary.letters
        shown = repr(letter.decode("ascii")) if letter.isascii() else f"byte {letter.hex()}"
        hint = (
            "; set soft_masked true to read lower-case letters"
            if letter.upper() != letter and letter.upper() in known
            else ""
        )
        return (
            f"letter {index + 1:,} of {len(content):,} of the {self.kind} sequence is {shown};"
            f" letters are {known.decode('ascii')}{hint}"
        )


def digest(content: bytes) -> bytes:
    """Return 8 bytes of a sequence's hash."""
    return blake2b(content, digest_size=8).digest()


S = TypeVar("S", bound=Shape)


def shape_of(size: S, config: SequenceConfig) -> S:
    """Return the numbers of a named size, those that the config gives in their place. Both have the same names."""
    given = {each.name: getattr(config, each.name) for each in fields(size)}
    return replace(size, **{name: value for name, value in given.items() if value is not None})
