"""Whisper's encoder: spectrograms and features are transformers', bad sounds are refused, folders are read."""

from __future__ import annotations

import io
import json
import os
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import WhisperConfig as TheirConfig
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperModel
from transformers.models.whisper.modeling_whisper import WhisperEncoder as TheirEncoder

from mt_core import DataError, WeightsError
from mt_core.media import MediaItem, MediaPart
from mt_plugin_multimodal.encoders.whisper import COMPONENT, WhisperConfig

SIZES = {"n_mels": 8, "dim": 16, "n_layers": 3, "n_heads": 2, "ffn_dim": 24, "n_features": 10}
THEIRS = {
    "num_mel_bins": 8,
    "d_model": 16,
    "encoder_layers": 3,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "max_source_positions": 10,
    "decoder_layers": 1,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 8,
    "vocab_size": 32,
    "max_target_positions": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


def wav(samples: np.ndarray, rate: int = 16_000) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes((samples * 32_767).round().astype("<i2").tobytes())
    return file.getvalue()


def speech(samples: int) -> np.ndarray:
    time = np.arange(samples) / 16_000
    noise = np.random.default_rng(0).normal(scale=0.02, size=samples)
    return 0.4 * np.sin(2 * np.pi * 220 * time * (1 + time)) + 0.1 * np.sin(2 * np.pi * 3000 * time) + noise


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whisper")
    torch.manual_seed(0)
    model = WhisperForConditionalGeneration(TheirConfig(**THEIRS))
    for name, parameter in model.named_parameters():
        if not name.endswith("embed_positions.weight"):
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(path)
    return path


def read(folder: Path, **options: object) -> tuple[WhisperConfig, torch.nn.Module]:
    (form,) = COMPONENT.formats
    assert form.matches(folder)
    config = WhisperConfig(**{**form.values(folder), **options})
    module = COMPONENT.build(config)
    loaded = module.load_state_dict({name: load() for name, load in form.tensors(folder, config).items()}, strict=True)
    assert not loaded.missing_keys
    return config, module


@pytest.mark.parametrize(("n_mels", "samples"), [(80, 16_000 * 30), (128, 50_001), (80, 1)])
def test_spectrograms_equal_transformers_within_1e_4(n_mels: int, samples: int) -> None:
    sound = speech(samples)
    found = COMPONENT.processor(WhisperConfig(n_mels=n_mels)).read(MediaItem("whisper", content=wav(sound)))["mel"]
    heard = np.round(sound * 32_767).astype(np.int16).astype(np.float32) / 32_768
    extractor = WhisperFeatureExtractor(feature_size=n_mels)
    expected = extractor(heard, sampling_rate=16_000, return_tensors="np")["input_features"]
    assert found.shape == (1, n_mels, 3000)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_features_and_gradients_equal_transformers(folder: Path) -> None:
    config, ours = read(folder)
    theirs = WhisperModel.from_pretrained(folder).get_encoder()
    mel, weight = torch.randn(2, 8, 20), torch.randn(20, 16)
    found = ours({"mel": mel}, (10, 10))
    assert found.shape == (20, COMPONENT.width(config))
    expected = theirs(mel).last_hidden_state.flatten(0, 1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    (found * weight).sum().backward()
    (expected * weight).sum().backward()
    others = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, others[name].grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("layer", "block"), [(-2, 1), (1, 0), (-1, 2)])
def test_features_of_a_layer_are_its_output_and_layers_above_are_not_built(
    folder: Path, layer: int, block: int
) -> None:
    _, ours = read(folder, layer=layer)
    theirs = TheirEncoder.from_pretrained(folder, config=TheirConfig(**THEIRS))
    theirs.load_state_dict(WhisperModel.from_pretrained(folder).encoder.state_dict())
    seen = []
    theirs.layers[block].register_forward_hook(lambda *call: seen.append(call[-1]))
    mel = torch.randn(1, 8, 20)
    theirs(mel)
    torch.testing.assert_close(ours({"mel": mel}, (10,)), seen[0].flatten(0, 1), rtol=1e-5, atol=1e-5)
    assert len(ours.layers) == block + 1
    assert not any(name.startswith("layer_norm") for name, _ in ours.named_parameters())


def test_a_sound_is_measured_and_read_as_long_as_the_window() -> None:
    config = WhisperConfig(**SIZES)  # 0.2 s
    processor = COMPONENT.processor(config)
    content = wav(speech(3200 * 3), rate=48_000)
    measured = processor.measure(MediaPart("audio", content=content, place="row 1, audio"))
    assert (measured.features, measured.grid, len(measured.digest)) == (10, None, 8)
    assert processor.read(MediaItem("whisper", content=content, digest=measured.digest))["mel"].shape == (1, 8, 20)
    silence, arrays = processor.dummy()
    assert silence.features == len(COMPONENT.build(config)({"mel": torch.from_numpy(arrays["mel"])}, (10,)))


def test_a_sound_longer_than_the_window_is_refused_by_its_header() -> None:
    with pytest.raises(DataError, match=r"row 1, audio has 0.25 seconds, and the encoder hears 0.20; cut it"):
        COMPONENT.processor(WhisperConfig(**SIZES)).measure(
            MediaPart("audio", content=wav(np.zeros(4000)), place="row 1, audio")
        )


def test_a_file_that_changed_or_is_none_is_refused(tmp_path: Path) -> None:
    processor = COMPONENT.processor(WhisperConfig(**SIZES))
    file = tmp_path / "a.wav"
    file.write_bytes(wav(speech(100)))
    measured = processor.measure(MediaPart("audio", path=str(file)))
    file.write_bytes(wav(speech(101)))
    with pytest.raises(DataError, match="another content"):
        processor.read(MediaItem("whisper", path=str(file), digest=measured.digest))
    os.mkfifo(tmp_path / "pipe")
    for name, said in {"pipe": "no regular file", ".": "Is a directory", "b.wav": "No such file"}.items():
        with pytest.raises(DataError, match=said):
            processor.measure(MediaPart("audio", path=str(tmp_path / name)))


def test_folders_that_are_another_model_are_refused(folder: Path, tmp_path: Path) -> None:
    (form,) = COMPONENT.formats
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({**config, "activation_function": "relu"}))
    with pytest.raises(WeightsError, match="activation_function='relu'"):
        form.values(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = {"feature_extractor": {"feature_extractor_type": "WhisperFeatureExtractor", "sampling_rate": 8000}}
    (tmp_path / "processor_config.json").write_text(json.dumps(said))  # as transformers 5 writes it
    with pytest.raises(WeightsError, match=r"processor_config\.json.*sampling_rate"):
        form.values(tmp_path)
    (tmp_path / "processor_config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps({**config, "d_model": None}))
    with pytest.raises(WeightsError, match="no whole number for d_model"):
        form.values(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "bert"}))
    assert not form.matches(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(WeightsError, match="pickles are not read"):
        form.values(tmp_path)


def test_trained_positions_and_missing_tensors_are_refused(folder: Path, tmp_path: Path) -> None:
    (form,) = COMPONENT.formats
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    config = WhisperConfig(**form.values(folder))
    whole = {name: load() for name, load in form.tensors(folder, config).items()}
    save_file({**whole, "embed_positions.weight": torch.randn(10, 16)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match="positions that were trained"):
        form.tensors(tmp_path, config)
    del whole["conv2.bias"]
    save_file(whole, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"lacks 1 of the encoder's .* conv2.bias among them"):
        form.tensors(tmp_path, config)


def test_a_layer_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="layer=-5 is none of 3 layers"):
        WhisperConfig(**{**SIZES, "layer": -5})


def test_people_are_told_how_long_a_sound_is() -> None:
    item = MediaItem("whisper", content=wav(np.zeros(33_600)))
    assert COMPONENT.processor(WhisperConfig()).describe(item) == "sound 2.1 s"
