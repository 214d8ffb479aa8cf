"""One GGUF file from a Hugging Face folder, a tensor at a time, and whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core.errors import UsageError, WeightsError
from mt_core.files.writing import sync
from mt_core.weights import CONFIG, Loaders, open_folder, read_json
from mt_tools.convert.chat_template import read_template
from mt_tools.convert.disk import check_room, tell_full_disk
from mt_tools.convert.gguf.architectures import (
    GgufArchitecture,
    architecture_of,
    frequency_factors,
    model_keys,
    scaling_keys,
)
from mt_tools.convert.gguf.ends import say_ends
from mt_tools.convert.gguf.vocabulary import GgufVocabulary, read_vocabulary
from mt_tools.convert.writing import check_free

if TYPE_CHECKING:
    import numpy
    from torch import Tensor

TYPES = ("fp32", "bf16", "q8_0")
"""How weights are written. Vectors (norms, biases) are in fp32 in all of them; ``q8_0`` has 32 numbers of 8 bits and their scale."""
BLOCK = 32
"""Numbers that share a scale in ``q8_0``; rows that are no multiple of it are in fp16 there, as llama.cpp writes them."""
Say = Callable[[str], None]


def find_gguf() -> None:
    """Raise ``UsageError`` where the package that writes the format is not installed."""
    if find_spec("gguf") is None:
        raise UsageError("--gguf needs the package gguf: pip install 'mt-tools[gguf]'")


def check_source(config: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` for a config that no GGUF file has, before anything is written."""
    architecture_of(config)
    scaling_keys(config)


def write_gguf(folder: Path, file: Path, kind: str, say: Say) -> None:
    """Write ``file`` from a folder. Raises ``UsageError`` for a model or tokenizer that llama.cpp reads otherwise.

    Raises ``WeightsError`` for a full disk.
    """
    from gguf import GGUFWriter

    config = read_json(folder / CONFIG)
    architecture = architecture_of(config)
    vocabulary = read_vocabulary(folder, config["vocab_size"])
    named = _named(folder, config, architecture)
    check_free(file)
    stage = file.with_name(f"{file.name}.partial")
    try:
        writer = GGUFWriter(str(stage), architecture.name)
        _write_keys(writer, folder, config, architecture, vocabulary, kind, say)
        plans = {name: _plan(load(), kind) for name, load in named.items()}
        for name, (shape, dtype, size, raw) in plans.items():
            writer.add_tensor_info(name, shape, dtype, size, raw_dtype=raw)
        total = sum(size for _, _, size, _ in plans.values())
        check_room(stage.parent, total)
        with tell_full_disk(stage, total):
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for load in named.values():
                writer.write_tensor_data(_values(load(), kind))
            writer.close()
            sync(stage)
        os.replace(stage, file)
    except BaseException:
        stage.unlink(missing_ok=True)
        raise


def _named(folder: Path, config: Mapping[str, Any], architecture: GgufArchitecture) -> Loaders:
    """Return the tensors by llama.cpp's names, as it takes them. Raises ``WeightsError`` for one that it has no name for."""
    import gguf
    import torch

    code = next(each for each, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture.name)
    names = gguf.get_tensor_name_map(code, config["num_hidden_layers"])
    found: Loaders = {}
    for own, load in sorted(open_folder(folder).items()):
        name = names.get_name(own, try_suffixes=(".weight", ".bias"))
        if name is None:
            raise WeightsError(f"{folder} has the tensor {own}, for which llama.cpp's {architecture.name} has no name")
        found[name] = _as_there(own, load, config, architecture)
    factors = frequency_factors(config)
    if factors is not None:
        found["rope_freqs.weight"] = lambda: torch.tensor(factors)
    return found


def _as_there(
    own: str, load: Callable[[], Tensor], config: Mapping[str, Any], architecture: GgufArchitecture
) -> Callable[[], Tensor]:
    heads = config["num_attention_heads"]
    for part, count in (("q_proj", heads), ("k_proj", config.get("num_key_value_heads") or heads)):
        if architecture.permutes and f".{part}." in own:
            return lambda: _neighbours(load(), count)
    if architecture.adds_one and own.endswith("norm.weight"):
        return lambda: load().float() + 1
    return load


def _neighbours(weight: Tensor, heads: int) -> Tensor:
    """Rows of each head from halves that are turned together, (2, half), to neighbours, (half, 2)."""
    rows = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return rows.transpose(1, 2).reshape(weight.shape)


