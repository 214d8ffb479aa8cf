"""The base of every config: frozen, closed, and strict where laxity hides a mistake."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo
from pydantic.types import Strict

Layout = Literal["zero0", "zero1", "zero2", "zero3", "pipeline", "sequence", "offload", "expert"]
"""A part of a run's layout: a ZeRO stage, and perhaps a pipeline, sequence or expert ranks, or offload to host memory."""

ZERO: frozenset[Layout] = frozenset({"zero0", "zero1", "zero2", "zero3"})
"""The layouts of a component that declares none."""
ANY: frozenset[Layout] = ZERO | {"pipeline", "sequence", "offload"}
"""All layouts except expert ranks, which only models with fused experts declare: for components that take no part in a step."""


NOTHING = (None, "none")
"""Two ways to say that there is none."""


def _one_or_several(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


Patterns = Annotated[tuple[str, ...], BeforeValidator(_one_or_several)]
"""Patterns or names; text is read as one of them, or as several separated by commas (``--adapter.targets q_proj,v_proj``)."""


MOST_WHOLE = 2**53
"""Largest whole number of a config: up to here a float holds each of them, and no count, seed or size is beyond it."""


def _not_beyond_floats(value: Any) -> Any:
    if isinstance(value, int) and abs(value) > MOST_WHOLE:
        raise ValueError(
            f"is a whole number beyond ±2^53 ({MOST_WHOLE}), which nothing here counts to; write a smaller one"
        )
    return value


def _make_strict(fields: dict[str, FieldInfo]) -> None:
    """Mark int and bool fields strict, and bound the former; floats stay lax, because YAML reads ``2e-4`` as text."""
    for field in fields.values():
        if field.annotation in (int, bool, int | None, bool | None) and not any(
            getattr(mark, "strict", None) is not None for mark in field.metadata
        ):
            field.metadata += [Strict(), AfterValidator(_not_beyond_floats)]


class MtConfig(BaseModel):
    """Options of a component. Subclass it; give every field bounds and a description with its unit.

    Frozen after validation; an unknown key is an error. ``int`` and ``bool`` accept only their own type: ``"4"`` is not 4, and 1 is not
    ``true``. Sequences are tuples, so that a config stays hashable and cannot be changed in place.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=False,
        validate_default=True,
        protected_namespaces=(),
        allow_inf_nan=False,  # "inf" is above 0, and no number of steps, minutes or tokens
        defer_build=True,  # until it is first used: a command has hundreds of configs at hand, and uses ten
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        _make_strict(cls.model_fields)

    @model_validator(mode="before")
    @classmethod
    def _read_nothing(cls, raw: Any) -> Any:
        """``none`` and null are one word: ``None`` where a field has it, or else the choice of that name.

        And ``max-len`` is ``max_len``, however deep in a config.
        """
        if not isinstance(raw, dict):
            return raw
        raw = _rename_to_fields(raw, cls.model_fields)
        said = [name for name in cls.model_fields if name in raw and raw[name] in NOTHING]
        return raw | {name: _null_value(cls.model_fields[name].annotation, raw[name]) for name in said}


def _rename_to_fields(raw: dict[Any, Any], fields: Mapping[str, Any]) -> dict[Any, Any]:
    """Keys with dashes as the fields that they mean; those that mean none as they are."""
    named: dict[Any, Any] = {}
    for name, value in raw.items():
        field = name.replace("-", "_") if isinstance(name, str) else name
        key = field if field in fields else name
        if key in named:
            raise ValueError(f"{key.replace('_', '-')} is written twice, once with - and once with _; keep one")
        named[key] = value
    return named


def _null_value(annotation: Any, said: str | None) -> str | None:
    """Return the one of ``none`` and null that a type has; where it has both or neither, what was said."""
    has_none, has_word = _has(annotation, None), _has(annotation, "none")
    return said if has_none == has_word else None if has_none else "none"


def _has(annotation: Any, value: str | None) -> bool:
    """Return whether the value is one of a type's members or choices."""
    origin, members = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return any(_has(member, value) for member in members)
    return value in members if origin is Literal else annotation is type(value) is NoneType


def nested_config(annotation: Any) -> type[MtConfig] | None:
    """The config that a field of this type holds, if it does."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, MtConfig) else None


class ModelConfig(MtConfig):
    """Base of a family's config. The core reads these two fields; a family adds its own."""

    vocab_size: int = Field(gt=0, le=2_147_483_647, description="rows of the embedding and of the head (tokens)")
    max_seq_len: int = Field(gt=0, le=2_147_483_647, description="longest sequence that the model is made for (tokens)")
