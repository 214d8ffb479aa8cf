"""JSON Schema of a run's config, with the options of every installed component: for editors that complete and check YAML or JSON.

It holds what a file says, not what one lacks: others and the command line may add to it. What pydantic reads in ways that no schema has
(text that is split, the path of a file) is left open, so that no config that a run takes is refused, unless it has names in capitals;
rules between keys are the run's.
https://json-schema.org/draft/2020-12
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema
from pydantic_core import CoreSchema, core_schema

from mt_core.components import AdapterComponent, ModelFamily
from mt_core.config.base import MtConfig
from mt_core.kinds import Kind
from mt_core.plugins.host import Offer, PluginHost
from mt_train.config.run import SECTIONS, AdapterOptions, ModelOptions

Schema = dict[str, Any]
NUMBER = r"^\s*[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"
"""Text that is a number: YAML 1.1 reads ``2e-4`` as text, and configs do not."""
NAMELESS = frozenset({"model", "adapter", "dataset", "tokenizer"})
"""Kinds whose component may follow from weights or a path where none is named."""


class _Generator(GenerateJsonSchema):
    """Configs as people write them: closed, keys with ``-`` or ``_``, ``none`` for null, and nothing required."""

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return {**super().float_schema(schema), "type": ["number", "string"], "pattern": NUMBER}

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        inner = super().function_before_schema(schema)
        return inner if _is_config(schema["schema"]) else {"anyOf": [inner, {}]}

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return {"anyOf": [self.generate_inner(schema["schema"]), {"enum": [None, "none"]}]}

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        choices = list(schema["expected"])
        return {"enum": [*choices, None] if "none" in choices else choices}

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        found, config = super().model_schema(schema), schema["cls"]
        if not issubclass(config, MtConfig):
            return found
        properties = {name: _plain(field) for name, field in found.get("properties", {}).items()}
        kept = {key: value for key, value in found.items() if key in ("description", "additionalProperties")}
        kind = {} if _reads_other_forms(config) else {"type": "object"}
        return {**kind, **kept, "properties": properties}

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Defaults of a run hang on its components; descriptions say those that matter."""
        return self.generate_inner(schema["schema"])


def _is_config(schema: CoreSchema) -> bool:
    """Return whether a validator is that of a whole config, which reads keys, and not that of a value."""
    found: Mapping[str, Any] = schema
    while str(found["type"]).startswith("function-"):
        found = found["schema"]
    return found["type"] in ("model", "model-fields", "definition-ref", "definitions")


def _reads_other_forms(config: type[MtConfig]) -> bool:
    """Return whether a config may be written as something else than a mapping, such as the path of a file."""
    before = {
        name for name, each in config.__pydantic_decorators__.model_validators.items() if each.info.mode == "before"
    }
    return bool(before - set(MtConfig.__pydantic_decorators__.model_validators))


def _plain(field: Schema) -> Schema:
    return {key: value for key, value in field.items() if key not in ("title", "default")}


def run_schema(host: PluginHost) -> Schema:
    """Return the schema of the configs that ``mt-train --config`` takes, with what is installed now."""
    kinds = [kind for kind in host.kinds.values() if kind.slot != "part"]
    offers = {kind.name: list(host.offers(kind.name)) for kind in kinds}
    configs = {config for each in offers.values() for offer in each for config in _configs(offer)} | {
        *SECTIONS.values()
    }
    ordered = sorted(configs, key=lambda config: (config.__module__, config.__qualname__))
    wanted: list[tuple[type[MtConfig], Literal["validation"]]] = [(config, "validation") for config in ordered]
    references, schema = models_json_schema(wanted, schema_generator=_Generator)
    found = _Schemas({config: references[config, "validation"] for config in ordered}, schema.get("$defs", {}))
    properties = {section: found.section(config) for section, config in SECTIONS.items()}
    for kind in kinds:
        properties[kind.key] = found.slot(kind, offers[kind.name])
    properties["include"] = {
        "type": ["string", "array"],
        "items": {"type": "string"},
        "description": "configs under this one",
    }
    whole = {"title": "config of mt-train", **_close(properties), "$defs": found.definitions}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_accept_dashes(whole, "#")}


class _Choice(NamedTuple):
    """A component that a slot may have, the names that choose it, and the schema of its options."""

    name: str
    names: tuple[str, ...]
    options: Schema


