"""Wrong arguments to the calls of the Python API: one error of ours that names call, parameter, what came and what may."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from mt_core import MtError, UsageError
from mt_tools import generate
from mt_tools.cli.export import main as export
from mt_train import RunConfig, check_config, load_adapters, load_config, load_run, train
from mt_train.generation.loaded_model import LoadedModel

RAW = {
    "model": {"name": "llama", "n_layers": 1, "dim": 16, "n_heads": 2, "n_kv_heads": 1, "ffn_dim": 32},
    "adapter": {"name": "lora", "rank": 2},
    "train": {"steps": 1, "micro_batch_size": 2, "sequence_len": 32},
    "eval": {"samples": 0},
    "log": {"console_level": "error"},
}


class Unprintable:
    """An object whose very picture fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no picture")


ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        0,
        -1,
        2.5,
        float("nan"),
        10**5000,
        "",
        "x",
        "x" * 9000,
        "a\0b",
        "\ud800",
        b"x",
        object(),
        Unprintable(),
        Path("nowhere"),
    ),
    *(
        [],
        [1],
        [None],
        [[]],
        (),
        {},
        {1: 2},
        {"a": 1},
        {"a": Unprintable()},
        {"model": 5},
        set(),
        range(3),
        print,
        int,
        lambda: None,
    ),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "rows.jsonl").write_text('{"text": "some words"}\n' * 8)
    rows = {"dataset": {"name": "jsonl", "path": str(folder / "rows.jsonl")}, "data": {"eval": None}}
    train({**RAW, **rows}, output=folder / "run")
    assert export(["--run", str(folder / "run"), "--merge", "--output", str(folder / "hf")]) == 0
    assert export(["--run", str(folder / "run"), "--output", str(folder / "adapter")]) == 0
    return folder


@pytest.fixture(scope="module")
def loaded(run: Path) -> LoadedModel:
    return load_run(run / "run")


def calls(run: Path, loaded: LoadedModel) -> Iterator[tuple[Callable[..., Any], dict[str, Any]]]:
    """Each call with arguments that are right, but for what makes it do its work."""
    yield load_config, {"source": RAW, "recipe": None, "plugins": ()}
    yield check_config, {"source": RAW, "processes": 1, "recipe": None, "plugins": ()}
    wrong = {"config": {**RAW, "data": {"eval": "x"}}, "output": run / "another", "overwrite": False}
    yield train, {**wrong, "resume": None, "recipe": None, "plugins": ()}
    yield load_run, {"run": run / "run", "checkpoint": "last", "averaged": None, "dtype": "auto", "plugins": ()}
    over = {"folders": {"a": run / "adapter"}, "weights": run / "hf"}
    yield load_adapters, {**over, "model": "llama", "dtype": "auto", "quantizer": None, "plugins": ()}
    given = {
        "max_new_tokens": 1,
        "stop": (),
        "choices": (),
        "batch_size": 8,
        "seed": 0,
        "logprobs": False,
        "chat_template": None,
    }
    yield generate, {"loaded": loaded, "prompts": "The ", **given}


FINE = {
    "load_config.recipe": (None,),
    "check_config.recipe": (None,),
    "load_run.checkpoint": ("last",),
    "load_run.averaged": (None,),
    "load_run.dtype": ("auto",),
    "load_adapters.dtype": ("auto",),
    "load_adapters.quantizer": (None,),
    "generate.chat_template": (None,),
    "generate.prompts": ("x",),
    "generate.seed": (0, -1, 10**5000),
    "generate.stop": ((), [], "x"),
    "generate.choices": ((), []),
    "load_adapters.folders": ({},),
    **{f"{name}.plugins": ((), []) for name in ("load_config", "check_config", "train", "load_run", "load_adapters")},
}
"""What is odd elsewhere and right there."""


