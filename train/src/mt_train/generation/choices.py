"""A list of allowed strings as a trie over token ids (https://en.wikipedia.org/wiki/Trie)."""

from __future__ import annotations

from collections.abc import Sequence

from mt_core.data.text_ids import continuation_encoder
from mt_core.errors import MtError, UsageError
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
        self._tokenizer, self._end_id = tokenizer, end_id
        self._listed: list[tuple[str, Sequence[int]]] = []
        self._fine: set[tuple[frozenset[int], tuple[str, ...]]] = set()
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
        self._listed.append((string, ids))
        node = self._root
        for token in ids:
            node = node.setdefault(token, {})  # type: ignore[assignment]
        return node.setdefault(_END, string)

    def refuse_ends(self, end_ids: Sequence[int], stop: tuple[str, ...] = ()) -> None:
        """Raise ``UsageError`` for a string in which a text would end: one with any of these tokens or texts in it."""
        ends = frozenset(end_ids)
        if (ends, stop) in self._fine:
            return
        for string, ids in self._listed:
            found = next((self._spell(string, token) for token in ids if token in ends), None)
            if found is None and stop:
                said = (string, self._tokenizer.decode(ids))
                found = next((repr(word) for word in stop if any(word in text for text in said)), None)
            if found is not None:
                raise UsageError(
                    f"the choice {string!r} has {found} in it, which ends a text; leave that out of the choice"
                )
        self._fine.add((ends, stop))

    def refuse_beyond(self, rows: int) -> None:
        """Raise ``UsageError`` for a string with a token that has none of so many rows of an embedding."""
        for string, ids in self._listed:
            if (token := max(ids, default=-1)) >= rows:
                raise UsageError(
                    f"the choice {string!r} has {self._spell(string, token)} in it, token id {token}, and the model's embedding"
                    f" {rows} rows; leave that out of the choice"
                )

    def _spell(self, string: str, token: int) -> str:
        """Return the part of a string that is this token, or its id where the tokenizer does not say which that is."""
        try:
            ids, offsets = self._tokenizer.encode_with_offsets(string)
        except MtError:  # a slow one knows no offsets
            return f"token {token}"
        start, end = dict(zip(ids, offsets, strict=True)).get(token, (0, 0))
        return repr(string[start:end]) if start < end else f"token {token}"

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
