"""Sound files: RIFF WAVE, whole numbers of 8 to 32 bits or floats, to samples of one channel at one rate. Torch is not imported.

Formats: https://www.mmsp.ece.mcgill.ca/Documents/AudioFormats/WAVE/WAVE.html.

Shapes: S samples, C channels, K taps of a phase of the filter.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mt_core import DataError

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_NAMES = {
    _PCM: "whole numbers",
    _FLOAT: "floats",
    2: "ADPCM",
    6: "A-law",
    7: "μ-law",
    17: "IMA ADPCM",
    49: "GSM",
    85: "MP3",
    255: "AAC",
}
_DEPTHS = {_PCM: (8, 16, 24, 32), _FLOAT: (32, 64)}
_UNKNOWN_SIZES = (0xFFFFFFFF, 0x7FFFF000)
"""Sizes that ffmpeg and SoX write into a pipe, where nobody comes back to correct them: the samples go on to the end of the file."""
MOST_CHANNELS = 32
MOST_PHASES = 1000
"""Most phases of the filter that changes a rate: 640 bring 11.025 kHz to 16 kHz."""

_WIDTH = 10
"""Zero crossings of the filter on each side, at the lower of the two rates."""
_BETA = 5.0
"""Shape of the filter's Kaiser window; with the width it is that of ``scipy.signal.resample_poly``."""


@dataclass(frozen=True)
class Wave:
    """A sound file: its header, and its samples as they are stored."""

    code: int
    bits: int
    channels: int
    rate: int
    data: memoryview

    @property
    def samples(self) -> int:
        """Samples of each channel."""
        return len(self.data) // (self.channels * self.bits // 8)


def open_wave(content: bytes, place: str) -> Wave:
    """Return the sound of a file. Raises ``DataError`` for what is no WAVE file, is cut short, or has samples of another form."""
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise DataError(
            f"{place} is no WAVE file: it begins with {content[:12]!r}; convert it to WAVE with 16 bits, at 16 kHz at best"
        )
    form: tuple[int, int, int, int] | None = None
    for name, chunk, size in _chunks(content):
        if name == b"fmt ":
            form = _form(chunk, place)
        elif name == b"data":
            if form is None:
                raise DataError(f"{place} has samples in front of their format; write the file anew")
            if len(chunk) != size and size not in _UNKNOWN_SIZES:
                raise DataError(
                    f"{place} is truncated: {len(chunk):,} of {size:,} bytes of samples are there; fetch or write it anew"
                )
            return _wave(form, chunk, place)
    raise DataError(
        f"{place} has no {'samples' if form else 'format'}: it is truncated or damaged; fetch or write it anew"
    )


def describe_wave(wave: Wave) -> str:
    """Return how long a sound is, for people: ``sound 2.1 s``."""
    return f"sound {wave.samples / wave.rate:.1f} s"


def _chunks(content: bytes) -> Iterator[tuple[bytes, memoryview, int]]:
    """Yield each chunk's name, what is there of it, and its size in bytes."""
    view, place = memoryview(content), 12
    while place + 8 <= len(content):
        name, size = struct.unpack_from("<4sI", content, place)
        yield name, view[place + 8 : place + 8 + size], size
        place += 8 + size + size % 2


def _form(chunk: memoryview, place: str) -> tuple[int, int, int, int]:
    """Code, bits, channels, rate."""
    if len(chunk) < 16:
        raise DataError(f"{place} has a format of {len(chunk)} bytes, and 16 are the fewest; fetch or write it anew")
    code, channels, rate, _, block, bits = struct.unpack_from("<HHIIHH", chunk)
    if code == _EXTENSIBLE and len(chunk) >= 26:
        (code,) = struct.unpack_from("<H", chunk, 24)
    if bits not in _DEPTHS.get(code, ()):
        raise DataError(
            f"{place} has samples of {bits} bits as {_NAMES.get(code, f'code {code}')}; read are whole numbers of 8, 16, 24 and 32 bits"
            " and floats of 32 and 64: convert it to one of these"
        )
    if not 1 <= channels <= MOST_CHANNELS or not rate or block != channels * bits // 8:
        raise DataError(
            f"{place} says {channels} channels at {rate} Hz in blocks of {block} bytes, which no sound of 1 to {MOST_CHANNELS} channels"
            f" with {bits} bits is; fetch or write it anew"
        )
    return code, bits, channels, rate


