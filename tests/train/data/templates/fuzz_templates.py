"""Random conversations through chat templates: ours beside ``apply_chat_template`` of transformers.

``python tests/train/data/templates/fuzz_templates.py FOLDER … [--rows 60] [--seed 0]`` takes every ``*.jinja`` in the folders
(``published`` beside this file; those of an installed TRL are in ``trl/chat_templates``), prints what became of the pairs, and
exits 1 where one was written differently, or trained where the template's ``{% generation %}`` (of ``NAME_training.jinja`` beside
``NAME.jinja``) does not.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mt_core import DataError, conversation
from mt_plugin_standard.tokenizers.huggingface import HuggingFaceConfig, build_huggingface
from mt_train.config.data import DataConfig
from mt_train.data.templates import build_template

MARKS = re.compile(
    r"<[|｜][^<>{}'\" ]+?[|｜]>|</?(?:s|think|tool_call|tool_response|start_of_turn|end_of_turn)>|\[/?[A-Z_]{4,}\]"
)
"""What looks like a special token of a template."""

THOUGHTS = ("<think>", "</think>")
LETTERS = [
    "Say",
    " yes",
    "\n",
    "é",
    "e\u0301",
    "👩‍👩‍👧",
    "你好",
    "  ",
    ".",
    "[x]",
    "{{ y }}",
    "{% z %}",
    '"',
    "\\",
    "\t",
]
MARKUP = ["<b>", "</think>", "<think>a</think>", "<|im_", "end|>"]

REFUSALS = {
    "tools that the template does not write": "and the chat template .* does not write that down",
    "thoughts that the template leaves out": "leaves out there, so they would not be learned",
    "words beside a call that the template leaves out": "says something beside it, which the chat template",
    "earlier turns that are written with less than they say": "cannot be told from the others",
    "a template that writes nothing after an answer": "writes nothing after an answer",
}
"""Why a row may be refused that transformers renders: something of it would be lost, or no stop be learned."""


def a_tokenizer(folder: Path, marks: list[str]) -> tuple[Any, Any]:
    """A byte-level tokenizer with the marks as special tokens: that of transformers, and the same as ours."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    specials = list(dict.fromkeys(["<s>", "</s>", *marks]))
    options = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet(), "show_progress": False}
    trainer = trainers.BpeTrainer(vocab_size=300 + len(specials), special_tokens=specials, **options)
    inner.train_from_iterator(LETTERS, trainer)
    theirs = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")
    theirs.add_special_tokens({"additional_special_tokens": specials[2:]})
    theirs.save_pretrained(folder)
    return theirs, build_huggingface(HuggingFaceConfig(path=str(folder)))


@dataclass
class Rows:
    """Conversations by chance, which spell some of the marks."""

    chance: random.Random
    marks: list[str]

    def row(self) -> dict[str, Any]:
        turns: list[dict[str, Any]] = [{"role": "system", "content": self._text()}] if self._may(0.4) else []
        has_tools, thinks = self._may(0.3), self._may(0.3)
        for _ in range(self.chance.randint(1, 3)):
            turns.append({"role": "user", "content": self._text()})
            if has_tools and self._may(0.7):
                turns += self._calls(thinks)
            turns.append(self._answer(thinks))
        return {"id": "r:1", "messages": turns, **({"tools": self._tools()} if has_tools else {})}

    def _may(self, share: float) -> bool:
        return self.chance.random() < share

    def _text(self) -> str:
        more = [*MARKUP, *self.chance.sample(self.marks, min(2, len(self.marks)))] if self._may(0.2) else []
        text = "".join(self.chance.choices([*LETTERS, *more], k=self.chance.randint(1, 6)))
        kind = self.chance.random()
        return text if kind < 0.3 else "" if kind > 0.97 else f"a{text}b"

    def _answer(self, thinks: bool) -> dict[str, Any]:
        said, kind = self._text(), self.chance.random()
        if thinks and kind < 0.5:
            return {"role": "assistant", "content": said, "reasoning_content": self._text()}
        before = f"<think>\n{self._text()}\n</think>\n\n" if thinks and kind < 0.8 else ""
        return {"role": "assistant", "content": before + said}

    def _calls(self, thinks: bool) -> Iterator[dict[str, Any]]:
        called = [self._call() for _ in range(self.chance.choice([1, 1, 2]))]
        more = {"reasoning_content": self._text()} if thinks and self._may(0.5) else {}
        said = self.chance.choice(["", None, self._text()])
        yield {"role": "assistant", "content": said, **more, "tool_calls": called}
        for each in called:
            yield {"role": "tool", "name": "add", "tool_call_id": each["id"], "content": self._text()}

    def _call(self) -> dict[str, Any]:
        value = self.chance.choice([1, "x", None, [1, "é"], {"b": 2.5}, True, self._text()])
        arguments = {"a": value} if self._may(0.8) else {}
        return {"id": "call00001", "type": "function", "function": {"name": "add", "arguments": arguments}}

    def _tools(self) -> list[dict[str, Any]]:
        fields = {"a": {"type": "string", "description": self._text()}}
        parameters = {"type": "object", "properties": fields, "required": ["a"]}
        return [{"type": "function", "function": {"name": "add", "description": "adds", "parameters": parameters}}]


