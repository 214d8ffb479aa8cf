"""Building blocks for models and objectives. Importing this imports torch."""

from mt_core.nn.adapted import AdaptedLinear, Fill, LossFactor, SharedParameters, StoredLinear, sharing_of, with_loss
from mt_core.nn.attention import SdpaAttention
from mt_core.nn.batch import NOT_TRAINED, Batch, LossSums, document_lengths
from mt_core.nn.cache import KVCache
from mt_core.nn.compilation import exclude_from_compile
from mt_core.nn.context import AttentionFn, BlockContext
from mt_core.nn.decoder import Block, DecoderModel, GatedMLP, GroupedQueryAttention, NormNames, tokens_seen
from mt_core.nn.exchange import DividesExperts, ExpertExchange, Received
from mt_core.nn.experts import Experts, ListedExperts, clamped_swiglu, expert_layouts, list_experts
from mt_core.nn.fused import RMSNorm, geglu, project_gated, swiglu
from mt_core.nn.logprobs import token_logprobs
from mt_core.nn.loss import LossTerms, chunked_loss, token_scores
from mt_core.nn.low_rank import LowRank, linear_with_low_rank, low_rank
from mt_core.nn.media import Encoder, MediaBatch, MediaInputs, ProjectedEncoder, Projector
from mt_core.nn.mixture import Mixture, balance_by_bias, balance_loss, report_choice
from mt_core.nn.model import Layer, LayerSpec, TrainModel, run_recomputed, tensor_generator
from mt_core.nn.objective import TokenObjective, objective_modules
from mt_core.nn.rotary import Rotary, rotate
from mt_core.nn.router import Choice, Router
from mt_core.nn.scores import TokenScores
from mt_core.nn.step import StepSums
from mt_core.nn.tiles import TokenwiseMLP

__all__ = [
    "NOT_TRAINED",
    "AdaptedLinear",
    "AttentionFn",
    "Batch",
    "Block",
    "BlockContext",
    "Choice",
    "DecoderModel",
    "DividesExperts",
    "Encoder",
    "ExpertExchange",
    "Experts",
    "Fill",
    "GatedMLP",
    "GroupedQueryAttention",
    "KVCache",
    "Layer",
    "LayerSpec",
    "ListedExperts",
    "LossFactor",
    "LossSums",
    "LossTerms",
    "LowRank",
    "MediaBatch",
    "MediaInputs",
    "Mixture",
    "NormNames",
    "ProjectedEncoder",
    "Projector",
    "RMSNorm",
    "Received",
    "Rotary",
    "Router",
    "SdpaAttention",
    "SharedParameters",
    "StepSums",
    "StoredLinear",
    "TokenObjective",
    "TokenScores",
    "TokenwiseMLP",
    "TrainModel",
    "balance_by_bias",
    "balance_loss",
    "chunked_loss",
    "clamped_swiglu",
    "document_lengths",
    "exclude_from_compile",
    "expert_layouts",
    "geglu",
    "linear_with_low_rank",
    "list_experts",
    "low_rank",
    "objective_modules",
    "project_gated",
    "report_choice",
    "rotate",
    "run_recomputed",
    "sharing_of",
    "swiglu",
    "tensor_generator",
    "token_logprobs",
    "token_scores",
    "tokens_seen",
    "with_loss",
]
