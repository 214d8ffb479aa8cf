"""Rotary position embedding (https://arxiv.org/abs/2104.09864) and its scalings.

Everything is computed in fp32, in the order of operations of ``transformers`` (``modeling_rope_utils.py``), because one
rounding of an inverse frequency is multiplied by the position.

Shapes: B rows, T tokens, N heads (of queries or keys), H head width, F frequencies (H / 2, or fewer where
only a part of each head turns).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from mt_core.config.rope import RopeScaling
from mt_core.errors import UsageError
from mt_core.nn.compilation import exclude_from_compile
from mt_core.nn.context import BlockContext


class RotaryTables(NamedTuple):
    """Cosine and sine of each token's angles, (B, T, 1, F), in fp32."""

    cos_BT1F: Tensor
    sin_BT1F: Tensor

    def turn(self, q_BTNH: Tensor, k_BTKH: Tensor, *, interleaved: bool) -> tuple[Tensor, Tensor]:
        """``rotate`` queries and keys; an engine may have other tables, whose kernel does both at once."""
        return rotate(q_BTNH, self, interleaved=interleaved), rotate(k_BTKH, self, interleaved=interleaved)


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Parameters of the angles: channels of a head (an even number), the base of the wavelengths, and their stretch."""

    width: int
    theta: float
    scaling: RopeScaling = field(default_factory=RopeScaling)


class Rotary:
    """Computes the rotary tables of a forward. It is a plain object, so a ``state_dict`` contains nothing of it.

    ``width`` may be less than that of a head, whose other channels then stay as they are. A model may have several, with other
    bases: each computes its own tables.
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

    @exclude_from_compile
    @torch.no_grad()
    def _compute(self, context: BlockContext) -> RotaryTables:
        angles_BTF = self._places(context).float() * self._frequencies(context)
        factor = attention_factor(self.rope.scaling)
        return RotaryTables((angles_BTF.cos() * factor).unsqueeze(2), (angles_BTF.sin() * factor).unsqueeze(2))

    def _places(self, context: BlockContext) -> Tensor:
        """(B, T, 1) positions; (B, T, F) where there are times, rows and columns, and frequencies of each (M-RoPE)."""
        if context.grid_positions_BT3 is None or not self.rope.scaling.sections:
            return context.positions_BT.unsqueeze(-1)
        return context.grid_positions_BT3[..., self.rope.scaling.axes()]

    def _frequencies(self, context: BlockContext) -> Tensor:
        """(F,), or (B, T, F) where they depend on the length of a token's document."""
        device, length = context.positions_BT.device, None
        if self.rope.scaling.by_length:
            if context.cache is None and context.lengths_BT is not None:
                return inverse_frequencies(self.rope, context.lengths_BT.unsqueeze(-1))
            length = longest(context)
            self._check_crossing(context, length)
        if self._cached is None or self._cached[0] != (length, device):
            self._cached = (length, device), inverse_frequencies(self.rope, length).to(device)
        return self._cached[1]

    def _check_crossing(self, context: BlockContext, length: int) -> None:
        """Refuse a text that outgrows longrope's original length: keys of the other set of factors would be in the cache, and
        every token after them wrong."""
        original = self.rope.scaling.original_max_seq_len
        if self.rope.scaling.type != "longrope" or context.cache is None or original is None:
            return
        if 0 < context.cache.length <= original < length:
            raise UsageError(
                f"a text grew beyond {original} tokens, where longrope turns all of it otherwise than what is in the cache;"
                f" end it there (fewer new tokens), or begin with a prompt of more than {original}"
            )


def longest(context: BlockContext) -> int:
    """Tokens of the longest document so far, where a batch does not say how long each is: a device is not waited for."""
    if context.cache is not None:
        return context.cache.length + context.positions_BT.shape[1]
    if context.document_lengths is not None:
        return max(max(row) for row in context.document_lengths)
    return int(context.positions_BT.max()) + 1


def rotate(x_BTNH: Tensor, tables: RotaryTables, *, interleaved: bool = False) -> Tensor:
    """(B, T, N, H) -> (B, T, N, H): channel i turns with channel i + F, the layout of most of Hugging Face's checkpoints, or
    channel 2 i with channel 2 i + 1 where they are ``interleaved``. Channels from 2 F on stay."""
    cos_BT1F, sin_BT1F = tables
    width = 2 * cos_BT1F.shape[-1]
    if width < x_BTNH.shape[-1]:
        turned_BTNH = rotate(x_BTNH[..., :width], tables, interleaved=interleaved)
        return torch.cat([turned_BTNH, x_BTNH[..., width:]], -1)
    if interleaved:
        first_BTNF, second_BTNF = x_BTNH.float().view(*x_BTNH.shape[:-1], -1, 2).unbind(-1)
    else:
        first_BTNF, second_BTNF = x_BTNH.float().chunk(2, -1)
    turned = [first_BTNF * cos_BT1F - second_BTNF * sin_BT1F, second_BTNF * cos_BT1F + first_BTNF * sin_BT1F]
    turned_BTNH = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return turned_BTNH.to(x_BTNH.dtype)


