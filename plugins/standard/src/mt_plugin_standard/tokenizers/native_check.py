"""A process of its own that reads a tokenizer and a few short texts with it, under limits: see ``file_check.py``.

Run as a script, without anything of ours: ``native_check.py KIND PATH``. Ends with 0, or with 1 and a line that says why.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

CPU_SECONDS, SECONDS_PER_MB, MEMORY = 5, 2, 6 << 30
"""Ten times what a sound file needs on a busy machine (docs/log.md); seconds of processor time, and bytes."""
MOST_IDS = 1 << 24
"""Above this an id is a slip: the embedding of such a vocabulary would have no room anywhere."""
TEXTS = (
    "",
    " ",
    "The quick brown fox, 12345.67 times: don't!\n\tif (x) { return `y`; }\r\n",
    "Ünïcödé — ﬁ ½ Å Å 漢字かな交じり文 नमस्ते مرحبا שלום 👩‍👩‍👧‍👦 🇩🇪 \u200b\ufeff\u0000\u001b\U000e0001",
    "<s></s><pad><unk><|endoftext|>[CLS][MASK]<0x0A>▁Ġ##a",
    "a" * 1000 + "!",
    "ab" * 500 + "!",
    " " * 1000 + "x",
    "1" * 1000 + "x",
    "\n" * 500 + "x",
    "é" * 500 + "!",
    "-=" * 500 + "\n",
)


def main(kind: str, path: str) -> int:
    """Try it; the exit code."""
    load(kind)
    limit(path)
    try:
        TRIALS[kind](path)
    except BaseException as error:  # noqa: BLE001 - a panic is no Exception; this process has nothing else to do
        words = str(error).strip() or type(error).__name__
        sys.stdout.buffer.write(words.splitlines()[0][:300].encode("utf-8", "replace"))
        return 1
    return 0


def load(kind: str) -> None:
    """Import the library before there are limits: how long that takes says nothing of the file."""
    if kind == "folder":
        from transformers import AutoTokenizer  # noqa: F401 - looked up in transformers, it is imported
    else:
        __import__({"tokenizer.json": "tokenizers"}.get(kind, kind))


def limit(path: str) -> None:
    """Bounds for processor time from here on, more for a larger file, and for memory, where the system has them."""
    if sys.platform == "win32":
        return
    import resource

    seconds = math.ceil(time.process_time()) + CPU_SECONDS + SECONDS_PER_MB * os.stat(path).st_size // 10**6
    for what, bound in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(what)
        bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(what, (bound, hard))


def one_file(path: str) -> None:
    """A ``tokenizer.json``."""
    from tokenizers import Tokenizer

    use(Tokenizer.from_file(path))


def folder(path: str) -> None:
    """A tokenizer of transformers without one."""
    from transformers import AutoTokenizer

    inner = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    if inner.is_fast:
        use(inner.backend_tokenizer)
    else:
        check_ids(inner.get_vocab())
        for text in TEXTS:
            inner.decode(inner(text)["input_ids"])


def use(tokenizer: Any) -> None:
    """Read the texts in each way in which a run does."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    check_ids(vocabulary)
    longest = sorted(vocabulary, key=len)[-3:]
    for literally in (False, True):
        tokenizer.encode_special_tokens = literally
        for text in (*TEXTS, *longest):
            _read(tokenizer, text, literally)


def _read(tokenizer: Any, text: str, literally: bool) -> None:
    """Read a text in each way in which a run does. A text that has no tokens here is an ``Exception``, and no fault of the file."""
    try:
        encoded = tokenizer.encode(text, add_special_tokens=False)
        tokenizer.decode(encoded.ids, skip_special_tokens=literally)
        list(encoded.offsets)
        tokenizer.encode_batch([text], add_special_tokens=True)
        tokenizer.encode_batch_fast([text], add_special_tokens=False)
    except Exception:  # noqa: BLE001 - the Rust side raises bare Exceptions; panics are none
        return


def check_ids(vocabulary: dict[str, int]) -> None:
    """Raise ``ValueError`` for an id that no embedding has a row for."""
    if not vocabulary:
        raise ValueError("it has no token")
    if max(vocabulary.values()) >= MOST_IDS:
        raise ValueError(f"it has the id {max(vocabulary.values())}, and ids end at {MOST_IDS - 1}")


def sentencepiece(path: str) -> None:
    """A SentencePiece model."""
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_file=path)
    size = processor.get_piece_size()
    for text in TEXTS:
        ids = processor.encode(text)
        processor.decode(ids)
        list(processor.encode(text, return_type="proto").pieces)
    for number in range(min(size, 1000)):
        processor.id_to_piece(number)
        processor.decode([number])


TRIALS: dict[str, Callable[[str], None]] = {
    "tokenizer.json": one_file,
    "folder": folder,
    "sentencepiece": sentencepiece,
}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
