from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mt_core import DataError, Row

TEXTS = [f"{number} and {number} is {2 * number}." for number in range(12)]


def files_of(config: Any, split: str) -> list[Path] | None:
    return [Path(config.path)] if split == "train" else None


class Lines:
    """Rows by index, without a fault."""

    def __new__(cls, config: Any, *, split: str) -> Any:
        return super().__new__(cls) if split == "train" else None

    def __init__(self, config: Any, *, split: str) -> None:
        self.config = config

    def __len__(self) -> int:
        return len(TEXTS)

    def row(self, index: int) -> Row:
        return {"id": f"lines:{index + 1}", "text": TEXTS[index]}


class Nameless(Lines):
    def row(self, index: int) -> Row:
        return {"text": TEXTS[index]}


class Miscounted(Lines):
    def sources(self) -> list[tuple[str, int]]:
        return [("few", 4), ("more", len(TEXTS))]


class Moody(Lines):
    def row(self, index: int) -> Row:
        return {"id": f"lines:{index + 1}", "text": TEXTS[index] + str(random.random())}


class Selfish(Lines):
    """Looks at the process that it is in: other rows each time that it is opened."""

    opened = 0

    def __init__(self, config: Any, *, split: str) -> None:
        super().__init__(config, split=split)
        Selfish.opened += 1
        self.first = Selfish.opened

    def row(self, index: int) -> Row:
        return super().row((index + self.first) % len(TEXTS))


class Process(Lines):
    """Rows that name the process that read them."""

    def row(self, index: int) -> Row:
        return {"id": f"lines:{index + 1}", "text": f"{TEXTS[index]} {os.getpid()}"}


class Listed(Lines):
    def __new__(cls, config: Any, *, split: str) -> Any:
        return super().__new__(cls, config, split=split) or TEXTS


class Rude(Lines):
    def row(self, index: int) -> Row:
        if index == 3:
            raise ValueError("no text")
        return super().row(index)


class Flow:
    """A stream, without a fault."""

    def __new__(cls, config: Any, *, split: str) -> Any:
        return super().__new__(cls) if split == "train" else None

    def __init__(self, config: Any, *, split: str) -> None:
        self.place = self.start = 0

    def order(self, epoch: int, seed: int) -> list[int]:
        return random.Random(f"{seed}:{epoch}").sample(range(len(TEXTS)), len(TEXTS))

    def rows(self, epoch: int, seed: int) -> Iterator[Row | DataError]:
        order, start, self.start = self.order(epoch, seed), self.start, 0
        for number in range(start, len(order)):
            self.place = number + 1
            yield {"id": f"lines:{order[number] + 1}", "text": TEXTS[order[number]]}

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["place"]


class Unseeded(Flow):
    def order(self, epoch: int, seed: int) -> list[int]:
        return random.sample(range(len(TEXTS)), len(TEXTS))


class Amnesiac(Flow):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["place"] - 1


class Monotonous(Flow):
    """Each epoch in the order of the first one."""

    def order(self, epoch: int, seed: int) -> list[int]:
        return super().order(0, seed)


class Drifting(Flow):
    """An epoch depends on how many came before it in this process."""

    epochs = 0

    def order(self, epoch: int, seed: int) -> list[int]:
        self.epochs += 1
        return super().order(self.epochs, seed)


class Tired(Flow):
    """Its state is right in the first epoch."""

    def rows(self, epoch: int, seed: int) -> Iterator[Row | DataError]:
        self.behind = min(epoch, 1)
        yield from super().rows(epoch, seed)

    def state_dict(self) -> dict[str, Any]:
        return {"place": max(0, self.place - self.behind)}


class Hashing(Lines):
    """Names a row by a hash that is another one in each process."""

    def row(self, index: int) -> Row:
        return {**super().row(index), "id": f"lines:{hash(TEXTS[index])}"}
