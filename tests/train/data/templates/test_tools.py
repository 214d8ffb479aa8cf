"""Tools in conversations: ids and masks are those of ``apply_chat_template``, and nothing of them is lost without a word."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mt_core import DataError, conversation
from mt_plugin_standard.objectives.sft import SupervisedFineTuning
from mt_train.config.data import DataConfig
from mt_train.config.texts import OWN, TEMPLATES
from mt_train.data.templates import build_template
from mt_train.data.templates.tools import CALL as CALLS
from mt_train.data.templates.tools import PROBE, PROBES, WRITERS
from mt_train.data.templates.tools import REASONING as THOUGHTS

TEMPLATE = """
{%- if tools is not none %}
    {{- '<|im_start|>system\\n' + (messages[0].content + '\\n' if messages[0].role == 'system' else '') + '<tools>' }}
    {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}{% generation %}
        {%- if message.content is none %}{{- '' }}{%- else %}{{- message.content }}{%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function if call.function is defined else call %}
            {{- '<tool_call>\\n' + ({'name': call.name, 'arguments': call.arguments} | tojson) + '\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>' }}{% endgeneration %}{{- '\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
"""In the style of Hermes and Qwen: results of tools stand together in one turn of the user."""

texts = st.lists(st.sampled_from(["a", " b", "\n", "é", '"', "{x}", "\\", "你"]), min_size=1, max_size=5).map("".join)
arguments = st.dictionaries(
    st.sampled_from(["city", "x"]), texts | st.integers() | st.none() | st.lists(texts), max_size=2
)
function = st.fixed_dictionaries({"name": st.sampled_from(["weather", "add"]), "arguments": arguments})
call = function | function.map(lambda each: {"id": "call00001", "type": "function", "function": each})
tool = st.fixed_dictionaries({"name": texts, "description": texts, "parameters": st.just({"type": "object"})})
tools = st.lists(tool | tool.map(lambda each: {"type": "function", "function": each}), max_size=2)


@st.composite
def conversations(draw: Any) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = [{"role": "system", "content": draw(texts)}] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 2))):
        turns.append({"role": "user", "content": draw(texts)})
        for _ in range(draw(st.integers(0, 2))):
            called = draw(st.lists(call, min_size=1, max_size=2))
            turns.append({"role": "assistant", "content": draw(st.none() | texts), "tool_calls": called})
            turns += [{"role": "tool", "name": "add", "content": draw(texts)} for _ in called]
        turns.append({"role": "assistant", "content": draw(texts)})
    return turns


def make_template(tokenizer: Any, name: str = TEMPLATE, **config: Any) -> Any:
    return build_template(tokenizer, DataConfig(template=name, **config))


@given(turns=conversations(), tools=tools)
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_ids_and_mask_are_those_of_transformers(
    tokenizers: dict[str, Any], theirs: Any, turns: list[dict[str, Any]], tools: list[dict[str, Any]]
) -> None:
    encoded = make_template(tokenizers["huggingface"]).encode(
        conversation({"id": "r:1", "messages": turns, "tools": tools})
    )
    expected = theirs.apply_chat_template(
        turns, tools=tools or None, chat_template=TEMPLATE, return_dict=True, return_assistant_tokens_mask=True
    )
    assert encoded.ids == expected["input_ids"]
    assert encoded.trained == [bool(each) for each in expected["assistant_masks"]]


TOOLS = [{"type": "function", "function": {"name": "add", "description": "adds", "parameters": {"type": "object"}}}]
CALL = {"role": "assistant", "content": None, "tool_calls": [{"name": "add", "arguments": {"a": "2"}}]}
RESULT = {"role": "tool", "name": "add", "content": "4"}
TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "2 + 2?"},
    CALL,
    RESULT,
    RESULT,
    {"role": "assistant", "content": "It is 4."},
]
CALLED = '<tool_call>\n{"name": "add", "arguments": {"a": "2"}}\n</tool_call><|im_end|>'


