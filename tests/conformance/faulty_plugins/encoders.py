"""Encoders of letters: one without a fault, and others that each do one thing wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import count
from typing import Any

import numpy as np
from torch import Generator, Tensor, enable_grad, nn, zeros

from mt_core import DataError
from mt_core.media import Measured, MediaItem, MediaPart
from mt_core.nn import Encoder

CALLS = count()
LETTERS = b"ACGT"
WIDTH = 4


class Sober:
    """A processor without a fault: a letter is a feature."""

    def measure(self, part: MediaPart) -> Measured:
        self.check(part)
        return Measured(len(part.content), None, self.digest(part))

    def check(self, part: MediaPart) -> None:
        if part.path or not part.content or set(part.content) - set(LETTERS):
            raise DataError(f"{part.place}: no letters of DNA; correct the row")

    def digest(self, part: MediaPart) -> bytes:
        return sha256(part.content).digest()[:8]

    def read(self, item: MediaItem) -> Mapping[str, Any]:
        if item.digest and item.digest != self.digest(MediaPart("dna", content=item.content)):
            raise DataError("another content than was measured; encode the rows anew")
        return {"ids": np.array([LETTERS.index(each) for each in item.content], np.int64)}

    def dummy(self) -> tuple[Measured, Mapping[str, Any]]:
        return self.measure(MediaPart("dna", content=b"A")), self.read(MediaItem("", content=b"A"))


class Uncounted(Sober):
    def measure(self, part: MediaPart) -> Measured:
        return Measured(super().measure(part).features + 1, None, self.digest(part))


class Drawing(Sober):
    def read(self, item: MediaItem) -> Mapping[str, Any]:
        return {"ids": (super().read(item)["ids"] + next(CALLS)) % len(LETTERS)}


class Trusting(Sober):
    def read(self, item: MediaItem) -> Mapping[str, Any]:
        return super().read(MediaItem("", content=item.content))


class Placed(Sober):
    def digest(self, part: MediaPart) -> bytes:
        return sha256(part.place.encode() + part.content).digest()[:8]

    def read(self, item: MediaItem) -> Mapping[str, Any]:
        return super().read(MediaItem("", content=item.content))


class Shallow(Sober):
    def digest(self, part: MediaPart) -> bytes:
        return sha256(part.content[:1]).digest()[:8]


class Measuring(Sober):
    """A digest of the length alone."""

    def digest(self, part: MediaPart) -> bytes:
        return sha256(bytes(len(part.content))).digest()[:8]


class Fragile(Sober):
    def check(self, part: MediaPart) -> None:
        if not part.content:
            raise DataError(f"{part.place}: no letters; correct the row")


class Heavy(Sober):
    def read(self, item: MediaItem) -> Mapping[str, Any]:
        import torch

        return {name: torch.from_numpy(each).numpy() for name, each in super().read(item).items()}


class SoberEncoder(Encoder):
    """A module without a fault."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Mapping[str, Tensor], features: Sequence[int]) -> Tensor:
        return self.linear(self.letters(inputs["ids"]))


class MixingEncoder(SoberEncoder):
    def forward(self, inputs: Mapping[str, Tensor], features: Sequence[int]) -> Tensor:
        found = super().forward(inputs, features)
        return found + found.mean(0)


class UnreachedEncoder(SoberEncoder):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.long = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Mapping[str, Tensor], features: Sequence[int]) -> Tensor:
        found = super().forward(inputs, features)
        return self.long(found) if len(found) > 2 else found


class LoopingEncoder(SoberEncoder):
    def forward(self, inputs: Mapping[str, Tensor], features: Sequence[int]) -> Tensor:
        from torch import cat

        return cat([self.linear(each) for each in self.letters(inputs["ids"]).split(list(features))])


class UndrawnEncoder(SoberEncoder):
    def init_tensor(self, name: str, tensor: Tensor, generator: Generator) -> None:
        if not name.endswith("bias"):
            super().init_tensor(name, tensor, generator)


class FixedEncoder(SoberEncoder):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.shift = nn.Parameter(zeros(WIDTH, device="cpu"))


class WideEncoder(SoberEncoder):
    def forward(self, inputs: Mapping[str, Tensor], features: Sequence[int]) -> Tensor:
        return super().forward(inputs, features).float()


class KeepingEncoder(SoberEncoder):
    def forward(self, inputs: Mapping[str, Tensor], features: Sequence[int]) -> Tensor:
        with enable_grad():
            return (self.linear(self.letters(inputs["ids"]).requires_grad_())).tanh()
