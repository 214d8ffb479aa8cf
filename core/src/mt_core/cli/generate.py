"""``mt-generate``: new text on standard output, everything else on standard error."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mt_core import __version__
from mt_core.cli.guard import guarded
from mt_core.config.files import read_config
from mt_core.errors import UsageError
from mt_core.plugins.host import PluginHost
from mt_core.plugins.metadata import Selection
from mt_core.plugins.resolve import Resolved, resolve
from mt_core.tracking.logs import notice


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = _parser().parse_args(argv)
    return guarded(lambda: _generate(arguments), debug=arguments.debug)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mt-generate", description="Continue a prompt with a trained model.")
    source = parser.add_argument_group("the model")
    source.add_argument("--run", type=Path, metavar="RUN", help="folder of a run: its last checkpoint is used")
    source.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="one checkpoint of a run, instead of --run")
    source.add_argument("--model", metavar="NAME", help="a model family, with --weights")
    source.add_argument("--weights", type=Path, metavar="FOLDER", help="pretrained weights that the family reads")
    source.add_argument("--tokenizer", metavar="NAME", help="with --weights; default: the one in their folder")
    source.add_argument("--tokenizer-path", metavar="PATH", help="file or folder of that tokenizer")
    text = parser.add_argument_group("the text")
    text.add_argument("--prompt", required=True, help="text to continue")
    text.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="tokens at most (default: 128)")
    text.add_argument("--greedy", action="store_true", help="always the likeliest token")
    text.add_argument("--temperature", type=float, default=1.0, metavar="X", help="below 1 is safer (default: 1)")
    text.add_argument("--top-k", type=int, metavar="K", help="only the K likeliest tokens")
    text.add_argument("--top-p", type=float, metavar="P", help="only the likeliest tokens that add up to P")
    text.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the choice (default: 0)")
    parser.add_argument("--block-plugin", action="append", default=[], metavar="NAME", help="do not import this plugin")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.add_argument("--version", action="version", version=f"mt-core {__version__}")
    return parser


def _generate(arguments: argparse.Namespace) -> int:
    _check(arguments)
    resolved, checkpoint = _resolved(arguments)
    import torch

    from mt_core.generate.decode import generate, stream_text
    from mt_core.generate.load import load
    from mt_core.generate.sampling import SamplingRules

    loaded = load(resolved, checkpoint, notice)
    tokenizer, limit = loaded.tokenizer, resolved.config.model.options.max_seq_len
    ids = tokenizer.encode(arguments.prompt)
    ids = ids if tokenizer.bos_id is None else [tokenizer.bos_id, *ids]
    if len(ids) >= limit:
        raise UsageError(f"the prompt has {len(ids)} tokens, and the model takes {limit} with the new ones; shorten it")
    count = min(arguments.max_new_tokens, limit - len(ids))
    rules = SamplingRules(
        greedy=arguments.greedy, temperature=arguments.temperature, top_k=arguments.top_k, top_p=arguments.top_p
    )
    device = next(loaded.model.parameters()).device
    dice = torch.Generator(device).manual_seed(arguments.seed)
    tokens = generate(loaded.model, ids, max_new_tokens=count, rules=rules, eos_id=tokenizer.eos_id, generator=dice)
    for piece in stream_text(tokenizer, tokens):
        print(piece, end="", flush=True)
    print()
    if count < arguments.max_new_tokens:
        notice(f"notice: stopped at the model's {limit} tokens, {arguments.max_new_tokens - count} short of the wish")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if not arguments.prompt:
        raise UsageError("the prompt is empty; give some text to continue, for instance --prompt 'The '")
    chosen = [name for name in ("run", "checkpoint", "weights") if getattr(arguments, name) is not None]
    if len(chosen) != 1:
        raise UsageError(
            f"give one of --run, --checkpoint, or --model with --weights; got {', '.join(chosen) or 'none'}"
        )
    if arguments.weights is not None and arguments.model is None:
        raise UsageError("--weights needs the family that reads them: --model NAME")
    bounds = {
        "--max-new-tokens": (arguments.max_new_tokens > 0, "at least 1"),
        "--temperature": (arguments.temperature > 0, "above 0; --greedy takes the likeliest token"),
        "--top-k": (arguments.top_k is None or arguments.top_k > 0, "at least 1"),
        "--top-p": (arguments.top_p is None or 0 < arguments.top_p <= 1, "above 0 and at most 1"),
    }
    if wrong := [f"{option} must be {allowed}" for option, (fine, allowed) in bounds.items() if not fine]:
        raise UsageError("; ".join(wrong))


def _resolved(arguments: argparse.Namespace) -> tuple[Resolved, Path | None]:
    host = PluginHost.discover(Selection.from_environment(arguments.block_plugin))
    for text in host.notices:
        notice(f"warning: {text}")
    if arguments.weights is not None:
        raw: dict[str, Any] = {"model": {"name": arguments.model, "weights": str(arguments.weights)}}
        if arguments.tokenizer:
            path = {"path": arguments.tokenizer_path} if arguments.tokenizer_path else {}
            raw["tokenizer"] = {"name": arguments.tokenizer, **path}
        raw["train"] = {"sequence_len": 2}  # generation has no rows; the shortest one fits any context
        return resolve(raw, host), None
    from mt_core.checkpoint.store import find

    checkpoint = find(arguments.run or arguments.checkpoint)
    return resolve(read_config(checkpoint.parent.parent / "run.yaml"), host), checkpoint


if __name__ == "__main__":
    sys.exit(main())
