"""Every template with every kind of tokenizer: what is trained, how turns end, and that it is what transformers writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mt_core import DataError
from mt_train.config.data import DataConfig
from mt_train.config.texts import OWN, PLAIN, TEMPLATES
from mt_train.data.templates import build_template

PUBLISHED = Path(__file__).parent / "published"
NAMED = [name for name in TEMPLATES if name not in (OWN, PLAIN)]
LOOKING_AHEAD = {
    "deepseek_r1": "a prompt opens the thoughts",
    "mistral_v3": "a system message comes with the last question",
}
"""Named templates whose prompt is no beginning of what is trained."""
NO_THOUGHTS = "<think>\n\n</think>\n\n"
"""What Qwen 3 writes, and learns, before an answer without thoughts."""
relaxed = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
WORDS = ["Say", " yes", "\n", "é", "e\u0301", "👩‍👩‍👧", "你好", "  ", ".", "import", "[x]", "{{ y }}", "#"]
contents = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(lambda parts: f"a{''.join(parts)}b")


@st.composite
def conversations(draw: Any) -> list[dict[str, Any]]:
    first = [{"role": "system", "content": draw(contents)}] if draw(st.booleans()) else []
    turns = [
        {"role": role, "content": draw(contents)}
        for _ in range(draw(st.integers(1, 3)))
        for role in ("user", "assistant")
    ]
    return [*first, *turns]


def template(tokenizer: Any, name: str, **config: Any) -> Any:
    return build_template(tokenizer, DataConfig(template=name, **config))


def stretches(ids: list[int], trained: list[bool]) -> list[list[int]]:
    """The runs of ids that are trained on."""
    found: list[list[int]] = []
    for place, (token, is_trained) in enumerate(zip(ids, trained, strict=True)):
        if is_trained and place and trained[place - 1]:
            found[-1].append(token)
        elif is_trained:
            found.append([token])
    return found


def ends(tokenizer: Any, made: Any, ids: list[int]) -> tuple[list[int], bool]:
    """The ids before the stop of a turn, and whether there is one."""
    if made.stop_text is None:
        return ids[:-1], ids[-1] in made.stop_ids
    text = tokenizer.decode(ids)
    stop = tokenizer.decode(tokenizer.encode(made.stop_text))  # SentencePiece reads U+2581 as a space
    return tokenizer.encode(text.removesuffix(stop)), text.endswith(stop)


def answer_of(tokenizer: Any, ids: list[int]) -> str:
    """The answer in a stretch."""
    text = getattr(tokenizer, "show", tokenizer.decode)(ids)
    return str(text).strip().removeprefix(NO_THOUGHTS.strip()).strip()


@pytest.mark.parametrize("name", [*NAMED, PLAIN])
@given(messages=conversations())
@relaxed
def test_exactly_the_answers_are_trained_each_with_its_stop(
    tokenizer: Any, name: str, messages: list[dict[str, Any]]
) -> None:
    made = template(tokenizer, name)
    encoded = made.encode(messages)
    answers = [message["content"] for message in messages if message["role"] == "assistant"]
    found = stretches(encoded.ids, encoded.trained)
    assert len(found) == len(answers)
    for ids, answer in zip(found, answers, strict=True):
        before, has_stop = ends(tokenizer, made, ids)
        assert has_stop
        assert answer_of(tokenizer, before) == answer


@pytest.mark.parametrize("name", [*NAMED, PLAIN])
def test_an_answer_is_trained_from_its_first_byte_to_its_last(tokenizer: Any, name: str) -> None:
    for answer in ("👩‍👩‍👧 e\u0301👩", "\u0301a\u0301", "你好"):
        made = template(tokenizer, name)
        encoded = made.encode([{"role": "user", "content": "👩"}, {"role": "assistant", "content": answer}])
        (ids,) = stretches(encoded.ids, encoded.trained)
        before, _ = ends(tokenizer, made, ids)
        assert answer_of(tokenizer, before) == answer


@pytest.mark.parametrize("name", [*NAMED, PLAIN])
@given(messages=conversations())
@relaxed
def test_a_conversation_begins_once(tokenizer: Any, name: str, messages: list[dict[str, Any]]) -> None:
    made = template(tokenizer, name)
    for ids in (made.encode(messages).ids, made.prompt(messages[:-1])):
        assert ids[0] == tokenizer.bos_id
        assert ids.count(tokenizer.bos_id) == 1


@pytest.mark.parametrize("name", [name for name in (*NAMED, PLAIN) if name not in LOOKING_AHEAD])
@given(messages=conversations())
@relaxed
def test_what_a_turn_is_asked_with_is_what_it_was_trained_after(
    tokenizers: dict[str, Any], name: str, messages: list[dict[str, Any]]
) -> None:
    """With bytes, a prefix of the text is a prefix of the ids."""
    made = template(tokenizers["byte"], name)
    ids = made.encode(messages).ids
    for place, message in enumerate(messages):
        if message["role"] == "assistant":
            prompt = made.prompt(messages[:place])
            assert ids[: len(prompt)] == prompt
            before = made.encode(messages[: place + 1])
            assert ids[: len(before.ids)] == before.ids


SOURCES = {
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "llama3": "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = "
    "bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant"
    "<|end_header_id|>\n\n' }}{% endif %}",
    "gemma": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles "
    "must alternate user/assistant/user/assistant/...') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}"
    "{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + "
    "'<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}",
    "zephyr": "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token }}\n"
    "{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' "
    "%}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n{% if loop.last and add_generation_prompt %}\n"
    "{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}",
}
"""As the models' own configurations have them."""


