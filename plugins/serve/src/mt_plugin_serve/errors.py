"""Errors in the form that OpenAI's clients read: https://platform.openai.com/docs/guides/error-codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """An answer that is an error. ``field`` is the one of the request that is to blame, ``code`` what a program looks at."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        field: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.field, self.code, self.headers = status, field, code, dict(headers or {})

    def body(self) -> dict[str, Any]:
        """Return the answer's object."""
        kind = "server_error" if self.status >= 500 else _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.field, "code": self.code}}
