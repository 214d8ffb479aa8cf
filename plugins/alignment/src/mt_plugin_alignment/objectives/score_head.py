"""The head that gives a score: one number for each token, of which the last of a text counts.

Shapes: n tokens, D model width.
"""

from __future__ import annotations

from torch import Generator, Tensor, nn


class ScoreHead(nn.Module):
    """A linear layer without bias, named ``score`` as in ``AutoModelForSequenceClassification`` of transformers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, hidden_nD: Tensor) -> Tensor:
        """(n, D) -> (n,) in fp32."""
        scores_n: Tensor = self.score(hidden_nD).squeeze(-1).float()
        return scores_n

    def init_tensor(self, name: str, tensor: Tensor, generator: Generator) -> None:
        """Normal with deviation 1/(D + 1), so that scores begin near 0."""
        tensor.normal_(0.0, 1 / (tensor.shape[-1] + 1), generator=generator)
