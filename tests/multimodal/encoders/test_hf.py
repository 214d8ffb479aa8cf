"""Encoders of transformers by their own code: each type gives the features of its own class, in a batch as alone."""

from __future__ import annotations

import builtins
import io
import json
import wave
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_MAPPING,
    CLIPConfig,
    CLIPModel,
    EsmTokenizer,
    SiglipConfig,
    SiglipModel,
    Wav2Vec2FeatureExtractor,
)

from mt_core import DataError, UsageError, WeightsError
from mt_core.media import EncoderComponent, MediaItem, MediaPart
from mt_plugin_multimodal.encoders.hf import COMPONENTS
from mt_plugin_multimodal.encoders.hf.sounds import Windows
from mt_plugin_multimodal.encoders.hf.types import DEFAULTS, TYPES
from mt_train.engine.build import without_memory

SIZES = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24}
IMAGES = {"image_size": 16, "patch_size": 4}
WORDS = {"vocab_size": 33, "pad_token_id": 1, "max_position_embeddings": 40}
OWN: dict[str, dict[str, Any]] = {
    "siglip_vision_model": {"vision_use_head": False},
    "dinov2": {"image_size": 24},
    "dinov2_with_registers": {"num_register_tokens": 2},
    "dinov2 gated": {"image_size": 24, "use_swiglu_ffn": True},
    "dinov2_with_registers gated": {"use_swiglu_ffn": True},
    "dinov3_vit": {"num_register_tokens": 2},
    "beit": {"use_mean_pooling": False, "use_relative_position_bias": True},
    "electra": {"embedding_size": 8},
    "esm": {"position_embedding_type": "rotary", "token_dropout": True, "mask_token_id": 32},
    "wav2vec2 stable": {"feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True},
    "modernbert": {"cls_token_id": 0, "sep_token_id": 2, "bos_token_id": 0, "eos_token_id": 2},
}
SOUNDS = {
    "conv_dim": [8, 8, 8],
    "conv_kernel": [10, 3, 2],
    "conv_stride": [5, 2, 2],
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}
SAMPLES = (400, 47, 333)
LETTERS = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]
FEATURES = (5, 1, 9)
PROTEINS = [b"MKTAY", b"M", b"ACDEFGHIK"]


def component(kind: str) -> EncoderComponent:
    return next(each for each in COMPONENTS if each.name == f"hf-{kind}")


def kind_of(name: str) -> str:
    """The model type; a name may have more, for another form of it."""
    return name.partition(" ")[0]


def write_tokenizer(path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(LETTERS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<cls> $A <eos>", special_tokens=[("<cls>", 0), ("<eos>", 2)]
    )
    tokenizer.save(str(path / "tokenizer.json"))


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, nn.Module]]:
    """A folder of each type with random weights, and its model, each made once."""
    made: dict[str, tuple[Path, nn.Module]] = {}

    def make(name: str) -> tuple[Path, nn.Module]:
        if name not in made:
            path = tmp_path_factory.mktemp(name)
            more = {"image": IMAGES, "sequence": WORDS, "audio": SOUNDS}[TYPES[kind_of(name)].kind]
            config = CONFIG_MAPPING[kind_of(name)](**{**SIZES, **more, **OWN.get(name, {})})
            torch.manual_seed(0)
            model = MODEL_MAPPING[type(config)](config).eval()
            for parameter in model.parameters():
                nn.init.normal_(parameter, std=0.3)
            model.save_pretrained(path)
            if name == "esm":
                (path / "vocab.txt").write_text("\n".join(LETTERS))
            elif TYPES[kind_of(name)].kind == "sequence":
                write_tokenizer(path)
            made[name] = path, model
        return made[name]

    return make


def read(kind: str, path: Path, **options: Any) -> tuple[Any, nn.Module]:
    of_kind = component(kind)
    (form,) = of_kind.formats
    config = of_kind.config(**{**form.values(path), "weights": str(path), **options})
    module = of_kind.build(config)
    loaded = module.load_state_dict({name: load() for name, load in form.tensors(path, config).items()}, strict=False)
    assert not loaded.missing_keys or all("position" in each or "inv_freq" in each for each in loaded.missing_keys)
    assert not loaded.unexpected_keys
    return config, module


def wav(samples: np.ndarray) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16_000)
        out.writeframes((samples * 32_767).round().astype("<i2").tobytes())
    return file.getvalue()


