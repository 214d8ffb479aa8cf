"""The backend of ``mt-generate --prompts``: a plugin that lets a served model write. Imports no torch."""

from __future__ import annotations

import argparse

from pydantic import ValidationError

from mt_core.errors import UnknownComponentError, UsageError
from mt_core.generation import GenerationConfig
from mt_core.tracking.logs import notice
from mt_train.assemble.discovery import discover_plugins
from mt_train.assemble.parts import Parts
from mt_train.generation.backend import Backend


def build_backend(arguments: argparse.Namespace, parts: Parts, wishes: GenerationConfig) -> Backend:
    """Return what ``--backend`` names, with its options. Raises ``UsageError`` for what it cannot do."""
    if parts.encoders:
        names = ", ".join(each.name for each in parts.encoders)
        raise UsageError(
            f"--backend takes prompts of tokens, and the model has encoders ({names}); leave --backend out"
        )
    if arguments.averaged is not None:
        raise UsageError("--averaged chooses weights of this run, and a backend has its own; leave one of them out")
    try:
        component = discover_plugins(arguments.block_plugin).get("backend", arguments.backend).component
    except UnknownComponentError as error:
        raise UsageError(
            f"{error} A backend is a distribution of its own, as pip install mt-plugin-{arguments.backend}"
        ) from error
    try:
        options = component.config(**dict(_option(each) for each in arguments.backend_option))
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        known = ", ".join(component.config.model_fields)
        raise UsageError(f"--backend-option of {component.name}: {faults}. Known: {known}") from error
    backend: Backend = component.build(options)
    backend.refuse(wishes)
    notice(
        f"notice: {component.name} writes the texts; whether it serves the weights of this run, nobody here can see"
        " (mt-export --check compares)"
    )
    return backend


def _option(given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not equals:
        raise UsageError(f"--backend-option is NAME=VALUE, got {given!r}")
    return name.replace("-", "_"), value
