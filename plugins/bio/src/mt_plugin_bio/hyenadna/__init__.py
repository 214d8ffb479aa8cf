"""HyenaDNA: causal long convolutions over single letters (https://arxiv.org/abs/2306.15794)."""
