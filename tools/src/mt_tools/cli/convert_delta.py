"""``mt-convert delta make`` and ``delta apply``."""

from __future__ import annotations

import argparse
from pathlib import Path

from mt_tools.cli.convert_options import common_options, describe_files, shard_bytes, size_option, unused_path
from mt_train.config.names import expand


def delta_parser() -> argparse.ArgumentParser:
    """Options of ``mt-convert delta``."""
    parser = argparse.ArgumentParser(
        prog="mt-convert delta",
        description="What a tuned folder adds to its base, and the tuned folder again from both, bit for bit.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    make = commands.add_parser("make", help="BASE TUNED OUT: write the delta")
    apply = commands.add_parser("apply", help="BASE DELTA OUT: write the tuned folder again")
    for command, second, run in ((make, "TUNED", _make), (apply, "DELTA", _apply)):
        command.add_argument("base", metavar="BASE", help="a Hugging Face folder of weights")
        command.add_argument("other", metavar=second, help="the folder beside it")
        command.add_argument("out", metavar="OUT", help="the new folder")
        command.set_defaults(command=run)
        size_option(command)
        common_options(command)
    return parser


def _make(arguments: argparse.Namespace) -> int:
    from mt_tools.convert.delta import make

    base, tuned, out, size = _read(arguments)
    make(base, tuned, out, shard_bytes=size)
    print(f"{out}: {describe_files(out)}, for mt-convert delta apply BASE {out} TUNED")
    return 0


def _apply(arguments: argparse.Namespace) -> int:
    from mt_tools.convert.delta import apply

    base, delta, out, size = _read(arguments)
    apply(base, delta, out, shard_bytes=size)
    print(f"{out}: {describe_files(out)}, bit for bit what {delta} was made of")
    return 0


def _read(arguments: argparse.Namespace) -> tuple[Path, Path, Path, int]:
    size, out = shard_bytes(arguments.shard_size), unused_path(arguments.out)
    return Path(expand(arguments.base)), Path(expand(arguments.other)), out, size
