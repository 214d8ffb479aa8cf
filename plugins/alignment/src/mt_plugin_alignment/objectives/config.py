"""Options of the objectives over pairs. Torch is imported when one is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from mt_core import MtConfig, PartChoice

from ..losses.cpo import CpoConfig
from ..losses.orpo import OrpoConfig
from ..losses.simpo import SimpoConfig
from ..options import BetaOptions

Choice = dict[str, Any]
"""Name and options of a component: ``{name: ipo, beta: 0.2}``."""

KIND = "preference_loss"


class PairOptions(MtConfig):
    """Options of pairs that go with any loss."""

    sft: float = Field(
        0.0, ge=0, description="weight of the negative log-likelihood of chosen answers beside the loss (RPO's α)"
    )
    sft_mean: Literal["answers", "tokens"] = Field(
        "answers", description="its mean: over answers, each by its tokens, or over all tokens of the step"
    )
    nll_on: Literal["answer", "all"] = Field(
        "answer",
        description="its tokens: those of the chosen answer, or those of its prompt, too, as TRL's ORPO has it",
    )
    ld_alpha: float = Field(
        1.0, ge=0, le=1, description="LD-DPO: what tokens behind the shorter answer's length count; 1 is off"
    )
    wpo: bool = Field(False, description="WPO: weigh pairs by how likely their answers are for the model")
    prove: bool = Field(
        True, description="end the run where the first step does not give the loss that it must have (log 2 for DPO)"
    )


class DpoConfig(PairOptions):
    """Losses of DPO and its family, and the options of pairs."""

    loss: str | Choice | tuple[Choice, ...] = Field(
        "sigmoid",
        description="a preference loss, {name: NAME, OPTION: VALUE}, or several with weights: [{name: A, weight: 0.8}, …]",
    )
    beta: float | None = Field(None, gt=0, description="β of losses that are not given one; none: their own default")

    @field_validator("loss", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _named(self) -> Self:
        names = [str(each.get("name") or "") for each in self.choices]
        if not names:
            raise ValueError("loss is an empty list; write sigmoid, or [{name: sigmoid, weight: 0.8}, …]")
        if not all(names):
            raise ValueError(f"loss {self.loss!r} has no name; write {{name: sigmoid, OPTION: VALUE}}")
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"loss names {twice[0]} twice; add their weights up, and keep one")
        for weight in self.weights:
            if isinstance(weight, bool) or not isinstance(weight, int | float) or weight <= 0:
                raise ValueError(f"weight {weight!r} of a loss is no number above 0")
        return self

    @property
    def choices(self) -> Sequence[Choice]:
        """The losses as they were named."""
        if isinstance(self.loss, str):
            return ({"name": self.loss},)
        return (self.loss,) if isinstance(self.loss, dict) else self.loss

    @property
    def weights(self) -> tuple[float, ...]:
        """Weight of each loss."""
        return tuple(each.get("weight", 1.0) for each in self.choices)


class CpoObjectiveConfig(CpoConfig, PairOptions):
    """CPO as an objective."""


class SimpoObjectiveConfig(SimpoConfig, PairOptions):
    """SimPO as an objective."""


class OrpoObjectiveConfig(OrpoConfig, PairOptions):
    """ORPO as an objective."""


class AotConfig(BetaOptions, PairOptions):
    """AOT: options of pairs, and what is put in order."""

    rows: Literal["paired", "unpaired"] = Field(
        "paired", description="compare differences within pairs with the reference's, or chosen with rejected answers"
    )
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="ε: probability that a label is wrong")


class KtoConfig(BetaOptions):
    """KTO: what desirable and undesirable answers count."""

    loss: Literal["kto", "apo-zero"] = Field(
        "kto", description="against a baseline that the step has (kto), or against 0 (APO-zero for labels)"
    )
    desirable_weight: float = Field(
        1.0, gt=0, description="weight of an answer that is desirable; weight × number of both kinds should be alike"
    )
    undesirable_weight: float = Field(1.0, gt=0, description="weight of an undesirable answer")
    prove: bool = Field(
        True, description="end the run where the first step does not give the loss that it must have (½)"
    )


class RewardConfig(MtConfig):
    """Which rows a reward model learns from, and how."""

    rows: Literal["pairs", "scored"] = Field(
        "pairs", description="pairs (prompt, chosen, rejected), or scored answers (prompt, response, score)"
    )
    margin: Literal["none", "add", "scale"] = Field(
        "none",
        description="field margin of pairs: left alone, added to what scores must differ by, or the pair's weight",
    )
    centring: float = Field(
        0.0, ge=0, description="weight of (s_w + s_l)², which keeps the mean score near 0; 0.01 is usual (0 is off)"
    )

    @model_validator(mode="after")
    def _of_pairs(self) -> Self:
        if self.rows == "scored" and (self.margin != "none" or self.centring):
            raise ValueError("margin and centring are of pairs, and rows is scored; leave them out")
        return self


def dpo_parts(config: DpoConfig) -> Mapping[str, PartChoice]:
    """Return the losses of ``dpo``, with its β where they have none of their own."""
    beta = {} if config.beta is None else {"beta": config.beta}
    return {
        f"loss.{each['name']}": PartChoice.of(
            beta | {name: value for name, value in each.items() if name != "weight"}, kind=KIND
        )
        for each in config.choices
    }


def own_part(name: str, config: PairOptions, options: type[MtConfig]) -> Mapping[str, PartChoice]:
    """Return the one loss of an objective that has its name and its options."""
    values = config.model_dump(include=set(options.model_fields))
    return {f"loss.{name}": PartChoice(name=name, options=values, kind=KIND)}
