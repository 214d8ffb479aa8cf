"""A Qwen-VL from rows to an answer: trained, asked, written for transformers, and what cannot be written.

Shapes: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from mt_core.errors import UsageError
from mt_core.media import MediaPart
from mt_core.rows import Encoded
from mt_tools.cli.export import main as mt_export
from mt_tools.cli.generate import main as mt_generate
from mt_tools.convert.folder import convert
from mt_train import load_run
from mt_train.cli.train import main as mt_train
from mt_train.data.media.writer import MediaTemplate
from mt_train.generation.forward import grid_of, make_batch, media_batch
from mt_train.generation.loaded_model import LoadedModel

from .qwen_vl import END, IMAGE, KINDS, START, theirs_of, write_images, write_qwen
from .test_llava_export import opened, write_rows

transformers = pytest.importorskip("transformers")

WORDS = {START: "<|vision_start|>", END: "<|vision_end|>", 298: "<|video_pad|>", IMAGE: "<|image_pad|>"}


def write_tokenizer(folder: Path) -> None:
    """Bytes and special tokens, Qwen's words for images among them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = [*alphabet, *special]
    added = [*special, *(WORDS.get(number, f"<f{number}>") for number in range(len(tokens), IMAGE + 1))]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(added)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    assert {number: fast.convert_ids_to_tokens(number) for number in WORDS} == WORDS
    fast.save_pretrained(folder)


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base with its tokenizer and image processor, rows, and a run of four steps; the name is the encoder's."""
    folder = tmp_path_factory.mktemp("qwen") / request.param
    write_qwen(folder / "base", request.param)
    write_tokenizer(folder / "base")
    image = {
        "patch_size": 4,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": 64, "longest_edge": 1024},
    }
    image |= {
        "image_mean": [0.5, 0.4, 0.3],
        "image_std": [0.2, 0.3, 0.4],
        "image_processor_type": "Qwen2VLImageProcessor",
    }
    (folder / "base" / "preprocessor_config.json").write_text(json.dumps(image))
    rows = write_rows(folder / "rows")
    write_images(folder / "rows")
    key = f"--encoders.{request.param}"
    words = ["--model.weights", folder / "base", "--encoders", request.param, f"{key}.weights", "model"]
    words += ["--dataset", "jsonl", "--dataset.path", rows, "--data.template", "chatml", "--data.eval", "2"]
    words += ["--eval.samples", "2", "--eval.sample-tokens", "4", "--train.sequence-len", "96", "--train.steps", "4"]
    words += ["--train.micro-batch-size", "2", "--train.dtype", "fp32", "--optimizer.lr", "1e-3"]
    assert mt_train([str(word) for word in (*words, "--output", folder / "run")]) == 0
    return folder


def prompt_of(loaded: LoadedModel, picture: Path) -> Encoded:
    assert isinstance(loaded.template, MediaTemplate)
    parts = [MediaPart("image", str(picture))]
    return loaded.template.encode_prompt([{"role": "user", "content": "\ufdd5\nWhat is it?", "media": parts}])


def test_a_run_is_written_as_transformers_opens_it(folder: Path, tmp_path: Path) -> None:
    assert mt_export(["--run", str(folder / "run"), "--merge", "--output", str(tmp_path / "out")]) == 0
    kind = folder.name
    made = {
        "qwen2-5-vl": transformers.Qwen2_5_VLForConditionalGeneration,
        "qwen3-vl": transformers.Qwen3VLForConditionalGeneration,
    }[kind]
    theirs, info = made.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    base = made.from_pretrained(folder / "base").state_dict()
    now = theirs.state_dict()
    for name in ("model.visual.blocks.0.attn.qkv.weight", "model.visual.patch_embed.proj.weight", "lm_head.weight"):
        assert not torch.equal(now[name], base[name]), name
    loaded = load_run(folder / "run")
    prompt = prompt_of(loaded, folder / "rows" / "1.png")
    assert (prompt.ids[prompt.media[0].start], prompt.ids[prompt.media[0].start - 1]) == (IMAGE, START)
    batch = make_batch(torch.tensor([prompt.ids]), torch.arange(len(prompt.ids))[None])
    batch = media_batch(batch, [(0, span) for span in prompt.media], 0, loaded.read_media)
    grid = grid_of(prompt.media, len(prompt.ids))
    assert grid is not None
    with torch.no_grad():
        hidden_1TD = loaded.model(replace(batch, grid_positions=torch.from_numpy(grid)[None]))
        found_1TV = loaded.model.head(hidden_1TD[0])[None]
        expected_1TV = theirs.eval()(**theirs_of(batch, kind)).logits
    torch.testing.assert_close(found_1TV, expected_1TV, rtol=1e-5, atol=1e-5)


def test_processor_and_template_of_a_written_folder_give_the_ids_and_pixels_of_the_run(
    folder: Path, tmp_path: Path
) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    assert mt_export(["--run", str(folder / "run"), "--merge", "--output", str(tmp_path / "out")]) == 0
    picture = folder / "rows" / "1.png"
    seen = Qwen2VLImageProcessorPil.from_pretrained(tmp_path / "out")(images=[Image.open(picture)], return_tensors="pt")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    turns = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "\nWhat is it?"}]}]
    text = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    text = text.replace(WORDS[IMAGE], WORDS[IMAGE] * int(seen["image_grid_thw"].prod() // 4))
    loaded = load_run(folder / "run")
    prompt = prompt_of(loaded, picture)
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == prompt.ids
    batch = make_batch(torch.tensor([prompt.ids]), torch.arange(len(prompt.ids))[None])
    batch = media_batch(batch, [(0, span) for span in prompt.media], 0, loaded.read_media)
    inputs = batch.media[folder.name].inputs
    assert inputs is not None
    assert torch.equal(inputs["pixels"], seen["pixel_values"])


def test_a_run_and_its_base_answer_about_a_picture(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--greedy", "--max-new-tokens", "5", "--prompt", "<image>\nWhat is it?", "--image"]
    picture = str(folder / "rows" / "0.png")
    for source in (["--run", str(folder / "run")], ["--weights", str(folder / "base")]):
        assert mt_generate([*source, *words, picture]) == 0
        assert "error" not in capsys.readouterr().err


def test_parts_of_two_classes_are_not_written_together(tmp_path: Path) -> None:
    """A tower with LLaVA's projector; and a text model that has rows and columns of images with LLaVA's parts."""
    write_qwen(tmp_path / "base", "qwen2-5-vl")
    write_tokenizer(tmp_path / "base")
    source = opened(tmp_path, {"qwen2-5-vl": {"projector": "mlp"}})
    with pytest.raises(UsageError, match="the projector mlp into a LlavaForConditionalGeneration"):
        convert(source, tmp_path / "one", say=lambda text: None)
    source = opened(tmp_path, {"clip": {"size": "tiny", "layer": -1, "token": "<|image_pad|>"}})
    with pytest.raises(UsageError, match="the text model has rows and columns of images"):
        convert(source, tmp_path / "two", say=lambda text: None)
