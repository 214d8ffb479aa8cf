"""An adapter that is saved somewhere: the folder that peft or ``mt-export`` wrote, or a run. Finding and describing it imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os.path import expanduser
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import ValidationError

from mt_core.components import AdapterComponent
from mt_core.config.base import MtConfig
from mt_core.errors import ComponentError, WeightsError
from mt_core.groups import matching_pattern
from mt_core.plugins.host import Offer, PluginHost
from mt_core.weights import Loaders, check_file
from mt_train.adapters.folder import CONFIG, AdapterFolder
from mt_train.checkpoint.files import sha256
from mt_train.checkpoint.manifest import MANIFEST, read_manifest
from mt_train.checkpoint.store import find, has_checkpoint

if TYPE_CHECKING:
    from mt_core.adapters.base import Adapter
    from mt_core.nn import TrainModel

RUN_FILE = "run.yaml"


@dataclass(frozen=True)
class AdapterCheckpoint(AdapterFolder):
    """The adapter in a checkpoint of a run: its own names, beside whatever else the checkpoint has."""

    @classmethod
    def of(cls, checkpoint: Path) -> Self:
        """Read what the checkpoint says of its adapter. Raises ``CheckpointError`` for a damaged one."""
        manifest = read_manifest(checkpoint)
        config = manifest.get("config", {})
        options = {key: value for key, value in config.get("adapter", {}).items() if key != "weights"}
        name = options.pop("name", None)
        if not isinstance(name, str):
            raise WeightsError(f"{checkpoint / MANIFEST} names no adapter; give the folder of a run that has one")
        written = {"name": name, "options": options, "plan": manifest.get("adapter", {})}
        written |= {"base": _base_under(checkpoint, manifest), "enable": config.get("train", {}).get("enable", ())}
        written |= {"under": config.get("model", {}).get("adapters", ())}
        return cls(checkpoint, {}, written)

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.path / MANIFEST, *sorted((self.path / "model").glob("*.safetensors")))

    def tensors(self) -> Loaders:
        """Loaders of all tensors of the checkpoint."""
        from mt_train.checkpoint.tensors import open_model

        return dict(open_model(self.path / "model"))

    def for_model(
        self, adapter: Adapter, model: TrainModel, *, run: Mapping[str, Any], stated: bool = False
    ) -> Loaders:
        """Return what the run has trained, or rewritten, of this model with its adapter, and of what its objective trains beside it.

        Raises ``WeightsError`` as the base does.
        """
        from mt_core.nn.objective import split_objective_name

        found = super().for_model(adapter, model, run=run, stated=stated)
        names = [name for name, _ in model.named_parameters()]
        saved = set(adapter.saved_state(model)) | {
            name for name in names if matching_pattern(name, tuple(self.written["enable"]))
        }
        if saved >= set(names):
            raise WeightsError(
                f"{self.path} trained all of its model, which is no adapter; write it with mt-convert, and give that folder as"
                " --model.weights"
            )
        if missing := sorted(saved - set(found)):
            raise WeightsError(f"{self.path} is an adapter of another model: it has no {', '.join(missing[:4])}")
        beside = {name for name in names if split_objective_name(name) and name in found}
        return {name: found[name] for name in sorted(saved | beside)}


def _base_under(checkpoint: Path, manifest: Mapping[str, Any]) -> Mapping[str, str] | None:
    """Return the hashes of the files that the adapter stands on; ``None`` of a whole checkpoint.

    An overlay with values of the adapter alone, as another checkpoint has them, is none of these: the checkpoint has them all itself.
    """
    base: Mapping[str, str] | None = manifest.get("base")
    overlay = manifest.get("config", {}).get("model", {}).get("overlay")
    files = [] if overlay is None else _files_of(Path(expanduser(overlay)))
    if not base or not files:
        return base
    own = {name for file in (checkpoint / "model").glob("*.safetensors") for name in check_file(file)}
    if any(not (names := check_file(file)) or names - own for file in files):
        return base
    return without_overlay(base, Path(expanduser(overlay)))


def without_overlay(base: Mapping[str, str], overlay: Path) -> dict[str, str]:
    """Return the hashes of the files that an adapter stands on without those of an overlay."""
    hashes = {sha256(file) for file in _files_of(overlay)}
    return {name: value for name, value in base.items() if value not in hashes}


def _files_of(overlay: Path) -> list[Path]:
    """Return the file, or those of the folder; none where it is gone."""
    return [overlay] if overlay.is_file() else sorted(overlay.glob("*.safetensors"))


@dataclass(frozen=True)
class SavedAdapter:
    """A saved adapter with the component that it is of."""

    folder: AdapterFolder
    offer: Offer
    options: MtConfig

    @property
    def component(self) -> AdapterComponent:
        """The declaration of the adapter."""
        assert isinstance(self.offer.component, AdapterComponent), "the host checks what mt_adapters returns"
        return self.offer.component

    def build(self) -> Adapter:
        """Build the adapter, which is in no model yet and gets its values from the folder."""
        adapter: Adapter = self.component.build(self.options)
        adapter.plan, adapter.has_values = self.folder.written.get("plan", {}), True
        return adapter

    def tensors(self, adapter: Adapter, model: TrainModel, *, stated: bool = True) -> Loaders:
        """Return the values by the names of the model that the adapter is in."""
        run = {"name": self.component.name, **self.options.model_dump(mode="json")}
        return self.folder.for_model(adapter, model, run=run, stated=stated)


def open_adapter(given: str) -> AdapterFolder:
    """Find the adapter at a path: a folder of peft's or ``mt-export``'s, a run (its last checkpoint), or a checkpoint.

    Raises ``WeightsError`` for what is none, and for values in a pickle, which is not opened.
    """
    path = Path(expanduser(given))
    if not path.exists():
        raise WeightsError(f"{path} does not exist; give the folder of an adapter, or a run")
    folder = AdapterFolder.at(path)
    if folder is None and (has_checkpoint(path) or (path / MANIFEST).is_file()):
        return AdapterCheckpoint.of(find(path))
    if folder is None:
        is_run = (path / RUN_FILE).is_file()
        what = "is a run that has saved no checkpoint" if is_run else f"holds no adapter: no {CONFIG} and no checkpoint"
        raise WeightsError(f"{path} {what}; give a folder that peft or mt-export wrote, or a run that has saved")
    if folder.file.suffix != ".safetensors":
        raise WeightsError(
            f"{folder.file} is a pickle, which can execute what is in it, and is not read; save it in peft as safetensors"
            " (save_pretrained with safe_serialization=True)"
        )
    return folder


def find_saved(given: str, host: PluginHost) -> SavedAdapter:
    """Return the adapter at a path with its component. Raises ``WeightsError`` for what is none, or of no installed method."""
    folder = open_adapter(given)
    slot = slot_of(folder, host)
    offer = host.get("adapter", str(slot.pop("name")))
    try:
        return SavedAdapter(folder, offer, offer.component.config(**slot))
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise WeightsError(
            f"{folder.path} cannot be an adapter {offer.component.name}: {wrong}; export it again with the plugin as it is here"
        ) from error


def slot_of(folder: AdapterFolder, host: PluginHost) -> dict[str, Any]:
    """Name and options. Raises ``WeightsError`` for a method that no installed adapter is."""
    if name := folder.written.get("name"):
        _require(folder, str(name), host)
        return {"name": name, **folder.written.get("options", {})}
    components = [each.component for each in host.offers("adapter") if isinstance(each.component, AdapterComponent)]
    for component in components:
        if (options := folder.options_of(component)) is not None:
            return {"name": component.name, **options.model_dump(mode="json", exclude_unset=True)}
    readers = ", ".join(component.name for component in components if component.peft_options is not None)
    raise WeightsError(
        f"{folder.path} holds an adapter {folder.method} of peft, which no installed adapter reads; those that read what peft"
        f" writes are {readers or 'none'}"
    )


def _require(folder: AdapterFolder, name: str, host: PluginHost) -> None:
    try:
        host.get("adapter", name)
    except ComponentError as error:
        plugin, version = folder.written.get("plugin"), folder.written.get("version")
        raise WeightsError(f"{folder.path} holds an adapter {name} of {plugin} {version}: {error}") from error