def test_every_wrong_argument_of_every_call_is_an_error_of_ours(
    run: Path, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    tried, longest = 0, ""
    for call, right in calls(run, loaded):
        parameters = [
            name for name, each in inspect.signature(call).parameters.items() if each.kind is not each.VAR_KEYWORD
        ]
        assert set(parameters) == set(right), "a new parameter belongs into the table above"
        for name in parameters:
            for value in ODD:
                if any(
                    value is fine or (type(value) is type(fine) and value == fine)
                    for fine in FINE.get(f"{call.__name__}.{name}", ())
                ):
                    continue
                tried += 1
                try:
                    call(**{**right, name: value})
                except MtError as error:
                    longest = max(longest, str(error), key=len)
                # whatever else is raised fails here, SystemExit included
    assert tried > 400
    assert len(longest) < 10_000, f"it repeats the text of 9,000 characters: {longest[:200]}"
    assert list(tmp_path.iterdir()) == [], "nothing was written"


MESSAGES: list[tuple[str, dict[str, Any], str]] = [
    ("load_config", {"source": 5}, r"load_config\(\): source is a config: nested mappings, .*; got 5"),
    ("load_config", {"source": RAW, "train": 5}, r"train: must be a mapping of keys, got 5"),
    ("load_config", {"source": RAW, "model": [1]}, r"model: must be a name or a mapping of keys, got \[1\]"),
    (
        "check_config",
        {"source": RAW, "processes": "2"},
        r"check_config\(\): processes is a whole number from 1 to 100,000; got '2'",
    ),
    ("check_config", {"source": RAW, "processes": 0}, r"processes is a whole number from 1 to 100,000; got 0"),
    ("train", {"config": [1]}, r"train\(\): config is a config"),
    ("train", {"config": RAW, "output": 5}, r"train\(\): output is the path of a folder, 'auto', or None .*; got 5"),
    ("train", {"config": RAW, "overwrite": "no"}, r"train\(\): overwrite is True or False; got 'no'"),
    ("train", {"resume": 5}, r"train\(\): resume is the path of a run .*; got 5"),
    ("train", {"resume": "x", "overwrite": True}, r"overwrite replaces a run, and resume goes on with it"),
    ("load_run", {"run": None}, r"load_run\(\): run is a path .*; got None"),
    (
        "load_run",
        {"run": "x", "checkpoint": "all"},
        r"load_run\(\): checkpoint is 'last', 'best' or a saved step; got 'all'",
    ),
    ("load_run", {"run": "x", "averaged": 5}, r"averaged is the name of a callback .*; got 5"),
    (
        "load_adapters",
        {"folders": ["x"], "model": "llama", "weights": "x"},
        r"folders is a mapping from a name to each folder",
    ),
    ("load_adapters", {"folders": {"a": 5}, "model": "llama", "weights": "x"}, r"folders\['a'\] is a path .*; got 5"),
    ("load_adapters", {"folders": {}, "model": 5, "weights": "x"}, r"model is the name of a model family.*; got 5"),
    ("generate", {"loaded": 5, "prompts": "x"}, r"loaded is what load_run or load_adapters gives; got 5"),
    ("generate", {"prompts": 5}, r"prompts is a text or the messages .*; got 5"),
    ("generate", {"prompts": [{"role": "user", "content": "x"}]}, r"prompts\[0\] is a text or the messages"),
    ("generate", {"prompts": [[{"role": "x", "content": "x"}]]}, r"prompts\[0\], turn 1 has the role"),
    (
        "generate",
        {"prompts": "x", "max_new_tokens": "9"},
        r"max_new_tokens must be a whole number, from 1 to 10,000,000 tokens; got '9'",
    ),
    ("generate", {"prompts": "x", "temperature": "hot"}, r"temperature must be a number, .*; got 'hot'"),
    ("generate", {"prompts": "x", "greedy": 1}, r"greedy must be true or false; got 1"),
    ("generate", {"prompts": "x", "temperature": None}, r"temperature must be a number, .*; got None"),
    (
        "generate",
        {"prompts": "x", "top_k": 10**5000},
        r"top_k must be from 1 to 10,000,000 tokens; got a number of 5,00\d digits",
    ),
    ("generate", {"prompts": "x", "choices": "yes"}, r"choices is a list of texts.*; got 'yes'"),
    ("generate", {"prompts": "x", "stop": [1]}, r"stop is a list of texts.*; got \[1\]"),
    (
        "generate",
        {"prompts": "x", "batch_size": None},
        r"batch_size must be a whole number, from 1 to 100,000 prompts; got None",
    ),
    ("generate", {"prompts": "x", "chat_template": "chatml"}, r"every prompt is plain text; leave it out"),
]


@pytest.mark.parametrize(
    ("name", "given", "says"), MESSAGES, ids=[f"{name} {list(given)[-1]}" for name, given, _ in MESSAGES]
)
def test_the_message_names_call_parameter_got_and_allowed(
    loaded: LoadedModel, name: str, given: dict[str, Any], says: str
) -> None:
    call = {each.__name__: each for each in (load_config, check_config, train, load_run, load_adapters, generate)}[name]
    if name == "generate":
        given = {"loaded": loaded, **given}
    with pytest.raises(UsageError, match=says):
        call(**given)


def test_a_stop_text_alone_is_one_and_not_its_letters(loaded: LoadedModel) -> None:
    with_list = generate(loaded, "The ", stop=["ab"], seed=3, max_new_tokens=20)
    assert generate(loaded, "The ", stop="ab", seed=3, max_new_tokens=20) == with_list


def test_a_config_of_wrong_parts_has_a_fault_for_each() -> None:
    config = load_config(RAW)
    parts = {name: getattr(config, name) for name in RunConfig.model_fields}
    assert RunConfig(**parts) == config
    with pytest.raises(UsageError, match=r"2 faults in the config:\n  train: .*got 5\.\n  stepps: no such key"):
        RunConfig(**{**parts, "train": 5, "stepps": 3})


def test_paths_and_any_mapping_stand_in_a_config(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    dataset = {"name": "jsonl", "path": tmp_path / "rows.jsonl"}
    plain = load_config({**RAW, "dataset": {**dataset, "path": str(dataset["path"])}})
    assert load_config(MappingProxyType({**RAW, "dataset": MappingProxyType(dataset)})) == plain


def test_keys_are_written_with_either_dash_wherever_they_stand() -> None:
    """The nearest key that a message names works when it is copied."""
    dashed = {**RAW, "task-print": "loss", "train": {"steps": 1, "micro-batch-size": 2, "sequence-len": 32}}
    dashed["parallel"] = {"deepspeed": {"zero-optimization": {"reduce-bucket-size": 5}}}
    config = load_config(dashed)
    assert config.parallel.deepspeed.zero_optimization.reduce_bucket_size == 5
    assert config.train == load_config(RAW).train
    with pytest.raises(UsageError, match=r"'micro-batch-size' is written twice"):
        load_config({**RAW, "train": {"micro-batch-size": 2, "micro_batch_size": 2}})
