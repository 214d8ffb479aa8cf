"""Names of mt-train that checks use. It need not be installed: a check that uses one is skipped then, and says so."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

_HOMES = {
    "Draft": "mt_train.plugins.draft",
    "LoadedModel": "mt_train.generation.loaded_model",
    "Answer": "mt_train.assemble.evaluations",
    "LoadedSubject": "mt_train.evaluate.subject",
    "PaperSubject": "mt_train.evaluate.paper",
    "Part": "mt_train.plugins.composition",
    "Parts": "mt_train.assemble.parts",
    "Position": "mt_train.data.loader",
    "Process": "mt_train.engine.processes",
    "ProjectedEncoder": "mt_train.engine.media_inputs",
    "Window": "mt_train.data.loader",
    "ask": "mt_train.assemble.evaluations",
    "build_data": "mt_train.assemble.data",
    "build_quantized": "mt_train.engine.build",
    "build_template": "mt_train.data.templates",
    "can_fork": "mt_train.data.chunks",
    "continue_prompts": "mt_train.generation.continuation",
    "derived_layers": "mt_train.engine.stages",
    "fill_model": "mt_train.engine.build",
    "help_text": "mt_train.cli.train_help",
    "inject": "mt_train.assemble.injection",
    "loaded_subject": "mt_train.assemble.subjects",
    "make_loader": "mt_train.assemble.data",
    "make_plan": "mt_train.engine.plan",
    "parameter_groups": "mt_train.assemble.model",
    "paper_subject": "mt_train.assemble.subjects",
    "parts_of": "mt_train.plugins.parts",
    "probe_of": "mt_train.assemble.probe",
    "random_numbers": "mt_train.engine.random_state",
    "random_tensors": "mt_train.engine.random_state",
    "resolve": "mt_train.plugins.resolve",
    "start": "mt_train.assemble.injection",
    "weight_names": "mt_train.engine.build",
}

if TYPE_CHECKING:
    from mt_train.assemble.data import build_data as build_data
    from mt_train.assemble.data import make_loader as make_loader
    from mt_train.assemble.evaluations import Answer as Answer
    from mt_train.assemble.evaluations import ask as ask
    from mt_train.assemble.injection import inject as inject
    from mt_train.assemble.injection import start as start
    from mt_train.assemble.model import parameter_groups as parameter_groups
    from mt_train.assemble.parts import Parts as Parts
    from mt_train.assemble.probe import probe_of as probe_of
    from mt_train.assemble.subjects import loaded_subject as loaded_subject
    from mt_train.assemble.subjects import paper_subject as paper_subject
    from mt_train.cli.train_help import help_text as help_text
    from mt_train.data.chunks import can_fork as can_fork
    from mt_train.data.loader import Position as Position
    from mt_train.data.loader import Window as Window
    from mt_train.data.templates import build_template as build_template
    from mt_train.engine.build import build_quantized as build_quantized
    from mt_train.engine.build import fill_model as fill_model
    from mt_train.engine.build import weight_names as weight_names
    from mt_train.engine.media_inputs import ProjectedEncoder as ProjectedEncoder
    from mt_train.engine.plan import make_plan as make_plan
    from mt_train.engine.processes import Process as Process
    from mt_train.engine.random_state import random_numbers as random_numbers
    from mt_train.engine.random_state import random_tensors as random_tensors
    from mt_train.engine.stages import derived_layers as derived_layers
    from mt_train.evaluate.paper import PaperSubject as PaperSubject
    from mt_train.evaluate.subject import LoadedSubject as LoadedSubject
    from mt_train.generation.continuation import continue_prompts as continue_prompts
    from mt_train.generation.loaded_model import LoadedModel as LoadedModel
    from mt_train.plugins.composition import Part as Part
    from mt_train.plugins.draft import Draft as Draft
    from mt_train.plugins.parts import parts_of as parts_of
    from mt_train.plugins.resolve import resolve as resolve


def require() -> None:
    """Skip the check that runs, where mt-train is not installed."""
    import pytest

    if not is_installed():
        pytest.skip("needs mt-train, which is not installed: pip install 'mt-conformance[train]'")


def is_installed() -> bool:
    """Return whether there is mt-train."""
    return find_spec("mt_train") is not None


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mt_conformance.trainer' has no name {name!r}")
    require()
    return getattr(import_module(_HOMES[name]), name)
