"""Models under evaluation: a loaded one, and the one of a run, on every layout.

Shapes: P pairs of a place and a token (``requests``), k likeliest tokens of a place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict

import numpy as np
import torch
from numpy.typing import NDArray

from mt_core.errors import StopNow, UsageError
from mt_core.evaluation import Continuation, Score, TokenValues
from mt_core.generation import Generation, GenerationConfig
from mt_core.protocols import Template
from mt_core.rows import Row, Sample
from mt_train.engine.engine import Engine
from mt_train.engine.lock_step import forwards_of
from mt_train.engine.processes import agree, all_reduce, gather_texts
from mt_train.evaluate.paper import Encode
from mt_train.evaluate.reading import read_values
from mt_train.evaluate.requests import Requests, width
from mt_train.evaluate.scoring import Scorer
from mt_train.generation.continuation import continue_prompts
from mt_train.generation.forward import Forward, last_logits
from mt_train.generation.loaded_model import LoadedModel
from mt_train.generation.request import PromptIds

WINDOW_BATCHES = 64
"""Batches of rows, on each rank, between two questions whether the run is to stop."""


Write = Callable[[Sequence[PromptIds], GenerationConfig, Sequence[int]], list[Generation]]
"""Continues prompts of one rank, which have these numbers among all."""


class EvaluationStopped(StopNow):
    """The run is to stop: the evaluation ends here, and is owed. Nothing on the way takes it for a failure."""


class LoadedSubject:
    """A model that this process has for itself (``mt_core.evaluation.Subject``)."""

    texts = True
    ends_turns = False
    """Whether every text ends where a turn of the template does, so that nobody has to ask for it."""

    def __init__(self, loaded: LoadedModel, template: Template, encode: Encode, *, batch_size: int) -> None:
        self._loaded, self._encode, self._batch_size = loaded, encode, batch_size
        self.tokenizer, self.template = loaded.tokenizer, template
        self.max_seq_len, self.eos_ids = loaded.max_seq_len, loaded.eos_ids
        self.requests = 0
        """Scores and texts that were asked for."""

    def score(self, requests: Sequence[Continuation]) -> list[Score]:
        """See ``Subject``."""
        self.requests += len(requests)
        asked = Requests.of_continuations(requests, self.max_seq_len)
        return asked.scores(self._values(asked, 1))

    def token_values(self, samples: Sequence[Sample], *, top: int = 1) -> list[TokenValues]:
        """See ``Subject``."""
        self.requests += len(samples)
        asked = Requests.of_samples(samples, self.max_seq_len)
        return asked.token_values(self._values(asked, top), top)

    def generate(self, prompts: Sequence[PromptIds], config: GenerationConfig) -> list[Generation]:
        """See ``Subject``."""
        self.requests += len(prompts)
        return self._continue(prompts, config, range(len(prompts)))

    def encode(self, rows: Iterable[Row]) -> list[Sample]:
        """See ``Subject``."""
        return self._encode(rows)

    def prepare(self, row: Row) -> Row:
        """See ``Subject``."""
        return self._encode.prepare(row)

    def _values(self, asked: Requests, top: int) -> NDArray[np.float64]:
        """(P, ``width(k)``) values of all pairs."""
        return Scorer(self._loaded.model, batch_size=self._batch_size, top=top).values(asked)

    def _continue(
        self,
        prompts: Sequence[PromptIds],
        config: GenerationConfig,
        indices: Sequence[int],
        forward: Forward = last_logits,
    ) -> list[Generation]:
        was_training = self._loaded.model.training
        # a search takes no stop texts, so that it has to know where turns end
        template = self.template if self.ends_turns or config.rules.num_beams > 1 else None
        size = self._batch_size
        try:
            return continue_prompts(
                self._loaded, prompts, config, batch_size=size, indices=indices, template=template, forward=forward
            )
        finally:
            self._loaded.model.train(was_training)


class LiveSubject(LoadedSubject):
    """The model of a run. Every rank asks the same; each computes its share, and all get all answers.

    Raises ``EvaluationStopped`` on all ranks when ``stop`` says so on one of them.
    """

    def __init__(
        self,
        engine: Engine,
        loaded: LoadedModel,
        template: Template,
        encode: Encode,
        *,
        batch_size: int,
        stop: Callable[[], bool],
    ) -> None:
        super().__init__(loaded, template, encode, batch_size=batch_size)
        self._engine, self._stop = engine, stop
        self.texts = engine.plan.writes_texts

    def _values(self, asked: Requests, top: int) -> NDArray[np.float64]:
        values_PX = np.zeros((len(asked.pairs_P3), width(top)))
        plan, rank = self._engine.plan, self._engine.process.rank
        for window in asked.windows(WINDOW_BATCHES * self._batch_size * plan.data_ranks):
            self._refuse_to_go_on()
            if plan.forward_alone:
                share = window.share(plan.data_rank(rank), plan.data_ranks)
                values_PX[share.numbers] = super()._values(share, top)
            else:
                numbers, values = read_values(self._engine, window, batch_size=self._batch_size, top=top)
                values_PX[window.numbers[numbers]] = values
        device = self._engine.process.device
        summed: NDArray[np.float64] = all_reduce(torch.from_numpy(values_PX).to(device)).cpu().numpy()
        return summed

    def generate(self, prompts: Sequence[PromptIds], config: GenerationConfig) -> list[Generation]:
        """See ``Subject``. Raises ``UsageError`` on a layout where no rank can write texts."""
        if not self.texts:
            raise UsageError(
                "texts cannot be generated in a pipeline, or where ranks share rows; evaluate the checkpoint with mt-eval"
            )
        return self._generate(prompts, config, self._write)

    def _generate(self, prompts: Sequence[PromptIds], config: GenerationConfig, write: Write) -> list[Generation]:
        """Let each rank ``write`` its share of the texts, and give all of them to every rank. Collective."""
        self.requests += len(prompts)
        found: list[Generation] = []
        rank, world = self._engine.process.rank, self._engine.process.world
        size = 4 * self._batch_size * world
        for start in range(0, len(prompts), size):
            self._refuse_to_go_on()
            numbers = range(start, min(start + size, len(prompts)))
            # neighbours stay together: they may be one prompt many times, which a rank reads once
            mine = numbers[len(numbers) * rank // world : len(numbers) * (rank + 1) // world]
            written = write([prompts[number] for number in mine], config, mine)
            texts = gather_texts(json.dumps([asdict(each) for each in written]))
            found += [_generation(each) for text in texts for each in json.loads(text)]
        return found

    def _write(
        self, prompts: Sequence[PromptIds], config: GenerationConfig, indices: Sequence[int]
    ) -> list[Generation]:
        with forwards_of(self._engine, self._loaded.read_media) as forward:
            return self._continue(prompts, config, indices, forward)

    def _refuse_to_go_on(self) -> None:
        if not agree(not self._stop()):
            raise EvaluationStopped


def _generation(content: dict[str, object]) -> Generation:
    lists = {name: tuple(value) for name, value in content.items() if isinstance(value, list)}
    return Generation(**{**content, **lists})  # type: ignore[arg-type]
