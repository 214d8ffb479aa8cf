"""Texts after prompts: ids, several, echoed, with log-probabilities."""

from __future__ import annotations

import json
from pathlib import Path

import openai
import pytest
import tiny_tokenizers
import torch
from served import LatinTokenizer, Scripted, Server, model_of, running, scripted, twins

from mt_core import MtError
from mt_plugin_standard.tokenizers.huggingface import build_huggingface
from mt_plugin_standard.tokenizers.huggingface_config import HuggingFaceConfig
from mt_tools import generate
from mt_train import LoadedModel


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_prompts_equal_those_of_a_file_of_mt_generate(client: openai.OpenAI, loaded: LoadedModel) -> None:
    prompts = ["The ", "x", "Grüße aus Ulm"]
    for rules, ours in (({"temperature": 0}, {"greedy": True}), ({"top_p": 0.8}, {"top_p": 0.8})):
        answer = client.completions.create(model="tiny", prompt=prompts, max_tokens=9, seed=4, **rules)  # type: ignore[call-overload]
        texts = [each.text for each in generate(loaded, prompts, max_new_tokens=9, seed=4, **ours)]
        assert [choice.text for choice in answer.choices] == texts
        assert [choice.index for choice in answer.choices] == [0, 1, 2]


def test_a_prompt_may_be_ids(server: Server) -> None:
    as_text = server.complete(prompt="The ", seed=1, max_tokens=5)
    ids = server.ask("POST", "/tokenize", {"prompt": "The "})[1]["tokens"]
    for prompt in (ids, [ids]):
        as_ids = server.complete(prompt=prompt, seed=1, max_tokens=5)
        assert as_ids["choices"] == as_text["choices"]
        assert as_ids["usage"] == as_text["usage"] == {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}
    assert ids == [256, *b"The "]


