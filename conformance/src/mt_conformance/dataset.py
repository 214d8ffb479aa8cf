"""Conformance of a dataset: the same rows in the same order, for any number of ranks, from any place on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from mt_conformance import tiny, trainer
from mt_conformance.base import BasePluginConformance
from mt_conformance.dataset_rows import digest_of, error_of, errors_of, ids_of, rows_of_process, tokens_of
from mt_conformance.host import hermetic_host
from mt_conformance.layouts import small_run
from mt_core.components import DatasetComponent
from mt_core.errors import DataError
from mt_core.plugins.host import PluginHost
from mt_core.protocols import Dataset, Repeating, Stream
from mt_core.rows import Row

MOST = 40
"""Rows that are looked at."""

BLOCK = 3
"""Rows of a stream that are shuffled together: so few that a resume goes by the stream's own state after the first ones."""

CHUNK = 4
"""Rows that a process encodes at a time: so few that there is work for two."""

Seen = tuple[tuple[str, ...], tuple[Any, ...]]
"""A step: the ids of its rows, and the tokens that this rank trains on."""


class BaseDatasetConformance(BasePluginConformance):
    """Checks of a dataset. ``options_in`` writes a few rows (5 to 40) into files; ``objective`` names one that can encode them.

    Opt-in: ``bad_options_in``, files of which one row is bad.
    """

    kind = "dataset"
    objective: str | Mapping[str, Any] = "pretrain"
    columns: Mapping[str, str] = {}
    """``data.columns``: our field name → the one in the rows."""
    row_count: int = 0
    """Rows that ``options_in`` writes; 0 leaves out the check that the dataset has as many."""
    bad_row: str = ""
    """Text that the message about the bad row must contain: its place (``rows.jsonl:2``)."""

    def bad_options_in(self, folder: Path) -> Mapping[str, Any] | None:
        """Options for files of which one row is bad (and ``bad_row`` says where); ``None`` leaves the check out."""
        return None

    # ------------------------------------------------------------------------------------------------ what is tested

    def source(self, host: PluginHost, folder: Path, split: str = "train") -> Dataset | Stream:
        """Open the dataset as a run does."""
        built = self.part(host, folder).build(split=split)
        assert isinstance(built, Dataset | Stream), (
            f"build(config, split={split!r}) returned a {type(built).__name__}; it must return a Dataset (len, row), a Stream"
            " (rows, state_dict, load_state_dict)"
        )
        return built

    def rows(self, source: Dataset | Stream, backwards: bool = False) -> list[Row]:
        """The first rows; ``backwards`` asks for the last of them first, where that is possible."""
        if isinstance(source, Stream):
            return [row for row in islice(source.rows(0, 0), MOST) if not isinstance(row, DataError)]
        indices = range(min(len(source), MOST))
        found = {index: source.row(index) for index in (reversed(indices) if backwards else indices)}
        return [found[index] for index in indices]

    def steps(
        self,
        folder: Path,
        *,
        at: trainer.Position | None = None,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        **data: Any,
    ) -> Iterator[tuple[Seen, trainer.Window]]:
        """The optimizer steps of one epoch, of ``world`` rows each, as a run reads them."""
        host = hermetic_host(tiny, self.plugin)
        options = dict(self.options_in(folder))
        keys = {"eval": None, "cache": None, "read_rows": MOST, "shuffle_buffer": BLOCK, "batching": "padding"}
        raw = small_run(
            dataset={"name": self.name, **options},
            objective=self.objective,
            data={**keys, "truncation": "right", "columns": self.columns, **data},
            train={"steps": 4, "sequence_len": 256, "micro_batch_size": 1, "global_batch_size": world, "seed": seed},
        )
        parts = trainer.Parts.of(trainer.resolve(raw, host))
        plan = trainer.make_plan(parts.config, world=world, device="cpu", offers=parts.offers.values())
        process = trainer.Process(rank, world, rank, torch.device("cpu"))
        with patch.dict(os.environ, {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}):
            built = trainer.build_data(parts)
        loader = trainer.make_loader(parts.config, built, plan, process)
        place = at or trainer.Position()
        for window in islice(loader.windows(place), 3 * MOST):
            ended = window.after.epoch > place.epoch
            if ended and (window.after.row or window.after.block):
                return  # the end of a stream's epoch shows when the next one has begun
            yield (window.row_ids, tuple(map(tokens_of, window.batches))), window
            if ended:
                return

    def epoch_steps(self, folder: Path, **how: Any) -> list[Seen]:
        """Return the steps of an epoch."""
        found = [each for each, _ in self.steps(folder, **how)]
        assert len(found) >= 3, (
            f"an epoch has {len(found)} samples; write some more rows in options_in (5 to {MOST}), or set `objective` (now"
            f" {self.objective!r}) and `columns` so that they can be encoded"
        )
        return found

    # ------------------------------------------------------------------------------------------------------------ checks

    def test_every_row_has_an_id_of_its_own(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Ids are unique, such as file and line: messages and reports use them to name rows."""
        source = self.source(mt_host, tmp_path)
        rows = self.rows(source)
        assert rows, "it gives no rows; write a few in options_in"
        for number, row in enumerate(rows):
            has_id = isinstance(row, Mapping) and isinstance(row.get("id"), str) and row["id"].strip()
            assert has_id, (
                f"row {number} is {str(dict(row) if isinstance(row, Mapping) else row)[:200]}; a row is a mapping with an `id`, a"
                " text that says where it is (file and line)"
            )
        ids = [row["id"] for row in rows]
        twice = sorted({each for each in ids if ids.count(each) > 1})
        assert not twice or isinstance(source, Repeating), (
            f"{len(twice)} ids are those of several rows, such as {twice[:3]}; each row needs its own (a dataset that repeats"
            " rows on purpose has originals())"
        )
        count = len(source) if isinstance(source, Dataset) else len(rows)
        assert self.row_count in (0, count), (
            f"it has {count} rows, and options_in writes {self.row_count}; look at the first and the last one, which a"
            " header or a missing line"
            " break take away"
        )
        if isinstance(source, Dataset):
            error = error_of(source, count - 1)
            assert error is None, f"len() is {count}, and row({count - 1}) raised {type(error).__name__}: {error}"
        if isinstance(source, Dataset) and callable(sources := getattr(source, "sources", None)):
            counted = sum(count for _, count in sources())
            assert counted == len(source), (
                f"sources() has {counted} rows, and the dataset {len(source)}; it gives name and number of rows of each source, in the"
                " order of the indices"
            )

    def test_rows_are_the_same_whenever_they_are_asked_for(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Rows are the same in reverse order, when read again, and in another process, since every rank reads for itself."""
        source = self.source(mt_host, tmp_path)
        first = [dict(row) for row in self.rows(source)]
        others = {
            "asked for backwards": self.rows(source, backwards=True),
            "of a dataset built anew": self.rows(self.source(mt_host, tmp_path)),
        }
        for how, rows in others.items():
            again = [dict(row) for row in rows]
            wrong = [number for number, pair in enumerate(zip(first, again, strict=False)) if pair[0] != pair[1]]
            assert again == first, (
                f"{how}, {f'row {wrong[0]} is another' if wrong else 'there are other rows'}; a row follows from the options, the"
                " files and its index (of a stream: from epoch and seed) alone, without random state"
            )

    def test_rows_are_the_same_in_a_process_with_other_hashes(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Rows and their order do not depend on ``hash()`` of a text or the order of a set, which differ from process to process."""
        trainer.require()
        config = self.config(mt_host, tmp_path)
        if self.component(mt_host).parts is not None:
            pytest.skip("it is made of others, which have tests of their own")
        found = rows_of_process(self.plugin.__name__, self.name, config, MOST)
        rows = [dict(row) for row in self.rows(self.source(mt_host, tmp_path))]
        wrong = [number for number, pair in enumerate(zip(rows, found, strict=False)) if digest_of(pair[0]) != pair[1]]
        assert len(rows) == len(found) and not wrong, (  # noqa: PT018 - one sentence for both
            "in another process"
            f" {f'row {wrong[0]} is another' if wrong else f'there are {len(found)} rows, and {len(rows)} here'}; hash() of"
            " a text and the order of a set differ from process to process: sort, and use hashlib"
        )

    def test_the_order_follows_from_the_seed(self, tmp_path: Path) -> None:
        """Rows have one order for a seed, and another order for another seed."""
        one, same, other = (self.epoch_steps(tmp_path, seed=seed) for seed in (1, 1, 2))
        wrong = [step for step, pair in enumerate(zip(one, same, strict=False)) if pair[0] != pair[1]]
        assert one == same, (
            f"two runs of one seed have other rows, first in step {wrong[0] + 1 if wrong else len(one)}; the rows must follow"
            " from the options, the files, epoch and seed"
        )
        assert len(one) < 5 or one != other, "seeds 1 and 2 give the same order; rows(epoch, seed) has to use its seed"

    def test_each_epoch_has_an_order_of_its_own(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """A stream that shuffles by its seed has another order in each epoch. (The core shuffles datasets that are not streams.)"""
        source = self.source(mt_host, tmp_path)
        if not isinstance(source, Stream):
            pytest.skip("rows that are found by their number are shuffled by mt-core")
        first, second, again = (self.order(source, epoch) for epoch in (0, 1, 0))
        fresh = self.order(self.source(mt_host, tmp_path), 1)
        assert [first, second] == [again, fresh], (
            "an epoch has other rows behind another one than from a new object, as in a resumed run; the rows follow from epoch"
            " and seed: keep nothing of one epoch for the next"
        )
        shuffles = len(first) >= 5 and first != self.order(source, 0, seed=2)
        assert not shuffles or first != second, (
            "another seed gives another order, and another epoch the same one; rows(epoch, seed) has to shuffle by both, as in"
            " random.Random(f'{seed}:{epoch}')"
        )

    def order(self, source: Any, epoch: int, *, seed: int = 1) -> list[str]:
        """The ids of the first rows of an epoch of a stream."""
        return [row["id"] for row in islice(source.rows(epoch, seed), MOST) if not isinstance(row, DataError)]

    def test_ranks_share_the_rows_without_loss_or_overlap(self, tmp_path: Path) -> None:
        """Two ranks together have every row of the epoch once."""
        whole = [tokens for (_, batches), _ in self.steps(tmp_path) for tokens in batches]
        parts = [[batches for (_, batches), _ in self.steps(tmp_path, rank=rank, world=2)] for rank in (0, 1)]
        assert len(parts[0]) == len(parts[1]), (
            f"rank 0 has {len(parts[0])} steps and rank 1 {len(parts[1])}; ranks that have other rows would wait for each other"
            " for ever: rows may not depend on the rank"
        )
        joined = [tokens for pair in zip(*parts, strict=True) for batches in pair for tokens in batches if tokens]
        assert joined == whole, (
            "what two ranks read, put together, is not what one reads. The core shares the rows out: give every process the same"
            " ones (no RANK, no WORLD_SIZE, no random state in the dataset)"
        )

    def test_it_goes_on_exactly_from_every_row(self, tmp_path: Path) -> None:
        """A run that stopped after any row of the first epoch, or after some of the second, continues with the next row."""
        for epoch, each in ((0, 1), (1, 4)):
            steps = list(islice(self.steps(tmp_path, at=trainer.Position(epoch)), 12))
            for number in range(1, len(steps), each):
                after = steps[number - 1][1].after
                rest = [seen for seen, _ in islice(self.steps(tmp_path, at=after), len(steps) - number)]
                wanted = [seen for seen, _ in steps[number:]]
                assert rest == wanted, (
                    f"stopped after row {number} of epoch {epoch} (from 0) and resumed, the next row is"
                    f" {rest[0][0] if rest else 'none'}, and {wanted[0][0]} without the stop. state_dict() is asked for between"
                    " rows, and load_state_dict() of a new object must bring it to the same place"
                )

    def test_processes_that_encode_rows_do_not_change_the_order(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """With ``data.workers`` the order is the same, if the dataset declares its files."""
        component, config = self.component(mt_host), self.config(mt_host, tmp_path)
        if not isinstance(component, DatasetComponent) or component.parts or component.files(config, "train") is None:
            pytest.skip("it names no files, so its rows are encoded in the process that trains")
        if not trainer.can_fork():
            pytest.skip("rows are encoded by several processes on Linux only, and where no other thread runs")
        with patch("mt_train.data.chunks.CHUNK_ROWS", CHUNK):
            alone, shared = (
                self.epoch_steps(tmp_path, cache=str(tmp_path / f"cache-{workers}"), workers=workers)
                for workers in (1, 2)
            )
        assert alone == shared, (
            "encoded by two processes, other rows come than by one; a row follows from its index alone"
        )

    def test_its_splits_and_files_are_there(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """``build`` returns rows or ``None`` for the split ``eval``, and ``files`` names existing files."""
        component, part = self.component(mt_host), self.part(mt_host, tmp_path)
        held_out = part.build(split="eval")
        assert held_out is None or isinstance(held_out, Dataset | Stream), (
            f"build(config, split='eval') returned a {type(held_out).__name__}; return a Dataset, a Stream, or None where there is"
            " no such split"
        )
        shared = (
            set() if held_out is None else ids_of(self.rows(held_out)) & ids_of(self.rows(part.build(split="train")))
        )
        assert not shared, (
            f"the split 'eval' has rows of the split 'train', such as {min(shared)}; what is trained on says nothing as"
            " held-out rows: return"
            " None where there is no such split, and rows are held out"
        )
        if isinstance(component, DatasetComponent) and component.parts is None:
            files: Sequence[Path] = component.files(part.options, "train") or ()
            lost = [str(path) for path in files if not Path(path).exists()]
            assert not lost, (
                f"files(config, 'train') names {', '.join(lost)}, which is not there; it names what is read"
            )

    def test_a_bad_row_is_reported_with_its_place(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Optional: the bad row, and no other, raises an error that names its place."""
        options = self.bad_options_in(tmp_path)
        if options is None:
            pytest.skip("opt-in: override bad_options_in(folder) with files of which one row is bad, and set bad_row")
        said = []
        for error in errors_of(self.component(mt_host), options):
            assert isinstance(error, DataError), (
                f"a bad row raised {type(error).__name__}: {error}; raise mt_core.DataError with file and line, so that"
                " data.on_bad_row=skip can pass over it"
            )
            said.append(str(error))
        assert len(said) == 1, f"{len(said)} rows were reported, and one is bad: {said[:3]}"
        assert self.bad_row in said[0], f"the message does not say where ({self.bad_row!r}): {said[0]}"
