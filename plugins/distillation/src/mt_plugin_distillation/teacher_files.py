"""Files that a teacher is read from: how large they are, and whether they are still the same. Torch is not imported."""

from __future__ import annotations

import hashlib
from pathlib import Path

RUN_FILE = "run.yaml"
"""File that every folder of a run has."""
CHECKPOINTS, LATEST, MANIFEST = "checkpoints", "latest", "manifest.json"
_WEIGHTS = (".safetensors", ".bin", ".pth", ".pt", ".gguf")
_READ_AT_ONCE = 1 << 22


def checkpoint_of(run: Path, which: str | int) -> Path:
    """Return the checkpoint of a run that ``last`` or a step means; ``best`` and what is not there are the run's folder itself."""
    folder = run / CHECKPOINTS
    if str(which) == "last" and (folder / LATEST).is_file():
        return folder / (folder / LATEST).read_text(encoding="utf-8").strip()
    step = folder / f"step-{int(which):08d}" if str(which).isdigit() else None
    return step if step is not None and step.is_dir() else run


def weight_bytes(path: Path, which: str | int) -> int:
    """Return the bytes of the teacher's weights; those of the last checkpoint where it is not known which is the best."""
    if (path / RUN_FILE).is_file():
        found = checkpoint_of(path, which)
        path = (checkpoint_of(path, "last") if found == path else found) / "model"
    return sum(each.stat().st_size for each in path.glob("*") if each.suffix in _WEIGHTS)


def teacher_digest(path: Path, which: str | int) -> str:
    """Return a hash of all that the teacher is: of a run the manifest of its checkpoint, which has the hashes of its files."""
    if (path / RUN_FILE).is_file():
        manifest = checkpoint_of(path, which) / MANIFEST
        files = [manifest] if manifest.is_file() else sorted((path / CHECKPOINTS).glob(f"*/{MANIFEST}"))
    else:
        files = sorted(each for each in path.iterdir() if each.suffix in (*_WEIGHTS, ".json"))
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name}\n{_sha256(file)}\n".encode())
    return digest.hexdigest()


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while content := stream.read(_READ_AT_ONCE):
            digest.update(content)
    return digest.hexdigest()
