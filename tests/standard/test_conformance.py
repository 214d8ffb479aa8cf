"""The built-ins keep what the kit asks of every plugin."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mt_conformance import (
    BaseDatasetConformance,
    BaseObjectiveConformance,
    BaseOptimizerConformance,
    BaseScheduleConformance,
    BaseTaskPrintConformance,
    BaseTokenizerConformance,
)
from mt_plugin_standard import plugin


class TestByte(BaseTokenizerConformance):
    plugin, name = plugin, "byte"


class TestSentencePiece(BaseTokenizerConformance):
    plugin, name = plugin, "sentencepiece"

    @pytest.fixture(autouse=True)
    def _file(self, sentencepiece_file: Path) -> None:
        self.options = {"path": str(sentencepiece_file)}


class TestHuggingFace(BaseTokenizerConformance):
    plugin, name, idle_options = plugin, "huggingface", ("parse_specials", "init")  # of added tokens

    @pytest.fixture(autouse=True)
    def _folder(self, huggingface_folder: Path) -> None:
        self.options = {"path": str(huggingface_folder)}


class TestDemo(BaseDatasetConformance):
    plugin, name = plugin, "demo"


class TestText(BaseDatasetConformance):
    plugin, name, bad_row = plugin, "text", "latin.txt"

    def options_in(self, folder: Path) -> dict[str, Any]:
        (folder / "texts").mkdir(exist_ok=True)
        for number in range(7):
            (folder / f"texts/{number}.txt").write_text(f"Text number {number}, " * (number + 1))
        return {"path": str(folder / "texts")}

    def bad_options_in(self, folder: Path) -> dict[str, Any]:
        shutil.rmtree(folder / "texts", ignore_errors=True)
        options = self.options_in(folder)
        (folder / "texts/latin.txt").write_bytes("façade".encode("latin-1"))
        return options


class TestJsonl(BaseDatasetConformance):
    plugin, name, objective, bad_row = plugin, "jsonl", "sft", "rows.jsonl:4"

    def options_in(self, folder: Path) -> dict[str, Any]:
        rows = [{"prompt": f"{n} + 1 = ", "response": str(n + 1)} for n in range(9)]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return {"path": str(folder / "rows.jsonl")}

    def bad_options_in(self, folder: Path) -> dict[str, Any]:
        options = self.options_in(folder)
        lines = (folder / "rows.jsonl").read_text().splitlines()
        (folder / "rows.jsonl").write_text("\n".join([*lines[:3], '{"prompt": ', *lines[4:]]))
        return options


class TestPretrain(BaseObjectiveConformance):
    plugin, name, launches = plugin, "pretrain", False  # tests/train/engine has all layouts


class TestFineTuning(BaseObjectiveConformance):
    plugin, name, launches = plugin, "sft", False
    options = {"label_smoothing": 0.1, "z_loss": 1e-4, "token_accuracy": True}


class TestDynamicFineTuning(BaseObjectiveConformance):
    plugin, name, launches = plugin, "sft", False
    options = {"loss": "dft", "token_accuracy": True}


class TestAdamW(BaseOptimizerConformance):
    plugin, name, launches = plugin, "adamw", False


class TestCosine(BaseScheduleConformance):
    plugin, name = plugin, "cosine"


class TestConstant(BaseScheduleConformance):
    plugin, name, options, idle_options = (
        plugin,
        "constant",
        {"warmup_steps": 5},
        ("warmup_ratio",),
    )  # the steps go before it


class TestLoss(BaseTaskPrintConformance):
    plugin, name, figures = plugin, "loss", ("eval_loss",)