@pytest.mark.parametrize("name", SOURCES)
@given(messages=conversations())
@relaxed
def test_ids_are_those_of_apply_chat_template_in_transformers(
    tokenizers: dict[str, Any], theirs: Any, name: str, messages: list[dict[str, Any]]
) -> None:
    made = template(tokenizers["huggingface"], name)
    if name == "gemma" and messages[0]["role"] == "system":  # which the source refuses
        messages = messages[1:]
    for speak, ids in ((False, made.encode(messages).ids), (True, made.prompt(messages[:-1]))):
        seen = messages[:-1] if speak else messages
        expected = theirs.apply_chat_template(
            seen, chat_template=SOURCES[name], add_generation_prompt=speak, return_dict=False
        )
        assert ids == [*([] if expected[0] == theirs.bos_token_id else [theirs.bos_token_id]), *expected]


def test_gemma_folds_a_system_message_into_the_first_turn_of_the_user(tokenizers: dict[str, Any]) -> None:
    turns = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "A"},
    ]
    ids = template(tokenizers["byte"], "gemma").encode(turns).ids
    assert bytes(ids[1:]).startswith(b"<start_of_turn>user\nS\n\nU<end_of_turn>\n")


MARKED = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}{% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}{% else %}{{ m['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@given(messages=conversations())
@relaxed
def test_the_mask_is_that_of_transformers(
    tokenizers: dict[str, Any], theirs: Any, messages: list[dict[str, Any]]
) -> None:
    encoded = template(tokenizers["huggingface"], MARKED).encode(messages)
    expected = theirs.apply_chat_template(
        messages, chat_template=MARKED, return_dict=True, return_assistant_tokens_mask=True
    )
    assert encoded.ids == expected["input_ids"]
    assert encoded.trained == [bool(each) for each in expected["assistant_masks"]]


_TURN = (
    "<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' ANSWER %}{% generation %}{{ m.content }}{% endgeneration %}<|im_end|>"
    "{% else %}{{ m.content }}{% if m.content.endswith('!') %}?{% endif %}<|im_end|>{% endif %}\n"
)
_SPEAK = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
MARKED_IN_PART = {
    "the last answer": "{% for m in messages %}" + _TURN.replace("ANSWER", "and loop.last") + "{% endfor %}" + _SPEAK,
    "long answers": "{% for m in messages %}"
    + _TURN.replace("ANSWER", "and m.content|length > 6")
    + "{% endfor %}"
    + _SPEAK,
    "turns by number": "{% for number in range(messages|length) %}{% set m = messages[number] %}"
    + _TURN.replace("ANSWER", "")
    + "{% endfor %}"
    + _SPEAK,
}
"""Templates that mark some answers alone, or whose loop is over no messages; all of them look at the end of other turns."""


@pytest.mark.parametrize("marked", MARKED_IN_PART)
@pytest.mark.parametrize("asked", ["Why", "Why!"])
def test_marks_decide_though_an_answer_has_none_or_no_turn_can_be_told(
    tokenizers: dict[str, Any], theirs: Any, marked: str, asked: str
) -> None:
    said = [("user", asked), ("assistant", "so"), ("user", asked), ("assistant", "since it is so")]
    turns = [{"role": role, "content": text} for role, text in said]
    source = MARKED_IN_PART[marked]
    encoded = template(tokenizers["huggingface"], source).encode(turns)
    expected = theirs.apply_chat_template(
        turns, chat_template=source, return_dict=True, return_assistant_tokens_mask=True
    )
    assert encoded.ids == expected["input_ids"]
    assert encoded.trained == [bool(each) for each in expected["assistant_masks"]]


def test_an_answer_without_a_mark_is_trained_on_where_its_row_or_the_run_says_so(tokenizers: dict[str, Any]) -> None:
    turns = [
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "so"},
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "since"},
    ]
    source, tokenizer = MARKED_IN_PART["the last answer"], tokenizers["huggingface"]
    wished = [turns[0], {**turns[1], "train": True}, *turns[2:]]
    for encoded in (
        template(tokenizer, source).encode(wished),
        template(tokenizer, source, train_on="all").encode(turns),
    ):
        trained = tokenizer.decode([each for each, on in zip(encoded.ids, encoded.trained, strict=True) if on])
        assert "so" in trained
        assert "since" in trained


def test_a_special_token_that_a_person_wrote_is_text(tokenizers: dict[str, Any], theirs: Any) -> None:
    turns = [
        {"role": "user", "content": "What ends a turn, <|im_end|> or </s>?"},
        {"role": "assistant", "content": "<|im_end|> does."},
    ]
    made = template(tokenizers["huggingface"], SOURCES["chatml"])
    encoded = made.encode(turns)
    expected = theirs.apply_chat_template(
        turns, chat_template=SOURCES["chatml"], return_dict=False, sanitize_control_tokens=True
    )
    assert encoded.ids == expected
    end = theirs.convert_tokens_to_ids("<|im_end|>")
    assert [encoded.ids.count(token) for token in (end, theirs.eos_token_id)] == [2, 0]
    (answer,) = stretches(encoded.ids, encoded.trained)
    assert tokenizers["huggingface"].decode(answer[:-1]) == "<|im_end|> does."


@pytest.mark.parametrize("kind", ["byte", "sentencepiece"])
def test_a_stop_that_is_plain_text_may_not_be_in_a_turn(tokenizers: dict[str, Any], kind: str) -> None:
    turns = [{"role": "user", "content": "Say <|im_end|>"}, {"role": "assistant", "content": "no"}]
    with pytest.raises(
        DataError, match=r"turn 1 contains '<\|im_end\|>', which ends a turn in the chat template chatml"
    ):
        template(tokenizers[kind], "chatml").encode(turns)
    assert template(tokenizers[kind], "zephyr").encode(turns).ids


class OneText:
    """A tokenizer that takes one text at a time."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("encode_many"):
            raise AttributeError(name)
        return getattr(self._tokenizer, name)


@st.composite
def marked_conversations(draw: Any) -> list[dict[str, Any]]:
    """Conversations with special tokens that a person wrote, wishes and weights."""
    turns = draw(conversations())
    wishes = st.sampled_from([{}, {}, {"train": False}, {"weight": 0.5}, {"content": "a </s> b<s><|im_start|>"}])
    return [{**turn, **draw(wishes)} for turn in turns]


@pytest.mark.parametrize("name", [*NAMED, PLAIN, None])
@given(several=st.lists(marked_conversations(), max_size=4), raw=st.booleans())
@settings(relaxed, max_examples=10)  # of each of 33
def test_many_conversations_at_once_are_written_as_one_by_one(
    tokenizer: Any, name: str | None, several: list[list[dict[str, Any]]], raw: bool
) -> None:
    if name is None and tokenizer.chat_template is None and not raw:
        return
    if raw:
        several = [[{**turn, "raw": True} for turn in turns] for turns in several]
    single = build_template(cast("Any", OneText(tokenizer)), DataConfig(template=name))
    made: Any = build_template(tokenizer, DataConfig(template=name))
    fine = [turns for turns in several if succeeds(single, turns)]
    assert made.encode_many(fine) == [single.encode(turns) for turns in fine]


def succeeds(made: Any, turns: list[dict[str, Any]]) -> bool:
    try:
        made.encode(turns)
    except DataError:
        return False
    return True


def test_our_own_marks_in_a_text_are_refused(tokenizer: Any) -> None:
    turns = [{"role": "user", "content": "\ufdd2"}, {"role": "assistant", "content": "no"}]
    with pytest.raises(DataError, match=r"noncharacter \(U\+FDD0 to U\+FDD4\)"):
        template(tokenizer, "zephyr").encode(turns)


TURNS: list[dict[str, Any]] = [
    {"role": "system", "content": "S."},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "1"},
    {"role": "user", "content": "two"},
    {"role": "assistant", "content": "2"},
]


def trained_text(tokenizer: Any, turns: list[dict[str, Any]], name: str = "phi3", **config: Any) -> list[str]:
    encoded = template(tokenizer, name, **config).encode(turns)
    return [tokenizer.decode(ids) for ids in stretches(encoded.ids, encoded.trained)]


def change_turn(place: int, **wishes: Any) -> list[dict[str, Any]]:
    return [{**turn, **wishes} if at == place else turn for at, turn in enumerate(TURNS)]


def test_trained_turns_are_the_assistants_its_last_or_all(tokenizers: dict[str, Any]) -> None:
    byte = tokenizers["byte"]
    assert trained_text(byte, TURNS) == ["1<|end|>", "2<|end|>"]
    assert trained_text(byte, TURNS, train_on="last") == ["2<|end|>"]
    assert len(trained_text(byte, TURNS, train_on="all")) == 1
    assert trained_text(byte, TURNS, PLAIN) == ["1", "2"]
    assert trained_text(byte, TURNS, PLAIN, train_on="last") == ["2"]
    assert trained_text(byte, TURNS, PLAIN, train_on="all") == ["S.one1two2"]


def test_what_a_message_says_itself_wins(tokenizers: dict[str, Any]) -> None:
    byte = tokenizers["byte"]
    for name, stop in (("phi3", "<|end|>"), (PLAIN, "")):
        assert trained_text(byte, change_turn(2, train=False), name) == [f"2{stop}"]
        assert trained_text(byte, change_turn(2, train=True), name, train_on="last") == [f"1{stop}", f"2{stop}"]
        assert trained_text(byte, change_turn(4, train=False), name, train_on="last") == []
    assert trained_text(byte, change_turn(3, train=True), train_on="last")[0] == "<|user|>\ntwo<|end|>"
    assert trained_text(byte, change_turn(3, train=True), PLAIN) == ["1two2"]
    assert trained_text(byte, change_turn(0, train=False), train_on="all")[0] == "<|user|>\none<|end|>"


FIRST = [{"role": "assistant", "content": "Hello!"}, *TURNS[1:3]]
"""A conversation that the assistant opens, as many of ShareGPT are."""


@pytest.mark.parametrize("name", sorted(set(NAMED) - {"gemma", "llama2", "mistral"}))
def test_an_answer_that_comes_first_is_trained_on_as_later_ones_are(tokenizers: dict[str, Any], name: str) -> None:
    """Templates that look at the first message cannot write a prompt without any; three refuse such a conversation themselves."""
    byte, later = tokenizers["byte"], [TURNS[1], *FIRST]
    expected = [text.strip() for text in trained_text(byte, later, name)]
    assert [text.strip() for text in trained_text(byte, FIRST, name)] == expected
    assert [text.strip() for text in trained_text(byte, FIRST[:1], name)] == expected[:1], "also where nobody asks"
    assert len(trained_text(byte, FIRST[:1], name, train_on="all")[0]) >= len(expected[0])


def test_an_answer_alone_is_trained_on_where_a_template_cannot_be_traced(tokenizers: dict[str, Any]) -> None:
    joined = "{{ messages | map(attribute='content') | join('\\n') }}<e>"
    (text,) = trained_text(tokenizers["byte"], FIRST[:1], joined)
    assert text == f"{FIRST[0]['content']}<e>"


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3"])
@pytest.mark.parametrize("count", [1, 3])
def test_an_answer_that_comes_first_is_trained_on_where_trl_marks_it(
    tokenizers: dict[str, Any], name: str, count: int
) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    marked = (PUBLISHED / f"{name}_training.jinja").read_text("utf-8")
    names = {"bos_token": "", "eos_token": "<|endoftext|>", "return_assistant_tokens_mask": True}
    (text,), (spans,) = render_jinja_template([FIRST[:count]], chat_template=marked, **names)
    found = trained_text(tokenizers["byte"], FIRST[:count], name)
    assert [each.strip() for each in found] == [text[start:end].strip() for start, end in spans]


@pytest.mark.parametrize("name", ["phi3", PLAIN])
def test_weights_of_messages_are_those_of_their_tokens(tokenizers: dict[str, Any], name: str) -> None:
    made = template(tokenizers["byte"], name)
    assert made.encode(TURNS).weights is None
    encoded = made.encode(change_turn(2, weight=0.25))
    plain = made.encode(TURNS)
    assert (encoded.ids, encoded.trained) == (plain.ids, plain.trained)
    first, second = stretches(encoded.ids, encoded.trained)
    weights = [weight for weight, trained in zip(encoded.weights, encoded.trained, strict=True) if trained]
    assert weights == [0.25] * len(first) + [1.0] * len(second)


def test_additions_are_put_into_every_conversation(tokenizers: dict[str, Any]) -> None:
    byte = tokenizers["byte"]
    made = template(byte, "chatml", system="Be brief.", prefix="Q: ", postfix=" A:")
    for turns, system in ((TURNS[1:], "Be brief."), (TURNS, "S.")):
        text = bytes(made.encode(turns).ids[1:]).decode()
        assert text.startswith(f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nQ: one A:<|im_end|>\n")
        assert "user\nQ: two A:<|im_end|>" in text
    assert made.additions == ("data.system", "data.prefix", "data.postfix")


def test_an_instruction_with_an_input_is_written_as_alpaca_was_trained(tokenizers: dict[str, Any]) -> None:
    """https://github.com/tatsu-lab/stanford_alpaca/blob/main/train.py, PROMPT_DICT."""
    with_input = (
        "Below is an instruction that describes a task, paired with an input that provides further context. "
        "Write a response that appropriately completes the request.\n\n"
        "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:"
    )
    without = (
        "Below is an instruction that describes a task. "
        "Write a response that appropriately completes the request.\n\n"
        "### Instruction:\n{instruction}\n\n### Response:"
    )
    user = {"role": "user", "content": "Add.\n1 2", "input": "1 2"}
    made = template(tokenizers["byte"], "alpaca")
    assert bytes(made.prompt([user])[1:]).decode() == with_input.format(instruction="Add.", input="1 2")
    plain = {"role": "user", "content": "Add."}
    assert bytes(made.prompt([plain])[1:]).decode() == without.format(instruction="Add.")
    wrapped = template(tokenizers["byte"], "alpaca", prefix="P ", postfix=" Q")
    assert bytes(wrapped.prompt([user])[1:]).decode() == with_input.format(instruction="P Add.", input="1 2 Q")


FORGETFUL = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role != 'assistant' or loop.last %}{{ m.content }}{% else %}{{ m.content | upper }}"
    "{% endif %}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""Writes earlier answers differently, as templates that drop their reasoning do."""


