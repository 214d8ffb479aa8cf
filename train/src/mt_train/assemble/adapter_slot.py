"""The adapter in a folder as a run names it. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core.plugins.host import PluginHost
from mt_train.adapters.folder import AdapterFolder
from mt_train.config.commandline import merge
from mt_train.plugins.saved_adapter import AdapterCheckpoint, open_adapter, slot_of

if TYPE_CHECKING:
    from mt_core.adapters.base import Adapter
    from mt_core.nn import TrainModel
    from mt_core.weights import Loaders


def with_adapter(raw: Mapping[str, Any], path: Path, host: PluginHost) -> dict[str, Any]:
    """A config with the adapter of a folder that peft or ``mt-export`` wrote, or of a run: slot, options and values.

    Raises ``WeightsError`` for a folder without one, and for a method that no installed adapter is.
    """
    folder = folder_at(path)
    if isinstance(folder, AdapterCheckpoint):
        return merge(raw, {"adapter": {"weights": str(path)}})
    return merge(raw, {"model": {"overlay": str(path)}, "adapter": slot_of(folder, host)})


def folder_at(path: Path) -> AdapterFolder:
    """Find the adapter in a folder, whose pickle is read as tensors alone, or of a run. Raises ``WeightsError`` where there is none."""
    return AdapterFolder.at(path) or open_adapter(str(path))


def adapter_in(
    folder: AdapterFolder, model: TrainModel, host: PluginHost
) -> tuple[Adapter, Callable[[TrainModel], Loaders]]:
    """The adapter, and what gives its values for the model once it is in it: what ``SeveralAdapters.add`` takes."""
    slot = slot_of(folder, host)
    folder.check_places(model)
    component = host.get("adapter", str(slot["name"])).component
    options = component.config(**{key: value for key, value in slot.items() if key != "name"})
    adapter: Adapter = component.build(options)
    adapter.plan, adapter.has_values = folder.written.get("plan", {}), True
    run = {"name": slot["name"], **options.model_dump(mode="json")}
    return adapter, lambda model: folder.for_model(adapter, model, run=run, stated=True)
