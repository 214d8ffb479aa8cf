"""Sound files to the spectrograms that Whisper's encoder reads. Torch is not imported."""

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
from .spectrogram import HOP, RATE, log_mel


@dataclass(frozen=True, kw_only=True)
class WhisperProcessor:
    """Reads WAVE files of up to one window, behind whose end there is silence.

    Whatever a sound's length, the encoder makes ``features`` of it, each of two frames: Whisper knows no mask.
    """

    n_mels: int
    features: int

    def measure(self, part: MediaPart) -> Measured:
        """Return features and digest. Raises ``DataError`` for a sound that cannot be read, and for one that is too long."""
        place = part.place or part.path or "the sound"
        content = read_content(part.path, part.content, place)
        self._open(content, place)
        return Measured(self.features, None, digest_of(content))

    def read(self, item: MediaItem) -> Mapping[str, NDArray[np.generic]]:
        """Return ``mel`` (1, M, F) in fp32. Raises ``DataError`` for another content than was measured."""
        place = item.path or "a sound of a row"
        content = read_content(item.path, item.content, place)
        require_same(content, item.digest, place)
        wave, ratio = self._open(content, place)
        samples_S = resample(mono(wave, place), *ratio)
        return {"mel": self._spectrogram(samples_S)}

    def describe(self, item: MediaItem) -> str:
        """Say how long a sound is, by its header. Raises ``DataError`` as ``read`` does."""
        place = item.path or "a sound of a row"
        return describe_wave(open_wave(read_content(item.path, item.content, place), place))

    def dummy(self) -> tuple[Measured, Mapping[str, NDArray[Any]]]:
        """Return silence: an encoder that hears windows of one length has no shorter one."""
        return Measured(self.features, None, b""), {"mel": self._spectrogram(np.zeros(1, np.float32))}

    @property
    def _samples(self) -> int:
        return 2 * self.features * HOP

    def _spectrogram(self, samples_S: NDArray[np.float32]) -> NDArray[np.float32]:
        return log_mel(np.pad(samples_S, (0, self._samples - len(samples_S))), self.n_mels)[None]

    def _open(self, content: bytes, place: str) -> tuple[Wave, tuple[int, int]]:
        """A sound that fits the window, and the ratio of 16 kHz to its rate."""
        wave = open_wave(content, place)
        ratio = require_rate(wave.rate, RATE, place)
        if resampled_length(wave.samples, *ratio) > self._samples:
            raise DataError(
                f"{place} has {wave.samples / wave.rate:.2f} seconds, and the encoder hears {self._samples / RATE:.2f}; cut it into pieces"
            )
        return wave, ratio