def test_a_template_that_rewrites_earlier_turns_can_only_train_the_last(tokenizer: Any) -> None:
    turns = [{**turn, "content": f"word {turn['content']}"} for turn in TURNS]
    with pytest.raises(DataError, match=r"turn 3 cannot be told .*\(--data.train-on last\)"):
        template(tokenizer, FORGETFUL).encode(turns)
    assert [text.strip() for text in trained_text(tokenizer, turns, FORGETFUL, train_on="last")] == ["word 2"]


def test_an_answer_that_does_not_begin_as_its_prompt_ends_is_trained_behind_what_both_have(tokenizer: Any) -> None:
    """As for models that open their thoughts in the prompt, also where the answer begins like them."""
    source = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant><hm>{% endif %}"
    )
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<h a"}]
    for config in ({}, {"train_on": "last"}):
        assert [text.strip() for text in trained_text(tokenizer, turns * 2, source, **config)][-1] == "<h a"
    thought = [turns[0], {**turns[1], "content": "<hm>b</hm>a"}]
    assert [text.strip() for text in trained_text(tokenizer, thought, source, train_on="last")] == ["b</hm>a"]


def test_a_template_that_never_ends_a_turn_is_refused(tokenizer: Any) -> None:
    with pytest.raises(DataError, match=r"writes nothing after an answer, .* \{\{ eos_token \}\}"):
        template(tokenizer, "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}").encode(TURNS)


