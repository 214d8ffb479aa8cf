"""Keys about rows that were set and change nothing in a run, since another key says otherwise."""

from __future__ import annotations

from collections.abc import Iterator

from mt_train.config.data import DataConfig
from mt_train.config.run import RunConfig

_NEEDS = {
    "packing": ("batching", "packing"),
    "packing_features": ("batching", "packing"),
    "pad_multiple": ("batching", "padding"),
    "group_by_length": ("batching", "padding"),
    "max_bad_rows": ("on_bad_row", "skip"),
}
"""Key → another key and the value with which alone it means something."""

_OF_STREAMS, _OF_FILES = ("shuffle_buffer",), ("workers",)


def describe_unused(config: RunConfig, *, is_stream: bool) -> Iterator[str]:
    """A line for each."""
    data = config.data
    for key, (other, value) in _NEEDS.items():
        if _is_set(data, key) and getattr(data, other) != value:
            yield f"data.{key} is of no use with data.{other}={getattr(data, other)}; it belongs to {value}"
    for key in _OF_FILES if is_stream else _OF_STREAMS:
        if _is_set(data, key):
            yield f"data.{key} is of no use: the dataset is {'a' if is_stream else 'no'} stream"
    if config.eval.limit is not None and data.eval is None:
        yield "eval.limit is of no use with data.eval=none, which holds no rows out"


def _is_set(data: DataConfig, key: str) -> bool:
    return bool(getattr(data, key) != DataConfig.model_fields[key].default)
