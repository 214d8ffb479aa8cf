"""The base of every config: frozen, closed, and strict where laxity hides a mistake."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo
from pydantic.types import Strict

Layout = Literal["zero0", "zero1", "zero2", "zero3", "pipeline", "sequence", "offload"]
"""How a run is divided: a ZeRO stage, and beside it a pipeline, sequence parallelism, or state in host memory."""

ZERO: frozenset[Layout] = frozenset({"zero0", "zero1", "zero2", "zero3"})
"""The layouts of a component that says nothing."""
ANY: frozenset[Layout] = ZERO | {"pipeline", "sequence", "offload"}
"""Every layout: for what takes no part in a step."""


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


class ModelConfig(MtConfig):
    """Base of a family's config. The core reads these two; a family adds its own."""

    vocab_size: int = Field(gt=0, description="rows of the embedding and of the head (tokens)")
    max_seq_len: int = Field(gt=0, description="longest sequence that the model is made for (tokens)")