def encode(module: nn.Module, config: Any, contents: list[bytes]) -> torch.Tensor:
    processor = component("sequence").processor(config)
    counts = [processor.measure(MediaPart("protein", content=each)).features for each in contents]
    ids = np.concatenate([processor.read(MediaItem("hf", content=each))["ids"] for each in contents])
    return module({"ids": torch.from_numpy(ids)}, counts)


def sounds(processor: Any) -> tuple[dict[str, torch.Tensor], list[int], list[torch.Tensor]]:
    """Inputs of three sounds, their features, and the samples of each."""
    generator = np.random.default_rng(0)
    contents = [wav(generator.normal(scale=0.1, size=each)) for each in SAMPLES]
    counts = [processor.measure(MediaPart("audio", content=each)).features for each in contents]
    arrays = [processor.read(MediaItem("hf", content=each)) for each in contents]
    inputs = {name: torch.from_numpy(np.concatenate([each[name] for each in arrays])) for name in arrays[0]}
    return inputs, counts, [torch.from_numpy(each["samples"]) for each in arrays]


IMAGE_TYPES = [name for name, each in TYPES.items() if each.kind == "image"]
SEQUENCE_TYPES = [name for name, each in TYPES.items() if each.kind == "sequence"]


@pytest.mark.parametrize("name", IMAGE_TYPES)
@pytest.mark.parametrize("keep_class", [False, True])
def test_features_of_images_are_the_patches_of_transformers(folder_of, name: str, keep_class: bool) -> None:
    path, theirs = folder_of(name)
    known = TYPES[name]
    if keep_class and not known.before:
        with pytest.raises(ValueError, match="no class token"):
            read("image", path, keep_class=True)
        return
    config, ours = read("image", path, keep_class=keep_class)
    side = config.side
    pixels = torch.randn(2, 3, side, side)
    expected = theirs(pixel_values=pixels).last_hidden_state
    before = expected.shape[1] - (side // 4) ** 2
    expected = torch.cat([expected[:, : int(keep_class)], expected[:, before:]], 1).flatten(0, 1)
    measured, arrays = component("image").processor(config).dummy()
    assert arrays["pixels"].shape == (1, 3, side, side)
    found = ours({"pixels": pixels}, [measured.features] * 2)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert found.shape[1] == component("image").width(config)


@pytest.mark.parametrize("name", ["dinov2 gated", "dinov2_with_registers gated"])
def test_a_matrix_that_files_join_is_read_as_transformers_reads_it(folder_of, name: str) -> None:
    """The largest DINOv2 has SwiGLU, whose two halves are one tensor in files."""
    path, theirs = folder_of(name)
    assert any("weights_in" in each for each in load_file(path / "model.safetensors"))
    config, ours = read("image", path)
    pixels = torch.randn(2, 3, config.side, config.side)
    expected = theirs(pixel_values=pixels).last_hidden_state[:, -((config.side // 4) ** 2) :].flatten(0, 1)
    torch.testing.assert_close(ours({"pixels": pixels}, [len(expected) // 2] * 2), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SEQUENCE_TYPES)
def test_features_of_sequences_are_those_of_each_one_alone_at_transformers(folder_of, name: str) -> None:
    path, theirs = folder_of(name)
    config, ours = read("sequence", path)
    found = encode(ours, config, PROTEINS).split(FEATURES)
    kept = encode(read("sequence", path, keep_special=True)[1], read("sequence", path, keep_special=True)[0], PROTEINS)
    for content, part, whole in zip(PROTEINS, found, kept.split([each + 2 for each in FEATURES]), strict=True):
        ids = torch.tensor([[0, *(LETTERS.index(chr(each)) for each in content), 2]])
        expected = theirs(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
        torch.testing.assert_close(part, expected[1:-1], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(whole, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["wav2vec2", "wav2vec2 stable", "hubert", "wavlm"])
@pytest.mark.parametrize("layer", [None, -2])
def test_features_of_sounds_are_those_of_each_one_alone_at_transformers(
    folder_of, name: str, layer: int | None
) -> None:
    path, theirs = folder_of(name)
    config, ours = read("audio", path, layer=layer)
    inputs, counts, alone = sounds(component("audio").processor(config))
    for found, samples in zip(ours(inputs, counts).split(counts), alone, strict=True):
        expected = theirs(samples[None], output_hidden_states=True)
        chosen = expected.last_hidden_state if layer is None else expected.hidden_states[-2]
        torch.testing.assert_close(found, chosen[0], rtol=1e-5, atol=1e-5)
    ours(inputs, counts).sum().backward()
    assert [each for each, parameter in ours.named_parameters() if parameter.grad is None] == []
    with without_memory():
        assert all(parameter.is_meta for parameter in component("audio").build(config).parameters())


@given(
    features=st.integers(1, 200),
    layers=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 5)), min_size=1, max_size=5),
)
def test_windows_know_the_fewest_and_the_most_samples(features: int, layers: list[tuple[int, int]]) -> None:
    windows = Windows(*zip(*layers, strict=True))
    most = windows.most_samples(features)
    assert (windows.features(most), windows.features(most + 1)) == (features, features + 1)
    fewest = windows.fewest_samples()
    assert (windows.features(fewest - 1), windows.features(fewest)) == (0, 1)


def test_old_names_of_a_weight_norm_are_read(folder_of, tmp_path: Path) -> None:
    path, _ = folder_of("wav2vec2")
    renamed = {"parametrizations.weight.original0": "weight_g", "parametrizations.weight.original1": "weight_v"}
    held = load_file(path / "model.safetensors")
    for new, old in renamed.items():
        held = {
            f"wav2vec2.{name.replace(new, old)}".replace("wav2vec2.wav2vec2.", "wav2vec2."): each
            for name, each in held.items()
        }
    assert any(name.endswith("weight_g") for name in held)
    save_file(held, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((path / "config.json").read_bytes())
    after = read("audio", tmp_path)[1].state_dict()
    assert all(torch.equal(each, after[name]) for name, each in read("audio", path)[1].state_dict().items())


def test_samples_are_normalized_as_transformers_does(folder_of) -> None:
    processor = component("audio").processor(read("audio", folder_of("wav2vec2")[0])[0])
    heard = (np.random.default_rng(0).normal(scale=0.1, size=400) * 32_767).round().astype(np.float32) / 32_768
    expected = Wav2Vec2FeatureExtractor()(heard, sampling_rate=16_000, return_tensors="np")["input_values"][0]
    found = processor.read(MediaItem("hf", content=wav(np.random.default_rng(0).normal(scale=0.1, size=400))))
    np.testing.assert_allclose(found["samples"], expected, atol=1e-5)


@pytest.mark.parametrize("nested", [True, False])
def test_a_folder_says_how_sounds_are_read_in_either_of_its_files(folder_of, tmp_path: Path, nested: bool) -> None:
    """transformers 5 writes the feature extractor of a processor into ``processor_config.json``, others into a file of its own."""
    (form,) = component("audio").formats
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).write_bytes((folder_of("wav2vec2")[0] / file).read_bytes())

    def say(**said: Any) -> None:
        file = tmp_path / ("processor_config.json" if nested else "preprocessor_config.json")
        content = Wav2Vec2FeatureExtractor(**said).to_dict()
        file.write_text(json.dumps({"feature_extractor": content} if nested else content))

    say(do_normalize=False)
    assert form.values(tmp_path)["normalize"] is False
    say(sampling_rate=8000)
    with pytest.raises(WeightsError, match=r"processor_config\.json.*sampling_rate"):
        form.values(tmp_path)


def test_sounds_too_short_or_too_long_are_refused(folder_of) -> None:
    config, ours = read("audio", folder_of("hubert")[0], seconds=0.1)
    processor = component("audio").processor(config)
    for samples, said in ((2000, "0.12 seconds, more than seconds=0.1"), (20, r"1.2 ms, and a feature needs 1.9 ms")):
        with pytest.raises(DataError, match=said):
            processor.measure(MediaPart("audio", content=wav(np.zeros(samples))))
    measured, arrays = processor.dummy()
    silence = {name: torch.from_numpy(each) for name, each in arrays.items()}
    assert len(ours(silence, [measured.features])) == 1


@pytest.mark.parametrize("name", [*IMAGE_TYPES, *SEQUENCE_TYPES])
def test_a_layer_below_the_last_is_the_one_of_transformers_and_those_above_are_not_built(folder_of, name: str) -> None:
    path, theirs = folder_of(name)
    kind = TYPES[name].kind
    config, ours = read(kind, path, layer=-2)
    inputs = (
        {"pixel_values": torch.randn(1, 3, config.side, config.side)}
        if kind == "image"
        else {"input_ids": torch.tensor([[0, 5, 6, 7, 2]]), "attention_mask": torch.ones(1, 5, dtype=torch.int64)}
    )
    expected = theirs(**inputs, output_hidden_states=True).hidden_states[-2][0]
    if kind == "image":
        found = ours({"pixels": inputs["pixel_values"]}, [(config.side // 4) ** 2])
    else:
        found, expected = ours({"ids": inputs["input_ids"][0]}, [3]), expected[1:-1]
    torch.testing.assert_close(found, expected[-len(found) :], rtol=1e-5, atol=1e-5)
    whole = {each for each, _ in read(kind, path)[1].named_parameters()}
    assert {each for each, _ in ours.named_parameters()} < whole


@pytest.mark.parametrize("name", [*IMAGE_TYPES, *SEQUENCE_TYPES])
def test_every_parameter_has_a_gradient_and_none_has_memory_when_built_without(folder_of, name: str) -> None:
    path, _ = folder_of(name)
    kind = TYPES[name].kind
    config, ours = read(kind, path)
    if kind == "image":
        ours({"pixels": torch.randn(2, 3, config.side, config.side)}, [(config.side // 4) ** 2] * 2).sum().backward()
    else:
        encode(ours, config, PROTEINS).sum().backward()
    assert [each for each, parameter in ours.named_parameters() if parameter.grad is None] == []
    with without_memory():
        empty = component(kind).build(config)
    assert all(parameter.is_meta for parameter in empty.parameters())
    assert not any(buffer.is_meta for buffer in empty.buffers())


@pytest.mark.parametrize("name", ["esm", "modernbert", "dinov3_vit"])
def test_wavelengths_survive_a_cast_to_bfloat16(folder_of, name: str) -> None:
    path, theirs = folder_of(name)
    config, ours = read(TYPES[name].kind, path)
    ours.bfloat16()
    if TYPES[name].kind == "image":
        ours({"pixels": torch.randn(1, 3, config.side, config.side)}, [(config.side // 4) ** 2])
    else:
        encode(ours, config, PROTEINS)
    expected = {each: buffer for each, buffer in theirs.named_buffers() if buffer.is_floating_point()}
    found = dict(ours.model.named_buffers())
    assert expected
    assert all(torch.equal(found[each], buffer) for each, buffer in expected.items())


@pytest.mark.parametrize(("whole", "config"), [(CLIPModel, CLIPConfig), (SiglipModel, SiglipConfig)])
def test_the_vision_half_of_a_model_of_images_and_texts_is_read(tmp_path: Path, whole: Any, config: Any) -> None:
    torch.manual_seed(0)
    model = whole(
        config(vision_config={**SIZES, **IMAGES}, text_config={**SIZES, "vocab_size": 20, "projection_size": 16})
    ).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(tmp_path)
    _, ours = read("image", tmp_path)
    pixels = torch.randn(1, 3, 16, 16)
    expected = model.vision_model(pixel_values=pixels).last_hidden_state[0, -16:]
    torch.testing.assert_close(ours({"pixels": pixels}, [16]), expected, rtol=1e-5, atol=1e-5)


def test_sequences_that_the_tokenizer_has_no_letters_for_are_refused(folder_of) -> None:
    for name in ("esm", "bert"):
        config, _ = read("sequence", folder_of(name)[0])
        processor = component("sequence").processor(config)
        for content, said in {
            b"MK1": "letters that the encoder's tokenizer has not: 'MK1'",
            b" ": "an empty sequence",
            b"\xff": "something else than letters",
            b"M" * 39: "41 tokens, and the encoder reads (40|38)",
        }.items():
            with pytest.raises(DataError, match=f"^row 3 (has|is) .*{said}|^row 3 has {said}"):
                processor.measure(MediaPart("protein", content=content, place="row 3"))
        measured, arrays = processor.dummy()
        assert (measured.features, len(arrays["ids"])) == (1, 3)


@pytest.mark.parametrize("end", ["<eos>", None])
def test_words_of_a_list_are_found_as_those_of_transformers_are(folder_of, tmp_path: Path, end: str | None) -> None:
    """Nucleotide Transformer: the type is ESM's, and a word six bases."""
    config, _ = read("sequence", folder_of("esm")[0])
    words = ["<unk>", "<pad>", "<mask>", "<cls>", "<eos>", *map("".join, product("ATCG", repeat=3)), *"ATCGN"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    said = {"tokenizer_class": "EsmTokenizer", "eos_token": end}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
    theirs = EsmTokenizer.from_pretrained(tmp_path)
    more = {**config.config, "vocab_size": len(words)}
    processor = component("sequence").processor(config.model_copy(update={"weights": str(tmp_path), "config": more}))
    for text in ("ATCGATCGNATCG", "A", "NNACGT", "ACGACGACGACGTT"):
        content = text.encode()
        expected = theirs(text).input_ids
        assert processor.read(MediaItem("hf", content=content))["ids"].tolist() == expected, text
        around = len(theirs("A").input_ids) - 1
        assert processor.measure(MediaPart("dna", content=content)).features == len(expected) - around
    with pytest.raises(DataError, match="letters that the encoder's tokenizer has not: 'AC<mask>'"):
        processor.measure(MediaPart("dna", content=b"AC<mask>"))


def test_a_token_that_the_encoder_has_no_row_for_is_refused_by_name(folder_of) -> None:
    """The tokenizer of another model: transformers ends with an IndexError in the embedding."""
    config, _ = read("sequence", folder_of("bert")[0])
    smaller = config.model_copy(update={"config": {**config.config, "vocab_size": LETTERS.index("Y")}})
    processor = component("sequence").processor(smaller)
    processor.measure(MediaPart("protein", content=b"AK", place="row 3"))
    with pytest.raises(DataError, match=r"^row 3 has the token id 19, and the encoder has rows for 19 tokens"):
        processor.measure(MediaPart("protein", content=b"AY", place="row 3"))


def test_a_folder_without_a_tokenizer_that_can_be_read_is_told(folder_of, tmp_path: Path) -> None:
    config, _ = read("sequence", folder_of("esm")[0])
    for content, said in ((None, "neither tokenizer.json nor vocab.txt"), ("{}", "cannot read .*tokenizer.json")):
        if content is not None:
            (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(WeightsError, match=said):
            component("sequence").processor(config.model_copy(update={"weights": str(tmp_path)}))
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.txt").write_text("a\nb")
    with pytest.raises(WeightsError, match="has no <cls>"):
        component("sequence").processor(config.model_copy(update={"weights": str(tmp_path)}))


def test_other_types_remote_code_and_other_kinds_are_refused_by_name(folder_of, tmp_path: Path) -> None:
    path, _ = folder_of("bert")
    content = json.loads((path / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes())
    (form,) = component("sequence").formats
    for changed, said in (
        ({"model_type": "whisper"}, "'whisper' is none of bert, .*take the encoder 'whisper'"),
        ({"model_type": "vit"}, "take the encoder hf-image"),
        ({"model_type": "brt"}, "Did you mean 'bert'"),
        ({"auto_map": {"AutoModel": "code.Model"}}, "auto_map: .* never executed"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**content, **changed}))
        with pytest.raises(WeightsError, match=said):
            form.values(tmp_path)


@pytest.mark.parametrize("name", sorted(TYPES))
def test_what_a_file_leaves_out_is_what_transformers_takes(name: str) -> None:
    theirs = CONFIG_MAPPING[name]()
    for key in DEFAULTS:
        if hasattr(theirs, key):
            expected = getattr(theirs, key)
            expected = tuple(expected) if isinstance(expected, list) else expected
            assert TYPES[name].value({}, key) == expected, key


def test_a_published_clip_that_leaves_out_what_is_usual_has_patches_of_32() -> None:
    of_kind = component("image")
    config = of_kind.config(config={"model_type": "clip", "vision_config": {"model_type": "clip_vision_model"}})
    assert of_kind.processor(config).dummy()[0].features == (224 // 32) ** 2


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        ("sequence", {"hidden_size": "16"}),
        ("sequence", {"num_hidden_layers": 0}),
        ("audio", {"conv_kernel": 10}),
        ("audio", {"conv_kernel": [10, 3]}),
        ("audio", {"conv_stride": [5, 2, 2, 2, 2, 2, 0]}),
        ("image", {"patch_size": [4, 2]}),
    ],
)
def test_sizes_that_are_none_are_refused_by_their_key(kind: str, broken: dict[str, Any]) -> None:
    (key,) = broken
    model_type = {"audio": "hubert", "image": "vit", "sequence": "bert"}[kind]
    with pytest.raises(ValueError, match=key):
        component(kind).config(config={"model_type": model_type, **broken})


def test_a_tensor_that_is_missing_is_named(folder_of, tmp_path: Path) -> None:
    path, _ = folder_of("vit")
    (tmp_path / "config.json").write_bytes((path / "config.json").read_bytes())
    held = load_file(path / "model.safetensors")
    del held["layernorm.bias"]
    save_file(held, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"lacks 1 of the encoder's .* layernorm.bias among them"):
        read("image", tmp_path)


def test_an_encoder_without_weights_and_transformers_that_is_not_there_are_told(folder_of, monkeypatch) -> None:
    of_kind = component("image")
    with pytest.raises(UsageError, match="name the folder of its weights"):
        of_kind.build(of_kind.config())
    config, _ = read("image", folder_of("vit")[0])
    found = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "transformers":
            raise ImportError("No module named 'transformers'")
        return found(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(UsageError, match=r"pip install 'mt-plugin-multimodal\[hf\]'"):
        of_kind.build(config)
