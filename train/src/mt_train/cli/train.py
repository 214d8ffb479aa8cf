"""``mt-train``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core.cli.guard import run_command
from mt_core.config.secrets import redact
from mt_core.errors import STOPPED, ConfigError, UsageError
from mt_core.kinds import Kinds
from mt_core.plugins.host import PluginHost
from mt_train.assemble.directory import path_from, working_in_directory
from mt_train.assemble.discovery import show_notices
from mt_train.assemble.own_files import files_of_components
from mt_train.assemble.parts import Parts
from mt_train.assemble.resume import resolve_resumed
from mt_train.checkpoint.completion import describe_finished, is_finished
from mt_train.checkpoint.file_names import LOCK
from mt_train.checkpoint.folder import check_usable, next_run_folder
from mt_train.cli.printed_config import annotate_config
from mt_train.cli.request import PLANNED, REPEATED, SWITCHES, VALUES, Request, find_resumed_folder, read_request
from mt_train.config.commandline import merge, parse, parse_flags
from mt_train.config.ranks import MOST_PROCESSES, ranks
from mt_train.engine.plan import DEVICES, check_layout, layout_faults, step_rows
from mt_train.plugins.modules import load_plugins
from mt_train.plugins.resolve import Resolved, resolve
from mt_train.tracking.logs import show
from mt_train.version import describe_version

if TYPE_CHECKING:
    from mt_train.assemble.run import RunOptions

ALL = "all"
"""Topic of help that is every option."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    return run_command(lambda: _train(words), debug="--debug" in words)


def _train(words: list[str]) -> int:
    words, topic = _take_topic(["--help" if word == "-h" else word for word in words])
    flags = parse_flags(words, switches=SWITCHES, values=VALUES, repeated=REPEATED)
    if "version" in flags:
        print(describe_version("mt-train"))
        return 0
    ranks(planned="dry_run" in flags)  # before anything is said, which the first process does for all
    host = load_plugins(flags.get("block_plugin", []))
    request = read_request(parse(words, switches=SWITCHES, values=VALUES, repeated=REPEATED, kinds=host.kinds), host)
    if "help" in request.flags:
        from mt_train.cli.train_help import help_text, topic_text

        print(help_text(host, request.raw) if topic in ("", ALL) else topic_text(host, request.raw, topic))
        return 0
    if "completion" in request.flags:
        from mt_train.plugins.completion import write_completion

        print(
            write_completion(
                "mt-train", request.flags["completion"], host, switches=SWITCHES, values=(*VALUES, *REPEATED)
            )
        )
        return 0
    show_notices(host)
    if "schema" in request.flags:
        from mt_train.plugins.schema import run_schema

        print(json.dumps(run_schema(host)))
        return 0
    train = request.raw.get("train")
    if isinstance(train, dict) and "seeds" in train:
        from mt_train.cli.seeds import train_seeds

        def once(flags: Mapping[str, Any], raw: dict[str, Any]) -> int:
            return train_once(replace(request, flags=flags, raw=raw), host)

        return train_seeds(request.flags, request.raw, host, once)
    return train_once(request, host)


def _take_topic(words: list[str]) -> tuple[list[str], str]:
    """Return the command line without the word behind ``--help``, and that word: ``all``, a section or a kind; empty without."""
    place = words.index("--help") + 1 if "--help" in words else len(words)
    if words[place : place + 1] and not words[place].startswith("-"):
        return words[:place] + words[place + 1 :], words[place]
    return words, ""


def train_once(request: Request, host: PluginHost) -> int:
    """One run: here, or in several processes of this machine."""
    folder = find_resumed_folder(request)
    with working_in_directory(folder) as here:
        found = None if folder is None else path_from(here, folder)
        return _train_in_directory(request.from_directory(here), found, host)


