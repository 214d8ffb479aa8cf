"""Shape and colour of noisy pictures are learned by a run whose encoder, projector and language model are all drawn from the seed.

Where pictures stand beside rows that are not theirs it is at chance: the signal goes through the spans and nowhere else.
"""

from __future__ import annotations

import base64
import io
import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mt_tools.cli.generate import main as generate
from mt_train import train

pytestmark = pytest.mark.soak
COLOURS = {"red": (210, 40, 40), "green": (40, 190, 40), "blue": (40, 40, 210), "yellow": (210, 210, 40)}
ROWS, COLUMNS = np.mgrid[:9, :9]
SHAPES = {
    "circle": (ROWS - 4) ** 2 + (COLUMNS - 4) ** 2 <= 18,
    "square": ROWS >= 0,
    "bar": abs(ROWS - COLUMNS) <= 1,
    "frame": (ROWS % 8 == 0) | (COLUMNS % 8 == 0),
}
ANSWERS = list(product(COLOURS, SHAPES))
TRAINED, HELD_OUT, STEPS = 6400, 640, 400
RUN = {
    "model": {"name": "llama", "dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 4, "ffn_dim": 128},
    "encoders": {"clip": {"image": 16, "patch": 4, "width": 64, "blocks": 2}},
    "objective": "sft",
    "optimizer": {"name": "adamw", "lr": 1e-3},
    "data": {"eval": None},
    "train": {"steps": STEPS, "sequence_len": 96, "global_batch_size": 64, "micro_batch_size": 64},
}


def picture(random: np.random.Generator, colour: str, shape: str) -> str:
    """A ``data:`` URI of 16 × 16 pixels."""
    pixels = random.integers(0, 80, (16, 16, 3))
    top, left = random.integers(1, 6, 2)
    place = np.zeros((16, 16), bool)
    place[top : top + 9, left : left + 9] = SHAPES[shape]
    pixels[place] = np.clip(COLOURS[colour] + random.integers(-30, 31, (int(place.sum()), 3)), 0, 255)
    content = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(content, "PNG")
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


def share_of_exact_answers(folder: Path, *, shuffled: bool) -> float:
    """Train a run, and ask it about pictures that it has not seen."""
    random = np.random.default_rng(0)
    answers = [ANSWERS[number] for number in random.integers(len(ANSWERS), size=TRAINED + HELD_OUT)]
    pictures = [picture(random, *answer) for answer in answers]
    beside = random.permutation(TRAINED) if shuffled else np.arange(TRAINED)  # without a look at the answers
    rows = [
        {"prompt": "<image> What?", "image": pictures[beside[number]], "response": " {} {}".format(*answers[number])}
        for number in range(TRAINED)
    ]
    asked = [
        {"prompt": "<image> What?", "image": pictures[number], "wanted": "{} {}".format(*answers[number])}
        for number in range(TRAINED, TRAINED + HELD_OUT)
    ]
    for name, content in {"rows": rows, "asked": asked}.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, content)))
    train({**RUN, "dataset": {"name": "jsonl", "path": str(folder / "rows.jsonl")}}, output=folder / "run")
    paths = [
        "--run",
        str(folder / "run"),
        "--prompts",
        str(folder / "asked.jsonl"),
        "--out",
        str(folder / "said.jsonl"),
    ]
    assert generate([*paths, "--greedy", "--max-new-tokens", "16", "--batch-size", "64"]) == 0
    lines = [json.loads(line) for line in (folder / "said.jsonl").read_text().splitlines()]
    said = [line["text"].strip() == line["wanted"] for line in lines if "wanted" in line]
    assert len(said) == HELD_OUT
    return sum(said) / len(said)


def test_shape_and_colour_are_learned(tmp_path: Path) -> None:
    share = share_of_exact_answers(tmp_path, shuffled=False)
    print(f"{share:.1%} of {HELD_OUT} pictures after {STEPS} steps")
    assert share >= 0.95


def test_nothing_is_learned_from_pictures_of_other_rows(tmp_path: Path) -> None:
    share = share_of_exact_answers(tmp_path, shuffled=True)
    print(f"{share:.1%} of {HELD_OUT} pictures after {STEPS} steps with pictures of other rows")
    assert share <= 0.12, "1 of 16, and six standard deviations"
