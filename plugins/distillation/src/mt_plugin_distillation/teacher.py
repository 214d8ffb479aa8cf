"""The teacher: a frozen whole copy on each rank that computes a loss, loaded when it is first asked."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mt_core import UsageError, notice
from mt_train import load_run, load_weights

from .teacher_files import RUN_FILE, weight_bytes
from .tokenizers import refuse_other_tokenizer
from .whole_rows import take_own_part, whole_rows

if TYPE_CHECKING:
    from mt_core import Tokenizer
    from mt_core.nn import Batch
    from mt_train import LoadedModel

    from .options import TeacherOptions


class Teacher:
    """A model whose distribution of each token a student learns. It is read in evaluation mode, and gets no gradient."""

    def __init__(self, options: TeacherOptions, tokenizer: Tokenizer) -> None:
        """Say what it takes. Raises ``UsageError`` for a folder that is not there, or has no model."""
        self._options, self._tokenizer = options, tokenizer
        self._path = options.teacher_path.expanduser()
        self._is_run = (self._path / RUN_FILE).is_file()
        if not self._path.is_dir():
            raise UsageError(
                f"--objective.teacher-path {self._path} is no folder; give one of whole weights with their tokenizer, or a run. A model of"
                " the Hub is downloaded first: hf download NAME --local-dir FOLDER"
            )
        if not self._is_run and not any(self._path.glob("*.json")):
            raise UsageError(
                f"--objective.teacher-path {self._path} has no model; give the folder of a run (with {RUN_FILE}), or one of whole"
                " weights (mt-convert, mt-export --merge, or transformers)"
            )
        if self._is_run and options.teacher_family is not None:
            raise UsageError(
                f"--objective.teacher-path {self._path} is a run, which brings its own model; leave out teacher_family"
            )
        if not self._is_run and options.teacher_checkpoint != "last":
            raise UsageError(
                f"--objective.teacher-path {self._path} is a folder of weights, which has no checkpoints; leave out"
                f" teacher_checkpoint={options.teacher_checkpoint}, or give the folder of a run"
            )
        if os.environ.get("RANK", "0") == "0":
            size = weight_bytes(self._path, options.teacher_checkpoint) / 1e9
            notice(
                f"notice: each rank that computes a loss holds the teacher {self._path} whole ({size:.3g} GB of files),"
                " which --dry-run does not count"
            )

    @property
    def head(self) -> nn.Module:
        """The last layer, (n, E) -> logits."""
        return self._loaded.model.head

    @torch.no_grad()
    def read(self, batch: Batch) -> Tensor:
        """(B, t) -> (n, E): hidden states of the trained tokens of a batch, of whole rows wherever these are shared.

        Ranks that share rows all have to call it. Raises ``UsageError`` for a row that is longer than the teacher reads.
        """
        model = self._loaded.model
        if next(model.parameters()).device != batch.input_ids.device:
            model.to(batch.input_ids.device)
        rows = whole_rows(batch)
        self._refuse_long(rows)
        hidden_BtE = take_own_part(model(rows), batch)
        return hidden_BtE.flatten(0, 1)[batch.index_n()]

    @cached_property
    def _loaded(self) -> LoadedModel:
        options = self._options
        if self._is_run:
            found = load_run(self._path, checkpoint=options.teacher_checkpoint, dtype=options.teacher_dtype)
        else:
            found = load_weights(options.teacher_family, self._path, dtype=options.teacher_dtype)
        found.model.eval().requires_grad_(False)
        refuse_other_tokenizer(self._tokenizer, found, self._path)
        return found

    def _refuse_long(self, rows: Batch) -> None:
        """Padding behind a document goes on counting, and is read by nobody: only what is longer without it is refused."""
        most = self._loaded.max_seq_len
        if rows.input_ids.shape[1] <= most or rows.lengths is None:
            return
        if (longest := int(rows.lengths.max())) > most:
            raise UsageError(
                f"the teacher {self._path} reads at most {most} tokens, and a row has {longest}; set --data.max-len {most}, or take"
                " another teacher"
            )
