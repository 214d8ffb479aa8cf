"""One rendering shows where turns end only for templates whose beginnings are written alike, and then as the slow way does."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mt_core import DataError
from mt_train.config.data import DataConfig
from mt_train.data.templates import build_template
from mt_train.data.templates.chat import ChatTemplate
from mt_train.data.templates.rendering import least_messages
from mt_train.data.templates.source import TemplateSource

BODY = "<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n"
ASK = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
LOOP = f"{{% for m in messages %}}{BODY}{{% endfor %}}"
FITTING = {
    "plain": f"{LOOP}{ASK}",
    "first turn apart": "{% if messages[0].role == 'system' %}{% set turns = messages[1:] %}{{ messages[0].content }}{% else %}"
    f"{{% set turns = messages %}}{{% endif %}}{{% for m in turns %}}{{{{ loop.index0 }}}}{BODY}{{% endfor %}}{ASK}",
    "shadowed": f"{{% set messages = messages[1:] if messages[0].role == 'system' else messages %}}{LOOP}{ASK}",
    "something at the end": f"{LOOP}{ASK}{{% if not add_generation_prompt %}}.{{% endif %}}",
    "second message": f"{{% set rest = messages[1:] %}}{{{{ rest[0].role }}}}{LOOP}{ASK}",
}
OTHERS = {
    "last turn": f"{{% for m in messages %}}{BODY}{{% if loop.last %}}.{{% endif %}}{{% endfor %}}{ASK}",
    "count": f"{{{{ messages | length }}}}{LOOP}{ASK}",
    "last message": f"{{{{ messages[-1].role }}}}{LOOP}{ASK}",
    "chosen turns": f"{{% for m in messages if m.role != 'system' %}}{BODY}{{% endfor %}}{ASK}",
    "break": f"{{% for m in messages %}}{{% if loop.index > 3 %}}{{% break %}}{{% endif %}}{BODY}{{% endfor %}}{ASK}",
    "told behind the loop": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = loop.index %}"
    f"{BODY}{{% endfor %}}{{{{ ns.n }}}}{ASK}",
    "asked in the loop": f"{{% for m in messages %}}{{{{ add_generation_prompt }}}}{BODY}{{% endfor %}}{ASK}",
    "macro": "{% macro all() %}{{ messages[-1].role }}{% endmacro %}{% for m in messages %}"
    f"{BODY}{{{{ all() }}}}{{% endfor %}}{ASK}",
    "two loops": f"{{% for m in messages %}}{{{{ m.role }}}}{{% endfor %}}{LOOP}{ASK}",
}
NAMED = [
    *(
        "alpaca",
        "baichuan2",
        "chatml",
        "cohere",
        "deepseek_r1",
        "deepseek_v3",
        "falcon",
        "gemma",
        "glm4",
        "internlm2",
        "llama2",
        "llama3",
    ),
    *("mistral", "phi3", "vicuna", "zephyr"),
]
"""Those without tools, whose turns depend on nothing that follows."""
WORDS = ["the ", "\n", " ", "é", "x", "assistant", "<|im_start|>assistant\n", "<|im_end|>", "日本"]


def conversations(chance: random.Random) -> Any:
    def said() -> str:
        return "".join(chance.choices(WORDS, k=chance.randint(1, 6)))

    turns = [{"role": role, "content": said()} for _ in range(chance.randint(1, 3)) for role in ("user", "assistant")]
    before = [{"role": "system", "content": said()}] if chance.random() < 0.5 else []
    odd = {"train": chance.random() < 0.5} if chance.random() < 0.3 else {"weight": 2.0}
    return [*before, *turns[:-1], {**turns[-1], **odd}]


@pytest.mark.parametrize("name", OTHERS)
def test_a_template_that_looks_ahead_is_rendered_for_each_beginning(name: str) -> None:
    assert least_messages(OTHERS[name]) is None


@pytest.mark.parametrize("name", [*FITTING, *NAMED])
@pytest.mark.parametrize("train_on", ["assistant", "last", "all"])
def test_one_rendering_shows_the_spans_that_beginnings_rendered_one_by_one_show(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, name: str, train_on: Any
) -> None:
    chance = random.Random(name + train_on)
    config = DataConfig(template=FITTING.get(name, name), train_on=train_on)
    many = [conversations(chance) for _ in range(20)]
    quick, slow = build_template(tokenizer, config), build_template(tokenizer, config)
    assert isinstance(quick, ChatTemplate)
    assert quick._source.fewest_messages is not None
    got = [outcome(quick, turns) for turns in many]
    monkeypatch.setattr(TemplateSource, "fewest_messages", None)
    assert got == [outcome(slow, turns) for turns in many]


def outcome(template: Any, turns: Any) -> Any:
    try:
        return template.encode(turns)
    except DataError as error:
        return str(error)
