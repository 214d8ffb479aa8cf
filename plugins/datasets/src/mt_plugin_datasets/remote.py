"""Files behind an address (``s3://``, ``gs://``, ``hf://``, ``https://``, whatever fsspec has), as copies in a folder on disk.

A copy has its address and version (ETag, hash, time of change, size) in its name: another version is another file. Processes that
read a folder's copies share a lock on it (flock); a file is fetched by one of them, in pieces, from where it was cut off. Folders
that nobody reads go, the least recently used first, where room is needed. Storage options come from the environment and fsspec's
own config (https://filesystem-spec.readthedocs.io/en/latest/features.html#configuration), never from a run's options.
"""

from __future__ import annotations

import glob
import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from mt_core import DataError, first_line, redact
from mt_core.files import suffix_of

from .braces import expand_braces
from .file_cache import hold_folder, lock, make_room

WAITS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before each further attempt."""
PIECE = 1 << 24
"""Bytes to fetch at once; a quarter for what is left of a file of which so many do not come in the time that a storage has."""
_AT_ONCE = 8
_CONTENT = ("etag", "md5", "generation", "blob_id", "sha256", "digest")
_TIME = ("modified", "mtime", "created")
"""How keys begin, or those of times end, in lower case without -, under which file systems tell one version of a file from another."""
_FOUND: dict[tuple[str, ...], list[Path]] = {}
"""Files that addresses stood for when this run first asked, so that its rows and their identity are of one version."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class RemoteFile:
    """One version of a file behind an address; ``name`` is its path as ``files``, fsspec's file system, has it."""

    files: Any
    name: str
    size: int
    version: str

    @property
    def address(self) -> str:
        """The address for messages."""
        return str(self.files.unstrip_protocol(self.name))

    def place(self, root: Path) -> Path:
        """Where its copy is below a cache; nothing of its name leads out of there."""
        folder, _, last = self.address.rpartition("/")
        safe = re.sub(r"[^\w.-]", "_", last)[-100:]
        return root / hashlib.sha256(folder.encode()).hexdigest()[:40] / f"{self.version}-{safe}"


def remote_files(url: str, *suffixes: str, root: Path) -> list[Path]:
    """Copies of the file, of a folder's files with the first of ``suffixes`` that any has, or of a pattern's; sorted by address.

    They stay as long as this process lives, and are looked for once (``forget_remote``). Raises ``DataError`` where the address is
    not served, or the cache has no room.
    """
    from concurrent.futures import ThreadPoolExecutor  # here: listing plugins imports none of it

    asked = (url, *suffixes, str(root))
    if asked in _FOUND:
        return list(_FOUND[asked])
    found = sorted(list_remote(url, *suffixes), key=lambda each: each.name)
    places = [each.place(root) for each in found]
    try:
        for folder in dict.fromkeys(place.parent for place in places):
            hold_folder(folder)
        missing = [(each, place) for each, place in zip(found, places, strict=True) if not place.exists()]
        needed = sum(each.size for each, _ in missing)
        make_room(root, needed, url)
        if missing:
            logging.getLogger("mt_core").info(f"fetching {len(missing):,} files ({needed:,} bytes) of {url}")
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda pair: fetch(*pair), missing))
    except OSError as error:
        raise DataError(
            f"the cache {root} cannot be used: {error.strerror or error}. Set MT_CACHE to a folder"
        ) from error
    _FOUND[asked] = places
    return list(places)


def forget_remote() -> None:
    """Look anew at what addresses stand for, as each run does when it begins."""
    _FOUND.clear()


def list_remote(url: str, *suffixes: str) -> list[RemoteFile]:
    """Return the files behind an address, by the rules of ``files_of``. Raises ``DataError`` for an empty or unserved address."""
    if not (found := _list(url, suffixes)):
        raise DataError(f"{url} stands for no {' or '.join(suffixes)} file. Set it to a file, a folder or a pattern")
    return found


