"""``config.json`` of a decoder in Hugging Face's format, read and written by tables: what families do not share is in theirs.

What the keys mean: ``configuration_*.py`` of https://github.com/huggingface/transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mt_core.components import WeightsFormat
from mt_core.errors import WeightsError
from mt_core.weights.files import Loaders, read_json
from mt_core.weights.folder import CONFIG, check_folder, is_folder, without_tied_head
from mt_core.weights.rope_json import read_rope, rope_of_full_blocks, rope_parameters, write_rope
from mt_core.weights.whole import open_text, text_config

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

KEYS: Mapping[str, str] = {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_seq_len",
    "hidden_size": "dim",
    "intermediate_size": "ffn_dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "head_dim": "head_dim",
    "rms_norm_eps": "norm_eps",
    "tie_word_embeddings": "tie_embeddings",
}
"""Key of transformers → field of ``DecoderConfig``."""

FIXED: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish", None),
    "is_causal": (True,),
    "attention_dropout": (0.0, None),
    "partial_rotary_factor": (1.0, None),
    "quantization_config": (None,),
    "per_layer_config": (None, {}),
}
"""Keys of ``config.json`` that change the result → the values that a family supports by default."""


def _nothing(config: Any, file: Path | None = None) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A class of transformers, and how its config maps to a family's.

    - ``ours``: values that tell it from the family's other architectures.
    - ``defaults``: values for keys that a file may leave out; ``None`` leaves the field at its own default. Any other key of
      ``keys`` is required.
    - ``fixed``: keys that change the maths, with the values that are supported. The first is for messages, and is written
      where ``FIXED`` does not have the key.
    - ``rope_types``: rotary scalings that are read; the family's config has the same ``scalings``.
    - ``plain_windows``: blocks with a window have plain positions, whatever ``rope_scaling`` says; transformers 5 then writes
      rotary parameters by kind of block.
    - ``read(config, file)`` and ``write(config)``: what no table can say, more of our values and of their keys. Both win.
    """

    name: str
    model_type: str
    ours: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=lambda: KEYS)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: FIXED)
    rope_types: Sequence[str] = ("default", "linear", "yarn", "llama3")
    plain_windows: bool = False
    read: Callable[[Mapping[str, Any], Path], Mapping[str, Any]] = _nothing
    write: Callable[[Any], Mapping[str, Any]] = _nothing


def decoder_format(
    *architectures: Architecture, tensors: Callable[[Path, Any], Loaders] | None = None
) -> WeightsFormat:
    """Return the format of a family's Hugging Face folders, whose tensors have the model's names unless ``tensors`` maps them."""

    def values(path: Path) -> Mapping[str, Any]:
        shape = read_config((path.parent if path.is_file() else path) / CONFIG, architectures)
        check_folder(path)
        return shape

    return WeightsFormat(
        name="huggingface",
        matches=is_folder,
        values=values,
        tensors=tensors or decoder_tensors,
        exported=lambda config: write_config(config, architectures),
    )


def decoder_tensors(path: Path, config: Any) -> Loaders:
    """Return a loader for each tensor of the text model. Rotary buffers and a repeated tied head are left out, as both can be computed."""
    loaders = {name: load for name, load in open_text(path).items() if not name.endswith("rotary_emb.inv_freq")}
    return without_tied_head(loaders, path, embedding=EMBEDDING, head=HEAD) if config.tie_embeddings else loaders


# ------------------------------------------------------------------------------------------------------------- reading


def read_config(file: Path, architectures: Sequence[Architecture]) -> dict[str, Any]:
    """Return our config values for a ``config.json``, or for the text model in it.

    Raises ``WeightsError`` for an architecture or a value that is none of these.
    """
    config = text_config(read_json(file))
    found = _find_architecture(config, file, architectures)
    given = {**found.defaults, **{key: value for key, value in config.items() if value is not None}}
    if missing := [key for key in found.keys if key not in given]:
        raise WeightsError(
            f"{file} lacks {', '.join(missing)}; take the config.json that was published with the weights"
        )
    try:
        refuse_values({"is_causal": True, **rope_parameters(config), **config}, file, found.fixed)
        return {
            **found.ours,
            **_read_keys(given, found),
            **read_rope(rope_of_full_blocks(given, file) if found.plain_windows else given, file, found.rope_types),
            **found.read({**found.defaults, **config}, file),
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"{file} has a value of the wrong type: {error}; correct it or fetch it again") from error
    except ArithmeticError as error:  # a width over 0 heads, an endless factor
        raise WeightsError(f"{file} has a number that no model has: {error}; correct it or fetch it again") from error


