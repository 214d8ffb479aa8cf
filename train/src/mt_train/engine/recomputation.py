"""Ways to run blocks whose forward is repeated in their backward: what each keeps beside the block's input, and where.

Shapes: B rows, T query tokens, S key tokens, D model width, N query heads, K key/value heads, H head width, W width of the values.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, Unpack

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from mt_core.errors import ComponentError
from mt_core.nn import AttentionFn, BlockContext, StepSums, exclude_from_compile
from mt_core.nn.context import AttentionOptions, BlockRunner

IN_FLIGHT = 2
"""Block inputs that are copied at a time: one on its way, and one that the next block has just left."""


def block_runner(form: str) -> BlockRunner | None:
    """Return how ``train.activation_checkpointing`` runs a block; ``None`` is the plain way of the model, which keeps the input alone."""
    return {"selective": run_with_kept_attention, "host": run_with_host_input}.get(form)


def _run(block: nn.Module, hidden_BTD: Tensor, context: BlockContext, kept: KeptAttention | None = None) -> Tensor:
    sums = context.sums or StepSums()

    def contexts() -> Any:
        first, again = sums.around_recompute()
        return (first, again) if kept is None else (kept.collecting(first), kept.repeating(again))

    return checkpoint(block, hidden_BTD, context, use_reentrant=False, context_fn=contexts)  # type: ignore[no-any-return]


# -------------------------------------------------------------------------------------------------------------- selective


def run_with_kept_attention(block: nn.Module, hidden_BTD: Tensor, context: BlockContext) -> Tensor:
    """(B, T, D) -> (B, T, D). All is repeated but attention and its exchange between ranks, whose output is kept."""
    kept = KeptAttention(context.attention)
    return _run(block, hidden_BTD, replace(context, attention=kept), kept)


class KeptAttention:
    """Attention of one block that is run once and gives its output again when the block is repeated, whichever kernel it is.

    Of what the kernel keeps for its backward, queries, keys and values are those that the repetition makes; what is left is its output
    and a number a query. Where ranks share rows they are kept, as they come out of the exchange, which is not repeated.
    """

    def __init__(self, attention: AttentionFn) -> None:
        self._attention = attention
        self._outputs: list[tuple[Tensor, bool]] = []
        self._live: list[tuple[Tensor, int]] = []
        self._given: Iterator[tuple[Tensor, bool]] | None = None

    def __repr__(self) -> str:
        return repr(self._attention)

    @contextmanager
    def collecting(self, inner: Any) -> Iterator[None]:
        """Keep outputs inside. Raises ``ComponentError`` where the block has changed one in place: the repetition would not have it."""
        with inner:
            yield
        if any(out._version != version for out, version in self._live):
            raise ComponentError(
                "a block changes what attention gave it in place, and train.activation_checkpointing=selective keeps that; write the"
                " block's result as a new tensor, or set train.activation_checkpointing full"
            )
        self._live.clear()

    @contextmanager
    def repeating(self, inner: Any) -> Iterator[None]:
        """Give the outputs of the first run again, in their order."""
        self._given = iter(self._outputs)
        try:
            with inner:
                yield
        finally:
            self._given = None

    @exclude_from_compile
    def __call__(
        self,
        q_BTNH: Tensor,
        k_BSKH: Tensor,
        v_BSKW: Tensor,
        context: BlockContext,
        **options: Unpack[AttentionOptions],
    ) -> Tensor:
        """See ``AttentionFn``."""
        inputs = _Inputs.apply(q_BTNH, k_BSKH, v_BSKW)  # type: ignore[no-untyped-call]
        if self._given is not None:
            kept, requires_grad = next(self._given)
            return kept.detach().requires_grad_(requires_grad)
        lent = _Lent(inputs)
        with saved_tensors_hooks(lent.pack, lent.unpack):
            out_BTNW = self._attention(inputs[0], inputs[1], inputs[2], context, **options)
        lent.tensors = ()
        self._live.append((out_BTNW, out_BTNW._version))
        self._outputs.append((out_BTNW.data, out_BTNW.requires_grad))  # detach() gives a view, which holds the graph
        return out_BTNW

    def over_row(self, value: Tensor) -> Tensor:
        """See ``BlockContext``."""
        added = getattr(self._attention, "over_row", None)
        return value if added is None else added(value)


class _Inputs(torch.autograd.Function):
    """Keeps what attention reads, for the repetition to make again."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*tensors)
        return tuple(each.view_as(each) for each in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        return grads


class _View(NamedTuple):
    """A part of one of the inputs, which has the memory of the whole."""

    number: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class _Lent:
    """The hooks of a kernel that keeps views of its inputs: they are found again in ``_Inputs``, once for all of them."""

    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        self.tensors = tensors
        self._node: Any = next((each.grad_fn for each in tensors if each.grad_fn is not None), None)
        self._layouts = [_layout(each) for each in tensors]
        self._made: tuple[Tensor, ...] | None = None

    def pack(self, tensor: Tensor) -> Tensor | _View:
        """Note which part of which input this is; keep what is none."""
        for number, each in enumerate(self.tensors):
            if self._node is not None and _storage(tensor) == _storage(each) and tensor.dtype == each.dtype:
                return _View(number, tensor.size(), tensor.stride(), int(tensor.storage_offset()))
        return tensor.data  # without the graph: a kernel keeps its own output, whose node would hold itself

    def unpack(self, packed: Tensor | _View) -> Tensor:
        """Return the tensor, or that part of what the repetition made."""
        if isinstance(packed, Tensor):
            return packed
        if self._made is None:
            self._made = self._node.saved_tensors
        whole = self._made[packed.number]
        assert _layout(whole) == self._layouts[packed.number], "a block repeats its own forward"
        return whole.as_strided(packed.size, packed.stride, packed.offset)


def _layout(tensor: Tensor) -> tuple[list[int], int]:
    """Return where the elements stand in memory. The stride of a dimension of one means nothing: torch sets it differently at times."""
    strides = [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
    return strides, int(tensor.storage_offset())


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


# ------------------------------------------------------------------------------------------------------------------- host


def run_with_host_input(block: nn.Module, hidden_BTD: Tensor, context: BlockContext) -> Tensor:
    """(B, T, D) -> (B, T, D). All is repeated, and the block's input waits in the host's memory."""
    inputs: HostInputs = context.shared.setdefault("host_inputs", HostInputs())
    with saved_tensors_hooks(inputs.pack, inputs.unpack):
        return _run(block, hidden_BTD, context)


class Copies(Protocol):
    """A way to move tensors between a device and the host beside what the device computes."""

    def start(self, source: Tensor, device: torch.device) -> tuple[Tensor, Any]:
        """Begin a copy, and return it with a mark of its end."""
        ...

    def finish(self, mark: Any) -> None:
        """Let the host wait for the end of a copy: the source's memory may be another's then."""
        ...

    def join(self, copy: Tensor, mark: Any) -> None:
        """Let what the device computes next wait for it."""
        ...


class HostInputs:
    """The inputs of the blocks of one forward. At most ``IN_FLIGHT`` are on their way to the host, and one is fetched ahead."""

    def __init__(self, copies: Copies | None = None) -> None:
        self._copies = copies
        self._leaving: deque[tuple[Tensor, Any]] = deque()
        self._last: HostInput | None = None

    def pack(self, tensor: Tensor) -> HostInput | Tensor:
        """Begin to move a block's input to the host. On a CPU it is there already."""
        if self._copies is None and tensor.device.type != "cuda":
            return tensor
        self._copies = self._copies or CudaCopies(tensor.device)
        while len(self._leaving) >= IN_FLIGHT:
            self._copies.finish(self._leaving.popleft()[1])
        copy, mark = self._copies.start(tensor, torch.device("cpu"))
        self._leaving.append((tensor, mark))  # so that its memory stays its own until it is there
        self._last = HostInput(copy, mark, tensor.device, self._last)
        return self._last

    def unpack(self, packed: HostInput | Tensor) -> Tensor:
        """Bring an input back, and begin with that of the block before, which is needed next."""
        if isinstance(packed, Tensor):
            return packed
        assert self._copies is not None, "what was packed was copied"
        while self._leaving:
            self._copies.finish(self._leaving.popleft()[1])
        tensor, mark = packed.fetch(self._copies)
        self._copies.join(tensor, mark)
        packed.fetched = None
        if packed.before is not None:
            packed.before.fetch(self._copies)
        return tensor


class HostInput:
    """A block's input in the host's memory, and that of the block before it."""

    def __init__(self, copy: Tensor, mark: Any, device: torch.device, before: HostInput | None) -> None:
        self.copy, self.mark, self.device, self.before = copy, mark, device, before
        self.fetched: tuple[Tensor, Any] | None = None

    def fetch(self, copies: Copies) -> tuple[Tensor, Any]:
        """Begin to bring it back, once."""
        if self.fetched is None:
            self.fetched = copies.start(self.copy, self.device)
        return self.fetched


class CudaCopies:
    """Copies on a stream of their own, to pinned memory and from it."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(self, source: Tensor, device: torch.device) -> tuple[Tensor, Any]:
        """See ``Copies``. It begins when what the device has to compute by now is done."""
        copy = torch.empty_like(source, device=device, pin_memory=device.type == "cpu")
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            copy.copy_(source, non_blocking=True)
        return copy, self._stream.record_event()

    def finish(self, mark: Any) -> None:
        """See ``Copies``."""
        mark.synchronize()

    def join(self, copy: Tensor, mark: Any) -> None:
        """See ``Copies``."""
        torch.cuda.current_stream(self._stream.device).wait_event(mark)
