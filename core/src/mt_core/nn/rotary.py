"""Rotary position embedding (https://arxiv.org/abs/2104.09864) and its scalings.

Everything is computed in fp32, in the order of operations of ``transformers`` (``modeling_rope_utils.py``), because one
rounding of an inverse frequency is multiplied by the position.

Shapes: B rows, T tokens, N heads (of queries or keys), H head width, F = H / 2 frequencies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from mt_core.config.rope import RopeScaling
from mt_core.nn.model import BlockContext


class RotaryTables(NamedTuple):
    """Cosine and sine of each token's angles, (B, T, 1, F), in fp32."""

    cos_BT1F: Tensor
    sin_BT1F: Tensor


@dataclass(frozen=True, kw_only=True)
class Rope:
    """What the angles follow from: channels of a head (an even number), the base of the wavelengths, and their stretch."""

    width: int
    theta: float
    scaling: RopeScaling = field(default_factory=RopeScaling)


class Rotary:
    """The rotary tables of a forward. A plain object: it puts nothing into a ``state_dict``.

    A model may have several, with other bases: each computes its own tables.
    """

    def __init__(self, width: int, *, theta: float = 10_000.0, scaling: RopeScaling | None = None) -> None:
        self.rope = Rope(width=width, theta=theta, scaling=scaling or RopeScaling())
        self._key = repr(self.rope)
        self._cached: tuple[tuple[int | None, torch.device], Tensor] | None = None

    def tables(self, context: BlockContext) -> RotaryTables:
        """The tables for ``context.positions_BT``; the first block of a forward computes them for all."""
        tables = context.shared.get(self._key)
        if tables is None:
            tables = context.shared[self._key] = self._compute(context)
        assert isinstance(tables, RotaryTables), f"another module wrote context.shared[{self._key!r}]"
        return tables

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def _compute(self, context: BlockContext) -> RotaryTables:
        length = longest(context) if self.rope.scaling.type == "dynamic" else None
        positions_BT = context.positions_BT
        angles_BTF = positions_BT.unsqueeze(-1).float() * self._frequencies(length, positions_BT.device)
        factor = attention_factor(self.rope.scaling)
        return RotaryTables((angles_BTF.cos() * factor).unsqueeze(2), (angles_BTF.sin() * factor).unsqueeze(2))

    def _frequencies(self, length: int | None, device: torch.device) -> Tensor:
        if self._cached is None or self._cached[0] != (length, device):
            self._cached = (length, device), inverse_frequencies(self.rope, length).to(device)
        return self._cached[1]


def longest(context: BlockContext) -> int:
    """Tokens of the longest document so far, from host values where there are any: a device is not waited for."""
    if context.cache is not None:
        return context.cache.length + context.positions_BT.shape[1]
    if context.document_lengths is not None:
        return max(max(row) for row in context.document_lengths)
    return int(context.positions_BT.max()) + 1


def rotate(x_BTNH: Tensor, tables: RotaryTables) -> Tensor:
    """(B, T, N, H) -> (B, T, N, H): channel i turns with channel i + H / 2, the layout of Hugging Face's checkpoints."""
    cos_BT1F, sin_BT1F = tables
    first_BTNF, second_BTNF = x_BTNH.float().chunk(2, -1)
    turned_BTNH = torch.cat(
        [first_BTNF * cos_BT1F - second_BTNF * sin_BT1F, second_BTNF * cos_BT1F + first_BTNF * sin_BT1F], -1
    )
    return turned_BTNH.to(x_BTNH.dtype)


# ---------------------------------------------------------------------------------------------- inverse frequencies


def inverse_frequencies(rope: Rope, length: int | None = None) -> Tensor:
    """(F,) angles per token, on the CPU. ``length`` (tokens, the longest document) is read by dynamic scaling only."""
    return _FREQUENCIES[rope.scaling.type](rope, length)


