"""``mt-train``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mt_core import __version__
from mt_core.checkpoint.folder import next_run_folder
from mt_core.cli.guard import guarded
from mt_core.config.commandline import CommandLine, merge, parse
from mt_core.config.files import read_yaml, write_yaml
from mt_core.config.run import SECTIONS, SLOTS
from mt_core.errors import CheckpointError, ConfigError, Fault, UsageError
from mt_core.plugins.host import PluginHost
from mt_core.plugins.metadata import Selection
from mt_core.plugins.resolve import Origins, Resolved, resolve
from mt_core.tracking.console import notice

SWITCHES = ("overwrite", "print_config", "debug", "version", "help")
VALUES = ("config", "output", "resume", "nproc_per_node", "profile")
REPEATED = ("block_plugin",)

MAY_CHANGE = (
    "train.steps",
    "train.epochs",
    "train.micro_batch_size",
    "train.activation_checkpointing",
    "train.attention",
    "train.compile",
    "log.",
    "checkpoint.",
    "eval.",
    "callbacks",
    "parallel.",
)
"""Keys that a resumed run may set anew (docs/architecture.md); a trailing dot means a whole section."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: _train(words), debug="--debug" in words)


def _train(words: list[str]) -> int:
    line = parse(
        ["--help" if word == "-h" else word for word in words], switches=SWITCHES, values=VALUES, repeated=REPEATED
    )
    if "version" in line.flags:
        print(f"mt-core {__version__}")
        return 0
    host = PluginHost.discover(Selection.from_environment(line.flags.get("block_plugin", [])))
    if "help" in line.flags:
        from mt_core.cli.train_help import help_text

        print(help_text(host, _raw(line)[0]))
        return 0
    if int(os.environ.get("RANK", "0")) == 0:
        for text in host.notices:
            notice(f"warning: {text}")
    resolved, checkpoint = _resolved(line, host)
    if "print_config" in line.flags:
        print(annotated(resolved), end="")
        return 0
    if "nproc_per_node" in line.flags and "WORLD_SIZE" not in os.environ:
        from mt_core.cli.launch import launch, process_count

        count = process_count(str(line.flags["nproc_per_node"]))
        if count > 1:
            return launch([*words, *_fixed_output(line, resolved)], count)
    return _start(line, resolved, checkpoint)


def _start(line: CommandLine, resolved: Resolved, checkpoint: Path | None) -> int:
    from mt_core.assemble.run import RunOptions, run

    profile = line.flags.get("profile")
    options = RunOptions(
        output=_output(line, resolved),
        overwrite="overwrite" in line.flags,
        checkpoint=checkpoint,
        profile=Path(profile) if profile else None,
    )
    if checkpoint is not None and _is_finished(options.output, resolved, checkpoint):
        print(f"{options.output} is completed; set --train.steps higher to train on")
        return 0
    run(resolved, options)
    return 0


def _resolved(line: CommandLine, host: PluginHost) -> tuple[Resolved, Path | None]:
    raw, origins = _raw(line)
    if "resume" not in line.flags:
        return resolve(raw, host, origins), None
    from mt_core.checkpoint.store import MANIFEST, find
    from mt_core.checkpoint.tensors import read_json

    folder = Path(line.flags["resume"])
    checkpoint = find(folder)
    run_folder = checkpoint.parent.parent
    if not (run_folder / "run.yaml").is_file():
        raise CheckpointError(
            f"{run_folder} has no run.yaml, so it is no run that can be resumed; give the run's folder"
        )
    before = read_yaml(run_folder / "run.yaml")
    # The rows of a step stay those of the run, also where they followed from micro-batch and processes that may change.
    before["train"]["global_batch_size"] = read_json(checkpoint / MANIFEST)["layout"]["global_batch_size"]
    stored = {**before}
    if "epochs" in raw.get("train", {}) or "steps" in raw.get("train", {}):
        stored["train"] = {key: value for key, value in stored["train"].items() if key not in ("steps", "epochs")}
    resolved = resolve(merge(stored, raw), host, origins)
    _refuse_changes(before, resolved.config.as_raw(), run_folder)
    return resolved, checkpoint


def _raw(line: CommandLine) -> tuple[dict[str, Any], Origins]:
    """YAML under the command line, and which key came from which."""
    stored = read_yaml(line.flags["config"]) if "config" in line.flags else {}
    origins = dict.fromkeys(_flat(stored), str(line.flags.get("config", "")))
    raw = merge(stored, line.raw)
    return raw, origins | dict.fromkeys(_flat(line.raw), "command line")


def _flat(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys of slots and sections."""
    flat: dict[str, Any] = {}
    for key, value in raw.items():
        if isinstance(value, dict) and (key in SLOTS or key in SECTIONS):
            flat |= {f"{key}.{name}": item for name, item in value.items()}
        else:
            flat[key] = value
    return flat


def _refuse_changes(old: Mapping[str, Any], new: Mapping[str, Any], folder: Path) -> None:
    before, after = _flat(old), _flat(_jsonable(new))
    faults = [
        Fault(
            key=key.replace("_", "-"),
            problem=f"is {after.get(key)!r}, and {before.get(key)!r} in the run {folder}.",
            fix="A resumed run keeps it: leave it out, or start a new run.",
        )
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and not key.startswith(MAY_CHANGE)
    ]
    if faults:
        raise ConfigError(faults)


def _jsonable(raw: Mapping[str, Any]) -> dict[str, Any]:
    import yaml

    content: dict[str, Any] = yaml.safe_load(write_yaml(dict(raw)))
    return content


def _is_finished(output: Path | None, resolved: Resolved, checkpoint: Path) -> bool:
    from mt_core.checkpoint.store import MANIFEST
    from mt_core.checkpoint.tensors import read_json

    steps = resolved.config.train.steps
    if output is None or not (output / "completed").exists():
        return False
    manifest = read_json(checkpoint / MANIFEST)
    return steps is None or int(manifest["step"]) >= steps


def _output(line: CommandLine, resolved: Resolved) -> Path | None:
    if "resume" in line.flags:
        from mt_core.checkpoint.store import find

        if "output" in line.flags:
            raise UsageError("--resume goes on in the run's own folder; leave out --output")
        return find(Path(line.flags["resume"])).parent.parent
    if "output" not in line.flags:
        model = resolved.config.model
        default = getattr(resolved.offers["model"].component, "default_variant", "")
        stem = model.name.rpartition("/")[2]
        return next_run_folder(stem if model.source.weights else f"{stem}-{model.source.variant or default}")
    return None if line.flags["output"] == "none" else Path(line.flags["output"])


def _fixed_output(line: CommandLine, resolved: Resolved) -> list[str]:
    """The output on the command line of every process, so that all agree on a derived name."""
    if "output" in line.flags or "resume" in line.flags:
        return []
    return ["--output", str(_output(line, resolved))]


def annotated(resolved: Resolved) -> str:
    """The resolved config as YAML, each value with where it came from."""
    lines, section = [], ""
    for text in write_yaml(resolved.config.as_raw()).splitlines():
        if not text.startswith((" ", "-")):
            section = text.partition(":")[0]
        key = text.strip().partition(":")[0]
        dotted = f"{section}.{key}"
        nested = text.startswith("   ") or text.endswith(":")
        origin = resolved.origins.get(dotted, "default")
        lines.append(text if nested else f"{text:<48}# {origin}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
