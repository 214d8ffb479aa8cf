"""The demo corpus: Python's own help topics, real English that ships with every CPython.

79 documents with about 465,000 characters in Python 3.11; other versions differ a little
(https://docs.python.org/3/library/pydoc.html).
"""

from __future__ import annotations

from typing import Any, Literal

from mt_core import DataError, MtConfig, Row


class DemoConfig(MtConfig):
    """The demo corpus has no options."""


class DemoDataset:
    """One document per help topic, in the order of their names."""

    def __init__(self) -> None:
        try:
            from pydoc_data.topics import topics
        except ImportError as error:
            raise DataError(
                "this Python comes without pydoc_data.topics, the demo corpus. "
                "Install your system's full Python, or name your own text: --dataset text --dataset.path FILE"
            ) from error
        self._topics: dict[str, Any] = topics
        self._names = sorted(name for name, text in topics.items() if text.strip())

    def __len__(self) -> int:
        return len(self._names)

    def row(self, index: int) -> Row:
        """``{"id", "text"}`` of one topic."""
        name = self._names[index]
        return {"id": f"pydoc_data.topics:{name}", "text": self._topics[name]}


def build_demo(config: DemoConfig, *, split: Literal["train", "eval"]) -> DemoDataset | None:
    """The corpus; the held-out part is cut from it by the core."""
    return DemoDataset() if split == "train" else None
