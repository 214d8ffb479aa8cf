"""OpenAI's own client talks to the server, and gets what mt-generate writes."""

from __future__ import annotations

import asyncio
import random
import threading
from dataclasses import replace
from typing import Any

import openai
import pytest
from served import Server, model_of, running, scripted
from torch import Tensor

from mt_tools import generate
from mt_train import LoadedModel

CHANCE = random.Random(7)
WORDS = ["red", "fox", "Ulm", "why?", "12 less 4", "ÄÖÜ", "{}", "\n", "tell me", "so"]
RULES: list[dict[str, Any]] = [
    {"temperature": 0},
    {},
    {"temperature": 0.7, "top_p": 0.9},
    {"frequency_penalty": 1.5, "presence_penalty": -0.5},
    {"top_k": 20, "min_p": 0.01, "repetition_penalty": 1.2},
]


def conversations(count: int) -> list[dict[str, Any]]:
    """Fields of requests: other lengths, rules, stops and seeds."""
    found = []
    for number in range(count):
        turns = [{"role": "user", "content": " ".join(CHANCE.choices(WORDS, k=CHANCE.randrange(1, 4)))}]
        if number % 4 == 1:
            turns.insert(0, {"role": "system", "content": "So."})
        stop = {"stop": ["e", "zz"]} if number % 3 == 1 else {}
        rules = RULES[number % len(RULES)]
        found.append({"messages": turns, "seed": number, "max_tokens": 4 + number % 9, **rules, **stop})
    return found


def written(loaded: LoadedModel, asked: dict[str, Any], index: int = 0) -> str:
    """What mt-generate's own function says; text i of a request is prompt i of a file."""
    fields = dict(asked)
    most, messages = fields.pop("max_tokens"), fields.pop("messages")
    if fields.get("temperature") == 0:
        del fields["temperature"]
        fields["greedy"] = True
    prompts = [messages] * (index + 1)
    return generate(loaded, prompts, max_new_tokens=most, chat_template="chatml", **fields)[index].text


def split(asked: dict[str, Any]) -> dict[str, Any]:
    """Rules that only this server has go through the client's ``extra_body``."""
    own = {name: asked[name] for name in ("top_k", "min_p", "repetition_penalty") if name in asked}
    return {"model": "tiny", **{name: each for name, each in asked.items() if name not in own}, "extra_body": own}


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_forty_conversations_equal_mt_generate(client: openai.OpenAI, loaded: LoadedModel) -> None:
    for number, asked in enumerate(conversations(40)):
        if number % 2:
            stream = client.chat.completions.create(**split(asked), stream=True)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        else:
            answer = client.chat.completions.create(**split(asked))
            text = answer.choices[0].message.content or ""
        assert text == written(loaded, asked), asked


@pytest.mark.parametrize("at_once", [3, 8])
def test_texts_are_the_same_whoever_else_is_served(server: Server, loaded: LoadedModel, at_once: int) -> None:
    """Async, as many in flight, joining at random moments; half of them streamed."""
    asked = conversations(16)

    async def ask() -> list[str]:
        free = asyncio.Semaphore(at_once)
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

            async def one(number: int, fields: dict[str, Any]) -> str:
                async with free:
                    await asyncio.sleep(CHANCE.random() / 50)
                    if number % 2:
                        answer = await client.chat.completions.create(**split(fields))
                        return answer.choices[0].message.content or ""
                    stream = await client.chat.completions.create(**split(fields), stream=True)
                    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return list(await asyncio.gather(*(one(*each) for each in enumerate(asked))))

    assert asyncio.run(ask()) == [written(loaded, each) for each in asked]


def test_n_texts_are_those_of_as_many_prompts(client: openai.OpenAI, loaded: LoadedModel) -> None:
    asked = {"messages": [{"role": "user", "content": "so"}], "seed": 3, "max_tokens": 6}
    answer = client.chat.completions.create(model="tiny", n=3, **asked)
    assert [each.message.content for each in answer.choices] == [written(loaded, asked, index) for index in range(3)]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (53, 18)
    assert len({each.message.content for each in answer.choices}) == 3


