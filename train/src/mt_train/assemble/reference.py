"""The reference of an objective: what the model of step 0 gives each document, measured once.

At step 0 the model is its own reference, so that nothing else is loaded, and every layout, adapter and quantised base can be one.
What was measured stands in ``reference.safetensors`` of the run's folder, whose hash every checkpoint has: a resumed run, whose weights
have moved, reads it. Another run with the same rows on the same weights finds it in the cache.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor, nn

from mt_core.errors import CheckpointError, ComponentError
from mt_core.files import cache_root, is_remote
from mt_core.model_protocols import HasReference, Objective
from mt_core.nn import Batch
from mt_core.tracking.logs import notice
from mt_train.assemble.base_files import first_paths
from mt_train.assemble.data import RunData, make_held_out
from mt_train.assemble.identity import package_of, refuse_other_data
from mt_train.assemble.parts import Parts
from mt_train.checkpoint.files import replace_bytes
from mt_train.checkpoint.manifest import read_manifest
from mt_train.data.cache_pruning import REFERENCES
from mt_train.data.columns import OF_DOCUMENT
from mt_train.data.file_hashes import MEMORY, file_hash
from mt_train.data.loader import HeldOut
from mt_train.data.samples import EncodedSamples
from mt_train.engine.engine import Engine
from mt_train.engine.plan import Plan
from mt_train.engine.processes import Process, agree, all_reduce, ranks_where, share_text
from mt_train.plugins.lock import code_hash

FILE = "reference.safetensors"
ROWS = "rows"
"""Name of the metadata that has the fingerprints of the rows of each split."""
MAKERS = ("train_model", "objective", "adapter", "quantizer", "encoder", "encoders")
"""Slots whose components, and parts of these, such a value follows from."""
AT_ONCE = 8
"""Batches that are read without a pause, which fill the stages of a pipeline."""

Values = dict[str, NDArray[np.float32]]
"""``SPLIT.NAME`` → a number for each document of the split."""


def with_reference(
    parts: Parts,
    data: RunData,
    engine: Engine,
    *,
    output: Path | None,
    checkpoint: Path | None,
    manifest: Mapping[str, Any] | None,
) -> tuple[RunData, str | None]:
    """The rows with the values of the reference, and their SHA-256; as they are where the objective has none. Collective.

    Of a stream those that are held out: see ``window_reference`` for the others.

    Raises ``CheckpointError`` for a resumed run whose values are gone.
    """
    objective = data.objective
    if not measures(objective):
        return data, None
    both = {"train": data.train, "held_out": data.held_out}
    splits = both if data.stream is None else {"held_out": data.held_out}
    if not any(map(len, splits.values())):
        return data, None
    process = engine.process
    if checkpoint is not None and manifest is not None:
        refuse_other_data(manifest.get("data"), data.fingerprint)
        content = _resumed(checkpoint.parent.parent / FILE, manifest, process)
        values = _of_splits(content, splits, checkpoint.parent.parent / FILE)
    else:
        values = _measured(parts, objective, data, engine, splits)
        content = _content(values, splits)
    if faults := _faults(values, objective, splits):
        raise CheckpointError(
            f"the reference has no finite {', '.join(faults)} for each document: the model of step 0 may be broken. Look at its weights"
            " and its precision, and start a new run"
        )
    if output is not None and process.is_main and checkpoint is None:
        replace_bytes(output / FILE, content)
    train, held_out = (_with_values(samples, split, values) for split, samples in both.items())
    return replace(data, train=train, held_out=held_out), hashlib.sha256(content).hexdigest()


def held_out_with_reference(objective: Objective, samples: EncodedSamples, checkpoint: Path) -> EncodedSamples:
    """The held-out rows of a run with the values that it measured, where its objective has any. Raises ``CheckpointError``."""
    if not measures(objective):
        return samples
    file = checkpoint.parent.parent / FILE
    content = _resumed(file, read_manifest(checkpoint))
    return _with_values(samples, "held_out", _of_splits(content, {"held_out": samples}, file))


def measures(objective: Objective) -> TypeGuard[HasReference]:
    """Return whether an objective has values that the model of step 0 gives documents."""
    return isinstance(objective, HasReference) and bool(objective.reference_values)


def _resumed(file: Path, manifest: Mapping[str, Any], process: Process | None = None) -> bytes:
    """The file that the run wrote. Raises ``CheckpointError``, on every rank of ``process`` where one of them cannot read it."""
    content, problem = b"", ""
    try:
        content = file.read_bytes()
    except OSError as error:
        problem = (
            f"{file} cannot be read ({error.strerror}). It has what the weights of step 0 gave each row, which the trained ones cannot"
            " give again; put it back, or start a new run"
        )
    if not problem and hashlib.sha256(content).hexdigest() != manifest.get("reference"):
        problem = (
            f"{file} is not the one that the checkpoint was trained with: its SHA-256 is another than in the manifest. Put it back, or"
            " start a new run"
        )
    failed = [0] if process is None and problem else ranks_where(bool(problem)) if process is not None else []
    if failed:
        raise CheckpointError(problem if process is None else share_text(problem, source=failed[0]))
    return content


def _content(values: Values, splits: Mapping[str, EncodedSamples]) -> bytes:
    """The file of these values. One key of metadata alone: several would be in another order each time."""
    rows = {split: samples.fingerprint()["sha256"] for split, samples in splits.items() if len(samples)}
    content: bytes = save(values, metadata={ROWS: json.dumps(rows, sort_keys=True)})
    return content


def _of_splits(content: bytes, splits: Mapping[str, EncodedSamples], file: Path) -> Values:
    """The values in a file. Raises ``CheckpointError`` where rows are not those that they were measured on."""
    size = int.from_bytes(content[:8], "little")  # of the header (https://github.com/huggingface/safetensors#format)
    known = json.loads(json.loads(content[8 : 8 + size])["__metadata__"][ROWS])
    for split, samples in splits.items():
        if len(samples) and known.get(split) != samples.fingerprint()["sha256"]:
            what = "their files, the tokenizer" + (" and eval.limit" if split == "held_out" else "")
            raise CheckpointError(
                f"the {split.replace('_', '-')} rows are not those that {file} was measured on. Put back {what}, or start a new run"
            )
    values: Values = load(content)
    return values


def _measured(
    parts: Parts, objective: HasReference, data: RunData, engine: Engine, splits: Mapping[str, EncodedSamples]
) -> Values:
    """The values out of the cache, or measured now. Collective; the same on every rank."""
    process = engine.process
    file = cache_file(parts, splits, engine.plan) if process.is_main else None
    known = _read_cache(file, objective, splits)
    if agree(known is not None or not process.is_main):
        return _share(known, objective, splits, process)
    if process.is_main:
        notice(f"reference: the model of step 0 reads {sum(map(len, splits.values())):,} rows once")
    values: Values = {}
    for split, samples in splits.items():
        if source := make_held_out(parts.config, replace(data, held_out=samples), engine.plan, process):
            found = measure_documents(engine, objective, source)
            values |= {f"{split}.{name}": each for name, each in found.items()}
    if file is not None:
        with suppress(OSError):  # another run measures again
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_bytes(file, _content(values, splits))
    return values


def _share(
    known: Values | None, objective: HasReference, splits: Mapping[str, EncodedSamples], process: Process
) -> Values:
    """Return the values that rank 0 has. Collective."""
    shared: Values = {}
    for name, count in _wanted(objective, splits).items():
        here = np.zeros(count, np.float32) if known is None else known[name]
        shared[name] = all_reduce(torch.from_numpy(here.copy()).to(process.device)).cpu().numpy()
    return shared


def _wanted(objective: HasReference, splits: Mapping[str, EncodedSamples]) -> dict[str, int]:
    """Return how many numbers each ``SPLIT.NAME`` has: one for each document."""
    counts = {split: int(_ends(samples)[-1]) for split, samples in splits.items()}
    return {f"{split}.{name}": count for split, count in counts.items() if count for name in objective.reference_values}


def _ends(samples: EncodedSamples) -> NDArray[np.int64]:
    """Return the ends of each sample's documents among all, after a leading 0."""
    return np.asarray(samples.column("document_ends")) if "documents" in samples.names else np.arange(len(samples) + 1)


