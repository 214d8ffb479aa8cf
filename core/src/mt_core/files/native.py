"""Panics of native code: in Python they are no ``Exception`` (https://docs.rs/pyo3/latest/pyo3/panic/struct.PanicException.html)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mt_core.errors import MtError


@contextmanager
def native_faults(what: str) -> Iterator[None]:
    """Turn a panic of native code in this block into an ``MtError``, which names ``what``."""
    try:
        yield
    except panics() as error:
        raise panic_error(what, error) from error


def panic_error(what: str, error: BaseException) -> MtError:
    """Return the error for a panic, which names ``what``."""
    said = next(iter(str(error).strip().splitlines()), "it says nothing")[:300]
    return MtError(f"{what} has a fault that its library does not survive: {said}. Fetch or make its file anew")


def panics() -> tuple[type[BaseException], ...]:
    """Return the exception classes of panics: each Rust library creates its own at its first panic."""
    return tuple(kind for kind in BaseException.__subclasses__() if kind.__module__ == "pyo3_runtime")
