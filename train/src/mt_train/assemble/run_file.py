"""The config of a run: the one in its checkpoint, which is sealed, compared with ``run.yaml``, which anybody can edit.

Whoever edits ``run.yaml`` of a folder that is handed on could otherwise choose what a later command of somebody else writes,
reads or sends. Nothing here imports torch.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mt_core.errors import ConfigError, Fault
from mt_core.kinds import CORE_KINDS
from mt_core.plugins.lock_file import RUN_FILE
from mt_train.assemble.directory import directory_of
from mt_train.assemble.places import with_places
from mt_train.checkpoint.files import refuse_special
from mt_train.checkpoint.manifest import read_manifest
from mt_train.config.commandline import merge
from mt_train.config.files import read_config
from mt_train.config.keys import dotted_keys
from mt_train.config.run import SECTIONS
from mt_train.plugins.lock import check_lock

MAY_CHANGE = (
    "train.steps",
    "train.epochs",
    "train.max_minutes",
    "train.micro_batch_size",
    "train.activation_checkpointing",
    "train.mlp_tile_tokens",
    "train.attention",
    "train.compile",
    "train.kernels",
    "train.tf32",
    "train.matmul",
    "train.fp8_min_size",
    "train.on_nonfinite",
    "train.max_skips",
    "log.",
    "checkpoint.",
    "eval.",
    "callbacks",
    "trackers",
    "parallel.",
    "data.cache",
    "data.workers",
    "data.prove",
)
"""Keys that a resumed run may set anew (docs/resume.md); a trailing dot means a whole section."""


def run_config(checkpoint: Path) -> dict[str, Any]:
    """Return the config of a checkpoint, for commands that read a run and train nothing.

    The folder of encoded rows is left out: a run's folder does not say where such a command writes. Raises ``CheckpointError``
    with the ``pip install`` line when a plugin is missing, ``ConfigError`` when ``run.yaml`` defines another run.
    """
    folder = checkpoint.parent.parent
    check_lock(folder)
    stored, manifest = read_stored(folder), read_manifest(checkpoint)
    saved = manifest.get("config", stored)
    # A resumed run's file says the rows of a step, also where they followed from other keys before.
    rows = (manifest.get("layout") or {}).get("global_batch_size")
    refuse_other_run(with_rows(saved, rows), with_rows(stored, rows), folder)
    data = {key: value for key, value in (saved.get("data") or {}).items() if key != "cache"}
    directory, is_whole = directory_of(manifest, folder), manifest.get("base") is None
    return with_places({**saved, "data": data}, folder, is_whole=is_whole, directory=directory)


def with_rows(raw: Mapping[str, Any], rows: int | None) -> dict[str, Any]:
    """A config that leaves the rows of a step to other keys, with what these came to."""
    train = raw.get("train")
    given = train.get("global_batch_size") if isinstance(train, dict) else None
    return merge(raw, {"train": {"global_batch_size": rows if given is None else given}})


def read_stored(folder: Path) -> dict[str, Any]:
    """Return the content of ``run.yaml``, which has to be a regular file."""
    refuse_special(folder / RUN_FILE)
    return read_config(folder / RUN_FILE)


def refuse_other_run(saved: Mapping[str, Any], stored: Mapping[str, Any], folder: Path) -> None:
    """Raise ``ConfigError`` with both values of each key in which ``run.yaml`` defines another run than the checkpoint."""
    fix = "One of the two is damaged, was changed, or is another run's: put it back as it was."
    refuse_differences(dotted_keys(saved), "in the checkpoint", dotted_keys(stored), f" in {folder / RUN_FILE}", fix)


def refuse_differences(
    before: Mapping[str, Any], where_before: str, after: Mapping[str, Any], where_after: str, fix: str
) -> None:
    """Raise ``ConfigError`` with both values of each key that differs and may not change."""
    faults = [
        Fault(
            key=key.replace("_", "-"),
            problem=f"is {after.get(key)!r}{where_after}, and {before.get(key)!r} {where_before}.",
            fix=fix,
        )
        for key in changed_keys(before, after)
    ]
    if faults:
        raise ConfigError(faults)


def changed_keys(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the dotted keys, sorted, that differ and define a run."""
    differ = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
    return sorted(key for key in differ if not key.startswith(MAY_CHANGE))


