"""Whisper's log-mel spectrogram, with the values of transformers' ``WhisperFeatureExtractor``. Torch is not imported.

Shapes: S samples, F frames, B frequencies, M mel channels.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

RATE = 16_000
"""Samples a second."""
HOP = 160
"""Samples from one frame to the next: 10 ms."""
_WINDOW = 400
"""Samples of a frame: 25 ms."""
_RANGE = 8.0
"""Powers of ten below the loudest point, where all that is quieter is cut off."""


def log_mel(samples_S: NDArray[np.float32], n_mels: int) -> NDArray[np.float32]:
    """Return the spectrogram (M, F) of samples at 16 kHz, one frame for each 10 ms."""
    padded_S = np.pad(samples_S.astype(np.float64), _WINDOW // 2, mode="reflect")
    frames_FS = np.lib.stride_tricks.sliding_window_view(padded_S, _WINDOW)[::HOP][:-1]
    window_S = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WINDOW) / _WINDOW)  # Hann, periodic
    power_FB = np.abs(np.fft.rfft(frames_FS * window_S)) ** 2
    log_MF: NDArray[np.float64] = np.log10(np.maximum(mel_filters(n_mels) @ power_FB.T, 1e-10))
    log_MF = np.maximum(log_MF, log_MF.max() - _RANGE)
    return ((log_MF + 4.0) / 4.0).astype(np.float32)


@cache
def mel_filters(n_mels: int) -> NDArray[np.float64]:
    """Return (M, B): triangles that are evenly spaced in Slaney's mel scale, each of area 1.

    The scale is linear up to 1000 Hz, 15 mel, and logarithmic above, 27 mel for a factor of 6.4
    (Slaney, Auditory Toolbox, 1998).
    """
    mels = np.linspace(0, 15 + 27 * np.log(RATE / 2 / 1000) / np.log(6.4), n_mels + 2)
    corners = np.where(mels < 15, mels * 200 / 3, 1000 * np.exp((mels - 15) * np.log(6.4) / 27))
    frequencies_B = np.linspace(0, RATE / 2, _WINDOW // 2 + 1)
    low_M1, peak_M1, high_M1 = (corners[each : each + n_mels, None] for each in range(3))
    rising_MB, falling_MB = (
        (frequencies_B - low_M1) / (peak_M1 - low_M1),
        (high_M1 - frequencies_B) / (high_M1 - peak_M1),
    )
    filters: NDArray[np.float64] = np.maximum(0, np.minimum(rising_MB, falling_MB)) * 2 / (high_M1 - low_M1)
    return filters
