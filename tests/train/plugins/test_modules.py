import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from mt_core.errors import CheckpointError, ComponentError, UsageError
from mt_train import check_config, load_config, load_run, train
from mt_train.plugins.lock import check_lock
from mt_train.plugins.modules import VARIABLE

SOURCE = """
from mt_core import ANY, Component, Control, MtConfig, hookimpl


class EnoughConfig(MtConfig):
    steps: int = 2


class Enough:
    def __init__(self, config):
        self.config = config

    def on_step_end(self, context):
        return Control(stop=context.record.step >= self.config.steps)


@hookimpl
def mt_callbacks():
    return [Component(name="enough", build=Enough, config=EnoughConfig, summary="ends a run", layouts=ANY)]
"""
CONFIG = {
    "model": "llama",
    "train": {"steps": 5, "micro_batch_size": 2, "sequence_len": 32},
    "callbacks": [{"name": "enough", "steps": 3}],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from which modules can be imported, and which forgets them again."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def module_of(folder: Path, name: str, source: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (folder / f"{name}.py").write_text(source)
    importlib.invalidate_caches()
    module = importlib.import_module(name)
    monkeypatch.setitem(sys.modules, name, module)  # so that it is gone after the test
    return module


def command(folder: Path, *words: str, modules: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder), VARIABLE: modules}
    return subprocess.run(
        [sys.executable, "-m", *words], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )


def test_a_module_of_the_program_is_a_plugin_of_its_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = module_of(folder, "enough_here", SOURCE, monkeypatch)
    run = folder / "run"
    outcome = train(CONFIG, output=run, plugins=[mine])
    assert outcome.steps == 3, "its callback ended the run"
    lock = json.loads((run / "plugins.lock.json").read_text())
    assert list(lock["modules"]) == ["enough_here"]
    assert "enough_here" not in lock["plugins"], "pip has no such distribution"
    assert load_run(run, plugins=[mine]).model is not None
    more = {"train": {"steps": 8}, "callbacks": [{"name": "enough", "steps": 6}]}
    assert train(more, resume=run, plugins=[mine]).steps == 6

    words = ("mt_tools.cli.generate", "--run", str(run), "--prompt", "The ", "--max-new-tokens", "2", "--greedy")
    assert command(folder, *words, modules="enough_here").returncode == 0
    refused = command(folder, *words)
    assert refused.returncode == 1
    assert "used modules of a program as plugins: enough_here." in refused.stderr
    assert f"{VARIABLE}=enough_here" in refused.stderr

    monkeypatch.delitem(sys.modules, "enough_here")
    with pytest.raises(CheckpointError, match="used modules of a program as plugins: enough_here"):
        load_run(run)


def test_a_command_takes_modules_that_the_environment_names(folder: Path) -> None:
    (folder / "enough_there.py").write_text(SOURCE)
    config = folder / "config.yaml"
    config.write_text(json.dumps(CONFIG))
    words = ("mt_train.cli.train", "--config", str(config), "--output", str(folder / "run"))
    done = command(folder, *words, modules=" enough_there,")
    assert done.returncode == 0, done.stderr
    (folder / "enough_there.py").write_text(SOURCE + "# another line\n")
    done = command(
        folder,
        "mt_train.cli.train",
        "--resume",
        str(folder / "run"),
        "--train.steps",
        "6",
        "--callbacks.enough.steps",
        "6",
        modules="enough_there",
    )
    assert done.returncode == 0, done.stderr
    assert "used other files of enough_there" in done.stdout + done.stderr


def test_configs_are_checked_with_the_modules_of_the_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = module_of(folder, "enough_checked", SOURCE, monkeypatch)
    assert load_config(CONFIG, plugins=[mine]).callbacks[0].options.steps == 3
    assert check_config(CONFIG, plugins=(each for each in [mine])).callbacks[0].name == "enough"
    with pytest.raises(UsageError, match="no callback named 'enough'"):
        load_config(CONFIG)


def test_a_module_that_is_no_plugin_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    misspelt = SOURCE.replace("def mt_callbacks", "def mt_callback")
    mine = module_of(folder, "enough_misspelt", misspelt, monkeypatch)
    with pytest.raises(ComponentError, match=r"the module enough_misspelt is no plugin: .*Did you mean 'mt_callbacks'"):
        load_config(CONFIG, plugins=[mine])
    import mt_plugin_llama

    with pytest.raises(ComponentError, match="already that of"):
        load_config(CONFIG, plugins=[importlib.import_module(f"{mt_plugin_llama.__name__}.plugin")])


@pytest.mark.parametrize("given", ["enough", ["enough"], 5, [SimpleNamespace()], sys])
def test_what_is_no_list_of_modules_is_refused(given: object) -> None:
    words = r"load_config\(\): (an item of )?plugins is a (list of modules|module) with hooks"
    with pytest.raises(UsageError, match=words):
        load_config(CONFIG, plugins=given)  # type: ignore[arg-type]


def test_a_module_that_no_name_imports_is_refused() -> None:
    with pytest.raises(UsageError, match="not the one that `import of_no_name` gives"):
        load_config(CONFIG, plugins=[ModuleType("of_no_name")])


def test_a_module_of_the_environment_that_cannot_be_imported_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "not_there_at_all")
    with pytest.raises(UsageError, match=r"MT_PLUGIN_MODULES names 'not_there_at_all', .*PYTHONPATH=\."):
        load_config(CONFIG)
    (folder / "half_written.py").write_text("def mt_callbacks(:")
    importlib.invalidate_caches()
    monkeypatch.setenv(VARIABLE, "half_written")
    with pytest.raises(UsageError, match="'half_written', which cannot be imported: SyntaxError"):
        load_config(CONFIG)


@pytest.mark.parametrize("modules", [5, {"enough_locked": 5}, {"enough; ls": "0"}, ["enough_locked"]])
def test_modules_of_a_lock_are_names_with_hashes(
    modules: object, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = module_of(folder, "enough_locked", SOURCE, monkeypatch)
    (folder / "plugins.lock.json").write_text(json.dumps({"plugins": {}, "modules": modules}))
    assert mine.__name__ in sys.modules
    with pytest.raises(CheckpointError, match="in 'modules' what is no module with its hash; it is damaged"):
        check_lock(folder)
