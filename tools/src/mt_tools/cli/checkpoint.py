"""``mt-checkpoint``: list, verify and prune the checkpoints of a run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mt_core import __version__ as core_version
from mt_core.cli.guard import parse_and_run
from mt_core.config.faults import faults_of
from mt_core.errors import CheckpointError, ConfigError, UsageError
from mt_train.checkpoint.file_names import LOCK
from mt_train.checkpoint.files import amount
from mt_train.checkpoint.lock import hold_lock
from mt_train.checkpoint.manifest import MANIFEST, STEP_FOLDER, is_whole
from mt_train.checkpoint.store import LATEST, CheckpointStore, Retention, SavedCheckpoint, no_checkpoint_error, verify
from mt_train.config.files import section_of
from mt_train.config.names import expand
from mt_train.config.sections import CheckpointConfig
from mt_train.version import describe_version

SCHEMA = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return parse_and_run(_parser(), _run, argv)


def _run(arguments: argparse.Namespace) -> int:
    arguments.run = Path(expand(arguments.run))  # here, where a name that nobody knows is told like any other fault
    return int(arguments.command(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mt-checkpoint",
        description="List, verify and prune the checkpoints of a run.",
        epilog="""examples:
  mt-checkpoint list runs/first
  mt-checkpoint prune runs/first --keep-last 1""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=describe_version("mt-tools"))
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("run", metavar="RUN", help="a run's folder")
    common.add_argument("--json", action="store_true", help="machine-readable output")
    common.add_argument("--debug", action="store_true", help="show tracebacks")
    lister = commands.add_parser("list", parents=[common], help="step, size, evaluation; the last and the best one")
    lister.set_defaults(command=_list)
    check = commands.add_parser("verify", parents=[common], help="read every byte and compare its SHA-256")
    check.set_defaults(command=_verify)
    prune = commands.add_parser(
        "prune", parents=[common], help="remove all but the newest, the best and the run's last one"
    )
    prune.add_argument("--keep-last", type=int, metavar="N", help="newest ones that stay (default: the run's own)")
    prune.add_argument("--keep-best", type=int, metavar="N", help="best ones that stay (default: the run's own)")
    prune.add_argument("--dry-run", action="store_true", help="only say what would go")
    prune.set_defaults(command=_prune)
    return parser


def _list(arguments: argparse.Namespace) -> int:
    store, saved = _open(arguments)
    latest, best = store.latest(), store.best(_settings(arguments).best)
    entries = [_entry(each, latest, best) for each in saved]
    _say(arguments, entries, _table(entries))
    return 0


def _entry(saved: SavedCheckpoint, latest: Path | None, best: Path | None) -> dict[str, Any]:
    marks = [word for word, path in (("last", latest), ("best", best)) if path == saved.path]
    marks += [] if is_whole(saved.path) else ["incomplete"]
    return {
        "step": saved.step,
        "path": str(saved.path),
        "bytes": saved.size,
        "evaluation": dict(saved.evaluation),
        "marks": marks,
    }


def _table(entries: Sequence[dict[str, Any]]) -> list[str]:
    names = sorted({name for entry in entries for name in entry["evaluation"]})
    lines = [f"{'step':>10}  {'size':>12}  " + "".join(f"{name:>14}  " for name in names)]
    for entry in entries:
        figures = [entry["evaluation"].get(name) for name in names]
        cells = "".join(f"{'-' if figure is None else f'{figure:.4f}':>14}  " for figure in figures)
        lines.append(f"{entry['step']:>10}  {amount(entry['bytes']):>12}  {cells}{', '.join(entry['marks'])}")
    return [line.rstrip() for line in lines]


