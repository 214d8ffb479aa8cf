"""A written folder on the Hugging Face Hub: looked through for what is nobody else's business, then one commit, whole or not at all.

The token is that of ``HF_TOKEN`` in the environment. It is in no option, no file and no message.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core.config.secrets import redact
from mt_core.errors import DataError, MtError, OutputError, UsageError, first_line
from mt_tools.convert.adapter_readers import NAME_ON_THE_HUB

if TYPE_CHECKING:
    from huggingface_hub import HfApi

Say = Callable[[str], None]
TOKEN = "HF_TOKEN"  # noqa: S105 - the variable's name
_WEIGHTS = (".safetensors", ".gguf")
_VOCABULARIES = {"tokenizer.json", "vocab.json", "merges.txt", "added_tokens.json", "tokenizer.model"}
"""Files whose entries are any text there is: paths in them are words."""
_PATH = re.compile(r"(?<![\w/.:~-])(?:/[\w.@+ -]*[\w@+-]){2,}|\b[A-Za-z]:\\\\?[\w.@+-]+")
_OF_THE_HUB = {".gitattributes"}
_LONGEST_TEXT = 10**8


@dataclass(frozen=True)
class Repository:
    """Where a folder goes: ``org/name``, and whether others may not see it."""

    name: str
    private: bool

    @classmethod
    def named(cls, name: str, *, private: bool) -> Repository:
        """Raise ``UsageError`` for what is no name, and where no token says who pushes."""
        if not NAME_ON_THE_HUB.fullmatch(name) or "@" in name:
            raise UsageError(f"--push {name} is no name on the Hub; write ORG/NAME")
        if not os.environ.get(TOKEN):
            raise UsageError(
                f"--push needs a token that may write, in the environment variable {TOKEN} alone"
                " (https://huggingface.co/settings/tokens)"
            )
        return cls(name, private)


def push(folder: Path, repository: Repository, known_paths: Iterable[Path], say: Say) -> str:
    """Push the folder in one commit; returns its address. What is there already, from a call that was cut off, is not sent again.

    Raises ``DataError`` for a folder with a secret or a path of this machine, ``UsageError`` for a repository that has other files or
    that others see, and ``OutputError`` where the Hub cannot be reached or does not take it; then nothing of it is there.
    """
    files = files_of(folder)
    refuse_private(folder, files, known_paths)
    if "fill in, before you share it" in _read(folder / "README.md"):
        say("notice: README.md has no license yet; say under which terms others may use the model")
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=os.environ[TOKEN])
    try:
        head = _prepare(api, repository, folder, files)
        if head is None:
            return f"{repository.name} has all {len(files)} files already"
        operations = [CommitOperationAdd(name, str(folder / name)) for name in files]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = api.create_commit(
                repository.name, operations, commit_message=f"Upload {folder.name}", parent_commit=head or None
            )
    except MtError:
        raise
    except Exception as error:  # noqa: BLE001 - the Hub's client raises those of its transport, which are another one's in each release
        raise OutputError(
            f"{folder} is written, and could not be pushed to {repository.name}: {redact(first_line(error))}. Go on with mt-export"
            f" --output {folder} --push {repository.name}{' --private' * repository.private}"
        ) from None  # its chain shows requests with their headers
    return f"{found.commit_url}"


def _prepare(api: HfApi, repository: Repository, folder: Path, files: list[str]) -> str | None:
    """Return the commit that the folder goes onto, empty for none; ``None`` where it is there already."""
    from huggingface_hub import RepoFile

    api.create_repo(repository.name, private=repository.private, exist_ok=True)
    info = api.model_info(repository.name)
    if repository.private and not info.private:
        raise UsageError(
            f"{repository.name} is there, and everybody sees it; make it private first, or push to another name"
        )
    there = {
        each.path: each for each in api.list_repo_tree(repository.name, recursive=True) if isinstance(each, RepoFile)
    }
    others = sorted(there.keys() - set(files) - _OF_THE_HUB)
    same = [name for name in files if name in there and _is_same(folder / name, there[name])]
    if len(same) == len(files) and not others:
        return None
    if differing := [*others, *(name for name in files if name in there and name not in same)]:
        raise UsageError(
            f"{repository.name} has other files ({', '.join(differing[:4])}); nothing is overwritten: push to another name"
        )
    return str(info.sha or "")


def _is_same(path: Path, there: Any) -> bool:
    """Compare by the hash of git, or of its large files."""
    content = path.read_bytes() if there.lfs is None else b""
    if there.lfs is None:
        return bool(
            hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest() == there.blob_id
        )
    with path.open("rb") as file:
        return bool(hashlib.file_digest(file, "sha256").hexdigest() == there.lfs.sha256)


def files_of(folder: Path) -> list[str]:
    """Return the names of what is pushed. Raises ``DataError`` for a link, and where there is nothing."""
    found = sorted(path for path in folder.rglob("*") if not path.is_dir())
    if links := [path for path in folder.rglob("*") if path.is_symlink()]:
        raise DataError(f"{links[0]} is a link, which leads out of the folder; put the file itself there")
    if not found:
        raise DataError(f"{folder} has no files; write it first (mt-export --run RUN --output {folder})")
    return [path.relative_to(folder).as_posix() for path in found]


def refuse_private(folder: Path, files: Iterable[str], known_paths: Iterable[Path]) -> None:
    """Raise ``DataError`` for a file with a secret, or with a path of this machine."""
    known = sorted({each for path in (*known_paths, Path.home(), Path.cwd()) for each in _spellings(path)})
    for name in files:
        vocabulary = Path(name).name in _VOCABULARIES
        for text in _texts(folder / name):
            if redact(text) != text:
                raise DataError(
                    f"{folder / name} holds a secret (a token, a key or a password); nothing was pushed: take it out"
                )
            paths = (found for found in known if found in text) if vocabulary else _paths_in(text, known)
            if (path := next(iter(paths), None)) is not None:
                raise DataError(
                    f"{folder / name} names {path}, a path of this machine; nothing was pushed: take it out (--base ORG/NAME names a base)"
                )


def _spellings(path: Path) -> Iterator[str]:
    """Paths of two parts and more, as they are and as they were given: a shorter one may be any word."""
    for each in (path.expanduser().absolute(), path.expanduser().resolve()):
        if len(each.parts) > 2:
            yield str(each)


def _paths_in(text: str, known: Iterable[str]) -> Iterator[str]:
    """Yield what is a path here, and what lies in folders that are known."""
    yield from (path for path in known if path in text)
    home = f"{Path.home()}/"
    for match in _PATH.finditer(text):
        found = match[0]
        if found.startswith(home) or _exists(found):
            yield found


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def _texts(path: Path) -> Iterator[str]:
    """Yield the texts of a file that people may read: all of it, or what stands beside its weights."""
    if path.suffix == ".safetensors":
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        yield json.dumps(header.get("__metadata__", {}))
    elif path.suffix not in _WEIGHTS and path.stat().st_size <= _LONGEST_TEXT:
        text = _read(path)
        yield text
        if path.suffix == ".json" and "\\" in text:
            yield from _json_texts(text)


def _json_texts(text: str) -> Iterator[str]:
    """Yield texts whose characters are escaped."""
    try:
        waiting: list[Any] = [json.loads(text)]
    except ValueError:
        return
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list):
            waiting += value


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
