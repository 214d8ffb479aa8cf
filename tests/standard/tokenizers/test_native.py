"""A tokenizer file that its library does not survive ends in one error: it is tried by another process, once."""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from mt_core.errors import MtError
from mt_core.files.native import native_faults, panics
from mt_plugin_standard.tokenizers import file_check
from mt_plugin_standard.tokenizers.file_check import check_tokenizer

SECONDS = 10
"""Until a file is known to be bad, on a machine that does nothing else."""
USED = """
import sys
from pathlib import Path
from mt_plugin_standard.tokenizers.huggingface import HuggingFaceConfig, build_huggingface
from mt_core.errors import MtError
try:
    tokenizer = build_huggingface(HuggingFaceConfig(path=sys.argv[1]))
    for text in ("the quick fox", "aaaa" * 50 + "!", "\\u00e9 \\u6f22", ""):
        tokenizer.decode(tokenizer.encode_literally(text))
        tokenizer.encode_many([text])
except MtError as error:
    print("one error:", error)
else:
    print("works")
"""


NUMBERS = (-1, 0, 1, 2**31, 2**32 - 1, 2**63, 10**30, 1e308, -1e308)
TEXTS = ("", "a", "\u202e", "\x1b[2J", "(a+)+$", "(", "\\", "x" * 10**5, "<s>", "\ud7ff", "Ġ", "BPE", "Unigram")
OTHERS = (None, True, [], {}, [[]], {"type": "Sequence"}, {"type": "nobody"})


