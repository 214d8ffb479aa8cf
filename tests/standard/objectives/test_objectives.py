"""Pretraining and supervised fine-tuning: which tokens a row becomes, and which of them are trained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn

from mt_core import DataError, Rejected, Sample
from mt_train.config.data import DataConfig
from mt_train.config.texts import OWN, TEMPLATES
from mt_train.data.encoding import Rules
from mt_train.data.encoding import encode as core_encode
from mt_train.data.samples import EncodedSamples
from mt_train.data.templates import build_template

words = st.sampled_from(
    ["Answer:", " ", "\n", "yes", " yes", "é", "e", "\u0301", "import", "ing", "  ", "你好", "🙂", "."]
)
phrases = st.lists(words, max_size=6).map("".join) | st.text(max_size=12)
relaxed = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def encode(build: Any, tokenizer: Any, name: str, **fields: Any) -> Any:
    return build("objective", name, tokenizer=tokenizer, template=build_template(tokenizer)).encode(
        {"id": "rows.jsonl:3", **fields}
    )


class BareTokenizer:
    """A tokenizer of letters, without any special token."""

    bos_id = eos_id = pad_id = None

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text.strip()]


def test_a_text_is_trained_from_begin_to_end(build: Any, tokenizer: Any) -> None:
    text = "The import statement.\n"
    sample = encode(build, tokenizer, "pretrain", text=text)
    assert sample == Sample(
        [tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id], [True] * len(sample.ids), "rows.jsonl:3"
    )


@given(phrases, phrases.filter(bool))
@relaxed
def test_exactly_the_response_and_the_end_are_trained(build: Any, tokenizer: Any, prompt: str, response: str) -> None:
    sample = encode(build, tokenizer, "sft", prompt=prompt, response=response)
    boundary = sample.trained.index(True)
    assert sample.trained == [False] * boundary + [True] * (len(sample.ids) - boundary)
    assert sample.ids[:boundary] == [tokenizer.bos_id, *tokenizer.encode(prompt)], "the context that generation sees"
    assert sample.ids[-1] == tokenizer.eos_id
    generated = tokenizer.decode(sample.ids[boundary:])
    assert generated in (response, response.removeprefix(" ")), "SentencePiece shows no space at the start of a text"
    whole = tokenizer.decode(sample.ids)
    assert whole in (prompt + response, f"{prompt} {response}"), "nor can it join words without one, once cut"


@given(phrases, phrases.filter(bool))
@relaxed
def test_bytes_and_byte_level_tokens_join_without_a_trace(
    build: Any, tokenizers: dict[str, Any], prompt: str, response: str
) -> None:
    for name in ("byte", "huggingface"):
        sample = encode(build, tokenizers[name], "sft", prompt=prompt, response=response)
        boundary = sample.trained.index(True)
        assert tokenizers[name].decode(sample.ids[:boundary]) == prompt
        assert tokenizers[name].decode(sample.ids[boundary:]) == response


@pytest.mark.parametrize("parse", [False, True])
def test_no_text_of_a_row_makes_a_special_token_unless_it_is_wished(
    build: Any, huggingface_folder: Path, parse: bool
) -> None:
    tokenizer = build("tokenizer", "huggingface", {"path": str(huggingface_folder), "parse_specials": parse})
    words = [
        ("pretrain", {"text": "An end: </s> or <s>."}),
        ("sft", {"prompt": "Say </s> and </s>", "response": "<s> </s>"}),
        ("sft", {"prompt": "Say:", "response": " </s>, it is"}),
    ]
    for name, fields in words:
        sample = encode(build, tokenizer, name, **fields)
        special = [token for token in sample.ids if token < 3]
        assert (special == [tokenizer.bos_id, tokenizer.eos_id]) is not parse
        if not parse:
            assert tokenizer.decode(sample.ids) == "".join(fields.values())


def test_a_response_has_its_natural_tokens_where_the_prompt_allows(build: Any, tokenizers: dict[str, Any]) -> None:
    for tokenizer in tokenizers.values():
        sample = encode(build, tokenizer, "sft", prompt="The answer:", response=" import this")
        assert sample.ids[1:-1] == tokenizer.encode("The answer: import this")


def test_tokens_that_straddle_the_boundary_are_cut_there(build: Any, tokenizers: dict[str, Any]) -> None:
    tokenizer = tokenizers["huggingface"]
    assert len(tokenizer.encode(" the")) == 1
    sample = encode(build, tokenizer, "sft", prompt="Say th", response="e")
    assert sample.ids[1:-1] == tokenizer.encode("Say th") + tokenizer.encode("e")
    assert sum(sample.trained) == 2, "the letter and the end"


def test_a_tokenizer_without_special_tokens_adds_none(build: Any) -> None:
    assert encode(build, BareTokenizer(), "pretrain", text="ab").ids == [97, 98]
    sample = encode(build, BareTokenizer(), "sft", prompt="a", response="b")
    assert (sample.ids, sample.trained) == ([97, 98], [False, True])


REJECTED: dict[str, tuple[str, Any, dict[str, str], str]] = {
    "empty text": ("pretrain", None, {"text": ""}, "'text' is empty"),
    "empty response": ("sft", None, {"prompt": "a", "response": ""}, "'response' is empty"),
    "text of one token": ("pretrain", BareTokenizer(), {"text": "a"}, "no token is left to train on after the first"),
    "text without tokens": ("pretrain", BareTokenizer(), {"text": " "}, "no token is left to train on after the first"),
    "response without tokens": (
        "sft",
        BareTokenizer(),
        {"prompt": "a", "response": " "},
        "'response' has no token of its own",
    ),
    "response of one token alone": (
        "sft",
        BareTokenizer(),
        {"prompt": "", "response": "a"},
        "no token is left to train on after the first",
    ),
}


@pytest.mark.parametrize("case", REJECTED)
def test_a_row_without_anything_to_learn_is_rejected(case: str, build: Any, tokenizers: dict[str, Any]) -> None:
    name, tokenizer, fields, reason = REJECTED[case]
    assert encode(build, tokenizer or tokenizers["byte"], name, **fields) == Rejected(reason, "rows.jsonl:3")


TURNS = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def chat(build: Any, tokenizer: Any, name: str, **fields: Any) -> Any:
    template = build_template(tokenizer, DataConfig(template="zephyr"))
    return build("objective", name, tokenizer=tokenizer, template=template).encode({"id": "rows.jsonl:3", **fields})


def test_a_conversation_is_trained_on_its_answers_or_on_all_of_it(build: Any, tokenizers: dict[str, Any]) -> None:
    ids = [256, *b"<|user|>\na", 257, *b"\n<|assistant|>\nb", 257, *b"\n"]
    sample = chat(build, tokenizers["byte"], "sft", messages=TURNS)
    assert sample == Sample(ids, [False] * (len(ids) - 3) + [True, True, False], "rows.jsonl:3")
    whole = chat(build, tokenizers["byte"], "pretrain", messages=TURNS)
    assert whole == Sample(ids, [True] * len(ids), "rows.jsonl:3")
    weighted = chat(build, tokenizers["byte"], "sft", messages=[TURNS[0], {**TURNS[1], "weight": 0.5}])
    assert weighted.weights == [1.0] * (len(ids) - 3) + [0.5, 0.5, 1.0]


def test_answers_that_teach_nothing_are_rejected_with_their_reason(build: Any, tokenizers: dict[str, Any]) -> None:
    for change, reason in (({"content": " "}, "an answer is empty"), ({"train": False}, "no turn is to be trained on")):
        found = chat(build, tokenizers["byte"], "sft", messages=[TURNS[0], {**TURNS[1], **change}])
        assert found == Rejected(reason, "rows.jsonl:3")
    bad = encode(build, tokenizers["byte"], "sft", prompt="a", response="b", label=False)
    assert bad == Rejected("no turn is to be trained on", "rows.jsonl:3")


def test_rows_of_a_table_have_nulls_for_the_fields_of_others(build: Any, tokenizers: dict[str, Any]) -> None:
    """As Parquet files, and ``datasets``, have all fields in each row."""
    nulls = dict.fromkeys(("text", "messages", "input_ids", "labels", "attention_mask"))
    for fields in ({"text": "a"}, {"messages": TURNS}, {"input_ids": [5, 6], "labels": [5, 6]}):
        bare, whole = ({"id": "rows.jsonl:3", **each} for each in (fields, nulls | fields))
        template = build_template(tokenizers["byte"], DataConfig(template="zephyr"))
        objective = build("objective", "pretrain", tokenizer=tokenizers["byte"], template=template)
        assert objective.encode(whole) == objective.encode(bare)
        assert objective.encode_many([whole, bare]) == [objective.encode(bare)] * 2


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [TURNS[0], {**TURNS[1], "train": False}]},
        {"messages": [TURNS[0], {**TURNS[1], "weight": 0.5}]},
        {"prompt": "a", "response": "b", "label": False},
    ],
)
def test_what_is_not_to_be_trained_on_is_never_trained_on_whole(
    fields: Any, build: Any, tokenizers: dict[str, Any]
) -> None:
    with pytest.raises(
        DataError, match=r"^rows\.jsonl:3: its turns say how they are trained .* choose --objective sft"
    ):
        chat(build, tokenizers["byte"], "pretrain", **fields)


@pytest.mark.parametrize("name", ["pretrain", "sft"])
def test_what_a_template_refuses_is_told_with_the_row(name: str, build: Any, tokenizers: dict[str, Any]) -> None:
    template = build_template(tokenizers["byte"], DataConfig(template="gemma"))
    objective = build("objective", name, tokenizer=tokenizers["byte"], template=template)
    with pytest.raises(
        DataError, match=r"^rows\.jsonl:3: the chat template gemma, line \d+, refuses .* must alternate"
    ):
        encoded_by_core(objective, [{"id": "rows.jsonl:3", "messages": [*TURNS, TURNS[1]]}])


def test_a_text_has_no_prompt_to_put_anything_around(build: Any, tokenizers: dict[str, Any]) -> None:
    template = build_template(tokenizers["byte"], DataConfig(prefix="Q: "))
    objective = build("objective", "pretrain", tokenizer=tokenizers["byte"], template=template)
    with pytest.raises(
        DataError, match=r"^rows\.jsonl:3: data\.prefix is put into conversations, and this row is a text"
    ):
        objective.encode({"id": "rows.jsonl:3", "text": "a"})


MANY = {
    "texts": [{"text": "one"}, {"text": ""}, {"text": "two <s> three </s>"}, {"text": "é 你好 🙂"}],
    "texts and ids": [{"text": "one"}, {"input_ids": [5, 6], "text": "not read"}],
    "all shapes": [
        {"text": "one"},
        {"input_ids": [5, 6], "text": "not read"},
        {"prompt": "a", "response": "b"},
        {"text": "two"},
    ],
}


@pytest.mark.parametrize("rows", MANY.values(), ids=MANY)
def test_many_rows_at_once_give_what_one_by_one_gives(build: Any, tokenizer: Any, rows: list[dict[str, Any]]) -> None:
    objective = build("objective", "pretrain", tokenizer=tokenizer, template=build_template(tokenizer))
    named = [{"id": f"rows.jsonl:{number}", **row} for number, row in enumerate(rows, start=1)]
    one_by_one = [objective.encode(row) for row in named]
    if literally := getattr(tokenizer, "encode_literally", None):
        literally("<s>")  # a setting of the tokenizer that must not stay
    assert objective.encode_many(named) == one_by_one
    assert encoded_by_core(objective, named).fingerprint() == encoded_by_core(OneByOne(objective), named).fingerprint()


def test_a_bad_row_among_many_is_named_and_the_others_are_kept(build: Any, tokenizer: Any) -> None:
    objective = build("objective", "pretrain", tokenizer=tokenizer, template=build_template(tokenizer))
    named = [{"id": f"rows.jsonl:{number}", "text": f"text {number}"} for number in range(1, 6)]
    named[1]["text"], named[3]["text"] = 5, "\ud800"
    with pytest.raises(DataError, match=r"^rows\.jsonl:2: field 'text' is of type int"):
        encoded_by_core(objective, named)
    samples = encoded_by_core(objective, named, on_bad_row="skip")
    assert samples.row_ids[:] == ["rows.jsonl:1", "rows.jsonl:3", "rows.jsonl:5"]
    assert [problem.partition(": ")[0] for problem in samples.report.bad_rows] == ["rows.jsonl:2", "rows.jsonl:4"]


CONVERSATIONS: list[dict[str, Any]] = [
    {"prompt": "Question: one\nAnswer:", "response": " yes"},
    {"input_ids": [5, 6, 7], "labels": [-100, 6, 7]},
    {"prompt": "a", "response": ""},
    {"messages": [{"role": "user", "content": "é 你好 🙂"}, {"role": "assistant", "content": "so <s> be it"}]},
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0.5}]},
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "train": False}]},
    {"instruction": "a", "input": "b", "output": "c"},
    {"prompt": "a", "response": "b", "label": False},
]


@pytest.mark.parametrize("template", [*TEMPLATES, None])
def test_many_conversations_at_once_give_what_one_by_one_gives(
    build: Any, tokenizer: Any, template: str | None
) -> None:
    made = build_template(tokenizer, DataConfig(template=template)) if template != OWN else build_template(tokenizer)
    objective = build("objective", "sft", tokenizer=tokenizer, template=made)
    named = [{"id": f"rows.jsonl:{number}", **row} for number, row in enumerate(CONVERSATIONS, start=1)]
    if made.stop_text or template in (None, OWN):  # no template of its own, or the stop is no single token
        named = [row for row in named if "messages" not in row and "instruction" not in row]
    one_by_one = [objective.encode(row) for row in named]
    assert len({type(each) for each in one_by_one}) == 2, "samples and rejected rows"
    assert objective.encode_many(named) == one_by_one
    assert encoded_by_core(objective, named).fingerprint() == encoded_by_core(OneByOne(objective), named).fingerprint()


def test_a_bad_conversation_among_many_is_named_and_the_others_are_kept(build: Any, tokenizer: Any) -> None:
    made = build_template(tokenizer, DataConfig(template="zephyr"))
    objective = build("objective", "sft", tokenizer=tokenizer, template=made)
    named = [{"id": f"rows.jsonl:{number}", "prompt": "a", "response": f"b{number}"} for number in range(1, 8)]
    named[1]["response"], named[3]["prompt"], named[5]["prompt"] = 5, "\ufdd2", "\ud800"
    with pytest.raises(DataError, match=r"^rows\.jsonl:2: field 'response' is of type int"):
        encoded_by_core(objective, named)
    samples = encoded_by_core(objective, named, on_bad_row="skip")
    assert samples.row_ids[:] == [f"rows.jsonl:{number}" for number in (1, 3, 5, 7)]
    assert [each.partition(": ")[0] for each in samples.report.bad_rows] == [f"rows.jsonl:{n}" for n in (2, 4, 6)]


class OneByOne:
    """An objective without ``encode_many``."""

    def __init__(self, objective: Any) -> None:
        self.encode = objective.encode


class ListedRows:
    """Rows of a list."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, index: int) -> dict[str, Any]:
        return self.rows[index]


