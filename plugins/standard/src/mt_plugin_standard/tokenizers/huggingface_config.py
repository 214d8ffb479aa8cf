"""Options of Hugging Face tokenizers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from mt_core import MtConfig
from mt_core.weights import RowInit

from .begin import ALWAYS, AUTO, NONE

Token = Annotated[str, Field(min_length=1)]
Named = Literal["auto", "none"] | Token
Begin = Literal["auto", "always", "none"] | Token


class HuggingFaceConfig(MtConfig):
    """Place of the tokenizer, and the special tokens that a bare ``tokenizer.json`` does not name."""

    path: str = Field(min_length=1, description="tokenizer.json, or a folder as save_pretrained writes it")
    bos_token: Begin = Field(
        AUTO,
        description="token in front of every text; auto: the folder's, where it puts it itself; always: the folder's; none: no token",
    )
    eos_token: Named = Field(AUTO, description="token that ends a text; auto: the folder's; none: no token")
    pad_token: Named = Field(
        AUTO, description="token that fills a row, added where it is new; auto: the folder's; none: no token"
    )
    parse_specials: bool = Field(
        False, description="read special tokens that texts, prompts and responses spell out as tokens, not as text"
    )
    add_tokens: tuple[str, ...] = Field((), min_length=0, description="words that become tokens of their own (A,B)")
    add_special_tokens: tuple[str, ...] = Field(
        (),
        min_length=0,
        description="marks that become tokens of their own (A,B): read in templates, and never in what people wrote",
    )
    init: RowInit = Field(
        "mean",
        description="rows of new tokens: mean of the old ones, of the subtokens of the text, or normal around the mean",
    )

    @model_validator(mode="before")
    @classmethod
    def _as_runs_were_written(cls, raw: Any) -> Any:
        """``null`` of a run.yaml in which every key stands: a run of before, which had the folder's token in front of every text."""
        if not isinstance(raw, dict) or not raw.keys() >= set(cls.model_fields):
            return raw
        before = {"bos_token": ALWAYS, "eos_token": AUTO, "pad_token": AUTO}
        return raw | {key: word for key, word in before.items() if raw[key] is None}

    @field_validator("add_tokens", "add_special_tokens", mode="before")
    @classmethod
    def _split_list(cls, value: Any) -> Any:
        """``A,B`` stands for two tokens."""
        return tuple(part for part in value.split(",") if part) if isinstance(value, str) else value

    @field_validator("add_tokens", "add_special_tokens")
    @classmethod
    def _not_empty(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if odd := [text for text in value if not text.strip()]:
            raise ValueError(f"{odd[0]!r} is no token; a token has at least one character that is no space")
        return value

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Special tokens that may be new."""
        return (*self.add_special_tokens, *([] if self.pad_token in (AUTO, NONE) else [self.pad_token]))