def _verify(arguments: argparse.Namespace) -> int:
    """Every checkpoint is read, also after one that is damaged, and also one that nobody would find: without a manifest."""
    path = arguments.run
    checks = [(path, verify)] if (path / MANIFEST).is_file() else _checks(path)
    entries, lines = [], []
    for each, check in checks:
        fault = ""
        try:
            check(each)
        except CheckpointError as error:
            fault = str(error)
        entries.append({"path": str(each), "whole": not fault, "fault": fault})
        lines.append(fault or f"{each}: every file is as it was written")
    _say(arguments, entries, lines)
    return int(any(entry["fault"] for entry in entries))


def _checks(run: Path) -> list[tuple[Path, Callable[[Path], object]]]:
    """Return what there is to verify, and how; ``latest`` only where it is wrong."""
    store = CheckpointStore(run)
    found: list[tuple[Path, Callable[[Path], object]]] = [
        (path, verify) for path in sorted(store.folder.glob("step-*")) if STEP_FOLDER.fullmatch(path.name)
    ]
    known = {path for path, _ in found}
    found += [(each.path, verify) for each in store.checkpoints() if each.path not in known]
    if not found:
        raise no_checkpoint_error(run, "give a run's folder")
    try:
        store.latest()
    except CheckpointError:
        found.append((store.folder / LATEST, lambda path: store.latest()))
    return found


def _name_of_latest(store: CheckpointStore) -> str:
    """Return the name of the checkpoint that readers of the run take; none where ``latest`` names one that is gone."""
    with suppress(CheckpointError):
        latest = store.latest()
        return "" if latest is None else latest.name
    return ""


def _prune(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    keep = Retention(
        last=settings.keep_last if arguments.keep_last is None else arguments.keep_last,
        best=settings.keep_best if arguments.keep_best is None else arguments.keep_best,
        by=settings.best,
    )
    if keep.last < 1 or keep.best < 0:
        raise UsageError(f"--keep-last is at least 1 and --keep-best at least 0, got {keep.last} and {keep.best}")
    _open(arguments)  # before the lock, which would leave a file in a folder that is no run
    with hold_lock(arguments.run / LOCK):  # no run may save meanwhile
        store, saved = _open(arguments)
        if store.folder.is_symlink():
            raise UsageError(
                f"{store.folder} is a link, and nothing is removed through one; give the run that it leads to"
            )
        keep = replace(keep, latest=_name_of_latest(store))
        going = store.superfluous_checkpoints(keep)
        if not arguments.dry_run:
            store.prune(keep)
    verb = "would remove" if arguments.dry_run else "removed"
    entries = [{"step": each.step, "path": str(each.path), "bytes": each.size} for each in going]
    total = amount(sum(each.size for each in going))
    lines = [f"{verb} {each.path} ({amount(each.size)})" for each in going]
    _say(arguments, entries, [*lines, f"{verb} {len(going)} of {len(saved)} checkpoints, {total}"])
    return 0


def _open(arguments: argparse.Namespace) -> tuple[CheckpointStore, tuple[SavedCheckpoint, ...]]:
    run = arguments.run
    store = CheckpointStore(run)
    saved = store.checkpoints()
    if not saved:
        raise no_checkpoint_error(run, "give a run's folder")
    return store, saved


def _settings(arguments: argparse.Namespace) -> CheckpointConfig:
    """Return what the run's own section ``checkpoint`` says of keeping. Raises ``ConfigError`` with the file where that cannot be."""
    path = arguments.run / "run.yaml"
    section = section_of(path, "checkpoint") if path.is_file() else {}
    try:
        return CheckpointConfig(**{key: section[key] for key in ("keep_last", "keep_best", "best") if key in section})
    except ValidationError as error:
        raise ConfigError(faults_of(error, CheckpointConfig, f"{path}: checkpoint")) from error


def _say(arguments: argparse.Namespace, entries: Sequence[dict[str, Any]], lines: Sequence[str]) -> None:
    if arguments.json:
        print(json.dumps({"schema": SCHEMA, "core": core_version, "checkpoints": list(entries)}, indent=2))
    else:
        print("\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
