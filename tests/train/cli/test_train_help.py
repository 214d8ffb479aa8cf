"""The page of options says what a run needs."""

from __future__ import annotations

from mt_core.plugins.host import PluginHost
from mt_train.cli.train_help import help_text


def test_a_model_is_needed_by_name_or_by_the_folder_of_its_weights() -> None:
    text = help_text(PluginHost.discover(), {})
    assert "--model NAME (required, unless --model.weights FOLDER says it)" in text
    assert "(required)" not in text
