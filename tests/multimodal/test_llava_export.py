"""A LLaVA from rows to an answer: trained, asked, evaluated, written for transformers, and what cannot be written.

Shapes: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from mt_core.errors import UsageError, WeightsError
from mt_core.rows import Encoded
from mt_tools.cli.convert import main as mt_convert
from mt_tools.cli.eval import main as mt_eval
from mt_tools.cli.export import main as mt_export
from mt_tools.cli.generate import main as mt_generate
from mt_tools.convert.folder import convert
from mt_tools.convert.source import open_source
from mt_tools.convert.whole import refuse_encoders
from mt_train import load_run
from mt_train.assemble.discovery import discover_plugins
from mt_train.cli.train import main as mt_train
from mt_train.data.media.writer import MediaTemplate
from mt_train.generation.forward import make_batch, media_batch
from mt_train.generation.loaded_model import LoadedModel
from mt_train.plugins import hub

from .llava import IMAGE, write_llava, write_pictures

transformers = pytest.importorskip("transformers")

QUIET = lambda text: None  # noqa: E731


def write_tokenizer(folder: Path) -> None:
    """Bytes, four special tokens, and ids up to that of an image."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>"]
    filler = [f"<f{number}>" for number in range(IMAGE - len(alphabet) - len(special))]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*special, *filler, "<image>"])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    assert fast.convert_tokens_to_ids("<image>") == IMAGE
    fast.save_pretrained(folder)


