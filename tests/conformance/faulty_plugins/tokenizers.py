from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Bytes:
    """A tokenizer without a fault."""

    size, bos_id, eos_id, pad_id, chat_template = 259, 256, 257, 258, None

    def __init__(self, config: Any) -> None:
        pass

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        places = [(place, place + 1) for place, letter in enumerate(text) for _ in letter.encode()]
        return self.encode(text), places

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(each for each in ids if each < 256).decode(errors="replace")


class Lower(Bytes):
    def decode(self, ids: Sequence[int]) -> str:
        return super().decode(ids).lower()


class TooLarge(Bytes):
    size = 200


class Begins(Bytes):
    def encode(self, text: str) -> list[int]:
        return [256, *text.encode()]


class ShowsSpecials(Bytes):
    def decode(self, ids: Sequence[int]) -> str:
        return super().decode(ids) + "<end>" * list(ids).count(257)


class TooLargeBegin(Bytes):
    begin_ids = (259,)


class ShownBegin(Bytes):
    begin_ids = (65,)


class Strict(Bytes):
    def decode(self, ids: Sequence[int]) -> str:
        return bytes(each for each in ids if each < 256).decode()


class Shifted(Bytes):
    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        ids, offsets = super().encode_with_offsets(text)
        return ids, [(start + 1, end + 1) for start, end in offsets]


class Hasty(Bytes):
    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text.strip()) for text in texts]


class Early(Bytes):
    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        ids, offsets = super().encode_with_offsets(text)
        return ids, [(max(start - 1, 0), end - 1) for start, end in offsets]
