"""How a public name goes: first it warns and works, a release later it is an error that says what to write instead.

1. A name, hook or field comes: nothing that was written before has to change.
2. It is to go: it is listed in ``DEPRECATED`` (a hook: ``hookspec(warn_on_impl=MtDeprecationWarning(…))``) and works for at least
   one minor release. Whoever loads a plugin that uses it sees a warning with the name of the plugin.
3. It goes, in a minor release before 1.0 and in a major one after: it moves to ``REMOVED``, and ``API_VERSION`` grows.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass


class MtDeprecationWarning(FutureWarning):
    """Something public that works and will go. Python shows a ``FutureWarning`` to everybody, a ``DeprecationWarning`` to few."""


@dataclass(frozen=True)
class Replaced:
    """``now`` is what to write instead, ``gone_in`` the release that is without it, or was the first one."""

    now: str
    gone_in: str


DEPRECATED: Mapping[str, Replaced] = {}
"""Old public name → the public name that it is now."""

REMOVED: Mapping[str, Replaced] = {}

MOVED: Mapping[str, str] = {
    **dict.fromkeys(
        ("Outcome", "RunConfig", "check_config", "load_adapters", "load_config", "load_run", "train"), "mt_train"
    ),
    "generate": "mt_tools",
}
"""Public name that was here → the package that has it, whose distribution has its name."""


def current(name: str) -> str:
    """The public name that an old one stands for, with a warning; any other name as it is.

    Raises ``ImportError`` for one that is gone or elsewhere: an ``AttributeError`` would lose its message in ``from mt_core import …``.
    """
    if name in MOVED:
        package = MOVED[name]
        raise ImportError(
            f"mt_core.{name} is in {package} now: write from {package} import {name} (pip install {package.replace('_', '-')})",
            name="mt_core",
        )
    if name in REMOVED:
        gone = REMOVED[name]
        raise ImportError(f"mt_core.{name} went in mt-core {gone.gone_in}; write mt_core.{gone.now}", name="mt_core")
    if name not in DEPRECATED:
        return name
    old = DEPRECATED[name]
    text = f"mt_core.{name} goes in mt-core {old.gone_in}; write mt_core.{old.now}"
    warnings.warn(text, MtDeprecationWarning, stacklevel=3)
    return old.now
