"""``mt-generate``: new text on standard output, everything else on standard error."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core.cli.guard import parse_and_run
from mt_core.errors import DataError, UsageError
from mt_core.generation import MOST_CHOICES, GenerationConfig, SamplingRules, find_faults, raise_faults
from mt_core.tracking.logs import notice
from mt_tools.cli.generate_backend import build_backend
from mt_tools.cli.generate_faults import asking_faults, option
from mt_tools.generation.media import MediaFiles, parse_media
from mt_tools.generation.source import SOURCE_PATHS, add_source_options, expand_paths, find_source, source_faults
from mt_train.config.names import expand
from mt_train.config.reading import read_small_text
from mt_train.config.run import RunConfig
from mt_train.config.texts import template_source
from mt_train.version import describe_version

if TYPE_CHECKING:
    from mt_train.generation.loaded_model import LoadedModel

MOST_CHOICE_BYTES = 10**8
"""Largest file of choices, in bytes."""
_PATHS = (*SOURCE_PATHS, "prompts", "out")
"""Options that may begin with the @name of a path."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return parse_and_run(_parser(), _generate, argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mt-generate",
        usage="mt-generate (--run RUN | --weights FOLDER) (--prompt TEXT | --chat | --prompts FILE) [option …]",
        description="Continue a prompt, talk to a model, or answer a file of prompts.",
        epilog="""examples:
  mt-generate --run runs/first --prompt "Once upon a time"
  mt-generate --run runs/first --chat --temperature 0.7
  mt-generate --run runs/first --prompts prompts.jsonl --out answers.jsonl --greedy""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_source_options(parser.add_argument_group("the model"))
    _asking_options(parser.add_argument_group("what to answer (one of --prompt, --chat and --prompts)"))
    _length_options(parser.add_argument_group("where a text ends"))
    _choice_options(parser.add_argument_group("how a token is chosen"))
    parser.add_argument("--block-plugin", action="append", default=[], metavar="NAME", help="do not import this plugin")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.add_argument("--version", action="version", version=describe_version("mt-tools"))
    return parser


def _asking_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--prompt", metavar="TEXT", help="text to continue")
    group.add_argument("--chat", action="store_true", help="a conversation; each line of standard input is a turn")
    group.add_argument(
        "--prompts", type=Path, metavar="FILE", help='JSON lines with "prompt" or "messages", and perhaps "id"'
    )
    group.add_argument("--out", type=Path, metavar="FILE", help="JSON lines for --prompts; an interrupted one goes on")
    group.add_argument("--overwrite", action="store_true", help="start --out over, instead of going on with it")
    group.add_argument("--batch-size", type=int, metavar="N", help="prompts at a time (default: 8); changes no text")
    group.add_argument(
        "--backend", metavar="NAME", help="who writes the texts of --prompts: a plugin that asks a server, such as vllm"
    )
    group.add_argument(
        "--backend-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="option of the backend, as url=http://127.0.0.1:8000; mt-plugins info shows them",
    )
    group.add_argument("--system", metavar="TEXT", help="system turn of --chat")
    group.add_argument(
        "--image", action="append", default=[], metavar="FILE", help="what <image> in the prompt stands for; repeatable"
    )
    group.add_argument(
        "--media", action="append", default=[], metavar="KIND=FILE", help="the same for <KIND>: audio=a.wav, dna=ACGT …"
    )
    group.add_argument(
        "--chat-template",
        metavar="NAME|FILE",
        help="how turns are written: chatml, llama3 … (as data.template), or a Jinja file; default: the run's, the tokenizer's own",
    )


def _length_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="tokens at most (default: 128)")
    group.add_argument("--min-new-tokens", type=int, default=0, metavar="N", help="tokens at least (default: 0)")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text; repeatable")
    group.add_argument("--choices", metavar="FILE|A,B", help="answer with one of these: a line each, or with commas")


def _choice_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--greedy", action="store_true", help="always the likeliest token")
    group.add_argument("--temperature", type=float, default=1.0, metavar="X", help="below 1 is safer (default: 1)")
    group.add_argument("--top-k", type=int, metavar="K", help="only the K likeliest tokens")
    group.add_argument("--top-p", type=float, metavar="P", help="only the likeliest tokens that add up to P")
    group.add_argument("--min-p", type=float, metavar="P", help="only tokens at least P times as likely as the best")
    group.add_argument("--typical-p", type=float, metavar="P", help="only tokens of typical surprise that add up to P")
    group.add_argument("--repetition-penalty", type=float, default=1.0, metavar="X", help="above 1: less of what was")
    group.add_argument(
        "--frequency-penalty", type=float, default=0.0, metavar="X", help="for each time in the new text"
    )
    group.add_argument("--presence-penalty", type=float, default=0.0, metavar="X", help="for being in the new text")
    group.add_argument("--no-repeat-ngram", type=int, metavar="N", help="never the same N tokens in a row again")
    group.add_argument("--num-beams", type=int, default=1, metavar="K", help="beam search with K beams (default: 1)")
    group.add_argument(
        "--length-penalty", type=float, default=1.0, metavar="X", help="beams: above 0 favours long texts"
    )
    group.add_argument("--early-stopping", action="store_true", help="beams: end once K texts are whole")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the choice (default: 0)")


def _generate(arguments: argparse.Namespace) -> int:
    expand_paths(arguments, _PATHS)
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    raise_faults([*source_faults(arguments), *asking_faults(arguments), *find_faults(given, option)])
    wishes = _generation_config(arguments)
    template = None if arguments.chat_template is None else _template(str(expand(arguments.chat_template)))
    if arguments.prompts is not None:
        return _answer_file(arguments, wishes, template)
    parts, checkpoint = find_source(arguments, asks_media=bool(arguments.image or arguments.media))
    from mt_train.assemble.load import load  # here: what is not there is told before torch is imported
    from mt_train.assemble.media import prompt_rules

    files = MediaFiles(parse_media(arguments.image, arguments.media), prompt_rules(parts))
    loaded = load(parts, checkpoint, notice, averaged=arguments.averaged, dtype=arguments.dtype)
    if arguments.chat:
        return _chat(arguments, loaded, wishes, template, files)
    return _continue(arguments, loaded, wishes, files)


def _continue(arguments: argparse.Namespace, loaded: LoadedModel, wishes: GenerationConfig, files: MediaFiles) -> int:
    from mt_tools.generation.generate import Generator, describe_empty

    writer = Generator(loaded, wishes)
    marked = files.mark(arguments.prompt, whole=True)
    found = writer.stream(writer.prepare(marked if marked.parts else arguments.prompt), 0, _show)
    _show("\n")
    if not found.text.strip():
        notice(f"notice: {describe_empty(found, loaded.tokenizer)}")
    if found.finish == "context":
        short = wishes.max_new_tokens - len(found.ids)
        notice(f"notice: stopped at the model's {loaded.max_seq_len} tokens, {short} short of the wish")
    return 0


def _chat(
    arguments: argparse.Namespace,
    loaded: LoadedModel,
    wishes: GenerationConfig,
    template: str | None,
    files: MediaFiles,
) -> int:
    from mt_tools.generation.chat import COMMANDS, Chat

    chat = Chat(loaded, wishes, show=_show, say=notice, system=arguments.system, chat_template=template, files=files)
    if not sys.stdin.isatty():
        chat.run(sys.stdin)
        return 0
    notice("notice: " + ", ".join(f"{name} to {what}" for name, what in COMMANDS.items()))
    chat.run(sys.stdin, ask=lambda: print("you> ", end="", file=sys.stderr, flush=True))
    return 0


def _answer_file(arguments: argparse.Namespace, wishes: GenerationConfig, template: str | None) -> int:
    from mt_tools.generation.output import Output
    from mt_tools.generation.rows import read_rows

    rows = read_rows(arguments.prompts)
    parts, checkpoint = find_source(arguments)
    backend = None if arguments.backend is None else build_backend(arguments, parts, wishes)
    settings = _settings(parts.config, checkpoint, wishes, template)
    if arguments.averaged is not None:
        settings = {**settings, "averaged": arguments.averaged}
    if arguments.dtype != "auto":
        settings = {**settings, "dtype": arguments.dtype}
    if arguments.quantizer is not None:
        settings = {**settings, "quantizer": parts.config.quantizer.as_raw()}
    if backend is not None:
        settings = {**settings, "backend": {"name": arguments.backend, **backend.describe()}}
    output = Output(arguments.out, rows, settings, overwrite=arguments.overwrite, say=notice)
    if output.pending:
        from mt_tools.generation.answers import answer
        from mt_train.assemble.load import load, load_without_weights
        from mt_train.assemble.media import prompt_rules

        if backend is None:
            loaded = load(parts, checkpoint, notice, averaged=arguments.averaged, dtype=arguments.dtype)
        else:
            loaded = load_without_weights(parts, checkpoint)
        numbers = {row.id: number for number, row in enumerate(rows)}
        answer(
            loaded,
            output,
            {numbers[row.id]: row for row in output.pending},
            wishes,
            file=arguments.prompts,
            batch_size=arguments.batch_size or 8,
            chat_template=template,
            rules=prompt_rules(parts),
            backend=backend,
        )
    notice(f"notice: all {len(rows)} prompts are answered in {arguments.out}")
    return 0


def _settings(
    config: RunConfig, checkpoint: Path | None, wishes: GenerationConfig, template: str | None
) -> Mapping[str, Any]:
    """Return what an output was made with; the batch size changes no text and is no part of it."""
    wished = asdict(wishes)
    model = config.model
    return {
        "model": model.name,
        "weights": str(Path(model.source.weights).absolute()) if model.source.weights and checkpoint is None else None,
        **(
            {"adapter": str(Path(model.source.overlay).absolute())}
            if model.source.overlay and checkpoint is None
            else {}
        ),
        "checkpoint": None if checkpoint is None else str(checkpoint.absolute()),
        "tokenizer": config.tokenizer.as_raw(),
        "chat_template": template,
        **wished.pop("rules"),
        **wished,
    }


def _show(text: str) -> None:
    print(text, end="", flush=True)


def _generation_config(arguments: argparse.Namespace) -> GenerationConfig:
    values = vars(arguments)
    return GenerationConfig(
        rules=SamplingRules(**{field.name: values[field.name] for field in fields(SamplingRules)}),
        max_new_tokens=arguments.max_new_tokens,
        stop=tuple(arguments.stop),
        choices=() if arguments.choices is None else _choices(arguments.choices),
        seed=arguments.seed,
    )


def _choices(given: str) -> tuple[str, ...]:
    """The lines of a file, or the parts between commas. Raises ``UsageError`` for an empty or a repeated one."""
    is_file = _is_file(given)
    try:
        parts = (
            _lines(read_small_text(Path(given), "utf-8-sig", most=MOST_CHOICE_BYTES)) if is_file else given.split(",")
        )
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"cannot read the choices {given}: {error}; it has to be UTF-8, a choice in each line"
        ) from error
    if not parts or "" in parts:
        where = f"line {parts.index('') + 1} of {given}" if is_file and parts else repr(given)
        raise UsageError(f"--choices: {where} is empty; write one choice in each line, or put commas between them")
    if len(parts) > MOST_CHOICES:
        raise UsageError(f"--choices has {len(parts):,} choices, and takes at most {MOST_CHOICES:,}")
    if twice := sorted(part for part, count in Counter(parts).items() if count > 1):
        raise UsageError(f"--choices has {twice[0]!r} twice; name each once")
    return tuple(parts)


def _lines(text: str) -> list[str]:
    """Return the lines of a text; unlike ``splitlines`` it leaves other separators in them."""
    return text.removesuffix("\n").split("\n") if text else []


def _is_file(given: str) -> bool:
    """Return whether there is one of this name, which a long list between commas is too long for."""
    try:
        return Path(given).exists() and not Path(given).is_dir()
    except OSError:
        return False


def _template(given: str) -> str:
    """Return the template that ``--chat-template`` names, as ``data.template`` has it. Raises ``UsageError`` when it cannot be read."""
    try:
        return template_source(given)
    except ValueError as error:
        raise UsageError(f"--chat-template: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
