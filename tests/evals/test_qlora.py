"""MMLU as QLoRA has it equals a plain reimplementation of its callback (https://github.com/artidoro/qlora/blob/main/qlora.py)."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from llama_subject import FILES, LlamaSubject, open_evaluation, write_llama
from transformers import AutoTokenizer, LlamaForCausalLM


def qlora(folder: Path, rows: list[dict[str, Any]]) -> tuple[float, dict[str, float], list[list[float]]]:
    """Argmax over the logits of four letters behind the prompt, and the mean over subjects of their accuracies."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    letters = [tokenizer(letter, add_special_tokens=False).input_ids[0] for letter in "ABCD"]
    right, found = defaultdict(list), []
    for row in rows:
        source = tokenizer(f"{tokenizer.bos_token}{row['input']}", add_special_tokens=False).input_ids
        target = tokenizer(f"{row['output']}{tokenizer.eos_token}", add_special_tokens=False).input_ids
        assert len(target) == 2
        with torch.inference_mode():
            logits = model(torch.tensor([source + target])).logits[0, len(source) - 1]
        found.append(logits.log_softmax(-1)[letters].tolist())
        right[row.get("subject", "")].append(letters[int(logits[letters].argmax())] == target[0])
    accuracies = {subject: sum(each) / len(each) for subject, each in right.items()}
    return sum(accuracies.values()) / len(accuracies), accuracies, found


@pytest.mark.parametrize("file", ["five_shot_mmlu_test.json", "zero_shot_mmlu_test.json"])
def test_qloras_files_give_qloras_figures(file: str, tmp_path: Path) -> None:
    folder = write_llama(tmp_path, begins=True)
    wanted, subjects, logprobs = qlora(folder, json.loads((FILES / "qlora" / file).read_text("utf-8")))
    ours = open_evaluation("mmlu", path=str(FILES / "qlora" / file)).run(LlamaSubject(folder))
    assert [row["logprobs"] for row in ours.rows] == [pytest.approx(each, abs=1e-4) for each in logprobs]
    if "five" in file:
        assert ours.figures["accuracy_macro"] == wanted
        assert {name: ours.groups[f"subject/{name}"]["accuracy"] for name in subjects} == subjects
        assert ours.figures["accuracy"] != wanted, "subjects of several sizes: micro is not macro"
    else:  # its rows have no subject, and QLoRA's own code stops at the missing key
        assert ours.figures["accuracy"] == wanted
        assert ours.groups == {}
