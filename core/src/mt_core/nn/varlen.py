"""Attention over packed rows by torch's variable-length flash kernel, whichever of its signatures is installed.

torch 2.10 has the kernel without ``scale``, ``window_size`` and ``enable_gqa``, 2.11 without the last; 2.9 has none.

Shapes: B rows, T tokens, N query heads, K key/value heads, H head width.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mt_core.nn.batch import DocumentLengths
from mt_core.nn.blocks import Form


def varlen_kernel() -> Callable[..., Any] | None:
    """The installed torch's; ``None`` where it has none."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn


def varlen(q_BTNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor, lengths: DocumentLengths, form: Form) -> Tensor | None:
    """Attend over all documents of all rows in one call; ``None`` where the installed kernel cannot do it, and another way has to.

    What the kernel has no argument for is done to its inputs: heads are repeated, and queries scaled.
    """
    kernel = varlen_kernel()
    flat = [length for row in lengths for length in row]
    longest = max(flat)
    known = frozenset(inspect.signature(kernel).parameters) if kernel is not None else frozenset()
    reach = _reach(known, None if form.window is None or form.window >= longest else form.window)
    if kernel is None or reach is None:
        return None
    options = dict(reach)
    if "scale" in known:
        options["scale"] = form.scale
    elif form.scale is not None:
        q_BTNH = q_BTNH * (form.scale * math.sqrt(q_BTNH.shape[-1]))  # the kernel's own is 1 / sqrt(H)
    times = q_BTNH.shape[2] // k_BTKH.shape[2]
    if "enable_gqa" in known:
        options["enable_gqa"] = times > 1
    elif times > 1:
        k_BTKH, v_BTKH = (x.repeat_interleave(times, 2) for x in (k_BTKH, v_BTKH))
    bounds = torch.tensor([0, *flat], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    bounds = bounds.to(q_BTNH.device, non_blocking=True)
    columns = (x.flatten(0, 1) for x in (q_BTNH, k_BTKH, v_BTKH))
    out = kernel(*columns, bounds, bounds, longest, longest, **options)
    assert isinstance(out, Tensor), "without return_aux the kernel returns one tensor"
    return out.view_as(q_BTNH)


def _reach(known: frozenset[str], window: int | None) -> dict[str, Any] | None:
    """Return how to say that a token sees those before it, in its window; ``None`` where there is no way to."""
    if "window_size" in known:
        return {"window_size": (-1 if window is None else window - 1, 0)}
    return {"is_causal": True} if "is_causal" in known and window is None else None