def _wave(form: tuple[int, int, int, int], data: memoryview, place: str) -> Wave:
    found = Wave(*form, data)
    if len(data) % (found.channels * found.bits // 8):
        raise DataError(f"{place} ends within a sample; it is truncated: fetch or write it anew")
    if not found.samples:
        raise DataError(f"{place} has no samples; leave the row out")
    return found


def mono(wave: Wave, place: str) -> NDArray[np.float32]:
    """Return the mean of all channels (S), whole numbers as parts of their range. Raises ``DataError`` for a sample that is no number."""
    if wave.code == _FLOAT:
        samples_S = np.frombuffer(wave.data, f"<f{wave.bits // 8}").astype(np.float64)
    else:
        samples_S = _whole_numbers(wave) / 2.0 ** (wave.bits - 1)
    if not np.isfinite(samples_S).all():
        raise DataError(f"{place} has samples that are no numbers (NaN or infinite); write it anew")
    mean_S: NDArray[np.float64] = samples_S.reshape(-1, wave.channels).mean(1)
    return mean_S.astype(np.float32)


def _whole_numbers(wave: Wave) -> NDArray[np.signedinteger]:
    if wave.bits == 8:  # the only depth without a sign
        return np.frombuffer(wave.data, np.uint8).astype(np.int16) - 128
    if wave.bits == 24:
        bytes_S4 = np.zeros((len(wave.data) // 3, 4), np.uint8)
        bytes_S4[:, 1:] = np.frombuffer(wave.data, np.uint8).reshape(-1, 3)
        return bytes_S4.view("<i4")[:, 0] >> 8
    return np.frombuffer(wave.data, f"<i{wave.bits // 8}")


def require_rate(rate: int, target: int, place: str) -> tuple[int, int]:
    """Return the ratio of two rates in lowest terms. Raises ``DataError`` for one whose filter would have too many phases."""
    common = math.gcd(rate, target)
    up, down = target // common, rate // common
    if up > MOST_PHASES or down > MOST_PHASES * 10:
        raise DataError(f"{place} has {rate} Hz, which is no simple ratio of {target} Hz; convert it to {target} Hz")
    return up, down


def resampled_length(samples: int, up: int, down: int) -> int:
    """Return how many samples there are at the other rate."""
    return -(-samples * up // down)


def resample(samples_S: NDArray[np.float32], up: int, down: int) -> NDArray[np.float32]:
    """Return the samples at ``up / down`` times their rate, through a windowed sinc: each phase of it is one matrix product.

    Values are those of ``scipy.signal.resample_poly``.
    """
    if up == down:
        return samples_S
    half = _WIDTH * max(up, down)
    taps = np.sinc(np.arange(-half, half + 1) / max(up, down)) * np.kaiser(2 * half + 1, _BETA)
    taps *= up / taps.sum()
    out_S = np.empty(resampled_length(len(samples_S), up, down))
    reach = len(taps) // up + 1
    padded_S = np.pad(samples_S.astype(np.float64), (reach, 2 * reach))
    for phase in range(min(up, len(out_S))):
        place, remainder = divmod(phase * down + half, up)  # in a signal with up - 1 zeros behind each sample
        taps_K = taps[remainder::up][::-1]
        windows_SK = np.lib.stride_tricks.sliding_window_view(padded_S, len(taps_K))[
            place - len(taps_K) + 1 + reach :: down
        ]
        out_S[phase::up] = windows_SK[: len(out_S[phase::up])] @ taps_K
    return out_S.astype(np.float32)