def _train_in_directory(request: Request, folder: Path | None, host: PluginHost) -> int:
    resolved, checkpoint = _resolve(request, folder, host)
    flags = request.flags
    if "print_config" in flags:
        print(redact(annotate_config(resolved)), end="")
        return 0
    output = _output(request, resolved, checkpoint)
    if output is not None and checkpoint is not None and is_finished(output, resolved.config, checkpoint):
        show(f"{describe_finished(output, checkpoint)}; set --train.steps or --train.epochs higher to train on")
        return 0
    count = _process_count(flags)
    world = count or ranks(planned="dry_run" in flags).world
    check_layout(resolved.config, world=world, offers=resolved.offers.values())
    if "dry_run" in flags:
        from mt_train.cli.dry_run import show_plan
        from mt_train.cli.hardware import read_hardware

        wanted, hardware = _options(request, checkpoint, output), read_hardware(flags, world)
        return show_plan(
            Parts.of(resolved),
            wanted,
            world=world,
            hardware=hardware,
            layouts="plan" in flags,
            as_json="json" in flags,
            plot=flags.get("plot"),
        )
    if "restart" in flags:
        return _supervise(request, resolved, host.kinds, _options(request, checkpoint, output), count)
    if count > 1:
        return _launch(request, output, count)
    return _start(request, resolved, checkpoint, output)


def _process_count(flags: Mapping[str, Any]) -> int:
    """Processes that this command starts, or on paper would; 0 where a launcher has started them."""
    if "dry_run" in flags and "restart" in flags:
        raise UsageError("--restart goes with a run, and --dry-run starts none; leave out one of them")
    if "dry_run" not in flags and (given := [name for name in PLANNED if name in flags]):
        hint = "; several nodes are started by torchrun or the like, one process a device" * (given[0] == "nnodes")
        raise UsageError(f"--{given[0].replace('_', '-')} goes with --dry-run only{hint}")
    if "gpu" in flags and flags.get("nproc_per_node") == "auto":
        raise UsageError(
            "--nproc-per-node auto counts the GPUs of this machine; give the number of the nodes that --gpu is about"
        )
    if "WORLD_SIZE" in os.environ:
        return 0
    from mt_train.cli.launch import positive_number, process_count

    nodes = positive_number("--nnodes", str(flags.get("nnodes", "1")))
    count = process_count(str(flags.get("nproc_per_node", "1"))) * nodes
    if count > MOST_PROCESSES:
        raise UsageError(f"{count:,} processes are more than {MOST_PROCESSES:,}; lower --nnodes or --nproc-per-node")
    return count


def _supervise(request: Request, resolved: Resolved, kinds: Kinds, options: RunOptions, count: int) -> int:
    """Processes that are started again when they fail."""
    from mt_train.cli.launch import device_count, devices_left
    from mt_train.cli.supervisor import Attempt, Supervisor, restart_count

    restarts = restart_count(request.flags["restart"])
    if not count:
        raise UsageError(
            "--restart starts the processes of one machine itself; under torchrun give --max-restarts there, with --resume auto here"
            " (examples/slurm.sh restarts on several nodes)"
        )
    if options.replay is not None:
        raise UsageError(
            "--restart starts again what failed, and --replay ends where a step differs; leave out --restart"
        )
    if (output := options.output) is None:
        raise UsageError("--restart goes on from checkpoints, and --output none writes none; give a folder")
    own = files_of_components(
        Parts.of(resolved)
    )  # from here on the folder is this run's, also where an attempt made no checkpoint
    resumed = options.checkpoint is not None
    check_usable(output, overwrite=options.overwrite or options.anew, resume=resumed, own=own)
    present, offers = device_count(), tuple(resolved.offers.values())
    rows, signals = step_rows(resolved.config, count, offers), list[int]()

    def start(attempt: Attempt) -> tuple[int, list[str]]:
        reasons: list[str] = []
        flags, raw = request.flags, request.raw
        if attempt.saved:
            kept = {name: value for name, value in flags.items() if name not in ("output", "overwrite")}
            flags = {**kept, "resume": str(output)}
        elif "overwrite" not in flags and "resume" not in flags:
            flags = {**flags, "output": str(output)} | ({"resume": "auto"} if _is_run(output) else {})
        if attempt.ranks != count:
            raw = merge(raw, {"train": {"global_batch_size": rows}}, kinds)
        asked = replace(request, flags=flags, raw=raw)
        return _launch(asked, output, attempt.ranks, reasons.append, signals.append), reasons

    def works(ranks: int) -> bool:
        pinned = resolved.config.train.model_copy(update={"global_batch_size": rows})
        changed = resolved.config.model_copy(update={"train": pinned})
        return not layout_faults(changed, ranks, DEVICES, offers)

    return Supervisor(
        restarts=restarts,
        output=output,
        start=start,
        available=lambda: devices_left(count, present),
        works=works,
        asked=lambda: bool(signals),
    ).run()


