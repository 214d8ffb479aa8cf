"""Folders of models with another head than the language head, as ``AutoModelForSequenceClassification`` of transformers reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mt_core.nn.objective import split_objective_name
from mt_core.weights import CONFIG, read_json
from mt_tools.convert.source import Say

T = TypeVar("T")


def classifier_names(content: Mapping[str, T]) -> dict[str, T]:
    """Parameters without the language head, and the objective's own modules by their own names, as ``score.weight``."""
    split = {name: split_objective_name(name) for name in content}
    heads = tuple(f"{each[0]}." for each in split.values() if each)
    named = {name: each[1] if each else name for name, each in split.items() if each or not name.startswith(heads)}
    return {own: content[name] for name, own in named.items()}


def classifier_config(content: Mapping[str, Any], ends: Sequence[int] = ()) -> dict[str, Any]:
    """``config.json`` as ``AutoModelForSequenceClassification`` reads it, of one score. It finds the last token by the id of padding.

    A token that ends texts (``ends``, ``eos_token_id``) would be passed over as padding, so that none is named then.
    """
    end, pad = content.get("eos_token_id"), content.get("pad_token_id")
    if pad in (*(end if isinstance(end, list) else [end]), *ends):
        pad = None
    known = _find_class(content)
    given = [known] if known else content.get("architectures", [])
    named = [str(name).replace("ForCausalLM", "ForSequenceClassification") for name in given]
    return {**content, "architectures": named, "num_labels": 1, "id2label": {"0": "score"}, "pad_token_id": pad}


def _find_class(config: Mapping[str, Any]) -> str | None:
    """Return the class of transformers that gives scores with a model of this type; ``None`` where it has none."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as CLASSES

    found = CLASSES.get(str(config.get("model_type")))
    return None if found is None else str(found)


def say_classifier(folder: Path, written: Sequence[str], say: Say) -> None:
    """Say where transformers does not read the head of a folder, whose parameters outside of the model are ``written``."""
    config = read_json(folder / CONFIG)
    name = _find_class(config)
    alone = f"the folder is read here alone (--model.weights {folder.name.removesuffix('.partial')}, under the run's objective)"
    if name is None:
        say(f"notice: transformers has no model with scores of the type {config.get('model_type')}; {alone}")
    elif drawn := sorted(_names_of_head(folder, name) - {*written}):
        say(
            f"notice: {name} of transformers draws {', '.join(drawn)} anew, and does not read {', '.join(sorted(written))}, so that its"
            f" scores mean nothing; {alone}"
        )


def _names_of_head(folder: Path, name: str) -> set[str]:
    """Return the parameters that a class of transformers has beside the model in it."""
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        model = getattr(transformers, name)(config)
    return {each for each, _ in model.named_parameters() if not each.startswith(f"{model.base_model_prefix}.")}
