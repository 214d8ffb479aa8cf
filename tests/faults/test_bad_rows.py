"""Faulty inputs of every format on the way that a user takes, ``mt-data inspect``: each ends in one message that names
the place and the remedy, and with ``--data.on-bad-row skip`` every good row beside a bad one is kept and the account holds.

Two tables. ``ROWS``: a row is faulty, as the first, a middle and the last of a file at once. ``SOURCES``: a file, a set of
files, or a key is.
"""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from mt_tools.cli.data import main

LONGEST_MESSAGE = 700
"""Characters that a person reads, whatever the row has."""


# -- formats: rows to files -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """A format: how rows are written, a good one, and the line (or number) of the first."""

    dataset: str
    file: str
    write: Callable[[Sequence[Any]], bytes]
    good: Callable[[int], Any]
    first: int = 1
    options: tuple[str, ...] = ()


def pair(number: int) -> dict[str, Any]:
    return {"prompt": f"q{number} ", "response": f"é 你 {number}"}


def json_text(row: Any) -> bytes:
    return row if isinstance(row, bytes) else json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass")


def json_lines(rows: Sequence[Any]) -> bytes:
    return b"\n".join(map(json_text, rows))  # no line end after the last: that is a place for faults, too


def json_array(rows: Sequence[Any]) -> bytes:
    return b"[" + b",\n".join(map(json_text, rows)) + b"\n]"


def nested_bytes(rows: Sequence[Any]) -> bytes:
    return b'{"data": {"train": ' + json_array(rows) + b"}}"


def delimited_bytes(separator: str) -> Callable[[Sequence[Any]], bytes]:
    def record(row: Any) -> bytes:
        return row if isinstance(row, bytes) else separator.join(row.values()).encode()

    return lambda rows: b"\n".join([f"prompt{separator}response".encode(), *map(record, rows)])


def raw_lines(rows: Sequence[Any]) -> bytes:
    return b"\n".join(rows)


