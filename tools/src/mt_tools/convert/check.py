"""Whether another reader makes of an exported folder what we do: the likeliest tokens after some prompts, and the ids of some texts.

A reader runs in a process of its own, in whatever environment it is installed in (``readers``).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core.data.text_ids import begin_ids
from mt_core.errors import OutputError, UsageError, WeightsError

if TYPE_CHECKING:
    from mt_train.generation.loaded_model import LoadedModel

READERS = ("transformers", "vllm", "llama.cpp")
SERVER = "llama-server"
TOKENS = 64
"""New tokens of each prompt, where the model has room for so many."""
TOLERANCE = 0.05
"""How far two tokens may be apart of which a reader chooses the other one, as a share of the standard deviation of all logits there: it
adds up in another order, and in fewer bits."""
TEXTS = (
    "The first thing to do with a new instrument is",
    "In 1798 Henry Cavendish weighed the Earth",
    "What is 17 + 25?",
    "def mean(values):",
    "It's two  spaces, a\ttab\nand a line.",
    "naïve façade Ελλάδα 日本語",
    "yes",
    "Paris",
)
_INSTALLED = (
    "import importlib.util, sys; sys.exit(any(importlib.util.find_spec(each) is None for each in sys.argv[1:]))"
)
_HIDDEN = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "VLLM_API_KEY")
"""Environment variables that a reader of a local folder does not need, and is not given."""


@dataclass(frozen=True)
class Reader:
    """A program that reads folders: its name, and the Python or the executable that runs it."""

    name: str
    program: str

    @classmethod
    def find(cls, name: str, given: str | None, *, adapter: bool) -> Reader:
        """Return where it is installed. Raises ``UsageError`` that says how to install it."""
        if name == "llama.cpp":
            program = shutil.which(given or SERVER)
            if program is None:
                raise UsageError(
                    f"--check llama.cpp needs its server, and {given or SERVER} is no program here; install llama.cpp"
                    " (https://github.com/ggml-org/llama.cpp/blob/master/docs/install.md), or name it: --reader PATH/llama-server"
                )
            return cls(name, program)
        modules = [name, *(["peft"] if adapter and name == "transformers" else [])]
        python = shutil.which(given or sys.executable)
        if python is None or subprocess.run([python, "-c", _INSTALLED, *modules], check=False).returncode:
            raise UsageError(
                f"--check {name} needs {' and '.join(modules)}, which {given or 'the Python of this command'} does not have; install it in"
                f" an environment of its own and name its Python: python -m venv {name}-env && {name}-env/bin/pip install"
                f" {' '.join(modules)}, then --reader {name}-env/bin/python"
            )
        return cls(name, python)

    def read(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the answers to a request (see ``readers``). Raises ``WeightsError`` with the reason where it cannot read the folder."""
        script = Path(__file__).parent / "readers" / f"by_{self.name.replace('.', '_')}.py"
        python = sys.executable if self.name == "llama.cpp" else self.program
        environment = {key: value for key, value in os.environ.items() if key not in _HIDDEN} | {"HF_HUB_OFFLINE": "1"}
        content = json.dumps({**asked, "reader": self.program})
        found = subprocess.run(
            [python, str(script)], input=content, capture_output=True, text=True, env=environment, check=False
        )
        lines = found.stdout.strip().splitlines()
        if found.returncode or not lines:
            said = (found.stderr.strip() or "it says nothing").splitlines()
            raise WeightsError(f"{asked['folder']} is written, and {self.name} cannot read it: {said[-1]}")
        try:
            return dict(json.loads(lines[-1]))
        except (ValueError, TypeError) as error:
            raise OutputError(f"{self.name} answered {lines[-1][:200]!r}, which is not what was asked for") from error


@dataclass(frozen=True)
class Answer:
    """The likeliest tokens after a prompt, and whether an end token came after them."""

    ids: Sequence[int]
    ended: bool


@dataclass(frozen=True)
class Expected:
    """Our own continuations of the prompts, with logits that show how near another token was."""

    texts: Sequence[Sequence[int]]
    """Ids of each text."""
    rows: Sequence[Sequence[int]]
    """The same, as prompts: cut where the model has little room."""
    answers: Sequence[Answer]
    ends: Sequence[int]
    logits: Sequence[Any]
    """(T, V) of each answer: logits of each of its tokens, and of what comes after them."""


@dataclass(frozen=True)
class Agreement:
    """The result of a reader's continuations beside ours."""

    version: str
    texts: int
    equal: int
    tokens: int
    ids_compared: bool

    def __str__(self) -> str:
        near = self.texts - self.equal
        ties = f", {near} but for tokens that are as likely" * bool(near)
        ids = "its ids of the texts are ours" if self.ids_compared else "it has no tokenizer to compare"
        return f"{self.version} continues {self.equal} of {self.texts} texts alike{ties} ({self.tokens} tokens); {ids}"