THINKING = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% if loop.last %}<think>\n\n</think>{% endif %}"
    "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""Writes the last answer with thoughts, as Qwen 3 does, and leaves out those that the answer has."""


def test_an_earlier_answer_that_is_written_without_the_decoration_of_the_last_is_trained_on(tokenizers: Any) -> None:
    byte = tokenizers["byte"]
    assert trained_text(byte, TURNS, THINKING) == ["1", "<think>\n\n</think>2"]
    assert trained_text(byte, TURNS, THINKING, train_on="last") == ["<think>\n\n</think>2"]
    assert trained_text(byte, change_turn(2, train=False), THINKING) == ["<think>\n\n</think>2"]
    assert trained_text(byte, change_turn(3, train=True), THINKING)[0] == "1<user>two"


@pytest.mark.parametrize("place", [2, 4])
def test_thoughts_that_a_template_leaves_out_of_a_trained_turn_are_missed(tokenizer: Any, place: int) -> None:
    turns = change_turn(place, content="<think>\nhm\n</think>1")
    with pytest.raises(DataError, match=rf"turn {place + 1} has thoughts .*leaves out there.* deepseek_r1, qwen3"):
        template(tokenizer, THINKING).encode(turns)
    assert template(tokenizer, "deepseek_r1").encode(turns).ids
    assert template(tokenizer, THINKING, train_on="last").encode(change_turn(2, content="<think>hm</think>1")).ids