def attention_factor(scaling: RopeScaling) -> float:
    """Factor of cosines and sines: YaRN's temperature (https://arxiv.org/abs/2309.00071, eq. 22), 1 for the others."""
    if scaling.type != "yarn":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale is not None and scaling.mscale_all_dim is not None:
        return _temperature(scaling.factor, scaling.mscale) / _temperature(scaling.factor, scaling.mscale_all_dim)
    return _temperature(scaling.factor, 1.0)


def _temperature(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0


def _wavelength_powers(rope: Rope, theta: float | Tensor) -> Tensor:
    """(F,) theta ** (2 i / H)."""
    width = rope.width
    exponents_F = torch.arange(0, width, 2, dtype=torch.float32, device="cpu") / width
    return torch.pow(theta, exponents_F)


def _plain(rope: Rope, length: int | None = None) -> Tensor:
    return 1.0 / _wavelength_powers(rope, rope.theta)


def _linear(rope: Rope, length: int | None) -> Tensor:
    """Position interpolation (https://arxiv.org/abs/2306.15595): positions divided by the factor."""
    return _plain(rope) / rope.scaling.factor


def _dynamic(rope: Rope, length: int | None) -> Tensor:
    """Dynamic NTK (https://arxiv.org/abs/2309.00071, appendix B.3): the base grows with the length, once beyond the original."""
    scaling, width = rope.scaling, rope.width
    original = scaling.original_max_seq_len
    assert original is not None, "RopeScaling requires it"
    if length is None or length <= original:
        return _plain(rope)
    reach = torch.tensor(length, device="cpu")  # a tensor, so that the base is rounded to fp32 where transformers does
    theta = rope.theta * ((scaling.factor * reach / original) - (scaling.factor - 1)) ** (width / (width - 2))
    return 1.0 / _wavelength_powers(rope, theta)


def _llama3(rope: Rope, length: int | None) -> Tensor:
    """Meta's ``apply_scaling``: long wavelengths are stretched, short ones stay, those between are blended."""
    scaling, plain_F = rope.scaling, _plain(rope)
    original = scaling.original_max_seq_len
    assert original is not None, "RopeScaling requires it"
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    wavelength_F = 2 * math.pi / plain_F
    stretched_F = torch.where(wavelength_F > original / low, plain_F / scaling.factor, plain_F)
    blend_F = (original / wavelength_F - low) / (high - low)
    blended_F = (1 - blend_F) * stretched_F / scaling.factor + blend_F * stretched_F
    between_F = ~(wavelength_F < original / high) & ~(wavelength_F > original / low)
    return torch.where(between_F, blended_F, stretched_F)


def _yarn(rope: Rope, length: int | None) -> Tensor:
    """YaRN (https://arxiv.org/abs/2309.00071, section 3.2): stretch only what turns rarely within the original length."""
    scaling = rope.scaling
    powers_F = _wavelength_powers(rope, rope.theta)
    kept_F, stretched_F = 1.0 / powers_F, 1.0 / (scaling.factor * powers_F)
    keep_F = 1 - _ramp(rope)
    return stretched_F * (1 - keep_F) + kept_F * keep_F


def _ramp(rope: Rope) -> Tensor:
    """(F,) 0 where a dimension turns more than ``beta_fast`` times, 1 where less than ``beta_slow``, linear between."""
    scaling, width = rope.scaling, rope.width
    low, high = (_dimension_that_turns(rope, turns) for turns in (scaling.beta_fast, scaling.beta_slow))
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    if low == high:
        high += 0.001  # as the reference does, against a division by zero
    return ((torch.arange(width // 2, dtype=torch.float32, device="cpu") - low) / (high - low)).clamp(0, 1)


def _dimension_that_turns(rope: Rope, turns: float) -> float:
    original = rope.scaling.original_max_seq_len
    assert original is not None, "RopeScaling requires it"
    return (rope.width * math.log(original / (turns * 2 * math.pi))) / (2 * math.log(rope.theta))


_FREQUENCIES: dict[str, Callable[[Rope, int | None], Tensor]] = {
    "none": _plain,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
}
