"""Go's templates in a Modelfile, run by an interpreter of what they use (https://pkg.go.dev/text/template), beside the run's own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest

import mt_train
from mt_core.errors import UsageError
from mt_tools.convert.ollama import TEMPLATES, check_template, write_modelfile
from mt_train.config.data import DataConfig

NAMED = Path(mt_train.__file__).parent / "data/templates/named"
USER, ANSWER = {"role": "user", "content": "Where is Paris?"}, {"role": "assistant", "content": "In France."}
CONVERSATIONS = [[USER], [USER, ANSWER, USER], [{"role": "system", "content": "Be brief."}, USER, ANSWER, USER]]

Node = tuple[Any, ...]


class Go:
    """``range``, ``if``, ``else if``, ``eq``, variables and fields; ``{{-`` takes the white space in front."""

    def __init__(self, source: str) -> None:
        self._words = iter(re.split(r"(\{\{-? .*? \}\})", re.sub(r"\s*\{\{- ", "{{ ", source)))
        self._tree, _ = self._block()

    def run(self, messages: list[dict[str, str]]) -> str:
        return "".join(self._write(self._tree, {"Messages": messages}, {}))

    def _block(self) -> tuple[list[Node], str]:
        found: list[Node] = []
        for word in self._words:
            if not word.startswith("{{"):
                found.append(("text", word))
                continue
            action = word[2:-2].strip()
            if action == "end" or action.startswith("else"):
                return found, action
            if action.startswith(("range", "if")):
                found.append(self._branch(action))
            else:
                found.append(("do", action))
        return found, "end"

    def _branch(self, action: str) -> Node:
        body, last = self._block()
        other: list[Node] = []
        if last.startswith("else if"):
            return (*action.split(" ", 1), body, [self._branch(last.removeprefix("else "))])
        if last == "else":
            other, _ = self._block()
        return (*action.split(" ", 1), body, other)

    def _value(self, text: str, dot: Any, variables: dict[str, Any]) -> Any:
        if text.startswith("eq "):
            _, one, other = text.split(" ")
            return self._value(one, dot, variables) == self._value(other, dot, variables)
        if text.startswith("$"):
            return variables[text]
        if text.startswith('"'):
            return json.loads(text)
        return dot[{"Role": "role", "Content": "content"}.get(text[1:], text[1:])]

    def _write(self, nodes: list[Node], dot: Any, variables: dict[str, Any]) -> Iterator[str]:
        for kind, action, *parts in nodes:
            if kind == "text":
                yield action
            elif kind == "range":
                for each in self._value(action, dot, variables):
                    yield from self._write(parts[0], each, variables)
            elif kind == "if":
                yield from self._write(parts[not self._value(action, dot, variables)], dot, variables)
            elif match := re.fullmatch(r"(\$\w+) :?= (.*)", action):
                variables[match[1]] = self._value(match[2], dot, variables)
            else:
                yield self._value(action, dot, variables)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    return tmp_path


def template_of(modelfile: str) -> str:
    match = re.search(r'^TEMPLATE """(.*?)"""$', modelfile, re.MULTILINE | re.DOTALL)
    assert match is not None
    return match[1]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_conversation_is_written_as_the_run_wrote_it(name: str, folder: Path) -> None:
    config = DataConfig(template=name)
    check_template(config)
    text = write_modelfile(folder, None, config).read_text()
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    run = environment.from_string((NAMED / f"{name}.jinja").read_text())
    for messages in CONVERSATIONS:
        want = run.render(messages=messages, add_generation_prompt=True, bos_token="", eos_token="</s>")
        assert Go(template_of(text)).run(messages) == want
    assert text.startswith("FROM .\n")
    (stop,) = re.findall(r'^PARAMETER stop """(.*)"""$', text, re.MULTILINE)
    assert (
        run.render(messages=[USER, ANSWER], bos_token="", eos_token="</s>").rpartition("In France.")[2].strip() == stop
    )


def test_a_system_text_and_the_file_of_weights_are_said(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out/tokenizer_config.json").write_text('{"eos_token": {"content": "</s>"}}')
    config = DataConfig(template="zephyr", system="Be brief.")
    for gguf, source in ((folder / "out/a.gguf", "./a.gguf"), (folder / "a.gguf", "../a.gguf"), (None, ".")):
        lines = write_modelfile(folder / "out", gguf, config).read_text().splitlines()
        assert lines[0] == f"FROM {source}"
        assert lines[-2:] == ['PARAMETER stop """</s>"""', 'SYSTEM """Be brief."""']


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, "the run has 'own'"),
        ({"template": "llama2"}, "the run has 'llama2'"),
        ({"template": "{{ messages[0].content + eos_token }}"}, "the run has 'a Jinja template'"),
        ({"template": "chatml", "prefix": "Q: "}, "no place for data.prefix"),
    ],
)
def test_other_templates_are_refused_by_name(config: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check_template(DataConfig(**config))


def test_a_text_that_a_modelfile_cannot_quote_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="cannot quote"):
        write_modelfile(folder, None, DataConfig(template="chatml", system='Say """no"""'))
