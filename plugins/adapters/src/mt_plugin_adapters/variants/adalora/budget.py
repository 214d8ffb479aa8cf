"""Budget of ranks at each step."""

from __future__ import annotations

from dataclasses import dataclass

from .config import AdaLoraConfig


@dataclass(frozen=True)
class Budget:
    """Budget of ranks in a run of ``total_steps``; steps count from 1.

    ``initial`` and ``final`` are steps, ``begin`` and ``end`` ranks of all layers.
    """

    total_steps: int
    initial: int
    final: int
    every: int
    begin: int
    end: int

    @classmethod
    def of(cls, config: AdaLoraConfig, total_steps: int, begin: int, layers: int) -> Budget:
        """Build from the shares of the config."""
        initial, final = (int(share * total_steps) for share in (config.initial_ratio, config.final_ratio))
        return cls(total_steps, initial, final, config.every_steps, begin, config.target_rank * layers)

    @property
    def last(self) -> int:
        """The step of the last pruning."""
        return self.total_steps - self.final

    def ranks(self, step: int) -> int:
        """Return how many are left: all, a cubic, the target."""
        if step <= self.initial:
            return self.begin
        if step >= self.last:
            return self.end
        left = 1 - (step - self.initial) / (self.last - self.initial)
        return int((self.begin - self.end) * left**3 + self.end)

    def prunes(self, step: int) -> bool:
        """Return whether ranks are chosen anew after this step."""
        return step == self.last or (self.initial < step < self.last and step % self.every == 0)
