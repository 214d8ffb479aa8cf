"""The page of options says what a run needs."""

from __future__ import annotations

import subprocess
import sys

from mt_core.plugins.host import PluginHost
from mt_train.cli.train_help import help_text


def test_a_model_is_needed_by_name_or_by_the_folder_of_its_weights() -> None:
    text = help_text(PluginHost.discover(), {})
    assert "--model NAME (required, unless --model.weights FOLDER says it)" in text
    assert "(required)" not in text


def test_help_builds_no_validator_and_loads_nothing_that_speaks_to_others() -> None:
    """In a process of its own, since any test may have used a config."""
    code = """
import gc, sys
from mt_train.cli.train import main
assert main(["--help", "all"]) == 0
from mt_core.config.base import MtConfig
def every(cls):
    for each in cls.__subclasses__():
        yield each
        yield from every(each)
found = list(every(MtConfig))
assert len(found) > 20, found
built = [each.__name__ for each in found if each.__pydantic_complete__]
assert not built, built
loaded = {"http", "ssl"} & set(sys.modules)
assert not loaded, loaded
assert gc.isenabled()
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert "--parallel.deepspeed.zero-optimization" in result.stdout