def encoded_by_core(objective: Any, rows: list[dict[str, Any]], **rules: Any) -> EncodedSamples:
    given = Rules(max_len=400, truncation="error", **rules)
    return core_encode(ListedRows(rows), range(len(rows)), objective, given)


def test_an_empty_prompt_is_fine(build: Any, tokenizer: Any) -> None:
    sample = encode(build, tokenizer, "sft", prompt="", response="yes")
    assert sample.ids == [tokenizer.bos_id, *tokenizer.encode("yes"), tokenizer.eos_id]


FAULTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "other field": (
        "pretrain",
        {"body": "a", "title": "b"},
        r"no field 'text'; fields found: 'body', 'title'\. .*\{text: NAME\}",
    ),
    "no field": ("pretrain", {}, r"no field 'text'; fields found: none\. "),
    "number": ("pretrain", {"text": 5}, r"field 'text' is of type int, not text: '5'\. .*data\.columns"),
    "null": ("pretrain", {"text": None}, r"field 'text' is of type NoneType, not text"),
    "list": ("sft", {"prompt": ["a"], "response": "b"}, r"field 'prompt', turn 1 must have"),
    "no response": (
        "sft",
        {"prompt": "a", "answer": "b"},
        r"no field 'response'; fields found: 'prompt', 'answer'\. .*\{response: NAME\}",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_row_of_another_shape_is_an_error_that_names_it(fault: str, build: Any, tokenizers: dict[str, Any]) -> None:
    name, fields, message = FAULTS[fault]
    with pytest.raises(DataError, match=r"^rows\.jsonl:3: " + message):
        encode(build, tokenizers["byte"], name, **fields)


# ------------------------------------------------------------------------------------------------------------- batches

samples = st.lists(st.tuples(st.integers(3, 250), st.booleans()), min_size=1, max_size=6).map(
    lambda tokens: Sample([token for token, _ in tokens], [trained for _, trained in tokens], "row")
)
rows_of_samples = st.lists(st.lists(samples, max_size=3), min_size=1, max_size=4)


def naive_places(rows: list[list[Sample]], length: int, pad: int) -> Iterator[tuple[int, int, int, int]]:
    """(input, label, position, document) of every place, one at a time."""
    for row in rows:
        flat = [(document, at) for document, sample in enumerate(row) for at in range(len(sample.ids))]
        for place in range(length):
            if place < len(flat):
                document, at = flat[place]
                sample = row[document]
                follows = at + 1 < len(sample.ids) and sample.trained[at + 1]
                yield sample.ids[at], sample.ids[at + 1] if follows else -100, at, document
            elif row:  # padding continues the last document
                yield pad, -100, place - len(flat) + len(row[-1].ids), len(row) - 1
            else:
                yield pad, -100, 0, 0


@pytest.mark.parametrize("name", ["pretrain", "sft"])
@given(rows_of_samples, st.integers(0, 5))
@relaxed
def test_a_batch_equals_the_naive_one(
    name: str, build: Any, tokenizers: dict[str, Any], rows: list[list[Sample]], room: int
) -> None:
    objective = build("objective", name, tokenizer=tokenizers["byte"], template=build_template(tokenizers["byte"]))
    length = max(sum(len(sample.ids) for sample in row) for row in rows) + room or 1
    batch = objective.collate(rows, length=length)
    tensors = (batch.input_ids, batch.labels, batch.positions, batch.document_ids)
    assert all(tensor.shape == (len(rows), length) for tensor in tensors)
    columns = [tensor.flatten().tolist() for tensor in tensors]
    assert list(zip(*columns, strict=True)) == list(naive_places(rows, length, tokenizers["byte"].pad_id))
    assert objective.count(batch) == sum(sum(sample.trained[1:]) for row in rows for sample in row)


@pytest.mark.parametrize("bias", [False, True])
def test_dynamic_fine_tuning_weighs_each_token_by_its_probability(
    bias: bool, build: Any, tokenizers: dict[str, Any]
) -> None:
    """Value and gradient of https://arxiv.org/abs/2508.05629 in float64; evaluations have the cross-entropy."""
    template = build_template(tokenizers["byte"])
    objective, plain = (
        build("objective", "sft", values, tokenizer=tokenizers["byte"], template=template)
        for values in ({"loss": "dft"}, {})
    )
    torch.manual_seed(0)
    head, hidden = nn.Linear(8, 300, bias=bias), torch.randn(2, 9, 8, requires_grad=True)
    samples = [
        [Sample([5, 6, 7, 8, 9], [False, False, True, True, True], "a")],
        [Sample([8, 9, 7], [False, True, True], "b")],
    ]
    batch = objective.collate(samples, length=9).with_index()
    found = objective.loss(hidden, head, batch)
    own = torch.autograd.grad(found.loss_sum, [hidden, head.weight])

    there, weight = hidden.detach().double().requires_grad_(), head.weight.detach().double().requires_grad_()
    logits = there @ weight.T + (head.bias.double() if bias else 0.0)
    is_trained = batch.labels != -100
    logps = logits.log_softmax(-1)[is_trained].gather(1, batch.labels[is_trained][:, None])
    loss = -(logps.detach().exp() * logps).sum()
    assert float(found.loss_sum.detach()) == pytest.approx(float(loss.detach()), rel=1e-6)
    for one, other in zip(own, torch.autograd.grad(loss, [there, weight]), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-8)
    assert float(found.metrics["nll"][0]) == pytest.approx(-float(logps.detach().sum()), rel=1e-6)
    head.eval()
    assert torch.equal(objective.loss(hidden, head, batch).loss_sum, plain.loss(hidden, head, batch).loss_sum)


def test_dynamic_fine_tuning_has_no_other_terms(component: Any) -> None:
    with pytest.raises(ValidationError, match="loss=dft has no other terms; leave out label_smoothing and z_loss"):
        component("objective", "sft").config(loss="dft", z_loss=1e-4)


def test_padding_uses_no_row_of_its_own_where_the_tokenizer_has_none(build: Any, tokenizers: dict[str, Any]) -> None:
    tokenizer = tokenizers["sentencepiece"]
    objective = build("objective", "sft", tokenizer=tokenizer, template=build_template(tokenizer))
    batch = objective.collate([[Sample([5, 6], [False, True], "row")]], length=4)
    assert batch.input_ids.tolist() == [[5, 6, 0, 0]]
    assert batch.labels.tolist() == [[6, -100, -100, -100]]