def _find_architecture(config: Mapping[str, Any], file: Path, known: Sequence[Architecture]) -> Architecture:
    said = config.get("architectures") or [config.get("model_type")]
    if not isinstance(said, list):
        raise WeightsError(f"{file} has architectures={said!r}; write a list of names, such as [{known[0].name!r}]")
    has_own_head = not any(str(name).endswith("ForCausalLM") for name in said)  # a reward model's, of one output
    for each in known:
        if each.name in said or (has_own_head and config.get("model_type") == each.model_type):
            if (kind := config.get("model_type")) not in (None, each.model_type):
                raise WeightsError(
                    f"{file} says model_type={kind!r} and architectures={said!r}, which are two models; take the config.json that was"
                    " published with the weights"
                )
            return each
    experts = " (a mixture of experts)" if any("moe" in str(name).lower() for name in said) else ""
    raise WeightsError(
        f"{file} describes {'no architecture' if said == [None] else ', '.join(map(str, said))}{experts}; "
        f"this family reads {' and '.join(each.name for each in known)}"
    )


def refuse_values(config: Mapping[str, Any], file: Path, fixed: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise ``WeightsError`` for a key whose value is not one of these."""
    if other := [key for key, known in fixed.items() if config.get(key) not in known]:
        said = ", ".join(f"{key}={config[key]!r} (supported: {fixed[key][0]!r})" for key in other)
        raise WeightsError(f"{file} has {said}; use weights without it, or remove the key if it plays no part")


def _read_keys(given: Mapping[str, Any], found: Architecture) -> dict[str, Any]:
    shape = {ours: given[theirs] for theirs, ours in found.keys.items() if given[theirs] is not None}
    if "norm_eps" in shape:
        shape["norm_eps"] = float(shape["norm_eps"])
    if "num_key_value_heads" in found.keys:
        shape.setdefault("n_kv_heads", shape["n_heads"])
    is_computed = isinstance(shape["dim"], int) and shape.get("head_dim") == shape["dim"] / shape["n_heads"]
    if "head_dim" in found.defaults and is_computed:
        del shape["head_dim"]  # the field's default says so
    return shape


# ------------------------------------------------------------------------------------------------------------- writing


def write_config(config: Any, architectures: Sequence[Architecture]) -> dict[str, Any]:
    """Return ``config.json`` as transformers reads it, releases 4 and 5. The dtype is that of the tensors, and added with them.

    Special ids belong to a tokenizer and are unknown here; left out, transformers would take some.
    """
    found = next(
        each for each in architectures if all(getattr(config, key) == value for key, value in each.ours.items())
    )
    written = {theirs: getattr(config, ours) for theirs, ours in found.keys.items()}
    if "head_dim" in found.keys:
        written["head_dim"] = config.head_width
    return {
        "architectures": [found.name],
        "model_type": found.model_type,
        **written,
        "hidden_act": found.fixed["hidden_act"][0],
        **dict.fromkeys(_SPECIAL),
        **{key: known[0] for key, known in found.fixed.items() if key not in FIXED},
        **write_rope(config, plain_windows=found.plain_windows),
        **found.write(config),
    }


_SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")


# ------------------------------------------------------------------------------------------------------------- windows

_SIGHTS = {"full_attention": "full", "sliding_attention": "window"}
"""Their type of a layer → what our block sees."""


def layer_types(windows: Iterable[int | None]) -> list[str]:
    """Return the ``layer_types`` of blocks with these windows (tokens); ``None`` is a block without a window."""
    return ["full_attention" if window is None else "sliding_attention" for window in windows]


def read_windows(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return the fields of ``WindowedDecoderConfig`` from the shortest pattern that ``layer_types`` repeats.

    Raises ``WeightsError`` for types that are neither, and for more or fewer than there are layers.
    """
    types, window = config.get("layer_types"), config.get("sliding_window")
    if types is None or window is None:
        return {"window": window}
    if unknown := sorted(set(types) - set(_SIGHTS)):
        raise WeightsError(f"{file} has layer_types {', '.join(unknown)}; this family reads {' and '.join(_SIGHTS)}")
    if len(types) != config["num_hidden_layers"]:
        raise WeightsError(
            f"{file} has {len(types)} layer_types for num_hidden_layers={config['num_hidden_layers']}; give one for each layer"
        )
    lengths = (each for each in range(1, len(types) + 1) if types == (types[:each] * len(types))[: len(types)])
    return {"window": window, "window_pattern": [_SIGHTS[name] for name in types[: next(lengths, 0)]]}


def write_windows(config: Any) -> dict[str, Any]:
    """Return the keys that ``read_windows`` reads."""
    types = layer_types(config.window_of(index) for index in range(config.n_layers))
    return {"sliding_window": config.window, "layer_types": types}
