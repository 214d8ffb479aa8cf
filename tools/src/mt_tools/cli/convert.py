"""``mt-convert``: weights, runs and vocabularies into Hugging Face folders."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from mt_core.cli.guard import parse_and_run
from mt_core.tracking.logs import notice
from mt_tools.cli.convert_delta import delta_parser
from mt_tools.cli.convert_options import chosen_dtype, describe_files, shard_bytes, unused_path, writing_options
from mt_tools.cli.convert_vocabulary import merge_parser, resize_parser
from mt_train.assemble.discovery import discover_plugins
from mt_train.config.names import expand

COMMANDS = {"resize-vocab": resize_parser, "merge-vocab": merge_parser, "delta": delta_parser}
"""First words that stand for something else than a source; a folder of that name is written ./delta."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = COMMANDS[words.pop(0)]() if words and words[0] in COMMANDS else _folder_parser()
    return parse_and_run(parser, lambda arguments: int(arguments.command(arguments)), words)


def _folder_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mt-convert",
        description="Write a Hugging Face folder: weights, config, tokenizer, chat template and model card.",
        epilog=f"""examples:
  mt-convert runs/first model                      the last checkpoint of a run
  mt-convert runs/first model --averaged ema       its average of weights, by the callback ema
  mt-convert weights model --dtype bf16            a folder of weights, in another type

other commands: mt-convert {{{",".join(COMMANDS)}}} … (each with --help)""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=_folder)
    parser.add_argument(
        "source", metavar="SOURCE", help="a run, a checkpoint, a folder of weights, or org/name of the Hub"
    )
    parser.add_argument("out", metavar="OUT", help="the new folder")
    parser.add_argument("--model", metavar="NAME", help="the family, where several read the folder")
    parser.add_argument(
        "--averaged", metavar="NAME", help="the averaged weights of this callback of the run (ema, swa)"
    )
    writing_options(parser)
    return parser


def _folder(arguments: argparse.Namespace) -> int:
    from mt_tools.convert.source import locate_source, open_source

    size, out = shard_bytes(arguments.shard_size), unused_path(arguments.out)
    path = locate_source(str(expand(arguments.source)))
    source = open_source(str(path), discover_plugins(arguments.block_plugin), arguments.model)
    source = replace(source, averaged=arguments.averaged)
    from mt_tools.convert.folder import convert  # here: what is not there is told before torch is imported

    convert(source, out, dtype=chosen_dtype(arguments), shard_bytes=size, say=notice)
    print(f"{out}: {describe_files(out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