def _launch(
    request: Request,
    output: Path | None,
    count: int,
    hear: Callable[[str], object] = lambda text: None,
    on_signal: Callable[[int], object] = lambda number: None,
) -> int:
    """Several processes, which read what was read here: one file, so that all see the same."""
    from mt_train.cli.launch import launch

    words = [f"--{name.replace('_', '-')}" for name in ("overwrite", "debug") if name in request.flags]
    words += [word for name in request.flags.get("block_plugin", []) for word in ("--block-plugin", name)]
    words += ["--replay", request.flags["replay"]] if "replay" in request.flags else []
    words += ["--profile", request.flags["profile"]] if "profile" in request.flags else []
    if request.flags.get("resume", "auto") != "auto":
        words += ["--resume", request.flags["resume"]]
    else:
        words += ["--output", str(output or "none")] + (["--resume", "auto"] if "resume" in request.flags else [])
    return launch(words, request.raw, count, hear, on_signal, origins=request.origins)


def _start(request: Request, resolved: Resolved, checkpoint: Path | None, output: Path | None) -> int:
    from mt_train.assemble.run import run
    from mt_train.cli.launch import end_with_launcher

    end_with_launcher()
    return STOPPED if run(Parts.of(resolved), _options(request, checkpoint, output)).stopped else 0


def _options(request: Request, checkpoint: Path | None, output: Path | None) -> RunOptions:
    from mt_train.assemble.replay import read_replay
    from mt_train.assemble.run import RunOptions

    flags = request.flags
    profile = flags.get("profile")
    return RunOptions(
        output=output,
        overwrite="overwrite" in request.flags,
        anew="resume" in request.flags and checkpoint is None and _is_run(output),
        checkpoint=checkpoint,
        profile=Path(profile) if profile else None,
        replay=read_replay(flags["replay"], checkpoint) if "replay" in flags else None,
    )


def _resolve(request: Request, folder: Path | None, host: PluginHost) -> tuple[Resolved, Path | None]:
    try:
        if folder is None:
            return resolve(request.raw, host, request.origins), None
        apart = {"trackers": None} if "replay" in request.flags else {}  # which have heard of these steps
        return resolve_resumed({**request.raw, **apart}, folder, host, request.origins)
    except ConfigError as error:
        raise request.layers.locate(error) from error


def _output(request: Request, resolved: Resolved, checkpoint: Path | None) -> Path | None:
    if "replay" in request.flags:
        return None
    if checkpoint is not None:
        return checkpoint.parent.parent
    if "output" in request.flags:
        return None if request.flags["output"] == "none" else Path(request.flags["output"])
    return next_run_folder(resolved.stem)


def _is_run(folder: Path | None) -> bool:
    """Return whether a run was here: one that ``--resume auto`` starts anew, since it saved nothing."""
    return folder is not None and any((folder / name).is_file() for name in ("run.yaml", LOCK))


if __name__ == "__main__":
    sys.exit(main())
