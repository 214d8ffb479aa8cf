"""FlashAttention 3 (https://arxiv.org/abs/2407.08608) in the place of torch's own flash kernel, for Hopper's GPUs.

torch finds it as an installed package and hands it all that its flash kernel would do, packed rows too. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn import attention

from mt_core.errors import UsageError

NAME = "FA3"
"""The kernel's name among those that torch knows."""
GPU = 9
"""Major compute capability of the GPUs that it is written for (Hopper)."""


@contextmanager
def use_flash3() -> Iterator[None]:
    """Inside, torch's flash kernel is FlashAttention 3. Raises ``UsageError`` with what is missing."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != GPU:
        here = torch.cuda.get_device_name() if torch.cuda.is_available() else "a machine without one"
        raise UsageError(
            f"train.attention=flash3 needs a GPU of Hopper's kind (H100, H200), and this is {here}; set auto"
        )
    activate = getattr(attention, "activate_flash_attention_impl", None)
    if activate is None:
        raise UsageError(
            f"train.attention=flash3 needs a newer torch than {torch.__version__}, which knows no other flash kernel; set auto"
        )
    try:
        activate(NAME)
    except (ImportError, RuntimeError, ValueError) as error:
        raise UsageError(
            f"train.attention=flash3 finds no FlashAttention 3: {error}. Build its package flash_attn_interface from the folder hopper of"
            " https://github.com/Dao-AILab/flash-attention, or set auto"
        ) from error
    try:
        yield
    finally:
        attention.restore_flash_attention_impl()
