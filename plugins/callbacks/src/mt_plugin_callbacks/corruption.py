"""Silent corruption: a weight that differs between ranks that should have the same (https://arxiv.org/abs/2407.21783, section 3.3.4)."""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from mt_core import CallbackContext, Control, MtConfig, MtError

from .ranks import device_of, gather_hosts, gather_rows, gathered_modules
from .repetition import RepeatedSteps

if TYPE_CHECKING:
    from torch import Tensor

_STEP = re.compile(r"step-([0-9]{8})")


class CorruptionError(MtError):
    """Weights that cannot be trusted. An exit code of its own: to go on from the newest checkpoint may be wrong."""

    exit_code = 65  # EX_DATAERR of sysexits.h


class CorruptionCheckConfig(MtConfig):
    """How often, and what then."""

    every_steps: int = Field(10, gt=0, description="optimizer steps between two looks at the weights")
    action: Literal["stop", "warn"] = Field(
        "stop", description="what a difference does: end the run with code 65, or say so and go on"
    )
    repeat: bool = Field(
        False,
        description="also compute a step again before its update when weights differ or a rank's gradient norm jumps, and name ranks"
        " that do not give the same gradients, bit for bit; reads every gradient",
    )
    norm_ratio: float = Field(
        4.0,
        gt=1,
        description="with repeat: the norm of a rank's own gradients jumps when it is more than so many times the median of its last 32",
    )


def corruption_limits(config: CorruptionCheckConfig) -> dict[str, str]:
    """Return what a run cannot have beside it."""
    return {"fused": "with repeat it computes a step again before its update"} if config.repeat else {}


class CorruptionCheck:
    """Compares a hash of the live weights of all ranks before an update, and names the odd one.

    At ZeRO 0 to 2 every rank has all weights, and all are hashed. At ZeRO 3 each rank has its own share; there it is one block as
    it was gathered for its forward, another one each time, which finds what a transfer has damaged. What a quantizer has stored is
    whole on every rank at each stage, and all of it is hashed.

    With ``repeat`` a suspicious step is computed again: a rank whose own gradients then differ computes wrongly.
    """

    def __init__(self, config: CorruptionCheckConfig) -> None:
        self._config = config
        self._hosts: list[str] = []
        self._hash: Tensor | None = None
        self._block: int | None = None
        self._seen: set[int] = set()
        self._good: int | None = None
        self._told = False
        self._repeated: RepeatedSteps | None = None

    def on_model_built(self, context: CallbackContext) -> None:
        """At ZeRO 3, stand where blocks have their weights; with ``repeat`` where gradients come."""
        if self._config.repeat:
            self._repeated = RepeatedSteps(context.model, self._config.norm_ratio)
        if context.config["parallel"]["zero_stage"] == 3 and self._compares(context):
            for number, layer in enumerate(context.model.layers()[1:-2]):
                for module in gathered_modules(layer.module):
                    module.register_forward_pre_hook(partial(self._look, number))

    def on_run_start(self, context: CallbackContext) -> None:
        """Learn where each rank runs."""
        self._hosts = [socket.gethostname()]
        if self._compares(context):
            assert context.weights is not None, "there are ranks to compare"
            self._hosts = gather_hosts(context.weights.rank, context.weights.world, device_of(context.model))

    def on_step_start(self, context: CallbackContext) -> None:
        """Choose the block of this look."""
        self._hash = None
        self._block = None
        self._seen.clear()
        if self._repeated is not None:
            self._repeated.begin()
        if context.config["parallel"]["zero_stage"] == 3 and self._is_due(context):
            self._block = context.step // self._config.every_steps % len(context.model.layers()[1:-2])

    def on_before_optimizer_step(self, context: CallbackContext) -> Control | None:
        """Compare the weights that this step has computed with, and its gradients with those of a second time.

        Raises ``CorruptionError`` where they differ.
        """
        looks = self._is_due(context)
        odd = self._look_at_weights(context) if looks else []
        texts = [describe_difference(odd, self._hosts, context.step)] if odd else []
        wrong, said = self._look_at_gradients(context, is_suspicious=bool(odd))
        texts += [said] if said else []
        if looks and not odd:
            self._told = False
        if not (odd or wrong):
            return Control(say=said) if said else None
        text = f"{'; '.join(texts)}. {self._remedy(context.output, is_applied=bool(odd))}"
        if self._config.action == "stop":
            raise CorruptionError(text)
        # Weights differ until a look finds them the same, which is said once; each wrongly computed step is another.
        is_new = bool(wrong) or not self._told
        self._told = self._told or bool(odd)
        return Control(say=text) if is_new else None

    def _look_at_weights(self, context: CallbackContext) -> list[int]:
        """Return the ranks that have other weights. Collective."""
        if context.config["parallel"]["zero_stage"] != 3:
            self._hash = hash_weights(context.model.parameters())
        assert self._hash is not None, f"no module of block {self._block} was run"
        self._block = None
        self._hash = hash_weights(stored_weights(context.model), self._hash)
        odd = self._odd_ranks(self._hash, context)
        if not odd:
            self._good = context.step
        return odd

    def _look_at_gradients(self, context: CallbackContext, *, is_suspicious: bool) -> tuple[list[int], str]:
        """Return the ranks that compute a suspicious step otherwise the second time, and what to say of it. Collective."""
        if self._repeated is None:
            return [], ""
        jumps = self._repeated.jumps(context)
        wrong = self._repeated.repeat(context, is_suspicious=is_suspicious or bool(jumps))
        if wrong is None:
            return [], ""
        if not self._repeated.is_exact:
            return (
                [],
                "steps that are computed again give other gradients here, as kernels add in any order: repeat is off",
            )
        if wrong or is_suspicious or jumps:
            return wrong, describe_repetition(wrong, jumps, self._hosts, context.step)
        return [], ""

    def _look(self, number: int, module: Any, inputs: object) -> None:
        """Add the weights that a module of this block has just got, once a step."""
        if number == self._block and id(module) not in self._seen:
            self._seen.add(id(module))
            self._hash = hash_weights(module.parameters(recurse=False), self._hash)

    def _compares(self, context: CallbackContext) -> bool:
        return context.weights is not None and context.weights.world > 1

    def _is_due(self, context: CallbackContext) -> bool:
        return self._compares(context) and context.step % self._config.every_steps == 0

    @staticmethod
    def _odd_ranks(value: Tensor, context: CallbackContext) -> list[int]:
        """Return the ranks whose hash is not that of most; all where there is no majority. Collective."""
        import torch
        import torch.distributed as dist

        assert context.weights is not None, "there are ranks to compare"
        ends = torch.stack([value, ~value])  # the least of the complement is the complement of the largest
        dist.all_reduce(ends, op=dist.ReduceOp.MIN)
        least, complement = ends.tolist()
        if least == ~complement:
            return []
        hashes = gather_rows(value.reshape(1), context.weights.rank, context.weights.world).flatten().tolist()
        return odd_ones(hashes)

    def _remedy(self, output: Path | None, *, is_applied: bool) -> str:
        """Return where to go on from: the last checkpoint that was made of weights known to be the same.

        What has not been ``is_applied`` yet is in none.
        """
        if not is_applied:
            again = "start again" if output is None else f"go on with: mt-train --resume {output}"
            return f"Its update is not in any checkpoint; {again}; and have that machine tested"
        good = -1 if self._good is None else self._good
        found = (
            sorted(
                (int(match[1]), path)
                for path in (output / "checkpoints").glob("step-*")
                if (match := _STEP.fullmatch(path.name)) and int(match[1]) <= good
            )
            if output is not None
            else []
        )
        then = f"go on with: mt-train --resume {found[-1][1]}" if found else "no checkpoint is older: start again"
        last = "never before" if self._good is None else f"last after step {self._good:,}"
        return f"They were the same {last}; {then}; and have that machine tested"


