"""A chat template that asks for more time or memory than any conversation needs is refused, and others write what they always wrote."""

from __future__ import annotations

import pytest
from transformers.utils.chat_template_utils import _compile_jinja_template

from mt_core.errors import DataError
from mt_train.data.templates import limits
from mt_train.data.templates.rendering import least_messages, render, render_turns

MESSAGES = [{"role": "user", "content": " Hello, world "}, {"role": "assistant", "content": "hi"}]

BOMBS = {
    "a text times a number": "{{ 'x' * 10**10 }}",
    "a power": "{{ 10 ** 99999 }}",
    "numbers that square themselves": "{% set n = namespace(x=3) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "loops in loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "macros that call one another": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "a macro that calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a loop that calls itself": "{% for x in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "lists of lists": "{% set x = 'a' %}" + "{% set x = [x,x,x,x,x,x,x,x,x,x] %}" * 9 + "{{ x }}",
    "doubling with ~": "{% set n = namespace(x='abcdefghij') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "doubling with +": "{% set n = namespace(x='abcdefghij') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "doubling in blocks": "{% set x %}abcdefghij{% endset %}" + "{% set x %}{{x}}{{x}}{{x}}{{x}}{% endset %}" * 20,
    "a filter": "{{ 'x' | center(10**9) }}",
    "a deep indent": "{{ 'x\n' | indent(10**9) }}",
    "a wide JSON": "{{ messages | tojson(indent=10**8) }}",
    "a method": "{{ 'x'.ljust(10**9) }}",
    "a method of a number": "{{ 5 .to_bytes(10**9, 'big') }}",
    "a format": "{{ '%1000000000d' % 5 }}",
    "a format with braces": "{{ '{:>1000000000}'.format(5) }}",
    "a format with a width from elsewhere": "{{ '{:>{w}}'.format(5, w=10**9) }}",
    "a replacement": "{{ ('a' * 100000).replace('a', 'b' * 10000) }}",
    "a join": "{{ ('b' * 10000).join(('a' * 100000) | list) }}",
    "what is written over and over": "{% for i in range(99999) %}" + "y" * 20000 + "{% endfor %}",
    "text made up by Jinja": "{{ lipsum(10**9) }}",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_template_without_bounds_ends_in_one_error(bomb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_STEPS", 20_000)  # the same, sooner
    with pytest.raises(DataError, match=r"the chat template t, line [12], fails: ") as caught:
        render(BOMBS[bomb], MESSAGES, {}, name="t")
    assert "\n" not in str(caught.value)


PLAIN = {
    "loops": "{% for m in messages %}{{ loop.index }}{{ loop.length }}{{ loop.last }}{{ m.role + ': ' ~ m.content | trim }}{% endfor %}",
    "conditions": "{% for m in messages if m.role != 'user' %}{{ m.content }}{% else %}none{% endfor %}",
    "breaks": "{% for m in messages %}{{ m.content }}{% break %}{% endfor %}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "macros": "{% macro put(m) %}<{{ m.role }}>{{ m.content }}{% endmacro %}{% for m in messages %}{{ put(m) }}{% endfor %}",
    "methods": "{{ messages[0].content.strip().replace('o', '00').upper() }}{{ ','.join(['a', 'b']) }}{{ '%05d|%s' % (7, 'x') }}",
    "formats": "{{ '{:>8}|{}'.format('x', messages | length) }}{{ '%s-%s' | format('a', 1) }}",
    "filters": "{{ messages | tojson(indent=2) }}{{ messages | map(attribute='role') | join(', ') }}{{ [3, 1] | sort | sum }}",
    "numbers": "{{ 2 ** 10 * 3 % 7 + 1.5 }}{{ 7 // 2 }}{{ 'ab' * 3 }}{{ [1] + [2] }}{{ none }}{{ nothing }}",
    "namespaces": "{% set n = namespace(i=0) %}{% for m in messages %}{% set n.i = n.i + 1 %}{% endfor %}{{ n.i }}",
}


@pytest.mark.parametrize("name", PLAIN)
def test_every_other_template_writes_what_transformers_writes(name: str) -> None:
    theirs = _compile_jinja_template(PLAIN[name]).render(
        messages=MESSAGES, add_generation_prompt=False, bos_token="<s>"
    )
    assert render(PLAIN[name], MESSAGES, {"bos_token": "<s>"}, name="t") == theirs
    if least_messages(PLAIN[name]) is not None:
        assert "".join(render_turns(PLAIN[name], MESSAGES, {"bos_token": "<s>"}, name="t")) == theirs


def test_each_rendering_has_all_of_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_STEPS", 3000)
    source = "{% for i in range(2000) %}{% endfor %}x"
    assert [render(source, MESSAGES, {}, name="t") for _ in range(5)] == ["x"] * 5