def _read_cache(file: Path | None, objective: HasReference, splits: Mapping[str, EncodedSamples]) -> Values | None:
    """Return what an earlier run measured; what cannot be read, or does not fit, is measured again."""
    try:
        values: Values = {} if file is None else load(file.read_bytes())
    except (OSError, SafetensorError):
        return None
    if file is None or _faults(values, objective, splits):
        return None
    with suppress(OSError):  # the cache of somebody else
        os.utime(file)  # used: cleaning goes by it
    return values


def cache_file(parts: Parts, splits: Mapping[str, EncodedSamples], plan: Plan) -> Path | None:
    """Return where such values are kept: under a hash of weights, rows, and all that a forward follows from; ``None`` without a cache."""
    config, train = parts.config, parts.config.train
    if config.data.cache is None:
        return None
    makers = [offer for place, offer in parts.offers.items() if place.replace(":", ".").partition(".")[0] in MAKERS]
    encoders = [reference.as_raw() for place, reference in parts.chosen.items() if place.startswith("encoder:")]
    is_here = config.data.cache != "auto" and not is_remote(config.data.cache)
    folder = Path(config.data.cache).expanduser() if is_here else cache_root()
    told = {
        "rows": {split: samples.fingerprint() for split, samples in splits.items()},
        "model": config.model.as_raw(),
        "weights": [file_hash(path, folder / MEMORY) for path in first_paths(parts)],
        "seed": config.train.seed,
        "numbers": [plan.device, plan.dtype, train.attention, train.tf32, train.matmul, train.kernels],
        "slots": [slot.as_raw() for slot in (config.objective, config.adapter, config.quantizer)] + encoders,
        "code": code_hash("mt_core", "mt_train", *sorted({package_of(each.component.build) for each in makers})),
    }
    key = hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:40]
    return folder / REFERENCES / f"{key}.safetensors"