def refuse_unsaid(
    saved: Mapping[str, Any],
    stored: Mapping[str, Any],
    asked: Mapping[str, Any],
    folder: Path,
    known: Mapping[str, Any],
) -> None:
    """Raise ``ConfigError`` for each key that may change and differs in ``run.yaml``, unless ``asked`` settles it.

    A run that was gone on with in another way, and ended before it saved, leaves such keys; so does whoever edits the file.
    ``known`` is the config that the run would go on with, from which keys that one of the two lacks have their default.
    """
    before, after = dotted_keys(_merge_asked(saved, asked)), dotted_keys(_merge_asked(stored, asked))
    defaults = dotted_keys(merge({}, known))
    faults = []
    for key in sorted(before.keys() | after.keys()):
        was, now = (_value(values.get(key, defaults.get(key))) for values in (before, after))
        if was != now and key.startswith(MAY_CHANGE):
            problem = f"is {now!r} in {folder / RUN_FILE}, and {was!r} in the checkpoint."
            ways = " or ".join(f"`{shlex.join(_words(key, value, than))}`" for value, than in ((now, was), (was, now)))
            fix = f"Give {ways}: a run's folder alone does not change how its run goes on."
            faults.append(Fault(key=key.replace("_", "-"), problem=problem, fix=fix))
    if faults:
        raise ConfigError(faults)


def _merge_asked(raw: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """A config with what is asked on top; callbacks or trackers that are named at all are not compared."""
    return {key: value for key, value in merge(raw, asked).items() if key not in CORE_KINDS.lists or key not in asked}


def _value(value: Any) -> Any:
    """An empty list of components is none."""
    return value or None if isinstance(value, dict | list | tuple) else value


def _words(key: str, value: Any, than: Any) -> Iterator[str]:
    """Yield the words that say a value on a command line; of components the options that are not those of ``than``."""
    option = f"--{key.replace('_', '-')}"
    yield option
    if key not in CORE_KINDS.lists or not isinstance(value, dict):
        yield _write_value(value)
        return
    yield ",".join(name.replace("_", "-") for name in value)
    for name, options in value.items():
        other = than.get(name, {}) if isinstance(than, dict) else {}
        for inner, wanted in (options or {}).items():
            if wanted != other.get(inner):
                yield from (f"{option}.{name.replace('_', '-')}.{inner.replace('_', '-')}", _write_value(wanted))


def _write_value(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def places_outside(raw: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """Return ``key=value`` of each place beyond the run's folder that callbacks, trackers and the token cache name unasked."""
    typed = _written_keys(merge({}, asked))
    values = {key: value for key, value in _written_keys(merge({}, raw)).items() if key not in typed}
    return [f"{key.replace('_', '-')}={value}" for key, value in values.items() if _is_outside(value)]


def _written_keys(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys of what may name a place to write to."""
    found = {"data.cache": raw["data"]["cache"]} if "cache" in (raw.get("data") or {}) else {}
    for key in CORE_KINDS.lists:
        chosen = raw.get(key)
        for name, options in chosen.items() if isinstance(chosen, dict) else ():  # else it is none
            found |= {f"{key}.{name}.{option}": value for option, value in (options or {}).items()}
    for key in raw.keys() - {*CORE_KINDS.slots, *CORE_KINDS.lists, *SECTIONS}:  # kinds that plugins bring
        found |= dict(_leaves(key, raw[key]))
    return found


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Each value in a mapping or list, with its dotted key; a component in a list is called by its name."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(f"{key}.{name}", item)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            named = isinstance(item, Mapping) and item.get("name")
            yield from _leaves(f"{key}.{named or number}", item)
    else:
        yield key, value


def _is_outside(value: Any) -> bool:
    return isinstance(value, str) and (value.startswith(("/", "~")) or "://" in value or ".." in Path(value).parts)
