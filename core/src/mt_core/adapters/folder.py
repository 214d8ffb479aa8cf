"""A folder of one adapter, as peft or ``mt-export`` writes it. Finding and describing it imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core.adapters.peft import PREFIX, PeftForm, contradictions
from mt_core.errors import WeightsError
from mt_core.weights import Loaders, check_file, open_pickle, open_safetensors, read_json

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from mt_core.adapters.base import Adapter
    from mt_core.nn import TrainModel

CONFIG = "adapter_config.json"
WRITTEN = "mt_adapter.json"
"""Beside peft's own config, what it has no keys for: the same as ``mt_adapter`` in the config of what peft does not know."""
BESIDE = "mt_adapter.safetensors"
"""Values that training goes on with, and peft's form has no place for."""
TENSORS = ("adapter_model.safetensors", "adapter_model.bin")
_OF_TRAINING = frozenset({"dropout", "fp32"})


@dataclass(frozen=True)
class AdapterFolder:
    """``config`` is peft's, ``written`` what ``mt-export`` adds: component, plugin, version, options, plan, hashes of the base."""

    path: Path
    config: Mapping[str, Any]
    written: Mapping[str, Any]

    @classmethod
    def at(cls, path: Path) -> AdapterFolder | None:
        """``None`` where there is no ``adapter_config.json``. Raises ``WeightsError`` for one that says nothing."""
        if not (path / CONFIG).is_file():
            return None
        config = read_json(path / CONFIG)
        written = read_json(path / WRITTEN) if (path / WRITTEN).is_file() else config.get("mt_adapter", {})
        if not config.get("peft_type") and not isinstance(written.get("name"), str):
            raise WeightsError(f"{path / CONFIG} has neither peft_type nor mt_adapter, so that its method is not known")
        return cls(path, config, written)

    @property
    def method(self) -> str:
        """What it is called: peft's type, or our component."""
        return str(self.config.get("peft_type") or self.written["name"])

    @property
    def file(self) -> Path:
        """Its tensors. Raises ``WeightsError`` where there are none."""
        found = next((self.path / name for name in TENSORS if (self.path / name).is_file()), None)
        if found is None:
            raise WeightsError(f"{self.path} has {CONFIG} and none of {', '.join(TENSORS)}; copy the file there, too")
        return found

    def tensors(self) -> Loaders:
        """By the names in the file."""
        return open_safetensors(self.file) if self.file.suffix == ".safetensors" else open_pickle(self.file)

    def modules(self) -> list[str]:
        """The modules that it has tensors for, by the model's names."""
        names = check_file(self.file) if self.file.suffix == ".safetensors" else self.tensors().keys()
        return sorted({module for name in names if (module := _module(name))})

    def for_model(self, adapter: Adapter, model: TrainModel, *, run: Mapping[str, Any]) -> Loaders:
        """Its tensors by the model's names; ``run`` is the run's slot: name and options.

        Raises ``WeightsError`` for an adapter of another method, with other options, or for other modules.
        """
        return self._as_peft(adapter, model, run) if self.config.get("peft_type") else self._as_written(run)

    def _as_written(self, run: Mapping[str, Any]) -> Loaders:
        here, there = dict(run), {"name": self.written["name"], **self.written.get("options", {})}
        for each in (here, there):
            each["name"] = each["name"].rpartition("/")[2]  # DISTRIBUTION/NAME is the same one
        keys = [key for key in (here | there) if key not in _OF_TRAINING and here.get(key) != there.get(key)]
        if wrong := [f"{key} is {there.get(key)!r} there and {here.get(key)!r} in the run" for key in keys]:
            raise self._contradicted(wrong, str(run["name"]))
        return self.tensors()

    def _as_peft(self, adapter: Adapter, model: TrainModel, run: Mapping[str, Any]) -> Loaders:
        form, found = adapter.peft_form(model), self.tensors()
        if form is None:
            raise WeightsError(
                f"{self.path} holds an adapter {self.method} of peft, and the run's is {run['name']}; {self._advice()}"
            )
        if wrong := list(contradictions(form, self.config, self.modules())):
            raise self._contradicted(wrong, str(run["name"]))
        if wrong := list(_unmatched(form, found)):
            raise WeightsError(f"{self.path} is an adapter of another model, or of other targets: " + "; ".join(wrong))
        own = dict(model.named_parameters())
        placed = {
            ours: _shaped(found[theirs], own[ours].shape, form.shapes.get(ours)) for ours, theirs in form.names.items()
        }
        return placed | (open_safetensors(self.path / BESIDE) if form.beside else {})

    def _contradicted(self, wrong: list[str], name: str) -> WeightsError:
        return WeightsError(f"{self.path} is not what --adapter {name} says: {'; '.join(wrong)}; {self._advice()}")

    def _advice(self) -> str:
        said = ("peft_type", "r", "lora_alpha", "use_rslora", "use_dora", "target_modules")
        stated = self.written.get("options") or {key: self.config[key] for key in said if self.config.get(key)}
        return f"give --adapter what it was made with ({', '.join(f'{key} {value}' for key, value in stated.items())})"


def _unmatched(form: PeftForm, found: Mapping[str, Any]) -> Iterator[str]:
    known = set(form.names.values())
    for title, names in (
        ("it lacks", sorted(known - set(found))),
        ("the run has no place for", sorted(set(found) - known - form.repeated)),
    ):
        if names:
            yield f"{title} {', '.join(names[:4])}" + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _shaped(load: Callable[[], Tensor], shape: torch.Size, theirs: tuple[int, ...] | None) -> Callable[[], Tensor]:
    """As it is, or, where the form gives their tensor another shape, which it then has, as the parameter."""

    def loaded() -> Tensor:
        tensor = load()
        return tensor.reshape(shape) if tuple(tensor.shape) == theirs else tensor

    return loaded


def _module(name: str) -> str:
    return name.removesuffix(".weight").rpartition(".")[0].removeprefix(PREFIX) if name.startswith(PREFIX) else ""