def _list(url: str, suffixes: Sequence[str]) -> list[RemoteFile]:
    from concurrent.futures import ThreadPoolExecutor  # here: listing plugins imports none of it

    files, name = remote_system(url)
    files.invalidate_cache()
    if (several := expand_braces(url)) != [url] and not attempt(url, lambda: files.exists(name)):
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            lists = list(pool.map(lambda each: _list(each, suffixes), several))
        return list({each.name: each for found in lists for each in found}.values())
    if glob.has_magic(name) and not attempt(url, lambda: files.exists(name)):
        found = attempt(url, lambda: files.glob(name, detail=True))
    elif (info := attempt(url, lambda: files.info(name)))["type"] != "directory":
        return [_remote_file(files, name, info)]
    else:
        found = _of_kind(url, attempt(url, lambda: files.find(name, detail=True)), suffixes)
    chosen = {name: info for name, info in found.items() if info["type"] == "file"}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda pair: _listed_file(files, *pair), chosen.items()))


def files_below(url: str) -> dict[str, RemoteFile]:
    """Path below an address → file, without fetching any; none of an empty folder. Raises ``DataError`` where nothing is there."""
    found = _list(url, ())
    root = str(remote_system(url)[1]).rstrip("/")
    return {each.name.removeprefix(root).lstrip("/"): each for each in found}


def remote_system(url: str) -> tuple[Any, str]:
    """The file system of an address, and the name there. Raises ``DataError`` for one that is unknown or has a secret in it."""
    if redact(url) != url or "::" in url:
        raise DataError(
            f"{redact(url)} has a secret in it, or is a chain. Addresses are saved with a run: give keys through the environment (for"
            " s3:// AWS_ACCESS_KEY_ID and its secret) or fsspec's config, and a plain address here"
        )
    import fsspec
    from fsspec.registry import known_implementations

    protocol = url.partition("://")[0]
    try:
        files, name = fsspec.core.url_to_fs(url)
    except ImportError as error:
        extra = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}.get(protocol)
        fix = f"pip install 'mt-plugin-datasets[{extra}]'" if extra else known_implementations[protocol].get("err", "")
        raise DataError(f"{url} needs a package that is not installed: {fix or first_line(error)}") from error
    except (ValueError, OSError) as error:
        known = "s3, gs, hf, https, az, sftp, file" if protocol not in known_implementations else protocol
        raise DataError(f"{url} cannot be read: {first_line(error)}. Protocols are {known} and others") from error
    return files, name


def attempt(url: str, call: Callable[[], _T], deed: str = "fetched") -> _T:
    """Return the result of ``call``, which fetches or writes a file (``deed``); a storage that fails is asked again after an announced
    wait. Raises ``DataError`` where it refuses."""
    for wait in (*WAITS, None):
        try:
            return call()
        except DataError:
            raise
        except Exception as error:
            said = redact(f"{type(error).__name__}: {first_line(error)}")
            if _is_final(error):
                raise DataError(
                    f"{url} is refused or not there ({said}). Check the address, and the keys in the environment"
                ) from error
            if wait is None:
                raise DataError(
                    f"{url} cannot be {deed}, tried {len(WAITS) + 1} times ({said}). Start again: what is {deed} is kept"
                ) from error
            logging.getLogger("mt_core").warning(f"{url} is not served now ({said}); asked again in {wait:g} s")
            time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


def fetch(file: RemoteFile, place: Path) -> None:
    """Copy a file to ``place``, once among all processes; what was fetched before is kept. Raises ``DataError``, ``OSError``."""
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_name(f".{file.version}-{place.name}.part")
    with lock(part.with_suffix(".lock")):
        if place.exists():
            return
        with open(
            os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), "r+b", buffering=0
        ) as out:
            pieces = _Pieces(file, PIECE)
            out.seek(0, os.SEEK_END)
            if out.tell() > file.size:
                out.truncate(0)
            while (start := out.seek(0, os.SEEK_END)) < file.size:
                _write(out, attempt(file.address, partial(pieces.read, start)), file)
            os.fsync(out.fileno())
        now = _remote_file(file.files, file.name, attempt(file.address, lambda: file.files.info(file.name)))
        if now.version != file.version:
            part.unlink()
            raise DataError(f"{file.address} changed while it was fetched. Start again once nobody writes it")
        os.replace(part, place)


