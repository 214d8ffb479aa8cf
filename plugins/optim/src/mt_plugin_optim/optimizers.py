"""Every optimizer as data: its options, where it comes from, and the layouts that its tests cover."""

from __future__ import annotations

from mt_core import ZERO, Layout, OptimizerComponent

from .builds import (
    build_adafactor,
    build_eight_bit_galore,
    build_muon,
    from_bitsandbytes,
    from_torch,
    from_torchao,
    rule,
    transform,
)
from .options import (
    AdafactorConfig,
    AdaLomoConfig,
    AdamaxConfig,
    AdamConfig,
    ApolloConfig,
    BAdamConfig,
    DecayedAdamConfig,
    EightBitConfig,
    EightBitGaLoreConfig,
    FourBitConfig,
    GaLoreAdafactorConfig,
    GaLoreConfig,
    LambConfig,
    LionConfig,
    LisaConfig,
    LomoConfig,
    MuonConfig,
    QuantisedConfig,
    RmspropConfig,
    ScheduleFreeConfig,
    SgdConfig,
    SoapConfig,
    SparseAdamConfig,
)
from .policy import split_blocks, split_hidden, transform_all

_WHOLE: frozenset[Layout] = frozenset({"zero0"})
"""For rules that look at a whole tensor, or keep state that no slice of it has."""

_PIECES: frozenset[Layout] = ZERO | {"pipeline"}
"""For rules that change each number by itself, and for those that the engine gives whole gradients."""

_GPU = frozenset({"cuda"})
_NOISE = ("callback:gradient-noise",)
"""It stands before the optimizer's step, where these have made something else of the gradients."""

_WRITING = tuple(f"adapter:{name}" for name in ("adalora", "delta-lora", "increlora", "plora", "relora"))
"""They write weights between updates, which an average of all weights does not follow: ranks that they prune would stay in it."""

_TORCH = "https://docs.pytorch.org/docs/stable/generated/torch.optim"
_ADAM = "https://arxiv.org/abs/1412.6980"

