"""Whole LLaVA folders beside transformers: logits of rows with images, and what a folder says of itself.

Shapes: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mt_core.errors import ConfigError, WeightsError
from mt_core.media import MediaPart
from mt_core.nn import Batch, TrainModel
from mt_core.nn.collation import collate, flatten
from mt_core.rows import Sample
from mt_train.assemble.media import media_reader, with_media
from mt_train.assemble.parts import Parts
from mt_train.data.media.writer import MediaTemplate
from mt_train.data.templates import build_template

from .llava import IMAGE, TOKENS, open_llava, write_llava, write_pictures

transformers = pytest.importorskip("transformers")

MARK = "\ufdd5"


def samples_of(parts: Parts, images: Sequence[Sequence[Path]]) -> list[Sample]:
    """A row for each list of images, with as many marks between words."""
    template = with_media(parts, build_template(parts.tokenizer, media=True), parts.tokenizer)
    assert isinstance(template, MediaTemplate)
    found = []
    for number, paths in enumerate(images):
        text = "see " + f"{MARK} and " * len(paths) + "more" * number
        media = [MediaPart("image", str(path)) for path in paths]
        found.append(template.encode_text(text, media, begin=(), end=()).sample(f"row {number}"))
    return found


def batch_of(parts: Parts, samples: Sequence[Sample]) -> Batch:
    batch = collate(flatten([[sample] for sample in samples]), length=max(len(each.ids) for each in samples), pad_id=0)
    read = media_reader(parts)
    assert read is not None
    return read(batch)


def logits_of(model: TrainModel, batch: Batch) -> Tensor:
    with torch.no_grad():
        hidden_BTD = model(batch)
        found_BTV: Tensor = model.head(hidden_BTD.flatten(0, 1)).unflatten(0, hidden_BTD.shape[:2])
    return found_BTV


def logits_of_theirs(model: Any, batch: Batch, name: str) -> Tensor:
    """Their model finds images by an id, and gets no pixels where there are none."""
    ids_BT, media = batch.input_ids.clone(), batch.media[name]
    ids_BT.view(-1)[media.places_M] = IMAGE
    pixels = {"pixel_values": media.inputs["pixels"]} if media.items and media.inputs else {}
    with torch.no_grad():
        found_BTV: Tensor = model(input_ids=ids_BT, **pixels).logits
    return found_BTV


@pytest.mark.parametrize("text", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("vision", ["clip", "siglip"])
def test_logits_of_rows_with_no_one_and_three_images_equal_those_of_transformers(
    vision: str, text: str, tmp_path: Path
) -> None:
    theirs = write_llava(tmp_path / "model", vision, text)
    parts, loaded = open_llava(tmp_path / "model", vision)
    one, two, three = write_pictures(tmp_path / "images", 3)
    samples = samples_of(parts, [[], [one], [two, one, three]])
    assert [len(each.media) for each in samples] == [0, 1, 3]
    assert all(span.tokens == TOKENS for each in samples for span in each.media)
    for rows in (samples, samples[:1]):
        batch = batch_of(parts, rows)
        found_BTV, expected_BTV = logits_of(loaded.model, batch), logits_of_theirs(theirs, batch, vision)
        for row, sample in enumerate(rows):
            length = len(sample.ids)
            torch.testing.assert_close(found_BTV[row, :length], expected_BTV[row, :length], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({"vision_feature_layer": -1}, {"layer": -1}),
        ({"vision_feature_select_strategy": "full"}, {"keep_class": True}),
        ({"multimodal_projector_bias": False}, {}),
        ({"text_options": {"tie_word_embeddings": True}}, {}),
    ],
    ids=["layer", "class token", "no bias", "tied head"],
)
def test_a_folder_says_layer_class_token_bias_and_ties(
    options: dict[str, Any], changed: dict[str, Any], tmp_path: Path
) -> None:
    theirs = write_llava(tmp_path / "model", "clip", "llama", **options)
    parts, loaded = open_llava(tmp_path / "model", "clip")
    said = parts.encoders[0].options.model_dump()
    assert {name: said[name] for name in changed} == changed
    batch = batch_of(parts, samples_of(parts, [write_pictures(tmp_path / "images", 1)]))
    torch.testing.assert_close(
        logits_of(loaded.model, batch), logits_of_theirs(theirs, batch, "clip"), rtol=1e-5, atol=1e-5
    )


def test_names_of_modules_are_read_as_those_of_files(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    theirs = write_llava(tmp_path / "model", "clip", "llama")
    file = tmp_path / "model" / "model.safetensors"
    names = set(load_file(file))
    assert {"language_model.lm_head.weight", "multi_modal_projector.linear_1.weight"} <= names
    save_file({name: value.contiguous() for name, value in theirs.state_dict().items()}, file, {"format": "pt"})
    assert not names & set(load_file(file))
    parts, loaded = open_llava(tmp_path / "model", "clip")
    batch = batch_of(parts, samples_of(parts, [write_pictures(tmp_path / "images", 1)]))
    torch.testing.assert_close(
        logits_of(loaded.model, batch), logits_of_theirs(theirs, batch, "clip"), rtol=1e-5, atol=1e-5
    )


def change(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"projector_hidden_act": "relu"}, "projector_hidden_act='relu' (supported: 'gelu')"),
        ({"vision_feature_layer": [-2, -1]}, "an encoder here gives one layer"),
    ],
)
def test_what_a_folder_says_and_is_not_here_is_refused_by_its_key(
    values: dict[str, Any], told: str, tmp_path: Path
) -> None:
    write_llava(tmp_path, "clip", "llama")
    change(tmp_path, **values)
    with pytest.raises((ConfigError, WeightsError)) as error:
        _ = open_llava(tmp_path, "clip")[0].encoders
    assert told in str(error.value)


def test_an_encoder_without_a_class_token_whose_first_patch_is_left_out_is_refused(tmp_path: Path) -> None:
    write_llava(tmp_path, "siglip", "llama", vision_feature_select_strategy="default")
    with pytest.raises((ConfigError, WeightsError), match="leaves out the first patch"):
        open_llava(tmp_path, "siglip")


def test_a_projector_of_another_shape_than_the_folder_has_is_refused(tmp_path: Path) -> None:
    write_llava(tmp_path, "clip", "llama")
    named = {"clip": {"weights": "model", "projector": {"name": "mlp", "depth": 3}}}
    with pytest.raises((ConfigError, WeightsError), match=r"depth=3 \(there: 2\)"):
        open_llava(tmp_path, "clip", encoders=named)


def test_another_projector_is_drawn_and_the_encoder_read(tmp_path: Path) -> None:
    write_llava(tmp_path, "clip", "llama")
    named = {"clip": {"weights": "model", "projector": "linear"}}
    parts, loaded = open_llava(tmp_path, "clip", encoders=named)
    assert parts.encoders[0].read_parts == ("encoder",)
    assert not any("linear_2" in name for name, _ in loaded.model.named_parameters())


def test_a_folder_that_lacks_some_of_its_encoder_is_refused_with_a_name(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    write_llava(tmp_path, "clip", "llama")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    del tensors["multi_modal_projector.linear_2.bias"]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises((ConfigError, WeightsError), match=r"lacks media\.clip\.projector\.linear_2\.bias"):
        open_llava(tmp_path, "clip")


def test_the_text_model_alone_is_read_where_no_encoder_is_named(tmp_path: Path) -> None:
    theirs = write_llava(tmp_path, "clip", "qwen2")
    _, loaded = open_llava(tmp_path, "clip", encoders={})
    assert loaded.model.media is None
    ids_BT = torch.arange(12)[None]
    with torch.no_grad():
        expected_BTV = theirs(input_ids=ids_BT).logits
    batch = collate(flatten([[Sample(ids_BT[0].tolist(), [True] * 12, "a")]]), length=12, pad_id=0)
    torch.testing.assert_close(logits_of(loaded.model, batch), expected_BTV, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("architecture", "told"),
    [
        ("Qwen2VLForConditionalGeneration", "its vision tower is not here"),
        ("Qwen3VLMoeForConditionalGeneration", "mixture of experts"),
        ("Gemma3ForConditionalGeneration", "in both directions"),
        ("PaliGemmaForConditionalGeneration", "in both directions"),
        ("MllamaForConditionalGeneration", "cross-attention"),
        ("LlavaNextForConditionalGeneration", "tiles"),
        ("SomeOtherForConditionalGeneration", "LlavaForConditionalGeneration"),
    ],
)
def test_other_whole_models_are_refused_by_name_where_an_encoder_is_named_with_them(
    architecture: str, told: str, tmp_path: Path
) -> None:
    write_llava(tmp_path, "siglip", "llama")
    change(tmp_path, architectures=[architecture], model_type=architecture.removesuffix("ForConditionalGeneration"))
    with pytest.raises((ConfigError, WeightsError)) as error:
        _ = open_llava(tmp_path, "siglip")[0].encoders
    assert architecture in str(error.value)
    assert told in str(error.value)
