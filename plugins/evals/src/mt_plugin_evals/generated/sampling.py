"""Options of sampling and of beam search, as ``mt-generate`` has them; their bounds are those of ``mt_core.generation``."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Self

from pydantic import Field, model_validator

from mt_core.evaluation import EvaluationConfig
from mt_core.generation import SamplingRules, find_faults


class SamplingOptions(EvaluationConfig):
    """How the tokens of an answer are chosen; an evaluation adds ``max_new_tokens``, ``stop`` and ``seed``, which are checked with them."""

    temperature: float | None = Field(
        None,
        ge=0,
        le=100,
        description="sampling temperature; 0 takes the most likely token. Default 0, and 1 with top_k, top_p, min_p or typical_p",
    )
    top_k: int | None = Field(None, description="sample from so many likeliest tokens")
    top_p: float | None = Field(None, description="sample from the likeliest tokens that add up to this probability")
    min_p: float | None = Field(
        None, description="sample from tokens at least this many times as likely as the likeliest"
    )
    typical_p: float | None = Field(
        None, description="sample from tokens of typical surprise that add up to this probability"
    )
    repetition_penalty: float = Field(1.0, description="above 1: less of what prompt and answer have already")
    frequency_penalty: float = Field(0.0, description="taken off the logit for each time a token is in the answer")
    presence_penalty: float = Field(0.0, description="taken off the logit of a token that is in the answer")
    no_repeat_ngram: int | None = Field(None, description="so many tokens in a row never come twice")
    min_new_tokens: int = Field(0, description="shortest answer (tokens)")
    num_beams: int = Field(1, description="beams of a search for the most likely answer; 1 searches none")
    length_penalty: float = Field(1.0, description="of beam search: above 0 favours long answers")
    early_stopping: bool = Field(False, description="of beam search: end once each beam has a whole answer")

    @model_validator(mode="after")
    def _can_be_done(self) -> Self:
        if faults := find_faults({**vars(self), **self._chosen}, lambda name: _SPELLED.get(name, name)):
            raise ValueError("; ".join(faults))
        return self

    @property
    def rules(self) -> SamplingRules:
        """Return the rules that they stand for."""
        names = {each.name for each in fields(SamplingRules)}
        return SamplingRules(
            **{name: value for name, value in vars(self).items() if name in names - {*self._chosen}}, **self._chosen
        )

    @property
    def _chosen(self) -> dict[str, Any]:
        """Return what a temperature, or none, means."""
        temperature = self.temperature
        if temperature is None:
            draws = any(value is not None for value in (self.top_k, self.top_p, self.min_p, self.typical_p))
            temperature = 1.0 if draws else 0.0
        return {"greedy": temperature == 0, "temperature": temperature or 1.0}


_SPELLED = {"greedy": "temperature 0"}
"""Rules under the names that they have here."""
