"""Every format, the stream, a mix and a set keep what the kit asks of a dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from dataset_files import FORMATS, shard

from mt_conformance import BaseDatasetConformance
from mt_plugin_datasets import plugin

OWN = [title for title, (name, *_) in FORMATS.items() if name != "jsonl"]
"""Formats that are not the core's."""


class TestFormats(BaseDatasetConformance):
    plugin = plugin

    @pytest.fixture(autouse=True, params=OWN)
    def _each(self, request: pytest.FixtureRequest) -> None:
        self.name, self.file, self.content, self.given = FORMATS[request.param]
        self.objective = "pretrain" if self.name == "tokens" else "sft"

    def options_in(self, folder: Path) -> dict[str, Any]:
        (folder / self.file).write_bytes(self.content())
        return {"path": str(folder / self.file), **self.given}


class TestCsv(BaseDatasetConformance):
    plugin, name, objective, bad_row = plugin, "csv", "sft", "rows.csv:4"

    def options_in(self, folder: Path) -> dict[str, Any]:
        (folder / "rows.csv").write_text("prompt,response\n" + "".join(f"{n} + 1 = ,{n + 1}\n" for n in range(9)))
        return {"path": str(folder / "rows.csv")}

    def bad_options_in(self, folder: Path) -> dict[str, Any]:
        (folder / "rows.csv").write_text("prompt,response\n1,2\n3,4\n5\n6,7\n")
        return {"path": str(folder / "rows.csv")}


def questions(file: Path) -> str:
    rows = [{"question": f"{n} + 1?", "answer": f"so it is #### {n + 1}"} for n in range(9)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


class TestStream(BaseDatasetConformance):
    plugin, name, bad_row = plugin, "stream", "rows.jsonl:3"

    def options_in(self, folder: Path) -> dict[str, Any]:
        (folder / "rows.jsonl").write_text("".join(json.dumps({"text": f"text {n}"}) + "\n" for n in range(11)))
        return {"path": str(folder / "rows.jsonl")}

    def bad_options_in(self, folder: Path) -> dict[str, Any]:
        (folder / "rows.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n{"text": \n{"text": "c"}\n')
        return {"path": str(folder / "rows.jsonl")}


class TestShards(BaseDatasetConformance):
    plugin, name, bad_row = plugin, "webdataset", "a.tar:3, 2.txt:1"
    options: ClassVar[dict[str, Any]] = {}

    def options_in(self, folder: Path) -> dict[str, Any]:
        (folder / "a.tar").write_bytes(shard({f"{number}.txt": b"text %d" % number for number in range(11)}))
        return {"path": str(folder / "a.tar"), **self.options}

    def bad_options_in(self, folder: Path) -> dict[str, Any]:
        (folder / "a.tar").write_bytes(shard({"0.txt": b"a", "1.txt": b"b", "2.txt": b"\xff", "3.txt": b"c"}))
        return {"path": str(folder / "a.tar"), **self.options}


class TestStreamedShards(TestShards):
    options: ClassVar[dict[str, Any]] = {"streaming": True}


class TestMix(BaseDatasetConformance):
    plugin, name, objective = plugin, "concat", "sft"

    def options_in(self, folder: Path) -> dict[str, Any]:
        path = TestCsv().options_in(folder)["path"]
        return {"sources": [{"name": "csv", "path": path, "weight": 2}, {"name": "csv", "path": path}], "mix": "rows"}


class TestSet(BaseDatasetConformance):
    plugin, name, objective = plugin, "gsm8k", "sft"

    def options_in(self, folder: Path) -> dict[str, Any]:
        return {"path": questions(folder / "train.jsonl")}
