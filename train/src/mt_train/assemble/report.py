"""The report of what a run is about to do, before its first step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from mt_core.groups import is_of_media, whole_shape
from mt_core.nn import Batch, TrainModel
from mt_core.protocols import Tokenizer
from mt_core.rows import Sample
from mt_train.assemble.data import RunData
from mt_train.assemble.description import about_start
from mt_train.assemble.parameter_names import describe_trained
from mt_train.assemble.parts import Parts
from mt_train.assemble.reach import adapter_reach, describe_adapter, quantizer_warnings
from mt_train.config.data import DataConfig
from mt_train.config.run import RunConfig
from mt_train.data.online import CollectsAnswers
from mt_train.data.row_statistics import RowStatistics
from mt_train.data.sample_text import excerpt, names_of, parts_of
from mt_train.engine.build import stored_layers
from mt_train.engine.engine import Engine
from mt_train.engine.group_sizes import GroupSize
from mt_train.engine.plan import Plan
from mt_train.tracking.loss_units import loss_unit_of

EXAMPLE_CHARACTERS = 160


def describe_run(about: Mapping[str, Any], data: RunData) -> str:
    """Describe a run for people, in a few aligned lines. ``about`` is what ``about_run`` returns."""
    lines = [
        ("model", about["model"]),
        *(("parameters", _parameters(part)) for part in about["parameters"]),
        *(("media" if not number else "", describe_media_part(part)) for number, part in enumerate(about["media"])),
        *([("adapter", describe_adapter(about["adapter"]))] if about["adapter"] else []),
        *(("groups" if not number else "", str(GroupSize(**group))) for number, group in enumerate(about["groups"])),
        *([("trained", ", ".join(about["trained"]["names"]))] if about["trained"]["chosen"] else []),
        ("training", data.train.report.describe()),
        *(("", text) for text in data.train.report.describe_sources()),
        ("held out", about["held_out"]),
        ("batching", about["batching"]),
        ("example", about["example"]),
        ("layout", about["layout"]),
        *((f"stage {number}", text) for number, text in enumerate(about["stages"])),
        ("device", about["device"]),
        ("attention", about["attention"]),
        ("steps", f"{about['total_steps']:,} optimizer steps of {about['sequence_len']} tokens a row"),
    ]
    return "\n".join(f"{title:<11}{' '.join(text.split())}" for title, text in lines)


def _parameters(part: Mapping[str, Any]) -> str:
    """``783,488 float32, trained, 3.0 MiB``."""
    state = "trained" if part["trained"] else "frozen"
    return f"{part['count']:,} {part['dtype']}, {state}, {part['bytes'] / 2**20:,.1f} MiB"


def describe_media_part(part: Mapping[str, Any]) -> str:
    """``clip.encoder 86,192,128 parameters, frozen``; where some are trained, how many."""
    trained, count = part["trained"], part["count"]
    state = "frozen" if not trained else "trained" if trained == count else f"{trained:,} of them trained"
    return f"{part['name']} {count:,} parameters, {state}"


def media_parts(model: TrainModel) -> list[dict[str, Any]]:
    """Return how many parameters each encoder of media and each projector has, and how many of them are trained."""
    counts: Counter[str] = Counter()
    trained: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        if is_of_media(name):
            part = ".".join(name.split(".")[1:3])
            counts[part] += math.prod(whole_shape(parameter))
            trained[part] += math.prod(whole_shape(parameter)) * parameter.requires_grad
    return [{"name": part, "count": count, "trained": trained[part]} for part, count in counts.items()]


def parameter_counts(engine: Engine) -> list[dict[str, Any]]:
    """Parameters and their bytes by dtype and whether they are trained."""
    counts: Counter[tuple[str, bool]] = Counter()
    sizes: Counter[tuple[str, bool]] = Counter()
    for _, layer in stored_layers(engine.module.model):
        counts["quantized", False] += layer.in_features * layer.out_features
        sizes["quantized", False] += layer.stored_bytes
    for _, parameter in engine.module.model.named_parameters():
        key = str(parameter.dtype).removeprefix("torch."), parameter.requires_grad
        number = math.prod(whole_shape(parameter))
        counts[key] += number
        sizes[key] += number * parameter.element_size()
    return [
        {"dtype": dtype, "trained": trained, "count": counts[dtype, trained], "bytes": sizes[dtype, trained]}
        for dtype, trained in sorted(counts)
    ]


def about_run(parts: Parts, engine: Engine, data: RunData, total_steps: int) -> dict[str, Any]:
    """Model, parameters, data, layout, device, attention: the content of ``about.json``."""
    config = parts.config
    quantized = [] if parts.quantizer() is None else quantizer_warnings(config.quantizer.name, engine.module.model)
    return about_start(parts) | {
        "parameters": parameter_counts(engine),
        "media": media_parts(engine.module.model),
        "adapter": adapter_reach(config.adapter.name, engine.module.model),
        "groups": [asdict(group) for group in engine.groups],
        "trained": describe_trained(engine.module.model, config.train),
        "data": {
            "train": data.train.report.as_dict(),
            "held_out": data.held_out.report.as_dict() if len(data.held_out) else None,
        },
        "held_out": describe_held_out(config, data),
        "warnings": [*warnings(config, data, engine.plan), *quantized],
        "batching": describe_batching(config.data, data.train.report),
        "example": example(data),
        "layout": engine.plan.describe(),
        "stages": list(engine.stages),
        "device": _device(engine),
        "attention": repr(engine.module.model.attention),
        "total_steps": total_steps,
        "loss_unit": loss_unit_of(data.objective),
        "sequence_len": config.train.sequence_len,
    }


def describe_held_out(config: RunConfig, data: RunData) -> str:
    """Describe the rows that are evaluated, and the limit that there is for them."""
    limit = "" if config.eval.limit is None else f"; eval.limit is {config.eval.limit:,}"
    return f"{data.held_out.report.describe()}{limit}" if len(data.held_out) else "nothing"


def describe_batching(data: DataConfig, report: RowStatistics) -> str:
    """``packing (best_fit), which fills 98.1% of the places in a row (padding to a multiple of 8: 63.2%)``."""
    names = {"packing": f"packing ({data.packing})", "padding": f"padding to a multiple of {data.pad_multiple}"}
    shares = {kind: f"{100 * share:.1f}%" for kind, share in report.filled.items()}
    chosen = shares.pop(str(data.batching))
    others = ", ".join(f"{names[kind]}: {share}" for kind, share in shares.items())
    return f"{names[str(data.batching)]}, which fills {chosen} of the places in a row ({others})"


def warnings(config: RunConfig, data: RunData, plan: Plan) -> list[str]:
    """Return the warnings of a run: what its rows show, and that they do not fill one optimizer step."""
    wanted, samples = plan.global_batch_size, len(data.train)
    fills = config.data.batching == "packing" or samples >= wanted or data.stream is not None
    if fills or isinstance(data.objective, CollectsAnswers):  # there a step has answers, whatever the number of prompts
        return data.findings
    few = (
        f"training: {samples} samples do not fill one optimizer step of {wanted} rows, so that each step is an epoch and has"
        " empty rows; add rows, or set --train.micro-batch-size and --train.global-batch-size lower"
    )
    return [*data.findings, few]


def example(data: RunData) -> str:
    """The first sample as text, the trained part between « and ». Of several documents each has a line, and their prompt one before."""
    sample = data.train[0]
    if sample.media:
        return _with_media(sample, data)
    batch = data.objective.collate([[sample]], length=max(2, len(sample.ids)))
    if not sample.documents:
        return render(batch, data.tokenizer)
    ids, trained = _row(batch)
    documents = [(ids[each], trained[each]) for each in sample.spans]
    prompts = [ids[: trained.index(True) if True in trained else 0] for ids, trained in documents]
    shared = len(prompts[0]) if all(each == prompts[0] for each in prompts) else 0
    before = [f"prompt: {_mark_trained(prompts[0], [False] * shared, data.tokenizer)}"] if shared else []
    answers = (_mark_trained(ids[shared:], trained[shared:], data.tokenizer) for ids, trained in documents)
    names = names_of(data.objective, sample)
    return "\n".join([*before, *(f"{name}: {text}" for name, text in zip(names, answers, strict=True))])


def _with_media(sample: Sample, data: RunData) -> str:
    """The sample with a word for each of its media."""
    describe = data.train.reader.describe if data.train.reader is not None else None
    parts = excerpt(parts_of(sample, data.tokenizer, *([describe] if describe else [])), EXAMPLE_CHARACTERS)
    return "".join(f"«{part.text}»" if part.trained else part.text for part in parts)


def render(batch: Batch, tokenizer: Tokenizer) -> str:
    """The first row of a batch as text; tokens that are predicted stand between « and ».

    A tokenizer with a ``show`` of its own spells out special tokens, which would hide a wrong template otherwise.
    """
    return _mark_trained(*_row(batch), tokenizer)


def _row(batch: Batch) -> tuple[list[int], list[bool]]:
    """Ids of the first row, and which of them are predicted."""
    return batch.input_ids[0].tolist(), [False, *(batch.labels[0] != -100).tolist()[:-1]]


def _mark_trained(ids: Sequence[int], trained: Sequence[bool], tokenizer: Tokenizer) -> str:
    decode: Callable[[Sequence[int]], str] = getattr(tokenizer, "show", tokenizer.decode)
    text, start = "", 0
    while start < len(ids) and len(text) < EXAMPLE_CHARACTERS:
        end = start
        while end < len(ids) and trained[end] == trained[start]:
            end += 1
        piece = decode(ids[start:end])
        piece = piece if len(piece) <= EXAMPLE_CHARACTERS else piece[:EXAMPLE_CHARACTERS] + "…"
        text += f"«{piece}»" if trained[start] else piece
        start = end
    return text


def _device(engine: Engine) -> str:
    device = engine.process.device
    if device.type == "cuda":
        return f"{engine.process.world} × {torch.cuda.get_device_name(device)}"
    return f"CPU, {torch.get_num_threads()} threads a process"
