"""A dataset that is a stream, as a run needs it: what cannot hold for one is refused, the rest of the rows is read as it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mt_core.errors import ConfigError, Fault
from mt_core.model_protocols import Objective
from mt_core.protocols import Stream
from mt_train.config.run import RunConfig
from mt_train.data.encoding import Rules
from mt_train.data.samples import EncodedSamples
from mt_train.data.stream.blocks import Blocks
from mt_train.data.stream.reader import StreamReader
from mt_train.data.stream.shares import EncodingRanks
from mt_train.engine.node_group import gather_beside, ranks_of_node
from mt_train.engine.processes import Process
from mt_train.tracking.logs import first_notice


def refuse_for_streams(config: RunConfig, *, training: bool) -> None:
    """Raise ``ConfigError`` with every key that needs the number of rows, which nobody knows of a stream."""
    if faults := list(_faults(config, training=training)):
        raise ConfigError(faults)


def _faults(config: RunConfig, *, training: bool) -> Iterator[Fault]:
    here = f"dataset {config.dataset.name} is a stream, which has no length"
    if training and config.train.steps is None:
        yield Fault(
            key="train.steps",
            problem=f"is not set, and {here}, so that train.epochs={config.train.epochs} says no number of steps.",
            fix="Set --train.steps N; --train.max-minutes may end the run earlier.",
        )
    for name, given in (("eval", config.eval), ("checkpoint", config.checkpoint)):
        if training and given.every_epochs is not None:
            yield Fault(
                key=f"{name}.every_epochs",
                problem=f"{given.every_epochs} counts epochs, and {here}: where one ends is known when the next has begun.",
                fix=f"Set --{name}.every-steps N.",
            )
    wanted = config.data.eval
    if isinstance(wanted, float) and wanted < 1:
        yield Fault(
            key="data.eval",
            problem=f"{wanted} is a share, and {here}.",
            fix="Set --data.eval to a number of rows (the first ones are held out), a path, or none.",
        )


def open_blocks(
    config: RunConfig,
    source: Stream,
    objective: Objective,
    rules: Rules,
    *,
    held_out: int = 0,
    check: Callable[[EncodedSamples], None],
) -> Blocks:
    """The stream behind its first block. Raises ``DataError`` for a bad row, and when there is none."""
    if config.data.cache not in (None, "auto"):
        first_notice(f"notice: data.cache is of no use: dataset {config.dataset.name!r} is a stream")
    name, most = f"dataset {config.dataset.name!r}", config.data.read_rows
    reader = StreamReader(source, name, seed=config.train.seed, most=most, say=first_notice)
    return Blocks(
        reader,
        objective,
        rules,
        size=config.data.shuffle_buffer,
        held_out=held_out,
        limit=config.eval.limit,
        check=check,
    )


def share_blocks(blocks: Blocks | None, process: Process, *, timeout_seconds: int) -> None:
    """Let the ranks of each machine encode the blocks to come of a stream in shares, over a group of their own. Collective.

    Nothing is done for rows that are no stream, nor where this rank is alone on its machine.
    """
    if blocks is None or process.world == 1:
        return
    ranks = ranks_of_node(process)
    if len(ranks) > 1:
        gather = gather_beside(ranks, timeout_seconds)
        blocks.share(EncodingRanks(ranks=ranks, place=ranks.index(process.rank), gather=gather))