def test_scores_of_an_echoed_prompt_are_those_of_transformers(server: Server, loaded: LoadedModel) -> None:
    theirs = twins(loaded.tokenizer.size)[1]
    ids = [256, *b"The quick brown fox jumps"]
    answer = server.complete(prompt=ids, echo=True, logprobs=3, max_tokens=1, temperature=0)["choices"][0]
    scores = answer["logprobs"]
    with torch.no_grad():
        log = theirs(torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = [log[place, token].item() for place, token in enumerate(ids[1:])]
    assert scores["token_logprobs"][0] is None is scores["top_logprobs"][0]
    assert scores["token_logprobs"][1 : len(ids)] == pytest.approx(expected, abs=1e-4)
    assert len(scores["tokens"]) == len(ids) + 1, "and the new one"
    assert scores["token_logprobs"][-1] == pytest.approx(log[-1].max().item(), abs=1e-4)
    assert "".join(scores["tokens"][1:]) == answer["text"]
    for place, top in enumerate(scores["top_logprobs"][1 : len(ids)]):
        assert max(top.values()) == pytest.approx(log[place].max().item(), abs=1e-4)
        assert 3 <= len(top) <= 4, "the token itself is always there"
    text, offsets = answer["text"], scores["text_offset"]
    assert all(text[at:].startswith(each) for at, each in zip(offsets[1:], scores["tokens"][1:], strict=True))


def test_a_prompt_is_echoed_without_new_tokens(server: Server) -> None:
    assert server.complete(prompt="abc", echo=True, max_tokens=0)["choices"][0]["text"] == "abc"
    scored = server.complete(prompt="abc", echo=True, max_tokens=0, logprobs=0)["choices"][0]
    assert len(scored["logprobs"]["token_logprobs"]) == 4
    assert server.complete(prompt="abc", echo=True, max_tokens=0, logprobs=0)["usage"]["completion_tokens"] == 0


def test_a_prompt_that_fills_the_context_is_scored_and_not_continued(server: Server, loaded: LoadedModel) -> None:
    full = [256, *b"x" * (loaded.max_seq_len - 1)]
    asked = {"echo": True, "max_tokens": 0, "logprobs": 1}
    scores = server.complete(prompt=full, **asked)["choices"][0]["logprobs"]["token_logprobs"]
    with torch.no_grad():
        log = twins(loaded.tokenizer.size)[1](torch.tensor([full])).logits[0].log_softmax(-1)
    expected = [log[place, token].item() for place, token in enumerate(full[1:])]
    assert scores[1:] == pytest.approx(expected, abs=1e-4)
    for prompt, most in ((full, 1), ([*full, 1], 0)):
        body = {"model": "tiny", "prompt": prompt, **asked, "max_tokens": most}
        status, told, _ = server.ask("POST", "/v1/completions", body)
        assert (status, told["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("most", [0, 6])
@pytest.mark.parametrize("logprobs", [None, 2])
def test_a_stream_adds_up_to_the_whole(client: openai.OpenAI, most: int, logprobs: int | None) -> None:
    asked = {
        "model": "tiny",
        "prompt": ["abc", "xy"],
        "echo": True,
        "max_tokens": most,
        "logprobs": logprobs,
        "seed": 5,
    }
    whole = client.completions.create(**asked)  # type: ignore[call-overload]
    texts, scores, ends = ["", ""], [[], []], [None, None]
    for chunk in client.completions.create(**asked, stream=True):  # type: ignore[call-overload]
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            scores[choice.index] += choice.logprobs.token_logprobs if choice.logprobs else []
            ends[choice.index] = choice.finish_reason or ends[choice.index]
    assert texts == [choice.text for choice in whole.choices]
    assert ends == [choice.finish_reason for choice in whole.choices] == ["length"] * 2
    assert scores == [choice.logprobs.token_logprobs if choice.logprobs else [] for choice in whole.choices]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("echo", [False, True])
def test_a_text_begins_with_the_blank_between_it_and_the_prompt(echo: bool, stream: bool, tmp_path: Path) -> None:
    """With a tokenizer of Llama 2's kind, which drops that blank where it decodes the new tokens alone."""
    inner = tiny_tokenizers.metaspace(["▁The", "▁dog", "▁ran", "."])
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = build_huggingface(HuggingFaceConfig(path=str(tmp_path / "tokenizer.json"), eos_token="<s>"))
    prompt, *new = [inner.token_to_id(piece) for piece in ("▁The", "▁dog", "▁ran", ".")]
    model = Scripted(new, 0, tokenizer.size, end=0)  # type: ignore[arg-type]
    with running(model_of(LoadedModel(model, tokenizer, 99, (0,)))) as server:  # type: ignore[arg-type]
        asked = {"model": "tiny", "prompt": [prompt], "echo": echo, "logprobs": 1, "temperature": 0, "stream": stream}
        told = server.ask("POST", "/v1/completions", asked)[1]
    answers = [json.loads(line[6:]) for line in told.splitlines() if line.startswith("data: {")] if stream else [told]
    choices = [answer["choices"][0] for answer in answers]
    text = "".join(choice["text"] for choice in choices)
    assert text == ("The" if echo else "") + " dog ran."
    assert tokenizer.decode([prompt, *new]) == "The dog ran."
    tokens = [(choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"]) for choice in choices]
    pairs = [pair for offsets, texts in tokens for pair in zip(offsets, texts, strict=True)]
    assert all(text[at:].startswith(each) for at, each in pairs[:-1])
    assert "".join(each for _, each in pairs[:-1]) == text


def test_a_stop_text_with_a_special_token_and_more_is_refused_by_name(tmp_path: Path) -> None:
    tiny_tokenizers.metaspace(["x"]).save(str(tmp_path / "tokenizer.json"))
    tokenizer = build_huggingface(HuggingFaceConfig(path=str(tmp_path / "tokenizer.json"), eos_token="<s>"))
    model = Scripted(b"abc", 0, tokenizer.size, end=0)
    with running(model_of(LoadedModel(model, tokenizer, 99, (0,)))) as server:  # type: ignore[arg-type]
        asked = {"model": "tiny", "prompt": "x", "stop": ["ab", "<s> User:"]}
        status, told, _ = server.ask("POST", "/v1/completions", asked)
        assert (status, told["error"]["param"]) == (400, "stop")
        assert "has the special token '<s>' in it" in told["error"]["message"]
        assert server.ask("POST", "/v1/completions", {**asked, "stop": ["ab", "<s>\n"]})[0] == 200


def test_an_end_token_is_counted_and_scored_and_not_shown() -> None:
    with running(model_of(scripted("ab", 2))) as server:  # the begin token and two letters
        answer = server.complete(prompt="xy", temperature=0, logprobs=1)
        choice = answer["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("ab", "stop")
        assert choice["logprobs"]["tokens"] == ["a", "b", "token_id:257"]
        assert answer["usage"]["completion_tokens"] == 3


def test_a_spelled_begin_token_is_no_second_one(tmp_path_factory: pytest.TempPathFactory) -> None:
    """lm-eval and others send what a template wrote as a text."""
    from mt_tools import text_ids

    class Spelling:
        bos_id, begin_ids = 1, (1,)

        def encode(self, text: str) -> list[int]:
            return [1, *text[3:].encode()] if text.startswith("<s>") else list(text.encode())

    loaded = LoadedModel(None, Spelling(), 9)  # type: ignore[arg-type]
    assert text_ids(loaded, "<s>ab") == text_ids(loaded, "ab") == [1, *b"ab"]


class Unrowed(LatinTokenizer):
    """Reads ``<img>`` as a token for which the model has no row, as Gemma 3 1B's tokenizer does."""

    def encode(self, text: str) -> list[int]:
        first, *others = (super(Unrowed, self).encode(part) for part in text.split("<img>"))
        return [*first, *(token for part in others for token in (self.size, *part))]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        raise MtError("it knows no offsets")


def test_a_token_that_the_model_has_no_row_for_ends_no_server(loaded: LoadedModel) -> None:
    tokenizer = Unrowed()
    unrowed = LoadedModel(loaded.model, tokenizer, 128, loaded.eos_ids, vocabulary=tokenizer.size)
    with running(model_of(unrowed)) as server:
        asked = {"model": "tiny", "prompt": "x", "seed": 1}
        status, told, _ = server.ask("POST", "/v1/completions", {**asked, "choices": ["<img>a", "b"]})
        assert (status, told["error"]["param"]) == (400, "choices")
        assert "'<img>a' has token 259 in it" in told["error"]["message"]
        plain = server.complete(**asked, min_new_tokens=3)["choices"]
        assert server.complete(**asked, min_new_tokens=3, stop="<img>")["choices"] == plain
