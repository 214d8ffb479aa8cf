"""Expert parallelism: ranks divide the experts of each layer, and send one another the tokens that chose them.

DeepSpeed hears of it by marks on the parameters (``AutoEPMoELayer`` and its kin): it reduces gradients of experts over the ranks that
hold the same ones, and divides them by all ranks, so that the loss is scaled as everywhere (``Engine``). Ranks that divide the experts
of one copy are neighbours, which on a machine with several devices are the fast links; each has rows of its own.

Shapes: S rows sorted by expert (a token counts once for each that it chose), R rows that came for the experts of this rank, D and W
widths, X experts of a layer, E of them on a rank, P ranks that divide them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mt_core.errors import ConfigError
from mt_core.nn import DividesExperts, Received, exclude_from_compile
from mt_train.engine.deepspeed_import import redirect_prints
from mt_train.engine.layout import no_experts, undivided_experts
from mt_train.engine.norms import squared_norm
from mt_train.engine.processes import Process

_Model = TypeVar("_Model", bound=nn.Module)


def part_of(parameter: Tensor) -> tuple[int, int]:
    """Return (which, of how many): the part of the whole parameter that this rank has, of equal runs of rows."""
    part: tuple[int, int] = getattr(parameter, "part", (0, 1))
    return part


def own_rows(parameter: Tensor, whole: Tensor) -> Tensor:
    """Return what this rank has of a whole value."""
    index, parts = part_of(parameter)
    return whole.chunk(parts)[index] if parts > 1 else whole


class ExpertRanks:
    """The ranks that divide the experts of one copy with this one (``group``), and those that hold the same experts (``copies``)."""

    def __init__(self, size: int, process: Process) -> None:
        """Make the groups, as DeepSpeed knows them by name. Collective."""
        from deepspeed.utils import groups

        self._device, self.part = process.device, (process.rank % size, size)
        self.name = group_name(size)
        with redirect_prints():
            groups._create_expert_and_data_parallel(expert_parallel_size_=size)
        self.group = groups._get_expert_parallel_group(self.name)
        self.copies = groups._get_expert_data_parallel_group(self.name)

    def divide(self, make: Callable[[], _Model]) -> Callable[[], _Model]:
        """Return a function that makes the model, without memory, with this rank's experts only, marked for DeepSpeed."""

        def make_divided() -> _Model:
            model = make()
            for _, layer in divided_layers(model):
                for name, parameter in list(layer.named_parameters(recurse=False)):
                    setattr(layer, name, self.own_part(parameter))
            return model

        return make_divided

    def own_part(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return what this rank has of a whole parameter, as DeepSpeed wants it marked."""
        own: Any = cut_rows(parameter, *self.part)
        own.allreduce, own.group_name = False, self.name
        own.ds_zero_placement_family = "autoep_expert"
        own.ds_zero_partition_group_name = self.name
        own.ds_zero_partition_process_group = self.copies  # zero.Init looks for it
        return own  # type: ignore[no-any-return]

    def connect(self, model: nn.Module) -> None:
        """Let the layers of experts send their tokens. Raises ``ConfigError`` for a model without any."""
        exchange, layers = TokenExchange(self.group, self.part[1]), list(divided_layers(model))
        if not layers:
            raise ConfigError([no_experts()])
        for _, module in layers:
            module.exchange = exchange

    def prepare(self, module: Any, optimizer: torch.optim.Optimizer) -> None:
        """Let DeepSpeed find experts in the module that it is given, and in the groups of its optimizer."""
        split_groups(optimizer)
        if any(group.get("moe") for group in optimizer.param_groups):  # it refuses experts of which none is trained
            module.experts = _marker()

    def whole_norm(self, parameters: Iterable[Tensor]) -> Tensor:
        """Return the gradient's norm at ZeRO 0, each expert counted once: DeepSpeed would average norms of other experts. Collective."""
        whole, divided = list[Tensor](), list[Tensor]()
        for parameter in parameters:
            if parameter.grad is not None:
                (divided if part_of(parameter)[1] > 1 else whole).append(parameter.grad)
        squares = torch.stack([squared_norm(each, self._device) for each in (whole, divided)])
        dist.all_reduce(squares[1:], group=self.group)
        return squares.sum().sqrt().float()


def group_name(size: int) -> str:
    """Return the name that DeepSpeed gives its groups of so many expert ranks."""
    return f"ep_size_{size}"


def gather_rows(parameter: Tensor, value: Tensor, group: Any) -> Tensor:
    """Put this rank's rows of a parameter's value together with those of the others; as it is where nothing is divided. Collective."""
    _, parts = part_of(parameter)
    if parts == 1:
        return value
    whole = value.new_empty((parts * value.shape[0], *value.shape[1:]))
    dist.all_gather_into_tensor(whole, value.contiguous(), group=group)
    return whole


def divided_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the layers of experts that ranks may divide, by name."""
    return ((name, module) for name, module in model.named_modules() if isinstance(module, DividesExperts))


def divided_parameters(model: nn.Module, parts: int) -> list[nn.Parameter]:
    """Return the whole parameters that so many ranks would divide. Raises ``ConfigError`` where there are none, or some cannot be."""
    found = [parameter for _, module in divided_layers(model) for parameter in module.parameters(recurse=False)]
    if not found:
        raise ConfigError([no_experts()])
    for parameter in found:
        rows_of_part(parameter, parts)
    return found


def rows_of_part(parameter: Tensor, parts: int) -> int:
    """Return how many experts of a whole parameter each of so many ranks has. Raises ``ConfigError`` where they do not divide."""
    rows, left = divmod(len(parameter), parts)
    if left:
        raise ConfigError([undivided_experts(len(parameter), parts, most=parts)])
    return rows


def cut_rows(parameter: nn.Parameter, index: int, parts: int) -> nn.Parameter:
    """Return one of so many parts of a whole parameter's experts. Raises ``ConfigError`` where they do not divide."""
    rows = rows_of_part(parameter, parts)
    value = parameter.detach()[index * rows : (index + 1) * rows].clone()
    own: Any = nn.Parameter(value, requires_grad=parameter.requires_grad)
    own.part = (index, parts)
    return own  # type: ignore[no-any-return]


def split_groups(optimizer: torch.optim.Optimizer) -> None:
    """Give divided parameters groups of their own with the options of those that they were in, as DeepSpeed wants them.

    Their ``name`` has to be that of its process group; ``title`` says what they are called otherwise.
    """
    for group in list(optimizer.param_groups):
        divided = [parameter for parameter in group["params"] if part_of(parameter)[1] > 1]
        if not divided:
            continue
        group["params"] = [parameter for parameter in group["params"] if part_of(parameter)[1] == 1]
        own = {key: value for key, value in group.items() if key != "params"}
        named = {"title": group.get("name"), "name": divided[0].group_name, "moe": True}
        optimizer.add_param_group({**own, **named, "params": divided})
    optimizer.param_groups[:] = [group for group in optimizer.param_groups if group["params"]]


def _marker() -> nn.Module:
    """Return a module that says to DeepSpeed that there are experts: it asks for the class alone, and nothing else of it is used."""
    from deepspeed.module_inject.auto_ep_layer import AutoEPMoELayer

    class Marker(AutoEPMoELayer):  # type: ignore[misc]
        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.num_experts = 0

        def set_deepspeed_parallelism(self, *positional: Any, **named: Any) -> None:
            """Do nothing: the groups are there."""

    return Marker()


class TokenExchange:
    """Sends rows to the ranks of their experts and back, by two all-to-all in the forward and two in the backward."""

    def __init__(self, group: Any, parts: int) -> None:
        self._group, self._parts = group, parts

    @exclude_from_compile
    def __call__(self, rows_SD: Tensor, ends_X: Tensor) -> Received:
        """See ``mt_core.nn.ExpertExchange``."""
        counts_X = ends_X.long().diff(prepend=ends_X.new_zeros(1, dtype=torch.long))
        theirs_X = torch.empty_like(counts_X)
        dist.all_to_all_single(theirs_X, counts_X, group=self._group)
        theirs_PE = theirs_X.view(self._parts, -1)
        sent, received = torch.stack([counts_X.view(self._parts, -1).sum(1), theirs_PE.sum(1)]).tolist()
        rows_RD: Tensor = _AllToAll.apply(rows_SD, sent, received, self._group)  # type: ignore[no-untyped-call]
        order_R = _by_expert(theirs_PE)

        def back(out_RW: Tensor) -> Tensor:
            by_rank_RW = torch.empty_like(out_RW).index_copy(0, order_R, out_RW)
            out_SW: Tensor = _AllToAll.apply(by_rank_RW, received, sent, self._group)  # type: ignore[no-untyped-call]
            return out_SW

        return Received(rows_RD[order_R], theirs_PE.sum(0).cumsum(0).to(ends_X.dtype), back)


def _by_expert(counts_PE: Tensor) -> Tensor:
    """Return the places of rows that came sorted by rank and then by expert, sorted by expert and then by rank."""
    experts_E = torch.arange(counts_PE.shape[1], device=counts_PE.device)
    expert_R = experts_E.repeat(counts_PE.shape[0]).repeat_interleave(counts_PE.flatten())
    return expert_R.argsort(stable=True)


class _AllToAll(torch.autograd.Function):
    """Sends rows to other ranks, so many to each, and their gradients back; a rank without rows takes part."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: Sequence[int], received: Sequence[int], group: Any) -> Tensor:
        ctx.sizes, ctx.group = (sent, received), group
        return _all_to_all(rows, sent, received, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        sent, received = ctx.sizes
        return _all_to_all(gradient, received, sent, ctx.group), None, None, None


def _all_to_all(rows: Tensor, sent: Sequence[int], received: Sequence[int], group: Any) -> Tensor:
    out = rows.new_empty((sum(received), *rows.shape[1:]))
    dist.all_to_all_single(out, rows.contiguous(), list(received), list(sent), group=group)
    return out
