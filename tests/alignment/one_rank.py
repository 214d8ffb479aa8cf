"""The part of a policy that rewards see, in one process."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any


class OneRank:
    """What is shared is plain data, as between processes."""

    def __init__(self) -> None:
        self.asked = 0

    def once(self, function: Callable[[], Any]) -> Any:
        """Call it here."""
        self.asked += 1
        return json.loads(json.dumps(function()))

    def divide(self, items: Sequence[Any], function: Callable[[Sequence[Any]], Sequence[Any]]) -> list[Any]:
        """Call it with all items."""
        found: list[Any] = json.loads(json.dumps(list(function(items))))
        return found