def table_of(rows: Sequence[Any]) -> pa.Table:
    names = list(rows[len(rows) // 2 + 1])
    return pa.table({name: column([row.get(name) for row in rows]) for name in names})


def column(values: list[Any]) -> pa.Array:
    """Texts, of which some may be bytes that are none."""
    if any(isinstance(value, bytes) for value in values):
        return pa.array([value.encode() if isinstance(value, str) else value for value in values]).view(pa.string())
    return pa.array(values)


def parquet(rows: Sequence[Any]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table_of(rows), sink, row_group_size=3)
    return bytes(sink.getvalue().to_pybytes())


def arrow(rows: Sequence[Any]) -> bytes:
    sink, table = pa.BufferOutputStream(), table_of(rows)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    return bytes(sink.getvalue().to_pybytes())


def token_file(rows: Sequence[Any]) -> bytes:
    return np.concatenate([np.array([*row, 7], np.int64) for row in rows]).tobytes()


FORMS = {
    "jsonl": Form("jsonl", "rows.jsonl", json_lines, pair),
    "gz": Form("jsonl", "rows.jsonl.gz", lambda rows: gzip.compress(json_lines(rows), mtime=0), pair),
    "zst": Form("jsonl", "rows.jsonl.zst", lambda rows: zstandard.compress(json_lines(rows)), pair),
    "array": Form("jsonl", "rows.json", json_array, pair),
    "nested": Form("jsonl", "rows.json", nested_bytes, pair, options=("--dataset.field", "data.train")),
    "csv": Form("csv", "rows.csv", delimited_bytes(","), pair, first=2),
    "tsv": Form("tsv", "rows.tsv", delimited_bytes("\t"), pair, first=2),
    "parquet": Form("parquet", "rows.parquet", parquet, pair),
    "arrow": Form("arrow", "rows.arrow", arrow, pair),
    "text": Form(
        "text",
        "rows.txt",
        raw_lines,
        lambda n: f"é {n}".encode(),
        options=("--dataset.split", "lines", "--objective", "pretrain"),
    ),
    "tokens": Form(
        "tokens",
        "rows.bin",
        token_file,
        lambda n: [1, 2, 3 + n % 3],
        options=("--dataset.dtype", "int64", "--dataset.end-id", "7"),
    ),
    "gsm8k": Form("gsm8k", "rows.jsonl", json_lines, lambda n: {"question": f"{n}?", "answer": f"#### {n}"}),
}


# -- rows -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BadRow:
    """A faulty row: what is said of it behind ``file:line: ``, and the remedy."""

    name: str
    row: Any
    says: str
    remedy: str
    form: str = "jsonl"
    options: tuple[str, ...] = ()
    places: tuple[str, ...] = ("first", "middle", "last")


def turns(*said: Mapping[str, Any]) -> dict[str, Any]:
    return {"messages": list(said)}


USER, ANSWER = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
CHATML = ("--data.template", "chatml")

MALFORMED = [
    ("cut off", b'{"prompt": "abc', r"Unterminated string starting at column 12: "),
    ("no closing brace", b'{"prompt": "abc"', r"Expecting ',' delimiter at column 17:"),
    ("two objects", b'{"a": 1} {"b": 2}', r"Extra data at column 10:"),
    ("single quotes", b"{'prompt': 1}", r"Expecting property name enclosed in double quotes at column 2:"),
    ("a comma too many", b'{"a": 1,}', r".* at column [89]:"),
    ("plain text", b"hello", r"Expecting value at column 1: 'hello'\. Write one complete JSON object"),
    ("bad escape", rb'{"a": "\x"}', r"Invalid \\escape at column 8:"),
    ("control character", b'{"a": "x\x1b[31m"}', r"Invalid control character at column 9: .*x\\x1b\[31m"),
    ("string for a row", b'"text"', r"an object is needed, this is a string:"),
    ("number for a row", b"5", r"an object is needed, this is a number:"),
    ("null for a row", b"null", r"an object is needed, this is null:"),
    ("boolean for a row", b"true", r"an object is needed, this is a boolean:"),
    ("duplicate key", b'{"prompt": "a", "prompt": "b"}', r"key 'prompt' stands twice in one object: "),
    ("duplicate key within", b'{"a": [{"b": 1, "b": 2}]}', r"key 'b' stands twice in one object: "),
    ("NaN", b'{"a": NaN}', r"NaN is not JSON: "),
    ("infinity", b'{"a": -Infinity}', r"-Infinity is not JSON: "),
    ("a number too large", b'{"a": 1e999}', r"1e999 is larger than a float can hold: "),
    ("endless integer", b'{"a": ' + b"1" * 5000 + b"}", r"an integer with thousands of digits: .*…"),
    ("nested lists", b'{"a": ' + b"[" * 100_000, r"nested too deeply"),
    ("nested objects", b'{"a": ' * 100_000, r"nested too deeply"),
    ("high surrogate", rb'{"a": "\ud83d"}', r"a lone surrogate, which is half of a character, at column 8:"),
    ("low surrogate", rb'{"\\": "\\ude00\ude00"}', r"a lone surrogate, which is half .* at column 16:"),
    ("wrong pair", rb'{"a": "\ud83d\u0041"}', r"a lone surrogate, .* at column 8:"),
    ("NUL", b'{"a": "\0"}', r"NUL byte at offset \d+\."),
    ("hole in the file", b"\0" * 50, r"NUL byte at offset \d+\."),
    ("latin-1", b'{"a": "\xe9"}', r"byte 0xe9 at offset \d+ is not UTF-8"),
]
"""What is no JSON object on a line, whatever its fields should be."""

FIX = r"Write |Keep one|restore it|iconv|remove the bytes"

SHAPES = [
    ("a column is missing", {"prompt": "q"}, r"no field 'response'; fields found: 'prompt'", "--data.columns", ()),
    ("no known column", {"question": "q", "answer": "a"}, "no field 'prompt'", r"--data.columns '\{prompt: NAME", ()),
    (
        "a renamed column is missing",
        {"question": "q", "response": "a"},
        "data.columns maps 'prompt' to 'prompt', which the row does not have",
        "Its fields: 'question', 'response'",
        ("--data.columns", "{prompt: prompt, response: response}"),
    ),
    ("a number", {"prompt": 5, "response": "a"}, "field 'prompt' is of type int, not text: '5'", "as a string", ()),
    ("null", {"prompt": "q", "response": None}, "field 'response' is of type NoneType", "as a string", ()),
    ("a list", {"prompt": ["q"], "response": "a"}, "field 'prompt', turn 1 must have", "Add what is missing", ()),
    ("mixed shapes", {**pair(1), **turns(USER, ANSWER)}, "fit two shapes", r"--data.columns '\{other: messages\}'", ()),
    ("no turns", turns(), "field 'messages' must be a list of at least one turn", "Write", ()),
    ("a turn is a text", turns("q"), 'turn 1 must have "role" and "content"', "Add what is missing", ()),
    ("a turn without text", turns(USER, {"role": "assistant"}), "turn 2 must have", "Add what is missing", ()),
    ("an unknown role", turns(USER, {**ANSWER, "role": "bot"}), "turn 2 has the role 'bot'", "Known: system", ()),
    ("a late system turn", turns(USER, ANSWER, {**USER, "role": "system"}), "turn 3 is a system", "Move it", ()),
    ("no answer", turns(USER), "has no turn of the assistant", "Add one, or drop the row", ()),
    ("train is no switch", turns(USER, {**ANSWER, "train": 1}), 'turn 2 has "train": 1', "true or false", ()),
    ("a negative weight", turns(USER, {**ANSWER, "weight": -1}), 'turn 2 has "weight": -1', "0 or more", ()),
    ("a chat without a template", turns(USER, ANSWER), "the tokenizer has no chat template", "--data.template", ()),
    (
        "a stop in a turn",
        turns({**USER, "content": "Say <|im_end|>"}, ANSWER),
        r"turn 1 contains '<\|im_end\|>'",
        "take it out",
        CHATML,
    ),
    ("our marks in a turn", turns({**USER, "content": "\ufdd0"}, ANSWER), "noncharacter", "remove it", CHATML),
    (
        "a template that stumbles over the row",
        turns(USER, USER, ANSWER),
        r"the chat template of data\.template, line 2, refuses this conversation: two questions",
        "choose another with --data.template",
        ("--data.template", "alternating.jinja"),
    ),
    (
        "too long",
        {"prompt": "q", "response": "a" * 300},
        "303 tokens exceed data.max_len=256",
        "--data.truncation drop",
        ("--data.max-len", "256"),
    ),
    (
        "too long a prompt",
        {"prompt": "q" * 30, "response": "a"},
        "31 tokens of the prompt exceed data.max_source_len=20",
        "--data.max-source-len",
        ("--data.max-source-len", "20"),
    ),
    (
        "too long an answer",
        {"prompt": "q", "response": "a" * 30},
        "31 tokens of the trained part exceed data.max_target_len=20",
        "--data.max-target-len",
        ("--data.max-target-len", "20"),
    ),
    ("a label that is none", {**pair(1), "label": "sport"}, "field 'label' is 'sport'", "rename it", ()),
    ("scores that are none", {"prompt": "q", "answers": [{"text": "r"}]}, "field 'answers' must be a list of", "", ()),
    ("one choice", {"prompt": "q", "choices": ["x"], "answer": 0}, "must be a list of 2 to 26 texts", "", ()),
    ("no such choice", {"prompt": "q", "choices": ["x", "y"], "answer": "C"}, "is 'C'", "a letter from A to B", ()),
    (
        "a side that is no text",
        {"prompt": "q", "chosen": "r", "rejected": 3},
        "'rejected' is of type int",
        "a string",
        (),
    ),
    ("ids that are no numbers", {"input_ids": ["1", "2"]}, "input_ids is no list of int", "Write the row anew", ()),
    ("ids below zero", {"input_ids": [1, -2]}, "an id that is not from 0 to 2147483647", "Write the row anew", ()),
    (
        "too few labels",
        {"input_ids": [1, 2], "labels": [1]},
        "labels has 1 values for 2 input_ids",
        "Write the row",
        (),
    ),
    ("labels that are shifted", {"input_ids": [1, 2], "labels": [2, -100]}, "labels differ", "not shifted here", ()),
]
"""Whole objects that are no rows for the objective: name, row, what is said, remedy, options."""

OTHER_FORMATS = [
    BadRow("a malformed line, compressed", b'{"prompt": "abc', "Unterminated string", FIX, "gz"),
    BadRow("a wrong type, compressed", {"prompt": 5, "response": "a"}, "is of type int", "as a string", "zst"),
    BadRow("a duplicate key in an array", b'{"a": 1, "a": 2}', "key 'a' stands twice", FIX, "array"),
    BadRow("NaN in an array", b'{"a": NaN}', "NaN is not JSON", FIX, "array"),
    BadRow("a number in an array", b"5", "an object is needed, this is a number", FIX, "array"),
    BadRow("a missing column in a nested array", {"prompt": "q"}, "no field 'response'", "--data.columns", "nested"),
    BadRow("too few fields", b"x", r"1 fields, and there are 2 columns: prompt, response\.", "Quote a field", "csv"),
    BadRow("too many fields", b"x,y,z", r"3 fields, and there are 2 columns", "Quote a field", "csv"),
    BadRow("text behind a quote", b'"x"y,z', r"',' expected after '\"': ", "a quoted field twice", "csv"),
    BadRow("a lone carriage return", b"x\ry,z", "new-line character seen in unquoted field", "quote a field", "csv"),
    BadRow("NUL in a field", b"x\0,y", r"NUL byte at offset \d+", "remove the bytes", "csv"),
    BadRow("latin-1 in a field", b"x\xe9,y", r"byte 0xe9 at offset \d+ is not UTF-8", "iconv", "csv"),
    BadRow("half a character in a field", b"x,\xed\xa0\xbd", "byte 0xed at offset", "iconv", "csv"),
    BadRow("too few fields between tabs", b"x", r"1 fields, and there are 2 columns", "Quote a field", "tsv"),
    BadRow(
        "null in a column", {"prompt": "q", "response": None}, "'response' is of type NoneType", "string", "parquet"
    ),
    BadRow("null in an Arrow column", {"prompt": None, "response": "a"}, "'prompt' is of type None", "string", "arrow"),
    BadRow("text in Parquet that is none", {"prompt": b"\xe9", "response": "a"}, "UTF-?8", "anew", "parquet"),
    BadRow("text in Arrow that is none", {"prompt": b"\xe9", "response": "a"}, "UTF-?8", "anew", "arrow"),
    BadRow("a line in Latin-1", b"ol\xe9", "byte 0xe9 at offset", "iconv", "text"),
    BadRow("a line with a hole", b"a\0\0\0", "NUL byte at offset", "remove the bytes", "text"),
    BadRow("an id that is too large", [1, 1 << 40, 2], "an id that is not from 0 to 2147483647", "Write", "tokens"),
    BadRow(
        "a field of the recipe is missing", {"question": "1?"}, "no field 'answer'", "Give a file of that set", "gsm8k"
    ),
    BadRow(
        "a field of the recipe is a number", {"question": "1?", "answer": 2}, "is of type int", "Give a file", "gsm8k"
    ),
]

ROWS = [
    *(BadRow(name, row, says, FIX) for name, row, says in MALFORMED),
    BadRow("a second byte order mark", b'\xef\xbb\xbf{"a": 1}', "Unexpected UTF-8 BOM", FIX, places=("middle", "last")),
    BadRow(
        "an array for a row", b'["text"]', "an object is needed, this is an array: ", FIX, places=("middle", "last")
    ),
    *(BadRow(name, row, says, remedy, options=options) for name, row, says, remedy, options in SHAPES),
    *OTHER_FORMATS,
]
ALTERNATING = (
    "{% for m in messages %}\n{% if m.role == 'user' and loop.previtem and loop.previtem.role == 'user' %}"
    "{{ raise_exception('two questions') }}{% endif %}{{ m.content }}{{ eos_token }}{% endfor %}"
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "alternating.jinja").write_text(ALTERNATING)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_rows(bad: BadRow) -> tuple[Form, list[str], int]:
    """The format, with a file of the faulty row among good ones; where the faulty ones are; and how many good there are."""
    form, good = FORMS[bad.form], 0
    rows, places = [], []
    for part in ("first", "good", "good", "middle", "good", "good", "good", "last"):
        if part == "good" or part not in bad.places:
            rows.append(form.good(good))
            good += 1
        else:
            places.append(f"{form.file}:{len(rows) + form.first}")
            rows.append(bad.row)
    Path(form.file).write_bytes(form.write(rows))
    return form, places, good


def inspect(form: Form, *options: str) -> list[str]:
    objective = () if "--objective" in (*options, *form.options) else ("--objective", "sft")
    words = ["inspect", "--dataset", form.dataset, "--dataset.path", form.file, "--data.eval", "none", "--json"]
    return [*words, *objective, *form.options, *options]


def inspect_rows(capsys: pytest.CaptureFixture[str], words: list[str]) -> tuple[int, dict[str, Any], str]:
    """Exit code, the report, and what was said; no fault is a surprise to the program."""
    code = main(words)
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    assert "--debug shows where" not in printed.err, printed.err
    return code, json.loads(printed.out or "{}"), printed.err


@pytest.mark.parametrize("bad", ROWS, ids=lambda bad: f"{bad.form}: {bad.name}")
def test_a_faulty_row_is_named_with_its_place_and_remedy_and_spoils_no_other(
    bad: BadRow, capsys: pytest.CaptureFixture[str]
) -> None:
    form, places, good = write_rows(bad)
    code, report, said = inspect_rows(capsys, [*inspect(form), *bad.options])
    assert code == 1, report
    assert f"{len(places)} bad rows, which stop mt-train" in said
    assert len(report["bad_rows"]) == len(places), report["bad_rows"]
    for place, message in zip(places, report["bad_rows"], strict=True):
        assert re.match(rf"{re.escape(place)}(\[\d+\])?\b", message), message
        assert re.search(bad.says, message), message
        assert re.search(bad.remedy, message), message
        assert len(message) < LONGEST_MESSAGE
        assert message.isprintable()

    code, report, said = inspect_rows(capsys, [*inspect(form), *bad.options, "--data.on-bad-row", "skip"])
    assert code == 0, said
    assert report["rows_dropped"] == {"bad row": len(places)}
    assert (report["rows_read"], report["rows_kept"]) == (good + len(places), good)

    code, report, said = inspect_rows(capsys, [*inspect(form), *bad.options, "--data.on-bad-row", "error"])
    assert (code, report) == (1, {})
    assert said.startswith(f"error: {places[0]}")
    assert said.count("\n") == 1


# -- sources --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """Files that are faulty as a whole, or keys that do not fit them; ``says`` begins with the place, where it has one."""

    name: str
    files: Mapping[str, bytes]
    says: str
    remedy: str
    options: tuple[str, ...] = ()
    dataset: str = "jsonl"
    code: int = 1


GOOD = json_lines([pair(number) for number in range(8)])
TABLE = [pair(number) for number in range(8)]
ZIPPED, ZSTD = gzip.compress(GOOD, mtime=0), zstandard.compress(GOOD)
DAMAGED = "is cut off or damaged|is damaged, cut off or of another format"


FIELD, NESTED = ("--dataset.field", "data"), ("--dataset.field", "data.train")
SKIP = ("--data.on-bad-row", "skip")
SHA1 = ("--dataset.sha1", "0" * 39 + "a")
DROPPED = ("--data.max-len", "2", "--data.truncation", "drop")
MOST = (*SKIP, "--data.max-bad-rows", "2")
UNTRAINED = [turns(USER, {**ANSWER, "train": False})] * 3
SILENT = json_lines([{"prompt": "q", "response": ""}] * 3)
AGAIN = "Repair the rows, or change what drops them"
LEFT = r"^error: no row is left to train on: \d read, dropped "


def flip_bit(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def columns(*named: tuple[str, list[str]]) -> bytes:
    sink = pa.BufferOutputStream()
    names, values = zip(*named, strict=True)
    pq.write_table(pa.table([pa.array(each, pa.string()) for each in values], names=list(names)), sink)
    return bytes(sink.getvalue().to_pybytes())


TWICE = columns(("a", ["1"]), ("a", ["2"]))


def npy(values: Any) -> bytes:
    sink = io.BytesIO()
    np.save(sink, values)
    return sink.getvalue()


def array(name: str, content: str, says: str, remedy: str, *options: str) -> Source:
    return Source(name, {"rows.json": content.encode()}, says, remedy, options)


def table(name: str, file: str, content: bytes, says: str, remedy: str = "anew", *options: str) -> Source:
    return Source(name, {file: content}, says, remedy, options, dataset=file.partition(".")[2])


def tokens(name: str, file: str, content: bytes, says: str, remedy: str = "Write it", *options: str) -> Source:
    return Source(name, {file: content}, says, remedy, options, dataset="tokens")


def chat(name: str, template: str, says: str) -> Source:
    files = {"rows.jsonl": json_lines([turns(USER, ANSWER)] * 3), "mine.jinja": template.encode()}
    return Source(name, files, says, "Mend it, or choose another", ("--data.template", "./mine.jinja"))


SOURCES = [
    Source("no file", {}, r"/rows\.jsonl does not exist", "Name a file or folder that does"),
    Source("an empty file", {"rows.jsonl": b""}, r"/rows\.jsonl has no rows", "Write one JSON object per line"),
    Source("blank lines", {"rows.jsonl": b"\n \n"}, r"/rows\.jsonl has no rows", "Write one JSON object per line"),
    Source("UTF-16", {"rows.jsonl": "{}".encode("utf-16")}, r"rows\.jsonl is UTF-16", "iconv -f UTF-16"),
    Source(
        "a folder without rows",
        {"d/a.md": b"x"},
        r"/d has no \*\.jsonl or \*\.json file, only \.md",
        "Name a folder with",
    ),
    Source("an empty file among others", {"d/a.jsonl": GOOD, "d/b.jsonl": b""}, r"/d/b\.jsonl has no rows", "take it"),
    Source(
        "no match",
        {"d/a.jsonl": GOOD},
        r"the pattern .*/d/\*\.csv matches no file",
        "Give one that does",
        ("--dataset.path", "d/*.csv"),
    ),
    Source("gz cut off", {"rows.jsonl.gz": ZIPPED[:-20]}, rf"/rows\.jsonl\.gz {DAMAGED}", "gzip -t"),
    Source("gz with a flipped bit", {"rows.jsonl.gz": flip_bit(ZIPPED)}, rf"/rows\.jsonl\.gz {DAMAGED}", "anew"),
    Source("zst cut off", {"rows.jsonl.zst": ZSTD[:-9]}, rf"/rows\.jsonl\.zst {DAMAGED}", "zstd -t"),
    Source("gz that is none", {"rows.jsonl.gz": GOOD}, r"gz is not compressed, though its name says so", "Rename it"),
    Source(
        "another hash",
        {"rows.jsonl": GOOD},
        r"rows\.jsonl has sha1 \w+, and dataset\.sha1 asks for 00",
        "Fetch|another|right",
        SHA1,
    ),
    array("an array cut off", '[{"a": 1},\n {"a"', r"rows\.json:2: the array does not end", "Write|complete|anew"),
    array("an array without a comma", '[{"a": 1}\n {"a": 2}]', r"rows\.json:2: Extra data", "Write"),
    array(
        "an array with two commas",
        '[{"a": 1},\n, {"a": 2}]',
        r"rows\.json:2: nothing stands beside a",
        "Take the comma out",
    ),
    array(
        "an array with a leading comma", '[,{"a": 1}]', r"rows\.json:1: nothing stands beside a", "Take the comma out"
    ),
    array(
        "an array with a trailing comma", '[{"a": 1},\n]', r"rows\.json:2: nothing stands beside", "Take the comma out"
    ),
    array(
        "a fault in line 4 of a row", '[\n{"a": 1,\n"b": 2,\n"b": 3}]', r"rows\.json:4: key 'b' stands twice", "Keep"
    ),
    array("half a character in line 2", '[{"a": 1,\n "b": "\\ud83d"}]', "json:2: a lone surrogate.* column 8", "Write"),
    array("more behind an array", '[{"a": 1}]\n{"a": 1}', r"rows\.json:2: there is more after the end", "Write one"),
    array("an empty array", "[]", r"rows\.json has no rows", "Write"),
    array("an array in an object", '{\n"data": [{"a": 1}]}', r"rows\.json:1: Expecting", "an array of them"),
    array("no such field", '{"dat": []}', "json:1: no field 'data'; found: 'dat'", "Did you mean", *FIELD),
    array("no such field within", '{"data": {"x": 1}}', "no field 'data.train'; found: 'x'", "Set dataset", *NESTED),
    array("an object cut off", '{"x": [1, 2', r"rows\.json:1: the file ends before its JSON", "anew", *FIELD),
    array("a key without a colon", '{"x" 1}', r"rows\.json:1: .*no ':' after key 'x'", "", *FIELD),
    array("a field of an array", '[{"a": 1}]', r"rows\.json:1: the file is not an object", "field", *FIELD),
    array(
        "a field that is no array",
        '{"data": {}}',
        "rows.json:1: field 'data' is not an array",
        "Name the array",
        *FIELD,
    ),
    array("an object that does not end", '{"data": [{"a": 1}]', r"the file ends before its JSON", "anew", *FIELD),
    table("an empty csv", "rows.csv", b"", r"/rows\.csv has no rows", "Write rows"),
    table("a csv of a header", "rows.csv", b"prompt,response\n", r"/rows\.csv has only a header", "Write rows"),
    table("an open quote", "rows.csv", b'a,b\n1,2\n"3,4\n5,6\n', "rows.csv:3: a quote opens here", "Close it"),
    table("a csv column twice", "rows.csv", b"a,a\n1,2\n", r"rows\.csv:1: column 'a' stands twice", "Rename"),
    table("a csv in UTF-16", "rows.csv", "a,b\n1,2\n".encode("utf-16"), r"rows\.csv is UTF-16", "Convert it"),
    table("old Mac line ends", "rows.csv", b"a,b\r1,2\r", r"/rows\.csv has only a header", r"line feeds.*tr "),
    table("parquet cut off", "rows.parquet", parquet(TABLE)[:-9], rf"rows\.parquet .*{DAMAGED}"),
    table("parquet that is csv", "rows.parquet", b"a,b\n1,2\n" * 9, rf"rows\.parquet .*{DAMAGED}"),
    table("an empty parquet file", "rows.parquet", b"", rf"rows\.parquet .*{DAMAGED}"),
    table("parquet without rows", "rows.parquet", columns(("a", [])), r"rows\.parquet has no rows", "Write some"),
    table(
        "a parquet column twice",
        "rows.parquet",
        TWICE,
        r"rows\.parquet: column 'a' stands twice",
        "Rename",
    ),
    table("arrow cut off", "rows.arrow", arrow(TABLE)[:700], rf"rows\.arrow .*{DAMAGED}"),
    table("arrow that is csv", "rows.arrow", b"a,b\n1,2\n" * 9, rf"rows\.arrow .*{DAMAGED}"),
    table("an empty arrow file", "rows.arrow", b"", rf"rows\.arrow .*{DAMAGED}"),
    tokens("npy cut off", "rows.npy", npy(np.arange(9))[:-3], r"rows\.npy cannot be read as token ids"),
    tokens("npy of floats", "rows.npy", npy(np.zeros(3)), r"rows\.npy holds float64 in 1 dim", "Write them so"),
    tokens("npy of objects", "rows.npy", npy(np.array([{}])), r"rows\.npy cannot be read as token ids"),
    tokens("a matrix of ids", "rows.npy", npy(np.zeros((2, 2), int)), "in 2 dimensions", "Write them so"),
    tokens("npy without ids", "rows.npy", npy(np.zeros(0, int)), r"rows\.npy has no tokens", "Write some"),
    tokens(
        "half an id", "rows.bin", b"123", r"rows\.bin cannot be read as token ids", r"dataset\.dtype \(now uint16\)"
    ),
    tokens(
        "an end that is nowhere",
        "rows.bin",
        b"\x01\0\x02\0",
        r"rows\.bin has no id 7 \(dataset\.end_id\)",
        "Set the id",
        "--dataset.end-id",
        "7",
    ),
    tokens(
        "an id beyond the tokenizer", "rows.bin", b"\x01\0\0\x20", "rows.bin:1: token id 8192", "--model.vocab-size"
    ),
    chat(
        "a template that does not end",
        "{% for m in messages %}\n\n",
        r"of data.template, line 1, .*Unexpected end of template",
    ),
    chat("a template that divides by zero", "\n{{ 1 / 0 }}", "line 2, fails: division by zero"),
    chat("a template that wants more", "{{ messages[0].a.b }}", "line 1, fails: 'dict object' has no attribute 'a'"),
    chat("a template out of its box", "\n{{ ''.__class__.__base__.__subclasses__() }}", "line 2, .*unsafe"),
    chat("a template that changes rows", "{{ messages.append(1) }}", "line 1, .*(unsafe|not safely)"),
    chat("a template that reads files", "{% include '/etc/passwd' %}", "line 1, .*no loader"),
    chat("a template without an end", "{{ range(10 ** 9) | list }}", "line 1, .*Range too big"),
    Source(
        "no trained token",
        {"rows.jsonl": json_lines(UNTRAINED)},
        LEFT + r".*no turn is to be trained on",
        AGAIN,
        CHATML,
    ),
    Source(
        "answers without text", {"rows.jsonl": SILENT}, LEFT + r".*3 × 'response' is empty \(rows\.jsonl:1, ", AGAIN
    ),
    Source(
        "every row too long", {"rows.jsonl": GOOD}, LEFT + r".*8 × longer than data\.max_len \(rows", AGAIN, DROPPED
    ),
    Source("every row bad", {"rows.jsonl": b'{"a": 1}\n' * 3}, LEFT + r".*3 × bad row", "--data.columns", SKIP),
    Source(
        "too many bad rows", {"rows.jsonl": b"{}\n" * 5 + GOOD}, "3 bad rows exceed data.max_bad_rows=2", "raise", MOST
    ),
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_a_faulty_source_is_named_with_its_remedy(
    source: Source, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, content in source.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    first = next(iter(source.files), "rows.jsonl")
    path = () if "--dataset.path" in source.options else ("--dataset.path", "d" if first.startswith("d/") else first)
    words = ["inspect", "--dataset", source.dataset, *path, "--objective", "sft", "--data.eval", "none", "--json"]
    code, _, said = inspect_rows(capsys, [*words, *source.options])
    assert code == source.code, said
    message = said[said.rindex("error: ") :]
    assert re.search(source.says, message, re.DOTALL), message
    assert re.search(source.remedy, message), message
    assert all(len(line) < LONGEST_MESSAGE for line in message.splitlines())


def check_long_rows(letters: int, capsys: pytest.CaptureFixture[str]) -> None:
    long = b"x" * letters
    rows = [
        pair(0),
        b'{"prompt": "q", "response": "' + long + b'"}',
        b'{"prompt": "q", "response": "' + long,
        pair(1),
        b'{"prompt": "q", "' + long + b'": 1}',
        b'{"prompt": "' + long + b'", "response": 1}',
        b'{"' + long + b'": 1, "' + long + b'": 2}',
        {f"column {number}": number for number in range(100_000)},
        turns({**USER, "role": "x" * letters}, ANSWER),
    ]
    Path("rows.jsonl").write_bytes(json_lines(rows))
    code, report, said = inspect_rows(
        capsys, [*inspect(FORMS["jsonl"]), "--data.on-bad-row", "skip", "--data.max-len", "256"]
    )
    assert code == 0, said[:1000]
    assert (report["rows_read"], report["rows_kept"], report["rows_dropped"]) == (9, 2, {"bad row": 7})
    places = [message.partition(": ")[0] for message in report["bad_rows"]]
    assert places == [f"rows.jsonl:{line}" for line in (2, 3, 5, 6, 7, 8, 9)]
    assert all(len(message) < LONGEST_MESSAGE for message in report["bad_rows"])


def test_rows_of_five_million_letters_are_told_in_few_words(capsys: pytest.CaptureFixture[str]) -> None:
    check_long_rows(5_000_000, capsys)


@pytest.mark.soak
def test_rows_of_a_hundred_million_letters_are_told_in_few_words(capsys: pytest.CaptureFixture[str]) -> None:
    check_long_rows(100_000_000, capsys)


def test_the_tables_have_what_is_promised() -> None:
    assert len(ROWS) + len(SOURCES) >= 60
    assert {bad.form for bad in ROWS} == set(FORMS)
