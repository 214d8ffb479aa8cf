"""A tokenizer of each kind; the one of Hugging Face has the special tokens of every named template."""

from __future__ import annotations

from pydoc_data.topics import topics
from typing import Any

import pytest

from mt_plugin_standard.tokenizers.byte import ByteConfig, build_byte
from mt_plugin_standard.tokenizers.huggingface import HuggingFaceConfig, build_huggingface
from mt_plugin_standard.tokenizers.sentencepiece import SentencePieceConfig, build_sentencepiece

SPECIALS = [
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<start_of_turn>", "<end_of_turn>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
    *(
        "<｜User｜>",
        "<｜Assistant｜>",
        "<｜end▁of▁sentence｜>",
        "<reserved_106>",
        "<reserved_107>",
        "<think>",
        "</think>",
    ),
    *("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>"),
]
TEXTS = [line for name in sorted(topics) for line in topics[name].splitlines() if line.strip()][:300]


@pytest.fixture(scope="session")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Byte-level BPE, as transformers has it."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=520, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(TEXTS, trainer)
    begin = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", inner.token_to_id("<s>"))])
    inner.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), begin])  # as Llama 3's
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")
    fast.add_special_tokens({"additional_special_tokens": SPECIALS[2:]})
    return fast


@pytest.fixture(scope="session")
def tokenizers(theirs: Any, train_sentencepiece: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same ones as ours."""
    folder = tmp_path_factory.mktemp("tokenizers")
    theirs.save_pretrained(folder / "huggingface")
    train_sentencepiece(folder / "tokenizer.model", TEXTS, 500)
    return {
        "byte": build_byte(ByteConfig()),
        "huggingface": build_huggingface(HuggingFaceConfig(path=str(folder / "huggingface"))),
        "sentencepiece": build_sentencepiece(SentencePieceConfig(path=str(folder / "tokenizer.model"))),
    }


@pytest.fixture(params=["byte", "huggingface", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest, tokenizers: dict[str, Any]) -> Any:
    """Each in turn."""
    return tokenizers[request.param]
