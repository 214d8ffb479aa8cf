"""The core of the framework: what plugins and users import. Importing it imports no torch.

Everything public is here, in ``mt_core.nn`` and ``mt_core.adapters`` (torch), ``mt_core.files``, ``mt_core.weights``,
``mt_train.command`` or ``mt_conformance``; the rest is private and may change.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mt_core.deprecation import current

__version__ = "0.1.0"
API_VERSION = 1
"""Number of the contract with plugins: it grows when something public goes, never when something comes."""

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
    "Outcome": "mt_train.assemble.outcome",
    "Patterns": "mt_core.config.base",
    "DatasetComponent": "mt_core.components",
    "ManyConversations": "mt_core.protocols",
    "ManyOffsets": "mt_core.protocols",
    "GradientTransform": "mt_core.protocols",
    "GroupOptions": "mt_core.groups",
    "ManyTexts": "mt_core.protocols",
    "ObjectiveComponent": "mt_core.components",
    "OptimizerComponent": "mt_core.components",
    "Quantizer": "mt_core.protocols",
    "Rejected": "mt_core.protocols",
    "RopeScaling": "mt_core.config.rope",
    "Row": "mt_core.protocols",
    "RunConfig": "mt_train.config.run",
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
    "check_config": "mt_train.api",
    "generate": "mt_train.api",
    "load_adapters": "mt_train.api",
    "load_config": "mt_train.api",
    "load_run": "mt_train.api",
    "text_encoder": "mt_core.data.spelled",
    "begin_ids": "mt_core.data.text_ids",
    "continuation_encoder": "mt_core.data.text_ids",
    "text_field": "mt_core.data.shapes",
    "train": "mt_train.api",
    "renamed": "mt_train.data.encoding",
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
    "Outcome",
    "Patterns",
    "Probe",
    "Quantizer",
    "Rejected",
    "RopeScaling",
    "Row",
    "RunConfig",
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
    "check_config",
    "continuation_encoder",
    "conversation",
    "did_you_mean",
    "first_line",
    "generate",
    "hookimpl",
    "is_conversation",
    "load_adapters",
    "load_config",
    "load_run",
    "matching",
    "peak_update",
    "preference",
    "renamed",
    "require_matches",
    "split_decay",
    "text_encoder",
    "text_field",
    "train",
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
    from mt_core.data.shapes import conversation, is_conversation, preference, renamed, text_field
    from mt_core.data.spelled import text_encoder
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
    from mt_core.protocols import (
        Dataset,
        Encoded,
        GradientTransform,
        ManyConversations,
        ManyOffsets,
        ManyTexts,
        Message,
        Quantizer,
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
    from mt_core.tracking.step_lines import StepLines
    from mt_core.warmup import WarmupOptions, peak_update, warmed
    from mt_tools.api import generate
    from mt_train.api import check_config, load_adapters, load_config, load_run, train
    from mt_train.assemble.outcome import Outcome
    from mt_train.config.run import RunConfig


def __getattr__(name: str) -> Any:
    name = current(name)
    if name not in _PUBLIC:
        raise AttributeError(f"module 'mt_core' has no public name {name!r}; it has {', '.join(sorted(_PUBLIC))}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value  # under the new name only: an old one warns each time
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
