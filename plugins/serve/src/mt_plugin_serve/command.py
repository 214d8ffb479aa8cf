"""The command ``mt-serve``: its options, their faults, and what they open."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import UsageError, notice
from mt_tools import add_source_options, expand_paths, source_faults
from mt_train.command import describe_version, expand, parse_and_run

from .access import LOOPBACK, Access
from .limits import Limits, find_faults
from .sockets import listen
from .threads import run_in_thread

if TYPE_CHECKING:
    from .models import Models

KEY = "MT_API_KEY"
"""Variable of the environment with the key that clients have to give."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return parse_and_run(_parser(), _serve, argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mt-serve",
        usage="mt-serve (--run RUN | --weights FOLDER) [option …]",
        description="Serve a model as OpenAI's API: chats and completions, many at a time.",
        epilog="""examples:
  mt-serve --run runs/first
  mt-serve --weights weights --adapter mine=adapter --port 9000     weights, and an adapter beside them""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_models(parser.add_argument_group("the model"))
    _add_places(parser.add_argument_group("where it listens"))
    _add_bounds(parser.add_argument_group("bounds"))
    parser.add_argument("--block-plugin", action="append", default=[], metavar="NAME", help="do not import this plugin")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.add_argument("--version", action="version", version=describe_version("mt-plugin-serve"))
    return parser


def _add_models(group: argparse._ArgumentGroup) -> None:
    add_source_options(group)
    group.add_argument(
        "--adapter",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="an adapter over --weights, served under its name beside the weights; repeatable",
    )
    group.add_argument("--name", metavar="NAME", help="name of the model in requests; default: that of its folder")
    group.add_argument(
        "--chat-template",
        metavar="NAME|FILE",
        help="how turns are written: chatml, llama3 … (as data.template), or a Jinja file; default: the run's, the tokenizer's own",
    )


def _add_places(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help=f"any but this machine's own needs {KEY} in the environment (default: 127.0.0.1)",
    )
    group.add_argument(
        "--port", type=int, default=8000, metavar="N", help="0 takes a free one, which is told (default: 8000)"
    )


_BOUNDS = {
    "max_rows": ("N", "texts at a time (default: %(default)s); changes none"),
    "max_queue": ("N", "texts that may wait; more get 429 (default: %(default)s)"),
    "cache_tokens": ("N", "places of the cache, for all texts together (default: as many as they need)"),
    "prefill_tokens": ("N", "tokens of prompts in one step at most (default: %(default)s)"),
    "max_body_mib": ("X", "size of a request; more gets 413 (default: %(default)g)"),
    "grace": ("SECONDS", "what runs at SIGTERM or Ctrl-C may go on so long (default: %(default)s)"),
}
"""Field of ``Limits`` → what its value is called in the help, and the help."""


def _add_bounds(group: argparse._ArgumentGroup) -> None:
    for name, (metavar, described) in _BOUNDS.items():
        default = getattr(Limits, name)
        kind = float if isinstance(default, float) else int
        group.add_argument(_spell(name), type=kind, default=default, metavar=metavar, help=described)


def _spell(name: str) -> str:
    """Return the option of a field of ``Limits``."""
    return f"--{name.replace('_', '-')}"


def _serve(arguments: argparse.Namespace) -> int:
    expand_paths(arguments)
    faults = [*source_faults(arguments), *_faults(arguments)]
    if faults:
        raise UsageError(
            "\n".join(faults)
            if len(faults) == 1
            else "\n".join([f"{len(faults)} faults:", *(f"  {each}" for each in faults)])
        )
    limits, access = Limits(**_limits(arguments)), _access(arguments.host)
    sock = listen(arguments.host, arguments.port)
    with sock:
        models = run_in_thread(lambda: _open(arguments))
        from .server import serve  # here: torch is imported once there is a model

        shown = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
        names = ", ".join(model.name for model in models)
        said = f"notice: {names} on http://{shown}:{sock.getsockname()[1]}/v1; Ctrl-C ends it"
        serve(models, sock, limits=limits, access=access, report=notice, ready=lambda _: notice(said))
    notice("notice: ended")
    return 0


def _faults(arguments: argparse.Namespace) -> Iterator[str]:
    if not 0 <= arguments.port <= 65535:
        yield f"--port has to be from 0 to 65535; got {arguments.port}"
    yield from find_faults(_limits(arguments), _spell)
    if arguments.adapter and arguments.weights is None:
        yield "--adapter belongs to --weights; a run has its own adapter"
    if arguments.adapter and (arguments.adapter_folder or arguments.tokenizer):
        yield "--adapter serves several beside the weights; leave --adapter-folder and --tokenizer out"
    names = [each.partition("=")[0] for each in arguments.adapter]
    for given in arguments.adapter:
        name, equals, folder = given.partition("=")
        if not (name and equals and folder):
            yield f"--adapter needs NAME=FOLDER, got {given!r}"
    if twice := sorted({name for name in names if names.count(name) > 1}):
        yield f"--adapter has the name {twice[0]!r} twice; name each once"


def _limits(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options that are limits."""
    return {field.name: getattr(arguments, field.name) for field in fields(Limits)}


def _access(host: str) -> Access:
    """Return who may ask. Raises ``UsageError`` for an address that others reach, without a key."""
    key = os.environ.get(KEY) or None
    if host in LOOPBACK:
        return Access(key)
    if key is None:
        raise UsageError(
            f"--host {host} can be reached by others, who would need no key; set {KEY} in the environment, or listen on 127.0.0.1"
        )
    return Access(key, frozenset())


def _open(arguments: argparse.Namespace) -> Models:
    from mt_tools import open_source
    from mt_train import load_adapters

    base = arguments.name or _folder_name(arguments)
    several = None
    adapters: dict[str, Path] = {}
    if arguments.adapter:
        adapters = {
            name: Path(expand(folder)) for name, _, folder in (each.partition("=") for each in arguments.adapter)
        }
        if base in adapters:
            raise UsageError(f"an adapter and the weights are both called {base!r}; give --name NAME")
        loaded, several = load_adapters(
            adapters,
            weights=arguments.weights,
            model=arguments.model,
            dtype=arguments.dtype,
            quantizer=arguments.quantizer,
        )
    else:
        loaded = open_source(arguments)
    from mt_tools import template_of  # here: as above

    from .models import Models, ServedModel

    template = template_of(loaded, arguments.chat_template)
    names = {base: None, **{name: name for name in adapters}}
    return Models({name: ServedModel(name, loaded, template, adapter) for name, adapter in names.items()}, several)


def _folder_name(arguments: argparse.Namespace) -> str:
    """Return the name of the folder of the run or of the weights."""
    folder: Path = (arguments.adapter_folder or arguments.weights or arguments.run or arguments.checkpoint).absolute()
    if arguments.checkpoint is not None:
        folder = folder.parent.parent
    return folder.name


if __name__ == "__main__":
    sys.exit(main())
