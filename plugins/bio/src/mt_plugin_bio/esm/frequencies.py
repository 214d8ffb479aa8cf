"""Rotary frequencies as folders store them. Imports no torch.

Some folders were trained with frequencies rounded to fp16, and have these: at place 1000 they turn by up to a seventh of a radian more.
"""

from __future__ import annotations

from pathlib import Path

from mt_core import WeightsError

THETA = 10_000.0


def stored_as_half(path: Path, width: int) -> bool:
    """Return whether a folder has frequencies that are rounded to fp16. Raises ``WeightsError`` where they are others still.

    ``width`` is that of a head (channels). One that stores none has none that are rounded.
    """
    import numpy as np
    from safetensors import safe_open

    exact = (1.0 / THETA ** (np.arange(0, width, 2, dtype=np.float32) / width)).astype(np.float32)
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    for file in files:
        with safe_open(str(file), framework="np") as tensors:
            name = next((name for name in sorted(tensors.keys()) if name.endswith("rotary_embeddings.inv_freq")), None)
            if name is None:
                continue
            found = tensors.get_tensor(name).astype(np.float32)
        if found.shape == exact.shape and np.allclose(found, exact, rtol=1e-5, atol=0):
            return False
        if found.shape == exact.shape and np.allclose(
            found, exact.astype(np.float16).astype(np.float32), rtol=1e-5, atol=0
        ):
            return True
        raise WeightsError(
            f"{file} has other rotary frequencies than 10000^(−2 i / {width}) in {name}; choose a published folder"
        )
    return False
