"""Vision transformers: CLIP, SigLIP and DINOv2, by their sizes as data. Torch is not imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from mt_core.media import EncoderComponent

from ...image_config import ImageConfig
from ...llava import write_processor
from .huggingface import FolderNames, vit_format

if TYPE_CHECKING:
    from mt_core.nn import Encoder

    from ...images import ImageProcessor


@dataclass(frozen=True)
class Shape:
    """Sizes of a vision transformer: channels, blocks, heads, channels of the MLP, and pixels of a patch and of an image's side.

    ``gated``: the MLP is SwiGLU.
    """

    width: int
    blocks: int
    heads: int
    mlp: int
    patch: int
    image: int
    gated: bool = False


@dataclass(frozen=True, kw_only=True)
class Form:
    """Features that tell one family from another.

    ``patch_bias``: of the projection of patches; ``class_token``: in front of the patches; ``first_norm``: before the blocks;
    ``last_norm``: behind them, on all features; ``layer_scale``: a factor for each channel of what a block adds.
    """

    patch_bias: bool
    class_token: bool
    first_norm: bool
    last_norm: bool
    layer_scale: bool = False


TINY = Shape(width=64, blocks=2, heads=2, mlp=128, patch=4, image=16)
"""Ours: for a first run on a CPU."""
CLIP_SIZES: Mapping[str, Shape] = {  # table 19 of the paper
    "tiny": TINY,
    "base-32": Shape(768, 12, 12, 3072, 32, 224),
    "base-16": Shape(768, 12, 12, 3072, 16, 224),
    "large-14": Shape(1024, 24, 16, 4096, 14, 224),
    "large-14-336": Shape(1024, 24, 16, 4096, 14, 336),
}
SIGLIP_SIZES: Mapping[str, Shape] = {  # config.json of google/siglip-…
    "tiny": TINY,
    "base-16": Shape(768, 12, 12, 3072, 16, 224),
    "large-16-384": Shape(1024, 24, 16, 4096, 16, 384),
    "so400m-14-384": Shape(1152, 27, 16, 4304, 14, 384),
}
DINOV2_SIZES: Mapping[str, Shape] = {  # config.json of facebook/dinov2-…
    "tiny": TINY,
    "small-14": Shape(384, 12, 6, 1536, 14, 224),
    "base-14": Shape(768, 12, 12, 3072, 14, 224),
    "large-14": Shape(1024, 24, 16, 4096, 14, 224),
    "giant-14": Shape(1536, 40, 24, 4096, 14, 224, gated=True),
}


class ViTConfig(ImageConfig):
    """A vision transformer: a named size, and what of it is another."""

    sizes: ClassVar[Mapping[str, Shape]]
    form: ClassVar[Form]

    size: str = Field("tiny", description="named size; the options below change it")
    width: int | None = Field(None, ge=1, le=65_536, description="channels of a feature")
    blocks: int | None = Field(None, ge=1, le=1000, description="transformer blocks of the whole encoder")
    heads: int | None = Field(None, ge=1, le=65_536, description="attention heads; they divide the width")
    mlp: int | None = Field(None, ge=1, le=1_048_576, description="channels inside the MLP")
    patch: int | None = Field(None, ge=1, le=4096, description="side of a patch (pixels)")
    image: int | None = Field(None, ge=1, le=16_384, description="side of the square that the encoder sees (pixels)")
    trained_image: int | None = Field(
        None,
        ge=1,
        le=16_384,
        description="side that its positions are for (pixels): for another image they are interpolated",
    )
    activation: Literal["quick_gelu", "gelu", "gelu_pytorch_tanh"] = Field("gelu", description="inside the MLP")
    eps: float = Field(1e-6, gt=0, lt=1, description="added to the variance in LayerNorm")

    @property
    def shape(self) -> Shape:
        """The sizes that hold."""
        said = {name: getattr(self, name, None) for name in Shape.__dataclass_fields__}
        return replace(self.sizes[self.size], **{name: value for name, value in said.items() if value is not None})

    @property
    def depth(self) -> int:
        """Blocks that are built: those up to ``layer``."""
        blocks = self.shape.blocks
        return blocks if self.layer is None else self.layer if self.layer >= 0 else blocks + 1 + self.layer

    @property
    def has_last_norm(self) -> bool:
        """Whether the norm behind the blocks is part of the features, as it is of the last ones where no layer is said."""
        return self.form.last_norm and self.layer is None

    @property
    def trained_rows(self) -> int:
        """Rows of patches that there are positions for."""
        return (self.trained_image or self.shape.image) // self.shape.patch

    @property
    def features_before(self) -> int:
        """Features in front of those of the patches."""
        return int(getattr(self, "keep_class", False))

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.size not in self.sizes:
            raise ValueError(
                f"size={self.size!r} is none of {', '.join(self.sizes)}; take one, or say width, blocks, heads, mlp, patch, image"
            )
        shape = self.shape
        if shape.width % shape.heads:
            raise ValueError(
                f"heads={shape.heads} do not divide width={shape.width}; set one to a divisor or a multiple of the other"
            )
        for name, side in (("image", shape.image), ("trained_image", self.trained_image or shape.image)):
            if side < shape.patch:
                raise ValueError(f"{name}={side} pixels hold no patch of {shape.patch}; raise it, or lower patch")
        if self.edge is not None and self.edge < shape.image:
            raise ValueError(
                f"edge={self.edge} pixels are fewer than image={shape.image}, which would have a black margin; raise it, or leave it out"
            )
        if not 0 <= self.depth <= shape.blocks:
            raise ValueError(
                f"layer={self.layer} is none of an encoder of {shape.blocks} blocks; give {-shape.blocks - 1} to {shape.blocks},"
                " where 0 is before the first block and -1 behind the last"
            )
        return self


class ClipConfig(ViTConfig):
    """CLIP's image encoder (https://arxiv.org/abs/2103.00020). LLaVA takes ``layer`` -2."""

    sizes = CLIP_SIZES
    form = Form(patch_bias=False, class_token=True, first_norm=True, last_norm=False)

    size: Literal["tiny", "base-32", "base-16", "large-14", "large-14-336"] = Field(
        "tiny", description="named size; the options below change it"
    )
    keep_class: bool = Field(False, description="the class token is a feature, too, and stands before the patches")
    activation: Literal["quick_gelu", "gelu", "gelu_pytorch_tanh"] = Field("quick_gelu", description="inside the MLP")
    eps: float = Field(1e-5, gt=0, lt=1, description="added to the variance in LayerNorm")
    mean: tuple[float, float, float] = Field(
        (0.48145466, 0.4578275, 0.40821073), description="subtracted from red, green and blue (0 to 1)"
    )
    std: tuple[float, float, float] = Field(
        (0.26862954, 0.26130258, 0.27577711), description="divides red, green and blue after the mean is subtracted"
    )


