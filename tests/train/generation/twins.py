"""Tiny random models: one of ours beside the same one of transformers, and one that reads bytes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from transformers import LlamaConfig as TransformersConfig
from transformers import LlamaForCausalLM

from mt_plugin_llama.config import LlamaConfig
from mt_plugin_llama.model import Llama
from mt_plugin_standard.tokenizers.byte import ByteTokenizer
from mt_train.generation.loaded_model import LoadedModel


class LatinTokenizer(ByteTokenizer):
    """Bytes, but each is a character of its own: what a random model says is text, and not broken UTF-8."""

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(token for token in ids if token < 256).decode("latin-1")


Pair = tuple[Llama, LlamaForCausalLM]


def twins(vocabulary: int, *, sharpness: float = 1.0) -> Pair:
    """One random model, twice. A larger ``sharpness`` makes its distributions less even.

    Its weights are wider than usual: with the usual ones attention does next to nothing, and a wrong position or mask
    would not show.
    """
    torch.manual_seed(1)
    shape = {"vocab_size": vocabulary, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3}
    theirs = LlamaForCausalLM(
        TransformersConfig(
            **shape,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            initializer_range=0.3,
        )
    ).eval()
    with torch.no_grad():
        theirs.lm_head.weight.mul_(sharpness)
    theirs.generation_config.eos_token_id = theirs.generation_config.bos_token_id = None
    ours = Llama(
        LlamaConfig(
            vocab_size=vocabulary,
            dim=48,
            ffn_dim=64,
            n_layers=3,
            n_heads=4,
            n_kv_heads=2,
            max_seq_len=128,
            norm_eps=1e-6,
        )
    )
    ours.load_state_dict(theirs.state_dict())
    return ours.eval(), theirs


@pytest.fixture(scope="session")
def pair() -> Pair:
    return twins(97)


@pytest.fixture(scope="session")
def sharp_pair() -> Pair:
    return twins(23, sharpness=0.6)


@pytest.fixture(scope="session")
def loaded() -> LoadedModel:
    """A model of bytes with a context of 128 tokens."""
    tokenizer = LatinTokenizer()
    return LoadedModel(twins(tokenizer.size, sharpness=1.0)[0], tokenizer, 128, (tokenizer.eos_id,))
