"""The summary at the end of a run: what came of it, and what to do next."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mt_core.data.text_ids import begin_ids
from mt_core.errors import DataError
from mt_core.protocols import Tokenizer
from mt_core.tracking.logs import notice
from mt_train.assemble.data import RunData
from mt_train.assemble.media import run_template
from mt_train.assemble.outcome import Outcome
from mt_train.assemble.parts import Parts
from mt_train.config.sections import TrainConfig
from mt_train.data.media.rules import FILES
from mt_train.data.templates import jinja_source
from mt_train.evaluate.figures import prompt_ids
from mt_train.tracking.console import duration
from mt_train.tracking.logs import show
from mt_train.tracking.loss_units import loss_unit_of


def show_summary(outcome: Outcome, parts: Parts, data: RunData, total_steps: int, *, from_step: int = 0) -> None:
    """Show how the run ended, and commands that go on from there. ``from_step`` is the step after which it was resumed."""
    if data.stream is not None:
        show(f"of the stream, read in this run: {data.stream.report.describe()}")
    if outcome.stopped:
        _say_stopped(outcome, total_steps)
        return
    unit = loss_unit_of(data.objective)
    loss = "" if outcome.eval_loss is None else f", held-out loss {outcome.eval_loss:.4f} {unit}".rstrip()
    early = f" of {total_steps}" if outcome.steps < total_steps else ""
    now = f", {outcome.steps - from_step} of them now," if from_step else ""
    show(f"done: {outcome.steps}{early} step{'s' * (total_steps != 1)}{now} in {duration(outcome.seconds)}{loss}")
    if from_step > total_steps:
        notice(
            f"notice: the run had made more than {total_steps:,} steps before, so none was trained now; ask for more of them"
        )
    if text := parts.offers["dataset"].component.notice:
        notice(f"notice: {text}")
    if outcome.output is None:
        return
    show(f"run folder: {outcome.output}")
    show("next:")
    if parts.objective_component.head == "own":  # there is no language head that it has trained
        show(f"  mt-eval --run {outcome.output}")
    else:
        show(f"  mt-generate --run {outcome.output} {_input_to_try(data, parts)}")
    show(f"  mt-train --resume {outcome.output} {_twice_as_long(parts.config.train, total_steps, outcome.steps)}")


def _twice_as_long(train: TrainConfig, total_steps: int, steps: int) -> str:
    """Return the option for a run twice as long, in the unit of the config: twice what it was to have, also where it ended early, or
    what it has made, where that is more."""
    if not train.epochs:
        return f"--train.steps {2 * max(total_steps, steps)}"
    epochs = 2 * train.epochs if steps <= total_steps else math.ceil(2 * train.epochs * steps / total_steps)
    return f"--train.epochs {epochs:g}"


def _input_to_try(data: RunData, parts: Parts) -> str:
    """Return the options of ``mt-generate`` that ask as the rows do: in a conversation, or with a prompt that fits on a line and
    a file for each of its media.
    """
    sample = data.train[0]
    ids, reads = prompt_ids(sample), {each.name: min(each.component.reads) for each in parts.encoders}
    if not parts.encoders and _converses(ids, data.tokenizer, parts):
        return "--chat"
    asked = [span for span in sample.media if span.start < len(ids)]
    pieces, done = [], 0
    for span in asked:
        pieces += [data.tokenizer.decode(ids[done : span.start]), f"<{reads[span.item.encoder]}>"]
        done = span.start + span.tokens
    text = "".join([*pieces, data.tokenizer.decode(ids[done:])]) if len(ids) > 1 else ""
    fits = 0 < len(text) <= 80 and text.isprintable() and not set(text) & set('"$`\\!')
    kinds = [reads[span.item.encoder] for span in asked]
    given = "".join(f" --media {kind}={'FILE' if kind in FILES else 'LETTERS'}" for kind in kinds)
    return f'--prompt "{text}"{given}' if fits else '--prompt "The "'


def _converses(ids: Sequence[int], tokenizer: Tokenizer, parts: Parts) -> bool:
    """Return whether a prompt begins as a turn of the run's template does, and not with its text."""
    if len(ids) < 2 or jinja_source(tokenizer, parts.config.data) is None:
        return False
    try:
        turn = run_template(parts, tokenizer).prompt([{"role": "user", "content": "Hello"}])
    except DataError:  # ``mt-generate --chat`` begins like this, and would be refused as well
        return False
    first = len(begin_ids(tokenizer)) + 1
    return list(ids[:first]) == list(turn[:first])


def _say_stopped(outcome: Outcome, total_steps: int) -> None:
    place = "nothing is saved (output none)" if outcome.output is None else "nothing is saved; start it again"
    if outcome.output is not None and outcome.steps:
        place = f"saved; go on with: mt-train --resume {outcome.output}"
    notice(f"stopped by {outcome.stopped} after step {outcome.steps} of {total_steps}: {place}")
