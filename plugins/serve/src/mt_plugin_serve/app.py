"""The application: its paths, and a request from its body to its answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.exceptions import HTTPException
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from mt_core import MtError, UsageError
from mt_tools import chat_ids, text_ids
from mt_train.generation import TokenOutput, TokenScore, split_prompt

from .access import Access
from .answers import Piece
from .chat import plan_chat
from .completions import plan_completion
from .engine import Engine, Event, Job
from .errors import ApiError
from .fields import Fields, flag, read_object, text
from .http import CLOSE, Gate, read_body, send_bytes, send_events, send_json, until_gone
from .limits import Limits
from .messages import read_messages
from .metrics import Metrics
from .models import Models
from .plans import Plan, Text
from .scores import token_text

Planner = Callable[[Mapping[str, Any], Models, int], Plan]
Handle = Callable[[Scope, Receive, Send], Awaitable[None]]
_TextEvent = tuple[Text, TokenOutput | tuple[TokenScore, ...]]


class Service:
    """Answers requests with an engine. Once ``is_draining``, what runs goes on, and what comes is refused."""

    def __init__(self, models: Models, engine: Engine, metrics: Metrics, limits: Limits) -> None:
        self._models, self._engine, self._metrics, self._limits = models, engine, metrics, limits
        self._planning = ThreadPoolExecutor(1, thread_name_prefix="prompts")  # templates and tokenizers, one at a time
        self.is_draining = False

    def app(self, access: Access, report: Callable[[str], None]) -> ASGIApp:
        """Return the ASGI application."""
        handlers: dict[str, tuple[str, Handle]] = {
            "/v1/chat/completions": ("POST", self._answering(plan_chat)),
            "/v1/completions": ("POST", self._answering(plan_completion)),
            "/v1/models": ("GET", self._list_models),
            "/v1/models/{name:path}": ("GET", self._show_model),
            "/tokenize": ("POST", self._tokenize),
            "/health": ("GET", self._health),
            "/metrics": ("GET", self._show_metrics),
        }
        routes = [Route(path, _Endpoint(handle), methods=[method]) for path, (method, handle) in handlers.items()]
        return Gate(_Routes(routes), access, self._metrics, frozenset(handlers), report)

    def close(self) -> None:
        """Read no more prompts."""
        self._planning.shutdown(wait=False, cancel_futures=True)

    def _answering(self, planner: Planner) -> Handle:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            self._refuse_when_ending()
            plan = await self._read(planner, scope, receive)
            self._refuse_when_full(plan)
            self._metrics.prompt_tokens += plan.prompt_tokens
            run = _Run(plan, self._engine)
            await until_gone(receive, self._answer(run, send))

        return answer

    async def _answer(self, run: _Run, send: Send) -> None:
        try:
            run.begin()
            if run.plan.streaming.on:
                await send_events(send, run.chunks())
            else:
                await send_json(send, await run.whole())
        finally:
            run.end()

    async def _read(self, planner: Planner, scope: Scope, receive: Receive) -> Plan:
        body = await read_body(scope, receive, self._limits.max_body)
        return await asyncio.get_running_loop().run_in_executor(
            self._planning, lambda: planner(read_object(body), self._models, self._engine.capacity)
        )

    def _refuse_when_ending(self) -> None:
        if self._engine.failure is not None:
            raise ApiError("the model has stopped; the server ends", status=503, headers=CLOSE)
        if self.is_draining:
            raise ApiError("the server ends, and takes nothing new", status=503, headers={**CLOSE, "retry-after": "5"})

    def _refuse_when_full(self, plan: Plan) -> None:
        if plan.count_jobs() > self._engine.free:
            raise ApiError(
                f"{self._engine.capacity - self._engine.free:,} texts run or wait, of {self._engine.capacity:,}; try later",
                status=429,
                code="queue_full",
                headers={"retry-after": str(math.ceil(self._metrics.mean_seconds()))},
            )

    async def _list_models(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, {"object": "list", "data": [model.describe() for model in self._models]})

    async def _show_model(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, self._models.find(scope["path_params"]["name"]).describe())

    async def _health(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._refuse_when_ending()
        await send_json(send, {"status": "ok"})

    async def _show_metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_bytes(send, self._metrics.text().encode(), "text/plain; version=0.0.4; charset=utf-8")

    async def _tokenize(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(scope, receive, self._limits.max_body)
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._planning, lambda: tokenize(read_object(body), self._models))
        await send_json(send, found)


def tokenize(raw: Mapping[str, Any], models: Models) -> dict[str, Any]:
    """Return the ids of a ``prompt``, or of ``messages``, as the model gets them."""
    fields = Fields(raw)
    name = fields.take("model", text, None)
    model = models.default if name is None else models.find(name)
    shows = fields.take("return_token_strs", flag, False)
    begins = fields.take("add_special_tokens", flag, True)
    if ("prompt" in fields) == ("messages" in fields):
        raise ApiError("give prompt or messages", field="prompt")
    prompt = fields.take("prompt", text, "")
    messages = fields.take("messages", read_messages, None)
    fields.close()
    if messages and not begins:
        raise ApiError("add_special_tokens belongs to prompt: a template has its own", field="add_special_tokens")
    try:
        if messages:
            ids = list(split_prompt(chat_ids(model.template, messages))[0])
        else:
            ids = text_ids(model.loaded, prompt) if begins and prompt else model.loaded.tokenizer.encode(prompt)
    except MtError as error:
        raise ApiError(str(error), field="messages" if messages else "prompt") from error
    found: dict[str, Any] = {"count": len(ids), "max_model_len": model.loaded.max_seq_len, "tokens": ids}
    return {**found, "token_strs": [token_text(model.loaded.tokenizer, each) for each in ids]} if shows else found


class _Run:
    """A plan on its way. ``begin`` and ``end`` stand around ``chunks`` or ``whole``."""

    def __init__(self, plan: Plan, engine: Engine) -> None:
        self.plan, self._engine = plan, engine
        self._events: asyncio.Queue[tuple[Text, Event]] = asyncio.Queue()
        self._jobs: list[Job] = []

    def begin(self) -> None:
        for each in self.plan.texts:
            if each.score_top is not None:
                self._submit(each, each.score_top)
            if each.continues:
                self._submit(each, None)

    def _submit(self, each: Text, score_top: int | None) -> None:
        job = Job(self.plan.model, each.request, lambda event: self._events.put_nowait((each, event)), score_top)
        self._jobs.append(job)
        self._engine.submit(job)

    def end(self) -> None:
        """Cancel what still runs."""
        for job in self._jobs:
            self._engine.cancel(job)

    async def _text_events(self) -> AsyncIterator[_TextEvent]:
        """Yield what comes out, until all texts have ended."""
        open_jobs = len(self._jobs)
        while open_jobs:
            each, event = await self._events.get()
            if isinstance(event, MtError):
                raise _as_answer(event)
            if isinstance(event, TokenOutput) and event.error is not None:
                raise ApiError(str(event.error), status=500)
            open_jobs -= not isinstance(event, TokenOutput) or event.is_last
            yield each, event

    async def whole(self) -> dict[str, Any]:
        plan, form = self.plan, self.plan.form
        pieces: dict[int, list[Piece]] = {each.index: [] for each in plan.texts}
        scores: dict[int, tuple[TokenScore, ...]] = {}
        async for each, event in self._text_events():
            if isinstance(event, TokenOutput):
                pieces[each.index].append(each.answer.take(event))
            else:
                scores[each.index] = event
        choices = [form.choice(each, pieces[each.index], scores.get(each.index)) for each in plan.texts]
        return {**plan.head(form.whole_name), "choices": choices, "usage": plan.usage()}

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        plan, form = self.plan, self.plan.form
        begun: set[int] = set()
        held: dict[int, list[Piece]] = {each.index: [] for each in plan.texts if each.score_top is not None}
        if not self._jobs:  # prompts that are echoed, and nothing else
            for each in plan.texts:
                yield self._chunk(form.prompt_chunk(each, None))
        async for each, event in self._text_events():
            found: list[dict[str, Any] | None] = []
            if not isinstance(event, TokenOutput):
                found = [form.prompt_chunk(each, event)]
                found += [form.chunk(each, piece) for piece in held.pop(each.index)]
                begun.add(each.index)
            else:
                piece = each.answer.take(event)
                if each.index in held:
                    held[each.index].append(piece)
                    continue
                if each.index not in begun:
                    found = [form.begin(each), form.prompt_chunk(each, None)]
                    begun.add(each.index)
                found += [] if piece.is_empty else [form.chunk(each, piece)]
            for choice in found:
                if choice is not None:
                    yield self._chunk(choice)
        if plan.streaming.usage:
            yield {**plan.head(form.chunk_name), "choices": [], "usage": plan.usage()}

    def _chunk(self, choice: dict[str, Any] | None) -> dict[str, Any]:
        usage = {"usage": None} if self.plan.streaming.usage else {}
        return {**self.plan.head(self.plan.form.chunk_name), "choices": [choice], **usage}


def _as_answer(error: MtError) -> ApiError:
    if isinstance(error, UsageError):
        return ApiError(str(error))
    return ApiError(str(error), status=503, headers=CLOSE)


class _Endpoint:
    """A handler as an application, which starlette gives the connection and not only a request."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handle(scope, receive, send)


class _Routes(Router):
    """Paths and methods that are not there get an answer in the form of all errors."""

    def __init__(self, routes: list[Route]) -> None:
        super().__init__(routes, redirect_slashes=False)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Find the path; ``app`` in the scope makes an exception of a wrong method."""
        try:
            await super().app({**scope, "app": self}, receive, send)
        except HTTPException as error:
            raise ApiError(
                f"{scope['path']} takes no {scope['method']}", status=error.status_code, headers=error.headers
            ) from error

    async def not_found(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise ApiError(f"there is no {scope['path']} here; docs/serve.md lists what there is", status=404)
