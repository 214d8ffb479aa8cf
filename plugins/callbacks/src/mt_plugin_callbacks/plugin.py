"""Entry point of the callbacks plugin: says what it offers, holds no logic, imports no torch."""

from __future__ import annotations

from mt_core import ANY, ZERO, Component, hookimpl

from .accounting import Flops, FlopsConfig, Memory, MemoryConfig
from .averaging import EmaConfig, SwaConfig, build_ema, build_swa
from .corruption import CorruptionCheck, CorruptionCheckConfig, corruption_limits
from .neftune import Neftune, NeftuneConfig
from .noise import GradientNoise, GradientNoiseConfig
from .plateau import Plateau, PlateauConfig
from .predictions import Predictions, PredictionsConfig, predictions_files, predictions_limits
from .printers import LineConfig, build_classification, build_perplexity
from .spikes import SpikeRollback, SpikeRollbackConfig, spike_limits
from .stopping import Best, BestConfig, EarlyStopping, EarlyStoppingConfig
from .stragglers import Stragglers, StragglersConfig
from .system import System, SystemConfig, system_files
from .upload import Upload, UploadConfig

_MOVING_BASE = ("adapter:relora", "adapter:plora", "adapter:delta-lora")
"""They change frozen weights while they train, which no average and no copy of the trained ones has."""


@hookimpl
def mt_callbacks() -> list[Component]:
    return [*_decisions(), *_weights(), *_noise(), *_machines(), *_accounts()]


def _decisions() -> list[Component]:
    return [
        Component(
            name="early-stopping",
            config=EarlyStoppingConfig,
            build=EarlyStopping,
            summary="ends the run when a figure has not improved for some time",
            source="https://doi.org/10.1007/978-3-642-35289-8_5",
            layouts=ANY,
        ),
        Component(
            name="plateau",
            config=PlateauConfig,
            build=Plateau,
            summary="lowers the rates of the schedule when a figure has not improved for some time",
            source="https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.ReduceLROnPlateau.html",
            layouts=ANY,
        ),
        Component(
            name="best",
            config=BestConfig,
            build=Best,
            summary="saves whenever checkpoint.best improves, and ends the run with that checkpoint",
            source="https://doi.org/10.1007/978-3-642-35289-8_5",
            layouts=ANY,
        ),
        Component(
            name="spike-rollback",
            config=SpikeRollbackConfig,
            build=SpikeRollback,
            summary="goes back to the last good weights and optimizer state when the loss jumps",
            conflicts=_MOVING_BASE,
            limits=spike_limits,
            source="https://arxiv.org/abs/2204.02311",
        ),
    ]


def _weights() -> list[Component]:
    return [
        Component(
            name="ema",
            config=EmaConfig,
            build=build_ema,
            summary="exponential average of the weights, to evaluate and generate with",
            conflicts=_MOVING_BASE,
            source="https://doi.org/10.1137/0330046",
        ),
        Component(
            name="swa",
            config=SwaConfig,
            build=build_swa,
            summary="plain average of the weights over the last part of the run",
            conflicts=_MOVING_BASE,
            source="https://arxiv.org/abs/1803.05407",
        ),
    ]


def _noise() -> list[Component]:
    return [
        Component(
            name="neftune",
            config=NeftuneConfig,
            build=Neftune,
            summary="adds noise to the embeddings in training",
            source="https://arxiv.org/abs/2310.05914",
        ),
        Component(
            name="gradient-noise",
            config=GradientNoiseConfig,
            build=GradientNoise,
            summary="adds decaying Gaussian noise to the gradients",
            source="https://arxiv.org/abs/1511.06807",
        ),
    ]


def _machines() -> list[Component]:
    return [
        Component(
            name="stragglers",
            config=StragglersConfig,
            build=Stragglers,
            summary="names ranks that the others wait for, and says when they have recovered",
            source="https://arxiv.org/abs/2402.15627",
            layouts=ZERO | {"sequence", "offload"},
        ),
        Component(
            name="corruption-check",
            config=CorruptionCheckConfig,
            build=CorruptionCheck,
            limits=corruption_limits,
            summary="ends the run when the weights of the ranks differ, or a rank computes wrongly",
            source="https://arxiv.org/abs/2407.21783",
            layouts=ZERO | {"sequence", "offload"},
        ),
    ]


def _accounts() -> list[Component]:
    return [
        Component(
            name="flops",
            config=FlopsConfig,
            build=Flops,
            summary="tokens and operations so far, operations a second, share of the device's peak (MFU)",
            source="https://arxiv.org/abs/2204.02311",
            layouts=ZERO | {"sequence", "offload"},
        ),
        Component(
            name="memory",
            config=MemoryConfig,
            build=Memory,
            summary="memory of the process and of the device, at each step",
            source="https://docs.kernel.org/filesystems/proc.html",
            layouts=ANY,
        ),
        Component(
            name="system",
            config=SystemConfig,
            build=System,
            writes=system_files,
            summary="processors, memory, GPU and free disk every few seconds, of each rank",
            source="https://docs.kernel.org/filesystems/proc.html",
            layouts=ANY,
        ),
        Component(
            name="predictions",
            config=PredictionsConfig,
            build=Predictions,
            writes=predictions_files,
            limits=predictions_limits,
            summary="generates answers at each evaluation, scored by exact match and shared words",
            source="https://arxiv.org/abs/1606.05250",
        ),
        Component(
            name="upload",
            config=UploadConfig,
            build=Upload,
            summary="copies checkpoints and figures to S3, GCS, SSH … by fsspec (needs mt-plugin-callbacks[upload])",
            source="https://filesystem-spec.readthedocs.io",
            layouts=ANY,
        ),
    ]


@hookimpl
def mt_task_prints() -> list[Component]:
    return [
        Component(
            name="perplexity",
            config=LineConfig,
            build=build_perplexity,
            summary="one line: perplexity, evaluation, token accuracy, rate, tokens/s",
            source="https://doi.org/10.1121/1.2016299",
            layouts=ANY,
        ),
        Component(
            name="classification",
            config=LineConfig,
            build=build_classification,
            summary="one line: accuracy, precision, recall, F1 and MCC of --objective.answers",
            source="https://doi.org/10.1186/s12864-019-6413-7",
            layouts=ANY,
        ),
    ]
