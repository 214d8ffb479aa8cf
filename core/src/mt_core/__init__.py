"""The core of the framework: what plugins import. Importing it imports no torch.

Everything public is here, in ``mt_core.nn`` and ``mt_core.adapters`` (torch), ``mt_core.files`` or ``mt_core.weights``; the rest is
private and may change.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mt_core.deprecation import current
from mt_core.version import API_VERSION as API_VERSION
from mt_core.version import __version__ as __version__

_PUBLIC = {
    "ANY": "mt_core.config.base",
    "Adapter": "mt_core.adapters.base",
    "AdapterComponent": "mt_core.components",
    "AdapterContext": "mt_core.adapters.base",
    "LowRankConfig": "mt_core.adapters.config",
    "Probe": "mt_core.adapters.base",
    "TargetConfig": "mt_core.adapters.config",
    "CheckpointError": "mt_core.errors",
    "CallbackContext": "mt_core.events",
    "TrackedRun": "mt_core.events",
    "Tracker": "mt_core.events",
    "TrainedWeights": "mt_core.events",
    "Component": "mt_core.components",
    "ComponentError": "mt_core.errors",
    "ConfigError": "mt_core.errors",
    "Control": "mt_core.events",
    "DataError": "mt_core.errors",
    "Dataset": "mt_core.protocols",
    "Encoded": "mt_core.protocols",
    "Fault": "mt_core.errors",
    "Layout": "mt_core.config.base",
    "Message": "mt_core.protocols",
    "ModelConfig": "mt_core.config.base",
    "ModelFamily": "mt_core.components",
    "ModelSizes": "mt_core.components",
    "MtConfig": "mt_core.config.base",
    "MtDeprecationWarning": "mt_core.deprecation",
    "MtError": "mt_core.errors",
    "Patterns": "mt_core.config.base",
    "DatasetComponent": "mt_core.components",
    "ManyConversations": "mt_core.protocols",
    "ManyOffsets": "mt_core.protocols",
    "GradientTransform": "mt_core.protocols",
    "GroupOptions": "mt_core.groups",
    "ManyTexts": "mt_core.protocols",
    "ObjectiveComponent": "mt_core.components",
    "OptimizerComponent": "mt_core.components",
    "Quantizer": "mt_core.model_protocols",
    "Rejected": "mt_core.protocols",
    "RopeScaling": "mt_core.config.rope",
    "Row": "mt_core.protocols",
    "Sample": "mt_core.protocols",
    "Schedule": "mt_core.protocols",
    "StepLines": "mt_core.tracking.step_lines",
    "StepRecord": "mt_core.protocols",
    "TaskPrint": "mt_core.protocols",
    "Template": "mt_core.protocols",
    "Tokenizer": "mt_core.protocols",
    "TokenizerComponent": "mt_core.components",
    "StoppedError": "mt_core.errors",
    "Stream": "mt_core.protocols",
    "UsageError": "mt_core.errors",
    "WarmupOptions": "mt_core.warmup",
    "WeightsError": "mt_core.errors",
    "WeightsFormat": "mt_core.components",
    "ZERO": "mt_core.config.base",
    "block_number": "mt_core.groups",
    "first_line": "mt_core.errors",
    "did_you_mean": "mt_core.errors",
    "conversation": "mt_core.data.shapes",
    "matching": "mt_core.groups",
    "require_matches": "mt_core.groups",
    "is_conversation": "mt_core.data.shapes",
    "peak_update": "mt_core.warmup",
    "preference": "mt_core.data.shapes",
    "hookimpl": "mt_core.hookspecs",
    "notice": "mt_core.tracking.logs",
    "text_encoder": "mt_core.data.special_tokens",
    "begin_ids": "mt_core.data.text_ids",
    "continuation_encoder": "mt_core.data.text_ids",
    "text_field": "mt_core.data.shapes",
    "rename_columns": "mt_core.data.shapes",
    "split_decay": "mt_core.groups",
    "warmed": "mt_core.warmup",
    "whole_shape": "mt_core.groups",
}

__all__ = [
    "ANY",
    "ZERO",
    "Adapter",
    "AdapterComponent",
    "AdapterContext",
    "CallbackContext",
    "CheckpointError",
    "Component",
    "ComponentError",
    "ConfigError",
    "Control",
    "DataError",
    "Dataset",
    "DatasetComponent",
    "Encoded",
    "Fault",
    "GradientTransform",
    "GroupOptions",
    "Layout",
    "LowRankConfig",
    "ManyConversations",
    "ManyOffsets",
    "ManyTexts",
    "Message",
    "ModelConfig",
    "ModelFamily",
    "ModelSizes",
    "MtConfig",
    "MtDeprecationWarning",
    "MtError",
    "ObjectiveComponent",
    "OptimizerComponent",
    "Patterns",
    "Probe",
    "Quantizer",
    "Rejected",
    "RopeScaling",
    "Row",
    "Sample",
    "Schedule",
    "StepLines",
    "StepRecord",
    "StoppedError",
    "Stream",
    "TargetConfig",
    "TaskPrint",
    "Template",
    "Tokenizer",
    "TokenizerComponent",
    "TrackedRun",
    "Tracker",
    "TrainedWeights",
    "UsageError",
    "WarmupOptions",
    "WeightsError",
    "WeightsFormat",
    "begin_ids",
    "block_number",
    "continuation_encoder",
    "conversation",
    "did_you_mean",
    "first_line",
    "hookimpl",
    "is_conversation",
    "matching",
    "notice",
    "peak_update",
    "preference",
    "rename_columns",
    "require_matches",
    "split_decay",
    "text_encoder",
    "text_field",
    "warmed",
    "whole_shape",
]

if TYPE_CHECKING:
    from mt_core.adapters.base import Adapter, AdapterContext, Probe
    from mt_core.adapters.config import LowRankConfig, TargetConfig
    from mt_core.components import (
        AdapterComponent,
        Component,
        DatasetComponent,
        ModelFamily,
        ModelSizes,
        ObjectiveComponent,
        OptimizerComponent,
        TokenizerComponent,
        WeightsFormat,
    )
    from mt_core.config.base import ANY, ZERO, Layout, ModelConfig, MtConfig, Patterns
    from mt_core.config.rope import RopeScaling
    from mt_core.data.shapes import conversation, is_conversation, preference, rename_columns, text_field
    from mt_core.data.special_tokens import text_encoder
    from mt_core.data.text_ids import begin_ids, continuation_encoder
    from mt_core.deprecation import MtDeprecationWarning
    from mt_core.errors import (
        CheckpointError,
        ComponentError,
        ConfigError,
        DataError,
        Fault,
        MtError,
        StoppedError,
        UsageError,
        WeightsError,
        did_you_mean,
        first_line,
    )
    from mt_core.events import CallbackContext, Control, TrackedRun, Tracker, TrainedWeights
    from mt_core.groups import GroupOptions, block_number, matching, require_matches, split_decay, whole_shape
    from mt_core.hookspecs import hookimpl
    from mt_core.model_protocols import Quantizer
    from mt_core.protocols import (
        Dataset,
        Encoded,
        GradientTransform,
        ManyConversations,
        ManyOffsets,
        ManyTexts,
        Message,
        Rejected,
        Row,
        Sample,
        Schedule,
        StepRecord,
        Stream,
        TaskPrint,
        Template,
        Tokenizer,
    )
    from mt_core.tracking.logs import notice
    from mt_core.tracking.step_lines import StepLines
    from mt_core.warmup import WarmupOptions, peak_update, warmed


def __getattr__(name: str) -> Any:
    name = current(name)
    if name not in _PUBLIC:
        raise AttributeError(f"module 'mt_core' has no public name {name!r}; it has {', '.join(sorted(_PUBLIC))}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value  # under the new name only: an old one warns each time
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
