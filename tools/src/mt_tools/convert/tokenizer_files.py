"""The tokenizer of an exported folder: files that transformers 4 and 5 read, and a proof that they read what the run did."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mt_core.data.text_ids import begin_ids, text_encoder
from mt_core.protocols import Tokenizer
from mt_core.weights import read_json
from mt_tools.convert.writing import write_json

TOKENIZER_CONFIG = "tokenizer_config.json"
_OF_THIS_MACHINE = ("is_local", "local_files_only", "backend", "name_or_path", "auto_map")
"""Keys that say where and how a tokenizer was read, and code that is never copied."""
_BACKEND, _FAST = "TokenizersBackend", "PreTrainedTokenizerFast"
_TEXTS = (
    "Hello, world! It's 3.14159 - or 1_000.",
    " two  spaces and a tab\there ",
    "one\ntwo\n\nthree\r\n",
    "na\u00efve fa\u00e7ade \u0395\u03bb\u03bb\u03ac\u03b4\u03b1 \u65e5\u672c\u8a9e \U0001f469\u200d\U0001f4bb",
    "def f(x: int) -> None: return {'a': x ** 2}",
    "yes",
    " yes",
)

Say = Callable[[str], None]


def make_portable(folder: Path) -> None:
    """Rewrite what only transformers 5 reads in a tokenizer's config, and leave out what is this machine's."""
    file = folder / TOKENIZER_CONFIG
    if not file.is_file():
        return
    given = read_json(file)
    content = {key: value for key, value in given.items() if key not in _OF_THIS_MACHINE}
    by_release_5 = "backend" in given or "is_local" in given or given.get("tokenizer_class") == _BACKEND
    if by_release_5 and (folder / "tokenizer.json").is_file():
        content["tokenizer_class"] = _FAST  # reads tokenizer.json as it is; other classes build parts of it anew
    if isinstance(content.get("extra_special_tokens"), list):
        content["additional_special_tokens"] = content.pop("extra_special_tokens")
    if content != given:
        write_json(file, content)


def open_written(folder: Path, say: Say) -> Any:
    """Return the tokenizer of a folder as transformers opens it; ``None``, which is told, where it cannot."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001 - the Rust side raises bare Exceptions
        say(f"warning: transformers cannot open the tokenizer in the new folder ({error}); add one that it reads")
        return None


def tell_differences(theirs: Any, tokenizer: Tokenizer, say: Say) -> None:
    """Say where the written tokenizer, opened by transformers, gives other ids than the run's."""
    found = next(_differences(theirs, tokenizer), None)
    if found is None:
        return
    what, expected, got = found
    say(
        f"warning: transformers ({type(theirs).__name__}) reads the exported tokenizer otherwise than the run did: {what} is"
        f" {_show_from(got, expected)} there, and {_show_from(expected, got)} in the run. Give whoever uses the folder the ids, or"
        " the run's own tokenizer"
    )


def _differences(theirs: Any, tokenizer: Tokenizer) -> Iterator[tuple[str, Any, Any]]:
    """Yield what differs, as the run has it and as transformers has it."""
    for name in ("bos", "eos", "pad"):
        own, other = getattr(tokenizer, f"{name}_id"), getattr(theirs, f"{name}_token_id")
        if own != other:
            yield f"the {name} token", own, other
    parses = getattr(tokenizer, "parse_specials", False)
    encode, native = text_encoder(tokenizer), bool(getattr(tokenizer, "special_tokens", None))
    specials = [getattr(theirs, f"{name}_token") for name in ("bos", "eos")]
    for text in (*_TEXTS, *(f"a{token} b" for token in specials if token)):
        own, other = encode(text), _ids(theirs, text, split_special_tokens=not parses)
        if own != other:
            yield f"the text {text!r}", own, other
        if native and (own := tokenizer.encode(text)) != (other := _ids(theirs, text)):
            yield f"the text {text!r} with its special tokens", own, other
    begin = list(begin_ids(tokenizer))
    whole, alone = _ids(theirs, _TEXTS[0], add_special_tokens=True), _ids(theirs, _TEXTS[0])
    if whole[: len(begin) + len(alone)] != begin + alone:
        yield "what stands in front of a text", begin, whole[: max(1, len(whole) - len(alone))]


def _ids(theirs: Any, text: str, **wishes: bool) -> list[int]:
    return list(theirs(text, **{"add_special_tokens": False, "verbose": False, **wishes})["input_ids"])


def _show_from(value: Any, other: Any) -> str:
    """Show a value; of a long list of ids what begins one before the first that differs from the other's."""
    if not isinstance(value, list) or len(value) < 9:
        return repr(value)
    same = next((place for place, pair in enumerate(zip(value, other, strict=False)) if pair[0] != pair[1]), len(other))
    first = max(0, same - 1)
    shown = f"{value[first : first + 8]!r:.60}{' …' if first + 8 < len(value) else ''}"
    return f"{shown} (from id {first} on)" if first else shown
