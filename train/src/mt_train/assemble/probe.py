"""The model before it has an adapter, on the rows that it will be trained on first: for initialisation from data.

Plain torch, without DeepSpeed: every rank has the whole model here, so that adapters that ask for it declare no layout
that divides it. Sums over ranks are in fp32 (gradients) or fp64 (moments), and divided once, by the whole count.

Shapes: N tokens, E inputs of a linear layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from mt_core.errors import UsageError
from mt_core.model_protocols import HasTerms, Objective
from mt_core.nn import NOT_TRAINED, Batch, TrainModel
from mt_core.nn.batch import mean_of
from mt_train.assemble.data import RunData, make_loader
from mt_train.config.run import RunConfig
from mt_train.data.loader import Loader, Position
from mt_train.data.online import CollectsAnswers
from mt_train.engine.plan import Plan
from mt_train.engine.processes import Process, all_reduce
from mt_train.engine.random_state import preserve_random_state
from mt_train.engine.step import TrainStep, weighted_loss


class ModelProbe:
    """Implements ``mt_core.Probe``."""

    def __init__(self, model: TrainModel, objective: Objective, loader: Loader, process: Process) -> None:
        self._model, self._objective, self._loader, self._process = model, objective, loader, process

    def batches(self, *, steps: int) -> Iterator[Sequence[Batch]]:
        """See ``mt_core.Probe``."""
        windows = self._loader.windows(Position())
        for _ in range(steps):
            yield next(windows).batches

    def gradients(self, names: Sequence[str], *, steps: int) -> dict[str, Tensor]:
        """See ``mt_core.Probe``. Each rank holds the gradients of all that are asked for, in fp32, until they are added up."""
        sums: dict[str, Tensor] = {}
        count = torch.zeros(1, dtype=torch.float64)
        scales = self._scales(steps)
        with self._evaluation_state(), _require_gradients(self._model, names) as wanted:
            step = TrainStep(self._model, self._objective)
            for window in self.batches(steps=steps):
                for batch in window:
                    loss_sum = weighted_loss(step(batch.to(self._process.device)), scales)
                    found = torch.autograd.grad(loss_sum, list(wanted.values()))
                    for name, gradient in zip(wanted, found, strict=True):
                        value = gradient.float().cpu()
                        sums[name] = sums[name].add_(value) if name in sums else value
                    count += self._objective.count(batch)
        total = float(self._add_ranks(count).item())
        return {name: self._add_ranks(value).mul_(mean_of(1.0, total)) for name, value in sums.items()}

    def _scales(self, steps: int) -> list[float]:
        """Return the factors of the loss and its further terms, so that the sum of all is divided by what the loss is: 1 and N/N_k."""
        if not isinstance(self._objective, HasTerms):
            return [1.0]
        batches = [batch for window in self.batches(steps=steps) for batch in window]
        counts = [[self._objective.count(batch), *self._objective.count_terms(batch).values()] for batch in batches]
        whole = self._add_ranks(torch.tensor(counts, dtype=torch.float64).sum(0)).tolist()
        return [1.0, *(mean_of(whole[0], each) for each in whole[1:])]

    def input_moments(self, modules: Sequence[str], *, steps: int) -> dict[str, Tensor]:
        """See ``mt_core.Probe``. How much padding there is depends on how rows are divided, and so it must not count.

        Raises ``UsageError`` for a layer whose inputs are not one for each token.
        """
        sums: dict[str, Tensor] = {}
        count, trained_N = torch.zeros(1, dtype=torch.float64), torch.empty(0, dtype=torch.bool)

        def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
            def see(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
                x_NE = _at(name, inputs[0].detach(), trained_N)
                moment_EE = (x_NE.mT @ x_NE).cpu()
                sums[name] = sums[name].add_(moment_EE) if name in sums else moment_EE

            return see

        hooks = [self._model.get_submodule(name).register_forward_pre_hook(watch(name)) for name in modules]
        try:
            with self._evaluation_state(), torch.no_grad():
                for window in self.batches(steps=steps):
                    for batch in window:
                        trained_N = _trained_mask(batch, self._process)
                        count += float(trained_N.sum())
                        self._model(batch.to(self._process.device))
        finally:
            for hook in hooks:
                hook.remove()
        total = max(float(self._add_ranks(count).item()), 1.0)
        return {name: self._add_ranks(sums[name]).div_(total) for name in modules}

    def output_squares(self, modules: Sequence[str], *, steps: int) -> dict[str, Tensor]:
        """See ``mt_core.Probe``. Raises ``UsageError`` for a layer whose outputs are not one for each token."""
        sums: dict[str, Tensor] = {}
        count, outputs = torch.zeros(1, dtype=torch.float64), dict[str, Tensor]()

        def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
            def see(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
                outputs[name] = output if output.requires_grad else output.detach().requires_grad_()
                return outputs[name]

            return see

        hooks = [self._model.get_submodule(name).register_forward_hook(watch(name)) for name in modules]
        scales = self._scales(steps)
        try:
            with self._evaluation_state(), _require_gradients(self._model, ()):
                step = TrainStep(self._model, self._objective)
                for window in self.batches(steps=steps):
                    for batch in window:
                        trained_N = _trained_mask(batch, self._process)
                        loss_sum = weighted_loss(step(batch.to(self._process.device)), scales)
                        found = torch.autograd.grad(loss_sum, [outputs.pop(name) for name in modules])
                        for name, gradient in zip(modules, found, strict=True):
                            square_F = _at(name, gradient, trained_N).square().sum(0).cpu()
                            sums[name] = sums[name].add_(square_F) if name in sums else square_F
                        count += float(trained_N.sum())
        finally:
            for hook in hooks:
                hook.remove()
        total = max(float(self._add_ranks(count).item()), 1.0)
        return {name: self._add_ranks(sums[name]).div_(total) for name in modules}

    @contextmanager
    def _evaluation_state(self) -> Iterator[None]:
        """Random generators as they were, and nothing dropped, so that the result is that of any number of processes."""
        was_training = self._model.training
        self._model.eval()
        try:
            with preserve_random_state():
                yield
        finally:
            self._model.train(was_training)

    def _add_ranks(self, value: Tensor) -> Tensor:
        return all_reduce(value.to(self._process.device)).cpu() if self._process.world > 1 else value


def _trained_mask(batch: Batch, process: Process) -> Tensor:
    """Return which tokens are trained, (N)."""
    return (batch.labels != NOT_TRAINED).reshape(-1).to(process.device)


def _at(name: str, value: Tensor, trained_N: Tensor) -> Tensor:
    """Return the values that a layer has at trained tokens, in fp64. Raises ``UsageError`` where it has not one for each token."""
    value = value.reshape(-1, value.shape[-1])
    if len(value) != len(trained_N):
        raise UsageError(
            f"{name} has {len(value)} inputs for {len(trained_N)} tokens, and those of trained tokens are looked at;"
            " leave it out (--adapter.exclude)"
        )
    return value[trained_N].double()


def probe_of(config: RunConfig, data: RunData, plan: Plan, process: Process, model: TrainModel) -> ModelProbe:
    """Return the probe of this model. Raises ``UsageError`` for a stream, whose rows can be read only once, and for prompts."""
    if data.stream is not None:
        raise UsageError(
            f"--adapter {config.adapter.name} looks at rows before training, and --dataset {config.dataset.name} is a stream, which is"
            " read once; use a dataset of files, or another adapter"
        )
    if isinstance(data.objective, CollectsAnswers):
        raise UsageError(
            f"--adapter {config.adapter.name} looks at rows before training, and --objective {config.objective.name} learns from answers"
            " that are not written yet; use another adapter"
        )
    return ModelProbe(model, data.objective, make_loader(config, data, plan, process), process)


@contextmanager
def _require_gradients(model: TrainModel, names: Sequence[str]) -> Iterator[dict[str, nn.Parameter]]:
    """Let only these parameters need gradients inside."""
    before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    parameters = dict(model.named_parameters())
    wanted = {name: parameters[name] for name in names}
    try:
        for name, parameter in parameters.items():
            parameter.requires_grad_(name in wanted)
        yield wanted
    finally:
        for name, parameter in parameters.items():
            parameter.requires_grad_(before[name])
