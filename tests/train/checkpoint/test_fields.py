"""Fields of a manifest: what a run writes is right, and of anything else the message names file and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mt_core.errors import CheckpointError
from mt_train.checkpoint.fields import FIELDS, odd_fields
from mt_train.checkpoint.manifest import read_manifest

GOLDEN = Path(__file__).parents[2] / "golden" / "run" / "checkpoints" / "step-00000060" / "manifest.json"
"""What an earlier version wrote: not made by the code that is tested."""

ODD = [None, True, -1, 1.5, "x", [], [1], {}, {"x": None}, 10**30, -(10**400), 1e308, {"": {"": []}}]
ALLOWED: dict[str, list[Any]] = {
    "pending": [None],
    "ended_by_callback": [True],
    "data": [None],
    "base": [None, {}],
    "model": [{}, {"x": None}, {"": {"": []}}],
    "config": [{}, {"x": None}, {"": {"": []}}],
    "callbacks": [{}, {"x": None}, {"": {"": []}}],
    "adapter": [{}, {"x": None}, {"": {"": []}}],
    "experts": [None],
    "plugins": [{}],
    "evaluation": [{}],
    "seconds": [1.5, 1e308],
}
"""Odd values that a field may have nevertheless."""

WITHIN: list[tuple[str, Any]] = [
    ("position", {"epoch": -1, "row": 0}),
    ("position", {"epoch": 0, "row": 1.0}),
    ("position", {"epoch": 0, "row": True}),
    ("position", {"epoch": 0}),
    ("position", {"epoch": 0, "row": 0, "line": 3}),
    ("position", {"epoch": 0, "row": 2**63}),
    ("position", {"epoch": 0, "row": 0, "state": 3}),
    ("layout", {"global_batch_size": 0}),
    ("layout", {"global_batch_size": "8"}),
    ("config", {"train": 3}),
    ("config", {"train": {"steps": "9"}}),
    ("config", {"train": {"epochs": -1}}),
    ("evaluation", {"eval_loss": "low"}),
    ("evaluation", {"eval_loss": True}),
    ("plugins", {"mt-core": 1}),
    ("data", {"sha256": "x", "rows": "many"}),
    ("data", {"rows": 3}),
    ("base", {"model.safetensors": 3}),
    ("began", {"directory": "/work", "run": None}),
    ("pending", {"step": 1}),
    ("total_steps", 0),
    ("seconds", -0.5),
]


def write_manifest(folder: Path, changes: dict[str, Any]) -> Path:
    """The manifest with other fields, and without the seal that would tell of it: as a run of an earlier version may have it."""
    content = {**json.loads(GOLDEN.read_text()), **changes}
    del content["sha256"]
    (folder / "step-00000060").mkdir(exist_ok=True, parents=True)
    path = folder / "step-00000060" / "manifest.json"
    files = content.pop("files")  # the last one
    path.write_text(json.dumps({**content, "files": files}))
    return path


@pytest.mark.parametrize("field", FIELDS)
def test_an_odd_value_of_any_field_is_refused_with_file_and_field(field: str, tmp_path: Path) -> None:
    for value in ODD:
        path = write_manifest(tmp_path, {field: value})
        fits = value in ALLOWED.get(field, []) and type(value) in map(type, ALLOWED.get(field, []))
        if field == "skipped" or not fits:
            with pytest.raises(CheckpointError) as raised:
                read_manifest(path.parent)
            assert f"{path} is damaged: {field} is " in str(raised.value)
            assert len(str(raised.value)) < 400 + len(str(path)), "a huge value is not written out"
        else:
            read_manifest(path.parent)


@pytest.mark.parametrize(("field", "value"), WITHIN)
def test_so_is_an_odd_value_within_a_field(field: str, value: Any, tmp_path: Path) -> None:
    path = write_manifest(tmp_path, {field: value})
    with pytest.raises(CheckpointError, match=rf"{path} is damaged: {field} is "):
        read_manifest(path.parent)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*FIELDS]), JSON, max_size=4))
def test_of_any_content_it_is_said_what_is_wrong_and_nothing_else_is_raised(content: dict[str, Any]) -> None:
    for text in odd_fields(content):
        assert " instead of " in text
        assert text.partition(" is ")[0] in content


def test_what_a_run_wrote_is_right(tmp_path: Path) -> None:
    content = json.loads(GOLDEN.read_text())
    assert list(odd_fields(content)) == []
    assert read_manifest(write_manifest(tmp_path, {}).parent)["step"] == 60
