"""What a run says of media: where files lie, what stands around items and in their places, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mt_conformance.host import named_host
from mt_core.errors import ConfigError, DataError, UsageError
from mt_core.plugins.host import PluginHost
from mt_train.assemble.data import build_data, build_tokenizer, encoding_of
from mt_train.assemble.discovery import discover_plugins
from mt_train.assemble.identity import identity, source_files
from mt_train.assemble.media import media_rules, run_template
from mt_train.assemble.parts import Parts
from mt_train.data.media.rules import MOST_BYTES
from mt_train.plugins.resolve import resolve

SHAPE = {"vocab_size": 300, "dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_heads": 2, "ffn_dim": 48}
CLIP = {"image": 8, "patch": 4}
ROW = {"prompt": "a <image> b", "response": "c", "image": "a.png"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Rows, and a picture that lies elsewhere."""
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "rows.jsonl").write_text("\n".join([json.dumps(ROW)] * 2))
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (8, 8), (9, 9, 9)).save(tmp_path / "pictures" / "a.png")
    return tmp_path


def parts_of(folder: Path, clip: dict[str, Any] | None = None, *, host: PluginHost | None = None, **more: Any) -> Parts:
    raw = {
        "model": {"name": "llama", **SHAPE},
        "objective": "sft",
        "dataset": {"name": "jsonl", "path": str(folder / "rows" / "rows.jsonl")},
        "encoders": {"clip": {**CLIP, **(clip or {})}},
        "data": {"eval": None, **more.pop("data", {})},
        "train": {"sequence_len": 64, "steps": 1},
        **more,
    }
    return Parts.of(resolve(raw, host or discover_plugins()))


def test_files_lie_in_the_folder_of_the_rows_or_in_the_one_that_is_named(folder: Path) -> None:
    rules = media_rules(parts_of(folder))
    assert rules is not None
    assert (rules.roots, rules.kinds) == ((folder / "rows",), frozenset({"image"}))
    with pytest.raises(DataError, match=r"rows\.jsonl:1: .* no such file below"):
        build_data(parts_of(folder))
    named = {"data": {"media_root": str(folder / "pictures")}}
    data = build_data(parts_of(folder, **named))
    assert [Path(span.item.path) for span in data.train.media_of(0)] == [folder / "pictures" / "a.png"]
    assert media_rules(parts_of(folder, encoders=None, **named)) is None


def test_an_encoder_that_reads_larger_files_lets_them_through(folder: Path) -> None:
    for own, most in {2 * MOST_BYTES: 2 * MOST_BYTES, 1000: MOST_BYTES}.items():
        rules = media_rules(parts_of(folder, {"max_bytes": own}))
        assert rules is not None
        assert rules.max_bytes == most


def test_texts_stand_around_an_item_and_its_places_have_the_token_that_is_named(folder: Path) -> None:
    parts = parts_of(folder, {"begin": "[", "end": "]!", "token": "#"}, data={"media_root": str(folder / "pictures")})
    tokenizer = build_tokenizer(parts)
    (sample, *_) = build_data(parts).train
    (span,) = sample.media
    assert tokenizer.decode([int(each) for each in sample.ids]).startswith("a [####]! b")
    assert (span.tokens, tokenizer.decode([int(sample.ids[span.start - 1])])) == (4, "[")
    assert not any(sample.trained[: span.start + span.tokens + 2])


def test_a_token_for_places_that_is_two_is_refused(folder: Path) -> None:
    parts = parts_of(folder, {"token": "##"})
    with pytest.raises(UsageError, match=re.escape("encoders.clip.token='##' is 2 tokens of this tokenizer")):
        run_template(parts, build_tokenizer(parts))


def test_a_run_of_text_alone_has_the_key_that_it_has_where_no_encoder_is_installed(folder: Path) -> None:
    """And no column for media. That rows have the fingerprint from before there were media is shown by the golden run, which is resumed."""
    texts = folder / "rows" / "texts.jsonl"
    texts.write_text("\n".join(json.dumps({"prompt": f"<image> {number}", "response": "c"}) for number in range(4)))
    keys = []
    for host in (discover_plugins(), named_host("mt_plugin_llama.plugin")):
        parts = parts_of(folder, host=host, encoders=None, dataset={"name": "jsonl", "path": str(texts)})
        tokenizer, files = build_tokenizer(parts), source_files(parts)
        assert files is not None
        keys.append(identity(parts, tokenizer, encoding_of(parts, tokenizer)[1], files, folder / "hashes").key("train"))
        assert not any("media" in name for name in build_data(parts).train.names)
    assert keys[0] == keys[1]


def test_two_encoders_of_one_kind_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="clip and siglip both read parts of kind 'image'"):
        len(parts_of(folder, encoders={"clip": CLIP, "siglip": CLIP}).encoders)


def test_a_pattern_is_refused_without_an_encoder_that_reads_it_and_where_it_is_none(folder: Path) -> None:
    for encoders, read in (({"clip": CLIP}, "image"), (None, "nothing")):
        parts = parts_of(folder, encoders=encoders, data={"media_patterns": {"dna": "[ACGT]+"}})
        with pytest.raises(UsageError, match=f"media_patterns finds dna, and the encoders of this run read {read}"):
            media_rules(parts)
    for pattern, message in {"(": "is no regular expression", "(a)(b)": "has 2 groups"}.items():
        with pytest.raises(ConfigError, match=message):
            parts_of(folder, data={"media_patterns": {"image": pattern}})
