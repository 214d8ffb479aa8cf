"""Options of the sampler and of the backend."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from mt_core import MtConfig


class ServerConfig(MtConfig):
    """Where the server is, and what is borne of it."""

    url: str = Field(
        "http://127.0.0.1:8000", description="address of a running `vllm serve` (a key is taken from VLLM_API_KEY)"
    )
    served_model: str | None = Field(
        None, min_length=1, description="name of the model there; the only one, or first, that it lists"
    )
    requests: int = Field(64, ge=1, le=4096, description="prompts sent to the server at a time")
    timeout: float = Field(600.0, gt=0, le=86400, description="longest wait for one answer of the server (seconds)")
    retries: int = Field(3, ge=0, le=20, description="retries when the server cannot be reached")

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        parts = urlsplit(url)
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.username
            or parts.query
            or parts.fragment
        ):
            raise ValueError(f"got {url!r}; write http://HOST:PORT, with a key in VLLM_API_KEY alone")
        return url


class VllmConfig(ServerConfig):
    """A server that serves this run alone, and gets the weights of each iteration."""

    folder: Path = Field(description="folder that trainer and server see; each iteration's weights are written there")
    server_folder: Path | None = Field(
        None, description="the same folder as the server sees it, where its path is another"
    )
    tolerance: float = Field(
        0.1,
        gt=0,
        le=10,
        description="how far its log-probabilities may be from the trainer's (nats, mean over some tokens)",
    )
