"""Several datasets as one: shares, order, and what is held out of them."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from dataset_files import open_dataset, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from mt_core import DataError
from mt_plugin_datasets.mixing import ConcatConfig, Mix
from mt_train.data.order import split_dataset


def source(folder: Path, name: str, rows: int, text: str = "x", **more: Any) -> dict[str, Any]:
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps({"text": f"{text}{n}"}) + "\n" for n in range(rows)))
    return {"name": "jsonl", "path": str(file), **more}


def shares(dataset: Any) -> dict[str, int]:
    return dict(Counter(Path(row["id"].rpartition(":")[0]).stem for row in rows_of(dataset)))


def test_in_sequence_every_row_comes_once_with_its_own_columns(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("q,a\n1,2\n")
    parts = [source(tmp_path, "a", 3), {"name": "csv", "path": str(tmp_path / "c.csv"), "columns": {"text": "q"}}]
    dataset = open_dataset("concat", sources=parts)
    assert [row["text"] for row in rows_of(dataset)] == ["x0", "x1", "x2", "1"]
    assert [row["id"].rpartition("/")[2] for row in rows_of(dataset)] == [
        "a.jsonl:1",
        "a.jsonl:2",
        "a.jsonl:3",
        "c.csv:2",
    ]
    assert pickle.loads(pickle.dumps(dataset)).row(3) == dataset.row(3)


MIXES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    # 3 : 1 by rows; a is read once in full, so b gives a third of 90
    "rows": ({"mix": "rows"}, {"a": 90, "b": 30}),
    # b has 10 rows: it is over when a has given 30
    "rows until first": ({"mix": "rows", "until": "first"}, {"a": 30, "b": 10}),
    # weight times the square root of the sizes: 3 * 9.49 to 1 * 3.16 is 9 to 1
    "temperature": ({"mix": "temperature"}, {"a": 90, "b": 10}),
    "temperature 1": ({"mix": "temperature", "temperature": 1}, {"a": 270, "b": 10}),
    # b's rows are 20 bytes and a's 10: 3 to 1 by bytes is 6 to 1 by rows
    "tokens": ({"mix": "tokens"}, {"a": 90, "b": 15}),
}


@pytest.mark.parametrize("mix", MIXES)
def test_shares_are_what_the_weights_say(mix: str, tmp_path: Path) -> None:
    options, expected = MIXES[mix]
    parts = [source(tmp_path, "a", 90, "x" * 8, weight=3), source(tmp_path, "b", 10, "y" * 19)]
    if mix == "tokens":
        rows = "".join(json.dumps({"text": "z" * 10}) + "\n" for _ in range(90))
        (tmp_path / "a.jsonl").write_text(rows)
    found = shares(open_dataset("concat", sources=parts, **options))
    assert found == expected


def write_rows(folder: Path, name: str, *rows: str, **more: Any) -> dict[str, Any]:
    (folder / f"{name}.jsonl").write_text("\n".join(rows))
    return {"name": "jsonl", "path": str(folder / f"{name}.jsonl"), **more}


@pytest.mark.parametrize("mix", ["sequential", *MIXES])
def test_a_source_may_be_read_up_to_a_number_of_rows(mix: str, tmp_path: Path) -> None:
    """A mix is what it would be if the file ended there, its length in bytes included."""
    options = MIXES[mix][0] if mix in MIXES else {}
    weight = {"weight": 3} if options else {}
    cut = [source(tmp_path, "a", 90, "y" * 9, **weight), source(tmp_path, "b", 10, "x" * 19)]
    whole = [source(tmp_path, "more", 400, **weight), source(tmp_path, "b", 10, "x" * 19)]
    rows = (tmp_path / "a.jsonl").read_text() + (tmp_path / "more.jsonl").read_text()
    (tmp_path / "more.jsonl").write_text(rows)
    whole[0]["read_rows"] = 90
    expected, found = (open_dataset("concat", sources=parts, **options) for parts in (cut, whole))
    assert [row["text"] for row in rows_of(found)] == [row["text"] for row in rows_of(expected)]
    assert list(found.originals()) == list(expected.originals())
    assert open_dataset("concat", sources=[{**cut[0], "read_rows": 999}], mix="rows").sources()[0][1] == 90
    nested = [{"name": "concat", **options, "sources": cut, "read_rows": 5}, whole[1]]
    assert shares(open_dataset("concat", sources=nested)) == {"a": 5, "b": 10}


def test_masks_and_labels_of_token_ids_are_no_tokens_of_a_mix(tmp_path: Path) -> None:
    ids = [*range(20)]
    plain = json.dumps({"input_ids": ids})
    masked = json.dumps({"tokens": ids, "labels": ids, "attention_mask": [1] * 20, "text": "as it was"})
    parts = [
        write_rows(tmp_path, "a", *[plain] * 10),
        write_rows(tmp_path, "b", *[masked] * 10, columns={"input_ids": "tokens"}),
    ]
    assert shares(open_dataset("concat", sources=parts, mix="tokens")) == {"a": 10, "b": 10}


@pytest.mark.parametrize(
    "row",
    [
        {"text": "x" * 100, "url": "u" * 300, "meta": {"dump": "d" * 50}},
        {"text": "x" * 100, "messages": [{"role": "user", "content": "x" * 100}]},
        {"instruction": "x" * 40, "input": "x" * 10, "output": "x" * 50, "text": None, "source": "s" * 100},
        {"prompt": "x" * 60, "response": "x" * 40, "answer": "a" * 70},
        {"mine": "x" * 60, "yours": ["x" * 40]},
    ],
    ids=lambda row: next(iter(row)),
)
def test_texts_that_are_trained_on_count_alone_in_a_mix_by_tokens(row: dict[str, Any], tmp_path: Path) -> None:
    parts = [
        write_rows(tmp_path, "a", *[json.dumps({"text": "x" * 100})] * 10),
        write_rows(tmp_path, "b", *[json.dumps(row)] * 10),
    ]
    assert shares(open_dataset("concat", sources=parts, mix="tokens")) == {"a": 10, "b": 10}


def test_a_bad_row_is_no_reason_against_a_mix_by_tokens(tmp_path: Path) -> None:
    good = [json.dumps({"text": "z" * 10})] * 10
    parts = [write_rows(tmp_path, "a", *good, '{"text": }'), write_rows(tmp_path, "b", *good[:5])]
    dataset = open_dataset("concat", sources=parts, mix="tokens")
    assert len(dataset) == 22, "as many of each"
    with pytest.raises(DataError, match=r"a\.jsonl:11: Expecting value"):
        dataset.row(10)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.floats(0.01, 100)), min_size=1, max_size=4),
    st.sampled_from(["rows", "temperature"]),
    st.sampled_from(["all", "first"]),
)
@settings(max_examples=100, deadline=None)
def test_shares_hold_for_any_sizes_and_weights(sizes: list[tuple[int, float]], mix: Any, until: Any) -> None:
    class Numbers:
        def __init__(self, count: int) -> None:
            self.count = count

        def __len__(self) -> int:
            return self.count

        def row(self, index: int) -> dict[str, Any]:
            return {"id": f"{self.count}:{index}", "text": "x"}

    from mt_plugin_datasets.mixing import build_concat

    sources = tuple({"name": "x", "weight": weight} for _, weight in sizes)
    parts = [Numbers(count) for count, _ in sizes]
    dataset = build_concat(ConcatConfig(sources=sources, mix=mix, until=until), split="train", parts=parts)
    assert dataset is not None
    places = [dataset.place(index) for index in range(min(len(dataset), 4000))]
    assert all(0 <= inner < sizes[number][0] for number, inner in places)
    if until == "all" and len(dataset) <= 4000:
        assert set(places) == {(number, inner) for number, (count, _) in enumerate(sizes) for inner in range(count)}
    elif until == "first":
        assert len(set(places)) == len(places), "no row comes twice"


def test_sources_are_named_by_component_and_path_and_by_number_where_that_is_one(tmp_path: Path) -> None:
    parts = [source(tmp_path, "a", 3), source(tmp_path, "b", 4, weight=2), source(tmp_path, "a", 3)]
    dataset = open_dataset("concat", sources=parts, mix="rows")
    paths = [each["path"] for each in parts]
    assert [name for name, _ in dataset.sources()] == [
        f"jsonl {paths[0]} (0)",
        f"jsonl {paths[1]}",
        f"jsonl {paths[2]} (2)",
    ]
    assert sum(rows for _, rows in dataset.sources()) == len(dataset)


def test_a_row_that_repeats_is_held_out_with_all_its_copies(tmp_path: Path) -> None:
    parts = [source(tmp_path, "a", 30), source(tmp_path, "b", 7, weight=2)]
    dataset = open_dataset("concat", sources=parts, mix="rows")
    kept, out = split_dataset(dataset, 0.3)
    ids = [row["id"] for row in rows_of(dataset)]
    trained, evaluated = {ids[index] for index in kept}, [ids[index] for index in out]
    assert not trained & set(evaluated)
    assert len(evaluated) == len(set(evaluated)) == int(0.3 * 37)
    assert trained | set(evaluated) == set(ids)
    assert len(kept) == sum(each in trained for each in ids), "all copies are trained on"
    assert any(evaluated.count(each) < ids.count(each) for each in evaluated), "some held-out row repeats"
    plain = Mix([open_dataset("jsonl", path=each["path"]) for each in parts], [{}, {}], [30, 7], [30, 7], ["a", "b"])
    assert [part.tolist() for part in split_dataset(plain, 5)] == [
        part.tolist() for part in split_dataset(_BareSource(37), 5)
    ]


def test_a_row_that_repeats_within_a_source_is_held_out_with_all_its_copies(tmp_path: Path) -> None:
    parts = [source(tmp_path, "small", 3), source(tmp_path, "large", 30)]
    inner = {"name": "concat", "mix": "rows", "sources": parts}
    dataset = open_dataset("concat", sources=[source(tmp_path, "other", 20), inner])
    kept, out = split_dataset(dataset, 0.4)
    ids = [row["id"] for row in rows_of(dataset)]
    trained, evaluated = {ids[index] for index in kept}, [ids[index] for index in out]
    assert len(evaluated) == len(set(evaluated)) == int(0.4 * 53)
    assert not trained & set(evaluated)


class _BareSource:
    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def row(self, index: int) -> dict[str, Any]:
        return {"id": str(index)}


def test_mixes_nest_and_bring_their_own_evaluation_rows(tmp_path: Path) -> None:
    held = source(tmp_path, "held", 2)
    inner = {
        "name": "concat",
        "sources": [source(tmp_path, "a", 2), {**source(tmp_path, "b", 3), "eval_path": held["path"]}],
    }
    parts = [inner, source(tmp_path, "c", 1)]
    assert shares(open_dataset("concat", sources=parts)) == {"a": 2, "b": 3, "c": 1}
    assert shares(open_dataset("concat", "eval", sources=parts)) == {"held": 2}
    assert open_dataset("concat", "eval", sources=parts[1:]) is None


OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "no source": ({"sources": []}, "at least 1 item"),
    "no name": ({"sources": [{"split": "a"}]}, r"sources\.0 has neither name nor path; write \{path"),
    "weight of 0": (
        {"sources": [{"name": "a", "weight": 0}], "mix": "rows"},
        r"sources\.0\.weight is 0; write a number above 0",
    ),
    "weight that is no number": ({"sources": [{"name": "a", "weight": "2"}], "mix": "rows"}, "write a number above 0"),
    "infinite weight": ({"sources": [{"name": "a", "weight": float("inf")}], "mix": "rows"}, "write a number above 0"),
    "weight without effect": ({"sources": [{"name": "a", "weight": 2}]}, "weight has no effect with mix sequential"),
    "an end without effect": ({"sources": [{"name": "a"}], "until": "first"}, "until=first has no effect with mix seq"),
    "temperature without effect": (
        {"sources": [{"name": "a"}], "mix": "rows", "temperature": 3},
        "temperature=3 has no effect with mix rows; set mix to temperature",
    ),
    "no row at all": (
        {"sources": [{"name": "a", "read_rows": 0}]},
        r"sources\.0\.read_rows is 0; write a whole number",
    ),
    "columns that are no mapping": (
        {"sources": [{"name": "a", "columns": "x"}]},
        r"sources\.0\.columns is 'x'; write \{prompt",
    ),
}


@pytest.mark.parametrize("fault", OPTIONS)
def test_a_mix_that_makes_no_sense_is_refused_with_the_config(fault: str) -> None:
    options, message = OPTIONS[fault]
    with pytest.raises(ValidationError, match=message):
        ConcatConfig(**options)


def test_weights_whose_epoch_nobody_can_count_are_refused_in_a_sentence(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    for path in paths:
        path.write_text('{"text": "a"}\n' * 3)

    def mixed(until: str, *weights: float) -> Any:
        sources = [{"name": "jsonl", "path": str(p), "weight": w} for p, w in zip(paths, weights, strict=True)]
        return open_dataset("concat", mix="rows", until=until, sources=sources)

    for weights in ((1e-300, 1e300), (1.0, 1e-20), (5e-324, 1.0)):
        with pytest.raises(DataError, match=r"dataset\.sources have weights so far apart"):
            mixed("all", *weights)
    assert len(mixed("first", 1e-300, 1e300)) == 4
    assert len(mixed("all", 1.0, 1e-9)) == 3 * 10**9 + 3
