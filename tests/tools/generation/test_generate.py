"""``generate``: texts, why they end, and batches that change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from twins import twins

from mt_core import RopeScaling
from mt_core.errors import UsageError
from mt_core.generation import Generation, GenerationConfig, SamplingRules
from mt_core.nn import Batch
from mt_plugin_llama.config import LlamaConfig
from mt_plugin_llama.model import Llama
from mt_plugin_standard.tokenizers.byte import ByteTokenizer
from mt_plugin_standard.tokenizers.huggingface import build_huggingface
from mt_plugin_standard.tokenizers.huggingface_config import HuggingFaceConfig
from mt_tools import generate as public_generate
from mt_tools.generation.generate import describe_empty, generate
from mt_tools.generation.prompts import template_of, text_ids
from mt_train.config.data import DataConfig
from mt_train.data.templates import build_template
from mt_train.generation.loaded_model import LoadedModel

GREEDY = SamplingRules(greedy=True)


@settings(max_examples=8, deadline=None)
@given(prompts=st.lists(st.text("abc ", min_size=1, max_size=9), min_size=2, max_size=5), size=st.integers(1, 4))
def test_the_batch_size_changes_no_text(loaded: LoadedModel, prompts: list[str], size: int) -> None:
    wishes = {"rules": SamplingRules(top_p=0.9), "max_new_tokens": 10, "seed": 5, "stop": ("e", "qu")}
    assert generate(loaded, prompts, GenerationConfig(**wishes), batch_size=size) == generate(
        loaded, prompts, GenerationConfig(**wishes), batch_size=1
    )


def test_a_single_text_is_a_list_of_one(loaded: LoadedModel) -> None:
    (one,) = generate(loaded, "ab", GenerationConfig(rules=GREEDY, max_new_tokens=4))
    assert [one] == generate(loaded, ["ab"], GenerationConfig(rules=GREEDY, max_new_tokens=4))
    assert (len(one.ids), one.finish) == (4, "length")
    assert one.text == loaded.tokenizer.decode(one.ids)


def test_each_end_has_its_name(loaded: LoadedModel) -> None:
    (free,) = generate(loaded, "ab", GenerationConfig(rules=GREEDY, max_new_tokens=10))
    assert generate(loaded, "x" * 120, GenerationConfig(rules=GREEDY))[0].finish in ("context", "eos")
    assert len(generate(loaded, "x" * 120, GenerationConfig(rules=GREEDY))[0].ids) <= 128 - 121
    ended = LoadedModel(loaded.model, loaded.tokenizer, 128, (free.ids[3],))
    (early,) = generate(ended, "ab", GenerationConfig(rules=GREEDY, max_new_tokens=10))
    assert (early.finish, early.ids) == ("eos", free.ids[: free.ids.index(free.ids[3])])
    word = free.text[2:4]
    (stopped,) = generate(loaded, "ab", GenerationConfig(rules=GREEDY, max_new_tokens=10, stop=(word,)))
    assert (stopped.finish, stopped.text) == ("stop", free.text[: free.text.index(word)])


def test_a_special_token_may_be_a_stop_text(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    (free,) = generate(loaded, "ab", GenerationConfig(rules=GREEDY, max_new_tokens=10))
    special, decode, encode = free.ids[4], loaded.tokenizer.decode, loaded.tokenizer.encode
    monkeypatch.setattr(loaded.tokenizer, "decode", lambda ids: decode([token for token in ids if token != special]))
    monkeypatch.setattr(loaded.tokenizer, "encode", lambda text: [special] if text == "<|end|>" else encode(text))
    (ended,) = generate(loaded, "ab", GenerationConfig(rules=GREEDY, max_new_tokens=10, stop=("<|end|>",)))
    assert (ended.finish, ended.ids) == ("eos", free.ids[: free.ids.index(special)])


def test_a_continuation_has_the_blank_behind_its_prompt_and_an_answer_has_none(tmp_path: Path) -> None:
    """With a tokenizer of Llama 2's kind, beside transformers: what all its tokens decode to, and what the new ones do."""
    words = [f"▁{first}{second}" for first in "abcdefghijklmnop" for second in "abcdefghijklmnop"]
    tiny_tokenizers.metaspace(words).save(str(tmp_path / "tokenizer.json"))
    tokenizer = build_huggingface(HuggingFaceConfig(path=str(tmp_path / "tokenizer.json"), bos_token="<s>"))
    reference = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    own, theirs = twins(tokenizer.size)
    loaded = LoadedModel(own, tokenizer, 128)
    turns = build_template(tokenizer, DataConfig(template="chatml"))
    config = GenerationConfig(rules=GREEDY, max_new_tokens=6)

    def decoded(ids: Sequence[int]) -> str:
        """Where bytes are no text, transformers makes U+FFFD of the whole characters beside them, too, and SentencePiece does not."""
        text = reference.decode(ids, skip_special_tokens=True)
        return tokenizer.decode(list(ids)) if "\ufffd" in text else text

    blanks = 0
    for prompt in ("The", "a b", "h ", "é fee"):
        ids = text_ids(loaded, prompt)
        new = continued(theirs, ids)
        text = generate(loaded, prompt, config)[0].text
        assert decoded(ids) + text == decoded([*ids, *new])
        blanks += decoded(new) != text
        messages = [{"role": "user", "content": prompt}]
        (answer,) = generate(loaded, [messages], config, chat_template="chatml")
        assert answer.text == decoded(continued(theirs, turns.prompt(messages)))
    assert blanks, "some continuation begins with a word"


