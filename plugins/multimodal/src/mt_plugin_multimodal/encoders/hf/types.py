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
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mt_core import did_you_mean

Kind = Literal["audio", "image", "sequence"]


@dataclass(frozen=True, kw_only=True)
class HfType:
    """Facts about a model type. Paths are those of modules or parameters in transformers' class.

    ``before`` are features in front of the patches, the first of them the class token; with ``registers`` there are as many more as
    ``num_register_tokens`` of ``config.json``. ``norm`` is behind the last layer alone, where ``norm_key`` of ``config.json`` is true if
    it is said; ``unused`` makes nothing of the features. ``settings`` are values of the config that leave out more of that, and what is
    drawn. ``crops``: the middle of an image is taken where no file says. ``interpolates``: images may be of another size than the weights
    were trained on. ``offset_positions``: those of tokens begin behind the id of padding. ``fixed`` are keys that change the features,
    with the only value that is read; where a file has none, it is that. ``defaults`` are values of other keys that a file may lack, where
    they are not those of ``DEFAULTS``.
    """

    kind: Kind
    before: int = 0
    registers: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    norm: str = ""
    norm_key: str | None = None
    unused: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    crops: bool = False
    interpolates: bool = False
    offset_positions: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def value(self, content: Mapping[str, Any], key: str) -> Any:
        """Return the value of a key, which transformers takes its own default for where a file lacks it."""
        return content.get(key, {**DEFAULTS, **self.defaults}[key])

    def features_before(self, content: Mapping[str, Any]) -> int:
        """Return how many features stand in front of the patches."""
        return self.before + (int(self.value(content, "num_register_tokens")) if self.registers else 0)


DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "image_size": 224,
    "patch_size": 16,
    "num_register_tokens": 4,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "conv_kernel": (10, 3, 3, 3, 3, 2, 2),
    "conv_stride": (5, 2, 2, 2, 2, 2, 2),
}
"""Key of ``config.json`` → what most types of transformers mean where a file lacks it."""


_VIT = HfType(kind="image", before=1, norm="layernorm")
_BEIT = replace(_VIT, unused=("embeddings.mask_token",))
_DINOV2 = replace(_BEIT, crops=True, interpolates=True)
_WAV2VEC2 = HfType(
    kind="audio",
    norm="encoder.layer_norm",
    norm_key="do_stable_layer_norm",
    fixed={"add_adapter": False, "adapter_attn_dim": None},
)

TYPES: Mapping[str, HfType] = {
    "clip_vision_model": HfType(
        kind="image", before=1, unused=("post_layernorm",), crops=True, defaults={"patch_size": 32}
    ),
    "siglip_vision_model": HfType(kind="image", norm="post_layernorm", settings={"vision_use_head": False}),
    "vit": _VIT,
    "deit": replace(_VIT, before=2, crops=True),
    "dinov2": replace(_DINOV2, defaults={"patch_size": 14}),
    "dinov2_with_registers": replace(_DINOV2, registers=True),
    "dinov3_vit": replace(
        _BEIT,
        registers=True,
        norm="norm",
        settings=dict.fromkeys(
            ("pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale")
        ),  # draws while it is trained
        interpolates=True,
        defaults={"hidden_size": 384, "num_register_tokens": 0},
    ),
    "beit": _BEIT,
    "ijepa": replace(_VIT, before=0),
    "bert": HfType(kind="sequence"),
    "roberta": HfType(kind="sequence", offset_positions=True, defaults={"pad_token_id": 1}),
    "electra": HfType(kind="sequence", defaults={"hidden_size": 256}),
    "esm": HfType(
        kind="sequence",
        norm="encoder.emb_layer_norm_after",
        unused=("contact_head",),
        offset_positions=True,
        defaults={"max_position_embeddings": 1026, "pad_token_id": None},
    ),
    "modernbert": HfType(
        kind="sequence",
        norm="final_norm",
        defaults={"num_hidden_layers": 22, "max_position_embeddings": 8192, "pad_token_id": 50_283},
    ),
    "wav2vec2": _WAV2VEC2,
    "hubert": replace(_WAV2VEC2, fixed={"conv_pos_batch_norm": False, "feat_proj_layer_norm": True}),
    "wavlm": _WAV2VEC2,
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
