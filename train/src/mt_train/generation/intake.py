"""Prompts on their way into a cache: in pieces, and what several of them begin with only once.

Shapes: B rows, T tokens of the longest row, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mt_core.nn import Batch, TrainModel
from mt_core.rows import MediaSpan
from mt_train.generation.forward import Forward, ReadMedia, grid_of, make_batch, media_batch
from mt_train.generation.request import Row
from mt_train.generation.row_cache import RowCache

LEAST_SHARED = 16
"""Tokens with which several prompts begin that are worth a forward of their own."""

PromptKey = tuple[int, ...]
_Sheet = tuple[Tensor, Tensor, Tensor | None, int]


class Intake:
    """Rows that are taken in together. Shorter prompts are padded on the left; equal ones are one row until the end.

    What all begin with is computed in one row, which becomes the beginning of all.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        device: torch.device,
        *,
        whole: bool = False,
        exact: bool = False,
        read_media: ReadMedia | None = None,
    ) -> None:
        """``whole`` forbids pieces, for models whose rows are of one length; ``exact`` allocates nothing ahead."""
        self.rows = list(rows)
        self.wanted = [True] * len(rows)
        """Whether each row is still asked for."""
        self._device, self._whole, self._read_media = device, whole, read_media
        self._prompts = distinct_prompts(rows)
        of_prompt = {row.prompt: row.request.media for row in rows}
        self._media = [of_prompt[prompt] for prompt in self._prompts]
        self.places = len(rows) * max(map(len, self._prompts))
        """Places (rows times tokens) of a cache that all rows take together."""
        self._most_places = self.places if exact else None
        shared = 0 if whole else count_shared(self._prompts)
        self.piece_tokens = 0
        """Tokens of the last piece, padding included."""
        self._begin(shared)

    def drop(self, number: int) -> None:
        """Want the row of this number no more, if it is here."""
        self.wanted = [wanted and row.number != number for row, wanted in zip(self.rows, self.wanted, strict=True)]

    def take(self, model: TrainModel, forward: Forward, tokens: int) -> Tensor | None:
        """One forward over ``tokens`` tokens of all rows together, about. After the last one, the (B, V) logits behind each prompt."""
        ids_BT, positions_BT, grid_BT3, start = self._sheets[0]
        size = ids_BT.shape[1] if self._whole else _divide(ids_BT.shape[1], max(1, tokens // len(ids_BT)))
        grid_here = None if grid_BT3 is None else grid_BT3[:, :size]
        batch = self._with_media(make_batch(ids_BT[:, :size], positions_BT[:, :size], grid_here), start)
        self.piece_tokens = batch.input_ids.numel()
        logits_BV = forward(model, batch.to(self._device), self.cache)
        if size < ids_BT.shape[1]:
            grid_left = None if grid_BT3 is None else grid_BT3[:, size:]
            self._sheets[0] = ids_BT[:, size:], positions_BT[:, size:], grid_left, start + size
            return None
        del self._sheets[0]
        if self._sheets:
            self._spread()
            return None
        if len(self._prompts) == len(self.rows):
            return logits_BV
        places = {prompt: place for place, prompt in enumerate(self._prompts)}
        rows_B = torch.tensor([places[row.prompt] for row in self.rows], device=self._device)
        self.cache.select(rows_B)
        return logits_BV[rows_B]

    def _begin(self, shared: int) -> None:
        longest = max(map(len, self._prompts))
        self._padding = [longest - len(prompt) for prompt in self._prompts]
        padded = not shared and any(self._padding)
        self.cache = RowCache(
            torch.tensor(self._padding, device=self._device) if padded else None, places=self._most_places
        )
        rest = self._sheet(self._prompts, self._padding, shared)
        self._sheets = [self._sheet([self._prompts[0][:shared]], [0], 0), rest] if shared else [rest]

    def _spread(self) -> None:
        if self.cache.trims or not any(self._padding):
            self.cache.spread(torch.tensor(self._padding, device=self._device))
        else:  # a state that cannot be moved in its row
            self._begin(0)

    def _sheet(self, prompts: Sequence[PromptKey], padding: Sequence[int], start: int) -> _Sheet:
        """(B, T) ids and positions from the column ``start`` on, (B, T, 3) those in time, rows and columns, and that column. In the places
        of media the id is 0."""
        ids_BT = torch.tensor([[0] * pad + list(prompt) for pad, prompt in zip(padding, prompts, strict=True)])
        positions_BT = (torch.arange(ids_BT.shape[1]) - torch.tensor(padding)[:, None]).clamp(min=0)
        return ids_BT.clamp(min=0)[:, start:], positions_BT[:, start:], self._grid(positions_BT, padding, start), start

    def _grid(self, positions_BT: Tensor, padding: Sequence[int], start: int) -> Tensor | None:
        """(B, T, 3) from the column ``start`` on; rows are those of prompts, or the first one's beginning. ``None`` without grids."""
        grids = [
            grid_of(media, len(prompt), padding=pad)
            for media, prompt, pad in zip(self._media, self._prompts, padding, strict=False)
        ]
        if all(grid is None for grid in grids):
            return None
        found_BT3 = positions_BT[..., None].repeat(1, 1, 3)
        for row, grid in enumerate(grids):
            if grid is not None:
                found_BT3[row] = torch.from_numpy(grid[: found_BT3.shape[1]])
        return found_BT3[:, start:]

    def _with_media(self, batch: Batch, start: int) -> Batch:
        """The batch, whose first column is ``start``, with the media in it: padding on the left moves them."""
        rows = zip(range(len(batch.input_ids)), self._media, self._padding_of(batch), strict=False)
        moved: list[tuple[int, MediaSpan]] = [(row, span.shift(pad)) for row, media, pad in rows for span in media]
        return media_batch(batch, moved, start, self._read_media)

    def _padding_of(self, batch: Batch) -> Sequence[int]:
        """Padding of each row; what all prompts begin with is one row without any."""
        return self._padding if len(batch.input_ids) == len(self._prompts) else [0]


def _divide(length: int, size: int) -> int:
    """Return the columns of the first of equal pieces of at most ``size``: fewer at the end would take a forward as well."""
    return -(-length // -(-length // size))


def plan_intakes(rows: Sequence[Row], tokens: int, *, padding: int | None = None) -> list[list[Row]]:
    """Divide rows into those that are taken in together: with a shared beginning, or about as long, and not above ``tokens`` tokens.

    Each row that joins others of about its length costs ``padding`` tokens of padding at most, where that is given.
    """
    beginnings: dict[PromptKey, list[Row]] = {}
    for row in rows:
        beginnings.setdefault(row.prompt[:LEAST_SHARED], []).append(row)
    planned, others = [], []
    for alike in beginnings.values():
        apart = _by_length(alike, tokens, padding)
        if count_tokens(alike) < sum(map(count_tokens, apart)):
            planned.append(alike)
        else:
            others += alike
    return [*planned, *_by_length(others, tokens, padding)]


def _by_length(rows: Sequence[Row], tokens: int, padding: int | None) -> list[list[Row]]:
    groups: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: (len(row.prompt), row.prompt)):
        if groups and _is_worth_joining(groups[-1], row, tokens, padding):
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _is_worth_joining(group: Sequence[Row], row: Row, tokens: int, padding: int | None) -> bool:
    together = count_tokens([*group, row])
    return together <= tokens and (padding is None or together - count_tokens(group) - len(row.prompt) <= padding)


def count_tokens(rows: Sequence[Row]) -> int:
    """Return over how many tokens the model is run to take rows in together."""
    prompts = distinct_prompts(rows)
    shared = count_shared(prompts)
    return shared + len(prompts) * (max(map(len, prompts)) - shared)


def count_shared(prompts: Sequence[PromptKey]) -> int:
    """Return how many tokens all prompts begin with, or 0 where it is not worth while: padding must fit into them."""
    first, last = min(prompts), max(prompts)
    end = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    padding = max(map(len, prompts)) - min(map(len, prompts))
    return end if len(prompts) > 1 and end >= max(LEAST_SHARED, padding) else 0


def distinct_prompts(rows: Sequence[Row]) -> list[PromptKey]:
    """Return each prompt once."""
    return list(dict.fromkeys(row.prompt for row in rows))