def continued(model: LlamaForCausalLM, ids: Sequence[int]) -> list[int]:
    """Return what transformers goes on with, greedily."""
    ids_1T = torch.tensor([ids])
    whole = model.generate(ids_1T, attention_mask=torch.ones_like(ids_1T), do_sample=False, max_new_tokens=6)
    return whole[0, len(ids) :].tolist()


def test_a_model_that_cannot_be_padded_gets_prompts_of_one_length_at_a_time() -> None:
    """Dynamic rotary scaling depends on the longest row of a batch."""
    torch.manual_seed(2)
    scaling = RopeScaling(type="dynamic", factor=4.0, original_max_seq_len=6)
    shape = {"dim": 32, "ffn_dim": 48, "n_layers": 2, "n_heads": 4, "n_kv_heads": 4}
    tokenizer = ByteTokenizer()
    model = Llama(LlamaConfig(vocab_size=tokenizer.size, max_seq_len=96, rope_scaling=scaling, **shape))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=1.0)  # wide, so that attention, and with it positions, decide
    loaded, prompts = LoadedModel(model, tokenizer, 96), ["abcdefgh", "x", "ijklmnop" * 3, "y"]
    alone = generate(loaded, prompts, GenerationConfig(rules=GREEDY, max_new_tokens=12), batch_size=1)
    model.ragged_batches = True
    assert generate(loaded, prompts, GenerationConfig(rules=GREEDY, max_new_tokens=12)) != alone, (
        "or this proves nothing"
    )
    model.ragged_batches = False
    assert generate(loaded, prompts, GenerationConfig(rules=GREEDY, max_new_tokens=12)) == alone


def test_beams_give_one_text_a_prompt(loaded: LoadedModel) -> None:
    rules = SamplingRules(num_beams=3)
    together = generate(loaded, ["ab", "c"], GenerationConfig(rules=rules, max_new_tokens=6))
    assert together == [
        generate(loaded, prompt, GenerationConfig(rules=rules, max_new_tokens=6))[0] for prompt in ("ab", "c")
    ]
    assert together[0].text == loaded.tokenizer.decode(together[0].ids)


def test_messages_need_a_template_and_may_bring_one(loaded: LoadedModel) -> None:
    turns = [{"role": "user", "content": "Hi"}]
    with pytest.raises(UsageError, match=r"no chat template.*as a Jinja file.*--chat-template to ask a model"):
        generate(loaded, [turns])
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    (found,) = generate(loaded, [turns], GenerationConfig(rules=GREEDY, max_new_tokens=5), chat_template=template)
    assert [found] == generate(loaded, "user: Hi\nassistant:", GenerationConfig(rules=GREEDY, max_new_tokens=5))


