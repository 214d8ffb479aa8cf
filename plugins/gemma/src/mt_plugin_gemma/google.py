"""Gemma in Google's own format for PyTorch: one ``.ckpt`` file, or shards with an index, and no config.

Source: ``load_weights`` and the module names of https://github.com/google/gemma_pytorch/blob/main/gemma/model.py (text) and
gemma3_model.py (which also sees images). The norms, the embedding's scale and the halves of rotary positions are those of
Hugging Face's checkpoints; queries, keys and values are one matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mt_core import WeightsError, WeightsFormat
from mt_core.weights import CONFIG, Loaders, check_file, contained_file, open_pickle, read_json

from .config import GemmaConfig
from .notices import say_vision
from .shapes import EMBEDDING
from .variants import VARIANTS

if TYPE_CHECKING:
    from torch import Tensor

INDEX = "pytorch_model.bin.index.json"
WITHIN = "model_state_dict"
"""Key of a ``.ckpt`` that holds the tensors; shards hold them themselves."""

_EMBEDDINGS = ("embedder.weight", "text_token_embedder.weight")
_RENAMED = {"query_norm": "q_norm", "key_norm": "k_norm"}
_JOINED = "qkv_proj"
_VISION = ("siglip_vision_model.", "mm_soft_embedding_norm.", "mm_input_projection.")
_DERIVED = ("freqs_cis", "local_freqs_cis", "global_freqs_cis")
_SHAPES = {(size["generation"], size["n_layers"]): size for name, size in VARIANTS.items() if not name.endswith("tiny")}
"""A checkpoint has no config, and no two published sizes of a generation have as many blocks."""


class _PickleContent(NamedTuple):
    """Content of a pickle, read without loading it."""

    names: frozenset[str]
    vocabulary: int


def matches(path: Path) -> bool:
    """A ``.ckpt`` file, a folder with one, or shards with an index where there is no config."""
    if path.is_file():
        return path.suffix == ".ckpt"
    return len(list(path.glob("*.ckpt"))) == 1 or ((path / INDEX).is_file() and not (path / CONFIG).exists())


def values(path: Path) -> Mapping[str, Any]:
    """The published size that has these tensors. Raises ``WeightsError`` for one that is not known, or has int8 weights."""
    seen = [_scan(file) for file in _files(path)]
    names = frozenset[str]().union(*(each.names for each in seen))
    if scaled := sorted(name for name in names if name.endswith("weight_scaler")):
        raise WeightsError(f"{path} has int8 weights ({scaled[0]}, …); use the checkpoint without -quant in its name")
    size = _SHAPES.get((generation := _generation(names), blocks := _blocks(names)))
    if size is None:
        known = ", ".join(f"{count} (Gemma {number})" for number, count in sorted(_SHAPES))
        raise WeightsError(
            f"{path} has {blocks} blocks of Gemma {generation}; published are {known}. Is this another model?"
        )
    vocabulary = max(each.vocabulary for each in seen)
    if not vocabulary:
        raise WeightsError(f"{path} has none of {', '.join(_EMBEDDINGS)}; is this another model?")
    return {**size, "vocab_size": vocabulary}


def tensors(path: Path, config: GemmaConfig) -> Loaders:
    """One loader a parameter of the text model; what sees images is left out, which is said."""
    found: Loaders = {}
    for file in _files(path):
        found |= open_pickle(file, within=WITHIN if file.suffix == ".ckpt" else None)
    vision = [name for name in found if name.startswith(_VISION)]
    if vision:
        say_vision(path, len(vision), [f"{prefix}*" for prefix in _VISION])
    text = {name: load for name, load in found.items() if not name.startswith((*_VISION, *_DERIVED))}
    return {ours: load for name, each in text.items() for ours, load in _ours(name, each, config)}


def _files(path: Path) -> list[Path]:
    """The files of weights, each whole. Raises ``WeightsError`` for one that is missing or cut short."""
    if path.is_file():
        files = [contained_file(path.parent, path.name)]
    elif single := sorted(path.glob("*.ckpt")):
        files = [contained_file(path, single[0].name)]
    else:
        where = read_json(path / INDEX).get("weight_map")
        if not isinstance(where, dict) or not all(isinstance(name, str) for name in where.values()):
            raise WeightsError(f"{path / INDEX} has no weight_map of names to files; fetch it again")
        files = [contained_file(path, name) for name in sorted(set(where.values()))]
    for file in files:
        check_file(file)
    return files


def _scan(path: Path) -> _PickleContent:
    """The names in a pickle, and the rows of the embedding, from its opcodes: nothing is executed, and no torch is needed."""
    names: list[str] = []
    numbers: list[int] = []
    vocabulary, is_embedding = 0, False
    for opcode, argument in _opcodes(path):
        if opcode in ("BINUNICODE", "SHORT_BINUNICODE"):
            names.append(argument)
            is_embedding = is_embedding or argument in _EMBEDDINGS
        elif opcode == "BINPERSID":  # the storage; an offset, the shape and the strides follow
            numbers = []
        elif isinstance(argument, int) and opcode.startswith("BININT"):
            numbers.append(argument)
        elif opcode == "TUPLE2" and is_embedding and len(numbers) == 3:
            vocabulary, is_embedding = numbers[1], False
    return _PickleContent(frozenset(names), vocabulary)


def _opcodes(path: Path) -> Iterator[tuple[str, Any]]:
    import pickletools
    import zipfile  # here: every command imports this module

    try:
        with zipfile.ZipFile(path) as archive:
            (inner,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
            content = archive.read(inner)
        yield from ((opcode.name, argument) for opcode, argument, _ in pickletools.genops(content))
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        raise WeightsError(
            f"cannot read {path}: {error}; is it a file that torch.save wrote? Fetch it again"
        ) from error


def _generation(names: frozenset[str]) -> int:
    if any(".query_norm." in name for name in names):
        return 3
    return 2 if any(".pre_feedforward_layernorm." in name for name in names) else 1


def _blocks(names: frozenset[str]) -> int:
    return len({name.split(".")[2] for name in names if name.startswith("model.layers.")})


def _ours(name: str, load: Callable[[], Tensor], config: GemmaConfig) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """The parameters that a tensor of theirs holds."""
    if name in _EMBEDDINGS:
        yield EMBEDDING, load
    elif f".{_JOINED}." in name:
        rows = {"q_proj": config.n_heads, "k_proj": config.n_kv_heads, "v_proj": config.n_kv_heads}
        start = 0
        for part, heads in rows.items():
            end = start + heads * config.head_dim
            yield name.replace(_JOINED, part), partial(_rows, load, start, end)
            start = end
    else:
        yield ".".join(_RENAMED.get(part, part) for part in name.split(".")), load


def _rows(load: Callable[[], Tensor], start: int, end: int) -> Tensor:
    return load()[start:end]


GOOGLE = WeightsFormat(name="google", matches=matches, values=values, tensors=tensors)
