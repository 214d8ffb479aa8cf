"""Options of a command that say which model it runs, their faults, and the model. Importing this imports no torch."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core.errors import UsageError
from mt_core.plugins.host import PluginHost
from mt_core.tracking.logs import notice
from mt_train.assemble.adapter_slot import with_adapter
from mt_train.assemble.discovery import discover_plugins
from mt_train.assemble.parts import Parts
from mt_train.assemble.run_file import run_config
from mt_train.checkpoint.store import find
from mt_train.config.arguments import DTYPES
from mt_train.config.names import expand
from mt_train.plugins.hub import locate_existing
from mt_train.plugins.resolve import resolve
from mt_train.plugins.whole_models import encoders_of

if TYPE_CHECKING:
    from mt_train.generation.loaded_model import LoadedModel

SOURCE_PATHS = ("run", "checkpoint", "weights", "adapter_folder")
"""Options that may begin with the @name of a path."""


def add_source_options(group: argparse._ArgumentGroup) -> None:
    """Add the options that say which model."""
    group.add_argument("--run", type=Path, metavar="RUN", help="folder of a run: its last checkpoint is used")
    group.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="one checkpoint of a run, instead of --run")
    group.add_argument("--averaged", metavar="NAME", help="the averaged weights of this callback of the run (ema, swa)")
    group.add_argument(
        "--model", metavar="NAME", help="the family of --weights; default: the one that their config.json names"
    )
    group.add_argument("--weights", type=Path, metavar="FOLDER", help="pretrained weights that the family reads")
    group.add_argument(
        "--adapter-folder",
        type=Path,
        metavar="FOLDER",
        help="an adapter over --weights: a folder that peft or mt-export wrote, or a run",
    )
    group.add_argument(
        "--dtype",
        choices=DTYPES,
        default="auto",
        help="precision of the weights (default: auto: on a GPU that of the run or of the folder, on a CPU fp32)",
    )
    group.add_argument(
        "--quantizer", metavar="NAME", help="store the linear layers of --weights in fewer bits: nf4, fp4, int8"
    )
    group.add_argument("--tokenizer", metavar="NAME", help="default: the run's, or the one in the folder of --weights")
    group.add_argument("--tokenizer-path", metavar="PATH", help="file or folder of the tokenizer")


def source_faults(arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the faults of the options that say which model."""
    chosen = [name for name in ("run", "checkpoint", "weights") if getattr(arguments, name) is not None]
    if len(chosen) != 1:
        yield f"give one of --run, --checkpoint, or --weights; got {', '.join(chosen) or 'none'}"
    elif arguments.weights is None and arguments.model is not None:
        yield f"--model belongs to --weights; a run has its own, leave --model {arguments.model} out"
    if arguments.adapter_folder is not None and arguments.weights is None:
        yield "--adapter-folder belongs to --weights; a run has its own adapter"
    if arguments.quantizer is not None and arguments.weights is None:
        yield "--quantizer belongs to --weights; a run is loaded with its own"
    if arguments.weights is not None and arguments.tokenizer_path is not None and arguments.tokenizer is None:
        yield "--tokenizer-path needs the tokenizer that reads it: --tokenizer NAME"


def expand_paths(arguments: argparse.Namespace, names: Sequence[str] = SOURCE_PATHS) -> None:
    """Replace @names in the options that are paths."""
    for name in names:
        if (given := getattr(arguments, name)) is not None:
            setattr(arguments, name, Path(expand(str(given))))


def open_source(arguments: argparse.Namespace) -> LoadedModel:
    """Load the model that the options of ``add_source_options`` and ``block_plugin`` name. Raises what ``mt-generate`` reports."""
    parts, checkpoint = find_source(arguments)
    from mt_train.assemble.load import load  # here: what is not there is told before torch is imported

    return load(parts, checkpoint, notice, averaged=arguments.averaged, dtype=arguments.dtype)


def find_source(arguments: argparse.Namespace, *, asks_media: bool = False) -> tuple[Parts, Path | None]:
    """Return the parts of the model, and its checkpoint where it is one of a run.

    Weights whose encoders nobody reads are text alone, which is told; where it ``asks_media`` they are refused (``UsageError``).
    """
    path = {"path": arguments.tokenizer_path} if arguments.tokenizer_path else {}
    if arguments.weights is not None:
        weights = locate_existing(str(arguments.weights), "give a folder or file of weights")
        host = discover_plugins(arguments.block_plugin)
        raw: dict[str, Any] = {"model": {"name": arguments.model, "weights": str(arguments.weights)}}
        if arguments.tokenizer:
            raw["tokenizer"] = {"name": arguments.tokenizer, **path}
        raw |= _encoders(weights, host, asks_media)
        raw["train"] = {"sequence_len": 2}  # generation has no rows; the shortest one fits any context
        if arguments.quantizer is not None:
            raw["quantizer"] = arguments.quantizer
        if arguments.adapter_folder is not None:
            raw = with_adapter(raw, arguments.adapter_folder, host)
        return Parts.of(resolve(raw, host, trains=False)), None
    checkpoint = find(arguments.run or arguments.checkpoint)
    host, raw = discover_plugins(arguments.block_plugin), run_config(checkpoint)
    if arguments.tokenizer:
        raw["tokenizer"] = {"name": arguments.tokenizer, **path}
    elif path:
        raw["tokenizer"] = {**raw.get("tokenizer", {}), **path}
    return Parts.of(resolve(raw, host)), checkpoint


def _encoders(weights: Path, host: PluginHost, asks_media: bool) -> dict[str, Any]:
    try:
        found = encoders_of(weights, host)
    except UsageError as error:
        if asks_media:
            raise
        notice(f"notice: text alone: {error}")
        return {}
    return {"encoders": found} if found else {}
