"""The head that gives a value: for each token, what the answer is going to be worth, as the text before that token tells.

Shapes: n tokens, D model width.
"""

from __future__ import annotations

from torch import Generator, Tensor, nn


class ValueHead(nn.Module):
    """A linear layer without bias, beside the language head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.value_head = nn.Linear(width, 1, bias=False)

    def forward(self, hidden_nD: Tensor) -> Tensor:
        """(n, D) -> (n,) in fp32."""
        values_n: Tensor = self.value_head(hidden_nD).squeeze(-1).float()
        return values_n

    def init_tensor(self, name: str, tensor: Tensor, generator: Generator) -> None:
        """Normal with deviation 1/(D + 1), so that values begin near 0."""
        tensor.normal_(0.0, 1 / (tensor.shape[-1] + 1), generator=generator)
