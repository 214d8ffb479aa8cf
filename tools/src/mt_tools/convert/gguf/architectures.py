"""Names of architectures in llama.cpp, and its keys for those of ``config.json``.

It has each architecture's arithmetic built in: what a config says otherwise than that has no key, and is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import log, pi
from typing import Any

from mt_core.errors import UsageError

Config = Mapping[str, Any]
Keys = dict[str, int | float]


@dataclass(frozen=True)
class GgufArchitecture:
    """``permutes`` turns rotary pairs of q and k from halves into neighbours, as Meta's Llama has them; ``adds_one`` gives norms the 1
    that Gemma's code adds; ``refused`` yields what the architecture computes otherwise than the config says."""

    name: str
    permutes: bool = False
    adds_one: bool = False
    keys: Callable[[Config], Keys] = lambda config: {}
    refused: Callable[[Config], Iterator[str]] = lambda config: iter(())


def _no_window(config: Config) -> Iterator[str]:
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        yield f"sliding_window={config['sliding_window']}"


def _gemma_2(config: Config) -> Keys:
    return {
        "attention.sliding_window": config["sliding_window"],
        "attn_logit_softcapping": config.get("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": config.get("final_logit_softcapping", 30.0),
    }


def _gemma_3(config: Config) -> Keys:
    return {"attention.sliding_window": config["sliding_window"]}


def _other_scale(config: Config) -> Iterator[str]:
    """Yield another divisor of attention than the width of a head, which 27B alone has there."""
    if config.get("query_pre_attn_scalar", head_dim(config)) != head_dim(config):
        yield f"query_pre_attn_scalar={config['query_pre_attn_scalar']} with heads of {head_dim(config)}"


_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")


def _refused_of_gemma_2(config: Config) -> Iterator[str]:
    """Yield what is otherwise than in Gemma 2: without a cap llama.cpp takes the usual one."""
    yield from _other_scale(config)
    yield from (f"{name}=null" for name in _CAPS if name in config and config[name] is None)
    if _other_turns(config, 2):
        yield "layer_types other than one sliding and one full in turn"


def _refused_of_gemma_3(config: Config) -> Iterator[str]:
    yield from _other_scale(config)
    yield from (f"{name}={config[name]}" for name in (*_CAPS, "use_bidirectional_attention") if config.get(name))
    if _other_turns(config, 6):
        yield "layer_types other than five sliding and one full in turn"
    sliding = (config.get("rope_parameters") or {}).get("sliding_attention", {})
    local = sliding.get("rope_theta", config.get("rope_local_base_freq", 10_000.0))
    if local != 10_000.0:
        yield f"rope_local_base_freq={local}"
    if sliding.get("rope_type", "default") != "default":
        yield f"rope_type={sliding['rope_type']} in layers with a window"


def _other_turns(config: Config, turn: int) -> bool:
    """Return whether layers that see all tokens are others than the last of each ``turn``."""
    kinds = config.get("layer_types") or []
    every = turn if kinds else config.get("sliding_window_pattern") or turn
    return every != turn or any(
        (kind == "full_attention") != (number % turn == turn - 1) for number, kind in enumerate(kinds)
    )


ARCHITECTURES = {
    "llama": GgufArchitecture("llama", permutes=True, refused=_no_window),
    "mistral": GgufArchitecture("llama", permutes=True, refused=_no_window),
    "qwen2": GgufArchitecture("qwen2", refused=_no_window),
    "qwen3": GgufArchitecture("qwen3", refused=_no_window),
    "gemma": GgufArchitecture("gemma", adds_one=True),
    "gemma2": GgufArchitecture("gemma2", adds_one=True, keys=_gemma_2, refused=_refused_of_gemma_2),
    "gemma3_text": GgufArchitecture("gemma3", adds_one=True, keys=_gemma_3, refused=_refused_of_gemma_3),
}
"""``model_type`` of ``config.json`` → what it is there."""


def architecture_of(config: Config) -> GgufArchitecture:
    """Return what llama.cpp calls the model. Raises ``UsageError`` for one that is not written here, with what is."""
    kind = config.get("model_type")
    found = ARCHITECTURES.get(str(kind))
    if found is None:
        raise UsageError(
            f"--gguf writes {', '.join(ARCHITECTURES)}, and not {kind!r}; convert_hf_to_gguf.py of llama.cpp may read the folder"
        )
    wrong = [*found.refused(config), *_other_activations(config, found)]
    if wrong:
        raise UsageError(
            f"--gguf: llama.cpp's {found.name} has no key for {'; '.join(wrong)}: it would compute something else"
        )
    return found


def _other_activations(config: Config, architecture: GgufArchitecture) -> Iterator[str]:
    wanted = ("gelu_pytorch_tanh", "gelu") if architecture.adds_one else ("silu",)
    given = config.get("hidden_activation") or config.get("hidden_act", wanted[0])
    if given not in wanted:
        yield f"hidden_act={given}"


def head_dim(config: Config) -> int:
    """Width of a head."""
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def model_keys(config: Config, architecture: GgufArchitecture) -> Keys:
    """Return the numbers of the model under llama.cpp's names, without that of the architecture in front."""
    width = head_dim(config)
    heads = config["num_attention_heads"]
    return {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config.get("num_key_value_heads") or heads,
        "attention.key_length": width,
        "attention.value_length": width,
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.dimension_count": width,
        "rope.freq_base": float(rotary(config).get("rope_theta", 10_000.0)),
        "vocab_size": config["vocab_size"],
        **architecture.keys(config),
    }


def rotary(config: Config) -> Config:
    """Return the parameters of rotary positions, of those layers that see all tokens where there are others."""
    given = {"rope_theta": config["rope_theta"]} if "rope_theta" in config else {}
    parameters: Config = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return {**given, **(parameters.get("full_attention") or parameters)}


def scaling_keys(config: Config) -> dict[str, Any]:
    """Return how positions are scaled; Llama 3's way is a tensor. Raises ``UsageError`` for a way that is not written here."""
    parameters = rotary(config)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind in ("default", "llama3"):
        return {}
    if kind not in ("linear", "yarn"):
        raise UsageError(f"--gguf writes positions that are scaled by default, llama3, linear or yarn, got {kind!r}")
    keys: dict[str, Any] = {"rope.scaling.type": kind, "rope.scaling.factor": float(parameters["factor"])}
    if kind == "yarn":
        if wrong := [*_other_yarn(parameters)]:
            raise UsageError(
                f"--gguf: llama.cpp reads no key of YaRN for {'; '.join(wrong)}: it would compute something else"
            )
        context = parameters.get("original_max_position_embeddings", config["max_position_embeddings"])
        keys["rope.scaling.original_context_length"] = int(context)
        if (attention := parameters.get("attention_factor")) is not None:
            keys["rope.scaling.attn_factor"] = attention / yarn_attention(float(parameters["factor"]))
    return keys


def yarn_attention(factor: float) -> float:
    """Return by what YaRN multiplies queries and keys (https://arxiv.org/abs/2309.00071, section 3.4).

    An ``attention_factor`` in a config stands in its place; llama.cpp multiplies it by its own ``attn_factor``
    (https://github.com/ggml-org/llama.cpp/pull/17945).
    """
    return 1.0 if factor <= 1 else 0.1 * log(factor) + 1.0


def _other_yarn(parameters: Config) -> Iterator[str]:
    """Yield settings that llama.cpp does not read for these architectures, as ``yarn_beta_fast``, which is Grok's alone."""
    for name, usual in (("beta_fast", 32), ("beta_slow", 1)):
        if (parameters.get(name) or usual) != usual:
            yield f"{name}={parameters[name]}"
    for name in ("mscale", "mscale_all_dim"):
        if parameters.get(name):
            yield f"{name}={parameters[name]}"
    if not parameters.get("truncate", True):
        yield f"truncate={parameters['truncate']}"


def frequency_factors(config: Config) -> list[float] | None:
    """Return by what each frequency of Llama 3's scaling is divided (``rope_freqs``); ``None`` where it is not scaled so.

    Short wavelengths stay, long ones are divided by ``factor``, and between them both are mixed
    (https://github.com/meta-llama/llama-models, ``apply_scaling``).
    """
    parameters = rotary(config)
    if (parameters.get("rope_type") or parameters.get("type")) != "llama3":
        return None
    factor, low, high = (float(parameters[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    context, theta, width = (
        float(parameters["original_max_position_embeddings"]),
        parameters["rope_theta"],
        head_dim(config),
    )
    found = []
    for place in range(0, width, 2):
        wavelength = 2 * pi * theta ** (place / width)
        if wavelength < context / high:
            found.append(1.0)
        elif wavelength > context / low:
            found.append(factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            found.append(1 / ((1 - smooth) / factor + smooth))
    return found
