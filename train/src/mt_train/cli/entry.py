"""Entry point of ``mt-train``: what a shell or a reader asks first is answered without what trains."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mt_core.cli.guard import run_command
from mt_core.errors import INTERRUPTED
from mt_train.cli.short_help import SHORT_HELP

HELP = ("--help", "-h")


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code. A help without any other word is one screen, for which nothing of a plugin is imported."""
    words = list(sys.argv[1:] if argv is None else argv)
    if len(words) == 1 and words[0] in HELP:
        return run_command(_print_short_help, debug=False)
    try:
        from mt_train.cli.train import main as train
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return INTERRUPTED
    return train(words)


def _print_short_help() -> int:
    print(SHORT_HELP)
    sys.stdout.flush()  # a closed pipe is noticed here, where it is handled
    return 0


if __name__ == "__main__":
    sys.exit(main())
