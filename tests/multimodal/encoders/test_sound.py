"""WAVE files: every form of samples is the same sound, and what is no sound is refused in one sentence."""

from __future__ import annotations

import io
import struct
import wave

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mt_core import DataError
from mt_plugin_multimodal.encoders.sound import mono, open_wave, require_rate, resample, resampled_length

SOUND = np.round(np.sin(np.arange(300) / 7) * 100).astype(np.int64)
"""Whole numbers below 2^7, so that every depth has them exactly."""


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"".join(name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2) for name, data in chunks)
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body


def form(code: int, bits: int, channels: int = 1, rate: int = 16_000, more: bytes = b"") -> tuple[bytes, bytes]:
    block = channels * bits // 8
    return b"fmt ", struct.pack("<HHIIHH", code, channels, rate, rate * block, block, bits) + more


def raw(bits: int, floats: bool = False) -> bytes:
    if floats:
        return (SOUND / 128).astype(f"<f{bits // 8}").tobytes()
    if bits == 8:
        return (SOUND + 128).astype(np.uint8).tobytes()
    return b"".join((int(each) << (bits - 8)).to_bytes(bits // 8, "little", signed=True) for each in SOUND)


EXTENSION = struct.pack("<HHIH", 22, 24, 4, 1) + bytes.fromhex("000000001000800000aa00389b71")
FORMS = {
    "8": (form(1, 8), raw(8)),
    "16": (form(1, 16), raw(16)),
    "24": (form(1, 24), raw(24)),
    "32": (form(1, 32), raw(32)),
    "float": (form(3, 32), raw(32, floats=True)),
    "double": (form(3, 64), raw(64, floats=True)),
    "extensible": (form(0xFFFE, 24, more=EXTENSION), raw(24)),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_depth_is_the_same_sound(name: str) -> None:
    head, data = FORMS[name]
    found = open_wave(riff(head, (b"LIST", b"odd"), (b"data", data), (b"id3 ", b"..")), "row 1")
    assert found.samples == 300
    np.testing.assert_array_equal(mono(found, "row 1"), (SOUND / 128).astype(np.float32))


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFF000])
def test_a_sound_out_of_a_pipe_has_samples_to_the_end_of_its_file(size: int) -> None:
    """As ffmpeg and SoX write them, and the standard library reads them."""
    head, data = FORMS["16"]
    content = riff(head, (b"data", data)).replace(struct.pack("<I", len(data)), struct.pack("<I", size))
    with wave.open(io.BytesIO(content)) as file:
        assert file.readframes(1000) == data
    assert bytes(open_wave(content, "row 1").data) == data


def test_a_file_of_the_standard_library_is_read_and_channels_are_averaged() -> None:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(2)
        out.setsampwidth(2)
        out.setframerate(8000)
        out.writeframes(np.stack([SOUND, 3 * SOUND], 1).astype("<i2").tobytes())
    found = open_wave(file.getvalue(), "row 1")
    assert (found.rate, found.samples) == (8000, 300)
    np.testing.assert_array_equal(mono(found, "row 1"), (2 * SOUND / 2**15).astype(np.float32))


PCM = form(1, 16)
BAD = {
    "is no WAVE file": b"\xff\xfbMP3 and more",
    "no format": riff(),
    "no samples: it is truncated": riff(PCM),
    "in front of their format": riff((b"data", b"ab"), PCM),
    "is truncated: 2 of 600": riff(PCM, (b"data", raw(16)))[:-598],
    "ends within a sample": riff(PCM, (b"data", b"abc")),
    "has no samples; leave": riff(PCM, (b"data", b"")),
    "format of 4 bytes": riff((b"fmt ", b"abcd"), (b"data", b"ab")),
    "8 bits as A-law": riff(form(6, 8), (b"data", b"ab")),
    "12 bits as whole numbers": riff(form(1, 12), (b"data", b"ab")),
    "0 channels": riff(form(1, 16, channels=0), (b"data", b"ab")),
    "at 0 Hz": riff(form(1, 16, rate=0), (b"data", b"ab")),
    "no numbers": riff(form(3, 32), (b"data", struct.pack("<f", float("nan")))),
}


@pytest.mark.parametrize("said", BAD)
def test_what_is_no_sound_is_refused_in_one_sentence(said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        mono(open_wave(BAD[said], "row 7"), "row 7")
    assert str(caught.value).startswith("row 7 ")


@given(st.data())
def test_damaged_files_are_read_or_refused_and_nothing_else(data: st.DataObject) -> None:
    refusals: list[str] = []
    content = bytearray(riff(*FORMS[data.draw(st.sampled_from(sorted(FORMS)))][:1], (b"data", raw(24))))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 60))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(0, len(content))) :]
    try:
        found = mono(open_wave(bytes(content), "row 1"), "row 1")
    except DataError as error:
        refusals.append(str(error))
    else:
        assert np.isfinite(found).all()
    assert all(each.startswith("row 1 ") for each in refusals)


@pytest.mark.parametrize("rate", [8000, 11_025, 16_000, 22_050, 44_100, 48_000])
def test_another_rate_is_brought_to_16_khz_as_scipy_does(rate: int) -> None:
    signal = pytest.importorskip("scipy.signal")
    sound = np.random.default_rng(0).normal(size=1501).astype(np.float32)
    up, down = require_rate(rate, 16_000, "row 1")
    found = resample(sound, up, down)
    assert len(found) == resampled_length(len(sound), up, down)
    np.testing.assert_allclose(found, signal.resample_poly(sound.astype(np.float64), up, down), atol=1e-5)


def test_a_tone_stays_a_tone() -> None:
    tone = np.sin(2 * np.pi * 440 * np.arange(44_100) / 44_100).astype(np.float32)
    found = resample(tone, *require_rate(44_100, 16_000, "row 1"))
    expected = np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)
    np.testing.assert_allclose(found[200:-200], expected[200:-200], atol=2e-3)


def test_a_rate_without_a_simple_ratio_is_refused() -> None:
    with pytest.raises(DataError, match="44101 Hz, which is no simple ratio"):
        require_rate(44_101, 16_000, "row 1")
