"""Attention over packed rows by torch's variable-length flash kernel, whichever of its signatures is installed.

torch 2.10 has the kernel without ``scale``, ``window_size`` and ``enable_gqa``, 2.11 without the last; 2.9 has none.

Shapes: B rows, T tokens, N query heads, K key/value heads, H head width, W width of the values.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mt_core.nn.batch import DocumentLengths
from mt_core.nn.blocks import Form, pad_widths
from mt_core.nn.sinks import attend_with_sinks

Kernel = Callable[..., Any]


def varlen_kernel() -> Kernel | None:
    """The installed torch's; ``None`` where it has none."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn


def varlen_backward() -> Kernel | None:
    """Return the backward of the installed torch's kernel, which sinks need; ``None`` where it has none by that name."""
    kernel = getattr(torch.ops.torch_attn, "_varlen_attn_backward", None) if varlen_kernel() is not None else None
    return None if kernel is None else kernel.default


def varlen(
    q_BTNH: Tensor, k_BTKH: Tensor, v_BTKW: Tensor, lengths: DocumentLengths, form: Form, shared: dict[Any, Any]
) -> Tensor | None:
    """Attend over all documents of all rows in one call; ``None`` where the installed kernel cannot do it, and another way has to.

    The bounds of documents travel to the device once for all blocks (``shared``).
    """
    if (kernel := varlen_kernel()) is None:
        return None
    if (key := ("document bounds", lengths)) not in shared:
        shared[key] = document_bounds(lengths).to(q_BTNH.device, non_blocking=True)
    return Varlen(kernel).attend(q_BTNH, k_BTKH, v_BTKW, shared[key], max(max(row) for row in lengths), form)


def document_bounds(lengths: DocumentLengths) -> Tensor:
    """Return where documents begin among the tokens of all rows, and where the last one ends, int32."""
    return torch.tensor([0, *(length for row in lengths for length in row)]).cumsum(0, dtype=torch.int32)


class Varlen:
    """The kernel, and what its signature can say."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._known = kernel, frozenset(inspect.signature(kernel).parameters)

    def attend(
        self, q_BTNH: Tensor, k_BTKH: Tensor, v_BTKW: Tensor, bounds: Tensor, longest: int, form: Form
    ) -> Tensor | None:
        """Attend between ``bounds``, which are ``longest`` tokens apart at most; ``None`` where the kernel cannot do it.

        What it has no argument for is done to its inputs: heads are repeated, queries scaled, and narrow ones padded.
        """
        known, scale, width = self._known, form.scale, v_BTKW.shape[-1]
        options = _reach(known, None if form.window is None or form.window >= longest else form.window)
        if options is None or form.softcap is not None:
            return None
        if width != q_BTNH.shape[-1]:
            scale = q_BTNH.shape[-1] ** -0.5 if scale is None else scale
            q_BTNH, k_BTKH, v_BTKW = pad_widths(q_BTNH, k_BTKH, v_BTKW)
        if "scale" in known:
            options["scale"] = scale
        elif scale is not None:
            q_BTNH = q_BTNH * (scale * math.sqrt(q_BTNH.shape[-1]))  # the kernel's own is 1 / sqrt(H)
        times = q_BTNH.shape[2] // k_BTKH.shape[2]
        if "enable_gqa" in known:
            options["enable_gqa"] = times > 1
        elif times > 1:
            k_BTKH, v_BTKW = (x.repeat_interleave(times, 2) for x in (k_BTKH, v_BTKW))
        q, k, v = (x.flatten(0, 1) for x in (q_BTNH, k_BTKH, v_BTKW))
        if form.sinks_N is None:
            out = self._kernel(q, k, v, bounds, bounds, longest, longest, **options)
            assert isinstance(out, Tensor), "without return_aux the kernel returns one tensor"
        else:
            backward = varlen_backward()
            if backward is None or "return_aux" not in known:
                return None
            out = attend_with_sinks(
                q, k, v, form.sinks_N, _VarlenFlash(self._kernel, backward, bounds, longest, options)
            )
        return out.view_as(q_BTNH).narrow(-1, 0, width)


class _VarlenFlash:
    """The kernel with its log-sum-exp, and its backward: (tokens, heads, H) each."""

    def __init__(self, kernel: Kernel, backward: Kernel, bounds: Tensor, longest: int, options: Any) -> None:
        self._kernel, self._backward, self._options = kernel, backward, options
        self._places = (bounds, bounds, longest, longest)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        from torch.nn.attention.varlen import AuxRequest

        out, lse = self._kernel(q, k, v, *self._places, return_aux=AuxRequest(lse=True), **self._options)
        return out, lse.T

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        is_causal = self._options.get("window_size", (-1, 0)) == (-1, 0)
        without_dropout = torch.zeros(2, dtype=torch.uint64, device=q.device)
        own = {name: value for name, value in self._options.items() if name in ("scale", "window_size")}
        grads: tuple[Tensor, Tensor, Tensor] = self._backward(
            grad, q, k, v, out, lse.T.contiguous(), *self._places, is_causal, without_dropout, **own
        )
        return grads


def _reach(known: frozenset[str], window: int | None) -> dict[str, Any] | None:
    """Return how to say that a token sees those before it, in its window; ``None`` where there is no way to."""
    if "window_size" in known:
        return {"window_size": (-1 if window is None else window - 1, 0)}
    return {"is_causal": True} if "is_causal" in known and window is None else None