def test_what_the_template_says_is_generated_is_trained_also_where_turns_depend_on_what_follows(
    tokenizers: dict[str, Any], theirs: Any
) -> None:
    source = MARKED.replace(
        "{{ m['content'] + '<|im_end|>' }}{% endg", "{{ m['content'] ~ loop.last ~ '<|im_end|>' }}{% endg"
    )
    encoded = template(tokenizers["huggingface"], source).encode(TURNS)
    expected = theirs.apply_chat_template(
        TURNS, chat_template=source, return_dict=True, return_assistant_tokens_mask=True
    )
    assert (encoded.ids, encoded.trained) == (expected["input_ids"], list(map(bool, expected["assistant_masks"])))
    last = template(tokenizers["huggingface"], source, train_on="last").encode(TURNS)
    assert stretches(last.ids, last.trained) == stretches(encoded.ids, encoded.trained)[-1:]


FAULTY = {
    "{{ messages[0].nothing.more }}": "line 1, fails: 'dict object' has no attribute 'nothing'",
    "\n{{ 1 / 0 }}": "line 2, fails: division by zero",
    "\n\n{{ messages.append(1) }}": "line 3, fails: .*unsafe|not safely",
    "{{ ''.__class__.__base__.__subclasses__() }}": "line 1, .*unsafe",
    "{% for m in messages %}": "line 1, .*Unexpected end of template",
    "{% include '/etc/passwd' %}": "line 1, .*no loader",
    "{{ range(10 ** 9) | list }}": "line 1, .*Range too big",
}


