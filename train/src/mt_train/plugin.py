"""Entry point of mt-train: the kinds that it brings, and what it knows of this machine, for ``mt-plugins doctor``."""

from __future__ import annotations

from typing import Any

from mt_core import Kind, hookimpl
from mt_train.kinds import KINDS


@hookimpl
def mt_kinds() -> list[Kind]:
    """Evaluations."""
    return list(KINDS)


@hookimpl
def mt_doctor() -> dict[str, dict[str, Any]]:
    """DeepSpeed's accelerator and operators."""
    try:
        from mt_train.engine.operators import operators

        return {"deepspeed": operators()}
    except Exception as error:  # noqa: BLE001 - a broken installation is what the doctor is asked about
        return {"deepspeed": {"error": f"{type(error).__name__}: {error}"}}