def _plan(tensor: Tensor, kind: str) -> tuple[tuple[int, ...], Any, int, Any]:
    """Return shape, dtype and bytes of what is written, and llama.cpp's type of it."""
    import numpy
    from gguf import GGMLQuantizationType, quants

    raw = _raw_type(tensor, kind)
    shape = tuple(tensor.shape)
    if raw in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
        dtype = numpy.dtype(numpy.float32 if raw == GGMLQuantizationType.F32 else numpy.float16)
        return shape, dtype, tensor.numel() * dtype.itemsize, None
    in_bytes = quants.quant_shape_to_byte_shape(shape, raw)
    size = 1
    for each in in_bytes:
        size *= each
    return tuple(in_bytes), numpy.dtype(numpy.uint8), size, raw


def _raw_type(tensor: Tensor, kind: str) -> Any:
    from gguf import GGMLQuantizationType

    if tensor.dim() < 2 or kind == "fp32":
        return GGMLQuantizationType.F32
    if kind == "bf16":
        return GGMLQuantizationType.BF16
    return GGMLQuantizationType.F16 if tensor.shape[-1] % BLOCK else GGMLQuantizationType.Q8_0


def _values(tensor: Tensor, kind: str) -> numpy.ndarray[Any, Any]:
    from gguf import quants

    return quants.quantize(tensor.float().contiguous().numpy(), _raw_type(tensor, kind))  # type: ignore[no-any-return]


def _write_keys(
    writer: Any,
    folder: Path,
    config: Mapping[str, Any],
    architecture: GgufArchitecture,
    vocabulary: GgufVocabulary,
    kind: str,
    say: Say,
) -> None:
    from gguf import LlamaFileType

    types = {"fp32": LlamaFileType.ALL_F32, "bf16": LlamaFileType.MOSTLY_BF16, "q8_0": LlamaFileType.MOSTLY_Q8_0}
    writer.add_name(folder.name)
    writer.add_file_type(types[kind])
    if kind == "q8_0":
        writer.add_quantization_version(2)
    for key, value in {**model_keys(config, architecture), **scaling_keys(config)}.items():
        _ADD[type(value)](writer, f"{architecture.name}.{key}", value)
    _write_vocabulary(writer, vocabulary)
    _write_special_ids(writer, folder, config, vocabulary, say)
    template = read_template(folder)
    if template is None:
        say(
            "notice: the folder has no chat template; llama.cpp writes conversations as ChatML unless it is told another"
        )
    else:
        writer.add_chat_template(template)


_ADD: Mapping[type, Callable[[Any, str, Any], None]] = {
    int: lambda writer, key, value: writer.add_uint32(key, value),
    float: lambda writer, key, value: writer.add_float32(key, value),
    str: lambda writer, key, value: writer.add_string(key, value),
}


def _write_vocabulary(writer: Any, vocabulary: GgufVocabulary) -> None:
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(list(vocabulary.tokens))
    writer.add_token_types(list(vocabulary.types))
    if vocabulary.merges:
        writer.add_token_merges(list(vocabulary.merges))
    if vocabulary.scores:
        writer.add_token_scores(list(vocabulary.scores))
        writer.add_add_space_prefix(vocabulary.add_space_prefix)


def _write_special_ids(
    writer: Any, folder: Path, config: Mapping[str, Any], vocabulary: GgufVocabulary, say: Say
) -> None:
    """Write the ids that begin and end a text, and whether a text gets them; llama.cpp has two that end one."""
    from transformers import AutoTokenizer

    from mt_tools.convert.folder import GENERATION_CONFIG

    file = folder / GENERATION_CONFIG
    ends = (read_json(file) if file.is_file() else {}).get("eos_token_id", config.get("eos_token_id"))
    listed = ends if isinstance(ends, list) else [] if ends is None else [ends]
    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    begin = config.get("bos_token_id")
    ids = list(tokenizer("a")["input_ids"])
    if begin is not None:
        writer.add_bos_token_id(begin)
    if listed:
        writer.add_eos_token_id(listed[0])
    if len(listed) > 1:
        writer.add_eot_token_id(listed[1])
    say_ends(vocabulary, listed, say)
    if config.get("pad_token_id") is not None:
        writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(begin is not None and ids[:1] == [begin])
    writer.add_add_eos_token(bool(listed) and ids[-1:] == listed[:1])
