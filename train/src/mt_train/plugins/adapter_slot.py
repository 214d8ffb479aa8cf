"""The adapter slot: a method and options, perhaps those of a saved adapter that the run trains on from. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mt_core.errors import ComponentError, MtError
from mt_core.kinds import CORE_KINDS
from mt_core.plugins.host import PluginHost
from mt_train.adapters.folder import OF_TRAINING, AdapterFolder
from mt_train.config.layers import RECIPE
from mt_train.config.run import AdapterOptions, AdapterRef, ModelRef
from mt_train.plugins.draft import Draft
from mt_train.plugins.saved_adapter import find_saved, open_adapter, slot_of

SLOT = CORE_KINDS["adapter"].key


def take_saved_options(draft: Draft) -> None:
    """Take method and options from the folder of ``adapter.weights`` wherever the user has said none; a recipe's give way to it.

    A folder that says nothing is a fault where no method is given either. With one, as in every ``run.yaml``, whoever reads values
    refuses it: a run that goes on reads none, and does not need the folder any more.
    """
    given = draft.raw.get(SLOT, {})
    path = given.get("weights")
    if not isinstance(path, str):
        return  # absent, or a fault that validation names
    of_recipe = {key for key in given if key not in OF_TRAINING and _is_of_recipe(draft, key)}
    name = None if "name" in of_recipe else given.get("name")
    try:
        folder = open_adapter(path)
        stated = _stated_slot(folder, draft.host, name)
    except MtError as error:
        if name is None:
            draft.fault("adapter.weights", str(error))
        return
    if not stated:
        of_recipe = set()
    own = {key: value for key, value in given.items() if key not in of_recipe and (key != "name" or value is not None)}
    for key in of_recipe:
        del draft.origins[f"{SLOT}.{key}"]
    draft.origins.update({f"{SLOT}.{key}": f"the adapter in {folder.path}" for key in stated.keys() - own.keys()})
    draft.raw[SLOT] = {**stated, **own}


def _is_of_recipe(draft: Draft, key: str) -> bool:
    return draft.origins.get(f"{SLOT}.{key}", "").startswith(RECIPE)


def _stated_slot(folder: AdapterFolder, host: PluginHost, name: str | None) -> Mapping[str, Any]:
    """Return the slot that a folder states; of the method ``name`` where that is given, nothing where that cannot read it."""
    if name is None:
        return slot_of(folder, host)
    try:
        offer = host.get("adapter", name)
    except ComponentError:
        return {}  # a fault of the slot's own
    written = folder.written.get("name")
    if isinstance(written, str) and written.rpartition("/")[2] == offer.component.name:
        return {"name": name, **folder.written.get("options", {})}
    options = folder.options_of(offer.component)  # type: ignore[arg-type]  # the host checks what mt_adapters returns
    return {} if options is None else {"name": name, **options.model_dump(mode="json", exclude_unset=True)}


def fill_adapter(draft: Draft) -> None:
    """Settle method, options and where first values come from."""
    offer = draft.offers.get("adapter")
    if offer is None:
        return
    given = {key: value for key, value in draft.raw.get(SLOT, {}).items() if key != "name"}
    own = {key: given.pop(key) for key in list(given) if key in AdapterOptions.model_fields}
    source = draft.validate(AdapterOptions, own, SLOT)
    options = draft.validate(offer.component.config, given, SLOT, set(AdapterOptions.model_fields))
    if source is not None and options is not None:
        name = str(draft.raw.get(SLOT, {}).get("name", offer.component.name))
        draft.values[SLOT] = AdapterRef(name=name, options=options, source=source)


def find_merged(draft: Draft) -> None:
    """Find the adapters of ``model.adapters``, each of which has to be one that weights can stand for."""
    model = draft.values.get("model")
    for path in model.source.adapters if isinstance(model, ModelRef) else ():
        try:
            saved = find_saved(path, draft.host)
        except MtError as error:
            draft.fault("model.adapters", str(error))
            continue
        if not saved.component.mergeable:
            draft.fault(
                "model.adapters",
                f"{path} holds the adapter {saved.component.name}, which no weights can stand for: {saved.component.summary}.",
                f"Train on from it with --adapter.weights {path}.",
            )
        draft.merged.append(saved)
