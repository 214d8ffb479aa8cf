"""The base of every adapter: each method is a no-op, so that a variant writes only what is its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from mt_core.nn import Batch, TrainModel
    from mt_core.step_context import AdapterContext


@dataclass(frozen=True)
class PeftForm:
    """An adapter as peft writes it.

    ``config`` is what ``adapter_config.json`` says of the method; ``names`` are our parameters' → their tensors', all of them.

    ``shapes`` are those of their tensors where ours have others (of as many numbers); ``repeated`` are tensors in their files that
    say again what is in another one; ``beside`` are ours that it has no place for and an output does not need, which go into a file
    of their own; ``training`` are keys of their config that say how it is trained, and change no output.
    """

    config: Mapping[str, Any]
    names: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    repeated: frozenset[str] = frozenset()
    beside: frozenset[str] = frozenset()
    training: frozenset[str] = frozenset()
    defaults: Mapping[str, Callable[[], Tensor]] = field(default_factory=dict)


class Probe(Protocol):
    """The model without its adapter, on rows of the run, for adapters that are initialised from data.

    Means are over the trained tokens of all ranks, so that they are the same on any number of processes. Nothing that it does
    changes a weight, or the rows that are trained on.
    """

    def gradients(self, names: Sequence[str], *, steps: int) -> dict[str, Tensor]:
        """Gradients of the mean loss over the rows of the first ``steps`` optimizer steps, in fp32 on the CPU, by name."""
        ...

    def input_moments(self, modules: Sequence[str], *, steps: int) -> dict[str, Tensor]:
        """Return by linear layer the mean of x xᵀ over their inputs at trained tokens, (E, E) in fp64 on the CPU."""
        ...

    def output_squares(self, modules: Sequence[str], *, steps: int) -> dict[str, Tensor]:
        """Return by linear layer the mean, over their outputs at trained tokens, of the square of the gradient of the sum of
        losses with respect to each output, (F,) in fp64 on the CPU."""
        ...

    def batches(self, *, steps: int) -> Iterator[Sequence[Batch]]:
        """This rank's micro-batches of the first steps."""
        ...


class Adapter:
    """A method that trains a part of a model.

    The order of the calls: ``prepare`` on the model with its base weights in place (not when a checkpoint has the values);
    ``inject``; then the core fills what a checkpoint has and calls ``initialise`` of the modules that have the rest;
    ``trainable_parameters`` and ``parameter_groups`` before the optimizer is made. In training ``after_backward`` comes
    between the last backward and the update, and ``after_step`` after an update that was applied.
    """

    plan: Mapping[str, Any] = {}
    """Shapes (ranks) that ``prepare`` has decided on, as JSON. It is in every checkpoint, and set again before ``inject``."""

    has_values = False
    """Whether a checkpoint or a folder gives the values, so that none is drawn; the core sets it before ``inject``."""

    def prepare(self, model: TrainModel, probe: Probe) -> None:
        """Look at weights and data before ``inject``; set ``plan`` if shapes depend on them."""

    def inject(self, model: TrainModel) -> None:
        """Change the model in place: replace projections, add parameters. Shapes only: memory may not be there yet."""

    def trainable_parameters(self, model: TrainModel) -> list[str]:
        """Return the full names of the trained parameters."""
        raise NotImplementedError

    def saved_state(self, model: TrainModel) -> list[str]:
        """Return the names of the parameters in a trained-only checkpoint: those that base and seed do not determine."""
        return self.trainable_parameters(model)

    def parameter_groups(self, model: TrainModel, rate: float) -> list[dict[str, Any]]:
        """Named groups ``{"name", "params", …}`` that this adapter claims, with what goes over the optimizer's own (``lr`` above all)."""
        return []

    def peft_form(self, model: TrainModel) -> PeftForm | None:
        """Return the form of this adapter in peft's files; ``None`` if peft does not have this method."""
        return None

    @property
    def base_is_reference(self) -> bool:
        """Return whether ``viewing(model, "base")`` is the model of step 0, however long it has been trained: its layers begin as their
        base, leave that as it is, and have all that it trains."""
        return False

    @property
    def steps(self) -> bool:
        """Return whether ``after_backward`` or ``after_step`` has anything to do."""
        own, base = type(self), Adapter
        return own.after_backward is not base.after_backward or own.after_step is not base.after_step

    def after_backward(self, context: AdapterContext) -> None:
        """Act between the last backward and the update. The step may still be refused: keep what follows for ``after_step``."""

    def after_step(self, context: AdapterContext) -> None:
        """Act after an update that was applied."""
