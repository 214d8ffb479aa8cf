"""``mt-data``: what becomes of rows, before anything is trained on them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mt_core.cli.guard import run_command
from mt_core.config.secrets import redact_values
from mt_core.errors import DataError, UsageError, did_you_mean, show_value
from mt_core.files import cache_root, is_remote
from mt_core.plugins.host import PluginHost
from mt_core.tracking.logs import notice
from mt_tools.report.output import check_output, write_page
from mt_train.assemble.discovery import discover_plugins
from mt_train.assemble.parts import Parts
from mt_train.config.commandline import CommandLine, parse, parse_flags
from mt_train.config.digits import parse_whole_number
from mt_train.config.layers import Layer, Layers
from mt_train.config.names import expand
from mt_train.config.run import SECTIONS
from mt_train.data.chunks import Share
from mt_train.plugins.completion import write_completion
from mt_train.plugins.recipes import read_sources
from mt_train.plugins.resolve import resolve
from mt_train.tracking.logs import show
from mt_train.version import describe_version

HEAD = """usage: mt-data inspect|build [--dataset NAME --dataset.path PATH] [--recipe NAME] [--config FILE] [--key value …]
       mt-data clean [--older-than DAYS] [--yes] [--data.cache FOLDER]

inspect reads and encodes the rows of a run as mt-train would, and shows what became of them. The keys are those of
mt-train; without --model the tokenizer alone decides. Bad rows are counted, listed and make it end with 1.
build encodes them into the token cache (--data.cache), where mt-train with the same keys finds them; it wants --model.
With an address (--data.cache s3://bucket/tokens) it encodes in MT_CACHE and copies the result there, the index last.
clean shows what of the token cache nobody has used for long, and removes it with --yes; what is in use stays.

  --recipe NAME              the config of a run under a name (mt-plugins recipes), as for mt-train
  --config FILE              YAML or JSON config of a run (may be repeated); options on the command line win
  --examples N               inspect: samples that are shown, from all over the training part (default: 3)
  --json                     inspect: everything as JSON, on standard output
  --html FILE.html           inspect: everything as one self-contained page
  --overwrite                inspect: replace an HTML file that is no such page, too
  --part I/N                 build: encode chunks I, I+N, I+2N … only, beside other processes and machines
  --finish                   build: make a cache of the parts, without encoding
  --older-than DAYS          clean: what was not used for so long (default: 30)
  --yes                      clean: remove it
  --block-plugin NAME        do not import this plugin (may be repeated)
  --debug                    show tracebacks
  --completion bash|zsh|fish print what completes this in a shell
  --version, --help          this page; mt-data inspect --help has the options of tokenizer, dataset, objective and data, too

Examples:
  mt-data inspect --dataset jsonl --dataset.path rows.jsonl --html rows.html
  mt-data build --model llama --dataset jsonl --dataset.path rows.jsonl --data.cache cache
  mt-data clean --older-than 60 --yes"""

SWITCHES = ("json", "overwrite", "yes", "finish", "debug", "version", "help")
VALUES = ("recipe", "html", "examples", "older_than", "part", "completion")
REPEATED = ("block_plugin", "config")
OWN = {
    "inspect": ("examples", "json", "html", "overwrite"),
    "build": ("part", "finish"),
    "clean": ("older_than", "yes"),
}
"""Options that only one command has."""

EXAMPLES, MOST_EXAMPLES = 3, 10_000


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    return run_command(lambda: _data(words), debug="--debug" in words)


def _data(words: list[str]) -> int:
    words = ["--help" if word == "-h" else word for word in words]
    name = words.pop(0) if words and not words[0].startswith("-") else ""
    flags = parse_flags(words, switches=SWITCHES, values=VALUES, repeated=REPEATED)
    if "version" in flags:
        print(describe_version("mt-tools"))
        return 0
    if "completion" in flags:
        host, values = discover_plugins(flags.get("block_plugin", [])), (*VALUES, *REPEATED)
        shell = flags["completion"]
        print(write_completion("mt-data", shell, host, switches=SWITCHES, values=values, commands=COMMANDS))
        return 0
    if not name and "help" not in flags:
        raise UsageError(f"mt-data needs one of its commands: {', '.join(COMMANDS)}; `mt-data --help` shows them")
    if name and name not in COMMANDS:
        raise UsageError(
            f"mt-data has no command {name!r}. {did_you_mean(name, list(COMMANDS))}Commands: {', '.join(COMMANDS)}"
        )
    if words == ["--help"] and not name:
        print(HEAD)
        return 0
    host = discover_plugins(flags.get("block_plugin", []))
    line = parse(words, switches=SWITCHES, values=VALUES, repeated=REPEATED, kinds=host.kinds)
    if "help" in flags:
        return _help(line, host)
    _refuse_others_options(name, line)
    return COMMANDS[name](line, host)


def _refuse_others_options(name: str, line: CommandLine) -> None:
    for other, options in OWN.items():
        if other != name and (given := [option for option in options if option in line.flags]):
            raise UsageError(f"--{given[0].replace('_', '-')} belongs to mt-data {other}; leave it out")


def _help(line: CommandLine, host: PluginHost) -> int:
    from mt_train.cli.train_help import help_text

    print(
        help_text(
            host,
            raw_of(line, host),
            head=HEAD,
            slots=("tokenizer", "dataset", "objective"),
            sections={"data": SECTIONS["data"]},
        )
    )
    return 0


def raw_of(line: CommandLine, host: PluginHost) -> dict[str, Any]:
    """The keys of the run: the recipe's, under those of config files, under those of the command line."""
    files = [Path(expand(file)) for file in line.flags.get("config", [])]
    layers = read_sources(line.flags.get("recipe"), files, host)
    return Layers.of([*layers, Layer("command line", line.raw)], host.kinds).raw


def _inspect(line: CommandLine, host: PluginHost) -> int:
    """Show what becomes of the rows; then fail as a training would. Raises ``MtError``."""
    count, page = _count(line.flags.get("examples", str(EXAMPLES))), _page(line)
    raw = raw_of(line, host)
    given = raw.get("data", {})
    all_bad_rows = isinstance(given, dict) and "on_bad_row" not in given
    if all_bad_rows:
        raw["data"] = {**given, "on_bad_row": "skip"}
    from mt_train.planning.inspection import describe_rows, resolve_rows  # torch loads from here on

    parts = Parts.of(resolve_rows(raw, host))
    from mt_train.assemble.data import check_data, read_data

    data = read_data(parts)
    about = describe_rows(parts.config, data, count=count)
    _show(about, page, as_json="json" in line.flags)
    if all_bad_rows and about["bad_rows"]:
        _refuse(about["bad_rows"])
    check_data(parts.config, data)
    return 0


def _build(line: CommandLine, host: PluginHost) -> int:
    """Encode the rows of a run, or a share of them, into its token cache. Raises ``UsageError`` when it would have none."""
    share, finishes = _share(line), "finish" in line.flags
    from mt_train.assemble.encoder import cache_folder
    from mt_train.assemble.identity import AUTO_BYTES, source_files

    raw = raw_of(line, host)
    parts = Parts.of(resolve(raw, host))
    url = parts.config.data.cache or ""
    if is_remote(url):
        if share is not None or finishes:
            raise UsageError(
                f"parts are encoded in a folder that machines share, and {url} is an address: name a folder for --part and --finish"
                f" (--data.cache FOLDER), then copy it with MT_CACHE=FOLDER mt-data build … --data.cache {url}"
            )
        parts = Parts.of(resolve({**raw, "data": {**raw["data"], "cache": str(cache_root())}}, host))
    config, files = parts.config, source_files(parts)
    if files is None:
        raise UsageError(
            f"dataset {config.dataset.name!r} names no files, so that nobody could tell when its rows change: its tokens are not"
            " cached. Choose a dataset of files, such as jsonl"
        )
    folder = cache_folder(config.data, files)
    if folder is None:
        raise UsageError(
            f"this run would keep its tokens in memory: data.cache is {config.data.cache or 'none'}, and auto caches"
            f" files of {AUTO_BYTES / 1e6:.0f} MB or more; name a folder with --data.cache FOLDER, here and for mt-train"
        )
    from mt_train.assemble.data import build_data  # torch loads from here on
    from mt_train.assemble.shares import encode_share, finish_shares, put_caches

    if share is not None:
        encode_share(parts, share)
        show(f"part       {share.index} of {share.count} is encoded; once all are: mt-data build --finish")
    else:
        data = None if finishes else build_data(parts)
        train, held_out = finish_shares(parts) if data is None else (data.train.report, data.held_out.report)
        show(f"training   {train.describe()}")
        show(f"held out   {'the end of it' if held_out is None else held_out.describe()}")
    show(f"cache      {folder.absolute()}")
    for copied in put_caches(parts, url) if is_remote(url) else ():
        show(f"copied to  {copied}")
    return 0


def _share(line: CommandLine) -> Share | None:
    if "part" not in line.flags:
        return None
    if "finish" in line.flags:
        raise UsageError("--part encodes a share, and --finish makes a cache once all are encoded; give one of the two")
    text = line.flags["part"]
    index, count = (parse_whole_number(number) for number in (*text.split("/"), "", "")[:2])
    if index is None or count is None or text.count("/") != 1 or index >= count:
        raise UsageError(f"--part takes I/N, part I of N counted from 0, such as 0/8 to 7/8, got {show_value(text)}")
    return Share(index, count)


def _clean(line: CommandLine, host: PluginHost) -> int:
    """Show or remove what of the token cache was not used for long. Raises ``MtError``."""
    from mt_tools.cli.data_clean import DAYS, clean_cache

    others = [key for key in line.raw if key != "data"]
    others += [f"data.{key}" for key in line.raw.get("data", {}) if key != "cache"]
    if others:
        raise UsageError(f"mt-data clean reads --data.cache only, got --{others[0]}; leave it out")
    return clean_cache(raw_of(line, host), older_than=line.flags.get("older_than", str(DAYS)), yes="yes" in line.flags)


def _count(text: str) -> int:
    count = parse_whole_number(text)
    if count is None or count > MOST_EXAMPLES:
        raise UsageError(f"--examples takes a number of samples from 0 to {MOST_EXAMPLES:,}, got {show_value(text)}")
    return count


def _page(line: CommandLine) -> Path | None:
    if "html" not in line.flags:
        return None
    path = Path(expand(line.flags["html"]))
    check_output(path, overwrite="overwrite" in line.flags, option="--html")
    return path


def _show(about: Mapping[str, Any], page: Path | None, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(redact_values(about), indent=1))  # in ASCII: exact on any console
    else:
        from mt_tools.cli.data_text import show_rows

        show_rows(about)
    if page is not None:
        from mt_tools.report.data_page import data_page

        size = write_page(page, data_page(about))
        notice(f"written: {page} ({size / 1e6:.2f} MB)")


def _refuse(bad_rows: Sequence[str]) -> None:
    """Refuse bad rows as ``mt-train`` would, all of them at once."""
    first = "\n  ".join(bad_rows[:20]) + ("\n  …" if len(bad_rows) > 20 else "")
    alone = len(bad_rows) == 1
    number, they = ("1 bad row, which stops", "it") if alone else (f"{len(bad_rows)} bad rows, which stop", "them")
    raise DataError(f"{number} mt-train; repair {they}, or pass over {they} with --data.on-bad-row skip:\n  {first}")


COMMANDS: dict[str, Callable[[CommandLine, PluginHost], int]] = {"inspect": _inspect, "build": _build, "clean": _clean}
"""Subcommands of ``mt-data`` by name."""


if __name__ == "__main__":
    sys.exit(main())
