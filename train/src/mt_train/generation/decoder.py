"""A decoder that steps: one token for each row that runs, while others wait, join and leave.

To be read after ``request``. A text does not depend on the rows beside it: padding is hidden, every row draws from a generator of its own,
and rules are computed row by row; in fp32 only the order of a sum may differ.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch

from mt_core.errors import UsageError
from mt_core.rows import MediaSpan
from mt_train.generation.forward import Forward, last_logits, next_batch
from mt_train.generation.intake import Intake, plan_intakes
from mt_train.generation.loaded_model import LoadedModel
from mt_train.generation.prompt_thread import PromptThread
from mt_train.generation.request import Request, Row, TokenOutput
from mt_train.generation.row_cache import RowCache
from mt_train.generation.row_sampling import extend_rows

PREFILL_TOKENS = 2048
"""Tokens of prompts for one forward, about."""
WORTH_A_FORWARD = {"cpu": 32}
"""Kind of device → tokens of padding that take about as long as a forward of their own; on a GPU there are never as many."""


class Decoder:
    """Decodes several requests at the same time; each gives the same text as alone.

    At most ``max_rows`` run at a time, and keys and values of all take at most ``max_tokens`` places of the cache (rows times the longest
    of them); the others wait in order. While rows run, prompts that are new are taken in by pieces of ``prefill_tokens`` tokens, one for
    each step; with a ``prompt_thread`` they are computed there, and enter between two steps. ``forward`` is what every computation of the
    model goes through. After an exception of it a decoder is of no more use.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        max_rows: int,
        max_tokens: int | None = None,
        prefill_tokens: int = PREFILL_TOKENS,
        forward: Forward = last_logits,
        prompt_thread: PromptThread | None = None,
    ) -> None:
        self._loaded, self._model, self._forward = loaded, loaded.model, forward
        self._max_rows, self._max_tokens, self._prefill_tokens = max_rows, max_tokens, prefill_tokens
        self._device = next(loaded.model.parameters()).device
        self._next = 0
        self._waiting: deque[Row] = deque()
        self._intakes: deque[Intake] = deque()
        self._running: list[Row] = []
        self._cache = RowCache()
        self._thread = prompt_thread
        self.prompt_tokens = 0
        """Tokens of prompts over which the model has been run so far, padding included."""

    @property
    def waiting_requests(self) -> tuple[int, ...]:
        """Numbers of the requests for which there has been no room so far."""
        return tuple(row.number for row in self._waiting)

    @property
    def running_requests(self) -> tuple[int, ...]:
        """Numbers of the requests that have a row, or get one because their prompt is being taken in."""
        entering = [
            row for intake in self._intakes for row, wanted in zip(intake.rows, intake.wanted, strict=True) if wanted
        ]
        return tuple(row.number for row in (*self._running, *entering))

    @property
    def entering_requests(self) -> tuple[int, ...]:
        """Numbers of the requests whose prompts the next step is to take in, or one after it."""
        rows = [
            row for intake in self._intakes for row, wanted in zip(intake.rows, intake.wanted, strict=True) if wanted
        ]
        return tuple(row.number for row in rows or self._admissible())

    @property
    def busy(self) -> bool:
        """Return whether a step would do something."""
        return bool(self._running or self._intakes or self._waiting)

    @property
    def held_tokens(self) -> int:
        """Places of the cache that are allocated, of ``max_tokens``."""
        return self._cache.allocated_places + sum(intake.cache.allocated_places for intake in self._intakes)

    def add(self, request: Request) -> int:
        """Queue a request, and return its number. Raises ``UsageError`` for one that can never run."""
        refuse_media(self._loaded, request.media)
        row = Row(self._next, request, self._loaded.tokenizer, self._loaded.max_seq_len)
        if not request.ids or row.most < 1:
            raise UsageError(
                f"the prompt has {len(request.ids)} tokens and is to get {request.most} more; the model takes"
                f" {self._loaded.max_seq_len} in all, of which a prompt needs one and the new ones another"
            )
        if request.rules.num_beams > 1:
            raise UsageError("a decoder has no beam search; leave num_beams out, or call continue_prompts")
        if self._max_tokens is not None and row.longest > self._max_tokens:
            raise UsageError(
                f"the prompt and its new tokens take {row.longest} places of the cache, which has {self._max_tokens}"
                " (max_tokens); shorten one of them, or raise it"
            )
        self._waiting.append(row)
        self._next += 1
        return row.number

    @torch.inference_mode()
    def cancel(self, number: int) -> None:
        """Drop a request, wherever it is. One that has ended already is no fault."""
        self._waiting = deque(row for row in self._waiting if row.number != number)
        for intake in self._intakes:
            intake.drop(number)
        # what the thread computes keeps its places until that is done, and rows do not wait for it
        computed = None if self._thread is None else self._thread.intake
        self._intakes = deque(each for each in self._intakes if any(each.wanted) or each is computed)
        self._leave({number})

    @torch.inference_mode()
    def step(self, *, prefill_tokens: int | None = None) -> list[TokenOutput]:
        """One token for each row that runs, the first one of those whose prompts are in by now included.

        With ``prefill_tokens`` the prompts' part of this step is one piece of so many tokens, whether rows run or not: for a caller who
        has others to hear between two steps.
        """
        if self._model.training:
            self._model.eval()
        delays = bool(self._running) or prefill_tokens is not None
        tokens = prefill_tokens or self._prefill_tokens
        if self._thread is not None and self._running:
            self._begin_piece(self._thread, tokens)
        produced = self._advance() if self._running else []
        self._admit()
        while self._intakes and not self._leaves_to_thread():
            produced += self._take_in(tokens)
            if delays:
                break
        return produced

    def _begin_piece(self, thread: PromptThread, tokens: int) -> None:
        """Let the thread compute, where it has nothing to do, a piece of the prompts that are first."""
        self._admit()
        if self._intakes and thread.intake is None:
            intake = self._intakes[0]
            thread.begin(intake, lambda: intake.take(self._model, self._forward, tokens))

    def _leaves_to_thread(self) -> bool:
        """Return whether this step takes no prompts in: rows run, and the thread has no piece ready."""
        thread = self._thread
        if thread is None or not self._running:
            return False
        return thread.intake is None or not thread.is_done

    def _advance(self) -> list[TokenOutput]:
        last = [row.new[-1] for row in self._running]
        positions = [len(row.request.ids) + len(row.new) - 1 for row in self._running]
        batch = next_batch(last, positions, self._device, [row.shift for row in self._running])
        logits_BV = self._forward(self._model, batch, self._cache)
        produced = extend_rows(logits_BV, self._running)
        self._leave({each.number for each in produced if each.is_last})
        return produced

    def _leave(self, numbers: set[int]) -> None:
        """Rows leave; the last ones take their places, so that few have to be copied."""
        staying = [place for place, row in enumerate(self._running) if row.number not in numbers]
        if len(staying) == len(self._running):
            return
        moving = [place for place in staying if place >= len(staying)]
        fixed = set(staying)
        places = [place if place in fixed else moving.pop() for place in range(len(staying))]
        self._running = [self._running[place] for place in places]
        if places:
            self._cache.select(torch.tensor(places, device=self._device))
            self._cache.trim()
        else:
            self._cache = RowCache()

    def _admit(self) -> None:
        """Let as many wait no longer as there is room for, once all that were let in before have their rows."""
        if self._intakes or not self._waiting:
            return
        admitted = self._admissible()
        gone = {row.number for row in admitted}
        self._waiting = deque(row for row in self._waiting if row.number not in gone)
        ragged = self._model.ragged_batches
        padding = WORTH_A_FORWARD.get(self._device.type)
        planned = (
            plan_intakes(admitted, self._prefill_tokens, padding=padding) if ragged else [admitted] if admitted else []
        )
        self._intakes += [
            Intake(
                rows,
                self._device,
                whole=not ragged,
                exact=self._max_tokens is not None,
                read_media=self._loaded.read_media,
            )
            for rows in planned
        ]
        self._limit()

    def _admissible(self) -> list[Row]:
        """Rows that wait and have room beside those that run."""
        admitted: list[Row] = []
        for row in self._candidates() if self._waiting else ():
            if not self._has_room([*admitted, row]):
                break
            admitted.append(row)
        return admitted

    def _candidates(self) -> list[Row]:
        """Rows that may come next, in order. Where all must be equally long, the first that waits decides, so that none waits for ever."""
        length = self._cache.length if self._running else len(self._waiting[0].request.ids)
        if self._model.ragged_batches:
            return list(self._waiting)
        if len(self._waiting[0].request.ids) != length:
            return []
        return [row for row in self._waiting if len(row.request.ids) == length]

    def _has_room(self, admitted: Sequence[Row]) -> bool:
        rows = [*self._running, *admitted]
        # where padding cannot be trimmed, a row that joins begins where the longest one is
        longest = max(row.longest for row in rows) + (0 if self._cache.trims else self._cache.length)
        fits = self._max_tokens is None or len(rows) * longest <= self._max_tokens
        return len(rows) <= self._max_rows and (fits or len(rows) == 1)

    def _take_in(self, tokens: int) -> list[TokenOutput]:
        """One piece of the prompts that are first; their rows run once they are whole."""
        intake = self._intakes[0]
        if self._thread is not None and self._thread.intake is intake:
            logits_BV = self._thread.take()
        else:
            logits_BV = intake.take(self._model, self._forward, tokens)
        self.prompt_tokens += intake.piece_tokens
        if not any(intake.wanted):  # all were cancelled while the thread computed
            self._intakes.popleft()
            self._limit()
            return []
        if logits_BV is None:
            return []
        self._intakes.popleft()
        produced = extend_rows(
            logits_BV[intake.wanted], [row for row, wanted in zip(intake.rows, intake.wanted, strict=True) if wanted]
        )
        for each in produced:
            if each.is_last:
                intake.drop(each.number)
        self._enter(intake)
        return produced

    def _enter(self, intake: Intake) -> None:
        entering = [place for place, wanted in enumerate(intake.wanted) if wanted]
        if not entering:
            self._limit()
            return
        if len(entering) < len(intake.rows):
            intake.cache.select(torch.tensor(entering, device=self._device))
            intake.cache.trim()
        if self._running:
            self._limit()
            self._cache.join(intake.cache)
        else:
            self._cache = intake.cache
            self._limit()
        self._running += [intake.rows[place] for place in entering]

    def _limit(self) -> None:
        """Leave the prompts that are on their way their places of the cache."""
        reserved = sum(intake.places for intake in self._intakes)
        self._cache.limit(None if self._max_tokens is None else self._max_tokens - reserved)


def refuse_media(loaded: LoadedModel, media: Sequence[MediaSpan]) -> None:
    """Raise ``UsageError`` for a prompt with media that this model has no encoder for."""
    known = () if loaded.model.media is None else tuple(loaded.model.media)
    if unknown := sorted({span.item.encoder for span in media if span.item.encoder not in known}):
        raise UsageError(
            f"the prompt has media for {', '.join(unknown)}, and the model has {', '.join(known) or 'no encoder'}; leave them out, or"
            " load the model with its encoders"
        )