def expect(loaded: LoadedModel) -> Expected:
    """Continue the prompts here, greedily."""
    from mt_core.generation import GenerationConfig, SamplingRules
    from mt_tools.convert.difference import logits
    from mt_train.generation.continuation import continue_prompts

    begin, encode = begin_ids(loaded.tokenizer), loaded.tokenizer.encode
    texts = [[*begin, *encode(text)] for text in TEXTS]
    rows = [each[: loaded.max_seq_len // 2] for each in texts]
    most = new_tokens(rows, loaded.max_seq_len)
    config = GenerationConfig(rules=SamplingRules(greedy=True), max_new_tokens=most)
    stops = loaded.template.stop_ids if loaded.template is not None else ()
    ends = tuple(
        dict.fromkeys((*loaded.eos_ids, *stops))
    )  # as a generation config has them; it has no texts that end one
    found = continue_prompts(replace(loaded, eos_ids=ends), rows, config, batch_size=len(rows))
    answers = [Answer(each.ids, each.end_id is not None) for each in found]
    whole = logits(loaded.model, [[*row, *each.ids] for row, each in zip(rows, answers, strict=True)])
    cut = [each_TV[len(row) - 1 :] for row, each_TV in zip(rows, whole, strict=True)]
    return Expected(texts, rows, answers, ends, cut)


def new_tokens(rows: Sequence[Sequence[int]], context: int) -> int:
    """Return how many tokens each prompt is continued by."""
    return max(1, min(TOKENS, context - max(map(len, rows))))


def check(reader: Reader, expected: Expected, folder: Path, *, base: Path | None, rank: int, context: int) -> Agreement:
    """Let the reader open the folder (or file), and compare.

    Raises ``WeightsError`` for a token that is clearly less likely here, for a text that ends elsewhere, and for other ids of a text.
    """
    rows = [list(each) for each in expected.rows]
    most = new_tokens(rows, context)
    found = reader.read(
        {
            "folder": str(folder.absolute()),
            "base": None if base is None else str(base.absolute()),
            "rank": rank,
            "rows": rows,
            "texts": list(TEXTS),
            "most": most,
            "ends": list(expected.ends),
            "context": context,
        }
    )
    equal = sum(_compare(reader.name, number, expected, each, folder) for number, each in enumerate(found["answers"]))
    if len(found["answers"]) != len(rows):
        raise OutputError(f"{reader.name} answered {len(found['answers'])} of {len(rows)} prompts")
    _compare_ids(reader.name, expected.texts, found["texts"], folder)
    tokens = sum(len(each.ids) for each in expected.answers)
    return Agreement(found["version"], len(rows), equal, tokens, found["texts"] is not None)


def _compare(reader: str, number: int, expected: Expected, found: Mapping[str, Any], folder: Path) -> bool:
    """Return whether an answer is the same; of tokens that are as likely here the first ends the comparison."""
    ours, ended = expected.answers[number].ids, expected.answers[number].ended
    ids = list(found["ids"])
    if found["ended"] and ids and ids[-1] in expected.ends:
        ids = ids[:-1]
    end = expected.ends[0] if expected.ends else None
    own, other = [*ours, *([end] if ended else [])], [*ids, *([end] if found["ended"] else [])]
    if own == other:
        return True
    place = next(
        (place for place, pair in enumerate(zip(own, other, strict=False)) if pair[0] != pair[1]),
        min(len(own), len(other)),
    )
    where = f"prompt {number + 1} of {len(expected.rows)} ({TEXTS[number]!r}), new token {place + 1}"
    if place >= min(len(own), len(other)):
        raise WeightsError(
            f"{folder} is written, and {reader} ends elsewhere: {where}: {len(other)} tokens there, {len(own)} here. Look at eos_token_id"
            " in its generation_config.json"
        )
    row_V = expected.logits[number][place]
    chosen = row_V[list(expected.ends)].max() if place == len(ids) else row_V[other[place]]
    gap, most = float(row_V.max() - chosen), TOLERANCE * float(row_V.std())
    if gap > most:
        raise WeightsError(
            f"{folder} is written, and {reader} continues otherwise: {where}: {other[place]} there, {own[place]} here, which is {gap:.3g}"
            f" ahead in logits (allowed: {most:.2g}). Do not serve the folder with it"
        )
    return False


def _compare_ids(
    reader: str, expected: Sequence[Sequence[int]], found: Sequence[Sequence[int]] | None, folder: Path
) -> None:
    for text, ours, theirs in zip(TEXTS, expected, found or (), strict=False):
        if list(theirs) != list(ours):
            raise WeightsError(
                f"{folder} is written, and {reader} reads a text otherwise: {text!r} is {list(theirs)[:12]} there, and {list(ours)[:12]}"
                " here. Give it ids, or mend its tokenizer"
            )
