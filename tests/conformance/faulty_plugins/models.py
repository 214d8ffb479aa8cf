from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.utils.checkpoint import checkpoint

from mt_conformance.tiny_config import TinyConfig
from mt_conformance.tiny_model import TinyModel
from mt_core.nn import Batch, BlockContext, KVCache


def build(config: Any) -> TinyModel:
    faults = {"hot": Hot, "own-forward": OwnForward, "careless": Careless, "buffered": Buffered, "idle": Idle}
    faults |= {"recounting": Recounting}
    model = faults.get(config.fault, TinyModel)(
        TinyConfig(vocab_size=config.vocab_size, max_seq_len=config.max_seq_len)
    )
    model.config = config
    inside = {
        "acausal": Acausal,
        "mixed": Mixed,
        "forgetful": Forgetful,
        "padded": Padded,
        "stateful": Stateful,
        "deaf": Deaf,
        "late": Late,
        "blind": Blind,
        "sociable": Sociable,
        "wide": Wide,
    }
    if config.fault in inside:
        model.blocks[0] = inside[config.fault](model.blocks[0])
    return model


class Hot(TinyModel):
    def init_tensor(self, name: str, tensor: Tensor, generator: Generator) -> None:
        super().init_tensor(name, tensor, generator)
        tensor.mul_(50 if name.startswith("lm_head") else 1)


class OwnForward(TinyModel):
    def forward(self, batch: Batch, cache: KVCache | None = None) -> Tensor:
        return 2 * super().forward(batch, cache)


class Recounting(TinyModel):
    """Recomputes its blocks as torch does, and counts them with it."""

    def forward(self, batch: Batch, cache: KVCache | None = None) -> Tensor:
        context = BlockContext(batch.positions, batch.document_ids, self.attention, cache, sums=self.sums)
        hidden_BTD = self.embed(batch.input_ids)
        for block in self.blocks:
            hidden_BTD = (
                checkpoint(self.tell, block, hidden_BTD, context, use_reentrant=False)
                if self.checkpoint_blocks
                else self.tell(block, hidden_BTD, context)
            )
        return self.norm(hidden_BTD)

    @staticmethod
    def tell(block: nn.Module, hidden_BTD: Tensor, context: BlockContext) -> Tensor:
        context.report("size", hidden_BTD.detach().sum(), hidden_BTD.numel())
        return block(hidden_BTD, context)


class Careless(TinyModel):
    def init_tensor(self, name: str, tensor: Tensor, generator: Generator) -> None:
        tensor.normal_(0.0, 0.02)


class Buffered(TinyModel):
    def __init__(self, config: TinyConfig) -> None:
        super().__init__(config)
        self.register_buffer("seen", torch.zeros(1))


class Idle(TinyModel):
    def __init__(self, config: TinyConfig) -> None:
        super().__init__(config)
        self.blocks[0].spare = nn.Linear(4, 4)


class Wrapped(nn.Module):
    """A block, and what is wrong with it."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.block = block

    def forward(self, x_BTD: Tensor, context: BlockContext) -> Tensor:
        return self.block(x_BTD, context)


class Acausal(Wrapped):
    def forward(self, x_BTD: Tensor, context: BlockContext) -> Tensor:
        return super().forward(x_BTD + x_BTD.roll(-1, 1), context)


class Mixed(Wrapped):
    def forward(self, x_BTD: Tensor, context: BlockContext) -> Tensor:
        return super().forward(x_BTD, context) + x_BTD.cumsum(1)


class Forgetful(Wrapped):
    """Counts the tokens of this call instead of those of the text."""

    def forward(self, x_BTD: Tensor, context: BlockContext) -> Tensor:
        places_T1 = torch.arange(x_BTD.shape[1], dtype=x_BTD.dtype)[:, None]
        return super().forward(x_BTD + places_T1, context)


class Padded(Wrapped):
    """Padding on the left reaches what follows it."""

    def forward(self, x_BTD: Tensor, context: BlockContext) -> Tensor:
        past = 0 if context.cache is None else context.cache.get(99)
        sums_BTD = x_BTD.cumsum(1) + (0 if past is None else past)
        if context.cache is not None:
            context.cache.put(99, sums_BTD[:, -1:])
        return super().forward(x_BTD, context) + sums_BTD


class Stateful(Wrapped):
    def forward(self, x_BTD: Tensor, context: BlockContext) -> Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(x_BTD * self.calls, context)


class Deaf(Wrapped):
    """No gradient gets to the embedding, and the output is hardly that of the block."""

    def forward(self, x_BTD: Tensor, context: BlockContext) -> Tensor:
        return super().forward(0 * x_BTD.detach(), context)


class Late(Wrapped):
    """From the third token on, a token that comes alone finds the cache a place behind."""

    def forward(self, x_BTD: Tensor, context: BlockContext) -> Tensor:
        y_BTD = super().forward(x_BTD, context)
        if context.cache is None:
            return y_BTD
        past_BSD = context.cache.get(99)
        context.cache.put(99, x_BTD if past_BSD is None else torch.cat([past_BSD, x_BTD], 1))
        late = past_BSD is not None and past_BSD.shape[1] >= 2 and x_BTD.shape[1] == 1
        return y_BTD + 0.1 * past_BSD[:, -1:] if late else y_BTD


class Blind(Wrapped):
    """Several tokens at once do not see what is in the cache."""

    def forward(self, x_BTD: Tensor, context: BlockContext) -> Tensor:
        past_BTD = None if context.cache is None else context.cache.get(99)
        y_BTD = super().forward(x_BTD, context)
        if context.cache is not None:
            context.cache.put(99, x_BTD)
        return 1.1 * y_BTD if past_BTD is not None and x_BTD.shape[1] > 1 else y_BTD


class Sociable(Wrapped):
    """Rows of a batch see each other."""

    def forward(self, x_BTD: Tensor, context: BlockContext) -> Tensor:
        return super().forward(x_BTD, context) + x_BTD.mean(0, keepdim=True)


class Wide(Wrapped):
    def forward(self, x_BTD: Tensor, context: BlockContext) -> Tensor:
        return super().forward(x_BTD, context).float()
