"""``mt-generate``: new text on standard output, everything else on standard error."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mt_core.cli.generate import main
from mt_core.cli.train import main as train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generate") / "run"
    words = ["--model", "llama", "--train.steps", "2", "--model.n-layers", "1", "--output", str(folder)]
    assert train(words) == 0
    return folder


def test_a_run_continues_a_prompt(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--run", str(run), "--prompt", "The ", "--max-new-tokens", "12", "--seed", "3"]
    assert main(words) == 0
    first = capsys.readouterr()
    assert main(words) == 0
    assert capsys.readouterr().out == first.out
    assert first.out.endswith("\n")
    assert "The " not in first.out[:4]
    assert first.err == ""


def test_it_stops_at_the_models_context_and_says_so(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--run", str(run), "--prompt", "x" * 508, "--max-new-tokens", "9", "--greedy"]) == 0
    assert "stopped at the model's 512 tokens, 6 short" in capsys.readouterr().err


def test_weights_of_a_folder_generate_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {"vocab_size": 260, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    LlamaForCausalLM(LlamaConfig(**shape, num_attention_heads=2, max_position_embeddings=64)).save_pretrained(tmp_path)
    assert main(["--model", "llama", "--weights", str(tmp_path), "--prompt", "ab", "--max-new-tokens", "5"]) == 0
    assert capsys.readouterr().out


FAULTS = {
    "empty prompt": (["--run", "{run}", "--prompt", ""], "the prompt is empty", 2),
    "long prompt": (["--run", "{run}", "--prompt", "x" * 600], "the prompt has 601 tokens, and the model takes 512", 2),
    "no model": (["--prompt", "x"], "give one of --run, --checkpoint", 2),
    "two models": (["--run", "{run}", "--checkpoint", "{run}", "--prompt", "x"], "got run, checkpoint", 2),
    "weights alone": (["--weights", "{run}", "--prompt", "x"], "--weights needs the family", 2),
    "no run": (["--run", "{run}/nothing", "--prompt", "x"], "nothing does not exist", 1),
    "no checkpoint": (["--run", "{run}/logs", "--prompt", "x"], "does not exist", 1),
    "cold": (["--run", "{run}", "--prompt", "x", "--temperature", "0"], "--temperature must be above 0", 2),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_gets_one_clear_message(fault: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, says, code = FAULTS[fault]
    assert main([word.replace("{run}", str(run)) for word in words]) == code
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.out == ""


def test_a_damaged_checkpoint_is_refused_by_name(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = next((run / "checkpoints").glob("step-*/model/*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert main(["--run", str(run), "--prompt", "x"]) == 1
    assert f"model/{file.name} is damaged" in capsys.readouterr().err
