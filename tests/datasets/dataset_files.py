"""Datasets as a run builds them, and small valid files of each format."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from mt_plugin_datasets import plugin
from mt_plugin_standard import plugin as builtin

Open = Callable[..., Any]

CALLS = [
    {
        "messages": [
            {"role": "user", "content": "Which?"},
            {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": name, "arguments": given}}]},
        ],
        "tools": [
            {"name": name, "parameters": {"type": "object", "properties": {key: {"type": "string"} for key in given}}}
        ],
        "system": None,
    }
    for name, given in (("weather", {"city": "Rome"}), ("add", {"a": "1", "b": "2"}))
]
"""Rows whose objects have other keys: a table gives each of them the keys of all."""

CALLS_READ = [
    {**row, "messages": [row["messages"][0], {k: v for k, v in row["messages"][1].items() if v is not None}]}
    for row in CALLS
]

ROWS = [{"prompt": f"What is {n} + {n}?", "response": f'"{2 * n}",\nas é 你 says'} for n in range(40)]


def open_dataset(name: str, split_of_run: str = "train", /, **options: Any) -> Any:
    """What a run gets from ``--dataset NAME`` with these options."""
    components = {each.name: each for each in [*builtin.mt_datasets(), *plugin.mt_datasets()]}
    chosen = components[name]
    config = chosen.config(**{key: str(value) if isinstance(value, Path) else value for key, value in options.items()})
    keywords: dict[str, Any] = {"split": split_of_run}
    if chosen.parts is not None:
        inner = chosen.parts(config).values()
        keywords["parts"] = [open_dataset(part.name, split_of_run, **part.options) for part in inner]
    return chosen.build(config, **keywords)


def rows_of(dataset: Any) -> list[dict[str, Any]]:
    return [dict(dataset.row(index)) for index in range(len(dataset))]


def delimited_bytes(separator: str) -> bytes:
    def quoted(text: str) -> str:
        return '"' + text.replace('"', '""') + '"'

    lines = [separator.join(ROWS[0]), *(separator.join(map(quoted, row.values())) for row in ROWS)]
    return ("\n".join(lines) + "\n").encode()


def json_lines() -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()


def parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(ROWS), sink, row_group_size=7)
    return sink.getvalue().to_pybytes()


def arrow(kind: str) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pylist(ROWS)
    with getattr(pa.ipc, f"new_{kind}")(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=9)
    return sink.getvalue().to_pybytes()


def shard(members: Mapping[str, bytes], **options: Any) -> bytes:
    """A tar of these members."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", **options) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return sink.getvalue()


def samples() -> bytes:
    return shard({f"{number:04}.json": json.dumps(row).encode() for number, row in enumerate(ROWS)})


def npy() -> bytes:
    sink = io.BytesIO()
    np.save(sink, np.arange(300, dtype=np.uint16) % 50)
    return sink.getvalue()


FORMATS: dict[str, tuple[str, str, Callable[[], bytes], dict[str, Any]]] = {
    "jsonl": ("jsonl", "a.jsonl", json_lines, {}),
    "array": ("jsonl", "a.json", lambda: json.dumps(ROWS, indent=1).encode(), {}),
    "nested": (
        "jsonl",
        "a.json",
        lambda: json.dumps({"v": 1, "data": {"train": ROWS}}).encode(),
        {"field": "data.train"},
    ),
    "jsonl.gz": ("jsonl", "a.jsonl.gz", lambda: gzip.compress(json_lines(), mtime=0), {}),
    "jsonl.zst": ("jsonl", "a.jsonl.zst", lambda: zstandard.compress(json_lines()), {}),
    "csv": ("csv", "a.csv", lambda: delimited_bytes(","), {}),
    "tsv": ("tsv", "a.tsv", lambda: delimited_bytes("\t"), {}),
    "parquet": ("parquet", "a.parquet", parquet, {}),
    "arrow file": ("arrow", "a.arrow", lambda: arrow("file"), {}),
    "arrow stream": ("arrow", "b.arrow", lambda: arrow("stream"), {}),
    "tar": ("webdataset", "a.tar", samples, {}),
    "tar.gz": ("webdataset", "a.tar.gz", lambda: gzip.compress(samples(), mtime=0), {}),
    "npy": ("tokens", "a.npy", npy, {"end_id": 7}),
    "bin": ("tokens", "a.bin", lambda: (np.arange(300) % 50).astype("<u2").tobytes(), {"end_id": 7}),
}
"""Format → dataset, name of the file, its content, options."""
