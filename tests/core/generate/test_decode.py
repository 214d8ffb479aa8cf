"""Generation equals transformers', token by token and rule by rule."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig as TransformersConfig
from transformers import LlamaForCausalLM
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from mt_core.builtin.tokenizers.byte import ByteConfig, build_byte
from mt_core.generate.decode import generate, stream_text
from mt_core.generate.sampling import SamplingRules, keep_top_k, keep_top_p, scale_temperature
from mt_plugin_llama.config import LlamaConfig
from mt_plugin_llama.model import Llama


@pytest.fixture(scope="module")
def pair() -> tuple[Llama, LlamaForCausalLM]:
    """One random model, twice."""
    torch.manual_seed(1)
    shape = {"vocab_size": 97, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3}
    theirs = LlamaForCausalLM(
        TransformersConfig(**shape, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128)
    ).eval()
    ours = Llama(
        LlamaConfig(
            vocab_size=97, dim=48, ffn_dim=64, n_layers=3, n_heads=4, n_kv_heads=2, max_seq_len=128, norm_eps=1e-6
        )
    )
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


@pytest.mark.parametrize("length", [1, 2, 17])
def test_greedy_output_equals_transformers_token_for_token(pair: tuple[Llama, LlamaForCausalLM], length: int) -> None:
    ours, theirs = pair
    prompt = torch.randint(0, 97, (1, length), generator=torch.Generator().manual_seed(length))
    expected = theirs.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=40,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    tokens = list(generate(ours, prompt[0].tolist(), max_new_tokens=40, rules=SamplingRules(greedy=True)))
    assert tokens == expected[0, length:].tolist()


def test_generation_ends_before_the_stop_token(pair: tuple[Llama, LlamaForCausalLM]) -> None:
    tokens = list(generate(pair[0], [3, 4], max_new_tokens=20, rules=SamplingRules(greedy=True)))
    stopped = list(generate(pair[0], [3, 4], max_new_tokens=20, rules=SamplingRules(greedy=True), eos_id=tokens[5]))
    assert stopped == tokens[: tokens.index(tokens[5])]


def test_equal_seeds_sample_equal_tokens(pair: tuple[Llama, LlamaForCausalLM]) -> None:
    def sample(seed: int) -> list[int]:
        dice = torch.Generator().manual_seed(seed)
        return list(generate(pair[0], [5], max_new_tokens=20, rules=SamplingRules(top_k=20), generator=dice))

    assert sample(1) == sample(1) != sample(2)


@pytest.mark.parametrize("seed", range(5))
def test_each_sampling_rule_equals_the_one_of_transformers(seed: int) -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(seed)) * 3
    ids = torch.zeros(1, 1, dtype=torch.long)
    assert torch.equal(scale_temperature(logits, 0.7), TemperatureLogitsWarper(0.7)(ids, logits[None])[0])
    for k in (1, 7, 50, 80):
        assert torch.equal(keep_top_k(logits, k), TopKLogitsWarper(k)(ids, logits[None].clone())[0])
    for p in (0.01, 0.5, 0.9, 1.0):
        assert torch.equal(keep_top_p(logits, p), TopPLogitsWarper(p)(ids, logits[None].clone())[0])


def test_streamed_text_is_the_whole_text_and_never_half_a_character() -> None:
    tokenizer, text = build_byte(ByteConfig()), "naïve – 漢字 🙂 end"
    pieces = list(stream_text(tokenizer, tokenizer.encode(text)))
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
