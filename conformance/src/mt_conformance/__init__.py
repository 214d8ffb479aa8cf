"""Promises that every plugin must keep, as test classes that its author subclasses. Needs ``pip install mt-conformance``.

A class for each kind; a subclass says which component it is about, and pytest does the rest::

    class TestBits(BaseTaskPrintConformance):
        plugin = plugin
        name = "bits"

A class is imported when it is asked for, so that the checks of a plugin's imports run without torch.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mt_core.errors import UsageError

_PUBLIC = {
    "BaseAdapterConformance": "adapter",
    "BaseCallbackConformance": "callback",
    "BaseDatasetConformance": "dataset",
    "BaseEncoderConformance": "encoder",
    "BaseEvaluationConformance": "evaluation",
    "BaseMetricConformance": "metric",
    "BaseModelConformance": "model",
    "BaseObjectiveConformance": "objective",
    "BaseOptimizerConformance": "optimizer",
    "BasePluginConformance": "base",
    "BasePreferenceLossConformance": "preference_loss",
    "BaseProjectorConformance": "projector",
    "BaseRewardConformance": "reward",
    "BaseSamplerConformance": "sampler",
    "BaseScheduleConformance": "schedule",
    "BaseTaskPrintConformance": "task_print",
    "BaseTokenizerConformance": "tokenizer",
    "hermetic_host": "host",
}

__all__ = [
    "BaseAdapterConformance",
    "BaseCallbackConformance",
    "BaseDatasetConformance",
    "BaseEncoderConformance",
    "BaseEvaluationConformance",
    "BaseMetricConformance",
    "BaseModelConformance",
    "BaseObjectiveConformance",
    "BaseOptimizerConformance",
    "BasePluginConformance",
    "BasePreferenceLossConformance",
    "BaseProjectorConformance",
    "BaseRewardConformance",
    "BaseSamplerConformance",
    "BaseScheduleConformance",
    "BaseTaskPrintConformance",
    "BaseTokenizerConformance",
    "hermetic_host",
]

if TYPE_CHECKING:
    from mt_conformance.adapter import BaseAdapterConformance
    from mt_conformance.base import BasePluginConformance
    from mt_conformance.callback import BaseCallbackConformance
    from mt_conformance.dataset import BaseDatasetConformance
    from mt_conformance.encoder import BaseEncoderConformance
    from mt_conformance.evaluation import BaseEvaluationConformance
    from mt_conformance.host import hermetic_host
    from mt_conformance.metric import BaseMetricConformance
    from mt_conformance.model import BaseModelConformance
    from mt_conformance.objective import BaseObjectiveConformance
    from mt_conformance.optimizer import BaseOptimizerConformance
    from mt_conformance.preference_loss import BasePreferenceLossConformance
    from mt_conformance.projector import BaseProjectorConformance
    from mt_conformance.reward import BaseRewardConformance
    from mt_conformance.sampler import BaseSamplerConformance
    from mt_conformance.schedule import BaseScheduleConformance
    from mt_conformance.task_print import BaseTaskPrintConformance
    from mt_conformance.tokenizer import BaseTokenizerConformance


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'mt_conformance' has no public name {name!r}; it has {', '.join(__all__)}")
    if find_spec("pytest") is None:
        raise UsageError(
            f"mt_conformance.{name} needs pytest, which is not installed. Install it: pip install mt-conformance"
        )
    value = getattr(import_module(f"mt_conformance.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
