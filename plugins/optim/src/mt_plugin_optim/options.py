"""The options of every optimizer: data, with bounds and units. Defaults are those of the paper or of the library, unless said otherwise."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from mt_core import GroupOptions


def _rate(default: float, most: float = 1.0) -> Any:
    text = "base learning rate, multiplied by the schedule's factor (per update)"
    return Field(default, gt=0, le=most, description=text)


def _decay(default: float) -> Any:
    text = "share of a matrix taken away per update, times the learning rate; vectors keep all"
    return Field(default, ge=0, description=text)


def _coupled_field() -> Any:
    text = "share of a matrix that is added to its gradient (per update), as in the L2 penalty; vectors have none"
    return Field(0.0, ge=0, description=text)


def _mean(default: float) -> Any:
    return Field(default, ge=0, lt=1, description="decay of the gradient's mean (per update)")


def _square(default: float) -> Any:
    return Field(default, ge=0, lt=1, description="decay of the squared gradient's mean (per update)")


def _eps(default: float) -> Any:
    return Field(default, gt=0, description="added to the root of the squared gradient's mean (units of the gradient)")


def _rank(default: int) -> Any:
    text = "rank of the projected gradients; smaller matrices are not projected"
    return Field(default, gt=0, le=65_536, description=text)


def _beta2_decay() -> Any:
    text = "t to this power is the weight of an update's squares in their mean (t: updates)"
    return Field(-0.8, ge=-2, lt=0, description=text)


def _square_eps() -> Any:
    return Field(1e-30, gt=0, description="added to squared gradients (square of the gradient's units)")


def _longest() -> Any:
    return Field(1.0, gt=0, description="largest root mean square of an update, before the rate")


class SgdConfig(GroupOptions):
    """Stochastic gradient descent; its weight decay is part of the gradient."""

    lr: float = _rate(0.1, 10)
    weight_decay: float = _coupled_field()
    momentum: float = Field(
        0.0, ge=0, lt=1, description="decay of the running sum of gradients (per update); 0 keeps none"
    )
    dampening: float = Field(0.0, ge=0, lt=1, description="share of each gradient that the running sum leaves out")
    nesterov: bool = Field(False, description="look ahead by one update; needs momentum, and no dampening")

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Self:
        if self.nesterov and (self.momentum == 0 or self.dampening):
            raise ValueError(
                f"nesterov needs momentum above 0 and dampening 0, got momentum={self.momentum} and"
                f" dampening={self.dampening}; set momentum to 0.9, or nesterov to false"
            )
        return self


class RmspropConfig(GroupOptions):
    """RMSprop; its weight decay is part of the gradient."""

    lr: float = _rate(1e-3)
    weight_decay: float = _coupled_field()
    alpha: float = _square(0.99)
    eps: float = _eps(1e-8)
    momentum: float = Field(
        0.0, ge=0, lt=1, description="decay of the running sum of updates (per update); 0 keeps none"
    )
    centered: bool = Field(False, description="divide by the root of the variance instead of the mean square")


class AdamConfig(GroupOptions):
    """Adam as it was, with weight decay in the gradient; ``adamw`` takes it from the weights."""

    lr: float = _rate(1e-3)
    weight_decay: float = _coupled_field()
    beta1: float = _mean(0.9)
    beta2: float = _square(0.999)
    eps: float = _eps(1e-8)


class DecayedAdamConfig(AdamConfig):
    """Adam's options with decoupled weight decay."""

    weight_decay: float = _decay(0.1)


class AdamaxConfig(AdamConfig):
    """Adam with the largest gradient instead of a mean square."""

    lr: float = _rate(2e-3)
    beta2: float = Field(0.999, ge=0, lt=1, description="decay of the largest gradient (per update)")


class LionConfig(GroupOptions):
    """Rates are a third to a tenth of AdamW's, with as much more decay."""

    lr: float = _rate(1e-4)
    weight_decay: float = _decay(0.3)
    beta1: float = Field(0.9, ge=0, lt=1, description="weight of the momentum in the sign (per update)")
    beta2: float = Field(0.99, ge=0, lt=1, description="decay of the momentum (per update)")


class ScheduleFreeConfig(GroupOptions):
    """Use it with ``--schedule constant`` and a warm-up: it takes the place of a decay."""

    lr: float = _rate(2.5e-3)
    weight_decay: float = _decay(0.0)
    beta1: float = Field(
        0.9, gt=0, lt=1, description="where gradients are taken: share of the average, the rest of the fast weights"
    )
    beta2: float = _square(0.999)
    eps: float = _eps(1e-8)
    power: float = Field(
        0.0, ge=0, description="later weights count as (number of the update) to this power in the average"
    )


class SparseAdamConfig(GroupOptions):
    """Options without weight decay, which would touch rows that a step does not use."""

    lr: float = _rate(1e-3)
    weight_decay: float = Field(0.0, ge=0, le=0, description="none: rows without a gradient are not touched")
    beta1: float = _mean(0.9)
    beta2: float = _square(0.999)
    eps: float = _eps(1e-8)


class AdafactorConfig(GroupOptions):
    """torch's form: relative steps, bounded by ``lr``; or steps of ``lr`` alone."""

    lr: float = _rate(1e-2)
    weight_decay: float = _decay(0.0)
    relative: bool = Field(True, description="steps are a share of a weight; false: of length lr, as in the Trainer")
    beta2_decay: float = _beta2_decay()
    eps: float = Field(1e-3, gt=0, description="least root mean square of a weight, of which steps are a share")
    d: float = Field(1.0, ge=1, description="largest root mean square of an update, before the rate")

    @model_validator(mode="after")
    def _eps_is_of_relative_steps(self) -> Self:
        if not self.relative and self.eps != type(self).model_fields["eps"].default:
            raise ValueError(f"eps {self.eps} does nothing where relative is false; leave one of them out")
        return self


