"""``mt-report``: one or several runs as a page that opens in any browser, from the disk."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from mt_core.cli.guard import parse_and_run
from mt_core.tracking.logs import notice
from mt_tools.report.output import check_output, default_output, write_page
from mt_tools.report.page import page
from mt_tools.report.run import check, distinct_runs, read_run, short_names
from mt_train.config.names import expand
from mt_train.version import describe_version


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return parse_and_run(_parser(), _report, argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mt-report",
        description="Show runs as one self-contained HTML page.",
        epilog="""examples:
  mt-report runs/first                                             runs/first/report.html
  mt-report runs/first runs/deeper --output compared.html          two runs beside each other""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run; several are compared")
    parser.add_argument(
        "--output",
        metavar="FILE.html",
        help="the page (default: RUN/report.html; report.html here for several runs)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an HTML file that is no such page, too")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.add_argument("--version", action="version", version=describe_version("mt-tools"))
    return parser


def _report(arguments: argparse.Namespace) -> int:
    given = [Path(expand(run)) for run in arguments.runs]
    check(given)
    folders, repeated = distinct_runs(given)
    output = Path(expand(arguments.output)) if arguments.output else default_output(folders)
    check_output(output, overwrite=arguments.overwrite)
    runs = [read_run(folder, name) for folder, name in zip(folders, short_names(folders), strict=True)]
    for text in [*repeated, *(f"{run.name}: {remark}" for run in runs for remark in run.remarks)]:
        notice(f"notice: {text}")
    size = write_page(output, page(runs))
    print(f"{output} ({size / 1e6:.2f} MB, {len(runs)} run{'s' if len(runs) > 1 else ''})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
