"""Entry point of the serve plugin: which packages the server stands on, for ``mt-plugins doctor``."""

from __future__ import annotations

from mt_core import hookimpl


@hookimpl
def mt_doctor() -> dict[str, dict[str, str]]:
    """Versions of the HTTP packages."""
    from importlib.metadata import version  # here: the doctor alone needs it

    return {"serve": {name: version(name) for name in ("starlette", "uvicorn")}}
