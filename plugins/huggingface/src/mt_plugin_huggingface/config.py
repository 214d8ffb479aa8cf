"""A model of transformers as a typed config: four numbers, and ``config.json`` whole. Imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from mt_core import ModelConfig

from .types import ModelType, known_types, why_not

ROPE_TYPES = ("default", "linear", "llama3", "proportional", "yarn")
"""Rotary scalings that are the same for every text."""

BY_LENGTH = ("dynamic", "longrope")
"""Rotary scalings that hang on how long a text is: here on a token's own document, not on the longest row of a batch."""

FROM_ORIGINAL = ("llama3", "yarn")
"""Rotary scalings that hang on the original length, which is ``max_position_embeddings`` where they do not say it."""
REWARD_MODEL = "ForSequenceClassification"
"""End of the names of classes with a head that gives scores."""
_ORIGINAL = "original_max_position_embeddings"


class HuggingFaceConfig(ModelConfig):
    """``config`` is the content of a ``config.json``; the two numbers beside it win over what it says."""

    config: dict[str, Any] = Field(description="content of config.json, as transformers writes it")
    balance_loss: float = Field(
        0.0,
        ge=0,
        description="coefficient of each row's balance loss, a choice counting as one; default: config.json's, if it is used there",
    )

    @model_validator(mode="before")
    @classmethod
    def _read_numbers(cls, raw: Any) -> Any:
        """Take the numbers that are not given from ``config``."""
        content = raw.get("config") if isinstance(raw, dict) else None
        if not isinstance(content, dict) or why_not(content.get("model_type")) is not None:
            return raw
        kind = known_types()[content["model_type"]]
        longest = kind.value(content, "max_seq_len")
        if (factor := _dynamic_factor(content)) and _is_count(longest):
            longest = int(longest * factor)  # there it is the length up to which nothing is scaled
        numbers: dict[str, Any] = {"vocab_size": kind.value(content, "vocab_size"), "max_seq_len": longest}
        if coefficient := _stated_balance(content):
            numbers["balance_loss"] = coefficient
        return {**numbers, **raw}

    @model_validator(mode="after")
    def _can_be_trained(self) -> Self:
        if fault := fault_of(self.config):
            raise ValueError(fault)
        return self

    @property
    def kind(self) -> ModelType:
        """The model type."""
        return known_types()[self.config["model_type"]]

    @property
    def n_layers(self) -> int:
        """Return the number of blocks."""
        return int(self.kind.value(self.config, "n_layers"))

    @property
    def n_heads(self) -> int:
        """Return the number of query heads."""
        return int(self.kind.value(self.config, "n_heads"))

    def content(self) -> dict[str, Any]:
        """``config.json`` with the numbers of this config."""
        numbers = {"vocab_size": self.vocab_size}
        if not _scales_from_longest(self.config):
            numbers["max_seq_len"] = self.max_seq_len
        own = {key: numbers[name] for name, key in self.kind.names.items() if name in numbers}
        return {**self.config, **own, "architectures": [self.kind.architecture]}


def fault_of(content: Mapping[str, Any]) -> str | None:
    """Say why a ``config.json`` describes no model that is trained here, or ``None``."""
    if content.get("auto_map"):
        name = content.get("model_type")
        is_there = why_not(name) is None
        remedy = (
            f"if the weights are of transformers' own {name}, remove auto_map from config.json"
            if is_there
            else "use a type of transformers"
        )
        return f"it has auto_map: the model is code of its own beside the weights, which is never executed; {remedy}"
    if reason := why_not(content.get("model_type"), written_by=content.get("transformers_version")):
        return reason
    kind = known_types()[content["model_type"]]
    stated = content.get("architectures") or [kind.architecture]
    if not isinstance(stated, list) or not any(_is_read(str(name), kind) for name in stated):
        stated = stated if isinstance(stated, list) else [stated]
        return f"it describes {', '.join(map(str, stated))}; of {kind.name} this family reads {kind.architecture}"
    if content.get("quantization_config"):
        return "it has quantization_config: weights in fewer bits are not read; take the weights they were made from"
    if content.get("is_causal", True) is not True:  # transformers takes null as false
        return (
            f"is_causal is {content['is_causal']!r}: attention in both directions, as of models that embed texts, is not trained here;"
            " take weights of a causal model"
        )
    wrong = [name for name in kind.names if not _is_count(kind.value(content, name))]
    if wrong:
        return f"{kind.names[wrong[0]]} is {kind.value(content, wrong[0])!r}, and must be a whole number above 0"
    allowed = (*ROPE_TYPES, *BY_LENGTH) if kind.rotary_by_length else ROPE_TYPES
    if unknown := sorted(rope_types(content) - {*allowed}):
        return f"its rotary scaling {unknown[0]!r} is not known for {kind.name}; known are {', '.join(allowed)}"
    return None


