"""Patterns with braces, as webdataset's."""

from __future__ import annotations

import pytest

from mt_core import DataError
from mt_plugin_datasets.braces import expand_braces


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("a.tar", ["a.tar"]),
        ("a-{08..11}.tar", ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]),
        ("{9..11}", ["9", "10", "11"]),
        ("{a,b}/{0..1}.tar", ["a/0.tar", "a/1.tar", "b/0.tar", "b/1.tar"]),
        ("{x}.tar", ["{x}.tar"]),
        ("s3://bucket/{00..01}.tar", ["s3://bucket/00.tar", "s3://bucket/01.tar"]),
    ],
)
def test_braces_stand_for_numbers_and_lists(pattern: str, paths: list[str]) -> None:
    assert expand_braces(pattern) == paths


@pytest.mark.parametrize("pattern", ["{5..2}.tar", "{0..99999999999}.tar", "{000..999}{000..999}{0..1}.tar"])
def test_ranges_that_fall_or_stand_for_too_many_are_refused(pattern: str) -> None:
    with pytest.raises(DataError, match=r"does not rise|stands for 2,000,000 files"):
        expand_braces(pattern)
