"""The example of a run and how full its rows are, as people see them."""

from __future__ import annotations

from collections.abc import Sequence

from mt_core.nn import TokenObjective
from mt_core.rows import Sample
from mt_train.assemble.report import EXAMPLE_CHARACTERS, describe_batching, render
from mt_train.config.data import DataConfig
from mt_train.data.row_statistics import RowStatistics


class Letters:
    """One token a letter; 0 is the end, which is no text."""

    size, bos_id, eos_id, pad_id, chat_template = 128, None, 0, None, None

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        return self.encode(text), [(place, place + 1) for place in range(len(text))]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(token) for token in ids if token)


class SpellingTokenizer(Letters):
    def show(self, ids: Sequence[int]) -> str:
        return "".join(chr(token) if token else "</s>" for token in ids)


def render_example(tokenizer: Letters, prompt: str, response: str) -> str:
    ids = [*tokenizer.encode(prompt + response), 0]
    sample = Sample(ids, [False] * len(prompt) + [True] * (len(response) + 1), "row")
    return render(TokenObjective().collate([[sample]], length=len(ids)), tokenizer)


def test_what_is_trained_stands_between_marks() -> None:
    assert render_example(Letters(), "ask ", "answer") == "ask «answer»"


def test_special_tokens_are_spelt_out_where_the_tokenizer_can() -> None:
    assert render_example(SpellingTokenizer(), "ask ", "answer") == "ask «answer</s>»"


def test_a_long_text_is_cut() -> None:
    assert render_example(Letters(), "", "x" * 999) == "x«" + "x" * EXAMPLE_CHARACTERS + "…»"


def test_how_rows_are_filled_is_named_with_the_shares() -> None:
    report = RowStatistics(filled={"packing": 0.981, "padding": 0.632})
    assert describe_batching(DataConfig(batching="packing", packing="sequential", pad_multiple=16), report) == (
        "packing (sequential), which fills 98.1% of the places in a row (padding to a multiple of 16: 63.2%)"
    )
    assert describe_batching(DataConfig(batching="padding"), report) == (
        "padding to a multiple of 8, which fills 63.2% of the places in a row (packing (best_fit): 98.1%)"
    )
