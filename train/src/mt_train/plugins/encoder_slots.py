"""Encoders of a run in the shape that their weights have, each with its projector. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mt_core.components import PartChoice, WeightsFormat
from mt_core.errors import ComponentError, MtError, WeightsError
from mt_core.media import EncoderComponent, EncoderConfig, ProjectorComponent
from mt_train.config.run import SlotRef
from mt_train.plugins.draft import Draft
from mt_train.plugins.hub import locate
from mt_train.plugins.whole_models import MODEL, refuse_unread


def fill_encoders(draft: Draft) -> None:
    """Give each encoder with weights the shape that these say, where the user has said no other."""
    if named := draft.values.get("encoders"):
        draft.values["encoders"] = tuple(_with_shape(draft, each) for each in named)


def _with_shape(draft: Draft, chosen: SlotRef) -> SlotRef:
    component, options = draft.offers[f"encoder:{chosen.name}"].component, chosen.options
    assert isinstance(component, EncoderComponent), "the host checks what mt_encoders returns"
    assert isinstance(options, EncoderConfig), "and that its config is one"
    key = f"encoders.{component.name}"
    if any(each.key == f"{key}.weights" for each in draft.faults):
        return chosen
    try:
        weights = find_weights(component.name, component, options, draft.weights_path)
        if weights is None:
            return chosen
        path, form = weights
        values = {**form.values(path), **options.model_dump(exclude_unset=True)}
        if path == draft.weights_path:
            refuse_unread(path, f"{key}.weights")
            is_stated = "projector" in options.model_fields_set  # a default is for encoders by themselves
            given = options.projector if is_stated else {"name": options.projector["name"]}
            values["projector"] = _projector_of_folder(draft, component.name, given, path)
    except MtError as error:
        draft.fault(f"{key}.weights", str(error))
        return chosen
    found = draft.validate(component.config, values, key)
    return chosen if found is None else chosen.model_copy(update={"options": found})


def _projector_of_folder(draft: Draft, name: str, given: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """Return the projector in the shape that a whole model has. Raises ``WeightsError`` where the user has said another."""
    choice = PartChoice.of(given, kind="projector")
    try:
        component = draft.host.get("projector", choice.name).component
    except ComponentError:
        return given  # a fault of its own
    form = None if not isinstance(component, ProjectorComponent) else find_projector_format(component, path)
    if form is None:
        return given
    values = form.values(path)
    stated = {key.replace("-", "_"): value for key, value in choice.options.items()}
    if differing := [key for key, value in stated.items() if key in values and str(values[key]) != str(value)]:
        listed = ", ".join(f"{key}={stated[key]} (there: {values[key]})" for key in differing)
        raise WeightsError(
            f"encoders.{name}.projector has {listed}, and {path} is a whole model with its projector; leave the option out, or name a"
            f" folder of the encoder alone (encoders.{name}.weights)"
        )
    return {"name": choice.name, **values, **stated}


def find_projector_format(component: ProjectorComponent, path: Path) -> WeightsFormat | None:
    """Return how a folder has such a projector; ``None`` where it has none."""
    return next((each for each in component.formats if each.matches(path)), None)


def find_weights(
    name: str, component: EncoderComponent, options: EncoderConfig, model: Path | None
) -> tuple[Path, WeightsFormat] | None:
    """Return the folder of an encoder's weights, here or from the Hub, and how it is read; ``None`` where they are drawn. ``model`` is
    that of the model.

    Raises ``WeightsError`` for a folder that it does not read, and for one that is nowhere to be had.
    """
    if options.weights is None:
        return None
    key = f"encoders.{name}.weights"
    path = model if options.weights == MODEL else locate(options.weights, key)
    if path is None:
        raise WeightsError(f"{key} is {MODEL!r}, and the run has no model.weights; name a folder, or leave it out")
    if not path.exists():
        raise WeightsError(f"{path.absolute()} does not exist; give a folder, or a name on the Hub (org/name)")
    form = next((each for each in component.formats if each.matches(path)), None)
    if form is None:
        known = ", ".join(each.name for each in component.formats) or "none"
        raise WeightsError(f"{key}={options.weights} is no folder that {name} reads (formats: {known})")
    return path, form