def stored_weights(model: Any) -> Iterator[Tensor]:
    """Yield the tensors of weights that are no parameters: what quantized layers keep, under adapters too."""
    from mt_core.nn import AdaptedLinear, StoredLinear

    for module in model.modules():
        base = module.base if isinstance(module, AdaptedLinear) else module
        if isinstance(base, StoredLinear):
            yield from base.buffers(recurse=False)


def hash_weights(parameters: Iterable[Any], total: Tensor | None = None) -> Tensor:
    """Return a hash (int64, on the device) that any one flipped bit changes: bits added up as integers, and mixed by their order.

    ``total`` is the hash of what came before.
    """
    import torch

    sizes = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    for parameter in parameters:
        bits = parameter.detach().view(sizes[parameter.element_size()]).sum(dtype=torch.int64)
        total = (
            bits if total is None else total * 6364136223846793005 + bits
        )  # Knuth's multiplier; odd, so that nothing is lost
    assert total is not None, "a model has weights"
    return total


def odd_ones(hashes: Sequence[int]) -> list[int]:
    """Return the ranks whose hash is not that of more than half; all ranks where none is."""
    common, count = Counter(hashes).most_common(1)[0]
    return [rank for rank, each in enumerate(hashes) if each != common or 2 * count <= len(hashes)]


def name_ranks(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    """Return up to eight ranks with their machines."""
    named = ", ".join(f"rank {rank} on {hosts[rank]}" for rank in ranks[:8])
    return named + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")


def describe_difference(odd: Sequence[int], hosts: Sequence[str], step: int) -> str:
    """Say which ranks differ."""
    shown = name_ranks(odd, hosts)
    if len(odd) == len(hosts):
        return f"after step {step:,} the weights of {shown} differ, and no majority says which are right"
    return f"after step {step:,} {shown} has other weights than the other {len(hosts) - len(odd)} ranks"


def describe_repetition(wrong: Sequence[int], jumps: Mapping[int, float], hosts: Sequence[str], step: int) -> str:
    """Say what came of computing step ``step + 1`` again, and why that was done."""
    why = ""
    if jumps:
        most = max(jumps.values())
        size = f"up to {most:.3g} times its median" if isfinite(most) else "no finite number"
        why = f"the gradient norm of {name_ranks(sorted(jumps), hosts)} was {size}, and "
    if wrong:
        return f"{why}step {step + 1:,}, computed again on the same weights and rows, has other gradients on {name_ranks(wrong, hosts)}"
    return f"{why}step {step + 1:,}, computed again, has the same gradients on all ranks, bit for bit: nothing was computed wrongly in it"
