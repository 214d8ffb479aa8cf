"""The bench of layout_worker.py for runs with an encoder. Run by test_media_layouts.py."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import spelled_media
import torch
import torch.distributed as dist
from layout_worker import Bench, Losses, main
from PIL import Image

from mt_conformance.host import named_host
from mt_core.errors import DataError
from mt_core.generation import GenerationConfig, SamplingRules
from mt_core.plugins.host import PluginHost
from mt_core.rows import Encoded, Sample
from mt_train.assemble.features import with_features
from mt_train.assemble.report import describe_media_part, media_parts
from mt_train.assemble.samples import Samples
from mt_train.assemble.subjects import live_subject
from mt_train.data.lengths import pick
from mt_train.data.samples import EncodedSamples
from mt_train.engine.engine import Engine
from mt_train.engine.processes import Process

PLUGINS = (
    *("mt_plugin_llama.plugin", "mt_plugin_optim.plugin", "mt_plugin_adapters.plugin", "mt_plugin_multimodal.plugin"),
    *("mt_plugin_qwen.plugin", "spelled_media"),
)
ENCODERS = {"letters": {"projector": "pairs"}}
SGD = {"name": "sgd", "lr": 0.1}
WORDS = ("abc", "hagged", "f", "beadche", "cafe", "dd")
RULES = {"greedy": SamplingRules(greedy=True), "drawn": SamplingRules(temperature=1.3)}
WITH_MEDIA = (range(8), range(8, 12), range(0), range(28, 32), range(32, 40))
"""Rows with words of each step of eight: all, those of the first of two ranks, none, those of the second, and all; of the last step
there are three rows, so that the second rank has an empty one."""


def row(number: int, *, words: int) -> dict[str, Any]:
    """A row with up to two words in it."""
    text = "the quick brown fox jumps"[number % 7 : 9 + number % 11]
    found = [text]
    for each in range(words):
        found += [WORDS[(number + each) % len(WORDS)], f" {text[: 3 + number % 4]}"]
    return {"parts": found}


def write_rows(folder: Path) -> None:
    """Write the rows of training and of evaluation, some of whose batches have no word."""
    words = {number for each in WITH_MEDIA for number in each}
    training = [row(number, words=(1 + number % 2) * (number in words)) for number in range(35)]
    held_out = [row(number, words=int(number in (4, 5))) for number in range(11)]
    for name, rows in (("words", training), ("held-out", held_out)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        pictures = [_with_pictures(each) for each in rows]
        (folder / f"{name}-pictures.jsonl").write_text("\n".join(map(json.dumps, pictures)))
    for word in WORDS:
        values = np.random.default_rng(len(word)).integers(0, 256, (8 + 4 * len(word), 24, 3), np.uint8)
        Image.fromarray(values).save(folder / f"{word}.png")


def _with_pictures(row: dict[str, Any]) -> dict[str, Any]:
    """The row with a picture in the place of each word."""
    parts = row["parts"]
    text = "".join("<image>" if number % 2 else part for number, part in enumerate(parts))
    return {"text": text, **({"images": [f"{word}.png" for word in parts[1::2]]} if len(parts) > 1 else {})}


class Reads(Bench):
    """Runs with an encoder, on rows of its own."""

    def __init__(self, host: PluginHost, process: Process, deepspeed: Any, rows: Path) -> None:
        folder = Path(sys.argv[3]).parent
        if process.is_main:
            write_rows(folder)
        dist.barrier()
        super().__init__(named_host(*PLUGINS), process, deepspeed, folder / "words.jsonl")
        self.folder = folder

    def session(self, case: dict[str, Any], *arguments: Any, **keywords: Any) -> Any:
        kind = case.get("kind", "")
        self.rows = self.folder / f"words{kind}.jsonl"
        data = {"eval": str(self.folder / f"held-out{kind}.jsonl"), "shuffle": False, "batching": "padding"}
        usual = {"objective": "spelled", "optimizer": SGD, "schedule": "constant", "clip": 100.0, "steps": 5}
        case = {**usual, **case, "data": {**data, **case.get("data", {})}}
        encoders = case.get("encoders", ENCODERS)
        if case.get("stored"):
            apart = f"-{self.process.rank}" if case.get("apart") else ""
            kept = {"features": str(self.folder / f"{case['stored']}{apart}")}
            encoders = {name: {**each, **kept} for name, each in encoders.items()}
        case["more"] = {"encoders": encoders, **case.get("more", {})}
        session = super().session(case, *arguments, **keywords)
        with_features(session.parts, session.data, session.engine)
        return session

    def summary(self, engine: Engine, losses: Losses) -> dict[str, Any]:
        """Also how many items each rank has read, and what is trained."""
        reads: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(reads, len(spelled_media.READS))
        spelled_media.READS.clear()
        return {**super().summary(engine, losses), "reads": reads, "trained": trained_names(engine)}

    def refuse(self, case: dict[str, Any]) -> list[Any]:
        """Return what each rank says of features that cannot be stored: a word cannot be read, or ranks have folders of their own."""
        read = spelled_media.LettersProcessor.read

        def refusing(processor: Any, item: Any) -> Any:
            if item.content == case.get("unreadable", "").encode():
                raise DataError("this word cannot be read")
            return read(processor, item)

        said = "nothing"
        with patch.object(spelled_media.LettersProcessor, "read", refusing):
            try:
                self.session(case)
            except DataError as error:
                said = f"{type(error).__name__}: {error}"
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, said)
        spelled_media.READS.clear()
        return every

    def change(self, case: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters that two steps change, those that are trained, and what the run says of its encoders."""
        session, losses = self.session({**case, "steps": 2}), Losses()
        before = {name: weight.clone() for name, weight in session.engine.whole_weights()}
        session.loop(session.restore(None, None), losses)
        after = dict(session.engine.whole_weights())
        parts = media_parts(session.engine.module.model)
        return {
            "changed": [name for name, weight in after.items() if not torch.equal(weight, before[name])],
            "trained": trained_names(session.engine),
            "said": [describe_media_part(part) for part in parts],
        }

    def write(self, case: dict[str, Any]) -> dict[str, Any]:
        """Train two steps, and return what every rank gets of the texts behind prompts of which two, both of the last rank, have words;
        and lines of ``samples.jsonl``, where a rank writes these alone."""
        session = self.session({**case, "steps": 2})
        session.loop(session.restore(None, None), Losses())
        training = session.engine.module.training
        asked = [_prompt_of(sample) for sample in islice(session.data.held_out, 7)]
        assert [number for number, prompt in enumerate(asked) if prompt.media] == [4, 5]
        subject = live_subject(session.parts, session.data, session.engine, stop=lambda: False, batch_size=2)
        texts = {
            name: [list(each.ids) for each in subject.generate(asked, GenerationConfig(rules=rules, max_new_tokens=6))]
            for name, rules in RULES.items()
        }
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, texts)
        words = EncodedSamples(reader=session.data.held_out.reader)
        for sample in islice(session.data.held_out, 6):  # those with words begin with them
            begin = max(0, sample.media[0].start - 1) if sample.media else 0
            words.add(pick(sample, range(begin, len(sample.ids))))
        with tempfile.TemporaryDirectory() as folder:
            data = replace(session.data, held_out=words)
            samples = Samples.of(session.parts, data, session.engine, Path(folder))
            lines = [] if samples is None else samples.write(2, longest=64)
        dist.barrier()
        spelled_media.READS.clear()
        assert session.engine.module.training is training
        return {"texts": every, "lines": [(line["prompt"], line["text"]) for line in lines]}


def _prompt_of(sample: Sample) -> Encoded:
    """A row up to its last word, or a few of its tokens."""
    end = max((span.start + span.tokens for span in sample.media), default=4 + len(sample.ids) % 3)
    return Encoded([int(each) for each in sample.ids[:end]], [False] * end, media=tuple(sample.media))


def trained_names(engine: Engine) -> list[str]:
    """Return the names of parameters that are trained."""
    return [name for name, each in engine.named_parameters() if each.requires_grad]


if __name__ == "__main__":
    main(Reads)