# ---------------------------------------------------------------------------------------------- inverse frequencies


Length = int | Tensor | None
"""Length of a text (tokens): one, or one for each token, (B, T, 1). Scaling ``by_length`` alone reads it."""


def inverse_frequencies(rope: Rope, length: Length = None) -> Tensor:
    """Angles per token: (F,) on the CPU, or (B, T, F) where dynamic scaling has lengths of this shape, on their device."""
    return _FREQUENCIES[rope.scaling.type](rope, length)


def attention_factor(scaling: RopeScaling) -> float:
    """Return the factor of cosines and sines: YaRN's temperature (https://arxiv.org/abs/2309.00071, eq. 22), LongRoPE's
    (https://arxiv.org/abs/2402.13753, section 3.3), 1 for the others."""
    if scaling.type not in ("yarn", "longrope"):
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.type == "longrope":
        assert scaling.original_max_seq_len is not None, "RopeScaling requires it"
        return math.sqrt(1 + math.log(scaling.factor) / math.log(scaling.original_max_seq_len))
    if scaling.mscale is not None and scaling.mscale_all_dim is not None:
        return _temperature(scaling.factor, scaling.mscale) / _temperature(scaling.factor, scaling.mscale_all_dim)
    return _temperature(scaling.factor, 1.0)


def _temperature(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0


def _wavelength_powers(rope: Rope, theta: float | Tensor) -> Tensor:
    """(F,) theta ** (2 i / H); (B, T, F) for a theta of each token."""
    width = rope.width
    device = theta.device if isinstance(theta, Tensor) else torch.device("cpu")
    exponents_F = torch.arange(0, width, 2, dtype=torch.float32, device=device) / width
    return torch.pow(theta, exponents_F)


def _default_frequencies(rope: Rope, length: Length = None) -> Tensor:
    return 1.0 / _wavelength_powers(rope, rope.theta)


def _linear(rope: Rope, length: Length) -> Tensor:
    """Position interpolation (https://arxiv.org/abs/2306.15595): positions divided by the factor."""
    return _default_frequencies(rope) / rope.scaling.factor


def _dynamic(rope: Rope, length: Length) -> Tensor:
    """Dynamic NTK (https://arxiv.org/abs/2309.00071, appendix B.3): the base grows with the length, once beyond the original.

    The length is that of a token's own document, so that neither padding nor other documents change it. In generation it is
    that of the text so far: keys that are cached keep the angles of their time, as in transformers.
    """
    scaling, width = rope.scaling, rope.width
    original = scaling.original_max_seq_len
    assert original is not None, "RopeScaling requires it"
    if length is None:
        return _default_frequencies(rope)
    # a tensor, so that the base is rounded to fp32 where transformers does
    reach = length if isinstance(length, Tensor) else torch.tensor(length, device="cpu")
    theta = rope.theta * ((scaling.factor * reach / original) - (scaling.factor - 1)) ** (width / (width - 2))
    plain = _default_frequencies(rope).to(reach.device)
    return torch.where(reach > original, 1.0 / _wavelength_powers(rope, theta), plain)


def _llama3(rope: Rope, length: Length) -> Tensor:
    """Meta's ``apply_scaling``: long wavelengths are stretched, short ones stay, those between are blended."""
    scaling, plain_F = rope.scaling, _default_frequencies(rope)
    original = scaling.original_max_seq_len
    assert original is not None, "RopeScaling requires it"
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    wavelength_F = 2 * math.pi / plain_F
    stretched_F = torch.where(wavelength_F > original / low, plain_F / scaling.factor, plain_F)
    blend_F = (original / wavelength_F - low) / (high - low)
    blended_F = (1 - blend_F) * stretched_F / scaling.factor + blend_F * stretched_F
    between_F = ~(wavelength_F < original / high) & ~(wavelength_F > original / low)
    return torch.where(between_F, blended_F, stretched_F)


def _yarn(rope: Rope, length: Length) -> Tensor:
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


def _longrope(rope: Rope, length: Length) -> Tensor:
    """LongRoPE (https://arxiv.org/abs/2402.13753): a stretch of each frequency, one set up to the original length of a text, one beyond.

    The length is that of a token's own document, as in ``_dynamic``.
    """
    original = rope.scaling.original_max_seq_len
    assert original is not None, "RopeScaling requires it"
    reach = length if isinstance(length, Tensor) else torch.tensor(length or 0, device="cpu")
    powers_F = _wavelength_powers(rope, rope.theta)
    short_F, long_F = (
        (1.0 / (torch.tensor(factors, dtype=torch.float32, device="cpu") * powers_F)).to(reach.device)
        for factors in (rope.scaling.short_factor, rope.scaling.long_factor)
    )
    return torch.where(reach > original, long_F, short_F)


_FREQUENCIES: dict[str, Callable[[Rope, Length], Tensor]] = {
    "none": _default_frequencies,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
}