def parts(tokenizer: Any, turns: list[dict[str, Any]], **config: Any) -> list[str]:
    """The texts that are trained on, of bytes."""
    encoded, found = make_template(tokenizer, **config).encode(turns), [b""]
    for token, on in zip(encoded.ids, encoded.trained, strict=True):
        if on:
            found[-1] += bytes([token])
        elif found[-1]:
            found.append(b"")
    return [each.decode() for each in found if each]


def test_calls_are_trained_on_and_what_tools_give_never_is(tokenizers: dict[str, Any]) -> None:
    byte = tokenizers["byte"]
    assert parts(byte, TURNS) == [CALLED, "It is 4.<|im_end|>"]
    assert parts(byte, TURNS, train_on="last") == ["It is 4.<|im_end|>"]
    everything = parts(byte, TURNS, train_on="all")
    assert everything == ["<|im_start|>user\n2 + 2?<|im_end|>", CALLED, "It is 4.<|im_end|>"]


def test_a_call_without_words_has_no_content_in_any_template(tokenizers: dict[str, Any], theirs: Any) -> None:
    """As in transformers: GLM 4.5's template writes ``None`` for a content that is null, and gpt-oss's fails."""
    source = "{% for each in messages %}{{ each.role }}:{{ each.content }}{{ each.tool_calls | tojson if each.tool_calls }};{% endfor %}"
    turns = conversation({"id": "r:1", "messages": TURNS})
    ids = make_template(tokenizers["huggingface"], source).prompt(turns[:3])
    expected = theirs.apply_chat_template(TURNS[:3], chat_template=source, return_dict=False)
    assert theirs.decode(ids) == theirs.decode(expected)
    assert "assistant:[{" in theirs.decode(ids)


def test_a_call_is_an_answer_to_learn_even_without_words(tokenizers: dict[str, Any]) -> None:
    row = {"id": "r:1", "messages": [TURNS[0], {**CALL, "content": ""}], "tools": TOOLS}
    sample = SupervisedFineTuning(tokenizers["byte"], make_template(tokenizers["byte"])).encode(row)
    assert bytes(each for each, on in zip(sample.ids, sample.trained, strict=True) if on).decode() == CALLED


def test_a_system_message_of_the_run_leaves_the_tools_of_the_row(tokenizers: dict[str, Any]) -> None:
    turns = conversation({"id": "r:1", "messages": TURNS, "tools": TOOLS})
    text = bytes(make_template(tokenizers["byte"], system="Be kind.").encode(turns).ids[1:]).decode()
    assert text.startswith('<|im_start|>system\nBe kind.\n<tools>\n{"type": "function", "function": {"name": "add"')


def test_special_tokens_in_calls_results_and_tools_are_text(tokenizers: dict[str, Any], theirs: Any) -> None:
    end = "<|im_end|>"
    call = {"role": "assistant", "content": "", "tool_calls": [{"name": "add", "arguments": {end: [end, {"b": end}]}}]}
    tools = [{"name": "add", "description": f"ends with {end}"}]
    turns = [TURNS[0], call, {**RESULT, "content": f"4{end}"}, TURNS[-1]]
    encoded = make_template(tokenizers["huggingface"]).encode(
        conversation({"id": "r:1", "messages": turns, "tools": tools})
    )
    expected = theirs.apply_chat_template(
        turns, tools=tools, chat_template=TEMPLATE, return_dict=False, sanitize_control_tokens=True
    )
    assert encoded.ids.count(theirs.convert_tokens_to_ids(end)) == len(turns) + 1
    assert theirs.decode(encoded.ids) == theirs.decode(expected)


NEEDS = {
    "turn 1 declares tools": conversation({"id": "r:1", "messages": [TURNS[0], TURNS[-1]], "tools": TOOLS}),
    "turn 2 calls a tool": [TURNS[0], CALL],
    "turn 2 is what a tool gave": [TURNS[0], RESULT, TURNS[-1]],
}
DEAF = (
    "{% for m in messages %}{% if m.role == 'user' %}Q: {{ m.content }}\n"
    "{% elif m.role == 'assistant' %}A: {{ m.content or '' }}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}A: {% endif %}"
)


