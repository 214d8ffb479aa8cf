"""Whole Qwen-VL folders beside transformers: logits of rows with images, and what a folder says of itself.

Shapes: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from .llava import open_llava
from .qwen_vl import KINDS, theirs_of, write_images, write_qwen
from .test_llava_folders import batch_of, logits_of, samples_of

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("kind", KINDS)
def test_logits_of_rows_with_no_one_and_three_images_equal_those_of_transformers(kind: str, tmp_path: Path) -> None:
    theirs = write_qwen(tmp_path / "model", kind)
    named: dict[str, Any] = {kind: {"weights": "model", "min_area": 64, "max_area": 1024}}
    parts, loaded = open_llava(tmp_path / "model", kind, encoders=named)
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
