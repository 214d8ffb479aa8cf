"""Token files: ids in ``.npy`` or bare ``.bin``, mapped, cut into documents.

Rows that carry ids in other formats (JSON lines, Parquet …) need no dataset of their own: an objective takes any row
with ``input_ids``, and ``labels`` or ``trained`` where not every token is trained on.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from os.path import expanduser
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from mt_core import DataError, Row, first_line
from mt_core.files import FileConfig

from .load_cache import LoadCache

_PACKED = {".gz", ".zst", ".bz2", ".xz", ".zip", ".npz", ".pt", ".safetensors"}
_OTHERS = _PACKED | {".jsonl", ".json", ".csv", ".tsv", ".txt", ".parquet", ".arrow", ".idx"}
"""Endings of files that hold something else than bare ids; any bytes could be taken for ids."""

_BLOCK = 1 << 24
"""Tokens that are looked at together."""


class TokensConfig(FileConfig):
    """Files of the ids, and where a document ends."""

    path: str = Field(
        min_length=1, description=".npy or .bin file of ids; a folder (all *.npy or *.bin below it); a pattern"
    )
    dtype: Literal["uint8", "uint16", "uint32", "int32", "int64"] = Field(
        "uint16", description="how ids are stored in .bin files, little-endian"
    )
    end_id: int | None = Field(None, ge=0, description="id that ends a document, and belongs to it")
    ends: str | None = Field(
        None,
        min_length=1,
        description=".npy file: where each document ends, in tokens from the start; for one file of ids",
    )

    @model_validator(mode="after")
    def _one_way_to_end(self) -> Self:
        if self.end_id is not None and self.ends is not None:
            raise ValueError("end_id and ends both say where a document ends; keep one of them")
        return self


class TokenRows:
    """Documents as rows ``{"id", "input_ids"}``; document 12 of a file has the id ``file:12``."""

    def __init__(
        self, files: Sequence[Path], dtype: str, *, end_id: int | None = None, ends: Path | None = None
    ) -> None:
        if ends is not None and len(files) > 1:
            raise DataError(f"dataset.ends belongs to one file of ids, and dataset.path means {len(files)}. Name one.")
        self._files = files
        self._kept = LoadCache(_Opener(dtype))
        self._ends = [self._documents(path, end_id, ends) for path in files]
        self._begins = list(accumulate(map(len, self._ends), initial=0))

    def __len__(self) -> int:
        return self._begins[-1]

    def row(self, index: int) -> Row:
        """The ids of one document. Raises ``DataError`` when the file has changed."""
        number = bisect_right(self._begins, index) - 1
        inner, ends = index - self._begins[number], self._ends[number]
        ids = self._kept.get(self._files[number])[ends[inner - 1] if inner else 0 : ends[inner]]
        return {"id": f"{self._files[number]}:{inner + 1}", "input_ids": ids.tolist()}

    def _documents(self, path: Path, end_id: int | None, ends: Path | None) -> Sequence[int]:
        ids = self._kept.get(path)
        if not len(ids):
            raise DataError(f"{path.absolute()} has no tokens. Write some into it, or take it out of dataset.path.")
        if ends is not None:
            return _read_ends(ends, path, len(ids))
        return array("q", [len(ids)]) if end_id is None else _find_ends(ids, end_id, path)


def token_files(config: TokensConfig, split: Literal["train", "eval"]) -> list[Path] | None:
    """The files of a split, with the one that says where documents end."""
    files, ends = config.files(split, ".npy", ".bin"), _ends(config, split)
    return [*files, ends] if files is not None and ends is not None and ends.is_file() else files


def _ends(config: TokensConfig, split: Literal["train", "eval"]) -> Path | None:
    return Path(expanduser(config.ends)) if config.ends and split == "train" else None


def build_tokens(config: TokensConfig, *, split: Literal["train", "eval"]) -> TokenRows | None:
    """The documents of a split."""
    files = config.files(split, ".npy", ".bin")
    if files is None:
        return None
    return TokenRows(files, config.dtype, end_id=config.end_id, ends=_ends(config, split))


class _Opener:
    """Maps a file of ids, flat."""

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype

    def __call__(self, path: Path) -> Any:
        import numpy as np

        if path.suffix.lower() in _OTHERS:
            raise DataError(
                f"{path.absolute()} holds no bare ids by its ending, and its bytes would be taken for ids. Decompress it to .npy or .bin,"
                " or read another format with its own --dataset."
            )
        try:
            if path.suffix.lower() == ".npy":
                ids = np.load(path, mmap_mode="r", allow_pickle=False)
            elif not path.stat().st_size:
                return np.empty(0, np.int64)
            else:
                ids = np.memmap(path, dtype=np.dtype(self._dtype).newbyteorder("<"), mode="r")
        except Exception as error:  # what numpy makes of a damaged header is of many kinds
            reason = first_line(error).rstrip(".")
            raise DataError(
                f"{path.absolute()} cannot be read as token ids: {reason}. Write it with numpy.save or tofile, and set"
                f" dataset.dtype (now {self._dtype}) for .bin files."
            ) from error
        if ids.dtype.kind not in "ui" or ids.ndim != 1:
            raise DataError(
                f"{path.absolute()} holds {ids.dtype} in {ids.ndim} dimensions, and ids are integers in one. Write them so."
            )
        return ids


def _find_ends(ids: Any, end_id: int, path: Path) -> Sequence[int]:
    """Behind each ``end_id``, and at the end of the file. Raises ``DataError`` where it ends nothing."""
    import numpy as np

    ends = array("q")
    for start in range(0, len(ids), _BLOCK):
        ends.extend((np.flatnonzero(ids[start : start + _BLOCK] == end_id) + start + 1).tolist())
    if not ends:
        raise DataError(
            f"{path.absolute()} has no id {end_id} (dataset.end_id), so that nothing ends a document in it. Set the id of the tokenizer"
            " that wrote it, or leave end_id out where the file is one document."
        )
    if ends[-1] < len(ids):
        ends.append(len(ids))
    return ends


def _read_ends(ends: Path, path: Path, count: int) -> Sequence[int]:
    """The ends in a file: they rise, and the last is the number of tokens."""
    values = _Opener("int64")(ends)
    rising = len(values) and int(values[0]) > 0 and bool((values[1:] > values[:-1]).all())
    if not rising or int(values[-1]) != count:
        raise DataError(
            f"{ends.absolute()} does not divide {path.name}: its numbers have to rise from above 0 to {count}, the tokens of"
            f" the file; the last is {int(values[-1]) if len(values) else 'missing'}. Write both files together."
        )
    return array("q", values.tolist())
