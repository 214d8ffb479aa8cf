"""Pairs in every named template: exactly the answers are trained on, with their ends, after one prompt."""

from __future__ import annotations

from typing import Any

import pytest

from mt_core import Sample
from mt_plugin_alignment.objectives.rows import encode_pair
from mt_train.config.data import DataConfig
from mt_train.config.texts import OWN, TEMPLATES
from mt_train.data.templates import build_template

ASKED = [{"role": role, "content": text} for role, text in (("user", "One?"), ("assistant", "Old."), ("user", "Two?"))]
ROW = {"id": "rows:1", "messages": ASKED, "chosen": "The first, good one.", "rejected": "Another"}
NAMED = [name for name in TEMPLATES if name != OWN]


@pytest.mark.parametrize("kind", ["byte", "huggingface", "sentencepiece"])
@pytest.mark.parametrize("train_on", ["assistant", "all"])
@pytest.mark.parametrize("name", NAMED)
def test_exactly_the_answers_are_trained_on(name: str, train_on: str, kind: str, tokenizers: dict[str, Any]) -> None:
    tokenizer = tokenizers[kind]
    template = build_template(tokenizer, DataConfig(template=name, train_on=train_on))
    found = encode_pair(ROW, template)
    assert isinstance(found, Sample), found
    cut = found.documents[0]
    sides = [(found.ids[:cut], found.trained[:cut]), (found.ids[cut:], found.trained[cut:])]
    prompts = [list(ids[: trained.index(True)]) for ids, trained in map(_lists, sides)]
    assert prompts[0] == prompts[1]
    for (ids, trained), answer in zip(map(_lists, sides), (ROW["chosen"], ROW["rejected"]), strict=True):
        kept = [token for token, on in zip(ids, trained, strict=True) if on]
        first = trained.index(True)
        assert trained[first : first + len(kept)] == [True] * len(kept), "in one run, after the prompt"
        _require_answer(tokenizer, template, kept, str(answer))
        if tokenizer.bos_id is not None:
            assert ids.count(tokenizer.bos_id) == 1 or name in MORE_BEGINS
            assert ids[0] == tokenizer.bos_id


MORE_BEGINS = {"llama2", "mistral", "mistral_v3"}
"""They begin every turn of the user with it."""
THOUGHTS = ("", "<think>\n\n</think>\n\n")
"""What a template may write in front of an answer without any, and the model has to learn: on both sides the same."""


def _lists(side: Any) -> tuple[list[int], list[bool]]:
    return list(side[0]), list(side[1])


def _require_answer(tokenizer: Any, template: Any, kept: list[int], answer: str) -> None:
    if template.stop_ids:
        assert kept.pop() in template.stop_ids, "with its end"
    end = template.stop_text or ""
    wanted = [tokenizer.decode(tokenizer.encode(f"{thoughts}{answer}{end}")).strip() for thoughts in THOUGHTS]
    assert tokenizer.decode(kept).strip() in wanted