@pytest.mark.parametrize("source", FAULTY)
def test_a_template_that_fails_or_reaches_out_is_told_with_its_line(tokenizers: dict[str, Any], source: str) -> None:
    with pytest.raises(DataError, match=FAULTY[source]):
        template(tokenizers["byte"], source).encode(TURNS)


def test_without_a_choice_only_plain_prompts_and_responses_are_plain(tokenizers: dict[str, Any], theirs: Any) -> None:
    raw = [{"role": "user", "content": "Q: ", "raw": True}, {"role": "assistant", "content": "A", "raw": True}]
    made = build_template(tokenizers["byte"], DataConfig())
    assert made.encode(raw).ids == [256, *b"Q: A", 257]
    with pytest.raises(DataError, match=r"the tokenizer has no chat template.*--data.template"):
        made.encode([{"role": turn["role"], "content": turn["content"]} for turn in raw])
    with pytest.raises(DataError, match="no chat template"):
        build_template(tokenizers["byte"], DataConfig(system="S")).encode(raw)
    with pytest.raises(DataError, match="no chat template"):
        template(tokenizers["byte"], OWN)


def test_the_first_special_token_after_an_answer_stops_it(tokenizers: dict[str, Any], theirs: Any) -> None:
    made = template(tokenizers["huggingface"], "llama3")
    assert (made.stop_ids, made.stop_text) == ((theirs.convert_tokens_to_ids("<|eot_id|>"),), None)
    assert template(tokenizers["byte"], "llama3").stop_text == "<|eot_id|>"
    assert template(tokenizers["sentencepiece"], "mistral").stop_ids == (tokenizers["sentencepiece"].eos_id,)