def _is_read(architecture: str, kind: ModelType) -> bool:
    """Return whether a class is read as the type's language model; a reward model has all of that but its head."""
    return architecture == kind.architecture or architecture.endswith(REWARD_MODEL)


def _dynamic_factor(content: Mapping[str, Any]) -> float | None:
    """Factor of a dynamic rotary scaling, by which texts may be longer than ``max_position_embeddings``."""
    for key in ("rope_scaling", "rope_parameters"):
        given = content.get(key)
        if isinstance(given, Mapping) and given.get("rope_type", given.get("type")) == "dynamic":
            factor = given.get("factor")
            return float(factor) if isinstance(factor, int | float) and 1 <= factor < 2**20 else None
    return None


def _stated_balance(content: Mapping[str, Any]) -> float:
    """Coefficient of the balance loss that transformers' own training would take."""
    stated = content.get("router_aux_loss_coef") if content.get("output_router_logits") is True else None
    return float(stated) if isinstance(stated, int | float) and stated > 0 else 0.0


def _is_count(value: object) -> bool:
    return type(value) is int and 0 < value <= 2**31 - 1


def rope_types(content: Mapping[str, Any]) -> set[str]:
    """Return the names of all rotary scalings that a config has, those of single kinds of layers too."""
    return {name for name, _ in _rotary_scalings(content)}


def _rotary_scalings(content: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield name and parameters of each rotary scaling."""
    for key in ("rope_scaling", "rope_parameters"):
        given = content.get(key)
        nested = [given, *given.values()] if isinstance(given, Mapping) else []
        for each in nested:
            if isinstance(each, Mapping) and (name := each.get("rope_type", each.get("type"))) is not None:
                yield str(name), each


def _scales_from_longest(content: Mapping[str, Any]) -> bool:
    """Return whether ``max_position_embeddings`` is a part of a rotary scaling, so that another number would turn tokens otherwise."""
    return any(
        name in BY_LENGTH or (name in FROM_ORIGINAL and not (each.get(_ORIGINAL) or content.get(_ORIGINAL)))
        for name, each in _rotary_scalings(content)
    )


def limits_of(config: HuggingFaceConfig) -> Mapping[str, str]:
    """Return what the model type of a config cannot do, by layout or option."""
    found = {**config.kind.limits, "compile": "the compiler does not follow a block into the code that calls it"}
    if (reach := row_reach(config)) is not None and config.max_seq_len >= reach:
        reason = f"from token {reach} of a row on its attention counts tokens of the row; with model.max_seq_len {reach - 1} it does not"
        found |= {"packing": reason, "sequence": reason}
    return found


def row_reach(config: HuggingFaceConfig) -> int | None:
    """Return the tokens from which on a token's place in its row counts; ``None`` where it never does."""
    key = config.kind.counts_rows
    if key is None or config.config.get("attn_temperature_tuning", True) is False:
        return None
    return int(config.config.get(key, 8192))


VARIANTS: dict[str, dict[str, Any]] = {
    "tiny": {
        "config": {
            "model_type": "mistral",
            "vocab_size": 272,
            "hidden_size": 64,
            "intermediate_size": 176,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "sliding_window": None,
            "tie_word_embeddings": False,
        },
    },
}
"""A size to try the family with; every other one comes with its weights."""
