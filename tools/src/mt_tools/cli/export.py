"""``mt-export``: the adapter of a run as a folder that peft reads, or merged into a Hugging Face folder."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mt_core.cli.guard import parse_and_run
from mt_core.errors import UsageError
from mt_core.plugins.host import PluginHost
from mt_core.tracking.logs import notice
from mt_tools.cli.after_export import AfterExport, write_file
from mt_tools.cli.convert_options import chosen_dtype, describe_files, shard_bytes, unused_path, writing_options
from mt_tools.convert.adapter_readers import check_base_name, say_changed_base
from mt_tools.convert.check import READERS
from mt_tools.convert.gguf.writer import TYPES, find_gguf
from mt_tools.convert.publish import Repository, push
from mt_tools.convert.source import Source, open_run
from mt_tools.convert.writing import SHARD_BYTES
from mt_train.assemble.discovery import discover_plugins
from mt_train.config.names import expand


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return parse_and_run(_parser(), _export, argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mt-export",
        usage="mt-export --run RUN --output FOLDER [--merge | --as-lora [RANK]] [option …]",
        description="Write the adapter of a run as peft does, or with --merge base and adapter as one Hugging Face folder.",
        epilog="""examples:
  mt-export --run runs/lora --output adapter                       the adapter, as peft opens it
  mt-export --run runs/lora --output merged --merge                base and adapter as one model
  mt-export --run runs/lora --output merged --merge --gguf m.gguf  the same as one file for llama.cpp besides""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--run",
        action="append",
        default=[],
        metavar="RUN[:SHARE]",
        help="a run; several, each with a share of its adapter, with --merge; none where --push or --gguf takes a folder that is there",
    )
    parser.add_argument("--checkpoint", default="last", metavar="WHICH", help="last (default), best, or a saved step")
    parser.add_argument(
        "--averaged", metavar="NAME", help="the averaged weights of this callback of the run (ema, swa)"
    )
    parser.add_argument("--output", required=True, metavar="FOLDER", help="the new folder")
    parser.add_argument(
        "--base", metavar="ORG/NAME[@REVISION]", help="what the base is called on the Hub, where the run has a path"
    )
    parser.add_argument("--merge", action="store_true", help="base and adapter as one Hugging Face folder")
    parser.add_argument(
        "--as-lora",
        type=int,
        nargs="?",
        const=0,
        metavar="RANK",
        help="what the adapter changes of the weights that it began with, as a LoRA that peft opens: of the rank that it has, or of this",
    )
    parser.add_argument(
        "--form",
        choices=("portable", "peft"),
        default="portable",
        help="of a LoRA: portable (default) has one rank and a factor of 1, as peft, vLLM, SGLang and llama.cpp all read it; peft has"
        " each layer's rank and alpha, which peft alone reads",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        metavar="X",
        help="with --merge and --as-lora: largest mean difference of logits (default: 0.1; merged over a quantized base 0.5)",
    )
    _after_options(parser.add_argument_group("what is done with the folder"))
    writing_options(parser)
    return parser


def _after_options(after: argparse._ArgumentGroup) -> None:
    after.add_argument(
        "--gguf",
        metavar="FILE",
        help="with --merge: the model as one file besides, for llama.cpp and what is built on it; without --run, of a folder that is there",
    )
    after.add_argument(
        "--gguf-type", choices=TYPES, help="weights of that file (default: bf16); q8_0 has 8 bits for a number"
    )
    after.add_argument(
        "--ollama",
        action="store_true",
        help="with --merge: a Modelfile in the folder, over it or over the file of --gguf",
    )
    after.add_argument(
        "--check",
        choices=READERS,
        help="open it with this reader, where it is installed, continue 8 prompts by up to 64 tokens, and compare",
    )
    after.add_argument(
        "--reader",
        metavar="PATH",
        help="Python of the environment that has the reader of --check; for llama.cpp its llama-server",
    )
    after.add_argument(
        "--push",
        metavar="ORG/NAME",
        help="then push it to the Hub in one commit, with the token in HF_TOKEN; without --run, a folder that is there",
    )
    after.add_argument("--private", action="store_true", help="with --push: a repository that others do not see")


