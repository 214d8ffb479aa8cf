"""Options that the commands of ``mt-convert`` share."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from mt_core.errors import UsageError
from mt_tools.convert.writing import SHARD_BYTES, check_free
from mt_train.config.names import expand
from mt_train.version import describe_version

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def writing_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every way of writing weights."""
    parser.add_argument(
        "--dtype",
        choices=("keep", "fp32", "bf16", "fp16"),
        default="keep",
        help="of the weights (default: as they are)",
    )
    size_option(parser)
    parser.add_argument("--block-plugin", action="append", default=[], metavar="NAME", help="do not import this plugin")
    common_options(parser)


def size_option(parser: argparse.ArgumentParser) -> None:
    """Add the option for the size of a file of weights."""
    parser.add_argument(
        "--shard-size", default=f"{SHARD_BYTES // 10**9}GB", metavar="SIZE", help="largest file (default: 5GB)"
    )


def common_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command."""
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.add_argument("--version", action="version", version=describe_version("mt-tools"))


def unused_path(given: str) -> Path:
    """A path that nothing is at, seen before anything is read. Raises ``WeightsError`` when something is."""
    out = Path(expand(given))
    check_free(out)
    return out


def chosen_dtype(arguments: argparse.Namespace) -> str | None:
    """``None`` keeps each tensor's own."""
    return None if arguments.dtype == "keep" else str(arguments.dtype)


def shard_bytes(text: str) -> int:
    """Bytes of ``5GB`` (10^9), ``512MiB`` (2^20) and so on. Raises ``UsageError`` for anything else."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([KMG]?I?B?)", text.upper())
    if match is None or match[2] not in _UNITS or not (size := int(float(match[1]) * _UNITS[match[2]])):
        raise UsageError(f"--shard-size is a number and a unit, as in 5GB or 512MiB, got {text!r}")
    return size


def describe_files(folder: Path) -> str:
    """``3 files of weights, 1.24 GB``."""
    sizes = [path.stat().st_size for path in folder.glob("*.safetensors")]
    return f"{len(sizes)} file{'s' if len(sizes) > 1 else ''} of weights, {sum(sizes) / 1e6:,.2f} MB"
