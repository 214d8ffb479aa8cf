"""Base of samplers: what they are asked for, and what they give. Torch is not imported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    from mt_core.generation import Generation, GenerationConfig
    from mt_train import Policy


@dataclass(frozen=True)
class Completion:
    """An answer to a prompt, as its sampler wrote it.

    ``ids`` are its tokens, with the end token where it has one; ``text`` is that of its tokens without it. ``finish`` says why it ended
    (``eos``, ``stop``, ``length``, ``context``). ``logprobs`` are how likely each of ``ids`` was, in nats, at the temperature that it
    was drawn with, over all tokens; ``None`` where the sampler cannot say that.
    """

    text: str
    ids: Sequence[int]
    finish: str
    logprobs: Sequence[float] | None = None

    @classmethod
    def of(cls, drawn: Generation, *, logprobs: Sequence[float] | None = None) -> Self:
        """Return what the policy wrote, with the token that ended it."""
        ids = drawn.ids if drawn.end_id is None else (*drawn.ids, drawn.end_id)
        return cls(drawn.text, ids, drawn.finish, logprobs)


class Sampler(Protocol):
    """Writes answers of the model that is trained: by itself, or by asking somebody who has its weights.

    Every rank calls it with the same, and gets the same. What is asked of a service is asked inside ``policy.once``. One that has weights
    of its own walks ``policy.weights()`` on every rank, to the end, when ``policy.version`` is another one than before.
    """

    full_support: bool
    """Whether ``logprobs`` are over all tokens: False for one that leaves out unlikely tokens, or chooses among answers."""

    def sample(
        self, policy: Policy, prompts: Sequence[Sequence[int]], config: GenerationConfig
    ) -> Sequence[Completion]:
        """Return an answer to each prompt (ids). With ``config.logprobs`` they have ``logprobs``, where the sampler knows them."""
        ...


@runtime_checkable
class BoundsEach(Protocol):
    """A sampler that takes another bound for each answer.

    Answers that call tools go on from prompts of unlike lengths: a long one with the largest bound may be more than a server reads.
    """

    def sample_within(
        self, policy: Policy, prompts: Sequence[Sequence[int]], config: GenerationConfig, rooms: Sequence[int]
    ) -> Sequence[Completion]:
        """Return what ``sample`` does; each answer has at most so many tokens, and ``config.max_new_tokens`` is the largest of them."""
        ...