@dataclass
class Outcomes:
    """What became of pairs of a template and a row."""

    pairs: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    masks: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def fault(self, kind: str, *what: Any) -> None:
        self.pairs[kind] += 1
        self.faults.append("\n  ".join(map(str, (kind, *what))))


def render(theirs: Any, row: dict[str, Any], source: str, **named: Any) -> Any:
    """What transformers makes of a row; the error where it refuses it."""
    try:
        return theirs.apply_chat_template(row["messages"], tools=row.get("tools"), chat_template=source, **named)
    except Exception as error:  # noqa: BLE001 (templates raise what they want)
        return error


class Comparison:
    """A template with a tokenizer that has its marks."""

    def __init__(self, name: str, source: str, masked: str | None, folder: Path) -> None:
        self._name, self._source, self._masked = name, source, masked
        self.marks = sorted({*MARKS.findall(source), *THOUGHTS})
        self._theirs, ours = a_tokenizer(folder, self.marks)
        self._template = build_template(ours, DataConfig(template=source))

    def compare(self, row: dict[str, Any], found: Outcomes) -> None:
        text = render(self._theirs, row, self._source, tokenize=False)
        try:
            encoded = self._template.encode(conversation(row))
        except DataError as error:
            self._compare_refusal(error, text, row, found)
            return
        own = self._theirs.decode(encoded.ids, skip_special_tokens=False)
        if isinstance(text, Exception):
            found.fault("written, and refused by transformers", self._name, text, row)
        elif own != text:
            found.fault("different text", self._name, repr(own), repr(text), row)
        else:
            self._compare_ids(encoded, text, row, found)
            if self._masked is not None and render(self._theirs, row, self._masked, tokenize=False) == text:
                self._compare_masks(encoded, row, found)

    def _compare_refusal(self, error: DataError, text: Any, row: dict[str, Any], found: Outcomes) -> None:
        kind = next((kind for kind, says in REFUSALS.items() if re.search(says, str(error))), None)
        if isinstance(text, Exception):
            found.pairs["refused by both"] += 1
        elif kind is None:
            found.fault("refused for another reason", self._name, error, row)
        else:
            found.pairs["refused, and rendered by transformers"] += 1
            found.refusals[f"{kind}: {self._name}"] += 1

    def _compare_ids(self, encoded: Any, text: str, row: dict[str, Any], found: Outcomes) -> None:
        spells = any(mark in str(row) for mark in self.marks)
        expected = render(self._theirs, row, self._source, return_dict=False, sanitize_control_tokens=spells)
        if isinstance(expected, Exception) or (spells and self._theirs.decode(expected) != text):
            found.pairs["equal text; transformers marks specials where the template sees it"] += 1
        elif encoded.ids != expected:
            found.fault("different ids", self._name, encoded.ids, expected, row)
        else:
            found.pairs["equal"] += 1

    def _compare_masks(self, encoded: Any, row: dict[str, Any], found: Outcomes) -> None:
        """Theirs may have the header before an answer, and white space behind its stop; ours never has what theirs has not."""
        options = {"return_dict": True, "return_assistant_tokens_mask": True}
        expected = render(self._theirs, row, self._masked or "", **options)
        if expected["input_ids"] != encoded.ids:
            found.masks["rows that spell special tokens, which are ids there"] += 1
            return
        both = list(zip(encoded.ids, encoded.trained, map(bool, expected["assistant_masks"]), strict=True))
        if more := [token for token, own, other in both if own and not other]:
            found.fault("trained, and not by the training template", self._name, self._theirs.decode(more), row)
        else:
            less = self._theirs.decode([token for token, own, other in both if other and not own])
            found.masks[f"equal but for {less[:40].strip()!r}" if less.strip() else "equal"] += 1


def compare_all(folders: list[Path], rows: int, seed: int, only: str = "") -> Outcomes:
    """Every template of the folders with so many rows."""
    sources = {path.stem: path.read_text("utf-8") for folder in folders for path in sorted(folder.glob("*.jinja"))}
    found = Outcomes()
    for name, source in sources.items():
        if re.fullmatch(only or ".*", name):
            with tempfile.TemporaryDirectory() as folder:
                comparison = Comparison(name, source, sources.get(f"{name}_training"), Path(folder))
                made = Rows(random.Random(f"{seed} {name}"), comparison.marks)
                for _ in range(rows):
                    comparison.compare(made.row(), found)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--rows", type=int, default=60, help="of each template")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a regular expression for names of templates")
    args = parser.parse_args()
    found = compare_all(args.folders, args.rows, args.seed, args.only)
    for title, counts in (("pairs", found.pairs), ("refused", found.refusals), ("masks", found.masks)):
        print(f"{title}: {sum(counts.values())}")
        print("".join(f"  {count:6} {what}\n" for what, count in counts.most_common()), end="")
    print("\n".join(found.faults[:10]))
    return bool(found.faults)


if __name__ == "__main__":
    raise SystemExit(main())
