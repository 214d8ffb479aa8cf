"""Special ids of a run's tokenizer in ``config.json``, as the model type takes them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.huggingface import tiny_models
from transformers import AutoModelForCausalLM

from mt_plugin_huggingface.config import HuggingFaceConfig
from mt_plugin_huggingface.weights import HUGGINGFACE
from mt_tools.convert.folder import _write_config

PAD, END = 7, 9
IDS = torch.arange(3, 13)[None]
"""The padding token stands in it, as a text may have it."""


def logits_with_ids(kind: str, folder: Path, ids: dict[str, Any], head: str = "language") -> tuple[Any, Any]:
    """Logits of transformers for a model, and for its weights with the ``config.json`` that we write for other ids."""
    theirs = tiny_models.model(kind)
    theirs.save_pretrained(folder)
    options = HuggingFaceConfig(**HUGGINGFACE.values(folder))
    config, objective = SimpleNamespace(model=SimpleNamespace(options=options)), SimpleNamespace(head=head)
    parts = SimpleNamespace(config=config, objective_component=objective)
    source: Any = SimpleNamespace(parts=parts, checkpoint=None, writer=HUGGINGFACE)
    _write_config(source, folder, ids, [END], "float32")
    written = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        return theirs(IDS, use_cache=False).logits, written(IDS, use_cache=False).logits


@pytest.mark.parametrize("kind", ["xglm", "youtu", "cwm", "modernbert-decoder"])
@pytest.mark.parametrize(
    "ids", [{"bos_token_id": 5, "pad_token_id": PAD}, {"bos_token_id": None, "pad_token_id": None}]
)
def test_the_ids_of_another_tokenizer_leave_the_logits_as_they_are(
    kind: str, ids: dict[str, Any], tmp_path: Path
) -> None:
    before, after = logits_with_ids(kind, tmp_path, {**ids, "eos_token_id": END})
    assert torch.equal(before, after)
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == [2, END]


def test_a_reward_model_whose_padding_ends_texts_keeps_the_padding_that_its_config_needs(tmp_path: Path) -> None:
    ids = {"bos_token_id": None, "eos_token_id": END, "pad_token_id": END}
    logits_with_ids("modernbert-decoder", tmp_path, ids, head="own")
    assert json.loads((tmp_path / "config.json").read_text())["pad_token_id"] == 0


def test_the_row_of_padding_that_transformers_sets_to_zero_is_read_as_zero_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = tiny_models.model("youtu")
    theirs.config.pad_token_id = PAD
    with torch.no_grad():
        theirs.get_input_embeddings().weight[PAD] = 3.0
    theirs.save_pretrained(tmp_path)
    opened = AutoModelForCausalLM.from_pretrained(tmp_path).get_input_embeddings().weight
    assert not opened[PAD].any(), "as transformers reads it"
    config = HuggingFaceConfig(**HUGGINGFACE.values(tmp_path))
    read = HUGGINGFACE.tensors(tmp_path, config)[f"{config.kind.embed}.weight"]()
    assert torch.equal(read, opened)
    assert f"the row of token {PAD} (pad_token_id)" in capsys.readouterr().err
    content = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**content, "pad_token_id": None}))
    kept = HuggingFaceConfig(**HUGGINGFACE.values(tmp_path))
    assert HUGGINGFACE.tensors(tmp_path, kept)[f"{config.kind.embed}.weight"]()[PAD].eq(3.0).all()
    assert capsys.readouterr().err == ""