def write_rows(folder: Path) -> Path:
    """LLaVA's own form: some rows with an image, one with none."""
    pictures = write_pictures(folder, 3)
    rows: list[dict[str, Any]] = [
        {
            "id": f"row-{number}",
            "image": pictures[number % 3].name,
            "conversations": [
                {"from": "human", "value": "<image>\nWhat is it?"},
                {"from": "gpt", "value": f"Noise of seed {number % 3}."},
            ],
        }
        for number in range(7)
    ]
    rows.append({"id": "text", "conversations": [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hi"}]})
    file = folder / "rows.json"
    file.write_text(json.dumps(rows))
    return file


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base with its tokenizer, rows, and a run of four steps."""
    folder = tmp_path_factory.mktemp("llava")
    write_llava(folder / "base", "clip", "qwen2")
    write_tokenizer(folder / "base")
    rows = write_rows(folder / "rows")
    words = ["--model.weights", folder / "base", "--encoders", "clip", "--encoders.clip.weights", "model"]
    words += ["--dataset", "jsonl", "--dataset.path", rows, "--data.template", "chatml", "--data.eval", "2"]
    words += ["--eval.samples", "2", "--eval.sample-tokens", "4", "--train.sequence-len", "64", "--train.steps", "4"]
    words += ["--train.micro-batch-size", "2", "--train.dtype", "fp32", "--optimizer.lr", "1e-3"]
    assert mt_train([str(word) for word in (*words, "--output", folder / "run")]) == 0
    return folder


def prompt_of(loaded: LoadedModel, picture: Path) -> Encoded:
    from mt_core.media import MediaPart

    assert isinstance(loaded.template, MediaTemplate)
    parts = [MediaPart("image", str(picture))]
    return loaded.template.encode_prompt([{"role": "user", "content": "\ufdd5\nWhat is it?", "media": parts}])


def logits_of(loaded: LoadedModel, prompt: Encoded) -> tuple[torch.Tensor, torch.Tensor]:
    """(1, T, V) logits of a prompt with one image, and its pixels."""
    ids_1T = torch.tensor([prompt.ids])
    batch = make_batch(ids_1T, torch.arange(len(prompt.ids))[None])
    batch = media_batch(batch, [(0, span) for span in prompt.media], 0, loaded.read_media)
    with torch.no_grad():
        found_1TV = loaded.model.head(loaded.model(batch)[0])[None]
    inputs = batch.media["clip"].inputs
    assert inputs is not None
    return found_1TV, inputs["pixels"]


def test_a_run_learns_writes_samples_and_answers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.loads(line) for line in (folder / "run" / "samples.jsonl").read_text().splitlines()]
    assert lines
    assert all("<image>" not in line["prompt"] or "png" in line["prompt"] for line in lines)
    picture = folder / "rows" / "0.png"
    words = ["--run", str(folder / "run"), "--greedy", "--max-new-tokens", "5"]
    assert mt_generate([*words, "--prompt", "<image>\nWhat is it?", "--image", str(picture)]) == 0
    assert mt_eval(["--run", str(folder / "run"), "--output", "none"]) == 0
    assert "clip" not in capsys.readouterr().err


@pytest.mark.parametrize("command", ["convert", "export"])
def test_a_run_is_written_as_transformers_opens_it(command: str, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if command == "convert":
        assert mt_convert([str(folder / "run"), str(out)]) == 0
    else:
        assert mt_export(["--run", str(folder / "run"), "--merge", "--output", str(out)]) == 0
    theirs = transformers.LlavaForConditionalGeneration.from_pretrained(out).eval()
    base = transformers.LlavaForConditionalGeneration.from_pretrained(folder / "base").state_dict()
    now = theirs.state_dict()
    assert not torch.equal(now["model.vision_tower.embeddings.class_embedding"], torch.zeros(32))
    above = [name for name in now if "encoder.layers.2." in name or "post_layernorm" in name]
    assert above
    assert all(torch.equal(now[name], base[name]) for name in above), "what is not built is copied"
    assert not torch.equal(
        now["model.multi_modal_projector.linear_1.weight"], base["model.multi_modal_projector.linear_1.weight"]
    )
    loaded = load_run(folder / "run")
    prompt = prompt_of(loaded, folder / "rows" / "1.png")
    assert prompt.ids[prompt.media[0].start] == IMAGE
    ours_1TV, pixels = logits_of(loaded, prompt)
    with torch.no_grad():
        theirs_1TV = theirs(input_ids=torch.tensor([prompt.ids]), pixel_values=pixels).logits
    torch.testing.assert_close(ours_1TV, theirs_1TV, rtol=1e-5, atol=1e-5)


def test_processor_and_template_of_a_written_folder_give_the_ids_and_pixels_of_the_run(
    folder: Path, tmp_path: Path
) -> None:
    assert mt_convert([str(folder / "run"), str(tmp_path / "out")]) == 0
    processor = transformers.AutoProcessor.from_pretrained(tmp_path / "out")
    turns = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "\nWhat is it?"}]}]
    text = processor.apply_chat_template(turns, add_generation_prompt=True)
    picture = folder / "rows" / "1.png"
    theirs = processor(text=text, images=Image.open(picture), return_tensors="pt", add_special_tokens=False)
    loaded = load_run(folder / "run")
    prompt = prompt_of(loaded, picture)
    assert theirs["input_ids"][0].tolist() == prompt.ids
    torch.testing.assert_close(theirs["pixel_values"], logits_of(loaded, prompt)[1])


@pytest.mark.parametrize(("vision", "text"), [("clip", "llama"), ("siglip", "qwen3")])
def test_a_folder_is_written_again_to_the_byte(vision: str, text: str, tmp_path: Path) -> None:
    theirs = write_llava(tmp_path / "model", vision, text).state_dict()
    assert mt_convert([str(tmp_path / "model"), str(tmp_path / "again")]) == 0
    again = transformers.LlavaForConditionalGeneration.from_pretrained(tmp_path / "again")
    assert again.state_dict().keys() == theirs.keys()
    assert all(torch.equal(again.state_dict()[name], value) for name, value in theirs.items())
    before, after = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("model", "again"))
    for key in ("image_token_index", "vision_feature_layer", "vision_feature_select_strategy", "architectures"):
        assert after[key] == before[key]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"projector": "linear"}, "the projector linear cannot be written"),
        ({"projector": {"name": "mlp", "depth": 3}}, "depth=3, and a LLaVA folder one of 2"),
        ({"layer": -2}, "never built, and there is no folder to copy them from"),
    ],
)
def test_what_no_folder_of_transformers_has_is_refused_by_name(
    options: dict[str, Any], told: str, folder: Path, tmp_path: Path
) -> None:
    source = opened(folder, {"clip": {"size": "tiny", "token": "<image>", **options}})
    with pytest.raises((UsageError, WeightsError), match=told):
        convert(source, tmp_path / "out", say=QUIET)


def test_an_encoder_without_a_writer_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the encoder dinov2 cannot be written"):
        convert(opened(folder, {"dinov2": {}}), tmp_path / "out", say=QUIET)
    says = (
        r"has no place for media\.dinov2\.\*; nor can the whole model be written: the encoder dinov2 cannot be written"
    )
    with pytest.raises(UsageError, match=says):  # it advised to write the whole model
        refuse_encoders(opened(folder, {"dinov2": {}}))


def test_a_run_that_began_with_a_model_of_the_hub_is_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its encoder has the weights of that model, by a name that is no path."""
    monkeypatch.setattr(hub, "_snapshot", {"org/llava": folder / "base"}.__getitem__)
    monkeypatch.chdir(tmp_path)
    words = ["--model.weights", "org/llava", "--encoders", "clip", "--encoders.clip.weights", "model"]
    words += ["--dataset", "jsonl", "--dataset.path", str(folder / "rows" / "rows.json"), "--data.template", "chatml"]
    words += ["--train.sequence-len", "64", "--train.steps", "1", "--data.eval", "none", "--output", "run"]
    assert mt_train(words) == 0
    assert mt_convert(["run", "out"]) == 0
    model = transformers.LlavaForConditionalGeneration.from_pretrained("out")
    assert model.config.image_token_id == IMAGE


def test_an_adapter_alone_has_no_place_for_an_encoder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mt_export(["--run", str(folder / "run"), "--output", str(folder / "adapter")]) != 0
    assert "no place for media.clip.*; write the whole model" in capsys.readouterr().err
    words = ["--run", str(folder / "run"), "--merge", "--output", str(folder / "merged"), "--check", "transformers"]
    assert mt_export(words) != 0
    assert "has encoders of media (clip)" in capsys.readouterr().err
    assert not (folder / "merged").exists()


def test_projectors_of_several_runs_are_no_sum(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, words = tmp_path / "run", ["--model.weights", folder / "base", "--encoders", "clip", "--adapter", "lora"]
    words += ["--encoders.clip.weights", "model", "--dataset", "jsonl", "--dataset.path", folder / "rows" / "rows.json"]
    words += ["--data.template", "chatml", "--data.eval", "none", "--train.sequence-len", "64", "--train.steps", "1"]
    assert mt_train([str(word) for word in (*words, "--train.dtype", "fp32", "--output", run)]) == 0
    several = ["--run", str(run), "--run", f"{run}:0.5", "--merge", "--output", str(tmp_path / "no")]
    assert mt_export(several) == 2
    assert "has trained media.clip.projector." in capsys.readouterr().err
    assert mt_export(["--run", f"{run}:0.5", "--merge", "--output", str(tmp_path / "half"), "--tolerance", "1e-5"]) == 0


def opened(folder: Path, encoders: dict[str, Any]) -> Any:
    """The text model of the base with other encoders, drawn from the seed."""
    from dataclasses import replace

    from mt_train.assemble.parts import Parts
    from mt_train.plugins.resolve import resolve

    host = discover_plugins()
    source = open_source(str(folder / "base"), host)
    raw = {"model": {"weights": str(folder / "base")}, "encoders": encoders, "train": {"sequence_len": 2}}
    return replace(source, parts=Parts.of(resolve(raw, host)))
