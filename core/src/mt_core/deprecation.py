"""The end of a public name: first it warns and works, a release later it is an error that says what to write instead.

1. A name, hook or field comes: nothing that was written before has to change.
2. It is to go: it is listed in ``DEPRECATED`` (a hook: ``hookspec(warn_on_impl=MtDeprecationWarning(…))``) and works for at least
   one minor release. Whoever loads a plugin that uses it sees a warning with the name of the plugin.
3. It goes, in a minor release before 1.0 and in a major one after: it moves to ``REMOVED``, and ``API_VERSION`` grows.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import NamedTuple


class MtDeprecationWarning(FutureWarning):
    """A deprecated public name that still works. Python shows a ``FutureWarning`` to everybody, a ``DeprecationWarning`` to few."""


class Replacement(NamedTuple):
    """``now`` is what to write instead, ``gone_in`` the release that is without it, or was the first one."""

    now: str
    gone_in: str


DEPRECATED: Mapping[str, Replacement] = {
    "adapters.typed_form": Replacement("form_of_type", "0.2"),
    "matching": Replacement("matching_pattern", "0.2"),
    "renamed": Replacement("rename_columns", "0.2"),
    "warmed": Replacement("warmup_schedule", "0.2"),
}
"""Old public name → the public name that it is now."""

REMOVED: Mapping[str, Replacement] = {}

MOVED: Mapping[str, str] = {
    **dict.fromkeys(
        ("Outcome", "RunConfig", "check_config", "load_adapters", "load_config", "load_run", "train"), "mt_train"
    ),
    "generate": "mt_tools",
    "adapters.SeveralAdapters": "mt_train",
    **dict.fromkeys(("nn.MediaInputs", "nn.ProjectedEncoder"), "mt_train.engine.media_inputs"),
    "weights.NewRows": "mt_train.engine.new_rows",
    **dict.fromkeys(("weights.save_folder", "weights.write_json", "weights.write_tensors"), "mt_tools"),
    "weights.staged": "mt_tools:stage_folder",
    **dict.fromkeys(("weights.SHARD_BYTES", "weights.check_free"), "mt_tools.convert.writing"),
}
"""Public name that was here, without ``mt_core.`` → the module that has it, whose distribution is called as its package; after a
colon its name there, where that is another."""


def current_name(package: str, name: str) -> str:
    """The public name that an old one stands for, with a warning; any other name as it is.

    Raises ``ImportError`` for one that is gone or elsewhere: an ``AttributeError`` would lose its message in ``from mt_core import …``.
    """
    full = f"{package}.{name}"
    known = full.removeprefix("mt_core.")
    if known in MOVED:
        module, _, there = MOVED[known].partition(":")
        distribution = module.partition(".")[0].replace("_", "-")
        raise ImportError(
            f"{full} is in {module} now: write from {module} import {there or name} (pip install {distribution})",
            name=package,
        )
    if known in REMOVED:
        gone = REMOVED[known]
        raise ImportError(f"{full} went in mt-core {gone.gone_in}; write {package}.{gone.now}", name=package)
    if known not in DEPRECATED:
        return name
    old = DEPRECATED[known]
    text = f"{full} goes in mt-core {old.gone_in}; write {package}.{old.now}"
    warnings.warn(text, MtDeprecationWarning, stacklevel=3)
    return old.now
