"""Published templates: what ours writes is what transformers writes, and what is trained is what TRL's training templates mark."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from mt_train.data.templates import _template_named

HERE = Path(__file__).parent
PUBLISHED = HERE / "published"
_spec = importlib.util.spec_from_file_location("fuzz_templates", HERE / "fuzz_templates.py")
assert _spec is not None
fuzz: Any = importlib.util.module_from_spec(_spec)
sys.modules["fuzz_templates"] = fuzz  # dataclasses look their module up
assert _spec.loader is not None
_spec.loader.exec_module(fuzz)


@pytest.mark.parametrize("name", sorted(path.stem for path in PUBLISHED.glob("*.jinja")))
def test_random_conversations_are_written_as_transformers_writes_them(name: str) -> None:
    """Or refused for a reason that ``REFUSALS`` has; exact, since ids are."""
    found = fuzz.compare_all([PUBLISHED], rows=8, seed=0, only=name)
    assert not found.faults, found.faults[0]
    assert sum(found.pairs.values()) == 8


@pytest.mark.soak
def test_many_random_conversations_are_written_as_transformers_writes_them() -> None:
    found = fuzz.compare_all([PUBLISHED], rows=400, seed=1)
    assert not found.faults, found.faults[0]


SAME = {
    "cohere": "cohere",
    "llama3_1": "llama3_1",
    "qwen2_5": "qwen2_5",
    "qwen3": "qwen3_training",
    "deepseek_r1": "deepseek_r1_distill_training",
    "deepseek_v3": "deepseekv3",
}
"""Named templates, and what they are to write."""

NO_TOOLS = {"cohere", "deepseek_r1", "deepseek_v3"}


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("speak", [False, True])
def test_a_named_template_writes_what_the_published_one_writes(name: str, speak: bool) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    def text(source: str, row: dict[str, Any]) -> str:
        messages = [*row["messages"], {"role": "user", "content": "q"}] if speak else row["messages"]
        names = {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": speak}
        (made,), _ = render_jinja_template([messages], tools=row.get("tools"), chat_template=source, **names)
        return str(made)

    published = (PUBLISHED / f"{SAME[name]}.jinja").read_text("utf-8")
    rows = fuzz.Rows(random.Random(name), list(fuzz.THOUGHTS))
    some = [row for row in (rows.row() for _ in range(80)) if is_known(name, row)]
    assert len(some) > 20
    for row in some:
        expected = text(published, row)
        if speak and name == "deepseek_v3":  # a later revision opens the thoughts
            expected = expected.removesuffix("<think>\n")
        assert text(_template_named(name), row) == expected


def is_known(name: str, row: dict[str, Any]) -> bool:
    """Return whether the published template takes the row, and loses nothing of it."""
    turns = row["messages"]
    if name in NO_TOOLS and ("tools" in row or any("reasoning_content" in turn for turn in turns)):
        return False
    if name == "deepseek_v3" and any("</think>" in turn["content"] for turn in turns if turn["role"] == "assistant"):
        return False
    return name != "llama3_1" or all(len(turn.get("tool_calls", [1])) == 1 for turn in turns)


TEXTS = json.loads((PUBLISHED / "texts.json").read_text("utf-8"))
"""Conversations, and what the published template that ours is named after writes for them and the beginning of an answer."""


@pytest.mark.parametrize("row", TEXTS, ids=lambda row: row["template"])
def test_a_named_template_writes_the_text_of_the_published_one(row: dict[str, Any]) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    turns = [*row["messages"], {"role": "user", "content": "q"}]
    names = {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True}
    source = _template_named(row["template"])
    (made,), _ = render_jinja_template([turns], tools=row.get("tools"), chat_template=source, **names)
    assert made == row["text"]
