"""Options of a reward that a service gives; what speaks HTTP is imported where one is asked."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, Field

from .base import RewardOptions


def _address(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or not _has_port(parts):
        raise ValueError("is no address of a service; give http://HOST:PORT/PATH or https://…")
    if parts.username is not None or parts.password is not None:
        raise ValueError("has a user or a password in it, and configs are saved; take headers_env")
    return value


def _has_port(parts: SplitResult) -> bool:
    """Return whether the port is one, or there is none."""
    try:
        return parts.port is None or parts.port > 0
    except ValueError:  # a text, or too large
        return False


class HttpConfig(RewardOptions):
    """Address of the service, and how it is asked."""

    url: Annotated[str, AfterValidator(_address)] = Field(description="address that answers are posted to")
    timeout: float = Field(60.0, gt=0, description="longest that a request may take (seconds)")
    batch_size: int = Field(64, ge=1, description="answers of a request")
    retries: int = Field(
        2,
        ge=0,
        le=10,
        description="further tries where the service is not reached, is too slow, or says 429 or 5xx; after 1, 2, 4 … seconds",
    )
    headers_env: dict[str, str] = Field(
        {},
        description="header → environment variable with its value, as {Authorization: REWARD_HEADER}; the value is neither saved nor shown",
    )
