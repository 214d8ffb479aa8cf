"""Models that are served, each by its name: one, or weights and several adapters of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from mt_core import Template
from mt_train import LoadedModel, SeveralAdapters
from mt_train.generation import CallReader, find_call_reader

from .errors import ApiError
from .fields import show
from .limits import Limits


@dataclass(frozen=True)
class ServedModel:
    """A model under a name. ``adapter`` is the one that counts in it."""

    name: str
    loaded: LoadedModel
    template: Template
    adapter: str | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    @cached_property
    def reader(self) -> CallReader | None:
        """Reader of the tool calls that the model's template writes."""
        return find_call_reader(self.template, self.loaded.tokenizer)

    @property
    def vocabulary(self) -> int:
        """Ids that there are: the model may have more rows than its tokenizer has tokens, and the reverse."""
        return min(self.loaded.tokenizer.size, self.loaded.vocabulary or self.loaded.tokenizer.size)

    def refuse_media(self, field: str, texts: Iterable[str]) -> None:
        """Raise ``ApiError`` for a place of media, as ``<image>``: nothing is read that could stand there, and as text it is something
        that the model has not learned."""
        said = " ".join(texts)
        if kind := next((each for each in sorted(self.loaded.media_kinds) if f"<{each}>" in said), None):
            raise ApiError(
                f"{field}: <{kind}> stands for media of this model, and none are read here; leave it out, or ask mt-generate",
                field=field,
            )

    def describe(self) -> dict[str, Any]:
        """Return what ``/v1/models`` says of it."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "mt-serve",
            "max_model_len": self.loaded.max_seq_len,
        }


class Models:
    """All that is served. ``several`` says which adapter counts, where there are some."""

    def __init__(self, models: Mapping[str, ServedModel], several: SeveralAdapters | None = None) -> None:
        self._models, self.several = dict(models), several

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    def within(self, limits: Limits) -> Models:
        """Return the same models, each with a context that fits into its share of the cache: the last new token takes no place."""
        share = limits.cache_share(len({model.adapter for model in self}))
        if share is None:
            return self
        fitting = {
            model.name: replace(
                model, loaded=replace(model.loaded, max_seq_len=min(model.loaded.max_seq_len, share + 1))
            )
            for model in self
        }
        return Models(fitting, self.several)

    def find(self, name: str) -> ServedModel:
        """Return a model by its name. Raises ``ApiError`` that says which there are."""
        if name not in self._models:
            known = ", ".join(self._models)
            raise ApiError(
                f"there is no model {show(name)}; served here: {known}",
                status=404,
                field="model",
                code="model_not_found",
            )
        return self._models[name]

    @property
    def default(self) -> ServedModel:
        """Return the first one, which a request without a name means: the one model, or the weights under the adapters."""
        return next(iter(self))
