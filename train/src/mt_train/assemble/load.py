"""A model to generate with: from a run's checkpoint, or from a folder of weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from os.path import expanduser
from pathlib import Path

import torch

from mt_core.errors import MtError, WeightsError
from mt_core.nn import TrainModel
from mt_core.nn.objective import split_objective_name
from mt_core.protocols import Tokenizer
from mt_core.weights import CONFIG, read_json, text_config
from mt_train.assemble.data import build_tokenizer
from mt_train.assemble.injection import inject, start
from mt_train.assemble.media import media_kinds, media_reader, run_template
from mt_train.assemble.parts import Parts
from mt_train.assemble.weights import averaged_of, pretrained_values, weights_of
from mt_train.checkpoint.manifest import read_manifest
from mt_train.checkpoint.store import verify
from mt_train.engine.build import build_in, build_quantized, fill_model, weight_names
from mt_train.engine.precision import cast_model
from mt_train.engine.processes import Process
from mt_train.generation.loaded_model import LoadedModel
from mt_train.plugins.hub import folder_of
from mt_train.plugins.model_slot import tokenizer_in

GENERATION_CONFIG = "generation_config.json"


def load(
    parts: Parts,
    checkpoint: Path | None,
    say: Callable[[str], None],
    *,
    averaged: str | None = None,
    dtype: str = "fp32",
) -> LoadedModel:
    """Build the model and fill it by name, with the average of a callback where one is named.

    ``dtype`` is the precision of its weights; ``auto`` is that in which the run trained, or the weights are stored, on a GPU, and fp32
    on a CPU. No process group and no DeepSpeed are needed.
    """
    config = parts.config
    tokenizer = _tokenizer(parts, checkpoint)
    eos_ids = end_tokens_of(parts, tokenizer)
    settled = settle_dtype(dtype, parts, checkpoint)
    model = load_model(parts, checkpoint, say, dtype=settled, complete=True, averaged=averaged)
    template, longest = run_template(parts, tokenizer), config.model.options.max_seq_len
    return LoadedModel(
        model,
        tokenizer,
        longest,
        eos_ids,
        template,
        media_reader(parts),
        media_kinds(parts),
        config.model.options.vocab_size,
    )


def load_without_weights(parts: Parts, checkpoint: Path | None) -> LoadedModel:
    """Return all but the values of the model, which takes no memory: for texts that are written elsewhere."""
    from mt_train.engine.meta import on_meta

    tokenizer, options = _tokenizer(parts, checkpoint), parts.config.model.options
    with on_meta():
        model = parts.model()
    eos_ids = end_tokens_of(parts, tokenizer)
    template = run_template(parts, tokenizer)
    kinds, rows = media_kinds(parts), options.vocab_size
    return LoadedModel(model, tokenizer, options.max_seq_len, eos_ids, template, media_kinds=kinds, vocabulary=rows)


def load_model(
    parts: Parts,
    checkpoint: Path | None,
    say: Callable[[str], None],
    *,
    device: torch.device | None = None,
    adapted: bool = True,
    dtype: str = "fp32",
    complete: bool = False,
    averaged: str | None = None,
) -> TrainModel:
    """The model and its adapter, filled; without the adapter where it is not ``adapted``. ``device`` is a GPU where there is one.
    ``averaged`` names a callback whose averages stand for what they are of.

    What an adapter computes from the weights under it comes from fp32. With ``complete``, weights without what the
    objective trains beside the model are a ``WeightsError``: the answers of what was drawn in its place would mean nothing.
    """
    if checkpoint is not None:
        verify(checkpoint)
    process = _process(device)
    model = build_empty(parts, process.device, "fp32" if adapted and parts.adapter_component.rewrites_base else dtype)
    names = weight_names(model)
    source = weights_of(parts, names, say, checkpoint, adapted=True)
    if complete and parts.weights_path is not None:
        _refuse_lacking(parts, [name for name in names if split_objective_name(name) and name not in source])
    fill_model(model, source, seed=parts.config.train.seed, process=process)
    if adapted:
        adapter = inject(parts, model, checkpoint=checkpoint)
        start(parts, model, adapter, names, process=process, checkpoint=checkpoint)
    if dtype != "fp32":
        cast_model(model, dtype)
    if averaged is not None:
        kept = averaged_of(checkpoint, averaged)
        fill_model(model, kept, seed=parts.config.train.seed, process=process, only=set(kept))
    return model.eval()


def _refuse_lacking(parts: Parts, lacking: list[str]) -> None:
    if lacking:
        raise WeightsError(
            f"{parts.weights_path} has no {', '.join(lacking)}, which --objective {parts.config.objective.name} trains beside the model;"
            " give the folder that mt-convert, or mt-export --merge, wrote of such a run"
        )


def load_base(parts: Parts, checkpoint: Path, say: Callable[[str], None]) -> TrainModel:
    """The model that the adapter of a run was put over."""
    process = _process()
    model = build_empty(parts, process.device)
    names = weight_names(model)
    if parts.weights_path is not None:
        source = pretrained_values(parts, parts.config.model, names, say, adapted=True)
    else:
        source = weights_of(parts, names, say, checkpoint, adapted=True)
    fill_model(model, source, seed=parts.config.train.seed, process=process)
    return model.eval()


def settle_dtype(wished: str, parts: Parts, checkpoint: Path | None) -> str:
    """Return the precision of a model's weights where it is not trained (see ``load``)."""
    if wished != "auto":
        return wished
    if _process().device.type == "cpu":
        return "fp32"
    if checkpoint is not None:
        return str(read_manifest(checkpoint)["layout"]["dtype"])
    return "fp32" if parts.weights_path is None else _stored_dtype(parts.weights_path)


