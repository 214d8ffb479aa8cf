"""What a run is about to do, before its first step."""

from __future__ import annotations

from collections import Counter

import torch

from mt_core.assemble.data import RunData
from mt_core.engine.engine import Engine
from mt_core.nn import Batch
from mt_core.plugins.resolve import Resolved
from mt_core.protocols import Tokenizer

EXAMPLE_CHARACTERS = 160


def describe_run(resolved: Resolved, engine: Engine, data: RunData, total_steps: int) -> str:
    """A few aligned lines: model, parameters, data, layout, device, attention."""
    config, model = resolved.config, engine.module.model
    lines = [
        (
            "model",
            f"{config.model.name} {config.model.source.variant or ''} from {resolved.offers['model'].plugin.label}",
        ),
        *(("parameters", line) for line in parameter_lines(engine)),
        ("training", data.train.report.describe()),
        ("held out", data.held_out.report.describe() if len(data.held_out) else "nothing"),
        ("example", _example(data)),
        ("layout", engine.plan.describe()),
        ("device", _device(engine)),
        ("attention", repr(model.attention)),
        ("steps", f"{total_steps:,} optimizer steps of {config.train.sequence_len} tokens a row"),
    ]
    return "\n".join(f"{title:<11}{' '.join(text.split())}" for title, text in lines)


def parameter_lines(engine: Engine) -> list[str]:
    """``tok: 690,000 fp32 trained (2.6 MiB)``, one line a dtype and state."""
    counts: Counter[tuple[str, bool]] = Counter()
    sizes: Counter[tuple[str, bool]] = Counter()
    for _, parameter in engine.named_parameters():
        key = str(parameter.dtype).removeprefix("torch."), parameter.requires_grad
        number = int(getattr(parameter, "ds_numel", parameter.numel()))
        counts[key] += number
        sizes[key] += number * parameter.element_size()
    return [
        f"{counts[key]:,} {key[0]}, {'trained' if key[1] else 'frozen'}, {sizes[key] / 2**20:,.1f} MiB"
        for key in sorted(counts)
    ]


def _example(data: RunData) -> str:
    """The first sample as text, the trained part between « and »."""
    sample = data.train[0]
    batch = data.objective.collate([[sample]], length=max(2, len(sample.ids)))
    return render(batch, data.tokenizer)


def render(batch: Batch, tokenizer: Tokenizer) -> str:
    """The first row of a batch as text; tokens that are predicted stand between « and »."""
    ids = batch.input_ids[0].tolist()
    trained = [False, *(batch.labels[0] != -100).tolist()[:-1]]
    text, start = "", 0
    while start < len(ids) and len(text) < EXAMPLE_CHARACTERS:
        end = start
        while end < len(ids) and trained[end] == trained[start]:
            end += 1
        piece = tokenizer.decode(ids[start:end])
        piece = piece if len(piece) <= EXAMPLE_CHARACTERS else piece[:EXAMPLE_CHARACTERS] + "…"
        text += f"«{piece}»" if trained[start] else piece
        start = end
    return text


def _device(engine: Engine) -> str:
    device = engine.process.device
    if device.type == "cuda":
        return f"{engine.process.world} × {torch.cuda.get_device_name(device)}"
    return f"CPU, {torch.get_num_threads()} threads a process"
