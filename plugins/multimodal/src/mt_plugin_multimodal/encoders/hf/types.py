"""Encoders of transformers that are known here, and what their features are. Neither torch nor transformers is imported.

| model types | features | in front of them | layer |
|---|---|---|---|
| clip_vision_model, and the vision half of clip | patches | class token | blocks; the norm behind them is for the pooled output alone |
| siglip_vision_model, and that of siglip | patches | none | the last one normed |
| vit, dinov2 | patches | class token | the last one normed |
| deit | patches | class and distillation token | the last one normed |
| dinov2_with_registers, dinov3_vit | patches | class token, registers | the last one normed |
| beit | patches | class token | the last one normed where the file says no mean pooling |
| ijepa | patches | none | the last one normed |
| bert, roberta, electra | tokens | special tokens | every block ends in a norm |
| esm, modernbert | tokens | special tokens | the last one normed |
| wav2vec2, hubert, wavlm | 20 ms each | none | the last one normed where the file says do_stable_layer_norm |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mt_core import did_you_mean

Kind = Literal["audio", "image", "sequence"]


@dataclass(frozen=True, kw_only=True)
class HfType:
    """What is known of a model type. Paths are those of modules or parameters in transformers' class.

    ``before`` are features in front of the patches, the first of them the class token, and ``registers`` is the key of ``config.json``
    for more. ``norm`` is behind the last layer alone, where ``norm_key`` of ``config.json`` is true if it is said; ``unused`` makes nothing
    of the features. ``settings`` are values of the config that leave out more of that, and what is drawn. ``crops``: the middle of an
    image is taken where no file says. ``interpolates``: images may be of another size than the weights were trained on.
    ``offset_positions``: those of tokens begin behind the id of padding. ``fixed`` are keys that change the features, with the only value
    that is read; where a file has none, it is that.
    """

    kind: Kind
    before: int = 0
    registers: str | None = None
    norm: str = ""
    norm_key: str | None = None
    unused: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    crops: bool = False
    interpolates: bool = False
    offset_positions: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def features_before(self, content: Mapping[str, Any]) -> int:
        """Return how many features stand in front of the patches."""
        return self.before + (int(content.get(self.registers, 4)) if self.registers else 0)


_STABLE = "do_stable_layer_norm"
_NO_ADAPTER: Mapping[str, Any] = {"add_adapter": False, "adapter_attn_dim": None}

TYPES: Mapping[str, HfType] = {
    "clip_vision_model": HfType(kind="image", before=1, unused=("post_layernorm",), crops=True),
    "siglip_vision_model": HfType(kind="image", norm="post_layernorm", settings={"vision_use_head": False}),
    "vit": HfType(kind="image", before=1, norm="layernorm"),
    "deit": HfType(kind="image", before=2, norm="layernorm", crops=True),
    "dinov2": HfType(
        kind="image", before=1, norm="layernorm", unused=("embeddings.mask_token",), crops=True, interpolates=True
    ),
    "dinov2_with_registers": HfType(
        kind="image",
        before=1,
        registers="num_register_tokens",
        norm="layernorm",
        unused=("embeddings.mask_token",),
        crops=True,
        interpolates=True,
    ),
    "dinov3_vit": HfType(
        kind="image",
        before=1,
        registers="num_register_tokens",
        norm="norm",
        unused=("embeddings.mask_token",),
        settings=dict.fromkeys(
            ("pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale")
        ),  # draws while it is trained
        interpolates=True,
    ),
    "beit": HfType(kind="image", before=1, norm="layernorm", unused=("embeddings.mask_token",)),
    "ijepa": HfType(kind="image", norm="layernorm"),
    "bert": HfType(kind="sequence"),
    "roberta": HfType(kind="sequence", offset_positions=True),
    "electra": HfType(kind="sequence"),
    "esm": HfType(
        kind="sequence", norm="encoder.emb_layer_norm_after", unused=("contact_head",), offset_positions=True
    ),
    "modernbert": HfType(kind="sequence", norm="final_norm"),
    "wav2vec2": HfType(kind="audio", norm="encoder.layer_norm", norm_key=_STABLE, fixed=_NO_ADAPTER),
    "hubert": HfType(
        kind="audio",
        norm="encoder.layer_norm",
        norm_key=_STABLE,
        fixed={"conv_pos_batch_norm": False, "feat_proj_layer_norm": True},
    ),
    "wavlm": HfType(kind="audio", norm="encoder.layer_norm", norm_key=_STABLE, fixed=_NO_ADAPTER),
}
"""Model type → what is known of it. Another one is refused by its name: nobody has looked at what its features are."""

_HALVES: Mapping[str, str] = {"clip": "clip_vision_model", "siglip": "siglip_vision_model"}
"""Models of images and texts → their vision half, whose sizes are under ``vision_config``."""

_OTHERS: Mapping[str, str] = {
    "whisper": "take the encoder 'whisper'",
    "siglip2": "its images have as many patches as they like, each with a mask",
    "siglip2_vision_model": "its images have as many patches as they like, each with a mask",
    "swin": "it has no feature for each patch in one width",
    "convnext": "it has no feature for each patch in one width",
    "vit_mae": "it leaves out patches at random",
    "t5": "it reads texts to write others; take its encoder alone, of a type that is listed",
}


def encoder_config(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the encoder's part of a ``config.json``: the vision half of a model that reads texts, too."""
    half = _HALVES.get(str(content.get("model_type")))
    if half is None:
        return content
    inner = content.get("vision_config")
    return {**(inner if isinstance(inner, Mapping) else {}), "model_type": half}


def fault_of(content: Mapping[str, Any], kind: Kind) -> str | None:
    """Say why a ``config.json`` is none of an encoder of this kind, or ``None``."""
    if content.get("auto_map"):
        return "it has auto_map: the model is code of its own beside the weights, which is never executed; take a type of transformers"
    name = encoder_config(content).get("model_type")
    of_kind = sorted(each for each, known in TYPES.items() if known.kind == kind)
    if name in of_kind:
        fixed = {"quantization_config": None, **TYPES[str(name)].fixed}
        other = [key for key, known in fixed.items() if content.get(key, known) != known]
        return (
            f"it has {other[0]}={content[other[0]]!r}; read is {fixed[other[0]]!r}: take other weights"
            if other
            else None
        )
    if isinstance(name, str) and name in TYPES:
        return f"{name} reads another kind: take the encoder hf-{TYPES[name].kind}"
    reason = f": {_OTHERS[name]}" if isinstance(name, str) and name in _OTHERS else ""
    return (
        f"the model type {name!r} is none of {', '.join(of_kind)}{reason}. {did_you_mean(str(name), of_kind)}".rstrip(
            " ."
        )
    )
