"""Sound files to the samples that encoders of raw sound read. Torch is not imported.

Shapes: S samples of an item.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mt_core import DataError
from mt_core.media import Measured, MediaItem, MediaPart

from ...content import digest_of, read_content, require_same
from ..sound import Wave, describe_wave, mono, open_wave, require_rate, resample, resampled_length

RATE = 16_000
"""Samples a second."""
_TINY = 1e-7
"""Added to the variance of a sound, as at transformers."""


@dataclass(frozen=True)
class Windows:
    """Convolutions without padding, one after another: ``kernels`` and ``strides`` of each."""

    kernels: tuple[int, ...]
    strides: tuple[int, ...]

    def features(self, samples: int) -> int:
        """Return how many windows there are behind the last one; none or less of a sound that is too short."""
        for kernel, stride in zip(self.kernels, self.strides, strict=True):
            samples = (samples - kernel) // stride + 1 if samples >= kernel else 0
        return samples

    def most_samples(self, features: int) -> int:
        """Return the most samples of which there are so many features."""
        for kernel, stride in reversed(list(zip(self.kernels, self.strides, strict=True))):
            features = features * stride + kernel - 1
        return features

    def fewest_samples(self) -> int:
        """Return the fewest samples of which there is a feature."""
        samples = 1
        for kernel, stride in reversed(list(zip(self.kernels, self.strides, strict=True))):
            samples = (samples - 1) * stride + kernel
        return samples


@dataclass(frozen=True, kw_only=True)
class SoundProcessor:
    """Reads WAVE files: ``samples`` of all items one after another, and ``lengths``.

    With ``normalize`` a sound has mean 0 and variance 1.
    """

    windows: Windows
    seconds: float
    normalize: bool

    def measure(self, part: MediaPart) -> Measured:
        """Return features and digest, by the header. Raises ``DataError`` for a sound that is too short, too long or none."""
        place = part.place or part.path or "the sound"
        content = read_content(part.path, part.content, place)
        wave, ratio = self._open(content, place)
        return Measured(self.windows.features(resampled_length(wave.samples, *ratio)), None, digest_of(content))

    def read(self, item: MediaItem) -> Mapping[str, NDArray[np.generic]]:
        """Return ``samples`` (S) in fp32 and ``lengths`` (1). Raises ``DataError`` for another content than was measured."""
        place = item.path or "a sound of a row"
        content = read_content(item.path, item.content, place)
        require_same(content, item.digest, place)
        wave, ratio = self._open(content, place)
        return self._arrays(resample(mono(wave, place), *ratio))

    def describe(self, item: MediaItem) -> str:
        """Say how long a sound is, by its header. Raises ``DataError`` as ``read`` does."""
        place = item.path or "a sound of a row"
        return describe_wave(open_wave(read_content(item.path, item.content, place), place))

    def dummy(self) -> tuple[Measured, Mapping[str, NDArray[Any]]]:
        """Return the shortest silence of which there is a feature."""
        return Measured(1, None, b""), self._arrays(np.zeros(self.windows.fewest_samples(), np.float32))

    def _arrays(self, samples_S: NDArray[np.float32]) -> Mapping[str, NDArray[Any]]:
        if self.normalize:
            samples_S = (samples_S - samples_S.mean()) / np.sqrt(samples_S.var() + _TINY)
        return {"samples": samples_S.astype(np.float32), "lengths": np.array([len(samples_S)])}

    def _open(self, content: bytes, place: str) -> tuple[Wave, tuple[int, int]]:
        """A sound of allowed length, and the ratio of 16 kHz to its rate."""
        wave = open_wave(content, place)
        ratio = require_rate(wave.rate, RATE, place)
        samples = resampled_length(wave.samples, *ratio)
        if samples > self.seconds * RATE:
            raise DataError(
                f"{place} has {samples / RATE:.2f} seconds, more than seconds={self.seconds:g}; cut it into pieces, or raise it"
            )
        if not self.windows.features(samples):
            fewest = 1000 * self.windows.fewest_samples() / RATE
            raise DataError(
                f"{place} has {1000 * samples / RATE:.1f} ms, and a feature needs {fewest:.1f} ms; leave the row out"
            )
        return wave, ratio