def measure_documents(engine: Engine, objective: HasReference, source: HeldOut) -> Values:
    """For each name a number for every document of the rows of ``source``, in the order of its samples. Collective."""
    samples = source.samples
    ends, names = _ends(samples), objective.reference_values
    found = {name: np.zeros(int(ends[-1]), np.float64) for name in names}
    batches = source.numbered_batches()
    while window := list(islice(batches, AT_ONCE)):
        waiting = iter(window)

        def reader(hidden: Tensor, head: nn.Module, batch: Batch, waiting: Iterator[Any] = waiting) -> None:
            rows, _ = next(waiting)
            given = measure_batch(objective, hidden, head, batch)
            if batch.counts_items:
                _take(found, given, rows, ends)

        engine.read([batch for _, batch in window], reader)
    whole = all_reduce(torch.from_numpy(np.stack([found[name] for name in names])).to(engine.process.device))
    return dict(zip(names, whole.cpu().numpy().astype(np.float32), strict=True))


def measure_batch(objective: HasReference, hidden: Tensor, head: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    """For each name a number for every document of a batch. Raises ``ComponentError`` for other names than the objective gives."""
    given = objective.measure(hidden, head, batch)
    if given.keys() != set(objective.reference_values):
        raise ComponentError(
            f"the objective measures {sorted(given)}, and names {sorted(objective.reference_values)} (reference_values)"
        )
    return given


def _take(
    found: Mapping[str, NDArray[np.float64]],
    given: Mapping[str, Tensor],
    rows: Sequence[Sequence[int]],
    ends: NDArray[np.int64],
) -> None:
    """Put the numbers of a batch where their documents belong; that of an empty row belongs nowhere."""
    place = 0
    for row in rows or [()]:
        for number in row:
            first, last = int(ends[number]), int(ends[number + 1])
            for name, values in given.items():
                found[name][first:last] = values[place : place + last - first].double().cpu().numpy()
            place += last - first
        place += not row


def _faults(values: Values, objective: HasReference, splits: Mapping[str, EncodedSamples]) -> list[str]:
    """Return the names of which there is not one finite number for each document."""
    wanted = _wanted(objective, splits)
    odd = [name for name, count in wanted.items() if name not in values or values[name].shape != (count,)]
    return odd or [name for name in wanted if not np.isfinite(values[name]).all()]


def _with_values(samples: EncodedSamples, split: str, values: Values) -> EncodedSamples:
    own = {name.removeprefix(f"{split}."): each for name, each in values.items() if name.startswith(f"{split}.")}
    return samples.with_values({OF_DOCUMENT + name: each for name, each in own.items()}) if own else samples