OPTIMIZERS = (
    *(
        OptimizerComponent(
            name=rule_name.lower(),
            config=config,
            build=from_torch(rule_name, foreach=False),
            form="elementwise",
            layouts=_PIECES | {"offload"},
            summary=what,
            source=source,
        )
        for rule_name, config, what, source in (
            ("SGD", SgdConfig, "stochastic gradient descent, with optional momentum", f"{_TORCH}.SGD.html"),
            ("RMSprop", RmspropConfig, "gradients divided by the root of their mean square", f"{_TORCH}.RMSprop.html"),
            ("Adam", AdamConfig, "Adam with weight decay added to the gradient", _ADAM),
            ("Adamax", AdamaxConfig, "Adam with the largest gradient in place of the mean square", _ADAM),
        )
    ),
    OptimizerComponent(
        name="lion",
        config=LionConfig,
        build=rule("lion", "Lion"),
        form="elementwise",
        layouts=_PIECES | {"offload"},
        summary="the sign of a momentum, with half of AdamW's state",
        source="https://arxiv.org/abs/2302.06675",
    ),
    OptimizerComponent(
        name="schedule-free-adamw",
        config=ScheduleFreeConfig,
        build=rule("schedule_free", "ScheduleFreeAdamW"),
        form="elementwise",
        conflicts=("callback:ema", "callback:swa", *_WRITING),  # evaluations are of its own average
        layouts=ZERO | {"offload"},
        summary="AdamW that averages its weights instead of decaying the rate",
        source="https://arxiv.org/abs/2405.15682",
    ),
    OptimizerComponent(
        name="sparse-adam",
        config=SparseAdamConfig,
        build=rule("sparse_adam", "SparseAdam"),
        form="whole_parameter",
        layouts=_WHOLE,
        summary="Adam that does not change rows without a gradient",
        source=f"{_TORCH}.SparseAdam.html",
    ),
    OptimizerComponent(
        name="adafactor",
        config=AdafactorConfig,
        build=build_adafactor,
        form="whole_parameter",
        layouts=_WHOLE,
        summary="a second moment for each row and column, and no first moment",
        source="https://arxiv.org/abs/1804.04235",
    ),
    OptimizerComponent(
        name="lamb",
        config=LambConfig,
        build=rule("lamb", "Lamb"),
        form="whole_parameter",
        layouts=_WHOLE,
        summary="AdamW's update scaled to the norm of each tensor, for large batches",
        source="https://arxiv.org/abs/1904.00962",
    ),
    OptimizerComponent(
        name="adam-mini",
        config=DecayedAdamConfig,
        build=rule("adam_mini", "AdamMini"),
        form="whole_parameter",
        layouts=_WHOLE,
        summary="AdamW with one second moment for each row, half of its state",
        source="https://arxiv.org/abs/2406.16793",
    ),
    OptimizerComponent(
        name="muon",
        config=MuonConfig,
        build=build_muon,
        form="gradient_transform",
        conflicts=_NOISE,
        layouts=_PIECES,
        split=split_hidden,
        summary="orthogonalised momentum for matrices of blocks, AdamW for the rest",
        source="https://kellerjordan.github.io/posts/muon",
    ),
    OptimizerComponent(
        name="soap",
        config=SoapConfig,
        build=transform("soap", "Soap"),
        form="gradient_transform",
        conflicts=_NOISE,
        layouts=_PIECES,
        split=split_hidden,
        summary="Adam in the eigenbasis of Shampoo's preconditioner",
        source="https://arxiv.org/abs/2409.11321",
    ),
    OptimizerComponent(
        name="galore",
        config=GaLoreConfig,
        build=transform("low_rank", "GaLore"),
        form="gradient_transform",
        conflicts=_NOISE,
        layouts=_PIECES,
        split=split_hidden,
        summary="Adam on gradients projected to their largest directions",
        source="https://arxiv.org/abs/2403.03507",
    ),
    OptimizerComponent(
        name="galore-8bit",
        config=EightBitGaLoreConfig,
        build=build_eight_bit_galore,
        form="gradient_transform",
        conflicts=_NOISE,
        layouts=_PIECES,
        split=split_hidden,
        summary="GaLore with moments of 8 bits (bitsandbytes)",
        source="https://arxiv.org/abs/2403.03507",
    ),
    OptimizerComponent(
        name="galore-adafactor",
        config=GaLoreAdafactorConfig,
        build=transform("galore_adafactor", "GaLoreAdafactor"),
        form="gradient_transform",
        conflicts=_NOISE,
        layouts=_PIECES,
        split=transform_all,
        summary="GaLore with Adafactor in place of Adam, everywhere: squares of rows and columns alone are kept",
        source="https://arxiv.org/abs/2403.03507",
    ),
    OptimizerComponent(
        name="galore-per-layer",
        config=GaLoreConfig,
        build=rule("low_rank", "GaLore"),
        form="fused",
        conflicts=_NOISE,
        layouts=_WHOLE,
        split=split_hidden,
        summary="GaLore applied as each gradient arrives, so that no gradient is kept",
        source="https://arxiv.org/abs/2403.03507",
    ),
    OptimizerComponent(
        name="apollo",
        config=ApolloConfig,
        build=transform("low_rank", "Apollo"),
        form="gradient_transform",
        conflicts=_NOISE,
        layouts=_PIECES,
        split=split_hidden,
        summary="gradients scaled like Adam's update of their random projection",
        source="https://arxiv.org/abs/2412.05270",
    ),
    OptimizerComponent(
        name="badam",
        config=BAdamConfig,
        build=rule("blocks", "BAdam"),
        form="elementwise",
        layouts=_WHOLE,
        split=split_blocks,
        summary="AdamW for one block at a time, block after block",
        source="https://arxiv.org/abs/2404.02827",
    ),
    OptimizerComponent(
        name="lisa",
        config=LisaConfig,
        build=rule("blocks", "Lisa"),
        form="elementwise",
        layouts=_WHOLE,
        split=split_blocks,
        summary="AdamW for some blocks at a time, drawn at random",
        source="https://arxiv.org/abs/2403.17919",
    ),
    OptimizerComponent(
        name="lomo",
        config=LomoConfig,
        build=rule("lomo", "Lomo"),
        form="fused",
        conflicts=_NOISE,
        layouts=_WHOLE,
        summary="SGD applied as each gradient arrives: neither state nor gradients are kept",
        source="https://arxiv.org/abs/2306.09782",
    ),
    OptimizerComponent(
        name="adalomo",
        config=AdaLomoConfig,
        build=rule("lomo", "AdaLomo"),
        form="fused",
        conflicts=_NOISE,
        layouts=_WHOLE,
        summary="LOMO with a second moment for each row and column",
        source="https://arxiv.org/abs/2310.10195",
    ),
    OptimizerComponent(
        name="adamw-8bit",
        config=EightBitConfig,
        build=from_bitsandbytes("AdamW8bit"),
        form="whole_parameter",
        layouts=_WHOLE,
        summary="AdamW with moments of 8 bits (bitsandbytes)",
        source="https://arxiv.org/abs/2110.02861",
    ),
    *(
        OptimizerComponent(
            name=f"torchao-adamw-{bits}",
            config=config,
            build=from_torchao(rule_name),
            form="whole_parameter",
            layouts=_WHOLE,
            summary=f"AdamW with moments of {what} (torchao)",
            source="https://docs.pytorch.org/ao/stable/api_reference/api_ref_optim.html",
        )
        for bits, what, config, rule_name in (
            ("8bit", "8 bits", QuantisedConfig, "AdamW8bit"),
            ("4bit", "4 bits", FourBitConfig, "AdamW4bit"),
            ("fp8", "8-bit floats", QuantisedConfig, "AdamWFp8"),
        )
    ),
    OptimizerComponent(
        name="paged-adamw",
        config=DecayedAdamConfig,
        build=from_bitsandbytes("PagedAdamW"),
        form="whole_parameter",
        layouts=_WHOLE,
        devices=_GPU,
        summary="AdamW whose state moves to host memory when a GPU's is full (bitsandbytes)",
        source="https://arxiv.org/abs/2305.14314",
    ),
    OptimizerComponent(
        name="paged-adamw-8bit",
        config=EightBitConfig,
        build=from_bitsandbytes("PagedAdamW8bit"),
        form="whole_parameter",
        layouts=_WHOLE,
        devices=_GPU,
        summary="paged AdamW with moments of 8 bits (bitsandbytes)",
        source="https://arxiv.org/abs/2305.14314",
    ),
)
