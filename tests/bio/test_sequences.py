"""Sequences as rows have them: letters to ids, and one clear message for those that cannot be read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mt_core import DataError
from mt_core.media import MediaItem, MediaPart
from mt_plugin_bio.hyenadna.config import HyenaDNAConfig
from mt_plugin_bio.sequences import SequenceProcessor


def processor(**options: Any) -> SequenceProcessor:
    config = HyenaDNAConfig(**options)
    return SequenceProcessor("dna", config.build_vocabulary(), config)


def part(content: bytes) -> MediaPart:
    return MediaPart("dna", content=content, place="rows.jsonl:7: dna")


def test_letters_of_hyenadna_are_the_published_ids() -> None:
    read = {
        frame: processor(frame=frame).read(MediaItem("e", content=b"ACGTN"))["ids"]
        for frame in ("sep", "cls-sep", "none")
    }
    assert read["sep"].tolist() == [7, 8, 9, 10, 11, 1]
    assert read["cls-sep"].tolist() == [0, 7, 8, 9, 10, 11, 1]
    assert read["none"].tolist() == [7, 8, 9, 10, 11]


def test_features_are_the_ids_that_are_read() -> None:
    measured = processor().measure(part(b"ACG"))
    assert measured.features == 4
    assert len(measured.digest) == 8
    assert measured.digest != processor().measure(part(b"ACT")).digest


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"", {}, "rows.jsonl:7: dna: the dna sequence is empty"),
        (b"ACXGTX", {}, "letter 3 of 6 of the dna sequence is 'X'; letters are ACGTN"),
        (b"AC\xc3\xa9", {}, "letter 3 of 4 of the dna sequence is byte c3"),
        (b"ACgt", {}, "letter 3 of 4 of the dna sequence is 'g'; letters are ACGTN; set soft_masked true"),
        (b"ACGT\n", {"soft_masked": True}, r"letter 5 of 5 of the dna sequence is '\\n'"),
        (b"ACGTA", {"max_len": 4}, "has 5 letters, and the encoder takes 4; cut it, or set too_long to cut"),
        (b"A" * 1026, {}, "has 1,026 letters, and the encoder takes 1,025"),
    ],
)
def test_a_sequence_that_cannot_be_read_is_a_bad_row_with_its_place(content: bytes, options: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        processor(**options).measure(part(content))


def test_a_file_is_refused() -> None:
    with pytest.raises(DataError, match=r"/data/a\.fasta is a file"):
        processor().measure(MediaPart("dna", path="/data/a.fasta"))


def test_lower_case_letters_are_read_as_upper_case_ones_where_asked_for() -> None:
    ids = processor(soft_masked=True).read(MediaItem("e", content=b"acGT"))["ids"]
    assert ids.tolist() == [7, 8, 9, 10, 1]


def test_a_long_sequence_loses_its_last_letters_where_asked_for() -> None:
    cut = processor(max_len=4, too_long="cut")
    assert cut.measure(part(b"ACGTAA")).features == 5
    assert cut.read(MediaItem("e", content=b"ACGTAA"))["ids"].tolist() == [7, 8, 9, 10, 1]


def test_another_sequence_than_was_measured_is_refused() -> None:
    measured = processor().measure(part(b"ACGT"))
    with pytest.raises(DataError, match="another one than was measured"):
        processor().read(MediaItem("e", content=b"ACGA", digest=measured.digest))


def test_a_dummy_is_a_sequence_like_any_other() -> None:
    measured, arrays = processor().dummy()
    assert measured.features == len(arrays["ids"]) == 2
    assert arrays["ids"].dtype == np.int64


def test_sequences_longer_than_the_filters_are_refused_on_paper() -> None:
    with pytest.raises(ValueError, match="max_len=1,026 letters are more than the encoder takes, 1,025"):
        HyenaDNAConfig(max_len=1026)
    assert HyenaDNAConfig(size="large-1m", max_len=1_000_001).most_letters == 1_000_001


def test_a_layer_that_is_not_there_is_refused_on_paper() -> None:
    with pytest.raises(ValueError, match="layer=3, and the encoder has 2 layers"):
        HyenaDNAConfig(layer=3)
    assert [HyenaDNAConfig(layer=layer).blocks for layer in (0, 1, 2, -1, -2, -3)] == [0, 1, 2, 2, 1, 0]


def test_a_folder_of_weights_may_have_more_layers_and_letters_than_the_size_that_nobody_named() -> None:
    before = HyenaDNAConfig(weights="/some/folder", layer=-4, max_len=30_000)
    assert HyenaDNAConfig(**{**before.model_dump(exclude_unset=True), "n_layers": 4, "l_max": 32_770}).blocks == 1
    with pytest.raises(ValueError, match=r"layer=-4, and the encoder has 2 layers.*; and max_len=30,000"):
        HyenaDNAConfig(weights="/some/folder", layer=-4, max_len=30_000, n_layers=2)


def test_people_are_told_how_long_a_sequence_is() -> None:
    assert processor().describe(MediaItem("e", content=b"A" * 1024)) == "dna, 1,024 letters"
