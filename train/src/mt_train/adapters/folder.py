"""A folder of one adapter, as peft or ``mt-export`` writes it. Finding and describing it imports no torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from mt_core.adapters.base import PeftForm
from mt_core.adapters.peft import PREFIX
from mt_core.errors import WeightsError
from mt_core.weights import Loaders, check_file, open_pickle, open_safetensors, read_json
from mt_train.adapters.contradictions import contradictions
from mt_train.adapters.portable import unfold

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from mt_core.adapters.base import Adapter
    from mt_core.components import AdapterComponent
    from mt_core.config.base import MtConfig
    from mt_core.nn import TrainModel

CONFIG = "adapter_config.json"
WRITTEN = "mt_adapter.json"
"""File beside peft's own config for what that has no keys for: the same as ``mt_adapter`` in the config of what peft does not know."""
BESIDE = "mt_adapter.safetensors"
"""Values that training goes on with, and peft's form has no place for."""
PORTABLE = "portable"
"""Key of ``WRITTEN`` that says of a LoRA that its tensors are as ``mt_train.adapters.portable`` folds them."""
TENSORS = ("adapter_model.safetensors", "adapter_model.bin")
OF_TRAINING = frozenset({"dropout", "fp32"})
"""Options that say how an adapter is trained, and not what it is: they may differ where it is trained on."""
_WHOLE = {
    "modules_to_save": "modules that are trained whole",
    "trainable_token_indices": "rows of the embedding that are trained",
    "target_parameters": "parameters that are no linear layer's weight",
    "layer_replication": "blocks that come several times",
}
"""Keys of peft's config that say of tensors that are no adapter's."""
_TYPES: dict[str, tuple[type, ...]] = {
    "target_modules": (list, str),
    "exclude_modules": (list, str),
    "feedforward_modules": (list, str),
    "rank_pattern": (dict,),
    "alpha_pattern": (dict,),
}
"""Key of peft's config → the types that it may have: these are read before they are options, whose types pydantic checks."""


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
        _check_written(path, written)
        if not config.get("peft_type") and not isinstance(written.get("name"), str):
            raise WeightsError(f"{path / CONFIG} has neither peft_type nor mt_adapter, so that its method is not known")
        return cls(path, config, written)

    @property
    def method(self) -> str:
        """Name of the method: peft's type, or our component."""
        return str(self.config.get("peft_type") or self.written["name"])

    @property
    def file(self) -> Path:
        """The file with the tensors. Raises ``WeightsError`` where there are none."""
        found = next((self.path / name for name in TENSORS if (self.path / name).is_file()), None)
        if found is None:
            raise WeightsError(f"{self.path} has {CONFIG} and none of {', '.join(TENSORS)}; copy the file there, too")
        return found

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that its values follow from."""
        found = [self.path / name for name in (CONFIG, WRITTEN, BESIDE)]
        return (*(path for path in found if path.is_file()), self.file)

    def tensors(self) -> Loaders:
        """Loaders of the tensors, by the names in the file."""
        return open_safetensors(self.file) if self.file.suffix == ".safetensors" else open_pickle(self.file)

    def modules(self) -> list[str]:
        """The modules that it has tensors for, by the model's names."""
        return sorted({module for name in self._names() if (module := _module(name))})

    def _names(self) -> Iterable[str]:
        return check_file(self.file) if self.file.suffix == ".safetensors" else self.tensors().keys()

    def options_of(self, component: AdapterComponent) -> MtConfig | None:
        """Return the options of this adapter by peft's config; ``None`` where that is of another method.

        Raises ``WeightsError`` for values that it cannot have.
        """
        if component.peft_options is None or not self.config.get("peft_type"):
            return None
        self._check_types()
        try:
            options = component.peft_options(self.config, self.modules())
        except (TypeError, ValueError, re.error) as error:  # values of other types, expressions that are none
            raise self._refusal(f"this cannot be read as an adapter {component.name}: {error}") from error
        try:
            return None if options is None else component.config(**options)
        except ValidationError as error:
            wrong = "; ".join(self._fault(each) for each in error.errors())
            raise self._refusal(f"this cannot be an adapter {component.name}: {wrong}") from error

    def states(self, component: AdapterComponent, options: MtConfig, run: Mapping[str, Any]) -> bool:
        """Return whether a run's adapter is what the folder says, so that nobody has to have typed its options."""
        if self.written.get("name"):
            return not any(self._other_options(run))
        return self.options_of(component) == options

    def _fault(self, error: Any) -> str:
        """One fault of an option, with the key of peft's config that has its value."""
        keys = [
            key for key, value in self.config.items() if type(value) is type(error["input"]) and value == error["input"]
        ]
        named = ", ".join(keys) or ".".join(map(str, error["loc"])) or "its options"
        return f"{named}: {str(error['msg']).removeprefix('Value error, ')} (got {error['input']!r})"

    def _check_types(self) -> None:
        for key, kinds in _TYPES.items():
            if not isinstance(self.config.get(key), (*kinds, NoneType)):
                wanted = " or ".join(each.__name__ for each in kinds)
                raise WeightsError(
                    f"{self.path / CONFIG}: {key} is {self.config[key]!r}, and has to be of type {wanted}"
                )

    def check_places(self, model: TrainModel) -> None:
        """Raises ``WeightsError`` where peft has trained something else than linear layers beside the head."""
        if not self.config.get("peft_type"):
            return
        for key, what in _WHOLE.items():
            if self.config.get(key):
                raise self._refusal(f"{key} is {self.config[key]!r}: {what}, for which an adapter here has no place")
        from mt_core.adapters.linear import adapted_layers
        from mt_core.adapters.targets import linear_layers

        layers = {
            *linear_layers(model),
            *(name for name, _ in adapted_layers(model)),
        }  # others may be on the model already
        others = sorted(name for name in self._names() if name.startswith(PREFIX) and not _within(name, layers))
        if others and not any(module in layers for module in self.modules()):
            raise WeightsError(f"{self.path} is an adapter of another model: this one has no layer for {others[0]}")
        if others:
            raise self._refusal(
                f"target_modules is {self.config.get('target_modules')!r}, and there are {', '.join(others[:4])}: adapters here"
                " stand for linear layers, and not for embeddings and the head"
            )

    def _refusal(self, why: str) -> WeightsError:
        return WeightsError(
            f"{self.path / CONFIG}: {why}. Merge it in peft (merge_and_unload), and give the merged folder as the weights"
        )

    def for_model(
        self, adapter: Adapter, model: TrainModel, *, run: Mapping[str, Any], stated: bool = False
    ) -> Loaders:
        """Return the tensors by the model's names; ``run`` is the run's slot (name and options), ``stated`` where they are the folder's.

        Raises ``WeightsError`` for an adapter of another method, with other options, or for other modules.
        """
        if not self.config.get("peft_type"):
            return self._as_written(run)
        return self._as_peft(adapter, model, run, stated=stated)

    def _as_written(self, run: Mapping[str, Any]) -> Loaders:
        if wrong := list(self._other_options(run)):
            raise self._contradiction(wrong, str(run["name"]))
        return self.tensors()

    def _other_options(self, run: Mapping[str, Any]) -> Iterator[str]:
        """Tell each option that ``mt-export`` has written otherwise than the run has it."""
        here, there = dict(run), {"name": self.written["name"], **self.written.get("options", {})}
        for each in (here, there):
            each["name"] = each["name"].rpartition("/")[2]  # DISTRIBUTION/NAME is the same one
        for key in here | there:
            if key not in OF_TRAINING and here.get(key) != there.get(key):
                yield f"{key} is {there.get(key)!r} there and {here.get(key)!r} in the run"

    def _as_peft(self, adapter: Adapter, model: TrainModel, run: Mapping[str, Any], *, stated: bool) -> Loaders:
        form, found = adapter.peft_form(model), self.tensors()
        if form is None:
            raise WeightsError(
                f"{self.path} holds an adapter {self.method} of peft, and the run's is {run['name']}; {self._advice()}"
            )
        other = list(self._other_options(run)) if self.written.get(PORTABLE) else []
        here = "here" if stated else "in the run"
        if self.written.get(PORTABLE) and not other:
            found = unfold(form, found)
        elif wrong := list(contradictions(form, self.config, self.modules(), here)):
            raise self._refusal("; ".join(wrong)) if stated else self._contradiction(other or wrong, str(run["name"]))
        if wrong := list(_find_mismatches(form, found)):
            advice = "" if stated else f"; {self._advice()}"
            raise WeightsError(
                f"{self.path} is an adapter of another model, or of other targets: {'; '.join(wrong)}{advice}"
            )
        own = dict(model.named_parameters())
        placed = {
            ours: _reshape(found[theirs], own[ours].shape, form.shapes.get(ours))
            if theirs in found
            else form.defaults[ours]
            for ours, theirs in form.names.items()
        }
        return placed | self._beside(form)

    def _beside(self, form: PeftForm) -> Loaders:
        """Tensors that ``mt-export`` has put into a file of its own; their first values, for a folder of peft's own."""
        if not self.written and not (self.path / BESIDE).is_file() and form.defaults.keys() >= form.beside:
            return {name: form.defaults[name] for name in form.beside}
        return open_safetensors(self.path / BESIDE) if form.beside else {}

    def _contradiction(self, wrong: list[str], name: str) -> WeightsError:
        return WeightsError(f"{self.path} is not what --adapter {name} says: {'; '.join(wrong)}; {self._advice()}")

    def _advice(self) -> str:
        said = ("peft_type", "r", "lora_alpha", "use_rslora", "use_dora", "target_modules")
        stated = self.written.get("options") or {key: self.config[key] for key in said if self.config.get(key)}
        made = ", ".join(f"{key} {value}" for key, value in stated.items())
        return f"give --adapter what it was made with ({made}), or --adapter.weights {self.path} and no options: the folder has them"