def _export(arguments: argparse.Namespace) -> int:
    if arguments.form == "peft" and (arguments.merge or arguments.as_lora is not None):
        raise UsageError("--form peft is for an adapter as it was trained; leave out --merge and --as-lora, or --form")
    if arguments.as_lora is not None and (arguments.merge or arguments.as_lora < 0):
        raise UsageError("--as-lora writes an adapter: give no --merge, and a RANK from 1 on, or none")
    if not arguments.run:
        return _finish_folder(arguments)
    size, out, host = (
        shard_bytes(arguments.shard_size),
        unused_path(arguments.output),
        discover_plugins(arguments.block_plugin),
    )
    base = None if arguments.base is None else check_base_name(arguments.base)
    sources = [
        (replace(open_run(run, arguments.checkpoint, host), base_name=base, averaged=arguments.averaged), share)
        for run, share in map(_parse_share, arguments.run)
    ]
    if not arguments.merge:
        from mt_tools.convert.whole import refuse_encoders  # which imports torch

        _refuse_of_merge(arguments, sources)
        refuse_encoders(sources[0][0])
    after = AfterExport.of(arguments, sources, host)
    if arguments.merge:
        said = _merge(arguments, sources, out, host, size)
    else:
        say_changed_base(sources[0][0], host, notice)
        said = (_write_adapter if arguments.as_lora is None else _write_as_lora)(arguments, sources[0][0], out, host)
    print(said)
    after.run(out)
    return 0


_OF_FOLDERS = {"push": "private", "gguf": "gguf_type"}
"""Steps that a folder without a run takes, each with the option that it has."""


def _finish_folder(arguments: argparse.Namespace) -> int:
    """Push a folder that was written before, by whichever command, or write it as a GGUF file."""
    steps = [name for name in _OF_FOLDERS if getattr(arguments, name) is not None]
    taken = {"output", "debug", "block_plugin", *(option for step in steps for option in (step, _OF_FOLDERS[step]))}
    usual = vars(_parser().parse_args(["--output", ""]))
    others = [name for name, value in usual.items() if name not in taken and getattr(arguments, name) != value]
    if not steps or others:
        listed = ", ".join(f"--{name.replace('_', '-')}" for name in others)
        raise UsageError(
            "--run says what is exported; without it a folder that is there is pushed, or written as a GGUF file: --output FOLDER --push"
            f" ORG/NAME, or --gguf FILE, and nothing else{listed and f'; leave out {listed}'}"
        )
    out = Path(expand(arguments.output))
    if not out.is_dir():
        raise UsageError(f"{out} is no folder; name the run that is written there (--run RUN)")
    repository = None if arguments.push is None else Repository.named(arguments.push, private=arguments.private)
    if arguments.gguf is not None:
        find_gguf()
        print(write_file(out, unused_path(arguments.gguf), arguments.gguf_type, notice))
    if repository is not None:
        print(push(out, repository, [], notice))
    return 0


def _merge(
    arguments: argparse.Namespace, sources: Sequence[tuple[Source, float]], out: Path, host: PluginHost, size: int
) -> str:
    from mt_tools.convert.adapter_merge import merge

    difference = merge(
        sources, out, host, dtype=chosen_dtype(arguments), shard_bytes=size, tolerance=arguments.tolerance, say=notice
    )
    return f"{out}: {describe_files(out)}\n{difference}"


def _write_adapter(arguments: argparse.Namespace, source: Source, out: Path, host: PluginHost) -> str:
    from mt_tools.convert.adapter import export_adapter

    form = export_adapter(source, out, notice, portable=arguments.form == "portable")
    return f"{out}: adapter {source.parts.config.adapter.name} ({form}), {describe_files(out)}"


def _write_as_lora(arguments: argparse.Namespace, source: Source, out: Path, host: PluginHost) -> str:
    from mt_tools.convert.adapter_lora import export_as_lora

    apart = export_as_lora(source, out, host, rank=arguments.as_lora or None, tolerance=arguments.tolerance, say=notice)
    return f"{out}: adapter {source.parts.config.adapter.name} as a LoRA, {describe_files(out)}\n{apart}"


def _parse_share(text: str) -> tuple[Path, float]:
    """``RUN:0.7``; a folder whose own name has a colon at its end is taken first."""
    path, colon, share = text.rpartition(":")
    if not colon or Path(expand(text)).exists():
        return Path(expand(text)), 1.0
    try:
        return Path(expand(path)), float(share)
    except ValueError as error:
        raise UsageError(f"--run {text}: {share!r} is no number; write RUN:0.5 for half of the adapter") from error


def _refuse_of_merge(arguments: argparse.Namespace, sources: Sequence[tuple[Source, float]]) -> None:
    given = {
        "several --run": len(sources) > 1,
        "a share": any(share != 1 for _, share in sources),
        "--tolerance": arguments.tolerance is not None and arguments.as_lora is None,
        "--dtype": arguments.dtype != "keep",
        "--shard-size": shard_bytes(arguments.shard_size) != SHARD_BYTES,
    }
    if wrong := [name for name, is_given in given.items() if is_given]:
        raise UsageError(f"{', '.join(wrong)}: for --merge only; add it, or export one adapter as it is")


if __name__ == "__main__":
    sys.exit(main())
