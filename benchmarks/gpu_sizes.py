"""Shapes that the benchmark trains, and the counting of their operations."""

from __future__ import annotations

from typing import Any, NamedTuple


class Size(NamedTuple):
    """A Llama by the names of transformers, with the rows that its cases take unless they say otherwise."""

    shape: dict[str, Any]
    length: int
    rows: int

    @property
    def weights(self) -> int:
        """Numbers of all weights; a tied embedding counts once."""
        get = self.shape.__getitem__
        width, kv = get("hidden_size"), get("hidden_size") // get("num_attention_heads") * get("num_key_value_heads")
        block = 2 * width * width + 2 * width * kv + 3 * width * get("intermediate_size") + 2 * width
        tables = 1 if get("tie_word_embeddings") else 2
        return int(get("num_hidden_layers") * block + tables * get("vocab_size") * width + width)

    def flops(self, length: int) -> float:
        """Operations of a trained token: 6 for each weight that multiplies, and causal attention; frozen weights count as trained."""
        looked_up = 0 if self.shape["tie_word_embeddings"] else self.shape["vocab_size"] * self.shape["hidden_size"]
        return (  # type: ignore[no-any-return]
            6.0 * (self.weights - looked_up)
            + 6.0 * self.shape["num_hidden_layers"] * self.shape["hidden_size"] * length
        )


def _llama(width: int, layers: int, heads: int, kv: int, ffn: int, vocabulary: int, *, tied: bool) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": ffn,
        "vocab_size": vocabulary,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": tied,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
    }


SIZES = {
    "tiny": Size(_llama(64, 2, 4, 2, 128, 512, tied=True), length=64, rows=2),
    "1b": Size(_llama(2048, 16, 32, 8, 8192, 128_256, tied=True), length=4096, rows=4),
    "8b": Size(_llama(4096, 32, 32, 8, 14_336, 128_256, tied=False), length=4096, rows=2),
}
"""``1b`` and ``8b`` have the shapes of Llama 3.2 1B and Llama 3.1 8B (their ``config.json``)."""

PEAK = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "B200": 2250e12, "L40S": 362e12, "RTX 4090": 165e12}
"""Dense bf16 operations a second of a GPU whose name has this in it, from NVIDIA's data sheets."""


def peak_of(name: str) -> float | None:
    """Return the peak of a GPU by what torch calls it; ``None`` where it is not in the table."""
    return next((peak for key, peak in PEAK.items() if key in name), None)
