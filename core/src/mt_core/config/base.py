"""The base of every config: frozen, closed, and strict where laxity hides a mistake."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo
from pydantic.types import Strict

Layout = Literal["zero0", "zero1", "zero2", "zero3", "pipeline", "sequence", "offload"]
"""How a run is divided: a ZeRO stage, and beside it a pipeline, sequence parallelism, or state in host memory."""

ZERO: frozenset[Layout] = frozenset({"zero0", "zero1", "zero2", "zero3"})
"""The layouts of a component that says nothing."""
ANY: frozenset[Layout] = ZERO | {"pipeline", "sequence", "offload"}
"""Every layout: for what takes no part in a step."""


NOTHING = (None, "none")
"""Two ways to say that there is none."""


def _one_or_several(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Patterns = Annotated[tuple[str, ...], BeforeValidator(_one_or_several)]
"""Patterns or names; a bare word is one of them (``--adapter.targets q_proj``)."""


def _make_strict(fields: dict[str, FieldInfo]) -> bool:
    """Mark int and bool fields strict; floats stay lax, because YAML reads ``2e-4`` as text."""
    changed = False
    for field in fields.values():
        if field.annotation in (int, bool, int | None, bool | None) and not any(
            getattr(mark, "strict", None) is not None for mark in field.metadata
        ):
            field.metadata.append(Strict())
            changed = True
    return changed


class MtConfig(BaseModel):
    """Options of a component. Subclass it; give every field bounds and a description with its unit.

    Frozen after validation; an unknown key is an error. ``int`` and ``bool`` accept no look-alikes: ``"4"`` is not 4,
    and 1 is not ``true``. Sequences are tuples, so that a config stays hashable and cannot be changed in place.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, validate_default=True, protected_namespaces=())

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if _make_strict(cls.model_fields):
            cls.model_rebuild(force=True)

    @model_validator(mode="before")
    @classmethod
    def _said_of_nothing(cls, raw: Any) -> Any:
        """``none`` and null are one word: ``None`` where a field has it, or else the choice of that name."""
        if not isinstance(raw, dict):
            return raw
        said = [name for name in cls.model_fields if name in raw and raw[name] in NOTHING]
        return raw | {name: _nothing(cls.model_fields[name].annotation, raw[name]) for name in said}


def _nothing(annotation: Any, said: str | None) -> str | None:
    """What of the two a type has; where it has both or neither, what was said."""
    has_none, has_word = _has(annotation, None), _has(annotation, "none")
    return said if has_none == has_word else None if has_none else "none"


def _has(annotation: Any, value: str | None) -> bool:
    """Whether the value is one of a type's members or choices."""
    origin, members = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return any(_has(member, value) for member in members)
    return value in members if origin is Literal else annotation is type(value) is NoneType


def nested_config(annotation: Any) -> type[MtConfig] | None:
    """The config that a field of this type holds, if it does."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, MtConfig) else None


class ModelConfig(MtConfig):
    """Base of a family's config. The core reads these two; a family adds its own."""

    vocab_size: int = Field(gt=0, description="rows of the embedding and of the head (tokens)")
    max_seq_len: int = Field(gt=0, description="longest sequence that the model is made for (tokens)")
