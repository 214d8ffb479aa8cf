"""A tokenizer of bytes that has the special tokens of chat templates which write calls of tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mt_plugin_standard.tokenizers.huggingface import build_huggingface
from mt_plugin_standard.tokenizers.huggingface_config import HuggingFaceConfig

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|start_header_id|>", "<|end_header_id|>"]
SPECIAL += ["[TOOL_CALLS]", "[INST]", "[/INST]", "<|python_tag|>"]


def call_tokenizer(folder: Path) -> Any:
    """Return it, written into a folder; its special tokens give no text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", additional_special_tokens=SPECIAL
    ).save_pretrained(folder)
    return build_huggingface(HuggingFaceConfig(path=str(folder)))
