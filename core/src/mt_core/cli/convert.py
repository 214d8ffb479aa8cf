"""``mt-convert``: weights, runs and vocabularies into Hugging Face folders."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from mt_core import __version__
from mt_core.assemble.discovery import discovered
from mt_core.cli.guard import guarded
from mt_core.config.names import expand
from mt_core.errors import UsageError
from mt_core.tracking.logs import notice
from mt_core.weights import SHARD_BYTES

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = COMMANDS[words.pop(0)]() if words and words[0] in COMMANDS else _folder_parser()
    arguments = parser.parse_args(words)
    return guarded(lambda: int(arguments.command(arguments)), debug=arguments.debug)


def _folder_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mt-convert",
        description="Write a Hugging Face folder: weights, config, tokenizer, chat template and model card.",
        epilog=f"other commands: mt-convert {{{','.join(COMMANDS)}}} … (each with --help)",
    )
    parser.set_defaults(command=_folder)
    parser.add_argument(
        "source", metavar="SOURCE", help="a run, a checkpoint, a folder of weights, or org/name of the Hub"
    )
    parser.add_argument("out", metavar="OUT", help="the new folder")
    parser.add_argument("--model", metavar="NAME", help="the family, where several read the folder")
    writing_options(parser)
    return parser


def _resize_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mt-convert resize-vocab",
        description="Write a folder of weights with more tokens: tokenizer, embedding and head grow together.",
    )
    parser.add_argument(
        "source", metavar="FOLDER", help="a folder of weights with a tokenizer.json, or org/name of the Hub"
    )
    parser.add_argument("out", metavar="OUT", help="the new folder")
    parser.add_argument("--add-tokens", default="", metavar="A,B", help="words that become tokens of their own")
    parser.add_argument(
        "--add-special-tokens", default="", metavar="A,B", help="marks: read in templates, never in what people wrote"
    )
    parser.add_argument("--tokens-file", metavar="FILE", help="words, one a line")
    parser.add_argument("--pad-token", metavar="TEXT", help="the token that fills a row, added where it is new")
    parser.add_argument(
        "--init",
        choices=("mean", "subtokens", "normal"),
        default="mean",
        help="new rows: the mean of the old ones (default), that of the tokens which the text was until now, or normal around the mean",
    )
    parser.add_argument(
        "--multiple", type=int, default=1, metavar="N", help="rows in all are a multiple of N (default: 1)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of --init normal (default: 0)")
    parser.add_argument("--model", metavar="NAME", help="the family, where several read the folder")
    parser.set_defaults(command=_resize)
    writing_options(parser)
    return parser


def writing_options(parser: argparse.ArgumentParser) -> None:
    """What every way of writing weights has."""
    parser.add_argument(
        "--dtype",
        choices=("keep", "fp32", "bf16", "fp16"),
        default="keep",
        help="of the weights (default: as they are)",
    )
    parser.add_argument(
        "--shard-size", default=f"{SHARD_BYTES // 10**9}GB", metavar="SIZE", help="largest file (default: 5GB)"
    )
    common_options(parser)


def common_options(parser: argparse.ArgumentParser) -> None:
    """What every command has."""
    parser.add_argument("--block-plugin", action="append", default=[], metavar="NAME", help="do not import this plugin")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.add_argument("--version", action="version", version=f"mt-core {__version__}")


def _folder(arguments: argparse.Namespace) -> int:
    from mt_core.convert.folder import convert
    from mt_core.convert.source import opened

    size, out = shard_bytes(arguments.shard_size), free(arguments.out)
    source = opened(str(expand(arguments.source)), discovered(arguments.block_plugin), arguments.model)
    convert(source, out, dtype=chosen_dtype(arguments), shard_bytes=size, say=notice)
    print(f"{out}: {described(out)}")
    return 0


def _resize(arguments: argparse.Namespace) -> int:
    from mt_core.convert.folder import convert
    from mt_core.convert.vocabulary import check_wanted, tokens_of_file, with_tokens

    size, out = shard_bytes(arguments.shard_size), free(arguments.out)
    if arguments.multiple < 1:
        raise UsageError(f"--multiple is at least 1, got {arguments.multiple}")
    listed = [] if arguments.tokens_file is None else tokens_of_file(Path(expand(arguments.tokens_file)))
    tokens = {
        "add_tokens": (*filter(None, arguments.add_tokens.split(",")), *listed),
        "add_special_tokens": tuple(filter(None, arguments.add_special_tokens.split(","))),
        "pad_token": arguments.pad_token,
        "init": arguments.init,
    }
    check_wanted(tokens)
    source = with_tokens(
        str(expand(arguments.source)),
        discovered(arguments.block_plugin),
        family=arguments.model,
        tokens=tokens,
        multiple=arguments.multiple,
        seed=arguments.seed,
    )
    convert(source, out, dtype=chosen_dtype(arguments), shard_bytes=size, say=notice)
    print(f"{out}: {source.resolved.config.model.options.vocab_size:,} tokens, {described(out)}")
    return 0


def free(given: str) -> Path:
    """A path that nothing is at, seen before anything is read. Raises ``WeightsError`` when something is."""
    from mt_core.weights.writing import check_free

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


def described(folder: Path) -> str:
    """``3 files of weights, 1.24 GB``."""
    sizes = [path.stat().st_size for path in folder.glob("*.safetensors")]
    return f"{len(sizes)} file{'s' if len(sizes) > 1 else ''} of weights, {sum(sizes) / 1e6:,.2f} MB"


COMMANDS = {"resize-vocab": _resize_parser}
"""First words that stand for something else than a source; a folder of that name is written ./resize-vocab."""

if __name__ == "__main__":
    sys.exit(main())