def _stored_dtype(weights: Path) -> str:
    """Return the precision that the ``config.json`` of a folder of weights names; fp32 where it names none of ours."""
    config = folder_of(weights) / CONFIG
    if not config.is_file():
        return "fp32"
    content = text_config(read_json(config))
    named = content.get("dtype", content.get("torch_dtype"))  # transformers 5 and before
    return {"bfloat16": "bf16", "float16": "fp16"}.get(str(named), "fp32")


def _process(device: torch.device | None = None) -> Process:
    return Process(0, 1, 0, device or torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def build_empty(parts: Parts, device: torch.device, dtype: str = "fp32") -> TrainModel:
    """Build the model without its adapter, values still arbitrary. Beside quantized weights the others are in fp32."""
    quantizer = parts.quantizer()
    if quantizer is not None:
        return build_quantized(parts.model, quantizer, device)
    # Layers draw values of their own before they are filled: not from the generator of the program that loads.
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        if dtype != "fp32":
            return build_in(dtype, parts.model, device)
        with device:
            return parts.model()


def _tokenizer(parts: Parts, checkpoint: Path | None) -> Tokenizer:
    try:
        return build_tokenizer(parts)
    except MtError as error:
        path = getattr(parts.config.tokenizer.options, "path", None)
        if checkpoint is None or path is None or Path(expanduser(path)).exists():
            raise
        raise MtError(
            f"the run's tokenizer, {parts.config.tokenizer.name} at {path}, is gone; give where it is now with"
            " --tokenizer-path PATH (mt-generate) or --tokenizer.path PATH (mt-eval), or put it back there"
        ) from error


def end_tokens_of(parts: Parts, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids that end a text of a run, as ``end_tokens`` does."""
    own = has_tokenizer_of_weights(parts)
    return end_tokens(tokenizer, parts.weights_path, parts.config.model.options.vocab_size, own=own)


def has_tokenizer_of_weights(parts: Parts) -> bool:
    """Return whether a run's tokenizer is the one beside the weights that it began with, where there is one."""
    place = parts.weights_path
    beside = None if place is None else tokenizer_in(folder_of(place))
    if beside is None:
        return True
    path = getattr(parts.config.tokenizer.options, "path", None)
    files = [_tokenizer_file(Path(expanduser(each))) for each in (path, beside["path"]) if each is not None]
    return len(files) == 2 and (files[0].resolve() == files[1].resolve() or _have_same_bytes(*files))


def _tokenizer_file(path: Path) -> Path:
    return path / "tokenizer.json" if path.is_dir() else path


def _have_same_bytes(one: Path, other: Path) -> bool:
    return one.is_file() and other.is_file() and one.read_bytes() == other.read_bytes()


def end_tokens(
    tokenizer: Tokenizer, weights: str | Path | None, vocabulary: int, *, own: bool = True
) -> tuple[int, ...]:
    """The tokenizer's end token, and those that a ``generation_config.json`` beside the weights adds (an end of turn).

    ``own``: the tokenizer is that of the weights. In another one the file's ids may be any text, and only special tokens count.
    """
    ends = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
    file = None if weights is None else folder_of(Path(weights)) / GENERATION_CONFIG
    if file is None or not file.is_file():
        return tuple(ends)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        given = content.get("eos_token_id")
    except (OSError, ValueError, AttributeError) as error:
        raise WeightsError(f"{file} is not a JSON mapping ({error}); repair it, or remove it") from error
    listed = given if isinstance(given, list) else [] if given is None else [given]
    if wrong := [token for token in listed if type(token) is not int or not 0 <= token < vocabulary]:
        raise WeightsError(
            f"{file} has eos_token_id {wrong[0]!r}, which is no id of the {vocabulary} tokens; correct it"
        )
    added = [token for token in listed if own or not tokenizer.decode([token])]
    return tuple(dict.fromkeys([*ends, *added]))
