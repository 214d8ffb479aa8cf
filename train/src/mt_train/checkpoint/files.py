"""Files that are on the disk when we say so, and that are what they seem."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import sys
from pathlib import Path

from mt_core.errors import CheckpointError
from mt_core.files.writing import replace_file

_CHUNK = 4 * 2**20
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def warn(text: str) -> None:
    """The default way to tell the user something: standard error."""
    print(text, file=sys.stderr, flush=True)


def refuse_special(path: Path) -> None:
    """Refuse all but regular files: no links, pipes or devices."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise CheckpointError(f"{path} is not a regular file; remove it or choose another folder")


def replace_text(path: Path, text: str) -> None:
    """Replace the content of a file atomically: after a crash it has the old or the new content."""
    replace_bytes(path, text.encode())


def replace_bytes(path: Path, content: bytes) -> None:
    """Do the same with bytes."""
    with replace_file(path, durable=True) as file:
        file.write(content)


def sha256(path: Path) -> str:
    """Hex digest of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def sizes(folder: Path) -> dict[str, int]:
    """Path within the folder → bytes, for every file below it.

    Links are not followed. Raises ``CheckpointError`` for anything that is neither a file nor a folder.
    """
    found: dict[str, int] = {}
    pending = [folder]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                path = Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(path)
                elif entry.is_file(follow_symlinks=False):
                    found[path.relative_to(folder).as_posix()] = entry.stat(follow_symlinks=False).st_size
                else:
                    raise CheckpointError(f"{path} is not a regular file, and a checkpoint holds nothing else")
    return dict(sorted(found.items()))


def is_full(error: BaseException) -> bool:
    """Return whether a write failed for want of space. safetensors hides the number in its text."""
    number = error.errno if isinstance(error, OSError) else None
    said = re.search(r"os error (\d+)", str(error))
    return number in _FULL or (said is not None and int(said[1]) in _FULL)


def free_bytes(folder: Path) -> int:
    """Return the bytes that this user may still write to the disk of the folder."""
    return shutil.disk_usage(folder).free


def amount(count: int) -> str:
    """``512 bytes``, ``1.5 MiB``, ``12.3 GiB``."""
    if count < 2**20:
        return f"{count:,} bytes"
    return f"{count / 2**20:,.1f} MiB" if count < 2**30 else f"{count / 2**30:,.1f} GiB"