class SiglipConfig(ViTConfig):
    """SigLIP's image encoder (https://arxiv.org/abs/2303.15343), which has no class token."""

    sizes = SIGLIP_SIZES
    form = Form(patch_bias=True, class_token=False, first_norm=False, last_norm=True)

    size: Literal["tiny", "base-16", "large-16-384", "so400m-14-384"] = Field(
        "tiny", description="named size; the options below change it"
    )
    activation: Literal["quick_gelu", "gelu", "gelu_pytorch_tanh"] = Field(
        "gelu_pytorch_tanh", description="inside the MLP"
    )
    fit: Literal["crop", "stretch", "pad"] = Field(
        "stretch",
        description="how an image becomes a square: its middle, both sides resized, or margins in the mean colour",
    )


class Dinov2Config(ViTConfig):
    """DINOv2 (https://arxiv.org/abs/2304.07193). Published positions are for 518 pixels, images are mostly of 224."""

    sizes = DINOV2_SIZES
    form = Form(patch_bias=True, class_token=True, first_norm=False, last_norm=True, layer_scale=True)
    margin = (256, 224)

    size: Literal["tiny", "small-14", "base-14", "large-14", "giant-14"] = Field(
        "tiny", description="named size; the options below change it"
    )
    gated: bool | None = Field(None, description="the MLP is SwiGLU, as in the largest size")
    keep_class: bool = Field(False, description="the class token is a feature, too, and stands before the patches")
    mean: tuple[float, float, float] = Field(
        (0.485, 0.456, 0.406), description="subtracted from red, green and blue (0 to 1)"
    )
    std: tuple[float, float, float] = Field(
        (0.229, 0.224, 0.225), description="divides red, green and blue after the mean is subtracted"
    )


def _width(config: ViTConfig) -> int:
    return config.shape.width


def _processor(config: ViTConfig) -> ImageProcessor:
    shape = config.shape
    return config.processor(side=shape.image, patch=shape.patch, before=config.features_before)


def _build(config: ViTConfig, **_: Any) -> Encoder:
    from .model import ViT  # torch loads here, when a run has chosen this encoder

    return ViT(config)


def _component(name: str, config: type[ViTConfig], names: FolderNames, summary: str, source: str) -> EncoderComponent:
    return EncoderComponent(
        name=name,
        config=config,
        build=_build,
        reads=frozenset({"image"}),
        width=_width,
        processor=_processor,
        formats=(vit_format(names),),
        files=write_processor if names.in_llava else None,
        summary=summary,
        source=source,
    )


CLIP_NAMES = FolderNames(
    encoder="clip",
    model_types=("clip", "clip_vision_model"),
    defaults={"patch_size": 32, "intermediate_size": 3072, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5},
    crops=True,
    class_token=True,
    in_llava=True,
)
SIGLIP_NAMES = FolderNames(
    encoder="siglip",
    model_types=("siglip", "siglip_vision_model"),
    defaults={"patch_size": 16, "intermediate_size": 3072, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6},
    crops=False,
    class_token=False,
    in_llava=True,
)
DINOV2_NAMES = FolderNames(
    encoder="dinov2",
    model_types=("dinov2",),
    defaults={"patch_size": 14, "mlp_ratio": 4, "hidden_act": "gelu", "layer_norm_eps": 1e-6},
    fixed={"qkv_bias": (True, None)},
    crops=True,
    margin=Dinov2Config.margin,
    class_token=True,
    renamed={
        r"embeddings\.cls_token": "embeddings.class_embedding",
        r"embeddings\.position_embeddings": "embeddings.position_embedding.weight",
        r"embeddings\.patch_embeddings\.projection\.": "embeddings.patch_embedding.",
        r"^encoder\.layer\.": "encoder.layers.",
        r"\.attention\.attention\.query\.": ".self_attn.q_proj.",
        r"\.attention\.attention\.key\.": ".self_attn.k_proj.",
        r"\.attention\.attention\.value\.": ".self_attn.v_proj.",
        r"\.attention\.output\.dense\.": ".self_attn.out_proj.",
        r"\.norm([12])\.": r".layer_norm\1.",
        r"^layernorm\.": "post_layernorm.",
    },
)

COMPONENTS = (
    _component("clip", ClipConfig, CLIP_NAMES, "CLIP's image encoder", "https://arxiv.org/abs/2103.00020"),
    _component("siglip", SiglipConfig, SIGLIP_NAMES, "SigLIP's image encoder", "https://arxiv.org/abs/2303.15343"),
    _component(
        "dinov2", Dinov2Config, DINOV2_NAMES, "DINOv2, trained on images alone", "https://arxiv.org/abs/2304.07193"
    ),
)
