"""Texts and templates of a config: given as they are, or in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import mt_train.data.templates
from mt_train.config.commandline import parse
from mt_train.config.data import DataConfig
from mt_train.config.texts import OWN, PLAIN, TEMPLATES


def test_every_name_is_a_file_that_says_where_it_is_from() -> None:
    folder = Path(mt_train.data.templates.__file__).parent / "named"
    assert sorted(path.stem for path in folder.iterdir()) == sorted({*TEMPLATES} - {OWN, PLAIN})
    assert all("https://" in path.read_text(encoding="utf-8").split("#}")[0] for path in folder.iterdir())


@pytest.mark.parametrize("key", ["system", "prefix", "postfix"])
def test_a_text_is_taken_as_it_is_or_from_a_file_which_the_run_needs_no_more(key: str, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_bytes("\ufeffÜber: all\n".encode())
    for value, expected in (({"file": str(file)}, "Über: all"), (str(file), str(file)), (" x\n", " x\n")):
        config = DataConfig(**{key: value})
        assert getattr(config, key) == expected
        assert DataConfig(**config.model_dump(mode="json")) == config


def test_a_template_is_a_name_a_file_or_jinja_text(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{{ messages }}\n")
    for value, expected in (("chatml", "chatml"), (str(file), "{{ messages }}"), ("{% x %}", "{% x %}"), (None, None)):
        config = DataConfig(template=value)
        assert config.template == expected
        assert DataConfig(**config.model_dump(mode="json")) == config


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown template": (
        {"template": "chatlm"},
        r"no template is named 'chatlm'. Did you mean 'chatml'\? Known: own, plain",
    ),
    "no file": ({"template": "./none.jinja"}, "cannot read the file ./none.jinja: No such file"),
    "no jinja": ({"template": "{tmp}/plain.txt"}, "is no Jinja template, it has neither"),
    "not utf-8": ({"system": {"file": "{tmp}/latin.txt"}}, r"latin.txt is not UTF-8 \(byte 1\)"),
    "a folder": ({"prefix": {"file": "{tmp}"}}, "cannot read the file .*: Is a directory"),
    "another key": ({"postfix": {"path": "x"}}, r"is a text, or \{file: PATH\}, got \{'path': 'x'\}"),
    "empty": ({"system": ""}, "at least 1 character"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_read_is_told(fault: str, tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("no braces")
    (tmp_path / "latin.txt").write_bytes(b"a\xff")
    values, says = FAULTS[fault]

    def placed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: placed(item) for key, item in value.items()}
        return value.replace("{tmp}", str(tmp_path))

    with pytest.raises(ValidationError, match=says):
        DataConfig(**placed(values))


@pytest.mark.parametrize("text", ["Answer: ", "### Question", "{x}", "5", "[INST] ", "- a", "none of it"])
@pytest.mark.parametrize("key", ["system", "prefix", "postfix"])
def test_on_the_command_line_a_text_is_taken_to_the_letter(key: str, text: str) -> None:
    line = parse([f"--data.{key}", text], switches=(), values=())
    assert line.raw == {"data": {key: text}}


def test_a_file_is_named_on_the_command_line_in_two_ways() -> None:
    expected = {"data": {"system": {"file": "a.txt"}}}
    for words in (["--data.system.file", "a.txt"], ["--data.system", "{file: a.txt}"]):
        assert parse(words, switches=(), values=()).raw == expected
    assert parse(["--data.system", "none"], switches=(), values=()).raw == {"data": {"system": None}}
