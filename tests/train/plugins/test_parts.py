"""Components that are made of others: found, checked and built by the core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mt_core.errors import ConfigError
from mt_core.plugins.host import PluginHost
from mt_train.assemble.parts import Parts
from mt_train.plugins.resolve import resolve


@pytest.fixture(scope="module")
def host() -> PluginHost:
    return PluginHost.discover()


def mix(*sources: Any, **more: Any) -> dict[str, Any]:
    return {"model": "llama", "dataset": {"name": "concat", "sources": list(sources), **more}}


def test_parts_are_built_before_the_whole_and_nest(host: PluginHost, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"text": "{name}"}}\n')
    a, b = ({"name": "jsonl", "path": str(tmp_path / f"{name}.jsonl")} for name in "ab")
    resolved = resolve(mix(a, {"name": "concat", "sources": [b, {**a, "eval-path": b["path"]}]}), host)
    dataset = Parts.of(resolved).rows("train")
    assert [dataset.row(index)["text"] for index in range(len(dataset))] == ["a", "b", "a"]
    held_out = Parts.of(resolved).rows("eval")
    assert [held_out.row(index)["text"] for index in range(len(held_out))] == ["b"]
    again = resolve(resolved.config.as_raw(), host)
    assert again.config == resolved.config, "run.yaml says the same"
    assert again.offers["dataset.sources.1.sources.0"].component.name == "jsonl", "a checkpoint knows its plugin"


def test_a_path_names_the_dataset_of_a_part_by_its_ending(host: PluginHost, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\nx\n")
    table, unknown = ({"path": str(tmp_path / name)} for name in ("a.csv", "a.bin"))
    asked = {"rows": table, "shots": 1, "shot_rows": table}
    evaluations = [{"name": "multiple-choice", **asked}, {"name": "perplexity", "rows": table}]
    resolved = resolve({**mix(table), "evaluations": evaluations}, host)
    assert Parts.of(resolved).rows("train").row(0)["text"] == "x"
    parts = [part for found in resolved.parts.values() for part in found or () if part.kind.name == "dataset"]
    assert [part.offer.component.name for part in parts] == ["csv"] * 4
    assert resolve(resolved.config.as_raw(), host).config == resolved.config
    with pytest.raises(ConfigError) as raised:
        resolve({**mix(unknown), "evaluations": [{"name": "perplexity", "rows": unknown}]}, host)
    told = {fault.key: str(fault) for fault in raised.value.faults}
    assert set(told) == {"dataset.sources.0.path", "evaluations.perplexity.rows.path"}
    assert "a.bin': each file has to end in one of .jsonl" in told["dataset.sources.0.path"]
    assert "name the dataset that reads it: dataset.sources.0.name." in told["dataset.sources.0.path"]


def test_every_fault_of_every_part_is_told_at_once_under_its_key(host: PluginHost) -> None:
    sources = [{"name": "jsonk"}, {"name": "jsonl", "pat": "x"}, mix({"name": "text", "path": 3})["dataset"]]
    with pytest.raises(ConfigError) as raised:
        resolve(mix(*sources, mix="rows", temperature=2), host)
    told = {fault.key: str(fault) for fault in raised.value.faults}
    assert set(told) == {
        "dataset.sources.0",
        "dataset.sources.1.path",
        "dataset.sources.1.pat",
        "dataset.sources.2.sources.0.path",
    }
    assert "Did you mean 'jsonl'?" in told["dataset.sources.0"]
    assert "Did you mean 'path'?" in told["dataset.sources.1.pat"]


def test_a_projector_is_named_by_a_word_or_by_its_options(host: PluginHost) -> None:
    def projector(given: Any) -> Any:
        return resolve({"model": "llama", "encoders": {"clip": {"projector": given}}}, host)

    for given, name in (("resampler", "resampler"), ({"name": "pooling"}, "pooling"), ({"depth": 3}, "mlp")):
        assert projector(given).offers["encoders.clip.projector"].component.name == name
    with pytest.raises(
        ConfigError, match=r"encoders\.clip\.projector: no projector named 'resampeler'\. Did you mean 'resampler'\?"
    ):
        projector("resampeler")
    with pytest.raises(ConfigError, match=r"encoders\.clip\.projector\.querys: no such key\. Did you mean 'queries'\?"):
        projector({"name": "resampler", "querys": 4})
