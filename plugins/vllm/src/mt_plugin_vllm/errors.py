"""Faults of a server. None of them loses anything: the run goes on from its checkpoint, and asks anew."""

from __future__ import annotations

from mt_core import MtError


class SamplerError(MtError):
    """The server did not write the answers of an iteration."""


class ServerUnreachableError(SamplerError):
    """It refuses connections, breaks them off, or says that it failed (HTTP 5xx)."""


class ServerLateError(SamplerError):
    """It does not answer in time."""


class ServerAnswerError(SamplerError):
    """The server's answer is not one of the protocol."""


class OtherWeightsError(SamplerError):
    """It writes with other weights than it was told to load."""


ERRORS = {
    each.__name__: each
    for each in (SamplerError, ServerUnreachableError, ServerLateError, ServerAnswerError, OtherWeightsError)
}
"""Errors by name, as ranks tell each other of them."""