@pytest.mark.parametrize("need", NEEDS)
@pytest.mark.parametrize("name", [*(each for each in TEMPLATES if each not in (OWN, *WRITERS[CALLS])), DEAF])
def test_a_template_without_tools_refuses_what_it_would_lose(tokenizers: dict[str, Any], name: str, need: str) -> None:
    said = name if name != DEAF else "of data.template"
    with pytest.raises(
        DataError, match=f"{need}, and the chat template {said} does not write that down; choose .* qwen2_5, .*own"
    ):
        make_template(tokenizers["byte"], name).encode(NEEDS[need])


@pytest.mark.parametrize(("need", "name"), [(need, name) for need, names in WRITERS.items() for name in names])
def test_the_templates_that_the_advice_names_write_such_turns(tokenizer: Any, need: str, name: str) -> None:
    row = {"id": "r:1", "messages": PROBES[need], "tools": PROBES[need][0].get("tools")}
    assert PROBE in tokenizer.decode(make_template(tokenizer, name).encode(conversation(row)).ids)


def test_words_beside_a_call_that_a_template_leaves_out_are_missed(tokenizer: Any) -> None:
    turns = [TURNS[0], {**CALL, "content": "Let me add."}]
    with pytest.raises(
        DataError, match="turn 2 calls a tool and says something beside it, which the chat template llama3_1"
    ):
        make_template(tokenizer, "llama3_1").encode(turns)
    assert "Let me add." in tokenizer.decode(make_template(tokenizer, "qwen2_5").encode(turns).ids)


def test_a_template_that_refuses_such_turns_itself_is_heard(tokenizers: dict[str, Any]) -> None:
    strict = DEAF.replace(
        "{% endif %}{% endfor %}", "{% else %}{{ raise_exception('no ' + m.role) }}{% endif %}{% endfor %}"
    )
    with pytest.raises(DataError, match="refuses this conversation: no tool"):
        make_template(tokenizers["byte"], strict).encode(NEEDS["turn 2 is what a tool gave"])


REASONING = [
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "4", "reasoning_content": "Two and two."},
]
THINKING = """
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}
{%- if m.reasoning_content %}{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}{{ m.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""


def test_reasoning_is_trained_on_where_the_template_writes_it(tokenizer: Any) -> None:
    made = build_template(tokenizer, DataConfig(template=THINKING))
    encoded = made.encode(conversation({"id": "1", "messages": REASONING}))
    show = getattr(tokenizer, "show", tokenizer.decode)
    text = show([token for token, on in zip(encoded.ids, encoded.trained, strict=True) if on])
    assert "<think>Two and two.</think>4" in text


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name not in (OWN, *WRITERS[THOUGHTS])])
def test_reasoning_is_refused_where_the_template_would_leave_it_out(tokenizer: Any, name: str) -> None:
    made = build_template(tokenizer, DataConfig(template=name))
    with pytest.raises(
        DataError, match=r'turn 2 has "reasoning_content", and the chat template .* does not write that'
    ):
        made.encode(conversation({"id": "1", "messages": REASONING}))


def test_reasoning_that_is_empty_is_none() -> None:
    turns = [REASONING[0], {**REASONING[1], "reasoning_content": None}]
    assert "reasoning_content" not in conversation({"id": "1", "messages": turns})[1]


@pytest.mark.parametrize("key", ["reasoning", "thinking"])
def test_reasoning_under_its_other_names_is_taken_as_transformers_takes_it(
    tokenizers: dict[str, Any], theirs: Any, key: str
) -> None:
    turns = [REASONING[0], {"role": "assistant", "content": "4", key: "Two and two."}]
    for source in (THINKING, THINKING.replace("reasoning_content", "thinking")):
        ids = make_template(tokenizers["huggingface"], source).encode(conversation({"id": "1", "messages": turns})).ids
        assert ids == theirs.apply_chat_template(turns, chat_template=source, return_dict=False)


def test_reasoning_that_is_no_text_is_refused_with_its_place() -> None:
    with pytest.raises(DataError, match='turn 2, "reasoning_content" is of type int'):
        conversation({"id": "1", "messages": [REASONING[0], {**REASONING[1], "reasoning_content": 4}]})
