"""The answers of ``mt-plugins`` as plain data: ``--json`` prints it, ``plugins_text`` draws it.

An entry of ``list`` and of ``list --components`` needs no plugin's config; options are gathered for ``info`` alone.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from mt_core.plugins.compatibility import out_of_range
from mt_core.plugins.metadata import PluginInfo, canonicalize

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from mt_core.components import ModelFamily
    from mt_core.config.base import MtConfig
    from mt_core.kinds import Kind, Kinds
    from mt_core.plugins.host import Offer, Plugin, PluginHost

Report = dict[str, Any]
SCHEMA = 1
"""Version of the JSON envelope."""

BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "multiple_of": "multiple of"}
LENGTHS = {"min_length": "length >=", "max_length": "length <="}


def metadata(plugin: PluginInfo) -> Report:
    """A plugin as its distribution describes it; nothing is imported."""
    return {
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "location": plugin.location,
        "status": "blocked" if plugin.blocked else "installed",
        "module": plugin.module,
    }


def plugin_report(plugin: Plugin, kind: str = "") -> Report:
    """A plugin after loading: its status, the cause of a failure, and what it offers (of one kind)."""
    return metadata(plugin.info) | {
        "status": plugin.status,
        "error": plugin.error,
        "load_ms": round(plugin.load_ms, 1),
        "kinds": [_kind(kind) for kind in plugin.kinds],
        "components": [brief_report(offer) for offer in plugin.offers if kind in ("", offer.kind)],
    }


def _kind(kind: Kind) -> Report:
    return {"name": kind.name, "hook": kind.hook, "slot": kind.slot, "key": kind.key, "summary": kind.summary}


def brief_report(offer: Offer) -> Report:
    """A component in one line."""
    component = offer.component
    return {"kind": offer.kind, "name": component.name, "qualified": offer.qualified_name, "summary": component.summary}


def component_report(offer: Offer, kinds: Kinds) -> Report:
    """A component with everything that it declares, its options, and their JSON Schema."""
    from dataclasses import fields

    component = offer.component
    declared = {field.name: getattr(component, field.name) for field in fields(component) if field.name != "config"}
    data = {name: _json_value(value) for name, value in declared.items() if not callable(value)}
    prefix = _prefix(offer, kinds)
    if not prefix:
        return brief_report(offer) | data | {"options": [], "schema": None}
    schema = component.config.model_json_schema()
    return brief_report(offer) | data | {"options": list(options(prefix, component.config)), "schema": schema}


def _prefix(offer: Offer, kinds: Kinds) -> str:
    """Return where a run sets the options; empty for what is built from the model's own, as ``train_model`` is."""
    kind = kinds.get(offer.kind)
    if kind is None or not kind.key:
        return ""
    return f"{kind.key}.{offer.component.name}" if kind.slot == "many" else kind.key


def _json_value(value: Any) -> Any:
    from pydantic_core import to_jsonable_python

    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [getattr(item, "name", item) for item in value]
    return to_jsonable_python(value, fallback=str)


# ------------------------------------------------------------------------------------------------------------- options


def options(prefix: str, config: type[MtConfig]) -> Iterator[Report]:
    """Each option of a config, nested ones with dotted keys: key, type, bounds, default, description."""
    from mt_core.config.base import nested_config

    for name, field in config.model_fields.items():
        key = f"{prefix}.{name}".replace("_", "-")
        nested = nested_config(field.annotation)
        if nested is None:
            yield _option(key, field)
        else:
            yield from options(key, nested)


def _option(key: str, field: FieldInfo) -> Report:
    return {
        "key": key,
        "type": type_words(field.annotation),
        "required": field.is_required(),
        "default": None if field.is_required() else _json_value(field.get_default(call_default_factory=True)),
        "bounds": ", ".join(_bounds(field)),
        "description": field.description or "",
    }


def _bounds(field: FieldInfo) -> Iterator[str]:
    for mark in field.metadata:
        for attribute, words in (BOUNDS | LENGTHS).items():
            limit = getattr(mark, attribute, None)
            if limit is not None and (attribute, limit) != ("min_length", 0):
                yield f"{words} {limit}"
        if pattern := getattr(mark, "pattern", None):
            yield f"matches {pattern}"


def type_words(annotation: Any) -> str:
    """A type as a person writes it: ``int or none``, ``a | b``, ``list of str``."""
    from mt_core.config.base import nested_config

    arguments = get_args(annotation)
    origin = get_origin(annotation)
    if annotation in (None, type(None)):
        return "none"
    if origin is Literal:
        return " | ".join(str(choice) for choice in arguments)
    if origin is Annotated:
        return type_words(arguments[0])
    if origin in (Union, types.UnionType):
        return " or ".join(type_words(part) for part in arguments)
    if origin in (tuple, list, set, frozenset):
        return f"list of {' or '.join(dict.fromkeys(type_words(part) for part in arguments if part is not ...))}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"mapping of {type_words(arguments[0])} to {type_words(arguments[1])}"
    if (config := nested_config(annotation)) is not None:
        return "{" + ", ".join(config.model_fields) + "}"
    return "anything" if annotation is Any else str(getattr(annotation, "__name__", annotation))


# ------------------------------------------------------------------------------------------------------------ problems


def problems(plugin: Plugin, host: PluginHost) -> list[str]:
    """Return what is wrong with a plugin, each in one line; empty for a good or a blocked one."""
    if plugin.status == "failed":
        return [plugin.error]
    misfit = out_of_range(plugin.info) if plugin.status == "loaded" else ""
    told = [*plugin.warnings, *([misfit] if misfit else [])]
    return [*told, *_shared_names(plugin, host), *_bad_sizes(plugin, host)]


def _shared_names(plugin: Plugin, host: PluginHost) -> Iterator[str]:
    from mt_core.plugins.loading import SIZES

    for offer in plugin.offers:
        if offer.component.replaces or offer.kind == SIZES:
            continue
        rivals = [
            other
            for other in host.offers(offer.kind)
            if other is not offer
            and not other.component.replaces
            and canonicalize(other.component.name) == canonicalize(offer.component.name)
        ]
        if rivals:
            sources = ", ".join(rival.plugin.label for rival in rivals)
            kind = offer.kind.replace("_", " ")
            yield f"{kind} {offer.component.name!r} is also offered by {sources}; name it as {offer.qualified_name}"


def _bad_sizes(plugin: Plugin, host: PluginHost) -> Iterator[str]:
    """Named sizes that the family's own config refuses, told to whoever offers them."""
    from pydantic import ValidationError

    from mt_core.config.faults import faults_of

    for family, size, values in _sizes(plugin, host):
        try:
            family.config(**dict(values))
        except ValidationError as error:
            faults = "; ".join(str(fault) for fault in faults_of(error, family.config, "model"))
            yield f"size {size!r} of model {family.name!r} is refused by its own config: {faults}"


def _sizes(plugin: Plugin, host: PluginHost) -> Iterator[tuple[ModelFamily, str, Mapping[str, Any]]]:
    """The sizes that a plugin offers itself, each with its family; those of a family that is not installed are left out."""
    from mt_core.components import ModelFamily, ModelSizes
    from mt_core.plugins.extension import family_of

    families = {family_of(offer): offer for offer in host.offers("model")}
    for offer in plugin.offers:
        home = families.get(family_of(offer)) if isinstance(offer.component, ModelFamily | ModelSizes) else None
        if home is None or not isinstance(home.component, ModelFamily):
            continue
        for size, values in home.component.variants.items():
            if (host.adder(home, size) or home).plugin is plugin.info:
                yield home.component, size, values
