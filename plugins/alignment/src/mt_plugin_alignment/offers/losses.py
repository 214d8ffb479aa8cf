"""Preference losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mt_core import ANY, Component, MtConfig

from ..losses.apo_down import ApoDown
from ..losses.apo_zero import ApoZero
from ..losses.base import PreferenceLoss
from ..losses.bco_pair import BcoPair
from ..losses.cpo import Cpo, CpoConfig
from ..losses.discopop import DiscoPop, DiscoPopConfig
from ..losses.exo_pair import ExoPair, ExoPairConfig
from ..losses.hinge import Hinge
from ..losses.ipo import Ipo, IpoConfig
from ..losses.nca_pair import NcaPair
from ..losses.orpo import Orpo, OrpoConfig
from ..losses.robust import Robust, RobustConfig
from ..losses.sigmoid import Sigmoid, SigmoidConfig
from ..losses.sigmoid_norm import SigmoidNorm, SigmoidNormConfig
from ..losses.simpo import Simpo, SimpoConfig
from ..losses.sppo_hard import SppoHard
from ..options import BetaOptions, DivergenceOptions


def _loss(
    name: str, build: Callable[[Any], PreferenceLoss], summary: str, paper: str, config: type[MtConfig] = BetaOptions
) -> Component:
    source = f"https://arxiv.org/abs/{paper}"
    return Component(name=name, config=config, build=build, summary=summary, source=source, layouts=ANY)


LOSSES: tuple[Component, ...] = (
    _loss(
        "sigmoid",
        Sigmoid,
        "DPO: logistic regression on the margin; with label_smoothing cDPO",
        "2305.18290",
        SigmoidConfig,
    ),
    _loss("robust", Robust, "DPO for labels that are wrong at a known rate", "2403.00409", RobustConfig),
    _loss("hinge", Hinge, "hinge on the margin, as SLiC has it", "2305.10425", DivergenceOptions),
    _loss("ipo", Ipo, "IPO: the margin is to be 1/(2β), no more", "2310.12036", IpoConfig),
    _loss("sigmoid-norm", SigmoidNorm, "DPO on means over the tokens of an answer", "2411.15124", SigmoidNormConfig),
    _loss("exo-pair", ExoPair, "EXO: the reverse KL to the preferences", "2402.00856", ExoPairConfig),
    _loss("nca-pair", NcaPair, "NCA: each answer against noise", "2402.05369"),
    _loss("bco-pair", BcoPair, "BCO: a classifier of single answers", "2404.04656"),
    _loss("sppo-hard", SppoHard, "SPPO with hard labels: each log-ratio has its target", "2405.00675"),
    _loss("apo-zero", ApoZero, "APO-zero: chosen answers that are better than the model's", "2408.06266"),
    _loss("apo-down", ApoDown, "APO-down: chosen answers that are worse than the model's", "2408.06266"),
    _loss("discopop", DiscoPop, "DiscoPOP: logistic and exponential, found by a model", "2406.08414", DiscoPopConfig),
    _loss("cpo", Cpo, "CPO: log-probabilities without a reference, and likelihood", "2401.08417", CpoConfig),
    _loss("simpo", Simpo, "SimPO: mean log-probabilities and a margin, without a reference", "2405.14734", SimpoConfig),
    _loss("orpo", Orpo, "ORPO: odds without a reference, and likelihood", "2403.07691", OrpoConfig),
)
