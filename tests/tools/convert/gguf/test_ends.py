"""Where llama.cpp ends texts, by what ``llama-vocab.cpp`` makes of a file."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mt_tools.convert.gguf.ends import say_ends
from mt_tools.convert.gguf.vocabulary import GgufVocabulary

TOKENS = ["a", "b", "</s>", "<|im_end|>", "<|stop|>", "<|halt|>", *(f"<{number}>" for number in range(8))]
CASES: dict[str, tuple[Sequence[str], Sequence[int], str]] = {
    "as the folder": (TOKENS, (2, 3), ""),
    "a third that it knows": (TOKENS, (4, 2, 3), ""),
    "a third that it does not know": (TOKENS, (2, 3, 5), "not at '<|halt|>', since a GGUF file has two ids for it"),
    "one more by name": (TOKENS, (3,), "also at '</s>', which it knows by name"),
    "both": (TOKENS, (4, 3, 5), "also at '</s>', which it knows by name; and not at '<|halt|>'"),
    "none at all": (
        ["a", *TOKENS[4:], "c"],
        (),
        "ends texts at 'c', its default (id 11), since the folder names no end",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_other_ends_than_those_of_the_folder_are_told(case: str) -> None:
    tokens, ends, told = CASES[case]
    said: list[str] = []
    say_ends(GgufVocabulary("gpt2", "gpt-2", tokens, (), (), (), add_space_prefix=False), ends, said.append)
    assert len(said) == bool(told)
    assert told in "".join(said)
