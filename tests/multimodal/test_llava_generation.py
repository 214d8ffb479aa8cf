"""Texts after prompts with images: as transformers writes them, alone and among others, whole and in pieces."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mt_core.errors import UsageError
from mt_core.generation import GenerationConfig, SamplingRules
from mt_core.media import MediaPart
from mt_core.nn import Batch, KVCache, TrainModel
from mt_core.rows import Encoded
from mt_tools.cli.generate import main
from mt_train.data.media.writer import MediaTemplate
from mt_train.generation.continuation import continue_prompts
from mt_train.generation.decoder import Decoder
from mt_train.generation.forward import last_logits
from mt_train.generation.loaded_model import LoadedModel
from mt_train.generation.request import Request

from .llava import GREEDY, IMAGE, TOKENS, open_llava, write_llava, write_pictures

pytest.importorskip("transformers")

MARK = "\ufdd5"
IMAGES = (0, 1, 3, 1, 0, 2)
"""Images of each prompt of a batch."""


def prompts_of(loaded: LoadedModel, folder: Path, counts: Sequence[int]) -> list[Encoded]:
    template = loaded.template
    assert isinstance(template, MediaTemplate)
    pictures, found = write_pictures(folder, 4), []
    for number, count in enumerate(counts):
        parts = [MediaPart("image", str(pictures[(number + each) % 4])) for each in range(count)]
        text = "look at this: " + f"{MARK} and " * count + "x" * number
        found.append(template.encode_text(text, parts, begin=(1,), end=()))
    return found


@pytest.mark.parametrize("text", ["llama", "qwen2"])
@pytest.mark.parametrize("vision", ["clip", "siglip"])
def test_greedy_tokens_are_those_of_transformers(vision: str, text: str, tmp_path: Path) -> None:
    theirs = write_llava(tmp_path / "model", vision, text)
    _, loaded = open_llava(tmp_path / "model", vision)
    prompts = prompts_of(loaded, tmp_path, (0, 1, 3))
    found = continue_prompts(replace(loaded, eos_ids=()), prompts, GREEDY, batch_size=4)
    for prompt, ours in zip(prompts, found, strict=True):
        ids_T = torch.tensor(prompt.ids)
        pixels = []
        for span in prompt.media:
            ids_T[span.start : span.start + span.tokens] = IMAGE
            pixels.append(pixels_of(loaded, prompt, span.start))
        images = {"pixel_values": torch.cat(pixels)} if pixels else {}
        written = theirs.generate(
            input_ids=ids_T[None],
            attention_mask=torch.ones_like(ids_T)[None],
            **images,
            do_sample=False,
            max_new_tokens=8,
            pad_token_id=0,
            eos_token_id=None,
        )
        assert written[0, len(ids_T) :].tolist() == list(ours.ids)


def pixels_of(loaded: LoadedModel, prompt: Encoded, start: int) -> torch.Tensor:
    from mt_train.generation.forward import make_batch, media_batch

    span = next(each for each in prompt.media if each.start == start)
    ids_1T = torch.tensor([prompt.ids])
    batch = media_batch(make_batch(ids_1T, torch.arange(len(prompt.ids))[None]), [(0, span)], 0, loaded.read_media)
    (media,) = batch.media.values()
    assert media.inputs is not None
    return media.inputs["pixels"]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("llava")
    write_llava(folder, "clip", "llama")
    return replace(open_llava(folder, "clip")[1], eos_ids=())


def test_a_batch_of_prompts_with_no_to_three_images_gives_the_texts_of_each_alone(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    prompts = prompts_of(loaded, tmp_path, IMAGES)
    alone = [continue_prompts(loaded, [prompt], GREEDY, batch_size=1)[0].ids for prompt in prompts]
    assert len(set(alone)) > 2, "texts that tell prompts apart"
    together = continue_prompts(loaded, prompts, GREEDY, batch_size=len(prompts))
    assert [each.ids for each in together] == alone


@pytest.mark.parametrize("tokens", [7, 24, 2048])
def test_prompts_that_are_taken_in_by_pieces_through_images_and_share_a_beginning_change_no_text(
    tokens: int, loaded: LoadedModel, tmp_path: Path
) -> None:
    same = prompts_of(loaded, tmp_path, (3, 3, 1, 1))
    # the same picture first: two prompts have more than the words in common, and two differ in nothing but a picture
    prompts = [same[0], *prompts_of(loaded, tmp_path, (3,)), *same[1:]]
    alone = [continue_prompts(loaded, [prompt], GREEDY, batch_size=1)[0].ids for prompt in prompts]
    decoder = Decoder(loaded, max_rows=8, prefill_tokens=tokens)
    numbers = [
        decoder.add(Request(ids=prompt.ids, media=prompt.media, rules=GREEDY.rules, most=8)) for prompt in prompts
    ]
    found: dict[int, list[int]] = {number: [] for number in numbers}
    while decoder.busy:
        for each in decoder.step():
            found[each.number].append(each.token)
    assert [tuple(found[number]) for number in numbers] == alone


def test_two_prompts_that_differ_in_their_picture_alone_are_two(loaded: LoadedModel, tmp_path: Path) -> None:
    one, other, _, _ = prompts_of(loaded, tmp_path, (1, 1, 1, 1))
    other = replace(one, media=[replace(other.media[0], start=one.media[0].start)])
    assert one.ids == other.ids
    rules = replace(GREEDY, logprobs=True)
    first, second = continue_prompts(loaded, [one, other], rules, batch_size=2)
    assert first.logprobs != second.logprobs
    assert second.logprobs == pytest.approx(continue_prompts(loaded, [other], rules, batch_size=1)[0].logprobs)


def test_beams_see_the_image(loaded: LoadedModel, tmp_path: Path) -> None:
    (prompt,) = prompts_of(loaded, tmp_path, (2,))
    beams = GenerationConfig(rules=SamplingRules(greedy=True, num_beams=3), max_new_tokens=6, logprobs=True)
    found = continue_prompts(loaded, [prompt], beams, batch_size=1)[0]
    blind = continue_prompts(loaded, [prompt.ids], beams, batch_size=1)[0]
    assert (found.ids, found.logprobs) != (blind.ids, blind.logprobs)


def test_an_encoder_is_called_for_prompts_and_for_no_step(loaded: LoadedModel, tmp_path: Path) -> None:
    calls = []

    def forward(model: TrainModel, batch: Batch, cache: KVCache) -> torch.Tensor:
        calls.append((batch.input_ids.shape[1], bool(batch.media)))
        return last_logits(model, batch, cache)

    (prompt,) = prompts_of(loaded, tmp_path, (1,))
    continue_prompts(loaded, [prompt], GREEDY, batch_size=1, forward=forward)
    assert calls == [(len(prompt.ids), True), *[(1, False)] * 7]


def test_media_for_a_model_without_encoders_are_refused(loaded: LoadedModel, tmp_path: Path) -> None:
    (prompt,) = prompts_of(loaded, tmp_path, (1,))
    write_llava(tmp_path / "model", "clip", "llama")
    blind = open_llava(tmp_path / "model", "clip", encoders={})[1]
    with pytest.raises(UsageError, match="media for clip, and the model has no encoder"):
        continue_prompts(blind, [prompt], GREEDY, batch_size=1)


# ----------------------------------------------------------------------------------------------------------- commands


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folder")
    write_llava(folder / "model", "clip", "llama")
    write_pictures(folder, 2)
    return folder


def ask(folder: Path, *words: str) -> int:
    return main(["--weights", str(folder / "model"), "--greedy", "--max-new-tokens", "5", *words])


def test_a_prompt_with_images_is_continued(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = [word for number in (0, 1) for word in ("--image", str(folder / f"{number}.png"))]
    assert ask(folder, "--prompt", "<image> or <image>?", *images) == 0
    spelled = capsys.readouterr().out
    assert ask(folder, "--prompt", "<image> or <image>?", *(f"--media=image={each}" for each in images[1::2])) == 0
    assert capsys.readouterr().out == spelled
    assert ask(folder, "--prompt", "no picture") == 0


@pytest.mark.parametrize(
    ("prompt", "images", "told"),
    [
        ("<image> and <image>", 1, "<image> 2 times, and there are 1 files"),
        ("none", 1, "<image> 0 times, and there are 1 files"),
        ("<image>", 0, "<image> 1 times, and there are 0 files"),
    ],
)
def test_a_prompt_with_another_number_of_places_than_files_is_refused_with_both(
    prompt: str, images: int, told: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word for _ in range(images) for word in ("--image", str(folder / "0.png"))]
    assert ask(folder, "--prompt", prompt, *given) != 0
    assert told in capsys.readouterr().err


def test_a_file_of_prompts_names_its_images(folder: Path, tmp_path: Path) -> None:
    rows = [
        {"prompt": "<image> is", "images": ["0.png"]},
        {"prompt": "none"},
        {"messages": [{"role": "user", "content": "<image><image>?"}], "images": ["0.png", "1.png"]},
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out.jsonl"
    words = ("--prompts", str(folder / "prompts.jsonl"), "--out", str(out), "--chat-template", "chatml")
    assert ask(folder, *words) == 0
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert [each["tokens"] for each in written] == [5, 5, 5]
    assert TOKENS == 16


def test_a_file_that_is_not_there_is_told_once_and_without_an_option_that_there_is_not(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(folder, "--prompt", "<image>", "--image", str(folder / "gone.png")) != 0
    assert capsys.readouterr().err.endswith(f"there is no such file below {folder}. Repair the path.\n")
    (folder / "gone.jsonl").write_text('{"prompt": "<image>", "images": ["gone.png"]}\n')
    assert ask(folder, "--prompts", str(folder / "gone.jsonl"), "--out", str(tmp_path / "out.jsonl")) != 0
    told = capsys.readouterr().err
    assert f"error: {folder / 'gone.jsonl'}:1: field 'images', number 1 names 'gone.png'" in told
    assert told.endswith(f"there is no such file below {folder}. Repair the path.\n")


def test_the_first_turn_says_that_an_image_waits_for_its_place(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("what?\nand now?\n<image> what?\n"))
    assert ask(folder, "--chat", "--chat-template", "chatml", "--image", str(folder / "0.png")) == 0
    told = capsys.readouterr().err
    assert told.count("0.png' is no part of this turn; write <image> where it belongs") == 1
    assert "error:" not in told


def test_a_conversation_takes_an_image_where_a_turn_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("<image> what?\nand now?\n<image> again?\n"))
    assert ask(folder, "--chat", "--chat-template", "chatml", "--image", str(folder / "0.png")) == 0
    told = capsys.readouterr().err
    assert told.count("error:") == 1
    assert "is no part of this turn" not in told
    assert "<image> 1 times, and there are 0 files" in told