def _check_written(path: Path, written: Any) -> None:
    """Raise ``WeightsError`` for what ``mt-export`` cannot have written."""
    whole = written if isinstance(written, dict) else {"mt_adapter": written}
    odd = [key for key in ("mt_adapter", "options", "plan") if not isinstance(whole.get(key, {}), dict)]
    base = whole.get("base") or {}
    if not isinstance(base, dict) or not all(isinstance(each, str) for each in base.values()):
        odd.append("base")
    if odd:
        raise WeightsError(
            f"{path}: {odd[0]} in what mt-export wrote is {whole[odd[0]]!r}; it is damaged, export it again"
        )


def _find_mismatches(form: PeftForm, found: Mapping[str, Any]) -> Iterator[str]:
    known = set(form.names.values())
    needed = {theirs for ours, theirs in form.names.items() if ours not in form.defaults}
    for title, names in (
        ("it lacks", sorted(needed - set(found))),
        ("the run has no place for", sorted(set(found) - known - form.repeated)),
    ):
        if names:
            yield f"{title} {', '.join(names[:4])}" + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _reshape(load: Callable[[], Tensor], shape: torch.Size, theirs: tuple[int, ...] | None) -> Callable[[], Tensor]:
    """Return it as it is, or in the shape of the parameter where the form gives their tensor another one."""

    def load_reshaped() -> Tensor:
        tensor = load()
        return tensor.reshape(shape) if tuple(tensor.shape) == theirs else tensor

    return load_reshaped


def _within(name: str, layers: Collection[str]) -> bool:
    """Return whether a tensor is of one of the layers."""
    parts = name.removeprefix(PREFIX).split(".")
    return any(".".join(parts[:count]) in layers for count in range(1, len(parts)))


def _module(name: str) -> str:
    return name.removeprefix(PREFIX).removesuffix(".weight").rpartition(".")[0] if name.startswith(PREFIX) else ""