class _Schemas:
    """Schemas of slots and sections, made of those of configs."""

    def __init__(self, references: Mapping[type[MtConfig], Schema], definitions: dict[str, Any]) -> None:
        self._references, self.definitions = references, definitions

    def _properties(self, config: type[MtConfig]) -> dict[str, Any]:
        name = str(self._references[config]["$ref"]).rpartition("/")[2]
        properties: dict[str, Any] = self.definitions[name].get("properties", {})
        return properties

    def section(self, config: type[MtConfig]) -> Schema:
        """A section, in which ``none`` counts as left out, as an empty one does."""
        properties = {
            name: {"anyOf": [each, {"enum": [None, "none"]}], "description": each.get("description", "")}
            for name, each in self._properties(config).items()
        }
        if "seed" in properties:
            properties["seeds"] = {"description": "seeds of several runs: 1,2,3"}
        return {**_close(properties), "type": ["object", "null"]}

    def slot(self, kind: Kind, offers: Iterable[Offer]) -> Schema:
        """A component, or several: by name, or with options."""
        choices = [_Choice(offer.component.name, _names(offer), self._define(kind, offer)) for offer in offers]
        name = {"enum": sorted({name for choice in choices for name in choice.names})}
        chosen: Schema = {
            "type": "object",
            "properties": {"name": name},
            "allOf": [
                {
                    "if": {"properties": {"name": {"enum": list(choice.names)}}, "required": ["name"]},
                    "then": choice.options,
                }
                for choice in choices
            ],
        }
        if kind.slot == "one":
            return {
                "description": kind.summary,
                **_by_type(name, null={}, object={**chosen, **_unnamed(kind, choices)}),
            }
        mapping = _close({name: _by_type(choice.options, null={}) for choice in choices for name in choice.names})
        listed = {"items": _by_type(name, object={**chosen, "required": ["name"]})}
        single = {"enum": [*name["enum"], None, "none"]}
        return {"description": kind.summary, **_by_type(single, object=mapping, array=listed)}

    def _define(self, kind: Kind, offer: Offer) -> Schema:
        """Put the options of a component, with those that the trainer has for its kind, among the definitions."""
        properties: dict[str, Any] = {}
        for config in _configs(offer):
            properties |= self._properties(config)
        key = f"{kind.name}:{offer.plugin.distribution}:{offer.component.name}"
        about = {"description": offer.component.summary}
        self.definitions[key] = {**about, **_close({"name": {"type": "string"}, **properties})}
        return {"$ref": f"#/$defs/{key}"}


def _unnamed(kind: Kind, choices: Sequence[_Choice]) -> Schema:
    """Return the options without a name: the default component's, or any's where its name follows from them."""
    default = [choice.options for choice in choices if choice.name == kind.default]
    if kind.name in NAMELESS or not default:
        default = [choice.options for choice in choices] or [{}]
    return {"if": {"required": ["name"]}, "else": default[0] if len(default) == 1 else {"anyOf": default}}


def _by_type(otherwise: Schema, **schemas: Schema) -> Schema:
    """Return a schema by the type of the value, whose faults name the key at fault, as those of ``anyOf`` do not."""
    found = otherwise
    for name, schema in schemas.items():
        found = {"if": {"type": name}, "then": schema, "else": found}
    return found


def _configs(offer: Offer) -> tuple[type[MtConfig], ...]:
    component = offer.component
    more = (ModelOptions,) * isinstance(component, ModelFamily) + (AdapterOptions,) * isinstance(
        component, AdapterComponent
    )
    return (component.config, *more)


def _names(offer: Offer) -> tuple[str, ...]:
    name = offer.component.name
    if offer.component.replaces:
        return (offer.qualified_name,)
    return tuple(dict.fromkeys((name, name.replace("-", "_"), offer.qualified_name)))


def _close(properties: Mapping[str, Any]) -> Schema:
    return {"type": "object", "properties": dict(properties), "additionalProperties": False}


def _accept_dashes(schema: Any, place: str) -> Any:
    """Return the schema with ``max-len`` beside ``max_len``, which an editor offers. ``place`` is its JSON pointer."""
    if isinstance(schema, list):
        return [_accept_dashes(each, f"{place}/{number}") for number, each in enumerate(schema)]
    if not isinstance(schema, dict):
        return schema
    found = {key: _accept_dashes(each, f"{place}/{key}") for key, each in schema.items()}
    properties = found.get("properties")
    if found.get("additionalProperties") is False and isinstance(properties, dict):
        dashed = [name for name in properties if "_" in name and name.replace("_", "-") not in properties]
        quiet = {
            name.replace("_", "-"): {"$ref": f"{place}/properties/{name}", "doNotSuggest": True} for name in dashed
        }
        found["properties"] = {**properties, **quiet}
    return found
