"""First values of parameters by transformers' rules, one parameter at a time.

A rule is asked of a module, and may draw what its children have: the projections of GPT-2 that a block adds up, the time steps of Mamba,
routers. So the module of a parameter is asked first, and then each that it stands in, as transformers does when it builds a model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor, nn

from .build import build_plain, built_values
from .config import HuggingFaceConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class InitialValues:
    """Draws the values of one model; what it is made of is built when it is asked first."""

    def __init__(self, config: HuggingFaceConfig) -> None:
        self._config = config
        self._model: PreTrainedModel | None = None
        self._built: dict[str, Tensor] | None = None

    def draw(self, name: str, tensor: Tensor, generator: Generator, module: nn.Module | None = None) -> None:
        """Fill a tensor, on the CPU in fp32, from the generator alone; ``module`` is one that has it and stands in no other."""
        seed = int(torch.randint(2**62, (), generator=generator))
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            tensor.fill_(torch.nan)
            if module is None:
                self._ask_modules(name, tensor)
            else:
                self._ask(module)
            if tensor.isnan().any():
                tensor.copy_(self._built_value(name))

    def _ask_modules(self, name: str, tensor: Tensor) -> None:
        """Ask the module of a parameter, and each around it, in a model on the meta device that has this one value."""
        path, _, own = name.rpartition(".")
        module = self._on_meta().get_submodule(path)
        values: dict[str, Any] = module._parameters if own in module._parameters else module._buffers
        before = values[own]
        values[own] = nn.Parameter(tensor, requires_grad=False) if values is module._parameters else tensor
        try:
            for end in range(path.count(".") + 1, -1, -1):
                self._ask(self._on_meta().get_submodule(".".join(path.split(".")[:end])))
        finally:
            values[own] = before

    def _ask(self, module: nn.Module) -> None:
        rule: Any = self._on_meta()._init_weights
        rule(module)

    def _on_meta(self) -> PreTrainedModel:
        if self._model is None:
            with torch.device("meta"):
                self._model = build_plain(self._config)
        return self._model

    def _built_value(self, name: str) -> Tensor:
        """Return the first value that no rule draws."""
        if self._built is None:
            self._built = built_values(self._config)
        return self._built[name]
