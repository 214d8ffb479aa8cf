"""Intervals: every so many steps, or every so many passes over the rows."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from mt_core.config.base import NOTHING, MtConfig


class Interval(MtConfig):
    """Interval of what is done every so often, and at the end."""

    every_steps: int | Literal["auto"] | None
    every_epochs: int | None

    @model_validator(mode="before")
    @classmethod
    def _one_pace(cls, raw: Any) -> Any:
        """Epochs take the place of the steps that nobody has asked for."""
        if not isinstance(raw, dict):
            return raw
        given = {name: raw[name] for name in ("every_steps", "every_epochs") if raw.get(name) not in NOTHING}
        if len(given) > 1:
            both = " and ".join(f"{name}={value}" for name, value in given.items())
            raise ValueError(f"{both} are both set; keep one of them")
        return raw | {"every_steps": None} if "every_epochs" in given else raw
