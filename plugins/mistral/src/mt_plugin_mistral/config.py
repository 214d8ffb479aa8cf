"""The shape of a Mistral as a typed config. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from mt_core import ExpertLayout, RouterOptions, WindowedDecoderConfig


class MistralConfig(WindowedDecoderConfig):
    """A decoder's sizes. Mistral has its window on all blocks (https://arxiv.org/abs/2310.06825) or none, Ministral by a pattern;
    Mixtral has experts of width ``ffn_dim`` in the place of each MLP (https://arxiv.org/abs/2401.04088).
    """

    norm_eps: float = Field(1e-5, gt=0, lt=1, description="added to the mean square in RMSNorm")
    n_experts: int | None = Field(None, gt=0, le=65_536, description="experts of a block; none is a dense model")
    top_k: int = Field(2, gt=0, le=65_536, description="experts of a token")
    balance: float = Field(
        0.0, ge=0, description="coefficient of the balance loss, which is 1 a token and block where the load is even"
    )

    def faults(self) -> Iterator[str]:
        """Yield the faults of a decoder, and those of its experts."""
        yield from super().faults()
        if self.n_experts is None:
            for name in ("top_k", "balance"):
                if (value := getattr(self, name)) != type(self).model_fields[name].default:
                    yield f"{name}={value} is for a mixture; set n_experts, or leave it out"
            return
        if self.window_pattern != ("window",):
            yield "window_pattern in a mixture, whose blocks are alike; leave it out"
        try:
            self.router()
        except ValueError as error:
            yield str(error)

    def router(self) -> RouterOptions:
        """How the experts of a token are chosen. Raises ``ValueError`` for sizes that do not fit."""
        assert self.n_experts is not None, "a dense model has no router"
        return RouterOptions(n_experts=self.n_experts, top_k=self.top_k, normalise=True)

    @property
    def expert_layout(self) -> ExpertLayout:
        """How the experts of one block are stored, with the names of the published files."""
        assert self.n_experts is not None, "a dense model has no experts"
        names = ("w1", "w3", "w2")
        return ExpertLayout(n_experts=self.n_experts, width=self.dim, hidden=self.ffn_dim, projections=names)

    @property
    def expert_layouts(self) -> dict[str, ExpertLayout]:
        """How each block's experts are stored, by the name of the module that has them; empty for a dense model."""
        if self.n_experts is None:
            return {}
        return {f"model.layers.{index}.mlp.experts": self.expert_layout for index in range(self.n_layers)}
