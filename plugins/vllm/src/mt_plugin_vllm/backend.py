"""Texts of ``mt-generate`` that a server writes: prompts are sent as ids, and ids come back."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from typing import Any

from mt_core import UsageError
from mt_core.generation import GenerationConfig

from .completions import PromptGroup, completion_request, read_choice, refuse_unknown_rules
from .config import ServerConfig
from .errors import ServerUnreachableError
from .server import LONGEST_WAIT, Server


class VllmBackend:
    """Asks a server that has the weights already: those that it was started with."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._server = Server(config.url, timeout=config.timeout)
        self._model: str | None = None

    def describe(self) -> Mapping[str, Any]:
        """Return the name of the model that it serves. Raises ``UsageError`` where it serves several and none is named."""
        if self._model is None:
            self._model = self._find_model()
        return {"served_model": self._model}

    def refuse(self, config: GenerationConfig) -> None:
        """Raise ``UsageError`` for rules that the server has not."""
        refuse_unknown_rules(replace(config, stop=()), "backend", "leave --backend out")

    def write(
        self,
        prompts: Mapping[int, Sequence[int]],
        config: GenerationConfig,
        *,
        most: Mapping[int, int],
        end_ids: Sequence[int],
    ) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield the new ids of each prompt. Raises ``SamplerError``."""
        model = str(self.describe()["served_model"])
        with ThreadPoolExecutor(min(self._config.requests, max(len(prompts), 1))) as pool:
            asked = {
                pool.submit(
                    self._ask,
                    PromptGroup(tuple(ids), key, 1),
                    _limit_tokens(config, most[key]),
                    end_ids,
                    model,
                ): key
                for key, ids in prompts.items()
            }
            try:
                for each in as_completed(asked):
                    yield asked[each], each.result()
            finally:
                pool.shutdown(cancel_futures=True)  # after a fault, what has not begun need not be asked any more

    def _ask(self, group: PromptGroup, config: GenerationConfig, end_ids: Sequence[int], model: str) -> Sequence[int]:
        request = completion_request(group, config, end_ids, model)
        for attempt in range(self._config.retries + 1):
            try:
                (choice,) = self._server.complete(request)
                return read_choice(choice, group, end_ids).ids
            except ServerUnreachableError:
                if attempt == self._config.retries:
                    raise
            time.sleep(min(2.0**attempt, LONGEST_WAIT))
        raise AssertionError("the last attempt returns or raises")

    def _find_model(self) -> str:
        found = self._server.models()
        if (wanted := self._config.served_model) is not None:
            if wanted not in found:
                raise UsageError(
                    f"{self._config.url} serves {', '.join(found)}, and not {wanted!r}; name one of them (served_model)"
                )
            return wanted
        if len(found) > 1:
            raise UsageError(
                f"{self._config.url} serves {', '.join(found)}: a model and its adapters; say which (--backend-option served_model=NAME)"
            )
        return found[0]


def _limit_tokens(config: GenerationConfig, most: int) -> GenerationConfig:
    """Return the config for a prompt that leaves room for ``most`` new tokens, which may be fewer than a text is to have."""
    rules = replace(config.rules, min_new_tokens=min(config.rules.min_new_tokens, most))
    return replace(config, rules=rules, max_new_tokens=most)
