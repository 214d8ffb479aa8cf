"""Texts after prompts with images for Qwen-VL: as transformers writes them, alone and among others, whole and in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mt_core.generation import GenerationConfig, SamplingRules
from mt_core.media import MediaPart
from mt_core.rows import Encoded
from mt_train.data.media.writer import MediaTemplate
from mt_train.generation.continuation import continue_prompts
from mt_train.generation.decoder import Decoder
from mt_train.generation.forward import make_batch, media_batch
from mt_train.generation.intake import count_shared
from mt_train.generation.loaded_model import LoadedModel
from mt_train.generation.request import Request, prompt_key

from .llava import GREEDY, open_llava
from .qwen_vl import KINDS, SMALL, theirs_of, write_images, write_qwen

pytest.importorskip("transformers")

MARK = "\ufdd5"


def prompts_of(loaded: LoadedModel, folder: Path, counts: Sequence[int]) -> list[Encoded]:
    template = loaded.template
    assert isinstance(template, MediaTemplate)
    pictures, found = write_images(folder), []
    for number, count in enumerate(counts):
        parts = [MediaPart("image", str(pictures[(number + each) % 4])) for each in range(count)]
        text = "look at this picture: " + f"{MARK} and " * count + "x" * number
        found.append(template.encode_text(text, parts, begin=(1,), end=()))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_are_those_of_transformers_alone_together_and_in_pieces(kind: str, tmp_path: Path) -> None:
    theirs = write_qwen(tmp_path / "model", kind)
    loaded = replace(open_llava(tmp_path / "model", kind, encoders={kind: SMALL})[1], eos_ids=())
    prompts = prompts_of(loaded, tmp_path, (1, 0, 3, 3, 2))
    expected = [written_by(theirs, loaded, prompt, kind) for prompt in prompts]
    assert len(set(expected)) > 2, "texts that tell prompts apart"
    for size in (1, 5):
        found = continue_prompts(loaded, prompts, GREEDY, batch_size=size)
        assert [each.ids for each in found] == expected
    decoder = Decoder(loaded, max_rows=8, prefill_tokens=24)
    rows = [decoder.add(Request(ids=each.ids, media=each.media, rules=GREEDY.rules, most=8)) for each in prompts]
    pieces: dict[int, list[int]] = {number: [] for number in rows}
    while decoder.busy:
        for each in decoder.step():
            pieces[each.number].append(each.token)
    assert [tuple(pieces[number]) for number in rows] == expected
    beams = GenerationConfig(rules=SamplingRules(greedy=True, num_beams=3), max_new_tokens=6)
    found = continue_prompts(loaded, prompts[2:3], beams, batch_size=1)
    assert found[0].ids == written_by(theirs, loaded, prompts[2], kind, num_beams=3, max_new_tokens=6)


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_that_begin_with_the_same_picture_share_its_places(kind: str, tmp_path: Path) -> None:
    """What all begin with is taken in once; behind it they have pictures of other shapes."""
    theirs = write_qwen(tmp_path / "model", kind)
    loaded = replace(open_llava(tmp_path / "model", kind, encoders={kind: SMALL})[1], eos_ids=())
    first, wide, high, _ = write_images(tmp_path)
    template = loaded.template
    assert isinstance(template, MediaTemplate)
    prompts = [
        template.encode_text(
            f"look at this picture: {MARK} beside {MARK}{end}",
            [MediaPart("image", str(each)) for each in (first, other)],
            begin=(1,),
            end=(),
        )
        for other, end in ((wide, "."), (high, " ?"), (wide, " and so on"))
    ]
    assert count_shared([prompt_key(each.ids, each.media) for each in prompts]) > prompts[0].media[0].start
    found = continue_prompts(loaded, prompts, GREEDY, batch_size=3)
    assert [each.ids for each in found] == [written_by(theirs, loaded, each, kind) for each in prompts]


def written_by(theirs, loaded: LoadedModel, prompt: Encoded, kind: str, **options: int) -> tuple[int, ...]:  # type: ignore[no-untyped-def]
    """The new tokens of their model."""
    batch = make_batch(torch.tensor([prompt.ids]), torch.arange(len(prompt.ids))[None])
    batch = media_batch(batch, [(0, span) for span in prompt.media], 0, loaded.read_media)
    given = theirs_of(batch, kind)
    options = {"max_new_tokens": 8, "pad_token_id": 0, **options}
    mask = torch.ones_like(given["input_ids"])
    written = theirs.generate(**given, attention_mask=mask, do_sample=False, eos_token_id=None, **options)
    return tuple(written[0, len(prompt.ids) :].tolist())
