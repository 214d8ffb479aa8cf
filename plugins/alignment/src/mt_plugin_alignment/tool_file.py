"""Tools that a model may call while it answers: the functions of a Python file of the user's, which runs because the run names it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from mt_core import UsageError, first_line

from .time_limit import TimeLimitReached, call_within
from .user_files import own_functions, run_file

OPTION = "--objective.tools"


@dataclass(frozen=True)
class ToolResult:
    """Text that a call gave, for the model to read; where the call failed, the text says why."""

    text: str
    failed: bool = False


class ToolFile:
    """Functions by name, and what the model is told of them: ``schemas``, as at OpenAI."""

    def __init__(self, path: Path, *, timeout: float) -> None:
        """Raise ``UsageError`` for a file that is not there, does not run, or has a function that cannot be a tool.

        ``timeout`` is the longest that a call may take (seconds).
        """
        module = run_file(path.expanduser(), OPTION, "a function for each tool")
        self._functions = dict(_functions_of(module))
        if not self._functions:
            raise UsageError(
                f"{OPTION} {path} has no function whose name begins with a letter; write one for each tool, with a docstring"
            )
        self.schemas = [_schema_of(path, name, function) for name, function in self._functions.items()]
        self._timeout = timeout

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a function. What goes wrong is a result: the model reads it, and may call again."""
        function = self._functions.get(name)
        if function is None:
            return _failed(f"there is no tool {name!r}; there are {', '.join(self._functions)}")
        try:
            inspect.signature(function).bind(**arguments)
        except TypeError as error:
            return _failed(f"{name}: {error}")
        try:
            return ToolResult(_text_of(call_within(self._timeout, partial(function, **arguments))))
        except TimeLimitReached:
            return _failed(f"{name} has given nothing in {self._timeout:g} seconds")
        except SystemExit as error:
            return _failed(f"{name} wanted to end the process (exit code {error.code})")
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything, and the model is to read it
            return _failed(f"{type(error).__name__}: {first_line(error)}")


def _functions_of(module: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in own_functions(module):
        function = getattr(module, name)
        if inspect.isfunction(inspect.unwrap(function)) and not name.startswith("_"):  # as in functools.cache
            yield name, function


def _schema_of(path: Path, name: str, function: Callable[..., Any]) -> dict[str, Any]:
    """Return what a chat template writes of a function: its name in the file, docstring, and the types of its arguments."""
    from transformers.utils.chat_template_utils import (
        DocstringParsingException,
        TypeHintParsingException,
        get_json_schema,
    )

    own = inspect.unwrap(function)
    if inspect.iscoroutinefunction(own) or inspect.isasyncgenfunction(own):
        raise UsageError(
            f"{OPTION} {path}: {name} is async, and calls are made one by one; write it as a plain function, or begin its"
            " name with _ where it is no tool"
        )
    try:
        schema: dict[str, Any] = get_json_schema(function)
    except (DocstringParsingException, TypeHintParsingException) as error:
        raise UsageError(
            f"{OPTION} {path}: {name} cannot be told to the model: {first_line(error)}. Give it a docstring with a line for"
            " each argument under Args:, and a type to each; or begin its name with _ where it is no tool"
        ) from error
    kept = {key: each for key, each in schema["function"].items() if key != "return"}
    return {**schema, "function": kept | {"name": name}}


def _text_of(value: Any) -> str:
    """Return text as it is, and anything else as JSON, or as Python shows it."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def _failed(why: str) -> ToolResult:
    return ToolResult(f"Error: {why}", failed=True)