def sound_tokenizer() -> dict[str, Any]:
    """A byte-level BPE of 280 tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=280, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog"] * 20, trainer)
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    return content


def _template() -> dict[str, Any]:
    parts = [{"SpecialToken": {"id": "<q>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    return {"type": "TemplateProcessing", "single": parts, "pair": [], "special_tokens": {}}


def hostile_files() -> dict[str, dict[str, Any]]:
    """Name → keys of a ``tokenizer.json`` that its library panics with, aborts with, or does not come to an end with."""
    split = {"type": "Split", "behavior": "Isolated", "invert": False}
    fixed = {"direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "<s>"}
    words = {"type": "WordLevel", "vocab": {"a": 0, "b": 2**32 - 1}, "unk_token": "a"}
    return {
        "a pattern that tries every way": {"pre_tokenizer": {**split, "pattern": {"Regex": "(a+)+$"}}},
        "a replacement that grows": {
            "normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10**6}
        },
        "a pattern of nothing": {"normalizer": {"type": "Replace", "pattern": {"Regex": ""}, "content": "x"}},
        "padding beyond memory": {"padding": {"strategy": {"Fixed": 10**12}, **fixed}},
        "a stride beyond the length": {
            "truncation": {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 5}
        },
        "an id beyond any embedding": {"model": words},
        "a template with a token that is not there": {"post_processor": _template()},
    }


def mutate(seed: int) -> bytes:
    """A sound file with one or two changes of its values, and perhaps of its bytes."""
    draw = random.Random(seed)
    content = sound_copy()
    for _ in range(draw.randint(1, 2)):
        _change(content, draw)
    text = json.dumps(content).encode("utf-8", "surrogatepass")
    if draw.random() < 0.2:
        place = draw.randrange(len(text))
        text = text[:place] + bytes([draw.randrange(256)]) + text[place + draw.randrange(3) :]
    return text


_SOUND: list[dict[str, Any]] = []


def sound_copy() -> dict[str, Any]:
    """The same one each time, made once."""
    if not _SOUND:
        _SOUND.append(sound_tokenizer())
    return copy.deepcopy(_SOUND[0])


def _change(content: dict[str, Any], draw: random.Random) -> None:
    if draw.random() < 0.3:
        content.update(draw.choice(list(hostile_files().values())))
        return
    places = list(_places(content))
    single = [(holder, key) for holder, key in places if not isinstance(holder[key], dict | list)]
    holder, key = draw.choice(single if draw.random() < 0.7 else places)
    choice = draw.random()
    if choice < 0.2:
        del holder[key]
    elif choice < 0.4:
        holder[key] = draw.choice(NUMBERS)
    elif choice < 0.7:
        holder[key] = draw.choice(TEXTS)
    else:
        holder[key] = copy.deepcopy(draw.choice(OTHERS))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield where values stand; of a long list or a large mapping a few."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    for key in keys[:8]:
        yield value, key
        yield from _places(value[key])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokenizers"


def write(path: Path, **changed: Any) -> Path:
    path.write_text(json.dumps(sound_copy() | changed), encoding="utf-8")
    return path


def test_a_hostile_file_of_each_kind_is_one_error_and_is_not_remembered(tmp_path: Path, cache: Path) -> None:
    files = {
        name: write(tmp_path / f"{number}.json", **keys) for number, (name, keys) in enumerate(hostile_files().items())
    }

    def fate(path: Path) -> str:
        with pytest.raises(MtError, match=r"cannot be read as a Hugging Face tokenizer: .*Fetch or make") as caught:
            check_tokenizer([path], "tokenizer.json", path)
        return str(caught.value)

    with ThreadPoolExecutor(2) as pool:
        said = dict(zip(files, pool.map(fate, files.values()), strict=True))
    assert all("\n" not in text for text in said.values())
    assert "ends the process that reads it (SIGABRT)" in said["padding beyond memory"]
    # What comes first on this machine: the end of the seconds or that of the memory that such a process gets.
    grows = said["a replacement that grows"]
    assert "does not come to an end" in grows or "ends the process that reads it (SIGABRT)" in grows
    assert "it has the id 4294967295" in said["an id beyond any embedding"]
    assert not cache.exists()


def test_a_sound_file_is_tried_once_and_again_when_it_changes(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "tokenizer.json")
    begun = []
    start = file_check._run_check
    monkeypatch.setattr(file_check, "_run_check", lambda *given: (begun.append(given[1]), start(*given)))
    check_tokenizer([path], "tokenizer.json", path)
    check_tokenizer([path], "tokenizer.json", path)
    copied = tmp_path / "copy" / "tokenizer.json"
    copied.parent.mkdir()
    copied.write_bytes(path.read_bytes())
    check_tokenizer([copied], "tokenizer.json", copied)
    assert begun == [path], "what a file says is remembered, not where it was"
    assert len(list(cache.iterdir())) == 1
    write(path, version="1.0 ")
    with pytest.raises(MtError):
        check_tokenizer([path], "tokenizer.json", path)
    assert begun == [path, path]


def test_a_home_that_cannot_be_written_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "tokenizer.json")
    monkeypatch.setenv("MT_CACHE", "/dev/null/nowhere")
    check_tokenizer([path], "tokenizer.json", path)


def test_a_damaged_sentencepiece_model_is_one_error(tmp_path: Path) -> None:
    for content in (b"", b"\n" * 1000, b"\x0a\xff\xff\xff\xff\x0f", bytes(range(256)) * 8):
        path = tmp_path / "tokenizer.model"
        path.write_bytes(content)
        with pytest.raises(MtError):
            check_tokenizer([path], "sentencepiece", path)


def test_a_panic_is_an_error_and_everything_else_stays_what_it_is() -> None:
    keys = hostile_files()["a stride beyond the length"]
    with pytest.raises(MtError, match="x has a fault that its library does not survive"), native_faults("x"):
        Tokenizer.from_str(json.dumps(sound_copy() | keys)).encode("the quick brown fox")
    assert panics(), "and is known by its class, which there is once one came"
    assert all(not issubclass(kind, Exception) for kind in panics())
    for other in (KeyboardInterrupt, SystemExit, ValueError):
        with pytest.raises(other), native_faults("x"):
            raise other


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, 300, 20))
def test_a_file_damaged_at_random_works_or_is_one_error(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 20):
        path = tmp_path / f"{seed}.json"
        path.write_bytes(mutate(seed))
        begun = time.monotonic()
        done = subprocess.run([sys.executable, "-c", USED, str(path)], capture_output=True, text=True, timeout=1500)
        assert done.returncode == 0, (seed, done.stderr[-2000:])
        assert done.stdout.startswith(("works", "one error:")), (seed, done.stdout)
        assert done.stdout.count("\n") == 1, (seed, done.stdout)
        print(seed, f"{time.monotonic() - begun:.1f} s", done.stdout[:100])
