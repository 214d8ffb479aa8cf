"""``mt-score``: scores of a reward model for the answers in a file, and the best of each row."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import Row, UsageError
from mt_core.files import JsonRows, replace_file
from mt_train import load_run, load_weights
from mt_train.command import describe_version, notice, parse_and_run

if TYPE_CHECKING:
    from mt_train import LoadedModel

AT_ONCE = 256
"""Rows whose answers are sorted by length together."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return parse_and_run(_parser(), _score, argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mt-score",
        usage="mt-score (--run RUN | --weights FOLDER) --rows FILE [option …]",
        description="Score the answers of a file with a reward model: rows with prompt and response, responses (a list),\n"
        "or chosen and rejected. One line of JSON for each row: id, scores, best, and of a pair whether the chosen one was.",
        epilog="""examples:
  mt-score --run runs/reward --rows answers.jsonl --out scores.jsonl
  mt-score --run runs/reward --rows answers.jsonl --best best.jsonl     the best answers, as rows for sft""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--run", type=Path, metavar="RUN", help="a run of --objective reward: its last checkpoint")
    parser.add_argument(
        "--checkpoint", default="last", metavar="STEP", help="last, best, or a step of the run (default: last)"
    )
    parser.add_argument(
        "--model", metavar="NAME", help="the family of --weights; default: the one that their config.json names"
    )
    parser.add_argument(
        "--weights",
        type=Path,
        metavar="FOLDER",
        help="whole weights with a score head: of mt-convert, of mt-export --merge, or a reward model of transformers with one label",
    )
    parser.add_argument("--rows", type=Path, required=True, metavar="FILE", help="JSON lines, or an array of objects")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the scores as JSON lines (default: standard output)")
    parser.add_argument("--best", type=Path, metavar="FILE", help="each row with its best answer, as rows for sft")
    parser.add_argument("--batch-size", type=int, default=8, metavar="N", help="answers at a time (default: 8)")
    parser.add_argument("--overwrite", action="store_true", help="replace --out and --best where they are")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.add_argument("--version", action="version", version=describe_version("mt-plugin-alignment"))
    return parser


def _score(arguments: argparse.Namespace) -> int:
    _refuse(arguments)
    rows = JsonRows([arguments.rows])
    from .scoring import Scorer, best_row, score_rows

    scorer = Scorer(_load(arguments))
    found: list[dict[str, Any]] = []
    best: list[dict[str, Any]] = []
    for some in _slices(rows):
        scored = list(score_rows(scorer, some, batch_size=arguments.batch_size))
        found += scored
        best += [best_row(row, each) for row, each in zip(some, scored, strict=True)] if arguments.best else []
        if arguments.out is None:
            for each in scored:
                print(json.dumps(each, ensure_ascii=False))
    for file, lines in ((arguments.out, found), (arguments.best, best)):
        if file is not None:
            _write(file, lines)
    _tell(found)
    return 0


def _load(arguments: argparse.Namespace) -> LoadedModel:
    """The model of a run, or of a folder that ``mt-export`` wrote of one."""
    if arguments.run is not None:
        step = arguments.checkpoint
        return load_run(arguments.run, checkpoint=int(step) if step.isdecimal() else step)
    return load_weights(arguments.model, arguments.weights, objective="reward")


def _refuse(arguments: argparse.Namespace) -> None:
    """Raise ``UsageError`` for options that do not go together, and files that are there."""
    if (arguments.run is None) == (arguments.weights is None):
        given = "both" if arguments.run else "none"
        raise UsageError(f"give one of --run RUN, or --weights FOLDER; got {given}")
    if arguments.run is not None and arguments.model is not None:
        raise UsageError("--run brings its own model; leave out --model")
    if arguments.weights is not None and arguments.checkpoint != "last":
        raise UsageError(f"--checkpoint {arguments.checkpoint} is one of a run, and --weights has none; leave it out")
    if arguments.batch_size < 1:
        raise UsageError(f"--batch-size {arguments.batch_size} must be at least 1")
    if arguments.out is not None and arguments.best is not None and arguments.out.resolve() == arguments.best.resolve():
        raise UsageError(
            f"--out and --best are one file, {arguments.out}, so the answers would replace the scores; name two"
        )
    for option in ("out", "best"):
        file = getattr(arguments, option)
        if file is not None and file.exists() and not arguments.overwrite:
            raise UsageError(f"--{option} {file} is there already; name another file, or replace it with --overwrite")


def _slices(rows: JsonRows) -> Iterator[list[Row]]:
    waiting = (rows.row(number) for number in range(len(rows)))
    while some := list(islice(waiting, AT_ONCE)):
        yield some


def _write(file: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    with replace_file(file) as out:
        for each in lines:
            out.write((json.dumps(each, ensure_ascii=False) + "\n").encode())


def _tell(found: Sequence[Mapping[str, Any]]) -> None:
    """Say how many were scored, their mean, and of pairs how often the chosen one was better."""
    scores = [score for each in found for score in each["scores"]]
    text = f"{len(found):,} rows, {len(scores):,} answers, mean score {sum(scores) / len(scores):.4f}"
    if pairs := [each["correct"] for each in found if "correct" in each]:
        text += (
            f"; the chosen answer is better in {sum(pairs):,} of {len(pairs):,} pairs ({sum(pairs) / len(pairs):.1%})"
        )
    notice(text)
