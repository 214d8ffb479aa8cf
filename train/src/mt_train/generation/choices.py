"""A list of allowed strings as a trie over token ids (https://en.wikipedia.org/wiki/Trie)."""

from __future__ import annotations

from collections.abc import Sequence

from mt_core.data.text_ids import continuation_encoder
from mt_core.errors import UsageError
from mt_core.protocols import Tokenizer

_END = -1
"""Key of a node under which the whole string is kept."""


class Choices:
    """Says which tokens may follow, and which string the tokens are. Then comes ``end_id``.

    A string has the tokens of a text of its own, or those that it has after another text, whichever the model prefers: a tokenizer
    that puts a space in front of a text would have none of the latter.

    Raises ``UsageError`` when two strings have the same tokens.
    """

    def __init__(self, strings: Sequence[str], tokenizer: Tokenizer, end_id: int) -> None:
        self._root: dict[int, object] = {}
        self._end_id = end_id
        self.longest = 0
        for string in strings:
            ids = tokenizer.encode(string)
            if not ids:
                raise UsageError(f"the choice {string!r} has no tokens; leave it out")
            if (other := self._add(string, ids)) != string:
                raise UsageError(f"the choices {other!r} and {string!r} have the same tokens; keep one of them")
        continued = continuation_encoder(tokenizer)
        for string in strings:
            self._add(string, continued(string))

    def _add(self, string: str, ids: Sequence[int]) -> object:
        """Add the tokens, and return the string that they are: another one where they were there before."""
        self.longest = max(self.longest, len(ids) + 1)
        node = self._root
        for token in ids:
            node = node.setdefault(token, {})  # type: ignore[assignment]
        return node.setdefault(_END, string)

    def allowed_tokens(self, new: Sequence[int]) -> list[int]:
        """Tokens that may follow the new ones: never empty, the end token after what no string begins with."""
        node = self._node(new)
        following = [] if node is None else [token for token in node if token != _END]
        return [*following, self._end_id] if node is None or _END in node else following

    def string(self, new: Sequence[int]) -> str | None:
        """The choice that these tokens are, without the end token."""
        node = self._node(new)
        found = None if node is None else node.get(_END)
        return found if isinstance(found, str) else None

    def _node(self, new: Sequence[int]) -> dict[int, object] | None:
        node: object = self._root
        for token in new:
            node = node.get(token) if isinstance(node, dict) else None
        return node if isinstance(node, dict) else None
