"""Config files: whatever is in them, a mapping of plain data or one message with the file, and soon."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mt_core import UsageError
from mt_train import load_config
from mt_train.cli.train import main
from mt_train.config.commandline import parse_value
from mt_train.config.files import MOST_VALUES, as_read, read_config, write_yaml


def read(folder: Path, content: str | bytes, name: str = "run.yaml") -> dict[str, Any]:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    return read_config(path)


def bomb(lists: int) -> str:
    """Each list has the one before it nine times."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, lists)]
    return "\n".join(lines)


TEXTS = {
    "a day that no month has": "2026-13-45",
    "a date": "2026-01-02",
    "an instant": "2026-01-02 03:04:05",
    "no binary number": "0b_",
    "no hexadecimal number": "0x_",
    "no float": "-._",
    "an equals sign": "=",
    "a float that is text to YAML": "1e5",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_what_only_looks_like_a_number_or_a_date_is_the_text_that_it_is(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, f"data: {{system: {text}}}\n") == {"data": {"system": text}}
    assert parse_value(text, "dataset.path") == text


REFUSED = {
    "a number of 5,000 digits": ("a: " + "9" * 5000, ":1:4: not valid YAML: a number of 5,000 digits"),
    "a negative one": ("a: -" + "9" * 5000, "5,000 digits"),
    "a sum of sixties beyond a float": ("a: " + ":".join(["1"] * 400) + ".5", None),
    "more than 64 bits": ("a: 99999999999999999999999", "a: 99999999999999999999999 is beyond 64 bits"),
    "infinity": ("a: .inf", "a: a finite number is needed, got inf"),
    "no number": ("a: .nan", "a: a finite number is needed, got nan"),
    "an alias bomb": (bomb(12), f"more than {MOST_VALUES:,} values (what an alias repeats counts each time)"),
    "a list that holds itself": ("a: &a [*a]", "recursive"),
    "a mapping that holds itself": ("a: &a {b: *a}", "recursive"),
    "100,000 keys": ("".join(f"k{n}: 1\n" for n in range(100_000)), f"more than {MOST_VALUES:,} values"),
    "5,000 open brackets": ("a: " + "[" * 5000, "levels deep"),
    "a merge key": ("a: &a {b: 1}\nc: {<<: *a}", ":2:5: not valid YAML: merge keys (<<) are not read"),
    "a list for a key": ("? [a]\n: b", "a list or a mapping is no key"),
    "two keys that are one": ("data: {max-len: 3, max_len: 4}", "key 'max-len' is written twice"),
    "a number and its text as keys": ("1: a\n'1': b", "key '1' is written twice"),
    "bytes": ("a: !!binary zzz", "could not determine a constructor"),
    "a set": ("a: !!set {b}", "could not determine a constructor"),
    "a tagged date": ("a: !!timestamp x", "could not determine a constructor"),
    "an object of Python": ("a: !!python/object:os.system x", "could not determine a constructor"),
    "a tag that lies": ("a: !!int five", ":1:4: not valid YAML: 'five' is not a whole number"),
    "another one": ("a: !!bool perhaps", "'perhaps' is not true or false"),
    "two documents": ("a: 1\n---\nb: 2", "another document"),
    "a tab": ("a:\n\tb: 3", "indent with spaces"),
    "a colon in a text": ("a: b: c", "put quotes around text with a colon"),
    "a star": ("a: *b", "put quotes around text that begins with a star"),
    "a control character": ("a: \x01", "this is no text file"),
    "a NUL character": ('a: "x\\0y"', "a: 'x\\x00y' has a NUL character"),
    "half of a character": ('a: "\\ud800"', "half of a character"),
    "bytes that are no text": (b"\xff\xfe\x00", "not UTF-8 (byte 0)"),
    "two mebibytes": ("# " + "x" * 2**21, "it has more than 1 MB, which no such file has"),
}


@pytest.mark.parametrize(("content", "says"), REFUSED.values(), ids=REFUSED)
def test_what_no_config_has_is_refused_with_the_file_and_within_seconds(
    tmp_path: Path, content: str | bytes, says: str | None
) -> None:
    began = time.process_time()
    if says is None:
        assert read(tmp_path, content)
    else:
        with pytest.raises(UsageError) as caught:
            read(tmp_path, content)
        assert says in str(caught.value)
        assert len(str(caught.value)) < 1000
    assert time.process_time() - began < 10, (
        "of the processor, a hundred times what it takes; without a limit it had no end"
    )


JSON = {
    "a number of 5,000 digits": ('{"a": ' + "9" * 5000 + "}", "a number of 5,000 digits"),
    "a float beyond floats": ('{"a": 1e999}', "1e999 is larger than a float can hold"),
    "no number": ('{"a": NaN}', "NaN is not JSON"),
    "100,000 brackets": ("[" * 100_000, "too deeply nested"),
    "100,000 keys": ("{" + ",".join(f'"k{n}": 1' for n in range(100_000)) + "}", None),
    "half of a character": ('{"a": "\\ud800"}', "half of a character"),
}


@pytest.mark.parametrize(("content", "says"), JSON.values(), ids=JSON)
def test_json_is_refused_likewise(tmp_path: Path, content: str, says: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, content, "run.json")
    assert (says or "than") in str(caught.value)


def test_a_mark_of_utf_8_in_front_is_no_part_of_a_key(tmp_path: Path) -> None:
    """As Windows' editors write it."""
    assert read(tmp_path, b"\xef\xbb\xbfmodel: llama\n") == {"model": "llama"}
    assert read(tmp_path, b'\xef\xbb\xbf{"model": "llama"}', "run.json") == {"model": "llama"}


@pytest.mark.parametrize("section", ["train", "data", "dataset", "callbacks", "optimizer"])
def test_a_section_whose_keys_are_all_commented_out_is_as_if_it_were_not_there(tmp_path: Path, section: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"model: llama\n{section}:\n  # steps: 3\n")
    assert load_config(path) == load_config({"model": "llama"}) == load_config({"model": "llama", section: None})


def test_an_empty_section_on_the_command_line_is_a_mistake_and_says_how_keys_are_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words in (["--train", "none"], ["--train"], ["--train", "5"]):
        assert main(["--model", "llama", *words]) == 2
        assert "--train is a section" in (said := capsys.readouterr().err)
        assert "--train.KEY VALUE" in said


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.text("abc_", min_size=1, max_size=5),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-(2**63), 2**63)
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text("ab01.-:_=~ #e<", max_size=8),
            lambda below: (
                st.lists(below, max_size=3)
                | st.dictionaries(st.text("abc_", min_size=1, max_size=3), below, max_size=3)
            ),
            max_leaves=8,
        ),
        max_size=5,
    )
)
def test_what_is_written_reads_back_as_it_was_here_and_in_any_other_yaml(content: dict[str, Any]) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(text := write_yaml(content))
        file.flush()
        assert read_config(file.name) == json.loads(json.dumps(content)) == yaml.safe_load(text) == as_read(content)


@given(st.text())
@example("U+0085, which is a line end in YAML 1.1: a\x85b")
def test_any_text_of_a_config_comes_back_from_a_file_and_is_compared_so(text: str) -> None:
    content = {"value": text, "values": [text]}
    assert as_read(content) == yaml.safe_load(write_yaml(content)) == content


def test_a_run_file_reads_back_with_as_many_values_as_a_run_may_have(tmp_path: Path) -> None:
    content = {"tokenizer": {"add_tokens": [f"<t{number}>" for number in range(MOST_VALUES + 1)]}}
    (tmp_path / "run.yaml").write_text(write_yaml(content))
    with pytest.raises(UsageError, match="more than 10,000 values; put rows and long lists into files"):
        read_config(tmp_path / "run.yaml")
    (tmp_path / "plugins.lock.json").write_text("{}")  # which each run has
    assert read_config(tmp_path / "run.yaml") == content
