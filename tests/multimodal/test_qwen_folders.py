"""Whole Qwen-VL folders beside transformers: logits of rows with images, and what a folder says of itself.

Shapes: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mt_core.errors import ConfigError, UsageError, WeightsError
from mt_core.nn.collation import collate, flatten
from mt_core.rows import Sample
from mt_tools.cli.convert import main as mt_convert
from mt_train.assemble.discovery import discover_plugins
from mt_train.assemble.media import media_reader
from mt_train.assemble.parts import Parts
from mt_train.plugins.resolve import resolve

from .llava import open_llava
from .qwen_vl import KINDS, SMALL, theirs_of, write_images, write_qwen
from .test_llava_folders import batch_of, logits_of, samples_of

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("kind", KINDS)
def test_logits_of_rows_with_no_one_and_three_images_equal_those_of_transformers(kind: str, tmp_path: Path) -> None:
    theirs = write_qwen(tmp_path / "model", kind)
    parts, loaded = open_llava(tmp_path / "model", kind, encoders={kind: SMALL})
    one, two, three, four = write_images(tmp_path / "images")
    samples = samples_of(parts, [[], [one], [two, three, four]])
    for rows in (samples, samples[:1]):
        batch = batch_of(parts, rows)
        with torch.no_grad():
            expected_BTV = theirs(**theirs_of(batch, kind)).logits
        found_BTV = logits_of(loaded.model, batch)
        for row, sample in enumerate(rows):
            length = len(sample.ids)
            torch.testing.assert_close(found_BTV[row, :length], expected_BTV[row, :length], rtol=1e-5, atol=1e-5)


KEPT = ("model_type", "hidden_size", "num_key_value_heads", "rms_norm_eps", "max_position_embeddings", "vocab_size")


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_written_again_to_the_byte(kind: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    write_qwen(tmp_path / "model", kind)
    assert mt_convert([str(tmp_path / "model"), str(tmp_path / "again")]) == 0
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("model", "again"))
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    said, again = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("model", "again"))
    for key in ("architectures", "model_type", "image_token_id", "vision_start_token_id", "video_token_id"):
        assert again[key] == said[key]
    assert again["vision_config"] == said["vision_config"]
    before, after = said["text_config"], again["text_config"]
    assert after["rope_parameters"].items() >= before["rope_parameters"].items()
    assert {key: after[key] for key in KEPT} == {key: before[key] for key in KEPT}
    theirs = type(write_qwen(tmp_path / "other", kind)).from_pretrained(tmp_path / "again").eval()
    first = type(theirs).from_pretrained(tmp_path / "model").eval()
    ids = torch.arange(9)[None]
    with torch.no_grad():
        assert torch.equal(theirs(input_ids=ids).logits, first(input_ids=ids).logits)


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_model_alone_is_read_where_no_encoder_is_named(kind: str, tmp_path: Path) -> None:
    theirs = write_qwen(tmp_path, kind, text={"tie_word_embeddings": True}, tie_word_embeddings=True)
    _, loaded = open_llava(tmp_path, kind, encoders={})
    assert loaded.model.media is None
    ids_BT = torch.arange(12)[None]
    with torch.no_grad():
        expected_BTV = theirs(input_ids=ids_BT).logits
    batch = collate(flatten([[Sample(ids_BT[0].tolist(), [True] * 12, "a")]]), length=12, pad_id=0)
    torch.testing.assert_close(logits_of(loaded.model, batch), expected_BTV, rtol=1e-5, atol=1e-5)


def test_a_flat_config_and_the_names_of_modules_are_read_as_well(tmp_path: Path) -> None:
    """Files as they were first published, with the text model's keys beside the others, and those of ``state_dict``."""
    from safetensors.torch import save_file

    theirs = write_qwen(tmp_path, "qwen2-5-vl")
    said = json.loads((tmp_path / "config.json").read_text())
    text = said.pop("text_config")
    rope = text.pop("rope_parameters")
    del text["model_type"]
    flat = {
        **text,
        **said,
        "rope_theta": rope["rope_theta"],
        "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]},
    }
    (tmp_path / "config.json").write_text(json.dumps(flat))
    tensors = {name: value.contiguous() for name, value in theirs.state_dict().items()}
    assert "model.language_model.norm.weight" in tensors
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    parts, loaded = open_llava(tmp_path, "qwen2-5-vl", encoders={"qwen2-5-vl": SMALL})
    batch = batch_of(parts, samples_of(parts, [write_images(tmp_path / "images")[:2]]))
    with torch.no_grad():
        expected_BTV = theirs(**theirs_of(batch, "qwen2-5-vl")).logits
    torch.testing.assert_close(logits_of(loaded.model, batch), expected_BTV, rtol=1e-5, atol=1e-5)


