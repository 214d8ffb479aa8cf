"""Entry point of the vllm plugin: says what it offers, holds no logic, imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mt_core import ANY, Component, hookimpl

from .config import ServerConfig, VllmConfig

if TYPE_CHECKING:
    from .backend import VllmBackend
    from .sampler import VllmSampler


@hookimpl
def mt_samplers() -> list[Component]:
    return [
        Component(
            name="vllm",
            config=VllmConfig,
            build=_build,
            summary="generates on a vLLM server, which loads the weights of each iteration from a shared folder",
            source="https://docs.vllm.ai",
            layouts=ANY,
        )
    ]


def _build(config: VllmConfig) -> VllmSampler:
    from .sampler import VllmSampler

    return VllmSampler(config)


@hookimpl
def mt_backends() -> list[Component]:
    return [
        Component(
            name="vllm",
            config=ServerConfig,
            build=_build_backend,
            summary="generates the texts of mt-generate on a running vLLM server",
            source="https://docs.vllm.ai",
            layouts=ANY,
        )
    ]


def _build_backend(config: ServerConfig) -> VllmBackend:
    from .backend import VllmBackend

    return VllmBackend(config)
