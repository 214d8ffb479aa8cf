"""A token cache by many: each process encodes a share of the chunks, and one makes a cache of them; and caches put behind an address."""

from __future__ import annotations

from mt_train.assemble.data import build_tokenizer, encoding_of
from mt_train.assemble.encoder import Encoder, cached_files
from mt_train.assemble.parts import Parts
from mt_train.assemble.sources import rows_of
from mt_train.data.cache_folder import is_complete
from mt_train.data.chunks import Share
from mt_train.data.remote_cache import put_cache
from mt_train.data.row_statistics import RowStatistics
from mt_train.tracking.logs import first_notice


def encode_share(parts: Parts, share: Share) -> None:
    """Encode a share of the rows' chunks into the token cache, which there has to be. Raises ``DataError`` for a bad row."""
    rows, encoder = rows_of(parts, None), _encoder(parts)
    encoder.encode_share("train", lambda: (rows.train, rows.kept), share)
    if not rows.is_one_document:  # its samples are divided whenever they are read
        encoder.encode_share("held_out", lambda: (rows.evaluation, rows.held_out), share)


def finish_shares(parts: Parts) -> tuple[RowStatistics, RowStatistics | None]:
    """Make the cache, and return what became of the rows to train on and of those held out; ``None`` where one document is both.

    Raises ``DataError`` where a share is missing.
    """
    encoder = _encoder(parts)
    train = encoder.finish_shares("train")
    is_one_document = train.rows_read == 1 and rows_of(parts, None).is_one_document
    return train, None if is_one_document else encoder.finish_shares("held_out")


def put_caches(parts: Parts, url: str) -> list[str]:
    """Copy the caches of a run's rows to an address; a line of each. Raises ``DataError``."""
    encoder, told = _encoder(parts), []
    for split in ("train", "held_out"):
        folder = encoder.folder(split)
        if is_complete(folder):  # one document, parted when it is read, has no other
            count = put_cache(folder, f"{url.rstrip('/')}/{folder.name}", first_notice)
            told.append(f"{url.rstrip('/')}/{folder.name} ({count:,} files copied)")
    return told


def _encoder(parts: Parts) -> Encoder:
    tokenizer = build_tokenizer(parts)
    return Encoder(parts, tokenizer, *encoding_of(parts, tokenizer), cached_files(parts))