@pytest.mark.parametrize("stop", [None, [*"aeiouAEIOU ", "zz"]])
def test_streams_of_n_texts_with_scores_add_up_to_the_whole(client: openai.OpenAI, stop: list[str] | None) -> None:
    """Three texts side by side in one stream, each by its index: text, scores with the likeliest tokens, and the end."""
    messages: Any = [{"role": "user", "content": "so"}]
    asked: dict[str, Any] = {"model": "tiny", "messages": messages, "seed": 3, "max_tokens": 40, "n": 3, "stop": stop}
    asked |= {"logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.stream(**asked) as stream:  # the client puts the pieces together itself
        try:
            final: Any = stream.get_final_completion()
        except openai.LengthFinishReasonError as error:  # its word for a text that did not end by itself
            final = error.completion
    assert len(final.choices) == 3
    for ours, theirs in zip(whole.choices, final.choices, strict=True):
        assert (ours.index, ours.finish_reason) == (theirs.index, theirs.finish_reason)
        assert (ours.message.content or "") == (theirs.message.content or "")
        assert ours.logprobs is not None
        assert theirs.logprobs is not None
        told, streamed = ours.logprobs.content or [], theirs.logprobs.content or []
        assert [entry.token for entry in told] == [entry.token for entry in streamed]
        # the rows beside it change the order of a sum, in the last digits
        assert [entry.logprob for entry in told] == pytest.approx([entry.logprob for entry in streamed], abs=1e-4)
        assert [len(entry.top_logprobs) for entry in streamed] == [2] * len(streamed)
    assert ("stop" in {choice.finish_reason for choice in whole.choices}) == (stop is not None)


def test_without_a_seed_every_request_draws_anew(server: Server) -> None:
    """Some draw an end at once, so that a few alike are no fault."""
    texts = {server.chat("so", max_tokens=8)["choices"][0]["message"]["content"] for _ in range(8)}
    assert len(texts) > 2


def test_a_stream_begins_with_the_role_and_ends_with_the_usage(client: openai.OpenAI) -> None:
    asked = {"messages": [{"role": "user", "content": "so"}], "seed": 3, "max_tokens": 6, "temperature": 0}
    whole = client.chat.completions.create(model="tiny", **asked)
    chunks = list(
        client.chat.completions.create(model="tiny", stream=True, stream_options={"include_usage": True}, **asked)
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == whole.choices[0].finish_reason == "length"


def test_log_probabilities_are_those_of_transformers(client: openai.OpenAI, loaded: LoadedModel) -> None:
    import torch
    from served import twins

    theirs = twins(loaded.tokenizer.size)[1]
    messages = [{"role": "user", "content": "so"}]
    answer = client.chat.completions.create(
        model="tiny", messages=messages, temperature=0, max_tokens=5, logprobs=True, top_logprobs=4
    )
    listed = answer.choices[0].logprobs
    assert listed is not None
    assert listed.content is not None
    assert len(listed.content) == 5
    ids = list(model_of(loaded).default.template.prompt(messages))
    for entry in listed.content:
        with torch.no_grad():
            logits: Tensor = theirs(torch.tensor([ids])).logits[0, -1]
        likeliest = logits.log_softmax(-1).topk(4)
        assert [each.logprob for each in entry.top_logprobs] == pytest.approx(likeliest.values.tolist(), abs=1e-4)
        assert entry.logprob == entry.top_logprobs[0].logprob
        if entry.bytes is not None:
            assert bytes(entry.bytes).decode() == entry.token
        ids.append(int(likeliest.indices[0]))


def test_a_bias_bars_and_forces_tokens(server: Server) -> None:
    forced = server.chat("so", max_tokens=4, temperature=0, logit_bias={"97": 100})
    assert forced["choices"][0]["message"]["content"] == "aaaa"
    plain = server.chat("so", max_tokens=1, temperature=0)["choices"][0]["message"]["content"]
    barred = server.chat("so", max_tokens=1, temperature=0, logit_bias={str(ord(plain)): -100})
    assert barred["choices"][0]["message"]["content"] != plain


def test_choices_hold_the_answer_to_a_list(server: Server) -> None:
    answer = server.chat("so", choices=["yes", "no", "perhaps"], max_tokens=9)
    assert answer["choices"][0]["message"]["content"] in ("yes", "no", "perhaps")
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_choices_in_which_a_text_would_end_are_refused(loaded: LoadedModel) -> None:
    """By an end token, by the template's stop text; the server goes on."""
    two_ends = replace(loaded, eos_ids=(*loaded.eos_ids, ord("!")))
    with running(model_of(two_ends)) as server:
        for path, own, string, end in [
            ("chat/completions", {"messages": [{"role": "user", "content": "so"}]}, "ab<|im_end|>q", "<|im_end|>"),
            ("chat/completions", {"messages": [{"role": "user", "content": "so"}]}, "n!o", "!"),
            ("completions", {"prompt": "so"}, "n!o", "!"),
        ]:
            asked = {"model": "tiny", **own, "choices": ["yes", string], "max_tokens": 20}
            status, answer, _ = server.ask("POST", f"/v1/{path}", asked)
            assert (status, answer["error"]["param"]) == (400, "choices"), answer
            assert f"the choice '{string}' has '{end}' in it" in answer["error"]["message"]
        assert server.complete(prompt="so", choices=["ab<|im_end|>q"], max_tokens=20)["choices"][0]["text"]


def test_penalties_are_openais(server: Server) -> None:
    """logit - count · frequency - presence: with a bias of 3 a token comes until its penalties have eaten what it leads by."""
    for penalties in ({"frequency_penalty": 2}, {"presence_penalty": 2}):
        asked = {"temperature": 0, "max_tokens": 12, "logit_bias": {"97": 20}, "logprobs": True, "top_logprobs": 1}
        text = server.chat("so", **{**asked, **penalties})["choices"][0]["message"]["content"]
        plain = server.chat("so", **asked)["choices"][0]["message"]["content"]
        assert plain == "a" * 12
        assert (text == plain) == ("presence_penalty" in penalties), "one grows with the count, the other does not"


EMOJI = "Grüße 👩‍👩‍👧 東京 naïve 🇩🇪 end"


def start_of(server_text: str) -> int:
    """Last position of the prompt of a chat of one message."""
    return len(f"<|im_start|>user\n{server_text}<|im_end|>\n<|im_start|>assistant\n".encode())


def test_no_character_comes_in_halves() -> None:
    with running(model_of(scripted(EMOJI, start_of("hi")))) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
        stream = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hi"}], temperature=0, stream=True
        )
        pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
        assert "".join(pieces) == EMOJI
        assert len(pieces) > 20
        assert not any("\ufffd" in piece for piece in pieces)
        scored = server.chat("hi", temperature=0, logprobs=True)["choices"][0]
        assert scored["message"]["content"] == EMOJI
        assert len(scored["logprobs"]["content"]) == len(EMOJI.encode()) + 1, "and the end token"


def test_a_stop_text_of_several_tokens_is_never_shown() -> None:
    said = "one ##two ###three"
    for stop in ("###", ["###", "nowhere"]):
        with running(model_of(scripted(said, start_of("hi")))) as server:
            whole = server.chat("hi", temperature=0, stop=stop, logprobs=True)["choices"][0]
            assert whole["message"]["content"] == "one ##two "
            assert whole["finish_reason"] == "stop"
            assert "".join(each["token"] for each in whole["logprobs"]["content"]) == "one ##two "
            client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
            stream = client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "hi"}],
                temperature=0,
                stop=stop,
                stream=True,
                logprobs=True,
            )
            chunks = [chunk.choices[0] for chunk in stream]
            assert "".join(chunk.delta.content or "" for chunk in chunks) == "one ##two "
            scores = [each.token for chunk in chunks if chunk.logprobs for each in chunk.logprobs.content or []]
            assert "".join(scores) == "one ##two "


TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"place": "Ulm"}}\n</tool_call>'


@pytest.mark.parametrize("said", ["", "Let me look. <b"])
def test_a_call_of_a_tool_is_told_from_text(said: str) -> None:
    probe = scripted("", 0)
    prompt = model_of(probe, template="qwen2_5").default.template.prompt(
        [{"role": "user", "content": "hi", "tools": TOOLS}]
    )
    with running(model_of(scripted(said + CALL + "<|im_end|>", len(prompt) - 1), template="qwen2_5")) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
        asked: dict[str, Any] = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "hi"}],
            "temperature": 0,
            "tools": TOOLS,
        }
        choice = client.chat.completions.create(**asked).choices[0]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == (said or None)
        assert choice.message.tool_calls is not None
        call = choice.message.tool_calls[0].function  # type: ignore[union-attr]
        assert (call.name, call.arguments) == ("weather", '{"place": "Ulm"}')
        with client.chat.completions.stream(**asked) as stream:  # the client puts the pieces together itself
            final = stream.get_final_completion().choices[0]
        assert (final.message.content or "") == said
        assert final.finish_reason == "tool_calls"
        assert final.message.tool_calls[0].function.arguments == '{"place": "Ulm"}'  # type: ignore[index]
        history = [
            *asked["messages"],
            choice.message.model_dump(),
            {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": "rain"},
        ]
        client.chat.completions.create(**{**asked, "messages": history, "max_tokens": 2})


def test_tools_are_refused_where_the_template_has_none(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
    with pytest.raises(openai.BadRequestError, match="writes no calls of tools") as refused:
        client.chat.completions.create(**asked)
    assert refused.value.param == "tools"
    client.chat.completions.create(**asked, tool_choice="none", max_tokens=2)


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "hi"}]
    with pytest.raises(openai.NotFoundError, match=r"no model .*gpt-4.*tiny"):
        client.chat.completions.create(model="gpt-4", messages=messages)
    with pytest.raises(openai.BadRequestError, match=r"prompt has \d+ tokens, and the model takes 128") as long:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x" * 200}])
    assert long.value.code == "context_length_exceeded"
    assert [each.id for each in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_clients_in_threads_are_served_side_by_side(server: Server) -> None:
    before = server.figure("steps_total")
    threads = [threading.Thread(target=server.chat, args=("so",), kwargs={"max_tokens": 30}) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.figure("steps_total") - before < 8 * 30 * 0.7, "a step serves several"
