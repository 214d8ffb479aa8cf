"""``mt-board``."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from mt_train.command import describe_version, expand, parse_and_run, signals_taken

from .access import Access
from .index import Index
from .server import Server

PORT = 8642
TOKEN_VARIABLE = "MT_BOARD_TOKEN"  # noqa: S105 - its name


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return parse_and_run(_parser(), _serve, argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mt-board",
        description="Show all runs and searches below some folders on a local page, live.\n"
        "It writes nothing, and asks nobody else.",
        epilog="""examples:
  mt-board runs
  mt-board runs searches --port 9000""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="folder with runs in it, or a run")
    parser.add_argument("--port", type=_port, default=PORT, metavar="N", help=f"port (default: {PORT}; 0: a free one)")
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="address (default: 127.0.0.1, this machine alone)"
    )
    parser.add_argument(
        "--token",
        metavar="TEXT|auto",
        default=os.environ.get(TOKEN_VARIABLE),
        help=f"what a link must have once; needed for another --host (or the variable {TOKEN_VARIABLE})",
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.add_argument("--version", action="version", version=describe_version("mt-plugin-board"))
    return parser


def _port(text: str) -> int:
    number = int(text) if text.isdecimal() and len(text) < 6 else -1
    if not 0 <= number < 2**16:
        raise argparse.ArgumentTypeError(f"got {text!r}; a port is a number from 0 to 65535")
    return number


def _serve(arguments: argparse.Namespace) -> int:
    access = Access(arguments.host, arguments.token)
    index = Index([Path(expand(folder)) for folder in arguments.folders])
    with Server(index, access, arguments.port) as server:

        def stop(number: int, frame: object) -> None:
            server.ended.set()
            threading.Thread(target=server.shutdown).start()  # it waits for this very thread

        with signals_taken(stop):
            print(f"{server.link} (Ctrl-C ends it)", flush=True)
            server.serve_forever(poll_interval=0.2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
