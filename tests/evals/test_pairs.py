"""Ids of contexts and targets are those of lm-evaluation-harness."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from llama_subject import LlamaSubject, write_llama
from scripted_subject import CharacterTokenizer

from mt_core import UsageError
from mt_core.evaluation import Continuation
from mt_plugin_evals.pairs import PairEncoder, fits


@pytest.fixture(scope="module", params=[True, False])
def subject(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LlamaSubject, Path, bool]:
    folder = write_llama(tmp_path_factory.mktemp("llama"), begins=request.param)
    return LlamaSubject(folder), folder, request.param


@given(context=st.text("ab ?\nÄ1", max_size=12), target=st.text("ab ?\nÄ1", min_size=1, max_size=8))
def test_pairs_are_encoded_as_the_harness_does(
    subject: tuple[LlamaSubject, Path, bool], context: str, target: str
) -> None:
    pytest.importorskip("lm_eval")
    from lm_eval.models.huggingface import HFLM

    ours, folder, begins = subject
    if not hasattr(ours, "harness"):
        ours.harness = HFLM(pretrained=str(folder), device="cpu", add_bos_token=begins)  # type: ignore[attr-defined]
    (own,) = PairEncoder(ours.tokenizer, ours.eos_ids).pairs([(context, target)])
    if not context.rstrip():
        return  # the harness takes nothing but the empty text, whose context is the begin token
    wanted = ours.harness._encode_pair(context, target)  # type: ignore[attr-defined]
    assert (list(own.context), list(own.target)) == wanted


def lists(encoder: PairEncoder, *texts: tuple[str, str], alone: bool = False) -> list[tuple[list[int], list[int]]]:
    return [(list(context), list(target)) for context, target in encoder.pairs(texts, alone=alone)]


def test_an_empty_context_is_how_texts_begin() -> None:
    begins = PairEncoder(CharacterTokenizer(), (1,))
    assert lists(begins, ("", "a"), ("b", "a")) == [([0], [97]), ([0, 98], [97])]
    without = CharacterTokenizer(begins=False)
    assert lists(PairEncoder(without, (1,)), ("", "a"), ("b", "a")) == [([0], [97]), ([98], [97])]
    without.bos_id = None  # type: ignore[assignment]
    assert lists(PairEncoder(without, (1,)), ("", "a")) == [([1], [97])]
    with pytest.raises(UsageError, match=r"neither a begin nor an end token"):
        PairEncoder(without, ()).pairs([("", "a")])


def test_targets_alone_are_not_joined_to_their_context() -> None:
    class Joins(CharacterTokenizer):
        def encode(self, text: str) -> list[int]:
            return super().encode(text.replace("?x", "!"))

    encoder = PairEncoder(Joins(begins=False), (1,))
    assert lists(encoder, ("a?", "x")) == [([97, 63], [])]
    assert lists(encoder, ("a? ", "x"), alone=True) == [([97, 63, 32], [120])]


def test_the_last_token_is_predicted_and_not_read() -> None:
    assert fits(Continuation([1, 2], [3, 4]), 3)
    assert not fits(Continuation([1, 2], [3, 4]), 2)
