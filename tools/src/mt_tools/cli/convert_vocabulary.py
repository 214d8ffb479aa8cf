"""``mt-convert resize-vocab`` and ``merge-vocab``."""

from __future__ import annotations

import argparse
from pathlib import Path

from mt_core.errors import UsageError
from mt_core.tracking.logs import notice
from mt_tools.cli.convert_options import (
    chosen_dtype,
    common_options,
    describe_files,
    shard_bytes,
    unused_path,
    writing_options,
)
from mt_tools.convert.source import Source
from mt_train.assemble.discovery import discover_plugins
from mt_train.config.names import expand

_ADDED = ("add-tokens", "add-special-tokens", "tokens-file", "pad-token")
"""Options for single tokens."""


def resize_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mt-convert resize-vocab",
        description="Write a folder of weights with more tokens: tokenizer, embedding and head grow together.",
    )
    parser.add_argument(
        "source", metavar="FOLDER", help="a folder of weights with a tokenizer.json, or org/name of the Hub"
    )
    parser.add_argument("out", metavar="OUT", help="the new folder")
    parser.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="a larger tokenizer that has the old ids: a folder, a tokenizer.json, or a SentencePiece model",
    )
    parser.add_argument("--add-tokens", default="", metavar="A,B", help="words that become tokens of their own")
    parser.add_argument(
        "--add-special-tokens", default="", metavar="A,B", help="marks: read in templates, never in what people wrote"
    )
    parser.add_argument("--tokens-file", metavar="FILE", help="words, one a line")
    parser.add_argument("--pad-token", metavar="TEXT", help="the token that fills a row, added where it is new")
    parser.add_argument(
        "--init",
        choices=("mean", "subtokens", "normal"),
        help="new rows: the mean of the old ones (default), that of the tokens which the text was until now (default with --tokenizer),"
        " or normal around the mean",
    )
    parser.add_argument(
        "--multiple", type=int, default=1, metavar="N", help="rows in all are a multiple of N (default: 1)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of --init normal (default: 0)")
    parser.add_argument("--model", metavar="NAME", help="the family, where several read the folder")
    parser.set_defaults(command=_resize)
    writing_options(parser)
    return parser


def _resize(arguments: argparse.Namespace) -> int:
    size, out = shard_bytes(arguments.shard_size), unused_path(arguments.out)
    if arguments.multiple < 1:
        raise UsageError(f"--multiple is at least 1, got {arguments.multiple}")
    written = (_add_tokens if arguments.tokenizer is None else _replace_tokenizer)(arguments, out, size)
    print(f"{out}: {written.parts.config.model.options.vocab_size:,} tokens, {describe_files(out)}")
    return 0


def _replace_tokenizer(arguments: argparse.Namespace, out: Path, size: int) -> Source:
    given = [f"--{key}" for key in _ADDED if getattr(arguments, key.replace("-", "_"))]
    if given:
        raise UsageError(f"--tokenizer has its own tokens; leave out {', '.join(given)}, or add them to the new folder")
    from mt_tools.convert.tokenizer_replacement import Growth, open_with_tokenizer, replace_tokenizer

    host = discover_plugins(arguments.block_plugin)
    return replace_tokenizer(
        open_with_tokenizer(str(expand(arguments.source)), host, arguments.model),
        Path(expand(arguments.tokenizer)),
        out,
        host,
        growth=Growth(init=arguments.init or "subtokens", multiple=arguments.multiple, seed=arguments.seed),
        dtype=chosen_dtype(arguments),
        shard_bytes=size,
        say=notice,
    )


def _add_tokens(arguments: argparse.Namespace, out: Path, size: int) -> Source:
    from mt_tools.convert.folder import convert
    from mt_tools.convert.vocabulary import check_wanted, tokens_of_file, with_tokens

    listed = [] if arguments.tokens_file is None else tokens_of_file(Path(expand(arguments.tokens_file)))
    tokens = {
        "add_tokens": (*filter(None, arguments.add_tokens.split(",")), *listed),
        "add_special_tokens": tuple(filter(None, arguments.add_special_tokens.split(","))),
        "pad_token": arguments.pad_token,
        "init": arguments.init or "mean",
    }
    check_wanted(tokens)
    source = with_tokens(
        str(expand(arguments.source)),
        discover_plugins(arguments.block_plugin),
        family=arguments.model,
        tokens=tokens,
        multiple=arguments.multiple,
        seed=arguments.seed,
    )
    convert(source, out, dtype=chosen_dtype(arguments), shard_bytes=size, say=notice)
    return source


def merge_parser() -> argparse.ArgumentParser:
    """Options of ``mt-convert merge-vocab``."""
    parser = argparse.ArgumentParser(
        prog="mt-convert merge-vocab",
        description="Write a SentencePiece model with the pieces of two; those of the first keep their ids.",
    )
    parser.add_argument("first", metavar="A.model", help="the model whose pieces come first, as they are")
    parser.add_argument("second", metavar="B.model", help="the model whose other pieces come after them")
    parser.add_argument("out", metavar="OUT.model", help="the new file")
    parser.set_defaults(command=_merge)
    common_options(parser)
    return parser


def _merge(arguments: argparse.Namespace) -> int:
    from mt_tools.convert.merging import merge

    first, second, out = (Path(expand(given)) for given in (arguments.first, arguments.second, arguments.out))
    before, new = merge(first, second, out)
    print(f"{out}: {before + new:,} pieces, {new:,} of them from {second}")
    return 0
