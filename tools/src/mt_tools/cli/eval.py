"""``mt-eval``: loss, perplexity, bits per byte and token accuracy of checkpoints or weights, on any rows."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import __version__ as core_version
from mt_core.cli.guard import run_command
from mt_core.errors import UsageError
from mt_core.plugins.host import PluginHost
from mt_core.tracking.logs import notice
from mt_tools.cli.evaluations import describe_requests
from mt_tools.cli.evaluations import table as evaluations_table
from mt_tools.cli.tables import rows_table
from mt_tools.evaluation.jobs import Job, jobs_of, measure
from mt_train.assemble.choice import chosen_checkpoints
from mt_train.assemble.discovery import discover_plugins
from mt_train.assemble.run_file import run_config
from mt_train.checkpoint.files import replace_text
from mt_train.checkpoint.folder import next_number
from mt_train.checkpoint.store import find
from mt_train.config.arguments import DTYPES
from mt_train.config.commandline import CommandLine, parse, parse_flags
from mt_train.config.names import expand
from mt_train.plugins.completion import write_completion
from mt_train.plugins.dataset_slot import reader_of
from mt_train.tracking.logs import show
from mt_train.tracking.metrics import without_nan
from mt_train.version import describe_version

if TYPE_CHECKING:
    pass

HEAD = """usage: mt-eval --run RUN [--checkpoints last|best|all] [--dataset NAME …] [--evaluations NAME,…]
       mt-eval --weights FOLDER [--model NAME] --dataset NAME --dataset.path PATH
       mt-eval --weights FOLDER [--model NAME] --evaluations NAME --evaluations.NAME.KEY VALUE

Evaluates on the run's held-out rows, or on every row of another dataset. A token's loss counts where the objective trains on it.
With --evaluations only what these ask, and rows that are named.

  --run RUN                  a run's folder
  --checkpoints WHICH        last (default), best (by checkpoint.best), all, or steps: 100,200
  --weights FOLDER           pretrained weights instead of a run; config.json names the family, or --model NAME
  --adapter-folder FOLDER    an adapter over --weights: a folder that peft or mt-export wrote, or a run
  --averaged NAME            with the averaged weights of this callback (ema, swa)
  --dtype auto|fp32|bf16|fp16
                             precision of the weights; auto: on a GPU that of the run or of the folder, on a CPU fp32
  --quantizer NAME           with --weights: linear layers in fewer bits (nf4, fp4, int8); options as --quantizer.KEY
  --on LABEL=DATASET:PATH    rows to evaluate on; repeated for several, each with its own line
  --dataset NAME, --data.…   the rows, as for mt-train; also --objective, --tokenizer, --train.sequence-len
  --evaluations NAME,…       evaluations that are installed (mt-plugins list --components); options as --evaluations.NAME.KEY
  --dry-run                  with --evaluations: count requests and tokens, show prompts, and load no weights
  --eval.batch-size N        rows at a time
  --predictions              write predictions.jsonl: each sample's loss and the likeliest tokens, each question's answer
  --output FOLDER            where metrics.json goes; default RUN/eval/NNN (none writes no file)
  --block-plugin NAME        do not import this plugin
  --completion bash|zsh|fish print what completes this in a shell
  --debug, --version, --help

