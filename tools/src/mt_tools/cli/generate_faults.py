"""Faults of the options of ``mt-generate`` as they stand together. Imports no torch."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

_BELONGS = {"out": "prompts", "overwrite": "prompts", "batch_size": "prompts", "backend": "prompts", "system": "chat"}
"""Options that only one way of asking reads."""


def option(name: str) -> str:
    """Return an option as it is typed."""
    return "--" + name.replace("_", "-")


def asking_faults(arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the faults of the options that say what it is asked, and where the texts go."""
    given = {"prompt": arguments.prompt is not None, "chat": arguments.chat, "prompts": arguments.prompts is not None}
    ways = [name for name, is_given in given.items() if is_given]
    if len(ways) != 1:
        turn = "; a turn of --chat is a line of standard input: echo TEXT | mt-generate … --chat"
        remark = turn if ways[:2] == ["prompt", "chat"] else ""
        yield f"give one of --prompt TEXT, --chat, or --prompts FILE with --out FILE; got {', '.join(ways) or 'none'}{remark}"
        return
    if arguments.prompt == "":
        yield "the prompt is empty; give some text to continue, for instance --prompt 'The '"
    for name, way in _BELONGS.items():
        if getattr(arguments, name) not in (None, False) and way not in ways:
            yield f"{option(name)} belongs to --{way}; leave it out, or ask with --{way}"
    if arguments.chat_template is not None and arguments.prompt is not None:
        yield "--chat-template belongs to --chat and --prompts; a --prompt is plain text"
    if arguments.prompts is not None and (arguments.image or arguments.media):
        yield '--image and --media belong to --prompt and --chat; a row of --prompts names its own: {"prompt": …, "images": […]}'
    if arguments.backend_option and arguments.backend is None:
        yield "--backend-option belongs to --backend; leave it out, or name the backend"
    if arguments.backend is not None and arguments.batch_size is not None:
        yield "--batch-size is for the model here; a backend has an option of its own (--backend-option requests=N)"
    if arguments.prompts is not None:
        yield from _out_faults(arguments)


def _out_faults(arguments: argparse.Namespace) -> Iterator[str]:
    if arguments.out is None:
        yield "--prompts needs a file for the texts: --out FILE.jsonl"
    elif arguments.out.absolute() == arguments.prompts.absolute() or (
        arguments.out.exists() and arguments.prompts.exists() and arguments.out.samefile(arguments.prompts)
    ):
        yield f"--out is the file of --prompts, {arguments.prompts}, and would destroy it; name another"
    elif arguments.out.exists() and not arguments.out.is_file():
        yield f"--out {arguments.out} is no regular file; name one"
