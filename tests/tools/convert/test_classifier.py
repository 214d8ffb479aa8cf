"""Heads of reward models: an export says where transformers does not read them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import CONFIG_MAPPING

from mt_tools.convert.classifier import classifier_config, say_classifier

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 20}
CASES = {
    "gpt2": ("GPT2ForSequenceClassification", ""),
    "gemma3_text": ("Gemma3TextForSequenceClassification", ""),
    "ctrl": ("CTRLForSequenceClassification", "draws classifier.weight anew, and does not read score.weight"),
    "granite": ("GraniteForSequenceClassification", "transformers has no model with scores of the type granite"),
}


@pytest.mark.parametrize("kind", CASES)
def test_a_head_that_transformers_does_not_read_is_told(kind: str, tmp_path: Path) -> None:
    architecture, told = CASES[kind]
    own = CONFIG_MAPPING[kind](**SMALL).to_dict()
    content = classifier_config(
        {**own, "model_type": kind, "architectures": [architecture.split("For")[0] + "ForCausalLM"]}
    )
    assert content["architectures"] == [architecture]
    (tmp_path / "config.json").write_text(json.dumps(content))
    said: list[str] = []
    say_classifier(tmp_path, ["score.weight"], said.append)
    assert len(said) == bool(told)
    assert told in "".join(said)