def put(place: Path, url: str) -> None:
    """Copy a file to an address, and see that all of it is there. Raises ``DataError``."""
    files, name = remote_system(url)

    def copy() -> None:
        files.makedirs(name.rpartition("/")[0], exist_ok=True)
        files.put_file(str(place), name)
        files.invalidate_cache()
        if (size := files.info(name)["size"]) != place.stat().st_size:
            raise OSError(f"{size:,} bytes are there instead of {place.stat().st_size:,}")

    attempt(url, copy, "written")


@dataclass
class _Pieces:
    """A file by pieces of ``size`` bytes, which becomes less where a storage is too slow for it."""

    file: RemoteFile
    size: int

    def read(self, start: int) -> bytes:
        try:
            return _piece(self.file, start, min(start + self.size, self.file.size))
        except TimeoutError:
            self.size = max(1, self.size // 4)
            raise


def _piece(file: RemoteFile, start: int, end: int) -> bytes:
    piece: bytes = file.files.cat_file(file.name, start=start, end=end)
    if len(piece) == file.size != end - start:  # a server that knows no ranges
        piece = piece[start:end]
    if len(piece) != end - start:
        raise OSError(f"{len(piece):,} bytes came instead of {end - start:,}")
    return piece


def _write(out: Any, piece: bytes, file: RemoteFile) -> None:
    start = out.tell()
    try:
        while piece:
            piece = piece[out.write(piece) :]
    except OSError as error:
        out.truncate(start)
        raise DataError(
            f"{file.address} cannot be written to {out.name}: {error.strerror}. Make room there, or set MT_CACHE to another folder; what is"
            " fetched is kept"
        ) from error


def _is_final(error: Exception) -> bool:
    """Return whether asking again is of no use. fsspec's HTTP says that a file is not there whatever the cause was."""
    cause = error.__cause__ or error
    if isinstance(status := getattr(cause, "status", None), int):
        return status < 500 and status not in {408, 429}
    if type(cause).__module__.startswith("aiohttp"):
        return False
    return isinstance(error, FileNotFoundError | PermissionError | NotImplementedError)


def _of_kind(url: str, found: Mapping[str, Any], suffixes: Sequence[str]) -> dict[str, Any]:
    for suffix in suffixes:
        if chosen := {name: info for name, info in found.items() if suffix_of(Path(name)) == suffix}:
            if others := len(found) - len(chosen):
                _warn_once(f"{url} stands for its {len(chosen):,} *{suffix} files; {others:,} others are not read")
            return chosen
    return {} if suffixes else dict(found)


@cache
def _warn_once(message: str) -> None:
    logging.getLogger("mt_core").warning(message)


def _listed_file(files: Any, name: str, info: Mapping[str, Any]) -> RemoteFile:
    if info.get("size") is None or not _marks(info, _CONTENT):  # a listing may say less, or write times otherwise
        info = attempt(str(files.unstrip_protocol(name)), lambda: files.info(name))
    return _remote_file(files, name, info)


def _remote_file(files: Any, name: str, info: Mapping[str, Any]) -> RemoteFile:
    if info.get("size") is None:
        raise DataError(f"{files.unstrip_protocol(name)} is served without its size, so that half a file looks whole")
    version = info["size"], _marks(info, _CONTENT) or _marks(info, _TIME)
    return RemoteFile(files, name, int(info["size"]), hashlib.sha256(repr(version).encode()).hexdigest()[:16])


def _marks(info: Mapping[str, Any], names: tuple[str, ...]) -> list[tuple[str, str]]:
    told = {key.lower().replace("-", ""): str(value).strip('"') for key, value in info.items() if value is not None}
    return sorted((key, value) for key, value in told.items() if key.startswith(names) or key.endswith(names))
