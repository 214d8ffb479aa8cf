"""What a step of an adapter takes beside one of LoRA with as many trained numbers: processor time, and bytes that are counted.

The model is wider than the one that learns: in small ones a step is the calls of operators more than what they compute.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "adapters"))

import torch
from adapter_page import LORA
from adapter_sizes import RANK, counter, size_of
from catalogue import WHOLE
from learning import ROWS, TAUGHT, TOKENS, Task, batches, begin, text_of, trained_numbers
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from mt_conformance.plain_training import PlainTraining
from mt_core.nn import Batch, TokenObjective

TASK = Task(dim=256, ffn_dim=512, n_layers=4, base_steps=0)
RATE = 1e-4
PAIRS, SKIPPED = 5, 2
"""Steps of each side that are timed, alternating, and those before them: the first ones allocate."""


def settings() -> dict[str, Any]:
    """What costs were measured on."""
    return {"model": TASK.model, "rows": ROWS, "tokens": TOKENS, "pairs": PAIRS, "threads": torch.get_num_threads()}


def costs(name: str) -> dict[str, Any]:
    """Of one adapter: its size here, the median of the ratios of step times and their least and most, and its bytes."""
    wanted = counter(TASK, LORA)({"rank": RANK})
    options = {} if name == WHOLE else dict(size_of(TASK, name, wanted).options)
    ours = begin(TASK, name, options, rate=RATE, seed=0)
    lora = begin(TASK, LORA, {"rank": RANK}, rate=RATE, seed=0)
    rows = list(batches(text_of(TAUGHT), PAIRS + SKIPPED, 0))
    pairs = [(seconds(ours, batch), seconds(lora, batch)) for batch in rows][SKIPPED:]
    ratios = [one / other for one, other in pairs]
    return {
        "options": options,
        "trained": trained_numbers(ours.model),
        "step": round(statistics.median(ratios), 3),
        "step_range": [round(min(ratios), 3), round(max(ratios), 3)],
        "bytes": bytes_kept(ours, rows[0]),
    }


def seconds(training: PlainTraining, batch: Batch) -> float:
    """Of the processor, for a step with all that an adapter does around it."""
    begun_at = time.process_time()
    training.run([batch])
    return time.process_time() - begun_at


def bytes_kept(training: PlainTraining, batch: Batch) -> dict[str, int]:
    """Bytes at the end of a step's forward, after at least one update. What is there for a moment only does not count."""
    model = training.model.train()
    states = [each for state in training.optimizer.state.values() for each in state.values()]
    trained = [each for each in model.parameters() if each.requires_grad]
    return {
        "weights": _bytes([*model.parameters(), *model.buffers()]),
        "gradients": _bytes(trained),
        "optimizer": _bytes(each for each in states if isinstance(each, Tensor)),
        "saved": _saved_bytes(training, batch),
    }


def _saved_bytes(training: PlainTraining, batch: Batch) -> int:
    """What autograd keeps for the backward, but for weights and the rows themselves."""
    found: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = TokenObjective().loss(training.model(batch), training.model.head, batch).loss_sum
    model = training.model
    rows = [batch.input_ids, batch.labels, batch.positions, batch.document_ids]
    there = {_address(each) for each in (*model.parameters(), *model.buffers(), *rows)}
    del loss
    return _bytes(each for each in found if _address(each) not in there)


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Of storages, each once."""
    return sum({_address(each): each.untyped_storage().nbytes() for each in tensors}.values())


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
