"""``/v1/chat/completions``: https://platform.openai.com/docs/api-reference/chat."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from mt_core import MtError
from mt_tools import chat_ids
from mt_train.generation import CallReader, PromptIds, TokenScore, split_prompt

from .answers import Piece, TextAnswer
from .errors import ApiError
from .fields import Fields, flag, only, show, text, whole
from .messages import read_messages, read_tools, with_tools
from .models import Models, ServedModel
from .plans import Form, Plan, Text, TextOptions, build_requests, refuse_too_many
from .sampling import MOST_TOKENS, name_of_most, read_sampling, read_streaming
from .scores import chat_scores

MOST_TOP = 20
REFUSED = {
    "audio": "answers are text",
    "function_call": "give tool_choice",
    "functions": "give tools",
    "moderation": "nothing is moderated",
    "prediction": "no text is predicted for the model",
    "reasoning_effort": "how much a model thinks is the prompt's matter",
    "verbosity": "how long a model answers is the prompt's matter",
    "web_search_options": "nothing is read from elsewhere",
}
"""Fields of OpenAI's chats that nothing here does."""


def plan_chat(raw: Mapping[str, Any], models: Models, capacity: int) -> Plan:
    """Return what a request asks for, of at most ``capacity`` texts. Raises ``ApiError`` that names what is wrong with it."""
    fields = Fields(raw)
    model = models.find(fields.require("model", text))
    messages = fields.require("messages", read_messages)
    model.refuse_media("messages", (str(message["content"]) for message in messages))
    tools, reader = _read_tools(fields, model)
    top = _read_top(fields)
    most = _read_most(fields, model)
    streaming = read_streaming(fields)
    fields.take("response_format", only({"type": "text"}, why="no grammar holds the model to a format"), None)
    fields.take("modalities", only(["text"], why="answers are text"), None)
    fields.take("store", only(False, why="nothing is stored"), None)
    fields.take("service_tier", only("auto", "default", why="there is one"), None)
    fields.refuse(REFUSED)
    sampling = read_sampling(fields, model.vocabulary, most)
    fields.close()
    refuse_too_many(sampling.n, capacity)
    prompt = _prompt(model, with_tools(messages, tools) if tools else messages)
    options = TextOptions(
        model=model,
        sampling=sampling,
        streaming=streaming,
        converses=True,
        top=top,
        end_ids=reader.end_ids if reader else (),
        bound=name_of_most(fields),
    )
    texts = []
    for index, (_, request) in enumerate(build_requests(options, [prompt], ["messages"])):
        answer = TextAnswer(model.loaded.tokenizer, top is not None, bool(request.stop), reader)
        texts.append(Text(index, request, answer))
    return Plan(model, texts, ChatForm(), streaming, len(split_prompt(prompt)[0]))


def _prompt(model: ServedModel, messages: Sequence[Mapping[str, Any]]) -> PromptIds:
    try:
        return chat_ids(model.template, messages)
    except MtError as error:
        raise ApiError(f"messages: {error}", field="messages") from error


def _read_most(fields: Fields, model: ServedModel) -> int:
    """New tokens at most: all that the context takes, where a request says nothing, as at OpenAI."""
    names = [name for name in ("max_completion_tokens", "max_tokens") if name in fields]
    if len(names) > 1:
        raise ApiError("max_tokens is the old name of max_completion_tokens; give one of them", field="max_tokens")
    found = [fields.take(name, whole(1, MOST_TOKENS), 0) for name in ("max_completion_tokens", "max_tokens")]
    return max(found) or model.loaded.max_seq_len


def _read_top(fields: Fields) -> int | None:
    wanted = fields.take("logprobs", flag, False)
    top = fields.take("top_logprobs", whole(0, MOST_TOP), None)
    if top is not None and not wanted:
        raise ApiError("top_logprobs needs logprobs: true", field="top_logprobs")
    return (top or 0) if wanted else None


def _read_tools(fields: Fields, model: ServedModel) -> tuple[Sequence[Mapping[str, Any]], CallReader | None]:
    """Return the tools of the prompt, and what reads their calls."""
    tools = fields.take("tools", read_tools, None) or ()
    choice = fields.take("tool_choice", _read_tool_choice, "auto")
    fields.take("parallel_tool_calls", only(True, why="how many calls there are is up to the model"), None)
    if "tool_choice" in fields and not tools and choice != "none":
        raise ApiError("tool_choice needs tools", field="tool_choice")
    if not tools or choice == "none":
        return (), None
    if model.reader is None:
        raise ApiError(
            "tools: the chat template of this model writes no calls of tools that are read here (<tool_call>, <function=…>,"
            " [TOOL_CALLS] or bare JSON); leave them out, or give tool_choice: none",
            field="tools",
            code="unsupported_parameter",
        )
    return tools, model.reader


def _read_tool_choice(value: Any) -> str:
    if value not in ("auto", "none"):
        raise ValueError(f'can be "auto" or "none", got {show(value)}: nothing forces the model to call')
    return str(value)


class ChatForm(Form):
    """Writes the objects of a chat."""

    whole_name, chunk_name, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def begin(self, text: Text) -> dict[str, Any]:
        """See ``Form``."""
        return _chunk(text, {"role": "assistant", "content": ""}, None, None)

    def chunk(self, text: Text, piece: Piece) -> dict[str, Any]:
        """See ``Form``."""
        delta: dict[str, Any] = {"content": piece.text} if piece.text else {}
        if piece.calls:
            calls = _calls(piece)
            delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(calls)]
        scores = chat_scores(text.answer.texts, piece.scores) if piece.scores else None
        return _chunk(text, delta, scores, piece.finish)

    def choice(self, text: Text, pieces: Sequence[Piece], prompt_scores: Sequence[TokenScore] | None) -> dict[str, Any]:
        """See ``Form``."""
        said = "".join(piece.text for piece in pieces)
        calls = [call for piece in pieces for call in _calls(piece)]
        message: dict[str, Any] = {"role": "assistant", "content": said, "refusal": None}
        if calls:
            message |= {"content": said or None, "tool_calls": calls}
        scores = [score for piece in pieces for score in piece.scores]
        return {
            "index": text.index,
            "message": message,
            "logprobs": chat_scores(text.answer.texts, scores) if text.answer.scored else None,
            "finish_reason": pieces[-1].finish,
        }


def _calls(piece: Piece) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in piece.calls
    ]


def _chunk(text: Text, delta: Mapping[str, Any], scores: Any, finish: str | None) -> dict[str, Any]:
    return {"index": text.index, "delta": delta, "logprobs": scores, "finish_reason": finish}
