"""``mt-generate``: new text on standard output, everything else on standard error."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from mt_core.errors import UsageError
from mt_tools.cli.generate import _choices, main
from mt_train.checkpoint.manifest import MANIFEST, RESERVED, read_manifest, write_manifest
from mt_train.cli.train import main as train


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


def test_stop_texts_and_beams_and_choices_reach_the_text(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--run", str(run), "--prompt", "The ", "--max-new-tokens", "12"]
    assert main([*words, "--greedy"]) == 0
    whole = capsys.readouterr().out
    assert main([*words, "--greedy", "--stop", whole[3:5]]) == 0
    assert capsys.readouterr().out == whole[: whole.index(whole[3:5])] + "\n"
    assert main([*words, "--num-beams", "3"]) == 0
    assert capsys.readouterr().out
    assert main([*words, "--choices", "yes,no"]) == 0
    assert capsys.readouterr().out in ("yes\n", "no\n")


def test_choices_come_from_a_file_too(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "choices"
    file.write_text("only, this\n")
    assert main(["--run", str(run), "--prompt", "x", "--choices", str(file)]) == 0
    assert capsys.readouterr().out == "only, this\n"


def test_a_line_of_choices_ends_at_a_line_break_alone_and_no_byte_order_mark_is_one(tmp_path: Path) -> None:
    file = tmp_path / "choices.txt"
    file.write_bytes("\ufeffyes\r\nform\x0cfeed\nline\u2028separator\n".encode())
    assert _choices(str(file)) == ("yes", "form\x0cfeed", "line\u2028separator")
    file.write_text("yes\n\nno\n")
    with pytest.raises(UsageError, match=r"line 2 of .*choices.txt is empty"):
        _choices(str(file))


def test_a_file_of_prompts_is_answered_and_continued(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, out = tmp_path / "p.jsonl", tmp_path / "out.jsonl"
    prompts.write_text('{"prompt": "The "}\n{"prompt": "A", "id": "x"}\n{"prompt": "Some"}\n')
    words = ["--run", str(run), "--prompts", str(prompts), "--out", str(out), "--max-new-tokens", "5"]
    assert main([*words, "--batch-size", "2"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "prompts 3/3" in captured.err
    whole = out.read_bytes()
    assert [json.loads(line)["id"] for line in whole.splitlines()] == [1, "x", 3]
    out.write_bytes(whole[:-9])
    assert main(words) == 0
    assert out.read_bytes() == whole
    capsys.readouterr()
    assert main([*words, "--seed", "1"]) == 2
    assert "seed was 0 and is 1" in capsys.readouterr().err
    assert main([*words, "--seed", "1", "--overwrite"]) == 0
    assert len(out.read_bytes().splitlines()) == 3


def test_an_output_of_averaged_weights_goes_on_with_these_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    averaged = tmp_path / "run"
    words = ["--model", "llama", "--train.steps", "2", "--model.n-layers", "1", "--callbacks", "ema"]
    assert train([*words, "--output", str(averaged)]) == 0
    prompts, out = tmp_path / "p.jsonl", tmp_path / "out.jsonl"
    prompts.write_text('{"prompt": "The "}\n{"prompt": "A"}\n')
    words = ["--run", str(averaged), "--prompts", str(prompts), "--out", str(out), "--max-new-tokens", "5"]
    assert main([*words, "--averaged", "ema"]) == 0
    out.write_bytes(out.read_bytes()[:-9])
    capsys.readouterr()
    assert main(words) == 2
    assert "averaged was 'ema' and is None" in capsys.readouterr().err
    assert main([*words, "--averaged", "ema"]) == 0


def test_a_bad_line_is_told_before_the_model_is_looked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "fine"}\n{"promt": "x"}\n')
    words = ["--run", str(tmp_path / "none"), "--prompts", str(prompts), "--out", str(tmp_path / "out")]
    assert main(words) == 1
    assert f"error: {prompts}:2: needs prompt or messages" in capsys.readouterr().err


def test_a_conversation_over_pipes_answers_each_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:")
    words = ["--run", str(run), "--chat", "--max-new-tokens", "4", "--choices", "yes,no", "--system", "Short."]
    monkeypatch.setattr("sys.stdin", io.StringIO("Is it?\n/undo\nReally?\n/exit\nnever\n"))
    assert main([*words, "--chat-template", str(template)]) == 0
    captured = capsys.readouterr()
    assert [line in ("yes", "no") for line in captured.out.splitlines()] == [True, True]
    assert captured.err == "notice: the last turn is taken back\n"
    assert main(words) == 2
    assert "the tokenizer has no chat template" in capsys.readouterr().err


def test_a_run_whose_tokenizer_is_gone_says_what_to_give(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    config = yaml.safe_load((copy / "run.yaml").read_text())
    config["tokenizer"] = {"name": "huggingface", "path": str(tmp_path / "gone")}
    (copy / "run.yaml").write_text(yaml.safe_dump(config))
    assert main(["--run", str(copy), "--prompt", "x"]) == 2
    assert "tokenizer.path: is " in capsys.readouterr().err, "the checkpoint says another one"
    (step,) = (copy / "checkpoints").glob("step-*")
    manifest = {key: value for key, value in read_manifest(step).items() if key not in RESERVED}
    step_number, save_number = read_manifest(step)["step"], read_manifest(step)["save_number"]
    (step / MANIFEST).unlink()
    write_manifest(step, {**manifest, "config": config}, step=step_number, save_number=save_number)
    assert main(["--run", str(copy), "--prompt", "x"]) == 1
    says = (
        f"the run's tokenizer, huggingface at {tmp_path / 'gone'}, is gone; give where it is now with --tokenizer-path"
    )
    assert says in capsys.readouterr().err
    assert main(["--run", str(copy), "--prompt", "x", "--tokenizer", "byte", "--max-new-tokens", "2"]) == 0


def test_a_run_without_a_checkpoint_says_so(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("checkpoints"))
    assert main(["--run", str(copy), "--prompt", "x"]) == 1
    assert "holds no checkpoint" in capsys.readouterr().err


ASK = ["--run", "{run}", "--prompt", "x"]
FAULTS = {
    "empty prompt": (["--run", "{run}", "--prompt", ""], "the prompt is empty", 2),
    "long prompt": (["--run", "{run}", "--prompt", "x" * 600], "the prompt has 601 tokens, and the model takes 512", 2),
    "no model": (["--prompt", "x"], "give one of --run, --checkpoint", 2),
    "two models": (["--run", "{run}", "--checkpoint", "{run}", "--prompt", "x"], "got run, checkpoint", 2),
    "a run as weights": (
        ["--weights", "{run}", "--prompt", "x"],
        "It is a run, which a command that runs a model takes as --run {run}; `mt-convert",
        2,
    ),
    "a run's model": ([*ASK, "--model", "llama"], "--model belongs to --weights", 2),
    "path alone": (
        ["--model", "llama", "--weights", "{run}", "--tokenizer-path", "t", "--prompt", "x"],
        "--tokenizer-path needs the tokenizer that reads it",
        2,
    ),
    "no run": (["--run", "{run}/nothing", "--prompt", "x"], "nothing does not exist", 1),
    "no checkpoint": (["--run", "{run}/none", "--prompt", "x"], "does not exist", 1),
    "no weights": (["--weights", "{run}/none", "--prompt", "x"], "{run}/none does not exist; give a folder or file", 1),
    "nothing asked": (["--run", "{run}"], "give one of --prompt TEXT, --chat, or --prompts FILE", 2),
    "two questions": (
        [*ASK, "--chat"],
        "got prompt, chat; a turn of --chat is a line of standard input: echo TEXT |",
        2,
    ),
    "cold": ([*ASK, "--temperature", "0"], "--temperature must be at least 0.001", 2),
    "three faults": ([*ASK, "--top-k", "0", "--min-p", "2", "--max-new-tokens", "0"], "3 faults:", 2),
    "hot beams": ([*ASK, "--num-beams", "2", "--temperature", "2"], "--num-beams draws nothing by chance", 2),
    "stray option": ([*ASK, "--system", "x"], "--system belongs to --chat", 2),
    "stray batch": ([*ASK, "--batch-size", "2"], "--batch-size belongs to --prompts", 2),
    "stray template": ([*ASK, "--chat-template", "x"], "a --prompt is plain text", 2),
    "no template": (
        ["--run", "{run}", "--chat", "--chat-template", "{run}/none"],
        "--chat-template: cannot read the file",
        2,
    ),
    "no out": (["--run", "{run}", "--prompts", "x"], "needs a file for the texts: --out", 2),
    "out is in": (["--run", "{run}", "--prompts", "x", "--out", "x"], "would destroy it", 2),
    "out is a folder": (["--run", "{run}", "--prompts", "x", "--out", "{run}"], "is no regular file", 2),
    "no prompts": (["--run", "{run}", "--prompts", "{run}/x", "--out", "y"], "cannot read the prompts", 1),
    "empty choice": ([*ASK, "--choices", "a,,b"], "--choices: 'a,,b' is empty", 2),
    "choice twice": ([*ASK, "--choices", "a,b,a"], "--choices has 'a' twice", 2),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_gets_one_clear_message(fault: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, says, code = FAULTS[fault]
    assert main([word.replace("{run}", str(run)) for word in words]) == code
    captured = capsys.readouterr()
    assert says.replace("{run}", str(run)) in captured.err
    assert captured.out == ""


def test_what_is_not_there_is_told_before_torch_is_imported(tmp_path: Path) -> None:
    """All commands that read a run or weights, in one process."""
    code = (
        "import sys, mt_plugin_serve.command as serve, mt_tools.cli.convert as convert, mt_tools.cli.generate as generate\n"
        "for source in ('--run', '--weights'):\n"
        "    assert generate.main([source, 'none', '--prompt', 'x']) == 1\n"
        "    assert generate.main([source, 'none', '--chat']) == 1\n"
        "    assert serve.main([source, 'none', '--port', '0']) == 1\n"
        "assert convert.main(['none', 'out']) == 1\n"
        "assert 'torch' not in sys.modules, 'torch is imported'"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 7
    assert all(line.startswith(f"error: {tmp_path}/none does not exist; give ") for line in lines)


def test_a_damaged_checkpoint_is_refused_by_name(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = next((run / "checkpoints").glob("step-*/model/*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert main(["--run", str(run), "--prompt", "x"]) == 1
    assert f"model/{file.name} is damaged" in capsys.readouterr().err
