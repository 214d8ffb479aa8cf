"""What the plugin offers, and the help that shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from annotated_types import Ge, Gt, MinLen

import mt_plugin_callbacks
from mt_core import Component, ConfigError
from mt_core.plugins.host import PluginHost
from mt_plugin_callbacks import plugin as callbacks
from mt_train.cli.train import main
from mt_train.plugins.resolve import resolve

SOURCES = list(Path(mt_plugin_callbacks.__file__).parent.rglob("*.py"))
COMPONENTS: list[Component] = [*callbacks.mt_callbacks(), *callbacks.mt_task_prints()]


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda each: each.name)
def test_every_option_is_described_and_bounded_and_every_component_has_a_source(component: Component) -> None:
    assert component.summary
    assert component.source.startswith("https://")
    for name, field in component.config.model_fields.items():
        assert field.description, name
        if field.annotation is not bool and "Literal" not in str(field.annotation) and name not in ("metric", "tags"):
            assert any(isinstance(mark, Ge | Gt | MinLen) for mark in field.metadata), name


@pytest.mark.needs("mt-plugin-adapters")
@pytest.mark.usefixtures("kit_model")
@pytest.mark.parametrize("name", ["ema", "swa", "spike-rollback"])
def test_adapters_that_rewrite_the_base_while_they_train_are_refused(name: str) -> None:
    """Averages and copies are of what is trained, and would be put beside another base."""
    for adapter in ("relora", "plora", "delta-lora"):
        with pytest.raises(ConfigError, match=f"{name} conflicts with adapter:{adapter}"):
            resolve({"model": "kit-tiny", "adapter": adapter, "callbacks": [name]}, PluginHost.discover())


@pytest.mark.usefixtures("kit_model")
def test_help_shows_the_options_of_those_that_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "kit-tiny", "--callbacks", "ema", "--help"]) == 0
    said = capsys.readouterr().out
    assert "--callbacks.ema.decay" in said
    assert "--callbacks.swa.start" not in said