class LomoConfig(GroupOptions):
    """Plain descent."""

    lr: float = _rate(1e-2)
    weight_decay: float = _decay(0.0)


class AdaLomoConfig(GroupOptions):
    """Steps are in proportion to the weights, so one rate serves all sizes."""

    lr: float = _rate(1e-3)
    weight_decay: float = _decay(0.0)
    beta2_decay: float = _beta2_decay()
    eps: float = _square_eps()
    least: float = Field(1e-3, gt=0, description="least root mean square of a weight, of which steps are a share")
    d: float = _longest()


class LambConfig(DecayedAdamConfig):
    """Options for large batches."""

    beta2: float = _square(0.999)
    eps: float = _eps(1e-6)
    weight_decay: float = _decay(0.01)
    max_norm: float = Field(10.0, gt=0, description="norm of a tensor above which it counts as this long")


class MuonConfig(GroupOptions):
    """Matrices of blocks are orthogonalised; embedding, head and vectors are AdamW's."""

    lr: float = _rate(3e-4)
    weight_decay: float = _decay(0.1)
    momentum: float = Field(0.95, ge=0, lt=1, description="decay of the running sum of gradients (per update)")
    nesterov: bool = Field(True, description="look ahead by one update")
    ns_steps: int = Field(5, gt=0, lt=100, description="Newton-Schulz iterations of an update")
    adjust: Literal["original", "match_rms_adamw"] = Field(
        "match_rms_adamw", description="how the rate depends on a matrix's shape; match_rms_adamw takes AdamW's rates"
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW: decay of the gradient's mean (per update)")
    beta2: float = Field(0.95, ge=0, lt=1, description="AdamW: decay of the squared gradient's mean (per update)")
    eps: float = _eps(1e-8)


class ProjectedConfig(GroupOptions):
    """How gradients are projected to their largest directions."""

    rank: int = _rank(128)
    update_steps: int = Field(
        200, gt=0, description="updates between new projections, each a singular value decomposition"
    )
    scale: float = Field(0.25, gt=0, description="factor of the projected matrices' updates")


class GaLoreConfig(ProjectedConfig, DecayedAdamConfig):
    """The moments of a matrix in blocks have its longer side and ``rank``."""

    eps: float = _eps(1e-6)
    weight_decay: float = _decay(0.0)


class GaLoreAdafactorConfig(ProjectedConfig):
    """Adafactor whose steps are not relative to the weights, so rates are those of ``galore``."""

    lr: float = _rate(1e-3)
    weight_decay: float = _decay(0.0)
    beta1: float = Field(0.0, ge=0, lt=1, description="decay of the updates' mean (per update); 0 keeps none")
    beta2_decay: float = _beta2_decay()
    eps: float = _square_eps()
    d: float = _longest()


class EightBitGaLoreConfig(GaLoreConfig):
    """The projected moments have 8 bits."""

    min_8bit_size: int = Field(
        4096, gt=0, description="smallest projected gradient whose moments have 8 bits (numbers)"
    )


class ApolloConfig(DecayedAdamConfig):
    """Random projections: no decomposition, and ranks far below GaLore's. Rank 1 with ``scaled: tensor`` is APOLLO-Mini."""

    eps: float = _eps(1e-6)
    weight_decay: float = _decay(0.0)
    rank: int = _rank(256)
    update_steps: int = Field(200, gt=0, description="updates between new projections")
    scale: float = Field(1.0, gt=0, description="square of the factor of projected updates; 128 for APOLLO-Mini")
    scaled: Literal["channel", "tensor"] = Field("channel", description="what has a length of its own")


class SoapConfig(DecayedAdamConfig):
    """The second moment's decay is the preconditioner's, too."""

    lr: float = _rate(3e-3)
    beta1: float = _mean(0.95)
    beta2: float = _square(0.95)
    weight_decay: float = _decay(0.01)
    update_steps: int = Field(10, gt=0, description="updates between new bases, each a QR decomposition")
    max_side: int = Field(10_000, gt=0, description="longest side of a matrix that is rotated (numbers)")


class BAdamConfig(DecayedAdamConfig):
    """One block at a time."""

    weight_decay: float = _decay(0.0)
    switch_steps: int = Field(100, gt=0, description="updates of a block before the next one's turn")


class LisaConfig(DecayedAdamConfig):
    """Some blocks at a time."""

    weight_decay: float = _decay(0.0)
    switch_steps: int = Field(20, gt=0, description="updates before other blocks are drawn")
    active: int = Field(2, gt=0, description="blocks that are trained at a time")
    seed: int = Field(0, ge=0, description="seed of the draws")


class EightBitConfig(DecayedAdamConfig):
    """Moments of 8 bits in blocks of 256 numbers; tensors of fewer than ``min_8bit_size`` numbers keep 32."""

    weight_decay: float = _decay(0.01)
    min_8bit_size: int = Field(4096, gt=0, description="smallest tensor with 8-bit moments (numbers)")


class QuantisedConfig(DecayedAdamConfig):
    """Moments of a few bits in blocks of ``block_size`` numbers; tensors of fewer than ``min_size``, or of no whole blocks, keep 32."""

    weight_decay: float = _decay(0.01)
    min_size: int = Field(4096, gt=0, description="smallest tensor with quantised moments (numbers)")
    block_size: int = Field(256, gt=1, multiple_of=2, description="numbers that share a scale")


class FourBitConfig(QuantisedConfig):
    """Two moments in a byte."""

    block_size: int = Field(128, gt=1, multiple_of=2, description="numbers that share a scale")