def test_a_conversation_ends_where_the_turns_of_its_template_end(loaded: LoadedModel) -> None:
    turns = [{"role": "user", "content": "Hi"}]
    free = generate(loaded, [turns], GenerationConfig(rules=GREEDY, max_new_tokens=10), chat_template="phi3")[0]
    word = free.text[2:4]
    source = (
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}"
        + f"{{% if m.role == 'user' %}}<|end|>{{% else %}}{word}"
    )
    source += "{% endif %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    run = replace(loaded, template=build_template(loaded.tokenizer, DataConfig(template=source)))
    (ended,) = generate(run, [turns], GenerationConfig(rules=GREEDY, max_new_tokens=10))
    assert (ended.finish, ended.text) == ("stop", free.text[: free.text.index(word)])
    token = free.ids[3]
    by_token = SimpleNamespace(stop_ids=(token,), stop_text=None, prompt=template_of(loaded, "phi3").prompt)
    (early,) = generate(replace(loaded, template=by_token), [turns], GenerationConfig(rules=GREEDY, max_new_tokens=10))
    assert (early.finish, early.ids) == ("eos", free.ids[: free.ids.index(token)])
    assert generate(run, "ab", GenerationConfig(rules=GREEDY, max_new_tokens=10)) == generate(
        loaded, "ab", GenerationConfig(rules=GREEDY, max_new_tokens=10)
    ), "a plain text is no turn"


def test_an_unknown_template_is_told_with_the_nearest(loaded: LoadedModel) -> None:
    with pytest.raises(UsageError, match=r"no template is named 'chatlm'. Did you mean 'chatml'\?"):
        generate(loaded, [[{"role": "user", "content": "Hi"}]], chat_template="chatlm")


def test_a_fault_names_the_prompt(loaded: LoadedModel) -> None:
    with pytest.raises(UsageError, match=r"^the prompt is empty"):
        generate(loaded, "")
    with pytest.raises(
        UsageError, match=r"prompt 1 \(counted from 0\): the prompt has 131 tokens, and the model takes 128"
    ):
        generate(loaded, ["a", "x" * 130])
    with pytest.raises(UsageError, match="batch_size must be from 1 to 100,000 prompts"):
        generate(loaded, ["a"], batch_size=0)


def test_an_answer_says_how_likely_its_tokens_were_and_how_it_ended(loaded: LoadedModel) -> None:
    (free,) = generate(loaded, "ab", GenerationConfig(rules=GREEDY, max_new_tokens=10))
    assert (free.end_id, free.logprobs) == (None, ())
    ended = LoadedModel(loaded.model, loaded.tokenizer, 128, (free.ids[3],))
    for rules in (GREEDY, SamplingRules(num_beams=2), SamplingRules(temperature=0.5)):
        (found,) = public_generate(
            ended,
            ["ab"],
            max_new_tokens=10,
            logprobs=True,
            **{key: value for key, value in vars(rules).items() if value != getattr(SamplingRules(), key)},
        )
        ids = [*loaded.tokenizer.encode("ab")]
        ids = [loaded.tokenizer.bos_id, *ids] if loaded.tokenizer.bos_id is not None else ids
        new = [*found.ids, *([found.end_id] if found.end_id is not None else [])]
        assert (found.finish == "eos") == (found.end_id == free.ids[3])
        rows = torch.tensor([[*ids, *new]])
        zeros = torch.zeros_like(rows)
        with torch.inference_mode():
            hidden = loaded.model(Batch(rows, zeros, torch.arange(rows.shape[1])[None], zeros))
            log = loaded.model.head(hidden)[0].log_softmax(-1)[len(ids) - 1 :]
        wanted = [float(each[token]) for each, token in zip(log, new, strict=False)]
        assert list(found.logprobs) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(
    ("ids", "template", "says"),
    [
        ((), None, "the model wrote no text: its first token ended it"),
        ((), "{{ messages }}", "its first token ended it; it has a chat template: --chat asks it in turns"),
        ((5,), None, "the model wrote blanks alone"),
    ],
)
def test_a_text_that_shows_nothing_is_explained(ids: tuple[int, ...], template: str | None, says: str) -> None:
    found = Generation(text=" " * len(ids), ids=ids, finish="eos")
    assert describe_empty(found, SimpleNamespace(chat_template=template)).endswith(says)  # type: ignore[arg-type]