def change(folder: Path, part: str, **values: Any) -> None:
    file = folder / "config.json"
    said = json.loads(file.read_text())
    file.write_text(json.dumps({**said, part: {**said[part], **values}}))


@pytest.mark.parametrize(
    ("kind", "part", "values", "told"),
    [
        ("qwen2-5-vl", "vision_config", {"hidden_act": "gelu"}, "hidden_act='gelu' (supported: 'silu')"),
        ("qwen3-vl", "vision_config", {"temporal_patch_size": 4}, "temporal_patch_size=4 (supported: 2)"),
        ("qwen3-vl", "vision_config", {"deepstack_visual_indexes": [2, 9]}, "taps=[2, 9] are no blocks of 4"),
        ("qwen3-vl", "vision_config", {"depth": "four"}, "encoders.qwen3-vl.blocks"),
        ("qwen2-5-vl", "text_config", {"rope_scaling": {"mrope_section": [1, 1, 1]}}, "are 3 pairs of channels"),
    ],
)
def test_what_a_folder_says_and_is_not_here_is_refused_by_its_key(
    kind: str, part: str, values: dict[str, Any], told: str, tmp_path: Path
) -> None:
    write_qwen(tmp_path, kind)
    change(tmp_path, part, **values)
    with pytest.raises((ConfigError, WeightsError)) as error:
        open_llava(tmp_path, kind)
    assert told in str(error.value)


def test_a_processor_of_other_patches_than_the_tower_is_refused(tmp_path: Path) -> None:
    write_qwen(tmp_path, "qwen3-vl")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"patch_size": 16}))
    with pytest.raises((ConfigError, WeightsError), match=r"patch_size=16, and config\.json beside it 4"):
        open_llava(tmp_path, "qwen3-vl")


def test_a_model_with_fewer_blocks_than_levels_is_refused(tmp_path: Path) -> None:
    raw = {"model": {"name": "llama", "n_layers": 2}, "encoders": {"qwen3-vl": {}}, "train": {"sequence_len": 2}}
    parts = Parts.of(resolve(raw, discover_plugins()))
    with pytest.raises(UsageError, match=r"behind each of the first 3 blocks .* and the model has 2"):
        parts.model()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"projector": {"name": "merger", "norm": "layer"}}, "levels=0, and features of 3 blocks"),
        ({"taps": [1, 0]}, "no blocks of 4 in order"),
        ({"heads": 3}, "a multiple of 4 channels"),
        ({"min_area": 2000, "max_area": 1000}, "min_area=2000 is above max_area=1000"),
        ({"layer": 9}, "layer=9 is none of 4 blocks"),
    ],
)
def test_options_that_do_not_fit_are_refused_with_what_would(options: dict[str, Any], told: str) -> None:
    raw = {"model": {"name": "llama"}, "encoders": {"qwen3-vl": options}, "train": {"sequence_len": 2}}
    with pytest.raises(ConfigError) as error:
        resolve(raw, discover_plugins())
    assert told in str(error.value)


@pytest.mark.parametrize("kind", KINDS)
def test_features_of_an_image_do_not_hang_on_those_beside_it(kind: str, tmp_path: Path) -> None:
    """Nor rows: packed documents have the logits that they have alone."""
    write_qwen(tmp_path / "model", kind)
    parts, loaded = open_llava(tmp_path / "model", kind, encoders={kind: SMALL})
    one, two, three, four = write_images(tmp_path / "images")
    samples = samples_of(parts, [[one, two], [], [three], [four]])
    lengths = [len(each.ids) for each in samples]
    packed = media_reader(parts)(collate(flatten([samples]), length=sum(lengths), pad_id=0))
    found = logits_of(loaded.model, packed)[0].split(lengths)
    for sample, logits_TV in zip(samples, found, strict=True):
        alone_1TV = logits_of(loaded.model, batch_of(parts, [sample]))
        torch.testing.assert_close(logits_TV, alone_1TV[0], rtol=1e-6, atol=1e-6)