Examples:
  mt-eval --run runs/first --checkpoints all
  mt-eval --weights weights --dataset jsonl --dataset.path rows.jsonl"""

SWITCHES = ("predictions", "dry_run", "debug", "version", "help")
VALUES = ("run", "checkpoints", "weights", "adapter_folder", "averaged", "dtype", "output", "completion")
REPEATED = ("block_plugin", "on")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    return run_command(lambda: _eval(words), debug="--debug" in words)


def _eval(words: list[str]) -> int:
    words = ["--help" if word == "-h" else word for word in words]
    flags = parse_flags(words, switches=SWITCHES, values=VALUES, repeated=REPEATED)
    if "version" in flags or "help" in flags:
        print(describe_version("mt-tools") if "version" in flags else HEAD)
        return 0
    host = discover_plugins(flags.get("block_plugin", []))
    if "completion" in flags:
        values = (*VALUES, *REPEATED)
        print(write_completion("mt-eval", flags["completion"], host, switches=SWITCHES, values=values))
        return 0
    line = parse(words, switches=SWITCHES, values=VALUES, repeated=REPEATED, kinds=host.kinds)
    dtype = _dtype(line)
    jobs = list(_jobs(line, host))
    if "dry_run" in flags:
        show("\n".join(dict.fromkeys(describe_requests(job.parts) for job in jobs if job.dataset is None)))
        return 0
    output = _output(line)
    wanted = "predictions" in line.flags
    results, predictions = measure(jobs, wanted=wanted, averaged=line.flags.get("averaged"), dtype=dtype)
    if on_rows := [result for result in results if "dataset" in result]:
        show(rows_table(on_rows))
    if asked := [result for result in results if "evaluation" in result]:
        show(evaluations_table(asked))
    if output is not None:
        _write(output, results, predictions, wanted=wanted)
    return 0


def _dtype(line: CommandLine) -> str:
    wished: str = line.flags.get("dtype", line.raw.get("train", {}).get("dtype", "auto"))
    if wished not in DTYPES:
        raise UsageError(f"--dtype is one of {', '.join(DTYPES)}; got {wished}")
    return wished


def _jobs(line: CommandLine, host: PluginHost) -> Iterator[Job]:
    """Everything is resolved, and every path looked at, before a model is built."""
    sets = [_parse_label(text) for text in line.flags.get("on", [])]
    labels = [label for label, _ in sets]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise UsageError(f"--on names {twice!r} twice; give each set of rows a label of its own")
    if sets and "dataset" in line.raw:
        raise UsageError("--on and --dataset both name rows; keep one of them")
    if "dry_run" in line.flags and not line.raw.get("evaluations"):
        raise UsageError("--dry-run counts what evaluations ask; name some with --evaluations NAME")
    folder = line.flags.get("adapter_folder")
    adapter = None if folder is None else Path(expand(folder))
    for checkpoint, stored in _models(line):
        yield from jobs_of(checkpoint, stored, line.raw, host, sets, adapter=adapter)


def _parse_label(text: str) -> tuple[str, dict[str, str]]:
    label, equals, rest = text.partition("=")
    name, colon, path = rest.partition(":")
    if not (label and equals and name and colon and path):
        rows = path or name or label or "news.jsonl"
        reader = (name if path else reader_of({"path": rows})) or "jsonl"
        meant = f"{label if equals and label else 'test'}={reader}:{rows}"
        raise UsageError(f"--on {text!r} is not LABEL=DATASET:PATH, for instance --on {meant}")
    return label, {"name": name, "path": path}


def _models(line: CommandLine) -> list[tuple[Path | None, dict[str, Any]]]:
    """The checkpoints, or the weights, with the config that belongs to them."""
    run, weights = line.flags.get("run"), line.flags.get("weights")
    if (run is None) == (weights is None):
        given = "both" if run else "none"
        raise UsageError(f"give one of --run RUN, or --weights FOLDER; got {given}")
    if "adapter_folder" in line.flags and weights is None:
        raise UsageError("--adapter-folder belongs to --weights; a run has its own adapter")
    if weights is not None:
        if "checkpoints" in line.flags:
            raise UsageError("--checkpoints are those of a --run; --weights has none")
        return [(None, {"model": {"name": line.raw.get("model", {}).get("name"), "weights": expand(weights)}})]
    if "model" in line.raw:
        raise UsageError("--run brings its own model; leave out --model")
    folder = Path(expand(run))
    found = chosen_checkpoints(folder, line.flags.get("checkpoints", "last"))
    return [(checkpoint, run_config(checkpoint)) for checkpoint in found]


def _output(line: CommandLine) -> Path | None:
    given = line.flags.get("output")
    if given == "none" or (given is None and "run" not in line.flags):
        return None
    if given is None:
        folder = find(Path(expand(line.flags["run"]))).parent.parent / "eval"
        if folder.is_symlink():
            raise UsageError(f"{folder} is a link, which may lead anywhere; remove it, or choose another --output")
        return next_number(folder)
    folder = Path(expand(given))
    there = next((path for path in (folder, *folder.absolute().parents) if path.exists()), folder)
    if not there.is_dir():
        raise UsageError(
            f"--output {folder} cannot be a folder: {there} is a file; name another, or none to write no file"
        )
    if os.path.lexists(folder / "metrics.json"):
        raise UsageError(f"{folder} holds the metrics of an earlier evaluation; choose another --output")
    return folder


def _write(output: Path, results: list[dict[str, Any]], predictions: list[dict[str, Any]], *, wanted: bool) -> None:
    output.mkdir(parents=True, exist_ok=True)
    content = _json({"schema": 1, "core": core_version, "results": results}, indent=1)
    replace_text(output / "metrics.json", content + "\n")
    if wanted:
        lines = [_json(each, ensure_ascii=False) + "\n" for each in predictions]
        replace_text(output / "predictions.jsonl", "".join(lines))
    if wanted and not predictions:
        notice(
            "notice: predictions.jsonl has no line, as this loss is no mean over tokens; --objective sft compares the tokens of answers"
        )
    notice(f"written: {output}/metrics.json" + (f", {output}/predictions.jsonl" if wanted else ""))


def _json(content: Any, **how: Any) -> str:
    """Return JSON, with null for a number that is none, as in metrics.jsonl: JSON has no word for it."""
    return json.dumps(without_nan(content), allow_nan=False, **how)


if __name__ == "__main__":
    sys.exit(main())
